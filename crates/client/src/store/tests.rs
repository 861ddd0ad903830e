//! Tests of the store with a server that has blocks in memory, counts requests and can be made to misbehave.

use super::*;
use holdfast_content::{BlockError, StoredBlock};
use holdfast_protocol::message::{ServerError, StoreHeader, Welcome};
use holdfast_testing::{eventually, noise};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const KEY: DigestKey = DigestKey::WELL_KNOWN;

#[derive(Default)]
struct TestServer {
    blocks: Mutex<HashMap<Digest, StoredBlock>>,
    retrieves: Mutex<Vec<usize>>,
    stores: Mutex<Vec<usize>>,
    at_once: AtomicUsize,
    at_once_max: AtomicUsize,
    down: AtomicBool,
    full: AtomicBool,
    slow: AtomicBool,
    /// The first request is answered once there is a second one.
    meets: AtomicBool,
}

impl TestServer {
    fn put(&self, block: &Block) -> Reference {
        self.blocks.lock().insert(block.reference().address, block.to_stored());
        block.reference()
    }
}

impl Remote for TestServer {
    fn call(&self, request: Request, _: Duration) -> Result<Response, RpcError> {
        if self.down.load(Relaxed) {
            return Err(RpcError::Unreachable { address: "host".into(), why: "down".into() });
        }
        let now = self.at_once.fetch_add(1, Relaxed) + 1;
        self.at_once_max.fetch_max(now, Relaxed);
        if self.slow.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(30));
        }
        if self.meets.load(Relaxed) {
            eventually("another request comes meanwhile", || self.at_once_max.load(Relaxed) > 1);
        }
        let answer = match request {
            Request::Retrieve(addresses) => {
                self.retrieves.lock().push(addresses.len());
                let blocks = self.blocks.lock();
                let header = || StoreHeader { owner: holdfast_content::DeviceId(0), stored_ns: 0 };
                let answer = addresses.into_iter().map(|address| {
                    let block = blocks.get(&address)?.clone();
                    Some((header(), AddressedBlock { address, block }))
                });
                Ok(Response::Blocks(answer.collect()))
            }
            Request::Store(_) if self.full.load(Relaxed) => Err(ServerError::NoSpace.into()),
            Request::Store(blocks) => {
                self.stores.lock().push(blocks.len());
                self.blocks.lock().extend(blocks.into_iter().map(|block| (block.address, block.block)));
                Ok(Response::Done)
            }
            Request::Dereference(addresses) => {
                let mut blocks = self.blocks.lock();
                let count = addresses.iter().filter(|address| blocks.remove(address).is_some()).count();
                Ok(Response::Dereferenced(count as u32))
            }
            other => panic!("{other:?}"),
        };
        self.at_once.fetch_sub(1, Relaxed);
        answer
    }

    fn welcome(&self) -> Option<Welcome> {
        None
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}

fn store_on(host: &Arc<TestServer>) -> (VerifiedStore, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let evidence = Arc::new(Evidence::new(directory.path().join("evidence"), Digest::ZERO));
    let config = StoreConfig {
        key: KEY,
        memory_bytes: 32 << 20,
        cache: None,
        evidence,
        deadline: Duration::from_millis(300),
        transfer: TransferConfig::default(),
    };
    (VerifiedStore::new(config, host.clone()), directory)
}

/// A block that does not compress.
fn block(number: u64, length: usize, references: Vec<Digest>) -> Block {
    Block::new(&KEY, BlockKind::Chunk, references, noise(number, length))
}

/// Proves: however many callers ask for one block at once, it is fetched once; afterwards it is available
/// here.
#[test]
fn one_flight_for_many() {
    let host = Arc::new(TestServer::default());
    host.slow.store(true, Relaxed);
    let (store, _directory) = store_on(&host);
    let reference = host.put(&block(1, 1000, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| store.fetch(&reference, BlockKind::Chunk).unwrap());
        }
    });
    store.fetch(&reference, BlockKind::Chunk).unwrap();
    assert_eq!(*host.retrieves.lock(), [1]);
}

/// Proves: a hint about many blocks becomes few requests, several in transit at once, and hinted blocks need
/// no further request.
#[test]
fn prefetch_in_parallel_batches() {
    let host = Arc::new(TestServer::default());
    host.meets.store(true, Relaxed);
    let (store, _directory) = store_on(&host);
    let references: Vec<_> = (0..600).map(|n| host.put(&block(n, 10_000, Vec::new()))).collect();
    let wanted: Vec<_> = references.iter().map(|reference| (*reference, BlockKind::Chunk)).collect();
    store.prefetch(&wanted);
    store.prefetch(&wanted);
    for reference in &references {
        store.fetch(reference, BlockKind::Chunk).unwrap();
    }
    let retrieves = host.retrieves.lock();
    assert_eq!(retrieves.iter().sum::<usize>(), 600);
    assert!(retrieves.len() <= 8, "{retrieves:?}");
    assert!(host.at_once_max.load(Relaxed) > 1);
    drop(retrieves);
    assert!(store.status().memory_bytes <= 32 << 20);
}

