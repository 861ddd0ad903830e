//! Why a volume cannot do what it was asked.

use holdfast_log::ring::{RingError, Tag};
use std::fmt;

/// A block that has changed since it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadBlock {
    /// The number of the block, in units of 4 KiB.
    pub number: u64,
    /// The tag of the content that was written, if it is known.
    pub expected: Option<Tag>,
    /// The tag of the content that was read.
    pub found: Tag,
}

impl fmt::Display for BadBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |tag: &Tag| tag.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        write!(f, "block {} (byte {}): ", self.number, self.number * crate::BLOCK_BYTES as u64)?;
        match &self.expected {
            Some(expected) => write!(f, "expected {}, found {}", hex(expected), hex(&self.found)),
            None => write!(f, "it was torn by a crash, or changed since: found {}", hex(&self.found)),
        }
    }
}

/// Why an operation on a volume failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VolumeError {
    /// The block on the disk has changed since it was written. It is refused until it is written again.
    #[error("{device}: {bad}")]
    BadBlock {
        /// The name of the disk.
        device: String,
        /// The block, and how it differs.
        bad: BadBlock,
    },
    /// A device failed.
    #[error("{action} {device}: {error}")]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The device.
        device: String,
        /// The system's error.
        error: String,
    },
    /// An earlier write or flush failed, so nothing more is accepted.
    #[error(
        "the volume stopped after a failure ({0}); once that is mended, attach it again, which recovers what is durable"
    )]
    Stopped(String),
    /// Everything flushed is durable, but its anchor cannot be written, so the flush is not acknowledged.
    #[error("the anchor cannot be written: {0}")]
    Anchor(String),
    /// The log.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The block map on the log device is damaged or was tampered with.
    #[error(
        "{device}: the block map is damaged or was tampered with (level {level}, node {index}); nothing was changed"
    )]
    BadMap {
        /// The name of the log device.
        device: String,
        /// The level, 0 for leaves.
        level: u8,
        /// The number of the damaged node.
        index: u64,
    },
    /// The header of the log device is not this volume's, or the key is wrong.
    #[error("{device} is not the log of this volume, or the key is wrong, or its header was damaged")]
    NotOurs {
        /// The name of the log device.
        device: String,
    },
    /// The sizes of disk and log do not fit.
    #[error("{0}")]
    Size(String),
    /// The caller asked for what lies beyond the end or is not aligned to 512 bytes.
    #[error("bytes {offset} to {end} are not in the volume or not in whole sectors of 512 bytes")]
    Range {
        /// The first byte.
        offset: u64,
        /// The end.
        end: u64,
    },
    /// The data of the disk has not been taken over completely.
    #[error(
        "the volume's data is taken over up to block {done} of {blocks} only; go on with `holdfast volume protect`"
    )]
    NotAdopted {
        /// Blocks that were taken over.
        done: u64,
        /// All blocks of the volume.
        blocks: u64,
    },
}
