//! The server without sockets: rights, policing, durability, full disks, power loss.

use crate::common;

use common::core::{TestClock, settings};
use common::*;
use holdfast_content::{BlockKind, DeviceId, Parcel, Prefix};
use holdfast_crypto::{Digest, DigestKey, PublicKey};
use holdfast_log::Storage;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::certificate::Path;
use holdfast_protocol::log_tree::verify_consistency;
use holdfast_protocol::message::{Attached, Request, Response, ServerError, ServerKeys, TreeData, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::LogHead;
use holdfast_server::{Caller, OpenError, ServerCore};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    core: ServerCore,
}

fn try_open(storage: Arc<dyn Storage>, clock: Arc<TestClock>) -> Result<ServerCore, OpenError> {
    let allowed = Box::new(|key: &PublicKey| *key == superuser().public());
    ServerCore::open(storage, key(2), settings(), allowed, clock)
}

fn open(storage: Arc<dyn Storage>, clock: Arc<TestClock>) -> ServerCore {
    try_open(storage, clock).unwrap()
}

impl World {
    /// A server with a file system of the superuser and three people.
    fn new() -> World {
        let world = World::empty();
        committed(world.ask(0, creation(key(2).public(), 3)), &key(2).public());
        world
    }

    fn empty() -> World {
        let disk = PowerLoss::new(7);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(disk.storage(), clock.clone());
        World { disk, clock, core }
    }

