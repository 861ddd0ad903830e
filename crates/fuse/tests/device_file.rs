//! A disk as a file: ordinary calls on it, and a protected volume under a real ext4 on a loop device.

use holdfast_fuse::device_file::Disk;
use holdfast_fuse::{Options, Session, UnmountMode, mount_disk};
use holdfast_log::device::{Device, FileDevice};
use holdfast_testing::eventually;
use holdfast_volume::{Plan, Volume, VolumeKey};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::volumes::site::{Kind, Mounted, run};

fn options() -> Options {
    Options {
        source: "a disk".into(),
        allow_other: false,
        read_only: false,
        no_exec: true,
        local_locks: false,
    }
}

#[derive(Default)]
struct InMemory {
    bytes: Mutex<Vec<u8>>,
    flushes: Mutex<usize>,
}

impl Disk for InMemory {
    fn size_bytes(&self) -> u64 {
        self.bytes.lock().expect("unbroken").len() as u64
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(512) && buffer.len().is_multiple_of(512), "whole sectors are read");
        if offset <= 8192 && offset + buffer.len() as u64 > 8192 {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        buffer.copy_from_slice(&self.bytes.lock().expect("unbroken")[offset as usize..][..buffer.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.lock().expect("unbroken")[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        *self.flushes.lock().expect("unbroken") += 1;
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        self.bytes.lock().expect("unbroken")[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
}

/// Proves: reads, writes, syncs and holes of the file reach the disk, its errors come back, it does not grow, and there
/// is nothing else in the directory.
#[test]
fn a_file_that_is_a_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(InMemory { bytes: Mutex::new(vec![7; 64 << 10]), ..InMemory::default() });
    let session = mount_disk(disk.clone(), "disk", directory.path(), &options(), || ()).expect("mounted");
    let names: Vec<_> = fs::read_dir(directory.path())
        .expect("listed")
        .map(|entry| entry.expect("one").file_name())
        .collect();
    assert_eq!(names, ["disk"]);
    let path = directory.path().join("disk");
    let file = File::options().read(true).write(true).open(&path).expect("opened");
    assert_eq!(file.metadata().expect("looked").len(), 64 << 10);
    file.write_all_at(b"written", 4099).expect("written");
    let mut read = [0; 9];
    file.read_exact_at(&mut read, 4098).expect("read");
    assert_eq!(&read, b"\x07written\x07");
    file.sync_all().expect("synced");
    assert_eq!(*disk.flushes.lock().expect("unbroken"), 1);
    let refused = file.read_exact_at(&mut read, 8190).expect_err("bad");
    assert_eq!(refused.raw_os_error(), Some(libc::EIO));
    assert!(file.write_at(&[1; 512], 64 << 10).is_err(), "it does not grow");
    assert!(fs::write(directory.path().join("other"), "x").is_err());
    let hole = ["--punch-hole", "--offset", "0", "--length", "4096"];
    assert!(Command::new("fallocate").args(hole).arg(&path).status().expect("runs").success());
    assert_eq!(disk.bytes.lock().expect("unbroken")[..4096], [0; 4096]);
    drop(file);
    eventually("nobody uses it", || session.unmount(UnmountMode::Gently).is_ok());
    session.wait();
}

struct Attached {
    volume: Arc<Volume>,
    session: Session,
}

impl Attached {
    fn new(image: &Path, log: &Path, key: &VolumeKey, directory: &Path) -> Attached {
        let device = |path| -> Arc<dyn Device> { Arc::new(FileDevice::open(path).expect("opened")) };
        let (volume, report) =
            Volume::open(device(image), device(log), key, Default::default(), None, [5; 16]).expect("opens");
        assert_eq!(report.refused, []);
        volume.start().expect("started");
        let volume = Arc::new(volume);
        let session = mount_disk(volume.clone(), "disk", directory, &options(), || ()).expect("mounted");
        Attached { volume, session }
    }

    fn detach(self) {
        eventually("nobody uses it", || self.session.unmount(UnmountMode::Gently).is_ok());
        self.session.wait();
        self.volume.close().expect("closed");
    }
}

/// Proves: an ext4 with data is taken over in place, is used by real programs on a loop device, is whole when checked,
/// comes back as a plain image, and a byte changed behind its back is an error of the program that reads it.
#[test]
fn ext4_on_a_protected_image() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root has loop devices and mounts");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    let (image, log, plain, at, disk) = (path("image"), path("log"), path("plain"), path("at"), path("disk"));
    for directory in [&plain, &at, &disk] {
        fs::create_dir(directory).expect("made");
    }
    Kind::Ext4.make_of(&image, 96 << 20);
    let before = Mounted::new(Kind::Ext4, &image, &plain);
    fs::write(plain.join("before"), vec![42; 300_000]).expect("written");
    before.unmount();

    let key = VolumeKey::new(&[6; 32], b"ext4 in a test..");
    File::create(&log).expect("made").set_len(Plan::new(96 << 20, None).bytes).expect("sized");
    let device = |path: &Path| -> Arc<dyn Device> { Arc::new(FileDevice::open(path).expect("opened")) };
    Volume::format(&*device(&image), &*device(&log), &key, None).expect("formatted");
    assert!(Volume::adopt(device(&image), device(&log), &key, [1; 16], None, &|_, _| true).expect("adopted"));

    let attached = Attached::new(&image, &log, &key, &at);
    let used = Mounted::new(Kind::Ext4, &at.join("disk"), &disk);
    assert_eq!(fs::read(disk.join("before")).expect("read"), vec![42; 300_000]);
    run("git init -q", &[&disk.join("project")]);
    for number in 0..200u32 {
        fs::write(disk.join(format!("project/{number}")), number.to_le_bytes().repeat(700)).expect("written");
    }
    let git = |arguments: &str| run(&format!("git -c user.name=a -c user.email=a@b {arguments}"), &[]);
    git(&format!("-C {} add .", disk.join("project").display()));
    git(&format!("-C {} commit -q -m one", disk.join("project").display()));
    fs::remove_file(disk.join("project/7")).expect("removed");
    let marked = b"a line that is looked for on the disk itself\n".repeat(2000);
    fs::write(disk.join("marked"), &marked).expect("written");
    run("sync -f", &[&disk]);
    run("fstrim", &[&disk]);
    used.unmount();
    run("e2fsck -f -n", &[&at.join("disk")]);
    attached.detach();

    // The layout was never changed: it is a plain image.
    run("e2fsck -f -n", &[&image]);
    let after = Mounted::new(Kind::Ext4, &image, &plain);
    assert_eq!(fs::read(plain.join("marked")).expect("read"), marked);
    run(&format!("git -C {} fsck --strict", plain.join("project").display()), &[]);
    assert!(!plain.join("project/7").exists());
    // (Mounting it has changed it: what the volume remembers is no longer there.)
    after.unmount();

    let bytes = fs::read(&image).expect("read");
    let place = bytes.windows(45).position(|window| window == &marked[..45]).expect("it is on the disk");
    let file = File::options().write(true).open(&image).expect("opened");
    file.write_all_at(b"A", place as u64 + 10_000).expect("written");
    let attached = Attached::new(&image, &log, &key, &at);
    let found = fs::read(at.join("disk")).expect_err("refused");
    assert_eq!(found.raw_os_error(), Some(libc::EIO));
    let bad: Vec<u64> = attached.volume.scrub(0..(96 << 20) / 4096).expect("scrubbed");
    assert!(bad.contains(&((place as u64 + 10_000) / 4096)), "{bad:?}");
    attached.detach();
}
