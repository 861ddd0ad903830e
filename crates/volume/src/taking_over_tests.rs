//! Taking a disk over, moving it to another log, and giving it back: cut off at every write of either device.

use crate::layout::BLOCK_BYTES;
use crate::{Options, Plan, Volume, VolumeError, VolumeKey};
use holdfast_log::simulated_device::{Devices, Failure, Unflushed};

const BLOCKS: u64 = 600;
const DISK: usize = 0;
const LOG: usize = 1;
const SECOND: usize = 2;
const BYTES: u64 = BLOCK_BYTES as u64;

fn key(secret: u8) -> VolumeKey {
    VolumeKey::new(&[secret; 32], &[secret; 16])
}

fn bytes(salt: u64) -> Vec<u8> {
    (0..BLOCKS).flat_map(|block| [(block * 7 + salt).to_le_bytes(); BLOCK_BYTES / 8].concat()).collect()
}

/// A disk with data, and two empty logs.
fn devices() -> Devices {
    let devices = Devices::new();
    devices.add_with("disk", bytes(1));
    let log = Plan::new(BLOCKS * BYTES, Some(1 << 20)).bytes as usize;
    devices.add("log", log);
    devices.add("second log", log);
    devices
}

fn format(devices: &Devices, log: usize, key: &VolumeKey) {
    let (disk, log) = (devices.device(DISK), devices.device(log));
    Volume::format(&*disk, &*log, key, Some(1 << 20)).expect("formatted");
}

fn adopt(devices: &Devices, progress: &dyn Fn(u64, u64) -> bool) -> Result<bool, VolumeError> {
    Volume::adopt(devices.device(DISK), devices.device(LOG), &key(1), [1; 16], None, progress)
}

fn open(devices: &Devices, log: usize, secret: u8) -> Result<Volume, VolumeError> {
    let (disk, log) = (devices.device(DISK), devices.device(log));
    Volume::open(disk, log, &key(secret), Options::default(), None, [2; 16]).map(|(volume, _)| volume)
}

#[track_caller]
fn has(volume: &Volume, expected: &[u8], what: &str) {
    let mut found = vec![0; expected.len()];
    volume.read(0, &mut found).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found == expected, "{what}");
}

/// Calls `check` for a crash after each event, with unflushed writes kept, lost or torn in turn; with
/// `HOLDFAST_EVERY_CRASH=1`, all three.
fn each_crash(devices: &Devices, from: usize, mut check: impl FnMut(Devices, String)) {
    let is_thorough = holdfast_testing::setting("HOLDFAST_EVERY_CRASH", 0) > 0;
    for events in from..=devices.events() {
        let all = [Unflushed::Kept, Unflushed::Lost, Unflushed::Torn(events as u64)];
        for unflushed in if is_thorough { &all[..] } else { &all[events % 3..][..1] } {
            let what = format!("{events} events, {unflushed:?}");
            check(devices.crashed(events, *unflushed), what);
        }
    }
}

/// Proves: an adoption that any crash interrupts never counts as complete, can be continued, and ends with
/// the disk as it is.
#[test]
fn taking_over_is_cut_off_anywhere() {
    let devices = devices();
    format(&devices, LOG, &key(1));
    let begun = devices.events();
    assert!(!adopt(&devices, &|done, _| done < 256).expect("no error"));
    assert!(adopt(&devices, &|_, _| true).expect("adopted"));
    let mut unfinished = 0;
    each_crash(&devices, begun, |crashed, what| {
        match open(&crashed, LOG, 1) {
            Ok(volume) => return has(&volume, &bytes(1), &what),
            Err(VolumeError::NotAdopted { done, .. }) => assert!(done < BLOCKS),
            Err(error) => panic!("{what}: {error}"),
        }
        unfinished += 1;
        assert!(adopt(&crashed, &|_, _| true).unwrap_or_else(|error| panic!("{what}: {error}")), "{what}");
        has(&open(&crashed, LOG, 1).expect("opens"), &bytes(1), &what);
    });
    assert!(unfinished > 10);
}

