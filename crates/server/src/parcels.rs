//! Unpacks and packs parcels for clients, and compares two trees to find the blocks that the older one lacks.
//!
//! Invariants:
//! - A parcel copies only from blocks of the file system that it belongs to, so it reveals nothing of others.
//! - Unpacked blocks have been hashed here, and are stored like any other block.
//! - A request is weighed ([`weight`]) before a base is read or a buffer allocated, so that all requests
//!   together stay within a memory budget.

use crate::block_store::{BlockStore, sound, stored_bytes};
use crate::blocks::check_count;
use crate::refusal::{RequestError, refuse};
use holdfast_content::{
    BODY_BYTES_MAX, Base, BaseError, Block, PARCEL_BLOCKS_MAX, PARCEL_PLAIN_BYTES_MAX,
    PARCEL_PREFIX_BYTES_MAX, Parcel, ParcelError, Prefix, StoredBlock, parcel_bytes,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::block_server::LoadedBlock;
use holdfast_protocol::message::{BATCH_MAX, MESSAGE_BYTES_MAX, Request, Response, TREE_HAVE_MAX, TreeData};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Most bytes of a parcel in a reply. The rest of the message is for its other fields.
const ANSWER_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (256 << 10);
/// Most bytes of bases of a parcel that the server packs.
const PREFIX_BYTES_MAX: usize = 16 << 20;
/// Most parcels in one request.
const PARCELS_MAX: usize = 64;
/// Most blocks visited in each of the two trees of a walk.
const WALK_MAX: usize = 1 << 14;
/// Highest compression level while the limit of parcels at higher levels is reached. Clients on most slow
/// links ask for this level. Level 1 finds clearly fewer of the bytes that a delta could save.
const LEVEL_LOW: i32 = 3;
/// Most new blocks of data that come along with a tree even if it has little in common with what the client
/// has.
const UNRELATED_MAX: usize = 4;
/// Most blocks whose references one call to the block store reads.
const REFERENCES_AT_ONCE: usize = 512;
/// How many bytes of blocks one call to the block store loads ahead.
const AHEAD_BYTES: usize = 1 << 20;
/// Most requests of one connection that pack or unpack parcels at the same time.
pub(crate) const AT_ONCE: usize = 2;

/// What parcels may cost a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParcelSettings {
    /// Highest zstd level at which the server packs.
    pub level_max: u8,
    /// How many parcels the server packs at the same time at levels above 3.
    pub at_once: usize,
    /// Memory, in bytes, for all requests with parcels together. Requests beyond that wait.
    pub memory_bytes: usize,
}

impl Default for ParcelSettings {
    fn default() -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, |threads| threads.get().div_ceil(2));
        ParcelSettings { level_max: 9, at_once, memory_bytes: 256 << 20 }
    }
}

/// The parcel settings, with what requests use of them at the moment.
pub(crate) struct ParcelLimits {
    settings: ParcelSettings,
    packing: Semaphore,
    /// The memory budget of all requests with parcels; one permit is one KiB.
    memory: Arc<Semaphore>,
}

impl ParcelLimits {
    pub(crate) fn new(settings: ParcelSettings) -> ParcelLimits {
        let memory = Arc::new(Semaphore::new(settings.memory_bytes / 1024));
        ParcelLimits { settings, packing: Semaphore::new(settings.at_once), memory }
    }

    /// Waits until there is memory for a request. A request that needs more than the whole budget gets the
    /// whole budget.
    pub(crate) async fn memory_for(&self, weight: u32) -> OwnedSemaphorePermit {
        let weight = weight.min((self.settings.memory_bytes / 1024) as u32);
        self.memory.clone().acquire_many_owned(weight).await.expect("it is never closed")
    }

    /// The compression level to use for a caller that asked for `wanted`, with the permit to compress at it.
    fn level(&self, wanted: i8) -> (i32, Option<SemaphorePermit<'_>>) {
        let wanted = i32::from(wanted).clamp(1, self.settings.level_max.max(1).into());
        match wanted > LEVEL_LOW {
            true => match self.packing.try_acquire() {
                Ok(permit) => (wanted, Some(permit)),
                Err(_) => (LEVEL_LOW, None),
            },
            false => (wanted, None),
        }
    }
}

/// The result of unpacking parcels.
pub(crate) enum Unpacked {
    /// The blocks, each hashed and checked against its address.
    Blocks(Vec<(Digest, StoredBlock)>),
    /// Nothing was unpacked, because the server does not have these bases.
    BasesMissing(Vec<Digest>),
}

