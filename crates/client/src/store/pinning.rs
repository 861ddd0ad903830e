//! Reads content for a pin: every block read through here is added to the pin.

use super::pins::{PinError, Pinning};
use super::{Blocks, VerifiedStore, account};
use holdfast_content::{Block, BlockKind, BlockSource, Content, Inode, Reference, SourceError};
use holdfast_crypto::{Digest, DigestKey};
use parking_lot::Mutex;
use std::sync::Arc;

/// Number of chunks fetched at once.
const CHUNKS: usize = 64;

/// A source that adds each block it gives to a pin.
pub struct PinningSource {
    store: VerifiedStore,
    pinning: Mutex<Pinning>,
    failure: Mutex<Option<PinError>>,
}

impl PinningSource {
    /// A source that reads from `store` and adds what it reads to the pin.
    pub fn new(store: VerifiedStore, pinning: Pinning) -> PinningSource {
        PinningSource { store, pinning: Mutex::new(pinning), failure: Mutex::default() }
    }

    /// Number and bytes of the blocks added to the pin so far.
    pub fn needed(&self) -> (u64, u64) {
        self.pinning.lock().needed()
    }

    /// Why nothing more can be added to the pin.
    pub fn failure(&self) -> Option<PinError> {
        self.failure.lock().take()
    }

    /// Ends the update of the pin: see [`Pinning::finish`].
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(&self) -> std::io::Result<(u64, u64)> {
        self.pinning.lock().finish()
    }

    /// Reads the content of a file only to add it to the pin.
    ///
    /// # Errors
    /// A block cannot be fetched or added, or something is malformed.
    pub fn read_content(&self, inode: &Inode) -> Result<(), holdfast_content::ContentError> {
        let Content::Extents(map) = &inode.content else { return Ok(()) };
        let mut batch: Vec<(Reference, BlockKind)> = Vec::new();
        let fetch = |batch: &mut Vec<(Reference, BlockKind)>| {
            self.prefetch(batch);
            batch.drain(..).try_for_each(|(reference, kind)| self.fetch(&reference, kind).map(drop))
        };
        map.visit(self, 0..inode.size, &mut |_, extent| {
            batch.push((extent.reference, BlockKind::Chunk));
            if batch.len() >= CHUNKS {
                fetch(&mut batch)?;
            }
            Ok(true)
        })?;
        Ok(fetch(&mut batch)?)
    }
}

impl BlockSource for PinningSource {
    fn digest_key(&self) -> DigestKey {
        self.store.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let _behalf = account::on_behalf_of(account::PINNING);
        let block = self.store.fetch(reference, kind)?;
        self.pinning.lock().keep(&reference.address, &block.to_stored()).map_err(|error| {
            let words = error.to_string();
            *self.failure.lock() = Some(error);
            SourceError::Unreachable(reference.address, words)
        })?;
        Ok(block)
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let _behalf = account::on_behalf_of(account::PINNING);
        self.store.prefetch(references);
    }
}

impl Blocks for PinningSource {
    fn as_source(&self) -> &dyn BlockSource {
        self
    }

    fn hold(&self, block: Block) -> bool {
        self.store.hold(block)
    }

    fn release(&self, address: &Digest) {
        self.store.release(address);
    }
}
