//! Garbage collection in a bucket: what is dead is given back where it is, if the store copies; else what lives is moved. Either
//! way the same is there, by the index and by one that is made anew.

use crate::common;

use common::{impatient, settings};
use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{CollectReport, LogStore, StoreConfig};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings, Tiered};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const FS: Digest = Digest([7; 32]);
const SECOND: i64 = 1_000_000_000;

fn block(number: u64, references: Vec<Digest>) -> (Digest, StoredBlock) {
    let kind = if references.is_empty() { BlockKind::Chunk } else { BlockKind::MapInner };
    let body: Vec<u8> = (0..60u64).flat_map(|at| (number * 64 + at).pow(3).to_le_bytes()).collect();
    let block = Block::new(&DigestKey::WELL_KNOWN, kind, references, body);
    (block.reference().address, block.to_stored())
}

fn open(disk: &PowerLoss, bucket: &Simulated, anew: bool) -> Result<(Tiered, LogStore), String> {
    open_so(disk, bucket, settings(Durability::Object, anew))
}

fn open_so(disk: &PowerLoss, bucket: &Simulated, settings: Settings) -> Result<(Tiered, LogStore), String> {
    let settings = Settings { cache_bytes: 200_000, ..settings };
    let tiered = Tiered::open(disk.storage(), Arc::new(bucket.clone()), settings)
        .map_err(|error| error.to_string())?;
    let config = StoreConfig {
        segment_bytes: 32 << 10,
        gc_window: Duration::from_secs(10),
        keep_deleted: Duration::ZERO,
        ..StoreConfig::default()
    };
    let store = LogStore::open(Arc::new(tiered.clone()), config).map_err(|error| error.to_string())?;
    Ok((tiered, store))
}

fn is_bytes(name: &str) -> bool {
    ["/segment-", "/piece-", "/part-", "/tail-"].iter().any(|part| name.contains(part))
}

fn is_sent(tiered: &Tiered) -> bool {
    tiered.status().waiting_bytes <= 64
}

/// Bytes of segments in the bucket.
fn bytes_in(bucket: &Simulated) -> u64 {
    let names = bucket.names();
    names
        .iter()
        .filter(|name| is_bytes(name))
        .map(|name| bucket.object(name).map_or(0, |one| one.len() as u64))
        .sum()
}

/// Stores a few hundred blocks, of which runs die, and collects them.
fn collected(
    bucket: &Simulated,
    disk: &PowerLoss,
) -> (Tiered, LogStore, CollectReport, Vec<Digest>, Vec<Digest>) {
    let (tiered, store) = open(disk, bucket, false).unwrap();
    let leaves: Vec<_> = (0..600).map(|number| block(number, Vec::new())).collect();
    for batch in leaves.chunks(20) {
        store.store(FS, DeviceId(1), batch.to_vec(), 0).unwrap();
        store.commit().unwrap();
        tiered.confirm().unwrap();
        eventually("some is sent", || tiered.status().waiting_bytes < 100_000);
    }
    let is_live = |at: usize| (at / 16).is_multiple_of(3);
    let addresses = |live: bool| -> Vec<Digest> {
        let chosen = leaves.iter().enumerate().filter(|(at, _)| is_live(*at) == live);
        chosen.map(|(_, (address, _))| *address).collect()
    };
    let (live, dead) = (addresses(true), addresses(false));
    let root = block(1000, live.clone());
    store.store(FS, DeviceId(1), vec![root.clone()], 700 * SECOND).unwrap();
    store.commit().unwrap();
    store.seal().unwrap();
    eventually("all is sent", || is_sent(&tiered));
    let report = store.collect(FS, &[root.0], 2000 * SECOND, &mut |_| {}).unwrap();
    assert_eq!(report.dropped, dead.len() as u64);
    assert_eq!(report.damaged, []);
    (tiered, store, report, live, dead)
}

fn check(store: &LogStore, live: &[Digest], dead: &[Digest]) {
    for address in live {
        assert!(store.retrieve(FS, *address).unwrap().is_some());
    }
    for address in dead {
        assert!(store.retrieve(FS, *address).unwrap().is_none());
    }
    let scrub = store.scrub(&mut |_, _| {}).unwrap();
    assert!(scrub.is_clean(), "{scrub:?}");
}

