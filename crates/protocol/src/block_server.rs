//! The protocol between a consistency server and a block server on another machine (SUNDR section 5), inside
//! the same authenticated channel as everything else: a request, [`BlockRequest`], has one answer,
//! [`BlockReply`].
//!
//! Invariants:
//! - Every change is durable at the block server before it is answered. So an ordering record written after
//!   the answer never names a block that a crash could lose.
//! - Each request names its store and the position that this store has acknowledged. Another store, or one
//!   that has lost something that it acknowledged, refuses and does nothing.
//! - Each call may be repeated when its answer was lost, except the long-running ones.
//!
//! The block server is trusted with storing blocks and nothing else: whoever fetches a block checks its
//! digest.

use crate::message::{AddressedBlock, Bits, HoldEntry, MESSAGE_BYTES_MAX, StoreHeader};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;

/// The name of a store, drawn at random when it was made.
pub type StoreId = [u8; 16];

/// One of several stores of one consistency server, divided among several block servers of one bucket. Each
/// file system is in one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shard {
    /// Number of the shard, from 0.
    pub number: u16,
    /// Number of shards of the file system.
    pub of: u16,
}

/// Most shards of a file system.
pub const SHARDS_MAX: u16 = 64;
/// First bytes of the name of a shard.
const SHARD_TAG: &[u8; 28] = b"holdfast shard of blocks    ";

impl Shard {
    /// The only one, where there are not several.
    pub const WHOLE: Shard = Shard { number: 0, of: 1 };

    /// The shard that has the blocks of a file system, out of `of` shards.
    ///
    /// # Panics
    /// If `of` is 0.
    pub fn of_file_system(file_system: &Digest, of: u16) -> Shard {
        let (first, _) = file_system.0.split_first_chunk().expect("a digest is longer");
        let number = u64::from_le_bytes(*first) % u64::from(of);
        Shard { number: number as u16, of }
    }

    /// Stands in a greeting where a file system's id would be. A block server that does not have this shard
    /// refuses and names the one that it has.
    pub fn name(self) -> Digest {
        let mut name = [0; 32];
        name[..28].copy_from_slice(SHARD_TAG);
        name[28..30].copy_from_slice(&self.number.to_le_bytes());
        name[30..].copy_from_slice(&self.of.to_le_bytes());
        Digest(name)
    }

    /// The shard with a name; `None` if no shard has it.
    pub fn named(name: &Digest) -> Option<Shard> {
        let rest = name.0.strip_prefix(SHARD_TAG)?;
        let (number, of) = (u16::from_le_bytes([rest[0], rest[1]]), u16::from_le_bytes([rest[2], rest[3]]));
        (number < of && of <= SHARDS_MAX).then_some(Shard { number, of })
    }
}

/// From the consistency server to the block server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockRequest {
    /// The store that is meant; `None`: any store.
    pub store: Option<StoreId>,
    /// The highest position that this store has acknowledged; 0: none.
    pub known: u64,
    /// The file system.
    pub file_system: Digest,
    /// The request's call.
    pub call: BlockCall,
}

