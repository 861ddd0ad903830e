//! The second tree of the log of updates: the same leaves and the same shape, hashed as RFC 6962 says, with SHA-256,
//! which is what existing witnesses verify. Its leaf is the RFC's leaf of the 32 bytes of a leaf of the log of updates.
//!
//! One leaf of the log of updates binds all before it, since the forecast in it has size and root of the log just before.
//! So whoever knows that one leaf is in both trees knows that they agree up to there.

use holdfast_crypto::Digest;
pub use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::log_tree::TreeHash;
use sha2::{Digest as _, Sha256};

/// How the tree is hashed.
pub const CHECKPOINTS: TreeHash = TreeHash(parent);

/// The leaf for a leaf of the log of updates.
pub fn leaf(update: Digest) -> Digest {
    Digest(Sha256::new().chain_update([0]).chain_update(update.0).finalize().into())
}

fn parent(left: Digest, right: Digest) -> Digest {
    Digest(Sha256::new().chain_update([1]).chain_update(left.0).chain_update(right.0).finalize().into())
}

/// A digest of a log's origin, to name a file after.
pub fn name_of(origin: &str) -> Digest {
    Digest(Sha256::digest(origin.as_bytes()).into())
}
