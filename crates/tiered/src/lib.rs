//! A store's segments as objects in a bucket of an S3-compatible object store, with a log and a cache in front on a local
//! disk ([`Tiered`], a [`holdfast_log::Storage`]).
//!
//! What is still written (the active segment, the index) is local. A segment that is sealed becomes one immutable object
//! under a name that is never used again; then its local file may go, and what is read of it comes back in ranges.
//!
//! Invariants:
//! - nothing in the bucket is ever overwritten but the owner's note, and a head by the start that it belongs to, so no delayed
//!   or repeated request does harm;
//! - a segment's local file goes only when the bucket has said that it has the object, whole;
//! - an object goes only when nothing lists it any more: neither the local catalogue nor the newest manifest, and all that
//!   was moved out of it is in the bucket too;
//! - an answer of the bucket that it cannot be reached, is full or refuses is never taken for "it is not there", and
//!   "it is not there" is never taken for "nothing was stored";
//! - credentials are in no message, no file of ours and no URL.
//!
//! The bucket is trusted with no more than a disk: every record is verified when it is read, and clients verify every block
//! again. `docs/growing.md` has the layout, the promises and what fails how.
#![forbid(unsafe_code)]

mod address;
mod adopt;
mod adopt_tails;
mod bucket;
mod catalogue;
mod claim;
mod credentials;
mod entry;
mod file;
mod names;
mod pages;
mod punch;
mod s3;
mod sending;
mod settings;
mod sign;
pub mod simulated;
mod storage;
mod tail;
mod tails;
mod tiered;
mod watched_bucket;
mod xml;

pub use address::{AddressError, BucketAddress, Durability, Location};
pub use bucket::{Bucket, BucketError, ListedObject, RequestCounts, RequestKind};
pub use credentials::{CredentialChain, Credentials, CredentialsError};
pub use s3::{S3, probe};
pub use settings::{Settings, TieredError};
pub use sign::{UnsignedRequest, sha256, signature_headers};
pub use tiered::{Tiered, TieredStatus};
pub use xml::refusal_of;
