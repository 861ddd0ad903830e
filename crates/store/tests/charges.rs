//! Charges, compared with a model that looks at blocks alone, through everything that happens to a store; and
//! each way in which a member might make others pay, or pay nothing.

use crate::common;

use common::*;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::LocalStorage;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_store::{Allowance, Charge, DecrefOutcome, Hold, LogStore, StoreConfig, StoreError};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

type Blocks = Vec<(Digest, StoredBlock)>;

/// What a block costs, by the layout of its record in docs/internals/storage.md.
fn price(block: &StoredBlock) -> u64 {
    let head = 32 + 32 + 4 + 8 + 8 + 1 + 1 + 1 + 4 + 32 * block.references.len();
    u64::from(holdfast_log::stored_length(head, block.body.len()))
}

fn charge(blocks: &[&(Digest, StoredBlock)]) -> Charge {
    Charge { blocks: blocks.len() as u64, bytes: blocks.iter().map(|(_, block)| price(block)).sum() }
}

fn charges(store: &LogStore) -> BTreeMap<DeviceId, Charge> {
    store.charges(FS).unwrap()
}

fn put(store: &LogStore, owner: DeviceId, blocks: &Blocks, now_ns: i64) {
    store.store(FS, owner, blocks.clone(), now_ns).unwrap();
    store.commit().unwrap();
}

fn allowed(devices: &[DeviceId], bytes: u64) -> Allowance {
    Allowance { devices: devices.to_vec(), bytes, reserve: 4096 }
}

#[test]
fn whoever_stores_first_pays() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let (mine, shared) = (chunk(1), chunk(2));
    put(&store, ALICE, &vec![mine.clone(), shared.clone()], 0);
    put(&store, BOB, &vec![shared.clone()], SECOND);
    put(&store, ALICE, &vec![mine.clone()], SECOND);
    let expected = BTreeMap::from([(ALICE, charge(&[&mine, &shared]))]);
    assert_eq!(charges(&store), expected);
    // Another device relies on the block in every way: it stays Alice's. And no other device can dereference
    // it.
    assert_eq!(store.decref(FS, BOB, mine.0, SECOND).unwrap(), DecrefOutcome::Permanent);
    assert!(store.contains_renew(FS, mine.0, SECOND).unwrap());
    store.pin(FS, 2, &[mine.0], 100 * SECOND, SECOND).unwrap();
    store.hold(FS, Hold { name: "h".into(), device: BOB, made_ns: 0, roots: vec![mine.0] }).unwrap();
    put(&store, BOB, &vec![mine.clone(), shared.clone()], SECOND);
    assert_eq!(charges(&store), expected);
    // A copy whose bytes in the index are older is one block all the same, at once and after a restart.
    put(&store, BOB, &vec![mine.clone()], 2 * SECOND);
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert_eq!(charges(&store), expected);
    assert_eq!(store.charges(OTHER_FS).unwrap(), BTreeMap::new());
    drop(store);
    let store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
    assert_eq!(charges(&store), expected);
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().charge_errors, 0);
}

#[test]
fn what_is_given_up_is_uncharged_and_nothing_else() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let (hers, his) = (chunk(1), chunk(2));
    put(&store, ALICE, &vec![hers.clone()], 0);
    put(&store, BOB, &vec![his.clone()], 0);
    assert_eq!(store.decref(FS, BOB, hers.0, SECOND).unwrap(), DecrefOutcome::NotTheStorer);
    assert_eq!(store.decref(FS, BOB, his.0, SECOND).unwrap(), DecrefOutcome::Dropped);
    store.commit().unwrap();
    assert_eq!(charges(&store), [(ALICE, charge(&[&hers]))].into());
    assert_eq!(store.charged(FS, &[BOB]), Charge::default());
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert_eq!(charges(&store), [(ALICE, charge(&[&hers]))].into());
}

