//! Failing media (full, damaged, foreign, lost) and many threads at once. Errors are clear, nothing
//! acknowledged is lost, nothing wrong is served.

use crate::common;

use common::*;
use holdfast_crypto::Digest;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{LocalStorage, LogError};
use holdfast_store::{LogStore, StoreConfig, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Proves that a full disk is a clear error, that nothing is half-acknowledged, and that the store continues
/// when there is space again, without being reopened.
#[test]
fn a_full_disk_is_clear_and_passes() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    store.store(FS, ALICE, (0..5).map(chunk).collect(), 0).unwrap();
    store.append_ordering(FS, b"before").unwrap();
    store.commit().unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 4096));
    let mut stored = 5;
    let error = loop {
        match store.store(FS, ALICE, vec![chunk(stored)], 0) {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(error.is_full() && error.to_string().contains("full"), "{error}");
    let mut order = vec![b"before".to_vec()];
    let full = loop {
        match store.append_ordering(FS, &[7; 500]) {
            Ok(()) => order.push(vec![7; 500]),
            Err(error) => break error,
        }
    };
    assert!(full.is_full());
    // What was accepted before can still be committed.
    store.commit().unwrap();
    // The index cannot grow either; nothing is lost by that.
    let _ = store.checkpoint();
    let check = |store: &LogStore, stored: u64, order: &[Vec<u8>]| {
        for number in 0..stored {
            assert_eq!(store.retrieve(FS, chunk(number).0).unwrap().unwrap().1, chunk(number).1);
        }
        assert_eq!(store.recover_ordering(FS).unwrap().1, order);
    };
    check(&store, stored, &order);
    disk.set_capacity(None);
    store.store(FS, ALICE, (stored..stored + 20).map(chunk).collect(), 0).unwrap();
    store.append_ordering(FS, b"after").unwrap();
    store.commit().unwrap();
    store.checkpoint().unwrap();
    order.push(b"after".to_vec());
    check(&store, stored + 20, &order);
    let store = reopen(&disk, store, Crash::PowerLoss);
    check(&store, stored + 20, &order);
    assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
}

/// Proves that after a failed sync nothing more is accepted, and that reopening serves what was acknowledged.
#[test]
fn a_failed_sync_stops_the_store() {
    let disk = PowerLoss::new(2);
    let store = open(&disk).unwrap();
    store.store(FS, ALICE, vec![chunk(1)], 0).unwrap();
    store.commit().unwrap();
    store.store(FS, ALICE, vec![chunk(2)], 0).unwrap();
    disk.fail_syncs(1);
    assert!(store.commit().is_err());
    assert!(matches!(store.commit(), Err(StoreError::Log(LogError::Poisoned(_)))));
    assert!(store.store(FS, ALICE, vec![chunk(3)], 0).is_err());
    assert!(store.append_ordering(FS, b"x").is_err());
    assert!(store.contains_renew(FS, chunk(1).0, 5).is_err());
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert!(store.retrieve(FS, chunk(1).0).unwrap().is_some());
    assert!(store.retrieve(FS, chunk(2).0).unwrap().is_none());
}

/// Proves that a damaged block is an error that names file and offset, that the scrub finds it, that "I have it"
/// is denied for it, and that sending it again heals it for good.
#[test]
fn a_damaged_block_is_an_error_until_it_is_sent_again() {
    for rebuild in [false, true] {
        let disk = PowerLoss::new(3);
        let store = open(&disk).unwrap();
        store.store(FS, ALICE, (0..30).map(chunk).collect(), 0).unwrap();
        store.commit().unwrap();
        let (name, offset) = find_bytes(&disk, &chunk(7).1.body).remove(0);
        disk.corrupt(&name, offset + 5);
        if rebuild {
            drop(store);
        } else {
            std::mem::drop(reopen(&disk, store, Crash::Kill));
        }
        let open = if rebuild { LogStore::open_rebuilding } else { LogStore::open };
        let store = open(disk.storage(), config()).unwrap();
        match store.retrieve(FS, chunk(7).0).unwrap_err() {
            StoreError::Damaged { address, file, offset: at, .. } => {
                assert_eq!((address, file), (chunk(7).0, name.clone()));
                assert!(at < offset && offset - at < 300, "the record that holds byte {offset}, not {at}");
            }
            other => panic!("{other}"),
        }
        for number in (0..30).filter(|number| *number != 7) {
            assert_eq!(store.retrieve(FS, chunk(number).0).unwrap().unwrap().1, chunk(number).1);
        }
        let report = store.scrub(&mut |_, _| {}).unwrap();
        assert_eq!((report.bad_count, report.bad.len()), (1, 1));
        let bad = &report.bad[0];
        assert_eq!((&bad.file, bad.block, bad.live), (&name, Some((FS, chunk(7).0)), true));
        assert!(!store.contains_renew(FS, chunk(7).0, 1).unwrap());
        assert!(store.contains_renew(FS, chunk(8).0, 1).unwrap());
        store.store(FS, BOB, vec![chunk(7)], 1).unwrap();
        store.commit().unwrap();
        let mut store = store;
        for _ in 0..2 {
            assert_eq!(store.retrieve(FS, chunk(7).0).unwrap().unwrap().1, chunk(7).1);
            assert!(store.contains_renew(FS, chunk(7).0, 1).unwrap());
            store = reopen(&disk, store, Crash::PowerLoss);
        }
        let report = store.scrub(&mut |_, _| {}).unwrap();
        assert_eq!((report.bad_count, report.bad[0].live), (1, false), "the old copy is harmless garbage");
        drop(store);
        let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
        assert_eq!(store.retrieve(FS, chunk(7).0).unwrap().unwrap().1, chunk(7).1);
    }
}

/// Proves that a scrub reads on past sectors that cannot be read, names what they held, and that reads of those
/// blocks fail while the others go on.
#[test]
fn a_scrub_reads_past_bad_sectors() {
    let disk = PowerLoss::new(7);
    let store = open(&disk).unwrap();
    store.store(FS, ALICE, (0..60).map(chunk).collect(), 0).unwrap();
    store.commit().unwrap();
    let places = [4, 30, 31].map(|number| find_bytes(&disk, &chunk(number).1.body).remove(0));
    for (name, offset) in places {
        disk.fail_reads(&name, offset + 100..offset + 200);
    }
    let mut progress = Vec::new();
    let report = store.scrub(&mut |done, total| progress.push((done, total))).unwrap();
    let mut bad: Vec<Digest> = report.bad.iter().map(|bad| bad.block.unwrap().1).collect();
    let mut expected: Vec<Digest> = [4, 30, 31].map(|number| chunk(number).0).to_vec();
    bad.sort();
    expected.sort();
    assert_eq!((bad, report.bad_count, report.records), (expected, 3, 57));
    assert!(report.bad.iter().all(|bad| bad.live && bad.why.contains("cannot be read")));
    assert!(progress.last().is_some_and(|(done, total)| done == total));
    for number in 0..60 {
        let found = store.retrieve(FS, chunk(number).0);
        assert_eq!(found.is_err(), [4, 30, 31].contains(&number), "{number}: {found:?}");
    }
    // Clients that have them send them again, which repairs them.
    for number in [4, 30, 31] {
        assert!(!store.contains_renew(FS, chunk(number).0, 1).unwrap());
        store.store(FS, BOB, vec![chunk(number)], 1).unwrap();
        assert_eq!(store.retrieve(FS, chunk(number).0).unwrap().unwrap().1, chunk(number).1);
    }
    disk.heal_reads();
    assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
}

/// Proves that if any single byte of the data directory is flipped, no wrong block is ever served: each read
/// gives the right bytes or an error. No block is silently absent, and no order silently shorter.
#[test]
fn no_flipped_byte_is_served() {
    let disk = PowerLoss::new(4);
    let store = open(&disk).unwrap();
    store.store(FS, ALICE, (0..6).map(|number| chunk_of(number, 90)).collect(), 0).unwrap();
    store.append_ordering(FS, b"first").unwrap();
    store.append_ordering(FS, b"second").unwrap();
    store.store(FS, ALICE, vec![chunk_of(6, 90)], 0).unwrap();
    store.commit().unwrap();
    // Opening again makes everything that is there durable.
    drop(reopen(&disk, store, Crash::PowerLoss));
    let (name, length) = segments(&disk)[0].clone();
    let (mut errors, mut refusals) = (0, 0);
    for offset in 0..length {
        for rebuild in [false, true].into_iter().take(if offset % 5 == 0 { 2 } else { 1 }) {
            disk.corrupt(&name, offset);
            let open = if rebuild { LogStore::open_rebuilding } else { LogStore::open };
            match open(disk.storage(), config()) {
                Err(_) => refusals += 1,
                Ok(store) => {
                    for number in 0..7 {
                        let (address, block) = chunk_of(number, 90);
                        match store.retrieve(FS, address) {
                            Ok(Some((_, found))) => assert_eq!(found, block, "byte {offset}"),
                            Ok(None) => panic!("byte {offset} of {name} hides block {number}"),
                            Err(_) => errors += 1,
                        }
                    }
                    match store.recover_ordering(FS) {
                        Ok((None, found)) => {
                            assert_eq!(found, vec![b"first".to_vec(), b"second".to_vec()], "byte {offset}");
                        }
                        Ok(other) => panic!("byte {offset}: {other:?}"),
                        Err(StoreError::OrderingDamaged { .. }) => errors += 1,
                        Err(other) => panic!("byte {offset}: {other}"),
                    }
                }
            }
            disk.corrupt(&name, offset);
        }
    }
    assert!(errors > 100 && refusals > 0, "{errors} errors, {refusals} refusals");
}

/// Proves that no damage of the index serves a wrong block or loses one for good: reads are right or errors, and
/// the next opening or a rebuild has everything.
#[test]
fn a_damaged_index_is_rebuilt() {
    let blocks = 300;
    let disk = PowerLoss::new(5);
    let store = open(&disk).unwrap();
    store.store(FS, ALICE, (0..blocks).map(chunk).collect(), 0).unwrap();
    store.append_ordering(FS, b"order").unwrap();
    store.commit().unwrap();
    drop(store);
    let length = disk.length("index.redb").unwrap();
    let complete = |store: &LogStore| {
        (0..blocks).all(|number| {
            store
                .retrieve(FS, chunk(number).0)
                .is_ok_and(|found| found.is_some_and(|(_, b)| b == chunk(number).1))
        }) && store.recover_ordering(FS).is_ok_and(|(_, records)| records == vec![b"order".to_vec()])
    };
    let mut image = vec![0; length as usize];
    disk.storage().open("index.redb").unwrap().read_at(0, &mut image).unwrap();
    type Breakage = (&'static str, fn(&mut Vec<u8>));
    let breakages: [Breakage; 6] = [
        ("emptied", |bytes| bytes.clear()),
        ("cut in half", |bytes| bytes.truncate(bytes.len() / 2)),
        ("zeroed", |bytes| bytes.fill(0)),
        ("no magic number", |bytes| bytes[0] ^= 1),
        ("every 97th byte flipped", |bytes| bytes.iter_mut().step_by(97).for_each(|byte| *byte ^= 0x5a)),
        ("foreign", |bytes| bytes.fill(0x5a)),
    ];
    for (what, damage) in breakages {
        let mut bytes = image.clone();
        damage(&mut bytes);
        disk.overwrite("index.redb", &bytes);
        // A first opening may notice only on use; then it says so, and the second one is whole.
        let first = open(&disk);
        if !first.as_ref().is_ok_and(complete) {
            drop(first);
            let second = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
            assert!(complete(&second), "{what}");
        }
    }
    disk.delete("index.redb");
    let store = open(&disk).unwrap();
    assert!(store.recovery().index_rebuilt && complete(&store));
    drop(store);

    // A store that stops with damage that nobody has met stops in order, and the next one has everything.
    let length = disk.length("index.redb").unwrap() as usize;
    let mut image = vec![0; length];
    disk.storage().open("index.redb").unwrap().read_at(0, &mut image).unwrap();
    for page in 1..length / 4096 {
        let store = open(&disk).unwrap();
        let mut bytes = image.clone();
        bytes[page * 4096..(page + 1) * 4096].fill(0x5a);
        disk.overwrite("index.redb", &bytes);
        drop(store);
        if !open(&disk).as_ref().is_ok_and(complete) {
            assert!(complete(&LogStore::open_rebuilding(disk.storage(), config()).unwrap()), "page {page}");
        }
    }
}

/// Proves that if a whole segment is lost, blocks that may have been in it are errors and not absent, the
/// order is refused, and a new file system works.
#[test]
fn lost_records_are_not_absent() {
    let disk = PowerLoss::new(6);
    let store = open(&disk).unwrap();
    for number in 0..60 {
        store.store(FS, ALICE, vec![chunk(number)], 0).unwrap();
        store.append_ordering(FS, &[number as u8]).unwrap();
    }
    store.commit().unwrap();
    drop(store);
    let (name, length) = segments(&disk)[1].clone();
    disk.overwrite(&name, &vec![0; length as usize]);
    let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
    assert!(store.recovery().lost_records > 0);
    let lost = (0..60).filter(|number| match store.retrieve(FS, chunk(*number).0) {
        Ok(found) => {
            assert_eq!(found.unwrap().1, chunk(*number).1);
            false
        }
        Err(StoreError::MayBeDamaged { .. }) => true,
        Err(other) => panic!("{other}"),
    });
    assert!(lost.count() > 5);
    assert!(matches!(store.recover_ordering(FS), Err(StoreError::OrderingDamaged { .. })));
    let collected = store.collect(FS, &[node(1, vec![chunk(20).0]).0], 9999 * SECOND, &mut |_| {});
    assert!(collected.is_err(), "{collected:?}");
    assert_eq!(store.recover_ordering(OTHER_FS).unwrap(), (None, vec![]));
    store.store(OTHER_FS, BOB, vec![chunk(1)], 0).unwrap();
    store.append_ordering(OTHER_FS, b"new").unwrap();
    assert!(store.retrieve(OTHER_FS, chunk(1).0).unwrap().is_some());
    assert_eq!(store.recover_ordering(OTHER_FS).unwrap().1, vec![b"new".to_vec()]);
}

/// Proves that foreign directories are refused with a clear error and left as they are.
#[test]
fn foreign_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let storage = || Arc::new(LocalStorage::open(dir.path()).unwrap());
    let store = LogStore::open(storage(), StoreConfig::default()).unwrap();
    let second = LogStore::open(storage(), StoreConfig::default()).err().unwrap();
    assert!(matches!(&second, StoreError::InUse { .. }) && second.to_string().contains("in use"), "{second}");
    store.store(FS, ALICE, vec![chunk(1)], 0).unwrap();
    store.commit().unwrap();
    drop(store);
    let format = dir.path().join("FORMAT");
    let text = std::fs::read_to_string(&format).unwrap();
    assert_eq!(text, "holdfast store format 1\n");
    std::fs::write(&format, "holdfast store format 2\n").unwrap();
    let newer = LogStore::open(storage(), StoreConfig::default()).err().unwrap();
    assert!(matches!(newer, StoreError::NewerFormat { found: 2, supported: 1, .. }), "{newer}");
    std::fs::write(&format, "something else").unwrap();
    let foreign = LogStore::open(storage(), StoreConfig::default()).err().unwrap();
    assert!(matches!(foreign, StoreError::NotAStore { .. }), "{foreign}");
    std::fs::remove_file(&format).unwrap();
    assert!(matches!(LogStore::open(storage(), StoreConfig::default()), Err(StoreError::NotAStore { .. })));
    std::fs::write(&format, text).unwrap();
    let store = LogStore::open(storage(), StoreConfig::default()).unwrap();
    assert!(store.retrieve(FS, chunk(1).0).unwrap().is_some());
}

/// Proves that changes are written to the index in bounded batches while storing continues, and that this
/// loses nothing.
#[test]
fn memory_is_bounded_while_storing() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { recent_entries_max: 256, segment_bytes: 1 << 20, ..StoreConfig::default() };
    let open = || LogStore::open(Arc::new(LocalStorage::open(dir.path()).unwrap()), config.clone()).unwrap();
    let store = open();
    let mut most = 0;
    for batch in 0..100u64 {
        let blocks = (0..100).map(|number| chunk_of(batch * 100 + number, 64)).collect();
        store.store(FS, ALICE, blocks, 0).unwrap();
        most = most.max(store.statistics().unwrap().recent_entries);
    }
    assert!(most <= 4 * 256 + 100, "{most} entries in memory");
    store.commit().unwrap();
    drop(store);
    let store = open();
    assert_eq!(store.recovery().replayed_records, 0);
    assert_eq!(store.statistics().unwrap().blocks, 10_000);
    assert!((0..10_000).all(|number| store.retrieve(FS, chunk_of(number, 64).0).unwrap().is_some()));
}

