//! Blocks at block servers on other machines, in one store or in several. Several stores are called shards;
//! the block servers of one bucket divide them among themselves. Each file system is in one shard.
//!
//! Invariant: the number of shards is remembered, and does not change. Each shard is remembered like a store
//! of its own.

mod store;

use super::interface::{BlockStore, BlockStoreError, BlockStoreStatus, ScrubSummary};
use super::note::Note;
use super::open_error::BlocksOpenError;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_protocol::block_server::{
    BlockFigures, BucketStatus, ListedBlock, LoadedBlock, PinEntry, Shard,
};
use holdfast_rpc::BlocksAddress;
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::RemoteStore;

/// The directory, below the data directory, with the notes about shards.
pub(crate) const SHARDS: &str = "block-shards";
/// Most damaged records in a report.
const BAD_MAX: usize = 10_000;

/// The settings for connecting to a block server.
pub struct RemoteBlocksSettings<'a> {
    /// The address of the block servers; `None`: the remembered one.
    pub address: Option<BlocksAddress>,
    /// The data directory, with the notes about the stores.
    pub data: &'a Path,
    /// The consistency server's key, by which the block servers recognise it.
    pub key: SigningKey,
    /// Whether the operator accepts the store as it is, whatever was remembered.
    pub anew: bool,
}

/// Block stores on other machines.
pub struct RemoteBlocks {
    address: String,
    /// One store for each shard, or the only store.
    stores: Vec<RemoteStore>,
}

impl RemoteBlocks {
    /// Connects to the block servers. Returns `None` if neither the settings nor the data directory name any.
    ///
    /// # Errors
    /// [`BlocksOpenError`]
    pub fn open(settings: RemoteBlocksSettings) -> Result<Option<RemoteBlocks>, BlocksOpenError> {
        let Some((note, moved)) = remembered(settings.data, settings.address.as_ref(), settings.anew)? else {
            return Ok(None);
        };
        let known = (note.shards, note.store);
        let (address, key) = (note.address.clone(), &settings.key);
        let first = RemoteStore::connect(note, key.clone(), None)?;
        let named = first.address().to_owned();
        let shards = first.shards()?;
        // If the block servers were never reached, nothing is remembered to compare with.
        if known.0 != shards && (known.0.is_some() || known.1.is_some()) {
            return Err(BlocksOpenError::OtherShards { address: named, now: shards, before: known.0 });
        }
        let failed = BlocksOpenError::writing(settings.data);
        let Some(shards) = shards else {
            let only = first.begin(moved || settings.anew, settings.data)?;
            return Ok(Some(RemoteBlocks { address: named, stores: vec![only] }));
        };
        let mut note = first.into_note();
        if moved || settings.anew || note.shards.is_none() {
            note.shards = Some(shards);
            note.write().map_err(&failed)?;
        }
        let stores = (0..shards).map(|number| {
            let folder = settings.data.join(SHARDS).join(number.to_string());
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(&failed)?;
            let (note, moved) =
                remembered(&folder, Some(&address), settings.anew)?.expect("an address was given");
            RemoteStore::connect(note, key.clone(), Some(Shard { number, of: shards }))?
                .begin(moved || settings.anew, &folder)
        });
        Ok(Some(RemoteBlocks { stores: stores.collect::<Result<_, BlocksOpenError>>()?, address: named }))
    }

    /// Sets how long calls wait for a block server that is away.
    pub fn with_patience(mut self, patience: Duration) -> RemoteBlocks {
        self.stores.iter_mut().for_each(|store| store.patience = patience);
        self
    }

    /// The address of the block servers.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The store that contains a file system.
    fn of(&self, file_system: &Digest) -> &RemoteStore {
        let shard = Shard::of_file_system(file_system, self.stores.len() as u16);
        &self.stores[usize::from(shard.number)]
    }
}

/// The note about a store from a folder, and whether its address has changed. Returns `None` if there is
/// neither a note nor an address.
fn remembered(
    folder: &Path,
    address: Option<&BlocksAddress>,
    anew: bool,
) -> Result<Option<(Note, bool)>, BlocksOpenError> {
    let remembered =
        Note::read(folder).map_err(|error| BlocksOpenError::Note { path: folder.to_owned(), error })?;
    let failed = BlocksOpenError::writing(folder);
    let (mut note, moved) = match (address, remembered) {
        (None, None) => return Ok(None),
        (Some(address), None) => (Note::new(folder, address.clone()).map_err(&failed)?, true),
        (None, Some(note)) => (note, false),
        (Some(address), Some(mut note)) => {
            let moved = note.address != *address;
            note.address = address.clone();
            (note, moved)
        }
    };
    if anew {
        (note.store, note.doubt, note.shards) = (None, None, None);
        note.put_position(0).map_err(&failed)?;
    }
    Ok(Some((note, moved)))
}

/// The files with the notes about shards, relative to the data directory.
pub(crate) fn files_of_shards(data: &Path) -> Vec<PathBuf> {
    let shards = Note::read(data).ok().flatten().and_then(|note| note.shards).unwrap_or(0);
    let files = |number: u16| super::FILES.map(|name| Path::new(SHARDS).join(number.to_string()).join(name));
    (0..shards).flat_map(files).collect()
}

