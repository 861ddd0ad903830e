//! The interface of block stores, and their errors. The contract is in the text of [`super`].

use crate::refusal::RequestError;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::LogError;
use holdfast_protocol::block_server::{BlockFigures, BucketStatus, ListedBlock, LoadedBlock, PinEntry};
use holdfast_protocol::message::{ServerError, StoreHeader};
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome, StoreError};
use std::collections::{BTreeMap, BTreeSet};

/// Stores the blocks of many file systems, accounts for who is charged for them, and collects garbage. Calls
/// block and may come from any thread. Times are given by the caller, in nanoseconds since 1970.
pub trait BlockStore: Send + Sync {
    /// Stores blocks whose addresses the caller has checked. With an allowance, the call fails unless all
    /// blocks that are not stored already fit into it.
    ///
    /// # Errors
    /// [`BlockStoreError`]; some of the blocks may have been stored.
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError>;

    /// Loads blocks, in the given sequence. The result ends before the block that would make it longer than
    /// `bytes_max`, but has at least one.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError>;

    /// The references of blocks, in the given sequence; `None` for a block that is absent or damaged.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError>;

    /// Which blocks are here. They may be collected at any time after.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError>;

    /// Which blocks are here. Those are durably protected from the collector for another window, and made
    /// permanent: their owners cannot take them back.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError>;

    /// Drops blocks that `owner` stored lately and no other device relies on. Returns how many were dropped.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn dereference(
        &self,
        file_system: Digest,
        owner: DeviceId,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<u32, BlockStoreError>;

    /// Makes everything stored up to `now_ns` permanent: owners cannot take it back.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError>;

    /// Pins blocks, and all they refer to, until `until_ns`. Replaces the earlier pin of `holder`.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), BlockStoreError>;

    /// Sets a hold on a tree, if all of it is here. Replaces a hold of the same name.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, BlockStoreError>;

    /// Ends a hold. Returns whether there was one.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError>;

    /// All holds, sorted by name.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError>;

    /// Blocks, oldest first, that come after the position `after` in the log (0: its beginning). An empty
    /// result means that there are no more. Blocks that are stored or moved meanwhile may be listed or not.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn list(&self, file_system: Digest, after: u64) -> Result<Vec<ListedBlock>, BlockStoreError>;

    /// The pins of the holder with the next higher number after `after`; `None` if there is none. Expired
    /// pins may be among them.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Result<Option<PinEntry>, BlockStoreError>;

    /// What devices are charged for, together. Between two checkpoints of an index this may be too high.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError>;

    /// What every device is charged for.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError>;

    /// Collects garbage: drops all blocks that are reached neither from `roots` nor from a hold or a pin.
    /// Deleted blocks that devices in `short` stored are not kept as bases for the compression of later ones.
    ///
    /// # Errors
    /// [`BlockStoreError`]; nothing that is in use was dropped.
    fn collect(
        &self,
        file_system: Digest,
        roots: &[Digest],
        short: &BTreeSet<DeviceId>,
        now_ns: i64,
    ) -> Result<CollectReport, BlockStoreError>;

    /// Makes the effect of all earlier calls durable.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn sync(&self) -> Result<(), BlockStoreError>;

    /// Reads everything and checks it. `progress` is given the bytes read and the bytes in all, where that is
    /// known.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError>;

    /// Figures about the store's contents.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn figures(&self) -> Result<BlockFigures, BlockStoreError>;

    /// How many blocks to request with one call: more than one if each call takes a while.
    fn batch(&self) -> usize;

    /// The status of a block store on another machine or in a bucket; `None` if the blocks are in the data
    /// directory.
    fn status(&self) -> Option<BlockStoreStatus>;
}

/// The status of a block store on another machine or in a bucket.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockStoreStatus {
    /// The address of the block server or bucket.
    pub address: String,
    /// Whether the last request was answered.
    pub reached: bool,
    /// Why its garbage is not collected; `None` if it is.
    pub doubt: Option<String>,
    /// The figures of the store; `None` if they could not be read.
    pub figures: Option<BlockFigures>,
    /// The status of the bucket, if the blocks are in one, directly or behind a block server.
    pub bucket: Option<BucketStatus>,
}

