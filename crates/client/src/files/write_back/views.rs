//! Views, block sources and sinks for reading and writing data that is in the journal.

use super::journal::{Journal, WriteGuard};
use crate::backend::{Guard, Upload};
use crate::error::FsError;
use crate::tree::{Names, View};
use holdfast_content::{
    Block, BlockKind, BlockSink, BlockSource, Content, Entry, Handle, Inode, PrincipalId, Reference,
    SourceError,
};
use holdfast_crypto::{Digest, DigestKey};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// A view as the backend interface needs it: with a position of write-back's own.
pub(super) struct FixedView {
    pub(super) view: Arc<dyn View>,
    pub(super) position: u64,
}

impl View for FixedView {
    fn position(&self) -> u64 {
        self.position
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.view.inode(handle)
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.view.entry(directory, name)
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.view.entries(directory, after, limit)
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.view.may_write(principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        self.view.principals()
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        self.view.name_of(principal)
    }
}

/// Blocks in memory, of sinks that have not decided yet whether they go to the server or the journal; held so
/// that the writer of a file can read its data back. Each with the number of sinks that hold it.
#[derive(Default)]
pub(super) struct StagedBlocks(Mutex<HashMap<Digest, (Arc<Block>, usize)>>);

impl StagedBlocks {
    pub(super) fn hold(&self, block: &Arc<Block>) {
        self.0.lock().entry(block.reference().address).or_insert_with(|| (block.clone(), 0)).1 += 1;
    }

    pub(super) fn release(&self, address: &Digest) {
        let mut held = self.0.lock();
        if let Some((_, holders)) = held.get_mut(address) {
            *holders -= 1;
            if *holders == 0 {
                held.remove(address);
            }
        }
    }

    /// A block, if some sink still holds it.
    pub(super) fn get(&self, address: &Digest) -> Option<Arc<Block>> {
        self.0.lock().get(address).map(|(block, _)| block.clone())
    }
}

/// Reads blocks from memory if they are held there, from the journal if they are in it, and otherwise from
/// the engine.
pub(super) struct LayeredSource {
    pub(super) held: Arc<StagedBlocks>,
    pub(super) journal: Arc<Journal>,
    pub(super) inner: Arc<dyn BlockSource + Send + Sync>,
}

impl BlockSource for LayeredSource {
    fn digest_key(&self) -> DigestKey {
        self.inner.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let here = self.held.get(&reference.address);
        match here.or_else(|| self.journal.get(&reference.address).map(Arc::new)) {
            Some(block) if block.kind() == kind && block.reference() == *reference => Ok(block),
            _ => self.inner.fetch(reference, kind),
        }
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let is_here = |address: &Digest| self.held.get(address).is_some() || self.journal.contains(address);
        let missing = references.iter().filter(|(reference, _)| !is_here(&reference.address));
        self.inner.prefetch(&missing.copied().collect::<Vec<_>>());
    }
}

/// A sink that puts new blocks into the journal.
pub(super) struct JournalSink {
    pub(super) journal: Arc<Journal>,
    pub(super) key: DigestKey,
    /// Bound of the journal's size in bytes, while the server is away.
    pub(super) bytes_max: Option<u64>,
    pub(super) failed: Option<FsError>,
    pub(super) writing: WriteGuard,
}

impl JournalSink {
    pub(super) fn finish(self) -> Result<WriteGuard, FsError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.writing),
        }
    }
}

impl BlockSink for JournalSink {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn put(&mut self, block: Block) -> Reference {
        if self.failed.is_none() {
            let is_full = self.bytes_max.is_some_and(|bytes_max| self.journal.bytes() > bytes_max);
            self.failed = if is_full { Some(FsError::NoSpace) } else { self.journal.put(&block).err() };
        }
        block.reference()
    }
}

impl Upload for JournalSink {
    fn finish(self: Box<Self>, _: Option<&Content>) -> Result<Guard, FsError> {
        Ok(Box::new(JournalSink::finish(*self)?))
    }
}
