//! `holdfast serve` as its clients see it: honest ones, unusual ones and hostile ones.

use crate::publisher;

use holdfast_content::{Block, BlockKind, BlockSource, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_release::index::{BlockLocation, Index, PackName, key_of};
use holdfast_release::mirror::{MirrorError, Mirrors, parse};
use holdfast_release::publish::folder::FolderBlocks;
use holdfast_release::publish::rules::Rules;
use holdfast_release::publish::{self as release, Options};
use holdfast_release::record::Location;
use holdfast_release::serve::{ServeConfig, ServeError, Server};
use holdfast_release::tree::{PathLookup, Tree};
use holdfast_release::{form, hints, layout, pack};
use holdfast_testing::{PATIENCE, eventually, noise};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::oneshot;

const PACK_BYTES: usize = 1 << 20;

struct Serving {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<Result<(), ServeError>>>,
    folder: TempDir,
}

fn pack() -> String {
    layout::pack(&Digest([0xa1; 32]))
}

fn index() -> String {
    layout::index(&Digest([0xb2; 32]))
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
    std::fs::write(path, bytes).expect("written");
}

impl Serving {
    fn start() -> Serving {
        Serving::start_with(|_| {})
    }

    fn start_with(change: impl FnOnce(&mut ServeConfig)) -> Serving {
        let folder = tempfile::tempdir().expect("a directory");
        write(folder.path(), layout::ROOT, b"the record");
        write(folder.path(), &layout::keys(1), b"the keys");
        write(folder.path(), &layout::record(12), b"an older record");
        write(folder.path(), &pack(), &noise(1, PACK_BYTES));
        write(folder.path(), &index(), &noise(1, 1000));
        let mut config =
            ServeConfig::new(folder.path().to_owned(), SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        // Time-outs so long that no client is disconnected for being slow.
        config.limits.idle_s = 3600;
        change(&mut config);
        let server = Server::open(config).expect("it listens");
        let address = server.local_address();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            server.run(async {
                let _ = stopped.await;
            })
        });
        Serving { address, stop: Some(stop), thread: Some(thread), folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }

    /// Sends bytes as they are, on a connection of their own, and reads to the end.
    fn raw(&self, request: &[u8]) -> HttpReply {
        let mut stream = self.connect();
        stream.write_all(request).expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("read");
        HttpReply::parse(&bytes)
    }

    fn request(&self, method: &str, target: &str, headers: &str) -> HttpReply {
        self.raw(
            format!("{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n").as_bytes(),
        )
    }

    fn get(&self, target: &str) -> HttpReply {
        self.request("GET", target, "")
    }

    fn end(&mut self) -> Result<(), ServeError> {
        drop(self.stop.take());
        self.thread.take().expect("it runs").join().expect("no panic")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end().expect("it ended well");
        }
    }
}

