//! Blocks in memory: a source that is its own sink, and a layer of new blocks over another source.

use crate::{Block, BlockKind, BlockSink, BlockSource, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// A set of stored blocks, verified at every fetch like those of any server. `&MemoryBlocks` is a sink, so
/// one set can be source and sink of one call.
pub struct MemoryBlocks {
    key: DigestKey,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    blocks: HashMap<Digest, StoredBlock>,
    fetches: u64,
    rounds: u64,
    hinted: std::collections::HashSet<Digest>,
}

impl MemoryBlocks {
    /// An empty set under `key`.
    pub fn new(key: DigestKey) -> Self {
        MemoryBlocks { key, inner: Mutex::default() }
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.inner().blocks.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block as stored.
    pub fn stored(&self, address: &Digest) -> Option<StoredBlock> {
        self.inner().blocks.get(address).cloned()
    }

    /// Every address held, in no order.
    pub fn addresses(&self) -> Vec<Digest> {
        self.inner().blocks.keys().copied().collect()
    }

    /// Stores `block` under `address` unchecked, as a lying server would.
    pub fn replace(&self, address: Digest, block: StoredBlock) {
        self.inner().blocks.insert(address, block);
    }

    /// Removes a block.
    pub fn remove(&self, address: &Digest) -> Option<StoredBlock> {
        self.inner().blocks.remove(address)
    }

    /// Fetches since the beginning.
    pub fn fetches(&self) -> u64 {
        self.inner().fetches
    }

    /// Network round trips those fetches would have cost, each prefetch hint being one for all it names.
    pub fn rounds(&self) -> u64 {
        self.inner().rounds
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no panic while the lock is held")
    }
}

impl BlockSource for MemoryBlocks {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let mut inner = self.inner();
        inner.fetches += 1;
        if !inner.hinted.remove(&reference.address) {
            inner.rounds += 1;
        }
        let stored =
            inner.blocks.get(&reference.address).cloned().ok_or(SourceError::Missing(reference.address))?;
        drop(inner);
        stored
            .open(&self.key, reference, kind)
            .map(Arc::new)
            .map_err(|error| SourceError::Altered(reference.address, error))
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let mut inner = self.inner();
        inner.rounds += 1;
        inner.hinted.extend(references.iter().map(|(reference, _)| reference.address));
    }
}

impl BlockSink for &MemoryBlocks {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        self.inner().blocks.insert(reference.address, block.to_stored());
        reference
    }
}

/// New blocks in the order they were made, for a client that stores them together.
pub struct BlockBatch {
    key: DigestKey,
    /// The blocks, referred-to before referring.
    pub blocks: Vec<Block>,
}

impl BlockBatch {
    /// An empty batch under `key`.
    pub fn new(key: DigestKey) -> Self {
        BlockBatch { key, blocks: Vec::new() }
    }
}

impl BlockSink for BlockBatch {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        self.blocks.push(block);
        reference
    }
}

/// A sink that passes blocks on and remembers them, and a source that knows them: for steps that read what
/// an earlier step of the same call has written.
pub(crate) struct Layer<'a> {
    pub(crate) source: &'a dyn BlockSource,
    blocks: std::cell::RefCell<HashMap<Digest, Arc<Block>>>,
}

impl<'a> Layer<'a> {
    pub(crate) fn new(source: &'a dyn BlockSource) -> Self {
        Layer { source, blocks: Default::default() }
    }

    /// A sink that feeds this layer and `sink`.
    pub(crate) fn tee<'b>(&'b self, sink: &'b mut dyn BlockSink) -> Tee<'b, 'a> {
        Tee { layer: self, sink }
    }

    /// Forgets the blocks so far.
    pub(crate) fn clear(&self) {
        self.blocks.borrow_mut().clear();
    }
}

impl BlockSource for Layer<'_> {
    fn digest_key(&self) -> DigestKey {
        self.source.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        match self.blocks.borrow().get(&reference.address) {
            Some(block) if block.kind() == kind => Ok(block.clone()),
            _ => self.source.fetch(reference, kind),
        }
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let blocks = self.blocks.borrow();
        let absent: Vec<_> = references
            .iter()
            .filter(|(reference, _)| !blocks.contains_key(&reference.address))
            .copied()
            .collect();
        if !absent.is_empty() {
            self.source.prefetch(&absent);
        }
    }
}

pub(crate) struct Tee<'b, 'a> {
    layer: &'b Layer<'a>,
    sink: &'b mut dyn BlockSink,
}

impl BlockSink for Tee<'_, '_> {
    fn digest_key(&self) -> DigestKey {
        self.sink.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        self.layer.blocks.borrow_mut().insert(block.reference().address, Arc::new(block.clone()));
        self.sink.put(block)
    }
}

/// A source without blocks, for operations that only write.
pub(crate) struct EmptySource(pub(crate) DigestKey);

impl BlockSource for EmptySource {
    fn digest_key(&self) -> DigestKey {
        self.0
    }

    fn fetch(&self, reference: &Reference, _: BlockKind) -> Result<Arc<Block>, SourceError> {
        Err(SourceError::Missing(reference.address))
    }
}
