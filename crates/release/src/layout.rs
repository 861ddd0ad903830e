//! The names of a release's files, in a directory, at a web server or in a bucket.
//!
//! ```text
//! root              the signed record, renewed often; the only file, with `revoked`, that ever changes
//! keys/N            key set number N, from 1 on
//! records/SEQUENCE  the record of each release that is kept, in decimal
//! packs/DIGEST      blocks, one after the other
//! index/DIGEST      which block is where: hints, not covered by the signature
//! hints/DIGEST      which blocks a path needs: hints for `holdfast release serve`
//! revoked           a revocation certificate, if the release is revoked
//! ```
//!
//! Files named by a digest never change and can be cached for ever.

use holdfast_crypto::Digest;

/// The name of the file with the signed record.
pub const ROOT: &str = "root";
/// The name of the file with the revocation certificate.
pub const REVOKED: &str = "revoked";

/// The name of the file with a key set.
pub fn keys(number: u64) -> String {
    format!("keys/{number}")
}

/// The name of the file with a retained record.
pub fn record(sequence: u64) -> String {
    format!("records/{sequence}")
}

/// The name of a pack.
pub fn pack(digest: &Digest) -> String {
    format!("packs/{digest}")
}

/// The name of an index.
pub fn index(digest: &Digest) -> String {
    format!("index/{digest}")
}

/// The name of a hints file.
pub fn hints(digest: &Digest) -> String {
    format!("hints/{digest}")
}
