//! A store of any kind, in a folder of its own, that can be stopped, copied and started again.

use super::shards::Cluster;
use crate::common::key;
use holdfast_crypto::{Digest, PublicKey};
use holdfast_log::LocalStorage;
use holdfast_rpc::BlocksAddress;
use holdfast_server::{
    BlockServer, BlockServerConfig, BlockStore, BucketSettings, LocalBlocks, RemoteBlocks,
    RemoteBlocksSettings,
};
use holdfast_store::StoreConfig;
use holdfast_tiered::simulated::Simulated;
use holdfast_tiered::{BucketAddress, Durability};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// The file system of these tests.
pub const FS: Digest = Digest([4; 32]);
/// The consistency server's key.
pub const SERVER: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreKind {
    Local,
    Remote,
    /// In a bucket; a block is acknowledged when the local disk has it.
    Bucket,
    /// In a bucket; a block is acknowledged when the bucket has it.
    BucketAtOnce,
    /// At a block server with a bucket; a block is acknowledged when the bucket has it.
    RemoteBucket,
    /// At two block servers that share the shards of a bucket.
    Shards,
}

/// An address at which a server can be started again and again.
pub fn free() -> SocketAddr {
    ([127, 0, 0, 1], holdfast_testing::free_port()).into()
}

/// Every kind of store.
pub const ALL: [StoreKind; 6] = [
    StoreKind::Local,
    StoreKind::Remote,
    StoreKind::Bucket,
    StoreKind::BucketAtOnce,
    StoreKind::RemoteBucket,
    StoreKind::Shards,
];

/// A block server in a thread of its own; dropping it ends it in order.
pub struct Running {
    pub address: BlocksAddress,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Starts a block server with short windows: blocks are never young, and no garbage is retained.
pub fn start(data: &Path, listen: SocketAddr, allowed: &[PublicKey]) -> Running {
    run(BlockServer::open(config(data, listen, allowed)).unwrap())
}

pub fn config(data: &Path, listen: SocketAddr, allowed: &[PublicKey]) -> BlockServerConfig {
    BlockServerConfig {
        gc_window: Duration::ZERO,
        keep_deleted: Duration::ZERO,
        ..BlockServerConfig::new(data, listen, allowed.iter().copied().collect())
    }
}

/// As [`Running::start`], with the blocks in a bucket.
pub fn start_on_bucket(
    data: &Path,
    listen: SocketAddr,
    bucket: &Simulated,
    anew: bool,
) -> Result<Running, String> {
    let address: BucketAddress = "s3://bucket/prefix".parse().unwrap();
    let config = BlockServerConfig {
        blocks: Some(BucketAddress { durability: Durability::Object, ..address }),
        blocks_anew: anew,
        ..config(data, listen, &[key(SERVER).public()])
    };
    let server = BlockServer::open_over(config, {
        let bucket = bucket.clone();
        move |_| Arc::new(bucket.clone())
    });
    Ok(run(server.map_err(|error| error.to_string())?))
}

pub fn run(server: BlockServer) -> Running {
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    // A block server whose store was taken over ends by itself, with the reason.
    let run = move || drop(server.run(async { drop(stopped.await) }));
    Running { address, stop: Some(stop), thread: Some(std::thread::spawn(run)) }
}

impl Running {
    /// The address on which it listens.
    pub fn socket(&self) -> SocketAddr {
        format!("{}:{}", self.address.server.host, self.address.server.port).parse().unwrap()
    }

    /// Whether the block server has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().unwrap().is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().unwrap().join();
    }
}

pub struct StoreFixture {
    kind: StoreKind,
    pub bucket: Simulated,
    pub folder: tempfile::TempDir,
    pub running: Option<Running>,
    cluster: Option<Cluster>,
}

