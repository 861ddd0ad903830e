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
    /// The data directory; created when missing. One block server at a time.
    pub data: PathBuf,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Keys of the consistency servers that are served.
    pub allowed: BTreeSet<PublicKey>,
    /// How long after its first STORE a block may be given up.
    pub window: Duration,
    /// How long new blocks are safe from collection.
    pub gc_window: Duration,
    /// How long deleted blocks are kept as bases for the compression of later ones.
    pub keep_deleted: Duration,
    /// How many bytes of them at most.
    pub keep_deleted_bytes: Option<u64>,
    /// The bucket that has the blocks; `None`: the one of last time, if there was one, or else they are in the data directory.
    pub blocks: Option<BucketAddress>,
    /// The operator accepts what is in the bucket, whatever was there before.
    pub blocks_anew: bool,
    /// It shares the stores of the bucket with others: what another one has taken over since the last time is taken over
    /// from it.
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
