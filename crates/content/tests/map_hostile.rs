//! Proves that every node that breaks a rule is refused for that rule although its digest is right, as a
//! malicious member could sign it. The nodes are written by hand, from the layout in
//! `docs/internals/format.md`.

use holdfast_content::*;
use holdfast_crypto::{Digest, DigestKey, Domain};
use std::ops::Bound;

const KEY: DigestKey = DigestKey([9; 32]);

/// A node by hand.
#[derive(Clone)]
struct Raw {
    kind: BlockKind,
    body: Vec<u8>,
    addresses: Vec<Digest>,
}

impl Raw {
    fn leaf(count: u32) -> Raw {
        let mut raw = Raw { kind: BlockKind::MapLeaf, body: vec![1], addresses: vec![] };
        raw.body.extend(count.to_le_bytes());
        raw
    }

    fn inner(level: u8, count: u32) -> Raw {
        let mut raw = Raw { kind: BlockKind::MapInner, body: vec![1, level], addresses: vec![] };
        raw.body.extend(count.to_le_bytes());
        raw
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.body.extend((bytes.len() as u16).to_le_bytes());
        self.body.extend(bytes);
        self
    }

    fn entry(self, key: &[u8], value: &[u8]) -> Raw {
        let mut raw = self.bytes(key).bytes(value);
        raw.body.push(0);
        raw
    }

    fn child(self, last_key: &[u8], entries: u64, reference: Reference) -> Raw {
        let mut raw = self.bytes(last_key);
        raw.body.extend(entries.to_le_bytes());
        raw.reference(reference)
    }

    fn reference(mut self, reference: Reference) -> Raw {
        self.body.push(1);
        self.body.extend(reference.length.to_le_bytes());
        self.body.push(0);
        self.addresses.push(reference.address);
        self
    }

    fn put(self, blocks: &MemoryBlocks) -> Reference {
        let mut sink = blocks;
        sink.put(Block::new(&KEY, self.kind, self.addresses, self.body))
    }
}

/// Keys that are (or are not) natural boundaries on a level.
fn keys(level: u8, boundary: bool) -> impl Iterator<Item = Vec<u8>> {
    (0u32..).map(|n| n.to_be_bytes().to_vec()).filter(move |key| {
        let digest = KEY.hasher(Domain::Boundary).update(&[level]).update(key).finish();
        let word = u32::from_le_bytes(digest.0[..4].try_into().unwrap());
        (word % Shape::FORMAT.boundary_one_in == 0) == boundary
    })
}

fn leaf_of(keys: &[Vec<u8>]) -> Raw {
    keys.iter().fold(Raw::leaf(keys.len() as u32), |raw, key| raw.entry(key, b"value"))
}

fn top(reference: Reference, level: u8, entries: u64) -> MapRoot {
    MapRoot(Some(MapTop { reference, level, entries }))
}

/// The common verdict of all operations on a map: how it is malformed, or `None` if it is sound.
fn verdict(blocks: &MemoryBlocks, root: &MapRoot) -> Option<Malformed> {
    let map = MerkleMap::new(KEY);
    let mut verdicts = Vec::new();
    let mut note = |result: Result<(), ContentError>| match result {
        Ok(()) => verdicts.push(None),
        Err(ContentError::Malformed { why, address, .. }) => {
            assert!(address.is_some(), "the message names the block");
            verdicts.push(Some(why));
        }
        Err(other) => panic!("{other}"),
    };
    note(map.range(blocks, root, Bound::Unbounded, usize::MAX).map(drop));
    note(map.diff(blocks, &MapRoot::EMPTY, root, &mut |_, _, _| Ok(())));
    let verdict = verdicts[0].clone();
    assert!(verdicts.iter().all(|other| *other == verdict), "{verdicts:?}");
    // Operations on one path may miss faults elsewhere, but must neither panic nor hang.
    for key in [&[0u8][..], &[0, 0, 0, 5], &[0xff; 8]] {
        let _ = map.get(blocks, root, key);
        let _ = map.floor(blocks, root, Bound::Included(key));
        if let Ok(proof) = map.prove(blocks, root, key) {
            let _ = map.verify_proof(root, key, &proof);
        }
        for value in [None, Some(Value::plain(vec![1]))] {
            let _ = map.apply(blocks, &mut BlockBatch::new(KEY), root, [(key.to_vec(), value)].into());
        }
    }
    verdict
}

