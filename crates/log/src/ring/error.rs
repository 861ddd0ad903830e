//! Errors of the ring.

use super::{Anchor, Lsn};

/// Why a ring's operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The medium failed.
    #[error("{action} {device}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The device.
        device: String,
        /// The system's error.
        error: String,
    },
    /// An earlier write or flush failed, so it is unknown what is durable.
    #[error(
        "the log stopped after a failed write or flush ({0}); open it again to recover from what is durable"
    )]
    Poisoned(String),
    /// The device is too small.
    #[error("{device} has room for {found} log blocks of 4 KiB; at least {least} are needed")]
    TooSmall {
        /// The device.
        device: String,
        /// Blocks it has room for.
        found: u64,
        /// Blocks needed.
        least: u64,
    },
    /// The device has no ring, or none with this key.
    #[error(
        "{device} holds no log of this key and name: it is another one, or the key is wrong, or it was damaged"
    )]
    NotOurs {
        /// The device.
        device: String,
    },
    /// Written by a newer version of this program.
    #[error("{device} has log format {found}, which this program does not know yet; use a newer one")]
    NewerFormat {
        /// The device.
        device: String,
        /// Its format.
        found: u32,
    },
    /// A block that was durable is missing, altered, or in the wrong slot.
    #[error(
        "{device}: log block {number} at byte {offset} is damaged or was tampered with: {why}; nothing was changed"
    )]
    Damaged {
        /// The device.
        device: String,
        /// The block.
        number: u64,
        /// Its offset in bytes.
        offset: u64,
        /// The reason.
        why: String,
    },
    /// The device is in a state older than the anchor.
    #[error(
        "{device}: the log ends at block {found}, but was durable up to block {}: it was put back to an older state, or lost \
         its end",
        .anchor.number
    )]
    RolledBack {
        /// The device.
        device: String,
        /// The last block found.
        found: u64,
        /// The known durable end.
        anchor: Box<Anchor>,
    },
    /// The device holds another history than the anchor.
    #[error(
        "{device}: log block {} is not the one that was durable: it was replaced by that of another time",
        .anchor.number
    )]
    Forked {
        /// The device.
        device: String,
        /// The known durable end.
        anchor: Box<Anchor>,
    },
    /// The clients need all of it.
    #[error("the log is full and its oldest record ({oldest}) is still needed; a larger log is necessary")]
    Full {
        /// The oldest record needed.
        oldest: Lsn,
    },
    /// A client could not make a checkpoint.
    #[error("the log is full, and a checkpoint failed: {0}")]
    Checkpoint(String),
    /// The caller's record is over the limit.
    #[error("a record of {found} bytes is too large for this log, at most {limit}")]
    TooLarge {
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
}
