//! `holdfast import`: trees brought in by address and through mounts, again, interrupted, mirrored; and what it
//! refuses.

use crate::common;

use common::{World, eventually, eventually_some, run, text};
use holdfast_testing::noise;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

fn set_time(path: &Path, seconds: u64) {
    let time = UNIX_EPOCH + Duration::new(seconds, 123_456_789);
    fs::File::open(path).expect("opened").set_modified(time).expect("set");
}

/// Makes a tree with one of everything.
fn tree(world: &World) -> PathBuf {
    let root = world.path("tree");
    fs::create_dir_all(root.join("a/b")).expect("made");
    fs::create_dir_all(root.join("empty")).expect("made");
    fs::write(root.join("a/small"), b"small").expect("written");
    fs::write(root.join("a/b/large"), noise(1, 3 << 20)).expect("written");
    fs::write(root.join("nothing"), b"").expect("written");
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    sparse.write_all_at(b"here", 5 << 20).expect("written");
    sparse.set_len(64 << 20).expect("extended");
    fs::hard_link(root.join("a/small"), root.join("a/b/same")).expect("linked");
    std::os::unix::fs::symlink("../nowhere at all", root.join("a/link")).expect("linked");
    assert!(Command::new("mkfifo").arg(root.join("pipe")).status().expect("runs").success());
    fs::set_permissions(root.join("a/small"), fs::Permissions::from_mode(0o640)).expect("set");
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o751)).expect("set");
    for (at, name) in ["a/small", "a/b/large", "nothing", "sparse", "a/b", "a", "empty"].iter().enumerate() {
        set_time(&root.join(name), 1_000_000_000 + at as u64);
    }
    let set = Command::new("setfattr")
        .args(["-n", "user.colour", "-v", "green"])
        .arg(root.join("nothing"))
        .status();
    drop(set);
    set_time(&root.join("nothing"), 1_000_000_002);
    root
}

fn import(world: &World, who: &str, from: &Path, to: &str, extra: &[&str]) -> (i32, Value) {
    let output = world
        .holdfast(who)
        .args(["--json", "import"])
        .args(extra)
        .arg(from)
        .arg(to)
        .arg("--key")
        .arg(world.key(who))
        .output()
        .expect("it runs");
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
    (output.status.code().expect("it ended"), report)
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Asserts that two trees are the same: names, kinds, modes, times, bytes, links.
#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let names = |path: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(path).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(a), names(b), "{}", a.display());
    for name in names(a) {
        let (a, b) = (a.join(&name), b.join(&name));
        let (one, other) =
            (fs::symlink_metadata(&a).expect("there"), fs::symlink_metadata(&b).expect("there"));
        let name = a.display();
        assert_eq!(one.file_type().is_fifo(), other.file_type().is_fifo(), "{name}");
        assert_eq!((one.mtime(), one.mtime_nsec()), (other.mtime(), other.mtime_nsec()), "{name}");
        if !one.is_symlink() {
            assert_eq!(one.mode(), other.mode(), "{name}");
        }
        if one.is_dir() {
            assert_same(&a, &b);
        } else if one.is_symlink() {
            assert_eq!(fs::read_link(&a).expect("read"), fs::read_link(&b).expect("read"), "{name}");
        } else if one.is_file() {
            assert_eq!(one.nlink(), other.nlink(), "{name}");
            assert!(fs::read(&a).expect("read") == fs::read(&b).expect("read"), "{name}");
        }
    }
}

