//! Sends blocks over a slow link in parcels: packed together, as differences from blocks that both sides
//! have.
//!
//! The unit is still the block. Whatever goes wrong with a parcel, its blocks are sent one by one as over a
//! fast link, so a parcel can only save bytes.
//!
//! Attack answered: a server that packs other blocks than requested, uses bases that were not offered, or
//! says that it lacks blocks that it has. A block from a parcel is only used under the address computed from
//! its bytes.

use super::fetch::{FetchRequest, Shared, check};
use super::index::FILE_CHUNKS_MAX;
use super::piece_matches::Piece;
use super::transfer::{Link, TransferMode, delta_level, message_bytes};
use super::versions::StoreTask;
use super::versions::Version;
use super::{BATCH_BYTES, BaseCandidates, StoreJob, VerifiedStore, account, batches, unexpected};
use crate::interrupt;
use crate::remote::call_patiently;
use holdfast_content::{
    BODY_BYTES_MAX, Base, Block, BlockKind, PARCEL_PREFIX_BYTES_MAX, Parcel, Prefix, REFERENCES_MAX,
    Reference, SourceError, parcel_bytes,
};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{
    ATTACHED_PLAIN_BYTES_MAX, AddressedBlock, Attached, BATCH_MAX, Request, Response, TreeData,
};
use holdfast_rpc::RpcError;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::time::Instant;

/// Most bytes of base blocks of one parcel; the server accepts no more.
const PREFIX_BYTES_MAX: usize = 15 << 20;
/// Most uncompressed bytes of one parcel.
const PARCEL_BYTES_MAX: usize = 4 << 20;
/// Factor by which a parcel is expected to be shorter than its blocks.
const RATIO: usize = 4;
/// How many bytes of the map of a very large file are requested at once.
const MAP_BYTES_MIN: usize = 64 << 10;
/// Number of older tree blocks named as bases for a new one.
const TREE_BASES: usize = 2;

/// Blocks that are sent in the same message as an operation.
pub struct AttachedBlocks {
    /// The blocks as the request carries them.
    pub attached: Attached,
    /// Blocks that the server must have to unpack them.
    offered: Vec<Digest>,
    blocks: Vec<Arc<Block>>,
}

impl Shared {
    /// Estimates of the link, configured or measured.
    pub(super) fn link(&self) -> Option<Link> {
        self.transfer.link.or_else(|| Link::from_estimate(&self.remote.estimate()?))
    }

    /// The compression level of parcels to the server; `None`: blocks are sent one by one.
    pub(super) fn delta_up(&self) -> Option<i8> {
        if self.transfer.mode != TransferMode::Full {
            return None;
        }
        delta_level(self.link()?.up)
    }

    /// The compression level of parcels from the server; `None`: blocks are fetched one by one.
    pub(super) fn delta_down(&self) -> Option<i8> {
        if self.transfer.mode != TransferMode::Full {
            return None;
        }
        delta_level(self.link()?.down)
    }

    /// Whether a round trip costs more than the work for a few requests.
    pub(super) fn is_far(&self) -> bool {
        self.transfer.mode == TransferMode::Full && self.link().is_some_and(|link| link.is_far())
    }

    /// About the most bytes of one message to the server.
    fn message_bytes(&self) -> usize {
        self.link().map_or(BATCH_BYTES, |link| message_bytes(link.up))
    }

    /// Uncompressed bytes of one store job: many if they are packed, since a parcel that turns out too large
    /// is divided again.
    pub(super) fn job_bytes(&self) -> usize {
        if self.delta_up().is_some() { PARCEL_BYTES_MAX } else { BATCH_BYTES }
    }

    /// How many uncompressed bytes of these blocks to request at once: more if they resemble blocks on this
    /// machine, since few bytes are sent for them.
    pub(super) fn asked_bytes(&self, wanted: &[FetchRequest]) -> usize {
        let expected = self.expected.lock();
        match wanted.first().is_some_and(|one| expected.contains(&one.reference.address)) {
            true => PARCEL_BYTES_MAX,
            false => self.answer_bytes(),
        }
    }

