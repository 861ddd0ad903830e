//! The Merkle map: one history-independent, authenticated, ordered search tree for directories, i-tables and
//! extent maps.
//!
//! Invariants:
//! - **Canonical.** Equal contents have equal roots, whatever the order of edits. Only *keys* decide where
//!   nodes end: after the first key, from the `entries_min`-th of the node on, whose keyed digest is a
//!   boundary; else after the `entries_max`-th. Values neither move a boundary nor overfill a node, because
//!   the limits on key, value and entries multiply to less than a block; so no split depends on sizes or
//!   history. Each level is cut by the same rule over the last keys of the nodes below; the top is the lowest
//!   level that has a single node. A forced cut after `entries_max` depends only on where its node begins,
//!   hence on the keys before it, and is canonical too.
//! - **Bounded.** At most [`LEVEL_MAX`] levels above the leaves, and [`KEY_BYTES_MAX`], [`VALUE_BYTES_MAX`]
//!   and [`REFERENCES_PER_VALUE_MAX`] for an entry. So a hostile tree costs no more to refuse than one path.
//! - **Checked.** A node is used only if it fits its parent's entry: level, number of entries, first and
//!   last key, order, cut. Every check is made on every read.
//!
//! Attack answered: a server or a member provides a map in which a key is hidden, doubled or misplaced, so
//! that two readers, or a reader and a prover of absence, see different contents under one root.
//!
//! Known limit: a member who knows the digest key can search for names without natural boundaries; each edit
//! of *that* map then rewrites more nodes. Live maps ([`crate::LiveMap`]) divide the cost by the length of
//! their lists.

mod apply;
mod diff;
mod node;
mod proof;
mod walk;

pub use diff::DiffVisitor;
pub(crate) use node::{Parsed, check_key};
pub use proof::Proof;

use crate::error::{ContentError, within};
use crate::{BlockSource, Reference, codec, error::Malformed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{DigestKey, Domain};
use node::{Node, NodePosition, kind_of};
use std::ops::Bound;
pub use walk::NodeVisitor;

/// Longest key, in bytes; the shortest has 1.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, in bytes, without its references.
pub const VALUE_BYTES_MAX: usize = 1024;
/// Most references a value may hold.
pub const REFERENCES_PER_VALUE_MAX: usize = 16;
/// Highest level of a node; leaves are level 0.
pub const LEVEL_MAX: u8 = 15;
/// Children fetched ahead at once by a range read.
const PREFETCH_MAX: usize = 64;

/// A map: its top node, or `None` when it is empty.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize,
)]
pub struct MapRoot(pub Option<MapTop>);

/// The top node of a map that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct MapTop {
    /// The node.
    pub reference: Reference,
    /// Its level; 0 is a leaf.
    pub level: u8,
    /// Entries of the whole map.
    pub entries: u64,
}

impl MapRoot {
    /// The empty map.
    pub const EMPTY: MapRoot = MapRoot(None);

    /// Number of entries. Checked against the tree at every read of it.
    pub fn len(&self) -> u64 {
        self.0.map_or(0, |top| top.entries)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The top node's reference.
    pub fn reference(&self) -> Option<Reference> {
        self.0.map(|top| top.reference)
    }

    pub(crate) fn write(&self, writer: &mut codec::Writer) {
        match &self.0 {
            None => writer.u8(0),
            Some(top) => {
                writer.u8(1);
                writer.u8(top.level);
                writer.u64(top.entries);
                writer.reference(&top.reference);
            }
        }
    }

    pub(crate) fn read(reader: &mut codec::Reader<'_>) -> Result<MapRoot, Malformed> {
        if !reader.flag("map flag")? {
            return Ok(MapRoot(None));
        }
        let level = reader.u8()?;
        within("level of a map", level.into(), 0, LEVEL_MAX.into())?;
        let entries = reader.u64()?;
        within("entries of a map", entries, 1, u64::MAX)?;
        Ok(MapRoot(Some(MapTop { reference: reader.reference()?, level, entries })))
    }

    pub(crate) fn position(&self) -> Option<NodePosition> {
        self.0.map(|top| NodePosition {
            reference: top.reference,
            level: top.level,
            entries: top.entries,
            lower: None,
            upper: None,
            last: true,
        })
    }
}

/// The value of a key: bytes, and references, which are in the block header so that garbage collection sees
/// them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Value {
    /// At most [`VALUE_BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// At most [`REFERENCES_PER_VALUE_MAX`].
    pub references: Vec<Reference>,
}

