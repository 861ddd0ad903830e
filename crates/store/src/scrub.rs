//! Scrub: reads every byte of every segment and reports what has changed.

use crate::StoreError;
use crate::record::StoreRecord;
use crate::state::Key;
use crate::store::LogStore;
use holdfast_crypto::Digest;
use holdfast_log::{Position, ScanDepth, ScanItem};

/// Most bad records described one by one.
const BAD_MAX: usize = 10_000;

/// A record that has changed since it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// The segment file.
    pub file: String,
    /// Byte offset in the segment.
    pub offset: u64,
    /// The reason.
    pub why: String,
    /// The file system and address of the block, when its head can be read or the index knows it.
    pub block: Option<(Digest, Digest)>,
    /// Whether the store still serves it: damaged garbage does no harm.
    pub live: bool,
}

/// The result of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Good records.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Bad records, at most 10,000 of them.
    pub bad: Vec<BadRecord>,
    /// Number of bad records.
    pub bad_count: u64,
    /// Blocks that the index knows but whose record is not where it says.
    pub index_errors: u64,
    /// Devices that were charged for something else than what they stored; put right.
    pub charge_errors: u64,
}

impl ScrubReport {
    /// Whether everything is as it was written.
    pub fn is_clean(&self) -> bool {
        self.bad_count == 0 && self.index_errors == 0 && self.charge_errors == 0
    }
}

impl LogStore {
    /// Reads everything, bypassing the page cache where possible. Calls `progress` with the bytes read so far
    /// and in all. Blocks found damaged count as absent from then on, so that clients who have them send them
    /// again.
    ///
    /// # Errors
    /// The index or the log failed altogether; bad records are in the report, not errors.
    pub fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubReport, StoreError> {
        let shared = self.shared();
        shared.checkpoint()?;
        {
            // Nothing may be half-way into the index.
            let _checkpointing = shared.checkpointing.lock();
            shared.index.check()?;
        }
        let mut report = ScrubReport::default();
        let total: u64 = shared.log.sealed_segments().iter().map(|(_, length)| length).sum::<u64>()
            + u64::from(shared.log.end().offset);
        shared.log.drop_cache();
        let mut scan = shared.log.scan(Position::START, ScanDepth::Bodies)?;
        let mut reported = 0;
        loop {
            let at = scan.position();
            let Some(found) = scan.next() else { break };
            let bad = match found {
                Ok(ScanItem::Record(head)) => {
                    report.records += 1;
                    report.bytes += u64::from(head.stored_length());
                    match StoreRecord::decode(&head) {
                        Ok(_) => None,
                        Err(error) => Some((head.position, 0, error.to_string(), None)),
                    }
                }
                Ok(ScanItem::Damaged(damage)) => {
                    report.bytes += damage.length;
                    let block = match damage.record.as_ref().map(StoreRecord::decode) {
                        Some(Ok(StoreRecord::Block(block))) => Some((block.file_system, block.address)),
                        _ => None,
                    };
                    Some((damage.position, damage.length, damage.why, block))
                }
                Err(error) => Some((at, 0, error.to_string(), None)),
            };
            if let Some((position, length, why, block)) = bad {
                self.note_bad(&mut report, position, length, why, block)?;
            }
            if report.bytes - reported >= 8 << 20 {
                reported = report.bytes;
                progress(report.bytes, total);
            }
        }
        report.index_errors = self.check_index()?;
        report.charge_errors = self.recount_charges()?;
        progress(total, total);
        Ok(report)
    }

    fn note_bad(
        &self,
        report: &mut ScrubReport,
        position: Position,
        length: u64,
        why: String,
        block: Option<(Digest, Digest)>,
    ) -> Result<(), StoreError> {
        let shared = self.shared();
        let mut blocks: Vec<(Digest, Digest)> = block.into_iter().collect();
        if blocks.is_empty() {
            // The head is gone, but the index may know which blocks were in this range.
            let end = u64::from(position.offset) + length.max(1);
            let mut keys = Vec::new();
            shared.index.visit(&mut |key, entry| {
                let at = entry.location.position;
                if at.segment == position.segment && at >= position && u64::from(at.offset) < end {
                    keys.push(key);
                }
                Ok(())
            })?;
            let state = shared.state();
            for key in keys {
                let named = state.file_systems.iter().find(|(_, found)| found.number == key.file_system());
                blocks.extend(named.map(|(file_system, _)| (*file_system, key.address())));
            }
        }
        let mut state = shared.state();
        let mut live = Vec::new();
        for (file_system, address) in &blocks {
            let Some(number) = state.number(file_system) else { continue };
            let key = Key::new(number, address);
            let entry = state.get(&shared.index, &key)?;
            let end = u64::from(position.offset) + length.max(1);
            let here = entry.is_some_and(|entry| {
                let at = entry.location.position;
                at.segment == position.segment && at >= position && u64::from(at.offset) < end
            });
            if here {
                state.note_damaged(key);
            }
            live.push(here);
        }
        let file = format!("segment-{:010}.log", position.segment);
        let offset = position.offset.into();
        let mut found: Vec<_> = blocks.into_iter().map(Some).zip(live).collect();
        if found.is_empty() {
            found.push((None, false));
        }
        for (block, live) in found {
            report.bad_count += 1;
            if report.bad.len() < BAD_MAX {
                report.bad.push(BadRecord { file: file.clone(), offset, why: why.clone(), block, live });
            }
        }
        Ok(())
    }

    /// Counts index entries whose record is not where they say.
    fn check_index(&self) -> Result<u64, StoreError> {
        let shared = self.shared();
        let mut wrong = Vec::new();
        shared.index.visit(&mut |key, entry| {
            let good = shared.log.read_head(entry.location.position).is_ok_and(|head| {
                matches!(StoreRecord::decode(&head), Ok(StoreRecord::Block(block)) if block.address == key.address())
            });
            if !good && wrong.len() < BAD_MAX {
                wrong.push((key, entry));
            }
            Ok(())
        })?;
        // The collector may have moved some since the index was read.
        let mut state = shared.state();
        let mut count = 0;
        for (key, entry) in wrong {
            if state.get(&shared.index, &key)? == Some(entry) {
                state.note_damaged(key);
                count += 1;
            }
        }
        Ok(count)
    }
}
