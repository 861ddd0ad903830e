//! Cards with what is on them, through the real command: adopted, used, changed behind its back, damaged, interrupted;
//! several partitions and cards in one stack. As root, with dosfstools, mtools and fdisk.

use crate::common;

use common::{ended, eventually, run, text};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

pub struct Desk {
    folder: tempfile::TempDir,
    /// Where what is known of volumes is kept.
    state: PathBuf,
}

impl Desk {
    fn new(mounts: &[&str]) -> Desk {
        let folder = tempfile::Builder::new().prefix("holdfast-adopt.").tempdir().expect("a folder");
        for name in mounts {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        let state = folder.path().join("state");
        Desk { folder, state }
    }

    /// The same, with what is known of volumes in another directory of it.
    pub fn with_state(mounts: &[&str], state: &str) -> Desk {
        let desk = Desk::new(mounts);
        Desk { state: desk.path(state), ..desk }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn volume(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(self.folder.path()).env("HOLDFAST_STATE_DIR", &self.state);
        command.arg("volume").args(arguments);
        command
    }

    fn adopt(&self, arguments: &[&str]) -> String {
        run(&mut self.volume(&[&["adopt"], arguments].concat()))
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = ended(self.volume(arguments).stdin(Stdio::null()));
        assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
        text(&output)
    }

    pub fn is_mounted(&self, name: &str) -> bool {
        let mounts = fs::read_to_string("/proc/mounts").expect("read");
        let path = self.path(name);
        mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
    }

    /// Whether mounting is refused; where it is not, the mount is there, and ended again.
    fn is_refused(&self, mount: &str, arguments: &[&str]) -> bool {
        let child =
            self.volume(&[&["mount"], arguments].concat()).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = child.expect("starts");
        let mut ended = None;
        eventually("it is mounted, or refused", || {
            ended = child.try_wait().expect("it is a child");
            ended.is_some() || self.is_mounted(mount)
        });
        let Some(ended) = ended else {
            Mounted { desk: self, child, mounts: vec![mount.to_owned()] }.unmount();
            return false;
        };
        assert!(!ended.success() && !self.is_mounted(mount), "{ended}");
        true
    }

    fn mount(&self, mounts: &[&str], arguments: &[&str]) -> Mounted<'_> {
        let child = self.volume(&[&["mount"], arguments].concat()).stdout(Stdio::null()).spawn();
        let mut mounted = Mounted {
            desk: self,
            child: child.expect("starts"),
            mounts: mounts.iter().map(|name| (*name).to_owned()).collect(),
        };
        eventually("the mounts are there", || {
            let ended = mounted.child.try_wait().expect("it is a child");
            assert!(ended.is_none(), "{arguments:?} ended: {ended:?}");
            mounts.iter().all(|name| self.is_mounted(name))
        });
        mounted
    }

    /// A FAT32 file system of its own size at a place of a card, which is made longer.
    pub fn make_fat(&self, card: &str, start: u64, bytes: u64, cluster_sectors: u32) {
        let part = self.path("part");
        let _ = fs::remove_file(&part);
        File::create(&part).expect("made").set_len(bytes).expect("sized");
        let sectors = cluster_sectors.to_string();
        run(Command::new("mkfs.fat").args(["-F", "32", "-s", &sectors]).arg(&part));
        self.put(card, start, &fs::read(&part).expect("read"));
    }

    fn put(&self, card: &str, start: u64, bytes: &[u8]) {
        let file =
            File::options().create(true).truncate(false).write(true).open(self.path(card)).expect("opens");
        file.write_all_at(bytes, start).expect("written");
    }

    /// mtools on the file system at a place of a card.
    pub fn mtools(&self, program: &str, card: &str, start: u64, arguments: &[&str]) -> String {
        let place = format!("{}@@{start}", self.path(card).display());
        run(Command::new(program).current_dir(self.folder.path()).arg("-i").arg(place).args(arguments))
    }

    fn fsck(&self, card: &str, start: u64, bytes: u64) {
        let part = self.path("part");
        let mut content = vec![0; bytes as usize];
        File::open(self.path(card)).expect("opens").read_exact_at(&mut content, start).expect("read");
        fs::write(&part, content).expect("written");
        run(Command::new("fsck.fat").args(["-n", "-V"]).arg(&part));
    }

    fn table(&self, card: &str, script: &str) {
        let mut child = Command::new("sfdisk")
            .arg("-q")
            .arg(self.path(card))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("sfdisk runs");
        child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("told");
        assert!(child.wait().expect("ended").success());
    }

    /// A card with the usual things on it: of 70 MiB, without a partition table.
    fn card(&self, card: &str) {
        self.make_fat(card, 0, 70 * MIB, 1);
        fs::create_dir_all(self.path("source/photos/2024")).expect("made");
        let write =
            |name: &str, bytes: Vec<u8>| fs::write(self.path("source").join(name), bytes).expect("written");
        write("A letter to somebody.txt", b"dear somebody".to_vec());
        write("large", content(1, 3_000_000));
        write("empty", Vec::new());
        write("photos/one.jpg", content(2, 40_000));
        write("photos/2024/two.jpg", content(3, 50_000));
        let source = ["source/A letter to somebody.txt", "source/large", "source/empty", "source/photos"];
        self.mtools("mcopy", card, 0, &[&["-s"], &source[..], &["::"]].concat());
    }
}

struct Mounted<'a> {
    desk: &'a Desk,
    child: Child,
    mounts: Vec<String>,
}

