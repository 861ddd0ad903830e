//! The messages between components. A channel carries one pair of requests and replies, and nothing else. The
//! alias with which a message is stamped identifies the caller.

#![allow(missing_docs, reason = "what a field is, the sentence of its message says")]

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Access, Acl, Credential, Principal, ProcessName, Scope};
use holdfast_monitor::{BlockId, Direction, PageId, Reference, RegionId, Status};

/// Most blocks in one request.
pub const BLOCKS_MAX: usize = 256;
/// Pages of the stage, the area through which components pass content to the monitor.
pub const STAGE_PAGES: usize = 2304;

/// Consecutive blocks of one disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Blocks {
    /// The first.
    pub first: u64,
    /// The number of blocks.
    pub count: u64,
}

/// Requests to the monitor.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum MonitorRequest {
    /// Creates a region of pages without blocks.
    CreateRegion { acl: Acl, pages: u32 },
    /// Assigns blocks to pages of a region.
    Assign { region: RegionId, first: u32, blocks: Vec<BlockId> },
    /// Replaces the ACL of a region.
    SetAcl { region: RegionId, acl: Acl },
    /// Gives up a page.
    Free { page: PageId },
    /// Gives up a region.
    RemoveRegion(RegionId),
    /// Erases blocks.
    Erase { first: BlockId, count: u64 },
    /// Returns where blocks are cached.
    Places { first: BlockId, count: u64 },
    /// Transfers blocks between the disk and their pages.
    Transfer { direction: Direction, first: BlockId, pages: Vec<PageId> },
    /// Makes everything on a disk durable. Any component may request it.
    Flush { disk: u16 },
    /// Returns a view of a region.
    View(RegionId),
    /// Changes a part of a block in memory.
    Write { at: Reference, skipped: u32, bytes: Vec<u8> },
    /// Writes whole blocks of one disk from the first pages of the caller's stage, in this order; all or
    /// none.
    WriteTogether { disk: u16, writes: Vec<Reference> },
    /// Returns the status of pages.
    Look(Vec<Reference>),
    /// Presents a credential, signed by a key, that the caller will use.
    Present(Vec<u8>),
    /// Adds another name for the caller, with the proof that it may use that name.
    AddAlias(holdfast_access::Proof),
    /// Returns a copy of a filled block, for a caller whose name is valid for some blocks only.
    Read(Reference),
    /// Returns the caller's names, and the credentials with which it may prove others.
    Names,
    /// Asks whether an open may continue, in a session for a program: the helper identifies the process that
    /// opens.
    Enter(Entering),
    /// Returns the opens refused lately in a session for a program, and why no process can be identified.
    Refusals,
    /// From PolicyMgr: all revocations, of this run and of earlier ones, in stored form.
    Ended(Vec<u8>),
    /// From PolicyMgr: somebody lost the right to blocks, so sessions must make their kernels drop what they
    /// cache.
    Withdrawn,
}

/// An open in a session for a program.
#[derive(Clone, Copy, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Entering {
    /// The file's inode number for the kernel.
    pub inode: u64,
    /// The thread that opens.
    pub thread: u32,
    /// Whether it opens for writing.
    pub writes: bool,
}

/// The decision about an open.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Entry {
    /// The open may continue.
    GoesOn,
    /// The kernel must begin the open again; the process will be identified then.
    Again,
    /// The open is the helper's own: its descriptor must be useless.
    Blind,
    /// The open is refused.
    Refused,
}

/// An alias of the caller, and the principal that it names.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NamedAlias {
    /// The index of the alias.
    pub alias: u16,
    /// The principal in whose name it speaks.
    pub principal: Principal,
    /// The restriction of the alias.
    pub scope: Scope,
}

/// Replies of the monitor.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum MonitorReply {
    /// The request was carried out; a view comes as two files.
    Done,
    /// The id of a new region.
    Region(RegionId),
    /// The references, in the order of the request.
    References(Vec<Reference>),
    /// The pages of blocks, and their status.
    Places(Vec<(Reference, BlockId, Status)>),
    /// The status of each page; `None` for outdated references.
    Look(Vec<Option<Status>>),
    /// The index of the new alias.
    Alias(u16),
    /// The bytes of a block.
    Page(Vec<u8>),
    /// The caller's names, and the credentials that it was given.
    Names {
        /// The name of the caller's process.
        process: ProcessName,
        /// The caller's aliases.
        names: Vec<NamedAlias>,
        /// Credentials with which it may prove more.
        credentials: Vec<Credential>,
    },
    /// The decision about an open.
    Entry(Entry),
    /// Refused opens: inode, process, program, reason; and why no process can be identified.
    Refusals(Vec<(u64, u32, String, String)>, Option<String>),
}

