//! The store to which a publisher writes blocks: packs, with each block once.

use super::PublishError;
use crate::index::{BadIndex, BlockLocation, Index, Key, PACK_BYTES_MAX, PackName, key_of};
use crate::{layout, pack};
use holdfast_client::store::MemoryCache;
use holdfast_content::{Block, BlockKind, BlockSink, BlockSource, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestHasher, DigestKey, Domain};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// A pack of the small lane is closed at this size. A client that browses fetches pieces of it; a mirror that
/// is updated fetches all of it.
const SMALL_PACK_BYTES: u64 = 8 << 20;
/// A pack of large files is closed at this size.
const LARGE_PACK_BYTES: u64 = 64 << 20;
/// Bytes of tree nodes cached to be read again while a directory grows.
const NODE_BYTES: usize = 64 << 20;
/// Most blocks that are compressed at once.
pub(super) const QUEUE_BLOCKS: usize = 64;

const _: () = assert!(LARGE_PACK_BYTES + (pack::FRAME_BYTES_MAX as u64) < PACK_BYTES_MAX);

/// The packs a block goes to: blocks of small files and directories lie together, apart from those of large
/// files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Directories, inodes and small files.
    Small,
    /// Content of large files.
    Large,
}

/// The blocks of a release directory, and those that are being added.
pub struct PackStore {
    key: DigestKey,
    level: i32,
    directory: PathBuf,
    lane: Cell<Lane>,
    state: RefCell<StoreState>,
    compressors: Compressors,
}

struct StoreState {
    /// Every block with its location; `None` while it is being compressed.
    locations: HashMap<Key, Option<BlockLocation>>,
    /// Blocks that the origin has, whether they are in a pack too or not.
    origin: HashSet<Key>,
    /// Packs by number; `None` while a pack is being written and its digest is not final.
    packs: Vec<Option<PackName>>,
    open: [Option<OpenPack>; 2],
    queue: VecDeque<QueuedBlock>,
    nodes: MemoryCache,
    new_blocks: u64,
    new_bytes: u64,
    new_at_origin: u64,
    /// The first failure. Nothing is written after it.
    failed: Option<PublishError>,
}

struct QueuedBlock {
    lane: Lane,
    address: Digest,
    stored: Receiver<StoredBlock>,
}

struct OpenPack {
    number: u32,
    file: File,
    path: PathBuf,
    bytes: u64,
    hasher: DigestHasher,
}

/// What was added to a release directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Added {
    /// Blocks that were not there before.
    pub blocks: u64,
    /// The bytes of those blocks as stored in packs.
    pub bytes: u64,
    /// Blocks at the origin that nothing referred to before.
    pub at_origin: u64,
}

impl PackStore {
    /// Opens the packs of a release in `directory`, whose present index is `index`. New blocks are compressed
    /// by `threads` threads at zstd's `level`.
    ///
    /// # Errors
    /// [`PublishError`]: the folder for packs cannot be made.
    pub fn open(
        directory: &Path,
        key: DigestKey,
        index: &Index,
        level: i32,
        threads: usize,
    ) -> Result<PackStore, PublishError> {
        let packs = directory.join("packs");
        fs::create_dir_all(&packs).map_err(|error| PublishError::local(&packs, &error))?;
        let in_pack = |(_, location): &&(Key, BlockLocation)| !location.is_at_origin();
        let state = StoreState {
            locations: index
                .entries
                .iter()
                .filter(in_pack)
                .map(|(key, location)| (*key, Some(*location)))
                .collect(),
            origin: index.entries.iter().filter(|entry| !in_pack(entry)).map(|(key, _)| *key).collect(),
            packs: index.packs.iter().copied().map(Some).collect(),
            open: [None, None],
            queue: VecDeque::new(),
            nodes: MemoryCache::new(NODE_BYTES),
            new_blocks: 0,
            new_bytes: 0,
            new_at_origin: 0,
            failed: None,
        };
        Ok(PackStore {
            key,
            level,
            directory: directory.to_owned(),
            lane: Cell::new(Lane::Small),
            state: RefCell::new(state),
            compressors: Compressors::start(threads),
        })
    }

    /// Sets the lane of the blocks that follow.
    pub fn set_lane(&self, lane: Lane) {
        self.lane.set(lane);
    }

    /// The release directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The key of the digests.
    pub(super) fn key(&self) -> DigestKey {
        self.key
    }

    /// A block as it is stored in a pack; `None` if it is in no pack.
    pub(super) fn stored(&self, address: &Digest) -> Result<Option<StoredBlock>, String> {
        self.read(address)
    }

    /// Whether a block is in a pack, or about to be.
    pub fn has(&self, address: &Digest) -> bool {
        self.state.borrow().locations.contains_key(&key_of(address))
    }

    /// Whether a block is in a pack or at the origin.
    pub fn has_or_refers(&self, address: &Digest) -> bool {
        self.has(address) || self.state.borrow().origin.contains(&key_of(address))
    }

