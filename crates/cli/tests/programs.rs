//! Real programs on real mounts: git, make, compilers, SQLite, rsync and editors.

use crate::common;

use common::{World, eventually, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project is there")
}

fn git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(directory)
        .args(["-c", "user.name=Anna", "-c", "user.email=anna@example.org"])
        .args(["-c", "safe.directory=*", "-c", "protocol.file.allow=always"])
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    command
}

/// Git clones the project's own repository onto a mount and finds nothing wrong with it. Another user sees the clone,
/// commits to it from another mount, and the first sees the commit.
#[test]
fn git_clone_fsck_and_commit_by_another_user() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let mut clone = git(&anna);
    // Through a pack, as over a network, and not by copying files.
    clone.args(["clone", "--quiet"]).arg(format!("file://{}", project().display())).arg("project");
    run(&mut clone);
    let (mine, theirs) = (anna.join("project"), ben.join("project"));
    run(git(&mine).args(["fsck", "--strict", "--no-progress"]));
    assert_eq!(run(git(&mine).args(["status", "--porcelain"])), "");

    assert_eq!(run(git(&theirs).args(["status", "--porcelain"])), "");
    fs::write(theirs.join("BEN"), "Ben was here.\n").expect("written");
    run(git(&theirs).args(["add", "BEN"]));
    run(git(&theirs).args(["commit", "--quiet", "-m", "From another mount"]));
    assert!(run(git(&mine).args(["log", "--oneline", "-1"])).contains("From another mount"));
    assert_eq!(fs::read_to_string(mine.join("BEN")).expect("it is there"), "Ben was here.\n");
    run(git(&mine).args(["gc", "--quiet", "--prune=now"]));
    run(git(&theirs).args(["fsck", "--strict", "--no-progress"]));
}

/// A C program with a makefile is built on a mount by two parallel jobs, runs from there, and is up to date when make
/// looks again.
#[test]
fn make_builds_a_c_program() {
    let mut world = World::new(&["anna"]);
    let directory = world.mount("anna").join("anna/program");
    fs::create_dir(&directory).expect("a directory");
    let parts = 12;
    let mut main = String::from("#include <stdio.h>\n");
    let mut calls = String::new();
    for part in 0..parts {
        let source = format!("int part_{part}(int x) {{ return x * {part} + 1; }}\n");
        fs::write(directory.join(format!("part_{part}.c")), source).expect("written");
        main.push_str(&format!("int part_{part}(int);\n"));
        calls.push_str(&format!("sum += part_{part}(2);\n"));
    }
    main.push_str(&format!("int main(void) {{ int sum = 0;\n{calls} printf(\"%d\\n\", sum); return 0; }}\n"));
    fs::write(directory.join("main.c"), main).expect("written");
    fs::write(
        directory.join("Makefile"),
        "program: $(patsubst %.c,%.o,$(wildcard *.c))\n\t$(CC) -o $@ $^\n%.o: %.c\n\t$(CC) -c -o $@ $<\n",
    )
    .expect("written");
    run(Command::new("make").args(["-j2", "-s", "-C"]).arg(&directory));
    let expected: i32 = (0..parts).map(|part| part * 2 + 1).sum();
    assert_eq!(run(&mut Command::new(directory.join("program"))).trim(), expected.to_string());
    assert!(run(Command::new("make").arg("-C").arg(&directory)).contains("up to date"));
}

/// SQLite keeps its guarantees on a mount, with its rollback journal and with its write-ahead log, through unmounting
/// and mounting again.
#[test]
fn sqlite() {
    let mut world = World::new(&["anna"]);
    let mut base = world.mount("anna").join("anna");
    for mode in ["delete", "wal"] {
        let database = base.join(format!("{mode}.db"));
        let sql = |script: &str| run(Command::new("sqlite3").arg("-bail").arg(&database).arg(script));
        assert_eq!(sql(&format!("PRAGMA journal_mode={mode};")).trim(), mode);
        sql("CREATE TABLE t(n INTEGER PRIMARY KEY, words TEXT);
             WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 5000)
             INSERT INTO t SELECT n, 'word ' || n || hex(randomblob(20)) FROM c;");
        for number in 0..10 {
            sql(&format!("BEGIN; UPDATE t SET words = 'changed' WHERE n % 10 = {number}; COMMIT;"));
        }
        sql("DELETE FROM t WHERE n > 4000; VACUUM;");
        assert_eq!(sql("PRAGMA integrity_check;").trim(), "ok");
        assert_eq!(sql("SELECT count(*), min(words), max(words) FROM t;").trim(), "4000|changed|changed");
        world.umount("anna");
        base = world.mount("anna").join("anna");
        assert_eq!(sql("PRAGMA integrity_check;").trim(), "ok");
        assert_eq!(sql("SELECT count(*) FROM t;").trim(), "4000");
    }
}