fn bad(error: ParcelError) -> RequestError {
    holdfast_protocol::message::ServerError::Invalid(error.to_string()).into()
}

/// The memory that a request needs while it is carried out, beyond its own bytes: an estimate in KiB. It is 0
/// for a request without parcels.
pub(crate) fn weight(request: &Request) -> u32 {
    let block = BODY_BYTES_MAX as usize;
    let opening = |parcels: &[Parcel]| {
        let largest =
            parcels.iter().map(|parcel| Base::count(&parcel.bases).saturating_mul(block).min(32 << 20)).max();
        let plain: usize = parcels.iter().map(|parcel| parcel.plain_bytes as usize).sum();
        largest.map_or(0, |prefix| prefix + 3 * plain.min(PARCEL_PLAIN_BYTES_MAX as usize))
    };
    // Prefix, payload, blocks and frame, and the compressor's tables, which grow with the first two.
    let packing = |bases: usize, plain: usize| {
        let (prefix, plain) = (bases.min(PREFIX_BYTES_MAX), plain.min(PARCEL_PLAIN_BYTES_MAX as usize));
        6 * (prefix + plain)
    };
    let bytes = match request {
        Request::StoreParcels(parcels) => opening(parcels),
        Request::Update { attached, .. }
        | Request::Fast { attached, .. }
        | Request::Commit { attached, .. } => opening(&attached.parcels),
        Request::RetrieveParcel { wanted, bases, .. } => {
            packing(Base::count(bases).saturating_mul(block), wanted.len().saturating_mul(block))
        }
        Request::RetrieveTree { bytes_max, .. } => packing(PREFIX_BYTES_MAX, *bytes_max as usize),
        _ => 0,
    };
    bytes.div_ceil(1024) as u32
}

/// Takes the blocks out of parcels, or says which bases are missing.
pub(crate) fn unpack(
    store: &dyn BlockStore,
    file_system: Digest,
    parcels: Vec<Parcel>,
    plain_bytes_max: usize,
) -> Result<Unpacked, RequestError> {
    if parcels.len() > PARCELS_MAX {
        return refuse(format!("{} parcels at once; at most {PARCELS_MAX}", parcels.len()));
    }
    let plain: usize = parcels.iter().map(|parcel| parcel.plain_bytes as usize).sum();
    if plain > plain_bytes_max {
        return refuse(format!("{plain} bytes of blocks in parcels; at most {plain_bytes_max}"));
    }
    let all: Vec<Base> = parcels.iter().flat_map(|parcel| parcel.bases.iter().cloned()).collect();
    // The check covers all parcels together, so that one message cannot make the server look up many nodes.
    Base::check(&all).map_err(bad)?;
    for parcel in &parcels {
        parcel.check().map_err(bad)?;
    }
    let bases = match Base::addresses(&all, |node| references(store, file_system, node)) {
        Ok(bases) => bases,
        Err(BaseError::Missing(node)) => return Ok(Unpacked::BasesMissing(vec![node])),
        Err(BaseError::Bad(error)) => return Err(bad(error)),
        Err(BaseError::Unread(refused)) => return Err(refused),
    };
    let here = store.contains(file_system, &bases)?;
    let missing: Vec<Digest> =
        bases.iter().zip(here).filter(|(_, here)| !here).map(|(address, _)| *address).collect();
    if !missing.is_empty() {
        return Ok(Unpacked::BasesMissing(missing));
    }
    let mut unpacked = Vec::new();
    // This counts over all parcels: a small message must not make the server read the same bases many times.
    let mut prefix_bytes = 0;
    let mut rest = bases.as_slice();
    for parcel in parcels {
        let mut prefix = Prefix::default();
        let (own, others) = rest.split_at(Base::count(&parcel.bases));
        rest = others;
        let mut ahead = ReadAhead::new(store, file_system, own.iter().copied());
        while let Some((base, found)) = ahead.next()? {
            // A base that turns out damaged, or was removed since the check above, counts as missing.
            let Some((block, _)) = found else {
                return Ok(Unpacked::BasesMissing(vec![base]));
            };
            if prefix_bytes + parcel_bytes(&block) > PARCEL_PREFIX_BYTES_MAX || !prefix.push(&block) {
                return refuse(format!("over {PARCEL_PREFIX_BYTES_MAX} bytes of bases in parcels at once"));
            }
            prefix_bytes += parcel_bytes(&block);
        }
        let prefix = prefix.named(parcel.bases.clone());
        let blocks = parcel.open(&DigestKey::WELL_KNOWN, &prefix).map_err(bad)?;
        drop(prefix);
        if unpacked.len() + blocks.len() > BATCH_MAX {
            return refuse(format!("more than {BATCH_MAX} blocks in parcels at once"));
        }
        unpacked.extend(blocks.into_iter().map(|block| (block.reference().address, block.to_stored())));
    }
    Ok(Unpacked::Blocks(unpacked))
}

