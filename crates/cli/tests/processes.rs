//! The processes of a mount: which of them has the key, what each of them can do, and what happens when one is killed,
//! or asks for what it must not have.

use crate::common;

use common::memory::{has_in_memory, seed_of};
use common::{World, eventually, run, run_json};
use holdfast_client::processes::{KeySource, Processes};
use holdfast_components::Program;
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, Domain, KeyHolder, SignError, SignRequest, SigningKey};
use holdfast_protocol::certificate::{Certificate, Path as Way};
use holdfast_protocol::message::ServerKeys;
use holdfast_protocol::order::forecast;
use holdfast_protocol::signed::Signable;
use holdfast_protocol::structure::{Outcome, Structure, View};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the error "Required key not available".
const ENOKEY: i32 = 126;

/// A component of `who`'s mount, as `holdfast components` lists it.
fn part(world: &World, who: &str, name: &str) -> Value {
    let main = world.mount_process(who).expect("it runs");
    let listed = run_json(world.holdfast(who).args(["--json", "components"]));
    let listing = listed.as_array().expect("a list").iter().find(|listing| listing["pid"] == main);
    let listing = listing.unwrap_or_else(|| panic!("process {main} is not in {listed}"));
    let found = listing["components"].as_array().expect("a list").iter().find(|part| part["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {listing}")).clone()
}

fn process(part: &Value) -> u64 {
    part["pid"].as_u64().unwrap_or_else(|| panic!("no process: {part}"))
}

fn process_or_none(part: &Value) -> Option<u64> {
    part["pid"].as_u64()
}

fn kill(process: u64) {
    run(Command::new("kill").args(["-9", &process.to_string()]));
}

fn open_files(process: u64) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).expect("this test runs as root");
    entries.filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string())).collect()
}

/// Asserts what holds for every sandboxed component.
fn is_shut_in(process: u64) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    for wanted in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"]
    {
        assert!(status.contains(wanted), "{wanted} is not in\n{status}");
    }
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        let of =
            |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).expect("a namespace");
        assert_ne!(of(&process.to_string()), of("self"), "{namespace}");
    }
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("it runs");
    assert!(!maps.lines().any(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rwx"))));
}

/// The device's key is in the signer and nowhere else. The signer has its record and no other file; the main process
/// has neither key nor record.
#[test]
fn only_the_signer_has_the_key() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    fs::write(team.join("file"), "signed").expect("written");
    let seed = seed_of(&world.key("anna"));
    let main = u64::from(world.mount_process("anna").expect("it runs"));
    let signer = part(&world, "anna", "signer");
    assert!(has_in_memory(process(&signer), &seed), "the search finds what is there");
    assert!(!has_in_memory(main, &seed), "the main process has the key");
    is_shut_in(process(&signer));
    let files = open_files(process(&signer));
    let named: Vec<&String> =
        files.iter().filter(|file| file.starts_with('/') && *file != "/dev/null").collect();
    assert!(named.len() == 1 && named[0].ends_with("/signed"), "{named:?}");
    let key = world.key("anna").display().to_string();
    assert!(!open_files(main).iter().any(|file| file.ends_with("/signed") || *file == key));
    assert_eq!(signer["profile"]["doors"], serde_json::json!(["sync"]), "{signer}");
}

/// The network process has neither the key nor a file; its only sockets are those that it was given.
#[test]
fn the_network_process_has_no_key_and_no_file() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    fs::write(team.join("file"), vec![7; 300_000]).expect("written");
    let seed = seed_of(&world.key("anna"));
    let network = part(&world, "anna", "network");
    is_shut_in(process(&network));
    assert!(!has_in_memory(process(&network), &seed), "the network process has the key");
    let files = open_files(process(&network));
    let named: Vec<&String> =
        files.iter().filter(|file| file.starts_with('/') && *file != "/dev/null").collect();
    assert!(named.is_empty(), "{named:?}");
    assert!(files.iter().any(|file| file.starts_with("socket:")), "{files:?}");
    // No connection of the main process leads to the server: what strangers send is read in the network process alone.
    let main = world.mount_process("anna").expect("it runs");
    let connections = run(Command::new("ss").args(["-tnpH", "state", "established"]));
    let port = format!(":{} ", world.port);
    assert!(!connections.lines().any(|line| line.contains(&port) && line.contains(&format!("pid={main},"))));
    let status = world.status("anna");
    assert!(status.contains("working"), "{status}");
}

