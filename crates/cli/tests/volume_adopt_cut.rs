//! Power cuts while a card is adopted, through the real command: card, sidecar and what the machine remembers are on
//! three disks whose every write and flush is recorded; of what was not flushed each disk keeps whole writes, some
//! sectors, or nothing, and the file systems on them are what their journals make of that. As root, with e2fsprogs.

use crate::common;
use crate::volume_adopt::{Desk, content, read};

use common::{eventually, run, setting, text};
use holdfast_fuse::{Options as MountOptions, UnmountMode, mount_disk};
use holdfast_log::device::Device;
use holdfast_log::simulated_device::{Devices, Event, Trace};
use holdfast_sim::random::Random;
use holdfast_sim::volume::crash::Moment;
use holdfast_volume::Disk;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const CARD_BYTES: u64 = 36 * MIB;
const PIECE: usize = 1 << 20;
/// The disks, in the order of their numbers: each is a file `disk` in the directory of its name; the file systems of the
/// last two are mounted beside it.
const DISKS: [&str; 3] = ["card", "side", "state"];
const ADOPT: [&str; 8] =
    ["adopt", "card/disk", "--sidecar", "side.at/card.d", "--user", "alice", "--owner", "photos=bob"];
const MOUNT: [&str; 6] = ["card/disk", "alice", "--sidecar", "side.at/card.d", "--user", "alice"];

/// A recorded device as a disk for the kernel.
struct Recorded(Arc<dyn Device>);

impl Disk for Recorded {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let zeroes = vec![0; PIECE];
        let mut at = offset;
        while at < offset + length {
            let count = PIECE.min((offset + length - at) as usize);
            self.0.write_at(at, &zeroes[..count])?;
            at += count as u64;
        }
        Ok(())
    }
}

/// What is on the three disks.
type Images = Vec<Vec<u8>>;

fn fresh(desk: &Desk) -> Images {
    desk.make_fat("plain", 0, CARD_BYTES, 1);
    fs::create_dir_all(desk.path("source/photos")).expect("made");
    fs::write(desk.path("source/large"), content(1, 2_000_000)).expect("written");
    fs::write(desk.path("source/photos/one.jpg"), content(2, 40_000)).expect("written");
    desk.mtools("mcopy", "plain", 0, &["-s", "source/large", "source/photos", "::"]);
    let formatted = |name: &str, mib: u64| {
        let path = desk.path(&format!("{name}.img"));
        File::create(&path).expect("made").set_len(mib * MIB).expect("sized");
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-J", "size=4", "-E", lazy])
            .arg(&path));
        fs::read(path).expect("read")
    };
    vec![fs::read(desk.path("plain")).expect("read"), formatted("side", 96), formatted("state", 16)]
}

/// Writes what is on the disks into files, without what is zero.
fn lay(desk: &Desk, images: &Images) {
    for (name, image) in DISKS.iter().zip(images) {
        let path = desk.path(name).join("disk");
        let _ = fs::remove_file(&path);
        let file = File::create(path).expect("made");
        file.set_len(image.len() as u64).expect("sized");
        for (at, piece) in
            image.chunks(4096).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
        {
            file.write_all_at(piece, at as u64 * 4096).expect("written");
        }
    }
}

/// File systems that are mounted, until dropped.
struct Attached<'a> {
    desk: &'a Desk,
    devices: Vec<String>,
}

impl Attached<'_> {
    fn new(desk: &Desk) -> Attached<'_> {
        let mut attached = Attached { desk, devices: Vec::new() };
        for name in &DISKS[1..] {
            let losetup = ["--show", "--direct-io=on", "-f"];
            let device = run(Command::new("losetup").args(losetup).arg(desk.path(name).join("disk")));
            attached.devices.push(device.trim().to_owned());
            run(Command::new("mount").arg(device.trim()).arg(desk.path(&format!("{name}.at"))));
        }
        attached
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let done = |program: &str, arguments: &[&Path]| {
            Command::new(program)
                .args(arguments)
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        for (name, device) in DISKS[1..].iter().zip(&self.devices) {
            let at = self.desk.path(&format!("{name}.at"));
            eventually("it is unmounted", || done("umount", &[&at]));
            eventually("the loop device is free", || done("losetup", &[Path::new("-d"), Path::new(device)]));
        }
    }
}

/// Runs the adoption on recorded disks: all that happened, and after which event it was acknowledged.
fn recorded(desk: &Desk, images: &Images) -> (Trace, usize) {
    let devices = Devices::new();
    let options = MountOptions {
        source: "a disk".into(),
        allow_other: false,
        read_only: false,
        no_exec: true,
        local_locks: false,
    };
    let mut sessions = Vec::new();
    for (name, image) in DISKS.iter().zip(images) {
        let _ = fs::remove_file(desk.path(name).join("disk"));
        let disk = Arc::new(Recorded(devices.device(devices.add_with(name, image.clone()))));
        sessions.push(mount_disk(disk, "disk", &desk.path(name), &options, || ()).expect("mounted"));
    }
    let attached = Attached::new(desk);
    run(&mut desk.volume(&ADOPT));
    let acknowledged = devices.mark();
    drop(attached);
    for session in sessions {
        eventually("the disk is given back", || session.unmount(UnmountMode::Gently).is_ok());
        session.wait();
    }
    (devices.trace(), acknowledged)
}

