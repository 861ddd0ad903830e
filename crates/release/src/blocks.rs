//! Fetches the blocks of a release from its mirrors.
//!
//! The client's verified store does the rest: caching, verification at every read, and sharing one request
//! among all readers that wait for it. Mirrors take the place of the server of a writable file system, and
//! answer one request of its protocol, RETRIEVE.
//!
//! An index says where blocks are. A mirror names the index, and it is not signed. So an index that lacks a
//! block proves nothing: before the block counts as missing, the indexes that other mirrors name are
//! consulted.

use crate::index::{self, BlockLocation, FIXED_BYTES, Head, Key, Sizes, key_of};
use crate::mirror::{Mirrors, OBJECTS, OBJECTS_MAX, Unavailable};
use crate::{layout, pack};
use holdfast_client::remote::Remote;
use holdfast_client::store::{VerifiedStore, WeakStore};
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_protocol::message::{AddressedBlock, Request, Response, ServerError, StoreHeader, Welcome};
use holdfast_rpc::RpcError;
use lru::LruCache;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An index of up to this size is fetched whole.
const WHOLE_INDEX_BYTES: u64 = 1 << 20;
/// Most pages of larger indexes that are cached.
const PAGES_KEPT: usize = 4096;
/// Most bytes of an index's head: at 8 bytes for each page of 128 blocks, enough for hundreds of millions of
/// blocks.
const HEAD_BYTES_MAX: u64 = 32 << 20;
/// Blocks of one pack are fetched with one request if the gap between them is smaller than this, in bytes.
const GAP_BYTES: u64 = 64 << 10;
/// Most bytes of one request.
const RANGE_BYTES_MAX: u64 = 4 << 20;
/// A small block is fetched together with so many bytes that follow it in its pack: these are its neighbours
/// in the tree.
const WINDOW_BYTES: u64 = 128 << 10;
/// For so many blocks it is remembered which mirror sent them.
const GIVERS_KEPT: usize = 4096;

/// The name of an index, as a mirror states it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IndexName {
    /// Digest of the file.
    pub digest: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

/// Mirrors as the server of blocks.
pub struct MirroredBlocks {
    mirrors: Arc<Mirrors>,
    /// The indexes in use, the likeliest first.
    indexes: Mutex<Vec<Arc<RemoteIndex>>>,
    /// Returns the indexes that mirrors name now; called when no known index has a block.
    more: Box<dyn Fn() -> Vec<IndexName> + Send + Sync>,
    /// The store for blocks that arrived without being asked for.
    beside: OnceLock<WeakStore>,
    /// For blocks that are not verified yet, the mirror that sent them.
    givers: Mutex<LruCache<Digest, String>>,
    received: AtomicU64,
}

/// An index at the mirrors.
struct RemoteIndex {
    name: IndexName,
    head: Head,
    /// All entries, if the index is small.
    whole: Option<Vec<u8>>,
    /// Pages that were needed, by their offsets.
    pages: Mutex<LruCache<u64, Arc<Vec<u8>>>>,
}

impl MirroredBlocks {
    /// The blocks at `mirrors`, without an index yet (see [`Self::use_index`]). `more` names further indexes
    /// when a block is in none of those in use.
    pub fn new(mirrors: Arc<Mirrors>, more: Box<dyn Fn() -> Vec<IndexName> + Send + Sync>) -> MirroredBlocks {
        MirroredBlocks {
            mirrors,
            indexes: Mutex::default(),
            more,
            beside: OnceLock::new(),
            givers: Mutex::new(LruCache::new(NonZeroUsize::new(GIVERS_KEPT).expect("not zero"))),
            received: AtomicU64::new(0),
        }
    }

    /// Sets the store for blocks that arrive without being asked for.
    pub fn set_beside(&self, store: &VerifiedStore) {
        let _ = self.beside.set(store.downgrade());
    }

    /// Prefers another index from now on, such as that of a newer release.
    ///
    /// # Errors
    /// [`Unavailable`]: no mirror has the index.
    pub fn use_index(&self, name: IndexName) -> Result<(), Unavailable> {
        if self.indexes.lock().first().is_some_and(|known| known.name == name) {
            return Ok(());
        }
        let index = Arc::new(RemoteIndex::open(&self.mirrors, name)?);
        let mut indexes = self.indexes.lock();
        indexes.retain(|known| known.name != name);
        indexes.insert(0, index);
        indexes.truncate(4);
        Ok(())
    }

    /// Reports that a block did not have its digest. Returns whether another mirror is left to ask for it.
    fn blame(&self, address: &Digest) -> bool {
        let Some(mirror) = self.givers.lock().pop(address) else { return false };
        self.mirrors.report_bad(&mirror, &format!("it gave something else as block {}", address.short()))
    }