/// What a scrub found.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ScrubSummary {
    /// Good records.
    pub records: u64,
    /// Bytes read.
    pub bytes: u64,
    /// A description of each damaged record; at most 10,000.
    pub bad: Vec<String>,
    /// Number of damaged records and of blocks whose index entry is wrong.
    pub bad_count: u64,
}

/// Why a call of a block store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockStoreError {
    /// Medium: this process's own log failed.
    #[error(transparent)]
    Local(StoreError),
    /// The block server on the other machine cannot be reached.
    #[error(
        "the block store {address} cannot be reached: {why}. What needs it is refused until it can; nothing is lost"
    )]
    Away {
        /// The address of the block store.
        address: String,
        /// The reason.
        why: String,
    },
    /// The bucket cannot be reached, refuses, or is not what it was.
    #[error("{0}")]
    Bucket(String),
    /// The other machine's disk is full.
    #[error("the disk of the block store {address} is full")]
    Full {
        /// The address of the block store.
        address: String,
    },
    /// Caller: the blocks would exceed the user's limit.
    #[error("the limit of {limit} bytes is reached: {used} are used")]
    OverQuota {
        /// Bytes charged.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A collection is running; nothing else of that kind can run at the same time.
    #[error("a collection runs at the block store; try again")]
    Busy,
    /// The call is not allowed.
    #[error("refused: {0}")]
    Refused(String),
    /// The other machine's disk failed, or its reply makes no sense.
    #[error("the block store {address} failed: {why}")]
    Failed {
        /// The address of the block store.
        address: String,
        /// The error it reported.
        why: String,
    },
    /// The store is another one than before, or an older copy.
    #[error(
        "{doubt}. No garbage is collected there, as blocks that are in use may look unused. Put the right store back, or \
         keep this one and lose what it lacks; then start the server once with --blocks-anew"
    )]
    Doubtful {
        /// The reason for the doubt.
        doubt: String,
    },
}

impl From<StoreError> for BlockStoreError {
    fn from(error: StoreError) -> BlockStoreError {
        match error {
            StoreError::Log(LogError::Away { error, .. }) => BlockStoreError::Bucket(error),
            error => BlockStoreError::Local(error),
        }
    }
}

impl From<BlockStoreError> for RequestError {
    fn from(error: BlockStoreError) -> Self {
        match error {
            BlockStoreError::Local(error) => error.into(),
            BlockStoreError::Full { .. } => RequestError::Client(ServerError::NoSpace),
            BlockStoreError::OverQuota { used, limit } => {
                RequestError::Client(ServerError::OverQuota { used, limit })
            }
            BlockStoreError::Busy => RequestError::Client(ServerError::Busy),
            BlockStoreError::Refused(why) => RequestError::Client(ServerError::Invalid(why)),
            other => RequestError::Client(ServerError::Storage(other.to_string())),
        }
    }
}

/// Loads one block; `None` if it is absent. A damaged block is logged and counts as absent.
pub(crate) fn load_one(
    store: &dyn BlockStore,
    file_system: Digest,
    address: Digest,
) -> Result<Option<StoredBlock>, BlockStoreError> {
    let loaded = store.load(file_system, &[address], usize::MAX)?;
    Ok(loaded
        .into_iter()
        .next()
        .and_then(|loaded| sound(loaded, file_system, &address))
        .map(|(_, block)| block))
}

/// The block, if it was loaded intact. Damage is logged with the file: a client recognises a lost block
/// because something still refers to it, but only the server knows which file is bad.
pub(crate) fn sound(
    loaded: LoadedBlock,
    file_system: Digest,
    address: &Digest,
) -> Option<(StoreHeader, StoredBlock)> {
    match loaded {
        LoadedBlock::Present(header, block) => Some((header, block)),
        LoadedBlock::Absent => None,
        LoadedBlock::Damaged(why) => {
            tracing::error!(%file_system, %address, why, "a block is damaged; answering that it is missing");
            None
        }
    }
}

/// About how many bytes a block takes in a message.
pub(crate) fn stored_bytes(block: &StoredBlock) -> usize {
    block.body.len() + block.references.len() * 32 + 64
}
