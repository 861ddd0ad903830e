//! Nodes: how they are laid out, and every rule an untrusted one must keep.
//!
//! ```text
//! leaf    format u8 = 1 | count u32 | count x { key length u16 | key | value }
//! value   bytes length u16 | bytes | reference count u8 | references
//! inner   format u8 = 1 | level u8 (1..=15) | count u32
//!         | count x { last key of the child: length u16, key | entries below u64 | reference }
//! ```
//! Numbers are little-endian. A reference in a body is algorithm u8, length u32, seal flag u8 (and a 32-byte
//! key if 1); its address is the next of the block header.

use super::{KEY_BYTES_MAX, LEVEL_MAX, MapConfig, REFERENCES_PER_VALUE_MAX, VALUE_BYTES_MAX, Value};
use crate::codec::{FORMAT, Reader, Writer};
use crate::error::{ContentError, Malformed, within};
use crate::{Block, BlockKind, BlockSource, Reference};
use holdfast_crypto::DigestKey;
use std::sync::Arc;

/// Where a node stands: all its parent says about it. A node that does not fit its place is refused.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) reference: Reference,
    pub(crate) level: u8,
    /// Entries in and below it.
    pub(crate) entries: u64,
    /// Every key is greater than this.
    pub(crate) lower: Option<Vec<u8>>,
    /// Its last key; `None` at the top, where nothing says it.
    pub(crate) upper: Option<Vec<u8>>,
    /// Whether it is the last of its level, which may end anywhere.
    pub(crate) last: bool,
}

/// The kind of block that a node of `level` is.
pub(crate) fn kind_of(level: u8) -> BlockKind {
    if level == 0 { BlockKind::MapLeaf } else { BlockKind::MapInner }
}

/// A checked node. Keys and values are read in place.
pub(crate) struct Node {
    block: Arc<Block>,
    level: u8,
    slots: Vec<Slot>,
    last: bool,
    lower: Option<Vec<u8>>,
}

struct Slot {
    key: (u32, u32),
    payload: Payload,
}

enum Payload {
    /// Where the value begins in the body and among the references.
    Value {
        at: u32,
        reference: u32,
    },
    Child {
        reference: Reference,
        entries: u64,
    },
}

/// What a level's nodes hold: values in leaves, children above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Item {
    Value(Value),
    Child { reference: Reference, entries: u64 },
}

impl Value {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.bytes16(&self.bytes);
        writer.u8(u8::try_from(self.references.len()).expect("a checked value has few references"));
        self.references.iter().for_each(|reference| writer.reference(reference));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Value, Malformed> {
        let (bytes, references) = Value::parts(reader)?;
        Ok(Value { bytes: bytes.to_vec(), references })
    }

    fn parts<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Vec<Reference>), Malformed> {
        let bytes = reader.bytes16()?;
        within("length of a value", bytes.len() as u64, 0, VALUE_BYTES_MAX as u64)?;
        let count = reader.u8()?;
        within("references of a value", count.into(), 0, REFERENCES_PER_VALUE_MAX as u64)?;
        let references = (0..count).map(|_| reader.reference()).collect::<Result<_, _>>()?;
        Ok((bytes, references))
    }

    /// Whether a node can hold it.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        within("length of a value", self.bytes.len() as u64, 0, VALUE_BYTES_MAX as u64)?;
        within("references of a value", self.references.len() as u64, 0, REFERENCES_PER_VALUE_MAX as u64)
    }
}

/// Whether a map can have `key`.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Malformed> {
    within("length of a key", key.len() as u64, 1, KEY_BYTES_MAX as u64)
}

/// Makes the block of a node from items in ascending order of key.
pub(crate) fn build(key: &DigestKey, level: u8, items: &[(Vec<u8>, Item)]) -> Block {
    let mut writer = Writer::default();
    writer.u8(FORMAT);
    if level > 0 {
        writer.u8(level);
    }
    writer.u32(items.len() as u32);
    for (entry_key, item) in items {
        writer.bytes16(entry_key);
        match item {
            Item::Value(value) => value.write(&mut writer),
            Item::Child { reference, entries } => {
                writer.u64(*entries);
                writer.reference(reference);
            }
        }
    }
    Block::new(key, kind_of(level), writer.addresses(), writer.bytes)
}

impl Node {
    /// Fetches and checks the node at `place`.
    pub(crate) fn fetch(
        config: &MapConfig,
        source: &dyn BlockSource,
        place: &Place,
    ) -> Result<Node, ContentError> {
        let block = source.fetch(&place.reference, kind_of(place.level))?;
        Node::parse(config, block, place)
    }

    /// Checks an authentic block against its place.
    pub(crate) fn parse(config: &MapConfig, block: Arc<Block>, place: &Place) -> Result<Node, ContentError> {
        let address = block.reference().address;
        Node::parse_inner(config, block, place).map_err(|why| why.at("map node", Some(address)))
    }