/// Proves: a device that replaces a damaged block neither pays for it nor may drop it.
#[test]
fn healing_moves_no_charge() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let hers = chunk(1);
    put(&store, ALICE, &vec![hers.clone()], 0);
    store.checkpoint().unwrap();
    let (name, offset) = find_bytes(&disk, &hers.1.body)[0].clone();
    disk.corrupt(&name, offset + 5);
    assert!(store.retrieve(FS, hers.0).is_err());
    put(&store, BOB, &vec![hers.clone()], SECOND);
    let (header, _) = store.retrieve(FS, hers.0).unwrap().unwrap();
    assert_eq!(header.owner, ALICE);
    assert_ne!(store.decref(FS, BOB, hers.0, 2 * SECOND).unwrap(), DecrefOutcome::Dropped);
    assert_eq!(charges(&store), [(ALICE, charge(&[&hers]))].into());
    let store = reopen(&disk, store, Crash::PowerLoss);
    assert_eq!(charges(&store), [(ALICE, charge(&[&hers]))].into());
}

/// Proves: over an allowance nothing of a request is stored. What is here already costs nothing. All devices
/// of a user count together. There is a limited reserve for blocks other than chunks.
#[test]
fn an_allowance_holds() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let chunks: Blocks = (0..6).map(chunk).collect();
    let one = price(&chunks[0].1);
    let both = allowed(&[ALICE, BOB], 4 * one);
    let within = |owner, blocks: &[(Digest, StoredBlock)]| {
        store.store_within(FS, owner, blocks.to_vec(), Some(&both), 0)
    };
    within(ALICE, &chunks[..2]).unwrap();
    within(BOB, &chunks[1..3]).unwrap();
    let refused = within(BOB, &chunks[2..5]).unwrap_err();
    assert_eq!(refused, StoreError::OverQuota { used: 3 * one, limit: 4 * one, wanted: 2 * one });
    assert!(store.retrieve(FS, chunks[3].0).unwrap().is_none(), "nothing of it was stored");
    within(ALICE, &[chunks[3].clone(), chunks[3].clone(), chunks[0].clone()]).unwrap();
    assert!(matches!(within(ALICE, &chunks[4..5]), Err(StoreError::OverQuota { .. })));
    // The same again, for every device, and also when only the index on the disk has the blocks.
    for _ in 0..3 {
        within(ALICE, &chunks[..4]).unwrap();
        within(BOB, &chunks[..4]).unwrap();
        store.checkpoint().unwrap();
    }
    assert_eq!(store.charged(FS, &[ALICE, BOB]).bytes, 4 * one);
    let mut nodes = 0;
    while within(ALICE, &[node(nodes, vec![chunks[0].0])]).is_ok() {
        nodes += 1;
        assert!(nodes < 100, "the reserve has an end");
    }
    let used = store.charged(FS, &[ALICE, BOB]).bytes;
    assert!(nodes > 10 && used <= 4 * one + both.reserve, "{nodes} nodes, {used} bytes");
    // Others are not concerned.
    store
        .store_within(FS, DeviceId(3), chunks[4..5].to_vec(), Some(&allowed(&[DeviceId(3)], one)), 0)
        .unwrap();
    // Space that is given up is available again.
    assert_eq!(store.decref(FS, DeviceId(3), chunks[4].0, SECOND).unwrap(), DecrefOutcome::Dropped);
    store
        .store_within(FS, DeviceId(3), chunks[5..6].to_vec(), Some(&allowed(&[DeviceId(3)], one)), 0)
        .unwrap();
}

