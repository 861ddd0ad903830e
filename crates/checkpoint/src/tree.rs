//! The second tree of the log of updates, which existing witnesses verify: the same leaves and shape, hashed
//! by RFC 6962 with SHA-256. Its leaf is the RFC's leaf of the 32 bytes of a leaf of the log of updates.
//!
//! One leaf of the log of updates binds all before it, since its forecast contains size and root of the log
//! just before. So if one leaf is known to be in both trees, they agree up to it.

use holdfast_crypto::Digest;
pub use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::log_tree::TreeHash;
use sha2::{Digest as _, Sha256};

/// The hash of the second tree.
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
