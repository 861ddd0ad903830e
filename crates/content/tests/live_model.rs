//! Proves that live maps contain exactly the changes that count, whatever is folded, settled or compacted
//! when; that an abort leaves nothing behind; and that pending operations are reported.

use crate::with_changes;
use holdfast_content::*;
use holdfast_crypto::DigestKey;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

const KEY: DigestKey = DigestKey::WELL_KNOWN;
const TAGS: u64 = 6;

#[derive(Clone, Debug)]
enum Op {
    Change { key: u8, value: Option<u8>, tag: Option<u64> },
    Settle { tag: u64, status: OperationStatus },
    Compact { force_over: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let change =
        (0u8..25, proptest::option::weighted(0.7, any::<u8>()), proptest::option::weighted(0.4, 0..TAGS));
    prop_oneof![
        8 => change.prop_map(|(key, value, tag)| Op::Change { key, value, tag }),
        1 => (0..TAGS, any::<bool>()).prop_map(|(tag, committed)| Op::Settle {
            tag,
            status: if committed { OperationStatus::Committed } else { OperationStatus::Aborted },
        }),
        1 => (0usize..40).prop_map(|force_over| Op::Compact { force_over }),
    ]
}

fn tag(number: u64) -> Tag {
    Tag { device: DeviceId(number as u32 % 3), number }
}

fn key_of(key: u8) -> Vec<u8> {
    vec![b'k', key]
}

/// Every change ever made, and the known statuses.
#[derive(Default)]
struct Model {
    changes: Vec<Change>,
    statuses: BTreeMap<Tag, OperationStatus>,
}

impl Model {
    fn status(&self, tag: &Tag) -> OperationStatus {
        self.statuses.get(tag).copied().unwrap_or(OperationStatus::Pending)
    }

    fn found(&self, key: &[u8]) -> Lookup<Value> {
        let mut unsettled = None;
        for change in self.changes.iter().rev().filter(|change| change.key == key) {
            match change.tag.map_or(OperationStatus::Committed, |tag| self.status(&tag)) {
                OperationStatus::Committed => return Lookup { value: change.value.clone(), unsettled },
                OperationStatus::Aborted => {}
                OperationStatus::Pending => unsettled = unsettled.or(change.tag),
            }
        }
        Lookup { value: None, unsettled }
    }

