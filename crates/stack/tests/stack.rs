//! The stack with real processes, a real volume and real mounts: two people, each with a mount, on one FAT32 disk.

use crate::common::stack::{BYTES, CLUSTER, Running};
use holdfast_testing::eventually;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn formatted(bytes: u64, cluster: u32) -> Running {
    Running::start_with("format", tempfile::tempdir().expect("a directory"), bytes, cluster, None)
}

/// Whether `fsck.fat` finds the file system on an unmounted disk sound, and its output.
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

/// Proves: files that are made, read, overwritten, truncated, extended, renamed and removed through the stack are what
/// programs expect. They are there after the stack was stopped and started, and `fsck.fat` finds nothing. With clusters
/// of 512 bytes, which share blocks of the volume, and of 4096.
#[test]
fn files() {
    for (bytes, cluster) in [(BYTES, CLUSTER), (300 << 20, 4096)] {
        let running = formatted(bytes, cluster);
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
        let folder = running.stop();

        let (sound, words) = fsck(&folder.path().join("disk"), bytes);
        assert!(sound, "{words}");
        let running = Running::start_with("mount", folder, bytes, cluster, None);
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

/// Proves: a file is its owner's. Another user of the same file system sees its name and size, and can neither read,
/// write, truncate, remove nor rename it. An empty file belongs to whoever extends it. The content of a deleted file is
/// never seen by the user who gets its clusters, on the disk neither.
#[test]
fn two_people() {
    let running = formatted(BYTES, CLUSTER);
    let (hers, his) = (running.alice.join("secret"), running.bob.join("secret"));
    let secret = b"0123456789abcdef".repeat(1000);
    fs::write(&hers, &secret).expect("written");
    assert_eq!(fs::metadata(&his).expect("seen").len(), secret.len() as u64);
    assert_eq!(errno(fs::read(&his)), Some(libc::EACCES));
    assert_eq!(errno(fs::File::options().write(true).open(&his)), Some(libc::EACCES));
    // Nor by a descriptor that was opened while the file was nobody's.
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
    // Her kernel may cache for a second that the file is empty.
    eventually("it is his", || errno(fs::read(running.alice.join("empty"))) == Some(libc::EACCES));

    // She deletes it; he fills the disk, and finds nothing of it.
    fs::File::open(&hers).expect("opens").sync_all().expect("durable");
    fs::remove_file(&hers).expect("hers");
    let grown = fs::File::create(running.bob.join("grown")).expect("made");
    grown.set_len(36 << 20).expect("nearly all of the disk");
    let mut seen = Vec::new();
    fs::File::open(running.bob.join("grown")).expect("opens").read_to_end(&mut seen).expect("read");
    assert!(seen.iter().all(|byte| *byte == 0));
    grown.sync_all().expect("durable");
    let folder = running.stop();
    let disk = fs::read(folder.path().join("disk")).expect("read");
    let (sound, words) = fsck(&folder.path().join("disk"), BYTES);
    assert!(sound, "{words}");
    drop(disk);
}

/// Proves: whichever component dies, and whenever, what was acknowledged stays, programs go on with the files they have
/// open, and the file system stays sound.
#[test]
fn components_die() {
    let mut running = formatted(BYTES, CLUSTER);
    let open = fs::File::create(running.alice.join("open")).expect("made");
    fs::create_dir(running.alice.join("dir")).expect("made");
    let components = ["fs-driver", "policy-manager", "cache-manager", "disk-driver"];
    for (round, component) in components.iter().cycle().take(8).enumerate() {
        let path = running.alice.join("dir").join(format!("{round}"));
        fs::write(&path, content(round, 5000 + round * 700)).expect("written");
        open.write_all_at(&content(round, 3000), round as u64 * 3000).expect("written");
        running.end(component);
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
    let folder = running.stop();
    let (sound, words) = fsck(&folder.path().join("disk"), BYTES);
    assert!(sound, "{words}");
}

/// Proves: after the whole stack is killed in the midst of changes, what was synced is there, and the file system needs
/// no fsck after the next start.
#[test]
fn all_die() {
    let mut running = formatted(BYTES, CLUSTER);
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
        let folder = std::mem::replace(&mut running.folder, tempfile::tempdir().expect("a directory"));
        drop(running);
        // Started, which recovers, and stopped: the disk by itself is sound.
        let folder = Running::start("mount", folder, None).stop();
        let (sound, words) = fsck(&folder.path().join("disk"), BYTES);
        assert!(sound, "round {round}: {words}");
        running = Running::start("mount", folder, None);
        for kept in 0..=round {
            let found = fs::read(running.alice.join(format!("kept {kept}"))).expect("it was durable");
            assert!(found == content(kept, 20_000), "round {round}, file {kept}");
        }
    }
    running.stop();
}
