//! Mounts that talk to each other directly, through real servers: a fork that the server never crosses is seen within
//! seconds, and one file convicts the server. Honest mounts agree. A peer that falls silent is reported as lost, and
//! one that unmounts is not.

use crate::common;

use common::cluster::Second;
use common::relay::Relay;
use common::{PATIENCE, World, errno, eventually, run, text};
use holdfast_crypto::{Digest, SigningKey, encode, keyfile};
use holdfast_protocol::peers::{DeviceProgress, PeerMessage, VERSION};
use holdfast_protocol::structure::LogHead;
use holdfast_rpc::{Invitation, MeetingRole, meet};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const ETIMEDOUT: i32 = 110;
/// Options of every mount here: peers on this machine only, in a group that other tests do not hear.
const PEERS: [&str; 4] = ["--peers", "--peers-listen", "127.0.0.1:0", "--no-beacon"];

/// What `holdfast --json peers` reports of `who`'s mount.
fn peers(world: &World, who: &str) -> Value {
    let at = world.path(&format!("{who}-mnt"));
    let output = world.holdfast(who).args(["--json", "peers"]).arg(at).output().expect("it runs");
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

/// The status of a peer at `who`'s mount.
fn peer_status(world: &World, who: &str, peer: &str) -> String {
    let peers = peers(world, who);
    let found = peers["peers"].as_array().and_then(|all| all.iter().find(|one| one["user"] == peer));
    found.and_then(|found| found["standing"].as_str()).unwrap_or("unknown").to_owned()
}

#[track_caller]
fn both_met(world: &World) {
    eventually("both are met", || {
        peer_status(world, "alice", "bob") == "met" && peer_status(world, "bob", "alice") == "met"
    });
}

/// Starts a program that writes and reads in a directory.
fn load(directory: &Path) -> Child {
    let script = format!(
        "for n in $(seq 40); do echo $n > {0}/$$-$((n%7)); cat {0}/* > /dev/null 2>&1; done; exit 0",
        directory.display()
    );
    Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().expect("it starts")
}

/// Proves: mounts find each other by records in the file system, agree while both work, and raise no alarm. The status
/// of peers is shown in words, too. A mount that ends is logged out and not lost.
#[test]
fn honest_mounts_agree() {
    let mut world = World::new(&["alice", "bob"]);
    let with = [&PEERS[..], &["--peer-timeout", "3600", "--when-peer-lost", "pause"]].concat();
    let alice = world.mount_with("alice", &with);
    let bob = world.mount_with("bob", &with);
    both_met(&world);
    let mut working = [load(&alice.join("team")), load(&bob.join("team"))];
    eventually("the load ends", || {
        working.iter_mut().all(|load| load.try_wait().expect("a child").is_some())
    });
    for who in ["alice", "bob"] {
        eventually("what was written is agreed on", || {
            let peer = peers(&world, who)["peers"][0].clone();
            peer["agreed_operations"].as_u64() > Some(5) && peer["trouble"].is_null()
        });
        let status = world.status(who);
        assert!(status.contains("working; everything") && status.contains("1 met"), "{status}");
    }
    let printed = run(world.holdfast("alice").arg("peers").arg(&alice));
    assert!(
        printed.contains("bob") && printed.contains("met") && printed.contains("operations"),
        "{printed}"
    );
    let record = fs::read_to_string(alice.join("bob/.holdfast/logins/2")).expect("a record");
    assert!(record.starts_with("holdfast login 1\n") && record.contains("\nin 127.0.0.1:"), "{record}");

    world.umount("bob");
    eventually("Bob is logged out", || peer_status(&world, "alice", "bob") == "logged-out");
    fs::write(alice.join("team/after"), "goes on").expect("nobody is waited for");
    let record = fs::read_to_string(alice.join("bob/.holdfast/logins/2")).expect("a record");
    assert!(record.ends_with("\nout\n"), "{record}");
}

/// Proves: two mounts that a server leads apart, and to which it never shows each other's operations, both raise the
/// alarm, although only one of them works. The evidence file of each convicts the server by itself.
#[test]
fn a_fork_is_seen_when_peers_talk() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount_with("alice", &PEERS);
    let relay = Relay::to(world.port);
    let true_url = world.url.clone();
    world.url = format!("hf://127.0.0.1:{}/{}", relay.port, world.fsid());
    let bob = world.mount_with("bob", &PEERS);
    world.url = true_url;
    fs::write(alice.join("team/common"), "before the fork").expect("written");
    assert_eq!(fs::read_to_string(bob.join("team/common")).expect("read"), "before the fork");
    both_met(&world);

    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    let fork = Second::started(&world, &world.path("fork"), &["--lease", "2"]);
    relay.lead_to(fork.port);
    world.start_server_with(&["--lease", "2"]);
    // Both work on, each on its side of the fork, until they are frozen.
    eventually("Alice works on", || {
        fs::write(alice.join("team/alices"), "only Alice sees this").is_ok()
            || world.status("alice").contains("WRONG ORDER")
    });
    for who in ["alice", "bob"] {
        eventually(&format!("{who} is alarmed"), || world.status(who).contains("WRONG ORDER"));
        let status = world.status(who);
        assert!(status.contains("met directly") && status.contains("FROZEN"), "{status}");
    }
    assert!(fs::read(bob.join("team/common")).is_err(), "nothing is believed any more");

    for who in ["alice", "bob"] {
        let list = run(world.holdfast(who).args(["--json", "evidence", "list"]));
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let name = list.as_array().and_then(|list| list.last()).expect("evidence")["name"].clone();
        let name = name.as_str().expect("a name");
        assert!(name.contains("meeting"), "{name}");
        let exported = world.path(&format!("{who}.evidence"));
        run(world.holdfast(who).args(["evidence", "export", name, "--to"]).arg(&exported));
        let judged =
            world.holdfast("judge").args(["evidence", "verify"]).arg(&exported).output().expect("runs");
        let printed = text(&judged);
        assert_eq!(judged.status.code(), Some(80), "{printed}");
        assert!(printed.contains("Proven: whoever has the server's key"), "{printed}");
        assert!(printed.contains("It met another device directly"), "{printed}");
        // An altered file proves nothing against anybody.
        let mut altered = fs::read(&exported).expect("read");
        let last = altered.len() - 8;
        altered[last] ^= 1;
        let forged = world.path(&format!("{who}.forged"));
        fs::write(&forged, altered).expect("written");
        let judged =
            world.holdfast("judge").args(["evidence", "verify"]).arg(&forged).output().expect("runs");
        assert_ne!(judged.status.code(), Some(80), "{}", text(&judged));
    }
    assert!(!world.path("judge-state").exists(), "the judge needs nothing and leaves nothing");
    drop(fork);
}

