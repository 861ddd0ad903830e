//! What programs may rely on: the calls of the Unix file interface and their errors, through the kernel.

use crate::common;

use common::{World, run};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

#[track_caller]
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("this must fail").raw_os_error().expect("an error of the system")
}

/// Names: exclusive creation, links of both kinds, renames of every kind, removal, and the errors of each.
#[test]
fn names() {
    let mut world = World::new(&["anna"]);
    let base = world.mount("anna").join("anna");
    let at = |name: &str| base.join(name);
    fs::write(at("a"), "a").expect("written");
    assert_eq!(errno(OpenOptions::new().write(true).create_new(true).open(at("a"))), 17);
    assert_eq!(errno(fs::create_dir(at("a"))), 17);
    assert_eq!(errno(fs::read(at("none"))), 2);
    assert_eq!(errno(fs::read(at("a/below"))), 20);
    assert_eq!(errno(File::create(at(&"n".repeat(256)))), 36);
    fs::write(at(&"n".repeat(255)), "long").expect("255 bytes are a name");
    fs::write(base.join(std::ffi::OsStr::from_bytes(b"not utf-8 \xff")), "bytes")
        .expect("any bytes are a name");
    use std::os::unix::ffi::OsStrExt;

    fs::hard_link(at("a"), at("b")).expect("linked");
    assert_eq!(fs::metadata(at("b")).expect("stat").nlink(), 2);
    assert_eq!(fs::metadata(at("a")).expect("stat").ino(), fs::metadata(at("b")).expect("stat").ino());
    fs::write(at("b"), "through b").expect("written");
    assert_eq!(fs::read_to_string(at("a")).expect("read"), "through b");
    fs::remove_file(at("a")).expect("removed");
    assert_eq!(fs::metadata(at("b")).expect("stat").nlink(), 1);

    symlink("b", at("link")).expect("linked");
    assert_eq!(fs::read_to_string(at("link")).expect("followed"), "through b");
    assert_eq!(fs::read_link(at("link")).expect("read"), Path::new("b"));
    symlink("loop", at("loop")).expect("linked");
    assert_eq!(errno(fs::read(at("loop"))), 40);

    fs::create_dir_all(at("d/e")).expect("made");
    assert_eq!(errno(fs::remove_dir(at("d"))), 39);
    assert_eq!(errno(fs::rename(at("d"), at("d/e/f"))), 22);
    assert_eq!(errno(fs::rename(at("b"), at("d"))), 21);
    assert_eq!(errno(fs::rename(at("d"), at("b"))), 20);
    assert_eq!(errno(fs::remove_dir(at("b"))), 20);
    assert_eq!(errno(fs::remove_file(at("d"))), 21);
    fs::create_dir(at("empty")).expect("made");
    fs::rename(at("d"), at("empty")).expect("an empty directory is replaced");
    assert!(at("empty/e").is_dir());
    fs::write(at("c"), "c").expect("written");
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let here = rustix::fs::CWD;
    rustix::fs::renameat_with(here, at("b"), here, at("c"), exchange).expect("exchanged");
    assert_eq!(fs::read_to_string(at("b")).expect("read"), "c");
    let no_replace = rustix::fs::RenameFlags::NOREPLACE;
    assert_eq!(
        rustix::fs::renameat_with(here, at("b"), here, at("c"), no_replace).expect_err("it is there"),
        rustix::io::Errno::EXIST
    );

    run(Command::new("mkfifo").arg(at("fifo")));
    assert!(fs::metadata(at("fifo")).expect("stat").file_type().is_fifo());
    std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
    assert!(fs::metadata(at("socket")).expect("stat").file_type().is_socket());
}

