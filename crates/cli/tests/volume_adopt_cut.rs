//! Power cuts while a card is adopted, through the real command. The card, its sidecar and the state directory are on
//! three disks whose every write and flush is recorded. Of what was not flushed, each disk keeps whole writes, some
//! sectors, or nothing, and the file systems on them recover by their journals. As root, with e2fsprogs.

use crate::common;
use crate::volume_adopt::{Workspace, content, read};

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
/// The disks by their numbers: each is a file `disk` in the directory of its name. The file systems of the last two are
/// mounted beside that file.
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

/// The contents of the three disks.
type Images = Vec<Vec<u8>>;

fn fresh(workspace: &Workspace) -> Images {
    workspace.make_fat("plain", 0, CARD_BYTES, 1);
    fs::create_dir_all(workspace.path("source/photos")).expect("made");
    fs::write(workspace.path("source/large"), content(1, 2_000_000)).expect("written");
    fs::write(workspace.path("source/photos/one.jpg"), content(2, 40_000)).expect("written");
    workspace.mtools("mcopy", "plain", 0, &["-s", "source/large", "source/photos", "::"]);
    let formatted = |name: &str, mib: u64| {
        let path = workspace.path(&format!("{name}.img"));
        File::create(&path).expect("made").set_len(mib * MIB).expect("sized");
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        run(Command::new("mkfs.ext4")
            .args(["-q", "-F", "-b", "4096", "-J", "size=4", "-E", lazy])
            .arg(&path));
        fs::read(path).expect("read")
    };
    vec![fs::read(workspace.path("plain")).expect("read"), formatted("side", 96), formatted("state", 16)]
}

/// Writes the contents of the disks into files, leaving holes for zeroes.
fn lay(workspace: &Workspace, images: &Images) {
    for (name, image) in DISKS.iter().zip(images) {
        let path = workspace.path(name).join("disk");
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

/// Mounted file systems; dropping this unmounts them.
struct Attached<'a> {
    workspace: &'a Workspace,
    devices: Vec<String>,
}

impl Attached<'_> {
    fn new(workspace: &Workspace) -> Attached<'_> {
        let mut attached = Attached { workspace, devices: Vec::new() };
        for name in &DISKS[1..] {
            let losetup = ["--show", "--direct-io=on", "-f"];
            let device = run(Command::new("losetup").args(losetup).arg(workspace.path(name).join("disk")));
            attached.devices.push(device.trim().to_owned());
            run(Command::new("mount").arg(device.trim()).arg(workspace.path(&format!("{name}.at"))));
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
            let at = self.workspace.path(&format!("{name}.at"));
            eventually("it is unmounted", || done("umount", &[&at]));
            eventually("the loop device is free", || done("losetup", &[Path::new("-d"), Path::new(device)]));
        }
    }
}

/// Runs the adoption on recorded disks; returns all events, and the event after which it was acknowledged.
fn recorded(workspace: &Workspace, images: &Images) -> (Trace, usize) {
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
        let _ = fs::remove_file(workspace.path(name).join("disk"));
        let disk = Arc::new(Recorded(devices.device(devices.add_with(name, image.clone()))));
        sessions.push(mount_disk(disk, "disk", &workspace.path(name), &options, || ()).expect("mounted"));
    }
    let attached = Attached::new(workspace);
    run(&mut workspace.volume(&ADOPT));
    let acknowledged = devices.mark();
    drop(attached);
    for session in sessions {
        eventually("the disk is given back", || session.unmount(UnmountMode::Gently).is_ok());
        session.wait();
    }
    (devices.trace(), acknowledged)
}

/// The number of cuts after which nothing had begun, the adoption continued, or the card was whole.
#[derive(Default, Debug)]
struct CutCounts {
    not_begun: u32,
    continued: u32,
    whole: u32,
}

