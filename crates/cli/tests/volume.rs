//! Protected volumes through the real command: real images, ext4 on loop devices, kills at any moment.

use crate::common;

use common::{eventually, eventually_some, exits_saying, free_port, run, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A folder with images and a state directory, whose volumes are detached at the end.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Home {
        Home { folder: tempfile::Builder::new().prefix("holdfast-volume.").tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `holdfast volume ...` on the usual machine of these tests.
    fn volume(&self, arguments: &[&str]) -> Command {
        self.volume_on("state", arguments)
    }

    /// `holdfast volume ...` on a machine with this state directory.
    fn volume_on(&self, state: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(self.folder.path()).env("HOLDFAST_STATE_DIR", self.path(state));
        command.arg("volume").args(arguments);
        command
    }

    /// Makes an image with bytes that differ everywhere.
    fn image(&self, name: &str, bytes: u64) -> Vec<u8> {
        let content = content(bytes, 1);
        fs::write(self.path(name), &content).expect("written");
        content
    }

    fn ext4(&self, name: &str, bytes: u64) {
        File::create(self.path(name)).expect("made").set_len(bytes).expect("sized");
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(self.path(name)));
    }

    fn protect(&self, name: &str) {
        run(&mut self.volume(&[
            "protect",
            name,
            "--log",
            &format!("{name}.log"),
            "--key",
            &format!("{name}.key"),
        ]));
    }

    /// Attaches, and returns the path of the file or device.
    fn attach(&self, arguments: &[&str]) -> PathBuf {
        let all: Vec<&str> = ["attach"].iter().chain(arguments).copied().collect();
        run(&mut self.volume(&all)).trim().into()
    }

    fn status(&self, name: &str) -> serde_json::Value {
        let output = self.volume(&["status", name, "--json"]).output().expect("it runs");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    }

    fn process(&self, name: &str) -> String {
        self.status(name)["attached"]["process"].as_u64().expect("it is attached").to_string()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let Ok(output) = self.volume(&["list", "--json"]).output() else { return };
        let Ok(listed) = serde_json::from_slice::<Vec<serde_json::Value>>(&output.stdout) else { return };
        for one in listed.iter().filter(|one| one["state"] == "attached") {
            let name = one["volume"].as_str().unwrap_or_default();
            let _ = self.volume(&["detach", name]).output();
        }
    }
}

fn content(bytes: u64, salt: u64) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::with_capacity(bytes as usize);
    while (words.len() as u64) < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("only root has loop devices and mounts");
    }
    root
}

/// A mounted file system; dropping it unmounts.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, directory: &Path) -> Mounted {
        fs::create_dir_all(directory).expect("a directory");
        run(Command::new("mount").arg(device).arg(directory));
        Mounted(directory.to_owned())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        holdfast_testing::unmount(&self.0);
    }
}

fn spoil(image: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(image).expect("opened");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[!byte[0]], at).expect("written");
}

/// Proves: an ext4 with data is protected in place and used on a loop device. Reading a byte that was changed behind
/// its back is an error, which is reported with its location, found by a scrub, and repaired from a copy. The plain
/// image that `unprotect` gives back is whole.
#[test]
fn ext4_from_plain_to_plain() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    let (image, at) = (home.path("disk.img"), home.path("mnt"));
    home.ext4("disk.img", 64 * MIB);
    {
        let _plain = Mounted::new(&image, &at);
        fs::write(at.join("before"), content(300_000, 5)).expect("written");
    }
    home.protect("disk.img");
    let device = home.attach(&["disk.img", "--loop"]);
    assert!(device.starts_with("/dev"), "{device:?}");
    let block = run(Command::new("blockdev").arg("--getss").arg(&device));
    assert_eq!(block.trim(), "4096", "ext4 with blocks of 4096 bytes allows such sectors");
    let marked = b"a line that is looked for on the disk itself\n".repeat(5000);
    {
        let _on = Mounted::new(&device, &at);
        assert_eq!(fs::read(at.join("before")).expect("read"), content(300_000, 5));
        fs::write(at.join("marked"), &marked).expect("written");
        File::open(at.join("marked")).expect("opened").sync_all().expect("synced");
        exits_saying(&mut home.volume(&["detach", "disk.img"]), 75, &["in use", "mnt"]);
    }
    assert_eq!(home.attach_again_fails(), 75);
    // Written to the disk, so that a copy of the image has everything.
    run(&mut home.volume(&["detach", "disk.img"]));
    fs::copy(&image, home.path("replica.img")).expect("copied");
    let device = home.attach(&["disk.img", "--loop"]);
    let bytes = fs::read(&image).expect("read");
    let place = bytes.windows(45).position(|window| window == &marked[..45]).expect("on the disk") as u64;
    spoil(&image, place + 20_000);
    {
        let _on = Mounted::new(&device, &at);
        let refused = fs::read(at.join("marked")).expect_err("refused");
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        assert_eq!(fs::read(at.join("before")).expect("others are read"), content(300_000, 5));
        exits_saying(&mut home.volume(&["status"]), 65, &["not what was written", "expected", "found"]);
        let bad = &home.status("disk.img")["attached"]["bad_blocks"];
        assert_eq!(bad[0]["block"], (place + 20_000) / 4096, "{bad}");
        exits_saying(&mut home.volume(&["scrub", "disk.img", "--rate", "0"]), 65, &["1 are bad"]);
        let repair = ["repair", "disk.img", "--from", "replica.img"];
        exits_saying(&mut home.volume(&repair), 0, &["1 blocks are good again, 0 are bad"]);
        assert_eq!(fs::read(at.join("marked")).expect("read"), marked);
        exits_saying(&mut home.volume(&["scrub", "disk.img", "--rate", "0"]), 0, &["0 are bad"]);
    }
    // A process that is starting in another mount namespace keeps the device busy for a moment, and is waited for.
    let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
    let mut options = File::options();
    options.read(true).custom_flags(exclusively);
    let used = eventually_some("it is free", || options.open(&device).ok());
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        drop(used);
    });
    run(home.volume(&["detach"]).arg(&device));
    run(&mut home.volume(&["unprotect", "disk.img", "--remove-log"]));
    assert!(!home.path("disk.img.log").exists());
    lets_go.join().expect("it lets go");
    run(Command::new("e2fsck").args(["-f", "-n"]).arg(&image));
    let _plain = Mounted::new(&image, &at);
    assert_eq!(fs::read(at.join("marked")).expect("read"), marked);
}

