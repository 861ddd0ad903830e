//! Declared restores: the superuser's word that the server was put back to an older state.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, Signature};

/// Most declared restores of one file system.
pub const RESTORES_MAX: usize = 256;

/// A restore signed by the superuser: the file system continues from the first `size` operations, whose log
/// has this root, and the operations after them are lost. `holdfast_protocol::epoch` defines the signed
/// content and the consequences.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Restore {
    /// Number of operations in the restored log.
    pub size: u64,
    /// The root of its log.
    pub root: Digest,
    /// The epoch of the restored state: not the last one if the state is older than an earlier restore.
    pub base: Digest,
    /// When it was declared, by the clock of the superuser's machine, nanoseconds since 1970. Informative.
    pub declared_ns: i64,
    /// Drawn at random: no two declarations are the same.
    pub nonce: [u8; 16],
    /// By the superuser's key, in `Domain::Restore`.
    pub signature: Signature,
}
