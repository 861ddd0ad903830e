//! What travels over slow links when files are written and read, against the real server, counted message by message;
//! and servers that pack parcels badly.

use crate::common;

use common::site::Site;
use holdfast_client::Engine;
use holdfast_client::files::*;
use holdfast_client::remote::Remote;
use holdfast_client::store::{Link, TransferConfig, TransferMode};
use holdfast_content::{Base, Parcel};
use holdfast_crypto::{Digest, encode};
use holdfast_log::LocalStorage;
use holdfast_protocol::message::{Request, Response, Welcome};
use holdfast_rpc::{Connection, Connector, RpcError, ServerProof};
use holdfast_testing::{PATIENCE, noise};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 0 };
/// The link of a cable modem.
const CABLE: Link = Link { round_trip: Duration::from_millis(30), up: 48_000, down: 187_500 };

/// Answers a request in the server's place, if it returns something.
type Intercept = Box<dyn Fn(&Request) -> Option<Result<Response, RpcError>> + Send + Sync>;
/// Changes an answer of the server.
type Alter = Box<dyn Fn(Response) -> Response + Send + Sync>;

/// A connection that notes the size of each request and answer, and lets a test replace them.
struct Tap {
    inner: Connection,
    /// For each call its name, and the bytes sent and received.
    calls: Mutex<Vec<(&'static str, usize, usize)>>,
    intercept: Mutex<Option<Intercept>>,
    alter: Mutex<Option<Alter>>,
}

impl Remote for Tap {
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        let name = match &request {
            Request::Store(_) => "store",
            Request::StoreParcels(_) => "parcels",
            Request::Present(_) => "present",
            Request::Retrieve(_) => "retrieve",
            Request::RetrieveParcel { .. } => "parcel",
            Request::RetrieveTree { .. } => "tree",
            Request::Fast { .. } | Request::Update { .. } | Request::Commit { .. } => "operation",
            _ => "other",
        };
        let intercepted = self.intercept.lock().as_ref().and_then(|intercept| intercept(&request));
        let sent = encode(&request).len();
        if let Some(answer) = intercepted {
            self.calls.lock().push((name, sent, 0));
            return answer;
        }
        let mut answer = Remote::call(&self.inner, request, deadline)?;
        if let Some(alter) = &*self.alter.lock() {
            answer = alter(answer);
        }
        self.calls.lock().push((name, sent, encode(&answer).len()));
        Ok(answer)
    }

    fn welcome(&self) -> Option<Welcome> {
        Remote::welcome(&self.inner)
    }

    fn is_connected(&self) -> bool {
        Remote::is_connected(&self.inner)
    }

    fn traffic(&self) -> (u64, u64) {
        Remote::traffic(&self.inner)
    }
}

/// The calls of a connection in a stretch of time: for each its name, and the bytes sent and received.
#[derive(Debug, Default)]
struct Traffic(Vec<(&'static str, usize, usize)>);

impl Traffic {
    fn sent(&self) -> usize {
        self.0.iter().map(|(_, sent, _)| sent).sum()
    }

    fn received(&self) -> usize {
        self.0.iter().map(|(.., received)| received).sum()
    }

    fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|(found, ..)| *found == name).count()
    }

    /// The number of requests for blocks.
    fn fetches(&self) -> usize {
        self.count("retrieve") + self.count("parcel") + self.count("tree")
    }
}

fn full() -> TransferConfig {
    TransferConfig { mode: TransferMode::Full, link: Some(CABLE) }
}

/// Mounts for the user whose device's key has this seed.
fn mount(site: &Site, seed: u8, transfer: TransferConfig) -> Mount {
    let mut config = site.config(seed);
    config.transfer = transfer;
    std::fs::create_dir_all(&config.state_dir).unwrap();
    let proof = ServerProof { file_system: site.address.file_system, minimum_sequence: 0 };
    let connector = Connector::new(config.key.clone(), site.address.servers(), Some(proof));
    let tap = Arc::new(Tap {
        inner: connector.connect(PATIENCE).unwrap(),
        calls: Mutex::default(),
        intercept: Mutex::default(),
        alter: Mutex::default(),
    });
    let storage = Arc::new(LocalStorage::open(&config.state_dir).unwrap());
    let engine = Engine::start_with(config, tap.clone(), storage).unwrap();
    let options = MountOptions {
        uid: 1000,
        gid: 1000,
        owners: Default::default(),
        spool_dir: site.path(&format!("spool-{seed}")),
        salvage_dir: site.path(&format!("salvage-{seed}")),
        read_only: false,
    };
    let files = FileSystem::new(engine.clone(), options).unwrap();
    let team = files.lookup(&WHO, Ino::ROOT, b"team").unwrap().ino;
    Mount { files, engine, tap, team }
}

