//! Frees space in place: on media that support it, holes replace the dead blocks of a segment, and nothing is
//! read or written again.
//!
//! Dead are the blocks that would not be moved if the segment were rewritten. All other records stay,
//! including those that say what was dropped, so that nothing comes back if an older copy of the segment
//! reappears.

use crate::StoreError;
use crate::record::StoreRecord;
use crate::relocate::{LiveRecords, Relocation, SMALL};
use holdfast_log::{LogError, SEGMENT_HEADER_BYTES, ScanDepth, ScanItem};
use std::collections::BTreeSet;
use std::ops::Range;

/// A run of dead records is worth a hole if it is at least this part of a full segment: each hole costs some requests.
const HOLE: u64 = 64;

impl Relocation<'_> {
    /// Punches holes into a segment of `taken` bytes, if the medium supports it and that frees enough.
    /// Returns the number of bytes freed; `None`: the segment must be rewritten instead.
    pub(crate) fn punch(
        &self,
        segment: u32,
        taken: u64,
        live: &LiveRecords,
    ) -> Result<Option<u64>, StoreError> {
        let shared = self.shared;
        if !shared.log.can_punch_holes(segment) {
            return Ok(None);
        }
        let blocks = live.blocks.iter().map(|(_, entry)| entry.location.position.offset);
        let signed = live.signed.iter().map(|(key, _)| key.position().offset);
        let living: BTreeSet<u32> = blocks.chain(signed).collect();
        let mut runs = Runs::new();
        for found in shared.log.scan_segment(segment, ScanDepth::Heads)? {
            let head = match found? {
                ScanItem::Record(head) => head,
                ScanItem::Damaged(damage) => return Err(LogError::from(damage).into()),
            };
            let record = StoreRecord::decode(&head)?;
            let is_block = matches!(record, StoreRecord::Block(_) | StoreRecord::Signed(_));
            let is_kept = !is_block || living.contains(&head.position.offset);
            runs.follow(head.position.offset.into(), head.stored_length().into(), is_kept);
        }
        let segment_bytes = u64::from(shared.config.segment_bytes);
        let (holes, freed) = runs.holes(segment_bytes / HOLE);
        let left = taken.saturating_sub(freed);
        let is_full_enough = live_bytes(live) * 100 >= left * u64::from(shared.config.collect_live_percent);
        if freed == 0 || !is_full_enough || left < segment_bytes / SMALL {
            return Ok(None);
        }
        let is_done = shared.log.punch_holes(segment, &holes)?;
        Ok(is_done.then_some(freed))
    }
}

fn live_bytes(live: &LiveRecords) -> u64 {
    let blocks: u64 = live.blocks.iter().map(|(_, entry)| u64::from(entry.location.length)).sum();
    blocks + live.signed.iter().map(|(_, length)| u64::from(*length)).sum::<u64>()
}

/// The stretches between the live records of a segment.
struct Runs {
    /// Stretches, and how many bytes of dead records are in each; the rest of it was punched earlier.
    found: Vec<(Range<u64>, u64)>,
    /// End of the last live record; then end of the last record.
    kept_end: u64,
    end: u64,
    /// Bytes of dead records since.
    dead: u64,
}

impl Runs {
    fn new() -> Runs {
        Runs { found: Vec::new(), kept_end: SEGMENT_HEADER_BYTES, end: SEGMENT_HEADER_BYTES, dead: 0 }
    }

    /// The next record, in order.
    fn follow(&mut self, offset: u64, length: u64, is_kept: bool) {
        self.end = offset + length;
        if !is_kept {
            self.dead += length;
            return;
        }
        self.finish(offset);
        self.kept_end = self.end;
    }

    fn finish(&mut self, end: u64) {
        let dead = std::mem::take(&mut self.dead);
        self.found.extend((dead > 0).then_some((self.kept_end..end, dead)));
    }

    /// The holes with at least `bytes_min` dead bytes, and the sum of those.
    fn holes(mut self, bytes_min: u64) -> (Vec<Range<u64>>, u64) {
        self.finish(self.end);
        self.found.retain(|(_, dead)| *dead >= bytes_min);
        let freed = self.found.iter().map(|(_, dead)| dead).sum();
        (self.found.into_iter().map(|(run, _)| run).collect(), freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(records: &[(u64, u64, bool)], bytes_min: u64) -> (Vec<Range<u64>>, u64) {
        let mut runs = Runs::new();
        records.iter().for_each(|(offset, length, is_kept)| runs.follow(*offset, *length, *is_kept));
        runs.holes(bytes_min)
    }

    /// Proves: runs of dead records become holes if they are long enough, at both ends too. A run includes
    /// what was punched earlier, which does not count as freed again.
    #[test]
    fn dead_runs_become_holes() {
        let records = [
            (64, 36, false),
            (100, 20, true),
            (120, 30, false),
            (150, 50, false),
            (200, 10, true),
            (210, 5, false),
        ];
        assert_eq!(holes(&records, 1), (vec![64..100, 120..200, 210..215], 121));
        assert_eq!(holes(&records, 36), (vec![64..100, 120..200], 116));
        assert_eq!(holes(&records, 81), (vec![], 0));
        assert_eq!(holes(&[(64, 36, true), (200, 10, true)], 1), (vec![], 0));
        assert_eq!(
            holes(&[(64, 36, true), (100, 10, false), (300, 9, true)], 1),
            (vec![Range { start: 100, end: 300 }], 10)
        );
        assert_eq!(holes(&[], 1), (vec![], 0));
    }
}
