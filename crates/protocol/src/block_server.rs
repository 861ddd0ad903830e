//! What a consistency server says to a block server on another machine (SUNDR section 5), inside the same
//! authenticated channel as everything else: one request, [`BlockRequest`], and one answer, [`BlockReply`].
//!
//! Invariants:
//! - whatever changes something is durable at the block server before it is answered, so an ordering record that is
//!   written after the answer never names a block that a crash could take back;
//! - each request says which store it is for and up to where that store has acknowledged; a store that is another one,
//!   or has lost something that it acknowledged, says so and does nothing;
//! - each call may be repeated when its answer was lost, but for those that take long.
//!
//! The block server is trusted with keeping blocks, and nothing else: digests are checked by whoever asked.

use crate::message::{AddressedBlock, Bits, HoldShown, MESSAGE_BYTES_MAX, StoreHeader};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;

/// The name of a store, drawn at random when it was made.
pub type StoreId = [u8; 16];

/// One of several stores of one consistency server, which several block servers of one bucket have between them. Each file
/// system is in one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Shard {
    /// Which, from 0.
    pub number: u16,
    /// How many there are.
    pub of: u16,
}

/// Most shards.
pub const SHARDS_MAX: u16 = 64;
/// How the name of a shard begins.
const SHARD_TAG: &[u8; 28] = b"holdfast shard of blocks    ";

impl Shard {
    /// The only one, where there are not several.
    pub const WHOLE: Shard = Shard { number: 0, of: 1 };

    /// Which of several has the blocks of a file system.
    ///
    /// # Panics
    /// There are none.
    pub fn of_file_system(file_system: &Digest, of: u16) -> Shard {
        let (first, _) = file_system.0.split_first_chunk().expect("a digest is longer");
        let number = u64::from_le_bytes(*first) % u64::from(of);
        Shard { number: number as u16, of }
    }

    /// What a greeting has in place of a file system: whoever is greeted has this shard, or says that another one has it.
    pub fn name(self) -> Digest {
        let mut name = [0; 32];
        name[..28].copy_from_slice(SHARD_TAG);
        name[28..30].copy_from_slice(&self.number.to_le_bytes());
        name[30..].copy_from_slice(&self.of.to_le_bytes());
        Digest(name)
    }

    /// The shard of a name; `None`: it is no shard's.
    pub fn named(name: &Digest) -> Option<Shard> {
        let rest = name.0.strip_prefix(SHARD_TAG)?;
        let (number, of) = (u16::from_le_bytes([rest[0], rest[1]]), u16::from_le_bytes([rest[2], rest[3]]));
        (number < of && of <= SHARDS_MAX).then_some(Shard { number, of })
    }
}

/// Consistency server to block server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockRequest {
    /// The store that is meant; `None`: whichever is there.
    pub store: Option<StoreId>,
    /// The highest position that this store has acknowledged; 0: none.
    pub known: u64,
    /// The file system.
    pub file_system: Digest,
    /// What is wanted.
    pub call: BlockCall,
}