/// Proves: by address, without a mount, everything of a tree is imported. A second import brings nothing. Changed files
/// are imported only with the option for it, and removed ones are removed only with the option for that. A dry run
/// reports the same and changes nothing.
#[test]
fn a_tree_comes_in() {
    let mut world = World::new(&["anna", "ben"]);
    let tree = tree(&world);
    let to = format!("{}/team/new/place", world.url);
    let (code, report) = import(&world, "anna", &tree, &to, &["--dry-run"]);
    assert_eq!((code, number(&report, "files")), (0, 4), "{report}");
    let (code, report) = import(&world, "anna", &tree, &to, &[]);
    assert_eq!(code, 0, "{report}");
    for (what, count) in
        [("files", 4), ("directories", 3), ("links", 1), ("symlinks", 1), ("special", 1), ("unchanged", 0)]
    {
        assert_eq!(number(&report, what), count, "{what}: {report}");
    }
    let ben = world.mount("ben");
    let there = ben.join("team/new/place");
    assert_same(&tree, &there);
    assert!(fs::metadata(there.join("sparse")).expect("there").blocks() * 512 < 1 << 20, "holes stay holes");
    let get = |path: &Path| Command::new("getfattr").args(["-n", "user.colour"]).arg(path).output();
    if let (Ok(ours), Ok(theirs)) = (get(&tree.join("nothing")), get(&there.join("nothing"))) {
        assert_eq!(ours.status.success(), theirs.status.success());
    }

    let (code, report) = import(&world, "anna", &tree, &to, &[]);
    assert_eq!((code, number(&report, "files"), number(&report, "links")), (0, 0, 0), "{report}");
    assert_eq!(number(&report, "unchanged"), 7, "{report}");

    // One file changes, one is removed, one is new.
    fs::write(tree.join("a/b/large"), noise(2, 1 << 20)).expect("written");
    fs::remove_file(tree.join("a/link")).expect("removed");
    fs::write(tree.join("a/fresh"), b"fresh").expect("written");
    let (code, report) = import(&world, "anna", &tree, &to, &[]);
    assert_eq!((code, number(&report, "refused"), number(&report, "files")), (73, 1, 1), "{report}");
    assert_eq!(report["refused_paths"][0], "a/b/large");
    assert_eq!(fs::read(there.join("a/b/large")).expect("read"), noise(1, 3 << 20));
    let (code, report) = import(&world, "anna", &tree, &to, &["--replace", "--delete", "--dry-run"]);
    assert_eq!((code, number(&report, "replaced"), number(&report, "removed")), (0, 1, 1), "{report}");
    assert!(there.join("a/link").is_symlink());
    let (code, report) = import(&world, "anna", &tree, &to, &["--replace", "--delete"]);
    assert_eq!((code, number(&report, "replaced"), number(&report, "removed")), (0, 1, 1), "{report}");
    assert_same(&tree, &there);

    // A file with the same size and time, and other bytes.
    let secretly = fs::metadata(tree.join("a/fresh")).expect("there").modified().expect("a time");
    fs::write(tree.join("a/fresh"), b"FRESH").expect("written");
    fs::File::open(tree.join("a/fresh")).expect("opened").set_modified(secretly).expect("set");
    assert_eq!(number(&import(&world, "anna", &tree, &to, &["--replace"]).1, "files"), 0);
    assert_eq!(number(&import(&world, "anna", &tree, &to, &["--replace", "--checksum"]).1, "files"), 1);
    assert_same(&tree, &there);
}

/// Proves: importing works through a mount, by its directory and, while the mount uses the key, by address. A directory
/// where a file is in the way is refused, then replaced. A tree that would contain its own copy, or does not exist, is
/// refused in words.
#[test]
fn through_a_mount() {
    let mut world = World::new(&["anna"]);
    let tree = tree(&world);
    let anna = world.mount("anna");
    let to = anna.join("team/in");
    let (code, report) = import(&world, "anna", &tree, to.to_str().expect("text"), &[]);
    assert_eq!(code, 0, "{report}");
    assert_same(&tree, &to);
    let by_address = format!("{}/team/in", world.url);
    let (code, report) = import(&world, "anna", &tree, &by_address, &[]);
    assert_eq!((code, number(&report, "unchanged"), number(&report, "files")), (0, 7, 0), "{report}");

    fs::remove_file(tree.join("nothing")).expect("removed");
    fs::create_dir(tree.join("nothing")).expect("made");
    fs::write(tree.join("nothing/inside"), b"x").expect("written");
    fs::remove_dir_all(tree.join("a/b")).expect("removed");
    fs::write(tree.join("a/b"), b"a file now").expect("written");
    let (code, report) = import(&world, "anna", &tree, &by_address, &[]);
    assert_eq!((code, number(&report, "refused")), (73, 2), "{report}");
    assert!(to.join("a/b/large").is_file());
    let (code, report) = import(&world, "anna", &tree, &by_address, &["--replace"]);
    assert_eq!((code, number(&report, "replaced")), (0, 2), "{report}");
    assert_eq!(fs::read(to.join("a/b")).expect("read"), b"a file now");
    assert_eq!(fs::read(to.join("nothing/inside")).expect("read"), b"x");

    let attempt = |from: &Path, to: &Path| {
        let output = world.holdfast("anna").arg("import").arg(from).arg(to).output().expect("it runs");
        (output.status.code(), text(&output))
    };
    let (code, printed) = attempt(&anna.join("team"), &anna.join("team/in/itself"));
    assert!(code == Some(64) && printed.contains("never end"), "{printed}");
    let (code, printed) = attempt(&world.path("absent"), &to);
    assert!(code == Some(66) && printed.contains("absent"), "{printed}");
    let (code, printed) = attempt(&tree, Path::new(&world.url));
    assert!(code == Some(64) && printed.contains("--key"), "{printed}");
    let elsewhere = world.path("elsewhere");
    let (code, printed) = attempt(&tree, &elsewhere.join("below"));
    assert!(code == Some(64) && printed.contains("no mounted Holdfast file system"), "{printed}");
    assert!(!elsewhere.exists());
    let (code, printed) = attempt(&tree, &to.join("sparse"));
    assert!(code == Some(73) && printed.contains("sparse"), "{printed}");
}

