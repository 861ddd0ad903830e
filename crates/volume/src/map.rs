//! The block map: the stable value of every block, as a tree of 4 KiB nodes on the log device. Most of it is
//! not in memory.
//!
//! A node has 256 values of 16 bytes: a leaf has those of blocks, an inner node the tags of the nodes below
//! it. The root's tag is in the log, in the record of the last checkpoint, so no node can be altered, swapped
//! or replaced by an older one. Each node has two slots; a checkpoint writes the one that the last durable
//! checkpoint does not need. A node of zeroes is not stored.

use crate::VolumeError;
use crate::key::VolumeKey;
use crate::layout::{BLOCK_BYTES, io};
use holdfast_log::device::Device;
use holdfast_log::ring::{Lsn, Tag};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

const FANOUT: u64 = 256;
const NOTHING: Tag = [0; 16];
const DISCARDED: Tag = [0xff; 16];
const REFUSED: Tag = [0xfe; 16];

/// The value of a block, stored as a tag. Three tags stand for the values other than `Known`; the key makes
/// one of them with a probability of one in 2^126.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The block has not been taken over yet.
    NotAdopted,
    /// Its content has this tag.
    Known(Tag),
    /// The block was discarded: it reads as zeroes, whatever the disk contains.
    Discarded,
    /// The block was torn: it cannot be read until it is written.
    Refused,
}

impl Value {
    pub(crate) fn to_tag(self) -> Tag {
        match self {
            Value::NotAdopted => NOTHING,
            Value::Known(tag) => tag,
            Value::Discarded => DISCARDED,
            Value::Refused => REFUSED,
        }
    }

    pub(crate) fn of_tag(tag: Tag) -> Value {
        match tag {
            NOTHING => Value::NotAdopted,
            DISCARDED => Value::Discarded,
            REFUSED => Value::Refused,
            tag => Value::Known(tag),
        }
    }
}

/// Compares tags in constant time.
pub(crate) fn same_tag(a: &Tag, b: &Tag) -> bool {
    a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// The levels of a map: nodes of each, and where they begin, counted in nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    levels: Vec<(u64, u64)>,
}

impl Geometry {
    pub fn new(blocks: u64) -> Geometry {
        let mut levels = Vec::new();
        let (mut nodes, mut start) = (blocks.div_ceil(FANOUT).max(1), 0);
        loop {
            levels.push((nodes, start));
            start += nodes;
            if nodes == 1 {
                return Geometry { levels };
            }
            nodes = nodes.div_ceil(FANOUT);
        }
    }

    /// Bytes of both places of all nodes.
    pub fn bytes(&self) -> u64 {
        let (nodes, start) = self.levels.last().copied().unwrap_or((0, 0));
        (start + nodes) * 2 * BLOCK_BYTES as u64
    }

    fn top(&self) -> u8 {
        self.levels.len() as u8 - 1
    }

    fn offset(&self, level: u8, index: u64, place: u8) -> u64 {
        let (_, start) = self.levels[usize::from(level)];
        ((start + index) * 2 + u64::from(place)) * BLOCK_BYTES as u64
    }
}

struct Node {
    bytes: Box<[u8; BLOCK_BYTES]>,
    /// The place that the last durable checkpoint needs.
    durable: Option<u8>,
    /// The place that a checkpoint under way has written.
    written: Option<u8>,
    /// The oldest record that it holds and no checkpoint does.
    dirty: Option<Lsn>,
    used: u64,
}

impl Node {
    fn value(&self, slot: u64) -> Tag {
        let at = slot as usize * 16;
        self.bytes[at..at + 16].try_into().expect("16 bytes")
    }

    fn set(&mut self, slot: u64, tag: &Tag) {
        let at = slot as usize * 16;
        self.bytes[at..at + 16].copy_from_slice(tag);
    }
}