/// Proves: altered, missing and unreachable blocks give different errors; an altered block leaves evidence,
/// and the true one is accepted as soon as the server sends it.
#[test]
fn three_ways_to_fail() {
    let host = Arc::new(TestServer::default());
    let (store, _directory) = store_on(&host);
    let (good, bad) = (block(1, 5000, Vec::new()), block(2, 5000, Vec::new()));
    let reference = host.put(&good);
    host.blocks.lock().insert(reference.address, bad.to_stored());
    let error = store.fetch(&reference, BlockKind::Chunk).unwrap_err();
    assert!(
        matches!(error, SourceError::Altered(address, BlockError::WrongDigest { .. }) if address == reference.address)
    );
    let path = store.evidence_of(&reference.address).expect("evidence is kept");
    let kept = crate::evidence::read(&path).unwrap();
    assert!(matches!(kept.proof, crate::evidence::Proof::Block { served, .. } if served == bad.to_stored()));
    host.put(&good);
    assert_eq!(store.fetch(&reference, BlockKind::Chunk).unwrap().body(), good.body());
    assert!(matches!(store.fetch(&reference, BlockKind::Inode), Err(SourceError::Altered(..))));
    let absent = block(3, 100, Vec::new()).reference();
    assert_eq!(store.fetch(&absent, BlockKind::Chunk).unwrap_err(), SourceError::Missing(absent.address));
    host.down.store(true, Relaxed);
    assert!(matches!(store.fetch(&absent, BlockKind::Chunk), Err(SourceError::Unreachable(..))));
    // Blocks that are here stay readable.
    store.fetch(&reference, BlockKind::Chunk).unwrap();
}

/// Proves: a hint that comes with a reply is believed only if its data matches its address.
#[test]
fn hints_are_verified() {
    let host = Arc::new(TestServer::default());
    let (store, _directory) = store_on(&host);
    let (good, bad) = (block(1, 500, Vec::new()), block(2, 500, Vec::new()));
    let reference = host.put(&good);
    store.accept_hints(vec![AddressedBlock { address: reference.address, block: bad.to_stored() }]);
    assert_eq!(store.fetch(&reference, BlockKind::Chunk).unwrap().body(), good.body());
    assert_eq!(host.retrieves.lock().len(), 1);
    store.accept_hints(vec![AddressedBlock { address: bad.reference().address, block: bad.to_stored() }]);
    store.fetch(&bad.reference(), BlockKind::Chunk).unwrap();
    assert_eq!(host.retrieves.lock().len(), 1);
}

/// Proves: an operation carries exactly the unsent blocks that its roots reach, children first and roots
/// last; blocks without a holder are forgotten.
#[test]
fn collects_what_is_reached() {
    let host = Arc::new(TestServer::default());
    let (store, _directory) = store_on(&host);
    let leaf = block(1, 100, Vec::new());
    let known = host.put(&block(2, 100, Vec::new()));
    let node = block(3, 100, vec![leaf.reference().address, known.address]);
    let root = block(4, 100, vec![node.reference().address]);
    let stray = block(5, 100, Vec::new());
    for block in [&root, &stray, &node, &leaf] {
        assert!(store.hold(block.clone()));
    }
    let addresses = |roots: &[Digest]| -> Vec<Digest> {
        store.collect(roots.iter().copied()).iter().map(|block| block.reference().address).collect()
    };
    let [l, n, r] = [&leaf, &node, &root].map(|block| block.reference().address);
    assert_eq!(addresses(&[r]), [l, n, r]);
    assert_eq!(addresses(&[l, r]), [n, l, r]);
    store.fetch(&leaf.reference(), BlockKind::Chunk).unwrap();
    let attached = store.send_ahead(store.collect([r]), 1 << 20, 100, false).unwrap();
    assert!(host.stores.lock().is_empty());
    assert_eq!(attached.attached.blocks.len(), 3);
    // With little room the last blocks are sent with the operation, and the others are stored before.
    let attached = store.send_ahead(store.collect([r]), 1 << 20, 1, false).unwrap();
    assert_eq!(attached.attached.blocks[0].address, r);
    assert_eq!(*host.stores.lock(), [2]);
    store.acknowledge(&attached);
    assert!(addresses(&[r]).is_empty());
    // The server has them: making them again sends nothing.
    assert!(!store.hold(root.clone()));
    // Until they were given up.
    store.dereference(vec![r]).unwrap();
    assert!(store.hold(root.clone()));
    store.release(&r);
    store.release(&stray.reference().address);
    assert!(matches!(store.fetch(&stray.reference(), BlockKind::Chunk), Err(SourceError::Missing(_))));
}

/// Proves: a large upload is sent in bounded batches while it is being made, a small one stays here until its
/// operation; a full server is reported as such.
#[test]
fn uploads() {
    use holdfast_content::BlockSink;
    let host = Arc::new(TestServer::default());
    host.meets.store(true, Relaxed);
    let (store, _directory) = store_on(&host);
    let mut upload = store.upload();
    for number in 0..100 {
        upload.put(block(number, 100_000, Vec::new()));
    }
    let held = upload.finish().unwrap();
    assert_eq!(host.blocks.lock().len(), 100);
    assert!(host.stores.lock().iter().all(|blocks| *blocks <= 11), "{:?}", host.stores.lock());
    assert!(host.at_once_max.load(Relaxed) > 1 && host.at_once_max.load(Relaxed) <= STORED_AT_ONCE);
    drop(held);
    let small = block(1000, 1000, Vec::new());
    let mut upload = store.upload();
    upload.put(small.clone());
    let held = upload.finish().unwrap();
    assert!(!host.blocks.lock().contains_key(&small.reference().address));
    assert_eq!(store.collect([small.reference().address]).len(), 1);
    drop(held);
    assert!(store.collect([small.reference().address]).is_empty());
    host.full.store(true, Relaxed);
    let mut upload = store.upload();
    for number in 2000..2020 {
        upload.put(block(number, 100_000, Vec::new()));
    }
    assert!(matches!(upload.finish(), Err(crate::error::FsError::NoSpace)));
}
