//! The directory and files that a log lives in.

use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The name of a site in the program that makes bytes durable. Tests switch off one site at a time and demand
/// that some run fails, so that every sync is proved to be needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SyncSite(pub &'static str);

impl SyncSite {
    /// The group commit of the active segment.
    pub const COMMIT: SyncSite = SyncSite("log: commit");
    /// A full segment, before the first record of the next one can be acknowledged.
    pub const SEAL: SyncSite = SyncSite("log: seal");
    /// The header of a new segment, before any frame can follow it.
    pub const SEGMENT_HEADER: SyncSite = SyncSite("log: segment header");
    /// The directory entry of a new segment.
    pub const SEGMENT_CREATED: SyncSite = SyncSite("log: segment created");
    /// The tail that recovery accepted or cut, before anything is built on it.
    pub const RECOVERED_TAIL: SyncSite = SyncSite("log: recovered tail");
    /// The directory after segments were removed.
    pub const SEGMENT_REMOVED: SyncSite = SyncSite("log: segment removed");
}

/// A flat directory. Implementations are thread-safe; names have no separators.
pub trait Storage: Send + Sync {
    /// Creates an empty file, durable only after [`Storage::sync_dir`].
    ///
    /// # Errors
    /// `AlreadyExists`, or the medium failed.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// `NotFound`, or the medium failed.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;

    /// Names of all files, in no order.
    ///
    /// # Errors
    /// The medium failed.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Removes a file; open handles stay readable. Durable only after [`Storage::sync_dir`].
    ///
    /// # Errors
    /// `NotFound`, or the medium failed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file over another. Durable only after [`Storage::sync_dir`].
    ///
    /// # Errors
    /// `NotFound`, or the medium failed.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes creations, removals and renames durable.
    ///
    /// # Errors
    /// The medium failed; what is durable is then unknown.
    fn sync_dir(&self, site: SyncSite) -> io::Result<()>;

    /// Takes the exclusive lock `name` until the result is dropped or the process dies.
    ///
    /// # Errors
    /// `WouldBlock` when another process (or this one) holds it.
    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>>;

    /// Sixteen bytes that no other call will return.
    ///
    /// # Errors
    /// The source of randomness failed.
    fn entropy(&self) -> io::Result<[u8; 16]>;

    /// Free space in bytes; `None` if the medium does not say.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// The directory's name for messages.
    fn describe(&self) -> String;
}

/// A held lock; dropping it releases it.
pub trait StorageLock: Send + Sync {}

/// A file in a [`Storage`]. Implementations are thread-safe.
pub trait StorageFile: Send + Sync {
    /// Writes all of `bytes` at `offset`, extending the file (with zeroes) as needed. Durable after `sync`.
    ///
    /// # Errors
    /// The medium failed or is full; any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reads into `buffer` from `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    /// The medium failed.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Length in bytes.
    ///
    /// # Errors
    /// The medium failed.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// The medium failed.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Sets the length, and gives back space reserved beyond it.
    ///
    /// # Errors
    /// The medium failed.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Reserves space up to `length` without changing the length, so that writes below it do not meet a full
    /// disk. Media that cannot reserve return `Ok`.
    ///
    /// # Errors
    /// The disk is full.
    fn reserve(&self, length: u64) -> io::Result<()>;

    /// Makes everything written so far durable, the length included.
    ///
    /// # Errors
    /// The medium failed; what is durable is then unknown, and a later success proves nothing about it.
    fn sync(&self, site: SyncSite) -> io::Result<()>;

    /// The file's outline ([`crate::outline_of`]) from when it was sealed, on media that store outlines
    /// because files are expensive to read; `None`: there is none. The caller verifies it.
    ///
    /// # Errors
    /// The medium cannot be reached, so that the file could not be read either.
    fn outline(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Ranges that [`StorageFile::punch_holes`] freed, in order; their bytes are undefined.
    fn holes(&self) -> Vec<Range<u64>> {
        Vec::new()
    }

    /// Whether [`StorageFile::punch_holes`] is supported.
    fn can_punch_holes(&self) -> bool {
        false
    }

    /// Frees ranges of a sealed segment, which are in order and not adjacent, without moving the rest.
    /// `false`: the medium does not support it, and nothing has changed.
    ///
    /// # Errors
    /// The medium failed, and nothing has changed.
    fn punch_holes(&self, _holes: &[Range<u64>]) -> io::Result<bool> {
        Ok(false)
    }

    /// Asks the system to forget cached pages, so that reads come from the medium. A hint.
    fn drop_cache(&self) {}
}

/// Whether an error says that space (or quota) ran out.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Whether an error says that the medium cannot be reached, such as one behind a network. Then nothing is
/// known of its content, and nothing is damaged.
pub fn is_away(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::HostUnreachable
}