/// Proves: a peer whose machine dies is lost after its time-out, and one that logged out is not. A mount that is to
/// pause for a lost peer pauses, says so, and goes on when the user says so. When the peer is back, it is met again.
#[test]
fn a_lost_peer_pauses_until_told() {
    let mut world = World::new(&["alice", "bob", "carol"]);
    let alice = world
        .mount_with("alice", &[&PEERS[..], &["--peer-timeout", "6", "--when-peer-lost", "pause"]].concat());
    let bob = world.mount_with("bob", &PEERS);
    world.mount_with("carol", &PEERS);
    both_met(&world);
    eventually("Carol is met", || peer_status(&world, "alice", "carol") == "met");
    // On a machine that stands still for a while, a peer may be taken for lost.
    let written =
        |text: &str| eventually("it is written", || fs::write(alice.join("team/file"), text).is_ok());
    written("before");
    world.umount("carol");
    eventually("Carol is logged out", || peer_status(&world, "alice", "carol") == "logged-out");
    let process = world.mount_process("bob").expect("it runs");
    run(Command::new("kill").args(["-KILL", &process.to_string()]));
    eventually("Bob is lost", || peer_status(&world, "alice", "bob") == "lost");
    assert_eq!(peer_status(&world, "alice", "carol"), "logged-out", "she was silent for longer");
    eventually("Alice is paused", || errno(fs::write(alice.join("team/refused"), "x")) == Some(ETIMEDOUT));
    let status = world.status("alice");
    assert!(status.contains("PAUSED") && status.contains("1 LOST"), "{status}");
    let exit = world.holdfast("alice").arg("status").output().expect("it runs");
    assert_eq!(exit.status.code(), Some(69), "{}", text(&exit));
    assert_eq!(errno(fs::metadata(alice.join("team/never-looked-at"))), Some(ETIMEDOUT));

    let printed = run(world.holdfast("alice").args(["peers", "go-on"]).arg(&alice));
    assert!(printed.contains("going on without device 2"), "{printed}");
    fs::write(alice.join("team/file"), "goes on").expect("written");
    let printed = run(world.holdfast("alice").args(["peers", "go-on"]).arg(&alice));
    assert!(printed.contains("no peer is lost"), "{printed}");

    // What is left of Bob's mount is removed, and he mounts again.
    let _ = Command::new("umount").arg("-l").arg(&bob).output();
    let again = world.mount_at("bob", "bob-mnt", &PEERS);
    both_met(&world);
    assert_eq!(fs::read_to_string(again.join("team/file")).expect("read"), "goes on");
    written("with Bob");
}