    /// How many uncompressed bytes of a tree to request at once, if most of it resembles blocks on this
    /// machine.
    pub(super) fn tree_bytes(&self) -> usize {
        self.answer_bytes() * RATIO
    }

    /// How many bytes of nodes to request at once. Nodes hold addresses, which cannot be compressed. Of a
    /// very large file, which is unlikely to be read as a whole, only the upper levels are requested.
    pub(super) fn map_bytes(&self, chunks: u64) -> usize {
        match (chunks > FILE_CHUNKS_MAX as u64, self.link()) {
            (false, Some(link)) => message_bytes(link.down),
            _ => MAP_BYTES_MIN,
        }
    }

    /// Most uncompressed bytes requested at once.
    fn answer_bytes(&self) -> usize {
        match (self.delta_down(), self.link()) {
            (Some(_), Some(link)) => (message_bytes(link.down) * RATIO).min(BATCH_BYTES),
            (None, Some(link)) => message_bytes(link.down),
            _ => BATCH_BYTES,
        }
    }

    /// Remembers a tree block that the server has, since the next one of its kind will resemble it.
    pub(super) fn note_sent(&self, block: &Block) {
        if block.kind() != BlockKind::Chunk {
            self.recent.lock().put(block.reference().address, block.kind());
        }
    }

    /// A block that is on this machine and, as far as is known, at the server.
    fn shared_block(&self, address: &Digest) -> Option<Arc<Block>> {
        if self.absent.lock().contains(address) {
            return None;
        }
        if let Some(block) = self.memory.lock().get(address) {
            return Some(block);
        }
        let located = self.disk.lock().as_mut()?.locate(address)?;
        let block = located.read()?.open_any(&self.key, *address, BODY_BYTES_MAX).ok()?;
        Some(Arc::new(block))
    }

    /// Makes a prefix from the bases that are available, as far as there is room.
    fn prefix(&self, bases: impl IntoIterator<Item = Digest>) -> Prefix {
        self.prefix_within(PREFIX_BYTES_MAX, bases)
    }

    fn prefix_within(&self, bytes_max: usize, bases: impl IntoIterator<Item = Digest>) -> Prefix {
        let mut prefix = Prefix::default();
        let mut seen = HashSet::new();
        for address in bases {
            if !seen.insert(address) {
                continue;
            }
            let Some(block) = self.shared_block(&address) else { continue };
            if prefix.len() + parcel_bytes(&block) > bytes_max || !prefix.push(&block) {
                break;
            }
        }
        let names = {
            let (mut hangs, absent) = (self.hangs.lock(), self.absent.lock());
            let hangs = std::cell::RefCell::new(&mut *hangs);
            Base::name(prefix.bases(), |address| {
                let place = *hangs.borrow_mut().get(address)?;
                (!absent.contains(&place.0)).then_some(place)
            })
        };
        prefix.named(names)
    }

    /// Compares a version with earlier ones. Also notes which node refers to each possible base, so that
    /// bases can be named in few bytes.
    pub(super) fn base_candidates(&self, olds: &[Version], new: &Version) -> BaseCandidates {
        for (node, _) in olds.iter().flat_map(|old| &old.nodes) {
            let Some(block) = self.shared_block(node) else { continue };
            let mut hangs = self.hangs.lock();
            for (place, address) in (0..u16::MAX).zip(block.references()) {
                hangs.put(*address, (*node, place));
            }
        }
        BaseCandidates::of(olds, new)
    }