#[derive(Debug)]
struct HttpReply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl HttpReply {
    fn parse(bytes: &[u8]) -> HttpReply {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        HttpReply { status, head, body: bytes[end + 4..].to_vec() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (given, value) = line.split_once(": ")?;
            given.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Every file of the layout is served, whole, with the headers that caches need.
#[test]
fn files() {
    let serving = Serving::start();
    let digest = Digest([0xa1; 32]).to_string();
    for (name, body, cache) in [
        (layout::ROOT.to_owned(), b"the record".to_vec(), "public, max-age=10"),
        (layout::keys(1), b"the keys".to_vec(), "public, max-age=10"),
        (layout::record(12), b"an older record".to_vec(), "public, max-age=10"),
        (index(), noise(1, 1000), "public, max-age=31536000, immutable"),
        (pack(), noise(1, PACK_BYTES), "public, max-age=31536000, immutable"),
    ] {
        // Once from the disk, once from the server's cache.
        for _ in 0..2 {
            let answer = serving.get(&format!("/{name}"));
            assert_eq!(answer.status, 200, "{name}: {}", answer.head);
            assert!(answer.body == body, "{name}");
            assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()));
            assert_eq!(answer.header("cache-control"), Some(cache));
            assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
            assert_eq!(answer.header("accept-ranges"), Some("bytes"));
            let etag = answer.header("etag").expect("a tag").to_owned();
            let head = serving.request("HEAD", &format!("/{name}"), "");
            assert_eq!((head.status, head.body.len()), (200, 0));
            assert_eq!(head.header("content-length"), answer.header("content-length"));
            assert_eq!(head.header("etag"), Some(etag.as_str()));
            let unchanged =
                serving.request("GET", &format!("/{name}"), &format!("If-None-Match: \"x\", {etag}\r\n"));
            assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
            assert_eq!(unchanged.header("etag"), Some(etag.as_str()));
        }
    }
    assert_eq!(serving.get(&format!("/{}", pack())).header("etag"), Some(format!("\"{digest}\"").as_str()));
}

/// Parts of files, small and large, by the rules of HTTP.
#[test]
fn ranges() {
    let serving = Serving::start();
    for (name, body) in [(index(), noise(1, 1000)), (pack(), noise(1, PACK_BYTES))] {
        let length = body.len();
        let target = format!("/{name}");
        let range = |range: &str| serving.request("GET", &target, &format!("Range: {range}\r\n"));
        for (asked, part) in [
            ("bytes=0-0".to_owned(), 0..1),
            ("bytes=10-899".to_owned(), 10..900),
            ("bytes=990-".to_owned(), 990..length),
            ("bytes=-10".to_owned(), length - 10..length),
            (format!("bytes=5-{}", u64::MAX), 5..length),
            (format!("bytes=100-{}", length - 2), 100..length - 1),
        ] {
            let answer = range(&asked);
            assert_eq!(answer.status, 206, "{asked}");
            assert!(answer.body == body[part.clone()], "{asked}");
            let said = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            assert_eq!(answer.header("content-range"), Some(said.as_str()));
            assert_eq!(answer.header("content-length"), Some(part.len().to_string().as_str()));
            let head = serving.request("HEAD", &target, &format!("Range: {asked}\r\n"));
            assert_eq!((head.status, head.body.len()), (206, 0));
        }
        let beyond = range(&format!("bytes={length}-"));
        assert_eq!(beyond.status, 416);
        assert_eq!(beyond.header("content-range"), Some(format!("bytes */{length}").as_str()));
        for ignored in ["bytes=5-1", "bytes=0-1,5-6", "lines=1-2", "bytes=x-y"] {
            let answer = range(ignored);
            assert_eq!((answer.status, answer.body.len()), (200, length), "{ignored}");
        }
        let etag = serving.get(&target).header("etag").expect("a tag").to_owned();
        let part = |tag: &str| {
            serving.request("GET", &target, &format!("Range: bytes=0-9\r\nIf-Range: {tag}\r\n")).status
        };
        assert_eq!((part(&etag), part("\"another\"")), (206, 200));
    }
}

/// Nothing but the layout is served, however it is asked for, even if it is in the directory; links are not followed.
#[test]
fn nothing_else() {
    let serving = Serving::start();
    let folder = serving.folder.path();
    let outside = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(outside.path(), "secret").expect("written");
    write(folder, "secret", b"secret");
    write(folder, "packs/secret", b"secret");
    symlink(outside.path(), folder.join(layout::REVOKED)).expect("linked");
    symlink("root", folder.join(layout::keys(2))).expect("linked");
    std::fs::create_dir(folder.join(layout::keys(3))).expect("made");
    let mut targets: Vec<String> = [
        "/",
        "/secret",
        "/packs",
        "/packs/",
        "/packs/secret",
        "/../secret",
        "/packs/../secret",
        "/packs/%2e%2e/secret",
        "//root",
        "/root/",
        "/root%00",
        "/%72oot",
        "/./root",
        "/keys/01",
        "/keys/../root",
        "*",
        "/index.html",
    ]
    .map(str::to_owned)
    .to_vec();
    targets.push(format!("/packs/..{}", outside.path().display()));
    targets.push(format!("/{}", layout::keys(4)));
    targets.push(format!("/{}", layout::pack(&Digest([1; 32]))));
    for target in targets {
        let answer = serving.get(&target);
        assert!(matches!(answer.status, 400 | 404), "{target}: {}", answer.head);
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"), "{target}");
        if answer.status == 404 {
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{target}");
        }
    }
    for name in [layout::REVOKED.to_owned(), layout::keys(2), layout::keys(3)] {
        let answer = serving.get(&format!("/{name}"));
        assert_eq!(answer.status, 500, "{name}");
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"));
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"] {
        let answer = serving.request(method, "/root", "Content-Length: 0\r\n");
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    // A query is ignored, as some caches add one.
    assert_eq!(serving.get("/root?x=/../secret").body, b"the record");
}

/// Puts these blocks into the directory in the layout of a release, of which nothing else is right.
fn publish(folder: &Path, sequence: u64, blocks: &[Block]) {
    let mut bytes = pack::MAGIC.to_vec();
    let mut locations = Vec::new();
    for block in blocks {
        let frame = pack::frame(&block.reference().address, &block.to_stored());
        let location = BlockLocation { pack: 0, offset: bytes.len() as u32, bytes: frame.len() as u32 };
        locations.push((key_of(&block.reference().address), location));
        bytes.extend(frame);
    }
    let named = |bytes: &[u8]| DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, bytes);
    let name = PackName { digest: named(&bytes), bytes: bytes.len() as u64 };
    write(folder, &layout::pack(&name.digest), &bytes);
    let index = Index { packs: vec![name], entries: locations }.encode();
    let location = Location { digest: named(&index), bytes: index.len() as u64 };
    write(folder, &layout::index(&location.digest), &index);
    let mut root = publisher::published(&publisher::chain(), sequence);
    root.index = location;
    write(folder, "root.new", &form::write(&root));
    std::fs::rename(folder.join("root.new"), folder.join(layout::ROOT)).expect("replaced");
}

fn blocks(range: std::ops::Range<u32>) -> Vec<Block> {
    let block = |n: u32| {
        Block::new(
            &DigestKey::WELL_KNOWN,
            BlockKind::Chunk,
            vec![],
            format!("block {n}").repeat(20).into_bytes(),
        )
    };
    range.map(block).collect()
}

/// Blocks are found by address through the index that `root` names at the moment, whether the index is small or large.
/// Damage makes this fail, and nothing else.
#[test]
fn objects() {
    let serving = Serving::start();
    let folder = serving.folder.path();
    let target = |block: &Block| format!("/object/{}", block.reference().address);
    let stored = |block: &Block| holdfast_crypto::encode(&block.to_stored());
    let (few, many) = (blocks(0..10), blocks(100..4000));
    assert_eq!(serving.get(&target(&few[0])).status, 500, "root is not one");
    publish(folder, 1, &few);
    eventually("the release is served", || serving.get(&target(&few[0])).status == 200);
    assert_eq!(serving.get(&target(&many[0])).status, 404);
    publish(folder, 2, &many);
    eventually("the next release is served", || serving.get(&target(&few[0])).status == 404);
    for block in many.iter().step_by(97) {
        let answer = serving.get(&target(block));
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert!(answer.body == stored(block));
        let etag = format!("\"{}\"", block.reference().address);
        assert_eq!(answer.header("etag"), Some(etag.as_str()));
        assert_eq!(answer.header("cache-control"), Some("public, max-age=31536000, immutable"));
        let unchanged = serving.request("GET", &target(block), &format!("If-None-Match: {etag}\r\n"));
        assert_eq!((unchanged.status, unchanged.body.len()), (304, 0));
        let part = serving.request("GET", &target(block), "Range: bytes=2-5\r\n");
        assert_eq!((part.status, &part.body[..]), (206, &stored(block)[2..6]));
        let head = serving.request("HEAD", &target(block), "");
        assert_eq!(head.header("content-length"), answer.header("content-length"));
    }
    let address = many[0].reference().address.to_string();
    for bad in [
        address.to_uppercase(),
        address[1..].to_owned(),
        format!("{address}0"),
        format!("{address}/"),
        String::new(),
    ] {
        assert_eq!(serving.get(&format!("/object/{bad}")).status, 404, "{bad}");
    }
    // The pack is cut short, then removed, and `root` is damaged.
    let packs: Vec<_> =
        std::fs::read_dir(folder.join("packs")).expect("read").map(|entry| entry.expect("entry")).collect();
    for entry in &packs {
        let file = std::fs::OpenOptions::new().write(true).open(entry.path()).expect("opened");
        file.set_len(300).expect("cut");
    }
    let last = many.last().expect("some");
    // An answer that cannot be completed is an error, or the connection is closed.
    let given = |target: &str| {
        let mut stream = serving.connect();
        let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    assert!(!given(&target(last)).ends_with(&stored(last)), "what is not there is not sent");
    std::fs::write(folder.join(layout::ROOT), b"damaged").expect("written");
    eventually("the damage is seen", || serving.get("/root").body == b"damaged");
    eventually("it fails", || given(&target(last)).starts_with(b"HTTP/1.1 500"));
}

/// Frames as the only source of blocks.
struct Frames(BTreeMap<Digest, StoredBlock>);

impl BlockSource for Frames {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let address = reference.address;
        let stored = self.0.get(&address).cloned().ok_or(SourceError::Missing(address))?;
        let block = stored.open(&self.digest_key(), reference, kind);
        Ok(Arc::new(block.map_err(|error| SourceError::Altered(address, error))?))
    }
}

/// Publishes a tree into the directory of a server, with hints, and returns its root.
fn publish_tree(source: &Path, folder: &Path) -> Reference {
    let rules = Rules::default();
    let digest_key = DigestKey::WELL_KNOWN;
    let options = Options {
        source,
        target: folder,
        digest_key,
        rules: &rules,
        newest: None,
        level: 1,
        threads: 1,
        memory: None,
    };
    let published = release::publish(&options, &Index::default(), &mut |_| true).expect("published");
    let named = |bytes: &[u8]| Location {
        digest: digest_key.digest(Domain::ReleaseFile, bytes),
        bytes: bytes.len() as u64,
    };
    let index = published.index.clone().encode();
    let blocks = FolderBlocks::new(folder, digest_key, published.index);
    let hints = hints::make(&blocks, &published.root).expect("made");
    write(folder, &layout::index(&named(&index).digest), &index);
    write(folder, &layout::hints(&named(&hints).digest), &hints);
    let mut root = publisher::published(&publisher::chain(), 1);
    (root.index, root.hints) = (named(&index), Some(named(&hints)));
    write(folder, "root.new", &form::write(&root));
    std::fs::rename(folder.join("root.new"), folder.join(layout::ROOT)).expect("replaced");
    published.root
}

/// One request fetches all blocks that looking up several paths needs, deep and absent ones too. The size of request
/// and answer is bounded.
#[test]
fn paths() {
    let serving = Serving::start();
    let source = tempfile::tempdir().expect("a directory");
    let deep = "one/two/three/four/file";
    write(source.path(), deep, b"deep");
    (0..6000).for_each(|n| write(source.path(), &format!("many/name {n:05}"), b"x"));
    let root = publish_tree(source.path(), serving.folder.path());
    let post = |headers: &str, body: &[u8]| {
        let head = format!("POST /paths HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        serving.raw(&[head.as_bytes(), body].concat())
    };
    let ask = |body: &[u8]| post(&format!("Content-Length: {}\r\n", body.len()), body);
    eventually("the release is served", || ask(b"").status == 200);
    let body = format!("{deep}\0many/name 04321\0many/nothing\0no/thing");
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for answer in [ask(body.as_bytes()), post("Transfer-Encoding: chunked\r\n", chunked.as_bytes())] {
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        let frames: Vec<_> = pack::Frame::all(&answer.body).collect();
        let bytes: usize = frames.iter().map(pack::Frame::bytes).sum();
        assert_eq!(bytes, answer.body.len(), "nothing but frames");
        let blocks: BTreeMap<_, _> =
            frames.iter().map(|frame| (frame.address, frame.stored().expect("a block"))).collect();
        assert_eq!(blocks.len(), frames.len(), "each once");
        let tree = Tree::new(Arc::new(Frames(blocks)), root);
        let resolve = |path: &str| tree.resolve(path.as_bytes(), false).expect("all blocks are there");
        assert!(matches!(resolve(deep), PathLookup::Node(_)));
        assert!(matches!(resolve("many/name 04321"), PathLookup::Node(_)));
        assert!(matches!(resolve("many/nothing"), PathLookup::Nothing));
        assert!(matches!(resolve("no/thing"), PathLookup::Nothing));
        tree.resolve(b"many/name 00001", false).expect_err("not asked for");
    }
    let mirrors = Mirrors::parse(&[format!("http://{}/", serving.address)]).expect("a mirror");
    let frames = mirrors.paths(&[deep.as_bytes(), b"many/name 04321"], 1 << 20).expect("it can");
    assert!(pack::Frame::all(&frames).count() > 5);
    assert_eq!(mirrors.statuses()[0].answers, 1);
    let many: Vec<String> = (0..6000).step_by(20).map(|n| format!("many/name {n:05}")).collect();
    let answer = ask(many.join("\0").as_bytes());
    assert!(answer.status == 200 && answer.body.len() <= 128 << 10, "{}", answer.body.len());
    assert!(answer.body.len() > 32 << 10, "as many as have room: {}", answer.body.len());
    let odd = [&[b'/'; 10_000][..], &[0; 10_000], &[0xff; 10_000], b"../../etc/passwd", &b"a/".repeat(8000)];
    for odd in odd {
        let answer = ask(odd);
        assert_eq!(answer.status, 200);
        assert!(pack::Frame::all(&answer.body).count() <= 3, "the root and no more");
    }
    for too_long in [ask(&[b'a'; 20_000]), post("Content-Length: 99999999999\r\n", b"a")] {
        assert_eq!(too_long.status, 413, "{}", too_long.head);
    }
    let read = serving.get("/paths");
    assert_eq!((read.status, read.header("allow")), (405, Some("POST")));
    // A release without hints cannot look up paths, and its blocks can be fetched all the same.
    publish(serving.folder.path(), 2, &blocks(0..10));
    eventually("the next release is served", || ask(body.as_bytes()).status == 404);
}

/// A changed file is served within about a second, and a removed one is gone within that time.
#[test]
fn changes() {
    let serving = Serving::start();
    let folder = serving.folder.path();
    assert_eq!(serving.get("/root").body, b"the record");
    assert_eq!(serving.get("/revoked").status, 404);
    let before = serving.get("/root").header("etag").expect("a tag").to_owned();
    write(folder, "new", b"a new record");
    std::fs::rename(folder.join("new"), folder.join(layout::ROOT)).expect("replaced");
    write(folder, layout::REVOKED, b"revoked");
    std::fs::remove_file(folder.join(layout::keys(1))).expect("removed");
    eventually("the changes are seen", || {
        serving.get("/root").body == b"a new record" && serving.get("/keys/1").status == 404
    });
    assert_eq!(serving.get("/revoked").body, b"revoked");
    assert_ne!(serving.get("/root").header("etag"), Some(before.as_str()));
}

/// Several requests on one connection, also sent at once, are answered in order; HTTP/1.0 works.
#[test]
fn connections() {
    let serving = Serving::start();
    let mut stream = serving.connect();
    let index = index();
    let requests = format!(
        "GET /root HTTP/1.1\r\nHost: x\r\n\r\nGET /{index} HTTP/1.1\r\nHost: x\r\nRange: bytes=0-3\r\n\r\n\
         GET /nothing HTTP/1.1\r\nHost: x\r\n\r\nGET /keys/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(requests.as_bytes()).expect("sent");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("read");
    let all = String::from_utf8_lossy(&all);
    let statuses: Vec<&str> = all.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "206", "404", "200"]);
    assert!(all.ends_with("the keys"));
    assert_eq!(serving.raw(b"GET /root HTTP/1.0\r\n\r\n").body, b"the record");
}

/// Malformed and endless requests are refused, and cost a connection at most.
#[test]
fn bad_requests() {
    let serving = Serving::start();
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET /root HTTP/1.1\r\n{}\r\n", "X-More: and more\r\n".repeat(10_000));
    for bad in [
        b"GET /root\r\n\r\n".as_slice(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /root HTTP/1.1\r\nBad Header\r\n\r\n",
        b"GET /root HTTP/9.9\r\n\r\n",
        b"\0\0\0\0",
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = serving.connect();
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(bad);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(serving.get("/root").status, 200);
}

/// Whether the server still has a connection open, whatever the client has read of it.
fn is_served(server: SocketAddr, client: SocketAddr) -> bool {
    const ESTABLISHED: &str = "01";
    let connections = std::fs::read_to_string("/proc/self/net/tcp").expect("read");
    let [server, client] = [server, client].map(|address| format!("0100007F:{:04X}", address.port()));
    connections.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1..4) == Some(&[&server, &client, ESTABLISHED])
    })
}

