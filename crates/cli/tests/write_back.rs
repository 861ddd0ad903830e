//! `mount --write-back` with real mounts and a server that goes away.

use crate::common;

use common::{World, eventually, git, run, text};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

fn status(world: &World, who: &str) -> serde_json::Value {
    world.process_status(who)["write_back"].clone()
}

/// Leases of killed mounts and servers expire while a test waits.
const LEASE: [&str; 2] = ["--lease", "2"];

fn with_short_leases() -> World {
    World::with_server(&["anna", "ben"], |_| LEASE.map(str::to_owned).to_vec())
}

/// Proves: with the server gone, programs go on (git, renames, large files), and `holdfast status` says what is not at
/// the server. After the mount's process is killed, everything that was closed is there for the next mount and for
/// others.
#[test]
fn work_goes_on_without_the_server() {
    let mut world = with_short_leases();
    let anna = world.mount_with("anna", &["--write-back"]).join("team");
    let ben = world.mount("ben").join("team");
    fs::write(anna.join("before"), "sent at once").expect("written");
    eventually("ben sees it", || fs::read(ben.join("before")).is_ok_and(|read| read == b"sent at once"));

    fs::create_dir(anna.join("kept")).expect("made");
    fs::write(anna.join("kept/file"), vec![7; 100_000]).expect("written");
    let pinned =
        world.holdfast("anna").args(["cache", "pin"]).arg(anna.join("kept")).output().expect("it runs");
    assert!(pinned.status.success(), "what was made just now is pinned too: {}", text(&pinned));

    world.kill_server();
    let project = anna.join("project");
    git(&anna, &["init", "--quiet", "project"]);
    let large: Vec<u8> =
        (0..3_000_000u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(project.join("large"), &large).expect("written");
    fs::write(project.join("notes.txt"), "one").expect("written");
    git(&project, &["add", "."]);
    git(&project, &["commit", "--quiet", "-m", "made without a server"]);
    fs::write(project.join(".notes.tmp"), "two").expect("written");
    fs::rename(project.join(".notes.tmp"), project.join("notes.txt")).expect("renamed");
    fs::write(anna.join("before"), "changed since").expect("written");
    assert!(fs::read(project.join("large")).expect("read") == large);
    assert_eq!(git(&project, &["status", "--short"]).trim(), "M notes.txt");
    let report = status(&world, "anna");
    assert!(report["edits"].as_u64().expect("a number") > 10, "{report}");
    assert_eq!(report["away"], true, "{report}");
    let printed = text(&world.holdfast("anna").arg("status").output().expect("it runs"));
    assert!(
        printed.contains("are not at the server yet") && printed.contains("work goes on without it"),
        "{printed}"
    );

    let number = fs::metadata(project.join("large")).expect("it is there").ino();
    world.crash_mount("anna");
    // The machine starts again while there is still no server.
    let refused = world.try_mount("anna", &["--timeout", "1"]);
    assert!(!refused.status.success() && text(&refused).contains("--write-back"), "{}", text(&refused));
    let mounted = world.try_mount("anna", &["--write-back"]);
    assert!(mounted.status.success() && text(&mounted).contains("no server answers"), "{}", text(&mounted));
    assert_eq!(fs::metadata(anna.join("project/large")).expect("it is there").ino(), number);
    assert!(fs::read(anna.join("project/large")).expect("read") == large);
    assert_eq!(fs::read(anna.join("before")).expect("read"), b"changed since");
    fs::write(project.join("meanwhile"), "written after a restart").expect("written");
    git(&project, &["add", "meanwhile"]);
    world.crash_mount("anna");

    world.start_server_with(&LEASE);
    let anna = world.mount_with("anna", &["--write-back"]).join("team");
    assert!(fs::read(anna.join("project/large")).expect("read") == large);
    assert_eq!(fs::metadata(anna.join("project/large")).expect("it is there").ino(), number);
    eventually("all is sent", || status(&world, "anna")["edits"] == 0);
    assert_eq!(status(&world, "anna")["conflicts"], serde_json::json!([]));
    assert!(fs::read(ben.join("project/large")).expect("read") == large);
    assert_eq!(fs::read(ben.join("project/notes.txt")).expect("read"), b"two");
    assert_eq!(fs::read(ben.join("before")).expect("read"), b"changed since");
    assert_eq!(fs::read(ben.join("project/meanwhile")).expect("read"), b"written after a restart");
    assert_eq!(git(&ben.join("project"), &["log", "--format=%s"]).trim(), "made without a server");
    git(&ben.join("project"), &["fsck", "--strict"]);
}

/// Proves: what others changed while this machine was away is noticed: both versions stay, and the user is told how to
/// get the other one. A mount without write-back sends what an earlier mount left, or says what is left.
#[test]
fn conflicts_keep_both_versions() {
    let mut world = with_short_leases();
    let anna = world.mount_with("anna", &["--write-back"]).join("team");
    fs::write(anna.join("plan"), "the plan").expect("written");
    eventually("it is sent", || status(&world, "anna")["edits"] == 0);
    world.kill_server();
    fs::write(anna.join("plan"), "anna's plan").expect("written");
    fs::write(anna.join("new.txt"), "anna's new file").expect("written");
    world.crash_mount("anna");

    world.start_server_with(&LEASE);
    let ben = world.mount("ben").join("team");
    assert_eq!(fs::read(ben.join("plan")).expect("read"), b"the plan");
    fs::write(ben.join("plan"), "ben's plan").expect("written");
    fs::write(ben.join("new.txt"), "ben's new file").expect("written");
    let anna = world.mount("anna").join("team");
    assert_eq!(fs::read(anna.join("plan")).expect("read"), b"anna's plan");
    assert_eq!(fs::read(ben.join("plan")).expect("read"), b"anna's plan");
    assert_eq!(fs::read(ben.join("new.txt")).expect("read"), b"ben's new file");
    let names: Vec<String> = fs::read_dir(&ben)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    let beside =
        names.iter().find(|name| name.starts_with("new (changed by anna, ")).expect("it stays beside");
    assert_eq!(fs::read(ben.join(beside)).expect("read"), b"anna's new file");
    let listed = run(world.holdfast("ben").arg("conflicts"));
    assert!(listed.contains("team/plan") && listed.contains("written by ben"), "{listed}");

    // One signer serves all mounts of a key, so write-back is the same for all of them.
    fs::create_dir(world.path("second")).expect("made");
    let refused = world
        .holdfast("anna")
        .arg("mount")
        .arg(&world.url)
        .arg(world.path("second"))
        .arg("--key")
        .arg(world.key("anna"))
        .arg("--write-back")
        .output()
        .expect("it runs");
    assert!(!refused.status.success(), "{}", text(&refused));
    assert!(text(&refused).contains("unmount it first"), "{}", text(&refused));
}

/// Proves: of files that were synced while the server was away, one flipped bit in the journal costs at most the file
/// it hits. `status` and `salvage` name that file as in doubt until its folder is removed, it is not published in part,
/// and all others are sent.
#[test]
fn a_damaged_journal_is_told() {
    let mut world = with_short_leases();
    for (round, share) in [15, 40, 65, 97].into_iter().enumerate() {
        let anna = world.mount_with("anna", &["--write-back"]).join("team");
        let directory = anna.join(format!("round {round}"));
        fs::create_dir(&directory).expect("made");
        eventually("it is sent", || status(&world, "anna")["edits"] == 0);
        world.kill_server();
        let content = |number: u64| holdfast_testing::noise(100 * round as u64 + number, 3000);
        for number in 0..25 {
            let mut file = fs::File::create(directory.join(format!("file {number}"))).expect("made");
            std::io::Write::write_all(&mut file, &content(number)).expect("written");
            file.sync_all().expect("synced");
        }
        let state = PathBuf::from(world.process_status("anna")["state_dir"].as_str().expect("a path"));
        world.crash_mount("anna");
        let journal = fs::read_dir(state.join("write-back")).expect("a journal");
        let segments = journal.map(|entry| entry.expect("an entry").path());
        let last = segments.filter(|path| path.extension().is_some_and(|it| it == "segment")).max();
        let last = last.expect("a segment");
        let mut bytes = fs::read(&last).expect("read");
        let at = bytes.len() * share / 100;
        bytes[at] ^= 4;
        fs::write(&last, bytes).expect("written");

        world.start_server_with(&LEASE);
        let ben = world.mount("ben").join("team").join(format!("round {round}"));
        world.mount_with("anna", &["--write-back"]);
        eventually("the rest is sent", || status(&world, "anna")["edits"] == 0);
        let in_doubt = world.process_status("anna")["in_doubt"].as_array().expect("a list").clone();
        let mut right = 0;
        for number in 0..25 {
            let name = format!("file {number}");
            let is_named =
                in_doubt.iter().any(|path| path.as_str().is_some_and(|path| path.ends_with(&name)));
            match fs::read(ben.join(&name)) {
                Ok(read) => {
                    assert!(read == content(number), "{name} is published in part ({} bytes)", read.len());
                    right += 1;
                }
                Err(_) => assert!(is_named, "{name} is gone, and only this is in doubt: {in_doubt:?}"),
            }
        }
        assert!((24..=25).contains(&right), "{right} of 25 are right; in doubt: {in_doubt:?}");
        assert!(!in_doubt.is_empty(), "round {round}: the damage is told");
        let printed = run(world.holdfast("anna").arg("salvage"));
        assert!(printed.contains("in doubt: ") && printed.contains("is damaged"), "{printed}");
        world.umount("anna");
        world.umount("ben");
        fs::remove_dir_all(state.join("salvage")).expect("seen to");
    }
}

/// Proves: unmounting sends what is left. If the server is away it says what stays, and loses nothing.
#[test]
fn unmounting_sends_or_tells() {
    let mut world = with_short_leases();
    let point = world.mount_with("anna", &["--write-back"]);
    let ben = world.mount("ben").join("team");
    for number in 0..200 {
        fs::write(point.join(format!("team/file-{number}")), number.to_string()).expect("written");
    }
    run(world.holdfast("anna").arg("umount").arg(&point));
    assert_eq!(fs::read_dir(&ben).expect("a directory").count(), 200);
    assert_eq!(fs::read(ben.join("file-199")).expect("read"), b"199");

    let point = world.mount_with("anna", &["--write-back"]);
    fs::read_dir(point.join("team")).expect("it is shown");
    world.kill_server();
    fs::write(point.join("team/late"), "kept").expect("written");
    let told = world.holdfast("anna").arg("umount").arg(&point).output().expect("it runs");
    assert!(told.status.success() && text(&told).contains("not at the server yet"), "{}", text(&told));
    world.mount_with("anna", &["--write-back"]);
    assert_eq!(fs::read(point.join("team/late")).expect("read"), b"kept");
    world.start_server_with(&LEASE);
    eventually("ben sees it", || fs::read(ben.join("late")).is_ok_and(|read| read == b"kept"));
    fs::write(ben.join("late"), "taken up").expect("written");
    eventually("anna sees it", || fs::read(point.join("team/late")).is_ok_and(|read| read == b"taken up"));
    world.umount("anna");
}
