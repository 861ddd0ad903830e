//! Holds: what they keep and for how long, across crashes, collections and rebuilds, and when they are
//! refused.

use crate::common;

use common::*;
use holdfast_crypto::Digest;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{CollectStage, DecrefOutcome, HOLDS_MAX, Hold, HoldOutcome, LogStore, StoreError};

const HOUR: i64 = 3600 * SECOND;

/// A root with `width` nodes of two chunks each. Returns the root and all addresses.
fn tree(store: &LogStore, seed: u64, width: u64, now_ns: i64) -> (Digest, Vec<Digest>) {
    let mut all = Vec::new();
    let mut inner = Vec::new();
    for branch in 0..width {
        let chunks = vec![chunk(seed * 10_000 + branch * 2), chunk(seed * 10_000 + branch * 2 + 1)];
        let parent = node(seed * 1000 + branch, chunks.iter().map(|(address, _)| *address).collect());
        all.extend(chunks.iter().map(|(address, _)| *address));
        inner.push(parent.0);
        store.store(FS, ALICE, chunks, now_ns).unwrap();
        store.store(FS, ALICE, vec![parent], now_ns).unwrap();
    }
    let root = node(seed + 900_000, inner.clone());
    all.extend(inner);
    all.push(root.0);
    store.store(FS, ALICE, vec![root.clone()], now_ns).unwrap();
    store.commit().unwrap();
    (root.0, all)
}

fn hold(name: &str, roots: &[Digest]) -> Hold {
    Hold { name: name.to_owned(), device: ALICE, made_ns: 5, roots: roots.to_vec() }
}

fn present(store: &LogStore, addresses: &[Digest]) -> usize {
    addresses.iter().filter(|address| store.retrieve(FS, **address).unwrap().is_some()).count()
}

fn collect(store: &LogStore, root: Digest, now_ns: i64) -> u64 {
    store.collect(FS, &[root], now_ns, &mut |_| {}).unwrap().dropped
}

/// Proves: a held tree stays, through collections that move it, a crash, and a rebuild from the segments
/// alone, until the hold is ended. A rebuild does not undo the end of a hold, although its beginning is still
/// in some segment.
#[test]
fn until_it_is_let_go() {
    let disk = PowerLoss::new(1);
    let mut store = open(&disk).unwrap();
    let (keep, kept) = tree(&store, 1, 4, 0);
    let (held, below) = tree(&store, 2, 8, 0);
    let (_, lost) = tree(&store, 3, 8, 0);
    assert_eq!(store.hold(FS, hold("release/1", &[held])).unwrap(), HoldOutcome::Held);
    store.commit().unwrap();
    for round in 1..6 {
        collect(&store, keep, round * 10 * HOUR);
        let found = (present(&store, &kept), present(&store, &below), present(&store, &lost));
        assert_eq!(found, (kept.len(), below.len(), 0), "round {round}");
        assert_eq!(store.holds(&FS), vec![hold("release/1", &[held])]);
        assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
        store = match round % 3 {
            0 => {
                drop(store);
                LogStore::open_rebuilding(disk.storage(), config()).unwrap()
            }
            1 => reopen(&disk, store, Crash::PowerLoss),
            _ => {
                store.checkpoint().unwrap();
                reopen(&disk, store, Crash::Kill)
            }
        };
    }
    assert!(store.unhold(FS, "release/1").unwrap());
    assert!(!store.unhold(FS, "release/1").unwrap());
    store.commit().unwrap();
    assert_eq!(collect(&store, keep, 100 * HOUR), below.len() as u64);
    for _ in 0..3 {
        drop(store);
        store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
        assert_eq!((store.holds(&FS), present(&store, &below)), (vec![], 0));
        collect(&store, keep, 200 * HOUR);
    }
    assert_eq!(present(&store, &kept), kept.len());
}

