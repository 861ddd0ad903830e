//! A mount that reaches its quota: programs get an error, nothing that was acknowledged is lost, others are not
//! affected, and after something is deleted and collected work goes on.

use crate::common;

use common::collection::collect;
use common::*;
use holdfast_testing::noise;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

/// Writes a file and waits until it is durable.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn is_quota(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::DQUOT.raw_os_error())
}

/// The stored bytes by user, as the command reports them.
fn listed(world: &World, who: &str) -> Vec<serde_json::Value> {
    let mut list = world.holdfast(who);
    list.args(["fs", "quota", "list", &world.url, "--json", "--key"]).arg(world.key(who));
    run_json(&mut list).as_array().expect("a list").clone()
}

fn used(world: &World, who: &str) -> u64 {
    listed(world, who)[0]["bytes"].as_u64().expect("a number")
}

/// Proves: when a user's quota is used up, writing fails with EDQUOT, and so do programs like cp, git and SQLite. Nothing
/// that was acknowledged is lost, reading and other users go on, and after files are deleted and collected there is room.
#[test]
fn a_mount_meets_its_quota_and_goes_on() {
    let mut world = World::new(&["anna", "ben"]);
    let url = world.url.clone();
    let printed = world.administer(&["fs", "quota", "set", &url, "anna", "8M"]);
    assert!(printed.contains("anna") && printed.contains("8.00 MiB"), "{printed}");
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let space = rustix::fs::statvfs(&anna).expect("statvfs");
    assert_eq!(space.f_blocks * space.f_frsize, 8 * MIB as u64);
    let first = noise(1, 2 * MIB);
    write(&anna.join("anna/first"), &first).expect("there is room");
    // Several files of a directory in which nobody else writes.
    let seconds: Vec<String> = (0..4).map(|number| format!("second{number}")).collect();
    for (name, seed) in seconds.iter().zip(20..) {
        write(&anna.join("anna").join(name), &noise(seed, MIB / 2)).expect("there is room");
    }
    let before = used(&world, "anna");
    assert!(before > 4 * MIB as u64 && before < 5 * MIB as u64, "{before}");

    // A database.
    let database = anna.join("anna/data.db");
    let fill = "import sqlite3, sys, os
base = sqlite3.connect(sys.argv[1])
base.execute('create table t (n integer, data blob)')
base.commit()
rows = 0
try:
    for n in range(200):
        base.execute('insert into t values (?, ?)', (n, os.urandom(100000)))
        base.commit()
        rows = n + 1
except sqlite3.Error as error:
    print(rows, error)
";
    let filled = run(Command::new("python3").args(["-c", fill]).arg(&database));
    let rows: u64 = filled.split(' ').next().and_then(|rows| rows.parse().ok()).expect("it met the limit");
    assert!(rows > 2 && rows < 60, "{filled}");

    // cp, of a file that does not fit.
    let large = world.path("large");
    fs::write(&large, noise(3, 16 * MIB)).expect("written");
    let output = Command::new("cp").arg(&large).arg(anna.join("anna/large")).output().expect("cp runs");
    assert!(!output.status.success() && text(&output).contains("quota"), "{}", text(&output));
    let _ = fs::remove_file(anna.join("anna/large"));

    // From here on writing is refused, by git too; reading goes on, and so do others.
    let refused = write(&anna.join("anna/more"), &noise(4, 2 * MIB)).expect_err("there is no room");
    assert!(is_quota(&refused), "{refused}");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-C"]).arg(anna.join("anna")).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        git.args(arguments).output().expect("git runs")
    };
    let added = [git(&["init", "-q"]), git(&["add", "second0"]), git(&["commit", "-qm", "x"])];
    assert!(!added.iter().all(|output| output.status.success()), "there is no room for a repository");
    assert_eq!(fs::read(anna.join("anna/first")).expect("read"), first);
    write(&ben.join("team/bens"), &noise(5, 12 * MIB)).expect("he has no limit");
    assert_eq!(fs::read(ben.join("anna/second1")).expect("read"), noise(21, MIB / 2));
    let theirs = listed(&world, "ben");
    assert_eq!((theirs.len(), &theirs[0]["limit"]), (1, &serde_json::Value::Null));
    let all = listed(&world, "superuser");
    let names: Vec<_> = all.iter().map(|user| user["user"].as_str().expect("a name")).collect();
    assert_eq!(names, ["superuser", "anna", "ben"]);
    assert!(used(&world, "anna") <= 9 * MIB as u64);

    // What git had written, and what was refused when it was sent, is reported once, by the fsync that comes first.
    if let Err(refused) = fs::File::open(anna.join("anna")).and_then(|folder| folder.sync_all()) {
        assert!(is_quota(&refused), "{refused}");
    }
    // Deleting is possible, and counts once it is collected; what was acknowledged by then is there.
    let full = used(&world, "anna");
    seconds.iter().for_each(|name| fs::remove_file(anna.join("anna").join(name)).expect("removed"));
    let _ = fs::remove_dir_all(anna.join("anna/.git"));
    let _ = fs::remove_file(anna.join("anna/more"));
    fs::File::open(anna.join("anna")).and_then(|folder| folder.sync_all()).expect("synced");
    // The group's table that he signed last refers to the removed blocks until he has seen that it is outdated. Blocks
    // of a file that was open when its mount told the server so stay for half an hour.
    eventually("space is back", || {
        let _ = write(&ben.join("team/after"), b"x");
        collect(&mut world);
        used(&world, "anna") + (MIB / 2) as u64 <= full
    });
    let check = "import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