struct Mount {
    files: Arc<FileSystem>,
    engine: Arc<Engine>,
    tap: Arc<Tap>,
    team: Ino,
}

impl Mount {
    /// The traffic of what `f` does.
    fn traffic_of<T>(&self, f: impl FnOnce() -> T) -> (T, Traffic) {
        self.tap.calls.lock().clear();
        let result = f();
        (result, Traffic(std::mem::take(&mut *self.tap.calls.lock())))
    }

    /// Replaces a file's content, as programs do that truncate the file first.
    fn put(&self, name: &str, bytes: &[u8]) -> Traffic {
        let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
        self.traffic_of(|| {
            let (_, opened) = self.files.create(&WHO, self.team, name.as_bytes(), 0o644, flags).unwrap();
            self.write(opened.handle, 0, bytes);
            self.files.flush(opened.handle).unwrap();
            self.files.release(opened.handle);
        })
        .1
    }

    fn write(&self, handle: FileHandleId, at: u64, bytes: &[u8]) {
        for (number, part) in bytes.chunks(128 << 10).enumerate() {
            self.files.write(handle, at + ((number << 17) as u64), part, WriteSource::Call).unwrap();
        }
    }

    /// Writes into an existing file, in place.
    fn patch(&self, name: &str, at: u64, bytes: &[u8]) -> Traffic {
        self.traffic_of(|| {
            let found = self.files.lookup(&WHO, self.team, name.as_bytes()).unwrap();
            let opened = self.files.open(&WHO, found.ino, OpenFlags::READ_WRITE).unwrap();
            self.write(opened.handle, at, bytes);
            self.files.flush(opened.handle).unwrap();
            self.files.release(opened.handle);
        })
        .1
    }

    fn rename(&self, from: &str, to: &str) -> Traffic {
        self.traffic_of(|| {
            self.files
                .rename(&WHO, self.team, from.as_bytes(), self.team, to.as_bytes(), Default::default())
                .unwrap();
        })
        .1
    }

    fn get(&self, name: &str) -> (Vec<u8>, Traffic) {
        self.traffic_of(|| {
            let found = self.files.lookup(&WHO, self.team, name.as_bytes()).unwrap();
            let opened = self.files.open(&WHO, found.ino, OpenFlags::READ).unwrap();
            let mut bytes = Vec::new();
            loop {
                let part = self.files.read(opened.handle, bytes.len() as u64, 128 << 10).unwrap();
                if part.is_empty() {
                    break;
                }
                bytes.extend_from_slice(&part);
            }
            self.files.release(opened.handle);
            bytes
        })
    }

    /// Waits until the cache on disk has everything that is to go there.
    fn settle(&self) {
        assert!(self.engine.store().settle_cache(PATIENCE));
    }
}

fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    }
}

/// Lines of words, which compress to about a third.
fn prose(seed: u64, length: usize) -> Vec<u8> {
    let mut next = numbers(seed);
    let mut text = Vec::new();
    while text.len() < length {
        let word = next() % 5000;
        text.extend_from_slice(
            format!("{:x}{}", word * 7919, if next().is_multiple_of(9) { "\n" } else { " " }).as_bytes(),
        );
    }
    text.truncate(length);
    text
}

fn edited(bytes: &[u8], at: usize, with: &[u8]) -> Vec<u8> {
    [&bytes[..at], with, &bytes[at..]].concat()
}

