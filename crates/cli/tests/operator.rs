//! What clients make of a server whose operator has turned on them: attack by attack, through real mounts, with
//! a named verdict for each. The lying layer is `holdfast_sim::evil`; rolled-back and forked servers are the
//! honest program on old or copied data.

use crate::common;

use common::{World, run, text};
use holdfast_server::ServerConfig;
use holdfast_sim::evil::{Attack, EvilServer};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a client makes of an attack.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// The file concerned fails with EIO, is named in words, and everything else goes on.
    ThatFileOnly,
    /// The mount is frozen: everything fails with EIO until the user has looked.
    Frozen,
}

const EIO: i32 = 5;

fn evil(world: &World) -> EvilServer {
    let listen = ([127, 0, 0, 1], world.port).into();
    let mut config = ServerConfig::new(world.data(), listen);
    config.abort_after = Duration::from_secs(3);
    // Each call asks the server, so that each can be lied to.
    config.lease_term = std::time::Duration::ZERO;
    EvilServer::start(config).expect("the operator's server starts")
}

/// Data that is neither inlined in its inode nor compressible, so that it is a chunk block of its own.
fn data(seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..20_000)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Reads with a bound on patience: an attack must not hang a program for ever.
#[track_caller]
fn error_of(path: &Path) -> Option<i32> {
    let path = path.to_owned();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(std::fs::read(&path).map(drop)));
    match receiver.recv_timeout(Duration::from_secs(90)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            assert_ne!(error.kind(), ErrorKind::NotFound, "an attack never looks like a missing file");
            Some(error.raw_os_error().expect("a system error"))
        }
        Err(_) => panic!("the read hangs"),
    }
}

fn evidence(world: &World, who: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![world.path(&format!("{who}-state"))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.parent().is_some_and(|parent| parent.ends_with("evidence")) {
                found.push(path);
            }
        }
    }
    found
}

/// One attack on Bob while he reads what Alice wrote.
fn attacked(attack: Attack, verdict: Verdict) {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    std::fs::write(alice.join("team/target"), data(1)).expect("written");
    std::fs::write(alice.join("team/second"), data(2)).expect("written");
    std::fs::write(alice.join("team/small"), "inlined").expect("written");
    world.stop_server();
    let server = evil(&world);
    let bob = world.mount("bob");
    assert_eq!(std::fs::read(bob.join("team/small")).expect("read"), b"inlined");
    assert_eq!(error_of(&alice.join("team/small")), None, "honest so far");

    server.begin(attack);
    if matches!(attack, Attack::Freeze) {
        // The moment to which the server is going to roll everything back.
        let _ = std::fs::read_dir(bob.join("team")).map(|entries| entries.count());
    }
    let _ = std::fs::write(alice.join("team/later"), data(3));
    let mut errors = Vec::new();
    for name in ["target", "second", "later"] {
        errors.push(error_of(&bob.join("team").join(name)));
    }
    assert!(server.attacked() > 0, "{attack:?}: nothing was attacked");
    assert!(errors.contains(&Some(EIO)), "{attack:?}: Bob was served: {errors:?}\n{}", world.status("bob"));
    let status = world.status("bob");
    assert!(!evidence(&world, "bob").is_empty(), "{attack:?}: no evidence was kept\n{status}");
    match verdict {
        Verdict::ThatFileOnly => {
            assert!(status.contains("target") || status.contains("second"), "the file is named: {status}");
            assert_eq!(std::fs::read(bob.join("team/small")).expect("others go on"), b"inlined");
            std::fs::write(bob.join("team/by-bob"), "still writable").expect("others go on");
            server.begin(Attack::Honest);
            assert_eq!(
                std::fs::read(bob.join("team/target")).expect("the true data is taken again"),
                data(1)
            );
        }
        Verdict::Frozen => {
            server.begin(Attack::Honest);
            assert_eq!(
                error_of(&bob.join("team/small")),
                Some(EIO),
                "{attack:?}: a frozen mount stays frozen"
            );
            assert!(status.to_lowercase().contains("frozen"), "{attack:?}: {status}");
        }
    }
}

