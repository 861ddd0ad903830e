//! STORE, DECREF, SNAPSHOT, headers and signed blocks, as in SUNDR section 6.1 with our departures.

use crate::common;

use common::*;
use holdfast_content::BlockKind;
use holdfast_crypto::{Domain, SigningKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{DecrefOutcome, LogStore, StoreError, signed_block_bytes};

fn store_one(
    store: &LogStore,
    owner: holdfast_content::DeviceId,
    number: u64,
    now_ns: i64,
) -> holdfast_crypto::Digest {
    let block = chunk(number);
    store.store(FS, owner, vec![block.clone()], now_ns).unwrap();
    store.commit().unwrap();
    block.0
}

fn is_there(store: &LogStore, address: holdfast_crypto::Digest) -> bool {
    store.retrieve(FS, address).unwrap().is_some()
}

/// Proves that a block's storer may take it back within the window, durably, and that it can be stored anew.
#[test]
fn the_storer_takes_a_block_back_within_the_window() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let address = store_one(&store, ALICE, 1, 0);
    assert_eq!(store.decref(FS, ALICE, address, 59 * SECOND).unwrap(), DecrefOutcome::Dropped);
    assert!(!is_there(&store, address));
    assert_eq!(store.decref(FS, ALICE, address, 59 * SECOND).unwrap(), DecrefOutcome::Unknown);
    store.commit().unwrap();
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert!(!is_there(&store, address));
    store_one(&store, BOB, 1, 100 * SECOND);
    let (header, _) = store.retrieve(FS, address).unwrap().unwrap();
    assert_eq!((header.owner, header.stored_ns), (BOB, 100 * SECOND));
    drop(store);
    let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
    assert_eq!(store.retrieve(FS, address).unwrap().unwrap().0.owner, BOB);
}

