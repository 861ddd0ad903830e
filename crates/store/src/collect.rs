//! Mark and sweep.
//!
//! **Mark** walks from the caller's roots, the holds, the pins and everything younger than the window,
//! reading headers only. Any read error ends the collection, and nothing is dropped. **Drop** happens in one
//! step under the state lock, after everything that was stored, pinned or relied on since the mark began is
//! marked too. It is one round of records in the log, which counts only when its last record is there. Then
//! `relocate` moves live records to free space, or `punch` frees it in place.
//!
//! This prevents mistakes of other stores, which collected live blocks after read errors, or while a client
//! got the answer "I have it".

use crate::StoreError;
use crate::mark::Marks;
use crate::record::{COPIES_PER_RECORD, DroppedRecord, StoreRecord};
use crate::relocate::Relocation;
use crate::retain::Retention;
use crate::state::{Entry, Key, TouchedBlocks};
use crate::store::{LogStore, Shared};
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::BodyTag;
use std::collections::{BTreeSet, HashSet};

/// The stages of a collection. Everything up to a stage is done when it is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectStage {
    /// Marking; so many blocks are marked so far.
    Marking(u64),
    /// The mark is complete; blocks stored from here on are marked as they come.
    Marked,
    /// Garbage is out of the index.
    Dropped,
    /// This segment's live records are appended elsewhere.
    Moved(u32),
    /// These moved records are durable; their segments go next.
    Relocated,
    /// The segments were removed.
    Removed,
    /// The dead blocks of this segment are freed in place; the rest did not move.
    Punched(u32),
}

/// The result of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Blocks found reachable, pinned or young.
    pub marked: u64,
    /// Blocks dropped.
    pub dropped: u64,
    /// Bytes of the dropped blocks in the log.
    pub dropped_bytes: u64,
    /// Blocks that nothing refers to, retained for a while.
    pub kept: u64,
    /// Bytes of the retained blocks in the log.
    pub kept_bytes: u64,
    /// Live records rewritten.
    pub moved: u64,
    /// Bytes of the segments removed.
    pub removed_bytes: u64,
    /// The segments removed.
    pub removed: Vec<u32>,
    /// Segments whose dead blocks were freed in place.
    pub punched: Vec<u32>,
    /// Bytes freed by holes.
    pub punched_bytes: u64,
    /// Segments that were not removed because something in them could not be read, and why.
    pub damaged: Vec<(u32, String)>,
    /// Blocks that reachable blocks refer to but that were never stored (at most 1,024 are listed).
    pub missing: Vec<Digest>,
}

impl CollectReport {
    /// Bytes freed by removal of segments and by holes.
    pub fn freed_bytes(&self) -> u64 {
        self.removed_bytes + self.punched_bytes
    }
}

impl LogStore {
    /// Drops every block of `file_system` that is not reachable from `roots`, a hold or a pin, and that no
    /// client has stored or got the answer "I have it" for within a window. Then frees the space of segments
    /// that are mostly garbage.
    ///
    /// `roots` must name every head that a client may still build on: the present one, and those it replaced
    /// within the window.
    ///
    /// # Errors
    /// A read error, a damaged header, lost records, no roots, or a root that nobody stored: nothing was
    /// dropped. A failure while moving: only garbage was dropped, and no segment was removed whose live
    /// records are not durable elsewhere.
    pub fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        now_ns: i64,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<CollectReport, StoreError> {
        self.collect_with(file_system, roots, &BTreeSet::new(), now_ns, watch)
    }

    /// As [`LogStore::collect`], but retains no deleted blocks of the devices in `short`: these are near
    /// their limits, and deleted blocks are charged as long as they exist.
    ///
    /// # Errors
    /// As [`LogStore::collect`].
    pub fn collect_with(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<CollectReport, StoreError> {
        if roots.is_empty() {
            return Err(StoreError::Refused("a collection needs roots: without them all is garbage".into()));
        }
        let shared = self.shared();
        // No other thread writes the index's checkpoint meanwhile, and collections do not overlap.
        let _checkpointing = shared.checkpointing.lock();
        let number = match shared.state().number(&file_system) {
            Some(number) => number,
            None => return Ok(CollectReport::default()),
        };
        shared.state().touched = Some(TouchedBlocks::new(number));
        let report = CollectReport::default();
        let result = Collection { shared, file_system, number, now_ns, short, report }.run(roots, watch);
        shared.state().touched = None;
        result
    }

    /// Frees the space of segments that are mostly garbage, and drops nothing.
    ///
    /// # Errors
    /// As of the second half of [`LogStore::collect`].
    pub fn compact(&self, now_ns: i64) -> Result<CollectReport, StoreError> {
        let shared = self.shared();
        let _checkpointing = shared.checkpointing.lock();
        let mut report = CollectReport::default();
        let horizon = shared.log.end().segment;
        shared.checkpoint_held()?;
        Relocation { shared, now_ns, report: &mut report }.run(horizon, &mut |_| {})?;
        Ok(report)
    }
}

struct Collection<'a> {
    shared: &'a Shared,
    file_system: Digest,
    number: u32,
    now_ns: i64,
    short: &'a BTreeSet<DeviceId>,
    report: CollectReport,
}