impl Mounted<'_> {
    fn unmount(mut self) {
        for name in &self.mounts {
            holdfast_testing::unmount(&self.desk.path(name));
        }
        assert!(self.child.wait().expect("ended").success());
    }

    /// The components of this stack, as they are listed.
    fn components(&self) -> Vec<serde_json::Value> {
        let listed = run(Command::new(env!("CARGO_BIN_EXE_holdfast")).args(["components", "--json"]));
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        find(&listed, &self.child.id())
    }

    fn component(&self, name: &str) -> serde_json::Value {
        let components = self.components();
        let found = components.iter().find(|one| one["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("{name} is not in {components:?}"))
    }

    fn is_down(&self, component: &str) -> bool {
        self.component(component)["state"].as_str().is_some_and(|state| state.starts_with("down"))
    }

    /// To the process of a component, if it runs.
    fn signal(&self, component: &str, signal: rustix::process::Signal) {
        let pid = self.component(component)["pid"].as_i64().map(|pid| pid as i32);
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The components of the stack of a process, wherever the listing has them.
fn find(listed: &serde_json::Value, supervisor: &u32) -> Vec<serde_json::Value> {
    let all = listed.as_array().cloned().unwrap_or_else(|| vec![listed.clone()]);
    let own = all.into_iter().find(|one| one["pid"] == *supervisor);
    own.and_then(|own| own["components"].as_array().cloned()).unwrap_or_default()
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for name in &self.mounts {
            let _ = Command::new("umount").arg("-l").arg(self.desk.path(name)).stderr(Stdio::null()).status();
        }
    }
}

pub fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + number * 13) as u8).collect()
}

pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    fs::read(path)
}

const BOTH: [&str; 5] = ["alice", "--user", "alice", "--session", "bob=bob"];