/// Requests of the host to a VFS.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum VfsRequest {
    /// Makes the kernel drop what it caches of files.
    Forget,
}

/// The reply of a VFS: the request was carried out.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct VfsReply;

/// Requests to PolicyMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum PolicyRequest {
    /// Returns pages for these blocks of a disk, in regions with their ACLs.
    Cache { disk: u16, blocks: Vec<u64> },
    /// Gives up the pages of blocks, after their changes are written.
    Evict { disk: u16, blocks: Vec<u64> },
    /// Returns the blocks that have pages, from `from` on: for a CacheMgr that starts.
    Cached { disk: u16, from: u64 },
    /// Changes the ACL of blocks.
    ChangeAcls { disk: u16, blocks: Blocks, principal: Principal, access: Option<Access> },
    /// Proposes a new owner.
    Nominate { disk: u16, blocks: Blocks, to: Principal },
    /// Accepts a nomination; the blocks get this ACL.
    Accept { disk: u16, blocks: Blocks, acl: Acl },
    /// Returns the owner and the ACL of a block, to its owner.
    Look { disk: u16, block: u64 },
    /// Asks whether a principal, given by its digest, owns all these blocks: for an FSDriver about its
    /// partition.
    Owns { disk: u16, blocks: Blocks, owner: [u8; 32] },
    /// Erases the whole disk, which then belongs to the administrator.
    Format { disk: u16 },
    /// Returns the sizes of the policy table, for the administrator.
    Sizes { disk: u16 },
    /// Proposes a new owner, who gets the content of the blocks too.
    Give { disk: u16, blocks: Blocks, to: Principal },
    /// Introduces the principal with which this request is stamped: PolicyMgr gets only digests.
    Introduce { principal: Principal, scope: Scope },
    /// Carries out a credential that revokes others, signed by their issuer.
    End(Vec<u8>),
}

/// Replies of PolicyMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum PolicyReply {
    /// The request was carried out.
    Done,
    /// The pages, in the order of the request.
    References(Vec<Reference>),
    /// Blocks with their pages; fewer than requested means that there are no more.
    Cached(Vec<(u64, Reference)>),
    /// Owner and ACL, and the neighbouring blocks that have the same.
    Label { blocks: Blocks, owner: Principal, acl: Acl },
    /// Whether the principal owns the blocks.
    Owns(bool),
    /// Blocks of the disk, extents, different labels, and free pages of the table.
    Sizes { blocks: u64, extents: u64, labels: u64, free: u64 },
}

/// Requests to CacheMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CacheRequest {
    /// Loads these blocks into memory. They are filled if `fill`, which is not needed for blocks that will be
    /// overwritten as a whole. Those in `ahead` are likely to be needed next.
    Want { disk: u16, blocks: Vec<u64>, fill: bool, ahead: Vec<u64> },
    /// Writes these blocks' changes to the disk. A caller that relies on that checks it with the monitor.
    Clean { disk: u16, blocks: Vec<u64> },
    /// Gives up all blocks, after their changes are written: for a host that measures.
    Empty,
}

/// Replies of CacheMgr.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum CacheReply {
    /// The request was carried out.
    Done,
    /// The pages, in the order of the request.
    References(Vec<Reference>),
}

/// Requests to a DiskDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum DriverRequest {
    /// Transfers blocks of a disk to or from their pages, in any order.
    Transfer { direction: Direction, disk: u16, blocks: Vec<(u64, PageId)> },
}

/// The reply of a DiskDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DriverReply {
    /// The number of blocks that were moved.
    pub moved: u32,
}

/// A time: seconds since 1970, and nanoseconds.
pub type Time = (i64, u32);

/// A file, as clients see it.
#[derive(Clone, PartialEq, Eq, Default, Debug, BorshSerialize, BorshDeserialize)]
pub struct File {
    /// The number of the file.
    pub id: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The size in bytes.
    pub size: u64,
    /// When the file was created, modified and read.
    pub times: [Time; 3],
    /// Whether the file is read-only.
    pub is_read_only: bool,
}

