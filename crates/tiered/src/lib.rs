//! A store's segments as objects in a bucket of an S3-compatible object store, with a log and a cache in
//! front on a local disk ([`Tiered`], a [`holdfast_log::Storage`]).
//!
//! Files that are still being written (the active segment, the index) are local. A sealed segment becomes one
//! immutable object under a name that is never used again. Then its local file may be removed, and ranges of
//! it are read from the bucket.
//!
//! Invariants:
//! - Nothing in the bucket is ever overwritten except the owner's note, and a head by the start that it
//!   belongs to. So no delayed or repeated request does harm.
//! - A segment's local file is removed only when the bucket has confirmed that it has the whole object.
//! - An object is removed only when nothing lists it any more, neither the local catalogue nor the newest
//!   manifest, and everything that was moved out of it is in the bucket too.
//! - A reply that the bucket cannot be reached, is full or refuses is never taken for "it does not exist";
//!   and "it does not exist" is never taken for "nothing was stored".
//! - Credentials are in no message, no file of ours and no URL.
//!
//! The bucket is trusted no more than a disk: every record is verified when it is read, and clients verify
//! every block again. `docs/growing.md` describes the layout, the promises and what happens when something
//! fails.
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
