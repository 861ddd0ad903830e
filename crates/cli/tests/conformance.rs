//! The file interface as a whole, through the kernel, on two mounts of one file system: any sequence of operations on a
//! file, sparse files, names of every kind, and what programs can do with removed files and directories.
//!
//! Long runs are separate commands: see `docs/internals/conformance.md`.

use crate::common;

use common::{World, eventually, run, setting};
use rustix::fs::SeekFrom;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// A program that another test starts closes copies of this process's descriptors, and each close publishes.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Any sequence of reads, writes, mapped reads and writes, truncations, holes, copies and syncs has the outcome it has
/// on an array, also when the file is closed on one mount and used on the other. The mount where it is not open shows
/// exactly what was last closed or synced.
#[test]
fn a_file_on_two_mounts_is_an_array() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(&["anna", "ben"]);
    let directories = [world.mount("anna").join("team"), world.mount("ben").join("team")];
    // In a process of its own: programs that other tests start would close, and so publish, what is open here.
    let mut alone = Command::new(std::env::current_exe().expect("this program"));
    alone.args(["--exact", "--ignored", "--nocapture", "conformance::exercise_in_this_process"]);
    let printed = run(alone.env(EXERCISED, std::env::join_paths(directories).expect("no colon in them")));
    assert!(printed.contains("1 passed"), "{printed}");
}

/// The directories, for the process that exercises them.
const EXERCISED: &str = "HOLDFAST_EXERCISED";

#[test]
#[ignore = "a_file_on_two_mounts_is_an_array runs it, and says where"]
fn exercise_in_this_process() {
    let directories = std::env::var_os(EXERCISED).expect("the directories to exercise");
    let directories: Vec<_> = std::env::split_paths(&directories).collect();
    for seed in 1..=setting("HOLDFAST_SEEDS", 4) {
        holdfast_exercise::run(&directories, seed, 150).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// A file of 4 GiB with data at its ends and in between stores only its data, shows its holes, and reads the same on
/// another mount. A hole that is truncated and extended again is zeroes.
#[test]
fn four_gigabytes_of_hole() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    const SIZE: u64 = 4 << 30;
    let mut world = World::new(&["anna", "ben"]);
    let path = world.mount("anna").join("team/sparse");
    let elsewhere = world.mount("ben").join("team/sparse");
    // Offsets that are not at the end of a page, and in several chunks.
    let pieces: [(u64, Vec<u8>); 3] =
        [(0, b"begin".to_vec()), ((2 << 30) - 7, vec![7; 100_000]), (SIZE - 3, b"end".to_vec())];
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("made");
    for (at, bytes) in pieces.iter().rev() {
        file.write_all_at(bytes, *at).expect("written");
    }
    let check = |file: &File| {
        assert_eq!(file.metadata().expect("fstat").len(), SIZE);
        assert!(file.metadata().expect("fstat").blocks() < 1 << 20, "holes take no blocks");
        for (at, bytes) in &pieces {
            let mut seen = vec![1; bytes.len()];
            file.read_exact_at(&mut seen, *at).expect("read");
            assert!(seen == *bytes, "at {at}");
        }
        let mut hole = vec![1; 1 << 20];
        for at in [1 << 20, (2 << 30) + 200_000, SIZE - (2 << 20)] {
            file.read_exact_at(&mut hole, at).expect("read");
            assert!(hole.iter().all(|byte| *byte == 0), "at {at}");
        }
        // Each hole ends where data begins, within a few pages.
        let mut at = 0;
        for (begin, bytes) in &pieces {
            let data = rustix::fs::seek(file, SeekFrom::Data(at)).expect("there is data");
            assert!((at..=*begin).contains(&data) && begin - data < 1 << 16, "data at {data}, not {begin}");
            at = rustix::fs::seek(file, SeekFrom::Hole(*begin)).expect("there is a hole");
            let end = begin + bytes.len() as u64;
            assert!((end..=SIZE).contains(&at) && at - end < 1 << 16, "a hole at {at}, not {end}");
        }
        assert_eq!(at, SIZE, "the end counts as a hole");
    };
    check(&file);
    file.sync_all().expect("synced");
    check(&file);
    let other = File::open(&elsewhere).expect("opened");
    check(&other);
    drop(other);
    file.set_len(SIZE - 1).expect("cut");
    file.set_len(SIZE).expect("grown");
    drop(file);
    let mut last = [9; 3];
    File::open(&elsewhere).and_then(|file| file.read_exact_at(&mut last, SIZE - 3)).expect("read");
    assert_eq!(&last, b"en\0");
}

/// Names are bytes: each name that Unix allows can be made, listed, found, renamed and removed on either mount, and no
/// two of them are the same.
#[test]
fn names_of_every_kind() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(&["anna", "ben"]);
    let here = world.mount("anna").join("team/names");
    let there = world.mount("ben").join("team/names");
    fs::create_dir(&here).expect("made");
    let mut names: BTreeSet<Vec<u8>> = BTreeSet::new();
    for byte in (1..=255).filter(|byte| *byte != b'/') {
        if byte != b'.' {
            names.insert(vec![byte]);
        }
        names.insert(vec![b'x', byte, b'y']);
    }
    let kinds: [&[u8]; 20] = [
        b"...",
        b". ",
        b".hidden",
        b"-rf",
        b"--help",
        b"a\nb\n",
        b"\n",
        b"$(id) `id` ; * ? [a]",
        b"\\",
        b"C:\\con",
        b"aux",
        b"\xff\xfe",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        "\u{202e}txt.exe".as_bytes(),
        b".fuse_hidden0000000100000001",
        b"Case",
        b"case",
    ];
    names.extend(kinds.map(<[u8]>::to_vec));
    for byte in [b'.', b'n', b'\n', 0x80, 0xff] {
        names.insert(vec![byte; 255]);
    }
    // In threads, as each rename is a round trip to the server.
    let with_each = |names: &[&[u8]], what: &(dyn Fn(&OsStr) + Sync)| {
        std::thread::scope(|threads| {
            for part in names.chunks(names.len() / 8 + 1) {
                threads.spawn(move || part.iter().for_each(|name| what(OsStr::from_bytes(name))));
            }
        });
    };
    let all: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    with_each(&all, &|name| fs::write(here.join(name), name.as_bytes()).expect("made"));
    let listed = |directory: &Path| -> BTreeSet<Vec<u8>> {
        let entries = fs::read_dir(directory).expect("opened");
        entries.map(|entry| entry.expect("an entry").file_name().into_vec()).collect()
    };
    assert!(listed(&here) == names);
    assert!(listed(&there) == names);
    with_each(&all, &|name| assert_eq!(fs::read(there.join(name)).expect("found"), name.as_bytes()));
    let too_long = here.join(OsStr::from_bytes(&[b'n'; 256]));
    assert_eq!(fs::write(too_long, "").expect_err("256 bytes").raw_os_error(), Some(36));
    // Each takes the place of a name of another kind, also for a directory and for a link's target.
    with_each(&kinds, &|name| {
        let after = |word: &[u8]| OsString::from_vec([word, name.as_bytes()].concat());
        let (moved, link) = (after(b"moved "), after(b"link "));
        fs::remove_file(there.join(name)).expect("removed");
        // A listing of this thread is used for a second.
        eventually("it is gone on the other mount", || !here.join(name).exists());
        fs::create_dir(here.join(name)).expect("made");
        fs::write(there.join(name).join(name), "below").expect("made");
        fs::rename(here.join(name), here.join(&moved)).expect("renamed");
        fs::remove_file(here.join(&moved).join(name)).expect("removed");
        fs::remove_dir(there.join(&moved)).expect("removed");
        std::os::unix::fs::symlink(name, here.join(&link)).expect("linked");
        assert_eq!(fs::read_link(there.join(&link)).expect("read").as_os_str(), name);
        fs::remove_file(there.join(&link)).expect("removed");
    });
}