    /// A prefix of the blocks that a parcel uses as bases; all of them must have been offered.
    fn prefix_named(&self, names: &[Base], offered: &[Digest]) -> Result<Prefix, UnpackError> {
        let here = |node: &Digest| -> Result<Option<Vec<Digest>>, Infallible> {
            Ok(self.shared_block(node).map(|block| block.references().to_vec()))
        };
        let gone = UnpackError::Unusable("it copies from what is not here");
        let Ok(bases) = Base::addresses(names, here) else { return Err(gone) };
        let offered: HashSet<&Digest> = offered.iter().collect();
        if !bases.iter().all(|base| offered.contains(base)) {
            return Err(UnpackError::Unusable("it copies from what was not offered"));
        }
        // The server may have chosen bases from anywhere in an older version.
        let prefix = self.prefix_within(PARCEL_PREFIX_BYTES_MAX, bases.iter().copied());
        match prefix.bases() == bases {
            true => Ok(prefix.named(names.to_vec())),
            false => Err(gone),
        }
    }

    /// Tree blocks that resemble a new one: of its kind, those with the most references in common with it,
    /// and among those the latest.
    fn tree_bases(&self, block: &Block) -> Vec<Digest> {
        let references: HashSet<&Digest> = block.references().iter().collect();
        let recent: Vec<Digest> = self.recent_of(block.kind());
        let mut found: Vec<(usize, usize, Digest)> = Vec::new();
        for (age, address) in recent.into_iter().enumerate() {
            let known = self.memory.lock().get(&address);
            let Some(known) = known else { continue };
            if known.reference().address == block.reference().address {
                continue;
            }
            let common = known.references().iter().filter(|one| references.contains(one)).count();
            found.push((usize::MAX - common, age, address));
        }
        found.sort_unstable();
        found.into_iter().take(TREE_BASES).map(|(.., address)| address).collect()
    }

    /// Addresses of recent blocks of a kind, the latest first.
    fn recent_of(&self, kind: BlockKind) -> Vec<Digest> {
        let recent = self.recent.lock();
        recent.iter().filter(|(_, known)| **known == kind).map(|(address, _)| *address).collect()
    }

    fn bases_of(&self, blocks: &[Arc<Block>], candidates: &BaseCandidates) -> Vec<Digest> {
        let pieces: Vec<Piece> = blocks.iter().map(|block| piece(block)).collect();
        let of_file = candidates.bases(&pieces, PREFIX_BYTES_MAX);
        let mut bases: Vec<Digest> = of_file.into_iter().map(|(address, _)| address).collect();
        let in_tree = |block: &&Arc<Block>| match block.kind() {
            BlockKind::Chunk => false,
            // For a file's map, the older version is among the candidates, or there is none.
            BlockKind::MapLeaf | BlockKind::MapInner => candidates.lacks_nodes(),
            _ => true,
        };
        for block in blocks.iter().filter(in_tree) {
            bases.extend(self.tree_bases(block));
        }
        let new: HashSet<Digest> = blocks.iter().map(|block| block.reference().address).collect();
        bases.retain(|base| !new.contains(base));
        bases
    }

    /// Stores the blocks of a job durably. Storing twice changes nothing, so a request without an answer is
    /// simply repeated, and blocks stored before a failure need not be sent again.
    pub(super) fn send(&self, job: &StoreJob) -> Result<(), RpcError> {
        let asked;
        let mut blocks = job.blocks.as_slice();
        if job.ask {
            asked = self.leave_out_present(blocks)?;
            blocks = &asked;
        }
        match self.delta_up() {
            Some(level) => self.send_packed(blocks, &job.base_candidates, level),
            None => self.send_plain(blocks),
        }
    }

    /// Asks the server which blocks it has, and returns the others.
    ///
    /// # Errors
    /// [`RpcError`].
    pub(super) fn leave_out_present(&self, blocks: &[Arc<Block>]) -> Result<Vec<Arc<Block>>, RpcError> {
        let mut missing = Vec::new();
        for blocks in blocks.chunks(BATCH_MAX) {
            let addresses = blocks.iter().map(|block| block.reference().address).collect();
            self.counters.questions.fetch_add(1, Relaxed);
            let bits = match call_patiently(&*self.remote, &Request::Present(addresses), self.deadline)? {
                Response::Present(bits) => bits,
                other => return Err(unexpected("Present", &other)),
            };
            for (place, block) in blocks.iter().enumerate() {
                if bits.get(place) {
                    self.counters.blocks_present.fetch_add(1, Relaxed);
                    self.counters.bytes_present.fetch_add(block.body().len() as u64, Relaxed);
                    self.at_server(block.reference().address);
                } else {
                    missing.push(block.clone());
                }
            }
        }
        Ok(missing)
    }

