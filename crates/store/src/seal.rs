//! A moment of the log that can be copied while the store continues.

use crate::StoreError;
use crate::store::LogStore;

impl LogStore {
    /// Seals the active segment and returns all sealed ones, with their lengths in bytes, oldest first.
    /// Together they are the store as it is now: everything appended before the call is in them.
    ///
    /// None of them ever changes, but the collector may remove some later. What is live in those has then
    /// been appended to later segments.
    ///
    /// # Errors
    /// The disk is full (nothing changed), or the medium failed.
    pub fn seal(&self) -> Result<Vec<(u32, u64)>, StoreError> {
        // No collection is half-way, with records moved to the segment after the sealed ones and their old
        // segments gone already.
        let _checkpointing = self.shared().checkpointing.lock();
        self.log().seal()?;
        Ok(self.log().sealed_segments())
    }
}
