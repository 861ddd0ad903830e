//! The last whole state in the log, and the changes saved after it.
//!
//! ```text
//! record 1:  the whole state
//! record 3:  format u16 (1) | digest of the body of the record before it [u8; 32] | change of the signer's state: bytes
//!            | numbers given out | freeze?                                                            borsh
//! ```
//!
//! Each run of a program begins with a whole state, and writes another one whenever the changes since are
//! longer than the state. So opening reads at most about twice a state, and an operation writes only what it
//! changed.
//!
//! Invariant: a change counts only directly after the record that it follows, to which it is tied by the
//! digest. A change that is missing, damaged or from another log makes the state unusable; an older state is
//! never taken for the last.

use super::{Frozen, State, StateError};
use crate::tree::Allocator;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain, decode, encode};
use holdfast_log::{Log, Position};
use holdfast_protocol::signer::Signer;

/// Format of a change record.
const FORMAT: u16 = 1;
/// Total length of changes below which no new whole state is written, however short the state is.
const CHANGES_BYTES_LEAST: usize = 256 << 10;

/// The changes since the previous record.
#[derive(BorshSerialize, BorshDeserialize)]
pub(super) struct Change {
    format: u16,
    follows: Digest,
    signer: Vec<u8>,
    allocator: Allocator,
    frozen: Option<Frozen>,
}

/// What the next record may build on. Only durable records are entered here.
#[derive(Default)]
pub(super) struct RecordBase {
    /// The segment of the last whole record.
    pub segment: u32,
    /// The signer's state in the last record, and that record's digest; `None`: the next record must be
    /// whole.
    last: Option<(Signer, Digest)>,
    whole_bytes: usize,
    change_bytes: usize,
}

pub(super) fn digest(body: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, body)
}

impl RecordBase {
    /// For a log whose last whole record is in this segment. The next record must be whole too.
    pub fn after(segment: u32) -> RecordBase {
        RecordBase { segment, ..RecordBase::default() }
    }

    /// The body of a change record that leads to this state; `None` if it is better to write a whole record.
    pub fn change(&self, signer: &Signer, allocator: &Allocator, frozen: Option<&Frozen>) -> Option<Vec<u8>> {
        let (before, follows) = self.last.as_ref()?;
        if self.change_bytes >= self.whole_bytes.max(CHANGES_BYTES_LEAST) {
            return None;
        }
        let change = Change {
            format: FORMAT,
            follows: *follows,
            signer: signer.change_since(before),
            allocator: allocator.clone(),
            frozen: frozen.cloned(),
        };
        Some(encode(&change))
    }

    /// Records that a whole state is durable. With the signer's state, if changes may follow.
    pub fn whole(&mut self, at: Position, body: &[u8], signer: Option<&Signer>) {
        *self = RecordBase {
            segment: at.segment,
            last: signer.map(|signer| (signer.clone(), digest(body))),
            whole_bytes: body.len(),
            change_bytes: 0,
        };
    }

    /// Records that a change record is durable.
    pub fn changed(&mut self, body: &[u8], signer: &Signer) {
        self.last = Some((signer.clone(), digest(body)));
        self.change_bytes += body.len();
    }
}

/// Applies the change records that follow a whole record to its state.
pub(super) fn replay(log: &Log, whole: &[u8], changes: &[Position]) -> Result<State, StateError> {
    let corrupt = |error: &dyn std::fmt::Display| StateError::Corrupt(error.to_string());
    let mut state: State = decode(whole).map_err(|error| corrupt(&error))?;
    // The caller refuses a state that cannot be read, after it has checked the key and file system.
    if changes.is_empty() {
        return Ok(state);
    }
    let mut signer = Signer::restore(&state.signer).map_err(|error| corrupt(&error))?;
    let mut last = digest(whole);
    for position in changes {
        let body = log.read(*position, 0)?.body;
        let change: Change = decode(&body).map_err(|error| corrupt(&error))?;
        if change.format != FORMAT {
            return Err(corrupt(&format!("its format {} is newer than this program", change.format)));
        }
        if change.follows != last {
            return Err(corrupt(&"a change follows another record than the one before it"));
        }
        signer = signer.changed(&change.signer).map_err(|error| corrupt(&error))?;
        (state.allocator, state.frozen) = (change.allocator, change.frozen);
        last = digest(&body);
    }
    state.signer = signer.to_bytes();
    Ok(state)
}