fn leaf_verdict(raw: Raw, entries: u64) -> Option<Malformed> {
    let blocks = MemoryBlocks::new(KEY);
    let reference = raw.put(&blocks);
    verdict(&blocks, &top(reference, 0, entries))
}

#[test]
fn a_sound_leaf_by_hand_is_read() {
    let raw = Raw::leaf(2).entry(b"a", b"1").entry(b"b", b"2");
    assert_eq!(leaf_verdict(raw.clone(), 2), None);
    let blocks = MemoryBlocks::new(KEY);
    let root = top(raw.put(&blocks), 0, 2);
    let map = MerkleMap::new(KEY);
    assert_eq!(map.get(&blocks, &root, b"b").unwrap(), Some(Value::plain(b"2".to_vec())));
    // This is exactly the node that our writer makes.
    let edits = [
        (b"a".to_vec(), Some(Value::plain(b"1".to_vec()))),
        (b"b".to_vec(), Some(Value::plain(b"2".to_vec()))),
    ];
    assert_eq!(map.apply(&blocks, &mut &blocks, &MapRoot::EMPTY, edits.into()).unwrap(), root);
}

#[test]
fn malformed_leaves_are_refused() {
    let two = Raw::leaf(2).entry(b"b", b"");
    assert_eq!(leaf_verdict(two.clone().entry(b"a", b""), 2), Some(Malformed::NotAscending("keys")));
    assert_eq!(leaf_verdict(two.clone().entry(b"b", b""), 2), Some(Malformed::NotAscending("keys")));
    assert_eq!(leaf_verdict(two, 2), Some(Malformed::Truncated));
    let wrong = Some(Malformed::WrongCount { expected: 5, found: 1 });
    assert_eq!(leaf_verdict(Raw::leaf(1).entry(b"a", b""), 5), wrong);
    assert!(matches!(leaf_verdict(Raw::leaf(0), 0), Some(Malformed::OutOfRange { .. })));
    assert!(matches!(leaf_verdict(Raw::leaf(u32::MAX), 1), Some(Malformed::OutOfRange { .. })));
    assert!(matches!(leaf_verdict(Raw::leaf(1).entry(b"", b""), 1), Some(Malformed::OutOfRange { .. })));
    let long = vec![1; KEY_BYTES_MAX + 1];
    assert!(matches!(leaf_verdict(Raw::leaf(1).entry(&long, b""), 1), Some(Malformed::OutOfRange { .. })));
    let long = vec![1; VALUE_BYTES_MAX + 1];
    assert!(matches!(leaf_verdict(Raw::leaf(1).entry(b"a", &long), 1), Some(Malformed::OutOfRange { .. })));

    let mut more = Raw::leaf(1).entry(b"a", b"");
    more.body.push(0);
    assert_eq!(leaf_verdict(more, 1), Some(Malformed::TrailingBytes(1)));
    let mut newer = Raw::leaf(1).entry(b"a", b"");
    newer.body[0] = 2;
    assert_eq!(leaf_verdict(newer, 1), Some(Malformed::UnknownFormat { found: 2, known: 1 }));
    let empty = Raw { kind: BlockKind::MapLeaf, body: vec![], addresses: vec![] };
    assert_eq!(leaf_verdict(empty, 1), Some(Malformed::Truncated));
}

