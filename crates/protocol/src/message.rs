//! The messages between client and server, inside an authenticated channel.
//!
//! Everything that a client receives is untrusted until `check` (views), [`Signed::verify`] (server keys) or
//! `StoredBlock::open` (blocks) has accepted it. Everything that a server receives is checked by the
//! sequencer and the block store.

use crate::block_server::{BlockReply, BlockRequest};
use crate::certificate::Certificate;
use crate::history::{PastReply, Point, Snapshot, SnapshotEnd};
use crate::leases::{LeaseGrant, LeaseRequest, Recall};
use crate::locks::LockRange;
use crate::packed::{self, Difference};
use crate::signed::{Signable, Signed};
use crate::structure::{Structure, View};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Base, DeviceId, Handle, Parcel, StoredBlock, UserId};
use holdfast_crypto::{Digest, Domain, PublicKey, Signature, encode};
use strum::IntoStaticStr;

/// Versions of this protocol that this program speaks, oldest and newest.
pub const PROTOCOL_VERSIONS: (u16, u16) = (4, 4);
/// Largest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Most blocks or addresses in one message.
pub const BATCH_MAX: usize = 4096;
/// Most block bytes that ride along with an operation; more are STOREd beforehand.
pub const ATTACHED_BYTES_MAX: usize = 1 << 20;
/// Most bytes that the parcels of one message hold when they are unpacked, in all.
pub const PARCELS_PLAIN_BYTES_MAX: usize = 16 << 20;
/// Most bytes that parcels riding along with an operation hold when they are unpacked, in all.
pub const ATTACHED_PLAIN_BYTES_MAX: usize = 4 << 20;
/// Most heads in `Witnessed`, and so most witnesses that a server asks.
pub const HEADS_MAX: usize = 16;
/// Most leaves in `Leaves`.
pub const LEAVES_MAX: usize = 16_384;
/// Most addresses in `RetrieveTree::have`.
pub const TREE_HAVE_MAX: usize = 16;

/// The server keys a file system's clients accept, signed by its superuser.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ServerKeys {
    /// File system.
    pub file_system: Digest,
    /// Grows with every new list; clients remember the highest they saw.
    pub sequence: u64,
    /// Keys of the servers that may serve it.
    pub keys: Vec<PublicKey>,
}

impl Signable for ServerKeys {
    const DOMAIN: Domain = Domain::ServerKeys;
    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// A server's signed promise that an operation is committed and durable. With a later abort of the same
/// operation it is evidence against the server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Receipt {
    /// File system.
    pub file_system: Digest,
    /// The operation's device.
    pub device: DeviceId,
    /// Number of its last operation.
    pub number: u64,
    /// Digest of the committed structure.
    pub structure: Digest,
}

impl Signable for Receipt {
    const DOMAIN: Domain = Domain::Receipt;
    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// A block with the address its sender claims for it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct AddressedBlock {
    /// The address that the sender claims.
    pub address: Digest,
    /// The block.
    pub block: StoredBlock,
}

/// Blocks that are sent along with an operation. The server takes all of them, or none if it lacks a base.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Attached {
    /// Blocks that are sent as they are.
    pub blocks: Vec<AddressedBlock>,
    /// Blocks that are packed into parcels.
    pub parcels: Vec<Parcel>,
}

impl From<Vec<AddressedBlock>> for Attached {
    fn from(blocks: Vec<AddressedBlock>) -> Attached {
        Attached { blocks, parcels: Vec::new() }
    }
}

/// Yes or no for each of a list, in its order: bit `n % 8` of byte `n / 8`.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Bits(Vec<u8>);

impl Bits {
    /// The `n`-th bit; `false` beyond the end.
    pub fn get(&self, n: usize) -> bool {
        self.0.get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
    }
}

impl FromIterator<bool> for Bits {
    fn from_iter<T: IntoIterator<Item = bool>>(bits: T) -> Bits {
        let mut bytes = Vec::new();
        for (n, bit) in bits.into_iter().enumerate() {
            if n % 8 == 0 {
                bytes.push(0);
            }
            bytes[n / 8] |= u8::from(bit) << (n % 8);
        }
        Bits(bytes)
    }
}

