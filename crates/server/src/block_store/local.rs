//! Blocks in a log of this process. The log has the order too, or only blocks; one with only blocks is on the
//! local disk or in a bucket.
//!
//! Invariants:
//! - In a log with only blocks, a call that changes something returns when the change is as durable as
//!   configured: on the local disk, or in the bucket too. In a log with the order, the commit of the record
//!   that names the blocks makes them durable.
//! - Bytes read from a bucket are accepted only if they match their address. Nothing is collected while the
//!   bucket is not what it was, or is another server's.

use super::bucket::{self, BucketSettings, BucketTier};
use super::interface::{BlockStore, BlockStoreError, BlockStoreStatus, ScrubSummary, stored_bytes};
use crate::error::OpenError;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::{LogError, Position};
use holdfast_protocol::block_server::{BlockFigures, LISTED_MAX, ListedBlock, LoadedBlock, PinEntry};
use holdfast_protocol::message::StoreHeader;
use holdfast_store::{
    Allowance, Charge, CollectReport, DecrefOutcome, Hold, HoldOutcome, IndexedBlock, LogStore, Pin,
    ScrubReport, StoreError,
};
use holdfast_tiered::{Bucket, BucketAddress, S3};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks in a log of this process.
pub struct LocalBlocks {
    store: LogStore,
    log: OwnLog,
    /// The position up to which the log is as durable as configured.
    durable: AtomicU64,
}

/// What else the log contains, and where it is.
pub(super) enum OwnLog {
    /// The log contains the order too.
    WithOrder,
    /// The log contains only blocks, and is on the local disk.
    OnDisk,
    /// The log contains only blocks, and is in a bucket.
    InBucket(BucketTier),
}

impl LocalBlocks {
    /// A block store over an open log that contains the order too.
    pub fn new(store: LogStore) -> LocalBlocks {
        LocalBlocks::over_log(store, OwnLog::WithOrder)
    }

    /// Opens the store in a bucket, which is then remembered in the data directory. Returns `None` if neither
    /// the settings nor the data directory name a bucket.
    ///
    /// # Errors
    /// [`OpenError::Store`]: another process uses the directory. [`OpenError::BlockStore`]: anything else,
    /// with the way out.
    pub fn in_bucket(settings: BucketSettings) -> Result<Option<LocalBlocks>, OpenError> {
        let found = bucket::bucket_of(settings.data, settings.address.as_ref())?;
        let Some(address) = found else { return Ok(None) };
        let blocks = LocalBlocks::over_bucket(Arc::new(S3::new(&address)), &address, &settings)?;
        bucket::remember(settings.data, &address)?;
        Ok(Some(blocks))
    }

    /// Opens a store over any bucket, without remembering it in the data directory.
    ///
    /// # Errors
    /// As for [`LocalBlocks::in_bucket`].
    pub fn over_bucket(
        bucket: Arc<dyn Bucket>,
        address: &BucketAddress,
        settings: &BucketSettings,
    ) -> Result<LocalBlocks, OpenError> {
        let (store, tier) = BucketTier::open(bucket, address, settings)?;
        Ok(LocalBlocks::over_log(store, OwnLog::InBucket(tier)))
    }

    pub(super) fn over_log(store: LogStore, log: OwnLog) -> LocalBlocks {
        let durable = AtomicU64::new(store.position());
        LocalBlocks { store, log, durable }
    }

    /// The position up to which the log is as durable as configured.
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Appends a record without a meaning, so that the log never ends before this position, whatever is
    /// removed before it.
    pub(super) fn mark_end(&self, mark: Digest) -> Result<(), BlockStoreError> {
        Ok(self.store.ordering_checkpoint(mark, b"collection")?)
    }

    /// The bucket, if the log is in one.
    pub(super) fn tier(&self) -> Option<&BucketTier> {
        match &self.log {
            OwnLog::InBucket(tier) => Some(tier),
            OwnLog::WithOrder | OwnLog::OnDisk => None,
        }
    }

