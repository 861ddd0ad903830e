//! Uploads data to the server before the operation that names it.
//!
//! Blocks that an earlier version of the file has are not sent: the server keeps them. Over a slow link, the
//! other blocks wait (at most [`HELD_BYTES_MAX`]) until it is clear which older blocks they resemble. The
//! server is asked which of them it has, if asking is quicker than sending. The rest is sent packed against
//! the blocks it has replaced.

use super::features::Sampler;
use super::index::ChunkIndex;
use super::packing::piece;
use super::piece_matches::Piece;
use super::transfer::{TransferMode, asking_pays};
use super::versions::Version;
use super::{
    BATCH_BYTES, BaseCandidates, Blocks, PARALLEL, STORED_AT_ONCE, StoreJob, VerifiedStore, batches,
};
use crate::error::FsError;
use crate::interrupt;
use holdfast_content::{Block, BlockKind, BlockSink, BlockSource, Content, Handle, Reference};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_rpc::RpcError;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Up to this many bytes wait here and are sent with the operation that names them.
const ATTACH_BYTES: usize = 128 << 10;
/// Most bytes that wait, over a slow link, until it is clear which older blocks they resemble.
const HELD_BYTES_MAX: usize = 16 << 20;
/// From this many bytes on, the server is asked which blocks it has, even if none was seen before.
const ASKED_BYTES_MIN: usize = 256 << 10;

/// The file that is being written.
#[derive(Clone)]
pub struct WriteTarget {
    /// The file.
    pub handle: Handle,
    /// Its path; empty if unknown.
    pub path: Vec<u8>,
    /// Its published content, which the server has and keeps until the upload is done.
    pub before: Content,
}

/// A sink that stores blocks in batches while more are being made. At most a few batches are held in memory;
/// [`BlockSink::put`] waits if the server is slower than the writer.
pub struct Upload {
    store: VerifiedStore,
    about: Option<WriteTarget>,
    /// The published version, if its whole map is on this machine.
    before: Version,
    /// Blocks of the earlier version, which the server certainly has.
    certain: HashSet<Digest>,
    /// The version being written, as far as it is complete.
    made: Version,
    /// All blocks put, held so that they stay readable until the operation is made.
    held: Vec<Digest>,
    put: HashSet<Digest>,
    waiting: Vec<Arc<Block>>,
    waiting_bytes: usize,
    under_way: usize,
    done: Sender<Result<(), RpcError>>,
    results: Receiver<Result<(), RpcError>>,
    failed: Option<RpcError>,
}

/// Keeps unsent blocks readable and sendable. It must live until the operation that names them has been made.
pub struct UnsentBlocks {
    store: VerifiedStore,
    addresses: Vec<Digest>,
}

impl Upload {
    pub(super) fn new(store: VerifiedStore, about: Option<WriteTarget>) -> Upload {
        let (done, results) = channel();
        let before = match about.as_ref().map(|about| &about.before) {
            // After a restore of the server, blocks that it had before may be lost.
            Some(Content::Extents(map))
                if store.shared.transfer.mode == TransferMode::Full
                    && !store.shared.doubted.load(Relaxed) =>
            {
                store.shared.version(map).unwrap_or_default()
            }
            _ => Version::default(),
        };
        let certain = before.chunks.iter().chain(&before.nodes).map(|(address, _)| *address).collect();
        Upload {
            store,
            about,
            before,
            certain,
            made: Version::default(),
            held: Vec::new(),
            put: HashSet::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            under_way: 0,
            done,
            results,
            failed: None,
        }
    }

    /// Waits until everything is durable at the server, or is small enough to be sent with the operation.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::NoSpace`] or [`FsError::Refused`]: the data is not at the server.
    pub fn finish(self) -> Result<UnsentBlocks, FsError> {
        self.finish_as(None)
    }

    /// Like [`Upload::finish`], with the file's new content: if only parts were written, it shows what lies
    /// between them.
    ///
    /// # Errors
    /// As [`Upload::finish`].
    pub fn finish_as(mut self, content: Option<&Content>) -> Result<UnsentBlocks, FsError> {
        if !self.waiting.is_empty()
            && self.store.shared.delta_up().is_some()
            && let Some(Content::Extents(map)) = content
            && let Some(version) = self.store.shared.version(map)
        {
            self.made = version;
        }
        if self.waiting_bytes > ATTACH_BYTES || self.under_way > 0 {
            self.flush();
        } else if self.failed.is_none()
            && let Err(error) = self.leave_to_the_operation()
        {
            self.failed = Some(error);
        }
        while self.under_way > 0 {
            self.reap();
        }
        match self.failed.take() {
            Some(error) => Err(FsError::from(&error)),
            None => Ok(UnsentBlocks { store: self.store.clone(), addresses: std::mem::take(&mut self.held) }),
        }
    }

