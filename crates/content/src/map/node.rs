//! Nodes: their layout, and every rule that an untrusted one must keep.
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
use holdfast_crypto::{Digest, DigestKey};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes of the length in front of a key.
const KEY_LENGTH_BYTES: usize = 2;

/// The position of a node in the map: everything that its parent says about it. A node that does not match is
/// refused.
#[derive(Clone, Debug)]
pub(crate) struct NodePosition {
    pub(crate) reference: Reference,
    pub(crate) level: u8,
    /// Entries in and below it.
    pub(crate) entries: u64,
    /// Every key is greater than this.
    pub(crate) lower: Option<Vec<u8>>,
    /// Its last key; `None` at the top, where nothing says it.
    pub(crate) upper: Option<Vec<u8>>,
    /// Whether the node is the last of its level, which may end anywhere.
    pub(crate) last: bool,
}

/// The kind of block that a node of `level` is.
pub(crate) fn kind_of(level: u8) -> BlockKind {
    if level == 0 { BlockKind::MapLeaf } else { BlockKind::MapInner }
}

/// A node that was checked against its position. Keys and values are read in place.
pub(crate) struct Node {
    block: Arc<Block>,
    parsed: Arc<Parsed>,
    last: bool,
    lower: Option<Vec<u8>>,
}

/// A block parsed as a node, independent of its position. A block in memory is parsed once and the result
/// stored with it, since looking for boundaries costs more than the rest of a look-up.
#[derive(Debug)]
pub(crate) struct Parsed {
    config: MapConfig,
    level: u8,
    slots: Vec<Slot>,
    /// Entries in and below it.
    entries: u64,
    /// Whether its last key ends a node.
    ends_at_cut: bool,
}

/// The location of an entry: its key in the body, its value directly after that, its first reference in the
/// header.
#[derive(Debug)]
struct Slot {
    key: (u32, u32),
    reference: u32,
}

/// An entry of a node: a value in a leaf, a child in an inner node.
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

/// An entry on its way into a new node.
pub(crate) enum Piece {
    /// A slot of an old node, copied as it is.
    Kept(Rc<Node>, usize),
    /// A new or changed one.
    New(Vec<u8>, Item),
}

impl Piece {
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Piece::Kept(node, index) => node.key(*index),
            Piece::New(key, _) => key,
        }
    }

    /// The number of entries of the map below it.
    pub(crate) fn entries(&self) -> u64 {
        match self {
            Piece::Kept(node, _) if node.level() == 0 => 1,
            Piece::Kept(node, index) => node.child_reference(*index).1,
            Piece::New(_, Item::Value(_)) => 1,
            Piece::New(_, Item::Child { entries, .. }) => *entries,
        }
    }
}

/// Makes the block of a node from pieces in ascending order of key.
pub(crate) fn build(key: &DigestKey, level: u8, pieces: &[Piece]) -> Block {
    let mut writer = Writer::default();
    writer.u8(FORMAT);
    if level > 0 {
        writer.u8(level);
    }
    writer.u32(pieces.len() as u32);
    for piece in pieces {
        match piece {
            Piece::Kept(node, index) => {
                let (bytes, addresses) = node.entry(*index);
                writer.copy(bytes, addresses);
            }
            Piece::New(entry_key, Item::Value(value)) => {
                writer.bytes16(entry_key);
                value.write(&mut writer);
            }
            Piece::New(entry_key, Item::Child { reference, entries }) => {
                writer.bytes16(entry_key);
                writer.u64(*entries);
                writer.reference(reference);
            }
        }
    }
    let (body, addresses) = writer.into_parts();
    Block::new(key, kind_of(level), addresses, body)
}

impl Node {
    /// Fetches and checks the node at `position`.
    pub(crate) fn fetch(
        config: &MapConfig,
        source: &dyn BlockSource,
        position: &NodePosition,
    ) -> Result<Node, ContentError> {
        let block = source.fetch(&position.reference, kind_of(position.level))?;
        Node::parse(config, block, position)
    }

    /// Parses an authentic block as a node, and checks it against its position.
    pub(crate) fn parse(
        config: &MapConfig,
        block: Arc<Block>,
        position: &NodePosition,
    ) -> Result<Node, ContentError> {
        let malformed = |why: Malformed| why.at("map node", Some(block.reference().address));
        let parsed = match block.parsed.get() {
            Some(parsed) if parsed.config == *config && parsed.level == position.level => parsed.clone(),
            _ => {
                let parsed = Arc::new(Parsed::new(config, &block, position.level).map_err(malformed)?);
                // Another thread, or another configuration, may have been first: no matter.
                let _ = block.parsed.set(parsed.clone());
                parsed
            }
        };
        let node = Node { parsed, last: position.last, lower: position.lower.clone(), block: block.clone() };
        node.check_position(position).map_err(malformed)?;
        Ok(node)
    }

