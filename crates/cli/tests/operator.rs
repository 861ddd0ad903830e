//! What clients make of a server whose operator attacks: attack by attack, through real mounts, with a named verdict
//! for each. The lying layer is `holdfast_sim::evil`; rolled-back and forked servers are the honest program on old or
//! copied data.

use crate::common;

use common::cluster::Second;
use common::{PATIENCE, World, run, text};
use holdfast_server::ServerConfig;
use holdfast_sim::evil::{Attack, EvilServer};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What a client makes of an attack.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// Reading the file fails with EIO, the report names the file, and everything else goes on.
    ThatFileOnly,
    /// The mount is frozen: everything fails with EIO until the user has acknowledged the alarm.
    Frozen,
}

pub(super) const EIO: i32 = 5;

/// The operator's server on the world's data directory and port. It is honest until a test sets an attack.
pub(super) fn evil(world: &World) -> EvilServer {
    let listen = ([127, 0, 0, 1], world.port).into();
    let mut config = ServerConfig::new(world.data(), listen);
    config.abort_after = Duration::from_secs(3);
    // Without leases, so that each call asks the server, which can lie to it.
    config.lease_term = std::time::Duration::ZERO;
    EvilServer::start(config).expect("the operator's server starts")
}

/// Data that is neither inlined in its inode nor compressible, so that it is a chunk block of its own.
pub(super) fn data(seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) + 1;
    (0..20_000)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// Reads a file, and fails if that takes for ever: an attack must not hang a program.
#[track_caller]
pub(super) fn error_of(path: &Path) -> Option<i32> {
    let path = path.to_owned();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(std::fs::read(&path).map(drop)));
    match receiver.recv_timeout(PATIENCE) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => {
            assert_ne!(error.kind(), ErrorKind::NotFound, "an attack never looks like a missing file");
            Some(error.raw_os_error().expect("a system error"))
        }
        Err(_) => panic!("the read hangs"),
    }
}

