//! Frees space by rewriting segments that are mostly garbage. Their live records are appended again and made
//! durable; only then is the old segment removed.
//!
//! Whatever makes a copy of a block dead must last as long as that copy's segment; otherwise a rebuild of the
//! index would bring the block back. So dropped copies are named by records, and those move too.

use crate::StoreError;
use crate::collect::{CollectReport, CollectStage};
use crate::record::{DroppedRecord, HoldsRecord, Location, RenewRecord, SignedRecord, StoreRecord};
use crate::state::{BlockCopy, Entry, Key, SignedKey};
use crate::store::Shared;
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, LogError, ScanDepth, ScanItem, SyncSite};
use std::collections::{BTreeMap, BTreeSet};

const RELOCATED: SyncSite = SyncSite("store: moved records before their segment is removed");
/// Segments whose live entries are gathered in one pass over the index; bounds memory.
const SEGMENTS_PER_PASS: usize = 32;
/// Segments rewritten before their space is given back; bounds the space needed meanwhile.
const SEGMENTS_PER_BATCH: usize = 4;
/// Number of small segments (restarts leave them) that are worth merging.
const SMALL_SEGMENTS: usize = 8;
/// A segment is small if it is less than this part of a full one.
pub(crate) const SMALL: u64 = 8;

pub(crate) struct Relocation<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) now_ns: i64,
    pub(crate) report: &'a mut CollectReport,
}

/// The live records of one segment, according to the index.
#[derive(Default)]
pub(crate) struct LiveRecords {
    pub(crate) blocks: Vec<(Key, Entry)>,
    pub(crate) signed: Vec<(SignedKey, u32)>,
}

