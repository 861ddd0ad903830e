//! Blocks in a bucket of an object store, with a log, an index and a cache on a disk of this machine.
//!
//! ```text
//! DATA/block-store   which bucket; text
//! DATA/objects/      segments that the bucket does not have yet, ranges that were read, the index
//! ```
//!
//! Invariant: an unreachable bucket, a damaged block and an absent block are three different errors.

use super::interface::{BlockStoreError, BlockStoreStatus};
use super::location::machine_name;
use super::note::{BUCKET_FIRST_LINE, FILES};
use super::open_error::BlocksOpenError;
use crate::error::OpenError;
use holdfast_content::BODY_BYTES_MAX;
use holdfast_crypto::{Digest, DigestKey};
use holdfast_log::{LocalStorage, Storage};
use holdfast_protocol::block_server::{BlockFigures, BucketStatus, LoadedBlock};
use holdfast_store::{LogStore, StoreConfig, StoreError};
use holdfast_tiered::{Bucket, BucketAddress, Settings, Tiered, TieredError};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Directory below the data directory.
pub(super) const DIRECTORY: &str = "objects";

/// Which bucket to use, and the settings of the store in it.
pub struct BucketSettings<'a> {
    /// The bucket's address; `None`: the address that the data directory remembers.
    pub address: Option<BucketAddress>,
    /// The data directory.
    pub data: &'a Path,
    /// How the store in it behaves.
    pub store: StoreConfig,
    /// Whether the operator accepts what is in the bucket, whatever was there before.
    pub anew: bool,
    /// Whether this server was elected among several. It then takes the store over, even if another server
    /// has taken it over meanwhile.
    pub takes_over: bool,
    /// How long an acknowledgement waits for the bucket; `None`: the default.
    pub patience: Option<Duration>,
}

/// The address of the bucket that a data directory remembers; `None` if its blocks are not in a bucket.
pub(crate) fn remembered(data: &Path) -> std::io::Result<Option<BucketAddress>> {
    let text = match std::fs::read_to_string(data.join(FILES[0])) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(address) =
        text.strip_prefix(BUCKET_FIRST_LINE).and_then(|rest| rest.trim().strip_prefix("address "))
    else {
        return Ok(None);
    };
    address.parse().map(Some).map_err(std::io::Error::other)
}

/// The address of a data directory's bucket: the configured one, or else the one it remembers.
///
/// # Errors
/// [`BlocksOpenError::BucketNote`]
pub(super) fn bucket_of(
    data: &Path,
    configured: Option<&BucketAddress>,
) -> Result<Option<BucketAddress>, BlocksOpenError> {
    let known =
        remembered(data).map_err(|error| BlocksOpenError::BucketNote { path: data.to_owned(), error })?;
    if let (Some(known), Some(address)) = (&known, configured)
        && !known.is_same_place(address)
    {
        tracing::warn!(%known, %address, "the blocks are to be at another place than last time");
    }
    Ok(configured.cloned().or(known))
}

/// Stores the address of the bucket in a data directory.
///
/// # Errors
/// [`BlocksOpenError::Writing`]
pub(super) fn remember(data: &Path, address: &BucketAddress) -> Result<(), BlocksOpenError> {
    let write = || {
        if remembered(data)?.as_ref() == Some(address) {
            return Ok(());
        }
        let text = format!("{BUCKET_FIRST_LINE}\naddress {address}\n");
        holdfast_durable::replace(&data.join(FILES[0]), text.as_bytes(), holdfast_durable::PRIVATE)
    };
    write().map_err(BlocksOpenError::writing(data))
}

/// The bucket that a store's log is in.
pub(super) struct BucketTier {
    tiered: Tiered,
    address: String,
}