impl Home {
    fn attach_again_fails(&self) -> i32 {
        let output = self.volume(&["attach", "disk.img"]).output().expect("it runs");
        output.status.code().expect("a code")
    }
}

/// Proves: an image that is protected, attached and unprotected has the same bytes; one that was written to has exactly
/// what was written, and its holes are zeroes.
#[test]
fn bytes_are_what_was_written() {
    let home = Home::new();
    let mut expected = home.image("disk.img", 8 * MIB);
    home.protect("disk.img");
    let file = home.attach(&["disk.img"]);
    assert_eq!(fs::read(&file).expect("read"), expected);
    run(&mut home.volume(&["detach", "disk.img"]));
    exits_saying(&mut home.volume(&["recover", "disk.img"]), 0, &["0 torn"]);
    run(&mut home.volume(&["unprotect", "disk.img"]));
    assert!(fs::read(home.path("disk.img")).expect("read") == expected);
    assert!(home.path("disk.img.log").exists(), "the log is removed on request only");
    exits_saying(&mut home.volume(&["status", "disk.img"]), 66, &["no volume of this name"]);

    fs::remove_file(home.path("disk.img.log")).expect("removed");
    home.protect("disk.img");
    let file = home.attach(&["disk.img"]);
    let open = File::options().write(true).open(&file).expect("opened");
    for (at, length) in [(0, 512), (4096 * 7 + 512, 1024), (MIB, 300_032), (3 * MIB + 512, 4096 * 3)] {
        let bytes = content(length, at);
        open.write_all_at(&bytes[..length as usize], at).expect("written");
        expected[at as usize..(at + length) as usize].copy_from_slice(&bytes[..length as usize]);
    }
    let hole = ["--punch-hole", "--offset", "5242880", "--length", "1048576"];
    run(Command::new("fallocate").args(hole).arg(&file));
    expected[5 << 20..6 << 20].fill(0);
    open.sync_all().expect("synced");
    drop(open);
    assert!(fs::read(&file).expect("read") == expected);
    run(&mut home.volume(&["detach", "disk.img"]));
    run(&mut home.volume(&["unprotect", "disk.img"]));
    assert!(fs::read(home.path("disk.img")).expect("read") == expected);
}

/// Proves: an empty volume reads as zeroes, whatever the image had, and the image has these zeroes when it is
/// unprotected.
#[test]
fn an_empty_volume() {
    let home = Home::new();
    home.image("disk.img", 4 * MIB);
    run(&mut home.volume(&["protect", "disk.img", "--log", "log", "--key", "key", "--empty"]));
    let file = home.attach(&["disk.img"]);
    assert!(fs::read(&file).expect("read") == vec![0; 4 << 20]);
    File::options().write(true).open(&file).expect("opened").write_all_at(&[7; 4096], 8192).expect("written");
    run(&mut home.volume(&["detach", "disk.img"]));
    run(&mut home.volume(&["unprotect", "disk.img", "--remove-log"]));
    let mut expected = vec![0; 4 << 20];
    expected[8192..12288].fill(7);
    assert!(fs::read(home.path("disk.img")).expect("read") == expected);
}

