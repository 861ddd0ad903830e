//! Retained deleted content: for how long, how much, and that clients can rely on it.

use crate::common;

use common::*;
use holdfast_crypto::Digest;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{CollectReport, LogStore, StoreConfig};
use std::time::Duration;

const HOUR: i64 = 3600 * SECOND;

/// Dead content is retained for five hours; the collector's own window is one hour.
fn config() -> StoreConfig {
    StoreConfig { keep_deleted: Duration::from_secs(5 * 3600), ..common::config() }
}

fn open(disk: &PowerLoss, bytes: Option<u64>) -> LogStore {
    LogStore::open(disk.storage(), StoreConfig { keep_deleted_bytes: bytes, ..config() }).unwrap()
}

/// A root over three chunks: its address, and those of all four.
fn tree(store: &LogStore, seed: u64, now_ns: i64) -> (Digest, Vec<Digest>) {
    let chunks: Vec<_> = (0..3).map(|n| chunk(seed * 1000 + n)).collect();
    let root = node(seed, chunks.iter().map(|(address, _)| *address).collect());
    let all = chunks.iter().chain([&root]).map(|(address, _)| *address).collect();
    store.store(FS, ALICE, chunks, now_ns).unwrap();
    store.store(FS, ALICE, vec![root.clone()], now_ns).unwrap();
    store.commit().unwrap();
    (root.0, all)
}

fn present(store: &LogStore, addresses: &[Digest]) -> usize {
    addresses.iter().filter(|address| store.retrieve(FS, **address).unwrap().is_some()).count()
}

fn collect(store: &LogStore, root: Digest, hour: i64) -> CollectReport {
    store.collect(FS, &[root], hour * HOUR, &mut |_| {}).unwrap()
}

/// Proves: dead blocks stay for the configured time, counted from the collection that found them dead, over
/// restarts; then they are dropped. The statistics report their size.
#[test]
fn the_dead_stay_for_their_time() {
    let disk = PowerLoss::new(1);
    let mut store = open(&disk, None);
    let (keep, kept) = tree(&store, 1, 0);
    let (_, dead) = tree(&store, 2, 0);
    for hour in [2, 4, 6] {
        let report = collect(&store, keep, hour);
        assert_eq!((report.marked, report.kept, report.dropped), (4, 4, 0), "hour {hour}");
        let figures = store.statistics().unwrap();
        assert_eq!((figures.deleted_blocks, figures.deleted_bytes), (4, report.kept_bytes));
        assert!(report.kept_bytes > 2700);
        assert_eq!(present(&store, &dead), 4);
        disk.restart(Crash::PowerLoss);
        drop(store);
        store = open(&disk, None);
    }
    assert_eq!(collect(&store, keep, 7).dropped, 4);
    assert_eq!((present(&store, &dead), present(&store, &kept)), (0, 4));
    assert_eq!(store.statistics().unwrap().deleted_blocks, 0);
    assert_eq!(collect(&store, keep, 8).dropped, 0);
}

/// Proves: relying on a dead block makes it live at once, with everything below it. When it is dead again its
/// time begins anew, also if no collection has seen it alive.
#[test]
fn relying_on_the_dead_makes_it_live() {
    for collected_meanwhile in [true, false] {
        let disk = PowerLoss::new(2);
        let store = open(&disk, None);
        let (keep, _) = tree(&store, 1, 0);
        let (dead, all) = tree(&store, 2, 0);
        collect(&store, keep, 2);
        assert!(store.contains_renew(FS, dead, 5 * HOUR).unwrap());
        if collected_meanwhile {
            assert_eq!(collect(&store, keep, 5).kept, 0, "it lives");
        }
        for hour in [8, 9, 12] {
            assert_eq!(collect(&store, keep, hour).dropped, 0, "hour {hour}");
        }
        assert_eq!(present(&store, &all), 4);
        assert_eq!(collect(&store, keep, 13).dropped, 4);
    }
}

/// Proves: what a retained dead block refers to is retained with it, even if it died long before: a client
/// told "I have it" for the one may build on both.
#[test]
fn blocks_below_retained_ones_are_retained() {
    let disk = PowerLoss::new(3);
    let store = open(&disk, None);
    let (keep, _) = tree(&store, 1, 0);
    let (old, all) = tree(&store, 2, 0);
    collect(&store, keep, 2);
    // Refers to it without asking for it, and dies before any collection has seen it.
    let late = node(77, vec![old]);
    store.store(FS, BOB, vec![late.clone()], 5 * HOUR).unwrap();
    for hour in [7, 9, 11] {
        let report = collect(&store, keep, hour);
        assert_eq!((report.kept, report.dropped), (5, 0), "hour {hour}");
    }
    assert!(store.contains_renew(FS, late.0, 11 * HOUR).unwrap());
    let root = node(78, vec![keep, late.0]);
    store.store(FS, BOB, vec![root.clone()], 11 * HOUR).unwrap();
    for hour in [13, 30] {
        assert!(collect(&store, root.0, hour).missing.is_empty());
    }
    assert_eq!(present(&store, &all), 4);
}