/// A program that is in a directory, or has a FIFO or a file open, that another program on this machine removed: the
/// directory is empty and refuses new names, and descriptors work, as on any local file system.
#[test]
fn what_is_held_outlives_its_name() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut world = World::new(&["anna"]);
    let base = world.mount("anna").join("anna");
    let directory = base.join("directory");
    fs::create_dir(&directory).expect("made");
    let held = File::open(&directory).expect("opened");
    let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    fs::remove_dir(&directory).expect("removed");
    assert_eq!(held.metadata().expect("fstat").nlink(), 0);
    held.set_permissions(fs::Permissions::from_mode(0o700)).expect("fchmod");
    assert_eq!(held.metadata().expect("fstat").mode() & 0o7777, 0o700);
    assert_eq!(fs::read_dir(&through).expect("opened").count(), 0);
    let refused = fs::write(format!("{through}/new"), "x").expect_err("it is gone");
    assert_eq!(refused.raw_os_error(), Some(2));

    let fifo = base.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    let both = OpenOptions::new().read(true).write(true).open(&fifo).expect("opened");
    fs::remove_file(&fifo).expect("removed");
    assert_eq!(both.metadata().expect("fstat").nlink(), 0);

    let file = base.join("file");
    fs::write(&file, "held").expect("written");
    let held = File::open(&file).expect("opened");
    fs::remove_file(&file).expect("removed");
    let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held));
    fs::write(&through, "and written").expect("opened again");
    assert_eq!(fs::read(&through).expect("read"), b"and written");
    let mut bytes = [0; 11];
    held.read_exact_at(&mut bytes, 0).expect("read");
    assert_eq!(&bytes, b"and written");
}
