//! One contract for every block store: the same tests run on blocks in a server's own log, at a block server over real
//! sockets, in a bucket, and on combinations of these. Faults between two machines are tested in `privsep`, a hostile
//! block server in `hostile`, faults of a bucket in `bucket`, those of a block server with a bucket in `moved`, and
//! several block servers of one bucket in `shards`.

use crate::common;

mod bucket;
mod fixture;
mod hostile;
mod moved;
mod order;
mod privsep;
mod shards;

use common::noise;
use fixture::{ALL, FS, StoreFixture, StoreKind};
use holdfast_content::{Block, BlockKind, Codec, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::block_server::LoadedBlock;
use holdfast_server::{BlockStore, BlockStoreError};
use holdfast_store::{Allowance, Hold, HoldOutcome, StoreError};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const ANNA: DeviceId = DeviceId(1);
const BERT: DeviceId = DeviceId(2);
const SECOND: i64 = 1_000_000_000;
const OTHER: Digest = Digest([9; 32]);

fn chunk(seed: u32, bytes: usize) -> (Digest, StoredBlock) {
    node_of(BlockKind::Chunk, seed, bytes, Vec::new())
}

fn node(seed: u32, references: Vec<Digest>) -> (Digest, StoredBlock) {
    node_of(BlockKind::MapInner, seed, 50, references)
}

fn node_of(kind: BlockKind, seed: u32, bytes: usize, references: Vec<Digest>) -> (Digest, StoredBlock) {
    let block = Block::new(&DigestKey::WELL_KNOWN, kind, references, noise(u64::from(seed), bytes));
    (block.reference().address, block.to_stored())
}

fn found(store: &dyn BlockStore, file_system: Digest, address: Digest) -> Option<StoredBlock> {
    match store.load(file_system, &[address], usize::MAX).unwrap().pop().unwrap() {
        LoadedBlock::Present(_, block) => Some(block),
        LoadedBlock::Absent => None,
        LoadedBlock::Damaged(why) => panic!("{why}"),
    }
}

fn collect(store: &dyn BlockStore, roots: &[Digest], now_ns: i64) -> Result<u64, BlockStoreError> {
    Ok(store.collect(FS, roots, &BTreeSet::new(), now_ns)?.dropped)
}

/// Runs a test on each kind of store.
fn on_each(test: impl Fn(&dyn BlockStore) + Sync) {
    in_parallel(|kind| {
        let fixture = StoreFixture::new(kind);
        test(&*fixture.store());
    });
}

/// Runs something on all kinds of store at once, as most of the time is waiting.
fn in_parallel(test: impl Fn(StoreKind) + Sync) {
    std::thread::scope(|scope| {
        let running = ALL.map(|kind| {
            (
                kind,
                scope.spawn({
                    let test = &test;
                    move || test(kind)
                }),
            )
        });
        for (kind, running) in running {
            assert!(running.join().is_ok(), "{kind:?}");
        }
    });
}

/// Proves: a stored block is found in its own file system only, in the order of the request, with the header of the
/// first who stored it.
#[test]
fn what_is_stored_is_found() {
    on_each(|store| {
        let blocks: Vec<_> = (0..5).map(|seed| chunk(seed, 1000)).collect();
        store.store(FS, ANNA, blocks.clone(), None, 7).unwrap();
        store.store(FS, BERT, vec![blocks[2].clone()], None, 8).unwrap();
        store.sync().unwrap();
        let addresses = [blocks[3].0, Digest([1; 32]), blocks[2].0];
        let loaded = store.load(FS, &addresses, usize::MAX).unwrap();
        let LoadedBlock::Present(header, block) = &loaded[2] else { panic!("{loaded:?}") };
        assert_eq!((header.owner, header.stored_ns, block), (ANNA, 7, &blocks[2].1));
        assert!(matches!(&loaded[0], LoadedBlock::Present(_, block) if *block == blocks[3].1));
        assert_eq!(loaded[1], LoadedBlock::Absent);
        assert_eq!(found(store, OTHER, blocks[0].0), None, "another file system has none of it");
        assert_eq!(store.contains(FS, &addresses).unwrap(), [true, false, true]);
        assert_eq!(store.contains(OTHER, &addresses).unwrap(), [false; 3]);
        assert_eq!(store.renew(FS, &addresses, 9).unwrap(), [true, false, true]);
    });
}

/// Proves: an answer ends before it is too long, but never before its first block; many large blocks can be stored and
/// read.
#[test]
fn answers_are_bounded() {
    on_each(|store| {
        let blocks: Vec<_> = (0..24).map(|seed| chunk(seed, 900_000)).collect();
        store.store(FS, ANNA, blocks.clone(), None, 0).unwrap();
        let addresses: Vec<Digest> = blocks.iter().map(|(address, _)| *address).collect();
        assert_eq!(store.load(FS, &addresses, 1).unwrap().len(), 1);
        assert_eq!(store.load(FS, &addresses, 2_000_000).unwrap().len(), 2);
        let all = store.load(FS, &addresses, usize::MAX).unwrap();
        assert_eq!(all.len(), 24);
        for (loaded, (_, block)) in all.iter().zip(&blocks) {
            assert!(matches!(loaded, LoadedBlock::Present(_, found) if found == block));
        }
        assert!(store.load(FS, &[], 1).unwrap().is_empty());
    });
}

/// Proves: the references of many nodes can be asked for at once, and for nodes that are not here there are none.
#[test]
fn references_are_reported() {
    on_each(|store| {
        let below: Vec<Digest> = (0..250u8).map(|byte| Digest([byte; 32])).collect();
        let nodes: Vec<_> = (0..1500).map(|seed| node(seed, below.clone())).collect();
        for nodes in nodes.chunks(500) {
            store.store(FS, ANNA, nodes.to_vec(), None, 0).unwrap();
        }
        let mut asked: Vec<Digest> = nodes.iter().map(|(address, _)| *address).collect();
        asked.push(OTHER);
        let told = store.references(FS, &asked).unwrap();
        assert_eq!(told.len(), 1501);
        assert!(told[..1500].iter().all(|told| told.as_ref() == Some(&below)));
        assert_eq!(told[1500], None);
    });
}

/// Proves: whoever stored a block a short time ago can take it back, if nobody else did and nobody relies on it.
#[test]
fn young_blocks_can_be_dereferenced() {
    on_each(|store| {
        let blocks: Vec<_> = (0..5).map(|seed| chunk(seed, 100)).collect();
        let all: Vec<Digest> = blocks.iter().map(|(address, _)| *address).collect();
        store.store(FS, ANNA, blocks.clone(), None, 0).unwrap();
        assert_eq!(store.dereference(FS, BERT, &all[..1], SECOND).unwrap(), 0, "another stored it");
        store.renew(FS, &all[1..2], SECOND).unwrap();
        store.pin(FS, 5, &all[2..3], 100 * SECOND, SECOND).unwrap();
        assert_eq!(store.dereference(FS, ANNA, &all[..4], SECOND).unwrap(), 2);
        assert_eq!(store.contains(FS, &all).unwrap(), [false, true, true, false, true]);
        assert_eq!(store.dereference(FS, ANNA, &all[..4], SECOND).unwrap(), 0, "again changes nothing");
        store.snapshot(FS, 2 * SECOND).unwrap();
        assert_eq!(store.dereference(FS, ANNA, &all[4..], 3 * SECOND).unwrap(), 0, "it is in a snapshot");
    });
}

/// Proves: a collection drops what no root, hold or pin reaches, and nothing when a root is missing or none is given.
#[test]
fn garbage_goes_and_nothing_else() {
    on_each(|store| {
        let leaves: Vec<_> = (0..6).map(|seed| chunk(seed, 100)).collect();
        let nodes: Vec<_> =
            (0..3).map(|n| node(n, vec![leaves[2 * n as usize].0, leaves[2 * n as usize + 1].0])).collect();
        store.store(FS, ANNA, [leaves.clone(), nodes.clone()].concat(), None, 0).unwrap();
        let hold =
            |name: &str, root| Hold { name: name.to_owned(), device: ANNA, made_ns: 1, roots: vec![root] };
        assert_eq!(store.hold(FS, hold("release", nodes[1].0)).unwrap(), HoldOutcome::Held);
        assert_eq!(store.hold(FS, hold("lost", OTHER)).unwrap(), HoldOutcome::Missing(vec![OTHER]));
        assert_eq!(store.holds(FS).unwrap(), [hold("release", nodes[1].0)]);
        store.pin(FS, 7, &[leaves[4].0], 50 * SECOND, SECOND).unwrap();
        assert!(collect(store, &[OTHER], 2 * SECOND).is_err() && collect(store, &[], 2 * SECOND).is_err());
        assert_eq!(
            collect(store, &[nodes[0].0], 2 * SECOND).unwrap(),
            2,
            "the third node and what is not pinned of it"
        );
        let here = |seed: usize| found(store, FS, leaves[seed].0).is_some();
        assert!((0..5).all(here) && !here(5));
        assert!(store.unhold(FS, "release").unwrap() && !store.unhold(FS, "release").unwrap());
        assert_eq!(collect(store, &[nodes[0].0], 60 * SECOND).unwrap(), 4, "hold and pin are over");
        assert_eq!(store.figures().unwrap().blocks, 3);
        let scrubbed = store.scrub(&mut |_, _| {}).unwrap();
        assert!(scrubbed.records > 0 && scrubbed.bad_count == 0);
    });
}

/// Proves: all blocks of a file system are listed once each, oldest first, with the user who is charged and the time
/// when somebody last relied on them, from any position on; and so are all who pin blocks.
#[test]
fn what_is_there_is_listed() {
    on_each(|store| {
        assert!(store.list(FS, 0).unwrap().is_empty() && store.pinned(FS, None).unwrap().is_none());
        let blocks: Vec<_> = (0..40).map(|seed| chunk(seed, 1000)).collect();
        for (number, block) in blocks.iter().enumerate() {
            let owner = if number % 2 == 0 { ANNA } else { BERT };
            store.store(FS, owner, vec![block.clone()], None, number as i64).unwrap();
        }
        store.store(OTHER, BERT, vec![chunk(50, 1000)], None, 0).unwrap();
        store.renew(FS, &[blocks[7].0], 99 * SECOND).unwrap();
        let listed = store.list(FS, 0).unwrap();
        let addresses: Vec<Digest> = listed.iter().map(|one| one.address).collect();
        assert_eq!(addresses, blocks.iter().map(|(address, _)| *address).collect::<Vec<_>>());
        assert!(listed.is_sorted_by(|one, next| one.place < next.place) && listed[0].place > 0);
        for (number, one) in listed.iter().enumerate() {
            assert_eq!(one.owner, if number % 2 == 0 { ANNA } else { BERT });
            assert_eq!(one.age_ns, if number == 7 { 99 * SECOND } else { number as i64 });
            assert!(one.bytes > 1000 && one.bytes < 2000);
            assert_eq!(store.list(FS, one.place).unwrap(), listed[number + 1..]);
        }
        assert_eq!(store.list(OTHER, 0).unwrap().len(), 1);

        for holder in [9, 4, 6] {
            store.pin(FS, holder, &[blocks[holder as usize].0], 50 * SECOND, SECOND).unwrap();
        }
        let (mut pinned, mut after) = (Vec::new(), None);
        while let Some(next) = store.pinned(FS, after).unwrap() {
            after = Some(next.holder);
            assert_eq!(
                (next.until_ns, &next.addresses[..]),
                (50 * SECOND, &[blocks[next.holder as usize].0][..])
            );
            pinned.push(next.holder);
        }
        assert_eq!(pinned, [4, 6, 9]);
    });
}

/// Proves: blocks are charged to the user who stored them first, and an allowance is enforced.
#[test]
fn storers_are_charged() {
    on_each(|store| {
        store.store(FS, ANNA, vec![chunk(1, 1000), chunk(2, 1000)], None, 0).unwrap();
        store.store(FS, BERT, vec![chunk(2, 1000), chunk(3, 1000)], None, 0).unwrap();
        let charges: BTreeMap<_, _> = store.charges(FS).unwrap();
        assert_eq!((charges[&ANNA].blocks, charges[&BERT].blocks), (2, 1));
        assert_eq!(store.charged(FS, &[ANNA, BERT]).unwrap().blocks, 3);
        let used = charges[&BERT].bytes;
        let allowance = Allowance { devices: vec![BERT], bytes: used + 1500, reserve: 0 };
        let over =
            store.store(FS, BERT, vec![chunk(4, 1000), chunk(5, 1000)], Some(&allowance), 0).unwrap_err();
        let told = match over {
            BlockStoreError::OverQuota { used, limit } => (used, limit),
            BlockStoreError::Local(StoreError::OverQuota { used, limit, .. }) => (used, limit),
            other => panic!("{other}"),
        };
        assert_eq!(told, (used, used + 1500));
        assert_eq!(store.contains(FS, &[chunk(4, 1000).0]).unwrap(), [false]);
        store.store(FS, BERT, vec![chunk(4, 1000)], Some(&allowance), 0).unwrap();
    });
}

/// Proves: a block with other bytes than its address says is never returned as that block from another machine, and a
/// compressed block is.
#[test]
fn what_comes_back_is_what_was_named() {
    let fixture = StoreFixture::new(StoreKind::Remote);
    let store = fixture.store();
    let plain = vec![b'a'; 100_000];
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), plain);
    let (address, stored) = (block.reference().address, block.to_stored());
    assert_ne!(stored.codec, Codec::Plain);
    // The caller checks what it stores; this test does not.
    let (wrong, _) = chunk(3, 100);
    store.store(FS, ANNA, vec![(address, stored.clone()), (wrong, stored.clone())], None, 0).unwrap();
    let loaded = store.load(FS, &[address, wrong], usize::MAX).unwrap();
    assert!(matches!(&loaded[0], LoadedBlock::Present(_, block) if *block == stored));
    let LoadedBlock::Damaged(why) = &loaded[1] else { panic!("{:?}", loaded[1]) };
    assert!(why.contains("hf+blocks://") && why.contains("holdfast server scrub"), "{why}");
}

