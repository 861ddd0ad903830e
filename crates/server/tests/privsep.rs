//! The server in two processes, with a real front end in a real sandbox, and with a compromised one.

use crate::common;

use borsh::{BorshDeserialize, BorshSerialize};
use common::load::{Load, insist};
use common::*;
use holdfast_components::{
    Asker, ChannelPlan, ComponentError, End, Listing, Patience, Permission, Program, Supervisor,
};
use holdfast_content::BlockKind;
use holdfast_crypto::{PublicKey, decode, encode, keyfile};
use holdfast_protocol::message::{Request, Response, ServerError};
use holdfast_rpc::{Connection, Connector, FrameHeader, RpcError, ServerAddress, ServerProof, Transport};
use holdfast_server::privsep::FRONT_END;
use holdfast_server::privsep::messages::{Address, BackEndReply, BackEndRequest};
use holdfast_server::{Server, ServerConfig};
use holdfast_testing::{PATIENCE, eventually, eventually_some};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;

const HOST: &str = env!("CARGO_BIN_EXE_holdfast-server-host");

/// Orders for `taken-over` in `host/main.rs`.
#[derive(BorshSerialize, BorshDeserialize)]
enum Misuse {
    Show,
    KeepNext,
    Say { bytes: Vec<u8>, file: bool },
    Write(Vec<u8>),
    WriteLast(Vec<u8>),
}

type Puppet = Asker<Misuse, Vec<u8>>;

/// A server in this process with a front end in its own.
struct Running {
    port: u16,
    key: PublicKey,
    listing: Box<dyn Fn() -> Listing + Send>,
    puppet: Option<Puppet>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Front {
    Honest,
    TakenOver,
}

impl Running {
    fn start(data: &Path, front: Front) -> Running {
        let mut config = ServerConfig::new(data, ([127, 0, 0, 1], 0).into());
        config.abort_after = Duration::from_secs(120);
        let server = Server::open(config).expect("it opens");
        let (port, key) = (server.local_address().port(), server.key());
        let mut plan = server.front_end().expect("a plan");
        if front == Front::TakenOver {
            plan.components[0].program = "taken-over".to_owned();
            // For the thread that listens to the test.
            plan.components[0].profile.permissions.push(Permission::Threads);
            plan.components[0].profile.threads_max = 4;
            plan.channels.push(ChannelPlan::new(End::host("puppet"), End::of(FRONT_END, "puppet")));
        }
        let (ready, started) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let program = Program::open(Path::new(HOST)).expect("the host was built");
            let on_start = |supervisor: &Supervisor| {
                let puppet = supervisor.ports().asker("puppet").ok();
                ready.send(puppet).expect("somebody waits");
            };
            server.run_privsep(program, plan, on_start, async { drop(stopped.await) }).expect("it ends well");
        });
        let puppet = started.recv().expect("it starts");
        let listing = Box::new(move || {
            let all = holdfast_components::listings().expect("listings");
            let mut own = all.into_iter().filter(|listing| listing.pid == std::process::id());
            // Only one server of this process runs at a time (`ONE_AT_A_TIME`), so this is its listing.
            own.next_back().expect("its own")
        });
        Running { port, key, listing, puppet, stop: Some(stop), thread: Some(thread) }
    }

    fn connector(&self, device: u8, transport: Transport) -> Connector {
        let key = if device == 0 { superuser() } else { key(10 + device) };
        let proof = ServerProof { file_system: file_system(), minimum_sequence: 0 };
        let address = ServerAddress { host: "127.0.0.1".to_owned(), port: self.port };
        let mut connector = Connector::new(key, vec![address], Some(proof));
        connector.options.transport = transport;
        connector
    }

    fn connect(&self, device: u8) -> Connection {
        self.connector(device, Transport::Tcp).connect(PATIENCE).expect("connected")
    }

    /// Tries to connect once.
    fn try_once(&self, device: u8) -> Result<Connection, RpcError> {
        let mut connector = self.connector(device, Transport::Tcp);
        connector.options.connect_patience = PATIENCE;
        (connector.options.pause_first, connector.options.pause_max) = (PATIENCE, PATIENCE);
        connector.connect(Duration::ZERO)
    }

    fn create(&self, people: u32, transport: Transport) -> Result<Response, RpcError> {
        let connector = Connector { expected: None, ..self.connector(0, transport) };
        connector.connect(PATIENCE)?.call_blocking(creation(self.key, people), PATIENCE)
    }

    fn misuse(&self, order: Misuse) -> Result<Vec<u8>, String> {
        let puppet = self.puppet.as_ref().expect("it was taken over");
        puppet.ask(0, &order, Patience::of(PATIENCE)).map_err(|error| match error {
            ComponentError::Refused { refusal, .. } => refusal.to_string(),
            error => error.to_string(),
        })
    }

    fn say(&self, ask: &BackEndRequest, file: bool) -> Result<BackEndReply, String> {
        let bytes = borsh::to_vec(ask).expect("a vector takes everything");
        let answer = self.misuse(Misuse::Say { bytes, file })?;
        Ok(borsh::from_slice(&answer).expect("an answer"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server failed");
        }
    }
}

