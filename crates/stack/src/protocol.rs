//! What components may say to each other. A channel carries one of these pairs of questions and answers, and nothing
//! else; who asks is known by the alias that the message was stamped with.

#![allow(missing_docs, reason = "what a field is, the sentence of its message says")]

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Access, Acl, Credential, Principal, ProcessName, Scope};
use holdfast_monitor::{BlockId, Direction, PageId, Reference, RegionId, Status};

/// Most blocks in one question.
pub const BLOCKS_MAX: usize = 256;
/// Pages of the area through which contents reach the monitor.
pub const STAGE_PAGES: usize = 2304;

/// Neighbouring blocks of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Blocks {
    /// The first.
    pub first: u64,
    /// How many.
    pub count: u64,
}

/// To the monitor.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskMonitor {
    /// A region of pages without blocks.
    CreateRegion { acl: Acl, pages: u32 },
    /// Pages for blocks.
    Assign { region: RegionId, first: u32, blocks: Vec<BlockId> },
    /// Another ACL for a region.
    SetAcl { region: RegionId, acl: Acl },
    /// Pages given up.
    Free { page: PageId },
    /// A region given up.
    RemoveRegion(RegionId),
    /// Blocks erased.
    Erase { first: BlockId, count: u64 },
    /// Where blocks are cached.
    Places { first: BlockId, count: u64 },
    /// Blocks moved between the disk and their pages.
    Transfer { direction: Direction, first: BlockId, pages: Vec<PageId> },
    /// Everything of a disk made durable. Anybody may ask.
    Flush { disk: u16 },
    /// A view of a region.
    View(RegionId),
    /// A part of a block changed in memory.
    Write { at: Reference, skipped: u32, bytes: Vec<u8> },
    /// Whole blocks of one disk, from the first pages of the caller's stage in this order, all or none.
    WriteTogether { disk: u16, writes: Vec<Reference> },
    /// What pages have.
    Look(Vec<Reference>),
    /// A credential, signed by a key, that the caller wants to use.
    Present(Vec<u8>),
    /// Another name for the caller, with the proof that it speaks for it.
    AddAlias(holdfast_access::Proof),
    /// A filled block copied out, for somebody whose name holds for some blocks only.
    Read(Reference),
    /// The caller's names, and the credentials that it may prove others with.
    Names,
    /// Whether an open may go on, in a session for a program: the helper identifies who opens.
    Enter(Entering),
    /// Who was refused lately in a session for a program, and why nobody can be identified.
    Refusals,
    /// From PolicyMgr: what was revoked, of this run and of earlier ones, as stored.
    Ended(Vec<u8>),
    /// From PolicyMgr: somebody lost the right to blocks, so sessions are to have the kernel forget what it keeps.
    Withdrawn,
}

/// An open in a session for a program.
#[derive(Clone, Copy, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Entering {
    /// The file, as the kernel numbers it.
    pub inode: u64,
    /// The thread that opens.
    pub thread: u32,
    /// Whether to write.
    pub writes: bool,
}

/// What becomes of an open.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Entry {
    /// It goes on.
    GoesOn,
    /// The kernel is to begin it again: whoever opens will be identified then.
    Again,
    /// It is the helper's own look at the file, and to be of no use.
    Blind,
    /// It is refused.
    Refused,
}

/// A name of the caller.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Called {
    /// Its index.
    pub alias: u16,
    /// Who.
    pub principal: Principal,
    /// On what.
    pub scope: Scope,
}

/// From the monitor.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum MonitorSays {
    /// It is done; a view comes as two files.
    Done,
    /// The region.
    Region(RegionId),
    /// The references.
    References(Vec<Reference>),
    /// Where blocks are, and what their pages have.
    Places(Vec<(Reference, BlockId, Status)>),
    /// What each page has; nothing for outdated references.
    Look(Vec<Option<Status>>),
    /// The index of the new alias.
    Alias(u16),
    /// A block's bytes.
    Page(Vec<u8>),
    /// The caller's names, and what it was told.
    Names {
        /// What its process is called.
        process: ProcessName,
        /// Its names.
        names: Vec<Called>,
        /// What it may prove more with.
        said: Vec<Credential>,
    },
    /// What becomes of an open.
    Entry(Entry),
    /// Opens refused: inode, process, program, reason; and why nobody can be identified.
    Refusals(Vec<(u64, u32, String, String)>, Option<String>),
}

