//! Verified blocks: the client reads and writes all data through this store.
//!
//! Reads try memory, the persistent cache and the server, in this order. Every block, wherever it came from,
//! is checked against the reference it is wanted for before it is used. A corrupt cache entry is dropped and
//! fetched again; a corrupt answer of the server is saved as evidence and refused.
//!
//! Writes are collected as *unsent* blocks, which can be read back at once. An operation sends along exactly
//! the unsent blocks that its references reach ([`VerifiedStore::collect`]), so blocks of an abandoned
//! attempt are never sent. Large data is stored in batches before its operation ([`Upload`]).
//!
//! Attack answered: a server that alters, swaps or withholds blocks, and a manipulated cache on this machine.
//! Unreachable, missing and altered are three different errors and are never confused.

pub mod account;
mod base_candidates;
mod disk;
mod features;
mod fetch;
mod index;
mod memory;
mod packing;
mod piece_matches;
mod pinning;
mod transfer;
mod upload;
mod versions;

use account::{Account, Savings};
pub(crate) use base_candidates::BaseCandidates;
use fetch::{FetchRequest, FetchState, Shared, UnsentBlock, check};
use index::ChunkIndex;
use versions::StoreTask;

pub use disk::{BYTES_MAX_DEFAULT, CheckReport, DiskCache, pins};
pub use memory::MemoryCache;
pub use packing::AttachedBlocks;
pub use pinning::PinningSource;
pub use transfer::{Link, TransferConfig, TransferMode};
pub use upload::{UnsentBlocks, Upload, WriteTarget};
pub use versions::ReadAheadFile;

use crate::evidence::Evidence;
use crate::interrupt::{self, Woken};
use crate::remote::Remote;
use holdfast_content::{Block, BlockKind, BlockSource, MemoryBlocks, Reference, SourceError};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{AddressedBlock, Request, Response};
use holdfast_rpc::RpcError;
use lru::LruCache;
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Most bytes and blocks of one RETRIEVE or STORE; kept small so that several can be under way at once.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_BLOCKS: usize = 256;
/// Most requests for blocks under way at once.
const PARALLEL: usize = 4;
/// Most batches on their way to the server at once. Each is acknowledged when it is durable, which takes a
/// while if the server stores in a bucket; batches that wait together share that time. Over a slow link,
/// [`PARALLEL`] are enough to fill it.
const STORED_AT_ONCE: usize = 16;
const ACKNOWLEDGED_MAX: usize = 65_536;
/// Most chunks remembered as likely to be read, with the older blocks they resemble.
const EXPECTED_MAX: usize = 65_536;
/// Most blocks of older versions for which the referring node is remembered.
const HANGING_MAX: usize = 32_768;
/// Most blocks of the tree of files (as opposed to data) remembered as recently sent or fetched.
const RECENT_MAX: usize = 128;
/// How long to wait at the end until blocks are in the persistent cache.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);
/// Most blocks remembered as missing at the server.
const ABSENT_MAX: usize = 4096;

/// A source that also takes new blocks; they can be read back while they are held.
pub trait Blocks: BlockSource + Send + Sync {
    /// This store as a plain source of blocks.
    fn as_source(&self) -> &dyn BlockSource;
    /// Adds a block and holds it until `release` has been called once for each hold. `false`: the block needs
    /// neither sending nor releasing, because the server has it.
    fn hold(&self, block: Block) -> bool;
    /// Ends one hold of a block.
    fn release(&self, address: &Digest);
}

/// For a founding operation and for tests: blocks never leave memory.
impl Blocks for MemoryBlocks {
    fn as_source(&self) -> &dyn BlockSource {
        self
    }

    fn hold(&self, block: Block) -> bool {
        self.replace(block.reference().address, block.to_stored());
        false
    }

    fn release(&self, _: &Digest) {}
}

/// Configuration of a store.
pub struct StoreConfig {
    /// The file system's digest key.
    pub key: DigestKey,
    /// Bound of the memory cache, in bytes.
    pub memory_bytes: usize,
    /// Directory of the persistent cache, and its bound in bytes.
    pub cache: Option<(PathBuf, u64)>,
    /// Store for proof of altered blocks.
    pub evidence: Arc<Evidence>,
    /// Longest time to wait for the server.
    pub deadline: Duration,
    /// How blocks are sent and fetched.
    pub transfer: TransferConfig,
}

