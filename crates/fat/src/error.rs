//! Why a request failed. Three causes are distinguished: the medium (its bytes are no sound FAT32, or could
//! not be read), the caller (an impossible name, a directory that is not empty), and lack of space.

use crate::problem::Problem;

/// Why an operation failed. Nothing was changed by an operation that fails.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FatError {
    /// The boot sector is not one of a FAT32 file system.
    #[error("no FAT32 file system here: {0}")]
    NotFat32(String),
    /// The boot sector is one of FAT32, but has impossible values.
    #[error(
        "the boot sector is absurd: {0}; the medium is damaged or was tampered with, and nothing of it is used"
    )]
    BadBootSector(String),
    /// The partition table cannot be used.
    #[error("the partition table cannot be used: {0}")]
    BadPartitionTable(String),
    /// A block of metadata could not be read.
    #[error("reading {block}: {reason}")]
    Medium {
        /// The block that cannot be read.
        block: crate::BlockId,
        /// The error of the caller's reader.
        reason: String,
    },
    /// The stored data contradict themselves. The thing named is refused; the rest can be read, and nothing is written.
    #[error(
        "{place}: {problem}; it is refused, the rest can be read, and nothing is written to this file system until it was checked and repaired (fsck.fat, chkdsk)"
    )]
    Unsound {
        /// The file or directory, or the part of the file system.
        place: String,
        /// The unsound value.
        problem: Problem,
    },
    /// Changes are refused because something unsound was seen before.
    #[error("the file system is read-only: {0}")]
    ReadOnly(String),
    /// The file system was not checked, so two files might share a block.
    #[error(
        "the file system was not checked, so no block of a file can be named and nothing changed; check it first"
    )]
    NotChecked,
    /// Every cluster is in use.
    #[error(
        "the file system is full: {needed} more clusters are needed and {free} are free; delete something, and have the blocks of deleted files returned"
    )]
    Full {
        /// The number of clusters needed.
        needed: u64,
        /// The number of free clusters.
        free: u64,
    },
    /// A directory has no room for another entry.
    #[error("the directory is full: FAT allows 65536 entries of 32 bytes, and long names take several")]
    DirectoryFull,
    /// A file can be no larger.
    #[error("a file on FAT32 holds at most 4294967295 bytes, and {0} were asked for")]
    FileTooLarge(u64),
    /// The file has more pieces than are kept in memory.
    #[error("{0}: in more than 1048576 pieces; copy it to a file system with larger clusters")]
    TooFragmented(String),
    /// The name cannot be stored.
    #[error("the name {name:?} cannot be stored: {reason}")]
    BadName {
        /// The name that was asked for.
        name: String,
        /// Why it is refused.
        reason: &'static str,
    },
    /// The directory has no such name.
    #[error("there is no {0:?} in that directory")]
    NotFound(String),
    /// The name is taken, perhaps in other case or as another's short name.
    #[error("{0:?} exists (names that differ only in case are the same)")]
    Exists(String),
    /// The file is not a directory.
    #[error("{0:?} is not a directory")]
    NotADirectory(String),
    /// The file is a directory.
    #[error("{0:?} is a directory")]
    IsADirectory(String),
    /// Only empty directories can be removed.
    #[error("the directory {0:?} is not empty")]
    NotEmpty(String),
    /// A directory cannot be moved into itself.
    #[error("a directory cannot be moved into itself or what is below it")]
    IntoItself,
    /// The handle names nothing: never given out, forgotten, or of a directory since removed.
    #[error("no such file: it was forgotten or removed")]
    Gone,
    /// The caller refers to so many files that no more can be added.
    #[error("{0} files are in use at once, and no more can be; close some")]
    TooManyFiles(usize),
    /// An earlier transaction was neither applied nor abandoned.
    #[error("an earlier transaction is neither applied nor abandoned")]
    Outstanding,
    /// The transaction is not the outstanding one.
    #[error("that transaction is not the one outstanding")]
    WrongTransaction,
    /// Blocks of too many deleted files have not been returned.
    #[error(
        "{0} deleted or cut files still hold blocks that their owners have not given back; nothing more can be deleted until some are"
    )]
    LimboFull(u32),
    /// The file still is open, or fewer clusters wait than were confirmed.
    #[error("there is nothing to free there: {0}")]
    NothingToFree(&'static str),
    /// A size or option cannot be.
    #[error("{0}")]
    BadOption(String),
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, FatError>;