#[test]
fn references_of_values_must_match_the_header() {
    let chunk = Block::new(&KEY, BlockKind::Chunk, vec![], b"data".to_vec()).reference();
    let with_one = || {
        let mut raw = Raw::leaf(1).bytes(b"a").bytes(b"v");
        raw.body.push(1);
        raw.reference(chunk)
    };
    assert_eq!(leaf_verdict(with_one(), 1), None);
    let mut missing = with_one();
    missing.addresses.clear();
    assert_eq!(leaf_verdict(missing, 1), Some(Malformed::ReferenceMissing));
    let mut unused = with_one();
    unused.addresses.push(chunk.address);
    assert_eq!(leaf_verdict(unused, 1), Some(Malformed::ReferenceUnused(1)));
    let mut algorithm = with_one();
    let at = algorithm.body.len() - 6;
    algorithm.body[at] = 9;
    let unknown = Malformed::UnknownVariant { what: "digest algorithm", found: 9 };
    assert_eq!(leaf_verdict(algorithm, 1), Some(unknown));
    let mut sealed = with_one();
    *sealed.body.last_mut().unwrap() = 1;
    sealed.body.extend([7; 32]);
    assert_eq!(leaf_verdict(sealed, 1), Some(Malformed::Sealed));
    let mut huge = with_one();
    huge.body[at + 1..at + 5].copy_from_slice(&(BODY_BYTES_MAX + 1).to_le_bytes());
    assert!(matches!(leaf_verdict(huge, 1), Some(Malformed::OutOfRange { .. })));
    let mut many = Raw::leaf(1).bytes(b"a").bytes(b"v");
    many.body.push(REFERENCES_PER_VALUE_MAX as u8 + 1);
    let many = (0..=REFERENCES_PER_VALUE_MAX).fold(many, |raw, _| raw.reference(chunk));
    assert!(matches!(leaf_verdict(many, 1), Some(Malformed::OutOfRange { .. })));
}

#[test]
fn a_node_cut_elsewhere_than_its_keys_demand_is_refused() {
    let max = Shape::FORMAT.entries_max as usize;
    let min = Shape::FORMAT.entries_min as usize;
    let plain: Vec<_> = keys(0, false).take(max + 1).collect();
    // Too many entries, and exactly as many as may be.
    assert_eq!(leaf_verdict(leaf_of(&plain[..max]), max as u64), None);
    assert!(matches!(leaf_verdict(leaf_of(&plain), max as u64 + 1), Some(Malformed::OutOfRange { .. })));
    // A boundary after the minimum that does not end the node is refused; before the minimum it need not end
    // it.
    let boundary = keys(0, true).find(|key| *key > plain[min]).unwrap();
    let mut crossed: Vec<_> = plain.iter().filter(|key| **key < boundary).cloned().collect();
    crossed.truncate(max - 2);
    crossed.push(boundary.clone());
    assert!(crossed.len() >= min);
    assert_eq!(leaf_verdict(leaf_of(&crossed), crossed.len() as u64), None);
    crossed.push(plain.iter().find(|key| **key > boundary).unwrap().clone());
    assert_eq!(leaf_verdict(leaf_of(&crossed), crossed.len() as u64), Some(Malformed::Boundary));
    let early = vec![vec![0], keys(0, true).next().unwrap(), vec![0xff]];
    assert_eq!(leaf_verdict(leaf_of(&early), 3), None);
}

/// Two leaves under one inner node, sound unless `spoil` changes what the parent says.
fn two_leaves(spoil: impl Fn(&MemoryBlocks, &mut Vec<(Vec<u8>, u64, Reference)>)) -> Option<Malformed> {
    let blocks = MemoryBlocks::new(KEY);
    let max = Shape::FORMAT.entries_max as usize;
    let plain: Vec<_> = keys(0, false).take(max + 20).collect();
    let (first, second) = plain.split_at(max);
    let mut children = vec![
        (first[max - 1].clone(), max as u64, leaf_of(first).put(&blocks)),
        (second[19].clone(), 20, leaf_of(second).put(&blocks)),
    ];
    spoil(&blocks, &mut children);
    let entries = children.iter().map(|child| child.1).sum();
    let raw = children.iter().fold(Raw::inner(1, children.len() as u32), |raw, (key, entries, reference)| {
        raw.child(key, *entries, *reference)
    });
    verdict(&blocks, &top(raw.put(&blocks), 1, entries))
}