    fn all(&self) -> BTreeMap<Vec<u8>, Lookup<Value>> {
        (0..25).map(|key| (key_of(key), self.found(&key_of(key)))).collect()
    }
}

fn check(map: &LiveMap, blocks: &MemoryBlocks, model: &Model) {
    let statuses = |tag: &Tag| model.status(tag);
    let all = model.all();
    for (key, expected) in &all {
        assert_eq!(&map.get(blocks, &statuses, key).unwrap(), expected);
    }
    let entries: Vec<_> =
        all.iter().filter_map(|(key, found)| Some((key.clone(), found.value.clone()?))).collect();
    assert_eq!(map.count(blocks, &statuses).unwrap(), entries.len() as u64);

    for (from, limit) in [(0, 100), (0, 3), (7, 5), (12, 1), (20, 0), (24, 2)] {
        let from = key_of(from);
        for bound in [Bound::Included(&from[..]), Bound::Excluded(&from[..])] {
            let inside = |key: &Vec<u8>| match bound {
                Bound::Included(from) => key.as_slice() >= from,
                _ => key.as_slice() > from.as_slice(),
            };
            let listing = map.range(blocks, &statuses, bound, limit).unwrap();
            let rest: Vec<_> = entries.iter().filter(|(key, _)| inside(key)).cloned().collect();
            assert_eq!(listing.entries, rest[..limit.min(rest.len())]);
            if listing.complete {
                assert!(rest.len() <= limit);
            } else {
                // "Not complete" may be cautious, but not if everything was requested.
                assert!(limit < 100);
            }
            let last = listing.entries.last().map(|(key, _)| key.clone());
            let covered = |key: &Vec<u8>| listing.complete || last.as_ref().is_some_and(|last| key <= last);
            let unsettled: BTreeSet<Tag> = all
                .iter()
                .filter(|(key, _)| inside(key) && covered(key))
                .filter_map(|(_, found)| found.unsettled)
                .collect();
            assert_eq!(listing.unsettled, unsettled);
        }
        for bound in [Bound::Included(&from[..]), Bound::Excluded(&from[..])] {
            let inside = |key: &Vec<u8>| match bound {
                Bound::Included(from) => key.as_slice() <= from,
                _ => key.as_slice() < from.as_slice(),
            };
            let (floor, unsettled) = map.floor(blocks, &statuses, bound).unwrap();
            let expected = entries.iter().rev().find(|(key, _)| inside(key)).cloned();
            let expected_unsettled: BTreeSet<Tag> = all
                .iter()
                .rev()
                .filter(|(key, _)| inside(key))
                .take_while(|(key, _)| expected.as_ref().is_none_or(|(floor, _)| *key >= floor))
                .filter_map(|(_, found)| found.unsettled)
                .collect();
            assert_eq!(floor, expected);
            assert_eq!(unsettled, expected_unsettled);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_shows_is_what_counts(ops in proptest::collection::vec(op(), 1..120)) {
        let blocks = MemoryBlocks::new(KEY);
        let mut model = Model::default();
        let mut map = LiveMap::EMPTY;
        for op in ops {
            match op {
                Op::Change { key, value, tag: number } => {
                    let value = value.map(|byte| Value::plain(vec![byte]));
                    let change = Change { key: key_of(key), value, tag: number.map(tag) };
                    model.changes.push(change.clone());
                    map.push(change);
                }
                Op::Settle { tag: number, status } => {
                    // A status that is not pending never changes.
                    model.statuses.entry(tag(number)).or_insert(status);
                }
                Op::Compact { force_over } => {
                    let statuses = |tag: &Tag| model.status(tag);
                    map = map.settle_and_compact(&blocks, &mut &blocks, &statuses, force_over).unwrap();
                    let settled = map.changes.iter().all(|change| {
                        change.tag.is_none_or(|tag| model.status(&tag) == OperationStatus::Pending)
                    });
                    prop_assert!(settled, "nothing settled stays tagged");
                    if map.changes.len() > force_over {
                        // Only changes that wait for a pending one are left.
                        let pending: BTreeSet<_> = map.changes.iter().filter(|c| c.tag.is_some()).map(|c| &c.key).collect();
                        prop_assert!(map.changes.iter().all(|change| pending.contains(&change.key)));
                    }
                }
            }
        }
        check(&map, &blocks, &model);
        // At the end all statuses are known: the fully compacted map is canonical.
        for number in 0..TAGS {
            model.statuses.entry(tag(number)).or_insert(OperationStatus::Aborted);
        }
        let statuses = |tag: &Tag| model.status(tag);
        let settled = map.settle_and_compact(&blocks, &mut &blocks, &statuses, 0).unwrap();
        prop_assert!(settled.changes.is_empty());
        check(&settled, &blocks, &model);
        let edits = model.all().into_iter().map(|(key, found)| (key, found.value)).collect();
        let canonical = MerkleMap::new(KEY).apply(&blocks, &mut &blocks, &MapRoot::EMPTY, edits).unwrap();
        prop_assert_eq!(settled.root, canonical);
    }
}

fn put(key: &[u8], value: u8, tag: Option<Tag>) -> Change {
    Change { key: key.to_vec(), value: Some(Value::plain(vec![value])), tag }
}

#[test]
fn an_untagged_change_replaces_only_its_untagged_predecessor() {
    let tagged = Some(tag(1));
    let mut map = with_changes([put(b"a", 1, None), put(b"b", 2, None), put(b"a", 3, None)]);
    assert_eq!(map.changes, [put(b"b", 2, None), put(b"a", 3, None)]);
    // With another device's pending change in between, both stay: if that aborts, it was made on top of the
    // first.
    map.push(put(b"a", 4, tagged));
    map.push(put(b"a", 5, None));
    assert_eq!(map.changes.len(), 4);
    // The last one counts, so no reader must wait for the pending one.
    let blocks = MemoryBlocks::new(KEY);
    let found = map.get(&blocks, &AllPending, b"a").unwrap();
    assert_eq!(found, Lookup { value: Some(Value::plain(vec![5])), unsettled: None });
}

#[test]
fn an_abort_shows_what_was_there_before() {
    let blocks = MemoryBlocks::new(KEY);
    let map = with_changes([put(b"a", 1, None), put(b"a", 2, Some(tag(1)))]);
    let get = |status: OperationStatus| map.get(&blocks, &|_: &Tag| status, b"a").unwrap();
    assert_eq!(
        get(OperationStatus::Pending),
        Lookup { value: Some(Value::plain(vec![1])), unsettled: Some(tag(1)) }
    );
    assert_eq!(get(OperationStatus::Aborted), Lookup { value: Some(Value::plain(vec![1])), unsettled: None });
    assert_eq!(
        get(OperationStatus::Committed),
        Lookup { value: Some(Value::plain(vec![2])), unsettled: None }
    );
}

#[test]
fn compaction_waits_for_its_bound_and_needs_no_block_before_it() {
    let blocks = MemoryBlocks::new(KEY);
    let mut map = LiveMap::EMPTY;
    for number in 0..CHANGES_WANTED_MAX as u8 {
        map.push(put(&[number + 1], number, None));
    }
    let same = map.settle_and_compact(&blocks, &mut &blocks, &AllPending, CHANGES_WANTED_MAX).unwrap();
    assert_eq!((&same, blocks.len(), blocks.fetches()), (&map, 0, 0));
    map.push(put(b"one more", 0, None));
    let folded = map.settle_and_compact(&blocks, &mut &blocks, &AllPending, CHANGES_WANTED_MAX).unwrap();
    assert!(folded.changes.is_empty());
    assert_eq!(folded.root.len(), CHANGES_WANTED_MAX as u64 + 1);
}

#[test]
fn a_list_of_changes_over_the_limit_cannot_be_stored_and_is_not_read() {
    let blocks = MemoryBlocks::new(KEY);
    let mut table = Table::new(PrincipalId::User(UserId(1)));
    for number in 0..=CHANGES_MAX as u32 {
        table.map.push(put(&number.to_be_bytes(), 0, Some(tag(u64::from(number)))));
    }
    assert!(matches!(table.store(&mut &blocks), Err(ContentError::Misuse(_))));
    table.map.changes.pop();
    let reference = table.store(&mut &blocks).unwrap();
    assert_eq!(Table::load(&blocks, &reference).unwrap(), table);
    // By hand, one more: the count follows format, owner (5 bytes) and the flag of the empty root.
    let block = blocks.fetch(&reference, BlockKind::Table).unwrap();
    let mut body = block.body().to_vec();
    assert_eq!(body[7..9], (CHANGES_MAX as u16).to_le_bytes());
    body[7..9].copy_from_slice(&(CHANGES_MAX as u16 + 1).to_le_bytes());
    let hostile = (&blocks).put(Block::new(&KEY, BlockKind::Table, vec![], body));
    let error = Table::load(&blocks, &hostile).unwrap_err();
    assert!(matches!(error, ContentError::Malformed { why: Malformed::OutOfRange { .. }, .. }), "{error}");
}
