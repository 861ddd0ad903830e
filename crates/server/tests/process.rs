//! The server as a process: real sockets, real disk, kill -9.

use crate::common;

use common::load::{Load, insist, operate};
use common::*;
use holdfast_content::{Block, BlockKind, DeviceId, Parcel, Prefix};
use holdfast_crypto::{DigestKey, PublicKey};
use holdfast_log::LogError;
use holdfast_protocol::message::{Request, Response, ServerError};
use holdfast_rpc::{Connection, Connector, RpcError, ServerAddress, ServerProof};
use holdfast_server::control::{self, Outcome, Task};
use holdfast_server::{OpenError, Server, ServerConfig, until_signalled};
use holdfast_store::StoreError;
use holdfast_testing::{PATIENCE, eventually, free_port};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DATA: &str = "HOLDFAST_TEST_SERVER_DATA";
const PORT: &str = "HOLDFAST_TEST_SERVER_PORT";

fn config(data: &Path, port: u16) -> ServerConfig {
    let mut config = ServerConfig::new(data, ([127, 0, 0, 1], port).into());
    config.abort_after = Duration::from_secs(120);
    // Small, so that checkpoints happen under load, too.
    config.checkpoint_records = 50;
    // So small that parcels have to wait for each other.
    config.parcels.memory_bytes = 4 << 20;
    config
}

/// Not a test: the server that other tests start as a process and kill.
#[test]
fn server_process() {
    let (Ok(data), Ok(port)) = (std::env::var(DATA), std::env::var(PORT)) else { return };
    let server = Server::open(config(Path::new(&data), port.parse().unwrap())).unwrap();
    println!("\nready {} {}", server.local_address().port(), server.key());
    server.run(until_signalled()).unwrap();
}

struct Process {
    child: Child,
    /// Held open, as a test harness that cannot print fails.
    _output: BufReader<std::process::ChildStdout>,
    port: u16,
    key: String,
}

impl Process {
    fn start(data: &Path) -> Process {
        Process::start_on(data, free_port())
    }

    fn start_on(data: &Path, port: u16) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::server_process", "--nocapture", "--test-threads=1"])
            .env(DATA, data)
            .env(PORT, port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while output.read_line(&mut line).unwrap() > 0 {
            if let Some(words) = line.trim_end().strip_prefix("ready ") {
                let (port, key) = words.split_once(' ').unwrap();
                let (port, key) = (port.parse().unwrap(), key.to_owned());
                return Process { child, _output: output, port, key };
            }
            line.clear();
        }
        panic!("the server did not start: {:?}", child.wait());
    }

    fn key(&self) -> PublicKey {
        PublicKey(holdfast_crypto::Digest::from_hex(&self.key).unwrap().0)
    }

    fn address(&self) -> Vec<ServerAddress> {
        address(self.port)
    }

