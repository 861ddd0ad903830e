//! Heads of the log of updates in the formats of existing witnesses: signed notes, checkpoints, cosignatures
//! and the `add-checkpoint` call of C2SP (`docs/internals/forks.md` explains their use). This crate only
//! decides: no clock, no files, no sockets; the time is an argument.
//!
//! - [`note`], [`checkpoint`], [`cosignature`]: the three formats.
//! - [`tree`]: the second tree of the log of updates, with SHA-256.
//! - [`submission`]: the body of `add-checkpoint`; [`judge`]: a witness's verdict on it.
//! - [`head`]: compares a co-signed head with the log that a client has accepted; [`freshness`]: how old it
//!   is.
//!
//! Invariant: nothing here trusts a byte that was not verified; every parser is strict, bounded and never panics.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod cosignature;
pub mod freshness;
pub mod head;
pub mod judge;
pub mod note;
pub mod submission;
pub mod tree;

#[cfg(test)]
mod golden;