/// Proves: the connection to a device that is no member any more is closed, and it is no longer listed as a peer.
#[test]
fn who_is_removed_is_not_met() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount_with("alice", &PEERS);
    world.mount_with("bob", &PEERS);
    both_met(&world);
    let url = world.url.clone();
    world.administer(&["fs", "user", "remove", &url, "bob"]);
    eventually("Bob is forgotten", || {
        let _ = fs::write(alice.join("team/file"), "so that the membership is looked at");
        peers(&world, "alice")["peers"].as_array().is_some_and(Vec::is_empty)
    });
    // The removed device connects again.
    let heard = calls(&world, "alice", &key_of(&world, "bob"), &[hello(&world)], |_| false);
    assert!(heard.unwrap_or_default().is_empty(), "he is told nothing");
    assert_eq!(peers(&world, "alice")["peers"].as_array().map(Vec::len), Some(0));
    let status = world.status("alice");
    assert!(status.contains("working; everything"), "{status}");
}

/// Proves: a mount without peers says so.
#[test]
fn without_peers() {
    let mut world = World::new(&["alice"]);
    let alice = world.mount("alice");
    let output = world.holdfast("alice").arg("peers").arg(&alice).output().expect("it runs");
    assert_eq!(output.status.code(), Some(64), "{}", text(&output));
    assert!(text(&output).contains("--peers"), "{}", text(&output));
    assert!(!alice.join("alice/.holdfast").exists(), "and writes no record");
}

/// Whether this machine receives its own multicast.
fn has_multicast() -> bool {
    let tried = || -> std::io::Result<()> {
        let group = Ipv4Addr::new(239, 255, 74, 41);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)?;
        // What this machine sends to itself arrives at once or not at all; no verdict depends on it.
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?
            .send_to(b"here", (group, socket.local_addr()?.port()))?;
        socket.recv(&mut [0; 8]).map(drop)
    };
    tried().is_ok()
}

/// Proves: mounts whose records cannot be written say so, and find each other by beacons where the network has
/// multicast.
#[test]
fn beacons_alone() {
    let mut world = World::new(&["alice", "bob"]);
    for who in ["alice", "bob"] {
        let mount = world.mount(who);
        fs::write(mount.join(who).join(".holdfast"), "in the way").expect("written");
        world.umount(who);
        world.mount_with(who, &["--peers"]);
        eventually("the trouble is told", || {
            peers(&world, who)["trouble"].as_str().is_some_and(|why| why.contains("login record"))
        });
    }
    if has_multicast() {
        both_met(&world);
    } else {
        eprintln!("this machine has no multicast: beacons are not tried");
    }
}

/// The address on which `who`'s mount listens.
fn listens(world: &World, who: &str) -> SocketAddr {
    peers(world, who)["listens"][0].as_str().expect("an address").parse().expect("an address")
}

fn key_of(world: &World, who: &str) -> SigningKey {
    let key = fs::read_to_string(world.key(who)).expect("a key");
    keyfile::parse_private(&key, None).expect("without a passphrase")
}