/// Proves: a card is adopted with what is on it, which stays byte by byte; its files are whose the operator says, by
/// directory; it is used, and is a sound card for everybody else afterwards. Once another system has written to it,
/// mounting refuses it, until it is adopted anew: then files that did not change keep their owners.
#[test]
fn adopted() {
    let desk = Desk::new(&["alice", "bob"]);
    desk.card("card");
    let before = fs::read(desk.path("card")).expect("read");
    desk.adopt(&["card", "--sidecar", "card.d", "--user", "alice", "--owner", "PHOTOS=bob"]);
    assert!(before == fs::read(desk.path("card")).expect("read"), "not a byte has changed");

    let arguments = [&["card", "--sidecar", "card.d"], &BOTH[..]].concat();
    let arguments: Vec<&str> = [&arguments[..1], &BOTH[..1], &arguments[1..3], &BOTH[1..]].concat();
    let mounted = desk.mount(&["alice", "bob"], &arguments);
    let (alice, bob) = (desk.path("alice"), desk.path("bob"));
    assert_eq!(read(&alice.join("A letter to somebody.txt")).expect("hers"), b"dear somebody");
    assert!(read(&alice.join("large")).expect("hers") == content(1, 3_000_000));
    assert!(read(&bob.join("photos/one.jpg")).expect("his") == content(2, 40_000));
    assert!(read(&bob.join("photos/2024/two.jpg")).expect("his") == content(3, 50_000));
    for (who, what) in [(&bob, "large"), (&bob, "A letter to somebody.txt"), (&alice, "photos/2024/two.jpg")]
    {
        let error = read(&who.join(what)).expect_err("another's");
        assert_eq!(error.raw_os_error(), Some(13), "{what}");
        assert!(fs::remove_file(who.join(what)).is_err(), "{what}");
    }
    fs::write(bob.join("photos/three.jpg"), b"new").expect("written");
    fs::write(alice.join("A letter to somebody.txt"), b"on second thoughts").expect("written over");
    fs::write(alice.join("empty"), b"hers by now").expect("it was nobody's");
    fs::remove_file(bob.join("photos/one.jpg")).expect("his");
    mounted.unmount();
    desk.fsck("card", 0, 70 * MIB);
    desk.mtools("mcopy", "card", 0, &["::A letter to somebody.txt", "copied"]);
    assert_eq!(fs::read(desk.path("copied")).expect("copied"), b"on second thoughts");

    let again = desk.refused(&["adopt", "card", "--sidecar", "new.d", "--user", "carol"]);
    assert!(again.contains("protected already") && again.contains("--anew"), "{again}");
    let again = desk.refused(&["adopt", "card", "--sidecar", "card.d", "--user", "carol"]);
    assert!(again.contains("adopted already"), "{again}");

    // Another system writes a file.
    fs::write(desk.path("foreign"), content(9, 5000)).expect("written");
    desk.mtools("mcopy", "card", 0, &["foreign", "::"]);
    let arguments: Vec<&str> = [&["mount"], &arguments[..]].concat();
    let changed = desk.refused(&arguments);
    assert!(changed.contains("was changed since") && changed.contains("--anew"), "{changed}");
    assert!(!desk.is_mounted("alice") && !desk.is_mounted("bob"));
    let new = ["card", "--anew", "--sidecar", "new.d", "--owners-from", "card.d", "--user", "carol"];
    desk.adopt(&new);
    let mount = ["card", "alice", "--sidecar", "new.d", "--user", "alice", "--session", "bob=bob"];
    let mounted = desk.mount(&["alice", "bob"], &mount);
    assert!(read(&alice.join("large")).expect("still hers") == content(1, 3_000_000));
    assert!(read(&bob.join("photos/2024/two.jpg")).expect("still his") == content(3, 50_000));
    assert!(read(&bob.join("large")).is_err() && read(&alice.join("photos/2024/two.jpg")).is_err());
    assert!(read(&alice.join("foreign")).is_err() && read(&bob.join("foreign")).is_err(), "it is carol's");
    mounted.unmount();
    let old = desk.refused(&["mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    assert!(old.contains("--freshness-unknown"), "the old sidecar is given up: {old}");
}

/// Proves: what is not FAT32, or is damaged, is refused by its name before anything is made or changed.
#[test]
fn refused() {
    let desk = Desk::new(&["alice"]);
    let adopt = |card: &str| {
        let before = fs::read(desk.path(card)).expect("read");
        let said = desk.refused(&["adopt", card, "--sidecar", "card.d", "--user", "alice"]);
        assert!(!desk.path("card.d").exists(), "{said}");
        assert!(before == fs::read(desk.path(card)).expect("read"), "{said}");
        said
    };
    for (bits, size) in [("12", 4 * MIB), ("16", 30 * MIB)] {
        let card = desk.path(bits);
        File::create(&card).expect("made").set_len(size).expect("sized");
        run(Command::new("mkfs.fat").args(["-F", bits]).arg(&card));
        let said = adopt(bits);
        assert!(said.contains("FAT12 or FAT16"), "{said}");
    }
    desk.card("card");
    let whole = fs::read(desk.path("card")).expect("read");
    let with = |name: &str, at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(desk.path(name), changed).expect("written");
        adopt(name)
    };
    let said = with("exfat", 3, b"EXFAT   ");
    assert!(said.contains("exFAT"), "{said}");
    let said = with("ntfs", 3, b"NTFS    ");
    assert!(said.contains("NTFS"), "{said}");
    File::create(desk.path("bare-ext4")).expect("made").set_len(8 * MIB).expect("sized");
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(desk.path("bare-ext4")));
    let said = adopt("bare-ext4");
    let expected =
        ["the whole disk is ext4 (or ext3, or ext2), without a partition table", "only FAT32 can be adopted"];
    assert!(expected.iter().all(|words| said.contains(words)), "{said}");
    // What Windows writes: no sectors are reserved, and there is no copy of a FAT.
    let mut boot = vec![0; 512];
    boot[..11].copy_from_slice(b"\xebR\x90NTFS    ");
    boot[12..14].copy_from_slice(&[2, 8]);
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    let said = with("bare-ntfs", 0, &boot);
    assert!(said.contains("the whole disk is NTFS, without a partition table"), "{said}");
    let said = with("nothing", 0, &[0; 512]);
    assert!(said.contains("no file system"), "{said}");
    // The first file's second cluster leads to the third's, in both copies: each of its problems is named.
    let reserved = u16::from_le_bytes([whole[14], whole[15]]) as usize;
    let sectors = u32::from_le_bytes(whole[36..40].try_into().expect("four")) as usize;
    let mut crossed = whole.clone();
    for copy in 0..2 {
        let fat = (reserved + copy * sectors) * 512;
        crossed[fat + 40 * 4..fat + 41 * 4].copy_from_slice(&30u32.to_le_bytes());
    }
    fs::write(desk.path("crossed"), crossed).expect("written");
    let said = adopt("crossed");
    assert!(said.contains("is damaged") && said.contains("/large") && said.contains("fsck.fat"), "{said}");
    fs::write(desk.path("short"), &whole[..whole.len() / 2]).expect("written");
    let said = adopt("short");
    assert!(said.contains("cut off"), "{said}");

    // What was adopted is nothing without its sidecar, or with another's.
    desk.adopt(&["card", "--sidecar", "card.d", "--user", "alice"]);
    fs::copy(desk.path("card"), desk.path("twin")).expect("copied");
    desk.mtools("mmd", "twin", 0, &["::another"]);
    desk.adopt(&["twin", "--sidecar", "twin.d", "--user", "mallory"]);
    let missing = desk.mount_refused("card", "none.d");
    assert!(missing.contains("--sidecar names the directory"), "{missing}");
    let others = desk.mount_refused("card", "twin.d");
    assert!(others.contains("was changed since"), "{others}");
    fs::remove_file(desk.path("card.d/policy")).expect("removed");
    let incomplete = desk.mount_refused("card", "card.d");
    assert!(incomplete.contains("policy"), "{incomplete}");
    assert!(!desk.is_mounted("alice"));
}

