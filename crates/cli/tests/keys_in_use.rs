//! A device's key over its life: its state moved to another machine, cloned; its key rotated, and removed.

use crate::common;

use common::{World, eventually, exits, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Another machine of `who`, with the same key and no state.
fn machine(world: &World, who: &str, name: &str) {
    fs::copy(world.key(who), world.key(name)).expect("a copy of the key");
}

fn export(world: &World, who: &str, to: &Path) -> Command {
    let mut command = world.holdfast(who);
    command.args(["state", "export", &world.url, "--key"]).arg(world.key(who)).arg("--to").arg(to);
    command
}

fn import(world: &World, who: &str, file: &Path) -> Command {
    let mut command = world.holdfast(who);
    command.args(["state", "import"]).arg(file).arg("--key").arg(world.key(who));
    command
}

fn carried(world: &World, name: &str) -> PathBuf {
    world.path(&format!("{name}.state"))
}

/// Proves: a state that was moved to another machine works there and nowhere else, until it is moved back. An older
/// export is refused. None of this raises an alarm.
#[test]
fn a_state_is_carried_and_brought_back() {
    let mut world = World::new(&["alice", "bob"]);
    machine(&world, "alice", "laptop");
    let alice = world.mount("alice");
    fs::write(alice.join("team/from-desktop"), "one").expect("written");
    let first = carried(&world, "first");
    assert!(exits(&mut export(&world, "alice", &first), 75).contains("unmount first"));
    world.umount("alice");
    assert!(exits(&mut export(&world, "bob", &first), 66).contains("no state"));
    run(&mut export(&world, "alice", &first));
    assert_eq!(
        fs::metadata(&first)
            .map(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777)
            .expect("made"),
        0o600
    );

    // After the export this machine can neither mount nor export again.
    let refused = world.mount_refused("alice", 65);
    assert!(refused.contains("carried to another machine"), "{refused}");
    let second = carried(&world, "second");
    assert!(exits(&mut export(&world, "alice", &second), 65).contains("carried to another machine"));

    // Exports of another key, and damaged ones.
    machine(&world, "bob", "stranger");
    assert!(exits(&mut import(&world, "stranger", &first), 66).contains("belongs to key"));
    let damaged = carried(&world, "damaged");
    let mut bytes = fs::read(&first).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&damaged, &bytes).expect("written");
    exits(&mut import(&world, "laptop", &damaged), 65);

    run(&mut import(&world, "laptop", &first));
    let laptop = world.mount("laptop");
    assert_eq!(fs::read(laptop.join("team/from-desktop")).expect("read"), b"one");
    fs::write(laptop.join("team/from-laptop"), "two").expect("written");
    assert!(exits(&mut import(&world, "laptop", &first), 75).contains("in use"));
    world.umount("laptop");
    assert!(exits(&mut import(&world, "laptop", &first), 77).contains("the file is the older one"));

    // The state is moved back, and the older file is refused from then on.
    run(&mut export(&world, "laptop", &second));
    run(&mut import(&world, "alice", &second));
    let alice = world.mount("alice");
    assert_eq!(fs::read(alice.join("team/from-laptop")).expect("read"), b"two");
    fs::write(alice.join("team/from-desktop"), "three").expect("written");
    world.umount("alice");
    exits(&mut import(&world, "alice", &first), 77);

    // On a machine without any state, the server's view shows that the file is an old one.
    machine(&world, "alice", "third");
    run(&mut import(&world, "third", &first));
    let printed = world.mount_refused("third", 80);
    assert!(
        printed.contains("This is no attack by itself") || printed.contains("This is a clone"),
        "{printed}"
    );
    assert!(world.status("bob").lines().all(|line| !line.contains("ALARM")));
    let bob = world.mount("bob");
    assert_eq!(fs::read(bob.join("team/from-desktop")).expect("others see no alarm"), b"three");
}

