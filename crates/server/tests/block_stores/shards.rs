//! Several block servers that share the shards of one bucket: an etcd in memory, a bucket in memory for each store,
//! real sockets.

use super::fixture::{Running, SERVER, config, run};
use super::{ANNA, chunk, found};
use crate::common::key;
use holdfast_crypto::Digest;
use holdfast_etcd::fake::{Delivery, Fake};
use holdfast_rpc::BlocksAddress;
use holdfast_server::{
    BlockServer, BlockServerConfig, BlockStore, Candidate, RemoteBlocks, RemoteBlocksSettings,
};
use holdfast_testing::{eventually, free_port};
use holdfast_tiered::simulated::Simulated;
use holdfast_tiered::{BucketAddress, Durability};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The number of shards in these tests.
const SHARDS: u16 = 4;

/// Block servers with one key and one bucket.
pub struct Cluster {
    folder: PathBuf,
    etcd: Fake,
    buckets: Arc<Mutex<HashMap<String, Simulated>>>,
    servers: Vec<Member>,
}

struct Member {
    data: PathBuf,
    address: Option<BlocksAddress>,
    running: Option<Running>,
    /// Whether this block server cannot reach etcd.
    is_cut_off: Arc<AtomicBool>,
    /// The number of requests that it has sent to etcd.
    requests: Arc<AtomicUsize>,
}

impl Member {
    fn new(data: PathBuf) -> Member {
        Member { data, address: None, running: None, is_cut_off: Arc::default(), requests: Arc::default() }
    }
}

impl Cluster {
    pub fn new(folder: &Path, servers: usize) -> Cluster {
        let (etcd, buckets) = (Fake::default(), Arc::default());
        let mut cluster = Cluster { folder: folder.to_owned(), etcd, buckets, servers: Vec::new() };
        for _ in 0..servers {
            cluster.add();
        }
        cluster
    }

    fn add(&mut self) -> usize {
        let number = self.servers.len();
        let data = self.folder.join(format!("blocks{number}"));
        std::fs::create_dir_all(&data).unwrap();
        if number > 0 {
            let key = self.folder.join("blocks0/server-key");
            std::fs::copy(key, data.join("server-key")).unwrap();
        }
        self.servers.push(Member::new(data));
        self.start(number);
        number
    }

    fn config(&self, number: usize, shards: Option<u16>) -> Result<BlockServerConfig, String> {
        let member = &self.servers[number];
        let listen = || format!("127.0.0.1:{}", free_port());
        let listen = member.address.as_ref().map_or_else(listen, |at| at.server.to_string());
        let address: BucketAddress = "s3://bucket/a/prefix".parse().unwrap();
        let mut config = BlockServerConfig {
            blocks: Some(BucketAddress { durability: Durability::Object, ..address }),
            ..config(&member.data, listen.parse().unwrap(), &[key(SERVER).public()])
        };
        let (cut_off, requests) = (member.is_cut_off.clone(), member.requests.clone());
        let fates = move || {
            requests.fetch_add(1, SeqCst);
            if cut_off.load(SeqCst) { Delivery::RequestLost } else { Delivery::Answered }
        };
        let kv = Box::new(self.etcd.connection(fates));
        let candidate = Candidate::over(&config.data, config.blocks.as_ref(), kv, "test", shards)
            .map_err(|error| error.to_string())?;
        config.candidate = Some(Arc::new(candidate));
        Ok(config)
    }

    fn open(&self, number: usize, shards: Option<u16>) -> Result<BlockServer, String> {
        let buckets = self.buckets.clone();
        let bucket = move |address: &BucketAddress| -> Arc<dyn holdfast_tiered::Bucket> {
            Arc::new(buckets.lock().entry(address.prefix.clone()).or_default().clone())
        };
        BlockServer::open_over(self.config(number, shards)?, bucket).map_err(|error| error.to_string())
    }

    fn start(&mut self, number: usize) {
        let server = self.open(number, Some(SHARDS)).unwrap();
        let member = &mut self.servers[number];
        member.address = Some(server.address());
        member.running = Some(run(server));
    }

    fn stop(&mut self, number: usize) {
        drop(self.servers[number].running.take());
    }

    /// Ends all block servers in order, and starts them again.
    pub fn restart(&mut self) {
        (0..self.servers.len()).for_each(|number| self.stop(number));
        (0..self.servers.len()).for_each(|number| self.start(number));
    }

    fn address(&self) -> BlocksAddress {
        let mut addresses = self.servers.iter().filter_map(|member| member.address.clone());
        let first = addresses.next().unwrap();
        BlocksAddress { others: addresses.map(|address| address.server).collect(), ..first }
    }

    /// Opens the store as a consistency server with a data directory does.
    pub fn remote(&self, data: &Path) -> Result<RemoteBlocks, String> {
        std::fs::create_dir_all(data).unwrap();
        let settings =
            RemoteBlocksSettings { address: Some(self.address()), data, key: key(SERVER), anew: false };
        let store =
            RemoteBlocks::open(settings).map_err(|error| error.to_string())?.expect("an address was given");
        Ok(store.with_patience(holdfast_testing::PATIENCE))
    }

    /// The number of shards that each block server has, as etcd says.
    fn shards_of_each(&self) -> Vec<usize> {
        let mut instances: HashMap<Vec<u8>, usize> = HashMap::new();
        let get = holdfast_etcd::Get::all(holdfast_etcd::Keys::below("test/blocks/bucket/a%prefix/seat/"));
        for pair in holdfast_etcd::Kv::get(&self.etcd, &get).unwrap() {
            *instances.entry(pair.value).or_default() += 1;
        }
        let mut counts: Vec<usize> = instances.into_values().collect();
        counts.sort_unstable();
        counts
    }
}

