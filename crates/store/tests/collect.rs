//! The collector: what it must never drop, what it must free, and what stops it.

use crate::common;

use common::*;
use holdfast_crypto::Digest;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{CollectReport, CollectStage, LogStore, StoreError};

const HOUR: i64 = 3600 * SECOND;

/// A tree: root, `width` inner nodes, `width` chunks each. Returns root and all addresses.
fn tree(store: &LogStore, seed: u64, width: u64, now_ns: i64) -> (Digest, Vec<Digest>) {
    let mut all = Vec::new();
    let mut inner = Vec::new();
    for branch in 0..width {
        let chunks: Vec<_> = (0..width).map(|leaf| chunk(seed * 1_000_000 + branch * 1000 + leaf)).collect();
        let addresses: Vec<Digest> = chunks.iter().map(|(address, _)| *address).collect();
        let parent = node(seed * 1000 + branch, addresses.clone());
        all.extend(addresses);
        inner.push(parent.0);
        store.store(FS, ALICE, chunks, now_ns).unwrap();
        store.store(FS, ALICE, vec![parent], now_ns).unwrap();
    }
    let root = node(seed + 5_000_000, inner.clone());
    all.extend(inner);
    all.push(root.0);
    store.store(FS, ALICE, vec![root.clone()], now_ns).unwrap();
    store.commit().unwrap();
    (root.0, all)
}

fn present(store: &LogStore, addresses: &[Digest]) -> usize {
    addresses.iter().filter(|address| store.retrieve(FS, **address).unwrap().is_some()).count()
}

fn collect(store: &LogStore, roots: &[Digest], now_ns: i64) -> Result<CollectReport, StoreError> {
    store.collect(FS, roots, now_ns, &mut |_| {})
}

/// Proves that garbage goes, what is reachable stays, space comes back, and all of it survives a crash and a
/// rebuild of the index.
#[test]
fn garbage_goes_and_the_reachable_stays() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let (keep, kept) = tree(&store, 1, 8, 0);
    let (_, lost) = tree(&store, 2, 8, 0);
    store.append_ordering(FS, b"order 1").unwrap();
    store.ordering_checkpoint(FS, b"checkpoint").unwrap();
    store.append_ordering(FS, b"order 2").unwrap();
    store.commit().unwrap();
    let before = disk.used_bytes();
    assert_eq!(collect(&store, &[keep], HOUR / 2).unwrap().dropped, 0, "all is young");
    let report = collect(&store, &[keep], HOUR + 1).unwrap();
    assert_eq!((report.marked, report.dropped), (kept.len() as u64, lost.len() as u64));
    assert!(!report.removed.is_empty() && report.missing.is_empty() && report.damaged.is_empty());
    assert!(disk.used_bytes() < before, "{} < {before}", disk.used_bytes());
    let mut store = store;
    for round in 0..3 {
        assert_eq!((present(&store, &kept), present(&store, &lost)), (kept.len(), 0), "round {round}");
        let order = (Some(b"checkpoint".to_vec()), vec![b"order 2".to_vec()]);
        assert_eq!(store.recover_ordering(FS).unwrap(), order);
        assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
        store = match round {
            0 => reopen(&disk, store, Crash::PowerLoss),
            _ => {
                drop(store);
                LogStore::open_rebuilding(disk.storage(), config()).unwrap()
            }
        };
    }
    assert_eq!(collect(&store, &[keep], HOUR + 2).unwrap().dropped, 0);
}