/// A call of a consistency server to a block server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockCall {
    /// Asks only for the store's name and position. Answered by `Done`; or by `Shards`, if no shard was named
    /// and there are several.
    Greet,
    /// Stores blocks. Answered by `Done`.
    Store {
        /// The device that stores them, and is charged.
        owner: DeviceId,
        /// Blocks whose addresses the consistency server has checked.
        blocks: Vec<AddressedBlock>,
        /// Limit on what the device's user may be charged.
        allowance: Option<StoreAllowance>,
        /// The consistency server's clock, nanoseconds since 1970, here as below.
        now_ns: i64,
    },
    /// Fetches blocks. Answered by `Loaded`, which may be shorter than the list but has at least the first.
    Load {
        /// Addresses of the blocks.
        addresses: Vec<Digest>,
        /// The answer ends once it has so many bytes.
        bytes_max: u32,
    },
    /// Asks for the references of blocks. Answered by `References`, which may be shorter than the list but
    /// has at least the first.
    References(Vec<Digest>),
    /// Asks which blocks are here, and promises nothing of them. Answered by `Flags`.
    Contains(Vec<Digest>),
    /// Asks which blocks are here and keeps those from the collector for another window. Answered by `Flags`.
    Renew {
        /// Addresses of the blocks.
        addresses: Vec<Digest>,
        /// The consistency server's clock, nanoseconds since 1970.
        now_ns: i64,
    },
    /// Takes back blocks that were stored lately. Answered by `Count`, the number of those dropped.
    Dereference {
        /// The device that stored them.
        owner: DeviceId,
        /// Addresses of the blocks.
        addresses: Vec<Digest>,
        /// The consistency server's clock, nanoseconds since 1970.
        now_ns: i64,
    },
    /// Makes all blocks of the store permanent. Answered by `Done`.
    Snapshot {
        /// The consistency server's clock, nanoseconds since 1970.
        now_ns: i64,
    },
    /// Pins blocks, in place of those that the holder had pinned before. Answered by `Done`.
    Pin {
        /// Number of the reader.
        holder: u64,
        /// Addresses of the blocks.
        addresses: Vec<Digest>,
        /// End of the pin, nanoseconds since 1970.
        until_ns: i64,
        /// The consistency server's clock, nanoseconds since 1970.
        now_ns: i64,
    },
    /// Holds trees by name. Answered by `Missing`: if nothing is, the hold is in force.
    Hold(HoldEntry),
    /// Ends a hold. Answered by `Count`: whether there was one.
    Unhold(String),
    /// Asks which holds there are. Answered by `Holds`.
    Holds,
    /// Asks what devices are charged for together. Answered by `Charges` with one entry.
    Charged(Vec<DeviceId>),
    /// Asks what every device is charged for, exactly. Answered by `Charges`.
    Charges,
    /// Drops blocks that no root, hold or pin reaches and that were not stored or relied on lately, nor since
    /// the walk began. Answered by `Collected`.
    Collect {
        /// Roots that clients may still build on.
        roots: Vec<Digest>,
        /// Devices near their limits: blocks that they have deleted are dropped at once.
        short: Vec<DeviceId>,
        /// The consistency server's clock, nanoseconds since 1970.
        now_ns: i64,
    },
    /// Reads everything. Answered by `Scrubbed`.
    Scrub,
    /// Asks for figures. Answered by `Figures`.
    Figures,
    /// Asks for all blocks, oldest first, from behind a place in the log. Answered by `Listed`, with none if there are no
    /// more.
    List {
        /// The place of the last block already received; 0: start with the first.
        after: u64,
    },
    /// Asks which readers pin blocks, one after the other in order of number. Answered by `Pinned`.
    Pinned {
        /// The last entry already received; `None`: start with the first.
        after: Option<u64>,
    },
}

/// Limit on what the devices of a user may be charged for.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct StoreAllowance {
    /// Devices that are charged together.
    pub devices: Vec<DeviceId>,
    /// Number of bytes.
    pub bytes: u64,
    /// Bytes beyond the limit that blocks other than chunks may take.
    pub reserve: u64,
}

/// From the block server to the consistency server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockReply {
    /// The store that answers.
    pub store: StoreId,
    /// Position in the store's log up to which everything is durable. It never decreases unless something was
    /// lost.
    pub position: u64,
    /// The result of a call.
    pub outcome: Result<BlockResult, BlockFault>,
}

/// Result of a request that a block server has carried out.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockResult {
    /// The request has been carried out, durably.
    Done,
    /// Blocks, in the sequence of the request.
    Loaded(Vec<LoadedBlock>),
    /// The references of each block, in the sequence of the request; `None` for a block that is not here.
    References(Vec<Option<Vec<Digest>>>),
    /// Yes or no for each block, in the sequence of the request.
    Flags(Bits),
    /// A number of blocks.
    Count(u32),
    /// Addresses of blocks that are missing.
    Missing(Vec<Digest>),
    /// Holds in order of name.
    Holds(Vec<HoldEntry>),
    /// For each device how many blocks it is charged for, and their bytes.
    Charges(Vec<(DeviceId, u64, u64)>),
    /// What a collection did.
    Collected(BlockCollection),
    /// What a scrub found.
    Scrubbed {
        /// Number of records that were read.
        records: u64,
        /// Number of bytes that were read.
        bytes: u64,
        /// Damaged records, in words; at most 10,000.
        bad: Vec<String>,
        /// Number of bad records, also those not listed.
        bad_count: u64,
    },
    /// Figures of the store.
    Figures(BlockFigures),
    /// Figures of a store in a bucket.
    FiguresInBucket(BlockFigures, BucketStatus),
    /// Number of shards: the consistency server must name one of them in `Greet`.
    Shards(u16),
    /// Blocks, oldest first; at most [`LISTED_MAX`].
    Listed(Vec<ListedBlock>),
    /// The next entry that pins blocks; `None` after the last.
    Pinned(Option<PinEntry>),
}

/// Most blocks in one answer that lists them.
pub const LISTED_MAX: usize = 100_000;

/// A block as a listing describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedBlock {
    /// Its address.
    pub address: Digest,
    /// The device that is charged for it.
    pub owner: DeviceId,
    /// When a client last relied on the block, in nanoseconds since 1970.
    pub age_ns: i64,
    /// Bytes that it takes in the log.
    pub bytes: u32,
    /// Position of the block in the log, which identifies it.
    pub place: u64,
}