/// Proves: over the limit of bytes, what died first is dropped first, and of what died together blocks that
/// refer to others before those that do not. Reachable blocks are not affected.
#[test]
fn the_longest_dead_go_first() {
    let disk = PowerLoss::new(4);
    let store = open(&disk, Some(9_000));
    let (keep, kept) = tree(&store, 1, 0);
    let mut trees = Vec::new();
    for died in 0..4 {
        trees.push(tree(&store, 10 + died, 0).1);
        // Everything but the coming trees is dead from here on.
        collect(&store, keep, 2 + died as i64);
    }
    let (chunks, roots): (Vec<usize>, Vec<usize>) =
        trees.iter().map(|all| (present(&store, &all[..3]), present(&store, &all[3..]))).unzip();
    assert_eq!(roots, [0, 0, 1, 1], "{chunks:?}");
    assert_eq!((chunks[0], chunks[2], chunks[3]), (0, 3, 3));
    assert!((1..=2).contains(&chunks[1]), "what fits of the leaves: {chunks:?}");
    assert!(store.statistics().unwrap().deleted_bytes <= 9_000);
    assert_eq!(present(&store, &kept), 4);
}

/// Proves: file systems share the limit in proportion to their data, so that all together stay within it.
#[test]
fn the_limit_is_shared() {
    let disk = PowerLoss::new(5);
    let store = open(&disk, Some(16_000));
    let keep = chunk(1);
    for file_system in [FS, OTHER_FS] {
        let count = if file_system == FS { 30 } else { 10 };
        let chunks: Vec<_> = (1..count).map(chunk).collect();
        store.store(file_system, ALICE, chunks, 0).unwrap();
    }
    let kept = |file_system| store.collect(file_system, &[keep.0], 2 * HOUR, &mut |_| {}).unwrap().kept;
    let (most, least) = (kept(FS), kept(OTHER_FS));
    assert!((10..=13).contains(&most), "{most} of three quarters of about 15 blocks");
    // What the first has dropped makes the other's share greater for a moment.
    assert!((4..=7).contains(&least), "{least}");
    for _ in 0..3 {
        let _ = (kept(FS), kept(OTHER_FS));
    }
    assert!(store.statistics().unwrap().deleted_bytes <= 16_000);
}

/// Proves: with a limit of zero nothing is retained; and on a disk that fills up no more than what is free.
#[test]
fn keeping_can_be_turned_off_and_yields_to_a_full_disk() {
    let never = StoreConfig { keep_deleted: Duration::ZERO, ..config() };
    let nothing = StoreConfig { keep_deleted_bytes: Some(0), ..config() };
    for config in [never, nothing] {
        let disk = PowerLoss::new(6);
        let store = LogStore::open(disk.storage(), config).unwrap();
        let (keep, _) = tree(&store, 1, 0);
        tree(&store, 2, 0);
        assert_eq!(collect(&store, keep, 2).dropped, 4);
    }
    let disk = PowerLoss::new(7);
    let store = open(&disk, None);
    let (keep, _) = tree(&store, 1, 0);
    (0..300).for_each(|n| drop(tree(&store, 10 + n, 0)));
    store.checkpoint().unwrap();
    assert_eq!(collect(&store, keep, 2).dropped, 0);
    disk.set_capacity(Some(disk.used_bytes() + 300_000));
    let report = collect(&store, keep, 3);
    assert!(report.dropped > 0 && report.kept < 900, "{report:?}");
}

/// Proves: without its index the store keeps the dead for their whole time again, never for less.
#[test]
fn a_rebuilt_index_begins_their_time_anew() {
    let disk = PowerLoss::new(8);
    let store = open(&disk, None);
    let (keep, _) = tree(&store, 1, 0);
    let (_, dead) = tree(&store, 2, 0);
    collect(&store, keep, 2);
    drop(store);
    let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
    for hour in [6, 8, 10] {
        assert_eq!(collect(&store, keep, hour).kept, 4, "hour {hour}");
    }
    assert_eq!(collect(&store, keep, 11).dropped, 4);
    assert_eq!(present(&store, &dead), 0);
}