/// Whether the card can be mounted as it is now; if so, its content must be right.
fn is_adopted(workspace: &Workspace, what: &str) -> bool {
    let mut child = workspace
        .volume(&[&["mount"], &MOUNT[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut refused = false;
    eventually("it is mounted or refused", || {
        refused = child.try_wait().expect("a child").is_some();
        refused || workspace.is_mounted("alice")
    });
    if refused {
        return false;
    }
    let (large, photo) =
        (read(&workspace.path("alice/large")), read(&workspace.path("alice/photos/one.jpg")));
    holdfast_testing::unmount(&workspace.path("alice"));
    assert!(child.wait().expect("ended").success(), "{what}");
    assert!(large.expect("hers") == content(1, 2_000_000), "{what}: alice's file");
    assert!(photo.is_err(), "{what}: bob's file is alice's");
    true
}

/// Checks the disks as a power cut left them.
fn check(workspace: &Workspace, card: &[u8], was_acknowledged: bool, what: &str, found: &mut CutCounts) {
    let has_log = workspace.path("side.at/card.d/log").exists();
    let before = is_adopted(workspace, what);
    assert!(before || !was_acknowledged, "{what}: it had been adopted, and that was said");
    let is_as_it_was = || fs::read(workspace.path("card/disk")).expect("read") == card;
    assert!(before || is_as_it_was(), "{what}: the card has changed");
    let output = workspace.volume(&ADOPT).stdin(Stdio::null()).output().expect("runs");
    let printed = text(&output);
    match output.status.code() {
        Some(0) => {}
        Some(73) if before && printed.contains("is adopted already, with this sidecar") => {}
        _ => panic!("{what}: the same command says {}: {printed}", output.status),
    }
    assert!(before || is_as_it_was(), "{what}: the card has changed");
    assert!(is_adopted(workspace, what), "{what}: the command ended well, and the card cannot be mounted");
    match (before, has_log) {
        (true, _) => found.whole += 1,
        (false, true) => found.continued += 1,
        (false, false) => found.not_begun += 1,
    }
}

/// Cuts the power at some moments of the recording. Returns the states in which the card was not adopted yet.
fn cut(
    workspace: &Workspace,
    trace: &Trace,
    acknowledged: usize,
    moments: u64,
    seed: u64,
    found: &mut CutCounts,
) -> Vec<Images> {
    assert!(
        !trace.events.iter().any(|event| matches!(event, Event::Write { device: 0, .. })),
        "the card was written to"
    );
    let card = &trace.before[0];
    let mut random = Random::new(seed);
    // One moment in each of equal parts of the recording: half of them anywhere, half right after or before a flush,
    // where states become durable.
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
        lay(workspace, &images);
        let attached = Attached::new(workspace);
        let was_whole = found.whole;
        check(workspace, card, moment.events() > acknowledged, &what, found);
        drop(attached);
        if found.whole == was_whole {
            left.push(images);
        }
    }
    left
}

/// Proves: whenever the power is cut while a card is adopted, or while an interrupted adoption continues, the card's
/// bytes are what they were. Either it is adopted whole, or it cannot be mounted and the same command adopts it. Once
/// the command has said that it is adopted, it is.
#[test]
fn power_cuts() {
    let folders = ["alice", "card", "side", "state", "side.at", "state.at"];
    let workspace = Workspace::with_state(&folders, "state.at");
    let (moments, seed) = (setting("HOLDFAST_CUTS", 6), setting("HOLDFAST_SEED", 1));
    let mut found = CutCounts::default();
    let (trace, acknowledged) = recorded(&workspace, &fresh(&workspace));
    let left = cut(&workspace, &trace, acknowledged, moments, seed, &mut found);
    drop(trace);
    // A second cut, while the adoption continues after the first.
    let images = left.last().expect("some were not whole yet");
    let (trace, acknowledged) = recorded(&workspace, images);
    cut(&workspace, &trace, acknowledged, moments / 2, seed + 1, &mut found);
    assert!(found.not_begun > 0 && found.continued > 0 && found.whole > 0, "{found:?}");
    eprintln!("{found:?}");
}