/// Proves: an import that is killed at any moment leaves only whole files, and one more run brings in the rest and
/// nothing twice.
#[test]
fn killed_and_resumed() {
    // What was killed holds others up for no longer than this.
    let terms = ["--abort-after", "2", "--lease", "2"];
    let mut world = World::with_server(&["anna", "ben"], |_| terms.map(str::to_owned).to_vec());
    let tree = world.path("many");
    fs::create_dir(&tree).expect("made");
    for number in 0..150u64 {
        let folder = tree.join(format!("folder-{}", number % 7));
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(format!("file-{number}")), noise(number, 20_000)).expect("written");
    }
    let ben = world.mount("ben");
    let there = ben.join("team/many");
    let to = format!("{}/team/many", world.url);
    let whole = |path: &Path| {
        let mut count = 0;
        for folder in fs::read_dir(path).into_iter().flatten().flatten() {
            for file in fs::read_dir(folder.path()).expect("listed").flatten() {
                let name = file.file_name().into_string().expect("text");
                let number: u64 =
                    name.strip_prefix("file-").expect("no other names").parse().expect("a number");
                assert!(fs::read(file.path()).expect("read") == noise(number, 20_000), "{name} is not whole");
                count += 1;
            }
        }
        count
    };
    for least in [1, 40] {
        let mut importing = world
            .holdfast("anna")
            .args(["import", "--parallel", "4"])
            .arg(&tree)
            .arg(&to)
            .arg("--key")
            .arg(world.key("anna"))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it runs");
        eventually("some files are there", || {
            let ended = importing.try_wait().expect("a child").is_some();
            let folders = fs::read_dir(&there).into_iter().flatten().flatten();
            ended
                || folders.map(|folder| fs::read_dir(folder.path()).map_or(0, Iterator::count)).sum::<usize>()
                    >= least
        });
        let _ = importing.kill();
        importing.wait().expect("it ended");
        whole(&there);
    }
    let before = whole(&there);
    let (code, report) = import(&world, "anna", &tree, &to, &[]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(whole(&there), 150);
    // An operation that was ordered when the import was killed may have become visible since.
    assert!(number(&report, "files") <= 150 - before, "{report}");
    assert_eq!(number(&report, "files") + number(&report, "unchanged"), 150, "{report}");
}

/// Proves: a file that changes while it is read is left out and reported, and all others are imported.
#[test]
fn changing_files_are_told() {
    let world = World::new(&["anna"]);
    let tree = world.path("live");
    fs::create_dir(&tree).expect("made");
    fs::write(tree.join("quiet"), b"quiet").expect("written");
    fs::write(tree.join("busy"), noise(1, 8 << 20)).expect("written");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, path) = (stop.clone(), tree.join("busy"));
    let writer = std::thread::spawn(move || {
        let mut file = fs::OpenOptions::new().append(true).open(path).expect("opened");
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            file.write_all(b"more").expect("written");
        }
    });
    // On a busy machine the file may be read while the writer waits for the processor.
    let mut attempt = 0;
    let (to, code, report) = eventually_some("it changes while it is read", || {
        attempt += 1;
        let to = format!("{}/team/live-{attempt}", world.url);
        let (code, report) = import(&world, "anna", &tree, &to, &[]);
        let is_changed = number(&report, "changed") > 0;
        assert!(is_changed || (code, number(&report, "files")) == (0, 2), "{report}");
        is_changed.then_some((to, code, report))
    });
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("it ends");
    assert_eq!((code, number(&report, "changed"), number(&report, "files")), (1, 1, 1), "{report}");
    assert_eq!(report["changed_paths"][0], "busy");
    let listed = run(world
        .holdfast("anna")
        .args(["import", "--dry-run"])
        .arg(&tree)
        .arg(to)
        .arg("--key")
        .arg(world.key("anna")));
    assert!(listed.contains("Would bring in 1 files"), "{listed}");
}