/// Proves: where the store copies, collecting reads and writes no block, and the bucket has less than half of what it had; what
/// lives is read and what is dead is not there, before and after the same server starts again, and one whose disk was lost.
#[test]
fn compaction_copies_at_the_store() {
    let (bucket, disk) = (Simulated::new(), PowerLoss::new(1));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    bucket.with_deliveries(move |kind, name| {
        if is_bytes(name) {
            noted.lock().push((kind, name.to_owned()));
        }
        Delivery::Good
    });
    let (tiered, store, report, live, dead) = collected(&bucket, &disk);
    assert!(report.punched.len() > 5 && report.punched_bytes > 150_000, "{report:?}");
    assert_eq!(report.moved, 0);
    store.seal().unwrap();
    eventually("all is sent", || is_sent(&tiered));
    let asked = std::mem::take(&mut *asked.lock());
    // From the first copy on no bytes are read, and only the log's end is written.
    let first = asked.iter().position(|(_, name)| name.contains("/piece-")).unwrap();
    let old = report.punched.iter().max().unwrap();
    let of = |name: &str| name.rsplit('/').next().unwrap().split('-').nth(1).unwrap().parse::<u32>().unwrap();
    let is_traffic = |(kind, name): &&(RequestKind, String)| {
        matches!(kind, RequestKind::Get | RequestKind::Put) && !name.contains("/piece-") && of(name) <= *old
    };
    let traffic: Vec<_> = asked[first..].iter().filter(is_traffic).collect();
    assert!(traffic.is_empty(), "{traffic:?}");
    // Objects go a while after no manifest lists them.
    eventually("what is dead leaves the bucket", || bytes_in(&bucket) <= tiered.status().bytes + 20_000);
    assert!(tiered.status().bytes < 300_000, "{:?}", tiered.status());
    check(&store, &live, &dead);
    drop((store, tiered));
    disk.restart(Crash::Kill);
    let (tiered, store) = open(&disk, &bucket, false).unwrap();
    check(&store, &live, &dead);
    drop((store, tiered));
    let (_tiered, store) = open(&PowerLoss::new(2), &bucket, true).unwrap();
    check(&store, &live, &dead);
}

/// Proves: where the store copies nothing, what lives is moved, and the same is there.
#[test]
fn without_copies_what_lives_is_moved() {
    let (bucket, disk) = (Simulated::new(), PowerLoss::new(1));
    bucket.forget_copies();
    let (tiered, store, report, live, dead) = collected(&bucket, &disk);
    assert!(report.punched.is_empty() && report.moved > 100 && !report.removed.is_empty(), "{report:?}");
    store.seal().unwrap();
    eventually("all is sent", || is_sent(&tiered));
    check(&store, &live, &dead);
    drop((store, tiered));
    let (_tiered, store) = open(&PowerLoss::new(2), &bucket, true).unwrap();
    check(&store, &live, &dead);
}

/// Proves: a segment that is punched again and again is rewritten once little of it is left.
#[test]
fn nearly_empty_segments_are_rewritten() {
    let (bucket, disk) = (Simulated::new(), PowerLoss::new(1));
    let (tiered, store) = open(&disk, &bucket, false).unwrap();
    let leaves: Vec<_> = (0..160).map(|number| block(number, Vec::new())).collect();
    store.store(FS, DeviceId(1), leaves.clone(), 0).unwrap();
    store.commit().unwrap();
    store.seal().unwrap();
    eventually("all is sent", || is_sent(&tiered));
    let (mut punched, mut removed) = (0, 0);
    for (round, left) in [100, 50, 24, 12, 6, 3].into_iter().enumerate() {
        let now = (round as i64 + 1) * 1000 * SECOND;
        let live: Vec<Digest> = leaves[..left].iter().map(|(address, _)| *address).collect();
        let root = block(1000 + round as u64, live.clone());
        store.store(FS, DeviceId(1), vec![root.clone()], now - 100 * SECOND).unwrap();
        store.commit().unwrap();
        let report = store.collect(FS, &[root.0], now, &mut |_| {}).unwrap();
        punched += report.punched.len();
        removed += report.removed.len();
        store.seal().unwrap();
        eventually("all is sent", || is_sent(&tiered));
        let dead: Vec<Digest> = leaves[left..].iter().map(|(address, _)| *address).collect();
        check(&store, &live, &dead);
    }
    assert!(punched >= 1 && removed >= 3, "{punched} {removed}");
}

