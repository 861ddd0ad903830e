//! Why the blocks of a server are not opened.

use super::interface::BlockStoreError;
use holdfast_rpc::RpcError;
use holdfast_store::StoreError;
use holdfast_tiered::TieredError;
use std::io;
use std::path::{Path, PathBuf};

/// Why the blocks of a server cannot be opened where they are.
#[derive(Debug, thiserror::Error)]
pub enum BlocksOpenError {
    /// The note about the block server makes no sense, or cannot be read.
    #[error("what is known of the block store ({path}): {error}", path = .path.display())]
    Note {
        /// The data directory.
        path: PathBuf,
        /// The system's error, or what is wrong.
        error: io::Error,
    },
    /// The note about the bucket makes no sense, or cannot be read.
    #[error("what is known of the bucket ({path}): {error}", path = .path.display())]
    BucketNote {
        /// The data directory.
        path: PathBuf,
        /// The system's error, or what is wrong.
        error: io::Error,
    },
    /// The note of where the blocks are cannot be written.
    #[error("writing to {path}: {error}", path = .path.display())]
    Writing {
        /// The data directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Operator: the blocks are in another kind of store than the configuration says.
    #[error("the blocks of {data} are at {place}; another kind of place is for a new data directory", data = .data.display())]
    OtherKind {
        /// The data directory.
        data: PathBuf,
        /// Where the blocks are.
        place: String,
    },
    /// The block server cannot be reached, or has another key.
    #[error("the block store {address}: {error}")]
    Connect {
        /// The address of the block server.
        address: String,
        /// Why there is no connection.
        error: RpcError,
    },
    /// The block servers can be reached, but none of them has the store now.
    #[error("the block store {address}: {NOBODY}")]
    Nobody {
        /// The address of the block servers.
        address: String,
    },
    /// The block server does not know this server's key.
    #[error(
        "the block store {address} does not serve this server: {why}. There, start holdfast server blocks with --allow '{own}'"
    )]
    NotAllowed {
        /// The address of the block server.
        address: String,
        /// The reason that it gave.
        why: String,
        /// This server's public key.
        own: String,
    },
    /// The blocks are divided in another way than before.
    #[error(
        "the block store {address} has the blocks {}, and had them {}: it is another one. --blocks-anew accepts it as it is",
        division(*.now), division(*.before)
    )]
    OtherShards {
        /// The address of the block server.
        address: String,
        /// How many shards there are; `None`: the blocks are in one piece.
        now: Option<u16>,
        /// How many there were.
        before: Option<u16>,
    },
    /// The block server cannot be reached, or failed.
    #[error(transparent)]
    BlockStore(#[from] BlockStoreError),
    /// The bucket, or the files on the local disk that belong to it.
    #[error(transparent)]
    Bucket(#[from] TieredError),
    /// The log in the bucket cannot be opened.
    #[error("the blocks of {place}: {error}")]
    Log {
        /// The bucket and prefix.
        place: String,
        /// The log's error.
        error: StoreError,
    },
}

/// The explanation if each block server replies that another one has the store.
pub(super) const NOBODY: &str =
    "no block server has taken these blocks over yet, or one that the address does not name has them";

fn division(shards: Option<u16>) -> String {
    match shards {
        Some(shards) => format!("in {shards} shards"),
        None => "in one piece".to_owned(),
    }
}

impl BlocksOpenError {
    /// For use with `map_err`: writing to a folder failed.
    pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> BlocksOpenError {
        move |error| BlocksOpenError::Writing { path: path.to_owned(), error }
    }
}
