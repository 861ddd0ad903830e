//! Types of the inode API: numbers, attributes, flags. They have no behaviour except conversions.

use holdfast_content::InodeKind;

/// An inode number as programs see it; equal on all clients. The root is [`Ino::ROOT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory: number 1, for the kernel and in [`holdfast_content::Handle::ROOT`] alike.
    pub const ROOT: Ino = Ino(1);
}

/// An open file or directory, between open and release.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileHandleId(pub u64);

/// The process that made a call, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread, as in the kernel's FUSE header; 0 if unknown. Only used to share views.
    pub thread: u32,
}

/// The attributes that `stat` shows. There is no time of last access: show `modified_ns` instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Inode number.
    pub ino: Ino,
    /// File, directory, symbolic link and so on.
    pub kind: InodeKind,
    /// Permission bits, at most 0o7777.
    pub mode: u32,
    /// Number of names; 1 for every directory, 0 for an open file without a name.
    pub links: u32,
    /// Size in bytes.
    pub size: u64,
    /// Size on disk, in units of 512 bytes.
    pub blocks: u64,
    /// Last modification, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of the inode, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// Owner shown: the mounting user for files that this user may write, 65534 for others.
    pub uid: u32,
    /// Group shown, chosen likewise.
    pub gid: u32,
    /// Device number of a device file.
    pub device_number: u32,
    /// Would distinguish reuses of one number; inode numbers are never reused, so it is always 0.
    pub generation: u64,
}

/// A time that `utimensat` sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeToSet {
    /// The moment of the call.
    Now,
    /// Nanoseconds since 1970; negative before that.
    At(i64),
}

/// The attributes that `setattr` is to change; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: truncates the file or extends it with zeroes.
    pub size: Option<u64>,
    /// Time of last modification.
    pub modified: Option<TimeToSet>,
}

impl SetAttributes {
    /// Whether only an owner is set.
    pub fn is_owner_only(&self) -> bool {
        (self.uid.is_some() || self.gid.is_some())
            && self.mode.is_none()
            && self.size.is_none()
            && self.modified.is_none()
    }
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Whether the file is opened for reading.
    pub read: bool,
    /// Whether the file is opened for writing.
    pub write: bool,
    /// Whether writes go to the end (O_APPEND).
    pub append: bool,
    /// Whether the file is cut to length zero (O_TRUNC).
    pub truncate: bool,
    /// Whether the call must make the file itself (O_EXCL).
    pub exclusive: bool,
    /// Whether each write is durable at the server before it returns (O_SYNC, O_DSYNC).
    pub synchronous: bool,
}

impl OpenFlags {
    /// For reading only.
    pub const READ: OpenFlags = OpenFlags {
        read: true,
        write: false,
        append: false,
        truncate: false,
        exclusive: false,
        synchronous: false,
    };
    /// For reading and writing.
    pub const READ_WRITE: OpenFlags = OpenFlags { write: true, ..OpenFlags::READ };

    /// From the flags of open(2).
    pub fn from_bits(bits: i32) -> OpenFlags {
        use rustix::fs::OFlags;
        let flags = OFlags::from_bits_retain(bits as u32);
        let access = bits as u32 & 3;
        OpenFlags {
            read: access != OFlags::WRONLY.bits(),
            write: access == OFlags::WRONLY.bits() || access == OFlags::RDWR.bits(),
            append: flags.contains(OFlags::APPEND),
            truncate: flags.contains(OFlags::TRUNC),
            exclusive: flags.contains(OFlags::EXCL),
            synchronous: flags.intersects(OFlags::DSYNC),
        }
    }
}

/// The answer to an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenReply {
    /// Identifies the open file until release.
    pub handle: FileHandleId,
    /// Whether the kernel's pages of this file are of the content now opened (FOPEN_KEEP_CACHE).
    pub keep_cache: bool,
}

/// What a rename does where the target exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameFlags {
    /// An existing target is replaced.
    #[default]
    Replace,
    /// The target must not exist (RENAME_NOREPLACE).
    NoReplace,
    /// The two change places (RENAME_EXCHANGE).
    Exchange,
}

/// The operation that a call of fallocate requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// The file becomes at least as long as the end of the range. Nothing is reserved: see
    /// `docs/semantics.md`.
    Extend,
    /// Only a reservation of space, which cannot be promised here: succeeds without effect (KEEP_SIZE).
    KeepSize,
    /// The range reads as zeroes and is a hole; the size stays (PUNCH_HOLE).
    PunchHole,
    /// The range reads as zeroes; the file grows to its end (ZERO_RANGE).
    ZeroRange,
    /// The range reads as zeroes; the size stays (ZERO_RANGE with KEEP_SIZE).
    ZeroRangeKeepSize,
}

/// What `seek` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekTo {
    /// The next byte that is not in a hole (SEEK_DATA).
    Data,
    /// The next hole; the end of the file counts as one (SEEK_HOLE).
    Hole,
}

/// Where written bytes come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteSource {
    /// A write call: O_APPEND applies.
    Call,
    /// The kernel's page cache (FUSE_WRITE_CACHE), for a shared mapping: the offset counts, even with
    /// O_APPEND.
    PageCache,
}

/// How an extended attribute may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetXattr {
    /// The attribute is made or replaced.
    Any,
    /// The attribute must not exist (XATTR_CREATE).
    Create,
    /// The attribute must exist (XATTR_REPLACE).
    Replace,
}

/// Rights that a call of `access` asks about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
    /// Executing or searching.
    pub execute: bool,
}

/// One entry of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryItem<'a> {
    /// Its inode.
    pub ino: Ino,
    /// Its kind, as the directory records it.
    pub kind: InodeKind,
    /// Its name.
    pub name: &'a [u8],
    /// Offset from which a later `readdir` continues after this item.
    pub next_offset: u64,
}

/// The numbers that `statfs` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// Bytes of a block, for the counts below.
    pub block_bytes: u32,
    /// Number of blocks in all.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Number of inodes in all.
    pub files: u64,
    /// Number of inodes that can still be made.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}