/// The header a STORE leaves with a block; RETRIEVE returns the first.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct StoreHeader {
    /// The device that stored it first.
    pub owner: DeviceId,
    /// When it was stored, nanoseconds since the epoch, by the server's clock.
    pub stored_ns: i64,
}

/// From a client to the server. Its kind's name, for traces, is its conversion to a `&str`.
#[derive(Clone, PartialEq, Eq, Debug, IntoStaticStr, BorshSerialize, BorshDeserialize)]
pub enum Request {
    /// First on every connection. With a file system, the answer proves the server's right to serve it.
    Hello {
        /// Oldest and newest version spoken.
        versions: (u16, u16),
        /// The file system, unless one is being created or the server only looked at.
        file_system: Option<Digest>,
    },
    /// Creates a file system: its superuser's key, the signed server keys, and its first operation (a fast one
    /// by device 0 with the root directory and the membership) on the empty view.
    CreateFileSystem {
        /// The superuser's public key; its digest is the file system's id.
        superuser: PublicKey,
        /// The server keys that the founder accepted.
        server_keys: Signed<ServerKeys>,
        /// Certificate of the founding operation.
        certificate: Signed<Certificate>,
        /// Structure of the founding operation.
        structure: Signed<Structure>,
        /// Blocks that the structure names.
        blocks: Vec<AddressedBlock>,
    },
    /// Replaces the list of server keys by one of higher sequence.
    SetServerKeys(Signed<ServerKeys>),
    /// Durably stores blocks.
    Store(Vec<AddressedBlock>),
    /// Fetches blocks by address.
    Retrieve(Vec<Digest>),
    /// Asks which of these the file system has. What it has is safe from the collector for another window. Answered by
    /// `Present`.
    Present(Vec<Digest>),
    /// Durably stores the blocks in parcels. Answered by `Done`, or by `BasesMissing` if nothing of them was taken.
    StoreParcels(Vec<Parcel>),
    /// Fetches blocks packed against others that the client has. Answered by `Parcel`.
    RetrieveParcel {
        /// Addresses of the blocks, as in [`Request::Retrieve`].
        wanted: Vec<Digest>,
        /// Blocks that the client has. The server ignores those that it lacks or has no room for.
        bases: Vec<Base>,
        /// zstd's level, 1 to 19; the server may take a lower one.
        level: i8,
    },
    /// Fetches the blocks that a tree has and others have not, packed against blocks that only the others
    /// have. So a client gets from an older version of a file to the present one in one round trip. Answered
    /// by `Tree`.
    RetrieveTree {
        /// Root of the tree.
        root: Digest,
        /// Roots of trees that the client has whole; at most [`TREE_HAVE_MAX`].
        have: Vec<Digest>,
        /// Whether blocks without references are sent too.
        data: TreeData,
        /// Most bytes wanted, unpacked.
        bytes_max: u32,
        /// zstd's level, 1 to 19; the server may take a lower one.
        level: i8,
    },
    /// Gives up blocks stored lately by this device.
    Dereference(Vec<Digest>),
    /// Stores a signed block under the sender's key.
    VStore {
        /// Small index, to keep several under one key.
        index: u64,
        /// The bytes, at most 64 KiB.
        bytes: Vec<u8>,
        /// By the sender's key over (file system, index, bytes) in `Domain::SignedBlock`.
        signature: Signature,
    },
    /// Fetches the newest signed block, or the newest before a time.
    VRetrieve {
        /// The key of the device.
        key: PublicKey,
        /// Number of the part.
        index: u64,
        /// Nanoseconds since the epoch.
        before_ns: Option<i64>,
    },
    /// Immunises all blocks stored so far from DECREF.
    Snapshot,
    /// Keeps these blocks and all they refer to from garbage collection for a while (open files), in place of
    /// whatever this device pinned before.
    Pin {
        /// Roots of the trees.
        addresses: Vec<Digest>,
        /// Duration in seconds; at most 3,600.
        seconds: u32,
    },
    /// Shows the present view without ordering anything. Proves nothing about freshness.
    Look {
        /// Size of the last log head the client accepted.
        log_size: u64,
    },
    /// Slow path, first half: orders an operation.
    Update {
        /// The certificate of the operation.
        certificate: Signed<Certificate>,
        /// Blocks that it names; they are durable before it is ordered.
        attached: Attached,
        /// Size of the last log head the client accepted.
        log_size: u64,
        /// Whether the answer may show the difference from the view with that head.
        by_difference: bool,
        /// Leases that the client asks for with it.
        lease: Option<LeaseRequest>,
    },
    /// Slow path, second half.
    Commit {
        /// The structure.
        structure: Signed<Structure>,
        /// Blocks that the structure names.
        attached: Attached,
    },
    /// Fast path: both halves, taken only if the view is exactly the one signed against.
    Fast {
        /// The certificate of the operation.
        certificate: Signed<Certificate>,
        /// The structure.
        structure: Signed<Structure>,
        /// Blocks that they name.
        attached: Attached,
        /// Size of the last log head the client accepted.
        log_size: u64,
        /// Whether a refusal may contain the present view, as the difference from the view with that head.
        by_difference: bool,
        /// Leases that the client asks for with it.
        lease: Option<LeaseRequest>,
    },
    /// Waits until an operation is committed (FETCHPENDING).
    FetchPending {
        /// The device that made the operation.
        device: DeviceId,
        /// Number of the operation.
        number: u64,
        /// How long to wait at most, in milliseconds.
        wait_ms: u32,
    },
    /// Is answered at once.
    Ping,
    /// Sets the mode of a range of a file's advisory locks. Setting twice what was set changes nothing.
    Lock(LockRequest),
    /// Asks which lock is in the way of a request, without taking it.
    TestLock(LockRequest),
    /// Waits until a lock seems to be free, without taking it: a wait that is called off changes nothing.
    AwaitLock {
        /// The lock.
        lock: LockRequest,
        /// How long to wait at most, in milliseconds.
        wait_ms: u32,
    },
    /// Says that a run of a client is alive, so that it keeps its locks.
    KeepLocks {
        /// The run of the client.
        run: u128,
    },
    /// Gives up all locks of a run.
    EndLocks {
        /// The run of the client.
        run: u128,
    },
    /// Protects blocks and everything they refer to from garbage collection until [`Request::Unhold`], and
    /// replaces a hold of the same name. For signed releases that refer to blocks of the file system.
    /// Answered by `Held`.
    Hold {
        /// Name of the hold.
        name: String,
        /// Roots of what it keeps.
        roots: Vec<Digest>,
    },
    /// Ends a hold of the same user. It is no error if there is none.
    Unhold {
        /// Name of the hold.
        name: String,
    },
    /// Asks which holds there are.
    Holds,
    /// Waits until leases are recalled, and says which recalls have been carried out.
    AwaitRecall {
        /// The run of the client.
        run: u128,
        /// Epoch of the session, from the server's last answer.
        epoch: u64,
        /// Number of the last recall that was carried out.
        acknowledged: u64,
        /// Size of the last log head that the client accepted, if it wants to learn what other devices do
        /// from then on. The answer may then be a `Difference` from the view with that head.
        log_size: Option<u64>,
        /// How long to wait at most, in milliseconds.
        wait_ms: u32,
    },
    /// Gives up all leases of a run.
    EndLeases {
        /// The run of the client.
        run: u128,
    },
    /// Asks for the newest heads that witnesses have co-signed within what this client has accepted. Answered by
    /// `Witnessed`.
    Witnessed {
        /// Size of the last log head the client accepted.
        log_size: u64,
    },
    /// Asks for the list of stored past states. Answered by `History`.
    History {
        /// Only states whose logs are longer than this are listed.
        after: u64,
        /// Whether the present state is to be stored first, if nothing is pending.
        note: bool,
    },
    /// Asks for a past state. Answered by `Past`.
    Past {
        /// Size of the state's log.
        log_size: u64,
        /// The size of the log last accepted, up to which it is to be proven.
        known: u64,
    },
    /// Gives a stored state a name. Answered by `Done`.
    NameSnapshot(Signed<Snapshot>),
    /// Removes a name. Answered by `Done`, also if there is no such name.
    EndSnapshot(Signed<SnapshotEnd>),
    /// Asks what this device's user is charged for; for the superuser, what everybody is. Answered by
    /// `Usage`.
    Usage,
    /// Asks for leaves of the log of updates, which a client stores in case the server is lost. Answered by
    /// `Leaves`.
    Leaves {
        /// Number of the first leaf.
        first: u64,
        /// Most leaves to send.
        count: u32,
    },
    /// Declares that the server was restored to an older state: the superuser's first operation of a new
    /// epoch, with the membership that contains the restore ([`crate::epoch`]). Answered by `Committed`;
    /// refused unless the server was started as restored.
    DeclareRestore {
        /// The declaration of the operation.
        certificate: Signed<Certificate>,
        /// Its structure.
        structure: Signed<Structure>,
        /// Blocks that the server lacks.
        blocks: Vec<AddressedBlock>,
    },
    /// A request of a consistency server to its block server. Answered by `BlockServer`.
    BlockServer(Box<BlockRequest>),
    /// Asks which servers stand in for each other with this one. Answered by `Servers`.
    Servers,
}

