//! The log as a service on a device: one sequential, circular stream that several clients share (the
//! write-ahead file system of *Unifying File System Protection*, section 4.3).
//!
//! Clients append records and get an [`Lsn`] for each. What they do to their own storage must wait until the
//! log is stable up to that ([`Ring::force`]). At recovery, each client reads its own records back through a
//! [`Cursor`]. When the ring runs full, it asks its clients to become independent of the oldest part
//! ([`LogClient::checkpoint`]).
//!
//! Invariants:
//! - Every log block has a keyed tag over its content, its number, its epoch and the tag of the block
//!   before it. So no block can be altered, moved, left out, or brought from another ring, key or epoch.
//! - A block is written once. One that is forced before it is full is padded, and not written again before
//!   the ring wraps around.
//! - A slot is used again only after a superblock that does not need it is durable.
//! - Recovery accepts the end that it finds only if nothing proves that there was more. A block that is
//!   missing or wrong before a position that any later block, or the caller's [`Anchor`], calls durable is
//!   damage or an attack. It is reported, never cut off.
//! - Every opening begins an epoch with a random salt in the key, so that blocks of a tail that was cut off
//!   are never taken for new ones.
//! - A failed write or flush is fatal: every later call fails.
//!
//! An attacker who restores an older state of the whole device is detected only by a newer anchor.

mod append;
mod block;
mod error;
mod recover;
#[cfg(test)]
mod tests;

pub use append::{LogClient, Ring, RingStatistics};
pub use block::{BLOCK_BYTES, Epoch, PAYLOAD_BYTES, Tag};
pub use error::RingError;
pub use recover::{Cursor, Recovered, RingRecord, claimed_name};

use std::fmt;

/// A position in the stream of records. Later records have greater ones, and none is used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log block {} byte {}", self.block(), self.offset())
    }
}

/// The client that the records belong to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u8);

/// The secret that makes log blocks authentic.
#[derive(Clone)]
pub struct RingKey {
    superblock: [u8; 32],
    blocks: [u8; 32],
}

impl fmt::Debug for RingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingKey(..)")
    }
}

/// The key of one epoch's blocks.
pub(crate) struct EpochKey([u8; 32]);

impl RingKey {
    /// The key of the ring called `ring`, from the operator's secret.
    pub fn new(secret: &[u8; 32], ring: &[u8; 16]) -> RingKey {
        let derived = |context: &str| {
            let mut material = [0; 48];
            material[..32].copy_from_slice(secret);
            material[32..].copy_from_slice(ring);
            blake3::derive_key(context, &material)
        };
        RingKey {
            superblock: derived("holdfast 2026 volume log superblock v1"),
            blocks: derived("holdfast 2026 volume log blocks v1"),
        }
    }

    fn tag_superblock(&self, bytes: &[u8]) -> Tag {
        cut(&blake3::keyed_hash(&self.superblock, bytes))
    }

    fn of_epoch(&self, epoch: &Epoch) -> EpochKey {
        let mut name = [0; 24];
        name[..8].copy_from_slice(&epoch.number.to_le_bytes());
        name[8..].copy_from_slice(&epoch.salt);
        EpochKey(*blake3::keyed_hash(&self.blocks, &name).as_bytes())
    }
}

impl EpochKey {
    fn tag(&self, bytes: &[u8]) -> Tag {
        cut(&blake3::keyed_hash(&self.0, bytes))
    }
}

fn cut(hash: &blake3::Hash) -> Tag {
    hash.as_bytes()[..16].try_into().expect("16 of 32 bytes")
}

/// The durable end of the log, stored where the attacker cannot reach: an older state of the device does not match it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The ring.
    pub ring: [u8; 16],
    /// The last durable block.
    pub number: u64,
    /// The block's tag, which binds its epoch and all blocks before it.
    pub tag: Tag,
}