#[derive(Clone, Debug)]
enum Op {
    /// Stores this run of blocks.
    Store(u8, u8),
    /// From now on this run is garbage.
    Drop(u8, u8),
    Collect,
    Seal,
    Power(u8),
    LoseDisk,
    Deliveries(Vec<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..200u8, 1..60u8).prop_map(|(from, count)| Op::Store(from, count)),
        3 => (0..200u8, 1..60u8).prop_map(|(from, count)| Op::Drop(from, count)),
        3 => Just(Op::Collect),
        2 => Just(Op::Seal),
        1 => (0..40u8).prop_map(Op::Power),
        1 => Just(Op::LoseDisk),
        1 => proptest::collection::vec(0..4u8, 1..12).prop_map(Op::Deliveries),
    ]
}

fn reopen(disk: &PowerLoss, bucket: &Simulated, anew: bool) -> (Tiered, LogStore) {
    let open = || open_so(disk, bucket, impatient(Durability::Object, anew));
    match open() {
        Ok(opened) => opened,
        Err(_) => {
            bucket.without_fates();
            bucket.settle();
            open().expect("it opens from a bucket that answers")
        }
    }
}

fn run(ops: &[Op]) {
    let (mut disk, bucket) = (PowerLoss::new(7), Simulated::new());
    let (mut tiered, mut store) = reopen(&disk, &bucket, false);
    // What is acknowledged and referred to: its number by address.
    let mut live: BTreeMap<Digest, u64> = BTreeMap::new();
    let (mut now, mut round) = (0, 0);
    for op in ops {
        now += 100 * SECOND;
        match op {
            Op::Store(from, count) => {
                let numbers = u64::from(*from)..u64::from(*from) + u64::from(*count);
                let blocks: Vec<_> = numbers.clone().map(|number| block(number, Vec::new())).collect();
                let is_stored = store.store(FS, DeviceId(1), blocks.clone(), now).is_ok();
                if is_stored && store.commit().is_ok() && tiered.confirm().is_ok() {
                    live.extend(blocks.iter().map(|(address, _)| *address).zip(numbers));
                }
            }
            Op::Drop(from, count) => {
                let gone = u64::from(*from)..u64::from(*from) + u64::from(*count);
                live.retain(|_, number| !gone.contains(number));
            }
            Op::Collect => {
                round += 1;
                let references: Vec<Digest> = live.keys().copied().collect();
                if references.is_empty() {
                    continue;
                }
                let root = block(1000 + round, references);
                let is_stored = store.store(FS, DeviceId(1), vec![root.clone()], now).is_ok();
                if is_stored && store.commit().is_ok() && tiered.confirm().is_ok() {
                    now += 100 * SECOND;
                    let _ = store.collect(FS, &[root.0], now, &mut |_| {});
                }
            }
            Op::Seal => {
                let _ = store.seal();
            }
            Op::Power(_) | Op::LoseDisk => {
                let loses = matches!(op, Op::LoseDisk);
                if let Op::Power(after) = op {
                    disk.crash_after((*after).into());
                    let _ = store.store(FS, DeviceId(1), vec![block(900, Vec::new())], now);
                    let _ = store.commit().is_ok() && tiered.confirm().is_ok();
                }
                drop((store, tiered));
                match loses {
                    true => disk = PowerLoss::new(9),
                    false => disk.restart(Crash::PowerLoss),
                }
                (tiered, store) = reopen(&disk, &bucket, loses);
                bucket.without_fates();
                for address in live.keys() {
                    assert!(store.retrieve(FS, *address).unwrap().is_some(), "{address} is gone");
                }
            }
            Op::Deliveries(pattern) => {
                let (pattern, mut at) = (pattern.clone(), 0);
                bucket.with_deliveries(move |_, _| {
                    at += 1;
                    let deliveries = [Delivery::Good, Delivery::Lost, Delivery::Unanswered, Delivery::Late];
                    deliveries[usize::from(pattern[at % pattern.len()])]
                });
            }
        }
    }
    bucket.without_fates();
    bucket.settle();
    for address in live.keys() {
        assert!(store.retrieve(FS, *address).unwrap().is_some(), "{address} is gone");
    }
    let scrub = store.scrub(&mut |_, _| {}).unwrap();
    assert!(scrub.is_clean(), "{scrub:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves: whatever is stored, dies and is stored again, whatever requests become of, whenever power fails and the disk is
    /// lost: what was acknowledged and is referred to is there, and nothing is taken for damaged.
    #[test]
    fn collections_lose_nothing(ops in proptest::collection::vec(op(), 1..24)) {
        run(&ops);
    }
}
