//! Engines against the real server over the network of this machine.

use crate::common;

use common::{NOW, create as make, modify, names, read, unlink, write};
use holdfast_client::admin::{Admin, CreateConfig, CreateError, Home, create};
use holdfast_client::{Engine, EngineConfig, FsError, StartError, View};
use holdfast_content::Handle;
use holdfast_crypto::SigningKey;
use holdfast_rpc::{Address, ServerAddress};
use holdfast_server::{Server, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const DEADLINE: Duration = holdfast_testing::PATIENCE;
/// No term of the server's runs out while a test runs.
const TERM: Duration = Duration::from_secs(3600);

struct Running {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(data: &Path, listen: SocketAddr) -> Running {
        let mut config = ServerConfig::new(data, listen);
        config.abort_after = TERM;
        config.lease_term = TERM;
        let server = Server::open(config).unwrap();
        let address = server.local_address();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            server
                .run(async {
                    let _ = stopped.await;
                })
                .unwrap();
        });
        Running { address, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Fixture {
    directory: tempfile::TempDir,
    address: Address,
    server: Option<Running>,
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

impl Fixture {
    fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let server = Running::start(&directory.path().join("server"), "127.0.0.1:0".parse().unwrap());
        let address = ServerAddress { host: "127.0.0.1".into(), port: server.address.port() };
        let config = |state: PathBuf, now_ns: i64| CreateConfig {
            server: address.clone(),
            others: Vec::new(),
            superuser: key(1).into(),
            name: "site".into(),
            superuser_name: "root".into(),
            state_dir: state,
            now_ns,
            deadline: DEADLINE,
        };
        let address = create(config(directory.path().join("state-1"), NOW)).unwrap();
        for state in ["state-1", "elsewhere"] {
            let again = create(config(directory.path().join(state), NOW + 1));
            assert!(matches!(again, Err(CreateError::Exists)));
        }
        let site = Fixture { directory, address, server: Some(server) };
        let root = site.start(1).unwrap();
        let admin = Admin::new(&root).unwrap();
        for user in ["alice", "bob"] {
            let seed = if user == "alice" { 2 } else { 3 };
            admin.add_user(user, Some(("laptop", key(seed).public())), Home::Make, NOW).unwrap();
        }
        admin.add_group("team", &["alice", "bob"], Home::Make, NOW).unwrap();
        site
    }

    fn config(&self, seed: u8) -> EngineConfig {
        let state = self.directory.path().join(format!("state-{seed}"));
        let mut config = EngineConfig::new(self.address.clone(), key(seed), state);
        config.cache_dir = Some(self.directory.path().join(format!("cache-{seed}")));
        config.deadline = DEADLINE;
        config
    }

    fn start(&self, seed: u8) -> Result<Arc<Engine>, StartError> {
        Engine::start(self.config(seed))
    }

    fn team(&self, engine: &Engine) -> Handle {
        engine.fetch().unwrap().entry(Handle::ROOT, b"team").unwrap().unwrap().handle
    }

    fn restart_server(&mut self) {
        let listen = self.server.take().map(|server| server.address).unwrap();
        self.server = Some(Running::start(&self.directory.path().join("server"), listen));
    }
}

/// Proves: two engines create concurrently in one group directory of a real server; both end with everything;
/// restarts of the clients and of the server lose nothing.
#[test]
fn two_engines_one_server() {
    let mut site = Fixture::new();
    let engines = [site.start(2).unwrap(), site.start(3).unwrap()];
    let directory = site.team(&engines[0]);
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            for thread in 0..3 {
                scope.spawn(move || {
                    for number in 0..20 {
                        let name = format!("{device}-{thread}-{number}");
                        modify(engine, make(directory, &name, name.as_bytes())).unwrap();
                    }
                });
            }
        }
    });
    for engine in &engines {
        engine.flush_commits().unwrap();
        assert_eq!(names(&engine.fetch().unwrap(), directory).len(), 120);
        assert!(engine.status().frozen.is_none());
    }
    // The server goes away and comes back while both work.
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..30 {
                    let name = format!("{device}-0-{}", number % 20);
                    if number < 20 {
                        modify(engine, write(directory, &name, b"rewritten")).unwrap();
                    } else {
                        modify(engine, unlink(directory, &name)).unwrap();
                    }
                    engine.flush_commits().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(100)); // Any moment will do.
                site.restart_server();
            }
        });
    });
    let expected = names(&engines[0].fetch().unwrap(), directory);
    assert_eq!(expected.len(), 100);
    let [a, b] = engines;
    drop((a, b));
    for seed in [2, 3] {
        let engine = site.start(seed).unwrap();
        let snapshot = engine.fetch().unwrap();
        assert_eq!(names(&snapshot, directory), expected);
        assert_eq!(read(&snapshot, directory, "0-0-15").unwrap(), b"rewritten");
    }
}

