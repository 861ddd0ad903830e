//! The block map against an ordinary one.

use crate::VolumeKey;
use crate::map::{Geometry, Map, Value};
use holdfast_log::ring::{Lsn, Tag};
use holdfast_log::simulated_device::Devices;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Three levels: 1000 leaves, 4 nodes above them, and the root.
const BLOCKS: u64 = 256_000;
const LEAF: u64 = 256;

#[derive(Clone, Debug)]
enum Step {
    /// Some neighbours get values.
    Set {
        first: u64,
        count: u64,
        value: u8,
    },
    Get {
        block: u64,
    },
    /// Leaves with records before this many steps ago are written; durable, or not before the crash.
    Checkpoint {
        back: u64,
        is_durable: bool,
    },
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..BLOCKS - 600, 1..600u64, any::<u8>())
            .prop_map(|(first, count, value)| Step::Set { first, count, value }),
        4 => (0..BLOCKS).prop_map(|block| Step::Get { block }),
        2 => (0..20u64, any::<bool>()).prop_map(|(back, is_durable)| Step::Checkpoint { back, is_durable }),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..60)
}

fn value(number: u8, block: u64) -> Value {
    match number {
        0..20 => Value::Discarded,
        20..24 => Value::Refused,
        _ => {
            let mut tag = [number; 16];
            tag[..8].copy_from_slice(&block.to_le_bytes());
            Value::Known(tag)
        }
    }
}

/// The expected map, and what a crash leaves of it.
#[derive(Default)]
struct Model {
    now: BTreeMap<u64, Value>,
    durable: BTreeMap<u64, Value>,
    /// The oldest record of leaves that changed since they were last written.
    dirty: BTreeMap<u64, u64>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Proves: with few nodes in memory, partial checkpoints and crashes in between, the map has the values
    /// that were set; after a crash, those of the last durable checkpoint.
    #[test]
    fn as_an_ordinary_map(steps in steps()) {
        let devices = Devices::new();
        devices.record(false);
        devices.add("map", Geometry::new(BLOCKS).bytes() as usize);
        let key = VolumeKey::new(&[1; 32], b"a map of a test.");
        let load = |root: Tag| Map::new(devices.device(0), 0, BLOCKS, key.clone(), root, 16);
        let mut root = Tag::default();
        let mut map = load(root);
        let mut model = Model::default();
        for (at, step) in (1u64..).zip(steps) {
            match step {
                Step::Set { first, count, value: number } => {
                    for block in first..first + count {
                        map.set(block, value(number, block), Lsn(at)).expect("set");
                        model.now.insert(block, value(number, block));
                        model.dirty.entry(block / LEAF).or_insert(at);
                    }
                }
                Step::Get { block } => {
                    let expected = model.now.get(&block).copied().unwrap_or(Value::NotAdopted);
                    prop_assert_eq!(map.get(block).expect("read"), expected);
                }
                Step::Checkpoint { back, is_durable } => {
                    let wanted = at.saturating_sub(back);
                    let written = map.write(Lsn(wanted)).expect("written");
                    if !is_durable {
                        // Writing must not have touched what the last checkpoint needs.
                        map = load(root);
                        model.now = model.durable.clone();
                        model.dirty.clear();
                        continue;
                    }
                    root = written;
                    map.settle();
                    let due: Vec<u64> =
                        model.dirty.iter().filter(|(_, lsn)| **lsn < wanted).map(|(leaf, _)| *leaf).collect();
                    for leaf in due {
                        model.dirty.remove(&leaf);
                        let blocks = leaf * LEAF..(leaf + 1) * LEAF;
                        let values: Vec<_> = model.now.range(blocks).map(|(at, value)| (*at, *value)).collect();
                        model.durable.extend(values);
                    }
                    let oldest = model.dirty.values().min().map(|lsn| Lsn(*lsn));
                    prop_assert_eq!(map.oldest(), oldest);
                }
                Step::Crash => {
                    map = load(root);
                    model.now = model.durable.clone();
                    model.dirty.clear();
                }
            }
        }
        for (block, value) in &model.now {
            prop_assert_eq!(map.get(*block).expect("read"), *value);
        }
    }
}
