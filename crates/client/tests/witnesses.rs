//! Witnessed heads at an engine: fresh, old or none, within what it has seen or beyond, and of another history.

use crate::common;

use common::*;
use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::cosignature::cosign;
use holdfast_checkpoint::note::{KeyKind, VerifierKey};
use holdfast_checkpoint::tree::{CHECKPOINTS, leaf};
use holdfast_client::evidence::Proof;
use holdfast_client::{Engine, FsError, WhenStale, WitnessPolicy};
use holdfast_crypto::{Digest, SigningKey, decode};
use holdfast_protocol::log_tree::{Frontier, UPDATES};
use holdfast_protocol::message::{Request, Response, WitnessedHead};
use holdfast_testing::eventually;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn witness_key() -> SigningKey {
    SigningKey::from_seed(&[77; 32])
}

fn verifier() -> VerifierKey {
    VerifierKey::new("witness.example/w1", KeyKind::Cosignature, witness_key().public()).unwrap()
}

fn time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The head of the first `size` operations of `server`, co-signed now, with proofs for a client that was shown `log_size`
/// operations of `shown`.
fn head(id: &Digest, server: &Server, size: u64, shown: &Server, log_size: u64) -> WitnessedHead {
    let (leaves, _) = server.log();
    let (mut frontier, mut nodes) = (Frontier::default(), HashMap::new());
    for update in &leaves[..size as usize] {
        nodes.extend(frontier.append_to(CHECKPOINTS, leaf(*update)));
    }
    let mut note = Checkpoint::signed(id, frontier.head_of(CHECKPOINTS), &server.signing_key());
    note.signatures.push(cosign(&verifier(), &witness_key(), &note.text, time_s()));
    let (_, updates) = shown.log();
    let proof = |tree: holdfast_protocol::log_tree::TreeHash, nodes: &HashMap<(u8, u64), Digest>, of| {
        tree.inclusion_proof(size - 1, of, &mut |level, index| nodes.get(&(level, index)).copied())
            .unwrap_or_default()
    };
    WitnessedHead {
        note: note.to_string(),
        leaf: leaves[size as usize - 1],
        in_log: proof(UPDATES, &updates, log_size),
        in_checkpoint: proof(CHECKPOINTS, &nodes, size),
    }
}

fn start(world: &World, user: usize, when_stale: WhenStale, stale_after: Duration) -> Arc<Engine> {
    let machine = &world.users[user];
    let mut config = machine.config(&world.superuser, DEADLINE);
    config.witnesses =
        Some(WitnessPolicy { witnesses: vec![verifier()], quorum: None, stale_after, when_stale });
    machine.start_with(config).unwrap()
}

/// Proves: an engine whose server has fresh heads goes on. When there are none any more, each policy refuses exactly what
/// it says, also changes that wait to be sent. When heads come back, everything goes on.
#[test]
fn each_policy_refuses_what_it_says() {
    for when_stale in [WhenStale::Warn, WhenStale::ReadOnly, WhenStale::Stop] {
        let world = World::new(1, NEVER);
        let (server, id) = (world.server.clone(), world.superuser.file_system_id());
        let is_away = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicU64::new(0));
        let (away, count) = (is_away.clone(), refused.clone());
        world.users[0].link.forge(move |request| match request {
            Request::Witnessed { .. } if away.load(SeqCst) => {
                count.fetch_add(1, SeqCst);
                Some(Response::Witnessed(Vec::new()))
            }
            Request::Witnessed { log_size } => {
                Some(Response::Witnessed(vec![head(&id, &server, *log_size, &server, *log_size)]))
            }
            _ => None,
        });
        let engine = start(&world, 0, when_stale, Duration::from_secs(2));
        let directory = world.group_dir;
        // On a busy machine a head may be too old for a moment before the next one comes.
        let mut numbers = 0..;
        let mut goes_on = || {
            let name = format!("fresh {}", numbers.next().unwrap());
            modify(&engine, create(directory, &name, b"x")).is_ok()
        };
        eventually("changes are made", &mut goes_on);
        eventually("it is fresh", || !engine.head().unwrap().is_stale);
        is_away.store(true, SeqCst);
        eventually("no earlier answer is under way", || refused.load(SeqCst) > 0);
        eventually("it is stale", || engine.head().unwrap().is_stale);
        let refused_read = matches!(engine.may_read(), Err(FsError::Outdated(_)));
        let refused_change = engine.may_change().is_err();
        let fetched = engine.fetch();
        let modified = modify(&engine, create(directory, "stale", b"x"));
        match when_stale {
            WhenStale::Warn => {
                assert!(!refused_read && !refused_change && fetched.is_ok() && modified.is_ok())
            }
            WhenStale::ReadOnly => {
                assert!(!refused_read && fetched.is_ok());
                assert!(matches!(engine.may_change(), Err(FsError::ReadOnly)));
                assert!(matches!(modified, Err(FsError::Unreachable(_))), "what was to be sent still waits");
            }
            WhenStale::Stop => {
                assert!(refused_read && matches!(engine.may_change(), Err(FsError::Outdated(_))));
                assert!(matches!(fetched, Err(FsError::Unreachable(_))));
                assert!(matches!(modified, Err(FsError::Unreachable(_))));
            }
        }
        is_away.store(false, SeqCst);
        eventually("it is fresh again", || !engine.head().unwrap().is_stale);
        eventually("changes are made again", goes_on);
        assert!(engine.status().frozen.is_none());
        engine.stop();
    }
}

