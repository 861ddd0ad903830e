//! A server and its witnesses, on a disk that loses power: what is signed is durable, the second tree survives or is
//! made again, and the proofs that clients get are valid.

use crate::common;

use common::core::settings;
use common::*;
use holdfast_checkpoint::checkpoint::log_key;
use holdfast_checkpoint::cosignature;
use holdfast_checkpoint::head;
use holdfast_checkpoint::judge::authenticate;
use holdfast_checkpoint::note::VerifierKey;
use holdfast_checkpoint::submission::Submission;
use holdfast_crypto::PublicKey;
use holdfast_log::Storage;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::message::{Request, Response, ViewReply, WitnessedHead};
use holdfast_server::witnessing::CosignatureError;
use holdfast_server::{Caller, Clock, FileSystem, ServerCore};
use holdfast_witness::state::CosignError;
use holdfast_witness::{WitnessError, WitnessReply, WitnessState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn wall_ns(&self) -> i64 {
        self.0.load(Ordering::SeqCst) as i64 * 1_000_000
    }
    fn monotonic_ms(&self) -> u64 {
        self.0.fetch_add(10, Ordering::SeqCst)
    }
}

struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    core: ServerCore,
    _folder: tempfile::TempDir,
    witness: WitnessState,
}

fn open(storage: Arc<dyn Storage>, clock: Arc<TestClock>) -> ServerCore {
    let allowed = Box::new(|key: &PublicKey| *key == superuser().public());
    ServerCore::open(storage, key(2), settings(), allowed, clock).unwrap()
}

impl World {
    fn new() -> World {
        let disk = PowerLoss::new(7);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(disk.storage(), clock.clone());
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("witness");
        WitnessState::init(&state, "witness.example/w1", None).unwrap();
        let world =
            World { disk, clock, core, witness: WitnessState::open(&state).unwrap(), _folder: folder };
        committed(world.ask(0, creation(key(2).public(), 3)), &key(2).public());
        world
    }

