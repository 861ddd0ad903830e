//! Errors of the log.

use crate::Position;

/// Why a log operation failed. The medium is the cause of all but [`LogError::TooLarge`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The medium failed.
    #[error("{action} {file}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// The system's error.
        error: String,
    },
    /// The medium cannot be reached at present. Nothing is known of its content. The call may be repeated
    /// later.
    #[error("{action} {file}: {error}")]
    Away {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
        /// Why it cannot be reached.
        error: String,
    },
    /// The disk is full. Nothing was appended; the call may be repeated when there is space.
    #[error("the disk is full ({action} {file}); nothing was written, free some space and try again")]
    Full {
        /// The action that failed.
        action: &'static str,
        /// The file.
        file: String,
    },
    /// An earlier write or sync failed, so nothing more is accepted until the log is opened again.
    #[error("the log stopped after a failed write or sync ({0}); restart to recover from what is durable")]
    Poisoned(String),
    /// Bytes that were known durable have changed.
    #[error("{file} is damaged at offset {offset}: {why}")]
    Damaged {
        /// The segment file.
        file: String,
        /// Byte offset in the segment.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// Records that were known durable are gone.
    #[error(
        "the log ends at {found}, but was known durable up to {expected}: acknowledged records are missing"
    )]
    Lost {
        /// The known durable end.
        expected: Position,
        /// The end of the log that is left.
        found: Position,
    },
    /// The segment of this position was removed, after its live records had been moved.
    #[error("segment {0} was removed")]
    SegmentGone(u32),
    /// Written by a newer version of this program.
    #[error("{file} has log format {found}; this program knows formats up to {supported}")]
    NewerFormat {
        /// The segment file.
        file: String,
        /// Its format.
        found: u32,
        /// The newest known.
        supported: u32,
    },
    /// The caller's record is over the limits.
    #[error("a record of {found} bytes is too large, at most {limit}")]
    TooLarge {
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl LogError {
    pub(crate) fn io(action: &'static str, file: &str, error: &std::io::Error) -> LogError {
        if crate::is_full(error) {
            LogError::Full { action, file: file.to_owned() }
        } else if crate::is_away(error) {
            LogError::Away { action, file: file.to_owned(), error: error.to_string() }
        } else {
            LogError::Io { action, file: file.to_owned(), error: error.to_string() }
        }
    }
}