/// Proves: what must not be done is refused, with the reason and an exit code, and changes nothing.
#[test]
fn refusals() {
    let home = Home::new();
    let image = home.image("disk.img", 4 * MIB);
    let protect = |log: &str, key: &str| home.volume(&["protect", "disk.img", "--log", log, "--key", key]);
    exits_saying(&mut protect("disk.img", "key"), 64, &["is the disk itself"]);
    std::os::unix::fs::symlink("disk.img", home.path("link")).expect("linked");
    exits_saying(&mut protect("link", "key"), 64, &["is the disk itself"]);
    fs::write(home.path("letters"), b"of value").expect("written");
    exits_saying(&mut protect("letters", "key"), 73, &["would be lost", "--overwrite-log"]);
    File::create(home.path("small")).expect("made").set_len(MIB).expect("sized");
    exits_saying(&mut protect("small", "key"), 66, &["needs"]);
    fs::write(home.path("open.key"), format!("holdfast-volume-key-1 {}\n", "5a".repeat(32)))
        .expect("written");
    fs::set_permissions(home.path("open.key"), fs::Permissions::from_mode(0o644)).expect("set");
    exits_saying(&mut protect("log", "open.key"), 77, &["others can read"]);
    exits_saying(&mut protect("log", "letters"), 77, &["others can read"]);
    fs::write(home.path("odd.img"), [1; 5000]).expect("written");
    let odd = ["protect", "odd.img", "--log", "odd.log", "--key", "key"];
    exits_saying(&mut home.volume(&odd), 66, &["no multiple of 4096", "truncate --size 8192"]);
    assert!(!home.path("odd.log").exists() && !home.path("odd.log.partial").exists());
    assert!(!home.path("key").exists(), "nothing is under a key of a refused command");
    exits_saying(&mut home.volume(&["attach", "disk.img"]), 66, &["--log"]);
    fs::set_permissions(home.path("open.key"), fs::Permissions::from_mode(0o600)).expect("set");
    let no_log = ["attach", "disk.img", "--log", "letters", "--key", "open.key"];
    exits_saying(&mut home.volume(&no_log), 65, &["no log"]);
    run(&mut protect("log", "key"));
    assert_eq!(fs::metadata(home.path("key")).expect("made").mode() & 0o777, 0o600);
    exits_saying(&mut protect("log", "key"), 73, &["protected already"]);
    exits_saying(&mut protect("another.log", "key"), 73, &["protected already"]);
    let rekey = ["rekey", "disk.img", "--new-key", "new.key", "--new-log", "letters"];
    exits_saying(&mut home.volume(&rekey), 73, &["is not overwritten"]);
    assert!(!home.path("new.key").exists(), "nothing is under a key of a refused command");
    run(&mut home.volume(&["forget", "disk.img"]));
    exits_saying(&mut protect("log", "key"), 73, &["protected already"]);
    exits_saying(&mut protect("log", "missing.key"), 66, &["name the key it was made with"]);
    assert!(fs::read(home.path("disk.img")).expect("read") == image, "nothing of it has changed the disk");
    assert_eq!(fs::read(home.path("letters")).expect("read"), b"of value");
}

/// Proves: a volume that stops because the disk under its log is full says that room has to be made, when it is looked
/// at, is detached and cannot be attached. What was flushed can be read meanwhile, without any change; with room the
/// volume works again.
#[test]
fn a_full_disk_under_the_log() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    home.image("disk.img", 4 * MIB);
    let small = home.path("small");
    fs::create_dir(&small).expect("made");
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"]).arg(&small));
    let _small = Mounted(small.clone());
    let made = ["protect", "disk.img", "--log", "small/log", "--key", "key"];
    run(&mut home.volume(&made));
    // A log without reserved room, as after it was copied.
    run(Command::new("fallocate").arg("--dig-holes").arg(small.join("log")));
    let disk = home.attach(&["disk.img"]);
    let write = |at: u64, bytes: &[u8]| {
        let file = File::options().write(true).open(&disk).expect("opens");
        file.write_all_at(bytes, at).and_then(|()| file.sync_all())
    };
    write(MIB, &[1; 4096]).expect("there is room");
    let mut filler = File::create(small.join("filler")).expect("made");
    while std::io::Write::write_all(&mut filler, &[0; 4096]).is_ok() {}
    let failed = (0..1000_u64).find_map(|round| write(2 * MIB, &[round as u8; 4096]).err());
    assert_eq!(failed.expect("the log has no room").raw_os_error(), Some(5));
    exits_saying(&mut home.volume(&["status", "disk.img"]), 74, &["STOPPED", "make room", "--read-only"]);
    let detached = ["is detached, but not all could be written", "make room", "--read-only"];
    exits_saying(&mut home.volume(&["detach", "disk.img"]), 74, &detached);
    // At once and with the reason: no process has the volume any more, and the disk is still full.
    exits_saying(&mut home.volume(&["attach", "disk.img"]), 74, &["make room", "--read-only"]);

    let everything = || ["disk.img", "small/log"].map(|name| fs::read(home.path(name)).expect("read"));
    let anchors = || {
        let all =
            fs::read_dir(home.path("state/volumes")).expect("there").map(|one| one.expect("one").path());
        let anchors = all.filter(|path| path.extension().is_some_and(|it| it == "anchor"));
        anchors.map(|path| fs::read(path).expect("read")).collect::<Vec<_>>()
    };
    let before = (everything(), anchors());
    for more in [&[][..], &["--loop"]] {
        let disk = home.attach(&[&["disk.img", "--read-only"], more].concat());
        let mut found = vec![0; 4096];
        File::open(&disk).expect("opens").read_exact_at(&mut found, MIB).expect("read");
        assert!(found == [1; 4096], "it was flushed");
        let refused =
            File::options().write(true).open(&disk).and_then(|file| file.write_all_at(&[9; 4096], 0));
        assert!(refused.is_err());
        assert_eq!(home.status("disk.img")["attached"]["read_only"], true);
        exits_saying(&mut home.volume(&["repair", "disk.img", "--from", "disk.img"]), 77, &["read-only"]);
        run(&mut home.volume(&["detach", "disk.img"]));
    }
    assert!(before == (everything(), anchors()), "nothing was changed");

    fs::remove_file(small.join("filler")).expect("removed");
    drop(filler);
    let disk = home.attach(&["disk.img"]);
    let mut found = vec![0; 4096];
    File::open(&disk).expect("opens").read_exact_at(&mut found, MIB).expect("read");
    assert!(found == [1; 4096], "it was flushed");
    write(2 * MIB, &[8; 4096]).expect("there is room");
    run(&mut home.volume(&["detach", "disk.img"]));
}

