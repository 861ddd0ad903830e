//! Declared restores: the superuser's word that the server was put back to an older state.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, Signature};

/// Most declared restores of one file system.
pub const RESTORES_MAX: usize = 256;

/// What the superuser signed: that the file system goes on from the first `size` operations, whose log has this root, and
/// that what came after them before is lost. `holdfast_protocol::epoch` says over what, and what follows from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Restore {
    /// Number of operations in the log that is left.
    pub size: u64,
    /// The root of its log.
    pub root: Digest,
    /// The epoch of the state that is left: not the last one, if it is from before an earlier restore.
    pub base: Digest,
    /// When it was declared, by the clock of the superuser's machine, nanoseconds since 1970. Informative.
    pub declared_ns: i64,
    /// Drawn at random: no two declarations are the same.
    pub nonce: [u8; 16],
    /// By the superuser's key, in `Domain::Restore`.
    pub signature: Signature,
}