    fn retrieve(&self, addresses: &[Digest]) -> Result<Vec<Option<StoredBlock>>, Unavailable> {
        let mut found: HashMap<Digest, StoredBlock> = HashMap::new();
        let mut known = self.indexes.lock().clone();
        let mut asked_for_more = false;
        // If one index lacks a block, another may have it.
        let mut unavailable = None;
        loop {
            for index in &known {
                let missing: Vec<Digest> =
                    addresses.iter().filter(|address| !found.contains_key(address)).copied().collect();
                if missing.is_empty() {
                    break;
                }
                self.retrieve_by(index, &missing, &mut found, &mut unavailable)?;
            }
            let complete = addresses.iter().all(|address| found.contains_key(address));
            if complete || std::mem::replace(&mut asked_for_more, true) {
                break;
            }
            let before: Vec<IndexName> = known.iter().map(|index| index.name).collect();
            for name in (self.more)() {
                if !before.contains(&name) {
                    // This fails if mirrors lack the index that one of them names.
                    let _ = self.use_index(name);
                }
            }
            known =
                self.indexes.lock().iter().filter(|index| !before.contains(&index.name)).cloned().collect();
        }
        match unavailable {
            // If a block is missing, the others are returned nevertheless.
            Some(error)
                if (found.is_empty() || !error.missing())
                    && addresses.iter().any(|address| !found.contains_key(address)) =>
            {
                Err(error)
            }
            _ => Ok(addresses.iter().map(|address| found.remove(address)).collect()),
        }
    }

