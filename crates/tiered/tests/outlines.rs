//! An index is made again from outlines: segments are not read for it, and an outline that is missing, altered or another
//! segment's changes nothing of what is found.

use crate::common;

use common::{fresh, settings, settle};
use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_store::{Charge, LogStore, StoreConfig, StoreError};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings, Tiered};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
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

fn config() -> StoreConfig {
    StoreConfig {
        segment_bytes: 8192,
        gc_window: Duration::from_secs(10),
        keep_deleted: Duration::ZERO,
        ..StoreConfig::default()
    }
}

fn open(bucket: &Simulated, anew: bool) -> Result<(Tiered, LogStore), String> {
    let settings = Settings { cache_bytes: 4 << 20, ..settings(Durability::Object, anew) };
    let tiered =
        Tiered::open(fresh(), Arc::new(bucket.clone()), settings).map_err(|error| error.to_string())?;
    let store = LogStore::open(Arc::new(tiered.clone()), config()).map_err(|error| error.to_string())?;
    Ok((tiered, store))
}

/// A store with garbage, moved blocks, renewals, order and two who are charged; and what is known of each block.
fn made() -> (Simulated, ExpectedBlocks) {
    let bucket = Simulated::new();
    let (tiered, store) = open(&bucket, false).unwrap();
    let leaves: Vec<_> = (0..600).map(|number| block(number, Vec::new())).collect();
    let live: Vec<Digest> = leaves.iter().step_by(3).map(|(address, _)| *address).collect();
    let root = block(1000, live);
    for (at, leaf) in leaves.iter().enumerate() {
        store.store(FS, DeviceId(at as u32 % 2 + 1), vec![leaf.clone()], at as i64 * SECOND).unwrap();
    }
    store.store(FS, DeviceId(1), vec![root.clone()], 700 * SECOND).unwrap();
    store.append_ordering(FS, b"first").unwrap();
    store.commit().unwrap();
    store.collect(FS, &[root.0], 2000 * SECOND, &mut |_| {}).unwrap();
    store.store(FS, DeviceId(2), vec![block(2000, Vec::new()), leaves[4].clone()], 2001 * SECOND).unwrap();
    // What the index alone had an earlier copy of is charged twice before.
    store.compact(2002 * SECOND).unwrap();
    store.seal().unwrap();
    tiered.confirm().unwrap();
    settle(&tiered);
    let there = || -> BTreeSet<String> {
        let names = bucket.names().into_iter().filter(|name| is_segment(name));
        names.map(|name| number_of(&name).to_owned()).collect()
    };
    eventually("garbage leaves the bucket", || there().len() as u64 == tiered.status().segments);
    let all: Vec<Digest> = leaves.iter().chain([&root]).map(|(address, _)| *address).collect();
    let (blocks, _) = known(&store, all);
    drop((store, tiered));
    // What is to be found is what is found in the segments themselves.
    let without = bucket.snapshot();
    for name in without.names().iter().filter(|name| name.contains("/outline-")) {
        without.alter(name, None);
    }
    let known = known_of(&without, &blocks).unwrap();
    assert_eq!(known.0, blocks);
    (bucket, known)
}

/// A description of the header and body of each block.
type Blocks = BTreeMap<Digest, Option<String>>;
type ExpectedBlocks = (Blocks, Vec<Charge>);

fn known(store: &LogStore, mut all: Vec<Digest>) -> ExpectedBlocks {
    all.push(block(2000, Vec::new()).0);
    let found = all.into_iter().map(|address| {
        let found = store.retrieve(FS, address).unwrap();
        (address, found.map(|(header, block)| format!("{header:?} {block:?}")))
    });
    let charges = [1, 2].map(|device| store.charged(FS, &[DeviceId(device)]));
    (found.collect(), charges.to_vec())
}

fn known_of(bucket: &Simulated, blocks: &Blocks) -> Result<ExpectedBlocks, String> {
    let (tiered, store) = open(bucket, true)?;
    let found = known(&store, blocks.keys().copied().collect());
    drop((store, tiered));
    Ok(found)
}

fn is_segment(name: &str) -> bool {
    ["/segment-", "/tail-", "/part-", "/piece-"].iter().any(|part| name.contains(part))
}

/// The number of the segment that an object is of.
fn number_of(name: &str) -> &str {
    name.rsplit('/').next().unwrap().split('-').nth(1).unwrap()
}