/// Proves: each usual way to save a document sends little more than what is new. Reading it on a machine that read the
/// older version receives little more than that, in at most four requests for blocks.
#[test]
fn saves_cost_what_is_new() {
    let site = Site::new(|_| {});
    let (writer, reader) = (mount(&site, 2, full()), mount(&site, 3, full()));
    let mut text = prose(1, 300_000);
    let first = writer.put("doc", &text);
    assert!(first.sent() < 200_000, "{first:?}");
    let check = |what: &str, name: &str, text: &[u8], saved: Traffic, most: usize| {
        println!("{what}: sent {} received {} {:?}", saved.sent(), saved.received(), saved.0);
        assert!(saved.sent() < most, "{what}: {saved:?}");
        writer.settle();
        let (bytes, read) = reader.get(name);
        println!("{what}, read: sent {} received {} {:?}", read.sent(), read.received(), read.0);
        assert!(bytes == text, "{what}");
        reader.settle();
        read
    };
    let read = check("first", "doc", &text, Traffic::default(), usize::MAX);
    assert!(read.received() < 200_000);
    let look = |what: &str, read: Traffic, most: usize| {
        assert!(read.received() < most && read.fetches() <= 4, "{what}: {read:?}");
    };

    text = edited(&text, 150_000, b"a new line\n");
    let saved = writer.put("doc", &text);
    look("rewritten", check("rewritten", "doc", &text, saved, 8_000), 12_000);

    text = edited(&text, 0, b"a line at the front\n");
    let saved = writer.put("doc", &text);
    look("at the front", check("at the front", "doc", &text, saved, 8_000), 12_000);

    text.extend_from_slice(b"and at the end\n");
    let saved = writer.patch("doc", text.len() as u64 - 15, b"and at the end\n");
    look("appended", check("appended", "doc", &text, saved, 8_000), 12_000);

    text[200_000..200_004].copy_from_slice(b"here");
    let saved = writer.patch("doc", 200_000, b"here");
    look("in place", check("in place", "doc", &text, saved, 8_000), 12_000);

    // Editors write another file and rename it over the document.
    text = edited(&text, 70_000, b"renamed over\n");
    let saved = writer.put("doc.tmp123", &text);
    assert!(saved.sent() < 10_000, "{saved:?}");
    writer.rename("doc.tmp123", "doc");
    look("renamed over", check("renamed over", "doc", &text, Traffic::default(), usize::MAX), 20_000);

    // A file of an unrelated name: its base is found by the chunks they share, or else by resemblance.
    let copy = edited(&text, 100_000, b"a copy\n");
    let saved = writer.put("quite-another-name", &copy);
    check("copied", "quite-another-name", &copy, saved, 14_000);
    let mut garbled = copy.clone();
    garbled.iter_mut().step_by(1500).for_each(|byte| *byte = b'#');
    let saved = writer.put("alike", &garbled);
    check("alike", "alike", &garbled, saved, 40_000);
    let status = writer.engine.status().store.transfer;
    assert!(status.delta_saved_sent > 100_000 && status.bases_missing == 0, "{status:?}");
}

/// Proves: when a large incompressible file changed in a few places, only what changed travels, to the server and from
/// it, although the file is a map of many chunks.
#[test]
fn a_large_binary() {
    let site = Site::new(|_| {});
    let (writer, reader) = (mount(&site, 2, full()), mount(&site, 3, full()));
    let mut bytes = noise(5, 6_000_000);
    writer.put("blob", &bytes);
    assert!(reader.get("blob").0 == bytes);
    reader.settle();
    for offset in [5_000, 2_000_000, 4_500_000] {
        bytes = edited(&bytes, offset, &noise(offset as u64, 700));
    }
    let saved = writer.put("blob", &bytes);
    println!("blob: sent {} {:?}", saved.sent(), saved.0);
    assert!(saved.sent() < 20_000, "{saved:?}");
    writer.settle();
    let (read, passed) = reader.get("blob");
    println!("blob: received {} {:?}", passed.received(), passed.0);
    assert!(read == bytes);
    assert!(passed.received() < 20_000, "{passed:?}");
}