/// Proves that if a client relies on an unmarked block between mark and sweep, in whatever way, the block and
/// everything below it stay, durably.
#[test]
fn what_is_relied_on_between_mark_and_sweep_stays() {
    type Act = fn(&LogStore, Digest);
    let acts: [(&str, Act); 4] = [
        ("\"I have it\"", |store, root| {
            assert!(store.contains_renew(FS, root, HOUR + 1).unwrap());
        }),
        ("STORE", |store, _| {
            let inner: Vec<Digest> = tree_inner(2, 4);
            store.store(FS, BOB, vec![node(2 + 5_000_000, inner)], HOUR + 1).unwrap();
        }),
        ("a pin", |store, root| store.pin(FS, 1, &[root], 10 * HOUR, HOUR + 1).unwrap()),
        ("a new block that refers to it", |store, root| {
            store.store(FS, BOB, vec![node(77, vec![root])], HOUR + 1).unwrap();
        }),
    ];
    for (what, act) in acts {
        let disk = PowerLoss::new(2);
        let store = open(&disk).unwrap();
        let (keep, kept) = tree(&store, 1, 4, 0);
        let (relied, below) = tree(&store, 2, 4, 0);
        let (_, lost) = tree(&store, 3, 4, 0);
        let mut paused = false;
        let client = store.clone();
        let report = store
            .collect(FS, &[keep], HOUR + 1, &mut |stage| {
                if stage == CollectStage::Marked {
                    paused = true;
                    act(&client, relied);
                    client.commit().unwrap();
                }
            })
            .unwrap();
        drop(client);
        assert!(paused);
        assert_eq!(report.dropped, lost.len() as u64, "{what}");
        let store = reopen(&disk, store, Crash::PowerLoss);
        assert_eq!(present(&store, &kept), kept.len(), "{what}");
        assert_eq!(present(&store, &below), below.len(), "{what}");
        assert_eq!(present(&store, &lost), 0, "{what}");
    }
}

fn tree_inner(seed: u64, width: u64) -> Vec<Digest> {
    let chunks =
        |branch: u64| (0..width).map(|leaf| chunk(seed * 1_000_000 + branch * 1000 + leaf).0).collect();
    (0..width).map(|branch| node(seed * 1000 + branch, chunks(branch)).0).collect()
}

/// Proves that after the drop "I have it" is denied for dropped blocks, so that the client sends them again
/// and they stay.
#[test]
fn what_is_relied_on_after_the_sweep_is_sent_again() {
    let disk = PowerLoss::new(3);
    let store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 4, 0);
    let (_, lost) = tree(&store, 2, 4, 0);
    let client = store.clone();
    store
        .collect(FS, &[keep], HOUR + 1, &mut |stage| {
            if stage == CollectStage::Dropped {
                let answers = client.contains_renew_all(FS, &lost, HOUR + 1).unwrap();
                assert!(answers.iter().all(|here| !here));
                tree(&client, 2, 4, HOUR + 1);
            }
        })
        .unwrap();
    drop(client);
    assert_eq!(present(&store, &lost), lost.len());
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert_eq!(present(&store, &lost), lost.len());
    drop(store);
    let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
    assert_eq!(present(&store, &lost), lost.len());
}

