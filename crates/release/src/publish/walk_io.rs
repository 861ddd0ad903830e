//! The input and output of a walk: names and files of the tree, a store for blocks, and the memory of the
//! last publishing.
//!
//! [`WalkIo`] has two implementations: [`super::local`], which accesses everything directly, and the one in
//! [`super::apart`], which asks the former from a sandboxed process. So the walk itself is the same code in
//! both cases.
//!
//! The tree is walked with a stack of open directories. Names, files and attributes are those of the
//! innermost one. There is no other way to name a file, so files outside of the published directory cannot be
//! named.

use super::store::Lane;
use super::{Progress, PublishError};
use crate::moment::nanoseconds;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Block, BlockSink, BlockSource, Reference, Value};
use holdfast_crypto::DigestKey;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;

/// Most names that [`WalkIo::entries`] returns at once.
pub const ENTRIES_MAX: usize = 4096;

/// Most files that [`WalkIo::open`] opens at once.
pub const OPENED_MAX: usize = holdfast_components::FILES_MAX;
/// Most files that [`WalkIo::known`] is asked for at once.
pub const KNOWN_MAX: usize = 256;

/// Identifies a file on this machine: device and inode number.
pub type FileId = (u64, u64);

/// The status of a file (stat(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FileStatus {
    /// The number of the file system's device.
    pub device: u64,
    /// The number of the inode.
    pub number: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Whether the file has more than one name on this machine.
    pub has_more_names: bool,
    /// The size in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// The device that a device file stands for.
    pub device_number: u64,
    /// When the content was modified, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// When content or attributes were changed, in nanoseconds since 1970.
    pub changed_ns: i64,
}

impl FileStatus {
    /// What kind of file it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Identifies the file on this machine.
    pub fn id(&self) -> FileId {
        (self.device, self.number)
    }
}

impl From<Stat> for FileStatus {
    fn from(stat: Stat) -> FileStatus {
        FileStatus {
            device: stat.st_dev,
            number: stat.st_ino,
            mode: stat.st_mode,
            has_more_names: stat.st_nlink > 1,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            device_number: stat.st_rdev,
            modified_ns: nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            changed_ns: nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// A name in a directory.
pub struct Entry {
    /// The name.
    pub name: CString,
    /// The status of the file with that name.
    pub status: Result<FileStatus, Errno>,
}

/// Extended attributes of the `user.` namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Attributes {
    /// Names and values, as many as a file of a release can have.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the file has more than a release can have.
    pub is_cut: bool,
}

/// A file that was opened.
pub struct OpenFile {
    /// The file, open for reading.
    pub file: File,
    /// Its status before its attributes were read.
    pub status: FileStatus,
    /// Its attributes.
    pub attributes: Attributes,
}

/// The result of a walk.
#[derive(Clone, Debug, BorshSerialize, BorshDeserialize)]
pub struct WalkResult {
    /// The inode of the root directory.
    pub root: Reference,
    /// The number of names in the tree.
    pub names: u64,
    /// Bytes of the tree's files.
    pub bytes: u64,
    /// The number of files that were read.
    pub read: u64,
    /// What could not be published, for people.
    pub notes: Vec<String>,
    /// Hints for the tree ([`crate::hints`]), if they are not too large. A walker sends them separately.
    #[borsh(skip)]
    pub hints: Option<Vec<u8>>,
}

/// The input and output of a walk. As a block source, it has the blocks of the release.
pub trait WalkIo: BlockSource {
    /// Enters a directory of the innermost open one; without a name, the tree itself (none must be open).
    /// Returns its status and attributes.
    fn enter(&self, name: Option<&CStr>) -> Result<(FileStatus, Attributes), Errno>;

    /// Leaves the innermost directory.
    fn leave(&self);

    /// Some names of the innermost directory, beginning with the one of this number, in byte order; fewer
    /// than [`ENTRIES_MAX`] at the end. They are the names that the directory had when the first were
    /// requested, without those to be left out.
    fn entries(&self, from: u64) -> Result<Vec<Entry>, Errno>;

    /// Opens regular files of the innermost directory, at most [`OPENED_MAX`] at once.
    fn open(&self, names: &[&CStr]) -> Vec<Result<OpenFile, Errno>>;

    /// The target of a symbolic link of the innermost directory.
    fn link(&self, name: &CStr) -> Result<Vec<u8>, Errno>;

    /// Sets the lane of the blocks that follow.
    fn set_lane(&self, lane: Lane);

    /// Adds a block.
    fn add(&self, block: Block) -> Reference;

    /// The first failure to write a block, if there was one.
    fn check(&self) -> Result<(), PublishError>;

    /// The values of files in the last publishing, by their paths and signs. A file has one if it is
    /// unchanged and all its blocks are there. At most [`KNOWN_MAX`] at once.
    fn known(&self, wanted: &[(Vec<u8>, super::memory::FileSigns)]) -> Vec<Option<Value>>;

    /// Remembers the value of a file.
    fn remember(
        &self,
        path: &[u8],
        signs: &super::memory::FileSigns,
        value: &Value,
    ) -> Result<(), PublishError>;

    /// Reports progress; returns whether to go on.
    fn progress(&self, progress: Progress) -> bool;
}

/// The sink of a [`WalkIo`], for functions that need a source and a sink.
pub struct WalkSink<'a>(pub &'a dyn WalkIo);

impl BlockSink for WalkSink<'_> {
    fn digest_key(&self) -> DigestKey {
        self.0.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        self.0.add(block)
    }
}
