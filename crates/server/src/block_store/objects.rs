//! Blocks in a bucket of an object store, with a log, an index and a cache on a disk of this machine.
//!
//! ```text
//! DATA/block-store   which bucket; text
//! DATA/objects/      segments that the bucket does not have yet, ranges that were read, the index
//! ```
//!
//! Invariants:
//! - a call that changes something returns when it is as durable as was promised: on the disk here, or in the bucket too;
//! - what comes back is believed only if it is what its address says;
//! - a bucket that cannot be reached is told from a block that is damaged, and both from one that is not there;
//! - nothing is collected while the bucket is not what it was, or another server's.

use super::{BlockStore, BlockStoreError, Local, Standing};
use crate::blocks::stored_bytes;
use crate::control::Scrubbed;
use holdfast_content::{BODY_BYTES_MAX, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::{LocalStorage, LogError, Storage};
use holdfast_objects::{Bucket, BucketAddress, OpenObjectsError, S3, Settings, Tiered};
use holdfast_protocol::block_server::{BlockFigures, LoadedBlock};
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome, StoreConfig, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

/// Directory below the data directory.
const DIRECTORY: &str = "objects";
pub(super) const FIRST_LINE: &str = "holdfast block store in a bucket 1";

/// How a bucket is found.
pub struct ObjectsSettings<'a> {
    /// Where it is; `None`: where it was last time.
    pub address: Option<BucketAddress>,
    /// The data directory.
    pub data: &'a Path,
    /// How the store in it behaves.
    pub store: StoreConfig,
    /// The operator accepts what is in the bucket, whatever was there before.
    pub anew: bool,
}

/// Blocks in a bucket.
pub struct Objects {
    store: holdfast_store::BlockStore,
    blocks: Local,
    tier: Tiered,
    address: String,
}

/// The bucket that a data directory remembers; `None`: its blocks are not in one.
pub(crate) fn remembered(data: &Path) -> std::io::Result<Option<BucketAddress>> {
    let text = match std::fs::read_to_string(data.join(super::FILES[0])) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(address) = text.strip_prefix(FIRST_LINE).and_then(|rest| rest.trim().strip_prefix("address "))
    else {
        return Ok(None);
    };
    address.parse().map(Some).map_err(std::io::Error::other)
}

fn remember(data: &Path, address: &BucketAddress) -> std::io::Result<()> {
    let path = data.join(super::FILES[0]);
    let partial = path.with_extension("partial");
    let mut file = std::fs::File::create(&partial)?;
    file.write_all(format!("{FIRST_LINE}\naddress {address}\n").as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&partial, &path)?;
    std::fs::File::open(data)?.sync_all()
}

impl Objects {
    /// Opens the store, or says why not. `None`: neither the settings nor the data directory name a bucket.
    ///
    /// # Errors
    /// In words, with the way out.
    pub fn open(settings: ObjectsSettings) -> Result<Option<Objects>, String> {
        let data = settings.data;
        let known = remembered(data)
            .map_err(|error| format!("what is known of the bucket ({}): {error}", data.display()))?;
        let address = match (&settings.address, &known) {
            (None, None) => return Ok(None),
            (Some(address), _) => address.clone(),
            (None, Some(known)) => known.clone(),
        };
        if let Some(known) = known.as_ref().filter(|known| !known.is_same_place(&address)) {
            tracing::warn!(%known, %address, "the blocks are to be at another place than last time");
        }
        let objects = Objects::over(Arc::new(S3::new(&address)), &address, &settings)?;
        if known.as_ref() != Some(&address) {
            remember(data, &address).map_err(|error| format!("writing to {}: {error}", data.display()))?;
        }
        Ok(Some(objects))
    }

    /// The same over any bucket.
    ///
    /// # Errors
    /// In words, with the way out.
    pub fn over(
        bucket: Arc<dyn Bucket>,
        address: &BucketAddress,
        settings: &ObjectsSettings,
    ) -> Result<Objects, String> {
        let directory = settings.data.join(DIRECTORY);
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        let local: Arc<dyn Storage> = Arc::new(LocalStorage::open(&directory).map_err(failed)?);
        let usual = Settings::default();
        let tiered = Settings {
            durability: address.durability,
            cache_bytes: address.cache_bytes.unwrap_or(usual.cache_bytes),
            anew: settings.anew,
            host: std::fs::read_to_string("/proc/sys/kernel/hostname")
                .map_or(usual.host, |name| name.trim().to_owned()),
            ..Settings::default()
        };
        let segment_bytes = u64::from(settings.store.segment_bytes).min(tiered.cache_bytes / 4) as u32;
        let tier = Tiered::open(local, bucket, tiered).map_err(|error| error.to_string())?;
        let config = StoreConfig { segment_bytes, ..settings.store.clone() };
        let store = holdfast_store::BlockStore::open(Arc::new(tier.clone()), config)
            .map_err(|error| format!("the blocks of {}: {error}", address.place()))?;
        Ok(Objects { blocks: Local::new(store.clone()), store, tier, address: address.to_string() })
    }

    /// Makes what was done as durable as was promised.
    fn commit(&self) -> Result<(), BlockStoreError> {
        self.store.commit()?;
        self.tier.confirm().map_err(|error| self.explain(error))
    }

