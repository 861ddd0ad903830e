//! Batch edits: each level is cut anew from the first edited node until a new cut coincides with an old one.
//! The changed nodes of a level are the batch of edits of the level above.

use super::node::{Item, Node, NodePosition, Piece, build, check_key};
use super::{LEVEL_MAX, MapConfig, MapRoot, MapTop, MerkleMap, Value};
use crate::error::{ContentError, Misuse};
use crate::{Block, BlockSink, BlockSource, Reference};
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// Edits of one level: items by (last) key; `None` removes.
type Edits = BTreeMap<Vec<u8>, Option<Item>>;

impl MerkleMap {
    /// The map with `edits` applied: `Some` puts, `None` removes (it is no error if there is nothing).
    /// Touches O(edits x depth) nodes; the result depends on the contents alone. New nodes are put into
    /// `sink`, children first, and are not requested from `source`.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed; [`Misuse`]: a key or value is over its limit.
    pub fn apply(
        &self,
        source: &dyn BlockSource,
        sink: &mut dyn BlockSink,
        root: &MapRoot,
        edits: BTreeMap<Vec<u8>, Option<Value>>,
    ) -> Result<MapRoot, ContentError> {
        for (key, value) in &edits {
            check_key(key).map_err(Misuse::from)?;
            value.as_ref().map_or(Ok(()), Value::check).map_err(Misuse::from)?;
        }
        let keys: Vec<&[u8]> = edits.keys().map(Vec::as_slice).collect();
        self.warm(source, root, &keys)?;
        let edits = edits.into_iter().map(|(key, value)| (key, value.map(Item::Value))).collect();

        let mut rewrite = Rewrite::new(&self.config, source, *root);
        let new_root = rewrite.run(edits)?;
        for block in rewrite.made {
            sink.put(block);
        }
        Ok(new_root)
    }
}

/// One batch under way.
struct Rewrite<'a> {
    config: &'a MapConfig,
    source: &'a dyn BlockSource,
    old: MapRoot,
    /// Old nodes by level and last key, so that walking along a level fetches and checks each node once.
    nodes: HashMap<(u8, Vec<u8>, Digest), Rc<Node>>,
    /// New nodes, children first.
    made: Vec<Block>,
}

impl<'a> Rewrite<'a> {
    fn new(config: &'a MapConfig, source: &'a dyn BlockSource, old: MapRoot) -> Self {
        Rewrite { config, source, old, nodes: HashMap::new(), made: Vec::new() }
    }

    fn run(&mut self, mut edits: Edits) -> Result<MapRoot, ContentError> {
        let mut level = 0u8;
        // Below the old top, a level's unchanged nodes are known to the level above.
        while let Some(top) = self.old.0.filter(|top| level <= top.level) {
            if edits.is_empty() {
                return Ok(self.old);
            }
            let mut changed = self.rewrite_old_level(level, edits)?;
            if level == top.level {
                // The old top has no parent, so its own item is added to the changed ones.
                if changed.is_empty() {
                    return Ok(self.old);
                }
                let old_top = self.node(&self.old.position().expect("there is a top"))?;
                changed
                    .entry(old_top.last_key().to_vec())
                    .or_insert(Some(Item::Child { reference: top.reference, entries: top.entries }));
            }
            edits = changed;
            level += 1;
        }
        let mut items = present(edits);
        if level == 0 {
            items = self.cut(0, items);
            level = 1;
        }
        // `items` are all the nodes of level `level - 1`.
        while items.len() > 1 {
            items = self.cut(level, items);
            level += 1;
        }
        let Some((last_key, Item::Child { reference, entries })) = items.pop() else {
            return Ok(MapRoot(None));
        };
        self.collapse(last_key, MapTop { reference, level: level - 1, entries })
    }

    /// Rewrites the nodes of a level of the old tree that `edits` touch; returns the edits of the level above.
    fn rewrite_old_level(&mut self, level: u8, edits: Edits) -> Result<Edits, ContentError> {
        let mut above = Edits::new();
        let mut edits = edits.into_iter().peekable();
        while let Some((key, _)) = edits.peek() {
            let mut node = self.locate(level, |node| node.first_at_least(key))?;
            let mut removed: BTreeMap<Vec<u8>, Reference> = BTreeMap::new();
            let mut cutter = Cutter::new(self.config, level);
            loop {
                removed.insert(node.last_key().to_vec(), node.block().reference());
                for index in 0..node.len() {
                    let old_key = node.key(index);
                    while let Some((key, item)) = edits.next_if(|(key, _)| key.as_slice() < old_key) {
                        cutter.push_if(key, item);
                    }
                    match edits.next_if(|(key, _)| key.as_slice() == old_key) {
                        Some((key, item)) => cutter.push_if(key, item),
                        None => cutter.push(Piece::Kept(node.clone(), index)),
                    }
                }
                if node.is_last() {
                    edits.by_ref().for_each(|(key, item)| cutter.push_if(key, item));
                    break;
                }
                if cutter.at_cut() {
                    break;
                }
                let last_key = node.last_key().to_vec();
                node = self.locate(level, |node| node.first_after(&last_key))?;
            }
            for (last_key, item, block) in cutter.finish() {
                // An unchanged node needs neither storing nor telling.
                if removed.remove(&last_key) != Some(block.reference()) {
                    above.insert(last_key, Some(item));
                    self.made.push(block);
                }
            }
            for last_key in removed.into_keys() {
                above.entry(last_key).or_insert(None);
            }
        }
        Ok(above)
    }