    fn connect(&self, device: u8) -> Connection {
        connect(self.port, device)
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(&mut self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

fn address(port: u16) -> Vec<ServerAddress> {
    vec![ServerAddress { host: "127.0.0.1".to_owned(), port }]
}

fn connect(port: u16, device: u8) -> Connection {
    let key = if device == 0 { superuser() } else { key(10 + device) };
    let proof = ServerProof { file_system: file_system(), minimum_sequence: 0 };
    Connector::new(key, address(port), Some(proof)).connect(PATIENCE).unwrap()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn create(process: &Process, people: u32) {
    let connection = Connector::new(superuser(), process.address(), None).connect(PATIENCE).unwrap();
    let answer = connection.call_blocking(creation(process.key(), people), PATIENCE).unwrap();
    committed(answer, &process.key());
}

/// Proves: a server that is killed again and again under the load of three devices loses nothing that it has
/// acknowledged, and applies nothing twice, although its clients repeat every unanswered request.
#[test]
fn kill_nine_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path());
    let (port, server) = (process.port, process.key());
    create(&process, 3);
    let load = Load::run(
        |device| connect(port, device),
        server,
        |until| {
            for round in 1..=6u64 {
                until.operations(round * 40);
                process.kill();
                process = Process::start_on(folder.path(), port);
            }
        },
    );
    process.kill();
    let mut process = Process::start_on(folder.path(), port);
    load.check(&process.connect(1));
    process.terminate();
}

/// Proves: a reader that waits for a pending operation is told of its commit, or that it waited in vain. A pending
/// operation stays when its session ends.
#[test]
fn waiting_for_a_pending_operation() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    create(&process, 2);
    let (writer, reader) = (process.connect(1), process.connect(2));
    let mut author = Author::new(1);
    let shown = view(insist(&writer, &Request::Look { log_size: 0 }));
    let (certificate, update) = author.update(&shown.view);
    let ordered = view(insist(&writer, &update));
    let wait = |wait_ms| Request::FetchPending { device: DeviceId(1), number: 1, wait_ms };
    assert_eq!(insist(&reader, &wait(50)), Response::Structure(None), "in vain");
    drop(writer);
    let asked = || reader.traffic().requests;
    let before = asked();
    let waiting = std::thread::spawn({
        let (reader, wait) = (reader.clone(), wait(50_000));
        move || insist(&reader, &wait)
    });
    eventually("it is asked", || asked() > before);
    assert_eq!(insist(&reader, &Request::Ping), Response::Done);
    let writer = process.connect(1);
    let commit = author.commit(&ordered.view, &certificate);
    committed(insist(&writer, &commit), &process.key());
    let Request::Commit { structure, .. } = commit else { unreachable!() };
    assert_eq!(waiting.join().unwrap(), Response::Structure(Some(Box::new(structure.clone()))));
    assert_eq!(insist(&reader, &wait(0)), Response::Structure(Some(Box::new(structure))));
}

/// Proves: a second server on the directory, a directory of a newer format, a port that is in use, and a file instead
/// of a directory are each refused with an error of their own, and nothing is lost.
#[test]
fn unfit_directories_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let first = Server::open(config(folder.path(), 0)).unwrap();
    let second = Server::open(config(folder.path(), 0)).err().unwrap();
    assert!(matches!(second, OpenError::Store(StoreError::InUse { .. })), "{second}");
    let other = tempfile::tempdir().unwrap();
    let taken = Server::open(config(other.path(), first.local_address().port())).err().unwrap();
    assert!(matches!(taken, OpenError::Listen { .. }), "{taken}");
    drop(first);
    let file = other.path().join("file");
    std::fs::write(&file, "").unwrap();
    let wrong = Server::open(config(&file, 0)).err().unwrap();
    assert!(matches!(wrong, OpenError::Io { .. }), "{wrong}");

    let format = folder.path().join("store/FORMAT");
    let bytes = std::fs::read(&format).unwrap();
    let newer: Vec<u8> = String::from_utf8(bytes.clone()).unwrap().replace('1', "999").into_bytes();
    std::fs::write(&format, newer).unwrap();
    let newer = Server::open(config(folder.path(), 0)).err().unwrap();
    let is_newer = matches!(
        newer,
        OpenError::Store(StoreError::NewerFormat { .. } | StoreError::Log(LogError::NewerFormat { .. }))
    );
    assert!(is_newer, "{newer}");
    std::fs::write(&format, bytes).unwrap();
    Server::open(config(folder.path(), 0)).unwrap();
}