/// Whatever a client may do, in any order.
#[derive(Clone, Debug)]
enum Op {
    Store(u8),
    Node(u8, u8, u8),
    Renew(u8),
    Dereference(u8),
    Collect(BTreeSet<u8>),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..12u8;
    prop_oneof![
        4 => name.clone().prop_map(Op::Store),
        4 => (name.clone(), name.clone(), name.clone()).prop_map(|(node, one, two)| Op::Node(node, one, two)),
        1 => name.clone().prop_map(Op::Renew),
        1 => name.clone().prop_map(Op::Dereference),
        2 => proptest::collection::btree_set(name, 1..3).prop_map(Op::Collect),
        1 => Just(Op::Restart),
    ]
}

/// A model: chunks `0..12`, nodes over two chunks each, and which of them must be here.
#[derive(Default)]
struct Model {
    here: BTreeMap<Digest, StoredBlock>,
    nodes: BTreeMap<u8, (Digest, [Digest; 2])>,
}

impl Model {
    fn check(&self, store: &dyn BlockStore) {
        let addresses: Vec<Digest> = self.here.keys().copied().collect();
        let loaded = store.load(FS, &addresses, usize::MAX).unwrap();
        for (loaded, (address, block)) in loaded.iter().zip(&self.here) {
            assert!(
                matches!(loaded, LoadedBlock::Present(_, found) if found == block),
                "{address}: {loaded:?}"
            );
        }
    }
}

