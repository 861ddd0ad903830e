//! Past states, end to end: through the real command and real mounts.

use crate::common;

use common::{World, eventually, noise, run, text};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

fn snapshot(world: &World, who: &str, name: &str) {
    run(world.holdfast(who).args(["snapshot", "create"]).arg(world.path(&format!("{who}-mnt"))).arg(name));
}

/// Everything about a tree that a past state must keep: paths, kinds, modes, times, contents.
fn tree(at: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("it is there");
        let content = match meta.file_type() {
            kind if kind.is_dir() => {
                waiting.extend(
                    fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("read").path()),
                );
                String::new()
            }
            kind if kind.is_symlink() => fs::read_link(&path).expect("a link").display().to_string(),
            kind if kind.is_file() => format!("{:?}", blake(&fs::read(&path).expect("read"))),
            _ => String::new(),
        };
        let name = path.strip_prefix(at).expect("below").display().to_string();
        let modified = if name.is_empty() { 0 } else { meta.mtime() * 1_000_000_000 + meta.mtime_nsec() };
        // The size of a directory differs between file systems.
        let size = if meta.is_dir() { 0 } else { meta.size() };
        found.push(format!("{name} {:o} {size} {modified} {content}", meta.mode()));
    }
    found.sort();
    found
}

fn blake(bytes: &[u8]) -> (usize, u64) {
    let sum = bytes.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    (bytes.len(), sum)
}

/// Proves: a snapshot is a whole tree as it was (also for `diff -r`, `cp -a` and `find`), for every member, read-only,
/// and not listed in the root directory; no name in the file system takes its place.
#[test]
fn a_snapshot_is_the_tree_as_it_was() {
    let mut world = World::new(&["anna", "ben"]);
    let root = world.mount("anna");
    let anna = root.join("team");
    fs::create_dir(anna.join("project")).expect("made");
    let big: Vec<u8> = (0..3_000_000u32).flat_map(|number| (number / 3).to_le_bytes()).collect();
    fs::write(anna.join("project/big"), &big).expect("written");
    fs::write(anna.join("project/notes"), "first").expect("written");
    fs::set_permissions(anna.join("project/notes"), fs::Permissions::from_mode(0o640)).expect("changed");
    symlink("notes", anna.join("project/link")).expect("made");
    let before = tree(&anna.join("project"));
    snapshot(&world, "anna", "first");
    fs::write(anna.join("project/notes"), "second, which is longer").expect("written");
    fs::remove_file(anna.join("project/big")).expect("removed");
    fs::remove_file(anna.join("project/link")).expect("removed");
    fs::write(anna.join("project/new"), "new").expect("written");
    snapshot(&world, "anna", "second");
    let after = tree(&anna.join("project"));

    let past = root.join(".snapshots/first/team/project");
    assert_eq!(tree(&past), before);
    assert_eq!(tree(&root.join(".snapshots/second/team/project")), after);
    assert_eq!(tree(&anna.join("project")), after, "looking at the past changed the present");
    let listed = |at: &Path| -> Vec<String> {
        let names = fs::read_dir(at).expect("a directory").map(|entry| entry.expect("read").file_name());
        names.map(|name| name.into_string().expect("text")).collect()
    };
    assert!(!listed(&root).contains(&".snapshots".to_owned()));
    let names = listed(&root.join(".snapshots"));
    assert!(names.contains(&"first".to_owned()) && names.contains(&"second".to_owned()), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("20") && name.ends_with('Z')), "{names:?}");

    let copy = world.path("copy");
    run(Command::new("cp").arg("-a").arg(&past).arg(&copy));
    run(Command::new("diff").arg("-r").arg(&past).arg(&copy));
    assert_eq!(tree(&copy), before);
    let found = run(Command::new("find").arg(&past).args(["-name", "no*"]));
    assert_eq!(found.lines().count(), 1, "{found}");

    let ben = world.mount("ben");
    assert_eq!(tree(&ben.join(".snapshots/first/team/project")), before);

    let read_only = |result: std::io::Result<()>| {
        assert_eq!(result.expect_err("refused").kind(), ErrorKind::ReadOnlyFilesystem);
    };
    read_only(fs::write(past.join("notes"), "x"));
    read_only(fs::write(past.join("other"), "x"));
    read_only(fs::create_dir(past.join("other")));
    read_only(fs::remove_file(past.join("notes")));
    read_only(fs::rename(past.join("notes"), past.join("other")));
    read_only(fs::rename(past.join("notes"), anna.join("other")));
    read_only(fs::rename(anna.join("project/new"), past.join("new")));
    read_only(fs::hard_link(past.join("notes"), anna.join("other")));
    read_only(fs::set_permissions(past.join("notes"), fs::Permissions::from_mode(0o600)));
    read_only(fs::create_dir(root.join(".snapshots/mine")));
    read_only(symlink("x", past.join("other")));
    assert_eq!(fs::create_dir(root.join(".snapshots")).expect_err("taken").kind(), ErrorKind::AlreadyExists);
    fs::create_dir(root.join("team/.snapshots")).expect("only the root's is taken");
    assert!(fs::rename(root.join("team/.snapshots"), root.join(".snapshots")).is_err());
    assert_eq!(tree(&past), before);

    assert_eq!(
        fs::metadata(root.join(".snapshots/third")).expect_err("never made").kind(),
        ErrorKind::NotFound
    );
}