/// The references of a block; `None` if the block is not here, or is damaged.
fn references(
    store: &dyn BlockStore,
    file_system: Digest,
    address: &Digest,
) -> Result<Option<Vec<Digest>>, RequestError> {
    Ok(store.references(file_system, &[*address])?.pop().flatten())
}

/// A block, unpacked and checked, with its size in the store in bytes; `None` if it is not here, or is
/// damaged.
type UnpackedBlock = Option<(Block, usize)>;

/// Loads blocks in a given sequence, several with one call if the block store advises that.
struct ReadAhead<'a, I: Iterator<Item = Digest>> {
    store: &'a dyn BlockStore,
    file_system: Digest,
    left: std::iter::Peekable<I>,
    requested: VecDeque<Digest>,
    loaded: VecDeque<LoadedBlock>,
}

impl<'a, I: Iterator<Item = Digest>> ReadAhead<'a, I> {
    fn new(store: &'a dyn BlockStore, file_system: Digest, addresses: I) -> Self {
        let (requested, loaded) = (VecDeque::new(), VecDeque::new());
        ReadAhead { store, file_system, left: addresses.peekable(), requested, loaded }
    }

    fn next(&mut self) -> Result<Option<(Digest, UnpackedBlock)>, RequestError> {
        if self.loaded.is_empty() {
            while self.requested.len() < self.store.batch()
                && let Some(address) = self.left.next()
            {
                self.requested.push_back(address);
            }
            if self.requested.is_empty() {
                return Ok(None);
            }
            let requested: Vec<Digest> = self.requested.iter().copied().collect();
            self.loaded = self.store.load(self.file_system, &requested, AHEAD_BYTES)?.into();
        }
        let (Some(loaded), Some(address)) = (self.loaded.pop_front(), self.requested.pop_front()) else {
            return Ok(None);
        };
        let (file_system, stored) = (self.file_system, sound(loaded, self.file_system, &address));
        let Some((_, stored)) = stored else { return Ok(Some((address, None))) };
        let bytes = stored_bytes(&stored);
        match stored.open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX) {
            Ok(block) => Ok(Some((address, Some((block, bytes))))),
            Err(error) => {
                tracing::error!(%file_system, %address, %error, "a block is damaged; answering that it is missing");
                Ok(Some((address, None)))
            }
        }
    }
}

/// Gathers blocks for the parcel of a reply. The most important ones are added first.
struct ParcelBuilder {
    /// The blocks, each with its depth in the tree.
    blocks: Vec<(usize, Block)>,
    plain: usize,
    stored: usize,
    plain_max: usize,
}

impl ParcelBuilder {
    fn new(plain_max: usize) -> ParcelBuilder {
        let plain_max = plain_max.min(PARCEL_PLAIN_BYTES_MAX as usize);
        ParcelBuilder { blocks: Vec::new(), plain: 0, stored: 0, plain_max }
    }

    /// Adds a block if it fits, and returns whether it did. The first block is always added.
    fn take(&mut self, depth: usize, (block, stored): (Block, usize)) -> bool {
        let plain = parcel_bytes(&block);
        let fits = self.blocks.len() < PARCEL_BLOCKS_MAX
            && self.plain + plain <= self.plain_max
            && self.stored + stored <= ANSWER_BYTES_MAX;
        let taken = fits || self.blocks.is_empty();
        if taken {
            self.plain += plain;
            self.stored += stored;
            self.blocks.push((depth, block));
        }
        taken
    }