/// Clients that send no request, an endless one, or do not read the answer are disconnected, and others are served.
#[test]
fn the_idle_and_the_slow() {
    const IDLE: Duration = Duration::from_secs(1);
    let serving = Serving::start_with(|config| config.limits.idle_s = IDLE.as_secs());
    let mut idle = serving.connect();
    let mut slow = serving.connect();
    let mut unread = serving.connect();
    for _ in 0..20 {
        write!(unread, "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", pack()).expect("sent");
    }
    let (mut used, mut used_since) = (serving.connect(), Instant::now());
    let (mut asked, mut answer, mut byte) = (used_since, [0; 1000], [0]);
    slow.set_nonblocking(true).expect("set");
    idle.set_nonblocking(true).expect("set");
    let ended = |stream: &mut TcpStream, byte: &mut [u8]| match stream.read(byte) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    };
    eventually("the idle and the slow are shown out, and one that is used stays", || {
        let _ = slow.write_all(b"X");
        let before = std::mem::replace(&mut asked, Instant::now());
        let sent = used.write_all(b"GET /root HTTP/1.1\r\nHost: x\r\n\r\n");
        if sent.is_err() || used.read(&mut answer).unwrap_or(0) == 0 {
            assert!(before.elapsed() >= IDLE, "it was used");
            // This machine was too slow to use the connection in time.
            (used, used_since) = (serving.connect(), Instant::now());
            asked = used_since;
        }
        let closed = [&mut idle, &mut slow].into_iter().filter_map(|s| ended(s, &mut byte).then_some(()));
        closed.count() == 2 && used_since.elapsed() > 3 * IDLE
    });
    // What the system's buffers had taken still arrives, but not everything.
    let client = unread.local_addr().expect("an address");
    eventually("it is shown out", || !is_served(serving.address, client));
    let mut arrived = Vec::new();
    let _ = unread.read_to_end(&mut arrived);
    assert!(arrived.len() < 20 * PACK_BYTES, "{}", arrived.len());
}

