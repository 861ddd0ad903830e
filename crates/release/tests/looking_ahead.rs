//! Looking up a deep path costs one round trip at a server that has hints, and one for each level at a server that has
//! none.

use crate::publisher;

use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::draft::Draft;
use holdfast_release::mirror::{Http, Mirror, MirrorError};
use holdfast_release::open::{Options, Release};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::serve::{ServeConfig, Server};
use holdfast_release::signing::Signed;
use holdfast_release::tree::PathLookup;
use publisher::{chain, first_set, install, publish};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A mirror that counts requests.
struct Counting {
    inner: Http,
    can_look_up: bool,
    files: AtomicU64,
    paths: AtomicU64,
}

impl Mirror for Counting {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn get(&self, file: &str, range: Option<Range<u64>>, bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.files.fetch_add(1, SeqCst);
        self.inner.get(file, range, bytes_max)
    }

    fn paths(&self, paths: &[&[u8]], bytes_max: u64) -> Result<Vec<u8>, MirrorError> {
        self.paths.fetch_add(1, SeqCst);
        if self.can_look_up {
            return self.inner.paths(paths, bytes_max);
        }
        Err(MirrorError::Missing { mirror: self.name().to_owned(), file: "paths".to_owned() })
    }
}

/// Publishes twice, serves, opens, and reads along deep paths. The hints of the second release are of its own tree, and
/// those of the first are gone.
#[test]
fn one_round_trip() {
    let (source, target) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    let write = |name: &str| {
        let file = source.path().join(name);
        fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        fs::write(file, name).expect("written");
    };
    // So much between one directory and the next that they are not fetched together by chance.
    for folder in ["a", "a/b", "a/b/c", "a/b/c/d"] {
        (0..2000u32).for_each(|n| write(&format!("{folder}/{:08x}", n.wrapping_mul(2_654_435_761))));
    }
    let first =
        Draft { sets: vec![], keys: Some(Signed::unsigned(first_set())), root: None, statement: None };
    install(&ReleaseDir::new(target.path()), first);
    publish(source.path(), target.path());
    write("a/b/c/d/new");
    publish(source.path(), target.path());
    let hints = fs::read_dir(target.path().join("hints")).expect("hints").count();
    assert!((1..=2).contains(&hints), "{hints}");

    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = Server::open(ServeConfig::new(target.path().to_owned(), listen)).expect("it listens");
    let url = format!("http://{}/", server.local_address());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || server.run(async { drop(stopped.await) }));
    let cost = |can_look_up: bool| {
        let trust = tempfile::tempdir().expect("made");
        let mirror = Arc::new(Counting {
            inner: Http::new(&url).expect("a URL"),
            can_look_up,
            files: AtomicU64::new(0),
            paths: AtomicU64::new(0),
        });
        let options = Options {
            id: chain().id(),
            trust: trust.path().to_owned(),
            revocations: Vec::new(),
            stale: ExpiredPolicy::Refuse,
            cache: None,
            memory_bytes: 64 << 20,
        };
        let release = Release::open(options, vec![mirror.clone()]).expect("opened");
        let before = mirror.files.load(SeqCst);
        let paths: [&[u8]; 2] = [b"a/b/c/d/new", b"a/b/c/d/nothing"];
        release.look_ahead(&paths);
        let tree = &release.current().tree;
        assert!(matches!(tree.resolve(paths[0], false).expect("resolved"), PathLookup::Node(_)));
        assert!(matches!(tree.resolve(paths[1], false).expect("resolved"), PathLookup::Nothing));
        (mirror.paths.load(SeqCst), mirror.files.load(SeqCst) - before)
    };
    assert_eq!(cost(true), (1, 0), "one request, and none for packs");
    let (asked, fetched) = cost(false);
    assert!(asked == 1 && fetched >= 4, "{asked} asked, {fetched} fetched");
    drop(stop);
    serving.join().expect("no panic").expect("it ended well");
}