/// Proves: if a disk was used while its adoption was interrupted, at its beginning or at any sampled block,
/// the adoption begins again. A failing device is an error, and the next attempt succeeds.
#[test]
fn a_disk_that_changed_in_between() {
    for changed in [0, 40, 255] {
        let devices = devices();
        format(&devices, LOG, &key(1));
        assert!(!adopt(&devices, &|done, _| done < 256).expect("no error"));
        let look = Volume::look(devices.device(LOG), &key(1), None).expect("looked");
        assert_eq!((look.adopted, look.header.blocks), (256, BLOCKS));
        devices.tamper(DISK, |disk| disk[changed * BLOCK_BYTES] ^= 1);
        for failure in [Failure::Writes(LOG), Failure::Flushes(DISK), Failure::Flushes(LOG)] {
            devices.fail(failure);
            assert!(adopt(&devices, &|_, _| true).is_err());
            devices.heal();
        }
        let begun_at = std::cell::Cell::new(None);
        let progress = |done, _| {
            begun_at.set(begun_at.get().or(Some(done)));
            true
        };
        assert!(adopt(&devices, &progress).expect("adopted"));
        assert_eq!(begun_at.get(), Some(0), "block {changed}");
        has(&open(&devices, LOG, 1).expect("opens"), &devices.bytes(DISK), "as it is");
    }
}

