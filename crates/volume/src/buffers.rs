//! Writes that are not stable yet: dirty buffers, and the block values of records since the last flush. Pure.

use crate::layout::BLOCK_BYTES;
use crate::map::Value;
use holdfast_log::ring::Lsn;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A block's bytes, shared by readers, the hash pass and the disk, so that the bytes written are the bytes
/// that were hashed.
pub type Bytes = Arc<[u8; BLOCK_BYTES]>;

/// A block that the disk does not have yet.
struct Buffer {
    bytes: Bytes,
    /// Grows with every write to the block.
    version: u64,
    /// The first version since the newest record. It must be recorded even if it is overwritten by now.
    unlogged: Option<u64>,
    logged: Option<LoggedVersion>,
    /// A write changed only a part of the block. The log must have the whole block, so that a crash does not
    /// lose the other parts.
    is_part: bool,
}

/// The newest record of a buffer.
#[derive(Clone)]
struct LoggedVersion {
    version: u64,
    /// The content that the record describes. A flush may have acknowledged it, whatever is written later.
    bytes: Bytes,
    start: Lsn,
    end: Lsn,
}

/// A record that describes a block and may or may not be true of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Start of the record.
    pub start: Lsn,
    /// The value that the record gives the block.
    pub value: Value,
    /// The log has the content too, or needs none.
    pub is_whole: bool,
}

#[derive(Default)]
struct UnsettledRecords {
    /// Since the last stable one, oldest first.
    candidates: VecDeque<Candidate>,
    /// The last one whose content was written to the disk.
    written: Option<Lsn>,
}

impl UnsettledRecords {
    /// Whether the newest record leaves the content to the disk.
    fn lacks(&self) -> bool {
        self.candidates.back().is_some_and(|newest| !newest.is_whole)
    }

    /// Whether a record before `before` describes what the disk was not given, and no later record's content was written.
    fn is_due(&self, before: Lsn) -> bool {
        let mut unwritten = self.candidates.iter().filter(|candidate| Some(candidate.start) > self.written);
        unwritten.next().is_some_and(|first| first.start < before)
    }
}

/// What is known of a block without reading disk and map.
pub enum BufferContent {
    /// The block's bytes.
    Bytes(Bytes),
    /// The disk's block must have this value.
    Value(Value),
    /// No buffer and no record: the map has the block's value.
    Nothing,
}

/// Comparing two of these tells whether a block changed in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    version: u64,
    newest: Option<Lsn>,
    settled: u64,
}

/// A block to be hashed, or written.
pub struct Task {
    pub block: u64,
    pub version: u64,
    pub bytes: Bytes,
    /// The log is to have all of it.
    pub is_part: bool,
    pub start: Lsn,
    pub end: Lsn,
}

/// Written blocks that the disk may not have yet, and the records that describe them.
#[derive(Default)]
pub struct Buffers {
    dirty: BTreeMap<u64, Buffer>,
    pending: HashMap<u64, UnsettledRecords>,
    /// Blocks that are being written to the disk; one write of a block at a time.
    writing: BTreeSet<u64>,
    /// Dirty blocks that no record describes as they are.
    unlogged: BTreeSet<u64>,
    /// Number of blocks whose newest record does not contain the content, so that only the disk can.
    lacking: usize,
    /// A lower bound for the record that is being appended; its blocks are not in these tables yet.
    appending: Option<Lsn>,
    versions: u64,
    settled: u64,
}

impl Buffers {
    /// The number of dirty blocks.
    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Number of blocks with records that are not stable.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// What is known of a block without reading disk and map.
    pub fn content(&self, block: u64) -> BufferContent {
        if let Some(buffer) = self.dirty.get(&block) {
            return BufferContent::Bytes(buffer.bytes.clone());
        }
        match self.pending.get(&block).and_then(|pending| pending.candidates.back()) {
            Some(newest) => BufferContent::Value(newest.value),
            None => BufferContent::Nothing,
        }
    }

    /// The state of a block.
    pub fn stamp(&self, block: u64) -> Stamp {
        Stamp {
            version: self.dirty.get(&block).map_or(0, |buffer| buffer.version),
            newest: self
                .pending
                .get(&block)
                .and_then(|pending| pending.candidates.back())
                .map(|last| last.start),
            settled: self.settled,
        }
    }

