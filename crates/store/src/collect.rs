//! Mark and sweep.
//!
//! **Mark** walks from the caller's roots, the pins and everything younger than the window, by headers only. Any
//! read error ends the collection: nothing is dropped. **Drop** happens in one step under the state lock, after
//! whatever was stored, pinned or relied on since the mark began has been marked too; it is one round of records
//! in the log, which counts only when its last record is there. **Move** rewrites segments that are mostly
//! garbage: live records are appended again, made durable, and only then is the old segment removed.
//!
//! The attack it answers is our own: other stores collected live blocks after read errors, or while a client was
//! told "I have it".

use crate::StoreError;
use crate::mark::Marks;
use crate::record::{COPIES_PER_RECORD, DroppedRecord, Location, RenewRecord, SignedRecord, StoreRecord};
use crate::state::{Entry, Key, SignedKey, Touched};
use crate::store::{BlockStore, Shared};
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, LogError, ScanDepth, Scanned, SyncSite};
use std::collections::{BTreeMap, BTreeSet, HashSet};

const RELOCATED: SyncSite = SyncSite("store: moved records before their segment is removed");
/// Segments rewritten before their space is given back; bounds memory and the space needed meanwhile.
const SEGMENTS_PER_BATCH: usize = 4;
/// So many small segments (restarts leave them) are worth merging.
const SMALL_SEGMENTS: usize = 8;

/// Where a collection is. Everything up to a stage is done when it is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectStage {
    /// So many blocks are marked.
    Marking(u64),
    /// The mark is complete; blocks stored from here on are marked as they come.
    Marked,
    /// Garbage is out of the index.
    Dropped,
    /// This segment's live records are appended elsewhere.
    Moved(u32),
    /// These moved records are durable; their segments go next.
    Relocated,
    /// The segments are gone.
    Removed,
}

/// What a collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Blocks found reachable, pinned or young.
    pub marked: u64,
    /// Blocks dropped.
    pub dropped: u64,
    /// Their bytes in the log.
    pub dropped_bytes: u64,
    /// Live records rewritten.
    pub moved: u64,
    /// Bytes of the segments removed.
    pub removed_bytes: u64,
    /// The segments removed.
    pub removed: Vec<u32>,
    /// Segments kept because something in them could not be read, and why.
    pub damaged: Vec<(u32, String)>,
    /// Blocks that reachable blocks refer to but nobody stored (at most 1,024 are named).
    pub missing: Vec<Digest>,
}

impl BlockStore {
    /// Drops every block of `file_system` that is not reachable from `roots` or a pin and that nobody stored or
    /// was told "I have it" of for a window, then gives back the space of segments that are mostly garbage.
    ///
    /// `roots` must name every head that a client may still build on: the present one, and those it replaced
    /// within the window.
    ///
    /// # Errors
    /// A read error, a damaged header, lost records, no roots, or a root that nobody stored: nothing was dropped.
    /// A failure while moving: what was
    /// dropped was garbage, and no segment whose live records are not durable elsewhere is removed.
    pub fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        now_ns: i64,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<CollectReport, StoreError> {
        if roots.is_empty() {
            return Err(StoreError::Refused("a collection needs roots: without them all is garbage".into()));
        }
        let shared = self.shared();
        // The index's checkpoint stands still but for ours, and collections do not overlap.
        let _checkpointing = shared.checkpointing.lock();
        let number = match shared.state().number(&file_system) {
            Some(number) => number,
            None => return Ok(CollectReport::default()),
        };
        shared.state().touched = Some(Touched::new(number));
        let result = Collection { shared, file_system, number, now_ns, report: CollectReport::default() }
            .run(roots, watch);
        shared.state().touched = None;
        result
    }
}