/// Whether an answer to [`Request::RetrieveTree`] brings the data below the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum TreeData {
    /// Only nodes are sent: all levels of a map at once.
    Never,
    /// Data is sent if it is little, or less than what both trees share. Otherwise the client, once it knows
    /// the nodes, can better tell what the data resembles and which of it is there already.
    IfRelated,
    /// As much of the data as fits is sent.
    Always,
}

/// The two kinds of advisory locks of a file, which do not see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum LockSpace {
    /// flock(2): whole files, held by open file descriptions.
    Flock,
    /// fcntl(2), lockf(3): ranges, held by processes.
    Fcntl,
}

/// Whether a lock is shared or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum LockMode {
    /// Shared with others.
    Shared,
    /// Exclusive of all others. Only a user who may write the file may hold it.
    Exclusive,
}

/// A request for a lock, or to give one up.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockRequest {
    /// The run of the client, drawn at random when it begins.
    pub run: u128,
    /// Process or open file description, as the client's kernel numbers them.
    pub owner: u64,
    /// The process, for others to see.
    pub process: u32,
    /// The file.
    pub file: Handle,
    /// Whether the lock is of `flock` or of `fcntl`.
    pub space: LockSpace,
    /// The bytes to lock.
    pub range: LockRange,
    /// The mode; `None` gives up the range.
    pub mode: Option<LockMode>,
    /// Whether it was granted before, and the server has forgotten it.
    pub reclaim: bool,
    /// Whether the holder will wait if other locks are in the way.
    pub wait: bool,
}

