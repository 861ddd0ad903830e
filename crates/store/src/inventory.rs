//! Lists what a store has, for copying it to another one.

use crate::StoreError;
use crate::state::SignedKey;
use crate::store::LogStore;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::Position;
use std::collections::BinaryHeap;

/// A block as the index knows it. In order of position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct IndexedBlock {
    /// The block's position in the log, which no other block has.
    pub position: Position,
    /// The block's address.
    pub address: Digest,
    /// The device that is charged for the block.
    pub owner: DeviceId,
    /// When a device last relied on the block, in nanoseconds since 1970.
    pub age_ns: i64,
    /// Its bytes in the log.
    pub bytes: u32,
}

/// Blocks that a reader holds open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// The holder of the pins.
    pub holder: u64,
    /// The end of the pin, in nanoseconds since 1970.
    pub until_ns: i64,
    /// The pinned blocks.
    pub addresses: Vec<Digest>,
}

impl LogStore {
    /// The blocks of a file system in the order of the log, so that they are read fast and blocks stored
    /// together follow each other: the first `max` after a position. Brings the index up to date first, and
    /// reads all of it.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn inventory(
        &self,
        file_system: Digest,
        after: Position,
        max: usize,
    ) -> Result<Vec<IndexedBlock>, StoreError> {
        self.checkpoint()?;
        let Some(number) = self.state().number(&file_system) else { return Ok(Vec::new()) };
        let mut found: BinaryHeap<IndexedBlock> = BinaryHeap::new();
        self.index().visit(&mut |key, entry| {
            let position = entry.location.position;
            if key.file_system() == number && position > after {
                let (address, owner, age_ns) = (key.address(), entry.owner, entry.age_ns);
                found.push(IndexedBlock { position, address, owner, age_ns, bytes: entry.location.length });
                if found.len() > max {
                    found.pop();
                }
            }
            Ok(())
        })?;
        Ok(found.into_sorted_vec())
    }

    /// Pins of a file system, those that have run out among them.
    pub fn pinned(&self, file_system: Digest) -> Vec<Pin> {
        let state = self.state();
        let pins = state.file_systems.get(&file_system).map(|found| &found.pins);
        let pinned = |(holder, until_ns, addresses): (u64, i64, &Vec<Digest>)| Pin {
            holder,
            until_ns,
            addresses: addresses.clone(),
        };
        pins.into_iter().flat_map(|pins| pins.all()).map(pinned).collect()
    }

    /// Number of signed blocks of a file system, each version counted. Brings the index up to date first.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn signed_count(&self, file_system: Digest) -> Result<u64, StoreError> {
        self.checkpoint()?;
        let Some(number) = self.state().number(&file_system) else { return Ok(0) };
        let mut count = 0;
        self.index().visit_signed(&mut |SignedKey(key), _| {
            count += u64::from(key[..4] == number.to_be_bytes());
        })?;
        Ok(count)
    }
}
