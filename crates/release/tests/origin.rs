//! A hostile or faulty live file system: as the origin of a mirror's data, and as the server that is to hold a release.

use holdfast_client::remote::Remote;
use holdfast_content::{Block, BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_protocol::message::{
    AddressedBlock, HoldEntry, Request, Response, ServerError, StoreHeader, Welcome,
};
use holdfast_release::index::{Index, key_of};
use holdfast_release::keys::ReleaseId;
use holdfast_release::origin::{Origin, OriginError};
use holdfast_release::pack::Frame;
use holdfast_release::publish::PublishError;
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::hold::hold;
use holdfast_release::publish::store::{Into, PackStore};
use holdfast_release::record::{Location, Record, RootFile};
use holdfast_release::serve::{ServeConfig, Server};
use holdfast_release::signing::Signed;
use holdfast_release::{form, layout};
use holdfast_rpc::RpcError;
use holdfast_testing::{PATIENCE, eventually};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const KEY: DigestKey = DigestKey::WELL_KNOWN;

pub(crate) type Answering = dyn Fn(Request) -> Result<Response, RpcError> + Send + Sync;

/// A server that answers as it is told to.
pub(crate) struct FakeOrigin(pub(crate) Box<Answering>);

impl Remote for FakeOrigin {
    fn call(&self, request: Request, _deadline: Duration) -> Result<Response, RpcError> {
        (self.0)(request)
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

fn data(number: u8, length: usize) -> Block {
    Block::new(&KEY, BlockKind::Chunk, Vec::new(), vec![number; length])
}

fn address(block: &Block) -> Digest {
    block.reference().address
}

fn found(address: Digest, block: StoredBlock) -> Option<(StoreHeader, AddressedBlock)> {
    Some((StoreHeader { owner: DeviceId(1), stored_ns: 0 }, AddressedBlock { address, block }))
}

fn origin(answer: impl Fn(Vec<Digest>) -> Result<Response, RpcError> + Send + Sync + 'static) -> Origin {
    let fake = FakeOrigin(Box::new(move |request| match request {
        Request::Retrieve(addresses) => answer(addresses),
        other => panic!("an origin is only asked for blocks: {other:?}"),
    }));
    Origin::new("hf://origin".into(), Arc::new(fake), 1 << 20)
}

/// Proves: whatever the origin answers is checked before a client sees it.
#[test]
fn what_an_origin_gives() {
    let (one, two) = (data(1, 1000), data(2, 1000));
    let (first, second) = (address(&one), address(&two));
    let wrong = origin(move |_| Ok(Response::Blocks(vec![found(first, data(2, 1000).to_stored())])));
    assert!(matches!(wrong.frames(&[first]), Err(OriginError::False(..))));
    let mut long = one.to_stored();
    long.body = vec![0; 5 << 20];
    let long = origin(move |_| Ok(Response::Blocks(vec![found(first, long.clone())])));
    assert!(matches!(long.frames(&[first]), Err(OriginError::False(..))));
    let many = origin(move |_| Ok(Response::Blocks(vec![None, None])));
    assert!(matches!(many.frames(&[first]), Err(OriginError::False(..))));
    let none = origin(|_| Ok(Response::Blocks(vec![])));
    assert!(matches!(none.frames(&[first]), Err(OriginError::False(..))));
    let other = origin(|_| Ok(Response::Done));
    assert!(matches!(other.frames(&[first]), Err(OriginError::False(..))));
    let refusing = origin(|_| Ok(Response::Error(ServerError::NotAllowed("gone".into()))));
    assert!(matches!(refusing.frames(&[first]), Err(OriginError::Unreachable(..))));
    let away = origin(|_| Err(RpcError::Closed));
    assert!(matches!(away.frames(&[first]), Err(OriginError::Unreachable(..))));
    let missing = origin(|_| Ok(Response::Blocks(vec![None])));
    assert_eq!(missing.frames(&[first]), Ok(vec![None]));
    // Strangers get nothing but data: tables and directories say who is who.
    let table = Block::new(&KEY, BlockKind::Table, Vec::new(), b"a table".to_vec());
    let (at, stored) = (address(&table), table.to_stored());
    let tables = origin(move |_| Ok(Response::Blocks(vec![found(at, stored.clone())])));
    assert_eq!(tables.frames(&[at]), Ok(vec![None]));

    // An answer that ends early says nothing about the rest, and what was received once is not asked for again.
    let asked: Arc<Mutex<Vec<usize>>> = Arc::default();
    let log = asked.clone();
    let early = origin(move |wanted| {
        log.lock().push(wanted.len());
        let block = if wanted[0] == first { &one } else { &two };
        Ok(Response::Blocks(vec![found(wanted[0], block.to_stored())]))
    });
    let frames = early.frames(&[first, second]).unwrap();
    assert_eq!(frames.len(), 1);
    assert_eq!(Frame::first(frames[0].as_ref().unwrap()).unwrap().0.address, first);
    assert_eq!(early.frames(&[first, second]).unwrap().len(), 2);
    assert_eq!(early.frames(&[first, second]).unwrap().len(), 2);
    assert_eq!(*asked.lock(), [2, 1]);
}

/// Proves: the memory for an origin's data is bounded.
#[test]
fn what_is_kept() {
    let asked: Arc<Mutex<usize>> = Arc::default();
    let log = asked.clone();
    let blocks: BTreeMap<Digest, StoredBlock> = (0..30u32)
        .map(|number| {
            let body = (0..100_000u32).map(|at| (at.wrapping_mul(number + 77) >> 7) as u8).collect();
            let block = Block::new(&KEY, BlockKind::Chunk, Vec::new(), body);
            (address(&block), StoredBlock { codec: holdfast_content::Codec::Plain, ..plain(&block) })
        })
        .collect();
    let all: Vec<Digest> = blocks.keys().copied().collect();
    let keeping = origin(move |wanted| {
        *log.lock() += wanted.len();
        Ok(Response::Blocks(wanted.iter().map(|one| found(*one, blocks[one].clone())).collect()))
    });
    for _ in 0..2 {
        for one in &all {
            assert!(keeping.frames(&[*one]).unwrap()[0].is_some());
        }
    }
    assert_eq!(*asked.lock(), 60, "1 MiB does not hold 3 MB");
    for _ in 0..5 {
        assert!(keeping.frames(&[all[29]]).unwrap()[0].is_some());
    }
    assert_eq!(*asked.lock(), 60);
}

/// A block as it is stored without compression.
fn plain(block: &Block) -> StoredBlock {
    StoredBlock {
        kind: block.kind(),
        codec: holdfast_content::Codec::Plain,
        references: block.references().to_vec(),
        body: block.body().to_vec(),
    }
}

/// A directory that looks like a release whose data is elsewhere.
fn release(folder: &Path, at_origin: &[Digest]) {
    let mut index = Index::default();
    index.refer(at_origin.iter().map(key_of));
    let bytes = index.encode();
    let digest = KEY.digest(Domain::ReleaseFile, &bytes);
    let location = Location { digest, bytes: bytes.len() as u64 };
    let record = Record {
        release: ReleaseId(Digest([1; 32])),
        key_set: 1,
        sequence: 1,
        issued_s: 1,
        expires_s: 2,
        digest_key: KEY,
        root_dir: data(0, 10).reference(),
        previous: None,
        note: String::new(),
    };
    let root = RootFile { record: Signed::unsigned(record), freshness: None, index: location, hints: None };
    std::fs::create_dir_all(folder.join("index")).unwrap();
    std::fs::write(folder.join(layout::index(&digest)), bytes).unwrap();
    std::fs::write(folder.join(layout::ROOT), form::write(&root)).unwrap();
}

fn ask(server: SocketAddr, head: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!("{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    (std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap(), answer[end + 4..].to_vec())
}

/// Proves: a mirror passes on correct blocks and reports others. It does not ask for blocks that are not of its
/// release. An origin that hangs holds up only those who want data from it.
#[test]
fn a_mirror_of_an_origin() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad, missing, slow) = (data(1, 5000), data(2, 5000), data(3, 5000), data(4, 5000));
    let names = [&good, &bad, &missing, &slow].map(address);
    release(folder.path(), &names);
    let stored = good.to_stored();
    let [good, bad, missing, slow] = names;
    let hangs = Arc::new(AtomicBool::new(true));
    let still_hangs = hangs.clone();
    let is_asked = Arc::new(AtomicBool::new(false));
    let asked = is_asked.clone();
    let origin = origin(move |wanted| {
        assert!(wanted.iter().all(|one| names.contains(one)), "only what is of the release");
        if wanted.contains(&slow) {
            asked.store(true, Ordering::SeqCst);
            while still_hangs.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            return Err(RpcError::Closed);
        }
        let answer = |one: &Digest| match one {
            one if *one == good => found(*one, stored.clone()),
            one if *one == bad => found(*one, stored.clone()),
            _ => None,
        };
        Ok(Response::Blocks(wanted.iter().map(answer).collect()))
    });
    let mut config = ServeConfig::new(folder.path().to_owned(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.origin = Some(Arc::new(origin));
    config.limits.idle_s = 3600;
    let server = Server::open(config).unwrap();
    let at = server.local_address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        server.run(async {
            let _ = stopped.await;
        })
    });

    let object = |address: &Digest| ask(at, &format!("GET /object/{address}"), b"");
    let (status, body) = object(&good);
    assert_eq!((status, body), (200, holdfast_crypto::encode(&data(1, 5000).to_stored())));
    assert_eq!(object(&bad).0, 502);
    assert_eq!(object(&missing).0, 404);
    let stranger = address(&data(9, 5000));
    assert_eq!(object(&stranger).0, 404);
    let (status, body) = ask(at, "POST /objects", &[stranger.0, missing.0, good.0].concat());
    assert_eq!((status, Frame::all(&body).count()), (200, 1));
    assert_eq!(ask(at, "POST /objects", &[stranger.0, missing.0].concat()).0, 404);
    assert_eq!(ask(at, "POST /objects", &bad.0).0, 502);
    assert_eq!(ask(at, "GET /objects", b"").0, 405);

    let waiting: Vec<_> =
        (0..20).map(|_| std::thread::spawn(move || ask(at, &format!("GET /object/{slow}"), b"").0)).collect();
    eventually("the origin is asked", || is_asked.load(Ordering::SeqCst));
    for _ in 0..20 {
        assert_eq!(ask(at, "GET /root", b"").0, 200);
    }
    hangs.store(false, Ordering::SeqCst);
    for one in waiting {
        assert_eq!(one.join().unwrap(), 503);
    }
    drop(stop);
    thread.join().unwrap().unwrap();
}

/// A small tree in packs, with a chunk at the origin: its root, the chunk, and the blocks.
fn tree(folder: &Path) -> (Digest, Digest, FolderBlocks) {
    use holdfast_content::BlockSink;
    let store = PackStore::open(folder, KEY, &Index::default(), 1, 1).unwrap();
    let chunk = address(&data(5, 70_000));
    let inner = Block::new(&KEY, BlockKind::Inode, vec![chunk], b"an inode".to_vec());
    let root = Block::new(&KEY, BlockKind::Inode, vec![address(&inner)], b"a root".to_vec());
    let top = address(&root);
    store.refer(&chunk);
    Into(&store).put(inner);
    Into(&store).put(root);
    let (index, added) = store.finish().unwrap();
    assert_eq!((added.blocks, added.at_origin), (2, 1));
    (top, chunk, FolderBlocks::new(folder, KEY, index))
}

/// The blocks that a server has, and the holds that it has granted.
type Keeping = (BTreeSet<Digest>, Vec<String>);

/// A server of a live file system that has these blocks and does what it is asked, except for `lies`.
fn keeper(
    has: &[Digest],
    lies: impl Fn(&Request) -> Option<Response> + Send + Sync + 'static,
) -> (FakeOrigin, Arc<Mutex<Keeping>>) {
    let state = Arc::new(Mutex::new((has.iter().copied().collect::<BTreeSet<_>>(), Vec::new())));
    let shared = state.clone();
    let references: Mutex<BTreeMap<Digest, Vec<Digest>>> = Mutex::default();
    let fake = FakeOrigin(Box::new(move |request| {
        if let Some(lie) = lies(&request) {
            return Ok(lie);
        }
        let mut state = shared.lock();
        Ok(match request {
            Request::Store(blocks) => {
                for AddressedBlock { address, block } in blocks {
                    assert_ne!(block.kind, BlockKind::Chunk, "no data is sent");
                    references.lock().insert(address, block.references);
                    state.0.insert(address);
                }
                Response::Done
            }
            Request::Hold { name, roots } => {
                let (mut missing, mut stack) = (Vec::new(), roots);
                while let Some(one) = stack.pop() {
                    match state.0.contains(&one) {
                        true => stack.extend(references.lock().get(&one).into_iter().flatten()),
                        false => missing.push(one),
                    }
                }
                if missing.is_empty() {
                    state.1.push(name);
                }
                Response::Held(missing)
            }
            Request::Holds => {
                let shown = |name: &String| HoldEntry {
                    name: name.clone(),
                    device: DeviceId(1),
                    made_ns: 0,
                    roots: Vec::new(),
                };
                Response::Holds(state.1.iter().map(shown).collect())
            }
            other => panic!("{other:?}"),
        })
    }));
    (fake, state)
}

/// Proves: a release is held, under its number and root, once all its blocks are at the server, whatever the server
/// lost of what it had before. It is not held if data is gone, or the server loses blocks, denies or answers nonsense.
#[test]
fn held_or_not_published() {
    let folder = tempfile::tempdir().unwrap();
    let (root, chunk, blocks) = tree(folder.path());
    let id = ReleaseId(Digest([9; 32]));
    let none = Index::default();
    let try_with = |server: &FakeOrigin, before: &Index| hold(server, &blocks, before, id, 7, root);

    let (server, state) = keeper(&[chunk], |_| None);
    try_with(&server, &none).unwrap();
    assert_eq!(state.lock().1, [format!("release/{id}/7/{root}")]);
    // The server lacks what it should have from before: it says so, and is sent it.
    let (server, state) = keeper(&[chunk], |_| None);
    try_with(&server, blocks.index()).unwrap();
    assert_eq!(state.lock().1.len(), 1);

    let refused = |server: &FakeOrigin| match try_with(server, &none) {
        Err(PublishError::NotHeld(why)) => why,
        other => panic!("{other:?}"),
    };
    let (server, state) = keeper(&[], |_| None);
    assert!(refused(&server).contains("publish again"));
    assert!(state.lock().1.is_empty());
    let (server, _) =
        keeper(&[chunk], |request| matches!(request, Request::Store(_)).then_some(Response::Done));
    assert!(refused(&server).contains("loses block"));
    let (server, _) =
        keeper(&[chunk], |request| matches!(request, Request::Hold { .. }).then_some(Response::Done));
    assert!(refused(&server).contains("no sense"));
    let no_space = |request: &Request| {
        matches!(request, Request::Store(_)).then_some(Response::Error(ServerError::Invalid("no".into())))
    };
    assert!(refused(&keeper(&[chunk], no_space).0).contains("refused the request"));
    let endless = |request: &Request| {
        matches!(request, Request::Hold { .. }).then(|| Response::Held(vec![address(&data(77, 77))]))
    };
    assert!(refused(&keeper(&[chunk], endless).0).contains("publish again"));
}