/// To a VFS, from the host.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskSession {
    /// Have the kernel forget what it keeps of files.
    Forget,
}

/// From a VFS: it is done.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SessionSays;

/// To PolicyMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskPolicy {
    /// Pages for these blocks of a disk, in regions of their ACL.
    Cache { disk: u16, blocks: Vec<u64> },
    /// Pages given up, their changes written first.
    Evict { disk: u16, blocks: Vec<u64> },
    /// Which blocks have pages, from one on: for a CacheMgr that begins.
    Cached { disk: u16, from: u64 },
    /// An ACL changed.
    ChangeAcls { disk: u16, blocks: Blocks, principal: Principal, access: Option<Access> },
    /// A new owner proposed.
    Nominate { disk: u16, blocks: Blocks, to: Principal },
    /// A nomination accepted, with the ACL that the blocks get.
    Accept { disk: u16, blocks: Blocks, acl: Acl },
    /// The owner and the ACL of a block, for its owner.
    Look { disk: u16, block: u64 },
    /// Whether a principal, by its digest, owns all these blocks: for an FSDriver about its partition.
    Owns { disk: u16, blocks: Blocks, owner: [u8; 32] },
    /// The whole disk erased; the administrator owns it.
    Format { disk: u16 },
    /// How large things are, for the administrator.
    Sizes { disk: u16 },
    /// A new owner proposed, who gets what is in the blocks too.
    Give { disk: u16, blocks: Blocks, to: Principal },
    /// Whom requests are from that are stamped as this one is: PolicyMgr knows digests only.
    Introduce { principal: Principal, scope: Scope },
    /// A credential that ends others, signed by their issuer.
    End(Vec<u8>),
}

/// From PolicyMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum PolicySays {
    /// It is done.
    Done,
    /// The pages, in the order of the question.
    References(Vec<Reference>),
    /// Blocks with their pages; fewer than asked for means that there are no more.
    Cached(Vec<(u64, Reference)>),
    /// Owner and ACL, and the blocks around that have the same.
    Label { blocks: Blocks, owner: Principal, acl: Acl },
    /// Whether it does.
    Owns(bool),
    /// Blocks of the disk, extents, different labels, and free pages of the table.
    Sizes { blocks: u64, extents: u64, labels: u64, free: u64 },
}

/// To CacheMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskCache {
    /// These blocks in memory: filled unless all of them is about to be replaced. Those ahead are likely to come next.
    Want { disk: u16, blocks: Vec<u64>, fill: bool, ahead: Vec<u64> },
    /// These blocks' changes on the disk. Whoever relies on that asks the monitor whether it is so.
    Clean { disk: u16, blocks: Vec<u64> },
    /// Everything given up, its changes written first: for a host that measures.
    Empty,
}

/// From CacheMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CacheSays {
    /// It is done.
    Done,
    /// The pages, in the order of the question.
    References(Vec<Reference>),
}

/// To a DiskDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskDriver {
    /// Blocks of a disk moved between it and their pages, in any order.
    Transfer { direction: Direction, disk: u16, blocks: Vec<(u64, PageId)> },
}

/// From a DiskDriver: how many blocks were moved.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DriverSays {
    /// How many.
    pub moved: u32,
}

/// A time: seconds since 1970, and nanoseconds.
pub type Time = (i64, u32);

/// A file, as clients see it.
#[derive(Clone, PartialEq, Eq, Default, Debug, BorshSerialize, BorshDeserialize)]
pub struct File {
    /// Its number.
    pub id: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Bytes.
    pub size: u64,
    /// Made, changed, read.
    pub times: [Time; 3],
    /// Whether it may not be changed.
    pub is_read_only: bool,
}

