//! Sources of blocks that work without a server: statements, caches, and several in sequence.

use super::Statement;
use crate::evidence::Evidence;
use crate::remote::Remote;
use crate::store::{Blocks, LocalStore, StoreConfig, TransferConfig, VerifiedStore};
use holdfast_content::{BODY_BYTES_MAX, Block, BlockKind, BlockSource, MemoryBlocks, Reference, SourceError};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{AddressedBlock, Request, Response, Welcome};
use holdfast_rpc::RpcError;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Several sources, tried one after the other. Each source verifies its own blocks.
pub struct Sources(Vec<Arc<dyn BlockSource + Send + Sync>>);

impl Sources {
    /// A source of the blocks in these statements.
    pub fn of(statements: &[&Statement]) -> Sources {
        let memory = MemoryBlocks::new(DigestKey::WELL_KNOWN);
        for block in statements.iter().flat_map(|statement| &statement.blocks) {
            memory.replace(block.address, block.block.clone());
        }
        Sources(vec![Arc::new(memory)])
    }

    /// Adds a source, which is tried last.
    #[must_use]
    pub fn and(mut self, source: Arc<dyn BlockSource + Send + Sync>) -> Sources {
        self.0.push(source);
        self
    }
}

impl BlockSource for Sources {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let mut why = SourceError::Missing(reference.address);
        for source in &self.0 {
            match source.fetch(reference, kind) {
                Ok(block) => return Ok(block),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        if let Some(last) = self.0.last() {
            last.prefetch(references);
        }
    }
}

/// The persistent cache of a file system, used without a server.
pub struct CacheOnly(LocalStore);

impl CacheOnly {
    /// Opens the cache in `folder`. Altered blocks in it are left out.
    pub fn open(file_system: Digest, folder: PathBuf, bytes_max: u64, evidence: PathBuf) -> CacheOnly {
        let store = VerifiedStore::new(
            StoreConfig {
                key: DigestKey::WELL_KNOWN,
                memory_bytes: 16 << 20,
                cache: Some((folder, bytes_max)),
                evidence: Arc::new(Evidence::new(evidence, file_system)),
                deadline: Duration::ZERO,
                transfer: TransferConfig::default(),
            },
            Arc::new(EmptySource),
        );
        CacheOnly(store.near())
    }
}

impl BlockSource for CacheOnly {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        self.0.fetch(reference, kind)
    }

    fn prefetch(&self, _: &[(Reference, BlockKind)]) {}
}

/// Takes the place of a server; it has nothing.
struct EmptySource;

impl Remote for EmptySource {
    fn call(&self, _: Request, _: Duration) -> Result<Response, RpcError> {
        Err(RpcError::Closed)
    }

    fn welcome(&self) -> Option<Welcome> {
        None
    }

    fn is_connected(&self) -> bool {
        false
    }

    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// A source that records the blocks it delivers, except chunks of files, up to a bound.
pub(super) struct Recorder {
    source: Arc<dyn BlockSource + Send + Sync>,
    kept: Mutex<RecordedBlocks>,
}

struct RecordedBlocks {
    blocks: BTreeMap<Digest, AddressedBlock>,
    known: BTreeSet<Digest>,
    bytes_left: usize,
    all: bool,
}

impl Recorder {
    pub fn new(source: Arc<dyn BlockSource + Send + Sync>, bytes_max: usize) -> Recorder {
        let (blocks, known) = (BTreeMap::new(), BTreeSet::new());
        Recorder {
            source,
            kept: Mutex::new(RecordedBlocks { blocks, known, bytes_left: bytes_max, all: true }),
        }
    }

    /// Notes a block that need not be recorded.
    pub fn know(&self, address: Digest) {
        self.kept.lock().known.insert(address);
    }

    /// Takes the recorded blocks, and returns whether none was left out.
    pub fn take(&self) -> (Vec<AddressedBlock>, bool) {
        let mut kept = self.kept.lock();
        (std::mem::take(&mut kept.blocks).into_values().collect(), kept.all)
    }
}

impl BlockSource for Recorder {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let block = self.source.fetch(reference, kind)?;
        let mut kept = self.kept.lock();
        let address = reference.address;
        if kind != BlockKind::Chunk && !kept.blocks.contains_key(&address) && !kept.known.contains(&address) {
            let stored = block.to_stored();
            let bytes = stored.body.len() + 32 * stored.references.len() + 64;
            if bytes <= kept.bytes_left {
                kept.bytes_left -= bytes;
                kept.blocks.insert(address, AddressedBlock { address, block: stored });
            } else {
                kept.all = false;
            }
        }
        Ok(block)
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        self.source.prefetch(references);
    }
}

/// A read-only block source in the form that a view needs; it takes no new blocks.
pub(super) struct ReadOnly(pub Arc<dyn BlockSource + Send + Sync>);

impl BlockSource for ReadOnly {
    fn digest_key(&self) -> DigestKey {
        self.0.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        if reference.length > BODY_BYTES_MAX {
            return Err(SourceError::Missing(reference.address));
        }
        self.0.fetch(reference, kind)
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        self.0.prefetch(references);
    }
}

impl Blocks for ReadOnly {
    fn as_source(&self) -> &dyn BlockSource {
        self
    }

    fn hold(&self, _: Block) -> bool {
        false
    }

    fn release(&self, _: &Digest) {}
}