fn run(kind: StoreKind, ops: &[Op]) {
    let mut fixture = StoreFixture::new(kind);
    let mut store = fixture.store();
    let mut model = Model::default();
    for (at, op) in ops.iter().enumerate() {
        let now_ns = (at as i64 + 1) * SECOND;
        let put = |blocks: Vec<(Digest, StoredBlock)>| store.store(FS, ANNA, blocks, None, now_ns).unwrap();
        match op {
            Op::Store(seed) => {
                put(vec![chunk((*seed).into(), 300)]);
                model.here.extend([chunk((*seed).into(), 300)]);
            }
            Op::Node(name, one, two) => {
                let (one, two) = (chunk((*one).into(), 300), chunk((*two).into(), 300));
                let references = [one.0, two.0];
                let node = node((*name).into(), references.to_vec());
                put(vec![one.clone(), two.clone(), node.clone()]);
                model.nodes.insert(*name, (node.0, references));
                model.here.extend([one, two, node]);
            }
            Op::Renew(seed) => {
                let address = chunk((*seed).into(), 300).0;
                let told = store.renew(FS, &[address], now_ns).unwrap()[0];
                assert!(told || !model.here.contains_key(&address), "what is here is told");
            }
            Op::Dereference(seed) => {
                let address = chunk((*seed).into(), 300).0;
                if store.dereference(FS, ANNA, &[address], now_ns).unwrap() > 0 {
                    model.here.remove(&address);
                    // After dereferencing a block to which its own tree refers, a client has a tree with a hole.
                    model.nodes.retain(|_, (_, references)| !references.contains(&address));
                }
            }
            Op::Collect(names) => {
                let kept: Vec<_> = names.iter().filter_map(|name| model.nodes.get(name)).copied().collect();
                let roots: Vec<Digest> = kept.iter().map(|(root, _)| *root).collect();
                if roots.is_empty() {
                    continue;
                }
                store.collect(FS, &roots, &BTreeSet::new(), now_ns).unwrap();
                let reached: BTreeSet<Digest> =
                    kept.iter().flat_map(|(root, below)| [*root, below[0], below[1]]).collect();
                for address in model.here.keys() {
                    assert_eq!(
                        found(&*store, FS, *address).is_some(),
                        reached.contains(address),
                        "{address}"
                    );
                }
                model.here.retain(|address, _| reached.contains(address));
                model.nodes.retain(|_, (root, _)| reached.contains(root));
            }
            Op::Restart => {
                store.sync().unwrap();
                drop(store);
                fixture.restart();
                store = fixture.store();
            }
        }
        model.check(&*store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Proves: whatever is stored, taken back and collected, over restarts, each store has the blocks that it must have
    /// and, after a collection, no others.
    #[test]
    fn stores_do_as_the_model(ops in proptest::collection::vec(op(), 1..25)) {
        in_parallel(|kind| run(kind, &ops));
    }
}
