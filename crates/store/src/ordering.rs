//! The consistency server's records, in the same log and the same group commit as the blocks they order.

use crate::StoreError;
use crate::record::{Location, OrderingRecord, StoreRecord};
use crate::store::LogStore;
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, LogError};

/// A checkpoint, if there is one, and the records after it, oldest first.
pub type RecoveredOrdering = (Option<Vec<u8>>, Vec<Vec<u8>>);

impl LogStore {
    /// Appends an ordering record. Durable with the next commit.
    ///
    /// # Errors
    /// The log failed; when the disk is full, nothing was appended.
    pub fn append_ordering(&self, file_system: Digest, payload: &[u8]) -> Result<(), StoreError> {
        let tag = BodyTag::of(payload);
        let mut state = self.state();
        let sequence = state.file_system(&file_system).sequence + 1;
        let record = OrderingRecord { file_system, sequence };
        let location = StoreRecord::Ordering(record.clone()).append(self.log(), payload, tag)?;
        state.apply_ordering(&record, location);
        self.shared().note_growth(&state, location.position);
        Ok(())
    }

    /// Appends a checkpoint that replaces all earlier ordering records of the file system. Durable with the next
    /// commit; until then a crash brings the earlier records back.
    ///
    /// # Errors
    /// The log failed; when the disk is full, nothing was appended.
    pub fn ordering_checkpoint(&self, file_system: Digest, payload: &[u8]) -> Result<(), StoreError> {
        let tag = BodyTag::of(payload);
        let mut state = self.state();
        let sequence = state.file_system(&file_system).sequence + 1;
        let record = OrderingRecord { file_system, sequence };
        let location = StoreRecord::Checkpoint(record.clone()).append(self.log(), payload, tag)?;
        state.apply_checkpoint(&record, location);
        Ok(())
    }

    /// The last checkpoint of a file system, if it has one, and the ordering records after it, oldest first.
    ///
    /// # Errors
    /// [`StoreError::OrderingDamaged`]: a record is damaged, or may be among records that were lost.
    /// Continuing without it would roll the file system back.
    pub fn recover_ordering(&self, file_system: Digest) -> Result<RecoveredOrdering, StoreError> {
        let mut last = None;
        loop {
            let places = {
                let state = self.state();
                let Some(found) = state.file_systems.get(&file_system) else { return Ok((None, Vec::new())) };
                if let Some(why) = &found.damaged {
                    return Err(StoreError::OrderingDamaged { file_system, why: why.clone() });
                }
                (found.checkpoint, found.ordering.clone())
            };
            match self.read_ordering(file_system, &places.0, &places.1) {
                // The collector moved them meanwhile.
                Err(StoreError::Log(LogError::SegmentGone(_))) if last.as_ref() != Some(&places) => {
                    last = Some(places);
                }
                Err(StoreError::Log(error)) => {
                    return Err(StoreError::OrderingDamaged { file_system, why: error.to_string() });
                }
                other => return other,
            }
        }
    }

    fn read_ordering(
        &self,
        file_system: Digest,
        checkpoint: &Option<Location>,
        records: &[(u64, Location)],
    ) -> Result<RecoveredOrdering, StoreError> {
        let mut before = 0;
        let mut replaced = None;
        if let Some(location) = checkpoint {
            let record = self.log().read(location.position, location.length)?;
            match StoreRecord::decode_parts(record.kind, &record.head) {
                Ok(StoreRecord::Checkpoint(head)) if head.file_system == file_system => {
                    before = head.sequence
                }
                _ => {
                    let why = "another record is in the place of the checkpoint".into();
                    return Err(StoreError::OrderingDamaged { file_system, why });
                }
            }
            replaced = Some(record.body);
        }
        let mut payloads = Vec::with_capacity(records.len());
        for (sequence, location) in records {
            before += 1;
            if *sequence != before {
                let why = format!("record {before} is missing");
                return Err(StoreError::OrderingDamaged { file_system, why });
            }
            payloads.push(self.log().read(location.position, location.length)?.body);
        }
        Ok((replaced, payloads))
    }

    /// Every file system that has anything in this store.
    pub fn file_systems(&self) -> Vec<Digest> {
        self.state().file_systems.keys().copied().collect()
    }
}
