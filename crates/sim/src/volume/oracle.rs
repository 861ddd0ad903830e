//! What every block of a volume may have after a crash.

use super::{Block, original};
use holdfast_log::ring::Anchor;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A write of a block: between the events when it began and when it had returned.
#[derive(Clone)]
struct Version {
    content: Arc<Block>,
    began: usize,
    ended: Option<usize>,
}

/// A flush that has returned.
#[derive(Clone, Copy)]
struct Flush {
    began: usize,
    ended: usize,
    anchor: Anchor,
}

#[derive(Default)]
struct Known {
    blocks: BTreeMap<u64, Vec<Version>>,
    flushes: Vec<Flush>,
}

/// All that a program did, by the places of its notes among the devices' events. One writer of a block at a time.
#[derive(Default)]
pub struct Oracle(Mutex<Known>);

/// What may be there after a crash at one moment.
pub struct Allowed {
    blocks: BTreeMap<u64, Vec<Arc<Block>>>,
    /// Blocks with writes that no flush acknowledged.
    unacknowledged: BTreeSet<u64>,
    /// What an anchor may say that was renewed at every flush.
    pub anchor: Option<Anchor>,
}

impl Oracle {
    /// A write begins, at a note.
    pub fn begin(&self, block: u64, contents: Vec<Block>, mark: usize) {
        let mut known = self.0.lock();
        for (block, content) in (block..).zip(contents) {
            let version = Version { content: Arc::new(content), began: mark, ended: None };
            known.blocks.entry(block).or_default().push(version);
        }
    }

    /// It has returned, before a note.
    pub fn end(&self, blocks: Range<u64>, mark: usize) {
        let mut known = self.0.lock();
        for (_, versions) in known.blocks.range_mut(blocks) {
            let last = versions.last_mut().expect("it began");
            last.ended.get_or_insert(mark);
        }
    }

    /// A flush has returned that began at a note, before another.
    pub fn flushed(&self, began: usize, ended: usize, anchor: Anchor) {
        self.0.lock().flushes.push(Flush { began, ended, anchor });
    }

    /// What a block has now.
    pub fn now(&self, block: u64) -> Block {
        let known = self.0.lock();
        let newest = known.blocks.get(&block).and_then(|versions| versions.last());
        newest.map_or_else(|| original(block), |version| *version.content)
    }

    /// What may be there if of all events only the first `events` happened.
    pub fn after(&self, events: usize) -> Allowed {
        let known = self.0.lock();
        let flushes = known.flushes.iter().filter(|flush| flush.ended < events);
        let promised = flushes.clone().map(|flush| flush.began).max().unwrap_or(0);
        let anchor = flushes.max_by_key(|flush| flush.anchor.number).map(|flush| flush.anchor);
        let mut allowed = Allowed { blocks: BTreeMap::new(), unacknowledged: BTreeSet::new(), anchor };
        for (block, versions) in &known.blocks {
            let began = versions.iter().take_while(|version| version.began < events).count();
            let is_promised = |version: &Version| version.ended.is_some_and(|ended| ended < promised);
            let floor = versions[..began].iter().rposition(is_promised);
            let first = floor.map_or_else(|| Arc::new(original(*block)), |at| versions[at].content.clone());
            let later = floor.map_or(0, |at| at + 1)..began;
            if !later.is_empty() {
                allowed.unacknowledged.insert(*block);
            }
            let later = versions[later].iter().map(|version| version.content.clone());
            allowed.blocks.insert(*block, [first].into_iter().chain(later).collect());
        }
        allowed
    }
}

impl Allowed {
    /// Whether a block may have these bytes.
    pub fn allows(&self, block: u64, bytes: &[u8]) -> bool {
        match self.blocks.get(&block) {
            Some(contents) => contents.iter().any(|content| content[..] == *bytes),
            None => original(block)[..] == *bytes,
        }
    }

    /// Whether something was written to a block that was not acknowledged.
    pub fn is_unacknowledged(&self, block: u64) -> bool {
        self.unacknowledged.contains(&block)
    }
}