struct Nodes {
    held: HashMap<(u8, u64), Node>,
    /// Dirty leaves, oldest record first.
    dirty: BTreeSet<(Lsn, u64)>,
    /// The root as of the last checkpoint, durable or in progress.
    root: Tag,
    clock: u64,
}

/// The map from blocks to the tags of their content.
pub struct Map {
    device: Arc<dyn Device>,
    base: u64,
    geometry: Geometry,
    key: VolumeKey,
    nodes: Mutex<Nodes>,
    nodes_max: usize,
}

impl Map {
    /// The map of `blocks` blocks whose nodes begin at `base`, as of the checkpoint with `root`. At most
    /// `nodes_max` clean nodes are in memory.
    pub fn new(
        device: Arc<dyn Device>,
        base: u64,
        blocks: u64,
        key: VolumeKey,
        root: Tag,
        nodes_max: usize,
    ) -> Map {
        let nodes = Nodes { held: HashMap::new(), dirty: BTreeSet::new(), root, clock: 0 };
        let nodes_max = nodes_max.max(16);
        Map { device, base, geometry: Geometry::new(blocks), key, nodes: Mutex::new(nodes), nodes_max }
    }

    /// The stable value of a block.
    pub fn get(&self, block: u64) -> Result<Value, VolumeError> {
        let nodes = &mut *self.nodes.lock();
        self.load(nodes, 0, block / FANOUT)?;
        let clock = nodes.clock;
        let leaf = nodes.held.get_mut(&(0, block / FANOUT)).expect("it was loaded");
        leaf.used = clock;
        Ok(Value::of_tag(leaf.value(block % FANOUT)))
    }

    /// The stable values of blocks.
    pub fn values(&self, blocks: Range<u64>) -> Result<Vec<Value>, VolumeError> {
        let mut values = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let mut at = blocks.start;
        while at < blocks.end {
            let index = at / FANOUT;
            let end = blocks.end.min((index + 1) * FANOUT);
            let nodes = &mut *self.nodes.lock();
            self.load(nodes, 0, index)?;
            let clock = nodes.clock;
            let leaf = nodes.held.get_mut(&(0, index)).expect("it was loaded");
            leaf.used = clock;
            values.extend((at..end).map(|block| Value::of_tag(leaf.value(block % FANOUT))));
            at = end;
        }
        Ok(values)
    }

    /// Sets the stable value of a block, from the record at `lsn`.
    pub fn set(&self, block: u64, value: Value, lsn: Lsn) -> Result<(), VolumeError> {
        let nodes = &mut *self.nodes.lock();
        let index = block / FANOUT;
        self.load(nodes, 0, index)?;
        let leaf = nodes.held.get_mut(&(0, index)).expect("it was loaded");
        leaf.set(block % FANOUT, &value.to_tag());
        match leaf.dirty {
            Some(oldest) if oldest <= lsn => {}
            other => {
                if let Some(oldest) = other {
                    nodes.dirty.remove(&(oldest, index));
                }
                leaf.dirty = Some(lsn);
                nodes.dirty.insert((lsn, index));
            }
        }
        Ok(())
    }

    /// Leaves that no checkpoint holds as they are.
    pub fn dirty_leaves(&self) -> usize {
        self.nodes.lock().dirty.len()
    }

    /// The oldest record that no checkpoint holds.
    pub fn oldest(&self) -> Option<Lsn> {
        self.nodes.lock().dirty.first().map(|(lsn, _)| *lsn)
    }

    /// Evicts nodes until the bound on memory holds.
    fn evict(&self, nodes: &mut Nodes) {
        let clean = |node: &Node| node.dirty.is_none() && node.written.is_none();
        let mut idle: Vec<(u64, (u8, u64))> =
            nodes.held.iter().filter(|(_, node)| clean(node)).map(|(at, node)| (node.used, *at)).collect();
        let surplus = idle.len() / 2;
        if surplus > 0 {
            idle.select_nth_unstable(surplus);
            for (_, at) in &idle[..surplus] {
                nodes.held.remove(at);
            }
        }
    }