/// Proves: the first read of a file takes two round trips, however many levels its map has: one for the map and one for
/// the data. Where the client has an earlier version, it takes one. The same map request serves a fast, far link.
#[test]
fn rounds_of_a_first_read() {
    let fast = Link { round_trip: Duration::from_millis(80), up: 50_000_000, down: 50_000_000 };
    for link in [CABLE, fast] {
        let site = Site::new(|_| {});
        let transfer = TransferConfig { mode: TransferMode::Full, link: Some(link) };
        let (writer, reader) = (mount(&site, 2, transfer), mount(&site, 3, transfer));
        // Large enough for two levels of nodes above the chunks.
        let mut bytes = prose(20, 2_500_000);
        writer.put("large", &bytes);
        let _ = reader.files.lookup(&WHO, reader.team, b"large").unwrap();
        let (read, passed) = reader.get("large");
        assert!(read == bytes);
        assert_eq!(passed.count("tree"), 1, "{passed:?}");
        // A node is smaller than a chunk. At most one small block came alone, the last chunk: so no node did.
        let small = passed.0.iter().filter(|(name, _, received)| name.starts_with('r') && *received < 4096);
        assert!(small.count() <= 1, "{passed:?}");
        if link != CABLE {
            continue;
        }
        // The data was asked for in few requests at once.
        assert!(passed.count("parcel") <= 4, "{passed:?}");
        reader.settle();
        bytes = edited(&bytes, 500_000, b"a few words more");
        writer.put("large", &bytes);
        let _ = reader.files.lookup(&WHO, reader.team, b"large").unwrap();
        let (read, passed) = reader.get("large");
        assert!(read == bytes);
        assert_eq!((passed.count("tree"), passed.fetches()), (1, 1), "{passed:?}");
    }
}

/// Proves: reading all small files of a directory one after the other takes far fewer requests than there are files;
/// reading only a few of them fetches little else.
#[test]
fn many_small_files() {
    const COUNT: usize = 150;
    let fast = Link { round_trip: Duration::from_micros(200), up: 50_000_000, down: 50_000_000 };
    for link in [CABLE, fast] {
        let site = Site::new(|_| {});
        let transfer = TransferConfig { mode: TransferMode::Full, link: Some(link) };
        let writer = mount(&site, 2, transfer);
        let name = |number: usize| format!("file-{number:03}");
        let text = |number: usize, round: u64| prose(1000 * round + number as u64, 1500);
        for number in 0..COUNT {
            writer.put(&name(number), &text(number, 1));
        }
        writer.engine.stop();
        let scattered_reader = mount(&site, 3, transfer);
        for number in [100, 7, 52, 3, 80] {
            let (read, passed) = scattered_reader.get(&name(number));
            assert!(read == text(number, 1));
            assert!(passed.received() < 20_000, "{number}: {passed:?}");
        }
        let fetched = scattered_reader.engine.status().store.blocks_fetched;
        assert!(fetched < 60, "{fetched} blocks");
        scattered_reader.engine.stop();
        drop(scattered_reader);
        std::fs::remove_dir_all(site.path("cache-3")).unwrap();
        let reader = mount(&site, 3, transfer);
        let mut requests = 0;
        for number in 0..COUNT {
            let (read, passed) = reader.get(&name(number));
            assert!(read == text(number, 1), "{number}");
            requests += passed.fetches();
        }
        assert!(requests < COUNT / 4, "{requests} requests for {COUNT} files");
    }
}

/// Proves: when a file comes to contain another file, it is sent and read as the difference to both: the other file and
/// its own older version.
#[test]
fn a_bundle_of_other_files() {
    let site = Site::new(|_| {});
    let (writer, reader) = (mount(&site, 2, full()), mount(&site, 3, full()));
    // Library and bundle are larger than a MiB, so both are cut into chunks of the same sizes.
    let (library, own) = (prose(30, 1_200_000), prose(31, 700_000));
    // As if every word was indented: no chunk stays the same, and none is similar.
    let indented = |text: &[u8]| -> Vec<u8> {
        text.split(|byte| *byte == b' ').flat_map(|word| [&b"    "[..], word].concat()).collect()
    };
    writer.put("library", &library);
    writer.put("bundle", &[indented(&library), own.clone()].concat());
    assert!(reader.get("library").0 == library);
    let _ = reader.get("bundle");
    reader.settle();
    let bundle = [edited(&library, 1000, b"new"), edited(&own, 1000, b"new")].concat();
    let passed = writer.put("bundle", &bundle);
    assert!(passed.sent() < 60_000, "{} of {}: {passed:?}", passed.sent(), bundle.len());
    let (read, passed) = reader.get("bundle");
    assert!(read == bundle);
    assert!(passed.received() < 60_000, "{} of {}: {passed:?}", passed.received(), bundle.len());
}