/// Proves: disks that are mounted, behind a loop device or attached are refused. A lock protects disk and log.
#[test]
fn what_is_in_use_is_refused() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    home.ext4("disk.img", 16 * MIB);
    let device = run(Command::new("losetup").args(["--show", "-f"]).arg(home.path("disk.img")));
    let device = device.trim();
    let protect = ["protect", "disk.img", "--log", "log", "--key", "key"];
    exits_saying(&mut home.volume(&protect), 75, &["in use", device]);
    {
        let _on = Mounted::new(Path::new(device), &home.path("mnt"));
        exits_saying(&mut home.volume(&["protect", device, "--log", "log", "--key", "key"]), 75, &["in use"]);
    }
    // A block device that nobody uses.
    run(&mut home.volume(&["protect", device, "--log", "log", "--key", "key"]));
    home.attach(&[device]);
    let raw = Command::new("mount").arg(device).arg(home.path("mnt")).output().expect("it runs");
    assert!(!raw.status.success(), "the disk itself cannot be mounted meanwhile");
    exits_saying(&mut home.volume(&["unprotect", device]), 75, &["attached"]);
    fs::create_dir(home.path("elsewhere")).expect("made");
    let elsewhere = ["attach", device, "elsewhere", "--log", "log", "--key", "key", "--freshness-unknown"];
    exits_saying(&mut home.volume_on("another", &elsewhere), 75, &["in use"]);
    run(&mut home.volume(&["detach", device]));
    run(&mut home.volume(&["unprotect", device]));
    eventually("the loop device is free", || {
        Command::new("losetup").args(["-d", device]).status().is_ok_and(|status| status.success())
    });
}

/// Proves: old copies of disk and log together are refused by the anchor. Unknown freshness is said. An anchor can be
/// taken to another machine, and an older one never replaces a newer one.
#[test]
fn old_copies_and_anchors() {
    let home = Home::new();
    home.image("disk.img", 4 * MIB);
    home.protect("disk.img");
    let save = |to: &str| {
        for name in ["disk.img", "disk.img.log"] {
            fs::copy(home.path(name), home.path(&format!("{name}.{to}"))).expect("copied");
        }
    };
    let restore = |from: &str| {
        for name in ["disk.img", "disk.img.log"] {
            fs::copy(home.path(&format!("{name}.{from}")), home.path(name)).expect("copied");
        }
    };
    save("old");
    run(&mut home.volume(&["anchor", "export", "disk.img", "--to", "old.anchor"]));
    let write = |at: u64, options: &[&str]| {
        let file = home.attach(&[&["disk.img"], options].concat());
        let open = File::options().write(true).open(file).expect("opened");
        open.write_all_at(&content(4096, at), at * 4096).expect("written");
        open.sync_all().expect("synced");
    };
    write(3, &[]);
    run(&mut home.volume(&["detach", "disk.img"]));
    save("new");
    restore("old");
    exits_saying(&mut home.volume(&["attach", "disk.img"]), 80, &["put back"]);
    exits_saying(&mut home.volume(&["recover", "disk.img"]), 80, &["put back"]);
    exits_saying(&mut home.volume(&["unprotect", "disk.img"]), 80, &["put back"]);
    restore("new");

    // With --anchor-every-flush even a flush of a moment ago counts: the process is killed, so it writes nothing more.
    write(5, &["--anchor-every-flush"]);
    save("flushed");
    let attached = home.status("disk.img");
    assert_eq!(attached["anchor"]["blocks_behind"], 0, "{attached}");
    run(Command::new("kill").args(["-9", &home.process("disk.img")]));
    restore("new");
    eventually("the lock is free", || ends_with_any(&mut home.volume(&["attach", "disk.img"])) != Some(75));
    exits_saying(&mut home.volume(&["attach", "disk.img"]), 80, &["put back"]);
    restore("flushed");

    // Another machine.
    let on = |arguments: &[&str]| home.volume_on("laptop", arguments);
    let known = ["attach", "disk.img", "--log", "disk.img.log", "--key", "disk.img.key"];
    exits_saying(&mut on(&known), 77, &["no anchor", "--freshness-unknown"]);
    run(&mut home.volume(&["anchor", "export", "disk.img", "--to", "new.anchor"]));
    run(&mut on(&["anchor", "import", "new.anchor"]));
    exits_saying(&mut on(&["anchor", "import", "old.anchor"]), 77, &["is older"]);
    let file = run(&mut on(&known));
    let open = File::open(file.trim()).expect("opened");
    let mut read = [0; 4096];
    open.read_exact_at(&mut read, 5 * 4096).expect("read");
    assert!(read[..] == content(4096, 5)[..4096]);
    drop(open);
    run(&mut on(&["detach", "disk.img"]));
    // This machine's anchor is behind now: the volume's state is a later one, which is accepted.
    home.attach(&["disk.img"]);
    run(&mut home.volume(&["detach", "disk.img"]));
    restore("flushed");
    fs::write(
        home.path("state/volumes")
            .join(format!("{}.anchor", home.status("disk.img")["volume"].as_str().expect("a name"))),
        "x",
    )
    .expect("written");
    exits_saying(
        &mut home.volume(&["attach", "disk.img", "--freshness-unknown"]),
        65,
        &["no anchor, or it is damaged"],
    );
    fs::remove_dir_all(home.path("state/volumes")).expect("removed");
    run(&mut home.volume(&[&known[..], &["--freshness-unknown"]].concat()));
}

