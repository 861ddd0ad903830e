//! Faults outside of the stack: a changed policy table, no descriptors, no processes, no space. Each gives a clear
//! error, leaves the rest unharmed, and loses nothing that was acknowledged. Needs root, FUSE and dosfstools, as
//! `tests/stack.rs`.

use crate::common::stack;

use holdfast_testing::eventually;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use stack::{BYTES, CLUSTER, Running, aftermath, content, copy, uncached};
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PAGE: u64 = 4096;

/// Offsets in the policy table as it is on the disk. Of each block that has any content: the first and the last byte
/// that is not zero, and one that is. And one in the table's last block, which was never used.
fn places(disk: &fs::File) -> Vec<(u64, bool)> {
    let mut places = Vec::new();
    let mut block = [0; PAGE as usize];
    let mut number = 0;
    loop {
        let at = BYTES + number * PAGE;
        if disk.read_exact_at(&mut block, at).is_err() {
            places.push((at - 1, true));
            return places;
        }
        let first = block.iter().position(|byte| *byte != 0);
        let last = block.iter().rposition(|byte| *byte != 0);
        places.extend(first.into_iter().chain(last).map(|byte| (at + byte as u64, false)));
        if let Some(nothing) = block.iter().position(|byte| *byte == 0).filter(|_| first.is_some()) {
            places.push((at + nothing as u64, false));
        }
        number += 1;
    }
}

/// Proves: a policy table that was changed on the disk, in whichever part, is noticed when it is mounted: PolicyMgr
/// refuses the disk, its FSDriver stays down and says why in words, and nobody can read anything. So is a table of an
/// earlier time.
#[test]
fn changed_tables() {
    let older = copy();
    // The same disk after further changes; then its earlier table is put back.
    let running = Running::start("mount", copy(), None);
    fs::write(running.alice.join("later"), content(7, 9000)).expect("written");
    let later = running.stop();
    let disk = fs::File::open(later.path().join("disk")).expect("opens");
    let places = places(&disk);
    assert!(places.len() > 6, "{places:?}");
    let mut cases: Vec<(String, bool, Change)> = Vec::new();
    for (at, is_unused) in places {
        let flip = move |disk: &Path| {
            let file = fs::File::options().read(true).write(true).open(disk).expect("opens");
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("read");
            file.write_all_at(&[byte[0] ^ 0x10], at).expect("written");
        };
        cases.push((format!("byte {}", at - BYTES), is_unused, Box::new(flip)));
    }
    let table = {
        let mut bytes = fs::read(older.path().join("disk")).expect("read");
        bytes.split_off(BYTES as usize)
    };
    let put_back = move |disk: &Path| {
        let file = fs::File::options().write(true).open(disk).expect("opens");
        file.write_all_at(&table, BYTES).expect("written");
    };
    cases.push(("an earlier table".to_owned(), false, Box::new(put_back)));
    for (what, is_unused, change) in cases {
        let place = tempfile::tempdir().expect("a directory");
        for name in ["disk", "log"] {
            fs::copy(later.path().join(name), place.path().join(name)).expect("copied");
        }
        change(&place.path().join("disk"));
        let mut running = Running::start("mount", place, None);
        // Blocks that were never written are not read from the disk, so changing them has no effect.
        if is_unused {
            assert_eq!(aftermath(running), Vec::<String>::new(), "{what}");
            continue;
        }
        running.until("refusal", |running| running.component("fs-driver")["state"] == "down");
        let words = running.last_end("fs-driver");
        assert!(words.contains("policy table"), "{what}: {words}");
        let log = running.words();
        assert!(!log.contains("panicked"), "{what}: {log}");
    }
}

/// What is done to a disk.
type Change = Box<dyn Fn(&Path)>;

fn program() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_holdfast-stack-host"))
}

