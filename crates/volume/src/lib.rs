//! Protected volumes: a disk, image or cloud volume whose every block is verified, in place and without a new layout
//! (*Unifying File System Protection*, Stein, Howard and Seltzer, USENIX 2001).
//!
//! The hash of a block is made durable in a log ([`holdfast_log::ring`]) before the block is written; what is read is
//! compared with it. The log is authentic by a key that only this machine has, so neither the disk nor the log need
//! be trusted.
//!
//! ```text
//! write ─ buffers ─ hash pass ─ log: Hashes | Inline ─ write back ─ disk ─ flush ─ map ─ checkpoint
//! read  ─ buffers, or disk compared with the newest hash: of the async map, else of the block map
//! ```
//!
//! Invariants:
//! - a block is written only after a record with its hash is durable;
//! - a hash is forgotten only after a flush made a newer block durable, and a record says so, or the log holds the
//!   newer block itself;
//! - what a flush acknowledged is on the disk with its hash stable, or whole in the log;
//! - what is read is what was written last, or the read fails; what failed is never cached;
//! - nothing that the disk or the log say weakens a check: that is the caller's to choose.
#![forbid(unsafe_code)]

mod buffers;
mod care;
mod disk;
mod error;
mod inspect;
mod key;
mod layout;
mod look;
mod map;
#[cfg(test)]
mod map_tests;
mod passes;
mod records;
mod recover;
mod release;
#[cfg(test)]
mod taking_over_tests;
#[cfg(test)]
mod tests;
mod together;
#[cfg(test)]
mod together_tests;
mod volume;

pub use disk::{Disk, refused_at};
pub use error::{BadBlock, VolumeError};
pub use inspect::{Claim, claims};
pub use key::VolumeKey;
pub use layout::{BLOCK_BYTES, Header, Plan};
pub use look::LogSummary;
pub use recover::Report;
pub use volume::{AnchorKeeper, Options, Statistics, Volume};
