//! A server is put back from a backup, and its superuser declares that: nobody raises an alarm, everybody goes on, and what
//! was lost is listed, kept, and never comes back.

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

/// Puts a copy in the place of the data directory.
pub fn put_back(world: &World, copy: &Path) {
    fs::remove_dir_all(world.data()).expect("removed");
    run(Command::new("cp").arg("-a").arg(copy).arg(world.data()));
}

/// The superuser says that what is served was put back.
pub fn declare(world: &World) -> serde_json::Value {
    let mut command = world.holdfast("superuser");
    command
        .args(["fs", "restored", &world.url, "--yes", "--json", "--superuser"])
        .arg(world.key("superuser"));
    serde_json::from_str(&run(&mut command)).expect("JSON")
}

/// What `who` keeps of what was lost.
fn kept(world: &World, who: &str) -> Vec<PathBuf> {
    let found =
        run(Command::new("find").arg(world.path(&format!("{who}-state"))).args(["-name", "*-lost.evidence"]));
    found.lines().map(PathBuf::from).collect()
}

#[test]
fn a_declared_restore_raises_no_alarm() {
    let mut world = World::new(&["anna", "ben"]);
    // So that what is lost stays so: see `sent_again.rs`.
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

    // Nothing is served until the superuser has said so; who asks waits.
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

    // Mounts that run take it up by themselves, whether somebody looks or not, and say so; it is no alarm.
    eventually("ben's call is answered", || fs::read_dir(ben.join("team")).is_ok());
    for who in ["anna", "ben"] {
        eventually("the mount goes over", || world.status(who).contains("Restored"));
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }

    // What is left is there, and can be changed by both.
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
        assert_eq!(kept(&world, who).len(), 1, "what {who} had seen is kept");
    }
    // What was lost lies beside the present, as far as a cache has it.
    let aside = world.path("aside");
    let lost_part = kept(&world, "anna").remove(0);
    run(world.holdfast("anna").args(["evidence", "merge"]).arg(&anna).arg(lost_part).arg("--to").arg(&aside));
    // The superuser can go on as well, and so can whoever is new.
    world.keygen("carl");
    let public = fs::read_to_string(world.path("carl.key.pub")).expect("a key");
    world.administer(&["fs", "user", "add", &world.url.clone(), "carl", public.trim()]);
    let carl = world.mount("carl");
    assert_eq!(fs::read_to_string(carl.join("anna/late")).expect("read"), "again");

    // What was lost cannot come back.
    world.stop_server();
    put_back(&world, &lost);
    world.start_server();
    world.umount("anna");
    let refused = world.try_mount("anna", &[]);
    assert!(!refused.status.success(), "the lost state is refused");
    assert!(text(&refused).contains("restore"), "{}", text(&refused));
}

/// Devices that noticed the restore before it was declared, and raised an alarm, go on as well; and of what was put back
/// twice, also from before the first restore, the same holds.
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
        // An operator who does not know: an ordinary start on the old data.
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

/// A declaration that is killed, wherever it is, is finished by the next one; and who was away meanwhile, and so has met
/// neither the older state nor the declaration, takes it up when they mount.
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
        // The processes of one that was killed may still be ending.
        if text(&output).contains("in use by another process") {
            continue;
        }
        if !was_killed || output.status.success() {
            break output;
        }
        delay += Duration::from_millis(15);
    };
    // One that was killed after it was done leaves nothing to be declared.
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

/// A declaration is refused where nothing was put back, by anybody but the superuser, and where the key's state is not.
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
    // What was refused changes nothing: the superuser goes on.
    world.administer(&["fs", "group", "add", &world.url.clone(), "more", "anna"]);
}