#[test]
fn a_child_that_does_not_fit_its_place_is_refused() {
    assert_eq!(two_leaves(|_, _| ()), None);
    // The same subtree twice, or in the wrong order: keys out of place.
    assert_eq!(two_leaves(|_, children| children[1].2 = children[0].2), Some(Malformed::Misplaced));
    assert_eq!(two_leaves(|_, children| children.swap(0, 1)), Some(Malformed::NotAscending("keys")));
    assert_eq!(
        two_leaves(|_, children| {
            let reference = children[0].2;
            children[0].2 = children[1].2;
            children[1].2 = reference;
        }),
        Some(Malformed::Misplaced)
    );
    // The parent's word on last key or count is wrong: a key is hidden or invented.
    assert_eq!(two_leaves(|_, children| children[1].0.push(0)), Some(Malformed::Misplaced));
    assert_eq!(two_leaves(|_, children| children[0].0.push(0)), Some(Malformed::Misplaced));
    let wrong = Malformed::WrongCount { expected: 21, found: 20 };
    assert_eq!(two_leaves(|_, children| children[1].1 += 1), Some(wrong));
    assert!(matches!(two_leaves(|_, children| children[1].1 = 0), Some(Malformed::Rule(_))));
    // A single child is no tree; a short leaf that is not the last is cut in the wrong place.
    assert!(matches!(two_leaves(|_, children| drop(children.pop())), Some(Malformed::OutOfRange { .. })));
    assert_eq!(
        two_leaves(|blocks, children| {
            let keys: Vec<_> = keys(0, false).take(20).collect();
            children[0] = (keys[19].clone(), 20, leaf_of(&keys).put(blocks));
        }),
        Some(Malformed::Boundary)
    );
    // Overlapping leaves: the second begins before the first ends.
    assert_eq!(
        two_leaves(|blocks, children| {
            let all: Vec<_> = keys(0, false).take(Shape::FORMAT.entries_max as usize + 20).collect();
            let overlap = &all[all.len() - 40..];
            children[1] = (overlap[39].clone(), 40, leaf_of(overlap).put(blocks));
        }),
        Some(Malformed::Misplaced)
    );
}

#[test]
fn a_node_of_another_kind_or_level_is_refused() {
    let map = MerkleMap::new(KEY);
    let blocks = MemoryBlocks::new(KEY);
    let leaf = leaf_of(&keys(0, false).take(20).collect::<Vec<_>>()).put(&blocks);
    // A leaf where an inner node should be, and the reverse: wrong kind, before any byte is read.
    let error = map.get(&blocks, &top(leaf, 1, 20), b"a").unwrap_err();
    assert!(
        matches!(&error, ContentError::Source(SourceError::Altered(_, BlockError::WrongKind { .. }))),
        "{error}"
    );
    let inner = Raw::inner(2, 2).child(b"a", 1, leaf).child(b"b", 1, leaf).put(&blocks);
    let error = map.get(&blocks, &top(inner, 0, 2), b"a").unwrap_err();
    assert!(matches!(&error, ContentError::Source(SourceError::Altered(_, BlockError::WrongKind { .. }))));
    // An inner node of another level than its place.
    let wrong = Malformed::WrongLevel { expected: 1, found: 2 };
    assert_eq!(verdict(&blocks, &top(inner, 1, 2)), Some(wrong));
    // A chunk where a node should be.
    let mut sink = &blocks;
    let chunk = sink.put(Block::new(&KEY, BlockKind::Chunk, vec![], b"data".to_vec()));
    assert!(matches!(map.get(&blocks, &top(chunk, 0, 1), b"a"), Err(ContentError::Source(_))));
}