    /// Fetches blocks that are at the origin from mirrors that reach it.
    fn retrieve_from_origin(
        &self,
        mut rest: Vec<Digest>,
        found: &mut HashMap<Digest, StoredBlock>,
    ) -> Result<(), Unavailable> {
        let mut lacking = None;
        while !rest.is_empty() {
            let batch = rest[..rest.len().min(OBJECTS_MAX)].to_vec();
            match self.mirrors.objects(&batch) {
                Ok((blocks, mirror)) => {
                    for AddressedBlock { address, block } in blocks {
                        self.received.fetch_add(block.body.len() as u64, Relaxed);
                        self.givers.lock().put(address, mirror.clone());
                        found.insert(address, block);
                    }
                    // At least one block has arrived, so the loop ends.
                    rest.retain(|address| !found.contains_key(address));
                }
                Err(error) if error.missing() => {
                    rest.drain(..batch.len());
                    lacking = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        lacking.map_or(Ok(()), Err)
    }

    fn retrieve_by(
        &self,
        index: &RemoteIndex,
        addresses: &[Digest],
        found: &mut HashMap<Digest, StoredBlock>,
        unavailable: &mut Option<Unavailable>,
    ) -> Result<(), Unavailable> {
        let mut locations = Vec::new();
        let mut at_origin = Vec::new();
        for address in addresses {
            match index.find(&self.mirrors, &key_of(address))? {
                Some(location) if location.is_at_origin() => at_origin.push(*address),
                Some(location) => locations.push((location, *address)),
                None => {}
            }
        }
        if let Err(error) = self.retrieve_from_origin(at_origin, found) {
            unavailable.get_or_insert(error);
        }
        locations.sort_unstable();
        let mut rest = &locations[..];
        while let Some((first, _)) = rest.first() {
            let mut end = u64::from(first.offset) + u64::from(first.bytes);
            let start = u64::from(first.offset);
            let mut count = 1;
            for (location, _) in &rest[1..] {
                let begin = u64::from(location.offset);
                let longer = begin + u64::from(location.bytes);
                if location.pack != first.pack || begin > end + GAP_BYTES || longer - start > RANGE_BYTES_MAX
                {
                    break;
                }
                end = end.max(longer);
                count += 1;
            }
            let (group, after) = rest.split_at(count);
            rest = after;
            let pack = index.head.packs[first.pack as usize];
            if addresses.len() == 1 && end - start < WINDOW_BYTES {
                end = (start + WINDOW_BYTES).min(pack.bytes);
            }
            match self.fetch(&layout::pack(&pack.digest), start..end, group, found) {
                Ok(()) => {}
                // The index does not match the mirror's packs; another index may.
                Err(error) if error.disputed() => drop(unavailable.get_or_insert(error)),
                Err(error) if error.missing_somewhere() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fetches a range of a pack that holds the `wanted` blocks and perhaps others.
    fn fetch(
        &self,
        file: &str,
        range: Range<u64>,
        wanted: &[(BlockLocation, Digest)],
        found: &mut HashMap<Digest, StoredBlock>,
    ) -> Result<(), Unavailable> {
        let start = range.start;
        let check = |bytes: Vec<u8>| {
            for (location, address) in wanted {
                let at = (u64::from(location.offset) - start) as usize;
                let frame = bytes.get(at..).and_then(pack::Frame::first);
                if frame.is_none_or(|(frame, _)| frame.address != *address) {
                    return Err(format!("block {} is not where it should be", address.short()).into());
                }
            }
            Ok(bytes)
        };
        // The location comes from an unsigned index that one mirror has named.
        let (bytes, mirror) = self.mirrors.get_fitting(file, range, &wanted[0].1, &check)?;
        self.received.fetch_add(bytes.len() as u64, Relaxed);
        let mut beside = Vec::new();
        for frame in pack::Frame::all(&bytes) {
            let Some(stored) = frame.stored() else { continue };
            if wanted.iter().any(|(_, address)| *address == frame.address) {
                self.givers.lock().put(frame.address, mirror.clone());
                found.entry(frame.address).or_insert(stored);
            } else {
                beside.push(AddressedBlock { address: frame.address, block: stored });
            }
        }
        if let Some(store) = self.beside.get().and_then(WeakStore::upgrade) {
            store.accept_hints(beside);
        }
        Ok(())
    }
}

impl Remote for MirroredBlocks {
    fn call(&self, request: Request, _deadline: Duration) -> Result<Response, RpcError> {
        let Request::Retrieve(addresses) = request else {
            return Err(RpcError::Server(ServerError::Invalid("a release is for reading only".into())));
        };
        let header = StoreHeader { owner: DeviceId(0), stored_ns: 0 };
        match self.retrieve(&addresses) {
            Ok(blocks) => {
                let addressed = |(block, address): (Option<StoredBlock>, &Digest)| {
                    block.map(|block| (header.clone(), AddressedBlock { address: *address, block }))
                };
                Ok(Response::Blocks(blocks.into_iter().zip(&addresses).map(addressed).collect()))
            }
            // Mirrors have been asked again where that could help.
            Err(error) if error.file == OBJECTS => Err(RpcError::NotHad(format!(
                "{error}; the data of this release lies at the live file system that it was made of, and only a mirror \
                 that reaches that has it"
            ))),
            Err(error) => Err(RpcError::NotHad(error.to_string())),
        }
    }

    fn welcome(&self) -> Option<Welcome> {
        None
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn traffic(&self) -> (u64, u64) {
        (0, self.received.load(Relaxed))
    }

    fn altered(&self, address: &Digest) -> bool {
        self.blame(address)
    }
}

impl RemoteIndex {
    fn open(mirrors: &Mirrors, name: IndexName) -> Result<RemoteIndex, Unavailable> {
        let file = layout::index(&name.digest);
        let pages = Mutex::new(LruCache::new(NonZeroUsize::new(PAGES_KEPT).expect("not zero")));
        if name.bytes <= WHOLE_INDEX_BYTES {
            let check = |mut bytes: Vec<u8>| {
                if DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &bytes) != name.digest {
                    return Err("its content is not what its name says".into());
                }
                let head = Head::read(&bytes)?;
                let entries = bytes.split_off(head.sizes.head_bytes() as usize);
                Ok((head, entries))
            };
            let ((head, whole), _) = mirrors.get_checked(&file, None, name.bytes, &check)?;
            return Ok(RemoteIndex { name, head, whole: Some(whole), pages });
        }
        let sizes = |bytes: Vec<u8>| {
            let sizes = Sizes::read(&bytes)?;
            match sizes.bytes() == name.bytes && sizes.head_bytes() <= HEAD_BYTES_MAX {
                true => Ok(sizes),
                false => Err("it has another size than was said".into()),
            }
        };
        let fixed = Some(0..FIXED_BYTES as u64);
        let (sizes, _) = mirrors.get_checked(&file, fixed, FIXED_BYTES as u64, &sizes)?;
        let read = |bytes: Vec<u8>| Ok(Head::read(&bytes)?);
        let length = sizes.head_bytes();
        let (head, _) = mirrors.get_checked(&file, Some(0..length), length, &read)?;
        Ok(RemoteIndex { name, head, whole: None, pages })
    }

    fn find(&self, mirrors: &Mirrors, key: &Key) -> Result<Option<BlockLocation>, Unavailable> {
        if let Some(entries) = &self.whole {
            return Ok(self.head.find(entries, key));
        }
        let range = self.head.range_of(key);
        if range.is_empty() {
            return Ok(None);
        }
        let known = self
            .pages
            .lock()
            .get(&range.start)
            .filter(|page| page.len() as u64 >= range.end - range.start)
            .cloned();
        let page = match known {
            Some(page) => page,
            None => {
                let length = range.end - range.start;
                let check = |bytes: Vec<u8>| match bytes.len() as u64 == length {
                    true => Ok(Arc::new(bytes)),
                    false => Err("it is cut short".into()),
                };
                let file = layout::index(&self.name.digest);
                let (page, _) = mirrors.get_checked(&file, Some(range.clone()), length, &check)?;
                self.pages.lock().put(range.start, page.clone());
                page
            }
        };
        let whole = page.len() / index::ENTRY_BYTES * index::ENTRY_BYTES;
        Ok(self.head.find(&page[..whole], key))
    }
}