    /// Cuts a level that the old tree does not have.
    fn cut(&mut self, level: u8, items: Vec<(Vec<u8>, Item)>) -> Vec<(Vec<u8>, Item)> {
        assert!(level <= LEVEL_MAX, "more entries than 2^60 do not exist");
        let mut cutter = Cutter::new(self.config, level);
        items.into_iter().for_each(|(key, item)| cutter.push(Piece::New(key, item)));
        let nodes = cutter.finish();
        nodes
            .into_iter()
            .map(|(key, item, block)| {
                self.made.push(block);
                (key, item)
            })
            .collect()
    }

    /// Descends from a top with a single child to the lowest level that has a single node.
    fn collapse(&mut self, last_key: Vec<u8>, mut top: MapTop) -> Result<MapRoot, ContentError> {
        while top.level > 0 {
            let position = NodePosition {
                reference: top.reference,
                level: top.level,
                entries: top.entries,
                lower: None,
                upper: Some(last_key.clone()),
                last: true,
            };
            let new = self.made.iter().rposition(|block| block.reference() == top.reference);
            let node = match new {
                Some(index) => Node::parse(self.config, self.made[index].clone().into(), &position)
                    .expect("a node made here is sound")
                    .into(),
                None => self.node(&position)?,
            };
            if node.len() > 1 {
                break;
            }
            if let Some(index) = new {
                self.made.remove(index);
            }
            let (reference, entries) = node.child_reference(0);
            top = MapTop { reference, level: top.level - 1, entries };
        }
        Ok(MapRoot(Some(top)))
    }

    /// Descends to a node of `level`; `choose` says which slot to go through. Past the end is the last.
    fn locate(&mut self, level: u8, choose: impl Fn(&Node) -> usize) -> Result<Rc<Node>, ContentError> {
        let mut position = self.old.position().expect("an old level belongs to an old tree");
        loop {
            let node = self.node(&position)?;
            if node.level() == level {
                return Ok(node);
            }
            position = node.child(choose(&node).min(node.len() - 1));
        }
    }

    fn node(&mut self, position: &NodePosition) -> Result<Rc<Node>, ContentError> {
        let key = (position.level, position.upper.clone().unwrap_or_default(), position.reference.address);
        if let Some(node) = self.nodes.get(&key) {
            return Ok(node.clone());
        }
        let node = Rc::new(Node::fetch(self.config, self.source, position)?);
        self.nodes.insert(key, node.clone());
        Ok(node)
    }
}

fn present(edits: Edits) -> Vec<(Vec<u8>, Item)> {
    edits.into_iter().filter_map(|(key, item)| Some((key, item?))).collect()
}

/// Cuts a run of items into nodes.
struct Cutter<'a> {
    config: &'a MapConfig,
    level: u8,
    pieces: Vec<Piece>,
    nodes: Vec<(Vec<u8>, Item, Block)>,
}

impl<'a> Cutter<'a> {
    fn new(config: &'a MapConfig, level: u8) -> Self {
        Cutter { config, level, pieces: Vec::new(), nodes: Vec::new() }
    }

    fn push_if(&mut self, key: Vec<u8>, item: Option<Item>) {
        if let Some(item) = item {
            self.push(Piece::New(key, item));
        }
    }

    fn push(&mut self, piece: Piece) {
        let count = self.pieces.len() as u32 + 1;
        let ends = self.config.shape.ends(&self.config.key, self.level, count, piece.key());
        self.pieces.push(piece);
        if ends {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        let block = build(&self.config.key, self.level, &pieces);
        let entries = pieces.iter().map(Piece::entries).sum();
        let last_key = pieces.last().expect("a node has entries").key().to_vec();
        self.nodes.push((last_key, Item::Child { reference: block.reference(), entries }, block));
    }

    /// Whether the next item begins a node.
    fn at_cut(&self) -> bool {
        self.pieces.is_empty()
    }

    fn finish(mut self) -> Vec<(Vec<u8>, Item, Block)> {
        if !self.pieces.is_empty() {
            self.cut();
        }
        self.nodes
    }
}