/// What was found after cuts: how often nothing had begun, it went on, it was whole.
#[derive(Default, Debug)]
struct Found {
    anew: u32,
    on: u32,
    whole: u32,
}

/// Whether the card can be mounted as it is now; then what is on it is right.
fn is_adopted(desk: &Desk, what: &str) -> bool {
    let mut child = desk
        .volume(&[&["mount"], &MOUNT[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut refused = false;
    eventually("it is mounted or refused", || {
        refused = child.try_wait().expect("a child").is_some();
        refused || desk.is_mounted("alice")
    });
    if refused {
        return false;
    }
    let (large, photo) = (read(&desk.path("alice/large")), read(&desk.path("alice/photos/one.jpg")));
    holdfast_testing::unmount(&desk.path("alice"));
    assert!(child.wait().expect("ended").success(), "{what}");
    assert!(large.expect("hers") == content(1, 2_000_000), "{what}: alice's file");
    assert!(photo.is_err(), "{what}: bob's file is alice's");
    true
}

/// After a power cut, which left the disks as they lie there.
fn check(desk: &Desk, card: &[u8], was_acknowledged: bool, what: &str, found: &mut Found) {
    let has_log = desk.path("side.at/card.d/log").exists();
    let before = is_adopted(desk, what);
    assert!(before || !was_acknowledged, "{what}: it had been adopted, and that was said");
    let is_as_it_was = || fs::read(desk.path("card/disk")).expect("read") == card;
    assert!(before || is_as_it_was(), "{what}: the card has changed");
    let output = desk.volume(&ADOPT).stdin(Stdio::null()).output().expect("runs");
    let said = text(&output);
    match output.status.code() {
        Some(0) => {}
        Some(73) if before && said.contains("is adopted already, with this sidecar") => {}
        _ => panic!("{what}: the same command says {}: {said}", output.status),
    }
    assert!(before || is_as_it_was(), "{what}: the card has changed");
    assert!(is_adopted(desk, what), "{what}: the command ended well, and the card cannot be mounted");
    match (before, has_log) {
        (true, _) => found.whole += 1,
        (false, true) => found.on += 1,
        (false, false) => found.anew += 1,
    }
}

/// Cuts the power at some moments of what was recorded. States of which nothing is known yet come back.
fn cut(
    desk: &Desk,
    trace: &Trace,
    acknowledged: usize,
    moments: u64,
    seed: u64,
    found: &mut Found,
) -> Vec<Images> {
    assert!(
        !trace.events.iter().any(|event| matches!(event, Event::Write { device: 0, .. })),
        "the card was written to"
    );
    let card = &trace.before[0];
    let mut random = Random::new(seed);
    // One moment in each of as many parts of what happened. Half of them anywhere, half right after a flush or right before:
    // that is where things are settled.
    let count = trace.events.len() as u64;
    let mut chosen: BTreeSet<usize> = BTreeSet::new();
    for part in 0..moments {
        let (from, to) =
            (count * part / moments, (count * (part + 1) / moments).max(count * part / moments + 1));
        let is_flush = |at: &u64| matches!(trace.events[*at as usize], Event::Flush { .. });
        let flushes: Vec<u64> = (from..to).filter(is_flush).collect();
        let at = match random.chance(50) && !flushes.is_empty() {
            true => random.pick(&flushes) + random.below(2),
            false => from + 1 + random.below(to - from),
        };
        chosen.insert(at as usize);
    }
    let mut moment = Moment::first(trace);
    let mut left = Vec::new();
    for event in &trace.events {
        moment.step(event);
        if !chosen.contains(&moment.events()) {
            continue;
        }
        let (images, story) = moment.one(&mut random, 16);
        let what =
            format!("seed {seed}, after {} of {} events ({story})", moment.events(), trace.events.len());
        lay(desk, &images);
        let attached = Attached::new(desk);
        let was_whole = found.whole;
        check(desk, card, moment.events() > acknowledged, &what, found);
        drop(attached);
        if found.whole == was_whole {
            left.push(images);
        }
    }
    left
}

/// Proves: whenever the power is cut while a card is adopted, or while an adoption goes on that was cut before, the card's
/// bytes are what they were; it is adopted whole, or nobody mounts it and the same command adopts it; and once the command
/// has said that it is adopted, it is.
#[test]
fn power_cuts() {
    let folders = ["alice", "card", "side", "state", "side.at", "state.at"];
    let desk = Desk::with_state(&folders, "state.at");
    let (moments, seed) = (setting("HOLDFAST_CUTS", 6), setting("HOLDFAST_SEED", 1));
    let mut found = Found::default();
    let (trace, acknowledged) = recorded(&desk, &fresh(&desk));
    let left = cut(&desk, &trace, acknowledged, moments, seed, &mut found);
    drop(trace);
    // And once more, while it goes on from where it was cut.
    let images = left.last().expect("some were not whole yet");
    let (trace, acknowledged) = recorded(&desk, images);
    cut(&desk, &trace, acknowledged, moments / 2, seed + 1, &mut found);
    assert!(found.anew > 0 && found.on > 0 && found.whole > 0, "{found:?}");
    eprintln!("{found:?}");
}
