//! Figures about a store.

use crate::StoreError;
use crate::state::Entry;
use crate::store::LogStore;

/// Figures about a store, as of now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// File systems with anything in the store.
    pub file_systems: u64,
    /// Blocks in the index's last checkpoint, over all file systems.
    pub blocks: u64,
    /// Their bytes in the log, heads included.
    pub block_bytes: u64,
    /// Blocks among them that nothing referred to at the last collection, retained for a while.
    pub deleted_blocks: u64,
    /// Bytes of those blocks in the log.
    pub deleted_bytes: u64,
    /// Changes of the index since its checkpoint.
    pub recent_entries: u64,
    /// Sealed segments.
    pub segments: u64,
    /// Bytes of all segments.
    pub log_bytes: u64,
    /// Free bytes on the medium; `None` if it does not say.
    pub free_bytes: Option<u64>,
    /// Group commits since the store was opened.
    pub syncs: u64,
    /// Blocks known to be damaged.
    pub damaged_blocks: u64,
    /// Records that a rebuild of the index could not read.
    pub lost_records: u64,
}

impl LogStore {
    /// Group commits since the store was opened.
    pub fn sync_count(&self) -> u64 {
        self.shared().log.sync_count()
    }

    /// Counts. Walks over the index.
    ///
    /// # Errors
    /// The index failed.
    pub fn statistics(&self) -> Result<Statistics, StoreError> {
        let shared = self.shared();
        let mut statistics = Statistics::default();
        let count = &mut |_, entry: Entry, dead_ns: Option<i64>| {
            let length = u64::from(entry.location.length);
            statistics.blocks += 1;
            statistics.block_bytes += length;
            if dead_ns.is_some() {
                statistics.deleted_blocks += 1;
                statistics.deleted_bytes += length;
            }
        };
        shared.index.visit_with_dead(count, &mut |_| {})?;
        let sealed = shared.log.sealed_segments();
        statistics.segments = sealed.len() as u64;
        statistics.log_bytes =
            sealed.iter().map(|(_, length)| length).sum::<u64>() + shared.log.active_bytes();
        statistics.free_bytes = shared.storage.free_bytes();
        statistics.syncs = shared.log.sync_count();
        let state = shared.state();
        statistics.file_systems = state.file_systems.len() as u64;
        statistics.recent_entries = state.blocks.len() as u64;
        statistics.damaged_blocks = state.damaged.len() as u64;
        statistics.lost_records = state.lost.len() as u64;
        Ok(statistics)
    }
}