/// Proves: a clock that was set back retains nothing for longer than its time from now, and drops nothing
/// early.
#[test]
fn a_clock_that_goes_back() {
    let disk = PowerLoss::new(9);
    let store = open(&disk, None);
    let (keep, _) = tree(&store, 1, 0);
    tree(&store, 2, 0);
    collect(&store, keep, 1000);
    for hour in [2, 6] {
        assert_eq!(collect(&store, keep, hour).kept, 4);
    }
    assert_eq!(collect(&store, keep, 7).dropped, 4);
}

/// Proves: a deleted block whose header is damaged stops no collection, and is denied to who asks for it, since what it
/// refers to may go before it.
#[test]
fn a_damaged_deleted_block_is_not_relied_on() {
    let disk = PowerLoss::new(10);
    let store = open(&disk, None);
    let (keep, kept) = tree(&store, 1, 0);
    let (dead, all) = tree(&store, 2, 0);
    store.checkpoint().unwrap();
    // The last of its references, in its header.
    let (name, at) = find_bytes(&disk, &all[2].0).pop().unwrap();
    disk.corrupt(&name, at);
    assert_eq!(collect(&store, keep, 2).kept, 4);
    assert!(!store.contains_renew(FS, dead, 2 * HOUR).unwrap());
    assert_eq!(collect(&store, keep, 8).dropped, 4);
    assert_eq!(present(&store, &kept), 4);
}

/// Proves: DECREF keeps its meaning. What it drops was never published, and is gone at once.
#[test]
fn dereferenced_blocks_are_not_retained() {
    let disk = PowerLoss::new(11);
    let store = open(&disk, None);
    let (keep, _) = tree(&store, 1, 0);
    let undone = chunk(5);
    store.store(FS, ALICE, vec![undone.clone()], 0).unwrap();
    store.decref(FS, ALICE, undone.0, SECOND).unwrap();
    store.commit().unwrap();
    assert_eq!(store.retrieve(FS, undone.0).unwrap(), None);
    assert_eq!(collect(&store, keep, 2).kept, 0);
}

/// Proves: at whatever change of the disk a power loss comes, a client that was told "I have it" for a
/// deleted tree has all of it, after the crash and after the next collections; and the space is freed in the
/// end.
#[test]
fn no_crash_lets_down_who_relies_on_the_dead() {
    let story = |crash_at: u64| -> bool {
        let disk = PowerLoss::new(100 + crash_at);
        let mut told: Vec<Digest> = Vec::new();
        let (keep, _) = {
            let store = open(&disk, None);
            let kept = tree(&store, 1, 0);
            (2..6).for_each(|seed| drop(tree(&store, seed, 0)));
            kept
        };
        disk.crash_after(crash_at);
        let roots: Vec<Digest> =
            (2..6).map(|seed| node(seed, (0..3).map(|n| chunk(seed * 1000 + n).0).collect()).0).collect();
        let mut life = |store: &LogStore| -> Option<()> {
            for (round, root) in roots.iter().enumerate() {
                let hour = 2 + 2 * round as i64;
                store.collect(FS, &[keep], hour * HOUR, &mut |_| {}).ok()?;
                if store.contains_renew(FS, *root, hour * HOUR).ok()? {
                    told.push(*root);
                }
            }
            Some(())
        };
        let ended = LogStore::open(disk.storage(), config()).ok().and_then(|store| life(&store)).is_some();
        disk.restart(Crash::PowerLoss);
        let store = open(&disk, None);
        // The client was told at 2, and the tree was found dead at 4, so it may be dropped at 9.
        for _ in 0..2 {
            collect(&store, keep, 8);
            for root in &told {
                let seed = 2 + roots.iter().position(|found| found == root).unwrap() as u64;
                let below: Vec<Digest> = (0..3).map(|n| chunk(seed * 1000 + n).0).collect();
                assert_eq!(present(&store, &[*root]), 1, "crash at {crash_at}");
                assert_eq!(present(&store, &below), 3, "crash at {crash_at}");
            }
        }
        collect(&store, keep, 20);
        collect(&store, keep, 26);
        assert_eq!(present(&store, &roots), 0, "crash at {crash_at}");
        ended
    };
    let changes = (0..).step_by(7).find(|crash_at| story(*crash_at)).unwrap();
    assert!(changes > 20, "the stories crashed at {changes} changes");
}