impl Relocation<'_> {
    /// Rewrites segments numbered below `horizon` that are mostly garbage; the index's checkpoint covers
    /// everything in those. The emptiest go first, so that a full disk gains space before any is needed.
    pub(crate) fn run(
        &mut self,
        horizon: u32,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<(), StoreError> {
        let shared = self.shared;
        let mut sealed: BTreeMap<u32, u64> = shared.log.sealed_segments().into_iter().collect();
        sealed.retain(|number, _| *number < horizon);
        for group in self.candidates(&sealed)?.chunks(SEGMENTS_PER_PASS) {
            let mut live = self.gather(group)?;
            for batch in group.chunks(SEGMENTS_PER_BATCH) {
                let mut done = Vec::new();
                for &segment in batch {
                    let live = live.remove(&segment).unwrap_or_default();
                    match self.punch(segment, sealed[&segment], &live) {
                        Ok(Some(bytes)) => {
                            self.report.punched.push(segment);
                            self.report.punched_bytes += bytes;
                            watch(CollectStage::Punched(segment));
                            continue;
                        }
                        Ok(None) => {}
                        // The medium fails, so moving it would not help either.
                        Err(StoreError::Log(error @ (LogError::Damaged { .. } | LogError::Io { .. }))) => {
                            tracing::error!(segment, %error, "a segment cannot be collected");
                            self.report.damaged.push((segment, error.to_string()));
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                    match self.move_segment(segment, &done, live) {
                        Ok(()) => {
                            done.push(segment);
                            watch(CollectStage::Moved(segment));
                        }
                        // The segment stays; what was already moved out of it lives elsewhere.
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
                shared.log.remove_segments(&done)?;
                self.report.removed_bytes += done.iter().map(|segment| sealed[segment]).sum::<u64>();
                self.report.removed.extend(&done);
                watch(CollectStage::Removed);
            }
            // The next pass over the index must see the new places.
            shared.checkpoint_held()?;
        }
        Ok(())
    }

    /// Segments worth rewriting, the emptiest first.
    fn candidates(&self, sealed: &BTreeMap<u32, u64>) -> Result<Vec<u32>, StoreError> {
        let shared = self.shared;
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        shared.index.visit(&mut |_, entry| {
            *live.entry(entry.location.position.segment).or_default() += u64::from(entry.location.length);
            Ok(())
        })?;
        shared.index.visit_signed(&mut |key, length| {
            *live.entry(key.position().segment).or_default() += u64::from(length);
        })?;
        let is_small = |length: u64| length < u64::from(shared.config.segment_bytes) / SMALL;
        let merge = sealed.values().filter(|length| is_small(**length)).count() >= SMALL_SEGMENTS;
        let percent = u64::from(shared.config.collect_live_percent);
        let mut candidates: Vec<(u64, u32)> = Vec::new();
        for (&number, &length) in sealed {
            let live = live.get(&number).copied().unwrap_or(0);
            if live * 100 < length * percent || merge && is_small(length) {
                candidates.push((live, number));
            }
        }
        candidates.sort_unstable();
        Ok(candidates.into_iter().map(|(_, number)| number).collect())
    }

    /// The live entries of some segments.
    fn gather(&self, segments: &[u32]) -> Result<BTreeMap<u32, LiveRecords>, StoreError> {
        let mut live: BTreeMap<u32, LiveRecords> =
            segments.iter().map(|number| (*number, LiveRecords::default())).collect();
        self.shared.index.visit(&mut |key, entry| {
            if let Some(live) = live.get_mut(&entry.location.position.segment) {
                live.blocks.push((key, entry));
            }
            Ok(())
        })?;
        self.shared.index.visit_signed(&mut |key, length| {
            if let Some(live) = live.get_mut(&key.position().segment) {
                live.signed.push((key, length));
            }
        })?;
        // In the order they were stored, so that reading a file stays a sequential read.
        live.values_mut()
            .for_each(|live| live.blocks.sort_unstable_by_key(|(_, entry)| entry.location.position));
        Ok(live)
    }

    /// Appends again every record of a segment that still counts.
    fn move_segment(&mut self, segment: u32, done: &[u32], live: LiveRecords) -> Result<(), StoreError> {
        let shared = self.shared;
        let no_body = || BodyTag::of(&[]);
        let cutoff_ns = self.now_ns.saturating_sub(shared.gc_window_ns());
        let mut ordering: BTreeSet<Digest> = BTreeSet::new();
        let mut pins: BTreeSet<Digest> = BTreeSet::new();
        let mut holds: BTreeSet<Digest> = BTreeSet::new();
        for found in shared.log.scan_segment(segment, ScanDepth::Heads)? {
            let head = match found? {
                ScanItem::Record(head) => head,
                ScanItem::Damaged(damage) => return Err(LogError::from(damage).into()),
            };
            match StoreRecord::decode(&head)? {
                StoreRecord::Block(_) | StoreRecord::Signed(_) => {}
                StoreRecord::Ordering(record) | StoreRecord::Checkpoint(record) => {
                    ordering.insert(record.file_system);
                }
                StoreRecord::Pin(record) => {
                    pins.insert(record.file_system);
                }
                StoreRecord::Holds(record) => {
                    holds.insert(record.file_system);
                }
                StoreRecord::Renew(record) => {
                    if record.at_ns > cutoff_ns {
                        self.move_renewal(record)?;
                    }
                }
                StoreRecord::Dropped(record) => self.move_drops(record, segment, done)?,
            }
        }
        let mut moved = Vec::with_capacity(live.blocks.len());
        let result = self.move_blocks(&live.blocks, &mut moved);
        self.report.moved += moved.len() as u64;
        // The old copies are dead even if their segment outlives the new ones.
        shared.log_dropped(&mut shared.state(), moved)?;
        result?;
        for (key, length) in &live.signed {
            let record = shared.log.read(key.position(), *length)?;
            let location = Location { position: key.position(), length: *length };
            let StoreRecord::Signed(head) =
                StoreRecord::decode_at(record.position, record.kind, &record.head)?
            else {
                return Err(wrong_record(location));
            };
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
        for file_system in holds {
            let state = shared.state();
            let holds = state.holds.get(&file_system).cloned().unwrap_or_default();
            let record = StoreRecord::Holds(HoldsRecord { file_system, holds });
            record.append(&shared.log, &[], no_body())?;
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

    /// Appends live blocks again, and notes in `moved` which copies that left behind.
    fn move_blocks(&self, blocks: &[(Key, Entry)], moved: &mut Vec<BlockCopy>) -> Result<(), StoreError> {
        let shared = self.shared;
        for (key, entry) in blocks {
            let record = shared.log.read(entry.location.position, entry.location.length)?;
            let mut head = match StoreRecord::decode_at(record.position, record.kind, &record.head)? {
                StoreRecord::Block(head) if head.address == key.address() => head,
                _ => return Err(wrong_record(entry.location)),
            };
            let tag = BodyTag::of(&record.body);
            let mut state = shared.state();
            let now = state.get(&shared.index, key)?;
            // Dropped, healed or moved since the index was read.
            let Some(now) = now.filter(|now| now.location == entry.location) else { continue };
            head.replaces = true;
            head.age_ns = now.age_ns;
            let head = StoreRecord::Block(head);
            let location = head.append(&shared.log, &record.body, tag)?;
            let StoreRecord::Block(head) = head else { unreachable!("made above") };
            state.apply_moved(&head, location);
            moved.push((*key, entry.location.position));
        }
        Ok(())
    }

    /// A renewal that is still young must outlive its segment: a rebuilt index needs the age.
    fn move_renewal(&self, record: RenewRecord) -> Result<(), StoreError> {
        let mut state = self.shared.state();
        StoreRecord::Renew(record.clone()).append(&self.shared.log, &[], BodyTag::of(&[]))?;
        state.apply_renew(&self.shared.index, &record)
    }

    /// Moves the records of dropped copies whose bytes are still in some segment, so that these stay dropped.
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

    /// Moves all ordering records together and in order, so that a checkpoint always comes before the records
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
            let head = StoreRecord::decode_at(record.position, record.kind, &record.head)?;
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

fn wrong_record(location: Location) -> StoreError {
    StoreError::Log(LogError::Damaged {
        file: format!("segment {}", location.position.segment),
        offset: location.position.offset.into(),
        why: "the index names a record of another kind".into(),
    })
}