print(base.execute('select count(*) from t').fetchone()[0], base.execute('pragma integrity_check').fetchone()[0])
";
    // A database that was cut short may have to write before it can be read.
    let checked = run(Command::new("python3").args(["-c", check]).arg(&database));
    assert!(checked.starts_with(&format!("{rows} ok")), "{checked} after {filled}");

    eventually("and can be written to", || write(&anna.join("anna/again"), &noise(6, MIB / 8)).is_ok());
    assert_eq!(fs::read(anna.join("anna/again")).expect("read"), noise(6, MIB / 8));
    assert_eq!(fs::read(anna.join("anna/first")).expect("read"), first);
    // With a higher limit from the superuser, writing works at once.
    assert!(write(&anna.join("anna/much"), &noise(7, 12 * MIB)).is_err_and(|error| is_quota(&error)));
    world.administer(&["fs", "quota", "set", &url, "anna", "none"]);
    eventually("there is no limit", || write(&anna.join("anna/much"), &noise(7, 12 * MIB)).is_ok());
    for who in ["anna", "ben"] {
        assert!(!world.status(who).contains("ALARM"), "{}", world.status(who));
    }
}

/// Proves: blocks of what a device deletes are freed by the next collection, also if the device does nothing more: its
/// table does not continue to refer to them.
#[test]
fn one_deletion_is_given_back() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let large: Vec<_> = (0..3).map(|number| anna.join(format!("anna/large{number}"))).collect();
    large.iter().zip(1..).for_each(|(path, seed)| write(path, &noise(seed, MIB)).expect("written"));
    // So many files that the table's list of changes is folded into its map, together with the large files.
    for number in 0..80 {
        write(&anna.join(format!("anna/small{number}")), b"small").expect("written");
    }
    let full = used(&world, "anna");
    assert!(full > 3 * MIB as u64, "{full}");
    fs::remove_file(&large[0]).expect("removed");
    fs::rename(anna.join("anna/small7"), &large[1]).expect("replaced");
    fs::File::options().write(true).open(&large[2]).and_then(|file| file.set_len(5)).expect("cut");
    fs::File::open(anna.join("anna")).and_then(|folder| folder.sync_all()).expect("synced");
    fs::File::open(&large[2]).and_then(|file| file.sync_all()).expect("synced");
    collect(&mut world);
    let left = used(&world, "anna");
    assert!(left < MIB as u64 / 2, "{left} of {full}");
}

/// The operator's limit applies beside the superuser's, and its figures name the user.
#[test]
fn the_operators_limit() {
    let mut world = World::new(&["anna"]);
    world.stop_server();
    world.start_server_with(&["--user-quota", "4M"]);
    let anna = world.mount("anna");
    let first = noise(1, 2 * MIB);
    write(&anna.join("anna/first"), &first).expect("there is room");
    eventually("the limit is met", || {
        write(&anna.join("anna/more"), &noise(2, 6 * MIB)).is_err_and(|error| is_quota(&error))
    });
    assert_eq!(listed(&world, "anna")[0]["limit"], 4 * MIB);
    assert_eq!(fs::read(anna.join("anna/first")).expect("read"), first);
    fs::remove_file(anna.join("anna/first")).expect("deleting is possible");
    assert!(!world.status("anna").contains("ALARM"));
}
