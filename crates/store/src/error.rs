//! Errors of the store.

use holdfast_crypto::Digest;
use holdfast_log::LogError;

/// Why a store operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The medium failed: the log says how.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The medium failed outside the log.
    #[error("{action} {file}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        error: String,
    },
    /// The index failed. Nothing durable is lost: it can be rebuilt from the segments.
    #[error("the block index failed: {0}")]
    Index(String),
    /// The index is damaged. Nothing durable is lost: the next opening rebuilds it from the segments.
    #[error("the block index is damaged ({0}); restart the server to rebuild it from the segments")]
    IndexDamaged(String),
    /// A stored block has changed.
    #[error("block {address} is damaged: {file} at offset {offset}: {why}")]
    Damaged {
        /// The block.
        address: Digest,
        /// The segment file.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// A block is not in the index, but may have been in records that were lost.
    #[error("block {address} cannot be told from lost ones: {why}")]
    MayBeDamaged {
        /// The block.
        address: Digest,
        /// The lost records.
        why: String,
    },
    /// Ordering records of a file system may be lost; serving it would roll it back.
    #[error("ordering records of file system {file_system} may be lost: {why}")]
    OrderingDamaged {
        /// The file system.
        file_system: Digest,
        /// The reason.
        why: String,
    },
    /// Another process has the directory open.
    #[error("{directory} is in use by another server: {why}")]
    InUse {
        /// The data directory.
        directory: String,
        /// The process that uses it, as far as that is known.
        why: String,
    },
    /// Written by a newer version of this program.
    #[error(
        "{directory} has store format {found}; this program knows formats up to {supported}: use the newer program"
    )]
    NewerFormat {
        /// The data directory.
        directory: String,
        /// Its format.
        found: u32,
        /// The newest known.
        supported: u32,
    },
    /// The directory is not a store, or its format file is damaged.
    #[error("{directory} is not a Holdfast store: {why}")]
    NotAStore {
        /// The data directory.
        directory: String,
        /// The reason.
        why: String,
    },
    /// Caller: the user who stores would be over the limit.
    #[error("the limit of {limit} bytes is reached: {used} are used, and {wanted} more are wanted")]
    OverQuota {
        /// Bytes charged.
        used: u64,
        /// Bytes allowed.
        limit: u64,
        /// Bytes that this would have cost.
        wanted: u64,
    },
    /// A long operation is running that excludes this one; the caller should try again.
    #[error("a collection runs; try again")]
    Busy,
    /// The caller's request is not allowed.
    #[error("refused: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether space ran out: nothing was acknowledged, and the call may be repeated when there is space.
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Log(LogError::Full { .. }))
    }

    pub(crate) fn io(action: &'static str, file: &str, error: &std::io::Error) -> StoreError {
        if holdfast_log::is_full(error) {
            StoreError::Log(LogError::Full { action, file: file.to_owned() })
        } else {
            StoreError::Io { action, file: file.to_owned(), error: error.to_string() }
        }
    }
}