/// Proves: of two machines with one key and one state, the one that comes second is told in so many words that one of
/// them is a clone. The server is not accused, the first machine goes on, and others notice nothing.
#[test]
fn a_clone_is_called_a_clone() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    fs::write(alice.join("team/file"), "one").expect("written");
    world.umount("alice");
    for name in ["clone", "late"] {
        machine(&world, "alice", name);
        let state = world.path(&format!("{name}-state"));
        run(Command::new("cp").arg("-a").arg(world.path("alice-state")).arg(state));
    }
    let innocent = |printed: &str| {
        let local = printed.contains("This is a clone, not a lie of the server's")
            || printed.contains("This is no attack by itself");
        assert!(local && printed.contains("key"), "{printed}");
        assert!(!printed.contains("No honest server shows this"), "the server is accused:\n{printed}");
        assert!(!printed.contains("history is not consistent"), "the server is accused:\n{printed}");
    };
    // The clone starts while the first machine works, and signs a number that was used already.
    let alice = world.mount("alice");
    fs::write(alice.join("team/file"), "two").expect("written");
    for _ in 0..2 {
        let refused = world.mount_refused("clone", 80);
        innocent(&refused);
    }
    let listed = run(world.holdfast("clone").args(["--json", "evidence", "list"]));
    innocent(&listed);
    assert_eq!(fs::read(alice.join("team/file")).expect("it goes on"), b"two");
    fs::write(alice.join("team/file"), "three").expect("it goes on");
    world.umount("alice");

    // One after the other: the one that comes second is told.
    let refused = world.mount_refused("late", 80);
    innocent(&refused);
    let bob = world.mount("bob");
    assert_eq!(fs::read(bob.join("team/file")).expect("others go on"), b"three");
    assert!(!world.status("bob").contains("ALARM"), "{}", world.status("bob"));
}

/// Proves: after a rotation the new key has the same files under the same name, by one change of the membership, and
/// the old key can order nothing.
#[test]
fn a_key_is_rotated() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    fs::write(alice.join("team/file"), "by the old key").expect("written");
    let url = world.url.clone();
    world.keygen("new");
    let public = fs::read_to_string(world.path("new.key.pub")).expect("a public key");
    let version = |world: &World| -> u64 {
        let contract =
            run(world.holdfast("bob").args(["--json", "fs", "show", &url, "--key"]).arg(world.key("bob")));
        serde_json::from_str::<serde_json::Value>(&contract).expect("JSON")["version"]
            .as_u64()
            .expect("a version")
    };
    let before = version(&world);
    let rotate = |key: &str| ["fs", "device", "rotate", &url, "alice", "first", key].map(str::to_owned);
    let printed = world.administer(&rotate(public.trim()).each_ref().map(String::as_str));
    assert!(printed.contains("has a new key"), "{printed}");
    assert_eq!(version(&world), before + 1, "one change");

    eventually("the old key is refused", || fs::write(alice.join("team/old"), "late").is_err());
    let new = world.mount("new");
    assert_eq!(fs::read(new.join("team/file")).expect("read"), b"by the old key");
    fs::write(new.join("team/file"), "by the new key").expect("written");
    let bob = world.mount("bob");
    assert_eq!(fs::read(bob.join("team/file")).expect("read"), b"by the new key");
    assert!(!bob.join("team/old").exists());
    assert!(!world.status("bob").contains("ALARM"));
    // A key that was ever enrolled cannot be enrolled as a new one.
    let old = fs::read_to_string(world.path("alice.key.pub")).expect("a public key");
    let mut again = world.holdfast("superuser");
    again.args(rotate(old.trim())).arg("--superuser").arg(world.key("superuser"));
    assert!(!again.output().expect("it runs").status.success());
}

/// Whether a file below a folder contains these bytes.
fn holds(folder: &Path, wanted: &[u8]) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    paths.any(|path| {
        if path.is_dir() { holds(&path, wanted) } else { fs::read(&path).is_ok_and(|read| read == wanted) }
    })
}