/// What became of a request for a lock.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum LockReply {
    /// The lock is held, or given up; for a test: nothing is in the way.
    Granted,
    /// Another holder has a conflicting lock (still).
    Held(LockHolder),
    /// Waiting would never end, since the holders in the way wait for this one.
    Deadlock,
    /// The server has just started, and holders of earlier locks may reclaim them first.
    Grace {
        /// For how much longer, in milliseconds.
        left_ms: u32,
    },
    /// Too many locks are held.
    TooMany,
}

/// The holder of a lock that is in the way.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LockHolder {
    /// The device that holds it.
    pub device: DeviceId,
    /// The run of that device.
    pub run: u128,
    /// Number of the process on that device.
    pub process: u32,
    /// The bytes that the lock covers.
    pub range: LockRange,
    /// The mode of the lock.
    pub mode: LockMode,
}

/// A view with what the client needs to believe that it extends the last one.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ViewReply {
    /// VSL, PVL and log head *before* the client's own operation.
    pub view: View,
    /// The roots of the log's complete subtrees, largest first ([`crate::log_tree::Frontier`]). With them the
    /// client appends its own leaf, and so computes the head that its next fast operation must sign.
    pub peaks: Vec<Digest>,
    /// RFC 6962 consistency proof from the client's `log_size` to `view.log`.
    pub consistency: Vec<Digest>,
    /// Blocks the client will likely want (tables, membership): a hint, verified like any other block.
    pub blocks: Vec<AddressedBlock>,
}