    /// Packs the gathered blocks, the deepest first. If the parcel is too large for a message, it drops the
    /// half that was added last, and tries again. Also returns how many blocks are in the parcel.
    fn pack(mut self, prefix: &Prefix, level: i32) -> Result<(Option<Parcel>, usize), RequestError> {
        while !self.blocks.is_empty() {
            let mut order: Vec<&(usize, Block)> = self.blocks.iter().collect();
            order.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
            let order: Vec<&Block> = order.into_iter().map(|(_, block)| block).collect();
            let parcel = Parcel::pack(prefix, &order, level).map_err(bad)?;
            if parcel.message_bytes() <= ANSWER_BYTES_MAX || self.blocks.len() == 1 {
                return Ok((Some(parcel), self.blocks.len()));
            }
            self.blocks.truncate(self.blocks.len() / 2);
        }
        Ok((None, 0))
    }
}

/// A prefix of those bases that are here, in the given sequence, up to [`PREFIX_BYTES_MAX`].
fn prefix_of<'a>(
    store: &dyn BlockStore,
    file_system: Digest,
    bases: impl Iterator<Item = &'a Digest>,
) -> Result<Prefix, RequestError> {
    let mut prefix = Prefix::default();
    let mut ahead = ReadAhead::new(store, file_system, bases.copied());
    while let Some((_, found)) = ahead.next()? {
        let Some((block, _)) = found else { continue };
        if prefix.len() + parcel_bytes(&block) > PREFIX_BYTES_MAX || !prefix.push(&block) {
            break;
        }
    }
    Ok(prefix)
}

/// Answers a `RetrieveParcel`.
pub(crate) fn retrieve(
    store: &dyn BlockStore,
    limits: &ParcelLimits,
    file_system: Digest,
    wanted: &[Digest],
    bases: &[Base],
    level: i8,
) -> Result<Response, RequestError> {
    check_count(wanted.len())?;
    Base::check(bases).map_err(bad)?;
    if wanted.is_empty() {
        return refuse("a parcel of nothing");
    }
    let mut gathered = ParcelBuilder::new(PARCEL_PLAIN_BYTES_MAX as usize);
    let (mut missing, mut places) = (Vec::new(), Vec::new());
    let mut covered = wanted.len();
    let mut ahead = ReadAhead::new(store, file_system, wanted.iter().copied());
    for place in 0..wanted.len() {
        let Some((address, found)) = ahead.next()? else { break };
        match found {
            None => missing.push((place, address)),
            Some(found) => {
                if !gathered.take(0, found) {
                    covered = place;
                    break;
                }
                places.push(place);
            }
        }
    }
    let bases = if places.is_empty() { &[] } else { bases };
    let mut offered = Vec::new();
    for base in bases {
        match Base::addresses(std::slice::from_ref(base), |node| references(store, file_system, node)) {
            Ok(some) => offered.extend(some),
            Err(BaseError::Missing(_)) => {}
            Err(BaseError::Bad(error)) => return Err(bad(error)),
            Err(BaseError::Unread(refused)) => return Err(refused),
        }
    }
    let mut prefix = prefix_of(store, file_system, offered.iter())?;
    if prefix.bases().len() == Base::count(bases) {
        prefix = prefix.named(bases.to_vec());
    }
    let (level, _packing) = limits.level(level);
    let (parcel, packed) = gathered.pack(&prefix, level)?;
    if let Some(place) = places.get(packed) {
        covered = *place;
        missing.retain(|(place, _)| *place < covered);
    }
    let missing = missing.into_iter().map(|(_, address)| address).collect();
    Ok(Response::Parcel { parcel, covered: covered as u32, missing })
}

/// The fields of a `RetrieveTree`.
pub(crate) struct TreeRequest<'a> {
    pub(crate) root: Digest,
    pub(crate) have: &'a [Digest],
    pub(crate) data: TreeData,
    pub(crate) bytes_max: u32,
    pub(crate) level: i8,
}

