//! What every block store does, and how it fails. The contract is in the text of [`super`].

use crate::refusal::RequestError;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_log::LogError;
use holdfast_protocol::block_server::{BlockFigures, BucketStatus, ListedBlock, LoadedBlock, PinEntry};
use holdfast_protocol::message::{ServerError, StoreHeader};
use holdfast_store::{Allowance, Charge, CollectReport, Hold, HoldOutcome, StoreError};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of many file systems, with what is charged for them and what keeps them from the collector. Calls block and may
/// come from any thread. Times are the caller's, in nanoseconds since 1970.
pub trait BlockStore: Send + Sync {
    /// Stores blocks whose addresses the caller has checked; with an allowance, all that are not here already fit into it,
    /// or the call fails.
    ///
    /// # Errors
    /// [`BlockStoreError`]; some of the blocks may be here.
    fn store(
        &self,
        file_system: Digest,
        owner: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<&Allowance>,
        now_ns: i64,
    ) -> Result<(), BlockStoreError>;

    /// Blocks in the order asked for. The answer ends before the block that would make it longer than `bytes_max`, but not
    /// before the first.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn load(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        bytes_max: usize,
    ) -> Result<Vec<LoadedBlock>, BlockStoreError>;

    /// What blocks refer to, in the order asked for; `None`: absent or damaged.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn references(
        &self,
        file_system: Digest,
        addresses: &[Digest],
    ) -> Result<Vec<Option<Vec<Digest>>>, BlockStoreError>;

    /// Which blocks are here; nothing is promised of them.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn contains(&self, file_system: Digest, addresses: &[Digest]) -> Result<Vec<bool>, BlockStoreError>;

    /// Which blocks are here. Those are durably safe from the collector for another window, and permanent.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn renew(
        &self,
        file_system: Digest,
        addresses: &[Digest],
        now_ns: i64,
    ) -> Result<Vec<bool>, BlockStoreError>;

    /// Drops blocks that `owner` stored lately and no other device relies on; returns how many.
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

    /// Makes everything stored up to `now_ns` permanent.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), BlockStoreError>;

    /// Pins blocks, and all they refer to, in place of what `holder` pinned before.
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

    /// Ends a hold; whether there was one.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, BlockStoreError>;

    /// All holds, in order of name.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn holds(&self, file_system: Digest) -> Result<Vec<Hold>, BlockStoreError>;

    /// All blocks, oldest first, from behind a place in the log, 0 for its beginning; none: there are no more. What is stored
    /// or moved meanwhile may be listed or not.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn list(&self, file_system: Digest, after: u64) -> Result<Vec<ListedBlock>, BlockStoreError>;

    /// The pins of the next holder after `after`, in order of number; `None`: there are no more. Pins that have run out
    /// may be among them.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn pinned(&self, file_system: Digest, after: Option<u64>) -> Result<Option<PinEntry>, BlockStoreError>;

    /// What devices are charged for together; in between two checkpoints of an index this may be too much.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Result<Charge, BlockStoreError>;

    /// What every device is charged for.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, BlockStoreError>;

    /// Collects garbage: drops what none of `roots`, no hold and no pin reaches. Of what devices in `short` stored, nothing
    /// deleted is kept as a source for what comes next.
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

    /// Makes everything durable that calls have done.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn sync(&self) -> Result<(), BlockStoreError>;

    /// Reads everything. `progress` is given bytes read and bytes in all, where that is known.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn scrub(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<ScrubSummary, BlockStoreError>;

    /// Figures.
    ///
    /// # Errors
    /// [`BlockStoreError`]
    fn figures(&self) -> Result<BlockFigures, BlockStoreError>;

    /// How many blocks are worth asking for at once, because each question takes a while.
    fn batch(&self) -> usize;

    /// The status of the block store on another machine or in a bucket; `None`: the blocks are in the data directory.
    fn status(&self) -> Option<BlockStoreStatus>;
}

/// The status of a block store on another machine or in a bucket.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockStoreStatus {
    /// The address of the block server or bucket.
    pub address: String,
    /// Whether the last request was answered.
    pub reached: bool,
    /// Why its garbage is not collected.
    pub doubt: Option<String>,
    /// The figures of the store; `None` if they could not be read.
    pub figures: Option<BlockFigures>,
    /// The bucket, if the blocks are in one, here or there.
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

/// Why a block store did not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockStoreError {
    /// Medium: the log of this process failed.
    #[error(transparent)]
    Local(StoreError),
    /// The other machine is not reached.
    #[error(
        "the block store {address} cannot be reached: {why}. What needs it is refused until it can; nothing is lost"
    )]
    Away {
        /// The address of the block store.
        address: String,
        /// The reason.
        why: String,
    },
    /// The bucket is not reached, refuses, or is not what it was.
    #[error("{0}")]
    Bucket(String),
    /// The other machine's disk is full.
    #[error("the disk of the block store {address} is full")]
    Full {
        /// The address of the block store.
        address: String,
    },
    /// Caller: the user who stores would be over the limit.
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
    /// The other machine's disk failed, or its answer makes no sense.
    #[error("the block store {address} failed: {why}")]
    Failed {
        /// The address of the block store.
        address: String,
        /// The error it reported.
        why: String,
    },
    /// It is another store than before, or an older copy.
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

/// The block, if it was loaded intact. Damage is logged with the file: a client distinguishes a loss from a deletion by
/// what still refers to the block, but only the server knows which file is bad.
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