fn hello(world: &World) -> PeerMessage {
    PeerMessage::Hello {
        version: VERSION,
        file_system: Digest::from_hex(world.fsid()).expect("an id"),
        run: 7,
    }
}

/// Connects to `who`'s mount with a key, as a program of the key's owner could, and listens until the connection is
/// closed, or `ends` holds of what was heard.
fn calls(
    world: &World,
    who: &str,
    key: &SigningKey,
    says: &[PeerMessage],
    mut ends: impl FnMut(&[u8]) -> bool,
) -> Result<Vec<u8>, String> {
    let at = listens(world, who);
    let public = fs::read_to_string(world.path(&format!("{who}.key.pub"))).expect("a key");
    let expected = keyfile::parse_public(public.trim()).expect("a key");
    let file_system = Digest::from_hex(world.fsid()).expect("an id");
    let invitation =
        Invitation { key: Arc::new(key.clone()), file_system, role: MeetingRole::Connecting(expected) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let socket = tokio::net::TcpStream::connect(at).await.map_err(|error| error.to_string())?;
        let (_, mut met) = meet(socket, invitation).await.map_err(|error| error.to_string())?;
        for word in says {
            let printed = encode(word);
            let whole = [&(printed.len() as u32).to_le_bytes()[..], &printed].concat();
            met.write_all(&whole).await.and(met.flush().await).map_err(|error| error.to_string())?;
        }
        let mut heard = Vec::new();
        let hearing = tokio::time::timeout(PATIENCE, async {
            while !ends(&heard) {
                let more = met.read_buf(&mut heard);
                // Nothing more to hear for now.
                let Ok(more) = tokio::time::timeout(Duration::from_millis(50), more).await else { continue };
                if !matches!(more, Ok(1..)) {
                    break;
                }
            }
        });
        hearing.await.map_err(|_| "it goes on listening".to_owned())?;
        Ok(heard)
    })
}

/// Proves: strangers get no answer, and one who knows the file system but is no member is told nothing. A member who
/// claims without receipts what is not so is reported, and no other mount raises an alarm or pauses.
#[test]
fn strangers_and_liars() {
    let mut world = World::new(&["alice", "carol"]);
    let alice = world
        .mount_with("alice", &[&PEERS[..], &["--peer-timeout", "6", "--when-peer-lost", "warn"]].concat());
    let at = listens(&world, "alice");
    for printed in [&[0x16; 600][..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stranger = TcpStream::connect(at).expect("it listens");
        stranger.write_all(printed).expect("sent");
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        stranger.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{answer:?}");
    }

    let hello = hello(&world);
    let invented = DeviceProgress { operation: None, log: LogHead { size: 1 << 40, root: Digest::ZERO } };
    let lie = PeerMessage::Progress(Box::new(invented));
    let nobody = SigningKey::from_seed(&[77; 32]);
    let heard = calls(&world, "alice", &nobody, &[hello.clone(), lie.clone()], |_| false);
    assert!(heard.as_ref().map_or(true, Vec::is_empty), "no member: {heard:?}");
    assert_eq!(peers(&world, "alice")["peers"].as_array().map(Vec::len), Some(0));

    let carol = key_of(&world, "carol");
    let other = PeerMessage::Hello { version: VERSION, file_system: Digest([9; 32]), run: 7 };
    let _ = calls(&world, "alice", &carol, &[other], |_| false);
    assert_eq!(peers(&world, "alice")["peers"].as_array().map(Vec::len), Some(0), "of another file system");
    let peer = || peers(&world, "alice")["peers"][0].clone();
    // She sends nothing more.
    calls(&world, "alice", &carol, &[hello, lie], |heard| {
        let trouble = peer()["trouble"].clone();
        // She is told how far Alice is.
        !heard.is_empty() && trouble.as_str().is_some_and(|why| why.contains("it says that it has seen"))
    })
    .expect("a member is met, and the lie is told");
    eventually("she is lost", || peer()["standing"] == "lost");
    fs::write(alice.join("team/file"), "goes on").expect("written");
    let status = world.status("alice");
    assert!(status.contains("working; everything") && status.contains("1 LOST"), "{status}");
}