impl Value {
    /// A value without references.
    pub fn plain(bytes: Vec<u8>) -> Value {
        Value { bytes, references: Vec::new() }
    }
}

/// An entry of a map.
pub type KeyValue = (Vec<u8>, Value);

/// Where nodes end. Part of the format: [`Shape::FORMAT`] is the only one that is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// A node has at least this many entries, unless it is the last of its level. At least 2.
    pub entries_min: u32,
    /// From the `entries_min`-th key on, one key in this many is a boundary.
    pub boundary_one_in: u32,
    /// A node has at most this many entries.
    pub entries_max: u32,
}

impl Shape {
    /// The shape of stored maps: 47 entries a node on average; directories then have leaves of about 2 KB,
    /// extent maps 3 KB, i-tables 5 to 10 KB.
    pub const FORMAT: Shape = Shape { entries_min: 16, boundary_one_in: 32, entries_max: 128 };

    /// Whether a node of `level` ends after its `count`-th key, which is `key`.
    pub(crate) fn ends(&self, digest_key: &DigestKey, level: u8, count: u32, key: &[u8]) -> bool {
        count >= self.entries_max
            || count >= self.entries_min && is_boundary(digest_key, level, key, self.boundary_one_in)
    }
}

fn is_boundary(digest_key: &DigestKey, level: u8, key: &[u8], one_in: u32) -> bool {
    // Most keys are short; only long ones cost an allocation.
    let mut short = [0u8; 120];
    let digest = match short.get_mut(1..=key.len()) {
        Some(position) => {
            position.copy_from_slice(key);
            short[0] = level;
            digest_key.digest(Domain::Boundary, &short[..=key.len()])
        }
        None => digest_key.hasher(Domain::Boundary).update(&[level]).update(key).finish(),
    };
    u32::from_le_bytes(digest.0[..4].try_into().expect("4 bytes")) % one_in == 0
}

const _: () = {
    let shape = Shape::FORMAT;
    let leaf_entry =
        2 + KEY_BYTES_MAX + 2 + VALUE_BYTES_MAX + 1 + REFERENCES_PER_VALUE_MAX * (1 + 4 + 1 + 32);
    assert!(1 + 4 + shape.entries_max as usize * leaf_entry <= crate::BODY_BYTES_MAX as usize);
    assert!(shape.entries_max as usize * REFERENCES_PER_VALUE_MAX <= crate::REFERENCES_MAX);
    let inner_entry = 2 + KEY_BYTES_MAX + 8 + 1 + 4 + 1 + 32;
    assert!(1 + 1 + 4 + shape.entries_max as usize * inner_entry <= crate::BODY_BYTES_MAX as usize);
    assert!(shape.entries_min >= 2);
};

/// How maps of one file system are cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapConfig {
    /// Keys digests and boundaries.
    pub key: DigestKey,
    /// The rules for where nodes end.
    pub shape: Shape,
}

/// Operations on maps. The module's documentation has the invariants.
#[derive(Clone, Copy, Debug)]
pub struct MerkleMap {
    config: MapConfig,
}

impl MerkleMap {
    /// Maps of the stored shape, with digests and boundaries under `key`.
    pub fn new(key: DigestKey) -> Self {
        MerkleMap { config: MapConfig { key, shape: Shape::FORMAT } }
    }

    /// Maps of another shape, for experiments and for tests that need deep trees with few keys.
    ///
    /// # Panics
    /// If the shape is invalid (minimum under 2 or over the maximum, maximum over the stored one's).
    pub fn with_config(config: MapConfig) -> Self {
        let Shape { entries_min, boundary_one_in, entries_max } = config.shape;
        assert!(entries_min >= 2 && entries_min <= entries_max && boundary_one_in >= 1);
        assert!(entries_max <= Shape::FORMAT.entries_max, "a node must fit a block");
        MerkleMap { config }
    }