/// Proves: names of snapshots are listed with their creators, can be given once, and can be removed by their creator
/// and nobody else. Texts that are no name are refused.
#[test]
fn names_are_their_makers() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    let ben = world.mount("ben");
    fs::write(anna.join("team/file"), "x").expect("written");
    snapshot(&world, "anna", "mine");
    let tried = |who: &str, arguments: &[&str], mount: &Path, name: &str| {
        let mut command = world.holdfast(who);
        command.args(arguments).arg(mount).arg(name).output().expect("it runs")
    };
    for (who, mount) in [("anna", &anna), ("ben", &ben)] {
        let again = tried(who, &["snapshot", "create"], mount, "mine");
        assert!(!again.status.success() && text(&again).contains("exists already"), "{}", text(&again));
    }
    for wrong in ["2026", ".x", "a/b", ""] {
        let refused = tried("anna", &["snapshot", "create"], &anna, wrong);
        assert!(!refused.status.success(), "{wrong:?}: {}", text(&refused));
    }
    let list = run(world.holdfast("ben").args(["snapshot", "list"]).arg(&ben));
    assert!(list.contains("mine") && list.contains("named by anna"), "{list}");
    let json = run(world.holdfast("ben").args(["snapshot", "list", "--all", "--json"]).arg(&ben));
    let states: Vec<serde_json::Value> = serde_json::from_str(&json).expect("a list");
    assert!(states.len() >= 2 && states.iter().any(|state| state["named_by"] == "anna"), "{json}");
    let theirs = tried("ben", &["snapshot", "remove"], &ben, "mine");
    assert_eq!(theirs.status.code(), Some(77), "{}", text(&theirs));
    assert!(text(&theirs).contains("of another user"), "{}", text(&theirs));
    run(world.holdfast("anna").args(["snapshot", "remove"]).arg(&anna).arg("mine"));
    let gone = tried("anna", &["snapshot", "remove"], &anna, "mine");
    assert!(!gone.status.success(), "{}", text(&gone));
    let list = run(world.holdfast("ben").args(["snapshot", "list"]).arg(&ben));
    assert!(list.starts_with("None"), "{list}");
    let nowhere = tried("anna", &["snapshot", "create"], Path::new("/tmp"), "x");
    assert!(!nowhere.status.success(), "{}", text(&nowhere));
}

