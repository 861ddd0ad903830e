//! The log as a service on a device: one sequential, circular stream that several clients share (the write-ahead file
//! system of *Unifying File System Protection*, section 4.3).
//!
//! Clients append records and learn an [`Lsn`]; what they did to their own storage must wait until the log is stable
//! up to it ([`Ring::force`]). At recovery each reads its own records back through a [`Cursor`]. When the ring runs
//! full, it asks its clients to do without its oldest part ([`LogClient::checkpoint`]).
//!
//! Invariants:
//! - every log block carries a keyed tag over its content, its number, its epoch and the tag of the block before it: no
//!   block can be altered, moved, left out, or brought from another ring, key or epoch;
//! - a block is written once: one that is forced when it is not full is padded, and never written again before the
//!   ring comes round;
//! - a place is used again only after a superblock that does not need it is durable;
//! - the end that recovery finds is believed only if nothing says that there was more: a block that is missing or
//!   wrong below what any later block, or the caller's [`Anchor`], calls durable is damage or an attack. It is
//!   reported, never cut off;
//! - every opening begins an epoch with a random salt in the key, so that blocks of a tail that was cut off are never
//!   taken for new ones;
//! - a failed write or flush is fatal: every later call fails.
//!
//! An attacker who puts back an older state of the whole device is found only by an anchor that is newer than it.

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
    /// Its tag, which binds its epoch and all blocks before it.
    pub tag: Tag,
}