    /// Has a node in memory, verified.
    fn load(&self, nodes: &mut Nodes, level: u8, index: u64) -> Result<(), VolumeError> {
        if nodes.held.contains_key(&(level, index)) {
            return Ok(());
        }
        if nodes.held.len() - nodes.dirty.len().min(nodes.held.len()) >= self.nodes_max {
            self.evict(nodes);
        }
        let tag = if level == self.geometry.top() {
            nodes.root
        } else {
            self.load(nodes, level + 1, index / FANOUT)?;
            let parent = &nodes.held[&(level + 1, index / FANOUT)];
            parent.value(index % FANOUT)
        };
        nodes.clock += 1;
        let mut node = Node {
            bytes: Box::new([0; BLOCK_BYTES]),
            durable: None,
            written: None,
            dirty: None,
            used: nodes.clock,
        };
        if tag != NOTHING {
            let mut both = [0; 2 * BLOCK_BYTES];
            let offset = self.base + self.geometry.offset(level, index, 0);
            io(&*self.device, "reading the block map on", self.device.read_at(offset, &mut both))?;
            let place = (0..2u8).find(|place| {
                let bytes = &both[usize::from(*place) * BLOCK_BYTES..][..BLOCK_BYTES];
                same_tag(&self.key.node(level, index, bytes), &tag)
            });
            let Some(place) = place else {
                return Err(VolumeError::BadMap { device: self.device.describe(), level, index });
            };
            node.bytes.copy_from_slice(&both[usize::from(place) * BLOCK_BYTES..][..BLOCK_BYTES]);
            node.durable = Some(place);
        }
        nodes.held.insert((level, index), node);
        Ok(())
    }

    /// Writes the leaves with values of records before `wanted`, and the nodes above them, into the slots
    /// that the last checkpoint does not need. Not durable yet: the caller flushes the device, makes a record
    /// with the root durable, and calls [`Map::settle`].
    pub fn write(&self, wanted: Lsn) -> Result<Tag, VolumeError> {
        let nodes = &mut *self.nodes.lock();
        let chosen: Vec<(Lsn, u64)> =
            nodes.dirty.iter().take_while(|(lsn, _)| *lsn < wanted).copied().collect();
        let mut level = 0;
        // Nodes to write, and what they are to say of nodes below.
        let mut below: BTreeMap<u64, Vec<(u64, Tag)>> = BTreeMap::new();
        for (lsn, index) in chosen {
            nodes.dirty.remove(&(lsn, index));
            nodes.held.get_mut(&(0, index)).expect("dirty leaves are held").dirty = None;
            below.insert(index, Vec::new());
        }
        if below.is_empty() {
            return Ok(nodes.root);
        }
        loop {
            let mut above: BTreeMap<u64, Vec<(u64, Tag)>> = BTreeMap::new();
            for (index, changes) in below {
                self.load(nodes, level, index)?;
                let node = nodes.held.get_mut(&(level, index)).expect("it was loaded");
                for (slot, tag) in changes {
                    node.set(slot, &tag);
                }
                let place = 1 - node.durable.unwrap_or(1);
                node.written = Some(place);
                let tag = self.key.node(level, index, &*node.bytes);
                let offset = self.base + self.geometry.offset(level, index, place);
                let written = self.device.write_at(offset, &*node.bytes);
                io(&*self.device, "writing the block map on", written)?;
                above.entry(index / FANOUT).or_default().push((index % FANOUT, tag));
            }
            if level == self.geometry.top() {
                let (_, tags) = above.pop_first().expect("the root was written");
                nodes.root = tags[0].1;
                return Ok(nodes.root);
            }
            level += 1;
            below = above;
        }
    }

    /// Notes that the checkpoint begun by [`Map::write`] is durable.
    pub fn settle(&self) {
        for node in self.nodes.lock().held.values_mut() {
            if let Some(place) = node.written.take() {
                node.durable = Some(place);
            }
        }
    }
}