fn ends_with_any(command: &mut Command) -> Option<i32> {
    command.output().expect("it runs").status.code()
}

/// Starts a command and kills it after a while; returns whether it was killed before it ended.
fn killed_after(command: &mut Command, wait: Duration, signal: &str) -> (bool, String) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    std::thread::sleep(wait);
    let _ = Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
    let output = child.wait_with_output().expect("it ends");
    (!output.status.success(), text(&output))
}

/// Proves: `protect` that is killed or interrupted at any moment continues where it was, until all is protected. If the
/// disk was used in between, it begins anew, and does not trust its old hashes.
#[test]
fn protecting_is_interrupted_anywhere() {
    let home = Home::new();
    let expected = home.image("disk.img", 160 * MIB);
    let protect = ["protect", "disk.img", "--log", "log", "--key", "key"];
    let mut cuts = 0;
    for millis in [5, 20, 45, 60, 90, 120, 30, 75, 150, 15] {
        let (cut, _) = killed_after(&mut home.volume(&protect), Duration::from_millis(millis), "-9");
        if !cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 0);
    let (stopped, printed) = killed_after(&mut home.volume(&protect), Duration::from_millis(60), "-INT");
    let mut begins_anew = false;
    if stopped && printed.contains("stopped") {
        assert!(printed.contains("goes on from here"), "{printed}");
        let attach = ["attach", "disk.img", "--freshness-unknown"];
        let refused = exits_saying(&mut home.volume(&attach), 1, &["holdfast volume protect"]);
        begins_anew = !refused.contains("up to block 0 of");
        let file = File::options().write(true).open(home.path("disk.img")).expect("opened");
        file.write_all_at(b"used in between", 5000).expect("written");
    }
    let now = fs::read(home.path("disk.img")).expect("read");
    let output = home.volume(&protect).output().expect("it runs");
    match output.status.code() {
        Some(0) => assert_eq!(text(&output).contains("began anew"), begins_anew, "{}", text(&output)),
        // The command was fast enough to finish.
        _ => assert!(now == expected && text(&output).contains("protected already"), "{}", text(&output)),
    }
    let file = home.attach(&["disk.img"]);
    assert!(fs::read(file).expect("read") == now);
    exits_saying(&mut home.volume(&["scrub", "disk.img", "--rate", "0"]), 0, &["0 are bad"]);
}

/// Proves: a change of the key that is killed at any moment leaves the volume as it was, under the old key, and can be
/// continued. Afterwards the old key is refused. What was written in between is not lost.
#[test]
fn moving_is_interrupted_anywhere() {
    let home = Home::new();
    let mut expected = home.image("disk.img", 96 * MIB);
    home.protect("disk.img");
    let rekey = ["rekey", "disk.img", "--new-key", "key2"];
    let mut done = false;
    for (round, millis) in [10, 40, 80, 120, 60, 200, 25].into_iter().enumerate() {
        let (cut, printed) = killed_after(&mut home.volume(&rekey), Duration::from_millis(millis), "-9");
        // The kill may come when only the answer is missing.
        if !cut || printed.contains("under this key already") {
            done = true;
            break;
        }
        assert!(!printed.contains("panicked"), "{printed}");
        if home.path("disk.img.log.new").exists() && round % 3 == 2 {
            // The volume is used in between, under the old key.
            let file = home.attach(&["disk.img"]);
            let bytes = content(4096, round as u64);
            let open = File::options().write(true).open(&file).expect("opened");
            open.write_all_at(&bytes, round as u64 * 40_960).expect("written");
            drop(open);
            expected[round * 40_960..][..4096].copy_from_slice(&bytes);
            run(&mut home.volume(&["detach", "disk.img"]));
        }
    }
    if !done {
        let last = home.volume(&rekey).output().expect("it runs");
        assert!(last.status.success() || text(&last).contains("under this key already"), "{}", text(&last));
    }
    assert!(!home.path("disk.img.log.new").exists());
    let old = ["attach", "disk.img", "--log", "disk.img.log", "--key", "disk.img.key"];
    exits_saying(&mut home.volume(&old), 65, &["the key is wrong"]);
    let file = home.attach(&["disk.img"]);
    assert!(fs::read(file).expect("read") == expected);
    exits_saying(&mut home.volume(&["scrub", "disk.img", "--rate", "0"]), 0, &["0 are bad"]);
    run(&mut home.volume(&["detach", "disk.img"]));
    let listed = run(&mut home.volume(&["list"]));
    assert_eq!(listed.lines().count(), 1, "{listed}");
}

