//! Opening the store; STORE, RETRIEVE, commit, checkpoints of the index.

use crate::charges::Allowance;
use crate::index::Index;
use crate::record::{BlockRecord, COPIES_PER_RECORD, DroppedRecord, Location, RenewRecord, StoreRecord};
use crate::state::{BlockCopy, Entry, Key, State, resolve};
use crate::{StoreError, format};
use holdfast_content::{Codec, DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, Log, LogConfig, LogError, Position, Storage, StorageLock};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LOCK: &str = "LOCK";

/// The settings of a store.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// For how long after its first STORE a block may be dropped by DECREF.
    pub window: Duration,
    /// For how long a block is safe from the collector after a device stored it or got the answer "I have
    /// it".
    pub gc_window: Duration,
    /// For how long deleted blocks are retained as bases for compressing later ones, counted from the
    /// collection that found them unreachable. Zero retains nothing.
    pub keep_deleted: Duration,
    /// Most bytes of deleted blocks that are retained, over all file systems; `None`: a tenth of all data, but at least
    /// 1 GiB.
    pub keep_deleted_bytes: Option<u64>,
    /// Length at which a segment is sealed, in bytes.
    pub segment_bytes: u32,
    /// The collector rewrites segments of which less than this part is live, in percent.
    pub collect_live_percent: u8,
    /// Memory for the index's cache, in bytes.
    pub index_cache_bytes: usize,
    /// Number of changes of the index in memory (about 130 bytes each) after which they are written to it in
    /// one batch.
    pub recent_entries_max: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            window: Duration::from_secs(60),
            gc_window: Duration::from_secs(24 * 3600),
            keep_deleted: Duration::from_secs(7 * 24 * 3600),
            keep_deleted_bytes: None,
            segment_bytes: 64 << 20,
            collect_live_percent: 75,
            index_cache_bytes: 64 << 20,
            recent_entries_max: 1 << 17,
        }
    }
}

/// The header of a block's first STORE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// The device that stored it first.
    pub owner: DeviceId,
    /// When the block was first stored, in nanoseconds since 1970.
    pub stored_ns: i64,
    /// How the block's body is encoded.
    pub codec: Codec,
}

/// An open block store. Clones share it; all calls are thread-safe and block. The last clone to be dropped
/// writes a checkpoint of the index and releases the directory.
#[derive(Clone)]
pub struct LogStore(Arc<Handle>);

/// The result of opening a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Whether there was no usable checkpoint of the index, so that every segment was read.
    pub index_rebuilt: bool,
    /// Records read after the checkpoint.
    pub replayed_records: u64,
    /// Bytes of a torn tail that were cut off; they were never acknowledged.
    pub truncated_bytes: u64,
    /// Records that could not be read.
    pub lost_records: u64,
}

struct Handle {
    shared: Arc<Shared>,
    recovery: RecoveryReport,
    worker: Option<std::thread::JoinHandle<()>>,
}

pub(crate) struct Shared {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) config: StoreConfig,
    pub(crate) log: Log,
    pub(crate) index: Index,
    pub(crate) state: Mutex<State>,
    /// Held by a thread that writes the index's checkpoint or needs it unchanged.
    pub(crate) checkpointing: Mutex<()>,
    /// Held while blocks are checked against an allowance and stored, so that one caller does that at a time.
    pub(crate) turn: Mutex<()>,
    pub(crate) wanted: Mutex<WorkerRequest>,
    pub(crate) wake: Condvar,
    /// Signalled when a batch has gone into the index.
    pub(crate) flushed: Condvar,
    _lock: Box<dyn StorageLock>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IndexSource {
    /// The last checkpoint and the log after it.
    Checkpoint,
    /// The log alone.
    Segments,
}

#[derive(Default)]
pub(crate) struct WorkerRequest {
    pub(crate) checkpoint: bool,
    pub(crate) stop: bool,
}

impl LogStore {
    /// Opens the store in `storage`, or begins one in an empty directory; recovers whatever a crash left.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::NewerFormat`], [`StoreError::NotAStore`], or the medium failed.
    pub fn open(storage: Arc<dyn Storage>, config: StoreConfig) -> Result<LogStore, StoreError> {
        LogStore::open_with(storage, config, IndexSource::Checkpoint)
    }

    /// Opens the store and makes its index anew from the segments. Blocks that were dropped since their segment
    /// was last rewritten stay dropped.
    ///
    /// # Errors
    /// As [`LogStore::open`].
    pub fn open_rebuilding(storage: Arc<dyn Storage>, config: StoreConfig) -> Result<LogStore, StoreError> {
        LogStore::open_with(storage, config, IndexSource::Segments)
    }