/// The front end of a server.
fn front_of(running: &Running) -> (Pid, u32) {
    eventually_some("a front end runs", || {
        let front = (running.listing)().components.remove(0);
        Some((front.pid.and_then(Pid::from_raw)?, front.restarts))
    })
}

/// Only one server at a time, so that a listing is of the server under test.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Proves: through a sandboxed front end large blocks travel both ways over TCP and over QUIC. What a datagram says
/// makes nobody a user of this machine.
#[test]
fn both_transports_go_through() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a directory");
    let running = Running::start(folder.path(), Front::Honest);
    let refused = running.create(1, Transport::Quic);
    assert!(matches!(refused, Err(RpcError::Server(ServerError::NotAllowed(_)))), "{refused:?}");
    committed(running.create(1, Transport::Tcp).expect("created"), &running.key);
    for (transport, seed) in [(Transport::Tcp, 1), (Transport::Quic, 2)] {
        let connection = running.connector(1, transport).connect(PATIENCE).expect("connected");
        assert_eq!(connection.is_over_quic(), Some(transport == Transport::Quic));
        let chunks: Vec<_> =
            (0..6).map(|n| block(BlockKind::Chunk, &noise(10 * seed + n, 1 << 20))).collect();
        let stored = chunks.iter().map(|(_, block)| block.clone()).collect();
        assert_eq!(connection.call_blocking(Request::Store(stored), PATIENCE), Ok(Response::Done));
        let wanted = chunks.iter().map(|(reference, _)| reference.address).collect();
        let answer = connection.call_blocking(Request::Retrieve(wanted), PATIENCE);
        let Ok(Response::Blocks(found)) = answer else { panic!("{answer:?}") };
        for ((_, chunk), found) in chunks.iter().zip(found) {
            assert_eq!(found.map(|(_, block)| block).as_ref(), Some(chunk));
        }
    }
}

/// Proves: when a front end is killed again and again under the load of three devices, only connections are lost: all
/// that was acknowledged is there, and each operation was ordered once.
#[test]
fn kill_nine_of_the_front_end() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a directory");
    let running = Running::start(folder.path(), Front::Honest);
    committed(running.create(3, Transport::Tcp).expect("created"), &running.key);
    let load = Load::run(
        |device| running.connect(device),
        running.key,
        |until| {
            for round in 1..=5u64 {
                until.operations(round * 20);
                let (pid, _) = front_of(&running);
                kill_process(pid, Signal::KILL).expect("killed");
                // The supervisor lists the front end until it has noticed its death.
                eventually("another is started", || front_of(&running).0 != pid);
            }
            // What arrives after the last kill is served, too.
            until.more(10);
        },
    );
    assert!(front_of(&running).1 >= 1, "it was started anew");
    load.check(&running.connect(1));
}