    /// Notes that a block is at the origin. If it is in a pack too, readers get it from there.
    pub fn refer(&self, address: &Digest) {
        let mut state = self.state.borrow_mut();
        if !state.locations.contains_key(&key_of(address)) && state.origin.insert(key_of(address)) {
            state.new_at_origin += 1;
        }
    }

    /// The first failure to write a block, if there was one.
    ///
    /// # Errors
    /// The first [`PublishError`].
    pub fn check(&self) -> Result<(), PublishError> {
        self.state.borrow().failed.clone().map_or(Ok(()), Err)
    }

    /// Adds a block in its stored form, with any codec. It must be the block with this address.
    pub fn put_stored(&self, address: Digest, stored: StoredBlock) {
        let mut state = self.state.borrow_mut();
        if state.locations.contains_key(&key_of(&address)) {
            return;
        }
        state.locations.insert(key_of(&address), None);
        self.write_queued(&mut state, 0);
        self.write(&mut state, self.lane.get(), address, &stored);
    }

    /// Writes and syncs everything. Returns the index of all blocks, old and new, and what was added.
    ///
    /// # Errors
    /// [`PublishError`]: the first failure.
    pub fn finish(self) -> Result<(Index, Added), PublishError> {
        let mut state = self.state.borrow_mut();
        self.write_queued(&mut state, 0);
        for lane in [Lane::Small, Lane::Large] {
            self.close(&mut state, lane);
        }
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        sync_directory(&self.directory.join("packs"))?;
        let locations = std::mem::take(&mut state.locations);
        let packs = std::mem::take(&mut state.packs);
        let mut origin = std::mem::take(&mut state.origin);
        origin.retain(|key| !locations.contains_key(key));
        let entries = locations.into_iter().map(|(key, location)| (key, location.expect("all are written")));
        let mut index = Index {
            entries: entries.collect(),
            packs: packs.into_iter().map(|pack| pack.expect("all are closed")).collect(),
        };
        index.refer(origin);
        index.entries.sort_unstable();
        let StoreState { new_blocks: blocks, new_bytes: bytes, new_at_origin: at_origin, .. } = *state;
        Ok((index, Added { blocks, bytes, at_origin }))
    }

    /// Writes compressed blocks to their packs until at most `left` blocks are in the queue.
    fn write_queued(&self, state: &mut StoreState, left: usize) {
        while state.queue.len() > left
            && let Some(QueuedBlock { lane, address, stored }) = state.queue.pop_front()
        {
            let stored = stored.recv().expect("a compressor answers");
            self.write(state, lane, address, &stored);
        }
    }

    fn write(&self, state: &mut StoreState, lane: Lane, address: Digest, stored: &StoredBlock) {
        if state.failed.is_some() {
            return;
        }
        if let Err(error) = self.try_write(state, lane, address, stored) {
            state.failed = Some(error);
        }
    }

    fn try_write(
        &self,
        state: &mut StoreState,
        lane: Lane,
        address: Digest,
        stored: &StoredBlock,
    ) -> Result<(), PublishError> {
        let frame = pack::frame(&address, stored);
        if state.open[lane as usize].is_none() {
            let number = state.packs.len() as u32;
            state.packs.push(None);
            state.open[lane as usize] = Some(OpenPack::make(&self.directory, number)?);
        }
        let open = state.open[lane as usize].as_mut().expect("it was just made");
        let location =
            BlockLocation { pack: open.number, offset: open.bytes as u32, bytes: frame.len() as u32 };
        open.append(&frame)?;
        let bytes = open.bytes;
        state.locations.insert(key_of(&address), Some(location));
        state.new_blocks += 1;
        state.new_bytes += frame.len() as u64;
        let most = match lane {
            Lane::Small => SMALL_PACK_BYTES,
            Lane::Large => LARGE_PACK_BYTES,
        };
        if bytes >= most {
            self.close(state, lane);
        }
        Ok(())
    }

    fn close(&self, state: &mut StoreState, lane: Lane) {
        let Some(open) = state.open[lane as usize].take() else { return };
        let number = open.number as usize;
        match open.close(&self.directory) {
            Ok(name) => state.packs[number] = Some(name),
            Err(error) => state.failed = state.failed.take().or(Some(error)),
        }
    }

    /// Reads a block back from its pack; `None` if it is in no pack.
    fn read(&self, address: &Digest) -> Result<Option<StoredBlock>, String> {
        let mut state = self.state.borrow_mut();
        self.write_queued(&mut state, 0);
        let Some(Some(location)) = state.locations.get(&key_of(address)) else { return Ok(None) };
        let mut frame = vec![0; location.bytes as usize];
        let open = state.open.iter().flatten().find(|open| open.number == location.pack);
        let read = match (open, &state.packs[location.pack as usize]) {
            (Some(open), _) => open.file.read_exact_at(&mut frame, location.offset.into()),
            (None, Some(name)) => File::open(self.directory.join(layout::pack(&name.digest)))
                .and_then(|file| file.read_exact_at(&mut frame, location.offset.into())),
            (None, None) => return Ok(None),
        };
        read.map_err(|error| error.to_string())?;
        Ok(pack::Frame::first(&frame).and_then(|(frame, _)| frame.stored()))
    }
}