    fn open_with(
        storage: Arc<dyn Storage>,
        config: StoreConfig,
        source: IndexSource,
    ) -> Result<LogStore, StoreError> {
        let lock = storage.lock(LOCK).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => {
                StoreError::InUse { directory: storage.describe(), why: error.to_string() }
            }
            _ => StoreError::io("locking", LOCK, &error),
        })?;
        format::check_or_write(&*storage)?;
        let opened = Index::open(storage.clone(), config.index_cache_bytes)?;
        let (old, image) = opened.map_or((None, None), |(index, image)| (Some(index), image));
        let image = image.map(|image| State::restore(&image)).transpose()?;
        let applied = image.as_ref().map_or(Position::START, |(_, applied)| *applied);
        let log_config =
            LogConfig { segment_bytes: config.segment_bytes, known_durable: applied, ..LogConfig::default() };
        let (log, recovery) = Log::open(storage.clone(), log_config)?;
        let (truncated, log_end) = (recovery.truncated, recovery.end);
        if let Some((position, bytes)) = truncated {
            tracing::info!(%position, bytes, "cut off a torn tail that nobody was promised");
        }
        // The log is sound: now the old index may go.
        let rebuild = old.is_none() || source == IndexSource::Segments;
        let rebuilt = (rebuild || image.is_none()) && log_end > Position::START;
        let (index, state, from) = match old {
            Some(index) if !rebuild => {
                let mut state = image.map_or_else(State::default, |(state, _)| state);
                state.charges.settled = index.charges()?;
                (index, state, applied)
            }
            old => {
                drop(old);
                let index = Index::begin(storage.clone(), config.index_cache_bytes)?;
                (index, State::default(), Position::START)
            }
        };
        let shared = Arc::new(Shared {
            storage,
            config,
            log,
            index,
            state: Mutex::new(state),
            checkpointing: Mutex::new(()),
            turn: Mutex::new(()),
            wanted: Mutex::default(),
            wake: Condvar::new(),
            flushed: Condvar::new(),
            _lock: lock,
        });
        let replayed_records = shared.replay(from)?;
        if rebuild {
            shared.checkpoint()?;
            shared.index.adopt()?;
        }
        let recovery = RecoveryReport {
            index_rebuilt: rebuilt,
            replayed_records,
            truncated_bytes: truncated.map_or(0, |(_, bytes)| bytes),
            lost_records: shared.state.lock().lost.len() as u64,
        };
        let worker = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("store-index".into())
                .spawn(move || shared.work())
                .map_err(|error| StoreError::io("starting a thread for", "index", &error))?
        };
        Ok(LogStore(Arc::new(Handle { shared, recovery, worker: Some(worker) })))
    }

    /// Stores blocks whose addresses the caller has checked. Durable with the next commit.
    ///
    /// A block that is already here keeps its first header; storing it again renews its age and makes it
    /// permanent. The index on disk is not consulted.
    ///
    /// # Errors
    /// The log failed. When the disk is full, the first blocks may have been stored and the rest not; nothing
    /// was acknowledged, and the call may be repeated.
    pub fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        self.store_within(file_system, owner, blocks, None, now_ns)
    }

    /// As [`LogStore::store`], for a user with an allowance: if the blocks that are not here already do not
    /// all fit into it, nothing is stored. With an allowance the index is read.
    ///
    /// # Errors
    /// [`StoreError::OverQuota`]; as [`LogStore::store`].
    pub fn store_within(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        // Tags are made before the lock is taken.
        let tagged: Vec<_> = blocks.into_iter().map(|block| (BodyTag::of(&block.1.body), block)).collect();
        let shared = self.shared();
        shared.wait_for_room()?;
        let _turn = allowance.map(|_| shared.turn.lock());
        if let Some(allowance) = allowance {
            shared.weigh(file_system, tagged.iter().map(|(_, block)| block), allowance)?;
        }
        let mut guard = shared.state.lock();
        let state = &mut *guard;
        let number = state.file_system(&file_system).number;
        for (tag, (address, block)) in tagged {
            let key = Key::new(number, &address);
            for reference in &block.references {
                state.young.keep_for(&Key::new(number, reference), owner);
            }
            let replaces = state.damaged.contains(&key);
            let damaged = if replaces { state.get(&shared.index, &key)? } else { None };
            let known = match allowance {
                Some(_) => state.get(&shared.index, &key)?,
                None => state.blocks.get(&key).and_then(|recent| recent.entry),
            };
            if known.is_some() && !replaces {
                shared.renew(state, file_system, vec![address], now_ns)?;
                continue;
            }
            let record = BlockRecord {
                file_system,
                address,
                // A device that heals a block is not charged for it.
                owner: damaged.map_or(owner, |damaged| damaged.owner),
                stored_ns: now_ns,
                age_ns: now_ns,
                replaces,
                kind: block.kind,
                codec: block.codec,
                references: block.references,
            };
            let record = StoreRecord::Block(record);
            let location = record.append(&shared.log, &block.body, tag)?;
            let StoreRecord::Block(record) = record else { unreachable!("made above") };
            let key = state.apply_block(&record, location);
            if let Some(damaged) = damaged {
                shared.log_dropped(state, vec![(key, damaged.location.position)])?;
            }
            if !replaces {
                state.young.open(key, location.position, owner, now_ns, self.window_ns());
            }
        }
        shared.note_growth(state, shared.log.end());
        Ok(())
    }

    /// Makes everything appended before the call durable; threads that call together share one sync.
    ///
    /// # Errors
    /// The medium failed; the store accepts nothing more until it is opened again.
    pub fn commit(&self) -> Result<(), StoreError> {
        Ok(self.shared().log.sync()?)
    }

    /// Retrieves a block with the header of its first STORE; `None` if this file system never stored it, or
    /// it was dropped.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]: the block is here but altered. [`StoreError::MayBeDamaged`]: it is not, but
    /// may have been in lost records. The medium failed.
    pub fn retrieve(
        &self,
        file_system: Digest,
        address: Digest,
    ) -> Result<Option<(BlockHeader, StoredBlock)>, StoreError> {
        let shared = self.shared();
        loop {
            let number = shared.state.lock().number(&file_system);
            let found = match number.map(|number| Key::new(number, &address)) {
                Some(key) => shared.look_up(&key)?.map(|entry| (key, entry)),
                None => None,
            };
            let Some((key, entry)) = found else {
                return match shared.state.lock().suspect(&file_system) {
                    None => Ok(None),
                    Some(why) => Err(StoreError::MayBeDamaged { address, why }),
                };
            };
            match shared.read_block(&file_system, &address, entry.location) {
                // Moved by the collector between the two looks.
                Err(StoreError::Log(LogError::SegmentGone(_))) => {
                    let now = shared.state.lock().get(&shared.index, &key)?;
                    if now == Some(entry) {
                        shared.state.lock().note_damaged(key);
                        let why = "its segment is gone".to_owned();
                        let file = format!("segment {}", entry.location.position.segment);
                        let offset = entry.location.position.offset.into();
                        return Err(StoreError::Damaged { address, file, offset, why });
                    }
                }
                // Altered, or on a sector that cannot be read.
                Err(error @ (StoreError::Damaged { .. } | StoreError::Log(LogError::Io { .. }))) => {
                    shared.state.lock().note_damaged(key);
                    return Err(error);
                }
                other => return other.map(Some),
            }
        }
    }

    /// Which of `addresses` this file system has. Before it returns, the age of those is durably renewed:
    /// they are safe from the collector for another window, and permanent.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn contains_renew_all(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, StoreError> {
        let answers = self.renew_present(file_system, addresses, now_ns)?;
        if answers.contains(&true) {
            self.commit()?;
        }
        Ok(answers)
    }

    /// As [`LogStore::contains_renew_all`], for a caller that commits before it answers anybody.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn renew_present(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, StoreError> {
        let shared = self.shared();
        let number = shared.state().number(&file_system);
        // What must be read from the disk is read before the lock is taken.
        if let Some(number) = number {
            for address in addresses {
                shared.look_up(&Key::new(number, address))?;
            }
        }
        let mut guard = shared.state();
        let state = &mut *guard;
        let mut answers = Vec::with_capacity(addresses.len());
        let mut present = Vec::new();
        for address in addresses {
            let key = number.map(|number| Key::new(number, address));
            let here = match key {
                Some(key) if !state.damaged.contains(&key) => state.get(&shared.index, &key)?.is_some(),
                _ => false,
            };
            answers.push(here);
            if here {
                present.push(*address);
            }
        }
        for present in present.chunks(COPIES_PER_RECORD) {
            shared.renew(state, file_system, present.to_vec(), now_ns)?;
        }
        Ok(answers)
    }

    /// [`LogStore::contains_renew_all`] of one block.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn contains_renew(
        &self,
        file_system: Digest,
        address: Digest,
        now_ns: i64,
    ) -> Result<bool, StoreError> {
        Ok(self.contains_renew_all(file_system, &[address], now_ns)?[0])
    }

    /// Writes the changes since the last checkpoint into the index, so that recovery after a crash is faster.
    /// Happens automatically when enough has changed.
    ///
    /// # Errors
    /// The log or the index failed; nothing is lost, and the next checkpoint tries again.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.shared().checkpoint()
    }

    /// The end of the log. What was appended before the call is durable once a commit that began after it has
    /// returned. The end only grows, and a restart does not move it. So an older copy of the store has an end
    /// that is less than one the store has already reported.
    pub fn position(&self) -> u64 {
        self.log().end().to_u64()
    }

    /// The result of opening the store.
    pub fn recovery(&self) -> RecoveryReport {
        self.0.recovery
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared().state.lock()
    }

    pub(crate) fn log(&self) -> &Log {
        &self.shared().log
    }

    pub(crate) fn index(&self) -> &Index {
        &self.shared().index
    }

    pub(crate) fn window_ns(&self) -> i64 {
        nanoseconds(self.shared().config.window)
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn gc_window_ns(&self) -> i64 {
        nanoseconds(self.config.gc_window)
    }

    /// Looks a block up without holding the lock while the disk is read. The result was true at some time
    /// during the call; decisions about the index are made under the lock.
    pub(crate) fn look_up(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let recent = self.state.lock().recent(key);
        resolve(recent, &self.index, key)
    }

    /// Appends and applies a renewal.
    fn renew(
        &self,
        state: &mut State,
        file_system: Digest,
        addresses: Vec<Digest>,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        let record = RenewRecord { file_system, at_ns: now_ns, addresses };
        StoreRecord::Renew(record.clone()).append(&self.log, &[], BodyTag::of(&[]))?;
        state.apply_renew(&self.index, &record)
    }

    /// Reads and checks one block.
    pub(crate) fn read_block(
        &self,
        file_system: &Digest,
        address: &Digest,
        location: Location,
    ) -> Result<(BlockHeader, StoredBlock), StoreError> {
        let damaged = |file: String, offset: u64, why: String| StoreError::Damaged {
            address: *address,
            file,
            offset,
            why,
        };
        let record = self.log.read(location.position, location.length).map_err(|error| match error {
            LogError::Damaged { file, offset, why } => damaged(file, offset, why),
            other => other.into(),
        })?;
        match StoreRecord::decode_parts(record.kind, &record.head) {
            Ok(StoreRecord::Block(head)) if head.file_system == *file_system && head.address == *address => {
                let header = BlockHeader { owner: head.owner, stored_ns: head.stored_ns, codec: head.codec };
                let block = StoredBlock {
                    kind: head.kind,
                    codec: head.codec,
                    references: head.references,
                    body: record.body,
                };
                Ok((header, block))
            }
            _ => {
                let file = format!("segment {}", location.position.segment);
                Err(damaged(file, location.position.offset.into(), "another record is in its place".into()))
            }
        }
    }

    /// Logs that these copies are dead, so that no rebuild of the index takes them for their blocks. The
    /// blocks themselves may live: their entries name other copies.
    pub(crate) fn log_dropped(&self, state: &mut State, copies: Vec<BlockCopy>) -> Result<(), StoreError> {
        let mut by_file_system: BTreeMap<u32, Vec<(u64, Digest)>> = BTreeMap::new();
        for (key, position) in copies {
            by_file_system.entry(key.file_system()).or_default().push((position.to_u64(), key.address()));
        }
        for (number, copies) in by_file_system {
            let found = state.file_systems.iter().find(|(_, found)| found.number == number);
            // A damaged index may name any number.
            let Some(file_system) = found.map(|(file_system, _)| *file_system) else { continue };
            for copies in copies.chunks(COPIES_PER_RECORD) {
                state.round += 1;
                let record =
                    DroppedRecord { file_system, round: state.round, last: true, copies: copies.to_vec() };
                StoreRecord::Dropped(record).append(&self.log, &[], BodyTag::of(&[]))?;
            }
        }
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.wanted.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        if let Err(error) =
            self.shared.log.sync().map_err(StoreError::from).and_then(|()| self.shared.checkpoint())
        {
            tracing::warn!(%error, "no checkpoint at the end; the next opening replays the log");
        }
    }
}