    fn send_plain(&self, blocks: &[Arc<Block>]) -> Result<(), RpcError> {
        for batch in
            batches(blocks, self.message_bytes(), |block| block.body().len() + 32 * block.references().len())
        {
            let stored: Vec<AddressedBlock> = batch.iter().map(|block| addressed(block)).collect();
            let bytes: usize = stored.iter().map(|block| block.block.body.len()).sum();
            self.counters.stores.fetch_add(1, Relaxed);
            let request = Request::Store(stored);
            match call_patiently(&*self.remote, &request, self.deadline)? {
                Response::Done => self.sent(batch, bytes),
                other => return Err(unexpected("Store", &other)),
            }
            // Blocks that were written here are likely to be read here.
            if let Request::Store(stored) = request {
                stored.iter().for_each(|sent| self.cache(sent.address, &sent.block));
            }
        }
        Ok(())
    }

    fn sent(&self, blocks: &[Arc<Block>], bytes: usize) {
        let plain: usize = blocks.iter().map(|block| block.body().len()).sum();
        self.counters.blocks_sent.fetch_add(blocks.len() as u64, Relaxed);
        self.counters.bytes_sent.fetch_add(bytes as u64, Relaxed);
        self.counters.plain_sent.fetch_add(plain as u64, Relaxed);
        // Each block gets its share of the bytes that were sent for all of them.
        let mut left = bytes;
        for (place, block) in blocks.iter().enumerate() {
            let share = match place + 1 == blocks.len() {
                true => left,
                false => (bytes as u64 * block.body().len() as u64 / plain.max(1) as u64) as usize,
            };
            left = left.saturating_sub(share);
            self.note_sent(block);
            self.absent.lock().pop(&block.reference().address);
            self.acknowledged_one(block.reference().address, share);
        }
    }

    fn send_packed(
        &self,
        blocks: &[Arc<Block>],
        candidates: &BaseCandidates,
        level: i8,
    ) -> Result<(), RpcError> {
        let limit = self.message_bytes();
        let size = |block: &Arc<Block>| parcel_bytes(block);
        let mut left: Vec<&[Arc<Block>]> = batches(blocks, PARCEL_BYTES_MAX, size);
        left.reverse();
        while let Some(next) = left.pop() {
            let prefix = self.prefix(self.bases_of(next, candidates));
            let Ok(parcel) = Parcel::pack(&prefix, next, level.into()) else {
                self.send_plain(next)?;
                continue;
            };
            if parcel.message_bytes() > limit && next.len() > 1 {
                let parts = parcel.message_bytes().div_ceil(limit).min(next.len());
                left.extend(next.chunks(next.len().div_ceil(parts)).rev());
                continue;
            }
            let bytes = parcel.message_bytes();
            self.counters.stores.fetch_add(1, Relaxed);
            match call_patiently(&*self.remote, &Request::StoreParcels(vec![parcel]), self.deadline)? {
                Response::Done => {
                    self.packed(next, bytes);
                    self.sent(next, bytes);
                }
                Response::BasesMissing(missing) => {
                    if self.without(&missing, &prefix.mentioned()) {
                        left.push(next);
                    } else {
                        self.send_plain(next)?;
                    }
                }
                other => return Err(unexpected("StoreParcels", &other)),
            }
        }
        Ok(())
    }