/// Counts since the start.
#[derive(Default)]
pub struct Counters {
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    blocks_fetched: AtomicU64,
    bytes_fetched: AtomicU64,
    blocks_sent: AtomicU64,
    bytes_sent: AtomicU64,
    blocks_known: AtomicU64,
    bytes_known: AtomicU64,
    blocks_dereferenced: AtomicU64,
    retrieves: AtomicU64,
    stores: AtomicU64,
    corrupt_cache_entries: AtomicU64,
    plain_sent: AtomicU64,
    plain_fetched: AtomicU64,
    delta_saved_sent: AtomicU64,
    delta_saved_fetched: AtomicU64,
    questions: AtomicU64,
    blocks_present: AtomicU64,
    bytes_present: AtomicU64,
    bases_missing: AtomicU64,
    parcels_refused: AtomicU64,
}

/// [`Counters`] at one moment, with the sizes of the caches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreStatus {
    /// Blocks found in memory.
    pub memory_hits: u64,
    /// Blocks found in the persistent cache.
    pub disk_hits: u64,
    /// Blocks that came from the server.
    pub blocks_fetched: u64,
    /// Their bytes, as transferred.
    pub bytes_fetched: u64,
    /// Blocks sent to the server, with operations or before them.
    pub blocks_sent: u64,
    /// Their bytes, as transferred.
    pub bytes_sent: u64,
    /// New blocks that were not sent because the server has them (SUNDR: duplicates).
    pub blocks_known: u64,
    /// Their bytes, uncompressed.
    pub bytes_known: u64,
    /// Blocks that were dereferenced and that the server dropped at once (SUNDR: DECREF).
    pub blocks_dereferenced: u64,
    /// Number of RETRIEVE requests.
    pub retrieves: u64,
    /// Number of STORE requests.
    pub stores: u64,
    /// Cache entries that failed verification and were fetched again.
    pub corrupt_cache_entries: u64,
    /// Bytes cached in memory.
    pub memory_bytes: u64,
    /// Bound of the memory cache, in bytes.
    pub memory_bytes_max: u64,
    /// Bytes cached on disk.
    pub disk_bytes: u64,
    /// Traffic over the link, and what was saved.
    pub transfer: TransferStatus,
    /// Bytes that did not have to be transferred.
    pub saved: Savings,
}

/// Savings on slow links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransferStatus {
    /// Bytes of the blocks that were sent, before compression.
    pub plain_sent: u64,
    /// Bytes of the blocks that were fetched, after decompression.
    pub plain_fetched: u64,
    /// Bytes saved by sending parcels instead of each block by itself.
    pub delta_saved_sent: u64,
    /// Bytes saved by fetching parcels instead of each block by itself; estimated by compressing the blocks
    /// here.
    pub delta_saved_fetched: u64,
    /// Number of requests that asked the server which blocks it has.
    pub questions: u64,
    /// Blocks that were not sent because the server had them.
    pub blocks_present: u64,
    /// Their bytes, before compression.
    pub bytes_present: u64,
    /// Parcels sent again because the server had lost bases of them.
    pub bases_missing: u64,
    /// Parcels received that could not be used, so that their blocks were fetched one by one.
    pub parcels_refused: u64,
}

/// Verified access to the blocks of one file system. Cheap to clone.
#[derive(Clone)]
pub struct VerifiedStore {
    shared: Arc<Shared>,
    lanes: Arc<WorkerQueues>,
}

/// A reference to a store that does not keep it alive.
pub struct WeakStore {
    shared: Weak<Shared>,
    lanes: Weak<WorkerQueues>,
}

impl WeakStore {
    /// The store, if it still exists.
    pub fn upgrade(&self) -> Option<VerifiedStore> {
        Some(VerifiedStore { shared: self.shared.upgrade()?, lanes: self.lanes.upgrade()? })
    }
}