impl RemoteStore {
    /// Checks that this is the store in the note, and writes the note if it is new.
    fn begin(self, is_new: bool, folder: &Path) -> Result<RemoteStore, BlocksOpenError> {
        self.greet()?;
        if is_new {
            self.write_note().map_err(BlocksOpenError::writing(folder))?;
        }
        Ok(self)
    }
}

impl BlockStore for RemoteBlocks {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.of(&file_system).store(file_system, owner, blocks, allowance, now_ns)
    }

    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError> {
        self.of(&file_system).load(file_system, addresses, bytes_max)
    }

    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError> {
        self.of(&file_system).references(file_system, addresses)
    }

    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError> {
        self.of(&file_system).contains(file_system, addresses)
    }

    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError> {
        self.of(&file_system).renew(file_system, addresses, now_ns)
    }

    fn dereference(
        &self,
        file_system: Digest,
        owner: DeviceId,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<u32, BlockStoreError> {
        self.of(&file_system).dereference(file_system, owner, addresses, now_ns)
    }

    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError> {
        self.of(&file_system).snapshot(file_system, now_ns)
    }

    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.of(&file_system).pin(file_system, holder, addresses, until_ns, now_ns)
    }

    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError> {
        self.of(&file_system).hold(file_system, hold)
    }

    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError> {
        self.of(&file_system).unhold(file_system, name)
    }

    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError> {
        self.of(&file_system).holds(file_system)
    }

    fn list(&self, file_system: Digest, after: u64) -> Result<Vec<ListedBlock>, BlockStoreError> {
        self.of(&file_system).list(file_system, after)
    }

    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Result<Option<PinEntry>, BlockStoreError> {
        self.of(&file_system).pinned(file_system, after)
    }

    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError> {
        self.of(&file_system).charged(file_system, devices)
    }

    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        self.of(&file_system).charges(file_system)
    }

    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError> {
        self.of(&file_system).collect(file_system, roots, short, now_ns)
    }

    fn sync(&self) -> Result<(), BlockStoreError> {
        // Every call was durable when it returned.
        Ok(())
    }

    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError> {
        let mut all = ScrubSummary::default();
        for store in &self.stores {
            let ScrubSummary { records, bytes, bad, bad_count } = store.scrub(progress)?;
            let room = BAD_MAX.saturating_sub(all.bad.len());
            all.bad.extend(bad.into_iter().take(room));
            (all.records, all.bytes, all.bad_count) =
                (all.records + records, all.bytes + bytes, all.bad_count + bad_count);
        }
        Ok(all)
    }

    fn figures(&self) -> Result<BlockFigures, BlockStoreError> {
        let each = self.stores.iter().map(BlockStore::figures).collect::<Result<Vec<_>, _>>()?;
        Ok(sum_of_figures(each))
    }

    fn batch(&self) -> usize {
        self.stores[0].batch()
    }

    fn status(&self) -> Option<BlockStoreStatus> {
        // The stores are asked at the same time, because each one that cannot be reached takes a while.
        let each: Vec<BlockStoreStatus> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                self.stores.iter().map(|store| scope.spawn(|| BlockStore::status(store))).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
        });
        let doubt = each.iter().enumerate().find_map(|(number, status)| {
            let doubt = status.doubt.as_ref()?;
            Some(if each.len() > 1 { format!("shard {number}: {doubt}") } else { doubt.clone() })
        });
        let figures: Option<Vec<BlockFigures>> = each.iter().map(|status| status.figures.clone()).collect();
        let buckets: Option<Vec<BucketStatus>> = each.iter().map(|status| status.bucket.clone()).collect();
        Some(BlockStoreStatus {
            address: self.address.clone(),
            reached: each.len() == self.stores.len() && each.iter().all(|status| status.reached),
            doubt,
            figures: figures.map(sum_of_figures),
            bucket: buckets.and_then(|buckets| buckets.into_iter().reduce(sum_of_buckets)),
        })
    }
}

fn sum_of_figures(each: Vec<BlockFigures>) -> BlockFigures {
    let sum = |one: BlockFigures, other: BlockFigures| BlockFigures {
        blocks: one.blocks + other.blocks,
        block_bytes: one.block_bytes + other.block_bytes,
        deleted_bytes: one.deleted_bytes + other.deleted_bytes,
        log_bytes: one.log_bytes + other.log_bytes,
        // Several stores may be on one medium.
        free_bytes: one.free_bytes.into_iter().chain(other.free_bytes).min(),
        damaged_blocks: one.damaged_blocks + other.damaged_blocks,
    };
    each.into_iter().reduce(sum).unwrap_or_default()
}

fn sum_of_buckets(one: BucketStatus, other: BucketStatus) -> BucketStatus {
    let mut requests = one.requests;
    requests.iter_mut().zip(other.requests).for_each(|(count, more)| *count += more);
    BucketStatus {
        trouble: one.trouble.or(other.trouble),
        segments: one.segments + other.segments,
        bytes: one.bytes + other.bytes,
        waiting_bytes: one.waiting_bytes + other.waiting_bytes,
        cached_bytes: one.cached_bytes + other.cached_bytes,
        requests,
    }
}