#[test]
fn a_tree_that_is_too_deep_is_refused_at_its_top() {
    let blocks = MemoryBlocks::new(KEY);
    let leaf = Raw::leaf(1).entry(b"a", b"").put(&blocks);
    for level in [LEVEL_MAX + 1, 255] {
        let inner = Raw::inner(level, 2).child(b"a", 1, leaf).child(b"b", 1, leaf).put(&blocks);
        assert!(matches!(verdict(&blocks, &top(inner, level, 2)), Some(Malformed::WrongLevel { .. })));
    }
    // A chain of single children below a sound top is as deep as levels allow and is then refused or read,
    // never followed without end: each level is one less than its parent's.
    let mut reference = leaf;
    for level in 1..=LEVEL_MAX {
        let mut raw = Raw::inner(level, if level == LEVEL_MAX { 2 } else { 1 });
        if level == LEVEL_MAX {
            raw = raw.child(b"A", 1, reference);
        }
        reference = raw.child(b"a", 1, reference).put(&blocks);
    }
    assert!(verdict(&blocks, &top(reference, LEVEL_MAX, 2)).is_some());
}

#[test]
fn counts_that_overflow_are_refused() {
    let blocks = MemoryBlocks::new(KEY);
    let leaf = Raw::leaf(1).entry(b"a", b"").put(&blocks);
    let inner = Raw::inner(1, 2).child(b"a", u64::MAX, leaf).child(b"b", 2, leaf).put(&blocks);
    assert!(matches!(verdict(&blocks, &top(inner, 1, 1)), Some(Malformed::Rule(_))));
}

#[test]
fn decompression_is_bounded_by_the_reference() {
    let key = &KEY;
    let block = Block::new(key, BlockKind::Chunk, vec![], vec![0; BODY_BYTES_MAX as usize]);
    let stored = block.to_stored();
    assert!(stored.codec == Codec::Zstd && stored.body.len() < 1000);
    assert!(stored.clone().open(key, &block.reference(), BlockKind::Chunk).is_ok());
    // A short reference to a bomb: nothing beyond its length is expanded.
    let mut short = block.reference();
    short.length = 100;
    let error = stored.clone().open(key, &short, BlockKind::Chunk).unwrap_err();
    assert!(matches!(error, BlockError::BadBody { expected: 100, .. }), "{error}");
    // A reference longer than any block may be.
    let mut long = block.reference();
    long.length = BODY_BYTES_MAX + 1;
    assert!(matches!(stored.clone().open(key, &long, BlockKind::Chunk), Err(BlockError::TooLarge { .. })));
    // A reference longer than the body, which the digest alone does not detect.
    let small = Block::new(key, BlockKind::Chunk, vec![], vec![0; 10]);
    let mut longer = small.reference();
    longer.length = 11;
    assert!(matches!(
        small.to_stored().open(key, &longer, BlockKind::Chunk),
        Err(BlockError::BadBody { .. })
    ));
    // Too many references, refused before hashing.
    let many = StoredBlock {
        kind: BlockKind::Inode,
        codec: Codec::Plain,
        references: vec![Digest::ZERO; REFERENCES_MAX + 1],
        body: vec![],
    };
    let mut any = small.reference();
    any.length = 0;
    assert!(matches!(many.open(key, &any, BlockKind::Inode), Err(BlockError::TooLarge { .. })));
    // A sealed reference is refused, not misread.
    let mut sealed = small.reference();
    sealed.key = Some([1; 32]);
    let error = small.to_stored().open(key, &sealed, BlockKind::Chunk).unwrap_err();
    assert!(matches!(error, BlockError::Sealed(_)));
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let chunk = Block::new(&KEY, BlockKind::Chunk, vec![], b"data".to_vec()).reference();
    for body in [b"short".to_vec(), vec![7; 5000]] {
        let block = Block::new(&KEY, BlockKind::Inode, vec![chunk.address], body);
        let stored = block.to_stored();
        let refused = |stored: StoredBlock| {
            let open = stored.open(&KEY, &block.reference(), BlockKind::Inode);
            // Compressed bytes may have spare bits; the contents they yield are what the digest covers.
            open.map_or(true, |opened| opened == block)
        };
        for bit in 0..stored.body.len() * 8 {
            let mut altered = stored.clone();
            altered.body[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(altered), "body bit {bit}");
        }
        for bit in 0..256 {
            let mut altered = stored.clone();
            altered.references[0].0[bit / 8] ^= 1 << (bit % 8);
            assert!(altered.open(&KEY, &block.reference(), BlockKind::Inode).is_err());
        }
        let mut other_kind = stored.clone();
        other_kind.kind = BlockKind::Table;
        assert!(other_kind.open(&KEY, &block.reference(), BlockKind::Inode).is_err());
        let other_key = DigestKey([8; 32]);
        assert!(stored.open(&other_key, &block.reference(), BlockKind::Inode).is_err());
    }
}

