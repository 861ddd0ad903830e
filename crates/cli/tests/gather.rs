//! Changes that are gathered while only one machine works, with real mounts.

use crate::common;

use common::{World, eventually};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// What `holdfast status` reports of gathering, and the number of operations so far.
fn status(world: &World, who: &str) -> (serde_json::Value, u64) {
    let process = world.process_status(who);
    (process["write_back"].clone(), process["engine"]["operations"].as_u64().expect("a number"))
}

/// Makes changes until they are gathered, which begins when no other device has operated for a while.
fn work_until_gathering(world: &World, who: &str, directory: &Path) {
    let scratch = directory.join("scratch");
    eventually("changes are gathered", || {
        for _ in 0..5 {
            fs::write(&scratch, "x").expect("written");
        }
        status(world, who).0["gathering"] == true
    });
}

/// Proves: a device that is alone makes many files in few operations. Another machine that comes finds all of them at
/// once. With `--no-gather` each file is an operation of its own.
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
    let (report, after) = status(&world, "anna");
    assert!(after - before < FILES, "{} operations", after - before);
    assert_eq!((&report["gathers"], &report["edits"]), (&true.into(), &0.into()), "{report}");
    assert_eq!(report["conflicts"], serde_json::json!([]));

    world.umount("anna");
    let anna = world.mount_with("anna", &["--no-gather"]).join("team");
    let before = status(&world, "anna").1;
    for number in 0..10 {
        fs::write(anna.join(format!("file-{number}")), "by itself").expect("written");
    }
    let (report, after) = status(&world, "anna");
    assert!(report.is_null() && after - before >= 10, "{report}");
}

/// Proves: closed files survive the process that had gathered them. What fsync returned for is at the server, so it
/// needs neither that process nor this machine's disk.
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
    world.crash_mount("anna");
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
    world.crash_mount("anna");
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

/// Proves: when two machines gather changes and look at each other's, neither waits until a lease runs out: what was
/// closed is seen at once on both sides, and no holder of a lease is passed over.
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