/// Answers a `RetrieveTree`.
pub(crate) fn retrieve_tree(
    store: &dyn BlockStore,
    limits: &ParcelLimits,
    file_system: Digest,
    request: TreeRequest<'_>,
) -> Result<Response, RequestError> {
    let TreeRequest { root, have, data, bytes_max, level } = request;
    if have.len() > TREE_HAVE_MAX {
        return refuse(format!("{} trees to do without; at most {TREE_HAVE_MAX}", have.len()));
    }
    let (mut wanted, mut had) = (TreeWalk::new(&[root]), TreeWalk::new(have));
    // Both walks go down level by level, so that subtrees that are in both are found before either walk
    // enters them.
    while wanted.step(store, file_system, &had.seen)? {
        had.step(store, file_system, &wanted.seen)?;
    }
    // The wanted tree is walked again, now that everything on the other side is known. In the first walk, a
    // tree that has become lower meets equal subtrees too early.
    wanted = TreeWalk::new(&[root]);
    while wanted.step(store, file_system, &had.seen)? {}
    let mut complete = !wanted.cut_off;
    let with_data = match data {
        TreeData::Never => false,
        TreeData::Always => true,
        TreeData::IfRelated => {
            let new = wanted.without(&had).filter(|(_, address)| wanted.data.contains(address)).count();
            // Neither walk enters a subtree that is in both, so the references of its root are counted too.
            let mut common = 0;
            let both: Vec<Digest> = wanted.seen.intersection(&had.seen).copied().collect();
            for both in both.chunks(REFERENCES_AT_ONCE) {
                for below in store.references(file_system, both)? {
                    common += below.map_or(0, |below| below.len()).max(1);
                }
            }
            new <= UNRELATED_MAX || new <= common
        }
    };
    let mut gathered = ParcelBuilder::new(bytes_max as usize);
    let is_left_out = |address: &Digest| !with_data && wanted.data.contains(address);
    complete &= !wanted.without(&had).any(|(_, address)| is_left_out(address));
    let taken: Vec<(usize, Digest)> =
        wanted.without(&had).filter(|(_, address)| !is_left_out(address)).copied().collect();
    let mut ahead = ReadAhead::new(store, file_system, taken.iter().map(|(_, address)| *address));
    for (depth, _) in &taken {
        let Some((_, found)) = ahead.next()? else { break };
        match found {
            Some(found) => {
                if !gathered.take(*depth, found) {
                    complete = false;
                    break;
                }
            }
            None => complete = false,
        }
    }
    let mut bases: Vec<&(usize, Digest)> = had.without(&wanted).collect();
    if gathered.blocks.is_empty() {
        bases.clear();
    }
    // The sequence of the payload: unchanged blocks then lie at the same distance from their bases.
    bases.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    let prefix = prefix_of(store, file_system, bases.into_iter().map(|(_, address)| address))?;
    let names = Base::name(prefix.bases(), |address| had.place(address));
    let prefix = prefix.named(names);
    let taken = gathered.blocks.len();
    let (level, _packing) = limits.level(level);
    let (parcel, packed) = gathered.pack(&prefix, level)?;
    Ok(Response::Tree { parcel, complete: complete && packed == taken })
}

/// The walk of one of two trees that are compared.
struct TreeWalk {
    /// Every block met, with its depth, in the sequence in which they were met.
    order: Vec<(usize, Digest)>,
    seen: HashSet<Digest>,
    /// The parent through which each block was reached: its index in `order`, and which of its references it
    /// was.
    places: HashMap<Digest, (usize, u16)>,
    /// Blocks that refer to nothing.
    data: HashSet<Digest>,
    /// Index in `order` at which the next level to be walked begins.
    level: usize,
    depth: usize,
    /// Whether the tree was too large to be walked to its end.
    cut_off: bool,
}

impl TreeWalk {
    fn new(roots: &[Digest]) -> TreeWalk {
        let mut side = TreeWalk {
            order: Vec::new(),
            seen: HashSet::new(),
            places: HashMap::new(),
            data: HashSet::new(),
            level: 0,
            depth: 0,
            cut_off: false,
        };
        for root in roots {
            side.meet(*root);
        }
        side
    }

    /// Notes a block that was reached. Returns false if it was met before.
    fn meet(&mut self, address: Digest) -> bool {
        let new = self.seen.insert(address);
        if new {
            self.order.push((self.depth, address));
        }
        new
    }

    /// Through which node a block was first met, and which of that node's references it was.
    fn place(&self, address: &Digest) -> Option<(Digest, u16)> {
        let (node, place) = self.places.get(address)?;
        Some((self.order[*node].1, *place))
    }

    /// The blocks that this walk has met and the other has not.
    fn without<'a>(&'a self, other: &'a TreeWalk) -> impl Iterator<Item = &'a (usize, Digest)> {
        self.order.iter().filter(|(_, address)| !other.seen.contains(address))
    }