/// rsync copies a tree with modes, times, links and holes, a second run finds nothing to do, and another user's mount
/// has the same tree.
#[test]
fn rsync_a_tree() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna"), world.mount("ben"));
    let source = world.path("source");
    let inner = source.join("inner");
    fs::create_dir_all(&inner).expect("directories");
    for number in 0..200 {
        fs::write(inner.join(format!("file {number}")), "x".repeat(number * 37)).expect("written");
    }
    fs::write(source.join("big"), (0..3_000_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>())
        .expect("written");
    std::os::unix::fs::symlink("inner/file 1", source.join("link")).expect("a link");
    fs::hard_link(inner.join("file 5"), source.join("hard")).expect("a hard link");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o750);
    fs::set_permissions(inner.join("file 7"), permissions).expect("chmod");
    let target = anna.join("team/copy");
    let rsync = |extra: &[&str], to: &Path| {
        let mut command = Command::new("rsync");
        command.args(["-rlptH", "--checksum"]).args(extra);
        command.arg(format!("{}/", source.display())).arg(to);
        run(&mut command)
    };
    rsync(&[], &target);
    assert_eq!(rsync(&["--itemize-changes", "--dry-run"], &target), "");
    assert_eq!(rsync(&["--itemize-changes", "--dry-run"], &ben.join("team/copy")), "");
    run(Command::new("diff").arg("-r").arg(&source).arg(ben.join("team/copy")));
}

/// Two users work in one group directory at once: both make, rename and remove files there, nothing is lost, and in the
/// end both see the same.
#[test]
fn two_users_in_one_group_directory() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let work = |directory: PathBuf, name: &'static str| {
        std::thread::spawn(move || {
            for number in 0..60 {
                let file = directory.join(format!("{name} {number}"));
                fs::write(&file, format!("{name} wrote {number}")).expect("written");
                match number % 3 {
                    0 => fs::rename(&file, directory.join(format!("{name} {number} renamed")))
                        .expect("renamed"),
                    1 => fs::remove_file(&file).expect("removed"),
                    _ => {}
                }
            }
        })
    };
    let threads = [work(anna.clone(), "anna"), work(ben.clone(), "ben")];
    threads.into_iter().for_each(|thread| thread.join().expect("no failure"));
    let list = |directory: &Path| {
        let mut names: Vec<String> = fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    };
    let names = list(&anna);
    assert_eq!(names, list(&ben));
    assert_eq!(names.len(), 80);
    for name in names {
        let text = fs::read_to_string(ben.join(&name)).expect("read");
        assert_eq!(text, fs::read_to_string(anna.join(&name)).expect("read"));
        let mut words = name.split(' ');
        let (who, number) = (words.next().expect("a word"), words.next().expect("a word"));
        assert_eq!(text, format!("{who} wrote {number}"));
    }
}

/// Close-to-open consistency: what one closes, the other sees when it opens. A descriptor that was open before goes on
/// working, and `stat` shows the new size at the next open.
#[test]
fn a_file_grows_elsewhere() {
    use std::io::{Read, Seek, SeekFrom, Write};
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team/log"), world.mount("ben").join("team/log"));
    fs::write(&anna, "first line\n").expect("written");
    let mut old = fs::File::open(&anna).expect("opened");
    assert_eq!(fs::metadata(&anna).expect("stat").len(), 11);
    for round in 1..20u64 {
        let mut file = fs::File::options().append(true).open(&ben).expect("opened");
        writeln!(file, "another line {round:02}").expect("written");
        drop(file);
        let mut now = fs::File::open(&anna).expect("opened");
        let size = 11 + 16 * round;
        assert_eq!(now.metadata().expect("fstat").len(), size);
        let mut text = String::new();
        now.read_to_string(&mut text).expect("read");
        assert_eq!(text.len() as u64, size);
        assert!(text.ends_with(&format!("another line {round:02}\n")));
        let mut first = [0; 11];
        old.seek(SeekFrom::Start(0)).and_then(|_| old.read_exact(&mut first)).expect("still open");
        assert_eq!(&first, b"first line\n");
    }
}

/// Editors save by writing another file, syncing it and renaming it over the old one: the other user never sees half a
/// file.
#[test]
fn editors_save_atomically() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    let text = |round: u32| format!("round {round}\n").repeat(2000);
    fs::write(anna.join("text"), text(0)).expect("written");
    let reader = std::thread::spawn(move || {
        let mut last = 0;
        while last < 29 {
            let now = fs::read_to_string(ben.join("text")).expect("it is always there");
            let round: u32 = now.lines().next().expect("never empty")[6..].parse().expect("a number");
            assert_eq!(now, format!("round {round}\n").repeat(2000), "whole");
            assert!(round >= last, "never back in time");
            last = round;
        }
    });
    for round in 1..30 {
        let file = fs::File::create(anna.join(".text.new")).expect("created");
        std::io::Write::write_all(&mut &file, text(round).as_bytes()).expect("written");
        file.sync_all().expect("synced");
        drop(file);
        fs::rename(anna.join(".text.new"), anna.join("text")).expect("renamed");
    }
    reader.join().expect("no failure");
}

/// Programs wait for a server that restarts: what they had begun continues afterwards, and nothing is lost.
#[test]
fn the_server_restarts() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna").join("anna");
    fs::write(anna.join("before"), "before").expect("written");
    world.kill_server();
    let writer = {
        let anna = anna.clone();
        std::thread::spawn(move || fs::write(anna.join("during"), "during"))
    };
    std::thread::sleep(std::time::Duration::from_millis(300));
    world.start_server();
    writer.join().expect("no panic").expect("it went on");
    for name in ["before", "during"] {
        assert_eq!(fs::read_to_string(anna.join(name)).expect("read"), name);
    }
    assert!(!world.status("anna").contains("ALARM"), "{}", world.status("anna"));
    eventually("the mount is well again", || world.status("anna").contains("working"));
}