/// Proves: many at once do not get more than one after the other.
#[test]
fn at_once_no_more_than_allowed() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let one = price(&chunk(0).1);
    let allowance = allowed(&[ALICE, BOB], 20 * one);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (store, allowance) = (&store, &allowance);
            scope.spawn(move || {
                for number in 0..10 {
                    // Every block is offered by two of them.
                    let block = chunk((thread / 2) * 100 + number);
                    let owner = if thread % 2 == 0 { ALICE } else { BOB };
                    let _ = store.store_within(FS, owner, vec![block], Some(allowance), 0);
                    if number % 4 == 0 {
                        store.checkpoint().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(store.charged(FS, &[ALICE, BOB]), Charge { blocks: 20, bytes: 20 * one });
    assert_eq!(charges(&store).values().copied().sum::<Charge>().blocks, 20);
}

/// Proves: a copy that was announced before there was a limit, and that the index has, makes no request fail.
#[test]
fn copies_that_wait_for_the_index_refuse_nobody() {
    let disk = PowerLoss::new(1);
    let store = open(&disk).unwrap();
    let chunks: Blocks = (0..4).map(chunk).collect();
    let one = price(&chunks[0].1);
    put(&store, ALICE, &chunks[..3].to_vec(), 0);
    store.checkpoint().unwrap();
    put(&store, ALICE, &chunks[..3].to_vec(), 0);
    assert_eq!(store.charged(FS, &[ALICE]).bytes, 6 * one, "they are not looked up");
    store.store_within(FS, ALICE, chunks.clone(), Some(&allowed(&[ALICE], 4 * one)), 0).unwrap();
    assert_eq!(charges(&store)[&ALICE].bytes, 4 * one);
}

/// Proves: an index from before charges is rebuilt once; and a scrub corrects wrong charges.
#[test]
fn an_older_index_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let open = || LogStore::open(Arc::new(LocalStorage::open(folder.path()).unwrap()), config()).unwrap();
    let chunks: Blocks = (0..3).map(chunk).collect();
    let store = open();
    put(&store, ALICE, &chunks, 0);
    drop(store);
    let index = folder.path().join("index.redb");
    std::fs::remove_file(&index).unwrap();
    let database = redb::Database::create(&index).unwrap();
    let transaction = database.begin_write().unwrap();
    let before: redb::TableDefinition<&[u8; 36], &[u8; 20]> = redb::TableDefinition::new("blocks");
    transaction.open_table(before).unwrap().insert(&[1; 36], &[0; 20]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let store = open();
    assert!(store.recovery().index_rebuilt);
    let expected = BTreeMap::from([(ALICE, charge(&chunks.iter().collect::<Vec<_>>()))]);
    assert_eq!(charges(&store), expected);
    drop(store);
    let store = open();
    assert!(!store.recovery().index_rebuilt);
    drop(store);
    let database = redb::Database::open(&index).unwrap();
    let transaction = database.begin_write().unwrap();
    let kept: redb::TableDefinition<&[u8; 8], &[u8; 16]> = redb::TableDefinition::new("charges");
    transaction.open_table(kept).unwrap().insert(&[0, 0, 0, 1, 0, 0, 0, 2], &[9; 16]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    let store = open();
    let report = store.scrub(&mut |_, _| {}).unwrap();
    assert_eq!((report.charge_errors, report.is_clean()), (1, false));
    assert_eq!(charges(&store), expected);
    assert!(store.scrub(&mut |_, _| {}).unwrap().is_clean());
}

/// Proves: a block that was dropped and lives again, because something refers to it, is charged to a device
/// that stored it: if the first one's bytes are gone with their segment, to the next one; never to the device
/// that refers to it.
#[test]
fn what_lives_again_is_charged_to_one_who_stored_it() {
    let disk = PowerLoss::new(3);
    let store = open(&disk).unwrap();
    let (block, root) = (chunk(2), chunk(4));
    put(&store, ALICE, &vec![block.clone()], 0);
    // A restart seals the segment, so that the two copies are in different ones.
    let store = reopen(&disk, store, Crash::Kill);
    // A block that only the index on the disk has is stored again.
    store.checkpoint().unwrap();
    put(&store, BOB, &vec![root.clone(), block.clone()], 0);
    let hour = 3600 * SECOND;
    store.collect(FS, &[root.0], hour, &mut |_| {}).unwrap();
    assert_eq!(charges(&store), [(BOB, charge(&[&root]))].into());
    let parent = node(9, vec![block.0]);
    put(&store, DeviceId(3), &vec![parent.clone()], hour);
    store.collect(FS, &[root.0], hour, &mut |_| {}).unwrap();
    let expected = [(BOB, charge(&[&root, &block])), (DeviceId(3), charge(&[&parent]))].into();
    assert_eq!(charges(&store), expected);
}

/// Proves: deleted blocks of a user near the limit are dropped by the first collection; those of others are
/// retained, and charged for so long.
#[test]
fn near_a_limit_no_deleted_block_is_retained() {
    let disk = PowerLoss::new(1);
    let config = StoreConfig { keep_deleted: Duration::from_secs(5 * 3600), ..config() };
    let store = LogStore::open(disk.storage(), config).unwrap();
    let (keep, hers, his) = (chunk(1), chunk(2), chunk(3));
    put(&store, ALICE, &vec![keep.clone(), hers.clone()], 0);
    put(&store, BOB, &vec![his.clone()], 0);
    let short = BTreeSet::from([ALICE]);
    let report = store.collect_with(FS, &[keep.0], &short, 2 * 3600 * SECOND, &mut |_| {}).unwrap();
    assert_eq!((report.dropped, report.kept), (1, 1));
    assert_eq!(charges(&store), [(ALICE, charge(&[&keep])), (BOB, charge(&[&his]))].into());
}

#[derive(Clone, Debug)]
enum Step {
    Store { owner: u32, blocks: Vec<u8>, allowance: Option<u8> },
    Decref { owner: u32, block: u8 },
    Have(u8),
    Later(u8),
    Collect(Vec<u8>),
    Checkpoint,
    Restart { lose: bool },
    Rebuild,
}

fn step() -> impl Strategy<Value = Step> {
    let block = 0..12u8;
    let blocks = || proptest::collection::vec(0..12u8, 1..4);
    prop_oneof![
        6 => (1..4u32, blocks(), proptest::option::of(0..12u8))
            .prop_map(|(owner, blocks, allowance)| Step::Store { owner, blocks, allowance }),
        2 => (1..4u32, block.clone()).prop_map(|(owner, block)| Step::Decref { owner, block }),
        1 => block.prop_map(Step::Have),
        2 => (1..100u8).prop_map(Step::Later),
        2 => blocks().prop_map(Step::Collect),
        2 => Just(Step::Checkpoint),
        1 => any::<bool>().prop_map(|lose| Step::Restart { lose }),
        1 => Just(Step::Rebuild),
    ]
}

/// Blocks 0 to 7 are chunks; 8 to 11 refer to two each.
fn numbered(number: u8) -> (Digest, StoredBlock) {
    match number {
        0..8 => chunk_of(number.into(), 300 + 100 * usize::from(number)),
        _ => node(number.into(), vec![numbered(number - 8).0, numbered(number - 7).0]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Proves: whatever is stored, given up, relied on and collected, and however often the store is
    /// restarted or its index rebuilt, each device is charged for exactly the blocks that exist and whose
    /// oldest remaining copy it stored; and no device with an allowance for more than that, unless it stored
    /// without one.
    #[test]
    fn as_the_blocks_themselves_say(steps in proptest::collection::vec(step(), 1..40)) {
        let disk = PowerLoss::new(3);
        let mut store = open(&disk).unwrap();
        let mut now_ns = 0;
        let mut owners: BTreeMap<u8, DeviceId> = BTreeMap::new();
        // The devices that ever stored each block.
        let mut ever: BTreeSet<(u8, DeviceId)> = BTreeSet::new();
        for step in steps {
            let is_here = |store: &LogStore, number: u8| {
                store.retrieve(FS, numbered(number).0).unwrap().is_some()
            };
            match step {
                Step::Store { owner, blocks, allowance } => {
                    let owner = DeviceId(owner);
                    let allowance = allowance.map(|blocks| allowed(&[owner], u64::from(blocks) * 500));
                    let fresh: BTreeSet<u8> =
                        blocks.iter().copied().filter(|number| !is_here(&store, *number)).collect();
                    let given: Blocks = blocks.iter().map(|number| numbered(*number)).collect();
                    let before = store.charges(FS).unwrap().get(&owner).copied().unwrap_or_default();
                    let stored = store.store_within(FS, owner, given, allowance.as_ref(), now_ns);
                    store.commit().unwrap();
                    let fresh_bytes: u64 = fresh.iter().map(|number| price(&numbered(*number).1)).sum();
                    let has_chunks = fresh.iter().any(|number| *number < 8);
                    let fits = allowance.as_ref().is_none_or(|allowance| {
                        let reserve = if has_chunks { 0 } else { allowance.reserve };
                        fresh.is_empty() || before.bytes + fresh_bytes <= allowance.bytes + reserve
                    });
                    prop_assert_eq!(stored.is_ok(), fits, "{:?}", stored);
                    if fits {
                        ever.extend(blocks.iter().map(|number| (*number, owner)));
                        owners.extend(fresh.into_iter().map(|number| (number, owner)));
                    }
                }
                Step::Decref { owner, block } => {
                    let owner = DeviceId(owner);
                    let outcome = store.decref(FS, owner, numbered(block).0, now_ns).unwrap();
                    store.commit().unwrap();
                    if outcome == DecrefOutcome::Dropped {
                        prop_assert_eq!(owners.remove(&block), Some(owner));
                    }
                }
                Step::Have(block) => {
                    let here = store.contains_renew(FS, numbered(block).0, now_ns).unwrap();
                    prop_assert_eq!(here, owners.contains_key(&block));
                }
                Step::Later(minutes) => now_ns += i64::from(minutes) * 60 * SECOND,
                Step::Collect(roots) => {
                    let roots: Vec<Digest> = roots
                        .into_iter()
                        .filter(|number| is_here(&store, *number))
                        .map(|number| numbered(number).0)
                        .collect();
                    if !roots.is_empty() {
                        store.collect(FS, &roots, now_ns, &mut |_| {}).unwrap();
                        owners.retain(|number, _| is_here(&store, *number));
                        // A block that something refers to again lives again if its bytes are still there. It
                        // is charged to a device whose copy is left, which need not be the first.
                        for number in (0..12).filter(|number| is_here(&store, *number)) {
                            let (header, _) = store.retrieve(FS, numbered(number).0).unwrap().unwrap();
                            prop_assert!(ever.contains(&(number, header.owner)));
                            owners.entry(number).or_insert(header.owner);
                        }
                    }
                }
                Step::Checkpoint => store.checkpoint().unwrap(),
                Step::Restart { lose } => {
                    let crash = if lose { Crash::PowerLoss } else { Crash::Kill };
                    store = reopen(&disk, store, crash);
                }
                Step::Rebuild => {
                    drop(store);
                    store = LogStore::open_rebuilding(disk.storage(), config()).unwrap();
                }
            }
            let mut expected: BTreeMap<DeviceId, Charge> = BTreeMap::new();
            for (number, owner) in &owners {
                let (header, block) = store.retrieve(FS, numbered(*number).0).unwrap().unwrap();
                prop_assert_eq!(header.owner, *owner);
                let of = expected.entry(*owner).or_default();
                *of = [*of, Charge { blocks: 1, bytes: price(&block) }].into_iter().sum();
            }
            prop_assert_eq!(store.charges(FS).unwrap(), expected);
        }
        let report = store.scrub(&mut |_, _| {}).unwrap();
        prop_assert!(report.is_clean());
    }
}
