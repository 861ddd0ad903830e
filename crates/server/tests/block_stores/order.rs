//! Blocks are durable before the record that names them, with each on a disk of its own that loses power by itself.

use crate::common::core::{TestClock, settings};
use crate::common::*;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::block_server::{BlockFigures, ListedBlock, LoadedBlock, PinEntry};
use holdfast_protocol::message::{Request, Response};
use holdfast_server::control::ScrubSummary;
use holdfast_server::{BlockStore, BlockStoreError, BlockStoreStatus, Caller, LocalBlocks, ServerCore};
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A store on another disk, durable when a call returns, like that of a block server.
struct OtherDiskStore(LocalBlocks);

impl OtherDiskStore {
    fn open(disk: &PowerLoss) -> Option<Arc<dyn BlockStore>> {
        let store = holdfast_store::LogStore::open(disk.storage(), settings().store).ok()?;
        Some(Arc::new(OtherDiskStore(LocalBlocks::new(store))))
    }

    fn then_sync<T>(&self, done: Result<T, BlockStoreError>) -> Result<T, BlockStoreError> {
        let done = done?;
        self.0.sync()?;
        Ok(done)
    }
}

type Done<T> = Result<T, BlockStoreError>;

impl BlockStore for OtherDiskStore {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Done<()> {
        self.then_sync(self.0.store(file_system, owner, blocks, allowance, now_ns))
    }
    fn load(&self, file_system: Digest, addresses: &[Digest], bytes_max: usize) -> Done<Vec<LoadedBlock>> {
        self.0.load(file_system, addresses, bytes_max)
    }
    fn references(&self, file_system: Digest, addresses: &[Digest]) -> Done<Vec<Option<Vec<Digest>>>> {
        self.0.references(file_system, addresses)
    }
    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Done<Vec<bool>> {
        self.0.contains(file_system, addresses)
    }
    fn renew(&self, file_system: Digest, addresses: &[Digest], now_ns: i64) -> Done<Vec<bool>> {
        self.then_sync(self.0.renew(file_system, addresses, now_ns))
    }
    fn dereference(&self, fs: Digest, owner: DeviceId, addresses: &[Digest], now_ns: i64) -> Done<u32> {
        self.then_sync(self.0.dereference(fs, owner, addresses, now_ns))
    }
    fn list(&self, file_system: Digest, after: u64) -> Done<Vec<ListedBlock>> {
        self.0.list(file_system, after)
    }
    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Done<Option<PinEntry>> {
        self.0.pinned(file_system, after)
    }
    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Done<()> {
        self.0.snapshot(file_system, now_ns)
    }
    fn pin(&self, fs: Digest, holder: u64, addresses: &[Digest], until_ns: i64, now_ns: i64) -> Done<()> {
        self.then_sync(self.0.pin(fs, holder, addresses, until_ns, now_ns))
    }
    fn hold(&self, file_system: Digest, hold: Hold) -> Done<HoldOutcome> {
        self.then_sync(self.0.hold(file_system, hold))
    }
    fn unhold(&self, file_system: Digest, name: &str) -> Done<bool> {
        self.then_sync(self.0.unhold(file_system, name))
    }
    fn holds(&self, file_system: Digest) -> Done<Vec<Hold>> {
        self.0.holds(file_system)
    }
    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Done<Charge> {
        self.0.charged(file_system, devices)
    }
    fn charges(&self, file_system: Digest) -> Done<BTreeMap<DeviceId, Charge>> {
        self.0.charges(file_system)
    }
    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Done<CollectReport> {
        self.0.collect(file_system, roots, short, now_ns)
    }
    fn sync(&self) -> Done<()> {
        Ok(())
    }
    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Done<ScrubSummary> {
        self.0.scrub(progress)
    }
    fn figures(&self) -> Done<BlockFigures> {
        self.0.figures()
    }
    fn batch(&self) -> usize {
        3
    }
    fn status(&self) -> Option<BlockStoreStatus> {
        None
    }
}

fn open(order: &PowerLoss, blocks: &PowerLoss, clock: &Arc<TestClock>) -> Option<ServerCore> {
    let blocks = OtherDiskStore::open(blocks)?;
    let allowed = Box::new(|_: &PublicKey| true);
    ServerCore::open_over(order.storage(), key(2), settings(), allowed, clock.clone(), Some(blocks)).ok()
}

fn ask(core: &ServerCore, device: u8, request: Request) -> Response {
    let key = if device == 0 { superuser() } else { key(10 + device) };
    let file_system = core
        .greet(key.public(), true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
        .file_system;
    let caller = Caller { peer: key.public(), local: true, file_system, answer_bytes: usize::MAX };
    core.handle(&caller, request)
}

/// Proves: whichever of the two machines loses power, and whenever, what was acknowledged is in the order, and every
/// table that the order names has its block.
#[test]
fn no_record_names_a_block_that_power_took() {
    let server = key(2).public();
    for seed in 0..150u64 {
        let (order, blocks) = (PowerLoss::new(seed), PowerLoss::new(seed + 1000));
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(&order, &blocks, &clock).unwrap();
        committed(ask(&core, 0, creation(server, 2)), &server);
        let victim = if seed % 2 == 0 { &order } else { &blocks };
        victim.crash_after(1 + seed % 75);
        let mut author = Author::new(1);
        let mut acknowledged = 0;
        for _ in 0..20 {
            let Response::View(reply) = ask(&core, 1, Request::Look { log_size: 0 }) else { break };
            let request = author.fast(&reply.view);
            match ask(&core, 1, request) {
                Response::Committed(receipt) => acknowledged = receipt.value.number,
                _ => break,
            }
        }
        drop(core);
        order.restart(Crash::PowerLoss);
        blocks.restart(Crash::PowerLoss);
        let core = open(&order, &blocks, &clock).unwrap();
        let reply = view(ask(&core, 1, Request::Look { log_size: 0 }));
        let last = reply.view.slots.get(&DeviceId(1)).map_or(0, |slot| slot.value.number());
        assert!(last >= acknowledged, "seed {seed}: {last} of {acknowledged}");
        let tables = reply.view.slots.values().flat_map(|slot| slot.value.handles.values());
        let tables: Vec<Digest> = tables.map(|handle| handle.reference.address).collect();
        let Response::Blocks(found) = ask(&core, 1, Request::Retrieve(tables)) else { panic!("blocks") };
        assert!(found.iter().all(Option::is_some), "seed {seed}: a record names what is lost");
    }
}