/// Proves each way in which a block becomes permanent: what DECREF then answers, and that the block stays.
#[test]
fn everything_else_makes_a_block_permanent() {
    type Case = (&'static str, fn(&LogStore, holdfast_crypto::Digest), i64, DecrefOutcome);
    let cases: [Case; 8] = [
        ("the window is over", |_, _| {}, 60 * SECOND, DecrefOutcome::Permanent),
        (
            "another device stored it too",
            |store, _| assert_eq!(store_one(store, BOB, 1, SECOND), chunk(1).0),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "the same device stored it twice",
            |store, _| assert_eq!(store_one(store, ALICE, 1, SECOND), chunk(1).0),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "somebody was told \"I have it\"",
            |store, address| assert!(store.contains_renew(FS, address, SECOND).unwrap()),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "another device's block refers to it",
            |store, address| store.store(FS, BOB, vec![node(9, vec![address])], SECOND).unwrap(),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "a snapshot was taken",
            |store, _| store.snapshot(FS, SECOND).unwrap(),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "somebody pins it",
            |store, address| store.pin(FS, 1, &[address], 100 * SECOND, SECOND).unwrap(),
            2 * SECOND,
            DecrefOutcome::Permanent,
        ),
        (
            "its storer's own block refers to it, which is its own affair",
            |store, address| store.store(FS, ALICE, vec![node(9, vec![address])], SECOND).unwrap(),
            2 * SECOND,
            DecrefOutcome::Dropped,
        ),
    ];
    for (what, act, at_ns, expected) in cases {
        let disk = PowerLoss::new(2);
        let store = open(&disk).unwrap();
        let address = store_one(&store, ALICE, 1, 0);
        assert_eq!(store.decref(FS, BOB, address, 0).unwrap(), DecrefOutcome::NotTheStorer, "{what}");
        act(&store, address);
        assert_eq!(store.decref(FS, ALICE, address, at_ns).unwrap(), expected, "{what}");
        assert_eq!(is_there(&store, address), expected != DecrefOutcome::Dropped, "{what}");
    }
}

/// Proves that a block stored long ago, which STORE did not look up, is not dropped by the DECREF of a later
/// STORE, and keeps its first header.
#[test]
fn a_second_store_after_a_checkpoint_is_permanent_too() {
    let disk = PowerLoss::new(3);
    let store = open(&disk).unwrap();
    let address = store_one(&store, ALICE, 1, 0);
    store.checkpoint().unwrap();
    store_one(&store, BOB, 1, 1000 * SECOND);
    assert_eq!(store.retrieve(FS, address).unwrap().unwrap().0.owner, ALICE);
    assert_eq!(store.decref(FS, BOB, address, 1000 * SECOND).unwrap(), DecrefOutcome::Permanent);
    for _ in 0..2 {
        assert_eq!(store.retrieve(FS, address).unwrap().unwrap().0.owner, ALICE);
        store.checkpoint().unwrap();
    }
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert_eq!(store.retrieve(FS, address).unwrap().unwrap().0.owner, ALICE);
}

/// Proves that an index checkpoint does not end a window, and that the drop reaches the index.
#[test]
fn a_checkpoint_does_not_end_a_window() {
    let disk = PowerLoss::new(8);
    let store = open(&disk).unwrap();
    let address = store_one(&store, ALICE, 1, 0);
    store.checkpoint().unwrap();
    assert_eq!(store.decref(FS, ALICE, address, SECOND).unwrap(), DecrefOutcome::Dropped);
    for _ in 0..2 {
        assert!(!is_there(&store, address));
        store.checkpoint().unwrap();
    }
}

/// Proves that a restart ends every window: young blocks are permanent.
#[test]
fn a_restart_ends_every_window() {
    for crash in [Crash::Kill, Crash::PowerLoss] {
        let disk = PowerLoss::new(4);
        let store = open(&disk).unwrap();
        let address = store_one(&store, ALICE, 1, 0);
        let store = reopen(&disk, store, crash);
        assert_eq!(store.decref(FS, ALICE, address, SECOND).unwrap(), DecrefOutcome::Permanent);
        assert!(is_there(&store, address));
    }
}

/// Proves that file systems on one store do not see, name or drop each other's blocks.
#[test]
fn file_systems_are_apart() {
    let disk = PowerLoss::new(5);
    let store = open(&disk).unwrap();
    let address = store_one(&store, ALICE, 1, 0);
    assert_eq!(store.retrieve(OTHER_FS, address).unwrap(), None);
    assert!(!store.contains_renew(OTHER_FS, address, 0).unwrap());
    assert_eq!(store.decref(OTHER_FS, ALICE, address, 0).unwrap(), DecrefOutcome::Unknown);
    store.store(OTHER_FS, BOB, vec![chunk(1)], 5).unwrap();
    assert_eq!(store.retrieve(OTHER_FS, address).unwrap().unwrap().0.owner, BOB);
    assert_eq!(store.decref(OTHER_FS, BOB, address, 6).unwrap(), DecrefOutcome::Dropped);
    assert_eq!(store.retrieve(FS, address).unwrap().unwrap().0.owner, ALICE);
    assert_eq!(store.file_systems(), vec![FS, OTHER_FS]);
}

/// Proves that signed blocks come back by key, number and time, through memory, index, restart and rebuild, and
/// that a wrong signature is refused.
#[test]
fn signed_blocks_by_key_number_and_time() {
    let disk = PowerLoss::new(6);
    let mut store = open(&disk).unwrap();
    let (one, two) = (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]));
    let put = |store: &LogStore, key: &SigningKey, number: u64, text: &str, now_ns: i64| {
        let signature = key.sign(Domain::SignedBlock, &signed_block_bytes(&FS, number, text.as_bytes()));
        store.vstore(FS, &key.public(), number, text.as_bytes(), signature, now_ns).unwrap();
        store.commit().unwrap();
    };
    let get = |store: &LogStore, key: &SigningKey, number: u64, at: Option<i64>| {
        let found = store.vretrieve(FS, &key.public(), number, at).unwrap()?;
        let bytes = signed_block_bytes(&FS, number, &found.block);
        assert!(key.public().verify(Domain::SignedBlock, &bytes, &found.signature));
        Some((String::from_utf8(found.block).unwrap(), found.stored_ns))
    };
    put(&store, &one, 0, "first", 10);
    store.checkpoint().unwrap();
    put(&store, &one, 0, "second", 20);
    put(&store, &one, 1, "other number", 30);
    put(&store, &two, 0, "other key", 40);
    put(&store, &one, 0, "same time", 20);
    for round in 0..4 {
        let is = |text: &str, at: i64| Some((text.to_owned(), at));
        assert_eq!(get(&store, &one, 0, None), is("same time", 20), "round {round}");
        assert_eq!(get(&store, &one, 0, Some(20)), is("first", 10));
        assert_eq!(get(&store, &one, 0, Some(10)), None);
        assert_eq!(get(&store, &one, 1, None), is("other number", 30));
        assert_eq!(get(&store, &two, 0, None), is("other key", 40));
        assert_eq!(get(&store, &two, 1, None), None);
        assert_eq!(store.vretrieve(OTHER_FS, &one.public(), 0, None).unwrap(), None);
        store = match round {
            0 => reopen(&disk, store, Crash::PowerLoss),
            1 => {
                store.checkpoint().unwrap();
                store
            }
            _ => {
                drop(store);
                LogStore::open_rebuilding(disk.storage(), config()).unwrap()
            }
        };
    }
    let signature = two.sign(Domain::SignedBlock, &signed_block_bytes(&FS, 0, b"forged"));
    let refused = store.vstore(FS, &one.public(), 0, b"forged", signature, 50);
    assert!(matches!(refused, Err(StoreError::Refused(_))));
}

/// Proves that a retrieved block has the header of the first STORE, its encoding included.
#[test]
fn retrieve_returns_the_first_header() {
    let disk = PowerLoss::new(7);
    let store = open(&disk).unwrap();
    let plain = holdfast_content::Block::new(
        &holdfast_crypto::DigestKey::WELL_KNOWN,
        BlockKind::Chunk,
        vec![],
        vec![7; 4000],
    );
    let packed = plain.to_stored();
    assert_eq!(packed.codec, holdfast_content::Codec::Zstd);
    let address = plain.reference().address;
    store.store(FS, ALICE, vec![(address, packed.clone())], 1).unwrap();
    let unpacked = holdfast_content::StoredBlock {
        codec: holdfast_content::Codec::Plain,
        body: plain.body().to_vec(),
        ..packed.clone()
    };
    store.store(FS, BOB, vec![(address, unpacked)], 2).unwrap();
    let (header, block) = store.retrieve(FS, address).unwrap().unwrap();
    assert_eq!((header.owner, header.stored_ns, header.codec), (ALICE, 1, holdfast_content::Codec::Zstd));
    assert_eq!(block, packed);
}
