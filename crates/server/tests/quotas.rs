//! Quotas against members who try not to be charged.

use crate::common;

use common::core::{TestClock, settings};
use common::*;
use holdfast_content::{
    Block, BlockKind, Device, DeviceId, Membership, PARCEL_BLOCKS_MAX, Parcel, Prefix, UserId,
};
use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::message::{AddressedBlock, Request, Response, ServerError, Usage};
use holdfast_server::{Caller, CoreSettings, ServerCore};
use holdfast_store::signed_block_bytes;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const LIMIT: u64 = 2 << 20;
/// What remains beyond the limit for tables and directories; see `crates/server/src/file_system/quotas.rs`.
const RESERVE: u64 = 1 << 20;
const CHUNK: usize = 200_000;

struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    core: ServerCore,
}

fn open(disk: &PowerLoss, clock: &Arc<TestClock>, user_quota: Option<u64>) -> ServerCore {
    let settings = CoreSettings { user_quota, ..settings() };
    let allowed = Box::new(|_: &PublicKey| true);
    ServerCore::open(disk.storage(), key(2), settings, allowed, clock.clone()).unwrap()
}

/// Users 1 to 3; user 1 has devices 1 and 4, and the superuser limits user 1.
fn people() -> Membership {
    let mut members = membership(1, 3);
    let key = key(14).public();
    let second = Device { user: UserId(1), name: "second".into(), key, removed_at: None };
    members.devices.insert(DeviceId(4), second);
    members.quotas.insert(UserId(1), LIMIT);
    members
}

impl World {
    fn new(user_quota: Option<u64>) -> World {
        let disk = PowerLoss::new(7);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(&disk, &clock, user_quota);
        let world = World { disk, clock, core };
        committed(world.ask(0, creation_of(superuser(), key(2).public(), &people())), &key(2).public());
        world
    }

    fn reopen(mut self, user_quota: Option<u64>) -> World {
        drop(self.core);
        self.disk.restart(Crash::PowerLoss);
        self.core = open(&self.disk, &self.clock, user_quota);
        self
    }