/// When the network process is killed during writes, again and again, it is started anew, and everything acknowledged
/// is there; the same when the server is restarted.
#[test]
fn a_network_process_that_is_killed() {
    let mut world = World::new(&["anna"]);
    let team = world.mount_with("anna", &["--no-gather"]).join("team");
    let mut written = 0;
    for round in 0..3 {
        let network = process(&part(&world, "anna", "network"));
        let write = |number: u32| -> std::io::Result<()> {
            let mut file = fs::File::create(team.join(format!("{round}-{number}")))?;
            file.write_all(format!("words {number}").as_bytes())?;
            file.sync_all()
        };
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| (0..12).for_each(|number| write(number).expect("it goes on")));
            std::thread::sleep(std::time::Duration::from_millis(100));
            kill(network);
            writing.join().expect("no panic");
        });
        written += 12;
        eventually("another is there", || {
            process_or_none(&part(&world, "anna", "network")).is_some_and(|now| now != network)
        });
    }
    world.stop_server();
    world.start_server();
    fs::write(team.join("afterwards"), "it is connected again").expect("written");
    let status = world.status("anna");
    assert!(status.contains("working") && !status.contains("ALARM"), "{status}");
    world.umount("anna");
    let team = world.mount("anna").join("team");
    let there = fs::read_dir(&team).expect("read").count();
    assert_eq!(there, written + 1);
    assert_eq!(fs::read_to_string(team.join("2-11")).expect("read"), "words 11");
}

/// Git works through all three processes.
#[test]
fn a_repository() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna").join("team/repository");
    let git = |arguments: &[&str], at: &Path| {
        let mut command = Command::new("git");
        let who = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org", "-c", "safe.directory=*"];
        run(command.args(who).arg("-C").arg(at).args(arguments))
    };
    fs::create_dir(&anna).expect("made");
    git(&["init", "-q"], &anna);
    for number in 0..20 {
        fs::write(anna.join(format!("file{number}")), format!("{number}\n").repeat(500)).expect("written");
    }
    git(&["add", "."], &anna);
    git(&["commit", "-q", "-m", "first"], &anna);
    let ben = world.mount("ben").join("team/repository");
    assert!(git(&["log", "--oneline"], &ben).contains("first"));
    git(&["fsck", "--strict"], &ben);
}

/// Without its signer a mount can be read, refuses changes, and says why; after it is mounted again nothing is lost.
#[test]
fn a_signer_that_is_killed() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    fs::write(team.join("before"), "acknowledged").expect("written");
    kill(process(&part(&world, "anna", "signer")));
    let mut error = None;
    eventually("a change is refused", || {
        error = fs::create_dir(team.join("meanwhile")).err();
        error.is_some()
    });
    assert_eq!(error.and_then(|error| error.raw_os_error()), Some(ENOKEY));
    let status = world.status("anna");
    assert!(
        status.contains("keeps this device's key has ended") && status.contains("mount again"),
        "{status}"
    );
    assert!(!status.contains("ALARM"), "{status}");
    world.umount("anna");
    let team = world.mount("anna").join("team");
    assert_eq!(fs::read_to_string(team.join("before")).expect("read"), "acknowledged");
    fs::create_dir(team.join("afterwards")).expect("it signs again");
}

/// When the main process is killed at any moment, the signer's record lets the next one go on, and everything
/// acknowledged is there.
#[test]
fn a_main_process_that_is_killed() {
    let mut world = World::new(&["anna"]);
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let directory = world.mount_at("anna", &format!("mnt{round}"), &["--no-gather"]);
        let team = directory.join("team");
        for name in &acknowledged {
            assert!(team.join(name).exists(), "{name} was acknowledged and is gone, round {round}");
        }
        let pattern = format!("holdfast mount .*{}", directory.display());
        let main = Command::new("pgrep").args(["-f", &pattern]).output().expect("it runs");
        let main: u64 = String::from_utf8_lossy(&main.stdout)
            .lines()
            .next()
            .expect("one")
            .trim()
            .parse()
            .expect("a number");
        let count = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let written = scope.spawn(|| {
                let mut written = Vec::new();
                for number in 0.. {
                    let name = format!("file-{round}-{number}");
                    let write = || -> std::io::Result<()> {
                        let mut file = fs::File::create(team.join(&name))?;
                        file.write_all(b"words")?;
                        file.sync_all()
                    };
                    match write() {
                        Ok(()) => {
                            written.push(name);
                            count.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(_) => break,
                    }
                }
                written
            });
            eventually("something is acknowledged", || count.load(Ordering::SeqCst) > 0);
            std::thread::sleep(std::time::Duration::from_millis(70 * round));
            kill(main);
            acknowledged.extend(written.join().expect("no panic"));
        });
        // The signer may have ended with its main process; if it has not, the next mount fails on it.
        let _ = Command::new("fusermount3").arg("-uz").arg(&directory).output();
    }
    assert!(!acknowledged.is_empty());
    let team = world.mount("anna").join("team");
    for name in &acknowledged {
        assert_eq!(fs::read_to_string(team.join(name)).expect("acknowledged"), "words");
    }
}

