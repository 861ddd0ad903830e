//! Bounded staleness, through real servers, witnesses and mounts: a fork that no witness signs becomes stale within its
//! bound, and the other side goes on; an idle file system stays fresh; an outage of witnesses is survived.

use crate::common;
use crate::restored::{declare, keep, put_back};

use common::cluster::Second;
use common::relay::Relay;
use common::{World, errno, eventually, free_port, run, run_json, text};
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const EROFS: i32 = 30;
const ETIMEDOUT: i32 = 110;

/// A witness in a process of its own; dropping it ends the process.
struct Witness {
    state: PathBuf,
    port: u16,
    key: String,
    logs: Vec<String>,
    process: Option<Child>,
}

impl Witness {
    fn new(world: &World, name: &str) -> Witness {
        let state = world.path(name);
        let made = run(holdfast()
            .args(["witness", "init", "--name", &format!("{name}.example")])
            .arg("--state")
            .arg(&state));
        let mut witness = Witness {
            state,
            port: free_port(),
            key: made.trim().to_owned(),
            logs: logs(world),
            process: None,
        };
        witness.start();
        witness
    }

    fn start(&mut self) {
        let mut command = holdfast();
        command
            .args(["witness", "--listen", &format!("127.0.0.1:{}", self.port), "--state"])
            .arg(&self.state);
        for log in &self.logs {
            command.args(["--log", log]);
        }
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        self.process = Some(process);
        eventually("the witness listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// Ends the witness as a power failure would.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("it runs");
            let _ = process.wait();
        }
    }

