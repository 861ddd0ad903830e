//! What a store has, for whoever copies it to another one.

use crate::StoreError;
use crate::state::SignedKey;
use crate::store::BlockStore;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::Position;

/// A block as the index knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its address.
    pub address: Digest,
    /// Who is charged for it.
    pub owner: DeviceId,
    /// When somebody last relied on it, in nanoseconds since 1970.
    pub age_ns: i64,
    /// Its bytes in the log.
    pub bytes: u32,
}

/// Blocks that a reader holds open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pinned {
    /// Who.
    pub holder: u64,
    /// Until when, in nanoseconds since 1970.
    pub until_ns: i64,
    /// Which.
    pub addresses: Vec<Digest>,
}

impl BlockStore {
    /// All blocks of a file system in the order in which they are in the log, so that they are read quickly and those that
    /// were stored together follow each other. Brings the index up to date first. Takes some 60 bytes of memory a block.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn inventory(&self, file_system: Digest) -> Result<Vec<Listed>, StoreError> {
        self.checkpoint()?;
        let Some(number) = self.state().number(&file_system) else { return Ok(Vec::new()) };
        let mut found: Vec<(Position, Listed)> = Vec::new();
        self.index().visit(&mut |key, entry| {
            if key.file_system() == number {
                let (address, owner, age_ns) = (key.address(), entry.owner, entry.age_ns);
                let listed = Listed { address, owner, age_ns, bytes: entry.location.length };
                found.push((entry.location.position, listed));
            }
            Ok(())
        })?;
        found.sort_unstable_by_key(|(position, _)| *position);
        Ok(found.into_iter().map(|(_, listed)| listed).collect())
    }

    /// Pins of a file system, those that have run out among them.
    pub fn pinned(&self, file_system: Digest) -> Vec<Pinned> {
        let state = self.state();
        let pins = state.file_systems.get(&file_system).map(|found| &found.pins);
        let pinned = |(holder, until_ns, addresses): (u64, i64, &Vec<Digest>)| Pinned {
            holder,
            until_ns,
            addresses: addresses.clone(),
        };
        pins.into_iter().flat_map(|pins| pins.all()).map(pinned).collect()
    }

    /// How many signed blocks a file system has, each version counted. Brings the index up to date first.
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
