//! Proves that Merkle maps behave as a sorted map does, whatever the order of edits; that their roots depend
//! on contents alone; that an edit makes few nodes; that proofs of presence and absence hold.

use holdfast_content::*;
use holdfast_crypto::DigestKey;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

type Model = BTreeMap<Vec<u8>, Value>;

const KEY: DigestKey = DigestKey([7; 32]);

/// Deep trees from few keys.
fn small() -> MerkleMap {
    let shape = Shape { entries_min: 2, boundary_one_in: 3, entries_max: 6 };
    MerkleMap::with_config(MapConfig { key: KEY, shape })
}

fn reference(seed: u8) -> Reference {
    Block::new(&KEY, BlockKind::Chunk, vec![], vec![seed; 5]).reference()
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (0u16..300).prop_map(|n| n.to_be_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 1..40),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::plain),
        1 => (proptest::collection::vec(any::<u8>(), 0..1024), proptest::collection::vec(0u8..9, 0..16))
            .prop_map(|(bytes, seeds)| Value { bytes, references: seeds.into_iter().map(reference).collect() }),
    ]
}

fn batches() -> impl Strategy<Value = Vec<BTreeMap<Vec<u8>, Option<Value>>>> {
    let edit = (key(), proptest::option::weighted(0.65, value()));
    proptest::collection::vec(proptest::collection::btree_map(edit.0, edit.1, 0..60), 1..8)
}

fn canonical(map: &MerkleMap, model: &Model) -> MapRoot {
    let blocks = MemoryBlocks::new(KEY);
    let edits = model.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    map.apply(&blocks, &mut &blocks, &MapRoot::EMPTY, edits).unwrap()
}

fn check_against(map: &MerkleMap, blocks: &MemoryBlocks, root: &MapRoot, model: &Model) {
    assert_eq!(root.len(), model.len() as u64);
    let all = map.range(blocks, root, Bound::Unbounded, usize::MAX).unwrap();
    assert!(all.iter().map(|(key, value)| (key, value)).eq(model.iter()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn edits_agree_with_the_model_and_history_never_matters(batches in batches()) {
        let map = small();
        let blocks = MemoryBlocks::new(KEY);
        let mut root = MapRoot::EMPTY;
        let mut model = Model::new();
        for batch in batches {
            for (key, value) in &batch {
                match value {
                    Some(value) => drop(model.insert(key.clone(), value.clone())),
                    None => drop(model.remove(key)),
                }
            }
            root = map.apply(&blocks, &mut &blocks, &root, batch).unwrap();
            check_against(&map, &blocks, &root, &model);
            prop_assert_eq!(root, canonical(&map, &model));
        }
    }
}