/// Proves: when a link is cut in the middle of a transfer, only the messages under way are lost: what was stored before
/// is not sent again.
#[test]
fn cut_in_the_middle() {
    let site = Site::new(|_| {});
    let writer = mount(&site, 2, full());
    let bytes = noise(9, 3_000_000);
    let sent = Arc::new(Mutex::new(0usize));
    let count = sent.clone();
    *writer.tap.intercept.lock() = Some(Box::new(move |request| match request {
        Request::StoreParcels(_) => {
            *count.lock() += 1;
            // An error that is not retried: closing the file fails, and the user saves again later.
            (*count.lock() > 12).then(|| Err(RpcError::Malformed("cut".into())))
        }
        _ => None,
    }));
    let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
    let (_, opened) = writer.files.create(&WHO, writer.team, b"blob", 0o644, flags).unwrap();
    writer.write(opened.handle, 0, &bytes);
    let (result, first) = writer.traffic_of(|| writer.files.flush(opened.handle));
    assert!(result.is_err());
    *writer.tap.intercept.lock() = None;
    let (result, second) = writer.traffic_of(|| writer.files.flush(opened.handle));
    result.unwrap();
    writer.files.release(opened.handle);
    assert!(first.0.iter().all(|(_, sent, _)| *sent < 300_000), "{first:?}");
    let stored = 12 * 60_000;
    assert!(second.sent() < bytes.len() - stored, "{} {second:?}", second.sent());
    assert!(mount(&site, 3, full()).get("blob").0 == bytes);
}

/// Proves: a server that lacks the bases of a parcel, or claims so each time, is sent the data all the same: in parcels
/// without those bases or block by block, both when data is stored ahead and when it comes with an operation.
#[test]
fn bases_gone_at_the_server() {
    for always in [false, true] {
        let site = Site::new(|_| {});
        let writer = mount(&site, 2, full());
        let mut text = prose(3, 400_000);
        writer.put("doc", &text);
        let reported = Mutex::new(std::collections::HashSet::new());
        *writer.tap.intercept.lock() = Some(Box::new(move |request| {
            let parcels = match request {
                Request::StoreParcels(parcels) => parcels,
                Request::Fast { attached, .. } | Request::Update { attached, .. } => &attached.parcels,
                _ => return None,
            };
            let mut reported = reported.lock();
            let named = parcels.iter().flat_map(|parcel| parcel.bases.iter());
            let bases: Vec<Digest> = named
                .map(|base| match base {
                    Base::Block(address) => *address,
                    Base::Under { node, .. } => *node,
                })
                .collect();
            let fresh: Vec<Digest> =
                bases.into_iter().filter(|base| reported.insert(*base) || always).collect();
            let lies = !fresh.is_empty() || (always && !parcels.is_empty());
            lies.then_some(Ok(Response::BasesMissing(fresh)))
        }));
        text = edited(&text, 1000, &prose(4, 10_000));
        writer.put("doc", &text);
        text = edited(&text, 100, &prose(5, 250_000));
        writer.put("doc", &text);
        assert!(writer.engine.status().store.transfer.bases_missing > 0);
        *writer.tap.intercept.lock() = None;
        assert!(mount(&site, 3, full()).get("doc").0 == text, "always: {always}");
    }
}