    /// Remembers which bases the server lacks. Returns whether any of them was offered, so that another
    /// attempt will differ.
    fn without(&self, missing: &[Digest], offered: &[Digest]) -> bool {
        self.counters.bases_missing.fetch_add(1, Relaxed);
        let offered: HashSet<&Digest> = offered.iter().collect();
        let mut absent = self.absent.lock();
        let mut any = false;
        for address in missing.iter().filter(|address| offered.contains(address)) {
            absent.put(*address, ());
            self.recent.lock().pop(address);
            any = true;
        }
        any
    }

    /// Counts the bytes saved by a parcel, and caches its blocks as bases for the next one.
    fn packed(&self, blocks: &[Arc<Block>], bytes: usize) {
        let mut apart = 0;
        for block in blocks {
            let stored = block.to_stored();
            apart += stored.body.len() + 32 * (stored.references.len() + 1);
            self.cache(block.reference().address, &stored);
        }
        self.counters.delta_saved_sent.fetch_add(apart.saturating_sub(bytes) as u64, Relaxed);
    }

    /// Requests blocks in parcels; blocks that do not come that way are requested one by one.
    pub(super) fn request_packed(
        &self,
        wanted: &[FetchRequest],
        level: i8,
    ) -> Vec<Result<Arc<Block>, SourceError>> {
        let mut results = Vec::with_capacity(wanted.len());
        while results.len() < wanted.len() {
            let rest = &wanted[results.len()..];
            match self.request_parcel(rest, level) {
                Ok(some) => results.extend(some),
                Err(UnpackError::Unreachable(why)) => {
                    let gone = |one: &FetchRequest| {
                        Err(SourceError::Unreachable(one.reference.address, why.clone()))
                    };
                    results.extend(rest.iter().map(gone));
                }
                Err(UnpackError::Unusable(why)) => {
                    tracing::debug!(why, "a parcel could not be used");
                    self.counters.parcels_refused.fetch_add(1, Relaxed);
                    results.extend(self.request_plain(rest));
                }
            }
        }
        results
    }

    /// Sends one request; returns results for at least the first block of `wanted`.
    fn request_parcel(
        &self,
        wanted: &[FetchRequest],
        level: i8,
    ) -> Result<Vec<Result<Arc<Block>, SourceError>>, UnpackError> {
        let prefix = self.prefix(self.bases_for(wanted));
        let request = Request::RetrieveParcel {
            wanted: wanted.iter().map(|one| one.reference.address).collect(),
            bases: prefix.names(),
            level,
        };
        self.counters.retrieves.fetch_add(1, Relaxed);
        let asked = Instant::now();
        let (parcel, covered, missing) = match call_patiently(&*self.remote, &request, self.deadline) {
            Ok(Response::Parcel { parcel, covered, missing }) => (parcel, covered as usize, missing),
            Ok(other) => {
                return Err(UnpackError::Unreachable(unexpected("RetrieveParcel", &other).to_string()));
            }
            Err(error) => return Err(UnpackError::Unreachable(error.to_string())),
        };
        let bytes = parcel.as_ref().map_or(0, Parcel::message_bytes);
        self.account.pace().note_transfer(bytes, asked.elapsed());
        if covered == 0 || covered > wanted.len() {
            return Err(UnpackError::Unusable("it covers nothing, or more than was asked for"));
        }
        let bytes_max = wanted.iter().map(|one| plain_bytes_max(&one.reference, one.kind)).sum();
        let behalf_of = |address: &Digest| {
            wanted
                .iter()
                .find(|one| one.reference.address == *address)
                .map_or(wanted[0].scope, |one| one.scope)
        };
        let mut blocks = self.unpack(parcel, &prefix, bytes_max, behalf_of)?;
        let missing: HashSet<Digest> = missing.into_iter().collect();
        let mut results = Vec::with_capacity(covered);
        for one in &wanted[..covered] {
            let address = one.reference.address;
            let result = match blocks.remove(&address) {
                Some(block) => match check(&block, &one.reference, one.kind) {
                    Ok(()) => Ok(self.arrived(block, one.scope)),
                    Err(error) => Err(error),
                },
                None if missing.contains(&address) => Err(SourceError::Missing(address)),
                // Something else was in its place. Fetched by itself, the block shows whether it is altered.
                None => {
                    self.request_plain(std::slice::from_ref(one)).pop().expect("one answer for one block")
                }
            };
            results.push(result);
        }
        Ok(results)
    }