    /// Walks one level further down, except into blocks that the other walk has met too. Returns false when
    /// there was no further level, or the tree is too large.
    fn step(
        &mut self,
        store: &dyn BlockStore,
        file_system: Digest,
        other: &HashSet<Digest>,
    ) -> Result<bool, RequestError> {
        let level = self.level..self.order.len();
        self.level = level.end;
        self.depth += 1;
        let wanted: Vec<usize> =
            level.clone().filter(|place| !other.contains(&self.order[*place].1)).collect();
        for places in wanted.chunks(REFERENCES_AT_ONCE) {
            let addresses: Vec<Digest> = places.iter().map(|place| self.order[*place].1).collect();
            let found = store.references(file_system, &addresses)?;
            for (place, references) in places.iter().zip(found) {
                // A block that is absent or damaged is reported when it is read.
                if !self.enter(*place, references.unwrap_or_default()) {
                    return Ok(false);
                }
            }
        }
        Ok(!level.is_empty())
    }

    /// Notes the references of a node. Returns `false` when the tree is too large.
    fn enter(&mut self, place: usize, references: Vec<Digest>) -> bool {
        if references.is_empty() {
            self.data.insert(self.order[place].1);
        }
        for (at, reference) in references.into_iter().enumerate() {
            if self.order.len() == WALK_MAX {
                self.cut_off = true;
                return false;
            }
            if self.meet(reference)
                && let Ok(at) = u16::try_from(at)
            {
                self.places.insert(reference, (place, at));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{PARCEL_BASES_MAX, PARCEL_OPENING_BYTES_MAX};

    fn limits(at_once: usize, memory_bytes: usize) -> ParcelLimits {
        ParcelLimits::new(ParcelSettings { level_max: 9, at_once, memory_bytes })
    }

    fn parcel(bases: usize, plain_bytes: u32) -> Parcel {
        Parcel { bases: vec![Base::Block(Digest::ZERO); bases], plain_bytes, frame: Vec::new() }
    }

    /// Proves: no request weighs more than the default budget, nor less than the memory it may take; and a
    /// request without parcels weighs nothing.
    #[test]
    fn every_request_fits_into_the_budget() {
        let budget = (ParcelSettings::default().memory_bytes / 1024) as u32;
        let all = vec![Digest::ZERO; BATCH_MAX];
        let opening = Request::StoreParcels(vec![parcel(PARCEL_BASES_MAX, PARCEL_PLAIN_BYTES_MAX)]);
        let lying = Request::StoreParcels(vec![parcel(PARCEL_BASES_MAX, u32::MAX); 100]);
        let wanting = Request::RetrieveParcel {
            wanted: all.clone(),
            bases: all.into_iter().map(Base::Block).collect(),
            level: 9,
        };
        let tree = Request::RetrieveTree {
            root: Digest::ZERO,
            have: vec![],
            data: TreeData::Always,
            bytes_max: u32::MAX,
            level: 9,
        };
        for request in [&opening, &lying, &wanting, &tree] {
            assert!(weight(request) <= budget, "{request:?}");
        }
        assert!(weight(&opening) as usize * 1024 >= PARCEL_OPENING_BYTES_MAX - (1 << 20));
        let small = Request::StoreParcels(vec![parcel(1, 1000)]);
        assert!((1..=1100).contains(&weight(&small)), "{}", weight(&small));
        assert_eq!(weight(&Request::Ping) + weight(&Request::Store(vec![])), 0);
    }

    /// Proves: requests wait for memory in turn; a request that needs more than the budget runs alone; and a
    /// request that ends gives back its memory.
    #[tokio::test]
    async fn requests_wait_for_memory() {
        let limits = limits(1, 100 << 10);
        let (first, second) = (limits.memory_for(60).await, limits.memory_for(40).await);
        let mut third = std::pin::pin!(limits.memory_for(1 << 20));
        let now = std::time::Duration::ZERO;
        assert!(tokio::time::timeout(now, &mut third).await.is_err(), "all is taken");
        drop(first);
        assert!(tokio::time::timeout(now, &mut third).await.is_err(), "it wants all there is");
        drop(second);
        let third = third.await;
        assert_eq!(third.num_permits(), 100);
    }

    /// Proves: levels stay within what the operator set, and only the set number of parcels is packed at a
    /// high level at the same time.
    #[test]
    fn levels_are_bounded() {
        let limits = limits(2, 1 << 20);
        let level = |wanted| limits.level(wanted);
        assert_eq!((level(i8::MAX).0, level(5).0, level(0).0, level(i8::MIN).0), (9, 5, 1, 1));
        let (first, second) = (level(9), level(9));
        assert_eq!(level(9).0, 3, "two are under way");
        drop(first);
        assert_eq!((level(9).0, second.0), (9, 9));
    }
}
