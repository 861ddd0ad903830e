//! A real ext4 on a protected volume, crashed at any write below the volume: the file system is whole after its journal
//! is replayed, and files that were synced have what was synced.

use holdfast_fuse::{Options as MountOptions, UnmountMode, mount_disk};
use holdfast_log::simulated_device::Devices;
use holdfast_sim::random::Random;
use holdfast_sim::volume::crash::Moment;
use holdfast_sim::volume::{DISK, content, key, order, pair};
use holdfast_testing::{ended, eventually, text};
use holdfast_volume::{BLOCK_BYTES, Options, Plan, Volume, VolumeError};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const DISK_BYTES: u64 = 24 << 20;
const RING_BYTES: u64 = 1 << 20;

/// Runs a command that ends with a path; returns its output, and whether it succeeded.
fn try_run(command: &str, path: &Path) -> (bool, String) {
    let output = ended(&mut split(command, path));
    (output.status.success(), text(&output))
}

fn run(command: &str, path: &Path) -> String {
    holdfast_testing::run(&mut split(command, path))
}

fn split(command: &str, path: &Path) -> Command {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words).arg(path);
    command
}

/// A file, its synced content, and the event after which it was synced.
struct Synced {
    name: String,
    bytes: Vec<u8>,
    at: usize,
}

/// Uses the file system in `directory`: many files, each written once and synced, and one that is overwritten in place.
fn used(directory: &Path, devices: &Devices, random: &mut Random) -> (Vec<Synced>, Vec<usize>) {
    let mut synced = Vec::new();
    let mut overwritten = Vec::new();
    let journal = File::create(directory.join("journal")).expect("made");
    for number in 0..25u64 {
        let name = format!("file{number}");
        let mut bytes: Vec<u8> =
            (0..1 + random.below(60)).flat_map(|at| content(number * 100 + at)).collect();
        bytes.truncate(bytes.len() - random.below(4000) as usize);
        let partial = directory.join("partial");
        let mut file = File::create(&partial).expect("made");
        file.write_all(&bytes).expect("written");
        file.sync_all().expect("synced");
        fs::rename(&partial, directory.join(&name)).expect("renamed");
        File::open(directory).expect("opened").sync_all().expect("synced");
        synced.push(Synced { name, bytes, at: devices.mark() });
        journal.write_all_at(&content(number), 0).expect("written");
        journal.sync_data().expect("synced");
        overwritten.push(devices.mark());
        // Unsynced work in between.
        fs::write(directory.join(format!("loose{}", number % 5)), vec![number as u8; 200_000])
            .expect("written");
        if number % 7 == 6 {
            fs::remove_file(directory.join("loose0")).expect("removed");
            run("fstrim", directory);
        }
    }
    (synced, overwritten)
}

#[test]
fn ext4_crashes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root has loop devices and mounts");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    let (image, at, tree) = (path("image"), path("at"), path("tree"));
    fs::create_dir(&at).expect("made");
    fs::create_dir(&tree).expect("made");
    File::create(&image).expect("made").set_len(DISK_BYTES).expect("sized");
    run("mkfs.ext4 -q -F -b 4096", &image);
    let devices = Devices::new();
    devices.record(false);
    devices.add_with("disk", fs::read(&image).expect("read"));
    devices.add("log", Plan::new(DISK_BYTES, Some(RING_BYTES)).bytes as usize);
    let (disk, log) = pair(&devices);
    Volume::format(&*disk, &*log, &key(), Some(RING_BYTES)).expect("formatted");
    assert!(Volume::adopt(disk.clone(), log.clone(), &key(), [1; 16], None, &|_, _| true).expect("adopted"));
    devices.forget();
    devices.record(true);
    let options = Options { candidates_max: 3, ..Options::default() };
    let (volume, _) = Volume::open(disk, log, &key(), options.clone(), None, [2; 16]).expect("opens");
    volume.start().expect("started");
    let volume = Arc::new(volume);
    let mount = MountOptions {
        source: "a disk".into(),
        allow_other: false,
        read_only: false,
        no_exec: true,
        local_locks: false,
    };
    let session = mount_disk(volume.clone(), "disk", &at, &mount, || ()).expect("mounted");
    let device = PathBuf::from(run("losetup --show --direct-io=on -f", &at.join("disk")).trim());
    run(&format!("mount {}", device.display()), &tree);
    let mut random = Random::new(11);
    let (synced, overwritten) = used(&tree, &devices, &mut random);
    // Loop devices release files late.
    eventually("umount", || try_run("umount", &tree).0);
    eventually("losetup -d", || try_run("losetup -d", &device).0);
    eventually("nobody uses it", || session.unmount(UnmountMode::Gently).is_ok());
    session.wait();
    volume.close().expect("closed");

    let trace = devices.trace();
    let checked = order::check_some(&trace, 5).unwrap_or_else(|error| panic!("{error}"));
    assert!(checked.written > 1000 && checked.stable > 100, "{checked:?}");
    let mut moment = Moment::first(&trace);
    let mut states = 0;
    let chosen: BTreeSet<usize> =
        (0..12).map(|_| 1 + random.below(trace.events.len() as u64) as usize).collect();
    for event in &trace.events {
        moment.step(event);
        if !chosen.contains(&moment.events()) {
            continue;
        }
        states += 1;
        let made = moment.states(&mut random, 12);
        let state = random.pick(&made);
        let what = format!("after {} events", moment.events());
        let (disk, log) = pair(&state.devices);
        let salt = [random.number() as u8; 16];
        let (volume, report) = Volume::open(disk, log, &key(), options.clone(), None, salt).expect("opens");
        for bad in &report.refused {
            assert!(state.torn[DISK].contains(&bad.number), "{what}: block {} was not torn", bad.number);
        }
        let mut whole = vec![0; DISK_BYTES as usize];
        for (block, bytes) in (0..).zip(whole.chunks_exact_mut(BLOCK_BYTES)) {
            match volume.read(block * BLOCK_BYTES as u64, bytes) {
                Ok(()) => {}
                Err(VolumeError::BadBlock { bad, .. }) => {
                    assert!(
                        report.refused.contains(&bad) || state.torn[DISK].contains(&block),
                        "{what}: {bad}"
                    );
                    // As a check of a file system does with a sector that cannot be read.
                    bytes.fill(0);
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
        fs::write(&image, &whole).expect("written");
        // Replaying the journal is all that it needs.
        try_run("e2fsck -y -E journal_only", &image);
        let (is_clean, said) = try_run("e2fsck -f -n", &image);
        assert!(is_clean, "{what}: {said}");
        let there: Vec<&Synced> = synced.iter().filter(|file| file.at < moment.events()).collect();
        let out = path("out");
        fs::create_dir(&out).expect("made");
        let mut commands = format!("dump /journal {}/journal\n", out.display());
        for file in &there {
            commands += &format!("dump /{} {}/{}\n", file.name, out.display(), file.name);
        }
        fs::write(path("commands"), commands).expect("written");
        run(&format!("debugfs -f {}", path("commands").display()), &image);
        for file in there {
            let found = fs::read(out.join(&file.name)).unwrap_or_default();
            assert!(found == file.bytes, "{what}: {} is not what was synced", file.name);
        }
        let number = overwritten.iter().filter(|at| **at < moment.events()).count();
        if number > 0 {
            let found = fs::read(out.join("journal")).expect("it was synced");
            let is_newest = [number - 1, number].iter().any(|number| found == content(*number as u64));
            assert!(is_newest, "{what}: what was synced in place last is not there");
        }
        fs::remove_dir_all(&out).expect("removed");
    }
    assert!(states > 5, "{states}");
}