fn status_of(pid: Pid, field: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("a status");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
    line.trim_start_matches(':').trim().to_owned()
}

/// Whether a process's memory contains these bytes. Needs root, except for this process's own.
fn memory_holds(pid: i32, bytes: &[u8]) -> std::io::Result<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem"))?;
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with('r'))) {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let (from, to) = (address(from), address(to));
        // The kernel's own pages cannot be read in this way.
        if line.contains("[v") {
            continue;
        }
        let mut at = from;
        let mut piece = vec![0; 1 << 20];
        while at < to {
            let wanted = piece.len().min((to - at) as usize);
            let Ok(read) = memory.read_at(&mut piece[..wanted], at) else { break };
            if read == 0 {
                break;
            }
            if piece[..read].windows(bytes.len()).any(|window| window == bytes) {
                return Ok(true);
            }
            // The bytes may lie across two pieces.
            at += if read > bytes.len() && at + (read as u64) < to {
                (read - bytes.len() + 1) as u64
            } else {
                read as u64
            };
        }
    }
    Ok(false)
}

/// Proves: the front end is completely sandboxed, has no file and no directory open, and has neither the server's seed
/// nor any of the data in its memory. This process has the seed, so the search works.
#[test]
fn it_holds_nothing() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a directory");
    let running = Running::start(folder.path(), Front::Honest);
    committed(running.create(1, Transport::Tcp).expect("created"), &running.key);
    let connection = running.connect(1);
    assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    let (pid, _) = front_of(&running);
    assert_eq!(status_of(pid, "Seccomp"), "2");
    assert_eq!(status_of(pid, "NoNewPrivs"), "1");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status_of(pid, set), "0000000000000000", "{set}");
    }
    if !rustix::process::geteuid().is_root() {
        // No other process may look into one that is not dumpable, which is a protection of its own.
        assert!(memory_holds(pid.as_raw_nonzero().get(), &[1]).is_err());
        return;
    }
    let held = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).expect("descriptors");
    for held in held {
        let target = std::fs::read_link(held.expect("one").path()).expect("a link");
        let target = target.to_string_lossy().into_owned();
        let is_harmless = ["socket:", "pipe:", "anon_inode:"].iter().any(|kind| target.starts_with(kind));
        assert!(is_harmless || target == "/dev/null", "it holds {target}");
    }
    let text = std::fs::read_to_string(folder.path().join("server-key")).expect("a key");
    let seed = keyfile::parse_private(&text, None).expect("a key").seed();
    assert!(
        memory_holds(std::process::id() as i32, &*seed).expect("read"),
        "the search finds it where it is"
    );
    assert!(!memory_holds(pid.as_raw_nonzero().get(), &*seed).expect("read"), "it has the server's seed");
    let path = folder.path().to_string_lossy().into_owned();
    assert!(
        !memory_holds(pid.as_raw_nonzero().get(), path.as_bytes()).expect("read"),
        "it knows the directory"
    );
}

fn frame(id: u64, payload: &[u8]) -> Vec<u8> {
    [&FrameHeader::encode(id, payload.len())[..], payload].concat()
}

/// Reads the first answer from what came on a stream, leaving notes out.
fn answer_in(mut came: &[u8]) -> Option<Response> {
    while came.len() >= 12 {
        let bytes = u32::from_le_bytes(came[..4].try_into().expect("four")) as usize - 8;
        let id = u64::from_le_bytes(came[4..12].try_into().expect("eight"));
        let payload = came.get(12..12 + bytes)?;
        if id != 0 {
            return decode(payload).ok();
        }
        came = &came[12 + bytes..];
    }
    None
}