/// Proves: a hold is granted only if all of the tree is there. Missing blocks are named, and until they are
/// there nothing is held.
#[test]
fn only_what_is_whole_is_held() {
    let disk = PowerLoss::new(2);
    let store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 4, 0);
    let (gone, lost) = tree(&store, 2, 4, 0);
    assert_eq!(collect(&store, keep, 2 * HOUR), lost.len() as u64);
    assert_eq!(store.hold(FS, hold("a", &[gone])).unwrap(), HoldOutcome::Missing(vec![gone]));
    // The publisher stores what it has, and the chunks are gone all the same.
    let parents: Vec<_> = (0..4)
        .map(|branch| node(2000 + branch, vec![chunk(20_000 + branch * 2).0, chunk(20_001 + branch * 2).0]))
        .collect();
    let root = node(2 + 900_000, parents.iter().map(|(address, _)| *address).collect());
    assert_eq!(root.0, gone);
    store.store(FS, ALICE, parents, 3 * HOUR).unwrap();
    store.store(FS, ALICE, vec![root], 3 * HOUR).unwrap();
    let HoldOutcome::Missing(missing) = store.hold(FS, hold("a", &[gone])).unwrap() else { panic!("held") };
    assert_eq!(missing.len(), 8);
    assert_eq!(store.holds(&FS), vec![]);
    // Another file system's blocks count for nothing.
    assert_eq!(store.hold(OTHER_FS, hold("a", &[keep])).unwrap(), HoldOutcome::Missing(vec![keep]));
    for (number, chunk) in (0..8).map(|number| (number, chunk(20_000 + number))) {
        assert!(matches!(store.hold(FS, hold("a", &[gone])), Ok(HoldOutcome::Missing(_))), "{number}");
        store.store(FS, ALICE, vec![chunk], 3 * HOUR).unwrap();
    }
    assert_eq!(store.hold(FS, hold("a", &[gone])).unwrap(), HoldOutcome::Held);
}

/// Proves: from the moment a hold is granted no device can drop what it needs, not even the device that has
/// just stored it. A hold of the same name replaces the one before.
#[test]
fn no_held_block_is_dereferenced() {
    let disk = PowerLoss::new(3);
    let store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 2, 0);
    let (first, below_first) = tree(&store, 2, 2, 0);
    let (second, below_second) = tree(&store, 3, 2, 0);
    assert_eq!(store.hold(FS, hold("a", &[first])).unwrap(), HoldOutcome::Held);
    for address in &below_first {
        assert_eq!(store.decref(FS, ALICE, *address, 1).unwrap(), DecrefOutcome::Permanent);
    }
    assert_eq!(store.hold(FS, hold("a", &[second])).unwrap(), HoldOutcome::Held);
    collect(&store, keep, 2 * HOUR);
    assert_eq!((present(&store, &below_first), present(&store, &below_second)), (0, below_second.len()));
}

/// Proves: a request for a hold during a collection waits for that to end, and is then decided by what is
/// left.
#[test]
fn a_hold_during_a_collection() {
    let disk = PowerLoss::new(4);
    let store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 4, 0);
    let (doomed, _) = tree(&store, 2, 4, 0);
    let mut asked = None;
    let asking = store.clone();
    store
        .collect(FS, &[keep], 2 * HOUR, &mut |stage| {
            if stage == CollectStage::Marked {
                let asking = asking.clone();
                asked = Some(std::thread::spawn(move || asking.hold(FS, hold("a", &[doomed]))));
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        })
        .unwrap();
    let outcome = asked.unwrap().join().unwrap().unwrap();
    assert_eq!(outcome, HoldOutcome::Missing(vec![doomed]));
}

/// Proves: names, roots and numbers are bounded.
#[test]
fn bounds() {
    let disk = PowerLoss::new(5);
    let store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 1, 0);
    for bad in [hold("", &[keep]), hold("a b", &[keep]), hold(&"a".repeat(201), &[keep]), hold("a", &[])] {
        assert!(matches!(store.hold(FS, bad), Err(StoreError::Refused(_))));
    }
    assert!(matches!(store.hold(FS, hold("a", &[keep; 17])), Err(StoreError::Refused(_))));
    for number in 0..HOLDS_MAX {
        assert_eq!(store.hold(FS, hold(&number.to_string(), &[keep])).unwrap(), HoldOutcome::Held);
    }
    assert!(matches!(store.hold(FS, hold("more", &[keep])), Err(StoreError::Refused(_))));
    assert_eq!(store.hold(FS, hold("7", &[keep])).unwrap(), HoldOutcome::Held);
}