fn file_system(number: u8) -> Digest {
    Digest([number; 32])
}

/// Stores something for each file system.
fn put(store: &dyn BlockStore, round: u32) {
    for number in 0..16 {
        let block = chunk(round * 100 + u32::from(number), 2000);
        store.store(file_system(number), ANNA, vec![block], None, 0).unwrap();
    }
}

/// Whether the blocks of all these rounds are there, each for its own file system only.
fn check(store: &dyn BlockStore, rounds: u32) {
    for round in 0..rounds {
        for number in 0..16 {
            let (address, block) = chunk(round * 100 + u32::from(number), 2000);
            assert_eq!(found(store, file_system(number), address), Some(block), "round {round}, {number}");
            assert_eq!(found(store, file_system(number ^ 1), address), None);
        }
    }
}

/// Proves: the shards are shared evenly between the block servers that run, while somebody stores. When one is added,
/// stopped, or cut off from etcd, others get its shards, and all that was acknowledged is there. A server finds each
/// shard by itself, has no doubt about any, and one collection drops what nothing refers to.
#[test]
fn stores_are_shared_and_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(folder.path(), 1);
    eventually("one has all", || cluster.shards_of_each() == [4]);
    cluster.add();
    eventually("each has half", || cluster.shards_of_each() == [2, 2]);
    let store = cluster.remote(&folder.path().join("data")).unwrap();
    put(&store, 0);
    check(&store, 1);

    cluster.stop(0);
    put(&store, 1);
    assert_eq!(cluster.shards_of_each(), [4]);
    check(&store, 2);
    cluster.start(0);
    eventually("each has half again", || cluster.shards_of_each() == [2, 2]);
    put(&store, 2);
    check(&store, 3);

    // It does not learn of that, and goes on until it is to acknowledge something.
    cluster.servers[0].is_cut_off.store(true, SeqCst);
    for _ in 0..4 {
        cluster.etcd.pass(Duration::from_secs(1));
        // Each time it looks it renews its lease, and asks for something else.
        let requests = || cluster.servers[1].requests.load(SeqCst);
        let before = requests();
        eventually("the other renews its lease", || requests() >= before + 4);
    }
    eventually("the other has all", || cluster.shards_of_each() == [4]);
    put(&store, 3);
    check(&store, 4);
    cluster.servers[0].is_cut_off.store(false, SeqCst);
    eventually("each has half once more", || cluster.shards_of_each() == [2, 2]);
    put(&store, 4);
    check(&store, 5);

    let status = store.status().unwrap();
    assert!(status.reached && status.doubt.is_none(), "{status:?}");
    let figures = store.figures().unwrap();
    assert_eq!(figures.blocks, 5 * 16);
    let fs = file_system(3);
    let dropped = store.collect(fs, &[chunk(3, 2000).0], &Default::default(), 10).unwrap().dropped;
    assert_eq!(dropped, 4);
    assert_eq!(found(&store, fs, chunk(103, 2000).0), None);
    assert_eq!(store.figures().unwrap().blocks, 5 * 16 - 4);
    assert_eq!(store.scrub(&mut |_, _| {}).unwrap().bad_count, 0);

    // What was remembered is still valid at the next start.
    drop(store);
    let store = cluster.remote(&folder.path().join("data")).unwrap();
    assert_eq!(store.figures().unwrap().blocks, 5 * 16 - 4);
}

/// Proves: these are refused in words: another number of shards, a bucket with blocks that are not in shards, a block
/// server with another key, and a server whose blocks were not in shards.
#[test]
fn wrong_settings_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::new(folder.path(), 1);
    eventually("one has all", || cluster.shards_of_each() == [4]);
    let data = folder.path().join("blocks1");
    std::fs::create_dir(&data).unwrap();
    cluster.servers.push(Member::new(data.clone()));
    let refused = |cluster: &Cluster, shards| cluster.open(1, shards).err().expect("it is refused");
    let other_key = refused(&cluster, Some(SHARDS));
    assert!(other_key.contains("copy the file server-key from there"), "{other_key}");
    std::fs::copy(folder.path().join("blocks0/server-key"), data.join("server-key")).unwrap();
    let other_count = refused(&cluster, Some(2));
    assert!(other_count.contains("in 4 shards, not 2"), "{other_count}");

    // etcd has lost the number; the bucket has not.
    cluster.stop(0);
    cluster.etcd = Fake::default();
    for shards in [None, Some(2)] {
        let forgotten = refused(&cluster, shards);
        assert!(forgotten.contains("--shards 4"), "{forgotten}");
    }
    // The refused starts put nothing into etcd.
    cluster.start(1);
    eventually("it has all", || cluster.shards_of_each() == [4]);
    cluster.stop(1);

    let (one_piece, server) = (folder.path().join("one"), key(SERVER).public());
    *cluster.buckets.lock() = HashMap::new();
    let bucket = Simulated::new();
    let running =
        super::fixture::start_on_bucket(&one_piece, super::fixture::free(), &bucket, false).unwrap();
    let data = folder.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let settings = RemoteBlocksSettings {
        address: Some(running.address.clone()),
        data: &data,
        key: key(SERVER),
        anew: false,
    };
    drop(RemoteBlocks::open(settings).unwrap().unwrap());
    drop(running);
    cluster.buckets.lock().insert(format!("a/prefix/{server}/"), bucket);
    cluster.etcd = Fake::default();
    let divided = refused(&cluster, Some(SHARDS));
    assert!(divided.contains("in one piece"), "{divided}");
    *cluster.buckets.lock() = HashMap::new();
    cluster.etcd = Fake::default();
    cluster.start(1);
    let was_one = cluster.remote(&data).err().expect("it is refused");
    assert!(was_one.contains("in 4 shards, and had them in one piece"), "{was_one}");
}