struct Collection<'a> {
    shared: &'a Shared,
    file_system: Digest,
    number: u32,
    now_ns: i64,
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
        // A whole tree was found, so whatever was lost was no part of it.
        shared.state().file_system(&self.file_system).suspect = None;
        watch(CollectStage::Marked);
        let garbage = self.garbage(&marks, cutoff_ns)?;
        self.drop_garbage(&mut marks, garbage, watch)?;
        self.report.marked = marks.count();
        self.report.missing = marks.missing();
        drop(marks);
        watch(CollectStage::Dropped);
        shared.checkpoint_held()?;
        self.move_segments(watch)?;
        Ok(self.report)
    }

    /// Entries that are neither marked nor young.
    fn garbage(&self, marks: &Marks, cutoff_ns: i64) -> Result<Vec<(Key, Entry)>, StoreError> {
        let mut garbage = Vec::new();
        self.shared.index.visit(&mut |key, entry| {
            let ours = key.file_system() == self.number;
            if ours && entry.age_ns <= cutoff_ns && !marks.contains(entry.location.position) {
                garbage.push((key, entry));
            }
            Ok(())
        })?;
        Ok(garbage)
    }

    /// Marks what was touched meanwhile and drops the rest, in one step under the lock, so that nobody is told
    /// "I have it" of a block that is about to go, nor of one whose children are gone already.
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
            // A round that fails half-way keeps its number, so that its records never count.
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

    /// Rewrites segments that are mostly garbage, a few at a time.
    fn move_segments(&mut self, watch: &mut dyn FnMut(CollectStage)) -> Result<(), StoreError> {
        let shared = self.shared;
        let sealed: BTreeMap<u32, u64> = shared.log.sealed_segments().into_iter().collect();
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        shared.index.visit(&mut |_, entry| {
            *live.entry(entry.location.position.segment).or_default() += u64::from(entry.location.length);
            Ok(())
        })?;
        shared.index.visit_signed(&mut |key, length| {
            *live.entry(key.position().segment).or_default() += u64::from(length);
        })?;
        let nominal = u64::from(shared.config.segment_bytes);
        let small = sealed.values().filter(|length| **length < nominal / 8).count() >= SMALL_SEGMENTS;
        let candidates: Vec<u32> = sealed
            .iter()
            .filter(|(number, length)| {
                let live = live.get(number).copied().unwrap_or(0);
                let percent = u64::from(shared.config.collect_live_percent);
                live * 100 < **length * percent || small && **length < nominal / 8
            })
            .map(|(number, _)| *number)
            .collect();
        for batch in candidates.chunks(SEGMENTS_PER_BATCH) {
            let batch: BTreeSet<u32> = batch.iter().copied().collect();
            let mut done = Vec::new();
            let mut blocks: BTreeMap<u32, Vec<(Key, Entry)>> = BTreeMap::new();
            shared.index.visit(&mut |key, entry| {
                if batch.contains(&entry.location.position.segment) {
                    blocks.entry(entry.location.position.segment).or_default().push((key, entry));
                }
                Ok(())
            })?;
            let mut signed: BTreeMap<u32, Vec<(SignedKey, u32)>> = BTreeMap::new();
            shared.index.visit_signed(&mut |key, length| {
                if batch.contains(&key.position().segment) {
                    signed.entry(key.position().segment).or_default().push((key, length));
                }
            })?;
            for &segment in &batch {
                let mut blocks = blocks.remove(&segment).unwrap_or_default();
                blocks.sort_unstable_by_key(|(_, entry)| entry.location.position);
                let signed = signed.remove(&segment).unwrap_or_default();
                match self.move_segment(segment, &done, &blocks, &signed) {
                    Ok(()) => {
                        done.push(segment);
                        watch(CollectStage::Moved(segment));
                    }
                    // It stays as it is: what was appended of it already is just another copy.
                    Err(StoreError::Log(error @ (LogError::Damaged { .. } | LogError::Io { .. }))) => {
                        tracing::error!(segment, %error, "a segment cannot be collected");
                        self.report.damaged.push((segment, error.to_string()));
                    }
                    Err(error) => return Err(error),
                }
                shared.relieve_held()?;
            }
            shared.log.sync_at(RELOCATED)?;
            watch(CollectStage::Relocated);
            self.report.removed_bytes += done.iter().map(|segment| sealed[segment]).sum::<u64>();
            shared.log.remove_segments(&done)?;
            self.report.removed.extend(&done);
            watch(CollectStage::Removed);
            // The next batch reads the index: let it see the new places.
            shared.checkpoint_held()?;
        }
        Ok(())
    }

    /// Appends again every record of a segment that still counts.
    fn move_segment(
        &mut self,
        segment: u32,
        done: &[u32],
        blocks: &[(Key, Entry)],
        signed: &[(SignedKey, u32)],
    ) -> Result<(), StoreError> {
        let shared = self.shared;
        let no_body = || BodyTag::of(&[]);
        let cutoff_ns = self.now_ns.saturating_sub(shared.gc_window_ns());
        let mut ordering: BTreeSet<Digest> = BTreeSet::new();
        let mut pins: BTreeSet<Digest> = BTreeSet::new();
        for found in shared.log.scan_segment(segment, ScanDepth::Heads)? {
            let head = match found? {
                Scanned::Record(head) => head,
                Scanned::Damaged(damage) => return Err(LogError::from(damage).into()),
            };
            match StoreRecord::decode(&head)? {
                StoreRecord::Block(_) | StoreRecord::Signed(_) => {}
                StoreRecord::Ordering(record) | StoreRecord::Checkpoint(record) => {
                    ordering.insert(record.file_system);
                }
                StoreRecord::Pin(record) => {
                    pins.insert(record.file_system);
                }
                StoreRecord::Renew(record) => {
                    if record.at_ns > cutoff_ns {
                        self.move_renewal(record)?;
                    }
                }
                StoreRecord::Dropped(record) => self.move_drops(record, segment, done)?,
            }
        }
        let mut moved = Vec::with_capacity(blocks.len());
        for (key, entry) in blocks {
            let record = shared.log.read(entry.location.position, entry.location.length)?;
            let StoreRecord::Block(mut head) = decode(&record)? else {
                return Err(wrong_record(entry.location));
            };
            let mut state = shared.state();
            let now = state.get(&shared.index, key)?;
            // Dropped, healed or moved since the index was read.
            let Some(now) = now.filter(|now| now.location == entry.location) else { continue };
            head.replaces = true;
            head.age_ns = now.age_ns;
            let tag = BodyTag::of(&record.body);
            let head = StoreRecord::Block(head);
            let location = head.append(&shared.log, &record.body, tag)?;
            let StoreRecord::Block(head) = head else { unreachable!("made above") };
            state.apply_moved(&head, location);
            moved.push((*key, entry.location.position));
        }
        self.report.moved += moved.len() as u64;
        // The old copies are dead even if their segment outlives the new ones.
        shared.log_dropped(&mut shared.state(), moved)?;
        for (key, length) in signed {
            let record = shared.log.read(key.position(), *length)?;
            let location = Location { position: key.position(), length: *length };
            let StoreRecord::Signed(head) = decode(&record)? else { return Err(wrong_record(location)) };
            let head = SignedRecord { moved_from: key.position().to_u64(), ..head };
            let tag = BodyTag::of(&record.body);
            let mut state = shared.state();
            let location = StoreRecord::Signed(head.clone()).append(&shared.log, &record.body, tag)?;
            state.apply_signed(&head, location);
            self.report.moved += 1;
        }
        for file_system in ordering {
            self.move_ordering(file_system, segment)?;
        }
        for file_system in pins {
            let mut state = shared.state();
            let held = &mut state.file_system(&file_system).pins;
            held.expire(self.now_ns);
            for record in held.records(file_system) {
                StoreRecord::Pin(record).append(&shared.log, &[], no_body())?;
            }
        }
        Ok(())
    }

    /// A renewal that is still young outlives its segment: a rebuilt index must know the age.
    fn move_renewal(&self, record: RenewRecord) -> Result<(), StoreError> {
        let mut state = self.shared.state();
        StoreRecord::Renew(record.clone()).append(&self.shared.log, &[], BodyTag::of(&[]))?;
        state.apply_renew(&self.shared.index, &record)
    }

    /// What was dropped stays dropped while its bytes are still in some segment.
    fn move_drops(&self, record: DroppedRecord, from: u32, done: &[u32]) -> Result<(), StoreError> {
        let sealed = self.shared.log.sealed_segments();
        let known: BTreeSet<u32> = sealed.into_iter().map(|(number, _)| number).collect();
        let newest = known.last().copied().unwrap_or(0);
        let mut copies = record.copies;
        copies.retain(|(position, _)| {
            let segment = holdfast_log::Position::from_u64(*position).segment;
            (known.contains(&segment) || segment > newest) && segment != from && !done.contains(&segment)
        });
        if copies.is_empty() {
            return Ok(());
        }
        let mut state = self.shared.state();
        state.round += 1;
        let record = DroppedRecord { round: state.round, last: true, copies, ..record };
        StoreRecord::Dropped(record.clone()).append(&self.shared.log, &[], BodyTag::of(&[]))?;
        state.apply_dropped(&self.shared.index, &record)
    }

    /// Ordering records move all together and in order, so that a checkpoint always lies before the records
    /// that follow it.
    fn move_ordering(&self, file_system: Digest, segment: u32) -> Result<(), StoreError> {
        let shared = self.shared;
        let mut state = shared.state();
        let found = state.file_system(&file_system);
        let places: Vec<Location> = found
            .checkpoint
            .into_iter()
            .chain(found.ordering.iter().map(|(_, location)| *location))
            .collect();
        if !places.iter().any(|location| location.position.segment == segment) {
            return Ok(());
        }
        for old in places {
            let record = shared.log.read(old.position, old.length)?;
            let tag = BodyTag::of(&record.body);
            let head = decode(&record)?;
            let location = head.append(&shared.log, &record.body, tag)?;
            match &head {
                StoreRecord::Checkpoint(head) => state.apply_checkpoint(head, location),
                StoreRecord::Ordering(head) => state.apply_ordering(head, location),
                _ => return Err(wrong_record(old)),
            }
        }
        Ok(())
    }
}

fn decode(record: &holdfast_log::Record) -> Result<StoreRecord, StoreError> {
    StoreRecord::decode_parts(record.kind, &record.head).map_err(|why| {
        StoreError::Log(LogError::Damaged {
            file: format!("segment {}", record.position.segment),
            offset: record.position.offset.into(),
            why,
        })
    })
}

fn wrong_record(location: Location) -> StoreError {
    StoreError::Log(LogError::Damaged {
        file: format!("segment {}", location.position.segment),
        offset: location.position.offset.into(),
        why: "the index names a record of another kind".into(),
    })
}
