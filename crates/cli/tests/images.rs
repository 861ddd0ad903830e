//! Images of releases as people meet them: exported with the command, mounted by the kernel, updated, altered.

use crate::common;

use common::publisher::Publisher;
use common::{ended, is_mounted, noise, run, text};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// A publisher with a mount point `mnt`, in a folder with a space in its name.
fn publisher() -> Publisher {
    let mut publisher = Publisher::in_folder("holdfast image.");
    let mount = publisher.path("mnt");
    fs::create_dir(&mount).expect("made");
    publisher.mounts.push(mount);
    publisher
}

/// Runs `holdfast` with a publisher's state, which must succeed.
#[track_caller]
fn does(publisher: &Publisher, arguments: &[&str]) -> String {
    run(publisher.holdfast().args(arguments))
}

/// Mounts the image. `false` where the kernel or the user's rights do not allow that; then the command must say so.
fn mount(publisher: &Publisher) -> bool {
    let output = ended(publisher.holdfast().args(["mount", "image", "mnt"]));
    let printed = text(&output);
    match output.status.code() {
        Some(0) => true,
        Some(77) => {
            assert!(!rustix::process::geteuid().is_root() && printed.contains("only root"), "{printed}");
            false
        }
        Some(71) => {
            assert!(printed.contains("this kernel cannot mount an image"), "{printed}");
            false
        }
        _ => panic!("{printed}"),
    }
}

fn attributes(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(path, &mut names).expect("listed");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).expect("read");
        value[..length].to_vec()
    };
    let mut all: Vec<_> = names.map(|name| (name.to_vec(), value(name))).collect();
    all.sort();
    all
}

/// Asserts that two trees are the same but for owners and set-ID bits, and returns the number of names compared.
fn same(left: &Path, right: &Path) -> usize {
    let (one, other) =
        (fs::symlink_metadata(left).expect("there"), fs::symlink_metadata(right).expect("there"));
    let shown = left.display();
    let rights = if one.is_file() { 0o6000 } else { 0 };
    assert_eq!(one.mode() & !rights, other.mode(), "mode of {shown}");
    assert_eq!((one.mtime(), one.mtime_nsec()), (other.mtime(), other.mtime_nsec()), "time of {shown}");
    assert_eq!(one.rdev(), other.rdev(), "device of {shown}");
    assert_eq!(attributes(left), attributes(right), "attributes of {shown}");
    let mut count = 1;
    if one.is_dir() {
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).expect("read").map(|entry| entry.expect("read").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(left), names(right), "names in {shown}");
        count += names(left).iter().map(|name| same(&left.join(name), &right.join(name))).sum::<usize>();
        return count;
    }
    assert_eq!((one.nlink(), one.size()), (other.nlink(), other.size()), "links and size of {shown}");
    if one.is_symlink() {
        assert_eq!(fs::read_link(left).expect("read"), fs::read_link(right).expect("read"));
    } else if one.is_file() {
        assert!(fs::read(left).expect("read") == fs::read(right).expect("read"), "content of {shown}");
    }
    count
}

