//! Parcels at a server without sockets: what is stored, what is asked for, what hostile clients make of it.

mod common;

use common::*;
use holdfast_content::{Block, BlockKind, Parcel, Prefix};
use holdfast_crypto::{Digest, DigestKey, PublicKey, SigningKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::message::{AddressedBlock, Request, Response};
use holdfast_server::{Caller, Clock, CreatePolicy, Host, HostSettings, ParcelSettings};
use holdfast_store::StoreConfig;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn wall_ns(&self) -> i64 {
        self.0.load(Ordering::SeqCst) as i64 * 1_000_000
    }
    fn monotonic_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A server with two file systems, of which nobody is a member of both.
struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    host: Host,
}

fn others() -> SigningKey {
    key(5)
}

fn open(disk: &PowerLoss, clock: &Arc<TestClock>) -> Host {
    let settings = HostSettings {
        create: CreatePolicy::Anyone,
        abort_after: Duration::from_secs(10),
        checkpoint_records: 8,
        locks_note: None,
        parcels: ParcelSettings::default(),
        store: StoreConfig { segment_bytes: 8 << 20, ..StoreConfig::default() },
    };
    Host::open(disk.storage(), key(2), settings, Box::new(|_: &PublicKey| true), clock.clone()).unwrap()
}

impl World {
    fn new() -> World {
        let disk = PowerLoss::new(3);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let host = open(&disk, &clock);
        let world = World { disk, clock, host };
        for founder in [superuser(), others()] {
            let request = creation_by(founder.clone(), key(2).public(), 0);
            let caller = Caller { peer: founder.public(), local: true, file_system: None };
            committed(world.host.handle(&caller, request), &key(2).public());
        }
        world
    }

    fn ask_by(&self, member: &SigningKey, request: Request) -> Response {
        let id = member.public().file_system_id();
        let file_system = self.host.greet(member.public(), true, (1, 1), Some(id)).file_system;
        self.host.handle(&Caller { peer: member.public(), local: true, file_system }, request)
    }

    /// A request by a member of the first file system.
    fn ask(&self, request: Request) -> Response {
        self.ask_by(&superuser(), request)
    }

    fn store(&self, blocks: &[Block]) {
        assert_eq!(self.ask(Request::Store(blocks.iter().map(addressed).collect())), Response::Done);
    }

    fn restart(mut self, crash: Crash) -> World {
        drop(self.host);
        self.disk.restart(crash);
        self.host = open(&self.disk, &self.clock);
        self
    }
}

fn addressed(block: &Block) -> AddressedBlock {
    AddressedBlock { address: address(block), block: block.to_stored() }
}

fn address(block: &Block) -> Digest {
    block.reference().address
}

fn addresses(blocks: &[Block]) -> Vec<Digest> {
    blocks.iter().map(address).collect()
}

fn chunk(body: Vec<u8>) -> Block {
    Block::new(&KEY, BlockKind::Chunk, Vec::new(), body)
}

fn node(children: &[Block]) -> Block {
    Block::new(&KEY, BlockKind::MapLeaf, addresses(children), b"node".to_vec())
}

fn prefix(bases: &[Block]) -> Prefix {
    let mut prefix = Prefix::default();
    bases.iter().for_each(|base| assert!(prefix.push(base)));
    prefix
}

/// A chunk of noise and the same with a few bytes changed.
fn versions(seed: u32, length: usize) -> (Block, Block) {
    let old = noise(seed, length);
    let mut new = old.clone();
    new[length / 2] ^= 0xff;
    (chunk(old), chunk(new))
}

/// Proves: what is stored by parcel is there, durably, whole and as ordinary blocks; a parcel of what resembles an old
/// block is small in both directions.
#[test]
fn parcels_go_in_and_come_out() {
    let world = World::new();
    let (old, new) = versions(1, 100_000);
    world.store(std::slice::from_ref(&old));
    let root = node(std::slice::from_ref(&new));
    let blocks = [new.clone(), root.clone()];
    let parcel = Parcel::pack(&prefix(std::slice::from_ref(&old)), &blocks, 3).unwrap();
    assert!(parcel.message_bytes() < 300, "{}", parcel.message_bytes());
    assert_eq!(world.ask(Request::StoreParcels(vec![parcel])), Response::Done);
    let world = world.restart(Crash::PowerLoss);
    let Response::Blocks(found) = world.ask(Request::Retrieve(addresses(&blocks))) else { panic!() };
    for (found, block) in found.into_iter().zip(&blocks) {
        let found = found.unwrap().1.block.open_any(&KEY, address(block), 1 << 20).unwrap();
        assert_eq!(found, *block);
    }
    let unknown = Digest([9; 32]);
    let wanted = vec![address(&new), unknown, address(&root)];
    let request = Request::RetrieveParcel { wanted, bases: vec![unknown, address(&old)], level: 3 };
    let Response::Parcel { parcel, covered, missing } = world.ask(request) else { panic!() };
    assert_eq!((covered, missing), (3, vec![unknown]));
    let parcel = parcel.unwrap();
    assert!(parcel.message_bytes() < 300, "{}", parcel.message_bytes());
    assert_eq!(parcel.bases, [address(&old)]);
    assert_eq!(parcel.open(&KEY, &prefix(&[old])).unwrap(), blocks);
}

/// Proves: naming the version one has is enough to get what is new of a tree, and nothing else, in one answer.
#[test]
fn a_tree_against_an_older_one() {
    let world = World::new();
    let same: Vec<Block> = (0..20).map(|n| chunk(noise(100 + n, 20_000))).collect();
    let (old, new) = versions(1, 50_000);
    let unchanged = node(&same);
    let (old_leaf, new_leaf) = (node(std::slice::from_ref(&old)), node(std::slice::from_ref(&new)));
    let old_root = node(&[unchanged.clone(), old_leaf.clone()]);
    let new_root = node(&[unchanged.clone(), new_leaf.clone()]);
    world.store(&same);
    world.store(&[old.clone(), new.clone(), unchanged, old_leaf.clone(), new_leaf.clone()]);
    world.store(&[old_root.clone(), new_root.clone()]);
    let ask = |have: Vec<Digest>, bytes_max| {
        world.ask(Request::RetrieveTree { root: address(&new_root), have, bytes_max, level: 3 })
    };
    let Response::Tree { parcel: Some(parcel), complete: true } = ask(vec![address(&old_root)], 1 << 20)
    else {
        panic!()
    };
    assert!(parcel.message_bytes() < 500, "{}", parcel.message_bytes());
    let bases = [old, old_leaf, old_root];
    assert_eq!(parcel.bases, addresses(&bases));
    assert_eq!(parcel.open(&KEY, &prefix(&bases)).unwrap(), [new, new_leaf, new_root.clone()]);
    // Without an older version it comes from the top, as far as was asked for.
    let Response::Tree { parcel: Some(parcel), complete: false } = ask(vec![], 30_000) else { panic!() };
    let blocks = parcel.open(&KEY, &Prefix::default()).unwrap();
    assert_eq!(blocks.last(), Some(&new_root));
    assert!(ask(vec![address(&new_root)], 1 << 20) == Response::Tree { parcel: None, complete: true });
    let nothing = Request::RetrieveTree { root: Digest([9; 32]), have: vec![], bytes_max: 9, level: 3 };
    assert_eq!(world.ask(nothing), Response::Tree { parcel: None, complete: false });
}