/// Proves: a host that has too few descriptors at its start says so and ends, or comes up; it hangs with no number of
/// them.
#[test]
fn few_descriptors_at_the_start() {
    let mut came_up = 0;
    let mut refused = 0;
    for files in [8, 12, 16, 24, 32, 48, 64, 96, 256] {
        let place = copy();
        let at = |name: &str| place.path().join(name);
        for name in ["alice", "bob"] {
            fs::create_dir_all(at(name)).expect("made");
        }
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"])
            .arg(program())
            .arg("mount")
            .args([at("disk"), at("log")])
            .args([BYTES.to_string(), CLUSTER.to_string()])
            .args([at("alice"), at("bob")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let input = child.stdin.take().expect("piped");
        // It ends when it reads the end of its input, or before.
        drop(input);
        let (mut said, mut words) = (String::new(), String::new());
        child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
        child.stderr.take().expect("piped").read_to_string(&mut words).expect("text");
        let ended = child.wait().expect("ended");
        for name in ["alice", "bob"] {
            let _ = Command::new("umount").arg("-l").arg(at(name)).stderr(Stdio::null()).status();
        }
        match said.contains("ready") {
            true => came_up += 1,
            false => {
                refused += 1;
                assert!(!ended.success(), "{files}");
                let is_clear = ["Too many open files", "os error 24", "EMFILE", "code: 24"];
                assert!(is_clear.iter().any(|reason| words.contains(reason)), "{files}: {words}");
            }
        }
        // In both cases the disk is as it was.
        let running = Running::start("mount", place, None);
        assert_eq!(running.altered(), Vec::<String>::new(), "{files}");
    }
    assert!(came_up > 0 && refused > 0, "{came_up} came up, {refused} did not");
}

/// Proves: a host whose descriptors run out while it runs cannot restart a component, says why, and goes on with the
/// others. When there are descriptors again, a new mount has everything.
#[test]
fn no_descriptors_while_running() {
    let mut running = Running::start("mount", copy(), None);
    assert_eq!(running.altered(), Vec::<String>::new());
    let kept = running.alice.join("kept");
    fs::write(&kept, content(5, 3000)).expect("written");
    fs::File::open(&kept).and_then(|file| file.sync_all()).expect("durable");
    let pid = Pid::from_raw(running.host_pid() as i32).expect("a process");
    let few = running.host_files() as u64 - 4;
    let limit = Rlimit { current: Some(few), maximum: Some(20_000) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("limited");
    running.end("cache-manager");
    running.until("giving up", |running| running.component("cache-manager")["state"] == "down");
    let words = running.last_end("cache-manager");
    assert!(words.contains("Too many open files") || words.contains("os error 24"), "{words}");
    let limit = Rlimit { current: Some(20_000), maximum: Some(20_000) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("limited");
    // What is in memory can be read without CacheMgr, and others' processes go on.
    assert!(fs::read(running.alice.join("third")).expect("in memory") == stack::files()["third"]);
    assert!(!running.words().contains("panicked"), "{}", running.words());
    let (restarts, _) = running.others("cache-manager");
    assert_eq!(restarts, 0);
    assert_eq!(aftermath(running), Vec::<String>::new());
}

/// A control group with a limit on the number of processes.
struct Group(PathBuf);

impl Group {
    /// Makes a control group of version 1 or 2, whichever this machine has.
    fn of(pid: u32) -> Group {
        let own = format!("holdfast-bad-input-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/pids");
        let path = if first.is_dir() {
            first.join(own)
        } else {
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+pids").expect("the controller of processes");
            Path::new("/sys/fs/cgroup").join(own)
        };
        fs::create_dir(&path).expect("root may make groups");
        fs::write(path.join("cgroup.procs"), pid.to_string()).expect("moved");
        Group(path)
    }

    fn limit(&self, processes: &str) {
        fs::write(self.0.join("pids.max"), processes).expect("limited");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("pids.max"), "max");
        if !std::thread::panicking() {
            eventually("its processes have ended", || fs::remove_dir(&self.0).is_ok());
        }
    }
}

/// Proves: the same holds where no process can be made.
#[test]
fn no_processes_while_running() {
    let mut running = Running::start("mount", copy(), None);
    assert_eq!(running.altered(), Vec::<String>::new());
    let group = Group::of(running.host_pid());
    group.limit("1");
    running.end("disk-driver");
    running.until("giving up", |running| running.component("disk-driver")["state"] == "down");
    let words = running.last_end("disk-driver");
    assert!(words.contains("os error 11") || words.contains("temporarily unavailable"), "{words}");
    group.limit("max");
    assert!(fs::read(running.alice.join("third")).expect("in memory") == stack::files()["third"]);
    assert!(!running.words().contains("panicked"), "{}", running.words());
    let (restarts, _) = running.others("disk-driver");
    assert_eq!(restarts, 0);
    assert_eq!(aftermath(running), Vec::<String>::new());
}

/// Proves: a disk that one user fills is full for others, who get the error for it and no other: what was there stays,
/// and space that is freed can be used. The log is used round and round without ever being full.
#[test]
fn full_disk_and_log() {
    let running = Running::start("mount", copy(), None);
    let chunk = content(9, 1 << 20);
    for round in 0..3 {
        let path = running.bob.join("fills");
        let file = fs::File::create(&path).expect("made");
        // Space is freed when the kernel has released the file, which it does asynchronously.
        eventually("there is room", || file.write_all_at(&chunk, 0).is_ok());
        let full = (0..64_u64).find_map(|at| file.write_all_at(&chunk, at << 20).err());
        let code = full.expect("the disk has an end").raw_os_error();
        assert_eq!(code, Some(libc::ENOSPC), "round {round}");
        let hers = fs::write(running.alice.join("no room"), &chunk);
        assert_eq!(hers.err().and_then(|error| error.raw_os_error()), Some(libc::ENOSPC), "round {round}");
        file.sync_all().expect("what was written is kept");
        assert_eq!(running.altered(), Vec::<String>::new(), "round {round}");
        // While it is open for writing, and afterwards.
        let check = || {
            let his = uncached(&path).expect("his");
            let wrong = his.iter().zip(chunk.iter().cycle()).position(|(found, written)| found != written);
            let place = wrong.map(|at| (at, his[at], his.len()));
            assert_eq!(place, None, "round {round}: where it is wrong, with what, of how many bytes");
            assert!(his.len() > 16 << 20, "round {round}: {} bytes", his.len());
        };
        check();
        drop(file);
        check();
        fs::remove_file(path).expect("his");
        let _ = fs::remove_file(running.alice.join("no room"));
        let again = running.alice.join(format!("room again {round}"));
        eventually("there is room again", || fs::write(&again, &chunk[..9000]).is_ok());
    }
    for round in 0..3 {
        let found = uncached(&running.alice.join(format!("room again {round}"))).expect("hers");
        assert!(found == chunk[..9000]);
    }
    assert_eq!(aftermath(running), Vec::<String>::new());
}
