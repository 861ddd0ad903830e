//! Times before 1970 and far ahead, through mounts, releases and `holdfast get`.

use crate::common;

use common::publisher::Publisher;
use common::{World, run};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

/// Seconds and nanoseconds; the nanoseconds count forwards also before 1970.
const TIMES: [(i64, i64); 6] = [
    (-2, 750_000_000),
    (-1, 999_999_999),
    (-1, 0),
    (-1_000_000_000, 1),
    (0, 1),
    (9_000_000_000, 999_999_999),
];

fn set(path: &Path, (tv_sec, tv_nsec): (i64, i64)) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set");
}

fn of(path: &Path) -> (i64, i64) {
    let there = fs::symlink_metadata(path).expect("stat");
    (there.mtime(), there.mtime_nsec())
}

/// Makes a file, a directory and a link with each time.
fn make(tree: &Path) {
    for (number, time) in TIMES.into_iter().enumerate() {
        let name = |kind: &str| tree.join(format!("{kind}{number}"));
        fs::write(name("file"), "content").expect("written");
        fs::create_dir(name("folder")).expect("made");
        symlink("target", name("link")).expect("made");
        ["file", "folder", "link"].into_iter().for_each(|kind| set(&name(kind), time));
    }
}

#[track_caller]
fn check(tree: &Path) {
    for (number, time) in TIMES.into_iter().enumerate() {
        for kind in ["file", "folder", "link"] {
            assert_eq!(of(&tree.join(format!("{kind}{number}"))), time, "{kind}{number}");
        }
    }
}

/// What `rsync -a` would change.
fn rsync(from: &Path, to: &Path) -> String {
    run(Command::new("rsync").args(["-a", "--itemize-changes"]).arg(from.join("")).arg(to))
}

/// Proves: a file's time of change does not move when it is closed, so that git, whose index has the time from before
/// the close, does not take the file for changed.
#[test]
fn closing_changes_no_time() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    let of = |there: fs::Metadata| (there.ctime(), there.ctime_nsec(), there.mtime(), there.mtime_nsec());
    for round in 0..3 {
        let mut file = fs::File::create(team.join("file")).expect("made");
        writeln!(file, "content {round}").expect("written");
        let open = of(file.metadata().expect("fstat"));
        drop(file);
        assert_eq!(of(fs::metadata(team.join("file")).expect("stat")), open);
        let file = fs::File::options().append(true).open(team.join("file")).expect("opened");
        assert_eq!(of(file.metadata().expect("fstat")), open);
        file.sync_all().expect("synced");
        assert_eq!(of(fs::metadata(team.join("file")).expect("stat")), open);
    }
}

/// Times that are set through a mount are what was set, at once and after mounting again, and a second `rsync -a` sends
/// nothing. A time that 64 bits of nanoseconds cannot represent becomes the nearest one that they can.
#[test]
fn through_a_mount() {
    let mut world = World::new(&["anna"]);
    let team = world.mount("anna").join("team");
    let here = world.path("here");
    fs::create_dir(&here).expect("made");
    make(&here);
    check(&here);
    let there = team.join("there");
    fs::create_dir(&there).expect("made");
    assert_ne!(rsync(&here, &there), "");
    check(&there);
    assert_eq!(rsync(&here, &there), "");
    let own = team.join("own");
    fs::create_dir(&own).expect("made");
    make(&own);
    check(&own);
    for (name, time) in [("later", (16_725_225_600, 5)), ("earlier", (-11_676_096_000, 5))] {
        fs::write(team.join(name), "").expect("written");
        set(&team.join(name), time);
    }
    world.umount("anna");
    let team = world.mount("anna").join("team");
    check(&team.join("own"));
    assert_eq!(rsync(&here, &team.join("there")), "");
    assert_eq!(of(&team.join("later")), (9_223_372_036, 854_775_807));
    assert_eq!(of(&team.join("earlier")), (-9_223_372_037, 145_224_192));
    world.umount("anna");
}

/// Times are the same in a release: mounted, fetched and listed.
#[test]
fn in_a_release() {
    let mut publisher = Publisher::new();
    make(&publisher.path("tree"));
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let mount = publisher.mount(&url, &[]);
    check(&mount);
    let id = publisher.id();
    run(publisher.holdfast().args(["get", &url, ".", "got", "--id", &id]));
    check(&publisher.path("got"));
    assert_eq!(rsync(&mount, &publisher.path("got")), "");
    let listed = run(publisher.holdfast().args(["ls", "-l", &url, "file0", "--id", &id]));
    assert!(listed.contains("1969-12-31 23:59:58 UTC"), "{listed}");
}
