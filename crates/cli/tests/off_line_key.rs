//! A superuser's key that is never on line: changes are prepared by a member, signed on a machine that reaches no server, and
//! submitted by a member.

use crate::common;

use common::{World, eventually, run, text};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[track_caller]
fn exits(command: &mut Command, code: i32) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{}", text(&output));
    text(&output)
}

fn public(world: &World, who: &str) -> String {
    fs::read_to_string(world.path(&format!("{who}.key.pub"))).expect("a public key").trim().to_owned()
}

/// `holdfast fs WHAT... --prepare` by `who`.
fn prepare(world: &World, who: &str, what: &[&str], out: &str) -> Command {
    let mut command = world.holdfast(who);
    command.arg("fs").args(what).arg("--prepare").arg(world.path(out)).arg("--key").arg(world.key(who));
    command
}

/// `holdfast fs sign` at the machine called `vault`, which has nothing but the key.
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

/// Prepared by `who`, signed, submitted by `who`.
#[track_caller]
fn change(world: &World, who: &str, name: &str, what: &[&str]) -> String {
    let (request, signed) = (format!("{name}.change"), format!("{name}.signed"));
    run(&mut prepare(world, who, what, &request));
    run(&mut sign(world, "vault", &request, &signed));
    run(&mut submit(world, who, &signed))
}

/// Proves: every kind of change can be made so, with the server out of reach of the key; who signs is shown in words what it
/// is; members go on working, and the server raises no alarm by any of it.
#[test]
fn every_change_with_the_key_off_line() {
    let mut world = World::new(&["alice", "bob"]);
    let url = world.url.clone();
    let bob = world.mount("bob");
    fs::write(bob.join("team/of-bob"), "by Bob").expect("written");
    world.keygen("carla");
    world.keygen("second");
    let (carla, second) = (public(&world, "carla"), public(&world, "second"));

    // A user: prepared, and nothing has changed; signed while there is no server; submitted by another member.
    let told = run(&mut prepare(&world, "alice", &["user", "add", &url, "carla", &carla], "1.change"));
    assert!(told.contains("user carla is added") && told.contains("is enrolled"), "{told}");
    assert!(told.contains(carla.split(' ').nth(1).expect("a key")), "{told}");
    fs::create_dir(world.path("carla-mnt")).expect("a mount point");
    assert_eq!(world.try_mount("carla", &[]).status.code(), Some(67));
    world.stop_server();
    let mut unasked = world.holdfast("vault");
    unasked.args(["fs", "sign"]).arg(world.path("1.change")).arg("--out").arg(world.path("1.signed"));
    unasked.arg("--superuser").arg(world.key("superuser"));
    let told = exits(&mut unasked, 64);
    assert!(told.contains("user carla is added") && told.contains("nobody is there to say"), "{told}");
    let told = run(&mut sign(&world, "vault", "1.change", "1.signed"));
    assert!(told.contains("user carla is added") && told.contains("Signed."), "{told}");
    world.start_server();
    let done = run(&mut submit(&world, "bob", "1.signed"));
    assert!(done.contains("in force") && done.contains("/carla was not made"), "{done}");
    let carla_mount = world.mount("carla");
    assert_eq!(fs::read(carla_mount.join("team/of-bob")).expect("read"), b"by Bob");
    assert!(fs::write(carla_mount.join("team/of-carla"), "x").is_err(), "no member of the group yet");

    // Groups and devices. The superuser's own device goes on beside it.
    change(&world, "alice", "2", &["group", "join", &url, "team", "carla"]);
    eventually("carla is in the group", || fs::write(carla_mount.join("team/of-carla"), "hers").is_ok());
    change(&world, "carla", "3", &["group", "add", &url, "pair", "alice", "bob", "--no-directory"]);
    world.administer(&["fs", "group", "join", &url, "pair", "carla"]);
    change(&world, "bob", "4", &["group", "remove", &url, "pair"]);
    change(&world, "bob", "5", &["device", "add", &url, "bob", "second", &second]);
    let second_mount = world.mount("second");
    fs::write(second_mount.join("team/of-second"), "by the second").expect("a device of a member");

    // Who leaves a group loses its files to one who stays; a stranger to the group cannot take them over.
    world.keygen("dora");
    world.administer(&["fs", "user", "add", &url, "dora", &public(&world, "dora"), "--no-directory"]);
    run(&mut prepare(&world, "dora", &["group", "leave", &url, "team", "carla"], "6.change"));
    run(&mut sign(&world, "vault", "6.change", "6.signed"));
    let told = exits(&mut submit(&world, "dora", "6.signed"), 77);
    assert!(told.contains("must be taken over by one who stays"), "{told}");
    let done = run(&mut submit(&world, "alice", "6.signed"));
    assert!(done.contains("carla leaves") && done.contains("1 files of groups were taken over"), "{done}");
    assert_eq!(fs::read(bob.join("team/of-carla")).expect("still there"), b"hers");
    eventually("carla has left", || fs::write(carla_mount.join("team/of-carla"), "late").is_err());

    // Revocation binds at its place in the order; who submits it must stay.
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
    let told = run(&mut sign(&world, "vault", "8.change", "8.signed"));
    assert!(told.contains("is removed: nothing it signs") && told.contains("is enrolled"), "{told}");
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
    // The server's records say the same when it starts anew, and a client that has seen nothing believes them.
    world.stop_server();
    world.start_server();
    world.keygen("eve");
    change(&world, "dora", "10", &["user", "add", &url, "eve", &public(&world, "eve"), "--no-directory"]);
    let told = run(world.holdfast("eve").args(["fs", "user", "list", &url, "--key"]).arg(world.key("eve")));
    let removed = |line: &str| line.contains("carla") && line.contains("removed");
    assert!(told.lines().any(removed) && told.contains("eve"), "{told}");
}

/// Proves: what was not signed, was altered, is stale, was used, or competes with another change is refused, in words that
/// say why.
#[test]
fn what_a_warrant_is_not_good_for() {
    let world = World::new(&["alice", "bob"]);
    let url = world.url.clone();
    let revoke = ["device", "remove", &url, "bob", "first"];
    run(&mut prepare(&world, "alice", &revoke, "revoke.change"));
    let told = exits(&mut prepare(&world, "alice", &revoke, "revoke.change"), 73);
    assert!(told.contains("exists"), "{told}");
    run(&mut prepare(&world, "alice", &["group", "add", &url, "pair", "--no-directory"], "pair.change"));

    // Not signed; signed by somebody else; altered.
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

    // A second one after the same membership is not signed; with a record that was lost, it is, and then is stale.
    let told = exits(&mut sign(&world, "vault", "pair.change", "pair.signed"), 77);
    assert!(told.contains("another change was signed to follow"), "{told}");
    run(&mut sign(&world, "forgetful", "pair.change", "pair.signed"));
    let done = run(&mut submit(&world, "alice", "revoke.signed"));
    assert!(done.contains("is removed"), "{done}");
    let told = exits(&mut submit(&world, "alice", "pair.signed"), 77);
    assert!(told.contains("What came between") && told.contains("device first of user bob"), "{told}");
    // Used once, it is over.
    assert!(exits(&mut submit(&world, "alice", "revoke.signed"), 77).contains("in force already"));

    // For another file system: its superuser is another.
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
    // Prepared by hand as well as made on line: the two ways do not mix up.
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
