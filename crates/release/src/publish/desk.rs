//! What walking a tree needs of the outside: its names and files, a place for blocks, the memory of the last time.
//!
//! There are two: [`super::local`], which has all of it, and the one in [`super::apart`], which asks the former from a
//! process that has none of it. So the walk is the same code in both.
//!
//! The tree is walked with a stack of open directories. Names, files and attributes are of the innermost; there is no
//! other way to name anything, and so none to name what is not below the directory that is published.

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

/// Most names that [`Desk::entries`] gives at once.
pub const ENTRIES_MAX: usize = 4096;

/// Most files that [`Desk::open`] opens at once.
pub const OPENED_MAX: usize = holdfast_components::FILES_MAX;
/// Most files that [`Desk::known`] is asked for at once.
pub const KNOWN_MAX: usize = 256;

/// A file on this machine.
pub type FileId = (u64, u64);

/// What the system says of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Looked {
    /// Of the file system.
    pub device: u64,
    /// Of the inode.
    pub number: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Whether it has more names on this machine.
    pub has_more_names: bool,
    /// In bytes.
    pub size: u64,
    /// Of 512 bytes, that take place.
    pub blocks: u64,
    /// Of a device file.
    pub device_number: u64,
    /// When it was modified, since 1970.
    pub modified_ns: i64,
    /// When anything of it was changed, since 1970.
    pub changed_ns: i64,
}

impl Looked {
    /// What kind of file it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// Which.
    pub fn id(&self) -> FileId {
        (self.device, self.number)
    }
}

impl From<Stat> for Looked {
    fn from(stat: Stat) -> Looked {
        Looked {
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
    /// It.
    pub name: CString,
    /// What has it.
    pub looked: Result<Looked, Errno>,
}

/// Attributes of users.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Attributes {
    /// As many as a file of a release can have.
    pub kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there are more.
    pub is_cut: bool,
}

/// A file that was opened.
pub struct Opened {
    /// It, for reading.
    pub file: File,
    /// What the system said of it before its attributes were read.
    pub looked: Looked,
    /// Its attributes.
    pub attributes: Attributes,
}

/// What a walk came to.
#[derive(Clone, Debug, BorshSerialize, BorshDeserialize)]
pub struct Walked {
    /// The root directory's inode.
    pub root: Reference,
    /// Names in the tree.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that were read.
    pub read: u64,
    /// What could not be kept.
    pub notes: Vec<String>,
    /// Hints for the tree ([`crate::hints`]), if there are not too many. A walker sends them by themselves.
    #[borsh(skip)]
    pub hints: Option<Vec<u8>>,
}

/// The outside of a walk. As a source it has the blocks of the release.
pub trait Desk: BlockSource {
    /// Enters a directory of the innermost open one; without a name, the tree itself, when none is open. What the system
    /// says of it, and its attributes.
    fn enter(&self, name: Option<&CStr>) -> Result<(Looked, Attributes), Errno>;

    /// Leaves the innermost directory.
    fn leave(&self);

    /// Some names of the innermost directory, from this one on, in order of bytes; fewer than
    /// [`ENTRIES_MAX`] at the end. The names are those of when the first were asked for, but for what is to be left out,
    /// which cannot be named at all.
    fn entries(&self, from: u64) -> Result<Vec<Entry>, Errno>;

    /// Opens regular files of the innermost directory, at most [`OPENED_MAX`] at once.
    fn open(&self, names: &[&CStr]) -> Vec<Result<Opened, Errno>>;

    /// The target of a symbolic link of the innermost directory.
    fn link(&self, name: &CStr) -> Result<Vec<u8>, Errno>;

    /// Where blocks go from now on.
    fn set_lane(&self, lane: Lane);

    /// Adds a block.
    fn add(&self, block: Block) -> Reference;

    /// The first failure to write a block, if there was one.
    fn check(&self) -> Result<(), PublishError>;

    /// What files became the last time, by their paths and signs: each that is as it was and whose blocks are all there. At
    /// most [`KNOWN_MAX`] at once.
    fn known(&self, wanted: &[(Vec<u8>, super::seen::Signs)]) -> Vec<Option<Value>>;

    /// Remembers what a file became.
    fn remember(&self, path: &[u8], signs: &super::seen::Signs, value: &Value) -> Result<(), PublishError>;

    /// Tells how far it is. Whether to go on.
    fn progress(&self, progress: Progress) -> bool;
}

/// A desk as a sink, beside itself as a source.
pub struct Onto<'a>(pub &'a dyn Desk);

impl BlockSink for Onto<'_> {
    fn digest_key(&self) -> DigestKey {
        self.0.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        self.0.add(block)
    }
}