    fn ask(&self, device: u8, request: Request) -> Response {
        let key = if device == 0 { superuser() } else { key(10 + device) };
        let file_system = self
            .core
            .greet(key.public(), true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
            .file_system;
        let caller = Caller { peer: key.public(), local: true, file_system, answer_bytes: usize::MAX };
        self.core.handle(&caller, request)
    }

    fn look(&self) -> ViewReply {
        view(self.ask(1, Request::Look { log_size: 0 }))
    }

    fn operate(&self, author: &mut Author) {
        let request = author.fast(&self.look().view);
        committed(self.ask(author.device.0 as u8, request), &key(2).public());
    }

    fn file_system(&self) -> Arc<FileSystem> {
        self.core.file_systems().remove(0)
    }

    /// Has a witness, the real one without its sockets, sign the newest head.
    fn round(&self) -> Result<(), CosignatureError> {
        let logs = [log_key(&file_system(), key(2).public())];
        self.file_system()
            .request_cosignature(0, Duration::ZERO, &mut |sent| answer(&self.witness, &logs, sent))
    }

    fn heads(&self, log_size: u64) -> Vec<WitnessedHead> {
        match self.ask(1, Request::Witnessed { log_size }) {
            Response::Witnessed(heads) => heads,
            other => panic!("{other:?}"),
        }
    }

    /// The size of the one head that is shown, after all checks of a client.
    fn verified(&self, accepted: holdfast_protocol::structure::LogHead) -> u64 {
        let heads = self.heads(accepted.size);
        let witnesses = [self.witness.verifier().clone()];
        let vouched = head::verify(&file_system(), &[key(2).public()], &witnesses, accepted, &heads[0]);
        vouched.expect("what an honest server shows holds").head.size
    }

    fn restart(mut self, crash: Crash) -> World {
        drop(self.core);
        self.disk.restart(crash);
        self.core = open(self.disk.storage(), self.clock.clone());
        self
    }
}

/// What a witness answers to a request, without HTTP.
fn answer(
    witness: &WitnessState,
    logs: &[VerifierKey],
    sent: &Submission,
) -> Result<WitnessReply, WitnessError> {
    let signed = authenticate(&sent.to_string(), logs)
        .map_err(CosignError::from)
        .and_then(|authentic| witness.cosign(&authentic, 1_700_000_000));
    match signed {
        Ok(line) => {
            let time_s = cosignature::verify(witness.verifier(), &sent.note.text, &line).expect("signed");
            Ok(WitnessReply::Cosigned(line, time_s))
        }
        Err(CosignError::Refused(refusal)) => match refusal {
            holdfast_checkpoint::judge::Refusal::OldSize(size) => Ok(WitnessReply::OldSize(size)),
            refusal => Err(WitnessError::Refused { status: refusal.status(), text: refusal.to_string() }),
        },
        Err(error) => panic!("{error}"),
    }
}

/// Proves: each head that is shown is within what the client has accepted, however far behind that is, with valid
/// proofs. Without witnesses no head is shown.
#[test]
fn heads_hold_for_everybody() {
    let world = World::new();
    assert_eq!(world.heads(1), Vec::new());
    let mut author = Author::new(1);
    let mut accepted = vec![world.look().view.log];
    world.round().unwrap();
    for _ in 0..20 {
        world.operate(&mut author);
        world.round().unwrap();
        accepted.push(world.look().view.log);
    }
    for head in &accepted {
        assert_eq!(world.verified(*head), head.size);
    }
    // A client that has seen more than is signed is shown the newest head that is.
    world.operate(&mut author);
    assert_eq!(world.verified(world.look().view.log), accepted.last().unwrap().size);
    assert_eq!(world.heads(1000), Vec::new(), "more than there is");
    assert_eq!(world.heads(0), Vec::new());
}

/// Proves: after power losses, lost answers and a lost tree, the witness is never asked to sign two histories, and goes
/// on signing.
#[test]
fn an_honest_server_never_contradicts_itself() {
    let mut world = World::new();
    let mut author = Author::new(1);
    let tree = format!("witness-tree-{}", file_system());
    for round in 0..21 {
        for _ in 0..9 {
            world.operate(&mut author);
        }
        match round % 7 {
            0 => world.round().unwrap(),
            // The witness has signed, and its answer does not reach the server.
            1 => {
                let logs = [log_key(&file_system(), key(2).public())];
                let lost = world.file_system().request_cosignature(0, Duration::ZERO, &mut |sent| {
                    let _ = answer(&world.witness, &logs, sent);
                    Err(WitnessError::Unreachable("the answer was lost".to_owned()))
                });
                assert!(lost.is_err());
            }
            2 => world = world.restart(Crash::PowerLoss),
            // The tree on disk is whole, altered at its beginning or its end, lost, or of an unknown size.
            what => {
                world.round().unwrap();
                world.core.checkpoint_if_due();
                match what {
                    3 => {}
                    4 => world.disk.corrupt(&tree, 40),
                    5 => world.disk.delete(&tree),
                    _ => world.disk.corrupt(&format!("heads-{}", file_system()), 9),
                }
                world = world.restart(Crash::PowerLoss);
            }
        }
        // A round may fail when it finds the damage; the next one succeeds.
        world.round().or_else(|_| world.round()).unwrap();
        let log = world.look().view.log;
        assert_eq!(world.verified(log), log.size, "round {round}");
    }
    assert_eq!(world.witness.refused(), Vec::<std::path::PathBuf>::new());
}

/// Proves: no witness signs for a server on the data of an older backup, and the server says why.
#[test]
fn an_older_backup_is_not_signed_for() {
    let mut world = World::new();
    let mut author = Author::new(1);
    world.operate(&mut author);
    world.round().unwrap();
    // The witness has signed for the true server; the restored one has no record of that.
    let ahead = World::new();
    let mut other = Author::new(2);
    for _ in 0..5 {
        ahead.operate(&mut other);
    }
    let logs = [log_key(&file_system(), key(2).public())];
    let refused = ahead
        .file_system()
        .request_cosignature(0, Duration::ZERO, &mut |sent| answer(&world.witness, &logs, sent))
        .unwrap_err();
    assert!(matches!(refused, CosignatureError::OtherHistory { status: 409 | 422, .. }), "{refused}");
    assert!(refused.to_string().contains("another history"), "{refused}");
    for _ in 0..9 {
        world.operate(&mut author);
    }
    world.round().unwrap();
    let refused = ahead
        .file_system()
        .request_cosignature(0, Duration::ZERO, &mut |sent| answer(&world.witness, &logs, sent))
        .unwrap_err();
    assert!(matches!(refused, CosignatureError::OperationsLost { .. }), "{refused}");
    assert!(refused.to_string().contains("operations are lost"), "{refused}");
    world = world.restart(Crash::PowerLoss);
    world.round().unwrap();
}