/// The evidence files that `who` has.
pub(super) fn evidence(world: &World, who: &str) -> Vec<PathBuf> {
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

/// Attacks on the data of files, after which everything else goes on.
pub(super) const ON_DATA: [Attack; 6] = [
    Attack::FlipByte,
    Attack::SwapBlocks,
    Attack::ZeroBlocks,
    Attack::TruncateBlocks,
    Attack::Bomb,
    Attack::LoseBlocks,
];
/// Attacks on the order, which any reader sees.
pub(super) const ON_THE_ORDER: [Attack; 3] = [Attack::HideOthers, Attack::ForgeStructure, Attack::ShortenLog];
/// Lies about the outcome of an operation.
pub(super) const ON_OPERATIONS: [Attack; 2] = [Attack::RefuseAccepted, Attack::ForgetAcknowledged];

fn verdict(attack: Attack) -> Verdict {
    if ON_DATA.contains(&attack) { Verdict::ThatFileOnly } else { Verdict::Frozen }
}

/// Makes one attack on `reader`, who reads what `writer` wrote, and checks the verdict.
pub(super) fn reading(world: &World, server: &EvilServer, (writer, reader): (&str, &str), attack: Attack) {
    let (alice, bob) = (world.path(&format!("{writer}-mnt")), world.path(&format!("{reader}-mnt")));
    let name = |what: &str| format!("team/{attack:?}-{what}");
    // New data, which no cache has.
    let data = |index: u8| data(attack as u8 * 4 + index);
    std::fs::write(alice.join(name("target")), data(1)).expect("written");
    std::fs::write(alice.join(name("second")), data(2)).expect("written");
    std::fs::write(alice.join(name("small")), "inlined").expect("written");
    assert_eq!(std::fs::read(bob.join(name("small"))).expect("read"), b"inlined");
    assert_eq!(error_of(&alice.join(name("small"))), None, "honest so far");
    let evidence_before = evidence(world, reader).len();

    server.begin(attack);
    let _ = std::fs::write(alice.join(name("later")), data(3));
    let mut errors = Vec::new();
    for what in ["target", "second", "later"] {
        errors.push(error_of(&bob.join(name(what))));
    }
    assert!(server.attacked() > 0, "{attack:?}: nothing was attacked");
    let status = world.status(reader);
    assert!(errors.contains(&Some(EIO)), "{attack:?}: Bob was served: {errors:?}\n{status}");
    assert!(evidence(world, reader).len() > evidence_before, "{attack:?}: no evidence was kept\n{status}");
    match verdict(attack) {
        Verdict::ThatFileOnly => {
            let is_named = ["target", "second"].iter().any(|what| status.contains(&name(what)));
            assert!(is_named, "{attack:?}: the file is named: {status}");
            assert_eq!(std::fs::read(bob.join(name("small"))).expect("others go on"), b"inlined");
            std::fs::write(bob.join(name("by-bob")), "still writable").expect("others go on");
            server.begin(Attack::Honest);
            let target = std::fs::read(bob.join(name("target"))).expect("the true data is taken again");
            assert!(target == data(1), "{attack:?}");
        }
        Verdict::Frozen => {
            server.begin(Attack::Honest);
            let small = error_of(&bob.join(name("small")));
            assert_eq!(small, Some(EIO), "{attack:?}: a frozen mount stays frozen");
            assert!(status.to_lowercase().contains("frozen"), "{attack:?}: {status}");
        }
    }
}

/// Makes one attack on `reader`, at a server that has everything in its data directory.
fn attacked(attack: Attack) {
    let mut world = World::new(&["alice", "bob"]);
    world.stop_server();
    let server = evil(&world);
    world.mount("alice");
    world.mount("bob");
    reading(&world, &server, ("alice", "bob"), attack);
    // Mounts wait for their server when they end, so they end before it.
    world.umount("bob");
    world.umount("alice");
}

macro_rules! table {
    ($($name:ident: $attack:ident;)*) => {
        $(#[test]
        fn $name() {
            attacked(Attack::$attack);
        })*
    };
}

table! {
    a_flipped_byte: FlipByte;
    swapped_blocks: SwapBlocks;
    zeroed_blocks: ZeroBlocks;
    truncated_blocks: TruncateBlocks;
    a_decompression_bomb: Bomb;
    lost_blocks: LoseBlocks;
    others_hidden: HideOthers;
    a_forged_structure: ForgeStructure;
    a_shortened_log: ShortenLog;
}

/// A server lies to `writer` about the outcome of an operation: this is detected, and the mount frozen.
pub(super) fn writing(world: &World, server: &EvilServer, writer: &str, attack: Attack) {
    let alice = world.path(&format!("{writer}-mnt"));
    let before = alice.join(format!("team/{attack:?}-before"));
    std::fs::write(&before, "honest").expect("written");
    server.begin(attack);
    for number in 0..5 {
        let _ = std::fs::write(alice.join(format!("team/{attack:?}-{number}")), "lost?");
    }
    assert!(server.attacked() > 0, "{attack:?}: nothing was attacked");
    let status = world.status(writer);
    assert_eq!(error_of(&before), Some(EIO), "{attack:?}: {status}");
    assert!(status.to_lowercase().contains("frozen"), "{attack:?}: {status}");
    assert!(!evidence(world, writer).is_empty());
    server.begin(Attack::Honest);
}

/// The same lie, by a server that has everything in its data directory.
fn lied_to(attack: Attack) {
    let mut world = World::new(&["alice"]);
    world.stop_server();
    let server = evil(&world);
    world.mount("alice");
    writing(&world, &server, "alice", attack);
    world.umount("alice");
}

/// Proves: a server that accepts an operation and says that it refused it is found out.
#[test]
fn an_accepted_operation_said_to_be_refused() {
    lied_to(Attack::RefuseAccepted);
}

/// Proves: a server that acknowledges an operation and then has it no more is found out.
#[test]
fn an_acknowledged_operation_forgotten() {
    lied_to(Attack::ForgetAcknowledged);
}

/// Directories and tables are altered for `reader`: that is an error, never an empty or shorter directory, and when the
/// server is honest again the true ones are read.
pub(super) fn listing(world: &World, server: &EvilServer, (writer, reader): (&str, &str)) {
    let directory = |who: &str| world.path(&format!("{who}-mnt/team/many"));
    std::fs::create_dir(directory(writer)).expect("a directory");
    assert_eq!(std::fs::read_dir(directory(reader)).expect("listed").count(), 0);
    let evidence_before = evidence(world, reader).len();
    server.begin(Attack::FlipMetadata);
    for number in 0..300 {
        std::fs::write(directory(writer).join(format!("file-{number}")), data(1)).expect("written");
    }
    let listed =
        std::fs::read_dir(directory(reader)).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    let error = listed.expect_err("an altered directory was listed");
    assert!(server.attacked() > 0);
    assert_eq!(error.raw_os_error(), Some(EIO), "{}", world.status(reader));
    assert_eq!(error_of(&directory(reader).join("file-7")), Some(EIO));
    assert!(evidence(world, reader).len() > evidence_before);
    server.begin(Attack::Honest);
    assert_eq!(std::fs::read_dir(directory(reader)).expect("listed").count(), 300);
}

/// Proves: altered directories and tables are an error, never an empty or shorter directory.
#[test]
fn altered_metadata() {
    let mut world = World::new(&["alice", "bob"]);
    world.stop_server();
    let server = evil(&world);
    world.mount("alice");
    world.mount("bob");
    listing(&world, &server, ("alice", "bob"));
    world.umount("bob");
    world.umount("alice");
}

/// Proves that a client who has seen today's state notices when yesterday's copy is restored: the report names what is
/// wrong, unsaved data is saved, and after the true data is back everybody carries on.
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

/// Proves that a client notices a roll-back after its restart too, as its floor is on disk.
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

/// Proves that a fork of two users shows at the first operation that crosses it: to the one who is led to the other
/// side, and, once they see each other's operations, to the other.
#[test]
fn forked_users() {
    let mut world = World::new(&["alice", "bob"]);
    let (alice, _) = (world.mount("alice"), world.mount("bob"));
    std::fs::write(alice.join("team/before"), "common").expect("written");
    world.umount("bob");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("fork")));
    world.start_server();

    // Bob is led to a copy of the server on another port.
    let copy = Second::started(&world, &world.path("fork"), &[]);
    let fork_url = copy.url(&world);
    let true_url = std::mem::replace(&mut world.url, fork_url);
    let bob = world.mount("bob");
    std::fs::write(bob.join("team/bobs"), "only Bob sees this").expect("the fork itself is not noticed");
    std::fs::write(alice.join("team/alices"), "only Alice sees this").expect("nor here");
    assert!(!bob.join("team/alices").exists() && !alice.join("team/bobs").exists());
    world.umount("bob");
    drop(copy);

    // Bob is led back to Alice's server.
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
