//! Two machines that change one file at the same time, through mounts and with ordinary programs.

use crate::common;

use common::{World, eventually, is_mounted, run, run_json, setting};
use holdfast_testing::eventually_some;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A shell that opens, appends to and closes a file for each line.
fn append_lines(file: &Path, name: &str, count: usize) -> Child {
    let script = r#"i=0; while [ $i -lt $3 ]; do echo "$2 $i" >> "$1" || exit 1; i=$((i+1)); done"#;
    Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(file)
        .args([name, &count.to_string()])
        .spawn()
        .expect("a shell")
}

/// Proves: lines that programs on two machines append to one file are all there, whole, and each program's in their
/// order: two that open and close for each line, and one that keeps its descriptor and calls fsync.
/// `HOLDFAST_ROUNDS=500` writes more.
#[test]
fn appends_of_two_machines_survive() {
    let lines_each = setting("HOLDFAST_ROUNDS", 60) as usize;
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team/log"), world.mount("ben").join("team/log"));
    fs::write(&anna, "begin\n").expect("written");
    let mut shells = [append_lines(&anna, "anna", lines_each), append_lines(&ben, "ben", lines_each)];
    let mut keeper = OpenOptions::new().append(true).open(&ben).expect("opened");
    for number in 0..lines_each / 5 {
        let line = format!("keeper {number}\n");
        keeper.write_all(line.as_bytes()).expect("written at once");
        keeper.sync_all().expect("synced");
        // This machine sees its own lines, once the kernel has dropped the pages of the file as it was here alone.
        eventually("a line is seen", || fs::read_to_string(&ben).expect("read").contains(&line));
    }
    drop(keeper);
    for shell in &mut shells {
        assert!(shell.wait().expect("it ends").success());
    }
    for file in [&anna, &ben] {
        let text = fs::read_to_string(file).expect("read");
        let mut lines = 1;
        for (name, count) in [("anna", lines_each), ("ben", lines_each), ("keeper", lines_each / 5)] {
            let found: Vec<usize> =
                text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok()).collect();
            assert_eq!(found, (0..count).collect::<Vec<_>>(), "{name}");
            lines += count;
        }
        assert_eq!(text.lines().count(), lines, "{text}");
    }
}

/// Proves: programs that list a tree and look at everything in it (`ls -l`, `find`, `rm -r`) need few operations, not
/// one for each file, even without leases, and never show what another machine has replaced.
#[test]
fn listing_trees_takes_few_operations() {
    const FILES: u64 = 150;
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) =
        (world.mount("anna").join("team/tree"), world.mount_with("ben", &["--no-leases"]).join("team/tree"));
    let fill = || {
        fs::create_dir(&anna).expect("made");
        for number in 0..FILES {
            fs::write(anna.join(number.to_string()), "first").expect("written");
        }
    };
    fill();
    let operations = |world: &World| -> u64 {
        let stats = run_json(world.holdfast("ben").args(["--json", "stats"]).arg(world.path("ben-mnt")));
        stats[0][1]["operations"].as_u64().expect("a number")
    };
    // A listing may be used for a second. If the machine stands still for longer, the measurement is repeated.
    let counted = |most: u64, program: &str, arguments: &[&str]| {
        eventually_some(&format!("{program} makes at most {most} operations for {FILES} files"), || {
            if !anna.exists() {
                fill();
            }
            let before = operations(&world);
            let out =
                run(Command::new(program).args(arguments).current_dir(ben.parent().expect("a directory")));
            (operations(&world) - before <= most).then_some(out)
        })
    };
    let listed = counted(FILES / 4, "ls", &["-l", "tree"]);
    assert_eq!(listed.lines().count() as u64, FILES + 1);
    let found = counted(FILES / 4, "find", &["tree", "-type", "f", "-size", "5c"]);
    assert_eq!(found.lines().count() as u64, FILES);
    // Opening each file asks for the present view, but the names were looked up with the listing.
    fs::write(anna.join("new"), "second").expect("written");
    fs::rename(anna.join("new"), anna.join("7")).expect("renamed");
    let found = counted(FILES + FILES / 4, "grep", &["-rl", "second", "tree"]);
    assert_eq!(found.trim(), "tree/7");
    // Removing each file takes an operation of its own.
    counted(FILES + FILES / 4, "rm", &["-r", "tree"]);
    assert!(!anna.exists());
}

/// Proves: a file made without a name can be used, also through /proc, and appears elsewhere only once it has a name,
/// and then whole. With O_EXCL it cannot get a name. A file that gets no name leaves nothing behind, not even after its
/// mount was killed.
#[test]
fn files_without_names() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let make = |more: OFlags| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
        File::from(openat(CWD, &anna, flags, Mode::from_raw_mode(0o640)).expect("made"))
    };
    let through_proc = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let name = |file: &File, name: &str| {
        linkat(CWD, through_proc(file), CWD, anna.join(name), AtFlags::SYMLINK_FOLLOW)
    };
    let names = || fs::read_dir(&ben).expect("listed").count();

    let mut file = make(OFlags::empty());
    let bytes: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
    file.write_all(&bytes).expect("written");
    file.sync_all().expect("synced");
    let before = file.metadata().expect("stat");
    assert_eq!((before.nlink(), before.len(), before.mode() & 0o777), (0, bytes.len() as u64, 0o640));
    assert!(fs::read(through_proc(&file)).expect("opened once more") == bytes);
    assert_eq!(names(), 0);
    name(&file, "named").expect("linked");
    assert_eq!(names(), 1);
    assert!(fs::read(ben.join("named")).expect("read") == bytes);
    let after = file.metadata().expect("stat");
    assert_eq!((after.ino(), after.nlink()), (before.ino(), 1));
    assert_eq!(fs::metadata(ben.join("named")).expect("stat").ino(), before.ino());
    name(&file, "another").expect("linked once more");
    name(&file, "named").expect_err("it is there");
    file.write_all(b"the end").expect("written");
    drop(file);
    assert!(fs::read(ben.join("another")).expect("read").ends_with(b"the end"));

    let unnamable = make(OFlags::EXCL);
    name(&unnamable, "never").expect_err("O_EXCL forbids it");
    let mut forgotten = make(OFlags::empty());
    forgotten.write_all(&bytes).expect("written");
    let spool = |world: &World| {
        let spools = walk(&world.path("anna-state"));
        spools.into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "data")).count()
    };
    assert_eq!(spool(&world), 1);
    let process = world.mount_process("anna").expect("it is mounted");
    run(Command::new("kill").args(["-9", &process.to_string()]));
    drop((forgotten, unnamable));
    eventually("the dead mount goes away", || !is_mounted(&world.path("anna-mnt")));
    world.mount("anna");
    assert_eq!(spool(&world), 0);
    assert!(run(world.holdfast("anna").arg("salvage")).starts_with("Nothing to salvage"));
    assert_eq!(names(), 2);
}

/// All files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.path() {
            path if path.is_dir() => files.extend(walk(&path)),
            path => files.push(path),
        }
    }
    files
}
