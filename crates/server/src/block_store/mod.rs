//! Where a server's blocks are: in the same log as its order or in a bucket of an object store (both
//! [`LocalBlocks`]), or at a block server on another machine ([`RemoteBlocks`]; [`BlockServer`] serves them
//! there, from its disk or from a bucket). SUNDR section 5 divides the server into the same two programs.
//!
//! The contract of a [`BlockStore`], which `tests/block_stores` checks for each implementation:
//! - An ordering record that is appended after a call has returned never becomes durable before the effect of
//!   that call: blocks first, then the record that names them. A log with both has them in this sequence,
//!   under one sync. [`RemoteBlocks`] returns when the other machine has acknowledged. A store in a bucket
//!   returns when the local disk has it, or the bucket, as configured.
//! - A block is found only by a file system that stored it. A damaged block is distinguished from an absent
//!   one, and wrong bytes are never returned.
//! - Blocks are dropped only by a collection, which is given all roots, or by a device that takes back what
//!   it stored lately. A collection drops nothing that was stored or relied on since it began, or within the
//!   store's window.
//! - When a call fails, its effect may or may not have happened. Every call may be repeated.

mod bucket;
mod division;
mod election;
mod interface;
mod local;
mod location;
mod note;
mod open_error;
mod remote;
mod seats;
mod server_config;
mod server_error;
mod serving;
mod store_server;

pub use bucket::BucketSettings;
pub use election::Candidate;
pub use holdfast_protocol::block_server::BucketStatus;
pub use holdfast_tiered::BucketAddress;
pub use interface::{BlockStore, BlockStoreError, BlockStoreStatus, ScrubSummary};
pub(crate) use interface::{load_one, sound, stored_bytes};
pub use local::LocalBlocks;
pub(crate) use local::summary_of;
#[cfg(feature = "convert")]
pub(crate) use location::machine_name;
pub use location::{BlocksLocation, LocationError, bucket_address};
pub(crate) use note::FILES;
pub use open_error::BlocksOpenError;
pub(crate) use remote::files_of_shards;
pub use remote::{RemoteBlocks, RemoteBlocksSettings};
pub use server_config::BlockServerConfig;
pub use server_error::{BlockServerError, ElectionError, ServedStoreError};
pub use serving::BlockServer;

/// The block server or bucket that has the blocks of the server with this data directory; `None` if they are
/// in the data directory.
pub fn blocks_elsewhere(data: &std::path::Path) -> Option<BlocksLocation> {
    let bucket = bucket::remembered(data).ok().flatten().map(BlocksLocation::Bucket);
    bucket.or_else(|| Some(BlocksLocation::Server(note::Note::read(data).ok().flatten()?.address.clone())))
}
