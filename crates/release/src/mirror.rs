//! Where the files of a release come from.

use std::ops::Range;

/// A place that has the files of a release. Untrusted: whatever it answers is checked by whoever asked.
pub trait Mirror: Send + Sync {
    /// What to call it in messages: its URL or directory.
    fn name(&self) -> &str;

    /// A file, or so much of `range` as the file has. Answers that would be longer than `bytes_max` are given up
    /// before they are read.
    ///
    /// # Errors
    /// [`MirrorError`].
    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError>;
}

/// Why a mirror did not give a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// It says that it does not have it. It may be lying.
    #[error("{mirror} does not have {file}")]
    Missing {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
    },
    /// Its answer is of no use: too long, not what was asked for, a redirection somewhere else.
    #[error("{mirror} answered wrongly for {file}: {why}")]
    Wrong {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// It does not answer, or not in time.
    #[error("{mirror} cannot be reached for {file}: {why}")]
    Unreachable {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
}