/// From the server to a client.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Response {
    /// Answer to `Hello`.
    Hello(Welcome),
    /// The request has been carried out, durably.
    Done,
    /// Blocks in the sequence of the request; `None` where the server has none for this file system. The list
    /// may end early (never before the first) if the rest does not fit into a message; the transport then
    /// asks for the rest.
    Blocks(Vec<Option<(StoreHeader, AddressedBlock)>>),
    /// Number of blocks that were given up; the others stay.
    Dereferenced(u32),
    /// A signed block: bytes, signature, time stored.
    SignedBlock(Option<(Vec<u8>, Signature, i64)>),
    /// Answer to `Look` and `Update`, [packed](crate::packed).
    View(
        #[borsh(serialize_with = "packed::serialize", deserialize_with = "packed::deserialize")]
        Box<ViewReply>,
    ),
    /// The operation is committed and durable.
    Committed(Signed<Receipt>),
    /// The fast path was not taken and nothing was ordered; the client gives the number up.
    Refused,
    /// COMMIT of an operation that was declared dead.
    Aborted,
    /// Answer to `FetchPending`: the structure; `None` if the operation is not pending, is dead, or was not
    /// committed in time.
    Structure(Option<Box<Signed<Structure>>>),
    /// The request was not taken.
    Error(ServerError),
    /// Answer to `Lock`, `TestLock`, `AwaitLock` and `KeepLocks`. If the epoch is not that of the run's last answer, the server
    /// has forgotten what the run held before.
    Locks {
        /// Epoch of the run's locks at this server.
        epoch: u64,
        /// What became of the request.
        answer: LockReply,
    },
    /// Answer to `Hold`: blocks that are missing. If there are none, the hold is in force and durable.
    /// Otherwise it is not, and further blocks may be missing.
    Held(Vec<Digest>),
    /// Answer to `Holds`, in order of name.
    Holds(Vec<HoldEntry>),
    /// Answer to `Present`: which of the blocks are here.
    Present(Bits),
    /// Parcels name bases that the server lacks (at most 4,096 are listed). Nothing was done: the client can
    /// repeat the request without these bases.
    BasesMissing(Vec<Digest>),
    /// Answer to `RetrieveParcel`.
    Parcel {
        /// A parcel of the first `covered` requested blocks except the `missing` ones; `None` if no block is
        /// left.
        parcel: Option<Parcel>,
        /// Number of blocks of the request that this answers, at least 1; the client asks again for the others.
        covered: u32,
        /// Addresses of blocks that the file system does not have.
        missing: Vec<Digest>,
    },
    /// Answer to `RetrieveTree`.
    Tree {
        /// Blocks of the tree, those referred to before those that refer to them; `None` if there are none to send.
        parcel: Option<Parcel>,
        /// Whether this is the whole tree. Otherwise the client walks what it has and asks for the rest block
        /// by block.
        complete: bool,
    },
    /// As `View`, with leases.
    LeasedView(
        #[borsh(serialize_with = "packed::serialize", deserialize_with = "packed::deserialize")]
        Box<ViewReply>,
        LeaseGrant,
    ),
    /// As `Committed`, with leases.
    LeasedCommitted(Signed<Receipt>, LeaseGrant),
    /// Answer to `AwaitRecall`: `None` if nothing was recalled in the time.
    Recalled(Option<Recall>),
    /// Answer to `Witnessed`: the newest head that each witness has co-signed, mostly the same one; at most
    /// [`HEADS_MAX`].
    Witnessed(Vec<WitnessedHead>),
    /// Answer to `History`.
    History {
        /// Stored states, oldest first; at most [`crate::history::POINTS_PER_ANSWER_MAX`].
        points: Vec<Point>,
        /// Whether there are more after these.
        more: bool,
        /// All snapshots, in order of name.
        named: Vec<Signed<Snapshot>>,
    },
    /// Answer to `Past`: `None` if the state is not stored.
    Past(Option<Box<PastReply>>),
    /// Answer to `Usage`, in order of user.
    Usage(Vec<Usage>),
    /// Answer to `Leaves`: the requested leaves that exist, at most [`LEAVES_MAX`].
    Leaves(Vec<Digest>),
    /// Answer of a block server.
    BlockServer(Box<BlockReply>),
    /// Answer to `Servers`: the addresses that this server and the others give for themselves. Hints for
    /// people to pass on: everything from such an address is verified as usual.
    Servers {
        /// Address of this server; `None` if it is alone.
        own: Option<String>,
        /// The others that run, in their order; at most [`SERVERS_TOLD_MAX`].
        others: Vec<String>,
    },
    /// As `View`, as the difference from the view that the client has named. As an answer to `AwaitRecall`:
    /// nothing is recalled, but other devices have changed something.
    Difference(Difference),
    /// As `Difference`, with leases.
    LeasedDifference(Difference, LeaseGrant),
    /// As `Refused`, with the view by which the operation was refused, as the difference from the one that
    /// the client has named.
    RefusedAt(Difference),
}