/// Proves: a volume grows after its device did, and shrinks before its device does; a change that would have to copy a
/// bad block is refused.
#[test]
fn sizes_change() {
    let home = Home::new();
    let mut expected = home.image("disk.img", 8 * MIB);
    home.protect("disk.img");
    File::options()
        .write(true)
        .open(home.path("disk.img"))
        .expect("opened")
        .set_len(12 * MIB)
        .expect("grown");
    let size = || home.attach(&["disk.img"]).metadata().expect("there").len();
    assert_eq!(size(), 8 * MIB, "not before it is said");
    run(&mut home.volume(&["detach", "disk.img"]));
    run(&mut home.volume(&["resize", "disk.img"]));
    assert_eq!(size(), 12 * MIB);
    expected.resize(12 << 20, 0);
    run(&mut home.volume(&["detach", "disk.img"]));
    exits_saying(&mut home.volume(&["resize", "disk.img", "--size", "13M"]), 64, &["more than"]);
    run(&mut home.volume(&["resize", "disk.img", "--size", "6M"]));
    File::options().write(true).open(home.path("disk.img")).expect("opened").set_len(6 * MIB).expect("cut");
    let file = home.attach(&["disk.img"]);
    assert!(fs::read(file).expect("read") == expected[..6 << 20]);
    run(&mut home.volume(&["detach", "disk.img"]));
    spoil(&home.path("disk.img"), 70_000);
    exits_saying(&mut home.volume(&["resize", "disk.img", "--ring-mib", "4"]), 65, &["block 17"]);
    spoil(&home.path("disk.img"), 70_000);
    run(&mut home.volume(&["resize", "disk.img", "--ring-mib", "4"]));
    home.attach(&["disk.img"]);
    assert_eq!(home.status("disk.img")["attached"]["log_bytes"].as_u64().expect("a number") >> 20, 3);
}

/// Proves: a killed process loses nothing that was flushed, and its dead mount hinders nobody. Several volumes are
/// attached at once.
#[test]
fn the_process_is_killed() {
    let home = Home::new();
    home.image("one.img", 4 * MIB);
    let two = home.image("two.img", 4 * MIB);
    home.protect("one.img");
    home.protect("two.img");
    let other = home.attach(&["two.img"]);
    for round in 0..4u64 {
        let file = home.attach(&["one.img"]);
        let open = File::options().read(true).write(true).open(&file).expect("opened");
        for earlier in 0..round {
            let mut read = vec![0; 100_352];
            open.read_exact_at(&mut read, earlier * MIB).expect("read");
            assert!(read[..] == content(100_352, earlier)[..100_352], "round {round}: {earlier}");
        }
        open.write_all_at(&content(100_352, round)[..100_352], round * MIB).expect("written");
        open.sync_all().expect("synced");
        run(Command::new("kill").args(["-9", &home.process("one.img")]));
        drop(open);
        eventually("the lock is free", || home.status("one.img")["attached"].is_null());
    }
    assert!(fs::read(other).expect("read") == two, "the other is not concerned");
    let listed = run(&mut home.volume(&["list"]));
    assert_eq!(listed.matches("attached").count(), 1, "{listed}");
}

/// Proves: a scrub keeps to its rate, stops when it is told to, and continues from there, also after the volume was
/// detached.
#[test]
fn a_scrub_goes_on() {
    let home = Home::new();
    home.image("disk.img", 24 * MIB);
    home.protect("disk.img");
    home.attach(&["disk.img"]);
    let scrub = |options: &[&str]| home.volume(&[&["scrub", "disk.img"], options].concat());
    run(&mut scrub(&["--rate", "1", "--background"]));
    eventually("it has begun", || home.status("disk.img")["scrub"]["next_block"].as_u64() > Some(0));
    run(&mut scrub(&["--stop"]));
    let stopped = home.status("disk.img")["scrub"].clone();
    assert_eq!(stopped["running"], false);
    assert!(stopped["ended_ns"].is_null(), "24 MiB at one a second take longer: {stopped}");
    run(&mut home.volume(&["detach", "disk.img"]));
    assert_eq!(home.status("disk.img")["scrub"]["next_block"], stopped["next_block"]);
    spoil(&home.path("disk.img"), 100);
    home.attach(&["disk.img"]);
    exits_saying(&mut scrub(&["--rate", "0"]), 0, &["0 are bad"]);
    // The bad block is in the part that was done: the next scrub finds it.
    exits_saying(&mut scrub(&["--rate", "0"]), 65, &["1 are bad"]);
}

/// Proves: if the disk does not answer at all, the watchdog ends this volume's requests with an error, and those of no
/// other.
#[test]
fn the_watchdog_ends_its_own_connection() {
    let home = Home::new();
    home.image("below.img", 16 * MIB);
    home.protect("below.img");
    let below = home.attach(&["below.img"]);
    let below = below.to_str().expect("text");
    run(&mut home.volume(&["protect", below, "--log", "above.log", "--key", "key"]));
    let above = home.attach(&[below, "--log", "above.log", "--watchdog", "3"]);
    let process = home.process("below.img");
    run(Command::new("kill").args(["-STOP", &process]));
    let read = fs::read(&above);
    run(Command::new("kill").args(["-CONT", &process]));
    assert!(read.is_err(), "an error, not for ever");
    assert_eq!(fs::read(below).expect("the one below goes on").len() as u64, 16 * MIB);
    eventually("the process above has ended", || home.status("above.log")["attached"].is_null());
    let above = home.attach(&[below, "--log", "above.log"]);
    assert_eq!(fs::read(&above).expect("read").len() as u64, 16 * MIB);
    run(&mut home.volume(&["detach", "above.log"]));
}