    fn explain(&self, error: OpenObjectsError) -> BlockStoreError {
        let address = self.address.clone();
        match error {
            OpenObjectsError::Bucket(error) => BlockStoreError::Bucket(error.to_string()),
            OpenObjectsError::Doubtful { why, way_out } => BlockStoreError::Bucket(format!(
                "{why}. Nothing is written there and no garbage is collected. {way_out}"
            )),
            other => BlockStoreError::Failed { address, why: other.to_string() },
        }
    }

    /// What a failure of the store means here.
    fn told(&self, error: BlockStoreError) -> BlockStoreError {
        match error {
            BlockStoreError::Local(StoreError::Log(LogError::Away { error, .. })) => {
                BlockStoreError::Bucket(error)
            }
            other => other,
        }
    }

    /// What is believed of what was read: only what its address says.
    fn checked(&self, address: Digest, loaded: LoadedBlock) -> LoadedBlock {
        match loaded {
            LoadedBlock::Found(header, block) => {
                match block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX) {
                    Ok(_) => LoadedBlock::Found(header, block),
                    Err(error) => LoadedBlock::Damaged(format!(
                        "{} gave wrong bytes for it: {error}; {WAY_OUT}",
                        self.address
                    )),
                }
            }
            LoadedBlock::Damaged(why) => {
                LoadedBlock::Damaged(format!("{}; {WAY_OUT}", self.with_object(why)))
            }
            LoadedBlock::Absent => LoadedBlock::Absent,
        }
    }

    /// A message with the object in place of the name of a segment's file.
    fn with_object(&self, why: String) -> String {
        let file =
            why.split([' ', ':', ',']).find(|word| word.starts_with("segment-") && word.ends_with(".log"));
        match file.and_then(|file| Some((file, self.tier.object_of(file)?))) {
            Some((file, object)) => why.replace(file, &object),
            None => why,
        }
    }
}

const WAY_OUT: &str = "`holdfast server scrub` lists all that is damaged; put a good copy of the object back, or have a \
                       device that still has the block store it again";

impl BlockStore for Objects {
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.blocks.store(file_system, owner, blocks, allowance, now_ns).map_err(|error| self.told(error))?;
        self.commit()
    }

    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError> {
        let (mut blocks, mut bytes) = (Vec::with_capacity(addresses.len()), 0);
        for address in addresses {
            // An object that is gone makes its own blocks errors, and no others.
            let loaded = match self.blocks.load(file_system, &[*address], usize::MAX) {
                Err(BlockStoreError::Local(error @ StoreError::Log(LogError::Io { .. }))) => {
                    LoadedBlock::Damaged(error.to_string())
                }
                loaded => loaded.map_err(|error| self.told(error))?.pop().unwrap_or(LoadedBlock::Absent),
            };
            if let LoadedBlock::Found(_, block) = &loaded {
                bytes += stored_bytes(block);
            }
            if bytes > bytes_max && !blocks.is_empty() {
                break;
            }
            blocks.push(self.checked(*address, loaded));
        }
        Ok(blocks)
    }

    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError> {
        self.blocks.references(file_system, addresses).map_err(|error| self.told(error))
    }

    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError> {
        self.blocks.contains(file_system, addresses)
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
        let dropped = self.blocks.dereference(file_system, owner, addresses, now_ns)?;
        self.commit()?;
        Ok(dropped)
    }

    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError> {
        self.blocks.snapshot(file_system, now_ns)
    }

    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError> {
        self.blocks.pin(file_system, holder, addresses, until_ns, now_ns)?;
        self.commit()
    }

    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError> {
        let outcome = self.blocks.hold(file_system, hold).map_err(|error| self.told(error))?;
        self.commit()?;
        Ok(outcome)
    }

    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError> {
        let was = self.blocks.unhold(file_system, name)?;
        self.commit()?;
        Ok(was)
    }

    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError> {
        self.blocks.holds(file_system)
    }

    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError> {
        self.blocks.charged(file_system, devices)
    }

    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError> {
        self.blocks.charges(file_system)
    }

    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError> {
        self.tier.check_claim().map_err(|error| self.explain(error))?;
        let report =
            self.blocks.collect(file_system, roots, short, now_ns).map_err(|error| self.told(error))?;
        self.commit()?;
        Ok(report)
    }

    fn sync(&self) -> Result<(), BlockStoreError> {
        self.commit()
    }

    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Scrubbed, BlockStoreError> {
        let mut found = self.blocks.scrub(progress).map_err(|error| self.told(error))?;
        found.bad = found.bad.into_iter().map(|bad| self.with_object(bad)).collect();
        Ok(found)
    }

    fn figures(&self) -> Result<BlockFigures, BlockStoreError> {
        self.blocks.figures()
    }

    fn batch(&self) -> usize {
        1
    }

    fn standing(&self) -> Option<Standing> {
        let standing = self.tier.standing();
        Some(Standing {
            address: self.address.clone(),
            reached: standing.trouble.is_none(),
            doubt: standing.doubt.clone(),
            figures: self.figures().ok(),
            bucket: Some(standing.into()),
        })
    }
}