    /// Leaves a few bytes to be sent with the operation, and notes which older blocks they resemble.
    fn leave_to_the_operation(&mut self) -> Result<(), RpcError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        if self.must_ask(&waiting) {
            waiting = self.store.shared.leave_out_present(&waiting)?;
        }
        if self.store.shared.delta_up().is_none() {
            return Ok(());
        }
        let candidates = self.base_candidates(&waiting);
        let mut unsent = self.store.shared.unsent.lock();
        for block in waiting {
            if let Some(entry) = unsent.get_mut(&block.reference().address) {
                entry.base_candidates = candidates.clone();
            }
        }
        Ok(())
    }

    /// Whether to ask the server first which of these blocks it has.
    fn must_ask(&self, blocks: &[Arc<Block>]) -> bool {
        let shared = &self.store.shared;
        let Some(link) = shared.link() else { return false };
        let bytes =
            |blocks: &mut dyn Iterator<Item = &Arc<Block>>| blocks.map(|block| block.body().len()).sum();
        let all: usize = bytes(&mut blocks.iter());
        match shared.transfer.mode {
            TransferMode::Plain => false,
            // LBFS asks for each chunk of each file.
            TransferMode::Lbfs => true,
            TransferMode::Full if shared.delta_up().is_none() => false,
            TransferMode::Full if all >= ASKED_BYTES_MIN => asking_pays(&link, all),
            TransferMode::Full => {
                let index = shared.index.lock();
                let known = bytes(&mut blocks.iter().filter(|block| index.knows(&block.reference().address)));
                asking_pays(&link, known)
            }
        }
    }

    /// Earlier versions that the blocks may resemble: see `Shared::earlier_versions`. If there are none, a
    /// file with similar features.
    fn base_candidates(&self, blocks: &[Arc<Block>]) -> Arc<BaseCandidates> {
        let shared = &self.store.shared;
        let before = match self.before.chunks.is_empty() {
            true => self.earlier(&mut shared.index.lock()).unwrap_or_default(),
            false => self.before.clone(),
        };
        let earlier = shared.earlier_versions(before, &self.made);
        if !earlier.is_empty() {
            return Arc::new(shared.base_candidates(&earlier, &self.made));
        }
        let mut sampler = Sampler::new();
        for block in blocks.iter().filter(|block| block.kind() == BlockKind::Chunk) {
            sampler.add(block.body());
        }
        let features = sampler.finish();
        let alike = shared.index.lock().alike(&features).map(Version::from);
        Arc::new(shared.base_candidates(alike.as_slice(), &self.made))
    }

    fn earlier(&self, index: &mut ChunkIndex) -> Option<Version> {
        let about = self.about.as_ref()?;
        Some(index.earlier(&about.handle, &about.path)?.into())
    }

    fn flush(&mut self) {
        let blocks = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let candidates = match self.store.shared.delta_up() {
            Some(_) => self.base_candidates(&blocks),
            None => Arc::default(),
        };
        let at_once = match self.store.shared.delta_up() {
            Some(_) => PARALLEL,
            None => STORED_AT_ONCE,
        };
        let ask = self.must_ask(&blocks);
        for batch in batches(&blocks, self.store.shared.job_bytes(), |block| block.body().len()) {
            while self.under_way >= at_once {
                self.reap();
            }
            let job = StoreJob {
                blocks: batch.to_vec(),
                base_candidates: candidates.clone(),
                ask,
                done: self.done.clone(),
            };
            if self.store.lanes.storing.send(job).is_err() {
                self.failed = Some(RpcError::Closed);
                return;
            }
            self.under_way += 1;
        }
    }

    fn reap(&mut self) {
        self.under_way -= 1;
        if let Err(error) = interrupt::receive(&self.results).unwrap_or(Err(RpcError::Closed)) {
            self.failed.get_or_insert(error);
        }
    }
}

impl BlockSink for Upload {
    fn digest_key(&self) -> DigestKey {
        self.store.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        let size = block.body().len() + 32 * block.references().len();
        let made: Piece = piece(&block);
        match block.kind() {
            BlockKind::Chunk => self.made.chunks.push(made),
            _ => self.made.nodes.push(made),
        }
        if self.put.contains(&reference.address) {
            return reference;
        }
        if self.certain.contains(&reference.address) {
            self.store.known(block);
            return reference;
        }
        if self.store.hold(block) {
            self.put.insert(reference.address);
            self.held.push(reference.address);
            if let Some(block) = self.store.collect_one(&reference.address) {
                self.waiting.push(block);
                self.waiting_bytes += size;
            }
        }
        if self.waiting_bytes >= BATCH_BYTES && self.failed.is_none() {
            let most = if self.store.shared.delta_up().is_some() { HELD_BYTES_MAX } else { BATCH_BYTES };
            if self.waiting_bytes >= most {
                self.flush();
            }
        }
        reference
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        for address in &self.held {
            self.store.release(address);
        }
    }
}

impl Drop for UnsentBlocks {
    fn drop(&mut self) {
        for address in &self.addresses {
            self.store.release(address);
        }
    }
}