    /// Unpacks a parcel. It may use only bases that were offered, and must not be larger than the requested
    /// blocks can be.
    fn unpack(
        &self,
        parcel: Option<Parcel>,
        offered: &Prefix,
        bytes_max: usize,
        behalf_of: impl Fn(&Digest) -> u64,
    ) -> Result<HashMap<Digest, Arc<Block>>, UnpackError> {
        let Some(parcel) = parcel else { return Ok(HashMap::new()) };
        if parcel.plain_bytes as usize > bytes_max {
            return Err(UnpackError::Unusable("it holds more than was asked for"));
        }
        let narrowed;
        let prefix = if parcel.bases == offered.names() {
            offered
        } else {
            narrowed = self.prefix_named(&parcel.bases, offered.bases())?;
            &narrowed
        };
        let bytes = parcel.message_bytes();
        let blocks = parcel.open(&self.key, prefix).map_err(|_| UnpackError::Unusable("it does not open"))?;
        self.counters.bytes_fetched.fetch_add(bytes as u64, Relaxed);
        let plain: usize = blocks.iter().map(|block| block.body().len()).sum();
        self.counters.plain_fetched.fetch_add(plain as u64, Relaxed);
        // Each block gets its share of the bytes that were received for all of them.
        for block in &blocks {
            let length = block.body().len();
            let share = (bytes as u64 * length as u64 / plain.max(1) as u64) as usize;
            self.account.received(behalf_of(&block.reference().address), share, length);
        }
        let apart: usize = blocks.iter().map(|block| block.to_stored().body.len()).sum();
        self.counters.delta_saved_fetched.fetch_add(apart.saturating_sub(bytes) as u64, Relaxed);
        Ok(blocks.into_iter().map(|block| (block.reference().address, Arc::new(block))).collect())
    }

    /// Takes over a block that came in a parcel.
    fn arrived(&self, block: Arc<Block>, behalf: u64) -> Arc<Block> {
        self.counters.blocks_fetched.fetch_add(1, Relaxed);
        self.note_sent(&block);
        self.memory.lock().insert(block.clone());
        // Pinned blocks are stored in segments of their own.
        if behalf != account::PINNING {
            self.cache(block.reference().address, &block.to_stored());
        }
        block
    }

    fn bases_for(&self, wanted: &[FetchRequest]) -> Vec<Digest> {
        let mut bases = Vec::new();
        let expected: Vec<Option<Arc<BaseCandidates>>> = {
            let mut expected = self.expected.lock();
            wanted.iter().map(|one| expected.get(&one.reference.address).cloned()).collect()
        };
        let mut next = 0;
        while next < wanted.len() {
            let Some(candidates) = &expected[next] else {
                if wanted[next].kind != BlockKind::Chunk {
                    bases.extend(self.recent_of(wanted[next].kind).into_iter().take(TREE_BASES));
                }
                next += 1;
                continue;
            };
            // Blocks of one file are packed together against its older version, in that version's order.
            let of_file = expected[next..].iter().take_while(|other| match other {
                Some(other) => Arc::ptr_eq(candidates, other),
                None => false,
            });
            let end = next + of_file.count();
            let pieces: Vec<Piece> =
                wanted[next..end].iter().map(|one| (one.reference.address, one.reference.length)).collect();
            bases.extend(candidates.bases(&pieces, PREFIX_BYTES_MAX).into_iter().map(|(address, _)| address));
            next = end;
        }
        bases
    }