    fn ask(&self, device: u8, request: Request) -> Response {
        let key = if device == 0 { superuser() } else { key(10 + device) }.public();
        let file_system = self
            .core
            .greet(key, true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
            .file_system;
        let caller = Caller { peer: key, local: true, file_system, answer_bytes: usize::MAX };
        self.core.handle(&caller, request)
    }

    /// The usage of its own user that a device is told.
    fn used(&self, device: u8) -> Usage {
        match self.ask(device, Request::Usage) {
            Response::Usage(usage) if device != 0 => {
                assert_eq!(usage.len(), 1, "one hears of oneself alone");
                usage[0]
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_here(&self, address: Digest) -> bool {
        match self.ask(3, Request::Retrieve(vec![address])) {
            Response::Blocks(blocks) => blocks[0].is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// Stores chunks until there is no more room.
    fn fill(&self, device: u8, seed: u32) {
        for number in 0..100 {
            match self.ask(device, Request::Store(vec![noisy(seed + number)])) {
                Response::Done => {}
                answer => return assert!(over(&answer), "{answer:?}"),
            }
        }
        panic!("there is no limit");
    }
}

fn noisy(number: u32) -> AddressedBlock {
    block(BlockKind::Chunk, &noise(u64::from(number), CHUNK)).1
}

fn over(answer: &Response) -> bool {
    matches!(answer, Response::Error(ServerError::OverQuota { used, limit }) if used <= limit || *used <= limit + RESERVE)
}

/// Proves: a user's limit applies to all of their devices together, and to each way of storing; other users have their
/// own. Blocks that no operation has named count, blocks that are offered again do not, and a restart changes none of
/// it.
#[test]
fn every_way_to_store_is_charged() {
    let mut world = World::new(None);
    assert_eq!(world.used(1), Usage { user: UserId(1), blocks: 0, bytes: 0, limit: Some(LIMIT) });
    assert_eq!(world.ask(1, Request::Store(vec![noisy(1), noisy(2)])), Response::Done);
    let two = world.used(1);
    assert_eq!(two.blocks, 2);
    assert!(two.bytes > 2 * CHUNK as u64 && two.bytes < 2 * CHUNK as u64 + 1000, "{two:?}");
    for device in [1, 1, 4, 2, 3] {
        assert_eq!(world.ask(device, Request::Store(vec![noisy(1), noisy(2)])), Response::Done);
        assert_eq!(
            (world.used(1), world.used(device).blocks),
            (two, if device == 1 || device == 4 { 2 } else { 0 })
        );
    }
    world.fill(4, 100);
    let full = world.used(4);
    assert!(full.bytes <= LIMIT && full.bytes + CHUNK as u64 > LIMIT && full == world.used(1), "{full:?}");
    // All blocks or none, in every form.
    let fresh = noisy(500);
    let opened = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, vec![], noise(500, CHUNK));
    let parcel = Parcel::pack(&Prefix::default(), &[opened], 3).unwrap();
    for device in [1, 4] {
        assert!(over(&world.ask(device, Request::Store(vec![noisy(1), fresh.clone()]))));
        assert!(over(&world.ask(device, Request::StoreParcels(vec![parcel.clone()]))));
        let signature =
            key(10 + device).sign(Domain::SignedBlock, &signed_block_bytes(&file_system(), 0, b"x"));
        let signed = world.ask(device, Request::VStore { index: 0, bytes: b"x".to_vec(), signature });
        assert!(matches!(signed, Response::Error(ServerError::Invalid(_))), "{signed:?}");
        assert!(!world.is_here(fresh.address));
        // Blocks that are here cost nothing, and neither does holding or pinning what others stored.
        assert_eq!(world.ask(device, Request::Store(vec![noisy(1)])), Response::Done);
    }
    assert_eq!(
        world.ask(2, Request::StoreParcels(vec![parcel])),
        Response::Done,
        "the others' room is theirs"
    );
    let roots = vec![fresh.address];
    assert_eq!(
        world.ask(1, Request::Hold { name: "h".into(), roots: roots.clone() }),
        Response::Held(vec![])
    );
    assert_eq!(world.ask(1, Request::Pin { addresses: roots, seconds: 60 }), Response::Done);
    assert_eq!((world.used(1), world.used(2).blocks), (full, 1));
    // Nobody can free what others stored, or make others pay for it.
    let given_up = world.ask(1, Request::Dereference(vec![fresh.address]));
    assert_eq!(given_up, Response::Dereferenced(0));
    world = world.reopen(None);
    assert_eq!((world.used(1), world.used(2).blocks), (full, 1));
    assert!(over(&world.ask(1, Request::Store(vec![noisy(501)]))));
    assert!(world.is_here(fresh.address));
    // The superuser is told of everybody.
    let Response::Usage(all) = world.ask(0, Request::Usage) else { panic!("usage") };
    assert_eq!(all.iter().map(|usage| usage.user.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((all[1], all[2].limit), (full, None));
}

/// Proves: small blocks of other kinds than chunks are accepted beyond the limit, up to the reserve.
#[test]
fn the_reserve_has_an_end() {
    let world = World::new(None);
    world.fill(1, 100);
    let mut tables = 0u32;
    loop {
        let table = block(BlockKind::Table, &noise(u64::from(10_000 + tables), 20_000)).1;
        match world.ask(1, Request::Store(vec![table])) {
            Response::Done => tables += 1,
            answer => break assert!(over(&answer), "{answer:?}"),
        }
        assert!(tables < PARCEL_BLOCKS_MAX as u32);
    }
    let used = world.used(1).bytes;
    assert!(tables >= 50 && used <= LIMIT + RESERVE && used + 21_000 > LIMIT + RESERVE, "{tables}, {used}");
}

/// Proves: an operation that carries too much is refused and given up for good: neither a late copy of it nor its
/// commit is accepted when there is room later. An operation without such blocks is accepted.
#[test]
fn operations_are_charged_and_given_up_for_good() {
    let mut world = World::new(None);
    world.fill(1, 100);
    let look = |world: &World| view(world.ask(1, Request::Look { log_size: 0 })).view;
    let laden = |request: Request| match request {
        Request::Fast { certificate, structure, mut attached, log_size, by_difference, lease } => {
            attached.blocks.push(noisy(700));
            Request::Fast { certificate, structure, attached, log_size, by_difference, lease }
        }
        Request::Update { certificate, mut attached, log_size, by_difference, lease } => {
            attached.blocks.push(noisy(701));
            Request::Update { certificate, attached, log_size, by_difference, lease }
        }
        Request::Commit { structure, mut attached } => {
            for number in 0..4 {
                attached.blocks.push(block(BlockKind::Table, &noise(800 + number, CHUNK)).1);
            }
            Request::Commit { structure, attached }
        }
        other => other,
    };
    let mut alice = Author::new(1);
    let fast = laden(alice.fast(&look(&world)));
    assert!(over(&world.ask(1, fast.clone())));
    alice.give_up();
    let (_, update) = alice.update(&look(&world));
    let update = laden(update);
    assert!(over(&world.ask(1, update.clone())));
    alice.give_up();
    // Ordered, and then too much even for the reserve.
    for number in 0..2 {
        let table = block(BlockKind::Table, &noise(900 + number, CHUNK)).1;
        assert_eq!(world.ask(1, Request::Store(vec![table])), Response::Done);
    }
    let (certificate, ordered) = alice.update(&look(&world));
    let shown = view(world.ask(1, ordered)).view;
    let commit = laden(alice.commit(&shown, &certificate));
    assert!(over(&world.ask(1, commit.clone())));
    alice.give_up();
    assert!(!look(&world).slots.contains_key(&DeviceId(1)), "nothing was committed");
    // Late copies, once there is room.
    world.clock.0.fetch_add(200_000_000, std::sync::atomic::Ordering::SeqCst);
    for (_, collected) in world.core.collect(std::time::Duration::from_secs(1)) {
        assert!(collected.unwrap().dropped > 0);
    }
    assert!(world.used(1).bytes < LIMIT / 2);
    assert_eq!(world.ask(1, fast.clone()), Response::Refused);
    assert_eq!(world.ask(1, update.clone()), Response::Refused);
    assert_eq!(world.ask(1, commit.clone()), Response::Aborted);
    world = world.reopen(None);
    assert_eq!(world.ask(1, fast), Response::Refused);
    assert_eq!(world.ask(1, update), Response::Refused);
    assert_eq!(world.ask(1, commit), Response::Aborted);
    // The user goes on.
    let (certificate, ordered) = alice.update(&look(&world));
    let shown = view(world.ask(1, ordered)).view;
    assert_eq!(committed(world.ask(1, alice.commit(&shown, &certificate)), &key(2).public()), alice.last);
    assert_eq!(committed(world.ask(1, alice.fast(&look(&world))), &key(2).public()), alice.last);
}

/// Proves: the operator's limit applies to everybody, and where both limit a user, the lower one does.
#[test]
fn the_lower_limit_counts() {
    let limits = |world: &World| match world.ask(0, Request::Usage) {
        Response::Usage(usage) => usage.iter().map(|usage| usage.limit).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let world = World::new(Some(LIMIT / 2));
    assert_eq!(limits(&world), [Some(LIMIT / 2); 4]);
    world.fill(2, 100);
    assert!(world.used(2).bytes <= LIMIT / 2);
    let world = world.reopen(Some(2 * LIMIT));
    assert_eq!(limits(&world), [Some(2 * LIMIT), Some(LIMIT), Some(2 * LIMIT), Some(2 * LIMIT)]);
    assert_eq!(world.ask(2, Request::Store(vec![noisy(900)])), Response::Done);
    let world = world.reopen(None);
    assert_eq!(limits(&world), [None, Some(LIMIT), None, None]);
}
