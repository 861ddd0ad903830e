//! Images of releases as people meet them: exported with the command, mounted by the kernel, brought up to date, altered.

use crate::common;

use common::{is_mounted, noise, run, text};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::Builder::new().prefix("holdfast image.").tempdir().expect("a folder");
        let desk = Desk { folder };
        run(&mut desk.command(&["keygen", "--out", "key"]));
        fs::create_dir(desk.path("tree")).expect("made");
        fs::create_dir(desk.path("mnt")).expect("made");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .current_dir(self.folder.path())
            .env("HOLDFAST_STATE_DIR", self.path("state"))
            .env("HOLDFAST_CACHE_DIR", self.path("cache"))
            .env_remove("SOURCE_DATE_EPOCH")
            .args(arguments);
        command
    }

    /// Publishes the tree; returns the id.
    fn publish(&self) -> String {
        run(&mut self.command(&["publish", "tree", "--to", "release", "--key", "key"]));
        let shown = run(&mut self.command(&["--json", "release", "show", "release"]));
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        shown["release"].as_str().expect("an id").to_owned()
    }

    /// Mounts the image. `false` where the kernel or the user's rights do not do, which must be said in plain words.
    fn mount(&self) -> bool {
        let output = self.command(&["mount", "image", "mnt"]).output().expect("it runs");
        let said = text(&output);
        match output.status.code() {
            Some(0) => true,
            Some(77) => {
                assert!(!rustix::process::geteuid().is_root() && said.contains("only root"), "{said}");
                false
            }
            Some(71) => {
                assert!(said.contains("this kernel cannot mount an image"), "{said}");
                false
            }
            _ => panic!("{said}"),
        }
    }

    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let output: Output = self.command(arguments).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        text(&output)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if is_mounted(&self.path("mnt")) {
            let _ = self.command(&["umount", "mnt"]).output();
        }
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

/// That two trees are the same but for owners and bits that give rights; how many names were compared.
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
/// kinds, links, devices, attributes (overlayfs's own names among them), times before 1970, holes. `status`, `umount` and
/// `verify` know it.
#[test]
fn exported_and_mounted() {
    let desk = Desk::new();
    let tree = desk.path("tree");
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

    let id = desk.publish();
    let said =
        text(&desk.command(&["export", "release", "--id", &id, "--to", "image"]).output().expect("it runs"));
    assert!(said.contains("is now an image of release 1"), "{said}");
    if rustix::process::geteuid().is_root() {
        assert!(said.contains("1 device nodes with number 0/0 are left out"), "{said}");
        fs::remove_file(tree.join("deletion")).expect("removed");
    }
    let verified = run(&mut desk.command(&["verify", "image"]));
    assert!(verified.contains("are as signed"), "{verified}");
    if !desk.mount() {
        return;
    }
    let mnt = desk.path("mnt");
    // What was left out of the release is no more in the tree; that changed its time.
    let root_time = fs::metadata(&mnt).expect("there").modified().expect("a time");
    fs::File::open(&tree).expect("opened").set_modified(root_time).expect("set");
    assert!(same(&tree, &mnt) > 2000);
    assert_eq!(
        fs::metadata(mnt.join("large")).expect("there").ino(),
        fs::metadata(mnt.join("many/also large")).expect("there").ino()
    );
    assert!(fs::write(mnt.join("small"), b"x").is_err(), "it can be written");
    let status = run(&mut desk.command(&["status", "mnt"]));
    assert!(status.contains(&format!("image of release 1 of {id}")), "{status}");
    desk.refused(79, &["mount", "image", "mnt"]);
    let said = desk.refused(75, &["export", "release", "--id", &id, "--to", "image", "--prune"]);
    assert!(said.contains("unmount it"), "{said}");
    run(&mut desk.command(&["umount", "mnt"]));
    assert!(!is_mounted(&mnt) && fs::read_dir(&mnt).expect("read").next().is_none());
    // No object has fs-verity, so with --verity none is read; what is in the image is.
    run(&mut desk.command(&["mount", "image", "mnt", "--verity"]));
    assert_eq!(fs::read(mnt.join("large")).map_err(|error| error.raw_os_error()), Err(Some(5)));
    assert_eq!(fs::read(mnt.join("small")).expect("read"), b"in the image");
    run(&mut desk.command(&["umount", "mnt"]));
}

/// A new release comes into an image's directory under a mount, which goes on showing the old one; pruning waits for it.
/// What somebody alters in the directory is found, also when a newer release is out; a release of another id is none.
#[test]
fn brought_up_to_date_and_altered() {
    let desk = Desk::new();
    let file = desk.path("tree/file");
    fs::write(&file, vec![1; 10_000]).expect("written");
    let id = desk.publish();
    run(&mut desk.command(&["export", "release", "--id", &id, "--to", "image"]));
    for spoilt in ["image", "image/tree.erofs", "image/objects"] {
        let before = fs::metadata(desk.path(spoilt)).expect("there").permissions();
        fs::set_permissions(desk.path(spoilt), PermissionsExt::from_mode(before.mode() | 0o002))
            .expect("set");
        let said = desk.refused(77, &["mount", "image", "mnt"]);
        assert!(said.contains("others than you may change it"), "{said}");
        fs::set_permissions(desk.path(spoilt), before).expect("set");
    }
    let mounted = desk.mount();
    fs::write(&file, vec![2; 20_000]).expect("written");
    desk.publish();
    let said = run(&mut desk.command(&["verify", "image"]));
    assert!(said.contains("1 newer releases are out"), "{said}");
    let said = run(&mut desk.command(&["export", "release", "--id", &id, "--to", "image"]));
    assert!(said.contains("image of release 2") && said.contains("1 objects written"), "{said}");
    if mounted {
        assert_eq!(fs::read(desk.path("mnt/file")).expect("read"), vec![1; 10_000]);
        run(&mut desk.command(&["umount", "mnt"]));
        assert!(desk.mount());
        assert_eq!(fs::read(desk.path("mnt/file")).expect("read"), vec![2; 20_000]);
        run(&mut desk.command(&["umount", "mnt"]));
    }
    let said = run(&mut desk.command(&["export", "release", "--id", &id, "--to", "image", "--prune"]));
    assert!(said.contains("1 deleted (10000 bytes)"), "{said}");

    let find = Command::new("find").args(["image/objects", "-type", "f"]).current_dir(desk.path("")).output();
    let object = desk.path(String::from_utf8(find.expect("it runs").stdout).expect("names").trim());
    fs::write(&object, vec![3; 20_000]).expect("written");
    let said = desk.refused(80, &["verify", "image"]);
    assert!(said.contains("file: objects/") && said.contains("is not what was signed"), "{said}");
    let other = "0".repeat(64);
    desk.refused(80, &["verify", "image", "--id", &other]);
    desk.refused(80, &["mount", "image", "mnt", "--id", &other]);
    desk.refused(64, &["mount", "image", "mnt", "--key", "key"]);
    fs::remove_file(desk.path("image/release")).expect("removed");
    let said = desk.refused(65, &["verify", "image"]);
    assert!(said.contains("export it again"), "{said}");
}