/// Proves: a move to another log that any crash interrupts leaves the volume with the first log whole, and
/// can be continued; discarded blocks stay discarded.
#[test]
fn moving_is_cut_off_anywhere() {
    let devices = devices();
    format(&devices, LOG, &key(1));
    assert!(adopt(&devices, &|_, _| true).expect("adopted"));
    let mut expected = bytes(1);
    let first = open(&devices, LOG, 1).expect("opens");
    first.write(9 * BYTES, &[9; 3 * BLOCK_BYTES]).expect("written");
    first.discard(300 * BYTES, 8 * BYTES).expect("discarded");
    first.close().expect("closed");
    drop(first);
    expected[9 * BLOCK_BYTES..12 * BLOCK_BYTES].fill(9);
    expected[300 * BLOCK_BYTES..308 * BLOCK_BYTES].fill(0);
    format(&devices, SECOND, &key(2));
    let begun = devices.events();
    let relocate = |devices: &Devices, progress: &dyn Fn(u64, u64) -> bool| {
        let before = open(devices, LOG, 1)?;
        let (disk, log) = (devices.device(DISK), devices.device(SECOND));
        Volume::adopt(disk, log, &key(2), [3; 16], Some(&before), progress)
    };
    assert!(!relocate(&devices, &|done, _| done < 256).expect("no error"));
    assert!(relocate(&devices, &|_, _| true).expect("moved"));
    each_crash(&devices, begun, |crashed, what| {
        let before = open(&crashed, LOG, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
        has(&before, &expected, &what);
        drop(before);
        assert!(relocate(&crashed, &|_, _| true).unwrap_or_else(|error| panic!("{what}: {error}")), "{what}");
        has(&open(&crashed, SECOND, 2).expect("opens"), &expected, &what);
    });
}

/// Proves: a released disk alone has the volume's content, also where blocks were discarded; if releasing is
/// interrupted anywhere, the volume is unchanged.
#[test]
fn giving_back_is_cut_off_anywhere() {
    let devices = devices();
    format(&devices, LOG, &key(1));
    assert!(adopt(&devices, &|_, _| true).expect("adopted"));
    let mut expected = bytes(1);
    let begun = devices.events();
    let volume = open(&devices, LOG, 1).expect("opens");
    volume.discard(100 * BYTES, 300 * BYTES).expect("discarded");
    volume.write(200 * BYTES, &[7; 2 * BLOCK_BYTES]).expect("written");
    volume.flush().expect("flushed");
    let flushed = devices.events();
    expected[100 * BLOCK_BYTES..400 * BLOCK_BYTES].fill(0);
    expected[200 * BLOCK_BYTES..202 * BLOCK_BYTES].fill(7);
    assert!(!volume.release(&|done, _| done < 256).expect("no error"));
    assert!(volume.release(&|_, _| true).expect("released"));
    assert!(devices.bytes(DISK) == expected);
    drop(volume);
    assert!(flushed > begun);
    each_crash(&devices, flushed, |crashed, what| {
        let volume = open(&crashed, LOG, 1).unwrap_or_else(|error| panic!("{what}: {error}"));
        has(&volume, &expected, &what);
        assert!(volume.release(&|_, _| true).expect("released"));
        assert!(crashed.bytes(DISK) == expected, "{what}");
    });
}

/// Proves: adopting an empty volume does not read the disk; it has only zeroes and what is written to it,
/// also after a crash.
#[test]
fn an_empty_disk_is_not_read() {
    let devices = devices();
    format(&devices, LOG, &key(1));
    devices.fail(Failure::Reads(DISK, 0..u64::MAX));
    let (disk, log) = (devices.device(DISK), devices.device(LOG));
    assert!(Volume::adopt_empty(disk, log, &key(1), [1; 16], &|_, _| true).expect("adopted"));
    let mut expected = vec![0; (BLOCKS * BYTES) as usize];
    let volume = open(&devices, LOG, 1).expect("opens");
    has(&volume, &expected, "at first");
    devices.heal();
    volume.write(50 * BYTES, &[5; BLOCK_BYTES]).expect("written");
    volume.flush().expect("flushed");
    drop(volume);
    expected[50 * BLOCK_BYTES..51 * BLOCK_BYTES].fill(5);
    let crashed = devices.crashed(devices.events(), Unflushed::Lost);
    has(&open(&crashed, LOG, 1).expect("opens"), &expected, "after a crash");
}

/// Proves: holes of a sparse image are not read when it is adopted, read as zeroes whatever the disk contains
/// there later, and are holes again when the disk is released. If the image was written to while its adoption
/// was interrupted, also where a hole was, the adoption begins again.
#[test]
fn a_sparse_image() {
    use holdfast_log::device::{Device, FileDevice};
    use std::os::unix::fs::{FileExt, MetadataExt};
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let image = std::fs::File::create_new(&path).expect("made");
    image.set_len(BLOCKS * BYTES).expect("sized");
    image.write_all_at(&[1; 3 * BLOCK_BYTES], 0).expect("written");
    image.write_all_at(&[2; 16 * BLOCK_BYTES], 400 * BYTES).expect("written");
    image.sync_all().expect("synced");
    let used = image.metadata().expect("it is there").blocks();
    assert!(used < BLOCKS * BYTES / 512 / 2, "the file system here makes holes");
    let devices = devices();
    let disk =
        || -> std::sync::Arc<dyn Device> { std::sync::Arc::new(FileDevice::open(&path).expect("opens")) };
    Volume::format(&*disk(), &*devices.device(LOG), &key(1), Some(1 << 20)).expect("formatted");
    let adopt = |progress: &dyn Fn(u64, u64) -> bool| {
        Volume::adopt(disk(), devices.device(LOG), &key(1), [1; 16], None, progress).expect("no error")
    };
    assert!(!adopt(&|done, _| done < 256));
    // Block 40 was a hole that is adopted already.
    image.write_all_at(&[3; BLOCK_BYTES], 40 * BYTES).expect("written");
    let begun_at = std::cell::Cell::new(None);
    assert!(adopt(&|done, _| {
        begun_at.set(begun_at.get().or(Some(done)));
        true
    }));
    assert_eq!(begun_at.get(), Some(0));
    let whole = std::fs::read(&path).expect("read");
    let open = || {
        let opened = Volume::open(disk(), devices.device(LOG), &key(1), Options::default(), None, [2; 16]);
        opened.expect("opens").0
    };
    has(&open(), &whole, "as it is");
    image.write_all_at(&[9; BLOCK_BYTES], 300 * BYTES).expect("a lie");
    let volume = open();
    has(&volume, &whole, "what was a hole is zeroes");
    volume.write(500 * BYTES, &[5; BLOCK_BYTES]).expect("written");
    assert!(volume.release(&|_, _| true).expect("released"));
    drop(volume);
    let mut expected = whole;
    expected[500 * BLOCK_BYTES..501 * BLOCK_BYTES].fill(5);
    assert!(std::fs::read(&path).expect("read") == expected);
    let blocks = image.metadata().expect("it is there").blocks();
    assert!(blocks <= used + 3 * 128, "{blocks} sectors, {used} before: holes have stayed");
}