impl BlockSource for PackStore {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let address = reference.address;
        if let Some(block) = self.state.borrow_mut().nodes.get(&address)
            && block.kind() == kind
            && block.reference() == *reference
        {
            return Ok(block);
        }
        let stored = self
            .read(&address)
            .map_err(|why| SourceError::Unreachable(address, why))?
            .ok_or(SourceError::Missing(address))?;
        let block =
            stored.open(&self.key, reference, kind).map_err(|error| SourceError::Altered(address, error))?;
        let block = Arc::new(block);
        if kind != BlockKind::Chunk {
            self.state.borrow_mut().nodes.insert(block.clone());
        }
        Ok(block)
    }
}

/// A store as a sink for blocks, so that the store itself can be used as a source at the same time.
pub struct Into<'a>(pub &'a PackStore);

impl BlockSink for Into<'_> {
    fn digest_key(&self) -> DigestKey {
        self.0.key
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        let key = key_of(&reference.address);
        let mut state = self.0.state.borrow_mut();
        let is_node = block.kind() != BlockKind::Chunk;
        if !is_node && state.locations.contains_key(&key) {
            return reference;
        }
        let block = Arc::new(block);
        if is_node {
            state.nodes.insert(block.clone());
        }
        if state.locations.contains_key(&key) {
            return reference;
        }
        state.locations.insert(key, None);
        let stored = self.0.compressors.compress(block, self.0.level);
        state.queue.push_back(QueuedBlock { lane: self.0.lane.get(), address: reference.address, stored });
        self.0.write_queued(&mut state, QUEUE_BLOCKS);
        reference
    }
}

impl OpenPack {
    fn make(directory: &Path, number: u32) -> Result<OpenPack, PublishError> {
        let path = directory.join(format!("packs/new-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|error| PublishError::local(&path, &error))?;
        let hasher = DigestKey::WELL_KNOWN.hasher(Domain::ReleaseFile);
        let mut open = OpenPack { number, file, path, bytes: 0, hasher };
        open.append(pack::MAGIC)?;
        Ok(open)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), PublishError> {
        self.file.write_all(bytes).map_err(|error| PublishError::local(&self.path, &error))?;
        let hasher = std::mem::replace(&mut self.hasher, DigestKey::WELL_KNOWN.hasher(Domain::ReleaseFile));
        self.hasher = hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn close(self, directory: &Path) -> Result<PackName, PublishError> {
        let name = PackName { digest: self.hasher.finish(), bytes: self.bytes };
        let path = directory.join(layout::pack(&name.digest));
        let done = self.file.sync_data().and_then(|()| fs::rename(&self.path, &path));
        done.map_err(|error| PublishError::local(&path, &error))?;
        Ok(name)
    }
}

impl Drop for PackStore {
    fn drop(&mut self) {
        // No index refers to packs that were not finished.
        for open in self.state.get_mut().open.iter().flatten() {
            let _ = fs::remove_file(&open.path);
        }
    }
}

/// Syncs a folder, so that names made in it are durable.
pub fn sync_directory(path: &Path) -> Result<(), PublishError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| PublishError::local(path, &error))
}

/// Reads the whole index of a release directory.
///
/// # Errors
/// [`PublishError`]: the file cannot be read or is not an index.
pub fn read_index(directory: &Path, digest: &Digest) -> Result<Index, PublishError> {
    let path = directory.join(layout::index(digest));
    let bytes = fs::read(&path).map_err(|error| PublishError::local(&path, &error))?;
    if DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, &bytes) != *digest {
        return Err(PublishError::Damaged { path, why: "its content is not what its name says".into() });
    }
    Index::decode(&bytes).map_err(|BadIndex(why)| PublishError::Damaged { path, why: why.into() })
}

/// The threads that compress blocks.
pub(super) struct Compressors {
    jobs: Option<SyncSender<Job>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Job {
    block: Arc<Block>,
    level: i32,
    done: SyncSender<StoredBlock>,
}

impl Compressors {
    pub(super) fn start(threads: usize) -> Compressors {
        let (jobs, waiting) = sync_channel::<Job>(QUEUE_BLOCKS);
        let waiting = Arc::new(Mutex::new(waiting));
        let work = move || {
            loop {
                let job = waiting.lock().expect("no thread panics with it").recv();
                let Ok(Job { block, level, done }) = job else { return };
                let _ = done.send(block.to_stored_at(level));
            }
        };
        let threads = (0..threads.max(1)).map(|_| std::thread::spawn(work.clone())).collect();
        Compressors { jobs: Some(jobs), threads }
    }

    pub(super) fn compress(&self, block: Arc<Block>, level: i32) -> Receiver<StoredBlock> {
        let (done, stored) = sync_channel(1);
        let jobs = self.jobs.as_ref().expect("until it is dropped");
        jobs.send(Job { block, level, done }).expect("its threads run");
        stored
    }
}

impl Drop for Compressors {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