/// Most other servers in an answer to `Servers`.
pub const SERVERS_TOLD_MAX: usize = 15;

/// What a user is charged for: the blocks that the user's devices stored first, in their stored size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Usage {
    /// The user who is charged.
    pub user: UserId,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Number of bytes that the user may be charged for; `None`: no limit.
    pub limit: Option<u64>,
}

/// A head of the log of updates that witnesses have co-signed, and what ties it to what the client has accepted.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct WitnessedHead {
    /// The checkpoint: a signed note with its cosignatures.
    pub note: String,
    /// The last leaf of the checkpoint's tree, as it stands in the log of updates.
    pub leaf: Digest,
    /// Proof that it is in the log with the head that the client has accepted.
    pub in_log: Vec<Digest>,
    /// Proof that it is in the checkpoint's tree.
    pub in_checkpoint: Vec<Digest>,
}

/// A hold in the list of holds.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct HoldEntry {
    /// Its name.
    pub name: String,
    /// The device that asked for it.
    pub device: DeviceId,
    /// When the head was made, in nanoseconds since 1970, by the server's clock.
    pub made_ns: i64,
    /// Roots of what it keeps.
    pub roots: Vec<Digest>,
}

/// Answer to `Hello`.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Welcome {
    /// The version of the protocol that the server chose.
    pub version: u16,
    /// For the file system asked for: its superuser's key and signed server keys.
    pub file_system: Option<(PublicKey, Signed<ServerKeys>)>,
    /// The device that the server takes the client for; `None`: its key belongs to no member.
    pub device: Option<DeviceId>,
    /// How long the server waits before it declares a pending operation dead, in milliseconds.
    pub abort_after_ms: u32,
}

/// Why a server did not take a request. What a client does about it never depends on the text.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum ServerError {
    /// Client and server have no version of the protocol in common.
    #[error("no protocol version in common; the server speaks {0} to {1}")]
    Version(u16, u16),
    /// The server does not have this file system.
    #[error("the server does not have this file system")]
    UnknownFileSystem,
    /// The key is no member's, or not allowed to do this.
    #[error("not allowed: {0}")]
    NotAllowed(String),
    /// The request is malformed, oversized, replayed, wrongly signed or against the rules.
    #[error("the server refused the request: {0}")]
    Invalid(String),
    /// The file system exists already.
    #[error("the file system exists already")]
    Exists,
    /// The server's disk is full.
    #[error("the server's disk is full")]
    NoSpace,
    /// The server's storage failed.
    #[error("the server's storage failed: {0}")]
    Storage(String),
    /// Too many requests at once; try again.
    #[error("the server is busy")]
    Busy,
    /// The sender's user would be charged for more than they may be. Nothing was stored.
    #[error("{used} bytes of {limit} are used at the server, and no more may be stored")]
    OverQuota {
        /// Bytes charged.
        used: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The operation is of an epoch that a declared restore has ended.
    #[error(
        "a restore of this server was declared, and this is of the time before; a mount takes the restore up by itself"
    )]
    OtherEpoch,
    /// The server was put back to an older state, and waits for the superuser's word.
    #[error(
        "the server was put back to an older state, and waits until the superuser declares it (`holdfast fs restored`)"
    )]
    AwaitsDeclaration,
    /// Another server has the file system now, at this address if that is known. Nothing was done.
    #[error("another server has the file system now{}", .0.as_ref().map_or_else(String::new, |address| format!(": {address}")))]
    Elsewhere(Option<String>),
}