/// Proves that threads that store, rely, read and commit beside a running collector never miss a block that
/// they stored, or were told of within the window.
#[test]
fn many_threads_beside_a_collector() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig {
        gc_window: std::time::Duration::from_secs(100),
        keep_deleted: std::time::Duration::from_secs(100),
        segment_bytes: 64 << 10,
        recent_entries_max: 512,
        ..StoreConfig::default()
    };
    let open = || LogStore::open(Arc::new(LocalStorage::open(dir.path()).unwrap()), config.clone()).unwrap();
    let store = open();
    let clock = AtomicI64::new(0);
    let root = node(1, (0..20).map(|number| chunk(number).0).collect());
    store.store(FS, ALICE, (0..20).map(chunk).chain([root.clone()]).collect(), 0).unwrap();
    std::thread::scope(|scope| {
        let workers = [0u64, 1, 2, 3].map(|thread| {
            let (store, clock) = (&store, &clock);
            scope.spawn(move || {
                let mut mine: Vec<(i64, Digest)> = Vec::new();
                for round in 0..400u64 {
                    let now = clock.fetch_add(SECOND, Ordering::SeqCst);
                    // Threads share numbers, so that they rely on each other's blocks.
                    let number = 100 + (round * 7 + thread * 3) % 150;
                    let (address, block) = chunk(number);
                    if !store.contains_renew(FS, address, now).unwrap() {
                        store.store(FS, ALICE, vec![(address, block)], now).unwrap();
                        store.commit().unwrap();
                    }
                    mine.push((now, address));
                    let now = clock.load(Ordering::SeqCst);
                    // The collector's clock may be ahead of ours by what the other threads added meanwhile.
                    mine.retain(|(at, _)| now - at < 50 * SECOND);
                    for (_, address) in &mine {
                        assert!(store.retrieve(FS, *address).unwrap().is_some());
                    }
                }
            })
        });
        let (mut dropped, mut removed) = (0, 0);
        while !workers.iter().any(|worker| worker.is_finished()) {
            let now = clock.load(Ordering::SeqCst);
            let report = store.collect(FS, &[root.0], now, &mut |_| {}).unwrap();
            assert!(report.missing.is_empty() && report.damaged.is_empty());
            dropped += report.dropped;
            removed += report.removed.len();
        }
        assert!(dropped > 0 && removed > 0, "{dropped} dropped, {removed} segments removed");
    });
    assert!((0..20).all(|number| store.retrieve(FS, chunk(number).0).unwrap().is_some()));
    assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
    drop(store);
    assert!((0..20).all(|number| open().retrieve(FS, chunk(number).0).unwrap().is_some()));
}