/// A thousand connections at once are served in bounded memory; one above the limit waits its turn.
#[test]
fn a_thousand_connections() {
    let serving = Serving::start_with(|config| config.limits.connections_max = 1000);
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("read");
        let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("a line");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
    };
    let before = resident();
    let mut streams: Vec<TcpStream> = (0..1000).map(|_| serving.connect()).collect();
    for stream in &mut streams {
        // Each client asks for everything and reads nothing yet.
        write!(stream, "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", pack()).expect("sent");
    }
    let mut late = serving.connect();
    late.write_all(b"GET /root HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
    for stream in &streams {
        stream.peek(&mut [0]).expect("its answer has begun");
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes for 1,000 connections");
    let whole = noise(1, PACK_BYTES);
    for mut stream in streams.drain(..) {
        let mut answer = vec![0; 4096];
        let mut received = Vec::new();
        while received.len() < PACK_BYTES {
            let read = stream.read(&mut answer).expect("read");
            assert!(read > 0, "it ended after {} bytes", received.len());
            received.extend_from_slice(&answer[..read]);
        }
        let answer = HttpReply::parse(&received);
        assert!(whole.starts_with(&answer.body));
    }
    let mut answer = Vec::new();
    late.read_to_end(&mut answer).expect("its turn comes");
    assert_eq!(HttpReply::parse(&answer).body, b"the record");
}

/// A server that is told to stop finishes its answers, accepts no further connection, and ends.
#[test]
fn stopping() {
    for threads in [1, 3] {
        let mut serving = Serving::start_with(|config| {
            (config.limits.threads, config.limits.stopping_max) = (threads, PATIENCE);
        });
        let mut idle = serving.connect();
        let mut busy = serving.connect();
        write!(busy, "GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", pack()).expect("sent");
        let mut first = [0; 100];
        busy.read_exact(&mut first).expect("it has begun");
        let reader = std::thread::spawn(move || {
            // It accepts nothing before the other one was disconnected.
            assert_eq!(idle.read(&mut first).expect("closed"), 0);
            let mut rest = Vec::new();
            busy.read_to_end(&mut rest).expect("read");
            rest.len()
        });
        let start = Instant::now();
        serving.end().expect("it ended well");
        assert!(start.elapsed() < PATIENCE);
        assert!(reader.join().expect("no panic") > PACK_BYTES - 100);
        assert!(TcpStream::connect(serving.address).is_err());
    }
}

/// What cannot be served is reported at once.
#[test]
fn what_cannot_be_served() {
    let folder = tempfile::tempdir().expect("a directory");
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let open = |path: &Path, address| {
        Server::open(ServeConfig::new(path.to_owned(), address)).map(|_| ()).expect_err("refused").to_string()
    };
    assert!(open(&folder.path().join("gone"), any).contains("gone: No such file"));
    assert!(open(folder.path(), any).contains("holds no release"));
    write(folder.path(), layout::ROOT, b"the record");
    let holder = std::net::TcpListener::bind(any).expect("a port");
    let taken = holder.local_addr().expect("an address");
    assert!(open(folder.path(), taken).contains(&format!("cannot listen on {taken}")));
    drop(holder);
}

/// For our own client the server is a mirror like any other.
#[test]
fn as_a_mirror() {
    let serving = Serving::start_with(|config| config.limits.threads = 2);
    let mirror = parse(&format!("http://{}/", serving.address)).expect("a mirror");
    let whole = noise(1, PACK_BYTES);
    assert!(mirror.get(&pack(), None, PACK_BYTES as u64).expect("whole") == whole);
    let part = mirror.get(&pack(), Some(70_000..500_000), 1 << 20).expect("a part");
    assert!(part == whole[70_000..500_000]);
    let end = mirror.get(&pack(), Some(PACK_BYTES as u64 - 5..u64::MAX), 10).expect("the end");
    assert!(end == whole[PACK_BYTES - 5..]);
    assert!(mirror.get(&pack(), Some(PACK_BYTES as u64..u64::MAX), 10).expect("nothing").is_empty());
    assert!(matches!(mirror.get(&layout::keys(2), None, 10), Err(MirrorError::Missing { .. })));
}