impl Collection<'_> {
    fn run(
        mut self,
        roots: &[Digest],
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<CollectReport, StoreError> {
        let shared = self.shared;
        shared.checkpoint_held()?;
        let cutoff_ns = self.now_ns.saturating_sub(shared.gc_window_ns());
        let mut marks = Marks::new(shared, self.file_system, self.number);
        let mut start: Vec<Digest> = roots.to_vec();
        {
            let mut state = shared.state();
            let pins = &mut state.file_system(&self.file_system).pins;
            pins.expire(self.now_ns);
            start.extend(pins.all().flat_map(|(_, _, addresses)| addresses.iter().copied()));
            let holds = state.holds.get(&self.file_system);
            start.extend(holds.into_iter().flatten().flat_map(|hold| hold.roots.iter().copied()));
        }
        let number = self.number;
        shared.index.visit(&mut |key, entry| {
            if key.file_system() == number && entry.age_ns > cutoff_ns && !entry.leaf {
                start.push(key.address());
            }
            Ok(())
        })?;
        marks.mark(start, self.now_ns, watch)?;
        if let Some(root) = roots.iter().find(|root| marks.is_missing(root)) {
            return Err(StoreError::Refused(format!("root {root} is not in the store; nothing was dropped")));
        }
        // A complete tree was found, so lost records were no part of it.
        shared.state().file_system(&self.file_system).suspect = None;
        watch(CollectStage::Marked);
        let retention = Retention { shared, number, now_ns: self.now_ns, cutoff_ns, short: self.short };
        let sorted = retention.sort(&mut marks)?;
        (self.report.kept, self.report.kept_bytes) = (sorted.kept, sorted.kept_bytes);
        self.drop_garbage(&mut marks, sorted.goes, watch)?;
        self.report.marked = marks.count();
        self.report.missing = marks.missing();
        drop(marks);
        watch(CollectStage::Dropped);
        // The index on disk will decide what is live in a segment. So only segments that were complete before
        // its checkpoint may be considered.
        let horizon = shared.log.end().segment;
        shared.checkpoint_held()?;
        let mut relocation = Relocation { shared, now_ns: self.now_ns, report: &mut self.report };
        relocation.run(horizon, watch)?;
        Ok(self.report)
    }

    /// Marks what was touched meanwhile and drops the rest, in one step under the lock, so that no client
    /// gets the answer "I have it" for a block that is about to be dropped, or whose children are.
    fn drop_garbage(
        &mut self,
        marks: &mut Marks,
        garbage: Vec<(Key, Entry)>,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<(), StoreError> {
        let shared = self.shared;
        loop {
            let mut state = shared.state();
            let touched = state.touched.as_mut().expect("set while a collection runs");
            if touched.overflown {
                let why = "too much was stored while the collection ran; nothing was dropped, try again";
                return Err(StoreError::Refused(why.into()));
            }
            let fresh = std::mem::take(&mut touched.fresh);
            if !fresh.is_empty() {
                drop(state);
                marks.mark(fresh, self.now_ns, watch)?;
                continue;
            }
            // Nothing can be touched from here on: the lock is held.
            let state = &mut *state;
            let touched = state.touched.as_ref().expect("set while a collection runs");
            let copies: Vec<(u64, Digest)> = garbage
                .iter()
                .filter(|(key, entry)| {
                    !touched.addresses.contains(&key.address()) && !marks.contains(entry.location.position)
                })
                .map(|(key, entry)| (entry.location.position.to_u64(), key.address()))
                .collect();
            let dropped: HashSet<u64> = copies.iter().map(|(position, _)| *position).collect();
            let gone =
                garbage.iter().filter(|(_, entry)| dropped.contains(&entry.location.position.to_u64()));
            self.report.dropped_bytes = gone.map(|(_, entry)| u64::from(entry.location.length)).sum();
            self.report.dropped = copies.len() as u64;
            // A round that fails half-way uses its number up, so that its records never count.
            state.round += 1;
            let round = state.round;
            let file_system = self.file_system;
            let parts = copies.len().div_ceil(COPIES_PER_RECORD);
            let mut records = Vec::with_capacity(parts);
            for (part, copies) in copies.chunks(COPIES_PER_RECORD).enumerate() {
                let last = part + 1 == parts;
                let record = DroppedRecord { file_system, round, last, copies: copies.to_vec() };
                let record = StoreRecord::Dropped(record);
                record.append(&shared.log, &[], BodyTag::of(&[]))?;
                records.push(record);
            }
            for record in records {
                let StoreRecord::Dropped(record) = record else { unreachable!("made above") };
                state.apply_dropped(&shared.index, &record)?;
            }
            return Ok(());
        }
    }
}