/// Attributes: mode, times, sizes, extended attributes, and those that cannot be set.
#[test]
fn attributes() {
    let mut world = World::new(&["anna", "ben"]);
    let base = world.mount("anna").join("team");
    let file = base.join("file");
    fs::write(&file, "content").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(&file).expect("stat").mode() & 0o7777, 0o640);
    run(Command::new("touch").args(["-d", "2001-02-03 04:05:06.123456789 UTC"]).arg(&file));
    let metadata = fs::metadata(&file).expect("stat");
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (981_173_106, 123_456_789));
    let opened = OpenOptions::new().write(true).open(&file).expect("opened");
    opened.set_len(3).expect("cut");
    assert_eq!(opened.metadata().expect("fstat").len(), 3);
    opened.set_len(1 << 20).expect("grown");
    drop(opened);
    assert_eq!(fs::metadata(&file).expect("stat").len(), 1 << 20);
    let text = fs::read(&file).expect("read");
    assert!(&text[..3] == b"con" && text[3..].iter().all(|byte| *byte == 0));

    let mut value = [0u8; 64];
    rustix::fs::setxattr(&file, "user.note", b"remember", rustix::fs::XattrFlags::CREATE).expect("set");
    let length = rustix::fs::getxattr(&file, "user.note", &mut value[..]).expect("got");
    assert_eq!(&value[..length], b"remember");
    assert_eq!(
        rustix::fs::setxattr(&file, "user.note", b"x", rustix::fs::XattrFlags::CREATE).expect_err("there"),
        rustix::io::Errno::EXIST
    );
    assert_eq!(
        rustix::fs::getxattr(&file, "user.note", &mut value[..3]).expect_err("too small"),
        rustix::io::Errno::RANGE
    );
    let length = rustix::fs::listxattr(&file, &mut value[..]).expect("listed");
    assert_eq!(&value[..length], b"user.note\0");
    rustix::fs::removexattr(&file, "user.note").expect("removed");
    assert_eq!(
        rustix::fs::getxattr(&file, "user.note", &mut value[..]).expect_err("gone"),
        rustix::io::Errno::NODATA
    );
    let space = rustix::fs::statvfs(&base).expect("statvfs");
    assert!(space.f_blocks > 0 && space.f_namemax == 255);

    // Files of others cannot be written, and are shown as those of nobody.
    let ben = world.mount("ben").join("ben");
    fs::write(ben.join("his"), "his").expect("written");
    let his = base.parent().expect("the root").join("ben/his");
    assert_eq!(fs::read_to_string(&his).expect("every member reads"), "his");
    assert_eq!(fs::metadata(&his).expect("stat").uid(), 65534);
    assert!(matches!(errno(fs::write(&his, "mine")), 1 | 13));
    assert!(matches!(errno(fs::remove_file(&his)), 1 | 13));
    assert!(matches!(errno(fs::write(his.with_file_name("new"), "x")), 1 | 13));
}