macro_rules! table {
    ($($name:ident: $attack:ident => $verdict:ident;)*) => {
        $(#[test]
        fn $name() {
            attacked(Attack::$attack, Verdict::$verdict);
        })*
    };
}

table! {
    a_flipped_byte: FlipByte => ThatFileOnly;
    swapped_blocks: SwapBlocks => ThatFileOnly;
    zeroed_blocks: ZeroBlocks => ThatFileOnly;
    truncated_blocks: TruncateBlocks => ThatFileOnly;
    a_decompression_bomb: Bomb => ThatFileOnly;
    lost_blocks: LoseBlocks => ThatFileOnly;
    others_hidden: HideOthers => Frozen;
    a_forged_structure: ForgeStructure => Frozen;
    a_shortened_log: ShortenLog => Frozen;
}

/// Proves that a server that lies about what became of an operation is found out, and the mount frozen.
fn lied_to(attack: Attack) {
    let mut world = World::new(&["alice"]);
    let alice = world.mount("alice");
    std::fs::write(alice.join("team/before"), "honest").expect("written");
    world.stop_server();
    let server = evil(&world);
    std::fs::write(alice.join("team/during"), "still honest").expect("written");
    server.begin(attack);
    for number in 0..5 {
        let _ = std::fs::write(alice.join(format!("team/lied-about-{number}")), "lost?");
    }
    assert!(server.attacked() > 0, "{attack:?}: nothing was attacked");
    assert_eq!(error_of(&alice.join("team/before")), Some(EIO), "{attack:?}: {}", world.status("alice"));
    assert!(world.status("alice").to_lowercase().contains("frozen"), "{attack:?}: {}", world.status("alice"));
    assert!(!evidence(&world, "alice").is_empty());
}

#[test]
fn an_accepted_operation_said_to_be_refused() {
    lied_to(Attack::RefuseAccepted);
}

#[test]
fn an_acknowledged_operation_forgotten() {
    lied_to(Attack::ForgetAcknowledged);
}

/// Proves that altered directories and tables are an error, never an empty or shorter directory, and that the
/// true ones are taken again.
#[test]
fn altered_metadata() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    let bob = world.mount("bob");
    world.stop_server();
    let server = evil(&world);
    server.begin(Attack::FlipMetadata);
    for number in 0..300 {
        std::fs::write(alice.join(format!("team/file-{number}")), data(1)).expect("written");
    }
    let listed =
        std::fs::read_dir(bob.join("team")).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let error = listed.expect_err("an altered directory was listed");
    assert!(server.attacked() > 0);
    assert_eq!(error.raw_os_error(), Some(EIO), "{}", world.status("bob"));
    assert_eq!(error_of(&bob.join("team/file-7")), Some(EIO));
    assert!(!evidence(&world, "bob").is_empty());
    server.begin(Attack::Honest);
    assert_eq!(std::fs::read_dir(bob.join("team")).expect("listed").count(), 300);
}

/// Proves that restoring yesterday's copy is noticed by whoever has seen today, that it names what is wrong, keeps
/// unsaved data, and that after the true data is back everybody carries on.
#[test]
fn yesterdays_copy() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    std::fs::write(alice.join("team/contract"), "yesterday").expect("written");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("yesterday")));
    world.start_server();
    std::fs::write(alice.join("team/contract"), "today").expect("written");
    world.stop_server();
    std::fs::rename(world.data(), world.path("today")).expect("moved");
    run(Command::new("cp").arg("-a").arg(world.path("yesterday")).arg(world.data()));
    world.start_server();
    assert_eq!(error_of(&alice.join("team/contract")), Some(EIO), "{}", world.status("alice"));
    assert!(world.status("alice").to_lowercase().contains("frozen"), "{}", world.status("alice"));
    assert!(!evidence(&world, "alice").is_empty());
    world.umount("alice");
    world.stop_server();
    std::fs::remove_dir_all(world.data()).expect("removed");
    std::fs::rename(world.path("today"), world.data()).expect("moved back");
    world.start_server();
    let refused = world.try_mount("alice", &[]);
    assert!(text(&refused).contains("--acknowledge-alarm"), "the way out is named: {}", text(&refused));
    assert!(!refused.status.success(), "an alarm is not forgotten by itself");
    let alice = world.mount_with("alice", &["--acknowledge-alarm"]);
    assert_eq!(std::fs::read(alice.join("team/contract")).expect("read"), b"today");
    assert_eq!(std::fs::read(world.mount("bob").join("team/contract")).expect("read"), b"today");
}

