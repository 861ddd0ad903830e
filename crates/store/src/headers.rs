//! Questions about blocks that are answered without reading their bodies.

use crate::StoreError;
use crate::record::StoreRecord;
use crate::state::{Entry, Key};
use crate::store::{LogStore, Shared};
use holdfast_crypto::Digest;
use holdfast_log::LogError;

impl LogStore {
    /// The references of a block, from its header alone; `None` if this file system does not have it.
    ///
    /// # Errors
    /// A read error, or a damaged header.
    pub fn references(
        &self,
        file_system: Digest,
        address: Digest,
    ) -> Result<Option<Vec<Digest>>, StoreError> {
        let shared = self.shared();
        let Some(number) = shared.state().number(&file_system) else { return Ok(None) };
        let key = Key::new(number, &address);
        loop {
            let Some(entry) = shared.look_up(&key)? else { return Ok(None) };
            match shared.references(&file_system, &address, &entry) {
                // Moved by the collector between the two looks.
                Err(StoreError::Log(LogError::SegmentGone(_))) if shared.look_up(&key)? != Some(entry) => {}
                other => return other.map(Some),
            }
        }
    }

    /// Which of `addresses` this file system has. They may be collected at any time.
    ///
    /// # Errors
    /// The index failed.
    pub fn contains_all(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, StoreError> {
        let shared = self.shared();
        let Some(number) = shared.state().number(&file_system) else {
            return Ok(vec![false; addresses.len()]);
        };
        let here = |address: &Digest| {
            let key = Key::new(number, address);
            let damaged = shared.state().damaged.contains(&key);
            Ok(!damaged && shared.look_up(&key)?.is_some())
        };
        addresses.iter().map(here).collect()
    }
}

impl Shared {
    /// The references of the block of an entry.
    pub(crate) fn references(
        &self,
        file_system: &Digest,
        address: &Digest,
        entry: &Entry,
    ) -> Result<Vec<Digest>, StoreError> {
        if entry.leaf {
            return Ok(Vec::new());
        }
        let position = entry.location.position;
        match StoreRecord::decode(&self.log.read_head(position)?)? {
            StoreRecord::Block(block) if block.address == *address && block.file_system == *file_system => {
                Ok(block.references)
            }
            _ => Err(StoreError::Log(LogError::Damaged {
                file: format!("segment {}", position.segment),
                offset: position.offset.into(),
                why: format!("another record is in the place of block {address}"),
            })),
        }
    }
}