/// Proves: the versions of a file are listed with size and writer, a deletion too. A file or a tree can be restored as
/// it was, deleted or not, elsewhere or in place, and nothing is replaced unless the user says so.
#[test]
fn versions_are_told_and_brought_back() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna").join("team");
    let ben = world.mount("ben").join("team");
    fs::write(anna.join("notes"), "one").expect("written");
    fs::create_dir(anna.join("deep")).expect("made");
    fs::write(anna.join("deep/file"), vec![7; 700_000]).expect("written");
    symlink("file", anna.join("deep/link")).expect("made");
    run(Command::new("mkfifo").arg(anna.join("deep/pipe")));
    let deep = tree(&anna.join("deep"));
    let modified = fs::metadata(anna.join("notes")).expect("there").mtime_nsec();
    snapshot(&world, "anna", "first");
    fs::write(ben.join("notes"), "two by ben").expect("written");
    snapshot(&world, "ben", "second");
    fs::remove_file(anna.join("notes")).expect("removed");
    fs::remove_dir_all(anna.join("deep")).expect("removed");
    snapshot(&world, "anna", "third");

    let json = run(world.holdfast("ben").args(["history", "--json"]).arg(ben.join("notes")));
    let versions: Vec<serde_json::Value> = serde_json::from_str(&json).expect("a list");
    let found: Vec<_> = versions
        .iter()
        .map(|version| {
            let snapshots = version["snapshots"].as_array().expect("a list").iter();
            let snapshots: Vec<_> = snapshots.map(|name| name.as_str().expect("a name")).collect();
            (version["file"]["bytes"].as_u64(), version["file"]["written_by"].as_str(), snapshots.join(","))
        })
        .filter(|(bytes, _, _)| *bytes != Some(0))
        .collect();
    let expected = [
        (Some(3), Some("anna"), "first".to_owned()),
        (Some(10), Some("ben"), "second".to_owned()),
        (None, None, "third".to_owned()),
    ];
    assert_eq!(found, expected, "{json}");
    let words = run(world.holdfast("ben").arg("history").arg(ben.join("notes")));
    assert!(words.contains("written by ben") && words.contains("not there"), "{words}");

    let restore = |arguments: &[&str], file: &Path| {
        world.holdfast("anna").arg("restore").arg(file).args(arguments).output().expect("it runs")
    };
    let done = restore(&["--at", "first"], &anna.join("notes"));
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(fs::read_to_string(anna.join("notes")).expect("read"), "one");
    assert_eq!(fs::metadata(anna.join("notes")).expect("there").mtime_nsec(), modified);
    let again = restore(&["--at", "second"], &anna.join("notes"));
    assert_eq!(again.status.code(), Some(73), "{}", text(&again));
    assert!(text(&again).contains("--force"), "{}", text(&again));
    assert_eq!(fs::read_to_string(anna.join("notes")).expect("read"), "one");
    let forced = restore(&["--at", "second", "--force"], &anna.join("notes"));
    assert!(forced.status.success(), "{}", text(&forced));
    assert_eq!(fs::read_to_string(ben.join("notes")).expect("read"), "two by ben");

    let elsewhere = anna.join("restored/deep");
    let done = restore(&["--at", "first", "--to", elsewhere.to_str().expect("text")], &anna.join("deep"));
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(tree(&elsewhere), deep);
    // In place, over another tree, to the present: the last state before a time that is not over yet.
    fs::create_dir(anna.join("deep")).expect("made");
    fs::write(anna.join("deep/other"), "x").expect("written");
    let done = restore(&["--at", "first", "--force"], &anna.join("deep"));
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(tree(&anna.join("deep")), deep);
    let names: Vec<_> =
        fs::read_dir(&anna).expect("a directory").map(|e| e.expect("read").file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("holdfast")), "left over: {names:?}");

    for (at, why) in
        [("nowhere", "is no snapshot"), ("2001-01-01", "no state of"), ("third", "was not there")]
    {
        let refused =
            restore(&["--at", at, "--to", anna.join("x").to_str().expect("text")], &anna.join("deep"));
        assert_eq!(refused.status.code(), Some(66), "{at}: {}", text(&refused));
        assert!(text(&refused).contains(why), "{at}: {}", text(&refused));
    }
    let never = world.holdfast("anna").arg("history").arg(anna.join("never")).output().expect("it runs");
    assert!(!never.status.success(), "{}", text(&never));
}

/// Proves: snapshots survive restarts, crashes of the server, checkpoints, a change of rules and collections, and a
/// backup has them. States that no rule keeps any more are removed, and when a name is removed, so are the bytes.
#[test]
fn what_is_kept_is_kept_and_no_more() {
    let mut world = World::new(&["anna"]);
    let root = world.mount("anna");
    let file = root.join("team/file");
    let content = noise(1, 3_200_000);
    fs::write(&file, &content).expect("written");
    snapshot(&world, "anna", "kept");
    fs::remove_file(&file).expect("removed");
    fs::write(root.join("team/other"), "x").expect("written");

    world.kill_server();
    world.start_server_with(&["--history", "0", "--keep-deleted", "0"]);
    let names = |root: &Path| -> Vec<String> {
        let list = fs::read_dir(root.join(".snapshots")).expect("a directory");
        list.map(|entry| entry.expect("read").file_name().into_string().expect("text")).collect()
    };
    let past = root.join(".snapshots/kept/team/file");
    assert!(fs::read(&past).expect("read") == content);
    run(&mut world.operator("gc"));
    eventually("only the snapshot and its state are left", || {
        names(&root).iter().all(|name| name == "kept" || name.ends_with('Z')) && names(&root).len() == 2
    });
    let backup = world.path("backup");
    run(world
        .holdfast("server")
        .args(["server", "backup", "--data"])
        .arg(world.data())
        .arg("--to")
        .arg(&backup));
    world.stop_server();
    world.start_server_with(&["--history", "0", "--keep-deleted", "0"]);
    world.umount("anna");
    fs::remove_dir_all(world.path("anna-cache")).expect("removed");
    let root = world.mount("anna");
    assert!(fs::read(&past).expect("read") == content, "after a collection and a restart, without a cache");
    assert_eq!(names(&root).len(), 2);

    run(world.holdfast("anna").args(["snapshot", "remove"]).arg(&root).arg("kept"));
    assert_eq!(fs::metadata(&past).expect_err("the name is gone").kind(), ErrorKind::NotFound);
    run(&mut world.operator("gc"));
    eventually("nothing is left", || names(&root).is_empty());

    // A server on the backup has the snapshot.
    world.stop_server();
    let copy = fs::read_dir(&backup).expect("a directory").map(|entry| entry.expect("read").path());
    let copy = copy.into_iter().find(|path| path.join("store/FORMAT").exists()).expect("a backup");
    assert!(
        fs::read_dir(copy.join("store"))
            .expect("a directory")
            .any(|entry| { entry.expect("read").file_name().to_string_lossy().starts_with("history-") }),
        "the backup has past states"
    );
}