/// Queues of the worker threads, which end when the queues are dropped.
struct WorkerQueues {
    shared: Arc<Shared>,
    retrievals: Sender<Vec<FetchRequest>>,
    keep: SyncSender<StoreTask>,
    storing: Sender<StoreJob>,
}

impl Drop for WorkerQueues {
    fn drop(&mut self) {
        // A worker may still wait for the server; the next user of the cache folder need not.
        *self.shared.disk.lock() = None;
    }
}

pub(crate) struct StoreJob {
    blocks: Vec<Arc<Block>>,
    /// Older blocks against which they may be compressed.
    base_candidates: Arc<BaseCandidates>,
    /// Whether to ask the server first which of them it has.
    ask: bool,
    done: Sender<Result<(), RpcError>>,
}

impl VerifiedStore {
    /// Opens the caches and starts the worker threads, which end with the last clone.
    ///
    /// # Errors
    /// None for the persistent cache: without it, everything works, only more slowly (a warning is logged).
    pub fn new(config: StoreConfig, remote: Arc<dyn Remote>) -> VerifiedStore {
        let index = match &config.cache {
            Some((directory, _)) => ChunkIndex::open(&directory.join("index")).unwrap_or_else(|error| {
                tracing::warn!(%error, directory = %directory.display(), "no persistent chunk index");
                ChunkIndex::new()
            }),
            None => ChunkIndex::new(),
        };
        let disk = config.cache.and_then(|(directory, bytes_max)| {
            DiskCache::open(&directory, bytes_max)
                .inspect_err(|error| {
                    tracing::warn!(%error, directory = %directory.display(), "no persistent cache");
                })
                .ok()
        });
        let shared = Arc::new(Shared {
            key: config.key,
            deadline: config.deadline,
            remote,
            evidence: config.evidence,
            memory: Mutex::new(MemoryCache::new(config.memory_bytes)),
            disk: Mutex::new(disk),
            unsent: Mutex::default(),
            acknowledged: Mutex::new(LruCache::new(NonZeroUsize::new(ACKNOWLEDGED_MAX).expect("not zero"))),
            doubted: AtomicBool::new(false),
            flights: Mutex::default(),
            counters: Counters::default(),
            transfer: config.transfer,
            index: Mutex::new(index),
            expected: Mutex::new(LruCache::new(NonZeroUsize::new(EXPECTED_MAX).expect("not zero"))),
            hangs: Mutex::new(LruCache::new(NonZeroUsize::new(HANGING_MAX).expect("not zero"))),
            recent: Mutex::new(LruCache::new(NonZeroUsize::new(RECENT_MAX).expect("not zero"))),
            absent: Mutex::new(LruCache::new(NonZeroUsize::new(ABSENT_MAX).expect("not zero"))),
            account: Account::default(),
        });
        let (retrievals, receiver) = channel();
        spawn_workers("retrieve", &shared, receiver, PARALLEL, |shared, wanted: Vec<FetchRequest>| {
            shared.retrieve(wanted)
        });
        let (storing, receiver) = channel();
        spawn_workers("store", &shared, receiver, STORED_AT_ONCE, |shared, job: StoreJob| {
            let _ = job.done.send(shared.send(&job));
        });
        let (keep, receiver) = sync_channel::<StoreTask>(1024);
        let keeper = shared.clone();
        spawn("cache", move || {
            while let Ok(keep) = receiver.recv() {
                keep.carry_out(&keeper);
            }
        });
        let lanes = Arc::new(WorkerQueues { shared: shared.clone(), retrievals, keep, storing });
        VerifiedStore { shared, lanes }
    }

    /// A reference to this store that does not keep it alive.
    pub fn downgrade(&self) -> WeakStore {
        WeakStore { shared: Arc::downgrade(&self.shared), lanes: Arc::downgrade(&self.lanes) }
    }

    /// A source of blocks on this machine only; it never asks the server.
    pub fn near(&self) -> LocalStore {
        LocalStore(self.clone())
    }

    /// Starts to upload data that is not part of an operation yet.
    pub fn upload(&self) -> Upload {
        Upload::new(self.clone(), None)
    }

    /// Starts to upload a file whose previous content may be known.
    pub fn upload_of(&self, about: WriteTarget) -> Upload {
        Upload::new(self.clone(), Some(about))
    }

