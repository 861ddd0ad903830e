//! Changes that are gathered while one machine is alone, with real mounts.

use crate::common;

use common::{World, eventually, is_mounted, run};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What `holdfast status` says of gathering, and operations so far.
fn status(world: &World, who: &str) -> (serde_json::Value, u64) {
    let output = world.holdfast(who).args(["status", "--json"]).output().expect("it runs");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let process = &report["processes"][0];
    (process["write_back"].clone(), process["engine"]["operations"].as_u64().expect("a number"))
}

/// Makes changes until they are gathered: nobody else must have operated for a while.
fn work_until_gathering(world: &World, who: &str, directory: &Path) {
    let scratch = directory.join("scratch");
    eventually("changes are gathered", || {
        for _ in 0..5 {
            fs::write(&scratch, "x").expect("written");
        }
        status(world, who).0["gathering"] == true
    });
}

/// Ends the process that serves a mount as a crash would, and clears the dead mount away.
fn crash(world: &World, who: &str) {
    let process = world.mount_process(who).expect("it is mounted").to_string();
    run(Command::new("kill").args(["-9", &process]));
    let point = world.path(&format!("{who}-mnt"));
    eventually("the process is gone", || world.mount_process(who).is_none());
    let _ = Command::new("fusermount3").arg("-uz").arg(&point).output();
    eventually("the mount is gone", || !is_mounted(&point));
}

/// Proves: who is alone makes many files in few operations; another machine that comes finds all of them at once; and with
/// `--no-gather` each is an operation of its own.
#[test]
fn many_files_in_few_operations() {
    const FILES: u64 = 200;
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna").join("team");
    work_until_gathering(&world, "anna", &anna);
    let before = status(&world, "anna").1;
    for number in 0..FILES {
        fs::write(anna.join(format!("file-{number}")), format!("content {number}")).expect("written");
    }
    let ben = world.mount("ben").join("team");
    for number in 0..FILES {
        let read = fs::read_to_string(ben.join(format!("file-{number}"))).expect("read");
        assert_eq!(read, format!("content {number}"));
    }
    let (shown, after) = status(&world, "anna");
    assert!(after - before < FILES, "{} operations", after - before);
    assert_eq!((&shown["gathers"], &shown["edits"]), (&true.into(), &0.into()), "{shown}");
    assert_eq!(shown["conflicts"], serde_json::json!([]));

    world.umount("anna");
    let anna = world.mount_with("anna", &["--no-gather"]).join("team");
    let before = status(&world, "anna").1;
    for number in 0..10 {
        fs::write(anna.join(format!("file-{number}")), "by itself").expect("written");
    }
    let (shown, after) = status(&world, "anna");
    assert!(shown.is_null() && after - before >= 10, "{shown}");
}

/// Proves: what was closed outlives the process that had gathered it, and what fsync returned for needs neither that
/// nor this machine's disk.
#[test]
fn survives() {
    let mut world = World::new(&["anna", "ben"]);
    world.stop_server();
    world.start_server_with(&["--lease", "6"]);
    let anna = world.mount("anna").join("team");
    work_until_gathering(&world, "anna", &anna);
    let mut synced = File::create(anna.join("synced")).expect("made");
    synced.write_all(b"at the server").expect("written");
    synced.sync_all().expect("synced");
    world.kill_server();
    crash(&world, "anna");
    world.start_server_with(&["--lease", "6"]);
    let ben = world.mount("ben").join("team");
    assert_eq!(fs::read(ben.join("synced")).expect("read"), b"at the server");
    world.umount("ben");
    drop(synced);

    let anna = world.mount("anna").join("team");
    work_until_gathering(&world, "anna", &anna);
    for number in 0..50 {
        fs::write(anna.join(format!("closed-{number}")), format!("{number}")).expect("written");
    }
    fs::remove_file(anna.join("closed-7")).expect("removed");
    crash(&world, "anna");
    let anna = world.mount("anna").join("team");
    let ben = world.mount("ben").join("team");
    for directory in [anna, ben] {
        for number in (0..50).filter(|number| *number != 7) {
            let read = fs::read_to_string(directory.join(format!("closed-{number}"))).expect("read");
            assert_eq!(read, format!("{number}"));
        }
        assert!(!directory.join("closed-7").exists());
    }
    assert_eq!(status(&world, "anna").0["conflicts"], serde_json::json!([]));
}

/// Proves: who gathers changes and looks at what another gathers, while that one does the same, waits for nobody's lease to run
/// out: all that was closed is seen at once on both sides, and nobody had to go on without it.
#[test]
fn two_that_look_at_each_other() {
    let mut world = World::new(&["anna", "ben"]);
    let shared = [world.mount("anna").join("team"), world.mount("ben").join("team")];
    fs::create_dir(shared[0].join("anna")).expect("made");
    fs::create_dir(shared[1].join("ben")).expect("made");
    let both = std::sync::Barrier::new(2);
    let work = |mine: &Path, other: &Path| {
        for round in 0..20 {
            for number in 0..5 {
                fs::write(mine.join(format!("{round}-{number}")), "made").expect("written");
            }
            both.wait();
            let names = fs::read_dir(other).expect("listed").count();
            assert!(names >= 5 * (round + 1), "{names} in round {round}");
            for number in 0..3 {
                fs::metadata(other.join(format!("{round}-{number}"))).expect("there");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(&shared[0].join("anna"), &shared[0].join("ben")));
        scope.spawn(|| work(&shared[1].join("ben"), &shared[1].join("anna")));
    });
    for who in ["anna", "ben"] {
        let log = world.mount_log(who);
        assert!(!log.contains("others go on before"), "{log}");
        assert_eq!(status(&world, who).0["conflicts"], serde_json::json!([]));
    }
}