    /// A program writes a block.
    pub fn put(&mut self, block: u64, bytes: Bytes) {
        self.put_version(block, bytes, false);
    }

    /// A program writes a part of a block; the rest is as it was.
    pub fn put_part(&mut self, block: u64, bytes: Bytes) {
        self.put_version(block, bytes, true);
    }

    /// A block is written by a record that describes it whole, and is in the log already.
    pub fn put_logged(&mut self, block: u64, bytes: Bytes, place: &Range<Lsn>, value: Value) {
        self.put_version(block, bytes.clone(), false);
        let task =
            Task { block, version: self.versions, bytes, is_part: false, start: place.start, end: place.end };
        self.logged(&task, place, Candidate { start: place.start, value, is_whole: true });
    }

    fn put_version(&mut self, block: u64, bytes: Bytes, is_part: bool) {
        self.versions += 1;
        let version = self.versions;
        let before = self.dirty.get(&block);
        let unlogged = before.and_then(|buffer| buffer.unlogged).or(Some(version));
        let logged = before.and_then(|buffer| buffer.logged.clone());
        self.dirty.insert(block, Buffer { bytes, version, unlogged, logged, is_part });
        self.unlogged.insert(block);
    }

    /// A record is about to be appended, not before `end`.
    pub fn begin_append(&mut self, end: Lsn) {
        self.appending = Some(end);
    }

    /// Marks that the buffers have what the record says.
    pub fn end_append(&mut self) {
        self.appending = None;
    }

    /// A record says that blocks are discarded.
    pub fn discard(&mut self, blocks: Range<u64>, start: Lsn) {
        let gone: Vec<u64> = self.dirty.range(blocks.clone()).map(|(block, _)| *block).collect();
        for block in gone {
            self.dirty.remove(&block);
            self.unlogged.remove(&block);
        }
        for block in blocks {
            let pending = self.pending.entry(block).or_default();
            self.lacking -= usize::from(pending.lacks());
            pending.candidates.push_back(Candidate { start, value: Value::Discarded, is_whole: true });
            pending.written = Some(start);
        }
    }

    /// The newest version of any block.
    pub fn newest(&self) -> u64 {
        self.versions
    }

    /// At most `limit` buffers without a record, in order of block, whose first unrecorded version is
    /// `newest` or earlier.
    pub fn unlogged(&self, limit: usize, newest: u64) -> Vec<Task> {
        let is_due = |(_, buffer): &(&u64, &Buffer)| buffer.unlogged.is_some_and(|first| first <= newest);
        let unlogged = self.unlogged.iter().filter_map(|block| Some((block, self.dirty.get(block)?)));
        let task = |(block, buffer): (&u64, &Buffer)| Task {
            block: *block,
            version: buffer.version,
            bytes: buffer.bytes.clone(),
            is_part: buffer.is_part,
            start: Lsn::default(),
            end: Lsn::default(),
        };
        unlogged.filter(is_due).take(limit).map(task).collect()
    }

    /// The most candidates that any of these blocks has.
    pub fn candidates_of(&self, blocks: impl Iterator<Item = u64>) -> usize {
        let counts = blocks.filter_map(|block| self.pending.get(&block)).map(|p| p.candidates.len());
        counts.max().unwrap_or(0)
    }

    /// A record describes a buffer as it was in `task`.
    pub fn logged(&mut self, task: &Task, place: &Range<Lsn>, candidate: Candidate) {
        if let Some(buffer) = self.dirty.get_mut(&task.block) {
            let (version, bytes) = (task.version, task.bytes.clone());
            buffer.logged = Some(LoggedVersion { version, bytes, start: place.start, end: place.end });
            buffer.unlogged = (buffer.version != task.version).then_some(task.version + 1);
            if buffer.unlogged.is_none() {
                self.unlogged.remove(&task.block);
            }
        }
        let pending = self.pending.entry(task.block).or_default();
        self.lacking -= usize::from(pending.lacks());
        pending.candidates.push_back(candidate);
        self.lacking += usize::from(pending.lacks());
    }

    /// Whether the disk still lacks what a record of the block before `before` describes, or something newer.
    fn is_due(&self, block: u64, before: Lsn) -> bool {
        self.pending.get(&block).is_some_and(|pending| pending.is_due(before))
    }