/// A source with checked blocks in memory, like a client's cache.
struct Cached<'a> {
    blocks: &'a MemoryBlocks,
    kept: std::sync::Mutex<std::collections::HashMap<Digest, std::sync::Arc<Block>>>,
}

impl BlockSource for Cached<'_> {
    fn digest_key(&self) -> DigestKey {
        KEY
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<std::sync::Arc<Block>, SourceError> {
        let mut kept = self.kept.lock().unwrap();
        if let Some(block) = kept.get(&reference.address) {
            return Ok(block.clone());
        }
        let block = self.blocks.fetch(reference, kind)?;
        kept.insert(reference.address, block.clone());
        Ok(block)
    }
}

#[test]
fn a_node_that_was_sound_in_one_place_is_still_refused_in_another() {
    let blocks = MemoryBlocks::new(KEY);
    let source = Cached { blocks: &blocks, kept: Default::default() };
    let map = MerkleMap::new(KEY);
    let read = |root: &MapRoot| map.range(&source, root, Bound::Unbounded, usize::MAX);
    let why = |root: &MapRoot| match read(root).unwrap_err() {
        ContentError::Malformed { why, .. } => why,
        other => panic!("{other}"),
    };
    let keys: Vec<_> = keys(0, false).take(20).collect();
    let leaf = leaf_of(&keys).put(&blocks);
    assert_eq!(read(&top(leaf, 0, 20)).unwrap().len(), 20);
    // It is in memory now and known to be sound as a whole map. It is not sound with another count, or as a
    // first child, where it is cut too early, or as a second one that begins before the first ends.
    assert_eq!(why(&top(leaf, 0, 21)), Malformed::WrongCount { expected: 21, found: 20 });
    let last = keys.last().unwrap();
    let cut_early = Raw::inner(1, 2).child(last, 20, leaf).child(&[0xff; 9], 20, leaf).put(&blocks);
    assert_eq!(why(&top(cut_early, 1, 40)), Malformed::Boundary);
    let full: Vec<_> = self::keys(0, false).take(Shape::FORMAT.entries_max as usize).collect();
    let full_leaf = leaf_of(&full).put(&blocks);
    let raw = Raw::inner(1, 2).child(full.last().unwrap(), full.len() as u64, full_leaf);
    let overlapping = raw.child(&[full.last().unwrap().as_slice(), b"x"].concat(), 20, leaf).put(&blocks);
    assert_eq!(why(&top(overlapping, 1, full.len() as u64 + 20)), Malformed::Misplaced);
    let other = MerkleMap::with_config(MapConfig {
        key: KEY,
        shape: Shape { entries_min: 2, boundary_one_in: 3, entries_max: 6 },
    });
    assert!(other.range(&source, &top(leaf, 0, 20), Bound::Unbounded, usize::MAX).is_err());
}