    /// Which ways of saving bytes are used.
    pub fn transfer_mode(&self) -> TransferMode {
        self.shared.transfer.mode
    }

    /// The unsent blocks that `roots` reach: referred-to blocks before referring ones, and the roots last. So
    /// a server that has the roots got everything else before.
    pub fn collect(&self, roots: impl IntoIterator<Item = Digest>) -> Vec<Arc<Block>> {
        let roots: HashSet<Digest> = roots.into_iter().collect();
        let unsent = self.shared.unsent.lock();
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        // Children come first. The stack is explicit, so that an extreme depth does no harm.
        let mut stack: Vec<(Digest, bool)> = roots.iter().map(|address| (*address, false)).collect();
        while let Some((address, expanded)) = stack.pop() {
            let Some(entry) = unsent.get(&address) else { continue };
            if expanded {
                out.push(entry.block.clone());
            } else if seen.insert(address) {
                stack.push((address, true));
                stack.extend(entry.block.references().iter().map(|child| (*child, false)));
            }
        }
        out.sort_by_key(|block| roots.contains(&block.reference().address));
        out
    }

    /// Takes blocks that came along with a reply. Blocks that do not verify are ignored, since a hint proves
    /// nothing.
    pub fn accept_hints(&self, blocks: Vec<AddressedBlock>) {
        for hint in blocks {
            if self.shared.memory.lock().contains(&hint.address) {
                continue;
            }
            let address = hint.address;
            let stored = hint.block.clone();
            let bytes = stored.body.len();
            self.shared.account.received(account::NO_FILE, bytes, bytes);
            if let Ok(block) =
                hint.block.open_any(&self.shared.key, address, holdfast_content::BODY_BYTES_MAX)
            {
                self.shared.note_sent(&block);
                self.shared.memory.lock().insert(Arc::new(block));
                let _ = self.lanes.keep.try_send(StoreTask::Block(address, stored));
            }
        }
    }

    /// Dereferences blocks that this device stored recently and that nothing refers to any more.
    ///
    /// # Errors
    /// [`RpcError`]; harmless, since the server's garbage collection removes the blocks later.
    pub fn dereference(&self, addresses: Vec<Digest>) -> Result<u32, RpcError> {
        {
            let mut acknowledged = self.shared.acknowledged.lock();
            let mut recent = self.shared.recent.lock();
            for address in &addresses {
                acknowledged.pop(address);
                recent.pop(address);
            }
        }
        match self.shared.remote.call(Request::Dereference(addresses), self.shared.deadline)? {
            Response::Dereferenced(count) => {
                self.shared.counters.blocks_dereferenced.fetch_add(count.into(), Relaxed);
                Ok(count)
            }
            other => Err(unexpected("Dereference", &other)),
        }
    }

    /// The evidence file for an altered block, if there is one.
    pub fn evidence_of(&self, address: &Digest) -> Option<PathBuf> {
        self.shared.evidence.of_block(address)
    }

    /// The present counts and sizes.
    pub fn status(&self) -> StoreStatus {
        let counters = &self.shared.counters;
        let (memory_bytes, memory_bytes_max) = {
            let memory = self.shared.memory.lock();
            (memory.bytes() as u64, memory.bytes_max() as u64)
        };
        StoreStatus {
            memory_hits: counters.memory_hits.load(Relaxed),
            disk_hits: counters.disk_hits.load(Relaxed),
            blocks_fetched: counters.blocks_fetched.load(Relaxed),
            bytes_fetched: counters.bytes_fetched.load(Relaxed),
            blocks_sent: counters.blocks_sent.load(Relaxed),
            bytes_sent: counters.bytes_sent.load(Relaxed),
            blocks_known: counters.blocks_known.load(Relaxed),
            bytes_known: counters.bytes_known.load(Relaxed),
            blocks_dereferenced: counters.blocks_dereferenced.load(Relaxed),
            retrieves: counters.retrieves.load(Relaxed),
            stores: counters.stores.load(Relaxed),
            corrupt_cache_entries: counters.corrupt_cache_entries.load(Relaxed),
            memory_bytes,
            memory_bytes_max,
            disk_bytes: self.shared.disk.lock().as_ref().map_or(0, DiskCache::bytes),
            transfer: TransferStatus {
                plain_sent: counters.plain_sent.load(Relaxed),
                plain_fetched: counters.plain_fetched.load(Relaxed),
                delta_saved_sent: counters.delta_saved_sent.load(Relaxed),
                delta_saved_fetched: counters.delta_saved_fetched.load(Relaxed),
                questions: counters.questions.load(Relaxed),
                blocks_present: counters.blocks_present.load(Relaxed),
                bytes_present: counters.bytes_present.load(Relaxed),
                bases_missing: counters.bases_missing.load(Relaxed),
                parcels_refused: counters.parcels_refused.load(Relaxed),
            },
            saved: self.shared.account.means(
                counters.bytes_known.load(Relaxed) + counters.bytes_present.load(Relaxed),
                (counters.delta_saved_fetched.load(Relaxed), counters.delta_saved_sent.load(Relaxed)),
            ),
        }
    }

