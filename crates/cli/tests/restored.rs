//! A server is put back from a backup, and the superuser declares that: no alarm is raised, everybody goes on, and what
//! was lost is listed, kept, and never comes back by itself.

use crate::common;

use common::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Copies the data directory of a server that does not run.
pub fn keep(world: &World, name: &str) -> PathBuf {
    let copy = world.path(name);
    run(Command::new("cp").arg("-a").arg(world.data()).arg(&copy));
    copy
}

/// Puts a copy in place of the data directory.
pub fn put_back(world: &World, copy: &Path) {
    fs::remove_dir_all(world.data()).expect("removed");
    run(Command::new("cp").arg("-a").arg(copy).arg(world.data()));
}

/// The superuser declares that the server was put back.
pub fn declare(world: &World) -> serde_json::Value {
    let mut command = world.holdfast("superuser");
    command
        .args(["fs", "restored", &world.url, "--yes", "--json", "--superuser"])
        .arg(world.key("superuser"));
    run_json(&mut command)
}

/// The evidence files in which `who` has what the restore lost.
fn lost_evidence(world: &World, who: &str) -> Vec<PathBuf> {
    let found =
        run(Command::new("find").arg(world.path(&format!("{who}-state"))).args(["-name", "*-lost.evidence"]));
    found.lines().map(PathBuf::from).collect()
}

/// Proves: after a restore that the superuser has declared, mounts that run and users who come back go on without an alarm;
/// what was lost is listed and kept, and the lost state itself is refused.
#[test]
fn a_declared_restore_raises_no_alarm() {
    let mut world = World::new(&["anna", "ben"]);
    // Without sending it again, so that what is lost stays lost: `sent_again.rs` tests that.
    let plain = ["--no-send-again"];
    let (anna, ben) = (world.mount_with("anna", &plain), world.mount_with("ben", &plain));
    write(&anna.join("anna/early"), "early").expect("written");
    write(&ben.join("team/shared"), "one").expect("written");
    world.stop_server();
    let backup = keep(&world, "backup");
    world.start_server();
    write(&anna.join("anna/late"), "late").expect("written");
    write(&anna.join("team/late"), "late").expect("written");
    eventually("ben sees it", || fs::read_to_string(ben.join("team/late")).is_ok());
    write(&ben.join("team/shared"), "two").expect("written");
    world.stop_server();
    let lost = keep(&world, "lost");
    put_back(&world, &backup);

    // Nothing is served until the superuser has declared the restore; calls wait.
    world.start_server_with(&["--restored"]);
    let waits = Command::new("timeout")
        .args(["2", "ls"])
        .arg(ben.join("team/never-looked-at"))
        .output()
        .expect("run");
    assert_ne!(waits.status.code(), Some(0));
    assert!(!world.status("ben").contains("ALARM"), "{}", world.status("ben"));
    let declared = declare(&world);
    assert!(declared["size"].as_u64().is_some_and(|size| size > 0), "{declared}");

    // Running mounts accept the declaration by themselves, whether they are used or not, and report it, which is no
    // alarm.
    eventually("ben's call is answered", || fs::read_dir(ben.join("team")).is_ok());
    for who in ["anna", "ben"] {
        eventually("the mount goes over", || world.status(who).contains("Restored"));
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }

    // What is left is there, and both can change it.
    assert_eq!(fs::read_to_string(anna.join("anna/early")).expect("left"), "early");
    assert_eq!(fs::read_to_string(anna.join("team/shared")).expect("left"), "one");
    assert!(!anna.join("anna/late").exists() && !ben.join("team/late").exists());
    write(&anna.join("anna/late"), "again").expect("written");
    write(&ben.join("team/shared"), "three").expect("written");
    eventually("they see each other", || {
        fs::read_to_string(anna.join("team/shared")).is_ok_and(|text| text == "three")
            && fs::read_to_string(ben.join("anna/late")).is_ok_and(|text| text == "again")
    });
    for who in ["anna", "ben"] {
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
        assert!(world.status(who).contains("Restored"), "{}", world.status(who));
        assert_eq!(lost_evidence(&world, who).len(), 1, "what {who} had seen is kept");
    }
    // What was lost is beside the present state, as far as a cache has it.
    let aside = world.path("aside");
    let lost_part = lost_evidence(&world, "anna").remove(0);
    run(world.holdfast("anna").args(["evidence", "merge"]).arg(&anna).arg(lost_part).arg("--to").arg(&aside));
    // The superuser can go on as well, and so can a new user.
    world.keygen("carl");
    let public = fs::read_to_string(world.path("carl.key.pub")).expect("a key");
    world.administer(&["fs", "user", "add", &world.url.clone(), "carl", public.trim()]);
    let carl = world.mount("carl");
    assert_eq!(fs::read_to_string(carl.join("anna/late")).expect("read"), "again");

    // The lost state is put back, and is refused.
    world.stop_server();
    put_back(&world, &lost);
    world.start_server();
    world.umount("anna");
    let refused = world.try_mount("anna", &[]);
    assert!(!refused.status.success(), "the lost state is refused");
    assert!(text(&refused).contains("restore"), "{}", text(&refused));
}