/// Proves that roll-back is noticed across a restart of the client too: the floor is on disk.
#[test]
fn yesterdays_copy_after_a_restart_of_the_client() {
    let mut world = World::new(&["alice"]);
    let alice = world.mount("alice");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("yesterday")));
    world.start_server();
    std::fs::write(alice.join("team/contract"), "today").expect("written");
    world.umount("alice");
    world.stop_server();
    std::fs::remove_dir_all(world.data()).expect("removed");
    std::fs::rename(world.path("yesterday"), world.data()).expect("moved");
    world.start_server();
    let at = world.path("alice-mnt");
    let url = world.url.clone();
    let output = world
        .holdfast("alice")
        .args(["mount", &url])
        .arg(&at)
        .arg("--key")
        .arg(world.key("alice"))
        .output()
        .expect("it runs");
    let refused = !output.status.success()
        || error_of(&at.join("team")) == Some(EIO)
        || std::fs::read_dir(&at).is_err_and(|error| error.raw_os_error() == Some(EIO));
    let _ = world.holdfast("alice").arg("umount").arg(&at).output();
    assert!(refused, "yesterday's copy was mounted: {}", text(&output));
}

/// Proves that a fork of two users shows at the first operation that crosses it, for the one who is brought over
/// and, once they see each other's operations, for the other.
#[test]
fn forked_users() {
    let mut world = World::new(&["alice", "bob"]);
    let (alice, _) = (world.mount("alice"), world.mount("bob"));
    std::fs::write(alice.join("team/before"), "common").expect("written");
    world.umount("bob");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    world.start_server();

    // Bob is sent to a copy of the server on another port.
    let port = common::free_port();
    let mut copy = Command::new(env!("CARGO_BIN_EXE_holdfast"))
        .args(["server", "--listen", &format!("127.0.0.1:{port}"), "--data"])
        .arg(world.path("fork"))
        .spawn()
        .expect("the copy starts");
    let true_url = world.url.clone();
    let fsid = world.fsid().to_owned();
    common::eventually("the copy listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    world.url = format!("hf://127.0.0.1:{port}/{fsid}");
    let bob = world.mount("bob");
    std::fs::write(bob.join("team/bobs"), "only Bob sees this").expect("the fork itself is not noticed");
    std::fs::write(alice.join("team/alices"), "only Alice sees this").expect("nor here");
    assert!(!bob.join("team/alices").exists() && !alice.join("team/bobs").exists());
    world.umount("bob");
    copy.kill().expect("ended");
    copy.wait().expect("ended");

    // He is brought back into Alice's world.
    world.url = true_url;
    let at = world.path("bob-mnt");
    let url = world.url.clone();
    let output = world
        .holdfast("bob")
        .args(["mount", &url])
        .arg(&at)
        .arg("--key")
        .arg(world.key("bob"))
        .output()
        .expect("runs");
    let refused = !output.status.success()
        || std::fs::read_dir(at.join("team")).is_err_and(|error| error.raw_os_error() == Some(EIO));
    let _ = world.holdfast("bob").arg("umount").arg(&at).output();
    assert!(refused, "the fork was crossed unnoticed: {}", text(&output));
    assert!(!evidence(&world, "bob").is_empty());
    assert_eq!(error_of(&alice.join("team/alices")), None, "Alice, who saw nothing wrong, goes on");
}