    /// Number of entries.
    pub fn len(&self, root: &MapRoot) -> u64 {
        root.len()
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn get(
        &self,
        source: &dyn BlockSource,
        root: &MapRoot,
        key: &[u8],
    ) -> Result<Option<Value>, ContentError> {
        let Some(mut position) = root.position() else { return Ok(None) };
        loop {
            let node = Node::fetch(&self.config, source, &position)?;
            let index = node.first_at_least(key);
            if index == node.len() {
                return Ok(None);
            }
            if node.level() == 0 {
                return Ok((node.key(index) == key).then(|| node.value(index)));
            }
            position = node.child(index);
        }
    }

    /// At most `limit` entries from `from` on, in ascending order.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn range(
        &self,
        source: &dyn BlockSource,
        root: &MapRoot,
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, ContentError> {
        let mut found = Vec::new();
        if let (Some(position), true) = (root.position(), limit > 0) {
            self.range_below(source, &position, from, limit, &mut found)?;
        }
        Ok(found)
    }

    fn range_below(
        &self,
        source: &dyn BlockSource,
        position: &NodePosition,
        from: Bound<&[u8]>,
        limit: usize,
        found: &mut Vec<KeyValue>,
    ) -> Result<(), ContentError> {
        let node = Node::fetch(&self.config, source, position)?;
        let first = match from {
            Bound::Included(key) => node.first_at_least(key),
            Bound::Excluded(key) => node.first_after(key),
            Bound::Unbounded => 0,
        };
        if node.level() == 0 {
            let last = node.len().min(first.saturating_add(limit - found.len()));
            found.extend((first..last).map(|index| (node.key(index).to_vec(), node.value(index))));
            return Ok(());
        }
        let mut hinted = first;
        for index in first..node.len() {
            if found.len() >= limit {
                break;
            }
            if index == hinted {
                hinted = self.hint(source, &node, index, limit - found.len());
            }
            self.range_below(source, &node.child(index), from, limit, found)?;
        }
        Ok(())
    }

    /// Prefetches the children from `first` on that have the next `wanted` entries; returns the first child
    /// left out. Reading may begin in the middle of the first child, so that one does not count.
    fn hint(&self, source: &dyn BlockSource, node: &Node, first: usize, wanted: usize) -> usize {
        let mut references = Vec::new();
        let mut covered = 0u64;
        for index in first..node.len() {
            if references.len() >= PREFETCH_MAX || covered >= wanted as u64 {
                break;
            }
            let (reference, entries) = node.child_reference(index);
            references.push((reference, kind_of(node.level() - 1)));
            if index > first {
                covered += entries;
            }
        }
        let next = first + references.len();
        if references.len() > 1 {
            source.prefetch(&references);
        }
        next
    }

    /// The last entry whose key is below `upper` (or, if included, equal to it).
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn floor(
        &self,
        source: &dyn BlockSource,
        root: &MapRoot,
        upper: Bound<&[u8]>,
    ) -> Result<Option<KeyValue>, ContentError> {
        match root.position() {
            None => Ok(None),
            Some(position) => self.floor_below(source, &position, upper),
        }
    }

    fn floor_below(
        &self,
        source: &dyn BlockSource,
        position: &NodePosition,
        upper: Bound<&[u8]>,
    ) -> Result<Option<KeyValue>, ContentError> {
        let node = Node::fetch(&self.config, source, position)?;
        // Number of slots whose keys are within the bound.
        let within = match upper {
            Bound::Included(key) => node.first_after(key),
            Bound::Excluded(key) => node.first_at_least(key),
            Bound::Unbounded => node.len(),
        };
        if node.level() == 0 {
            return Ok(within.checked_sub(1).map(|index| (node.key(index).to_vec(), node.value(index))));
        }
        // The child after the last one that lies wholly within the bound may begin within it.
        if within < node.len() {
            let found = self.floor_below(source, &node.child(within), upper)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        match within.checked_sub(1) {
            None => Ok(None),
            Some(index) => self.floor_below(source, &node.child(index), Bound::Unbounded),
        }
    }

    /// Prefetches, level by level, all nodes on the paths to `keys` (ascending), so that later reads find
    /// them in the cache: one round trip a level instead of one a node.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn warm(&self, source: &dyn BlockSource, root: &MapRoot, keys: &[&[u8]]) -> Result<(), ContentError> {
        let mut places: Vec<NodePosition> = root.position().into_iter().collect();
        while places.first().is_some_and(|position| position.level > 0) {
            let mut below = Vec::new();
            for position in &places {
                let node = Node::fetch(&self.config, source, position)?;
                let begin = match &position.lower {
                    Some(lower) => keys.partition_point(|key| *key <= lower.as_slice()),
                    None => 0,
                };
                let mut next = 0;
                for key in &keys[begin..] {
                    let mut index = node.first_at_least(key);
                    if index == node.len() {
                        // Keys after the end of the map belong to its last node.
                        if !position.last || next == node.len() {
                            break;
                        }
                        index = node.len() - 1;
                    }
                    if index >= next {
                        below.push(node.child(index));
                        next = index + 1;
                    }
                }
            }
            let hints: Vec<_> =
                below.iter().map(|position| (position.reference, kind_of(position.level))).collect();
            if hints.len() > 1 {
                source.prefetch(&hints);
            }
            places = below;
        }
        Ok(())
    }
}