/// Proves: the operator's tasks work on a running server and on the directory of a stopped one; damage is found and
/// named.
#[test]
fn operators_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = control::perform(&config(&folder.path().join("none"), 0), Task::Scrub, &mut |_, _| {});
    assert!(matches!(nothing, Err(control::ControlError::NoServer(_))));
    let mut process = Process::start(folder.path());
    create(&process, 1);
    let connection = process.connect(1);
    let chunk = block(BlockKind::Chunk, &noise(5, 100_000)).1;
    assert_eq!(insist(&connection, &Request::Store(vec![chunk])), Response::Done);
    operate(&connection, &mut Author::new(1), &process.key());
    let perform = |task| control::perform(&config(folder.path(), 0), task, &mut |_, _| {}).unwrap();
    for running in [true, false] {
        let Outcome::Statistics(figures) = perform(Task::Statistics) else { panic!() };
        assert_eq!((figures.running, &figures.file_systems[..]), (running, &[(file_system(), 2)][..]));
        assert!(figures.blocks >= 3 && figures.block_bytes > 100_000, "{figures:?}");
        let Outcome::Collected(reports) = perform(Task::Collect) else { panic!() };
        let report = reports[0].1.as_ref().unwrap();
        assert_eq!(report.dropped, 0, "all is younger than the window");
        let Outcome::Scrubbed(report) = perform(Task::Scrub) else { panic!() };
        assert!(report.bad_count == 0 && report.records > 3, "{report:?}");
        if running {
            process.terminate();
        }
    }
    // The disk changes a byte of the large block.
    let segments = std::fs::read_dir(folder.path().join("store")).unwrap().map(|entry| entry.unwrap().path());
    let large = segments.max_by_key(|path| match path.extension() {
        Some(extension) if extension == "redb" => 0,
        _ => std::fs::metadata(path).map_or(0, |about| about.len()),
    });
    let large = large.unwrap();
    let mut bytes = std::fs::read(&large).unwrap();
    let body = noise(5, 100_000);
    let at = bytes.windows(64).position(|window| window == &body[5000..5064]).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&large, bytes).unwrap();
    let Outcome::Scrubbed(report) = perform(Task::Scrub) else { panic!() };
    assert_eq!(report.bad_count, 1, "{report:?}");
}

/// Proves: many large parcels at once, to and from the server, are all handled, although there is not enough memory for
/// two. Other requests on the same connection are answered meanwhile.
#[test]
fn parcels_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    create(&process, 2);
    let chunk = |seed: u32| {
        Block::new(&DigestKey::WELL_KNOWN, BlockKind::Chunk, Vec::new(), noise(u64::from(seed), 1 << 20))
    };
    let connections = [process.connect(1), process.connect(2)];
    std::thread::scope(|scope| {
        for (connection, part) in connections.iter().zip(0..) {
            for thread in 0..6 {
                scope.spawn(move || {
                    let blocks: Vec<Block> = (0..3).map(|n| chunk(100 * part + 10 * thread + n)).collect();
                    let parcel = Parcel::pack(&Prefix::default(), &blocks, 1).unwrap();
                    let ask = |request| connection.call_blocking(request, PATIENCE).unwrap();
                    assert_eq!(ask(Request::StoreParcels(vec![parcel])), Response::Done);
                    let wanted = blocks.iter().map(|block| block.reference().address).collect();
                    let request = Request::RetrieveParcel { wanted, bases: Vec::new(), level: 3 };
                    let Response::Parcel { parcel: Some(parcel), covered: 3, .. } = ask(request) else {
                        panic!()
                    };
                    let opened = parcel.open(&DigestKey::WELL_KNOWN, &Prefix::default()).unwrap();
                    assert_eq!(opened, blocks);
                });
            }
            assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
        }
    });
}

/// Proves: a key that no member has gets a refusal and nothing else, and an ordinary refusal does not end the session.
#[test]
fn strangers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path());
    create(&process, 1);
    let proof = ServerProof { file_system: file_system(), minimum_sequence: 0 };
    let stranger = Connector::new(key(99), process.address(), Some(proof)).connect(PATIENCE).unwrap();
    assert_eq!(stranger.welcome().unwrap().device, None);
    let refused = stranger.call_blocking(Request::Look { log_size: 0 }, PATIENCE);
    assert!(matches!(refused, Err(RpcError::Server(ServerError::NotAllowed(_)))), "{refused:?}");
    assert_eq!(stranger.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    let unknown = ServerProof { file_system: key(50).public().file_system_id(), minimum_sequence: 0 };
    let error = Connector::new(key(11), process.address(), Some(unknown)).connect(PATIENCE).err().unwrap();
    assert_eq!(error, RpcError::Server(ServerError::UnknownFileSystem));
}
