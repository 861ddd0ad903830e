//! Cards that are adopted with what is on them, through the real command: used, changed by others, damaged,
//! interrupted; several partitions and cards in one stack. As root, with dosfstools, mtools and fdisk.

use crate::common;

use common::{ended, eventually, is_mounted, run, run_json, text};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

pub struct Workspace {
    folder: tempfile::TempDir,
    /// The state directory.
    state: PathBuf,
}

impl Workspace {
    fn new(mounts: &[&str]) -> Workspace {
        let folder = tempfile::Builder::new().prefix("holdfast-adopt.").tempdir().expect("a folder");
        for name in mounts {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        let state = folder.path().join("state");
        Workspace { folder, state }
    }

    /// A workspace with another state directory.
    pub fn with_state(mounts: &[&str], state: &str) -> Workspace {
        let workspace = Workspace::new(mounts);
        Workspace { state: workspace.path(state), ..workspace }
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

    /// Runs a command, given as one line of words, that must fail; returns its output.
    #[track_caller]
    fn refused_line(&self, line: &str) -> String {
        self.refused(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn is_mounted(&self, name: &str) -> bool {
        is_mounted(&self.path(name))
    }

    /// Whether mounting is refused. If it is not, the mount works, and is ended again.
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
            Mounted { workspace: self, child, mounts: vec![mount.to_owned()] }.unmount();
            return false;
        };
        assert!(!ended.success() && !self.is_mounted(mount), "{ended}");
        true
    }

    fn mount(&self, mounts: &[&str], arguments: &[&str]) -> Mounted<'_> {
        let child = self.volume(&[&["mount"], arguments].concat()).stdout(Stdio::null()).spawn();
        let mut mounted = Mounted {
            workspace: self,
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

    /// Writes a FAT32 file system of this size at an offset of a card, which is extended.
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

    /// Runs a program of mtools on the file system at an offset of a card.
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

    /// A card of 70 MiB with the usual things on it, and without a partition table.
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
    workspace: &'a Workspace,
    child: Child,
    mounts: Vec<String>,
}

impl Mounted<'_> {
    fn unmount(mut self) {
        for name in &self.mounts {
            holdfast_testing::unmount(&self.workspace.path(name));
        }
        assert!(self.child.wait().expect("ended").success());
    }

    /// The components of this stack, as `holdfast components` lists them.
    fn components(&self) -> Vec<serde_json::Value> {
        let listed = run_json(Command::new(env!("CARGO_BIN_EXE_holdfast")).args(["components", "--json"]));
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

    /// Signals the process of a component, if it runs.
    fn signal(&self, component: &str, signal: rustix::process::Signal) {
        let pid = self.component(component)["pid"].as_i64().map(|pid| pid as i32);
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The components of a process's stack, wherever the listing has them.
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
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.workspace.path(name))
                .stderr(Stdio::null())
                .status();
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

/// Proves: a card is adopted with what is on it, which stays byte by byte. Its files belong to those whom the operator
/// names, by directory. The card is used, and is sound for every other system afterwards. Once another system has
/// written to it, mounting refuses it until it is adopted anew; then files that did not change keep their owners.
#[test]
fn adopted() {
    let workspace = Workspace::new(&["alice", "bob"]);
    workspace.card("card");
    let before = fs::read(workspace.path("card")).expect("read");
    workspace.adopt(&["card", "--sidecar", "card.d", "--user", "alice", "--owner", "PHOTOS=bob"]);
    assert!(before == fs::read(workspace.path("card")).expect("read"), "not a byte has changed");

    let arguments = [&["card", "--sidecar", "card.d"], &BOTH[..]].concat();
    let arguments: Vec<&str> = [&arguments[..1], &BOTH[..1], &arguments[1..3], &BOTH[1..]].concat();
    let mounted = workspace.mount(&["alice", "bob"], &arguments);
    let (alice, bob) = (workspace.path("alice"), workspace.path("bob"));
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
    workspace.fsck("card", 0, 70 * MIB);
    workspace.mtools("mcopy", "card", 0, &["::A letter to somebody.txt", "copied"]);
    assert_eq!(fs::read(workspace.path("copied")).expect("copied"), b"on second thoughts");

    let again = workspace.refused(&["adopt", "card", "--sidecar", "new.d", "--user", "carol"]);
    assert!(again.contains("protected already") && again.contains("--anew"), "{again}");
    let again = workspace.refused(&["adopt", "card", "--sidecar", "card.d", "--user", "carol"]);
    assert!(again.contains("adopted already"), "{again}");

    // Another system writes a file.
    fs::write(workspace.path("foreign"), content(9, 5000)).expect("written");
    workspace.mtools("mcopy", "card", 0, &["foreign", "::"]);
    let arguments: Vec<&str> = [&["mount"], &arguments[..]].concat();
    let changed = workspace.refused(&arguments);
    assert!(changed.contains("was changed since") && changed.contains("--anew"), "{changed}");
    assert!(!workspace.is_mounted("alice") && !workspace.is_mounted("bob"));
    let new = ["card", "--anew", "--sidecar", "new.d", "--owners-from", "card.d", "--user", "carol"];
    workspace.adopt(&new);
    let mount = ["card", "alice", "--sidecar", "new.d", "--user", "alice", "--session", "bob=bob"];
    let mounted = workspace.mount(&["alice", "bob"], &mount);
    assert!(read(&alice.join("large")).expect("still hers") == content(1, 3_000_000));
    assert!(read(&bob.join("photos/2024/two.jpg")).expect("still his") == content(3, 50_000));
    assert!(read(&bob.join("large")).is_err() && read(&alice.join("photos/2024/two.jpg")).is_err());
    assert!(read(&alice.join("foreign")).is_err() && read(&bob.join("foreign")).is_err(), "it is carol's");
    mounted.unmount();
    let old = workspace.refused(&["mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    assert!(old.contains("--freshness-unknown"), "the old sidecar is given up: {old}");
}

/// Proves: a card that is not FAT32, or is damaged, is refused with the name of the problem before anything is made or
/// changed.
#[test]
fn refused() {
    let workspace = Workspace::new(&["alice"]);
    let adopt = |card: &str| {
        let before = fs::read(workspace.path(card)).expect("read");
        let printed = workspace.refused(&["adopt", card, "--sidecar", "card.d", "--user", "alice"]);
        assert!(!workspace.path("card.d").exists(), "{printed}");
        assert!(before == fs::read(workspace.path(card)).expect("read"), "{printed}");
        printed
    };
    for (bits, size) in [("12", 4 * MIB), ("16", 30 * MIB)] {
        let card = workspace.path(bits);
        File::create(&card).expect("made").set_len(size).expect("sized");
        run(Command::new("mkfs.fat").args(["-F", bits]).arg(&card));
        let printed = adopt(bits);
        assert!(printed.contains("FAT12 or FAT16"), "{printed}");
    }
    workspace.card("card");
    let whole = fs::read(workspace.path("card")).expect("read");
    let with = |name: &str, at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(workspace.path(name), changed).expect("written");
        adopt(name)
    };
    let printed = with("exfat", 3, b"EXFAT   ");
    assert!(printed.contains("exFAT"), "{printed}");
    let printed = with("ntfs", 3, b"NTFS    ");
    assert!(printed.contains("NTFS"), "{printed}");
    File::create(workspace.path("bare-ext4")).expect("made").set_len(8 * MIB).expect("sized");
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(workspace.path("bare-ext4")));
    let printed = adopt("bare-ext4");
    let expected =
        ["the whole disk is ext4 (or ext3, or ext2), without a partition table", "only FAT32 can be adopted"];
    assert!(expected.iter().all(|words| printed.contains(words)), "{printed}");
    // As Windows formats: without reserved sectors and without a copy of the FAT.
    let mut boot = vec![0; 512];
    boot[..11].copy_from_slice(b"\xebR\x90NTFS    ");
    boot[12..14].copy_from_slice(&[2, 8]);
    boot[510..].copy_from_slice(&[0x55, 0xaa]);
    let printed = with("bare-ntfs", 0, &boot);
    assert!(printed.contains("the whole disk is NTFS, without a partition table"), "{printed}");
    let printed = with("nothing", 0, &[0; 512]);
    assert!(printed.contains("no file system"), "{printed}");
    // In both copies of the FAT, the first file's second cluster leads to the third's: each of the problems is named.
    let reserved = u16::from_le_bytes([whole[14], whole[15]]) as usize;
    let sectors = u32::from_le_bytes(whole[36..40].try_into().expect("four")) as usize;
    let mut crossed = whole.clone();
    for copy in 0..2 {
        let fat = (reserved + copy * sectors) * 512;
        crossed[fat + 40 * 4..fat + 41 * 4].copy_from_slice(&30u32.to_le_bytes());
    }
    fs::write(workspace.path("crossed"), crossed).expect("written");
    let printed = adopt("crossed");
    assert!(
        printed.contains("is damaged") && printed.contains("/large") && printed.contains("fsck.fat"),
        "{printed}"
    );
    fs::write(workspace.path("short"), &whole[..whole.len() / 2]).expect("written");
    let printed = adopt("short");
    assert!(printed.contains("cut off"), "{printed}");

    // An adopted card needs its own sidecar.
    workspace.adopt(&["card", "--sidecar", "card.d", "--user", "alice"]);
    fs::copy(workspace.path("card"), workspace.path("twin")).expect("copied");
    workspace.mtools("mmd", "twin", 0, &["::another"]);
    workspace.adopt(&["twin", "--sidecar", "twin.d", "--user", "mallory"]);
    let missing = workspace.mount_refused("card", "none.d");
    assert!(missing.contains("--sidecar names the directory"), "{missing}");
    let others = workspace.mount_refused("card", "twin.d");
    assert!(others.contains("was changed since"), "{others}");
    fs::remove_file(workspace.path("card.d/policy")).expect("removed");
    let incomplete = workspace.mount_refused("card", "card.d");
    assert!(incomplete.contains("policy"), "{incomplete}");
    assert!(!workspace.is_mounted("alice"));
}

impl Workspace {
    fn mount_refused(&self, card: &str, sidecar: &str) -> String {
        self.refused(&["mount", card, "alice", "--sidecar", sidecar, "--user", "alice"])
    }
}

/// Proves: an adoption that is killed at any moment, with its processes or alone, leaves the card as it was and without
/// an owner, and the same command completes it.
#[test]
fn interrupted() {
    let workspace = Workspace::new(&["alice"]);
    workspace.card("card");
    let before = fs::read(workspace.path("card")).expect("read");
    let arguments = ["adopt", "card", "--sidecar", "card.d", "--user", "alice", "--owner", "photos=bob"];
    let mut done = false;
    for round in 0..16_u64 {
        let mut child = workspace
            .volume(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        std::thread::sleep(Duration::from_millis(5 + round * round * 6));
        let ended = child.try_wait().expect("a child").is_some();
        if !ended {
            child.kill().expect("killed");
        }
        let output = child.wait_with_output().expect("ended");
        match output.status.code() {
            // A process of the last round, which was about to be sandboxed when it was killed, has the card's lock for
            // a moment.
            Some(75) => continue,
            Some(0) => done = true,
            // The last round was killed when only the answer was missing.
            Some(73) if text(&output).contains("is adopted already, with this sidecar") => done = true,
            _ => assert!(!ended, "round {round}: {}", text(&output)),
        }
        assert!(before == fs::read(workspace.path("card")).expect("read"), "round {round}");
        if done {
            break;
        }
        if round % 4 == 3 {
            // Or the card is adopted, and the command was killed when only the answer was missing.
            done =
                !workspace.is_refused("alice", &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
            if done {
                break;
            }
        }
    }
    if !done {
        eventually("it is adopted", || {
            let output = workspace.volume(&arguments).output().expect("it runs");
            match output.status.code() {
                Some(0) => true,
                Some(73) if text(&output).contains("is adopted already, with this sidecar") => true,
                Some(75) => false,
                _ => panic!("{}", text(&output)),
            }
        });
        assert!(before == fs::read(workspace.path("card")).expect("read"));
    }
    let mounted = workspace.mount(&["alice"], &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    assert!(read(&workspace.path("alice/large")).expect("hers") == content(1, 3_000_000));
    assert!(read(&workspace.path("alice/photos/one.jpg")).is_err(), "bob's");
    mounted.unmount();
    // As after an adoption that was cut off before it made its log.
    fs::rename(workspace.path("card.d/log"), workspace.path("log")).expect("renamed");
    let arguments = ["mount", "card", "alice", "--sidecar", "card.d", "--user", "alice"];
    let printed = text(&workspace.volume(&arguments).output().expect("it runs"));
    assert!(
        printed.contains("card.d/log") && printed.contains("`holdfast volume format` or `adopt` makes it"),
        "{printed}"
    );
}

/// Proves: two partitions of one card, in an MBR or in a GPT, and another card on another bus, form one stack with a
/// driver for each. When the FSDriver of one partition is killed for good, or hangs, the others are unharmed, and what
/// was acknowledged is there afterwards.
#[test]
fn partitions_and_cards() {
    for (name, kind, types) in [
        ("mbr", "dos", ["c", "83", "c"]),
        ("gpt", "gpt", ["EBD0A0A2-B9E5-4433-87C0-68B6B72699C7", "L", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"]),
    ] {
        let workspace = Workspace::new(&["one", "two", "other"]);
        let card = workspace.path(name);
        File::create(&card).expect("made").set_len(120 * MIB).expect("sized");
        let [first, second, third] = types;
        workspace.table(
            name,
            &format!(
                "label: {kind}\nunit: sectors\n\
                 2048,81920,{first}\n86016,20480,{second}\n108545,102400,{third}\n"
            ),
        );
        // The third partition begins in the middle of a block of 4096 bytes.
        let starts = [2048 * 512, 108_545 * 512];
        workspace.make_fat(name, starts[0], 81_920 * 512, 1);
        workspace.make_fat(name, starts[1], 102_400 * 512, 1);
        for (at, start) in starts.into_iter().enumerate() {
            fs::write(workspace.path("file"), content(at, 100_000)).expect("written");
            workspace.mtools("mcopy", name, start, &["file", "::"]);
        }
        let printed =
            workspace.adopt(&[name, "--sidecar", "card.d", "--user", "alice", "--owner", "3:/=bob"]);
        assert!(printed.contains("is adopted"), "{printed}");
        workspace.make_fat("other.img", 0, 70 * MIB, 1);
        workspace.adopt(&["other.img", "--sidecar", "other.d", "--user", "alice"]);

        let which = workspace.refused(&["mount", name, "one", "--sidecar", "card.d", "--user", "alice"]);
        assert!(which.contains("1, 3") && which.contains("--partition"), "{which}");
        let which =
            workspace.refused_line(&format!("mount {name} one --sidecar card.d --user alice --partition 2"));
        assert!(which.contains("partition 2"), "{which}");
        // As a loop device the other card is on another bus.
        let attached = run(Command::new("losetup").args(["-f", "--show"]).arg(workspace.path("other.img")));
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
        let mounted = workspace.mount(&["one", "two", "other"], &arguments);
        let (one, two, other) = (workspace.path("one"), workspace.path("two"), workspace.path("other"));
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

        // The second partition's driver is killed as often as it is started, until it stays down.
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
        // The first partition's driver hangs, and the third works.
        mounted.signal("fs-driver", rustix::process::Signal::STOP);
        fs::write(other.join("while it hangs"), content(5, 70_000)).expect("written");
        File::open(other.join("while it hangs")).expect("opens").sync_all().expect("durable");
        assert!(read(&other.join("while it hangs")).expect("read") == content(5, 70_000));
        mounted.signal("fs-driver", rustix::process::Signal::CONT);
        assert!(read(&one.join("meanwhile")).expect("it goes on") == content(20_000, 20_000));
        mounted.unmount();
        run(Command::new("losetup").arg("-d").arg(&device));

        workspace.fsck(name, starts[0], 81_920 * 512);
        workspace.fsck(name, starts[1], 102_400 * 512);
        workspace.fsck("other.img", 0, 70 * MIB);
        let mounted = workspace
            .mount(&["two"], &[name, "two", "--sidecar", "card.d", "--user", "bob", "--partition", "3"]);
        assert_eq!(read(&two.join("kept")).expect("it was durable"), b"before");
        mounted.unmount();
    }
}

/// Proves: a card whose partition table or file system metadata were changed anywhere is not mounted; its other
/// partition is, if that was not changed. Changed content is refused when it is read.
#[test]
fn changed() {
    let workspace = Workspace::new(&["alice"]);
    workspace.card("card");
    workspace.adopt(&["card", "--sidecar", "card.d", "--user", "alice"]);
    let whole = fs::read(workspace.path("card")).expect("read");
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
        workspace.put("card", at as u64, &[whole[at] ^ 1 << (round % 8)]);
        let printed = workspace.mount_refused("card", "card.d");
        assert!(printed.contains("was changed since"), "byte {at}: {printed}");
        workspace.put("card", at as u64, &whole[at..=at]);
    }
    // In a file: everything else can be used.
    let needle = content(1, 3_000_000);
    let at = whole.windows(4096).position(|window| *window == needle[8192..12_288]).expect("it is there");
    workspace.put("card", at as u64, b"!");
    let mounted = workspace.mount(&["alice"], &["card", "alice", "--sidecar", "card.d", "--user", "alice"]);
    let error = read(&workspace.path("alice/large")).expect_err("a block of it is bad");
    assert_eq!(error.raw_os_error(), Some(5));
    assert_eq!(read(&workspace.path("alice/A letter to somebody.txt")).expect("hers"), b"dear somebody");
    mounted.unmount();
}