    fn check_position(&self, position: &NodePosition) -> Result<(), Malformed> {
        let parsed = &self.parsed;
        if position.upper.is_none() && parsed.level > 0 {
            within("children at the top", self.len() as u64, 2, u64::MAX)?;
        }
        if position.lower.as_deref().is_some_and(|lower| self.key(0) <= lower)
            || position.upper.as_deref().is_some_and(|upper| self.last_key() != upper)
        {
            return Err(Malformed::Misplaced);
        }
        if parsed.entries != position.entries {
            return Err(Malformed::WrongCount { expected: position.entries, found: parsed.entries });
        }
        if !position.last && !parsed.ends_at_cut {
            return Err(Malformed::Boundary);
        }
        Ok(())
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    pub(crate) fn level(&self) -> u8 {
        self.parsed.level
    }

    /// Whether it is the last of its level.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.parsed.slots.len()
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        self.parsed.slots[index].key(self.block.body())
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
        self.parsed.slots.partition_point(|slot| before(slot.key(body)))
    }

    /// A reader at what the slot's key maps to.
    fn reader(&self, index: usize) -> Reader<'_> {
        let Slot { key, reference } = &self.parsed.slots[index];
        let body = &self.block.body()[key.1 as usize..];
        Reader::new(body, &self.block.references()[*reference as usize..])
    }

    /// The value in a slot of a leaf.
    pub(crate) fn value(&self, index: usize) -> Value {
        assert!(self.parsed.level == 0, "values are asked of leaves only");
        Value::read(&mut self.reader(index)).expect("checked when the node was parsed")
    }

    /// Reference and number of entries of the child in a slot of an inner node.
    pub(crate) fn child_reference(&self, index: usize) -> (Reference, u64) {
        assert!(self.parsed.level > 0, "children are asked of inner nodes only");
        read_child(&mut self.reader(index)).expect("checked when the node was parsed")
    }

    /// A slot's entry as it stands in the body, and the addresses that it uses.
    fn entry(&self, index: usize) -> (&[u8], &[Digest]) {
        let (body, addresses) = (self.block.body(), self.block.references());
        let slot = &self.parsed.slots[index];
        let (end, reference_end) = match self.parsed.slots.get(index + 1) {
            Some(next) => (next.key.0 as usize - KEY_LENGTH_BYTES, next.reference as usize),
            None => (body.len(), addresses.len()),
        };
        let begin = slot.key.0 as usize - KEY_LENGTH_BYTES;
        (&body[begin..end], &addresses[slot.reference as usize..reference_end])
    }

    /// The position of the child in a slot of an inner node.
    pub(crate) fn child(&self, index: usize) -> NodePosition {
        let (reference, entries) = self.child_reference(index);
        let lower = match index.checked_sub(1) {
            Some(before) => Some(self.key(before).to_vec()),
            None => self.lower.clone(),
        };
        NodePosition {
            reference,
            level: self.parsed.level - 1,
            entries,
            lower,
            upper: Some(self.key(index).to_vec()),
            last: self.last && index + 1 == self.len(),
        }
    }
}

impl Slot {
    fn key<'b>(&self, body: &'b [u8]) -> &'b [u8] {
        &body[self.key.0 as usize..self.key.1 as usize]
    }
}

fn read_child(reader: &mut Reader<'_>) -> Result<(Reference, u64), Malformed> {
    let entries = reader.u64()?;
    Ok((reader.reference()?, entries))
}

impl Parsed {
    fn new(config: &MapConfig, block: &Block, level: u8) -> Result<Parsed, Malformed> {
        let shape = &config.shape;
        let body = block.body();
        let mut reader = Reader::new(body, block.references());
        reader.format()?;
        if level > 0 {
            let found = reader.u8()?;
            if found != level || found > LEVEL_MAX {
                return Err(Malformed::WrongLevel { expected: level, found });
            }
        }
        let count = reader.u32()?;
        within("entries of a node", count.into(), 1, shape.entries_max.into())?;

        let mut slots = Vec::with_capacity(count as usize);
        let mut previous: Option<&[u8]> = None;
        let mut entries = 0u64;
        let mut ends_at_cut = false;
        for index in 0..count {
            // A node ends at the first boundary, at the maximum, or with its level, and nowhere else.
            if ends_at_cut {
                return Err(Malformed::Boundary);
            }
            let key = reader.bytes16()?;
            check_key(key)?;
            if previous.is_some_and(|previous| previous >= key) {
                return Err(Malformed::NotAscending("keys"));
            }
            previous = Some(key);
            ends_at_cut = shape.ends(&config.key, level, index + 1, key);
            let end = (body.len() - reader.bytes_left()) as u32;
            let reference = (block.references().len() - reader.references_left()) as u32;
            slots.push(Slot { key: (end - key.len() as u32, end), reference });
            if level == 0 {
                Value::parts(&mut reader)?;
                entries += 1;
            } else {
                let (_, below) = read_child(&mut reader)?;
                entries = entries
                    .checked_add(below)
                    .filter(|_| below > 0)
                    .ok_or_else(|| Malformed::Rule("its counts of entries are impossible".into()))?;
            }
        }
        reader.finish()?;
        Ok(Parsed { config: *config, level, slots, entries, ends_at_cut })
    }
}