    /// Fetches the blocks that the tree at `root` has and the trees at `have`, which are on this machine,
    /// lack. A failure does no harm: blocks are then fetched one by one when they are needed.
    pub(super) fn fetch_tree(
        &self,
        root: &Reference,
        have: &[Digest],
        offered: &[Digest],
        data: TreeData,
        bytes_max: usize,
        level: i8,
    ) {
        let request = Request::RetrieveTree {
            root: root.address,
            have: have.to_vec(),
            data,
            bytes_max: bytes_max as u32,
            level,
        };
        self.counters.retrieves.fetch_add(1, Relaxed);
        let Ok(Response::Tree { parcel: Some(parcel), .. }) =
            call_patiently(&*self.remote, &request, self.deadline)
        else {
            return;
        };
        // The last block is sent whole even if only its beginning fits.
        let behalf = account::current_scope();
        let unpacked = self
            .prefix_named(&parcel.bases, offered)
            .and_then(|prefix| self.unpack(Some(parcel), &prefix, bytes_max + (2 << 20), |_| behalf));
        match unpacked {
            Ok(blocks) => blocks.into_values().for_each(|block| drop(self.arrived(block, behalf))),
            Err(_) => {
                self.counters.parcels_refused.fetch_add(1, Relaxed);
            }
        }
    }
}

/// Most bytes that a block can take in the payload of a parcel, including a table of all addresses it refers
/// to.
fn plain_bytes_max(reference: &Reference, kind: BlockKind) -> usize {
    let references =
        if kind == BlockKind::Chunk { 0 } else { 32 * (reference.length as usize).min(REFERENCES_MAX) };
    reference.length as usize + references + 64
}

/// Why blocks did not come in a parcel.
enum UnpackError {
    Unreachable(String),
    Unusable(&'static str),
}

impl VerifiedStore {
    /// Divides blocks into the last ones, of at most `bytes_max` bytes, which are sent with an operation, and
    /// the others, which are stored now. Over a slow link, the former go in a parcel, unless `plain`.
    ///
    /// # Errors
    /// [`RpcError`] of a STORE.
    pub fn send_ahead(
        &self,
        mut blocks: Vec<Arc<Block>>,
        bytes_max: usize,
        blocks_max: usize,
        plain: bool,
    ) -> Result<AttachedBlocks, RpcError> {
        let mut riding = Vec::new();
        let mut stored = Vec::new();
        let level = if plain { None } else { self.shared.delta_up() };
        let (mut bytes, mut whole) = (0, 0);
        while let Some(block) = blocks.last() {
            let addressed = addressed(block);
            bytes += addressed.block.body.len() + 32 * addressed.block.references.len() + 64;
            whole += parcel_bytes(block);
            let too_many = bytes > bytes_max || riding.len() == blocks_max;
            if too_many || (level.is_some() && whole > ATTACHED_PLAIN_BYTES_MAX) {
                break;
            }
            stored.push(addressed);
            riding.extend(blocks.pop());
        }
        riding.reverse();
        stored.reverse();
        self.store_all(&blocks)?;
        let mut offered = Vec::new();
        let parcel = level.filter(|_| !riding.is_empty()).and_then(|level| {
            let prefix = self.shared.prefix(self.bases_riding(&riding));
            offered = prefix.mentioned();
            Parcel::pack(&prefix, &riding, level.into()).ok()
        });
        let attached = match parcel {
            Some(parcel) => Attached { blocks: Vec::new(), parcels: vec![parcel] },
            None => stored.into(),
        };
        Ok(AttachedBlocks { attached, offered, blocks: riding })
    }

    fn bases_riding(&self, riding: &[Arc<Block>]) -> Vec<Digest> {
        let mut bases = Vec::new();
        for block in riding {
            let candidates = match self.shared.unsent.lock().get(&block.reference().address) {
                Some(entry) => entry.base_candidates.clone(),
                None => continue,
            };
            bases.extend(self.shared.bases_of(std::slice::from_ref(block), &candidates));
        }
        let new: HashSet<Digest> = riding.iter().map(|block| block.reference().address).collect();
        bases.retain(|base| !new.contains(base));
        bases
    }