    fn caller(&self, key: PublicKey) -> Caller {
        let file_system = self
            .core
            .greet(key, true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
            .file_system;
        Caller { peer: key, local: true, file_system, answer_bytes: usize::MAX }
    }

    /// Makes a request as a device; 0 is the superuser's.
    fn ask(&self, device: u8, request: Request) -> Response {
        let key = if device == 0 { superuser() } else { key(10 + device) };
        self.core.handle(&self.caller(key.public()), request)
    }

    fn look(&self, device: u8) -> ViewReply {
        view(self.ask(device, Request::Look { log_size: 0 }))
    }

    fn fast(&self, author: &mut Author) -> Response {
        let request = author.fast(&self.look(author.device.0 as u8).view);
        self.ask(author.device.0 as u8, request)
    }

    fn restart(mut self, crash: Crash) -> World {
        drop(self.core);
        self.disk.restart(crash);
        self.core = open(self.disk.storage(), self.clock.clone());
        self
    }
}

fn invalid(response: &Response) -> bool {
    matches!(response, Response::Error(ServerError::Invalid(_)))
}

fn not_allowed(response: &Response) -> bool {
    matches!(response, Response::Error(ServerError::NotAllowed(_)))
}

/// Proves: file systems can be created by those whom the policy names, in the superuser's own session. The same request
/// sent again gets the same answer, and another founding of the same file system is refused.
#[test]
fn creation_is_policed_and_repeatable() {
    let world = World::empty();
    let server = key(2).public();
    let request = creation(server, 1);
    let ask = |peer: PublicKey, local: bool, request: Request| {
        world.core.handle(&Caller { peer, local, file_system: None, answer_bytes: usize::MAX }, request)
    };
    assert!(not_allowed(&ask(key(3).public(), false, request.clone())), "neither local nor listed");
    assert!(not_allowed(&ask(key(3).public(), true, request.clone())), "another's key");
    let foreign = creation(key(9).public(), 1);
    assert!(invalid(&ask(superuser().public(), true, foreign)), "the list names another server");
    committed(ask(superuser().public(), false, request.clone()), &server);
    committed(ask(superuser().public(), false, request), &server);
    let other = creation(server, 2);
    assert_eq!(ask(superuser().public(), false, other), Response::Error(ServerError::Exists));
    let world = world.restart(Crash::PowerLoss);
    assert_eq!(world.look(0).view.slots.len(), 1);
}

/// Proves: strangers get the proof of identity and nothing else; versions are negotiated; an unknown file system is
/// named as such.
#[test]
fn greetings_distinguish_strangers() {
    let world = World::new();
    let greeted = world.core.greet(key(77).public(), false, (1, 9), Some(file_system()));
    let Response::Hello(welcome) = greeted.answer else { panic!("a welcome") };
    assert_eq!((welcome.version, welcome.device, greeted.admitted), (4, None, false));
    assert!(welcome.file_system.unwrap().1.verify(&superuser().public()));
    let greeted = world.core.greet(
        key(11).public(),
        false,
        holdfast_protocol::message::PROTOCOL_VERSIONS,
        Some(file_system()),
    );
    let Response::Hello(welcome) = greeted.answer else { panic!("a welcome") };
    assert_eq!((welcome.device, greeted.admitted), (Some(DeviceId(1)), true));
    let refused = |versions, wanted| world.core.greet(key(11).public(), false, versions, wanted).answer;
    assert_eq!(refused((5, 6), Some(file_system())), Response::Error(ServerError::Version(4, 4)));
    assert_eq!(refused((1, 3), Some(file_system())), Response::Error(ServerError::Version(4, 4)));
    assert_eq!(refused((4, 4), Some(Digest::ZERO)), Response::Error(ServerError::UnknownFileSystem));

    let stranger = world.caller(key(77).public());
    for request in [
        Request::Look { log_size: 0 },
        Request::Retrieve(vec![table(DeviceId(1), 1).0.address]),
        Request::Store(vec![table(DeviceId(1), 1).1]),
        Request::Snapshot,
        Request::Pin { addresses: vec![], seconds: 1 },
        Request::Hold { name: "a".into(), roots: vec![table(DeviceId(1), 1).0.address] },
        Request::Unhold { name: "a".into() },
        Request::Holds,
        Request::VRetrieve { key: key(11).public(), index: 0, before_ns: None },
    ] {
        assert!(not_allowed(&world.core.handle(&stranger, request.clone())), "{request:?}");
    }
    assert!(
        matches!(world.core.operation_status(&stranger, DeviceId(0), 1), Some(answer) if not_allowed(&answer))
    );
    let nowhere = Caller { peer: key(11).public(), local: true, file_system: None, answer_bytes: usize::MAX };
    assert!(invalid(&world.core.handle(&nowhere, Request::Look { log_size: 0 })));
}

/// Proves: what was acknowledged is there after a power loss, with a checkpoint in between and without, and the log of
/// updates can still prove that it only grew.
#[test]
fn acknowledged_operations_survive_power_loss() {
    let mut world = World::new();
    let mut authors = [Author::new(1), Author::new(2)];
    let mut heads: Vec<LogHead> = vec![world.look(1).view.log];
    for round in 0..30 {
        let author = &mut authors[round % 2];
        let number = committed(world.fast(author), &key(2).public());
        assert_eq!(number, author.last);
        heads.push(world.look(1).view.log);
        if round % 5 == 2 {
            world.core.checkpoint_if_due();
        }
        if round % 7 == 6 {
            world = world.restart(Crash::PowerLoss);
        }
        let shown = world.look(1);
        for author in &authors {
            let slot = shown.view.slots.get(&author.device);
            assert_eq!(slot.map_or(0, |slot| slot.value.number()), author.last);
        }
        for head in &heads {
            let reply = view(world.ask(2, Request::Look { log_size: head.size }));
            assert!(verify_consistency(*head, reply.view.log, &reply.consistency));
        }
    }
}

/// Proves: the same bytes get the same answer and are applied once, before and after a restart; a number that was
/// refused stays refused.
#[test]
fn resending_is_harmless() {
    let mut world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    let request = alice.fast(&world.look(1).view);
    committed(world.ask(1, request.clone()), &server);
    let size = world.look(1).view.log.size;
    committed(world.ask(1, request.clone()), &server);
    world = world.restart(Crash::PowerLoss);
    committed(world.ask(1, request), &server);
    assert_eq!(world.look(1).view.log.size, size);

    // Signed for a view that is no longer the present one.
    let mut bob = Author::new(2);
    let stale = bob.fast(&world.look(2).view);
    committed(world.fast(&mut alice), &server);
    assert_eq!(world.ask(2, stale.clone()), Response::Refused);
    assert_eq!(world.ask(2, stale.clone()), Response::Refused);
    world = world.restart(Crash::PowerLoss);
    assert_eq!(world.ask(2, stale), Response::Refused);
    bob.give_up();

    let (certificate, update) = bob.update(&world.look(2).view);
    let first = view(world.ask(2, update.clone()));
    let again = view(world.ask(2, update.clone()));
    assert_eq!((&first.view, &first.consistency), (&again.view, &again.consistency));
    world = world.restart(Crash::PowerLoss);
    let again = view(world.ask(2, update));
    assert_eq!(first.view, again.view);
    let commit = bob.commit(&first.view, &certificate);
    assert_eq!(committed(world.ask(2, commit.clone()), &server), 2);
    world = world.restart(Crash::PowerLoss);
    assert_eq!(committed(world.ask(2, commit), &server), 2);
    assert!(world.look(1).view.pending.is_empty());
}

/// Proves: a pending operation survives its session and a restart, blocks others no longer than the time-out, is then
/// aborted for good, and its author is told so.
#[test]
fn a_dead_client_is_passed_after_the_time_out() {
    let mut world = World::new();
    let mut dead = Author::new(1);
    let (certificate, update) = dead.update(&world.look(1).view);
    let ordered = view(world.ask(1, update));
    world = world.restart(Crash::Kill);
    assert_eq!(world.look(2).view.pending.len(), 1);
    let bob = world.caller(key(12).public());
    assert_eq!(world.core.operation_status(&bob, DeviceId(1), 1), None, "still pending");

    let mut other = Author::new(2);
    let (early, update) = other.update(&world.look(2).view);
    let shown = view(world.ask(2, update));
    assert!(!shown.view.pending[0].dead);
    committed(world.ask(2, other.commit(&shown.view, &early)), &key(2).public());
    world.clock.0.fetch_add(10_000, Ordering::SeqCst);
    let (late, update) = other.update(&world.look(2).view);
    let shown = view(world.ask(2, update));
    assert!(shown.view.pending[0].dead);
    committed(world.ask(2, other.commit(&shown.view, &late)), &key(2).public());
    assert_eq!(
        world.core.operation_status(&world.caller(key(12).public()), DeviceId(1), 1),
        Some(Response::Structure(None))
    );
    let returning = dead.commit(&ordered.view, &certificate);
    assert_eq!(world.ask(1, returning), Response::Aborted);
}

/// Proves: operations that are badly signed, foreign, misnumbered, unauthorised or with missing blocks are refused and
/// change nothing, and the file system goes on for everybody else.
#[test]
fn rule_breakers_harm_nobody() {
    let world = World::new();
    let server = key(2).public();
    let before = world.look(1).view;
    let mut alice = Author::new(1);

    let mut forged = Author { key: key(12), ..Author::new(1) };
    assert!(invalid(&world.ask(1, forged.fast(&before))), "another's signature");
    let mut disguised = Author { key: key(12), ..Author::new(1) };
    assert!(
        not_allowed(&world.ask(2, disguised.fast(&before)))
            || invalid(&world.ask(2, disguised.fast(&before)))
    );
    let mut skipping = Author { last: 4, ..Author::new(1) };
    assert!(invalid(&world.ask(1, skipping.fast(&before))), "numbers left out");
    let dangling = carrying(alice.clone().fast(&before), vec![].into());
    assert!(invalid(&world.ask(1, dangling)), "a table that was never stored");
    let fast = alice.clone().fast(&before);
    let Request::Fast { attached: mut altered, .. } = fast.clone() else { panic!() };
    altered.blocks[0].block.body.push(0);
    let altered = carrying(fast, altered);
    assert!(invalid(&world.ask(1, altered)));
    let (_, chunk) = block(BlockKind::Chunk, &vec![0x5a; 900 << 10]);
    let mut incompressible = chunk.clone();
    incompressible.block = holdfast_content::StoredBlock {
        codec: holdfast_content::Codec::Plain,
        body: vec![0x5a; 900 << 10],
        ..incompressible.block
    };
    let (_, update) = alice.clone().update(&before);
    let heavy = carrying(update, vec![incompressible; 2].into());
    assert!(invalid(&world.ask(1, heavy)), "too many bytes attached");
    let list = ServerKeys { file_system: file_system(), sequence: 2, keys: vec![server] };
    assert!(not_allowed(&world.ask(1, Request::SetServerKeys(Signed::new(list, &key(11))))));

    assert_eq!(world.look(1).view, before);
    // The refused operation has used up her first number.
    alice.last = 1;
    alice.give_up();
    committed(world.fast(&mut alice), &server);
    committed(world.fast(&mut Author::new(2)), &server);
}

/// An operation with other blocks than its author attached.
fn carrying(mut operation: Request, blocks: Attached) -> Request {
    let (Request::Fast { attached, .. } | Request::Update { attached, .. }) = &mut operation else {
        panic!("it carries none")
    };
    *attached = blocks;
    operation
}

/// Proves: an operation that was refused because blocks were missing is not accepted later, when another copy of it
/// brings them. (A mount that is killed leaves a copy that waits for leases. The next mount asks again without the
/// blocks, is refused, and gives the number up.)
#[test]
fn what_is_refused_for_missing_blocks_stays_refused() {
    let world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    let whole = alice.fast(&world.look(1).view);
    let bare = carrying(whole.clone(), vec![].into());
    assert!(invalid(&world.ask(1, bare)), "a table that was never stored");
    assert!(matches!(world.ask(1, whole.clone()), Response::Refused), "the copy comes too late");
    alice.give_up();
    committed(world.fast(&mut alice), &server);

    // The same for an operation that is ordered already.
    let (certificate, update) = alice.update(&world.look(1).view);
    let shown = view(world.ask(1, update)).view;
    let commit = alice.commit(&shown, &certificate);
    let Request::Commit { structure, .. } = commit.clone() else { panic!() };
    assert!(invalid(&world.ask(1, Request::Commit { structure, attached: vec![].into() })));
    assert!(matches!(world.ask(1, commit), Response::Aborted), "the copy comes too late");
    alice.give_up();
    let (certificate, update) = alice.update(&world.look(1).view);
    let shown = view(world.ask(1, update)).view;
    committed(world.ask(1, alice.commit(&shown, &certificate)), &server);
    // Also after a restart, when its number has long passed.
    let world = world.restart(Crash::PowerLoss);
    assert!(invalid(&world.ask(1, whole)));
}

/// Proves: server keys change only to a higher sequence number, by the superuser, and never so that this server locks
/// itself out.
#[test]
fn server_keys_are_replaced_in_order() {
    let mut world = World::new();
    let list = |sequence, keys: Vec<PublicKey>| {
        Request::SetServerKeys(Signed::new(
            ServerKeys { file_system: file_system(), sequence, keys },
            &superuser(),
        ))
    };
    let server = key(2).public();
    assert!(invalid(&world.ask(0, list(2, vec![key(9).public()]))));
    assert!(invalid(&world.ask(0, list(1, vec![server, key(9).public()]))));
    assert_eq!(world.ask(0, list(2, vec![server, key(9).public()])), Response::Done);
    assert_eq!(world.ask(0, list(2, vec![server, key(9).public()])), Response::Done, "sent again");
    world = world.restart(Crash::PowerLoss);
    let Response::Hello(welcome) = world
        .core
        .greet(key(11).public(), false, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
        .answer
    else {
        panic!("a welcome")
    };
    assert_eq!(welcome.file_system.unwrap().1.value.sequence, 2);
}

/// Proves: a removed device is refused from then on, an added one is accepted, without a new session.
#[test]
fn membership_in_force_decides() {
    let world = World::new();
    let server = key(2).public();
    committed(world.fast(&mut Author::new(3)), &server);
    let mut next = membership(2, 4);
    next.devices.get_mut(&DeviceId(3)).unwrap().removed_at = Some(2);
    let block = next.to_block(&holdfast_crypto::DigestKey::WELL_KNOWN).unwrap();
    let reference = block.reference();
    let view = world.look(0).view;
    let mut author = Author { key: superuser(), last: 1, ..Author::new(0) };
    let mut certificate = author.certificate(&view, Path::Fast);
    certificate.deltas = vec![holdfast_protocol::certificate::Delta::SetMembers { reference }];
    let version = holdfast_protocol::structure::HandleVersion { version: 2, reference };
    let handles = [(holdfast_content::PrincipalId::Members, version)].into();
    let structure = sign_structure(&view, &certificate, &superuser(), handles);
    let address = reference.address;
    let change = Request::Fast {
        certificate: Signed::new(certificate, &superuser()),
        structure,
        attached: vec![holdfast_protocol::message::AddressedBlock { address, block: block.to_stored() }]
            .into(),
        log_size: 0,
        by_difference: false,
        lease: None,
    };
    committed(world.ask(0, change), &server);
    assert!(not_allowed(&world.ask(3, Request::Look { log_size: 0 })));
    let reply = world.look(4);
    assert!(reply.blocks.iter().any(|hint| hint.address == address), "a newcomer is given the membership");
    let settled = common::view(world.ask(4, Request::Look { log_size: reply.view.log.size }));
    assert!(settled.blocks.is_empty(), "nothing has changed since");
}

/// Proves: blocks are served to members only, as they were stored, with the header of the first who stored them. An
/// answer that would be too large ends early. Signed blocks and DECREF work through the server.
#[test]
fn blocks_are_stored_and_served() {
    let world = World::new();
    let (first, chunk) = block(BlockKind::Chunk, b"hello");
    assert_eq!(world.ask(1, Request::Store(vec![chunk.clone()])), Response::Done);
    let missing = block(BlockKind::Chunk, b"never stored").0.address;
    let Response::Blocks(found) = world.ask(2, Request::Retrieve(vec![first.address, missing])) else {
        panic!()
    };
    let (header, served) = found[0].clone().unwrap();
    assert_eq!((header.owner, &served), (DeviceId(1), &chunk));
    assert!(found[1].is_none());
    let mut wrong = chunk.clone();
    wrong.address = missing;
    assert!(invalid(&world.ask(1, Request::Store(vec![wrong]))));
    assert!(invalid(&world.ask(1, Request::Retrieve(vec![missing; 5000]))));

    let large: Vec<_> =
        (0..10u32).map(|seed| block(BlockKind::Chunk, &noise(u64::from(seed), 1 << 20))).collect();
    for (_, chunk) in &large {
        assert_eq!(world.ask(1, Request::Store(vec![chunk.clone()])), Response::Done);
    }
    let addresses: Vec<Digest> = large.iter().map(|(reference, _)| reference.address).collect();
    let slow = Caller { answer_bytes: 2 << 20, ..world.caller(key(12).public()) };
    let answer = world.core.handle(&slow, Request::Retrieve(addresses.clone()));
    let Response::Blocks(found) = answer else { panic!() };
    assert_eq!(found.len(), 1, "one, and no second that would go beyond what the link carries");
    let Response::Blocks(found) = world.ask(2, Request::Retrieve(addresses)) else { panic!() };
    assert!(found.len() == 7 && found.iter().all(Option::is_some), "{} blocks of 1 MiB", found.len());

    assert_eq!(
        world.ask(2, Request::Dereference(vec![first.address])),
        Response::Dereferenced(0),
        "not its storer"
    );
    assert_eq!(world.ask(1, Request::Dereference(vec![first.address])), Response::Dereferenced(1));
    let bytes = holdfast_store::signed_block_bytes(&file_system(), 3, b"mine");
    let signature = key(11).sign(holdfast_crypto::Domain::SignedBlock, &bytes);
    let store = Request::VStore { index: 3, bytes: b"mine".to_vec(), signature };
    assert_eq!(world.ask(1, store.clone()), Response::Done);
    assert!(invalid(&world.ask(2, store)), "signed by another");
    let Response::SignedBlock(Some((bytes, found, _))) =
        world.ask(2, Request::VRetrieve { key: key(11).public(), index: 3, before_ns: None })
    else {
        panic!()
    };
    assert_eq!((bytes.as_slice(), found), (&b"mine"[..], signature));
}

/// Proves: on a full disk requests are answered with NoSpace and change nothing. When there is room again, the same
/// bytes are accepted. Nothing acknowledged is lost in between or after a power loss.
#[test]
fn a_full_disk_is_survived() {
    let mut world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    for _ in 0..5 {
        committed(world.fast(&mut alice), &server);
    }
    world.disk.set_capacity(Some(world.disk.used_bytes()));
    let mut refused = None;
    for number in 0..64u32 {
        let chunk = block(BlockKind::Chunk, &noise(u64::from(number), 60_000)).1;
        match world.ask(2, Request::Store(vec![chunk])) {
            Response::Done => {}
            Response::Error(ServerError::NoSpace) => {
                refused = Some(number);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(refused.is_some(), "the disk never filled up");
    let before = world.look(1).view;
    let request = alice.fast(&before);
    // The log may still have room for something this small; then it must be durable.
    let mut answer = world.ask(1, request.clone());
    let mut waiting = request;
    for _ in 0..2000 {
        if !matches!(answer, Response::Committed(_)) {
            break;
        }
        waiting = alice.fast(&world.look(1).view);
        answer = world.ask(1, waiting.clone());
    }
    assert_eq!(answer, Response::Error(ServerError::NoSpace));
    assert_eq!(world.look(1).view.slots[&DeviceId(1)].value.number(), alice.last - 1);
    assert!(world.core.failure().borrow().is_none());
    world.disk.set_capacity(None);
    assert_eq!(committed(world.ask(1, waiting.clone()), &server), alice.last);
    world = world.restart(Crash::PowerLoss);
    assert_eq!(world.look(1).view.slots[&DeviceId(1)].value.number(), alice.last);
    assert_eq!(committed(world.ask(1, waiting), &server), alice.last);
}

/// Proves: after a failed sync nothing is acknowledged any more, not even what would need no sync; a restart continues
/// with what was acknowledged.
#[test]
fn a_failed_sync_ends_the_service() {
    let mut world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    committed(world.fast(&mut alice), &server);
    world.disk.fail_syncs(1);
    let request = alice.fast(&world.look(1).view);
    assert!(matches!(world.ask(1, request.clone()), Response::Error(ServerError::Storage(_))));
    assert!(world.core.failure().borrow().is_some());
    assert!(matches!(world.ask(2, Request::Look { log_size: 0 }), Response::Error(ServerError::Storage(_))));
    world = world.restart(Crash::PowerLoss);
    assert_eq!(committed(world.ask(1, request), &server), alice.last);
}

/// Proves: wherever the power fails during a run of operations, what was acknowledged is there afterwards, what was not
/// can be sent again, and nothing is applied twice.
#[test]
fn power_loss_at_every_step() {
    let server = key(2).public();
    for step in (0..400).step_by(7) {
        let mut world = World::new();
        let (mut alice, mut bob) = (Author::new(1), Author::new(2));
        world.disk.crash_after(step);
        let mut acknowledged = (0, 0);
        let mut waiting = None;
        'run: for _ in 0..6 {
            for (author, done) in [(&mut alice, &mut acknowledged.0), (&mut bob, &mut acknowledged.1)] {
                let device = author.device.0 as u8;
                let Response::View(shown) = world.ask(device, Request::Look { log_size: 0 }) else {
                    break 'run;
                };
                let request = author.fast(&shown.view);
                match world.ask(device, request.clone()) {
                    Response::Committed(receipt) => {
                        *done = receipt.value.number;
                        world.core.checkpoint_if_due();
                    }
                    _ => {
                        waiting = Some((device, request));
                        break 'run;
                    }
                }
            }
        }
        world = world.restart(Crash::PowerLoss);
        let shown = world.look(1).view;
        let number = |device| shown.slots.get(&DeviceId(device)).map_or(0, |slot| slot.value.number());
        assert!(number(1) >= acknowledged.0 && number(2) >= acknowledged.1, "step {step}");
        if let Some((device, request)) = waiting {
            committed(world.ask(device, request), &server);
        }
        let shown = world.look(1).view;
        let operations: u64 = shown.slots.values().map(|slot| slot.value.number()).sum();
        assert_eq!(shown.log.size, operations, "step {step}: each operation once");
    }
}

/// Proves: garbage is collected, but not what is in force, nor what a head within the window leads to, nor what is
/// pinned; also when there is a restart between the noting of a head and the collection.
#[test]
fn garbage_collection_keeps_what_clients_may_need() {
    let hour = 3_600_000;
    let window = Duration::from_secs(24 * 3600);
    let mut world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    let here = |world: &World, device, number| {
        let address = table(DeviceId(device), number).0.address;
        let Response::Blocks(found) = world.ask(2, Request::Retrieve(vec![address])) else { panic!() };
        found[0].is_some()
    };
    let collect = |world: &World| {
        let reports = world.core.collect(window);
        let report = reports[0].1.as_ref().unwrap();
        assert!(report.missing.is_empty(), "{report:?}");
        report.dropped
    };
    committed(world.fast(&mut alice), &server);
    committed(world.fast(&mut Author::new(2)), &server);
    assert_eq!(collect(&world), 0, "all is young");
    world.clock.0.fetch_add(30 * hour, Ordering::SeqCst);
    assert_eq!(collect(&world), 0, "all is in force");
    committed(world.fast(&mut alice), &server);
    let pin = Request::Pin { addresses: vec![table(DeviceId(1), 2).0.address], seconds: 3600 };
    assert_eq!(world.ask(2, pin), Response::Done);
    committed(world.fast(&mut alice), &server);
    world = world.restart(Crash::PowerLoss);
    world.clock.0.fetch_add(12 * hour, Ordering::SeqCst);
    assert_eq!(collect(&world), 0, "the head before was noted 12 hours ago");
    assert!(here(&world, 1, 1) && here(&world, 1, 2));
    world.clock.0.fetch_add(30 * hour, Ordering::SeqCst);
    let pin = Request::Pin { addresses: vec![table(DeviceId(1), 2).0.address], seconds: 3600 };
    assert_eq!(world.ask(2, pin), Response::Done);
    assert_eq!(collect(&world), 1);
    assert!(!here(&world, 1, 1), "replaced 42 hours ago");
    assert!(here(&world, 1, 2), "pinned");
    assert!(here(&world, 1, 3) && here(&world, 2, 1), "in force");
    world.clock.0.fetch_add(2 * hour, Ordering::SeqCst);
    assert_eq!(collect(&world), 1);
    assert!(!here(&world, 1, 2), "the pin is over");
    world = world.restart(Crash::PowerLoss);
    assert!(here(&world, 1, 3) && here(&world, 2, 1) && !here(&world, 1, 1));
    committed(world.fast(&mut alice), &server);
}

/// Proves: members can hold blocks that are there, in their own name. Others see the hold and cannot end it; the
/// superuser can. It keeps what nobody refers to any more, over a restart and a power loss. Malformed requests are
/// refused.
#[test]
fn holds() {
    let mut world = World::new();
    let (root, block) = table(DeviceId(1), 9);
    let here = |world: &World| match world.ask(1, Request::Retrieve(vec![root.address])) {
        Response::Blocks(blocks) => blocks[0].is_some(),
        other => panic!("{other:?}"),
    };
    let hold = |name: &str| Request::Hold { name: name.into(), roots: vec![root.address] };
    assert_eq!(world.ask(1, hold("release/1")), Response::Held(vec![root.address]));
    assert_eq!(world.ask(1, Request::Store(vec![block])), Response::Done);
    assert_eq!(world.ask(1, hold("release/1")), Response::Held(vec![]));
    assert_eq!(world.ask(1, hold("release/1")), Response::Held(vec![]));
    assert!(not_allowed(&world.ask(2, hold("release/1"))));
    assert!(not_allowed(&world.ask(2, Request::Unhold { name: "release/1".into() })));
    for name in ["", "a b", "\n", &"x".repeat(300)] {
        assert!(matches!(world.ask(1, hold(name)), Response::Error(ServerError::Invalid(_))), "{name:?}");
    }
    let window = Duration::from_secs(24 * 3600);
    for crash in [Crash::PowerLoss, Crash::Kill] {
        world = world.restart(crash);
        world.clock.0.fetch_add(100 * 3600 * 1000, Ordering::SeqCst);
        world.core.collect(window)[0].1.as_ref().unwrap();
        let Response::Holds(shown) = world.ask(2, Request::Holds) else { panic!("a list") };
        let [shown] = &shown[..] else { panic!("{shown:?}") };
        assert_eq!((shown.name.as_str(), shown.device), ("release/1", DeviceId(1)));
        assert!(here(&world));
    }
    assert_eq!(world.ask(0, Request::Unhold { name: "release/1".into() }), Response::Done);
    assert_eq!(world.ask(0, Request::Unhold { name: "release/1".into() }), Response::Done);
    assert_eq!(world.ask(2, Request::Holds), Response::Holds(vec![]));
    world.core.collect(window)[0].1.as_ref().unwrap();
    assert!(!here(&world));
}

/// Proves: every sync that the server asks for is needed: without it, some power loss loses what was acknowledged, or
/// leaves a directory that cannot be served.
#[test]
fn every_sync_is_needed() {
    let survives = |seed: u64, disabled: Option<&'static str>| {
        let disk = PowerLoss::new(seed);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(disk.storage(), clock.clone());
        let mut world = World { disk, clock, core };
        if let Some(name) = disabled {
            world.disk.disable(Some(holdfast_log::SyncSite(name)));
        }
        committed(world.ask(0, creation(key(2).public(), 3)), &key(2).public());
        let mut alice = Author::new(1);
        for _ in 0..20 {
            committed(world.fast(&mut alice), &key(2).public());
            world.core.checkpoint_if_due();
        }
        drop(std::mem::replace(&mut world.core, {
            world.disk.restart(Crash::PowerLoss);
            match try_open(world.disk.storage(), world.clock.clone()) {
                Ok(core) => core,
                Err(_) => return false,
            }
        }));
        let Response::View(reply) = world.ask(2, Request::Look { log_size: 3 }) else { return false };
        reply.view.slots[&DeviceId(1)].value.number() == alice.last && !reply.consistency.is_empty()
    };
    for seed in 0..20 {
        assert!(survives(seed, None), "seed {seed}");
    }
    let disk = PowerLoss::new(1);
    let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
    let world = World { core: open(disk.storage(), clock.clone()), disk, clock };
    committed(world.ask(0, creation(key(2).public(), 3)), &key(2).public());
    let mut alice = Author::new(1);
    for _ in 0..20 {
        committed(world.fast(&mut alice), &key(2).public());
    }
    world.core.checkpoint_if_due();
    // The syncs of past states and of the witnesses' tree, which is made again from the log, have tests of their own.
    // Making a file syncs the directory for all files made with it, so none of these syncs is missed alone.
    let ours: Vec<_> =
        world.disk.sites().into_keys().filter(|site| site.0.starts_with("server: log-tree nodes")).collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    for site in ours {
        assert!((0..40).any(|seed| !survives(seed, Some(site.0))), "nothing depends on {site:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Proves: no request that can be decoded, however mutated, makes the server panic or keeps it from serving others.
    #[test]
    fn mangled_requests_are_survived(
        which in 0usize..13,
        changes in prop::collection::vec((any::<u32>(), any::<u8>()), 1..6),
        device in 0u8..4,
    ) {
        thread_local! {
            static WORLD: World = World::new();
        }
        WORLD.with(|world| {
            let shown = world.look(1).view;
            let author = Author::new(1);
            let mut last = author.clone();
            last.last = shown.slots.get(&DeviceId(1)).map_or(0, |slot| slot.value.number());
            let (certificate, update) = last.clone().update(&shown);
            let chunk = block(BlockKind::Chunk, b"some bytes").1;
            let opened = chunk.block.clone().open_any(&DigestKey::WELL_KNOWN, chunk.address, 100).unwrap();
            let mut prefix = Prefix::default();
            prefix.push(&opened);
            let parcel = Parcel::pack(&prefix, &[opened], 3).unwrap();
            let request = [
                last.clone().fast(&shown),
                last.commit(&shown, &certificate),
                update,
                Request::Store(vec![chunk.clone()]),
                Request::Retrieve(vec![chunk.address]),
                Request::Pin { addresses: vec![chunk.address], seconds: 60 },
                Request::Dereference(vec![chunk.address]),
                creation(key(2).public(), 2),
                Request::Look { log_size: 1 },
                Request::StoreParcels(vec![parcel.clone(), parcel]),
                Request::RetrieveParcel { wanted: vec![chunk.address; 3], bases: vec![chunk.address.into(); 2], level: 3 },
                Request::RetrieveTree { root: chunk.address, have: vec![chunk.address], data: TreeData::Always, bytes_max: 99, level: 3 },
                Request::Present(vec![chunk.address; 9]),
            ][which].clone();
            let mut bytes = holdfast_crypto::encode(&request);
            for (at, value) in &changes {
                let at = *at as usize % bytes.len();
                bytes[at] = *value;
            }
            if let Ok(request) = holdfast_crypto::decode::<Request>(&bytes) {
                let answer = world.ask(device, request);
                prop_assert!(!matches!(answer, Response::Error(ServerError::Storage(_))), "{:?}", answer);
            }
            let mut honest = Author::new(2);
            let slot = world.look(2).view;
            honest.last = slot.slots.get(&DeviceId(2)).map_or(0, |slot| slot.value.number());
            let (_, update) = honest.update(&slot);
            prop_assert!(matches!(world.ask(2, update), Response::View(_) | Response::Error(ServerError::Invalid(_))));
            Ok(())
        })?;
    }
}

/// Proves: an operation costs one group commit, blocks included, whether its table is new or, as when it only reads,
/// the one before.
#[test]
fn an_operation_costs_one_sync() {
    let world = World::new();
    let server = key(2).public();
    let mut alice = Author::new(1);
    let syncs = || world.disk.sites().get(&holdfast_log::SyncSite::COMMIT).copied().unwrap_or(0);
    let shown = world.look(1).view;
    let before = syncs();
    let request = alice.fast(&shown);
    committed(world.ask(1, request), &server);
    assert_eq!(syncs() - before, 1, "a new table");

    let shown = world.look(1).view;
    let before = syncs();
    let certificate = alice.certificate(&shown, Path::Fast);
    let mut handles = shown.slots[&DeviceId(1)].value.handles.clone();
    for handle in handles.values_mut() {
        handle.version = certificate.number;
    }
    let structure = sign_structure(&shown, &certificate, &alice.key, handles);
    let certificate = Signed::new(certificate, &alice.key);
    committed(
        world.ask(
            1,
            Request::Fast {
                certificate,
                structure,
                attached: vec![].into(),
                log_size: 0,
                by_difference: false,
                lease: None,
            },
        ),
        &server,
    );
    assert_eq!(syncs() - before, 1, "the table before");
}

/// Proves: a file system whose order is damaged is refused by name and cannot be created again over it; another one on
/// the same server is served as before.
#[test]
fn damage_to_one_file_system_spares_the_other() {
    let mut world = World::new();
    let server = key(2).public();
    let other = key(30);
    let neighbour = other.public().file_system_id();
    let by_other =
        |file_system| Caller { peer: other.public(), local: true, file_system, answer_bytes: usize::MAX };
    let creation = creation_by(other.clone(), server, 0);
    committed(world.core.handle(&by_other(None), creation.clone()), &server);
    let mut alice = Author::new(1);
    for _ in 0..12 {
        committed(world.fast(&mut alice), &server);
    }
    world.core.checkpoint_if_due();
    let greet = |world: &World, id| {
        world.core.greet(other.public(), true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(id))
    };
    // The last leaf of the first file system's log of updates, which nothing else can restore.
    let name = format!("tree-{}", file_system());
    world.disk.corrupt(&name, world.disk.length(&name).unwrap() - 10);
    world = world.restart(Crash::Kill);
    assert_eq!(world.core.damaged().keys().copied().collect::<Vec<_>>(), [file_system()]);
    assert!(matches!(greet(&world, file_system()).answer, Response::Error(ServerError::Storage(_))));
    let again = world.core.handle(
        &Caller { peer: superuser().public(), local: true, file_system: None, answer_bytes: usize::MAX },
        common::creation(server, 3),
    );
    assert!(matches!(again, Response::Error(ServerError::Storage(_))), "{again:?}");
    let greeted = greet(&world, neighbour);
    assert!(greeted.admitted);
    let caller = by_other(greeted.file_system);
    view(world.core.handle(&caller, Request::Look { log_size: 0 }));
    committed(world.core.handle(&caller, creation), &server);
    assert_eq!(
        world.core.collect(Duration::from_secs(1)).len(),
        1,
        "nothing of the damaged one is collected"
    );
}

/// Proves: only members can lock, and exclusively only those who may write the file. Locks keep others out until they
/// are given up. A holder that falls silent loses them to who asks for them. Malformed ranges are refused.
#[test]
fn locks_are_reserved_for_members() {
    use holdfast_content::{Handle, PrincipalId, UserId};
    use holdfast_protocol::locks::{LEASE_MS, LockRange};
    use holdfast_protocol::message::{LockMode, LockReply, LockRequest, LockSpace};
    let world = World::new();
    let wish = |user: u32, mode| LockRequest {
        run: 1,
        owner: 1,
        process: 1,
        file: Handle { principal: PrincipalId::User(UserId(user)), number: 5 },
        space: LockSpace::Fcntl,
        range: LockRange { start: 0, last: 9 },
        mode,
        reclaim: false,
        wait: false,
    };
    let ask = |device, request| match world.ask(device, request) {
        Response::Locks { epoch, answer } => (epoch, answer),
        other => panic!("{other:?}"),
    };
    let (shared, exclusive) = (Some(LockMode::Shared), Some(LockMode::Exclusive));
    assert!(not_allowed(&world.ask(9, Request::Lock(wish(1, shared)))), "a stranger");
    assert!(not_allowed(&world.ask(2, Request::Lock(wish(1, exclusive)))), "another's file");
    let backwards = LockRequest { range: LockRange { start: 1, last: 0 }, ..wish(1, shared) };
    assert!(invalid(&world.ask(1, Request::Lock(backwards))));

    let (epoch, answer) = ask(1, Request::Lock(wish(1, exclusive)));
    assert_eq!(answer, LockReply::Granted);
    let (_, answer) = ask(2, Request::Lock(wish(1, shared)));
    assert!(matches!(answer, LockReply::Held(holder) if holder.device == DeviceId(1)));
    assert!(matches!(ask(2, Request::TestLock(wish(1, shared))).1, LockReply::Held(_)));
    world.clock.0.fetch_add(LEASE_MS, Ordering::SeqCst);
    assert_eq!(ask(1, Request::KeepLocks { run: 1 }), (epoch, LockReply::Granted));
    world.clock.0.fetch_add(LEASE_MS, Ordering::SeqCst);
    assert!(matches!(ask(2, Request::Lock(wish(1, shared))).1, LockReply::Held(_)));
    world.clock.0.fetch_add(1, Ordering::SeqCst);
    assert_eq!(ask(2, Request::Lock(wish(1, shared))).1, LockReply::Granted);
    let (later, _) = ask(1, Request::KeepLocks { run: 1 });
    assert_ne!(later, epoch, "it is told that all was forgotten");
    assert!(matches!(ask(1, Request::Lock(wish(1, exclusive))).1, LockReply::Held(_)));
    assert!(matches!(world.ask(2, Request::EndLocks { run: 1 }), Response::Done));
    assert_eq!(ask(1, Request::Lock(wish(1, exclusive))).1, LockReply::Granted);
    let world = world.restart(Crash::Kill);
    let Response::Locks { epoch: restarted, .. } = world.ask(1, Request::KeepLocks { run: 1 }) else {
        panic!()
    };
    assert_ne!(restarted, later, "also by a restart");
}