/// Proves that a read error while marking ends the collection with nothing dropped and nothing removed.
#[test]
fn nothing_is_dropped_after_a_read_error() {
    let disk = PowerLoss::new(4);
    let store = open(&disk).unwrap();
    let (keep, kept) = tree(&store, 1, 8, 0);
    let (_, garbage) = tree(&store, 2, 8, 0);
    store.checkpoint().unwrap();
    let files = segments(&disk);
    for (name, length) in &files {
        disk.fail_reads(name, 0..*length);
        let result = collect(&store, &[keep], 2 * HOUR);
        disk.heal_reads();
        match result {
            Err(StoreError::Log(_)) => {}
            // This segment holds no header that marking must read: the collector may not touch it either.
            Ok(report) => {
                assert!(
                    report.removed.is_empty()
                        || !report.removed.iter().any(|number| name.contains(&format!("{number:010}")))
                );
                break;
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(segments(&disk), files);
        assert_eq!(present(&store, &kept) + present(&store, &garbage), kept.len() + garbage.len());
    }
    assert_eq!(present(&store, &kept), kept.len());
}

/// Proves that a flipped byte in the header of a reachable block ends the collection with nothing dropped, and
/// one in a body keeps its segment from being removed.
#[test]
fn damage_stops_the_collector() {
    let disk = PowerLoss::new(5);
    let mut config = config();
    // Every segment is rewritten.
    config.collect_live_percent = 101;
    let store = LogStore::open(disk.storage(), config).unwrap();
    let (keep, kept) = tree(&store, 1, 8, 0);
    let (_, garbage) = tree(&store, 2, 8, 0);
    store.checkpoint().unwrap();
    let (inner_address, inner) = node(1003, (0..8).map(|leaf| chunk(1_003_000 + leaf).0).collect());
    let body = &inner.references[3].0;
    // The chunk's own record names it first; its parent's header names it last.
    let (name, last) = find_bytes(&disk, body).pop().unwrap();
    disk.corrupt(&name, last);
    let error = collect(&store, &[keep], 2 * HOUR).unwrap_err();
    assert!(matches!(&error, StoreError::Log(_)), "{error}");
    assert!(matches!(store.retrieve(FS, inner_address), Err(StoreError::Damaged { .. })));
    assert_eq!(present(&store, &garbage), garbage.len());
    disk.corrupt(&name, last);
    let (name, offset) = find_bytes(&disk, &chunk(1_000_002).1.body).remove(0);
    disk.corrupt(&name, offset);
    let report = collect(&store, &[keep], 2 * HOUR).unwrap();
    assert!(report.damaged.iter().any(|(number, _)| name.contains(&format!("{number:010}"))), "{report:?}");
    assert!(disk.names().contains(&name));
    disk.corrupt(&name, offset);
    assert_eq!(present(&store, &kept), kept.len());
}

/// Proves that pins hold what they name and all below it, until they expire or end, across restarts and rebuilds.
#[test]
fn pins_hold_until_they_expire() {
    let disk = PowerLoss::new(6);
    let mut store = open(&disk).unwrap();
    let (keep, _) = tree(&store, 1, 4, 0);
    let (pinned, below) = tree(&store, 2, 4, 0);
    let (other, other_below) = tree(&store, 3, 4, 0);
    store.pin(FS, 1, &[pinned], 5 * HOUR, HOUR).unwrap();
    store.pin(FS, 2, &[other], 50 * HOUR, HOUR).unwrap();
    store.commit().unwrap();
    for hour in [2, 3, 4] {
        store = reopen(&disk, store, Crash::PowerLoss);
        if hour == 4 {
            drop(store);
            store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
        }
        collect(&store, &[keep], hour * HOUR).unwrap();
        assert_eq!(present(&store, &below) + present(&store, &other_below), 2 * below.len());
    }
    collect(&store, &[keep], 6 * HOUR).unwrap();
    assert_eq!((present(&store, &below), present(&store, &other_below)), (0, below.len()));
    store.unpin(FS, 2).unwrap();
    collect(&store, &[keep], 7 * HOUR).unwrap();
    assert_eq!(present(&store, &other_below), 0);
}

/// Proves that a renewal counts after a restart and a rebuild: the age is durable before the answer.
#[test]
fn a_renewal_outlives_a_crash() {
    for rebuild in [false, true] {
        let disk = PowerLoss::new(7);
        let store = open(&disk).unwrap();
        let (keep, _) = tree(&store, 1, 4, 0);
        let (relied, below) = tree(&store, 2, 4, 0);
        assert!(store.contains_renew(FS, relied, 3 * HOUR).unwrap());
        let store = reopen(&disk, store, Crash::PowerLoss);
        let store = if rebuild {
            drop(store);
            LogStore::open_rebuilding(disk.storage(), config()).unwrap()
        } else {
            store
        };
        collect(&store, &[keep], 3 * HOUR + HOUR / 2).unwrap();
        assert_eq!(present(&store, &below), below.len());
        collect(&store, &[keep], 5 * HOUR).unwrap();
        assert_eq!(present(&store, &below), 0);
    }
}

/// Proves that a missing root or no root at all is refused, and that a reference nobody stored is reported but
/// does not stop the collection.
#[test]
fn missing_roots_are_refused_and_missing_blocks_reported() {
    let disk = PowerLoss::new(8);
    let store = open(&disk).unwrap();
    let (keep, kept) = tree(&store, 1, 4, 0);
    assert!(matches!(collect(&store, &[], 2 * HOUR), Err(StoreError::Refused(_))));
    assert!(matches!(collect(&store, &[keep, Digest([3; 32])], 2 * HOUR), Err(StoreError::Refused(_))));
    assert_eq!(present(&store, &kept), kept.len());
    let dangling = node(99, vec![keep, Digest([4; 32])]);
    store.store(FS, ALICE, vec![dangling.clone()], 0).unwrap();
    let report = collect(&store, &[dangling.0], 2 * HOUR).unwrap();
    assert_eq!((report.missing, report.dropped), (vec![Digest([4; 32])], 0));
}

/// Proves that a block dropped earlier lives again when somebody refers to it while its bytes are still there.
#[test]
fn a_dropped_block_that_is_referred_to_lives_again() {
    let disk = PowerLoss::new(9);
    let mut config = config();
    // Segments are never rewritten, so that dropped bytes stay.
    config.collect_live_percent = 0;
    let store = LogStore::open(disk.storage(), config).unwrap();
    let (keep, _) = tree(&store, 1, 4, 0);
    let (back, below) = tree(&store, 2, 4, 0);
    assert_eq!(collect(&store, &[keep], 2 * HOUR).unwrap().dropped, below.len() as u64);
    let root = node(99, vec![keep, back]);
    store.store(FS, ALICE, vec![root.clone()], 2 * HOUR).unwrap();
    let report = collect(&store, &[root.0], 3 * HOUR).unwrap();
    assert!(report.missing.is_empty());
    assert_eq!(present(&store, &below), below.len());
}

/// Proves that signed blocks and ordering records move with their order, and that another file system's blocks
/// in the same segments are untouched.
#[test]
fn everything_that_lives_moves() {
    use holdfast_crypto::{Domain, SigningKey};
    let disk = PowerLoss::new(10);
    let store = open(&disk).unwrap();
    let key = SigningKey::from_seed(&[1; 32]);
    let (keep, _) = tree(&store, 1, 2, 0);
    for number in 0..40u64 {
        store.append_ordering(FS, &number.to_le_bytes()).unwrap();
        store.store(OTHER_FS, BOB, vec![chunk(number)], 0).unwrap();
        let block = number.to_le_bytes();
        let signature =
            key.sign(Domain::SignedBlock, &holdfast_store::signed_block_bytes(&FS, number % 2, &block));
        store.vstore(FS, &key.public(), number % 2, &block, signature, number as i64).unwrap();
        tree(&store, 100 + number, 3, 0);
    }
    let expected: Vec<Vec<u8>> = (0..40u64).map(|number| number.to_le_bytes().to_vec()).collect();
    let report = collect(&store, &[keep], 2 * HOUR).unwrap();
    assert!(report.removed.len() > 5, "{report:?}");
    let mut store = store;
    for round in 0..3 {
        assert_eq!(store.recover_ordering(FS).unwrap(), (None, expected.clone()), "round {round}");
        for number in 0..40 {
            let (header, block) = store.retrieve(OTHER_FS, chunk(number).0).unwrap().unwrap();
            assert_eq!((header.owner, header.stored_ns, block), (BOB, 0, chunk(number).1));
        }
        for at in 1..40i64 {
            let found = store.vretrieve(FS, &key.public(), 1, Some(at + 1)).unwrap().unwrap();
            assert_eq!(found.block, ((at - 1) / 2 * 2 + 1).to_le_bytes());
        }
        store = match round {
            0 => reopen(&disk, store, Crash::PowerLoss),
            _ => {
                drop(store);
                LogStore::open_rebuilding(disk.storage(), config()).unwrap()
            }
        };
    }
}