    /// Notes that the server lacks bases of blocks that were sent with an operation.
    pub fn bases_missing(&self, riding: &AttachedBlocks, missing: &[Digest]) {
        self.shared.without(missing, &riding.offered);
    }

    /// Stores blocks durably, with several batches under way at once.
    ///
    /// # Errors
    /// The first [`RpcError`].
    pub fn store_all(&self, blocks: &[Arc<Block>]) -> Result<(), RpcError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let (done, results) = channel();
        let mut sent = 0;
        let size = |block: &Arc<Block>| block.body().len() + 32 * block.references().len();
        for batch in batches(blocks, self.shared.job_bytes(), size) {
            let candidates = match self.shared.unsent.lock().get(&batch[0].reference().address) {
                Some(entry) => entry.base_candidates.clone(),
                None => Arc::default(),
            };
            let job = StoreJob {
                blocks: batch.to_vec(),
                base_candidates: candidates,
                ask: false,
                done: done.clone(),
            };
            self.lanes.storing.send(job).map_err(|_| RpcError::Closed)?;
            sent += 1;
        }
        (0..sent).try_for_each(|_| interrupt::receive(&results).unwrap_or(Err(RpcError::Closed)))
    }

    /// Called after the server was away: stores again the blocks reachable from `roots` that it had
    /// acknowledged and no longer has. A rebuilt server lacks all blocks to which no operation referred when
    /// it was lost.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn store_missing(&self, roots: Vec<Digest>) -> Result<(), RpcError> {
        let (mut open, mut seen, mut doubtful) = (roots, HashSet::new(), Vec::new());
        while let Some(address) = open.pop() {
            if !seen.insert(address) {
                continue;
            }
            let unsent = self.collect_one(&address);
            let is_doubtful = unsent.is_none() && self.shared.acknowledged.lock().contains(&address);
            let block = unsent.or_else(|| is_doubtful.then(|| self.shared.cached(&address)).flatten());
            let Some(block) = block else { continue };
            open.extend(block.references());
            if is_doubtful {
                doubtful.push(block);
            }
        }
        for batch in doubtful.chunks(BATCH_MAX) {
            let addresses = batch.iter().map(|block| block.reference().address).collect();
            let request = Request::Present(addresses);
            let here = match call_patiently(&*self.shared.remote, &request, self.shared.deadline)? {
                Response::Present(here) => here,
                other => return Err(unexpected("Present", &other)),
            };
            let missing = batch.iter().enumerate().filter(|(place, _)| !here.get(*place));
            let missing: Vec<Arc<Block>> = missing.map(|(_, block)| block.clone()).collect();
            self.store_all(&missing)?;
        }
        // Nothing is assumed about the other blocks any more.
        self.shared.acknowledged.lock().clear();
        Ok(())
    }

    /// Called after a restore of the server: no block that it had acknowledged or shown is assumed to be
    /// there.
    pub fn forget_acknowledged(&self) {
        self.shared.doubted.store(true, Relaxed);
        self.shared.acknowledged.lock().clear();
    }

    /// Notes that the server has taken blocks that were sent with an operation.
    pub fn acknowledge(&self, riding: &AttachedBlocks) {
        let parcels: usize = riding.attached.parcels.iter().map(Parcel::message_bytes).sum();
        let blocks: usize = riding.attached.blocks.iter().map(|block| block.block.body.len()).sum();
        if parcels > 0 {
            self.shared.packed(&riding.blocks, parcels);
        }
        self.shared.sent(&riding.blocks, parcels + blocks);
        if !riding.attached.blocks.is_empty() {
            let _ = self.lanes.keep.try_send(StoreTask::Blocks(riding.attached.blocks.clone()));
        }
    }
}

fn addressed(block: &Block) -> AddressedBlock {
    AddressedBlock { address: block.reference().address, block: block.to_stored() }
}

pub(super) fn piece(block: &Block) -> Piece {
    (block.reference().address, block.reference().length)
}