/// Proves: each wrong start is told apart, with words.
#[test]
fn wrong_starts() {
    let site = Fixture::new();
    let alice = site.start(2).unwrap();
    assert!(matches!(site.start(2), Err(StartError::InUse { .. })));
    assert!(matches!(site.start(9), Err(StartError::UnknownDevice { .. })));
    let mut config = site.config(2);
    config.state_dir = site.directory.path().join("other");
    assert!(matches!(Engine::start(config), Err(StartError::StateMissing { .. })));
    let mut config = site.config(3);
    config.address.file_system = key(77).public().file_system_id();
    config.state_dir = site.directory.path().join("wrong");
    assert!(matches!(Engine::start(config), Err(StartError::UnknownFileSystem | StartError::WrongServer(_))));
    let mut config = site.config(3);
    config.address.server.port = 1;
    config.deadline = Duration::from_millis(300);
    assert!(matches!(Engine::start(config), Err(StartError::Unreachable(_))));
    alice.stop();
    drop(alice);
    let mut config = site.config(3);
    config.state_dir = site.directory.path().join("state-2");
    assert!(matches!(Engine::start(config), Err(StartError::StateForeign { .. })));
    site.start(2).unwrap();
}

/// Proves: a device removed by the superuser is refused from then on; what it wrote stays; a new device of the
/// same user goes on with the same files.
#[test]
fn devices_come_and_go() {
    let site = Fixture::new();
    let laptop = site.start(2).unwrap();
    let directory = site.team(&laptop);
    modify(&laptop, make(directory, "file", b"from the laptop")).unwrap();
    laptop.flush_commits().unwrap();
    let root = site.start(1).unwrap();
    let admin = Admin::new(&root).unwrap();
    admin.add_device("alice", "desktop", key(4).public()).unwrap();
    let desktop = site.start(4).unwrap();
    assert_eq!(desktop.me().1, laptop.me().1);
    modify(&desktop, write(directory, "file", b"from the desktop")).unwrap();
    assert_eq!(read(&laptop.fetch().unwrap(), directory, "file").unwrap(), b"from the desktop");
    admin.remove_device("alice", "laptop").unwrap();
    assert!(matches!(modify(&laptop, make(directory, "late", b"")), Err(FsError::Access(_))));
    modify(&desktop, make(directory, "later", b"")).unwrap();
    assert_eq!(names(&root.fetch().unwrap(), directory), ["file", "later"]);
    assert!(matches!(Admin::new(&desktop), Err(FsError::Access(_))));
    let members = admin.membership().unwrap();
    assert_eq!(members.devices.values().filter(|device| device.removed_at.is_some()).count(), 1);
}