    /// The accounts of traffic by file.
    pub fn account(&self) -> &Account {
        &self.shared.account
    }

    /// Starts to put blocks under a pin in the persistent cache.
    ///
    /// # Errors
    /// There is no such cache; another process does the same for this pin; or I/O errors.
    pub fn begin_pinning(&self, id: u64) -> std::io::Result<pins::Pinning> {
        match &*self.shared.disk.lock() {
            Some(disk) => pins::Pinning::begin(disk, id),
            None => Err(std::io::Error::other("the cache folder cannot be used")),
        }
    }

    /// Frees space on the persistent cache's disk for something more important. Returns whether it could.
    pub fn make_room(&self, bytes: u64) -> bool {
        self.shared.disk.lock().as_mut().is_some_and(|disk| disk.make_room(bytes))
    }

    /// Waits until everything sent and fetched so far is in the persistent cache. Returns whether it is.
    pub fn settle_cache(&self, patience: Duration) -> bool {
        let (done, settled) = sync_channel(1);
        self.lanes.keep.try_send(StoreTask::Settle(done)).is_ok() && settled.recv_timeout(patience).is_ok()
    }

    /// Closes the persistent cache, once everything sent and fetched so far is in it.
    pub(crate) fn close_cache(&self) {
        self.settle_cache(CLOSE_PATIENCE);
        *self.shared.disk.lock() = None;
    }

    /// Takes a new block that the server already has.
    fn known(&self, block: Block) {
        self.shared.note_at_server(Arc::new(block));
    }

    /// An unsent block, to be sent with an operation.
    pub(crate) fn collect_one(&self, address: &Digest) -> Option<Arc<Block>> {
        self.shared.unsent.lock().get(address).map(|entry| entry.block.clone())
    }
}

impl Blocks for VerifiedStore {
    fn as_source(&self) -> &dyn BlockSource {
        self
    }

    fn hold(&self, block: Block) -> bool {
        let address = block.reference().address;
        let block = Arc::new(block);
        if self.shared.is_acknowledged(&address) {
            self.shared.note_at_server(block);
            return false;
        }
        let behalf = account::current_scope();
        let mut unsent = self.shared.unsent.lock();
        let entry = unsent.entry(address).or_insert(UnsentBlock {
            block,
            holders: 0,
            base_candidates: Arc::default(),
            scope: behalf,
        });
        entry.holders += 1;
        true
    }

    fn release(&self, address: &Digest) {
        let mut unsent = self.shared.unsent.lock();
        if let Some(entry) = unsent.get_mut(address) {
            entry.holders -= 1;
            if entry.holders == 0 {
                unsent.remove(address);
            }
        }
    }
}

