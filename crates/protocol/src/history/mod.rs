//! Past states of a file system: what a server keeps of them, and what a client checks before it believes one.
//!
//! A *state* is what the file system was after the first n operations of the log, with nothing pending among them: for
//! each device its newest structure, what is dead and not yet given up by its author, and the head of the log. It is
//! nothing but a view ([`crate::structure::View`]) as it was shown then.
//!
//! - [`Archive`] (server): the structures that kept states need, each once, so that a state costs what changed;
//! - [`Retention`] (server): which states are kept;
//! - [`verify_past_state`] (client): a state shown later is checked like a present view, and must be the beginning of the very log
//!   that this client has accepted. So a server can withhold a state, and never show one that was not, nor one of another
//!   fork, nor a mixture of two;
//! - [`Snapshot`]: a name for a state, signed by whoever gave it.

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

/// A past state that is kept, as it is listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Point {
    /// Size of the log of updates.
    pub log_size: u64,
    /// When its last operation was declared, by its author's clock, nanoseconds since the epoch: [`verify_past_state`]
    /// compares it with what the author signed.
    pub time_ns: i64,
}

/// A state, as a server shows it. Untrusted until [`verify_past_state`] has passed it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PastReply {
    /// The state.
    pub view: View,
    /// The roots of the complete subtrees of its log.
    pub peaks: Vec<Digest>,
    /// The certificate of the last operation in its log, which tells the time.
    pub newest: Signed<Certificate>,
    /// Proof that its log is the beginning of the one that the client asked about.
    pub consistency: Vec<Digest>,
    /// Proofs that each structure, and then each dead operation, in the sequence of the view, is at its position in the
    /// log.
    pub inclusion: Vec<Vec<Digest>>,
}

/// A name for a past state. Whoever signs it says: this is the state that I saw under this name.
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

/// Ends a snapshot: what it kept may go.
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

/// What is wrong with a snapshot's name; `None` if nothing is. Names stand in a directory beside times, so they do not
/// begin like one: a digit begins no name.
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