/// What a consistency server wants.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockCall {
    /// Nothing: only the store's name and position. Answered by `Done`; or by `Shards`, if no shard was asked for and there
    /// are several.
    Greet,
    /// Stores blocks. Answered by `Done`.
    Store {
        /// Who stores them.
        owner: DeviceId,
        /// Blocks whose addresses the consistency server has checked.
        blocks: Vec<AddressedBlock>,
        /// What this may come to.
        allowance: Option<StoreAllowance>,
        /// The consistency server's clock, nanoseconds since 1970, here as below.
        now_ns: i64,
    },
    /// Fetches blocks. Answered by `Loaded`, which may end early, but never before the first.
    Load {
        /// Which.
        addresses: Vec<Digest>,
        /// Bytes after which the answer ends.
        bytes_max: u32,
    },
    /// Asks what blocks refer to. Answered by `References`, which may end early, but never before the first.
    References(Vec<Digest>),
    /// Asks which blocks are here, and promises nothing of them. Answered by `Which`.
    Contains(Vec<Digest>),
    /// Asks which blocks are here and keeps those from the collector for another window. Answered by `Which`.
    Renew {
        /// Which.
        addresses: Vec<Digest>,
        /// When.
        now_ns: i64,
    },
    /// Takes back blocks stored lately. Answered by `Count`, of those dropped.
    Dereference {
        /// Who stored them.
        owner: DeviceId,
        /// Which.
        addresses: Vec<Digest>,
        /// When.
        now_ns: i64,
    },
    /// Makes all that is here permanent. Answered by `Done`.
    Snapshot {
        /// When.
        now_ns: i64,
    },
    /// Pins blocks in place of what the holder pinned before. Answered by `Done`.
    Pin {
        /// Who.
        holder: u64,
        /// Which.
        addresses: Vec<Digest>,
        /// Until when.
        until_ns: i64,
        /// When.
        now_ns: i64,
    },
    /// Holds trees by name. Answered by `Missing`: if nothing is, the hold is in force.
    Hold(HoldShown),
    /// Ends a hold. Answered by `Count`: whether there was one.
    Unhold(String),
    /// Asks which holds there are. Answered by `Holds`.
    Holds,
    /// Asks what devices are charged for together. Answered by `Charges` with one entry.
    Charged(Vec<DeviceId>),
    /// Asks what every device is charged for, exactly. Answered by `Charges`.
    Charges,
    /// Drops what is reachable from none of the roots, no hold and no pin, and was not stored or relied on lately or
    /// since the walk began. Answered by `Collected`.
    Collect {
        /// Heads that clients may still build on.
        roots: Vec<Digest>,
        /// Devices near their limits, of which nothing deleted is kept.
        short: Vec<DeviceId>,
        /// When.
        now_ns: i64,
    },
    /// Reads everything. Answered by `Scrubbed`.
    Scrub,
    /// Asks for figures. Answered by `Figures`.
    Figures,
    /// Asks for all blocks, oldest first, from behind a place in the log. Answered by `Listed`, with none if there are no
    /// more.
    List {
        /// The place of the last one that is known already; 0: none.
        after: u64,
    },
    /// Asks who pins blocks, one after the other in order of number. Answered by `Pinned`.
    Pinned {
        /// The one asked for last; `None`: the first is wanted.
        after: Option<u64>,
    },
}

/// How much whoever stores may be charged for in all.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct StoreAllowance {
    /// Devices that are charged together.
    pub devices: Vec<DeviceId>,
    /// Bytes.
    pub bytes: u64,
    /// Bytes beyond, for blocks other than chunks.
    pub reserve: u64,
}

/// Block server to consistency server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockReply {
    /// The store that answers.
    pub store: StoreId,
    /// Up to where everything in it is durable. Grows, as long as nothing is lost.
    pub position: u64,
    /// The answer.
    pub outcome: Result<BlockAnswer, BlockFault>,
}

/// What a block server answers.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockAnswer {
    /// It is done, durably.
    Done,
    /// Blocks, in the order asked for.
    Loaded(Vec<LoadedBlock>),
    /// What blocks refer to, in the order asked for; `None`: not here.
    References(Vec<Option<Vec<Digest>>>),
    /// Yes or no for each, in the order asked for.
    Which(Bits),
    /// How many.
    Count(u32),
    /// What is missing.
    Missing(Vec<Digest>),
    /// Holds in order of name.
    Holds(Vec<HoldShown>),
    /// Device, blocks, bytes.
    Charges(Vec<(DeviceId, u64, u64)>),
    /// What a collection did.
    Collected(BlockCollection),
    /// What a scrub found.
    Scrubbed {
        /// Records read.
        records: u64,
        /// Bytes read.
        bytes: u64,
        /// Damaged records, in words; at most 10,000.
        bad: Vec<String>,
        /// How many there are.
        bad_count: u64,
    },
    /// Figures.
    Figures(BlockFigures),
    /// Figures of a store in a bucket.
    FiguresInBucket(BlockFigures, BucketStanding),
    /// How many shards there are: one of them is to be asked for when greeting.
    Shards(u16),
    /// Blocks, oldest first; at most [`LISTED_MAX`].
    Listed(Vec<ListedBlock>),
    /// The next one that pins blocks; `None`: there are no more.
    Pinned(Option<PinShown>),
}