impl Desk {
    fn mount_refused(&self, card: &str, sidecar: &str) -> String {
        self.refused(&["mount", card, "alice", "--sidecar", sidecar, "--user", "alice"])
    }
}

/// Proves: an adoption that is killed at any moment, with its processes or alone, leaves the card as it was and nobody's,
/// and the same command ends it.
#[test]
fn interrupted() {
    let desk = Desk::new(&["alice"]);
    desk.card("card");
    let before = fs::read(desk.path("card")).expect("read");
    let arguments = ["adopt", "card", "--sidecar", "card.d", "--user", "alice", "--owner", "photos=bob"];
    let mut done = false;
    for round in 0..16_u64 {
        let mut child =
            desk.volume(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(5 + round * round * 6));
        let ended = child.try_wait().expect("a child").is_some();
        if !ended {
            child.kill().expect("killed");
        }
        let output = child.wait_with_output().expect("ended");
        match output.status.code() {
            // A process of the last round, about to be shut in when it was killed, has the card's lock for a moment.
            Some(75) => continue,
            Some(0) => done = true,
            // The last round was killed when all was done but the answer.
            Some(73) if text(&output).contains("is adopted already, with this sidecar") => done = true,
            _ => assert!(!ended, "round {round}: {}", text(&output)),
        }
        assert!(before == fs::read(desk.path("card")).expect("read"), "round {round}");
        if done {
            break;
        }
        if round % 4 == 3 {
            // Or it is adopted, and was killed when all was done but the answer.
            done = !desk.is_refused("alice", &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
            if done {
                break;
            }
        }
    }
    if !done {
        eventually("it is adopted", || {
            let output = desk.volume(&arguments).output().expect("it runs");
            match output.status.code() {
                Some(0) => true,
                Some(73) if text(&output).contains("is adopted already, with this sidecar") => true,
                Some(75) => false,
                _ => panic!("{}", text(&output)),
            }
        });
        assert!(before == fs::read(desk.path("card")).expect("read"));
    }
    let mounted = desk.mount(&["alice"], &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    assert!(read(&desk.path("alice/large")).expect("hers") == content(1, 3_000_000));
    assert!(read(&desk.path("alice/photos/one.jpg")).is_err(), "bob's");
    mounted.unmount();
    // As an adoption that was cut off before it had made its log.
    fs::rename(desk.path("card.d/log"), desk.path("log")).expect("renamed");
    let arguments = ["mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"];
    let said = text(&desk.volume(&arguments).output().expect("it runs"));
    assert!(
        said.contains("card.d/log") && said.contains("`holdfast volume format` or `adopt` makes it"),
        "{said}"
    );
}

/// Proves: two partitions of one card, in an MBR or in a GPT, and another card on another bus, are one stack with a
/// driver for each; one partition's FSDriver killed for good, or hung, leaves the others unharmed, and what was
/// acknowledged is there afterwards.
#[test]
fn partitions_and_cards() {
    for (name, kind, types) in [
        ("mbr", "dos", ["c", "83", "c"]),
        ("gpt", "gpt", ["EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "L", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"]),
    ] {
        let desk = Desk::new(&["one", "two", "other"]);
        let card = desk.path(name);
        File::create(&card).expect("made").set_len(120 * MIB).expect("sized");
        let [first, second, third] = types;
        desk.table(
            name,
            &format!(
                "label: {kind}\nunit: sectors\n\
                 2048,81920,{first}\n86016,20480,{second}\n108545,102400,{third}\n"
            ),
        );
        // The third begins in the middle of a block of 4096 bytes.
        let starts = [2048 * 512, 108_545 * 512];
        desk.make_fat(name, starts[0], 81_920 * 512, 1);
        desk.make_fat(name, starts[1], 102_400 * 512, 1);
        for (at, start) in starts.into_iter().enumerate() {
            fs::write(desk.path("file"), content(at, 100_000)).expect("written");
            desk.mtools("mcopy", name, start, &["file", "::"]);
        }
        let said = desk.adopt(&[name, "--sidecar", "card.d", "--user", "alice", "--owner", "3:/=bob"]);
        assert!(said.contains("is adopted"), "{said}");
        desk.make_fat("other.img", 0, 70 * MIB, 1);
        desk.adopt(&["other.img", "--sidecar", "other.d", "--user", "alice"]);

        let which = desk.refused(&["mount", name, "one", "--sidecar", "card.d", "--user", "alice"]);
        assert!(which.contains("1, 3") && which.contains("--partition"), "{which}");
        let which = desk.refused(&[
            "mount",
            name,
            "one",
            "--sidecar",
            "card.d",
            "--user",
            "alice",
            "--partition",
            "2",
        ]);
        assert!(which.contains("partition 2"), "{which}");
        // As a loop device the other card is on another bus.
        let attached = run(Command::new("losetup").args(["-f", "--show"]).arg(desk.path("other.img")));
        let device = attached.trim().to_owned();
        let also = format!("at=other,device={device},sidecar=other.d");
        let arguments = [
            name,
            "one",
            "--sidecar",
            "card.d",
            "--user",
            "alice",
            "--partition",
            "1",
            "--also",
            "at=two,partition=3,user=bob",
            "--also",
            &also,
        ];
        let mounted = desk.mount(&["one", "two", "other"], &arguments);
        let (one, two, other) = (desk.path("one"), desk.path("two"), desk.path("other"));
        assert!(read(&one.join("file")).expect("alice's") == content(0, 100_000));
        assert!(read(&two.join("file")).expect("bob's") == content(1, 100_000));
        let components = mounted.components();
        let count = |kind: &str| {
            let is_one =
                |one: &&serde_json::Value| one["name"].as_str().is_some_and(|name| name.starts_with(kind));
            components.iter().filter(is_one).count()
        };
        assert_eq!((count("fs-driver"), count("disk-driver"), count("vfs-")), (3, 2, 3));
        assert_eq!((count("policy-manager"), count("cache-manager")), (1, 1));

        // The second partition's driver dies as often as it is started, until it stays down.
        fs::write(two.join("kept"), b"before").expect("written");
        File::open(two.join("kept")).expect("opens").sync_all().expect("durable");
        eventually("it stays down", || {
            mounted.signal("fs-driver-1", rustix::process::Signal::KILL);
            for (place, size) in [(&one, 20_000), (&other, 30_000)] {
                fs::write(place.join("meanwhile"), content(size, size)).expect("the others work");
                assert!(read(&place.join("meanwhile")).expect("read") == content(size, size));
            }
            mounted.is_down("fs-driver-1")
        });
        assert!(fs::write(two.join("new"), b"lost").is_err(), "nobody is there, and that is said at once");
        // The first one hangs: the third works on.
        mounted.signal("fs-driver", rustix::process::Signal::STOP);
        fs::write(other.join("while it hangs"), content(5, 70_000)).expect("written");
        File::open(other.join("while it hangs")).expect("opens").sync_all().expect("durable");
        assert!(read(&other.join("while it hangs")).expect("read") == content(5, 70_000));
        mounted.signal("fs-driver", rustix::process::Signal::CONT);
        assert!(read(&one.join("meanwhile")).expect("it goes on") == content(20_000, 20_000));
        mounted.unmount();
        run(Command::new("losetup").arg("-d").arg(&device));

        desk.fsck(name, starts[0], 81_920 * 512);
        desk.fsck(name, starts[1], 102_400 * 512);
        desk.fsck("other.img", 0, 70 * MIB);
        let mounted =
            desk.mount(&["two"], &[name, "two", "--sidecar", "card.d", "--user", "bob", "--partition", "3"]);
        assert_eq!(read(&two.join("kept")).expect("it was durable"), b"before");
        mounted.unmount();
    }
}

/// Proves: a card that was changed anywhere in its partition table or its file system's metadata is not mounted, and
/// its other partition is, where that was not changed; content that was changed is refused when it is read.
#[test]
fn changed() {
    let desk = Desk::new(&["alice"]);
    desk.card("card");
    desk.adopt(&["card", "--sidecar", "card.d", "--user", "alice"]);
    let whole = fs::read(desk.path("card")).expect("read");
    let reserved = u16::from_le_bytes([whole[14], whole[15]]) as usize;
    let sectors = u32::from_le_bytes(whole[36..40].try_into().expect("four")) as usize;
    let end = (reserved + 2 * sectors) * 512;
    let mut seed = 7_u64;
    for round in 0..12 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let at = match round {
            0 => 0,
            1 => end - 1,
            _ => (seed >> 33) as usize % end,
        };
        desk.put("card", at as u64, &[whole[at] ^ 1 << (round % 8)]);
        let said = desk.mount_refused("card", "card.d");
        assert!(said.contains("was changed since"), "byte {at}: {said}");
        desk.put("card", at as u64, &whole[at..=at]);
    }
    // In a file: everything else can be used.
    let needle = content(1, 3_000_000);
    let at = whole.windows(4096).position(|window| *window == needle[8192..12_288]).expect("it is there");
    desk.put("card", at as u64, b"!");
    let mounted = desk.mount(&["alice"], &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    let error = read(&desk.path("alice/large")).expect_err("a block of it is bad");
    assert_eq!(error.raw_os_error(), Some(5));
    assert_eq!(read(&desk.path("alice/A letter to somebody.txt")).expect("hers"), b"dear somebody");
    mounted.unmount();
}