/// To an FSDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum AskFiles {
    /// A name in a directory; a reference is taken.
    LookUp { parent: u64, name: String },
    /// References given up.
    Forget { file: u64, count: u64 },
    /// What is known of a file.
    Stat(u64),
    /// Names in a directory.
    List { directory: u64, cookie: u64, count: u32 },
    /// The same with what is known of each; a reference is taken to each.
    ListFiles { directory: u64, cookie: u64, count: u32 },
    /// The blocks of a part of a file.
    Map { file: u64, offset: u64, length: u64 },
    /// A file or directory made; a reference is taken.
    Create { parent: u64, name: String, is_directory: bool, now: Time },
    /// A name removed.
    Unlink { parent: u64, name: String, now: Time },
    /// An empty directory removed.
    RemoveDirectory { parent: u64, name: String, now: Time },
    /// A file or directory renamed.
    Rename { from: u64, name: String, to: u64, new_name: String, replace: bool, now: Time },
    /// Another size. New blocks are nominated to the asker.
    Resize { file: u64, size: u64, owner: Principal, now: Time },
    /// Blocks of a file, nominated to the asker again.
    Claim { file: u64, offset: u64, length: u64, owner: Principal },
    /// Times changed: made, changed, read.
    SetTimes { file: u64, times: [Option<Time>; 3], is_read_only: Option<bool> },
    /// What waits to be given back by the asker: blocks to be nominated.
    Returning,
    /// They were nominated.
    Returned { item: u32, blocks: Vec<Blocks>, clusters: u32, now: Time },
    /// How large the file system is.
    Sizes,
    /// The host alone, for the administrator: a session is no more, and what it had is given up.
    Ended { session: String },
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// A number of its place.
    pub number: u64,
    /// Where to go on after it.
    pub cookie: u64,
}

/// From an FSDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FilesSay {
    /// It is done.
    Done,
    /// A file.
    File(File),
    /// Names.
    Names(Vec<Listed>),
    /// Names, and what is known of their files; nothing of what is unsound. Fewer than were asked for means that there are no more.
    Files(Vec<(Listed, Option<File>)>),
    /// Blocks, each run with the byte of the file where it begins, and bytes of a block.
    Map { runs: Vec<(u64, Blocks)>, block_bytes: u32 },
    /// The size after this step, the blocks that were nominated, and bytes below the size that are to be made zero.
    Resized { size: u64, nominated: Vec<Blocks>, fill: Option<(u64, u64)> },
    /// Blocks to be nominated to the FSDriver (its principal), of an item of what waits; no blocks: nothing waits.
    Return { item: u32, blocks: Vec<Blocks>, clusters: u32, to: Option<Principal> },
    /// Bytes of a cluster, clusters, free ones.
    Sizes { cluster_bytes: u32, clusters: u64, free: u64 },
}

/// What an FSDriver's refusals mean, as errno has them.
pub mod code {
    /// No such file.
    pub const NOT_FOUND: u32 = 2;
    /// The medium failed, or is unsound.
    pub const MEDIUM: u32 = 5;
    /// It is another's.
    pub const NOT_YOURS: u32 = 13;
    /// The name is taken.
    pub const EXISTS: u32 = 17;
    /// Not a directory.
    pub const NOT_A_DIRECTORY: u32 = 20;
    /// A directory.
    pub const IS_A_DIRECTORY: u32 = 21;
    /// It cannot be.
    pub const INVALID: u32 = 22;
    /// Too large.
    pub const TOO_LARGE: u32 = 27;
    /// Full.
    pub const FULL: u32 = 28;
    /// Nothing may be changed.
    pub const READ_ONLY: u32 = 30;
    /// The number of the file means nothing: it is of an earlier run, or was forgotten.
    pub const GONE: u32 = 116;
    /// Not empty.
    pub const NOT_EMPTY: u32 = 39;
}