/// Devices that noticed the restore before it was declared, and raised an alarm, go on too. The same holds if the
/// server is put back twice, the second time to before the first restore.
#[test]
fn alarms_from_before_the_declaration_end() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    write(&anna.join("anna/first"), "1").expect("written");
    world.umount("anna");
    world.stop_server();
    let oldest = keep(&world, "oldest");
    for round in 0..2 {
        world.start_server();
        let anna = world.mount("anna");
        write(&anna.join("anna/round"), &round.to_string()).expect("written");
        write(&anna.join("anna/round"), "changed").expect("written");
        world.umount("anna");
        world.stop_server();
        // The operator starts the server on the old data as usual, without declaring a restore.
        put_back(&world, &oldest);
        world.start_server();
        let refused = world.try_mount("anna", &[]);
        assert!(!refused.status.success() && text(&refused).contains("not consistent"), "{}", text(&refused));
        world.stop_server();
        world.start_server_with(&["--restored"]);
        declare(&world);
        let anna = world.mount_with("anna", &["--no-send-again"]);
        assert_eq!(fs::read_to_string(anna.join("anna/first")).expect("left"), "1");
        assert!(!anna.join("anna/round").exists());
        write(&anna.join("anna/after"), &round.to_string()).expect("written");
        assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
        world.umount("anna");
        world.stop_server();
    }
}

/// A declaration that is killed at any point is completed by the next one. A client that was away meanwhile, and has
/// met neither the older state nor the declaration, accepts it at its next mount.
#[test]
fn a_declaration_that_breaks_off_is_finished() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    write(&anna.join("anna/first"), "1").expect("written");
    world.umount("anna");
    world.stop_server();
    let backup = keep(&world, "backup");
    world.start_server();
    let anna = world.mount("anna");
    write(&anna.join("anna/lost"), "1").expect("written");
    world.umount("anna");
    world.stop_server();
    put_back(&world, &backup);
    world.start_server_with(&["--restored"]);
    let declaring = || {
        let mut command = world.holdfast("superuser");
        command.args(["fs", "restored", &world.url, "--yes", "--superuser"]).arg(world.key("superuser"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run")
    };
    let mut delay = Duration::ZERO;
    let declared = loop {
        let mut child = declaring();
        std::thread::sleep(delay);
        let was_killed = child.try_wait().expect("waited").is_none();
        child.kill().expect("killed");
        let output = child.wait_with_output().expect("waited");
        // Processes of the killed command may still be ending.
        if text(&output).contains("in use by another process") {
            continue;
        }
        if !was_killed || output.status.success() {
            break output;
        }
        delay += Duration::from_millis(15);
    };
    // If the command was killed after it was done, there is nothing left to declare.
    let done = declared.status.success() || text(&declared).contains("not started as one that was put back");
    assert!(done, "{}", text(&declared));
    let anna = world.mount_with("anna", &["--no-send-again"]);
    assert_eq!(fs::read_to_string(anna.join("anna/first")).expect("left"), "1");
    assert!(!anna.join("anna/lost").exists());
    write(&anna.join("anna/after"), "1").expect("written");
    assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
    world.keygen("carl");
    let public = fs::read_to_string(world.path("carl.key.pub")).expect("a key");
    world.administer(&["fs", "user", "add", &world.url.clone(), "carl", public.trim()]);
}

/// A declaration is refused where nothing was put back, from anybody but the superuser, and where the state of the
/// superuser's key is missing.
#[test]
fn who_may_not_declare() {
    let world = World::new(&["anna"]);
    let declare = |who: &str, key: &str| {
        let mut command = world.holdfast(who);
        command
            .args(["fs", "restored", &world.url, "--yes", "--superuser"])
            .arg(world.key(key))
            .output()
            .expect("run")
    };
    let in_service = declare("superuser", "superuser");
    assert!(
        !in_service.status.success() && text(&in_service).contains("--restored"),
        "{}",
        text(&in_service)
    );
    let member = declare("anna", "anna");
    assert!(!member.status.success() && text(&member).contains("superuser"), "{}", text(&member));
    let elsewhere = declare("anna", "superuser");
    assert!(!elsewhere.status.success() && text(&elsewhere).contains("state"), "{}", text(&elsewhere));
    // The refused declarations changed nothing: the superuser goes on.
    world.administer(&["fs", "group", "add", &world.url.clone(), "more", "anna"]);
}
