//! A superuser's key that is never on line: members prepare changes, a machine that reaches no server signs them, and
//! members submit them.

use crate::common;

use common::{World, eventually, exits, run, text};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn public(world: &World, who: &str) -> String {
    fs::read_to_string(world.path(&format!("{who}.key.pub"))).expect("a public key").trim().to_owned()
}

/// `holdfast fs WHAT... --prepare` by `who`.
fn prepare(world: &World, who: &str, what: &[&str], out: &str) -> Command {
    let mut command = world.holdfast(who);
    command.arg("fs").args(what).arg("--prepare").arg(world.path(out)).arg("--key").arg(world.key(who));
    command
}

/// `holdfast fs sign` on the machine `vault`, which has nothing but the key.
fn sign(world: &World, vault: &str, file: &str, out: &str) -> Command {
    let mut command = world.holdfast(vault);
    command.args(["fs", "sign"]).arg(world.path(file)).arg("--superuser").arg(world.key("superuser"));
    command.arg("--out").arg(world.path(out)).arg("--yes");
    command
}

fn submit(world: &World, who: &str, file: &str) -> Command {
    let mut command = world.holdfast(who);
    command.args(["fs", "submit"]).arg(world.path(file)).arg("--key").arg(world.key(who));
    command
}

/// A change that `who` prepares, the vault signs, and `who` submits.
#[track_caller]
fn change(world: &World, who: &str, name: &str, what: &[&str]) -> String {
    let (request, signed) = (format!("{name}.change"), format!("{name}.signed"));
    run(&mut prepare(world, who, what, &request));
    run(&mut sign(world, "vault", &request, &signed));
    run(&mut submit(world, who, &signed))
}

/// Proves: every kind of change can be made in this way, with the server out of the key's reach. The command that signs
/// shows in words what is signed. Members go on working, and no alarm is raised.
#[test]
fn every_change_with_the_key_off_line() {
    let mut world = World::new(&["alice", "bob"]);
    let url = world.url.clone();
    let bob = world.mount("bob");
    fs::write(bob.join("team/of-bob"), "by Bob").expect("written");
    world.keygen("carla");
    world.keygen("second");
    let (carla, second) = (public(&world, "carla"), public(&world, "second"));

    // A user: preparing changes nothing; it is signed while there is no server, and submitted by another member.
    let printed = run(&mut prepare(&world, "alice", &["user", "add", &url, "carla", &carla], "1.change"));
    assert!(printed.contains("user carla is added") && printed.contains("is enrolled"), "{printed}");
    assert!(printed.contains(carla.split(' ').nth(1).expect("a key")), "{printed}");
    world.mount_refused("carla", 67);
    world.stop_server();
    let mut unasked = world.holdfast("vault");
    unasked.args(["fs", "sign"]).arg(world.path("1.change")).arg("--out").arg(world.path("1.signed"));
    unasked.arg("--superuser").arg(world.key("superuser"));
    let printed = exits(&mut unasked, 64);
    assert!(
        printed.contains("user carla is added") && printed.contains("nobody is there to say"),
        "{printed}"
    );
    let printed = run(&mut sign(&world, "vault", "1.change", "1.signed"));
    assert!(printed.contains("user carla is added") && printed.contains("Signed."), "{printed}");
    world.start_server();
    let done = run(&mut submit(&world, "bob", "1.signed"));
    assert!(done.contains("in force") && done.contains("/carla was not made"), "{done}");
    let carla_mount = world.mount("carla");
    assert_eq!(fs::read(carla_mount.join("team/of-bob")).expect("read"), b"by Bob");
    assert!(fs::write(carla_mount.join("team/of-carla"), "x").is_err(), "no member of the group yet");

    // Groups and devices. The superuser's own device goes on as well.
    change(&world, "alice", "2", &["group", "join", &url, "team", "carla"]);
    eventually("carla is in the group", || fs::write(carla_mount.join("team/of-carla"), "hers").is_ok());
    change(&world, "carla", "3", &["group", "add", &url, "pair", "alice", "bob", "--no-directory"]);
    world.administer(&["fs", "group", "join", &url, "pair", "carla"]);
    change(&world, "bob", "4", &["group", "remove", &url, "pair"]);
    change(&world, "bob", "5", &["device", "add", &url, "bob", "second", &second]);
    let second_mount = world.mount("second");
    fs::write(second_mount.join("team/of-second"), "by the second").expect("a device of a member");

    // Files of a member who leaves a group go to one who stays; somebody outside the group cannot take them over.
    world.keygen("dora");
    world.administer(&["fs", "user", "add", &url, "dora", &public(&world, "dora"), "--no-directory"]);
    run(&mut prepare(&world, "dora", &["group", "leave", &url, "team", "carla"], "6.change"));
    run(&mut sign(&world, "vault", "6.change", "6.signed"));
    let printed = exits(&mut submit(&world, "dora", "6.signed"), 77);
    assert!(printed.contains("must be taken over by one who stays"), "{printed}");
    let done = run(&mut submit(&world, "alice", "6.signed"));
    assert!(done.contains("carla leaves") && done.contains("1 files of groups were taken over"), "{done}");
    assert_eq!(fs::read(bob.join("team/of-carla")).expect("still there"), b"hers");
    eventually("carla has left", || fs::write(carla_mount.join("team/of-carla"), "late").is_err());

    // A revocation takes effect at its position in the order; the member who submits it must remain a member.
    change(&world, "alice", "7", &["device", "remove", &url, "bob", "second"]);
    eventually("the key is revoked", || fs::write(second_mount.join("team/late"), "late").is_err());
    assert_eq!(fs::read(bob.join("team/of-second")).expect("what was written stays"), b"by the second");
    world.keygen("new");
    run(&mut prepare(
        &world,
        "bob",
        &["device", "rotate", &url, "bob", "first", &public(&world, "new")],
        "8.change",
    ));
    let printed = run(&mut sign(&world, "vault", "8.change", "8.signed"));
    assert!(printed.contains("is removed: nothing it signs") && printed.contains("is enrolled"), "{printed}");
    assert!(exits(&mut submit(&world, "bob", "8.signed"), 77).contains("submit it from another"));
    run(&mut submit(&world, "alice", "8.signed"));
    let new = world.mount("new");
    fs::write(new.join("team/of-bob"), "by the new key").expect("written");
    change(&world, "alice", "9", &["user", "remove", &url, "carla"]);
    let alice = world.mount("alice");
    assert_eq!(fs::read(alice.join("team/of-bob")).expect("read"), b"by the new key");
    assert!(!alice.join("team/late").exists());
    for who in ["alice", "new"] {
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }
    // The server's records agree after a restart, and a client that has seen nothing accepts them.
    world.stop_server();
    world.start_server();
    world.keygen("eve");
    change(&world, "dora", "10", &["user", "add", &url, "eve", &public(&world, "eve"), "--no-directory"]);
    let printed =
        run(world.holdfast("eve").args(["fs", "user", "list", &url, "--key"]).arg(world.key("eve")));
    let removed = |line: &str| line.contains("carla") && line.contains("removed");
    assert!(printed.lines().any(removed) && printed.contains("eve"), "{printed}");
}