impl BucketTier {
    /// Opens the bucket, and a store over it.
    ///
    /// # Errors
    /// [`OpenError::Store`]: another process uses the directory. [`OpenError::BlockStore`]: anything else,
    /// with the way out.
    pub(super) fn open(
        bucket: Arc<dyn Bucket>,
        address: &BucketAddress,
        settings: &BucketSettings,
    ) -> Result<(LogStore, BucketTier), OpenError> {
        let directory = settings.data.join(DIRECTORY);
        let failed = |error| OpenError::io("opening", &directory, error);
        let local: Arc<dyn Storage> = Arc::new(LocalStorage::open(&directory).map_err(failed)?);
        let usual = Settings::default();
        let tiered = Settings {
            durability: address.durability,
            cache_bytes: address.cache_bytes.unwrap_or(usual.cache_bytes),
            anew: settings.anew,
            patience: settings.patience.unwrap_or(usual.patience),
            takes_over: settings.takes_over,
            host: machine_name(),
            ..Settings::default()
        };
        let segment_bytes = u64::from(settings.store.segment_bytes).min(tiered.cache_bytes / 4) as u32;
        let tiered = Tiered::open(local, bucket, tiered).map_err(|error| match error {
            TieredError::InUse { directory, why } => OpenError::Store(StoreError::InUse { directory, why }),
            error => BlocksOpenError::Bucket(error).into(),
        })?;
        let config = StoreConfig { segment_bytes, ..settings.store.clone() };
        let store = LogStore::open(Arc::new(tiered.clone()), config)
            .map_err(|error| BlocksOpenError::Log { place: address.place(), error })?;
        Ok((store, BucketTier { tiered, address: address.to_string() }))
    }

    /// Makes everything appended so far as durable as the bucket's address asks for.
    pub(super) fn confirm(&self) -> Result<(), BlockStoreError> {
        self.tiered.confirm().map_err(|error| self.explain(error))
    }

    /// Checks that the bucket is unchanged and owned by this server.
    pub(super) fn check_claim(&self) -> Result<(), BlockStoreError> {
        self.tiered.check_claim().map_err(|error| self.explain(error))
    }

    /// The server that has taken over the store, if one has.
    pub(super) fn taken_over(&self) -> Option<String> {
        self.tiered.taken_over()
    }

    /// Whether the operator has accepted that objects are lost.
    pub(super) fn has_losses(&self) -> bool {
        self.tiered.has_losses()
    }

    /// The name of the store. It changes each time the operator accepts that objects are lost.
    pub(super) fn name(&self) -> [u8; 16] {
        self.tiered.name()
    }

    pub(super) fn status(&self, figures: Option<BlockFigures>) -> BlockStoreStatus {
        let status = self.tiered.status();
        BlockStoreStatus {
            address: self.address.clone(),
            reached: status.trouble.is_none(),
            doubt: status.doubt.clone(),
            figures,
            bucket: Some(bucket_status(status)),
        }
    }

    fn explain(&self, error: TieredError) -> BlockStoreError {
        let address = self.address.clone();
        match error {
            TieredError::Bucket(error) => BlockStoreError::Bucket(error.to_string()),
            TieredError::Doubtful { why, way_out } => BlockStoreError::Bucket(format!(
                "{why}. Nothing is written there and no garbage is collected. {way_out}"
            )),
            other => BlockStoreError::Failed { address, why: other.to_string() },
        }
    }

    /// Checks a block that was read against its address. A block with other content counts as damaged.
    pub(super) fn checked(&self, address: Digest, loaded: LoadedBlock) -> LoadedBlock {
        match loaded {
            LoadedBlock::Present(header, block) => {
                match block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX) {
                    Ok(_) => LoadedBlock::Present(header, block),
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

    /// An error message with the object's name instead of the segment's file.
    pub(super) fn with_object(&self, why: String) -> String {
        let file =
            why.split([' ', ':', ',']).find(|word| word.starts_with("segment-") && word.ends_with(".log"));
        match file.and_then(|file| Some((file, self.tiered.object_of(file)?))) {
            Some((file, object)) => why.replace(file, &object),
            None => why,
        }
    }
}

fn bucket_status(status: holdfast_tiered::TieredStatus) -> BucketStatus {
    let requests = status.requests;
    BucketStatus {
        trouble: status.trouble,
        segments: status.segments,
        bytes: status.bytes,
        waiting_bytes: status.waiting_bytes,
        cached_bytes: status.cached_bytes,
        requests: [requests.put, requests.get, requests.head, requests.list, requests.delete],
    }
}

const WAY_OUT: &str = "`holdfast server scrub` lists all that is damaged; put a good copy of the object back, or have a \
                       device that still has the block store it again";