/// Proves: whatever a server packs into its parcels, the reader reads exactly what was written, and nothing hangs: in the
/// end the blocks are fetched one by one.
#[test]
fn a_server_that_packs_badly() {
    fn altered(response: Response, how: u32) -> Response {
        let other = || Some(Parcel { bases: vec![], plain_bytes: 100, frame: vec![1; 50] });
        match response {
            Response::Parcel { parcel, covered, missing } => match how {
                0 => Response::Parcel { parcel: other(), covered, missing },
                1 => Response::Parcel { parcel: None, covered, missing },
                2 => Response::Parcel { parcel, covered: 0, missing },
                3 => Response::Parcel { parcel, covered: u32::MAX, missing },
                4 => {
                    let bases = vec![Base::Block(Digest([7; 32]))];
                    Response::Parcel {
                        parcel: parcel.map(|parcel| Parcel { bases, ..parcel }),
                        covered,
                        missing,
                    }
                }
                5 => {
                    let cut = |parcel: Parcel| {
                        let frame = parcel.frame[..parcel.frame.len() / 2].to_vec();
                        Parcel { frame, ..parcel }
                    };
                    Response::Parcel { parcel: parcel.map(cut), covered, missing }
                }
                _ => {
                    let bomb = |parcel: Parcel| Parcel { plain_bytes: u32::MAX, ..parcel };
                    Response::Parcel { parcel: parcel.map(bomb), covered, missing }
                }
            },
            Response::Tree { parcel, complete } => match how {
                0 => Response::Tree { parcel: other(), complete },
                1 => Response::Tree { parcel: None, complete: true },
                _ => {
                    let bases = vec![Base::Block(Digest([7; 32]))];
                    Response::Tree { parcel: parcel.map(|parcel| Parcel { bases, ..parcel }), complete }
                }
            },
            other => other,
        }
    }
    let site = Site::new(|_| {});
    let (writer, reader) = (mount(&site, 2, full()), mount(&site, 3, full()));
    let mut text = prose(6, 900_000);
    writer.put("doc", &text);
    assert!(reader.get("doc").0 == text);
    for how in 0..7 {
        reader.settle();
        text = edited(&text, 1000 + 100_000 * how as usize, &prose(u64::from(how) + 100, 9_000));
        writer.put("doc", &text);
        *reader.tap.alter.lock() = Some(Box::new(move |response| altered(response, how)));
        assert!(reader.get("doc").0 == text, "{how}");
        *reader.tap.alter.lock() = None;
        assert!(reader.get("doc").0 == text, "{how}");
    }
    assert!(reader.engine.status().store.transfer.parcels_refused > 0);
}

/// Proves: a reader whose cache has lost the bases of a parcel reads the file all the same.
#[test]
fn bases_gone_at_the_client() {
    let site = Site::new(|_| {});
    let writer = mount(&site, 2, full());
    let mut text = prose(8, 800_000);
    writer.put("doc", &text);
    let reader = mount(&site, 3, full());
    assert!(reader.get("doc").0 == text);
    reader.settle();
    reader.files.publish_all();
    let Mount { files, engine, tap, .. } = reader;
    engine.stop();
    drop((files, engine, tap));
    text = edited(&text, 5000, b"changed");
    writer.put("doc", &text);
    // The cache's index still names chunks whose bytes are now wrong.
    spoil(&site.path("cache-3"));
    let reader = mount(&site, 3, full());
    assert!(reader.get("doc").0 == text);
}

/// Overwrites the last two thirds of every segment below a folder.
fn spoil(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            spoil(&entry.path());
        } else if entry.path().extension().is_some_and(|extension| extension == "segment") {
            let length = entry.metadata().unwrap().len() as usize;
            let mut bytes = std::fs::read(entry.path()).unwrap();
            bytes[length / 3..].fill(0xaa);
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
}

/// Proves: the transfer modes that benchmarks compare with transfer files correctly, and do what their names say: LBFS's
/// asks which chunks are present and sends no parcels, the plain one sends everything.
#[test]
fn other_ways_of_transfer() {
    let site = Site::new(|_| {});
    let reader = mount(&site, 3, full());
    let text = prose(10, 500_000);
    let changed = edited(&text, 250_000, b"a new line\n");
    for (mode, name) in [(TransferMode::Lbfs, "lbfs"), (TransferMode::Plain, "plain")] {
        let writer = mount(&site, 2, TransferConfig { mode, link: Some(CABLE) });
        writer.put(name, &text);
        assert!(reader.get(name).0 == text);
        let (passed, asked) = match mode {
            TransferMode::Lbfs => (writer.put("copy", &changed), true),
            _ => (writer.put("other", &prose(11, 500_000)), false),
        };
        assert_eq!(passed.count("parcels"), 0);
        assert_eq!(passed.count("present") > 0, asked, "{passed:?}");
        match asked {
            true => assert!(passed.sent() < 60_000, "{passed:?}"),
            false => assert!(passed.sent() > 100_000, "{passed:?}"),
        }
        let last = if asked { "copy" } else { "other" };
        let _ = reader.get(last);
        writer.engine.stop();
    }
    assert!(reader.get("copy").0 == changed);
}
