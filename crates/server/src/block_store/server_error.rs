//! Why a block server does not start.

use super::open_error::BlocksOpenError;
use crate::error::OpenError;
use holdfast_crypto::PublicKey;
use holdfast_etcd::{AccessError, EtcdError};
use holdfast_store::StoreError;
use holdfast_tiered::BucketError;
use std::io;
use std::path::PathBuf;

/// Why a block server did not start.
#[derive(Debug, thiserror::Error)]
pub enum BlockServerError {
    /// The data directory cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another block server uses the data directory.
    #[error("{path} is in use by another block server", path = .0.display())]
    InUse(PathBuf),
    /// The note about the bucket makes no sense, or cannot be written.
    #[error(transparent)]
    Bucket(#[from] BlocksOpenError),
    /// The block server cannot join a group.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// A store of a consistency server in a bucket cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    InBucket {
        /// The consistency server's key.
        server: PublicKey,
        /// The reason.
        why: Box<ServedStoreError>,
    },
    /// A store of a consistency server cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    Store {
        /// The consistency server's key.
        server: PublicKey,
        /// The reason.
        why: Box<ServedStoreError>,
    },
}

/// Why a block server cannot open the store of a consistency server.
#[derive(Debug, thiserror::Error)]
pub enum ServedStoreError {
    /// Medium: a file operation failed.
    #[error("{directory}: {error}", directory = .directory.display())]
    Io {
        /// The store's directory.
        directory: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Operator: the blocks are in another kind of store.
    #[error("{path} is there, so its blocks are at another kind of place; this one is for a new data directory", path = .0.display())]
    OtherKind(PathBuf),
    /// The log cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store in the bucket cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The number of shards could not be read from the bucket.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Operator: blocks that are in one piece cannot be divided.
    #[error(
        "{bucket} has them in one piece, which cannot be divided: shards are for a bucket, or a prefix, that is new"
    )]
    Undivided {
        /// The bucket.
        bucket: String,
    },
    /// Operator: the bucket has another number of shards.
    #[error("{bucket} has them in {there} shards: start with --stand-by, and --shards {there}")]
    OtherShards {
        /// The bucket.
        bucket: String,
        /// How many there are.
        there: String,
    },
}

/// Why a block server cannot join a group.
#[derive(Debug, thiserror::Error)]
pub enum ElectionError {
    /// Operator: other block servers of the group would not find what this one has acknowledged.
    #[error(
        "block servers stand by for each other only with `--blocks s3://...&durability=object`: what is acknowledged must be \
         where the next one finds it"
    )]
    NotInBucket,
    /// Operator: the number of shards is out of range.
    #[error("there are 1 to {max} shards")]
    ShardCount {
        /// The most there can be.
        max: u16,
    },
    /// The system has no randomness.
    #[error("no randomness: {0}")]
    Random(getrandom::Error),
    /// Operator: the configuration of etcd cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// etcd cannot be reached, or refuses.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// Operator: the keys differ, so consistency servers would not accept this block server in place of the
    /// other.
    #[error(
        "the block server on {host} has the key {key}, and this one {own}, so servers would not take this one for the other: \
         copy the file server-key from there, mode 0600"
    )]
    OtherKey {
        /// The host of the other.
        host: String,
        /// The key of the other.
        key: String,
        /// The key of this one.
        own: String,
    },
    /// The value in etcd makes no sense.
    #[error("etcd's key {0} is no number of shards")]
    NoNumber(String),
    /// Operator: etcd has another number of shards.
    #[error(
        "the blocks in this bucket are in {there} shards, not {wanted}; how many is decided when the first block server starts, \
         and stays"
    )]
    OtherShards {
        /// How many there are.
        there: u16,
        /// How many the operator wants.
        wanted: u16,
    },
    /// Another block server wrote a different number of shards first.
    #[error("another block server has just begun with {there} shards, not {wanted}")]
    BegunOtherwise {
        /// How many it has begun with.
        there: u16,
        /// How many this one wants.
        wanted: u16,
    },
}