/// Proves: a mount whose key was rotated or removed says so, whether it is used or not, and says what becomes of
/// changes that were not at the server: they are kept, `salvage` copies them out, and they do not prevent unmounting.
/// The new key goes on.
#[test]
fn a_mount_whose_key_is_gone_says_so() {
    let mut world = World::new(&["alice", "bob", "carol"]);
    let alice = world.mount("alice");
    let mut open = fs::File::create(alice.join("team/open")).expect("made");
    open.sync_all().expect("it is there");
    world.mount("bob");
    let carol = world.mount_with("carol", &["--write-back"]);
    let url = world.url.clone();
    world.keygen("new");
    let public = fs::read_to_string(world.path("new.key.pub")).expect("a public key");
    world.administer(&["fs", "device", "rotate", &url, "alice", "first", public.trim()]);
    for who in ["bob", "carol"] {
        world.administer(&["fs", "device", "remove", &url, who, "first"]);
    }
    // Before either mount is used.
    for who in ["alice", "bob", "carol"] {
        eventually("it is told", || world.status(who).contains("STOPPED: the server takes nothing more"));
        let printed = exits(world.holdfast(who).arg("status").arg(world.path(&format!("{who}-mnt"))), 67);
        assert!(printed.contains("holdfast salvage --to DIR") && !printed.contains("working"), "{printed}");
    }
    std::io::Write::write_all(&mut open, b"not saved yet").expect("it is kept here");
    open.sync_all().expect_err("it cannot be saved");
    let printed = exits(world.holdfast("alice").arg("status").arg(&alice), 67);
    assert!(printed.contains("Unsaved") && printed.contains("team/open"), "{printed}");
    let rescued = world.path("rescued");
    run(world.holdfast("alice").args(["salvage", "--to"]).arg(&rescued));
    assert!(holds(&rescued, b"not saved yet"), "{}", run(world.holdfast("alice").arg("salvage")));
    drop(open);
    world.umount("alice");
    assert!(holds(&world.path("alice-state"), b"not saved yet"), "it stays there");

    let _ = fs::write(carol.join("team/late"), "written in vain");
    eventually("it is kept", || {
        run(world.holdfast("carol").arg("salvage"));
        holds(&world.path("carol-state"), b"written in vain")
    });
    for who in ["bob", "carol"] {
        world.umount(who);
    }
    let new = world.mount("new");
    fs::write(new.join("team/open"), "by the new key").expect("written");
    let printed = world.status("new");
    assert!(printed.contains("working") && !printed.contains("STOPPED"), "{printed}");
}

/// Proves: if a removed key signs once more at a position before its removal, with the help of an operator who kept the
/// old state, nobody who has seen the removal accepts it.
#[test]
fn a_removed_key_cannot_back_date() {
    let mut world = World::new(&["alice", "bob"]);
    let alice = world.mount("alice");
    fs::write(alice.join("team/contract"), "as agreed").expect("written");
    world.umount("alice");
    let bob = world.mount("bob");
    assert_eq!(fs::read(bob.join("team/contract")).expect("read"), b"as agreed");
    world.stop_server();
    run(Command::new("cp").arg("-a").arg(world.data()).arg(world.path("before")));
    world.start_server();
    let url = world.url.clone();
    world.administer(&["fs", "device", "remove", &url, "alice", "first"]);
    fs::write(bob.join("team/seen"), "Bob has seen the removal").expect("written");
    world.mount_refused("alice", 67);

    // The operator serves the state from before the removal, and the removed key signs there.
    world.stop_server();
    fs::rename(world.data(), world.path("after")).expect("moved");
    fs::rename(world.path("before"), world.data()).expect("moved");
    world.start_server();
    let alice = world.mount("alice");
    fs::write(alice.join("team/contract"), "as forged").expect("she is believed where nobody knows better");
    world.umount("alice");
    let contract = fs::read(bob.join("team/contract"));
    assert_eq!(contract.expect_err("back-dated").raw_os_error(), Some(5), "{}", world.status("bob"));
    assert!(world.status("bob").contains("FROZEN"), "{}", world.status("bob"));
}