impl StoreFixture {
    pub fn new(kind: StoreKind) -> StoreFixture {
        let folder = tempfile::tempdir().unwrap();
        let cluster = (kind == StoreKind::Shards).then(|| Cluster::new(folder.path(), 2));
        let mut fixture = StoreFixture { kind, bucket: Simulated::new(), folder, running: None, cluster };
        std::fs::create_dir_all(fixture.data()).unwrap();
        if matches!(kind, StoreKind::Remote | StoreKind::RemoteBucket) {
            fixture.start_on(free());
        }
        fixture
    }

    /// The block server's data directory.
    pub fn blocks(&self) -> PathBuf {
        self.folder.path().join("blocks")
    }

    /// The consistency server's data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn start_on(&mut self, listen: SocketAddr) {
        self.running = Some(match self.kind {
            StoreKind::RemoteBucket => start_on_bucket(&self.blocks(), listen, &self.bucket, false).unwrap(),
            _ => start(&self.blocks(), listen, &[key(SERVER).public()]),
        });
    }

    /// Ends the block server, changes its directory as `change` says, and starts it again at the same address.
    pub fn restart_after(&mut self, change: impl FnOnce(&Path)) {
        let listen = self.running.take().map(|running| running.socket());
        change(&self.blocks());
        if let Some(listen) = listen {
            self.start_on(listen);
        }
    }

    pub fn restart(&mut self) {
        self.cluster.iter_mut().for_each(Cluster::restart);
        self.restart_after(|_| {});
    }

    pub fn address(&self) -> BlocksAddress {
        self.running.as_ref().unwrap().address.clone()
    }

    /// Opens the store. A local one is open once at a time.
    pub fn store(&self) -> Arc<dyn BlockStore> {
        match self.kind {
            StoreKind::Local => {
                let storage = Arc::new(LocalStorage::open(self.data()).unwrap());
                let config = StoreConfig {
                    gc_window: Duration::ZERO,
                    keep_deleted: Duration::ZERO,
                    ..StoreConfig::default()
                };
                Arc::new(LocalBlocks::new(holdfast_store::LogStore::open(storage, config).unwrap()))
            }
            StoreKind::Remote | StoreKind::RemoteBucket => Arc::new(self.remote(SERVER, false).unwrap()),
            StoreKind::Shards => {
                let cluster = self.cluster.as_ref().expect("there is one");
                Arc::new(cluster.remote(&self.data()).unwrap())
            }
            StoreKind::Bucket => Arc::new(self.objects(&self.data(), Durability::Local, false).unwrap()),
            StoreKind::BucketAtOnce => {
                Arc::new(self.objects(&self.data(), Durability::Object, false).unwrap())
            }
        }
    }

    /// Opens the store in the bucket, with a server's directory.
    pub fn objects(&self, data: &Path, durability: Durability, anew: bool) -> Result<LocalBlocks, String> {
        let address: BucketAddress = "s3://bucket/prefix".parse().unwrap();
        let address = BucketAddress { durability, ..address };
        std::fs::create_dir_all(data).unwrap();
        let store = StoreConfig {
            gc_window: Duration::ZERO,
            keep_deleted: Duration::ZERO,
            segment_bytes: 256 << 10,
            ..StoreConfig::default()
        };
        let settings = BucketSettings { address: None, data, store, anew, takes_over: false, patience: None };
        LocalBlocks::over_bucket(Arc::new(self.bucket.clone()), &address, &settings)
            .map_err(|error| error.to_string())
    }

    /// Opens the store at the block server, as a consistency server with this key.
    pub fn remote(&self, seed: u8, anew: bool) -> Result<RemoteBlocks, String> {
        let (address, data) = (Some(self.address()), self.data());
        let settings = RemoteBlocksSettings { address, data: &data, key: key(seed), anew };
        let store =
            RemoteBlocks::open(settings).map_err(|error| error.to_string())?.expect("an address was given");
        Ok(store.with_patience(holdfast_testing::PATIENCE))
    }
}

/// Copies a directory.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}