/// Proves, row by row, what a compromised front end gets from the back end: what an honest one would, and no signature,
/// introduction or descriptor beyond that.
#[test]
fn a_front_end_taken_over_on_the_channel() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a directory");
    let running = Running::start(folder.path(), Front::TakenOver);
    committed(running.create(2, Transport::Tcp).expect("created"), &running.key);
    // A device that connects to the compromised front end is served; the attacker sees its handshake.
    let anna = running.connect(1);
    assert_eq!(anna.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    let shown = running.misuse(Misuse::Show).expect("shown");
    let [signed, introduced, signature]: [Vec<u8>; 3] = borsh::from_slice(&shown).expect("three parts");
    let address = Address::Four([127, 0, 0, 1], 1);
    let introduce = |transcript: &[u8]| BackEndRequest::Introduce {
        transcript: transcript.to_vec(),
        signature: signature.clone(),
        address,
    };
    let renewed = |transcript: &[u8]| {
        let Ok(BackEndReply::Nonce(nonce)) = running.say(&BackEndRequest::Nonce, false) else {
            panic!("a nonce is given")
        };
        let hello = usize::from(transcript[2]) << 8 | usize::from(transcript[3]);
        let mut transcript = transcript.to_vec();
        transcript[4 + hello + 6..][..32].copy_from_slice(&nonce);
        transcript
    };
    let fresh = renewed(&introduced);
    let table: Vec<(&str, Result<BackEndReply, String>, Option<&str>)> = vec![
        (
            "a signature of a handshake that was signed",
            running.say(&BackEndRequest::Sign { transcript: signed.clone() }, false),
            Some("nonce"),
        ),
        ("the introduction that was made, again", running.say(&introduce(&introduced), false), Some("nonce")),
        (
            "a device without a new handshake",
            running.say(&introduce(&fresh), false),
            Some("does not continue"),
        ),
        (
            "the server's signature for the client's half",
            running.say(&BackEndRequest::Sign { transcript: renewed(&introduced) }, false),
            Some("not the transcript"),
        ),
        (
            "a signature of a digest, as orders have",
            running.say(&BackEndRequest::Sign { transcript: vec![7; 32] }, false),
            Some("not the transcript"),
        ),
        (
            "a signature of nothing",
            running.say(&BackEndRequest::Sign { transcript: Vec::new() }, false),
            Some("not the transcript"),
        ),
        ("a nonce with a file", running.say(&BackEndRequest::Nonce, true), Some("does not follow")),
        (
            "a new handshake of the front end's own making is signed",
            running.say(&BackEndRequest::Sign { transcript: renewed(&signed) }, false),
            None,
        ),
        (
            "words with control characters",
            running.say(&BackEndRequest::Log { warning: true, text: "\u{1b}[2J".repeat(900) }, false),
            None,
        ),
    ];
    for (what, found, refused) in &table {
        match (found, refused) {
            (Ok(_), None) => {}
            (Err(why), Some(expected)) => assert!(why.contains(expected), "{what}: {why}"),
            _ => panic!("{what}: {found:?}"),
        }
    }
    // Signed again by the attacker: the device's signature does not cover it, and naming another device does not help.
    let begun = renewed(&introduced);
    assert!(running.say(&BackEndRequest::Sign { transcript: begun[..signed.len()].to_vec() }, false).is_ok());
    let why = running.say(&introduce(&begun), false).expect_err("refused");
    assert!(why.contains("did not sign"), "{why}");
    // Malformed requests.
    for seed in 0..200u32 {
        let bytes = noise(u64::from(seed), (seed as usize * 37) % 3000);
        let found = running.misuse(Misuse::Say { bytes, file: seed % 5 == 0 });
        assert!(
            found.is_err()
                || matches!(borsh::from_slice(&found.clone().expect("some")), Ok(BackEndReply::Nonce(_))),
            "{found:?}"
        );
    }
    let large = running.misuse(Misuse::Say { bytes: vec![0; 40 << 10], file: false });
    assert!(large.is_err(), "{large:?}");
    // None of it has harmed anybody.
    assert_eq!(anna.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    assert_eq!(insist(&running.connect(2), &Request::Ping), Response::Done);
}

/// Proves, row by row, what it gets over the stream of a device that did connect: what the device may read, and no
/// order, no other identity, no other file system, nothing beyond the bounds.
#[test]
fn a_front_end_taken_over_on_a_stream() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a directory");
    let running = Running::start(folder.path(), Front::TakenOver);
    committed(running.create(2, Transport::Tcp).expect("created"), &running.key);
    let shown = view(insist(&running.connect(0), &Request::Look { log_size: 0 })).view;
    let Request::Fast { .. } = Author::new(1).fast(&shown) else { panic!("a fast operation") };
    let hello = |file_system| {
        encode(&Request::Hello {
            versions: holdfast_protocol::message::PROTOCOL_VERSIONS,
            file_system: Some(file_system),
        })
    };
    // A request in the name of device 1 that device 2 signed.
    let mut forged = Author::new(1);
    forged.key = key(12);
    let fast = encode(&forged.fast(&shown));
    // Signed by its device, and altered on the way.
    let mut altered = encode(&Author::new(1).fast(&shown));
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    let closed = |found: &[u8]| found.ends_with(b"CLOSED");
    let (write, write_last) = (Misuse::Write as fn(_) -> _, Misuse::WriteLast as fn(_) -> _);
    type Row<'a> = (&'a str, fn(Vec<u8>) -> Misuse, Vec<u8>, &'a dyn Fn(&[u8], Option<Response>) -> bool);
    let table: [Row; 9] = [
        (
            "reading what the device may read",
            write,
            frame(2, &encode(&Request::Look { log_size: 0 })),
            &|_, answer| matches!(answer, Some(Response::View(_))),
        ),
        ("an operation that the device did not sign", write, frame(2, &fast), &|_, answer| {
            matches!(answer, Some(Response::Error(ServerError::Invalid(_) | ServerError::NotAllowed(_))))
        }),
        ("an operation that was altered", write, frame(2, &altered), &|found, answer| {
            matches!(answer, Some(Response::Error(_) | Response::Refused)) || closed(found)
        }),
        (
            "a second greeting, for another file system",
            write_last,
            frame(2, &hello(key(50).public().file_system_id())),
            &|found, _| closed(found),
        ),
        ("garbage in a frame", write_last, frame(2, &noise(3, 500)), &|found, answer| {
            matches!(answer, Some(Response::Error(ServerError::Invalid(_)))) && closed(found)
        }),
        ("a frame of four gigabytes", write_last, [&[0xff; 4][..], &[1; 100]].concat(), &|found, _| {
            closed(found)
        }),
        ("a note that is too large", write_last, frame(0, &[0; 65]), &|found, _| closed(found)),
        ("a note that says nothing", write_last, frame(0, &noise(4, 20)), &|found, _| closed(found)),
        ("the back end's own note", write_last, frame(0, &[0]), &|found, _| closed(found)),
    ];
    for (what, write_so, bytes, is_right) in table {
        running.misuse(Misuse::KeepNext).expect("it will keep");
        // Device 1 tries to connect, and gets nothing, because the front end has kept its stream.
        assert!(running.try_once(1).is_err(), "{what}");
        let greeted = running.misuse(Misuse::Write(frame(1, &hello(file_system())))).expect("greeted");
        assert!(matches!(answer_in(&greeted), Some(Response::Hello(_))), "{what}");
        let found = match running.misuse(write_so(bytes)) {
            Ok(found) => found,
            Err(_) => b"CLOSED".to_vec(),
        };
        assert!(is_right(&found, answer_in(&found)), "{what}: {:?}", String::from_utf8_lossy(&found));
    }
    // Before the greeting, too.
    running.misuse(Misuse::KeepNext).expect("it will keep");
    assert!(running.try_once(1).is_err());
    let found = running.misuse(Misuse::WriteLast(frame(1, &encode(&Request::Look { log_size: 0 }))));
    assert!(found.is_err() || closed(&found.clone().expect("some")), "{found:?}");
    // The order is unchanged, and honest devices are served.
    let after = view(insist(&running.connect(2), &Request::Look { log_size: 0 })).view;
    assert_eq!(after.log.size, shown.log.size);
}
