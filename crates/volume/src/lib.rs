//! Protected volumes: a disk, image or cloud volume whose every block is verified, in place and without a new layout
//! (*Unifying File System Protection*, Stein, Howard and Seltzer, USENIX 2001).
//!
//! The hash of a block is made durable in a log ([`holdfast_log::ring`]) before the block is written. Every
//! block that is read is compared with its hash. The log is authenticated with a key that only this machine
//! has, so neither the disk nor the log need be trusted.
//!
//! ```text
//! write ─ buffers ─ hash pass ─ log: Hashes | Inline ─ write back ─ disk ─ flush ─ map ─ checkpoint
//! read  ─ buffers, or disk compared with the newest hash: of the async map, else of the block map
//! ```
//!
//! Invariants:
//! - A block is written to the disk only after a record with its hash is durable.
//! - A hash is dropped only after a flush made a newer block durable and a record says so, or when the log
//!   contains the newer block itself.
//! - Everything that a flush acknowledged is on the disk with its hash stable, or whole in the log.
//! - A read returns what was written last, or fails; failed blocks are never cached.
//! - Nothing in the disk or the log can weaken a check: only the caller's options can.
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