    /// Buffers with records before `before`, for writing to the disk once the log is stable up to their
    /// `end`. Each has the content of its newest record. They count as being written.
    pub fn begin_writing(&mut self, limit: usize, before: Lsn) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (block, buffer) in &self.dirty {
            let Some(logged) = &buffer.logged else { continue };
            if self.writing.contains(block) || !self.is_due(*block, before) {
                continue;
            }
            tasks.push(Task {
                block: *block,
                version: logged.version,
                bytes: logged.bytes.clone(),
                is_part: buffer.is_part,
                start: logged.start,
                end: logged.end,
            });
            if tasks.len() == limit {
                break;
            }
        }
        self.writing.extend(tasks.iter().map(|task| task.block));
        tasks
    }

    /// Whether a block is being written of which the disk still lacks what a record before `before`
    /// describes.
    pub fn is_writing(&self, before: Lsn) -> bool {
        self.writing.iter().any(|block| self.is_due(*block, before))
    }

    /// Whether the disk was not given everything that records before `before` describe.
    pub fn has_due(&self, before: Lsn) -> bool {
        self.pending.values().any(|pending| pending.is_due(before))
    }

    /// Ends writing these buffers. If `done`, the disk has them.
    pub fn end_writing(&mut self, tasks: &[Task], done: bool) {
        for task in tasks {
            self.writing.remove(&task.block);
            if !done {
                continue;
            }
            if let Some(pending) = self.pending.get_mut(&task.block) {
                pending.written = pending.written.max(Some(task.start));
            }
            if self.dirty.get(&task.block).is_some_and(|buffer| buffer.version == task.version) {
                self.dirty.remove(&task.block);
            }
        }
    }

    /// Blocks that were written since they were last stable, and by which record.
    pub fn written(&self) -> Vec<(u64, Lsn)> {
        self.pending.iter().filter_map(|(block, pending)| Some((*block, pending.written?))).collect()
    }

    /// Notes that a flush made `written` (from [`Buffers::written`] before it) stable. Returns the values for
    /// the map.
    ///
    /// The log can only say that all records before a position are stable. So records after the first one
    /// that is not stable remain candidates, here as in the log: recovery has no more of them to choose from
    /// than are counted here.
    pub fn settle(&mut self, written: &[(u64, Lsn)]) -> Vec<(u64, Value, Lsn)> {
        self.settled += 1;
        let mut stable = Vec::with_capacity(written.len());
        let until = self.first_after(written);
        for (block, lsn) in written {
            let Some(pending) = self.pending.get_mut(block) else { continue };
            self.lacking -= usize::from(pending.lacks());
            let mut last = None;
            let is_stable =
                |first: &&Candidate| first.start <= *lsn && until.is_none_or(|until| first.start < until);
            while let Some(candidate) = pending.candidates.front().filter(is_stable) {
                last = Some(*candidate);
                pending.candidates.pop_front();
            }
            if let Some(candidate) = last {
                stable.push((*block, candidate.value, candidate.start));
            }
            let is_left = pending.candidates.front().is_some_and(|first| first.start <= *lsn);
            if pending.written == Some(*lsn) && !is_left {
                pending.written = None;
            }
            self.lacking += usize::from(pending.lacks());
            if pending.candidates.is_empty() {
                self.pending.remove(block);
            }
        }
        stable
    }

    /// The first record that is newer than what the disk has of its block.
    fn first_after(&self, written: &[(u64, Lsn)]) -> Option<Lsn> {
        let written: HashMap<u64, Lsn> = written.iter().copied().collect();
        let newer = self.pending.iter().filter_map(|(block, pending)| {
            let given = written.get(block);
            pending.candidates.iter().find(|candidate| given.is_none_or(|given| candidate.start > *given))
        });
        newer.map(|candidate| candidate.start).chain(self.appending).min()
    }

    /// The oldest record of which it is unknown whether the disk has what it describes.
    pub fn oldest(&self) -> Option<Lsn> {
        let oldest = self.pending.values().filter_map(|pending| pending.candidates.front());
        oldest.map(|first| first.start).chain(self.appending).min()
    }

    /// Whether any newest record leaves the content to the disk.
    pub fn needs_disk(&self) -> bool {
        self.lacking > 0
    }
}