impl BlockSource for VerifiedStore {
    fn digest_key(&self) -> DigestKey {
        self.shared.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        if let Some(block) = self.shared.local(reference, kind)? {
            return Ok(block);
        }
        loop {
            let (flight, mine) = self.shared.join_or_start(reference);
            if mine {
                self.shared.retrieve(vec![FetchRequest {
                    reference: *reference,
                    kind,
                    flight: flight.clone(),
                    scope: account::current_scope(),
                }]);
            }
            let mut state = flight.state.lock();
            loop {
                match &*state {
                    FetchState::Landed(result) => {
                        let block = result.clone()?;
                        check(&block, reference, kind)?;
                        return Ok(block);
                    }
                    FetchState::CalledOff if mine => return Err(interrupted(reference)),
                    // The call that fetched the block was interrupted; this one has to fetch it again.
                    FetchState::CalledOff => break,
                    FetchState::UnderWay => {
                        if interrupt::wait(&flight.landed, &mut state, None) == Woken::Interrupted {
                            return Err(interrupted(reference));
                        }
                    }
                }
            }
        }
    }

    fn prefetch(&self, references: &[(Reference, BlockKind)]) {
        let behalf = account::current_scope();
        let references: Vec<_> =
            references.iter().map(|(reference, kind)| (*reference, *kind, behalf)).collect();
        self.prefetch_for(&references);
    }
}

impl VerifiedStore {
    /// Starts to fetch blocks; with each comes the file to whose account its traffic goes.
    fn prefetch_for(&self, references: &[(Reference, BlockKind, u64)]) {
        if let Some(disk) = &mut *self.shared.disk.lock()
            && references.iter().any(|(reference, ..)| !disk.contains(&reference.address))
        {
            disk.follow();
        }
        let mut wanted = Vec::new();
        for (reference, kind, behalf) in references {
            if self.shared.is_near(&reference.address) {
                continue;
            }
            let (flight, mine) = self.shared.join_or_start(reference);
            if mine {
                wanted.push(FetchRequest { reference: *reference, kind: *kind, flight, scope: *behalf });
            }
        }
        let bytes_max = self.shared.asked_bytes(&wanted);
        while !wanted.is_empty() {
            let mut bytes = 0usize;
            let count = wanted
                .iter()
                .take(BATCH_BLOCKS)
                .take_while(|one| {
                    bytes += one.reference.length as usize;
                    bytes <= bytes_max
                })
                .count()
                .max(1);
            let rest = wanted.split_off(count);
            if let Err(unsendable) = self.lanes.retrievals.send(std::mem::replace(&mut wanted, rest)) {
                self.shared.retrieve(unsendable.0);
            }
        }
    }
}

/// The blocks on this machine.
pub struct LocalStore(VerifiedStore);

impl BlockSource for LocalStore {
    fn digest_key(&self) -> DigestKey {
        self.0.shared.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let elsewhere =
            || SourceError::Unreachable(reference.address, "it is not on this machine".to_owned());
        self.0.shared.local(reference, kind)?.ok_or_else(elsewhere)
    }
}

fn interrupted(reference: &Reference) -> SourceError {
    SourceError::Unreachable(reference.address, "interrupted".to_owned())
}

/// The error for an answer that does not fit the request.
pub(crate) fn unexpected(request: &str, response: &Response) -> RpcError {
    match response {
        Response::Error(error) => RpcError::Server(error.clone()),
        other => {
            let text = format!("{other:?}");
            RpcError::Malformed(format!(
                "{request} was answered with {}",
                text.split(['(', ' ', '{']).next().unwrap_or_default()
            ))
        }
    }
}

/// Divides a list into batches bounded by bytes and number.
fn batches<T>(items: &[T], bytes_max: usize, size: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (index, item) in items.iter().enumerate() {
        let cost = size(item);
        if index > start && (bytes + cost > bytes_max || index - start == BATCH_BLOCKS) {
            out.push(&items[start..index]);
            start = index;
            bytes = 0;
        }
        bytes += cost;
    }
    if start < items.len() {
        out.push(&items[start..]);
    }
    out
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new()
        .name(format!("holdfast-{name}"))
        .spawn(body)
        .expect("the system can start a thread");
}

fn spawn_workers<T: Send + 'static>(
    name: &str,
    shared: &Arc<Shared>,
    receiver: Receiver<T>,
    count: usize,
    work: impl Fn(&Shared, T) + Send + Sync + Copy + 'static,
) {
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..count {
        let shared = shared.clone();
        let receiver = receiver.clone();
        spawn(name, move || {
            loop {
                let next = receiver.lock().recv();
                match next {
                    Ok(job) => work(&shared, job),
                    Err(_) => return,
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