/// Blocks that a reader holds open.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PinEntry {
    /// Number of the reader.
    pub holder: u64,
    /// End of the pin, in nanoseconds since 1970.
    pub until_ns: i64,
    /// Addresses of the blocks.
    pub addresses: Vec<Digest>,
}

/// A block asked for.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum LoadedBlock {
    /// The block is not here.
    Absent,
    /// The block is damaged, or may be among blocks that were lost; the text says how.
    Damaged(String),
    /// The block is here; its content has not been checked.
    Present(StoreHeader, StoredBlock),
}

/// What a collection did.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockCollection {
    /// Number of blocks that are in use.
    pub marked: u64,
    /// Number of blocks that were dropped.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Number of blocks that are kept although nothing refers to them.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Number of live records that were rewritten.
    pub moved: u64,
    /// Bytes given back to the file system, by removed files and by holes.
    pub removed_bytes: u64,
    /// Files kept because they are damaged, and how.
    pub damaged: Vec<(u32, String)>,
    /// Some of the blocks in use that are missing.
    pub missing: Vec<Digest>,
}

/// Figures of a store.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockFigures {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Bytes of deleted content among them.
    pub deleted_bytes: u64,
    /// Bytes of all files.
    pub log_bytes: u64,
    /// Free bytes on the medium.
    pub free_bytes: Option<u64>,
    /// Number of blocks that are known to be damaged.
    pub damaged_blocks: u64,
}

/// Status of the bucket that has a store's blocks.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BucketStatus {
    /// Why the bucket is not reached, or refuses requests.
    pub trouble: Option<String>,
    /// Number of segments in the bucket.
    pub segments: u64,
    /// Bytes of these segments.
    pub bytes: u64,
    /// Bytes that it does not have yet.
    pub waiting_bytes: u64,
    /// Bytes of copies on the disk of the server that uses the bucket.
    pub cached_bytes: u64,
    /// Number of requests since the start that wrote, read, measured, listed and removed objects.
    pub requests: [u64; 5],
}

/// Why a block server did not carry out a request.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockFault {
    /// The store is not the one that the request names.
    OtherStore,
    /// The store has lost what it acknowledged, so it is an older copy.
    OlderStore,
    /// The disk is full.
    Full,
    /// The user would be charged for more than the limit.
    OverQuota {
        /// Bytes charged.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// An exclusive task is running; the request is to be tried again.
    Busy,
    /// The request is not allowed.
    Refused(String),
    /// The disk, or the bucket, failed.
    Failed(String),
}

/// Requests with more bytes than this may hold others up.
const SMALL_BYTES: usize = 64 << 10;

impl BlockCall {
    /// Whether doing it twice does no more than doing it once, and it is soon done.
    pub fn may_repeat(&self) -> bool {
        !matches!(self, BlockCall::Collect { .. } | BlockCall::Scrub)
    }

    /// Whether the request may read the whole store.
    pub fn takes_long(&self) -> bool {
        matches!(self, BlockCall::Collect { .. } | BlockCall::Scrub | BlockCall::List { .. })
    }

    /// Whether the request moves or reads many bytes.
    pub fn is_bulky(&self) -> bool {
        match self {
            BlockCall::Store { blocks, .. } => {
                blocks.iter().map(|block| block.block.body.len()).sum::<usize>() > SMALL_BYTES
            }
            BlockCall::Load { bytes_max, .. } => *bytes_max as usize > SMALL_BYTES,
            other => other.takes_long(),
        }
    }

    /// Most bytes of its answer.
    pub fn answer_bytes_max(&self) -> usize {
        match self {
            // The first may be a whole block, however little was wanted.
            BlockCall::Load { bytes_max, .. } => {
                (*bytes_max as usize).saturating_add(2 << 20).min(MESSAGE_BYTES_MAX)
            }
            BlockCall::References(_) | BlockCall::Scrub | BlockCall::Holds | BlockCall::List { .. } => {
                MESSAGE_BYTES_MAX
            }
            _ => 256 << 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: each shard has a name of its own, other digests are no shard's name, and file systems are
    /// spread over all shards.
    #[test]
    fn names_of_shards() {
        let all: Vec<Shard> = (0..8).map(|number| Shard { number, of: 8 }).collect();
        for shard in &all {
            assert_eq!(Shard::named(&shard.name()), Some(*shard));
        }
        assert_eq!(Shard::named(&Digest::ZERO), None);
        assert_eq!(Shard::named(&Shard { number: 8, of: 8 }.name()), None);
        assert_eq!(Shard::named(&Shard { number: 0, of: SHARDS_MAX + 1 }.name()), None);
        let mut found: Vec<Shard> =
            (0..64).map(|byte| Shard::of_file_system(&Digest([byte; 32]), 8)).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, all);
        assert_eq!(Shard::of_file_system(&Digest([7; 32]), 1), Shard::WHOLE);
    }
}