/// Requests to an FSDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FilesRequest {
    /// Looks up a name in a directory, and takes a reference to the file.
    LookUp { parent: u64, name: String },
    /// Gives up references to a file.
    Forget { file: u64, count: u64 },
    /// Returns the attributes of a file.
    Stat(u64),
    /// Lists names in a directory.
    List { directory: u64, cookie: u64, count: u32 },
    /// Lists names with the attributes of each file, and takes a reference to each.
    ListFiles { directory: u64, cookie: u64, count: u32 },
    /// Returns the blocks of a part of a file.
    Map { file: u64, offset: u64, length: u64 },
    /// Creates a file or directory, and takes a reference to it.
    Create { parent: u64, name: String, is_directory: bool, now: Time },
    /// Removes the name of a file.
    Unlink { parent: u64, name: String, now: Time },
    /// Removes an empty directory.
    RemoveDirectory { parent: u64, name: String, now: Time },
    /// Renames a file or directory.
    Rename { from: u64, name: String, to: u64, new_name: String, replace: bool, now: Time },
    /// Changes the size. New blocks are nominated to the caller.
    Resize { file: u64, size: u64, owner: Principal, now: Time },
    /// Nominates blocks of a file to the caller again.
    Claim { file: u64, offset: u64, length: u64, owner: Principal },
    /// Sets the times: created, modified, read.
    SetTimes { file: u64, times: [Option<Time>; 3], is_read_only: Option<bool> },
    /// Returns blocks that the caller is to nominate back to the driver.
    Returning,
    /// Reports that the blocks were nominated.
    Returned { item: u32, blocks: Vec<Blocks>, clusters: u32, now: Time },
    /// Returns the size of the file system.
    Sizes,
    /// From the host only, for the administrator: a session has ended, and its references are given up.
    Ended { session: String },
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DirectoryEntry {
    /// The name.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// A number that no other file has at present; it changes when the file is renamed.
    pub number: u64,
    /// The cookie at which a listing continues after this entry.
    pub cookie: u64,
}

/// Replies of an FSDriver.
#[derive(Clone, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum FilesReply {
    /// The request was carried out.
    Done,
    /// A file.
    File(File),
    /// Entries of a directory.
    Names(Vec<DirectoryEntry>),
    /// Names with the attributes of their files (`None` for unsound ones). Fewer than requested means that
    /// there are no more.
    Files(Vec<(DirectoryEntry, Option<File>)>),
    /// Runs of blocks, each with its offset in the file; and the bytes of a block.
    Map { runs: Vec<(u64, Blocks)>, block_bytes: u32 },
    /// The size after this step, the nominated blocks, and a range below the size that the caller must zero.
    Resized { size: u64, nominated: Vec<Blocks>, fill: Option<(u64, u64)> },
    /// Blocks of an item that must be nominated to the FSDriver, whose principal is `to`. No blocks: there is
    /// no such item.
    Return { item: u32, blocks: Vec<Blocks>, clusters: u32, to: Option<Principal> },
    /// The bytes of a cluster, the number of clusters, and how many are free.
    Sizes { cluster_bytes: u32, clusters: u64, free: u64 },
}

/// The codes in refusals of an FSDriver, which are errno values.
pub mod code {
    /// No such file.
    pub const NOT_FOUND: u32 = 2;
    /// The medium failed, or is unsound.
    pub const MEDIUM: u32 = 5;
    /// The file belongs to another user.
    pub const NOT_YOURS: u32 = 13;
    /// The name exists already.
    pub const EXISTS: u32 = 17;
    /// The file is not a directory.
    pub const NOT_A_DIRECTORY: u32 = 20;
    /// The file is a directory.
    pub const IS_A_DIRECTORY: u32 = 21;
    /// The request is not valid.
    pub const INVALID: u32 = 22;
    /// The file would be too large.
    pub const TOO_LARGE: u32 = 27;
    /// The file system is full.
    pub const FULL: u32 = 28;
    /// The file system is read-only.
    pub const READ_ONLY: u32 = 30;
    /// The number of the file is invalid: it is from an earlier run, or was forgotten.
    pub const GONE: u32 = 116;
    /// The directory is not empty.
    pub const NOT_EMPTY: u32 = 39;
}