fn refused(result: Result<Vec<holdfast_crypto::Signature>, SignError>, words: &str) {
    match result {
        Err(SignError::Refused(why)) if why.contains(words) => {}
        other => panic!("{other:?}, not refused with '{words}'"),
    }
}

/// A compromised main process asks the real signer, over its real channel, for signatures that contradict what was
/// signed; so does one that starts again with the signer's record.
#[test]
fn a_hostile_main_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = SigningKey::from_seed(&[7; 32]);
    let file_system = SigningKey::from_seed(&[8; 32]).public().file_system_id();
    let start = || {
        let program = Program::open(Path::new(env!("CARGO_BIN_EXE_holdfast"))).expect("built");
        Processes::start_as(program, KeySource::of(&key).expect("a pipe")).expect("sandboxes")
    };
    let certificate = |number: u64, time_ns: i64| Certificate {
        file_system,
        device: DeviceId(3),
        number,
        previous: Digest::ZERO,
        path: Way::Fast,
        voids: Default::default(),
        ineffective: Default::default(),
        time_ns,
        deltas: Vec::new(),
    };
    let structure = |certificate: &Certificate| Structure {
        forecast: forecast(&View::default(), certificate),
        outcome: Outcome::Done,
        handles: Default::default(),
    };
    let processes = start();
    let first = certificate(1, 1);
    refused(processes.try_sign_all(&[first.ask()]), "no file system to sign for");
    assert_eq!(processes.begin(folder.path(), &file_system, None).expect("begun"), 0);
    assert!(processes.begin(folder.path(), &file_system, None).is_err(), "the key is handed over once");

    let asks = [first.ask(), structure(&first).ask()];
    let signatures = processes.try_sign_all(&asks).expect("honest");
    assert!(key.public().verify(Domain::Certificate, &first.signed_bytes(), &signatures[0]));
    assert_eq!(processes.try_sign_all(&asks).expect("again"), signatures);
    let hostile = |processes: &Arc<Processes>| {
        refused(processes.try_sign_all(&[certificate(1, 2).ask()]), "under number 1");
        refused(processes.try_sign_all(&[certificate(5, 2).ask()]), "must be 2");
        let mut other = structure(&first);
        other.outcome = Outcome::Nothing;
        refused(processes.try_sign_all(&[other.ask()]), "under number 1");
        let keys = ServerKeys { file_system, sequence: 1, keys: vec![key.public()] };
        refused(processes.try_sign_all(&[keys.ask()]), "superuser");
        // The digest of one thing under the name of another: the signer computes what it signs from what it is shown.
        let lying = SignRequest { bytes: certificate(1, 2).signed_bytes(), ..first.ask() };
        let signed = processes.try_sign_all(&[lying]).expect("the first again");
        assert!(!key.public().verify(Domain::Certificate, &certificate(1, 2).signed_bytes(), &signed[0]));
        for domain in [Domain::Receipt, Domain::ReleaseRecord, Domain::SignedBlock, Domain::Credential] {
            let ask = SignRequest { domain, bytes: vec![1; 32], whole: vec![1; 32] };
            refused(processes.try_sign_all(&[ask]), "signs no");
        }
        let garbage = SignRequest { whole: vec![0xff; 100_000], ..first.ask() };
        assert!(processes.try_sign_all(&[garbage]).is_err());
        assert!(processes.try_sign(Domain::Certificate, &first.signed_bytes()).is_err());
    };
    hostile(&processes);
    drop(processes);

    let processes = start();
    assert_eq!(processes.begin(folder.path(), &file_system, None).expect("begun"), 1);
    hostile(&processes);
    drop(processes);
    // The record of another key or file system is refused.
    let other = SigningKey::from_seed(&[9; 32]).public().file_system_id();
    assert!(start().begin(folder.path(), &other, None).is_err());
}