/// Most blocks in one answer that lists them.
pub const LISTED_MAX: usize = 100_000;

/// A block as its store knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedBlock {
    /// Its address.
    pub address: Digest,
    /// Who is charged for it.
    pub owner: DeviceId,
    /// When somebody last relied on it, in nanoseconds since 1970.
    pub age_ns: i64,
    /// Its bytes in the log.
    pub bytes: u32,
    /// Where in the log it is; no other block has the same place.
    pub place: u64,
}

/// Blocks that a reader holds open.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PinShown {
    /// Who.
    pub holder: u64,
    /// Until when, in nanoseconds since 1970.
    pub until_ns: i64,
    /// Which.
    pub addresses: Vec<Digest>,
}

/// A block asked for.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum LoadedBlock {
    /// It is not here.
    Absent,
    /// It is here and not as it was stored, or may be among what was lost.
    Damaged(String),
    /// Here it is, unchecked.
    Found(StoreHeader, StoredBlock),
}

/// What a collection did.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockCollection {
    /// Blocks in use.
    pub marked: u64,
    /// Blocks dropped.
    pub dropped: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Blocks kept though nothing refers to them.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// Live records rewritten.
    pub moved: u64,
    /// Bytes given back: of files removed, and of holes.
    pub removed_bytes: u64,
    /// Files kept because they are damaged, and how.
    pub damaged: Vec<(u32, String)>,
    /// Blocks in use that are not here; not all are named.
    pub missing: Vec<Digest>,
}

/// Figures of a store.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BlockFigures {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Bytes among them of deleted content.
    pub deleted_bytes: u64,
    /// Bytes of all files.
    pub log_bytes: u64,
    /// Free bytes on the medium.
    pub free_bytes: Option<u64>,
    /// Blocks known to be damaged.
    pub damaged_blocks: u64,
}

/// How it stands with a bucket that has the blocks.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct BucketStanding {
    /// Why it is not reached, or refuses.
    pub trouble: Option<String>,
    /// Segments in it.
    pub segments: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Bytes that it does not have yet.
    pub waiting_bytes: u64,
    /// Bytes of copies on the disk of whoever uses it.
    pub cached_bytes: u64,
    /// Requests since the start: written, read, measured, listed, removed.
    pub requests: [u64; 5],
}

/// Why a block server did not do it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum BlockFault {
    /// This is another store than the one meant.
    OtherStore,
    /// The store has lost what it acknowledged: it is an older copy.
    OlderStore,
    /// The disk is full.
    Full,
    /// More would be charged than may be.
    OverQuota {
        /// Bytes charged.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// Something runs that allows nothing beside it; to be tried again.
    Busy,
    /// The request is not allowed.
    Refused(String),
    /// The medium failed.
    Failed(String),
}

/// Requests with more bytes than this may hold up others.
const SMALL_BYTES: usize = 64 << 10;

impl BlockCall {
    /// Whether doing it twice does no more than doing it once, and it is soon done.
    pub fn may_repeat(&self) -> bool {
        !matches!(self, BlockCall::Collect { .. } | BlockCall::Scrub)
    }

    /// Whether it may read all there is.
    pub fn takes_long(&self) -> bool {
        matches!(self, BlockCall::Collect { .. } | BlockCall::Scrub | BlockCall::List { .. })
    }

    /// Whether it moves, or reads, much.
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

    /// Proves: a shard's name is its own and no other's, what is no name of one is none, and file systems are spread over
    /// all of them.
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