/// Proves: an anchor that the operator keeps elsewhere is remembered, is the only one, and follows the volume. A log
/// whose volume is gone is reused only with the option for that.
#[test]
fn anchors_elsewhere_and_logs_used_again() {
    let home = Home::new();
    home.image("disk.img", 4 * MIB);
    home.protect("disk.img");
    home.attach(&["disk.img", "--anchor", "my.anchor"]);
    run(&mut home.volume(&["detach", "disk.img"]));
    let anchors = || {
        let all = fs::read_dir(home.path("state/volumes")).expect("listed").flatten();
        all.filter(|entry| entry.file_name().to_string_lossy().ends_with(".anchor")).count()
    };
    assert_eq!(anchors(), 0);
    let anchor_text = fs::read_to_string(home.path("my.anchor")).expect("there");
    assert_eq!(run(&mut home.volume(&["anchor", "show", "disk.img"])).trim(), anchor_text.trim());
    run(&mut home.volume(&["rekey", "disk.img", "--new-key", "key2"]));
    assert_ne!(fs::read_to_string(home.path("my.anchor")).expect("there"), anchor_text);
    home.attach(&["disk.img"]);
    assert_eq!(anchors(), 0);
    run(&mut home.volume(&["detach", "disk.img"]));
    fs::remove_file(home.path("my.anchor")).expect("removed");
    exits_saying(&mut home.volume(&["attach", "disk.img"]), 77, &["no anchor"]);
    run(&mut home.volume(&["unprotect", "disk.img", "--freshness-unknown"]));

    let again = ["protect", "disk.img", "--log", "disk.img.log", "--key", "key3"];
    exits_saying(&mut home.volume(&again), 66, &["name the key"]);
    run(&mut home.volume(&[&again[..], &["--overwrite-log"]].concat()));
    home.image("other.img", 4 * MIB);
    let other = ["protect", "other.img", "--log", "disk.img.log", "--key", "key3", "--overwrite-log"];
    exits_saying(&mut home.volume(&other), 73, &["protected already"]);
    home.attach(&["disk.img"]);
}

/// Proves: a process that gets SIGTERM writes everything and detaches, and so does one whose mount is removed.
#[test]
fn the_process_is_told_to_end() {
    let home = Home::new();
    home.image("disk.img", 4 * MIB);
    home.protect("disk.img");
    for (number, how) in ["-TERM", "umount"].into_iter().enumerate() {
        let file = home.attach(&["disk.img"]);
        let open = File::options().write(true).open(&file).expect("opened");
        let bytes = [number as u8 + 1; 8192];
        open.write_all_at(&bytes, MIB).expect("written");
        drop(open);
        let process = home.process("disk.img");
        if how == "umount" {
            run(Command::new(env!("CARGO_BIN_EXE_holdfast"))
                .arg("umount")
                .arg(file.parent().expect("a directory")));
        } else {
            run(Command::new("kill").args([how, &process]));
        }
        eventually("it has let go", || home.status("disk.img")["attached"].is_null());
        eventually("it has ended", || {
            // No process may have waited for it yet.
            fs::read_to_string(format!("/proc/{process}/stat")).map_or(true, |stat| stat.contains(") Z "))
        });
        run(&mut home.volume(&["recover", "disk.img"]));
        // The file was closed: what was written is on the disk, although it was never flushed.
        let disk = fs::read(home.path("disk.img")).expect("read");
        assert!(disk[1 << 20..][..8192] == bytes, "{how}");
    }
}

/// Proves: programs that fill a volume from a control group with little memory, in which it was also attached, make
/// progress.
#[test]
fn memory_is_short() {
    let root = Path::new("/sys/fs/cgroup/memory");
    if !is_root() || !root.join("memory.limit_in_bytes").exists() {
        eprintln!("no control groups for memory, of the first kind");
        return;
    }
    let home = Home::new();
    home.ext4("disk.img", 256 * MIB);
    home.protect("disk.img");
    let group = root.join(format!("holdfast-test-{}", std::process::id()));
    fs::create_dir(&group).expect("made");
    fs::write(group.join("memory.limit_in_bytes"), (64 * MIB).to_string()).expect("limited");
    fs::create_dir(home.path("mnt")).expect("made");
    let script = "echo $$ > $GROUP/cgroup.procs && device=$($HOLDFAST volume attach disk.img --loop) \
                  && mount $device mnt && dd if=/dev/zero of=mnt/filled bs=1M count=160 conv=fsync 2>&1 && umount mnt";
    let mut filling = Command::new("timeout");
    filling.args(["-k", "5", "240", "sh", "-c", script]).current_dir(home.folder.path());
    filling.env("GROUP", &group).env("HOLDFAST", env!("CARGO_BIN_EXE_holdfast"));
    let output = filling.env("HOLDFAST_STATE_DIR", home.path("state")).output().expect("it runs");
    let memory = home.status("disk.img")["attached"]["memory"].clone();
    let _ = home.volume(&["detach", "disk.img"]).output();
    eventually("the group is empty", || fs::remove_dir(&group).is_ok());
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(memory["locked"], true, "{memory}");
    assert!(memory["cgroup"].is_string(), "{memory}");
}

/// A TPM 2 in software, with storage of its own.
struct Tpm {
    process: std::process::Child,
    port: u16,
}

impl Tpm {
    fn start(memory: &Path) -> Tpm {
        fs::create_dir_all(memory).expect("a directory");
        // The next port is for control.
        let mut port = free_port();
        loop {
            let next = free_port();
            if next == port + 1 {
                break;
            }
            port = next;
        }
        let process = Command::new("swtpm")
            .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
            .args(["--tpmstate", &format!("dir={}", memory.display())])
            .args(["--server", &format!("type=tcp,port={port}")])
            .args(["--ctrl", &format!("type=tcp,port={}", port + 1)])
            .spawn()
            .expect("swtpm (Debian's package swtpm) runs");
        let tpm = Tpm { process, port };
        eventually("the TPM answers", || {
            tpm.with(&mut Command::new("tpm2_getcap"))
                .arg("handles-nv-index")
                .output()
                .is_ok_and(|it| it.status.success())
        });
        tpm
    }

