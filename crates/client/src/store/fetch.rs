//! Finds a block: in memory, in the persistent cache, in another call's running request, or at the server;
//! and tracks which blocks have reached the server.

use super::account::{self, Account};
use super::disk::DiskCache;
use super::index::ChunkIndex;
use super::memory::MemoryCache;
use super::{BaseCandidates, Counters, TransferConfig, unexpected};
use crate::evidence::Evidence;
use crate::interrupt;
use crate::remote::{Remote, call_patiently};
use holdfast_content::{BODY_BYTES_MAX, Block, BlockError, BlockKind, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{Request, Response};
use lru::LruCache;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a block that the server acknowledged is assumed to be there. This is far below any server's
/// collection window, after which a block without references may be removed.
const ACKNOWLEDGED_FOR: Duration = Duration::from_secs(300);

pub(super) struct Shared {
    pub(super) key: DigestKey,
    pub(super) deadline: Duration,
    pub(super) remote: Arc<dyn Remote>,
    pub(super) evidence: Arc<Evidence>,
    pub(super) memory: Mutex<MemoryCache>,
    /// `None` once the cache is closed, which also releases its lock.
    pub(super) disk: Mutex<Option<DiskCache>>,
    pub(super) unsent: Mutex<HashMap<Digest, UnsentBlock>>,
    pub(super) acknowledged: Mutex<LruCache<Digest, Instant>>,
    /// Whether the server was restored to an older state, so that blocks it had before may be missing.
    pub(super) doubted: AtomicBool,
    pub(super) flights: Mutex<HashMap<Digest, Arc<BlockFetch>>>,
    pub(super) counters: Counters,
    pub(super) transfer: TransferConfig,
    pub(super) index: Mutex<ChunkIndex>,
    /// For chunks that may be read soon: the older blocks that they resemble.
    pub(super) expected: Mutex<LruCache<Digest, Arc<BaseCandidates>>>,
    /// For blocks of older versions: the node that refers to each, and the index of that reference. This is a
    /// short name for the block.
    pub(super) hangs: Mutex<LruCache<Digest, (Digest, u16)>>,
    /// Blocks of the tree of files that the server surely had a moment ago, with their kinds.
    pub(super) recent: Mutex<LruCache<Digest, BlockKind>>,
    /// Blocks that the server was found not to have.
    pub(super) absent: Mutex<LruCache<Digest, ()>>,
    pub(super) account: Account,
}

pub(super) struct UnsentBlock {
    pub(super) block: Arc<Block>,
    pub(super) holders: usize,
    /// Older blocks that it may be compressed against.
    pub(super) base_candidates: Arc<BaseCandidates>,
    /// The file it was made for, for the account.
    pub(super) scope: u64,
}

/// The fetch of one block, with the calls that wait for it.
#[derive(Default)]
pub(super) struct BlockFetch {
    pub(super) state: Mutex<FetchState>,
    pub(super) landed: Condvar,
}

#[derive(Default)]
pub(super) enum FetchState {
    #[default]
    UnderWay,
    Landed(Result<Arc<Block>, SourceError>),
    /// The call that fetched the block was interrupted.
    CalledOff,
}

pub(super) struct FetchRequest {
    pub(super) reference: Reference,
    pub(super) kind: BlockKind,
    pub(super) flight: Arc<BlockFetch>,
    /// The file it is wanted for, for the account.
    pub(super) scope: u64,
}

impl Shared {
    pub(super) fn is_acknowledged(&self, address: &Digest) -> bool {
        self.acknowledged.lock().get(address).is_some_and(|since| since.elapsed() < ACKNOWLEDGED_FOR)
    }

    /// Notes that the server has taken a block, which was transferred as `travelled` bytes.
    pub(super) fn acknowledged_one(&self, address: Digest, travelled: usize) {
        match self.at_server(address) {
            Some((behalf, plain)) => self.account.sent(behalf, travelled, plain),
            None => self.account.sent(account::NO_FILE, travelled, travelled),
        }
    }

    /// Notes that the server surely has a block. If the block was still unsent, returns the file it was made
    /// for and its length.
    pub(super) fn at_server(&self, address: Digest) -> Option<(u64, usize)> {
        let entry = self.unsent.lock().remove(&address);
        self.acknowledged.lock().put(address, Instant::now());
        let UnsentBlock { block, scope: behalf, .. } = entry?;
        let plain = block.body().len();
        self.memory.lock().insert(block);
        Some((behalf, plain))
    }

    /// Takes over a new block that the server already has.
    pub(super) fn note_at_server(&self, block: Arc<Block>) {
        self.counters.blocks_known.fetch_add(1, Relaxed);
        self.counters.bytes_known.fetch_add(block.body().len() as u64, Relaxed);
        self.memory.lock().insert(block);
    }

    /// Whether a block is on this machine, sent or unsent.
    pub(super) fn is_near(&self, address: &Digest) -> bool {
        self.memory.lock().contains(address)
            || self.unsent.lock().contains_key(address)
            || self.disk.lock().as_ref().is_some_and(|disk| disk.contains(address))
    }

    /// The block, if it is in memory or in the persistent cache.
    pub(super) fn local(
        &self,
        reference: &Reference,
        kind: BlockKind,
    ) -> Result<Option<Arc<Block>>, SourceError> {
        let address = &reference.address;
        let found = self.memory.lock().get_with_use(address);
        if let Some((block, true)) = &found
            && let Some(disk) = &mut *self.disk.lock()
        {
            disk.used(&block.reference().address);
        }
        let found = found
            .map(|(block, _)| block)
            .or_else(|| self.unsent.lock().get(address).map(|entry| entry.block.clone()));
        if let Some(block) = found {
            check(&block, reference, kind)?;
            self.counters.memory_hits.fetch_add(1, Relaxed);
            self.account.in_memory(block.body().len());
            return Ok(Some(block));
        }
        let located = self.disk.lock().as_mut().and_then(|disk| disk.locate(address));
        let Some(located) = located else { return Ok(None) };
        match located.read().map(|stored| stored.open(&self.key, reference, kind)) {
            Some(Ok(block)) => {
                let block = Arc::new(block);
                self.memory.lock().insert(block.clone());
                self.counters.disk_hits.fetch_add(1, Relaxed);
                self.account.on_disk(block.body().len());
                Ok(Some(block))
            }
            _ => {
                if let Some(disk) = &mut *self.disk.lock() {
                    disk.forget(address);
                }
                self.counters.corrupt_cache_entries.fetch_add(1, Relaxed);
                tracing::warn!(block = %address.short(), "a cached block is corrupt; fetching it again");
                Ok(None)
            }
        }
    }

    /// A verified block of any kind, if it is on this machine.
    pub(super) fn cached(&self, address: &Digest) -> Option<Arc<Block>> {
        let found = self.memory.lock().get(address);
        found.or_else(|| {
            let located = self.disk.lock().as_mut().and_then(|disk| disk.locate(address))?;
            let block = located.read()?.open_any(&self.key, *address, BODY_BYTES_MAX);
            block.ok().map(Arc::new)
        })
    }

    pub(super) fn cache(&self, address: Digest, block: &StoredBlock) {
        if let Some(disk) = &mut *self.disk.lock()
            && let Err(error) = disk.insert(address, block)
        {
            tracing::debug!(%error, "a block could not be cached");
        }
    }

    /// Joins the running fetch of a block, or starts one (`true`), which the caller must then complete.
    pub(super) fn join_or_start(&self, reference: &Reference) -> (Arc<BlockFetch>, bool) {
        let mut flights = self.flights.lock();
        if let Some(flight) = flights.get(&reference.address) {
            return (flight.clone(), false);
        }
        let flight = Arc::new(BlockFetch::default());
        flights.insert(reference.address, flight.clone());
        (flight, true)
    }

    /// Fetches blocks, verifies them, and wakes the calls that wait for them.
    pub(super) fn retrieve(&self, wanted: Vec<FetchRequest>) {
        let mut results = self.request(&wanted);
        for (one, result) in wanted.iter().zip(&mut results) {
            while let Err(SourceError::Altered(address, _)) = result
                && self.remote.altered(address)
            {
                *result = self.request(std::slice::from_ref(one)).pop().expect("one answer for one block");
            }
        }
        let failed = |result: &Result<_, SourceError>| matches!(result, Err(SourceError::Unreachable(..)));
        let called_off = results.iter().any(failed) && interrupt::is_raised();
        for (one, result) in wanted.into_iter().zip(results) {
            self.flights.lock().remove(&one.reference.address);
            *one.flight.state.lock() =
                if called_off { FetchState::CalledOff } else { FetchState::Landed(result) };
            one.flight.landed.notify_all();
        }
    }

    /// Requests blocks and verifies them.
    fn request(&self, wanted: &[FetchRequest]) -> Vec<Result<Arc<Block>, SourceError>> {
        match self.delta_down() {
            Some(level) => self.request_packed(wanted, level),
            None => self.request_plain(wanted),
        }
    }

    /// Requests blocks one by one, in their stored form.
    pub(super) fn request_plain(&self, wanted: &[FetchRequest]) -> Vec<Result<Arc<Block>, SourceError>> {
        let addresses: Vec<Digest> = wanted.iter().map(|one| one.reference.address).collect();
        self.counters.retrieves.fetch_add(1, Relaxed);
        let asked = Instant::now();
        let answer = match call_patiently(&*self.remote, &Request::Retrieve(addresses), self.deadline) {
            Ok(Response::Blocks(blocks)) if blocks.len() == wanted.len() => {
                let bytes = blocks.iter().flatten().map(|(_, block)| block.block.body.len()).sum();
                self.account.pace().note_transfer(bytes, asked.elapsed());
                Ok(blocks)
            }
            Ok(other) => Err(unexpected("Retrieve", &other).to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(blocks) => wanted
                .iter()
                .zip(blocks)
                .map(|(one, block)| self.verify(one, block.map(|(_, addressed)| addressed.block)))
                .collect(),
            Err(why) => wanted
                .iter()
                .map(|one| Err(SourceError::Unreachable(one.reference.address, why.clone())))
                .collect(),
        }
    }

    pub(super) fn verify(
        &self,
        wanted: &FetchRequest,
        stored: Option<StoredBlock>,
    ) -> Result<Arc<Block>, SourceError> {
        let address = wanted.reference.address;
        let stored = stored.ok_or(SourceError::Missing(address))?;
        let bytes = stored.body.len() as u64;
        match stored.clone().open(&self.key, &wanted.reference, wanted.kind) {
            Ok(block) => {
                self.counters.blocks_fetched.fetch_add(1, Relaxed);
                self.counters.bytes_fetched.fetch_add(bytes, Relaxed);
                self.counters.plain_fetched.fetch_add(block.body().len() as u64, Relaxed);
                self.note_sent(&block);
                self.account.received(wanted.scope, stored.body.len(), block.body().len());
                let block = Arc::new(block);
                self.memory.lock().insert(block.clone());
                // Pinned blocks are stored in segments of their own.
                if wanted.scope != account::PINNING {
                    self.cache(address, &stored);
                }
                Ok(block)
            }
            Err(error) => {
                self.evidence.keep_block(&wanted.reference, wanted.kind, &stored, &error);
                Err(SourceError::Altered(address, error))
            }
        }
    }
}

/// Checks that a block found by its address has the kind and length that the reference demands.
pub(super) fn check(block: &Block, reference: &Reference, kind: BlockKind) -> Result<(), SourceError> {
    let address = reference.address;
    let error = if block.kind() != kind {
        BlockError::WrongKind { address, expected: kind, found: block.kind() }
    } else if block.reference().length != reference.length {
        BlockError::BadBody {
            expected: reference.length,
            why: format!("it has {} bytes", block.reference().length),
        }
    } else {
        return Ok(());
    };
    Err(SourceError::Altered(address, error))
}
