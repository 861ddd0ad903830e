//! Past states of a file system: which of them a server stores, and how a client verifies one.
//!
//! A *state* is the file system after the first n operations of the log, with none of them pending: for each
//! device its newest structure, the dead operations that their authors have not given up yet, and the head of
//! the log. It is a view ([`crate::structure::View`]) of that time.
//!
//! - [`Archive`] (server): the structures that stored states need, each once, so that a state costs only
//!   what changed.
//! - [`Retention`] (server): which states are stored, and for how long.
//! - [`verify_past_state`] (client): checks a past state like a present view, and that its log is the
//!   beginning of the log that this client has accepted. So a server can withhold a state, but cannot invent
//!   one, show one of another fork, or mix two.
//! - [`Snapshot`]: a name for a state, signed by whoever gave the name.

mod archive;
mod retention;
#[cfg(test)]
mod tests;
mod verify;

pub use archive::{Archive, HistoryRecord, PointPolicy};
pub use retention::{Retention, RetentionError, Tier};
pub use verify::{Lie, VerifiedPast, membership_of, verify_past_state};

use crate::certificate::Certificate;
use crate::signed::{Signable, Signed};
use crate::structure::{LogHead, View};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, Domain, encode};

/// Longest name of a snapshot, in bytes.
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 200;
/// Most snapshots that the devices of one user have named.
pub const SNAPSHOTS_PER_USER_MAX: usize = 4096;
/// Most snapshots of a file system: all of them are listed in one answer.
pub const SNAPSHOTS_MAX: usize = 16_384;
/// Most points in one answer.
pub const POINTS_PER_ANSWER_MAX: usize = 8192;

/// A past state in a listing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Point {
    /// Size of the log of updates.
    pub log_size: u64,
    /// When its last operation was declared, by its author's clock, in nanoseconds since 1970.
    /// [`verify_past_state`] compares it with what the author signed.
    pub time_ns: i64,
}

/// A state that a server sends. Untrusted until [`verify_past_state`] has accepted it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PastReply {
    /// The state.
    pub view: View,
    /// The roots of the complete subtrees of its log.
    pub peaks: Vec<Digest>,
    /// The certificate of the last operation in its log, which contains the time.
    pub newest: Signed<Certificate>,
    /// Proof that its log is the beginning of the one that the client asked about.
    pub consistency: Vec<Digest>,
    /// Proofs that each structure, and then each dead operation, in the sequence of the view, is at its position in the
    /// log.
    pub inclusion: Vec<Vec<Digest>>,
}

/// A name for a past state. Its signer states that this is the state the signer saw under this name.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Snapshot {
    /// File system.
    pub file_system: Digest,
    /// The device that names it.
    pub device: DeviceId,
    /// The snapshot's name.
    pub name: String,
    /// The log of updates up to this state.
    pub log: LogHead,
    /// When it was named, by the author's clock.
    pub time_ns: i64,
}

impl Signable for Snapshot {
    const DOMAIN: Domain = Domain::Snapshot;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Ends a snapshot: the state may then be dropped.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SnapshotEnd {
    /// The device that ends it: one of the user who gave the name, or of the superuser.
    pub device: DeviceId,
    /// Digest of the [`Snapshot`] that ends.
    pub snapshot: Digest,
    /// File system.
    pub file_system: Digest,
}

impl Signable for SnapshotEnd {
    const DOMAIN: Domain = Domain::SnapshotEnd;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// What is wrong with a snapshot's name; `None` if it is valid. Names appear in a directory beside times, so
/// no name begins with a digit.
pub fn name_offence(name: &str) -> Option<&'static str> {
    if name.is_empty() || name.len() > SNAPSHOT_NAME_BYTES_MAX {
        return Some("a name has 1 to 200 bytes");
    }
    if name.starts_with(|first: char| first.is_ascii_digit() || first == '.' || first == '-') {
        return Some("a name does not begin with a digit, a dot or a hyphen");
    }
    if name.chars().any(|letter| letter == '/' || letter.is_control()) {
        return Some("a name has no slash and no control character");
    }
    None
}