    fn parse_inner(config: &MapConfig, block: Arc<Block>, place: &Place) -> Result<Node, Malformed> {
        let shape = &config.shape;
        let body = block.body();
        let mut reader = Reader::new(body, block.references());
        reader.format()?;
        if place.level > 0 {
            let found = reader.u8()?;
            if found != place.level || found > LEVEL_MAX {
                return Err(Malformed::WrongLevel { expected: place.level, found });
            }
        }
        let count = reader.u32()?;
        let top = place.upper.is_none();
        let least = if top && place.level > 0 { 2 } else { 1 };
        within("entries of a node", count.into(), least, shape.entries_max.into())?;

        let mut slots = Vec::with_capacity(count as usize);
        let mut previous = place.lower.as_deref();
        let mut below = 0u64;
        for index in 0..count {
            let key = reader.bytes16()?;
            check_key(key)?;
            if previous.is_some_and(|previous| previous >= key) {
                let misplaced = index == 0;
                return Err(if misplaced { Malformed::Misplaced } else { Malformed::NotAscending("keys") });
            }
            previous = Some(key);
            let end = (body.len() - reader.bytes_left()) as u32;
            let payload = if place.level == 0 {
                let reference = (block.references().len() - reader.references_left()) as u32;
                Value::parts(&mut reader)?;
                below += 1;
                Payload::Value { at: end, reference }
            } else {
                let entries = reader.u64()?;
                below = below
                    .checked_add(entries)
                    .filter(|_| entries > 0)
                    .ok_or_else(|| Malformed::Rule("its counts of entries are impossible".into()))?;
                Payload::Child { reference: reader.reference()?, entries }
            };
            slots.push(Slot { key: (end - key.len() as u32, end), payload });

            // A node ends at the first boundary, at the maximum, or with its level, and nowhere else.
            let ends_here = shape.ends(&config.key, place.level, index + 1, key);
            let last_of_node = index + 1 == count;
            if ends_here && !last_of_node || last_of_node && !ends_here && !place.last {
                return Err(Malformed::Boundary);
            }
        }
        reader.finish()?;
        if below != place.entries {
            return Err(Malformed::WrongCount { expected: place.entries, found: below });
        }
        if place.upper.as_deref().is_some_and(|upper| previous != Some(upper)) {
            return Err(Malformed::Misplaced);
        }
        Ok(Node { level: place.level, slots, last: place.last, lower: place.lower.clone(), block })
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    /// Whether it is the last of its level.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let (start, end) = self.slots[index].key;
        &self.block.body()[start as usize..end as usize]
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        self.key(self.len() - 1)
    }

    /// The first slot whose key is at least `key`; `len()` if there is none.
    pub(crate) fn first_at_least(&self, key: &[u8]) -> usize {
        self.partition(|slot_key| slot_key < key)
    }

    /// The first slot whose key is greater than `key`; `len()` if there is none.
    pub(crate) fn first_after(&self, key: &[u8]) -> usize {
        self.partition(|slot_key| slot_key <= key)
    }

    fn partition(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        let body = self.block.body();
        self.slots.partition_point(|slot| before(&body[slot.key.0 as usize..slot.key.1 as usize]))
    }

    /// The value in a slot of a leaf.
    pub(crate) fn value(&self, index: usize) -> Value {
        match self.slots[index].payload {
            Payload::Value { at, reference } => {
                let mut reader = Reader::new(
                    &self.block.body()[at as usize..],
                    &self.block.references()[reference as usize..],
                );
                Value::read(&mut reader).expect("checked when the node was parsed")
            }
            Payload::Child { .. } => unreachable!("values are asked of leaves only"),
        }
    }

    pub(crate) fn item(&self, index: usize) -> Item {
        match self.slots[index].payload {
            Payload::Value { .. } => Item::Value(self.value(index)),
            Payload::Child { reference, entries } => Item::Child { reference, entries },
        }
    }

    /// The place of the child in a slot of an inner node.
    pub(crate) fn child(&self, index: usize) -> Place {
        let Payload::Child { reference, entries } = self.slots[index].payload else {
            unreachable!("children are asked of inner nodes only")
        };
        let lower = match index.checked_sub(1) {
            Some(before) => Some(self.key(before).to_vec()),
            None => self.lower.clone(),
        };
        Place {
            reference,
            level: self.level - 1,
            entries,
            lower,
            upper: Some(self.key(index).to_vec()),
            last: self.last && index + 1 == self.len(),
        }
    }

    /// Reference and number of entries of the child in a slot of an inner node.
    pub(crate) fn child_reference(&self, index: usize) -> (Reference, u64) {
        match self.slots[index].payload {
            Payload::Child { reference, entries } => (reference, entries),
            Payload::Value { .. } => unreachable!("children are asked of inner nodes only"),
        }
    }
}
