//! Where a server's blocks are: in the same log as its order, or in a bucket of an object store (both [`LocalBlocks`]),
//! or at a block server on another machine ([`RemoteBlocks`], served there by [`BlockServer`], which has them on its
//! disk or in a bucket; SUNDR section 5 has the two as programs of their own).
//!
//! The contract of a [`BlockStore`], which `tests/block_stores` checks for each of them:
//! - an ordering record that is appended after a call has returned never becomes durable before what the call did: blocks
//!   first, then the record that names them. A log with both has them in this order, under one sync; [`RemoteBlocks`] returns
//!   when the other machine has promised it, a store in a bucket when the disk here has it, or the bucket, as was promised;
//! - a block is found only by a file system that stored it; one that is damaged is told from one that is absent, and wrong
//!   bytes are never given;
//! - nothing is dropped but by a collection, which is given all roots, and by whoever takes back what they stored lately.
//!   A collection drops nothing that was stored or relied on since it began, or within the store's window;
//! - when a call fails, what it would have done may be done or not; every call may be made again.

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

/// The block server or bucket that has the blocks of the server with this data directory; `None`: they are in it.
pub fn blocks_elsewhere(data: &std::path::Path) -> Option<BlocksLocation> {
    let bucket = bucket::remembered(data).ok().flatten().map(BlocksLocation::Bucket);
    bucket.or_else(|| Some(BlocksLocation::Server(note::Note::read(data).ok().flatten()?.address.clone())))
}