/// Proves: a head beyond what a client has seen makes it fetch the present view, without an operation: so an idle client
/// beside a busy one stays fresh. A client whose server's view stays behind the heads goes stale.
#[test]
fn a_client_keeps_up_without_operations() {
    let world = World::new(2, NEVER);
    let id = world.superuser.file_system_id();
    let busy = world.start(1);
    let server = world.server.clone();
    world.users[0].link.forge(move |request| match request {
        Request::Witnessed { log_size } => {
            // These witnesses sign the newest head only.
            let newest = server.log().0.len() as u64;
            let heads = if newest <= *log_size {
                vec![head(&id, &server, newest, &server, *log_size)]
            } else {
                Vec::new()
            };
            Some(Response::Witnessed(heads))
        }
        _ => None,
    });
    let idle = start(&world, 0, WhenStale::Stop, Duration::from_secs(3));
    let operations = idle.status().operations;
    for number in 0..3 {
        commit(&busy, create(world.group_dir, &format!("f{number}"), b"x"));
        let newest = world.server.log().0.len() as u64;
        eventually("it knows the newest head", || idle.head().unwrap().operations == newest);
    }
    eventually("it is fresh", || !idle.head().unwrap().is_stale);
    assert_eq!(idle.status().operations, operations, "nothing was ordered for it");
    // From now on the order that the idle client is shown stands still, while the witnessed one goes on.
    let fork = world.server.fork();
    world.users[0].link.redirect(&fork);
    eventually("it is stale", || {
        let number = world.server.log().0.len();
        commit(&busy, create(world.group_dir, &format!("g{number}"), b"x"));
        idle.head().unwrap().is_stale
    });
    assert!(idle.status().frozen.is_none(), "it is not an alarm: nothing contradicts what was seen");
    idle.stop();
    busy.stop();
}

/// Proves: a head that server and witnesses signed, of a history other than the one shown to this client, freezes the
/// engine, also after a restart. If the server signed two heads of one length, the evidence has both.
#[test]
fn another_history_is_an_alarm() {
    let world = World::new(2, NEVER);
    let id = world.superuser.file_system_id();
    let fork = world.server.fork();
    let server = world.server.clone();
    let (lies, other) = (Arc::new(AtomicBool::new(false)), fork.clone());
    let lying = lies.clone();
    world.users[0].link.forge(move |request| match request {
        Request::Witnessed { log_size } if lying.load(SeqCst) => {
            let size = (other.log().0.len() as u64).min(*log_size);
            Some(Response::Witnessed(vec![head(&id, &other, size, &server, *log_size)]))
        }
        Request::Witnessed { log_size } => {
            let sizes = (1..=*log_size).rev().take(16);
            Some(Response::Witnessed(
                sizes.map(|size| head(&id, &server, size, &server, *log_size)).collect(),
            ))
        }
        _ => None,
    });
    let engine = start(&world, 0, WhenStale::Warn, Duration::from_secs(2));
    // On the fork the other user makes a change.
    world.users[1].link.redirect(&fork);
    let there = world.start(1);
    commit(&there, create(world.group_dir, "theirs", b"x"));
    while world.server.log().0.len() <= fork.log().0.len() {
        let name = format!("ours {}", world.server.log().0.len());
        commit(&engine, create(world.group_dir, &name, b"x"));
    }
    let length = fork.log().0.len() as u64;
    eventually("a head as long as the other side is known", || engine.head().unwrap().operations >= length);
    assert!(engine.status().frozen.is_none());
    lies.store(true, SeqCst);
    eventually("it is frozen", || engine.status().frozen.is_some());
    let report = engine.status().frozen.unwrap();
    assert!(report.what.contains("not the one shown to this device"), "{}", report.what);
    assert!(report.what.contains("convicts it by its own hand"), "{}", report.what);
    assert!(matches!(engine.fetch(), Err(FsError::Frozen(_))));
    let evidence = holdfast_client::evidence::read(&report.evidence.unwrap()).unwrap();
    let Proof::Head { head, earlier, .. } = evidence.proof else { panic!("{:?}", evidence.proof) };
    let head: WitnessedHead = decode(&head).unwrap();
    let first_lines = |note: &str| note.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    let earlier = earlier.expect("it had signed ours");
    assert_eq!(first_lines(&head.note), first_lines(&earlier), "one log, one length");
    assert_ne!(head.note.lines().nth(2), earlier.lines().nth(2), "two histories");
    engine.stop();
    drop(engine);
    let again = world.users[0].start(&world.superuser, DEADLINE);
    assert!(matches!(again, Err(holdfast_client::StartError::Frozen(_))), "it is remembered");
    there.stop();
}
