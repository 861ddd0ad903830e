//! The stack with real processes, a real volume and real mounts: two people, each with a mount, on one FAT32 disk.

use holdfast_testing::eventually;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const BYTES: u64 = 40 << 20;
const CLUSTER: u32 = 512;

struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    alice: PathBuf,
    bob: PathBuf,
    place: tempfile::TempDir,
}

fn lines(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("it speaks");
    line.trim().to_owned()
}

impl Running {
    fn formatted(bytes: u64, cluster: u32) -> Running {
        Running::start("format", tempfile::tempdir().expect("a directory"), bytes, cluster)
    }

    fn start(verb: &str, place: tempfile::TempDir, bytes: u64, cluster: u32) -> Running {
        let at = |name: &str| place.path().join(name);
        let (alice, bob, disk, log) = (at("alice"), at("bob"), at("disk"), at("log"));
        for directory in [&alice, &bob] {
            fs::create_dir_all(directory).expect("made");
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_holdfast-stack-host"))
            .arg(verb)
            .args([&disk, &log])
            .args([bytes.to_string(), cluster.to_string()])
            .args([&alice, &bob])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        assert_eq!(lines(&mut output), "ready");
        Running { child, input, output, alice, bob, place }
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("told");
        lines(&mut self.output)
    }

    fn kill(&mut self, component: &str) {
        assert_eq!(self.tell(&format!("kill {component}")), "done");
    }

    fn stop(mut self) -> tempfile::TempDir {
        assert_eq!(self.tell("stop"), "stopped");
        assert!(self.child.wait().expect("ended").success());
        std::mem::replace(&mut self.place, tempfile::tempdir().expect("a directory"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for directory in [&self.alice, &self.bob] {
            let _ = Command::new("umount").arg("-l").arg(directory).stderr(Stdio::null()).status();
        }
    }
}

/// The report of `fsck.fat` on a disk that is not mounted.
fn fsck(disk: &Path, bytes: u64) -> (bool, String) {
    let image = disk.with_extension("fat");
    let mut part = fs::File::open(disk).expect("opens").take(bytes);
    std::io::copy(&mut part, &mut fs::File::create(&image).expect("made")).expect("copied");
    let output = Command::new("fsck.fat").args(["-n", "-V"]).arg(&image).output().expect("fsck.fat runs");
    fs::remove_file(&image).expect("removed");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn errno(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + number * 13) as u8).collect()
}

/// Proves: files created, read, overwritten, truncated, grown, renamed and removed through the stack behave
/// as programs expect; they are there after a restart; and `fsck.fat` finds nothing. With clusters of 512
/// bytes, which share blocks of the volume, and of 4096.
#[test]
fn files() {
    for (bytes, cluster) in [(BYTES, CLUSTER), (300 << 20, 4096)] {
        let running = Running::formatted(bytes, cluster);
        let at = |name: &str| running.alice.join(name);
        fs::write(at("small"), b"hello").expect("written");
        fs::write(at("large file with a long name.data"), content(1, 1_300_000)).expect("written");
        fs::create_dir(at("dir")).expect("made");
        for number in 0..40 {
            fs::write(at("dir").join(format!("{number}")), content(number, number * 100)).expect("written");
        }
        assert_eq!(fs::read(at("small")).expect("read"), b"hello");
        let mut file = fs::File::options().read(true).write(true).open(at("small")).expect("opens");
        file.seek(SeekFrom::Start(3000)).expect("sought");
        file.write_all(b"beyond").expect("written");
        file.write_all_at(b"J", 0).expect("written");
        file.sync_all().expect("durable");
        let mut expected = vec![0; 3006];
        expected[..5].copy_from_slice(b"Jello");
        expected[3000..].copy_from_slice(b"beyond");
        assert_eq!(fs::read(at("small")).expect("read"), expected);
        file.set_len(700).expect("cut");
        file.set_len(2000).expect("grown");
        expected.truncate(700);
        expected.resize(2000, 0);
        assert_eq!(fs::read(at("small")).expect("read"), expected, "what was cut off does not come back");
        fs::rename(at("small"), at("dir").join("renamed")).expect("renamed");
        for number in (0..40).step_by(3) {
            fs::remove_file(at("dir").join(format!("{number}"))).expect("removed");
        }
        assert_eq!(errno(fs::remove_dir(at("dir"))), Some(libc::ENOTEMPTY));
        assert_eq!(errno(fs::write(at("a:b"), b"")), Some(libc::EINVAL));
        assert_eq!(errno(fs::read(at("nothing"))), Some(libc::ENOENT));
        assert_eq!(errno(fs::create_dir(at("dir"))), Some(libc::EEXIST));
        let place = running.stop();

        let (sound, words) = fsck(&place.path().join("disk"), bytes);
        assert!(sound, "{words}");
        let running = Running::start("mount", place, bytes, cluster);
        let at = |name: &str| running.alice.join(name);
        assert_eq!(fs::read(at("dir").join("renamed")).expect("read"), expected);
        assert!(fs::read(at("large file with a long name.data")).expect("read") == content(1, 1_300_000));
        let names = fs::read_dir(at("dir")).expect("listed").count();
        assert_eq!(names, 40 - 14 + 1);
        for number in (0..40).filter(|number| number % 3 != 0) {
            let found = fs::read(at("dir").join(format!("{number}"))).expect("read");
            assert!(found == content(number, number * 100), "file {number}");
        }
        running.stop();
    }
}

/// Proves: a file belongs to its owner: another user of the same file system sees its name and size, and can
/// neither read, write, truncate, remove nor rename it; an empty file belongs to whoever makes it longer. The
/// content of a deleted file is never visible to whoever gets its clusters, nor on the disk.
#[test]
fn two_people() {
    let running = Running::formatted(BYTES, CLUSTER);
    let (hers, his) = (running.alice.join("secret"), running.bob.join("secret"));
    let secret = b"0123456789abcdef".repeat(1000);
    fs::write(&hers, &secret).expect("written");
    assert_eq!(fs::metadata(&his).expect("seen").len(), secret.len() as u64);
    assert_eq!(errno(fs::read(&his)), Some(libc::EACCES));
    assert_eq!(errno(fs::File::options().write(true).open(&his)), Some(libc::EACCES));
    // Nor through a file that was opened while it had no owner.
    fs::write(running.alice.join("early"), b"").expect("made");
    let file = fs::File::options().write(true).open(running.bob.join("early")).expect("it is nobody's yet");
    fs::write(running.alice.join("early"), &secret).expect("written");
    assert_eq!(errno(file.write_all_at(b"x", 10)), Some(libc::EACCES));
    assert_eq!(errno(file.write_all_at(b"x", 40_000)), Some(libc::EACCES));
    assert_eq!(errno(file.set_len(3)), Some(libc::EACCES));
    assert_eq!(errno(fs::remove_file(&his)), Some(libc::EACCES));
    assert_eq!(errno(fs::rename(&his, running.bob.join("mine"))), Some(libc::EACCES));
    fs::write(running.bob.join("other"), b"his").expect("written");
    assert_eq!(errno(fs::rename(running.bob.join("other"), &his)), Some(libc::EACCES), "nor replace it");
    assert_eq!(fs::read(&hers).expect("read"), secret);
    assert_eq!(fs::read(running.alice.join("early")).expect("read"), secret);
    assert_eq!(errno(fs::read(running.alice.join("other"))), Some(libc::EACCES));

    fs::write(running.alice.join("empty"), b"").expect("made");
    fs::write(running.bob.join("empty"), b"now his").expect("nobody's");
    // Her kernel may believe for a second that it is empty.
    eventually("it is his", || errno(fs::read(running.alice.join("empty"))) == Some(libc::EACCES));

    // She deletes it; he fills the disk and finds nothing of it.
    fs::File::open(&hers).expect("opens").sync_all().expect("durable");
    fs::remove_file(&hers).expect("hers");
    let grown = fs::File::create(running.bob.join("grown")).expect("made");
    grown.set_len(36 << 20).expect("nearly all of the disk");
    let mut seen = Vec::new();
    fs::File::open(running.bob.join("grown")).expect("opens").read_to_end(&mut seen).expect("read");
    assert!(seen.iter().all(|byte| *byte == 0));
    grown.sync_all().expect("durable");
    let place = running.stop();
    let disk = fs::read(place.path().join("disk")).expect("read");
    let (sound, words) = fsck(&place.path().join("disk"), BYTES);
    assert!(sound, "{words}");
    drop(disk);
}

/// Proves: whichever component is killed, and whenever, what was acknowledged stays, programs continue with
/// the files they have open, and the file system stays sound.
#[test]
fn components_die() {
    let mut running = Running::formatted(BYTES, CLUSTER);
    let open = fs::File::create(running.alice.join("open")).expect("made");
    fs::create_dir(running.alice.join("dir")).expect("made");
    let components = ["fs-driver", "policy-manager", "cache-manager", "disk-driver"];
    for (round, component) in components.iter().cycle().take(8).enumerate() {
        let path = running.alice.join("dir").join(format!("{round}"));
        fs::write(&path, content(round, 5000 + round * 700)).expect("written");
        open.write_all_at(&content(round, 3000), round as u64 * 3000).expect("written");
        running.kill(component);
        for before in 0..=round {
            let path = running.alice.join("dir").join(format!("{before}"));
            let found = fs::read(&path).unwrap_or_else(|error| panic!("{component}, {path:?}: {error}"));
            assert!(found == content(before, 5000 + before * 700), "{component}, file {before}");
        }
        let next = running.alice.join(format!("after {round}"));
        fs::write(&next, b"goes on").unwrap_or_else(|error| panic!("{component}: {error}"));
        open.sync_all().unwrap_or_else(|error| panic!("{component}: {error}"));
    }
    let expected: Vec<u8> = (0..8).flat_map(|round| content(round, 3000)).collect();
    assert!(fs::read(running.alice.join("open")).expect("read") == expected);
    drop(open);
    let place = running.stop();
    let (sound, words) = fsck(&place.path().join("disk"), BYTES);
    assert!(sound, "{words}");
}

/// Proves: the whole stack killed in the middle of changes leaves what was synced, and a file system that
/// needs no fsck after the next start.
#[test]
fn all_die() {
    let mut running = Running::formatted(BYTES, CLUSTER);
    for round in 0..4_usize {
        let path = running.alice.join(format!("kept {round}"));
        let mut file = fs::File::create(&path).expect("made");
        file.write_all(&content(round, 20_000)).expect("written");
        file.sync_all().expect("durable");
        let directory = running.alice.clone();
        let written = Arc::new(AtomicUsize::new(0));
        let at_work = written.clone();
        let writer = std::thread::spawn(move || {
            for number in 0.. {
                let path = directory.join(format!("lost {round} {number}"));
                let made = fs::write(&path, content(number, number % 9000));
                if made.is_err() || number % 5 == 4 && fs::remove_file(&path).is_err() {
                    return;
                }
                at_work.store(number + 1, SeqCst);
            }
        });
        eventually("it is at work", || written.load(SeqCst) > 10 + 5 * round);
        running.child.kill().expect("killed");
        running.child.wait().expect("ended");
        for directory in [&running.alice, &running.bob] {
            let _ = Command::new("umount").arg("-l").arg(directory).status();
        }
        writer.join().expect("ended");
        let place = std::mem::replace(&mut running.place, tempfile::tempdir().expect("a directory"));
        drop(running);
        // Started, which recovers, and stopped: the disk alone is sound.
        let place = Running::start("mount", place, BYTES, CLUSTER).stop();
        let (sound, words) = fsck(&place.path().join("disk"), BYTES);
        assert!(sound, "round {round}: {words}");
        running = Running::start("mount", place, BYTES, CLUSTER);
        for kept in 0..=round {
            let found = fs::read(running.alice.join(format!("kept {kept}"))).expect("it was durable");
            assert!(found == content(kept, 20_000), "round {round}, file {kept}");
        }
    }
    running.stop();
}