/// Proves: what is under lease is read without an operation, until another device changes it, which by then has taken the
/// lease away; a lease of a whole group that saved little gives way to one of the directory; a delegation is given to one
/// who is alone, when another so much as fetches, what its holder sends before it lets go is in what the other sees, and
/// then it is there again.
#[test]
fn leases_and_delegations() {
    let site = Fixture::new();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = site.team(&alice);
    let operations = |engine: &Engine| engine.status().operations;
    assert!(alice.leased(&[team]).is_none(), "it is wished for");
    alice.fetch().unwrap();
    let before = operations(&alice);
    let (view, stamp) = alice.leased(&[team]).expect("granted");
    assert_eq!(names(&view, team), [""; 0]);
    assert!(alice.leased_for(stamp, &[team]).is_some());
    modify(&alice, create_file(team, "own")).unwrap();
    assert_eq!(names(&alice.leased(&[team]).expect("kept").0, team), ["own"]);
    assert_eq!(operations(&alice), before + 1);

    modify(&bob, create_file(team, "other")).unwrap();
    // What is pending is granted to nobody.
    bob.flush_commits().unwrap();
    assert!(alice.leased(&[team]).is_none(), "it was recalled before bob's file was made");
    assert!(alice.leased_for(stamp, &[team]).is_none());
    assert_eq!(names(&alice.fetch().unwrap(), team), ["other", "own"]);
    if alice.leased(&[team]).is_none() {
        // The fetch was refused its fast path, and the request went with it.
        alice.fetch().unwrap();
    }
    assert_eq!(names(&alice.leased(&[team]).expect("the directory is leased").0, team), ["other", "own"]);
    let elsewhere = Handle { number: u64::MAX >> 8, ..team };
    assert!(alice.leased(&[elsewhere]).is_none(), "and only that");
    assert_eq!(alice.status().recalls, 1);
    assert!(alice.status().leased_reads >= 3);

    bob.stop();
    let bob = site.start(3).unwrap();
    let (engine, sent) = (Arc::downgrade(&alice), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let told = sent.clone();
    alice.on_recall(Box::new(move |dropped| {
        if let (true, Some(engine)) = (dropped.delegation, engine.upgrade()) {
            assert!(!engine.delegation());
            modify(&engine, create_file(team, "held back")).unwrap();
            engine.flush_commits().unwrap();
            told.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }));
    alice.want_exclusive(true);
    assert!(!alice.delegation());
    holdfast_testing::eventually("a delegation is given", || {
        alice.fetch().unwrap();
        alice.delegation()
    });
    let seen = bob.fetch().unwrap();
    assert!(sent.load(std::sync::atomic::Ordering::SeqCst));
    assert!(names(&seen, team).contains(&"held back".to_owned()));
    holdfast_testing::eventually("it is given again, as the other has looked", || {
        alice.fetch().unwrap();
        alice.delegation()
    });
}

fn create_file(
    directory: Handle,
    name: &str,
) -> impl FnMut(&mut dyn holdfast_client::Changes) -> Result<(), FsError> + Send + 'static {
    make(directory, name, name.as_bytes())
}

/// Proves: who ends gives up its leases, so that what others change then waits for nobody. (The term is longer than the
/// deadline of an operation.)
#[test]
fn leases_end_with_their_engine() {
    let site = Fixture::new();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = site.team(&alice);
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    alice.stop();
    modify(&bob, create_file(team, "other")).unwrap();
    bob.flush_commits().unwrap();
}

/// Proves: after the server was killed, changes wait for those who held leases to hear of it, not for their whole term.
#[test]
fn leases_over_restarts() {
    let mut site = Fixture::new();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = site.team(&alice);
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    let note = site.directory.path().join("server/leases");
    let text = std::fs::read_to_string(&note).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    // A server that ends in order has all given up, and so forgets.
    site.restart_server();
    assert!(!note.exists());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    // One that was killed finds the note as it was.
    let text = std::fs::read_to_string(&note).unwrap();
    drop(site.server.take());
    std::fs::write(&note, &text).unwrap();
    site.server = Some(Running::start(
        &site.directory.path().join("server"),
        format!("127.0.0.1:{}", site.address.server.port).parse().unwrap(),
    ));
    // Alice holds nothing, and does not ask by herself; her next operation tells her to.
    alice.fetch().unwrap();
    modify(&bob, create_file(team, "after")).unwrap();
    assert!(alice.leased(&[team]).is_none());
    assert_eq!(names(&alice.fetch().unwrap(), team), ["after"]);
}