/// Proves: a change that was not signed, was altered, is stale, was used before, or competes with another is refused,
/// in words that say why.
#[test]
fn what_a_warrant_is_not_good_for() {
    let world = World::new(&["alice", "bob"]);
    let url = world.url.clone();
    let revoke = ["device", "remove", &url, "bob", "first"];
    run(&mut prepare(&world, "alice", &revoke, "revoke.change"));
    let printed = exits(&mut prepare(&world, "alice", &revoke, "revoke.change"), 73);
    assert!(printed.contains("exists"), "{printed}");
    run(&mut prepare(&world, "alice", &["group", "add", &url, "pair", "--no-directory"], "pair.change"));

    // Not signed; signed with another key; altered.
    assert!(exits(&mut submit(&world, "alice", "revoke.change"), 77).contains("has not signed it"));
    let mut false_key = world.holdfast("vault");
    false_key
        .args(["fs", "sign"])
        .arg(world.path("revoke.change"))
        .arg("--superuser")
        .arg(world.key("alice"));
    assert!(
        exits(false_key.arg("--yes").arg("--out").arg(world.path("x")), 77)
            .contains("not the superuser's key")
    );
    run(&mut sign(&world, "vault", "revoke.change", "revoke.signed"));
    let bytes = fs::read(world.path("revoke.signed")).expect("read");
    for place in [9, bytes.len() / 3, bytes.len() / 2, bytes.len() - 70, bytes.len() - 1] {
        let mut altered = bytes.clone();
        altered[place] ^= 1;
        fs::write(world.path("altered"), &altered).expect("written");
        let output = submit(&world, "alice", "altered").output().expect("it runs");
        let code = output.status.code().expect("it ends");
        assert!([65, 67, 68, 69, 76, 77].contains(&code), "{place}: {code}: {}", text(&output));
    }

    // A second change of the same membership is not signed. With a record that was lost it is signed, and is stale
    // afterwards.
    let printed = exits(&mut sign(&world, "vault", "pair.change", "pair.signed"), 77);
    assert!(printed.contains("another change was signed to follow"), "{printed}");
    run(&mut sign(&world, "forgetful", "pair.change", "pair.signed"));
    let done = run(&mut submit(&world, "alice", "revoke.signed"));
    assert!(done.contains("is removed"), "{done}");
    let printed = exits(&mut submit(&world, "alice", "pair.signed"), 77);
    assert!(
        printed.contains("What came between") && printed.contains("device first of user bob"),
        "{printed}"
    );
    // A change that was submitted cannot be submitted again.
    assert!(exits(&mut submit(&world, "alice", "revoke.signed"), 77).contains("in force already"));

    // A change of another file system is refused: its superuser is another.
    let elsewhere = World::new(&["alice"]);
    let theirs: PathBuf = elsewhere.path("theirs.change");
    run(&mut prepare(
        &elsewhere,
        "alice",
        &["group", "add", &elsewhere.url.clone(), "pair"],
        "theirs.change",
    ));
    fs::copy(theirs, world.path("theirs.change")).expect("carried");
    assert!(exits(&mut sign(&world, "vault", "theirs.change", "x"), 77).contains("not the superuser's key"));
    // Changes that are prepared and changes that are made on line can be mixed.
    let both = exits(
        world
            .holdfast("alice")
            .args(["fs", "group", "remove", &url, "team", "--superuser"])
            .arg(world.key("superuser"))
            .arg("--prepare")
            .arg(world.path("x"))
            .arg("--key")
            .arg(world.key("alice")),
        64,
    );
    assert!(both.contains("--prepare"), "{both}");
}