    /// The options that name the witness to a server.
    fn for_server(&self) -> Vec<String> {
        let at = format!("http://127.0.0.1:{}={}", self.port, self.key);
        [&["--witness", &at, "--witness-every", "1"], &LEASE[..]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    /// The number of operations of the log that the witness has signed.
    fn signed(&self) -> u64 {
        let report = run_json(holdfast().args(["--json", "witness", "status", "--state"]).arg(&self.state));
        report["logs"][0]["size"].as_u64().unwrap_or(0)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Short leases: after a restart of the server nobody waits long for those who may hold one.
const LEASE: [&str; 2] = ["--lease", "2"];

fn with_short_leases(people: &[&str]) -> World {
    World::with_server(people, |_| LEASE.map(str::to_owned).to_vec())
}

fn holdfast() -> Command {
    Command::new(env!("CARGO_BIN_EXE_holdfast"))
}

/// The keys of the logs of a server, running or not.
fn logs(world: &World) -> Vec<String> {
    server_heads(&world.data()).iter().map(|log| log["key"].as_str().expect("a key").to_owned()).collect()
}

fn server_heads(data: &Path) -> Vec<serde_json::Value> {
    let report = run_json(holdfast().args(["--json", "server", "witnesses", "--data"]).arg(data));
    report.as_array().expect("a list").clone()
}

fn engine(world: &World, who: &str) -> serde_json::Value {
    let at = world.path(&format!("{who}-mnt"));
    let output = world.holdfast(who).args(["--json", "status"]).arg(at).output().expect("it runs");
    let mut values = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<serde_json::Value>();
    let report = values.next().expect("something is printed").expect("JSON");
    report["processes"][0]["engine"].clone()
}

fn is_fresh(world: &World, who: &str) -> bool {
    engine(world, who)["head"]["is_stale"] == serde_json::Value::Bool(false)
}

/// Writes a file, repeatedly: a mount with a short bound is stale for a moment on a machine that stands still for so
/// long.
#[track_caller]
fn written(path: &Path, text: &str) {
    eventually("it is fresh, and written", || fs::write(path, text).is_ok());
}

/// Proves that a fork does not stay unnoticed for ever: the side that no witness signs is stopped within its bound, is
/// told so, and stays stopped. The other side goes on, and the witness keeps what the server signed on the wrong side.
#[test]
fn a_fork_goes_stale() {
    let mut world = with_short_leases(&["alice", "bob"]);
    let witness = Witness::new(&world, "w1");
    let asked = witness.for_server();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    world.stop_server();
    world.start_server_with(&asked);
    let policy = |seconds| ["--witness", &witness.key, "--stale-after", seconds, "--when-stale", "stop"];
    let alice = world.mount_with("alice", &policy("3600"));
    let true_url = world.url.clone();
    let relay = Relay::to(world.port);
    world.url = format!("hf://127.0.0.1:{}/{}", relay.port, world.fsid());
    let bob = world.mount_with("bob", &policy("3"));
    world.url = true_url;
    fs::write(alice.join("team/common"), "before the fork").expect("written");
    eventually("Bob reads it", || {
        fs::read_to_string(bob.join("team/common")).is_ok_and(|text| text == "before the fork")
    });
    eventually("both are fresh", || is_fresh(&world, "alice") && is_fresh(&world, "bob"));

    // The operator forks the server from a copy, and leads Bob to the copy once Alice has gone on.
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    world.start_server_with(&asked);
    let mut file = fs::File::create(alice.join("team/alices")).expect("made");
    file.write_all(b"only Alice sees this").and_then(|()| file.sync_all()).expect("at the server");
    let operations = server_heads(&world.data())[0]["operations"].as_u64().expect("a number");
    eventually("the witness has signed what Alice did", || witness.signed() >= operations);
    let fork = Second::started(&world, &world.path("fork"), &asked);
    relay.lead_to(fork.port);

    // Bob works on the fork for a while, and is then stopped.
    eventually("Bob is stopped", || {
        errno(fs::write(bob.join("team/bobs"), "only Bob sees this")) == Some(ETIMEDOUT)
    });
    assert_eq!(errno(fs::read(bob.join("team/common"))), Some(ETIMEDOUT), "{}", world.status("bob"));
    let status = world.status("bob");
    assert!(status.contains("STALE, and stopped"), "{status}");
    let output = world.holdfast("bob").arg("status").output().expect("it runs");
    assert_eq!(output.status.code(), Some(69), "{}", text(&output));

    // The server asked the witness to sign the fork, and the witness has kept the head that the server signed.
    eventually("the fork was refused", || {
        let witnesses = server_heads(&world.path("fork"))[0]["witnesses"].clone();
        witnesses[0]["trouble"]
            .as_str()
            .is_some_and(|why| why.contains("another history") || why.contains("lost"))
    });
    assert_eq!(errno(fs::read(bob.join("team/common"))), Some(ETIMEDOUT), "he stays stopped");

    // Alice notices nothing.
    assert_eq!(fs::read_to_string(alice.join("team/alices")).expect("read"), "only Alice sees this");
    fs::write(alice.join("team/alices"), "and goes on").expect("written");
    assert!(is_fresh(&world, "alice"), "{}", world.status("alice"));
    assert!(!alice.join("team/bobs").exists());
    // Mounts wait for their server when they end, so they end before it.
    world.umount("bob");
    drop(fork);
}

/// Proves that an idle file system stays fresh, and that during an outage of the witness a mount that refuses changes
/// then can be read, fails changes with EROFS, and works again by itself once the witness is back.
#[test]
fn an_outage_is_survived() {
    const BOUND_S: u64 = 3;
    let mut world = with_short_leases(&["alice"]);
    let mut witness = Witness::new(&world, "w1");
    let asked = witness.for_server();
    world.stop_server();
    world.start_server_with(&asked.iter().map(String::as_str).collect::<Vec<_>>());
    let bound = BOUND_S.to_string();
    let policy = ["--witness", &witness.key, "--stale-after", &bound, "--when-stale", "read-only"];
    let alice = world.mount_with("alice", &policy);
    written(&alice.join("team/file"), "written while fresh");
    let operations = engine(&world, "alice")["last_operation"].clone();
    let start = Instant::now();
    eventually("it is fresh after its bound, without an operation", || {
        start.elapsed() > Duration::from_secs(BOUND_S + 1) && is_fresh(&world, "alice")
    });
    let idle = engine(&world, "alice")["last_operation"].clone();
    assert_eq!(idle, operations, "looking at heads orders nothing");

    witness.kill();
    eventually("changes are refused", || errno(fs::write(alice.join("team/refused"), "x")) == Some(EROFS));
    assert_eq!(fs::read_to_string(alice.join("team/file")).expect("reads go on"), "written while fresh");
    assert_eq!(errno(fs::remove_file(alice.join("team/file"))), Some(EROFS));
    assert_eq!(errno(fs::create_dir(alice.join("team/directory"))), Some(EROFS));
    let status = world.status("alice");
    assert!(status.contains("STALE, and read-only"), "{status}");
    let trouble = server_heads(&world.data())[0]["witnesses"][0]["trouble"].clone();
    assert!(trouble.as_str().is_some_and(|why| why.contains("does not answer")), "{trouble}");

    // The witness's record was durable before each signature, so it continues where it was.
    witness.start();
    eventually("changes are taken again", || fs::write(alice.join("team/again"), "x").is_ok());
    eventually("it is fresh", || is_fresh(&world, "alice"));
    eventually("there is no trouble", || {
        server_heads(&world.data())[0]["witnesses"][0]["trouble"] == serde_json::Value::Null
    });
}

/// Proves what a restore means to witnesses: they sign neither for the log that lost operations, nor, under its new
/// name, before they are told of it. A mount whose superuser has declared the restore is stale until then, and goes on
/// afterwards, without any alarm. Changes of its own that the restore lost are made again before any other change.
#[test]
fn a_restored_log_is_another() {
    let mut world = with_short_leases(&["alice"]);
    let mut witness = Witness::new(&world, "w1");
    let asked = witness.for_server();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let policy = ["--witness", &witness.key.clone(), "--stale-after", "3", "--when-stale", "read-only"];
    world.stop_server();
    world.start_server_with(&asked);
    let alice = world.mount_with("alice", &policy);
    written(&alice.join("team/early"), "early");
    world.umount("alice");
    world.stop_server();
    let backup = keep(&world, "backup");
    world.start_server_with(&asked);
    let alice = world.mount_with("alice", &policy);
    written(&alice.join("team/late"), "late");
    world.umount("alice");
    let operations = server_heads(&world.data())[0]["operations"].as_u64().expect("a number");
    eventually("the witness has signed what is lost then", || witness.signed() >= operations);
    world.stop_server();
    put_back(&world, &backup);

    let before = logs(&world);
    let restored = [&asked[..], &["--restored"]].concat();
    world.start_server_with(&restored);
    declare(&world);
    let now = logs(&world);
    assert_ne!(now, before, "the log has another name");
    let alice = world.mount_with("alice", &policy);
    assert_eq!(fs::read_to_string(alice.join("team/early")).expect("left"), "early");
    assert_eq!(errno(fs::write(alice.join("team/file"), "x")), Some(EROFS), "{}", world.status("alice"));
    // The mount itself makes no change either.
    let told = "tried again when that is over";
    eventually("what was lost waits", || world.status("alice").contains(told));
    assert!(!alice.join("team/late").exists(), "{}", world.status("alice"));
    let trouble = server_heads(&world.data())[0]["witnesses"][0]["trouble"].clone();
    assert!(trouble.is_string(), "the server says that it is not signed for: {trouble}");
    assert_eq!(witness.signed(), operations, "of the old log nothing more is signed");

    // The witness keeps to the old log as well: if a server goes back to it, what that server signs is refused for
    // ever.
    witness.kill();
    witness.logs.extend(now);
    witness.start();
    eventually("changes are taken", || fs::write(alice.join("team/file"), "x").is_ok());
    eventually("it is fresh", || is_fresh(&world, "alice"));
    assert_eq!(fs::read_to_string(alice.join("team/late")).expect("sent again, and first"), "late");
    assert!(!world.status("alice").contains("ALARM"), "{}", world.status("alice"));
}

/// Proves that a mount that only warns goes on without any witness and says so; and that with one of three witnesses
/// missing the usual quorum is not reached, and a chosen one can be.
#[test]
fn quorums() {
    let mut world = with_short_leases(&["alice", "bob"]);
    let witnesses: Vec<Witness> = ["w1", "w2", "w3"].iter().map(|name| Witness::new(&world, name)).collect();
    // The server does not ask the third witness: for mounts it is away.
    let asked: Vec<String> = witnesses[..2].iter().flat_map(Witness::for_server).collect();
    let mut names = std::collections::BTreeSet::new();
    let asked: Vec<&str> = asked
        .chunks(2)
        .filter(|pair| pair[0] == "--witness" || names.insert(pair[0].clone()))
        .flatten()
        .map(String::as_str)
        .collect();
    world.stop_server();
    world.start_server_with(&asked);
    let mut usual: Vec<&str> = witnesses.iter().flat_map(|witness| ["--witness", &*witness.key]).collect();
    let alice = world.mount_with("alice", &[&usual[..], &["--stale-after", "2"]].concat());
    assert!(world.status("alice").contains("STALE: witnesses do not vouch"), "{}", world.status("alice"));
    fs::write(alice.join("team/file"), "only warned").expect("written");
    eventually("two of three vouch", || world.status("alice").contains("2 of 3 witnesses vouch, 3 must"));
    // Contradictory options are refused at once.
    fs::create_dir(world.path("bob-mnt")).expect("a mount point");
    let log = logs(&world).remove(0);
    for (wrong, why) in [
        (vec!["--witness", &*log], "key of a log"),
        (vec!["--witness", "nonsense"], "verifier key"),
        (vec!["--witness", &*witnesses[0].key, "--witness-quorum", "2"], "2 of 1"),
        (vec!["--witness", &*witnesses[0].key, "--witness", &*witnesses[0].key], "twice"),
        (vec!["--stale-after", "5"], "--witness"),
    ] {
        let refused = world.try_mount("bob", &wrong);
        assert!(!refused.status.success() && text(&refused).contains(why), "{why}: {}", text(&refused));
    }
    usual.extend(["--witness-quorum", "2", "--stale-after", "3600", "--when-stale", "stop"]);
    let bob = world.mount_with("bob", &usual);
    eventually("Bob is fresh", || is_fresh(&world, "bob"));
    assert_eq!(fs::read_to_string(bob.join("team/file")).expect("read"), "only warned");

    let other = world.path("elsewhere");
    fs::create_dir(&other).expect("a directory");
    let second = world
        .holdfast("bob")
        .args(["mount", &world.url, other.to_str().expect("a path"), "--key"])
        .arg(world.key("bob"))
        .args(["--witness", &witnesses[0].key])
        .output()
        .expect("it runs");
    assert!(!second.status.success() && text(&second).contains("other witnesses"), "{}", text(&second));
}

/// Proves the command's verdicts on two heads: the same, undecided, or a conviction, for which the log's key must have
/// signed both.
#[test]
fn heads_are_compared() {
    let folder = tempfile::tempdir().expect("a directory");
    let key = holdfast_crypto::SigningKey::from_seed(&[1; 32]);
    let id = holdfast_crypto::Digest([7; 32]);
    let note = |name: &str, size: u64, root: u8| {
        let head = holdfast_protocol::structure::LogHead { size, root: holdfast_crypto::Digest([root; 32]) };
        let path = folder.path().join(name);
        let note = holdfast_checkpoint::checkpoint::Checkpoint::signed(&id, head, &key);
        fs::write(&path, note.to_string()).expect("written");
        path
    };
    let log = holdfast_checkpoint::checkpoint::log_key(&id, key.public()).to_string();
    let stranger = holdfast_crypto::SigningKey::from_seed(&[2; 32]).public();
    let stranger = holdfast_checkpoint::checkpoint::log_key(&id, stranger).to_string();
    let (first, same, other, longer) =
        (note("first", 5, 1), note("same", 5, 1), note("other", 5, 2), note("longer", 6, 3));
    for (second, log, code, word) in [
        (&same, &log, 0, "the same head"),
        (&longer, &log, 0, "do not tell"),
        (&other, &log, 80, "convicted by its own hand"),
        (&other, &stranger, 65, "not signed by this log"),
    ] {
        let output = holdfast()
            .args(["witness", "compare", "--log", log])
            .args([&first, second])
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(word), "{}", text(&output));
    }
}

/// Proves: evidence of another history can be judged anywhere, without a server: two notes of one length, by a server
/// on the list that the superuser signed, convict; less than that is said to be less.
#[test]
fn evidence_is_judged_anywhere() {
    use holdfast_checkpoint::checkpoint::Checkpoint;
    use holdfast_client::evidence::{EvidenceFile, Proof};
    use holdfast_crypto::{Digest, SigningKey, encode};
    use holdfast_protocol::floor::Floor;
    use holdfast_protocol::message::{ServerKeys, WitnessedHead};
    use holdfast_protocol::signed::Signed;
    use holdfast_protocol::structure::LogHead;

    let folder = tempfile::tempdir().expect("a directory");
    let (superuser, server, stranger) =
        (SigningKey::from_seed(&[1; 32]), SigningKey::from_seed(&[2; 32]), SigningKey::from_seed(&[3; 32]));
    let device = holdfast_content::DeviceId(4);
    let mut floor = Floor::new(superuser.public(), device);
    let id = floor.file_system();
    let list = ServerKeys { file_system: id, sequence: 1, keys: vec![server.public()] };
    let note = |key: &SigningKey, root: u8| {
        Checkpoint::signed(&id, LogHead { size: 9, root: Digest([root; 32]) }, key).to_string()
    };
    let evidence_of = |floor: &Floor, note: String, earlier: Option<String>| {
        let head = WitnessedHead { note, leaf: Digest::ZERO, in_log: vec![], in_checkpoint: vec![] };
        let file = EvidenceFile {
            format: 1,
            file_system: id,
            device: Some(device),
            noticed_ns: 0,
            explanation: "another history".to_owned(),
            proof: Proof::Head { floor: encode(floor), head: encode(&head), earlier },
        };
        let path = folder.path().join("a.evidence");
        fs::write(&path, encode(&file)).expect("written");
        run(holdfast().env("HOLDFAST_STATE_DIR", folder.path()).args(["evidence", "show"]).arg(&path))
    };
    floor.server_keys = Some(Signed::new(list.clone(), &superuser));
    let convicts = evidence_of(&floor, note(&server, 1), Some(note(&server, 2)));
    assert!(convicts.contains("two different histories of 9 operations"), "{convicts}");
    for earlier in [None, Some(note(&stranger, 2)), Some(note(&server, 1)), Some("nonsense".to_owned())] {
        let printed = evidence_of(&floor, note(&server, 1), earlier);
        assert!(printed.contains("is as the device says"), "{printed}");
    }
    let by_stranger = evidence_of(&floor, note(&stranger, 1), Some(note(&stranger, 2)));
    assert!(by_stranger.contains("proves nothing"), "{by_stranger}");
    // On a list that the superuser did not sign, nobody is a server of this file system.
    floor.server_keys = Some(Signed::new(list, &stranger));
    let unlisted = evidence_of(&floor, note(&server, 1), Some(note(&server, 2)));
    assert!(unlisted.contains("proves nothing"), "{unlisted}");
}