/// Data: two programs that append at once, holes, punching, copying in the kernel, files without a name, and a file
/// that opening truncates.
#[test]
fn data() {
    let mut world = World::new(&["anna"]);
    let base = world.mount("anna").join("anna");
    let file = base.join("log");
    let threads: Vec<_> = (0..4)
        .map(|writer| {
            let file = file.clone();
            std::thread::spawn(move || {
                let mut log = OpenOptions::new().append(true).create(true).open(file).expect("opened");
                for line in 0..100 {
                    // In one call: only single writes are appended as a whole.
                    let text = format!("writer {writer} line {line:03}\n");
                    log.write_all(text.as_bytes()).expect("appended");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no failure"));
    let text = fs::read_to_string(&file).expect("read");
    assert_eq!(text.lines().count(), 400);
    assert!(text.lines().all(|line| line.len() == "writer 0 line 000".len()));

    let holes = base.join("holes");
    let sparse =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&holes).expect("opened");
    sparse.write_all_at(b"end", (1 << 30) - 3).expect("written");
    sparse.write_all_at(&[7; 1 << 20], 1 << 20).expect("written");
    rustix::fs::fallocate(
        &sparse,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        1 << 19,
    )
    .expect("punched");
    sparse.sync_all().expect("synced");
    assert_eq!(sparse.metadata().expect("fstat").len(), 1 << 30);
    let mut bytes = [9; 4];
    sparse.read_exact_at(&mut bytes, (1 << 20) + (1 << 19) - 2).expect("read");
    assert_eq!(bytes, [0, 0, 7, 7]);
    let found = rustix::fs::seek(&sparse, rustix::fs::SeekFrom::Data(0)).expect("there is data");
    assert!((1 << 20..=(1 << 20) + (1 << 19)).contains(&found), "{found}");
    drop(sparse);
    assert!(fs::read(&holes).expect("read").ends_with(b"end"));

    let copy = base.join("copy");
    assert_eq!(fs::copy(&file, &copy).expect("copied"), text.len() as u64);
    assert_eq!(fs::read_to_string(&copy).expect("read"), text);

    let mut nameless = OpenOptions::new().read(true).write(true).open(&copy).expect("opened");
    fs::remove_file(&copy).expect("removed");
    nameless.seek(SeekFrom::End(0)).and_then(|_| nameless.write_all(b"still here")).expect("written");
    let mut all = String::new();
    nameless.rewind().and_then(|()| nameless.read_to_string(&mut all)).expect("read");
    assert_eq!(all, format!("{text}still here"));
    assert_eq!(nameless.metadata().expect("fstat").nlink(), 0);
    drop(nameless);
    assert_eq!(fs::read(&copy).expect_err("gone").kind(), ErrorKind::NotFound);

    fs::write(&file, "short").expect("written over");
    assert_eq!(fs::read_to_string(&file).expect("read"), "short");
    let synchronous = OpenOptions::new().append(true).custom_flags(0o4_010_000).open(&file).expect("O_SYNC");
    (&synchronous).write_all(b" and synced").expect("written");
    assert_eq!(fs::read_to_string(&file).expect("read"), "short and synced");
}

/// A program of random reads, writes, truncations, extensions, punches, closes and opens on one file sees what an array
/// in memory would have, whatever the kernel caches; in the end so does another user.
#[test]
fn a_file_is_an_array() {
    let mut world = World::new(&["anna", "ben"]);
    let (anna, ben) = (world.mount("anna").join("team"), world.mount("ben").join("team"));
    for seed in 1..=4u64 {
        let path = anna.join(format!("array {seed}"));
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .expect("opened")
        };
        let mut file = open();
        let mut array: Vec<u8> = Vec::new();
        for step in 0..300u64 {
            match random(10) {
                0..4 => {
                    let (at, length) = (random(200_000), random(20_000) + 1);
                    let bytes = vec![(step % 251) as u8 + 1; length as usize];
                    file.write_all_at(&bytes, at).expect("written");
                    let end = (at + length) as usize;
                    if array.len() < end {
                        array.resize(end, 0);
                    }
                    array[at as usize..end].copy_from_slice(&bytes);
                }
                4..7 => {
                    let (at, length) = (random(220_000) as usize, random(30_000) as usize);
                    let mut bytes = vec![0; length];
                    let got = file.read_at(&mut bytes, at as u64).expect("read");
                    let expected = array.get(at..array.len().min(at + length)).unwrap_or(&[]);
                    assert!(&bytes[..got] == expected, "seed {seed}, step {step}");
                }
                7 => {
                    let size = random(220_000);
                    file.set_len(size).expect("cut or grown");
                    array.resize(size as usize, 0);
                }
                8 => {
                    let (at, length) = (random(200_000), random(50_000) + 1);
                    let flags =
                        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
                    rustix::fs::fallocate(&file, flags, at, length).expect("punched");
                    let end = array.len().min((at + length) as usize);
                    if (at as usize) < end {
                        array[at as usize..end].fill(0);
                    }
                }
                _ => {
                    drop(file);
                    file = open();
                    assert_eq!(file.metadata().expect("fstat").len(), array.len() as u64);
                }
            }
        }
        drop(file);
        assert!(fs::read(&path).expect("read") == array, "seed {seed}");
        assert!(
            fs::read(ben.join(format!("array {seed}"))).expect("read") == array,
            "seed {seed}, elsewhere"
        );
    }
}
