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

/// Writes that are there all or none: blocks with the place of the write among all writes of the block.
#[derive(Clone)]
struct Group {
    members: Vec<(u64, usize)>,
    began: usize,
    ended: Option<usize>,
}

#[derive(Default)]
struct BlockKnowledge {
    blocks: BTreeMap<u64, Vec<Version>>,
    groups: Vec<Group>,
    flushes: Vec<Flush>,
}

/// All that a program did, by the places of its notes among the devices' events. One writer of a block at a time.
#[derive(Default)]
pub struct Oracle(Mutex<BlockKnowledge>);

/// A content that a block may have, and after how many of its writes.
struct Candidate {
    writes: usize,
    content: Arc<Block>,
}

/// What may be there after a crash at one moment.
pub struct Allowed {
    blocks: BTreeMap<u64, Vec<Candidate>>,
    /// What was written together, in the order in which it began.
    groups: Vec<Group>,
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

    /// Writes of blocks begin that are to be there all or none.
    pub fn begin_together(&self, contents: &BTreeMap<u64, Block>, mark: usize) {
        let mut known = self.0.lock();
        let mut members = Vec::new();
        for (block, content) in contents {
            let versions = known.blocks.entry(*block).or_default();
            members.push((*block, versions.len()));
            versions.push(Version { content: Arc::new(*content), began: mark, ended: None });
        }
        known.groups.push(Group { members, began: mark, ended: None });
    }

    /// What began together with the write of `block` has returned, before a note.
    pub fn end_together(&self, block: u64, mark: usize) {
        let mut known = self.0.lock();
        let is_it = |group: &&mut Group| {
            group.ended.is_none() && group.members.iter().any(|(member, _)| *member == block)
        };
        let group = known.groups.iter_mut().rev().find(is_it).expect("it began");
        group.ended = Some(mark);
        for (block, at) in group.members.clone() {
            known.blocks.get_mut(&block).expect("written")[at].ended = Some(mark);
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
        let groups = known.groups.iter().filter(|group| group.began < events).cloned().collect();
        let mut allowed =
            Allowed { blocks: BTreeMap::new(), groups, unacknowledged: BTreeSet::new(), anchor };
        for (block, versions) in &known.blocks {
            let began = versions.iter().take_while(|version| version.began < events).count();
            let is_promised = |version: &Version| version.ended.is_some_and(|ended| ended < promised);
            let floor = versions[..began].iter().rposition(is_promised);
            let first = floor.map_or_else(|| Arc::new(original(*block)), |at| versions[at].content.clone());
            let least = floor.map_or(0, |at| at + 1);
            if least < began {
                allowed.unacknowledged.insert(*block);
            }
            let later = versions[least..began].iter().map(|version| version.content.clone());
            let contents = [first].into_iter().chain(later);
            let candidates = (least..).zip(contents).map(|(writes, content)| Candidate { writes, content });
            allowed.blocks.insert(*block, candidates.collect());
        }
        allowed
    }
}

impl Allowed {
    /// Whether a block may have these bytes.
    pub fn allows(&self, block: u64, bytes: &[u8]) -> bool {
        match self.blocks.get(&block) {
            Some(candidates) => candidates.iter().any(|candidate| candidate.content[..] == *bytes),
            None => original(block)[..] == *bytes,
        }
    }

    /// Whether what was written together is there all or none, and nothing of it without what came before: `bytes_of`
    /// says what a block has, if it is served.
    ///
    /// # Errors
    /// What is there in part, or too early.
    pub fn together<'s>(&self, bytes_of: impl Fn(u64) -> Option<&'s [u8]>) -> Result<(), String> {
        // The end of the first call that is not there.
        let mut missing: Option<usize> = None;
        for group in &self.groups {
            let (mut may_lack, mut may_have) = (true, true);
            for (block, at) in &group.members {
                // A block that is refused says nothing; several writes may have left the same bytes.
                let Some(bytes) = bytes_of(*block) else { continue };
                let fits = |candidate: &&Candidate| candidate.content[..] == *bytes;
                let writes = |candidate: &Candidate| candidate.writes;
                let found: Vec<usize> = self.blocks[block].iter().filter(fits).map(writes).collect();
                may_lack &= found.iter().any(|writes| writes <= at);
                may_have &= found.iter().any(|writes| writes > at);
            }
            let blocks: Vec<u64> = group.members.iter().map(|(block, _)| *block).collect();
            match (may_lack, may_have) {
                (false, false) => {
                    return Err(format!("blocks {blocks:?} were written together, and are there in part"));
                }
                (false, true) if missing.is_some_and(|ended| ended < group.began) => {
                    return Err(format!(
                        "blocks {blocks:?} are there, and what was written together before is not"
                    ));
                }
                (true, false) => {
                    let ended = group.ended.unwrap_or(usize::MAX);
                    missing = Some(missing.map_or(ended, |earlier| earlier.min(ended)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether something was written to a block that was not acknowledged.
    pub fn is_unacknowledged(&self, block: u64) -> bool {
        self.unacknowledged.contains(&block)
    }
}