/// Proves: whoever makes the index anew asks for no segment but the last; and it says the same.
#[test]
fn an_index_is_made_without_segments() {
    let (bucket, expected) = made();
    assert!(expected.0.values().filter(|found| found.is_some()).count() >= 42);
    assert!(expected.0.values().any(Option::is_none), "there was garbage");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = asked.clone();
    bucket.with_deliveries(move |kind, name| {
        if kind == RequestKind::Get && is_segment(name) {
            noted.lock().push(name.to_owned());
        }
        Delivery::Good
    });
    let (tiered, store) = open(&bucket, true).unwrap();
    let asked = std::mem::take(&mut *asked.lock());
    let last =
        bucket.names().into_iter().filter(|name| is_segment(name)).map(|name| number_of(&name).to_owned());
    let last = last.max().unwrap();
    let names = bucket.names();
    let outlined: Vec<&str> =
        names.iter().filter(|name| name.contains("/outline-")).map(|name| number_of(name)).collect();
    assert!(outlined.len() > 3, "{names:?}");
    // Parts behind it are asked for, to know that there are none; and of records that are all head there is no outline.
    let older = asked.iter().map(|name| number_of(name));
    let older: Vec<_> = older.filter(|number| *number < last.as_str() && outlined.contains(number)).collect();
    assert!(older.is_empty(), "{older:?}");
    assert!(store.recovery().index_rebuilt);
    assert_eq!(known(&store, expected.0.keys().copied().collect()), expected);
    drop((store, tiered));
}

/// Proves: with any outline removed, cut, altered anywhere, or exchanged with another, the same is found; and so it is in a
/// store that has none.
#[test]
fn outlines_are_not_trusted() {
    let (bucket, expected) = made();
    let outlines: Vec<String> =
        bucket.names().into_iter().filter(|name| name.contains("/outline-")).collect();
    assert!(outlines.len() > 3, "{outlines:?}");
    let none = bucket.snapshot();
    for (at, name) in outlines.iter().enumerate() {
        none.alter(name, None);
        let good = bucket.object(name).unwrap();
        let other = bucket.object(&outlines[(at + 1) % outlines.len()]).unwrap();
        let mut altered = good.clone();
        let middle = altered.len() / 2;
        altered[middle] ^= 1;
        let bad = [None, Some(Vec::new()), Some(good[..good.len() - 1].to_vec()), Some(altered), Some(other)];
        // Each in two ways, and each way with several.
        for (_, bad) in bad.into_iter().enumerate().filter(|(way, _)| (way + at) % 5 < 2) {
            let bucket = bucket.snapshot();
            bucket.alter(name, bad);
            assert_eq!(known_of(&bucket, &expected.0), Ok(expected.clone()), "{name}");
        }
    }
    assert_eq!(known_of(&none, &expected.0), Ok(expected.clone()));
}

/// Proves: a bucket that does not answer when an outline is asked for is waited for, and is not taken for one without; a
/// segment that is gone makes its blocks errors, and not absent, though its outline is there.
#[test]
fn an_outline_is_no_segment() {
    let (bucket, expected) = made();
    let away = bucket.snapshot();
    away.with_deliveries(|_, name| if name.contains("/outline-") { Delivery::Lost } else { Delivery::Good });
    let refused = open(&away, true).err().expect("nothing is known");
    assert!(refused.contains("lost"), "{refused}");
    // Of one that is not read but for its blocks.
    let names = bucket.names();
    let outlined = names.iter().filter(|name| name.contains("/outline-")).map(|name| number_of(name));
    let outlined: BTreeSet<&str> = outlined.collect();
    let last = names.iter().filter(|name| is_segment(name)).map(|name| number_of(name)).max();
    let segments = names.iter().filter(|name| is_segment(name)).filter(|name| {
        let number = number_of(name);
        outlined.contains(number) && Some(number) != last
    });
    let gone = segments.max_by_key(|name| bucket.object(name).map(|bytes| bytes.len())).unwrap();
    let refused = bucket.snapshot();
    refused.alter(gone, None);
    // Gone when it is taken over: that is accepted, and its blocks may be lost.
    let (tiered, store) = open(&refused, true).unwrap();
    let missing: Vec<Digest> =
        expected.0.iter().filter(|(_, found)| found.is_some()).map(|(a, _)| *a).collect();
    let outcome = |store: &LogStore| -> Vec<bool> {
        let is_there = |address: &Digest| match store.retrieve(FS, *address) {
            Ok(Some(_)) => true,
            Ok(None) => panic!("{address} is not absent"),
            Err(StoreError::MayBeDamaged { .. } | StoreError::Damaged { .. } | StoreError::Log(_)) => false,
            Err(error) => panic!("{error}"),
        };
        missing.iter().map(is_there).collect()
    };
    let found = outcome(&store);
    assert!(found.contains(&false) && found.contains(&true));
    drop((store, tiered));
    // Gone afterwards: the index was made, and what it names is an error.
    let (tiered, store) = open(&bucket, true).unwrap();
    bucket.alter(gone, None);
    let found = outcome(&store);
    assert!(found.contains(&false) && found.contains(&true));
    drop((store, tiered));
}
