//! The consistency server's records, in the same log and the same group commit as the blocks they order.

use crate::StoreError;
use crate::record::{OrderingRecord, StoreRecord};
use crate::store::BlockStore;
use holdfast_crypto::Digest;
use holdfast_log::BodyTag;

/// A checkpoint, if there is one, and the records after it, oldest first.
pub type RecoveredOrdering = (Option<Vec<u8>>, Vec<Vec<u8>>);

impl BlockStore {
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
    /// [`StoreError::OrderingDamaged`] when any of it is damaged, or may be among records that were lost: going
    /// on without it would roll the file system back.
    pub fn recover_ordering(&self, file_system: Digest) -> Result<RecoveredOrdering, StoreError> {
        // No collection moves them meanwhile.
        let _still = self.shared().checkpointing.lock();
        let (checkpoint, records) = {
            let state = self.state();
            let Some(found) = state.file_systems.get(&file_system) else { return Ok((None, Vec::new())) };
            if let Some(why) = &found.damaged {
                return Err(StoreError::OrderingDamaged { file_system, why: why.clone() });
            }
            (found.checkpoint, found.ordering.clone())
        };
        let read = |location: crate::record::Location| {
            let record = self.log().read(location.position, location.length);
            record.map_err(|error| StoreError::OrderingDamaged { file_system, why: error.to_string() })
        };
        let mut before = None;
        let checkpoint = match checkpoint {
            None => None,
            Some(location) => {
                let record = read(location)?;
                if let Ok(StoreRecord::Checkpoint(head)) =
                    StoreRecord::decode_parts(record.kind, &record.head)
                {
                    before = Some(head.sequence);
                }
                Some(record.body)
            }
        };
        let mut payloads = Vec::with_capacity(records.len());
        for (sequence, location) in records {
            let expected = before.unwrap_or(0) + 1;
            if sequence != expected {
                let why = format!("record {expected} is missing");
                return Err(StoreError::OrderingDamaged { file_system, why });
            }
            before = Some(sequence);
            payloads.push(read(location)?.body);
        }
        Ok((checkpoint, payloads))
    }

    /// Every file system that has anything in this store.
    pub fn file_systems(&self) -> Vec<Digest> {
        self.state().file_systems.keys().copied().collect()
    }
}