/// Everything of a release is in the mounted image as it was published, and the kernel serves it alone: names of all
/// kinds, links, devices, attributes (overlayfs's own names among them), times before 1970, holes. `status`, `umount`
/// and `verify` work on the image.
#[test]
fn exported_and_mounted() {
    let publisher = publisher();
    let tree = publisher.path("tree");
    let write = |name: &[u8], content: &[u8]| {
        let path = tree.join(OsStr::from_bytes(name));
        fs::write(&path, content).expect("written");
        path
    };
    let noise = noise(1, 2_800_000);
    for name in
        [&b"-"[..], b"!first", b".-between", b".hidden", b"..two", b"two\nlines", b"\xff\xfe", &[b'n'; 255]]
    {
        write(name, &noise[..1000]);
    }
    write(b"large", &noise);
    write(b"small", b"in the image");
    write(b"empty", b"");
    let old = write(b"old", &noise[..300]);
    let time = rustix::fs::Timespec { tv_sec: -6, tv_nsec: 500_000_000 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, &old, &times, rustix::fs::AtFlags::empty()).expect("set");
    let sparse = fs::File::create(tree.join("sparse")).expect("made");
    sparse.write_all_at(b"middle", 20 << 20).expect("written");
    sparse.set_len(30 << 20).expect("set");
    fs::File::create(tree.join("hole")).expect("made").set_len(40 << 20).expect("set");
    let program = write(b"program", &noise[..5000]);
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).expect("set");
    for (name, value) in
        [("user.mine", "yes"), ("user.overlay.redirect", "/etc"), ("user.overlay.opaque", "y")]
    {
        rustix::fs::setxattr(&program, name, value.as_bytes(), rustix::fs::XattrFlags::empty()).expect("set");
    }
    fs::create_dir_all(tree.join("deep/".repeat(50))).expect("made");
    fs::create_dir(tree.join("many")).expect("made");
    for n in 0..2000 {
        fs::write(tree.join(format!("many/a file with number {n:05}")), &noise[..n]).expect("written");
    }
    fs::hard_link(tree.join("large"), tree.join("many/also large")).expect("linked");
    symlink("../large", tree.join("many/link")).expect("linked");
    symlink("t".repeat(4000), tree.join("long link")).expect("linked");
    let node = |name: &str, kind, device| {
        let mode = rustix::fs::Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(rustix::fs::CWD, tree.join(name), kind, mode, device)
    };
    node("pipe", rustix::fs::FileType::Fifo, 0).expect("made");
    if rustix::process::geteuid().is_root() {
        node("device", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 70_000)).expect("made");
        node("deletion", rustix::fs::FileType::CharacterDevice, 0).expect("made");
    }

    publisher.publish(&[]);
    let id = publisher.id();
    let printed =
        text(&ended(publisher.holdfast().args(["export", "release", "--id", &id, "--to", "image"])));
    assert!(printed.contains("is now an image of release 1"), "{printed}");
    if rustix::process::geteuid().is_root() {
        assert!(printed.contains("1 device nodes with number 0/0 are left out"), "{printed}");
        fs::remove_file(tree.join("deletion")).expect("removed");
    }
    let verified = does(&publisher, &["verify", "image"]);
    assert!(verified.contains("are as signed"), "{verified}");
    if !mount(&publisher) {
        return;
    }
    let mnt = publisher.path("mnt");
    // What the release leaves out is removed from the tree, which changed its time.
    let root_time = fs::metadata(&mnt).expect("there").modified().expect("a time");
    fs::File::open(&tree).expect("opened").set_modified(root_time).expect("set");
    assert!(same(&tree, &mnt) > 2000);
    assert_eq!(
        fs::metadata(mnt.join("large")).expect("there").ino(),
        fs::metadata(mnt.join("many/also large")).expect("there").ino()
    );
    assert!(fs::write(mnt.join("small"), b"x").is_err(), "it can be written");
    let status = does(&publisher, &["status", "mnt"]);
    assert!(status.contains(&format!("image of release 1 of {id}")), "{status}");
    publisher.refused(79, &["mount", "image", "mnt"]);
    let printed = publisher.refused(75, &["export", "release", "--id", &id, "--to", "image", "--prune"]);
    assert!(printed.contains("unmount it"), "{printed}");
    does(&publisher, &["umount", "mnt"]);
    assert!(!is_mounted(&mnt) && fs::read_dir(&mnt).expect("read").next().is_none());
    // No object has fs-verity, so with --verity none of them can be read, but what is in the image can.
    does(&publisher, &["mount", "image", "mnt", "--verity"]);
    assert_eq!(fs::read(mnt.join("large")).map_err(|error| error.raw_os_error()), Err(Some(5)));
    assert_eq!(fs::read(mnt.join("small")).expect("read"), b"in the image");
    does(&publisher, &["umount", "mnt"]);
}

/// A new release can be exported into an image's directory while it is mounted; the mount goes on showing the old one,
/// and pruning is refused until it is unmounted. What others alter in the directory is found, also when a newer release
/// is out; a release of another id is refused.
#[test]
fn brought_up_to_date_and_altered() {
    let publisher = publisher();
    let file = publisher.path("tree/file");
    fs::write(&file, vec![1; 10_000]).expect("written");
    publisher.publish(&[]);
    let id = publisher.id();
    does(&publisher, &["export", "release", "--id", &id, "--to", "image"]);
    for spoilt in ["image", "image/tree.erofs", "image/objects"] {
        let before = fs::metadata(publisher.path(spoilt)).expect("there").permissions();
        fs::set_permissions(publisher.path(spoilt), PermissionsExt::from_mode(before.mode() | 0o002))
            .expect("set");
        let printed = publisher.refused(77, &["mount", "image", "mnt"]);
        assert!(printed.contains("others than you may change it"), "{printed}");
        fs::set_permissions(publisher.path(spoilt), before).expect("set");
    }
    let mounted = mount(&publisher);
    fs::write(&file, vec![2; 20_000]).expect("written");
    publisher.publish(&[]);
    let printed = does(&publisher, &["verify", "image"]);
    assert!(printed.contains("1 newer releases are out"), "{printed}");
    let printed = does(&publisher, &["export", "release", "--id", &id, "--to", "image"]);
    assert!(printed.contains("image of release 2") && printed.contains("1 objects written"), "{printed}");
    if mounted {
        assert_eq!(fs::read(publisher.path("mnt/file")).expect("read"), vec![1; 10_000]);
        does(&publisher, &["umount", "mnt"]);
        assert!(mount(&publisher));
        assert_eq!(fs::read(publisher.path("mnt/file")).expect("read"), vec![2; 20_000]);
        does(&publisher, &["umount", "mnt"]);
    }
    let printed = does(&publisher, &["export", "release", "--id", &id, "--to", "image", "--prune"]);
    assert!(printed.contains("1 deleted (10000 bytes)"), "{printed}");

    let find =
        Command::new("find").args(["image/objects", "-type", "f"]).current_dir(publisher.path("")).output();
    let object = publisher.path(String::from_utf8(find.expect("it runs").stdout).expect("names").trim());
    fs::write(&object, vec![3; 20_000]).expect("written");
    let printed = publisher.refused(80, &["verify", "image"]);
    assert!(printed.contains("file: objects/") && printed.contains("is not what was signed"), "{printed}");
    let other = "0".repeat(64);
    publisher.refused(80, &["verify", "image", "--id", &other]);
    publisher.refused(80, &["mount", "image", "mnt", "--id", &other]);
    publisher.refused(64, &["mount", "image", "mnt", "--key", "key"]);
    fs::remove_file(publisher.path("image/release")).expect("removed");
    let printed = publisher.refused(65, &["verify", "image"]);
    assert!(printed.contains("export it again"), "{printed}");
}