    /// Makes everything that was done so far durable.
    fn commit(&self) -> Result<(), BlockStoreError> {
        let end = self.store.position();
        self.store.commit()?;
        if let Some(tier) = self.tier() {
            tier.confirm()?;
        }
        self.durable.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    /// Makes a change as durable as configured, if the log contains only blocks.
    fn settle(&self) -> Result<(), BlockStoreError> {
        match self.log {
            OwnLog::WithOrder => Ok(()),
            OwnLog::OnDisk | OwnLog::InBucket(_) => self.commit(),
        }
    }

    fn load_one(&self, file_system: Digest, address: Digest) -> Result<LoadedBlock, BlockStoreError> {
        let loaded = match self.retrieve(file_system, address) {
            // A lost object makes only its own blocks damaged; it is not an error of the whole store.
            Err(error @ StoreError::Log(LogError::Io { .. })) if self.tier().is_some() => {
                LoadedBlock::Damaged(error.to_string())
            }
            loaded => loaded?,
        };
        Ok(match self.tier() {
            Some(tier) => tier.checked(address, loaded),
            None => loaded,
        })
    }

    fn retrieve(&self, file_system: Digest, address: Digest) -> Result<LoadedBlock, StoreError> {
        match self.store.retrieve(file_system, address) {
            Ok(None) => Ok(LoadedBlock::Absent),
            Ok(Some((header, block))) => Ok(LoadedBlock::Present(
                StoreHeader { owner: header.owner, stored_ns: header.stored_ns },
                block,
            )),
            Err(error @ (StoreError::Damaged { .. } | StoreError::MayBeDamaged { .. })) => {
                Ok(LoadedBlock::Damaged(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

impl BlockStore for LocalBlocks {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.store.store_within(file_system, owner, blocks, allowance, now_ns)?;
        self.settle()
    }

    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError> {
        let (mut blocks, mut bytes) = (Vec::with_capacity(addresses.len()), 0);
        for address in addresses {
            let loaded = self.load_one(file_system, *address)?;
            if let LoadedBlock::Present(_, block) = &loaded {
                bytes += stored_bytes(block);
            }
            if bytes > bytes_max && !blocks.is_empty() {
                break;
            }
            blocks.push(loaded);
        }
        Ok(blocks)
    }

    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError> {
        let of = |address: &Digest| match self.store.references(file_system, *address) {
            Err(error @ StoreError::Log(LogError::Away { .. })) => Err(error.into()),
            Err(
                error @ (StoreError::Damaged { .. } | StoreError::MayBeDamaged { .. } | StoreError::Log(_)),
            ) => {
                tracing::error!(%file_system, %address, %error, "a block is damaged; answering that it is missing");
                Ok(None)
            }
            other => Ok(other?),
        };
        addresses.iter().map(of).collect()
    }

    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError> {
        Ok(self.store.contains_all(file_system, addresses)?)
    }

    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError> {
        let which = self.store.renew_present(file_system, addresses, now_ns)?;
        if which.contains(&true) {
            self.commit()?;
        }
        Ok(which)
    }

    fn dereference(
        &self,
        file_system: Digest,
        owner: DeviceId,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<u32, BlockStoreError> {
        let mut dropped = 0;
        for address in addresses {
            let outcome = self.store.decref(file_system, owner, *address, now_ns)?;
            dropped += u32::from(outcome == DecrefOutcome::Dropped);
        }
        self.settle()?;
        Ok(dropped)
    }

    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError> {
        self.store.snapshot(file_system, now_ns)?;
        self.settle()
    }

    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.store.pin(file_system, holder, addresses, until_ns, now_ns)?;
        self.settle()
    }

    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError> {
        let outcome = self.store.hold(file_system, hold)?;
        self.settle()?;
        Ok(outcome)
    }

    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError> {
        let was = self.store.unhold(file_system, name)?;
        self.settle()?;
        Ok(was)
    }

    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError> {
        Ok(self.store.holds(&file_system))
    }

    fn list(&self, file_system: Digest, after: u64) -> Result<Vec<ListedBlock>, BlockStoreError> {
        let found = self.store.inventory(file_system, Position::from_u64(after), LISTED_MAX)?;
        let listed = |one: IndexedBlock| ListedBlock {
            address: one.address,
            owner: one.owner,
            age_ns: one.age_ns,
            bytes: one.bytes,
            place: one.position.to_u64(),
        };
        Ok(found.into_iter().map(listed).collect())
    }

    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Result<Option<PinEntry>, BlockStoreError> {
        let found = self.store.pinned(file_system).into_iter().filter(|one| Some(one.holder) > after);
        let pin_entry = |Pin { holder, until_ns, addresses }: Pin| PinEntry { holder, until_ns, addresses };
        Ok(found.min_by_key(|one| one.holder).map(pin_entry))
    }

    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError> {
        Ok(self.store.charged(file_system, devices))
    }

    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        Ok(self.store.charges(file_system)?)
    }

    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError> {
        if let Some(tier) = self.tier() {
            tier.check_claim()?;
        }
        let report = self.store.collect_with(file_system, roots, short, now_ns, &mut |_| {})?;
        self.settle()?;
        Ok(report)
    }

    fn sync(&self) -> Result<(), BlockStoreError> {
        match self.log {
            OwnLog::WithOrder => self.commit(),
            // Every call was durable when it returned, and other calls that are running wait for themselves.
            OwnLog::OnDisk | OwnLog::InBucket(_) => Ok(()),
        }
    }

    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError> {
        let mut found = summary_of(&self.store.scrub(progress)?);
        if let Some(tier) = self.tier() {
            found.bad = found.bad.into_iter().map(|bad| tier.with_object(bad)).collect();
        }
        Ok(found)
    }

    fn figures(&self) -> Result<BlockFigures, BlockStoreError> {
        // Without a checkpoint, entries that are not in the index yet would be counted only in part.
        self.store.checkpoint()?;
        let store = self.store.statistics()?;
        Ok(BlockFigures {
            blocks: store.blocks + store.recent_entries,
            block_bytes: store.block_bytes,
            deleted_bytes: store.deleted_bytes,
            log_bytes: store.log_bytes,
            free_bytes: store.free_bytes,
            damaged_blocks: store.damaged_blocks,
        })
    }

    fn batch(&self) -> usize {
        1
    }

    fn status(&self) -> Option<BlockStoreStatus> {
        let tier = self.tier()?;
        Some(tier.status(self.figures().ok()))
    }
}

/// The findings of a scrub as text for people.
pub(crate) fn summary_of(report: &ScrubReport) -> ScrubSummary {
    let bad = report.bad.iter().map(|bad| {
        let what = match (&bad.block, bad.live) {
            (Some((file_system, address)), true) => format!("block {address} of {file_system}: "),
            (Some(_), false) => "garbage: ".to_owned(),
            (None, _) => String::new(),
        };
        format!("{what}{} at offset {}: {}", bad.file, bad.offset, bad.why)
    });
    ScrubSummary {
        records: report.records,
        bytes: report.bytes,
        bad: bad.collect(),
        bad_count: report.bad_count + report.index_errors + report.charge_errors,
    }
}