    fn with<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("TPM2TOOLS_TCTI", format!("swtpm:host=127.0.0.1,port={}", self.port))
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Proves: bound to a TPM, an older state of everything that is on disks (volume, log, anchor, and what this machine
/// remembers) is refused, also one from before the binding. The newest state is accepted, also after a power cut
/// between file and counter. Another TPM is not accepted, and the counter is removed with the volume.
#[test]
fn the_tpm_knows_what_is_newest() {
    let home = Home::new();
    let tpm = Tpm::start(&home.path("tpm"));
    let mut expected = home.image("disk.img", 2 * MIB);
    home.protect("disk.img");
    let with_tpm = |arguments: &[&str]| {
        let mut command = home.volume(arguments);
        tpm.with(&mut command);
        command
    };
    let copy = |from: &str, to: &str| {
        let _ = fs::remove_dir_all(home.path(to));
        fs::create_dir(home.path(to)).expect("a directory");
        for name in ["disk.img", "disk.img.log", "state"] {
            run(Command::new("cp")
                .args(["-a", "--sparse=always"])
                .arg(home.path(from).join(name))
                .arg(home.path(to)));
        }
    };
    let put_back = |from: &str| {
        for name in ["disk.img", "disk.img.log", "state"] {
            run(Command::new("rm").arg("-rf").arg(home.path(name)));
            run(Command::new("cp").arg("-a").arg(home.path(from).join(name)).arg(home.path("")));
        }
    };
    let write = |round: u8, arguments: &[&str]| {
        let file: PathBuf = run(&mut with_tpm(arguments)).trim().into();
        let open = File::options().write(true).open(&file).expect("opened");
        open.write_all_at(&[round; 4096], u64::from(round) * 8192).expect("written");
        open.sync_all().expect("synced");
        drop(open);
        run(&mut with_tpm(&["detach", "disk.img"]));
    };
    copy("", "unbound");
    write(1, &["attach", "disk.img", "--tpm"]);
    copy("", "first");
    // This machine remembers the binding.
    write(2, &["attach", "disk.img"]);
    copy("", "second");
    for round in [1, 2] {
        expected[usize::from(round) * 8192..][..4096].fill(round);
    }
    put_back("first");
    exits_saying(&mut with_tpm(&["attach", "disk.img"]), 80, &["an older state was put back"]);
    exits_saying(&mut with_tpm(&["recover", "disk.img"]), 80, &["an older state was put back"]);
    put_back("unbound");
    exits_saying(&mut with_tpm(&["attach", "disk.img", "--tpm"]), 80, &["it is an older copy"]);
    put_back("second");
    let every = ["attach", "disk.img", "--anchor-every-flush"];
    exits_saying(&mut with_tpm(&every), 64, &["wear out"]);
    // A state that is further behind than a power cut can explain is not the newest, as the counter shows.
    let place = {
        let listed = text(
            &tpm.with(&mut Command::new("tpm2_getcap")).arg("handles-nv-index").output().expect("it runs"),
        );
        listed.trim().trim_start_matches("- ").to_owned()
    };
    let anchor = fs::read_dir(home.path("state/volumes"))
        .expect("a directory")
        .map(|entry| entry.expect("read").path());
    let anchor =
        anchor.into_iter().find(|path| path.extension().is_some_and(|it| it == "anchor")).expect("an anchor");
    let newest = fs::read_to_string(&anchor).expect("read");
    assert_eq!(home.status("disk.img")["anchor"]["tpm"], true);
    // A right count with a wrong tag.
    let forged = newest.replace("tpm ", "tpm 1");
    fs::write(&anchor, forged).expect("written");
    exits_saying(&mut with_tpm(&["attach", "disk.img"]), 65, &["damaged"]);
    fs::write(&anchor, &newest).expect("written");
    {
        let other = Tpm::start(&home.path("other-tpm"));
        let mut attach = home.volume(&["attach", "disk.img"]);
        exits_saying(other.with(&mut attach), 80, &["this TPM does not have"]);
    }
    exits_saying(home.volume(&["attach", "disk.img"]).env("PATH", "/nowhere"), 66, &["tpm2-tools"]);
    let file: PathBuf = run(&mut with_tpm(&["attach", "disk.img"])).trim().into();
    assert!(fs::read(file).expect("read") == expected);
    run(&mut with_tpm(&["detach", "disk.img"]));
    run(tpm.with(&mut Command::new("tpm2_nvincrement")).args([&place, "-C", "o"]));
    exits_saying(&mut with_tpm(&["attach", "disk.img"]), 80, &["an older state was put back"]);
    // The way out, for an operator who is sure.
    fs::remove_file(&anchor).expect("removed");
    run(&mut with_tpm(&["attach", "disk.img", "--freshness-unknown"]));
    run(&mut with_tpm(&["detach", "disk.img"]));
    run(&mut with_tpm(&["unprotect", "disk.img"]));
    assert!(fs::read(home.path("disk.img")).expect("read") == expected);
    let left = tpm.with(&mut Command::new("tpm2_getcap")).arg("handles-nv-index").output().expect("it runs");
    assert_eq!(text(&left).trim(), "");
}
