//! The settings of a block server.

use super::election::Candidate;
use holdfast_crypto::PublicKey;
use holdfast_store::StoreConfig;
use holdfast_tiered::BucketAddress;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a block server.
#[derive(Clone, Debug)]
pub struct BlockServerConfig {
    /// The data directory; created when missing. Only one block server at a time can use it.
    pub data: PathBuf,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Keys of the consistency servers that are served.
    pub allowed: BTreeSet<PublicKey>,
    /// For how long after storing a block its owner may take it back.
    pub window: Duration,
    /// How long new blocks are safe from collection.
    pub gc_window: Duration,
    /// How long deleted blocks are kept as bases for the compression of later ones.
    pub keep_deleted: Duration,
    /// Most bytes of such deleted blocks; `None`: no limit.
    pub keep_deleted_bytes: Option<u64>,
    /// The bucket that has the blocks; `None`: the remembered one, if there is one, or else the data
    /// directory.
    pub blocks: Option<BucketAddress>,
    /// Whether the operator accepts what is in the bucket, whatever was there before.
    pub blocks_anew: bool,
    /// Set if the block server shares the stores of the bucket with others. It then takes over stores that
    /// another block server of the group has taken over since.
    pub candidate: Option<Arc<Candidate>>,
}

impl BlockServerConfig {
    /// The usual settings.
    pub fn new(
        data: impl Into<PathBuf>,
        listen: SocketAddr,
        allowed: BTreeSet<PublicKey>,
    ) -> BlockServerConfig {
        let usual = StoreConfig::default();
        BlockServerConfig {
            data: data.into(),
            listen,
            allowed,
            window: usual.window,
            gc_window: usual.gc_window,
            keep_deleted: usual.keep_deleted,
            keep_deleted_bytes: usual.keep_deleted_bytes,
            blocks: None,
            blocks_anew: false,
            candidate: None,
        }
    }
}
