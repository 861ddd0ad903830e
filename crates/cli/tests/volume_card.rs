//! Cards whose files have owners, through the real command: formatted, mounted for two people, tampered with. As root.

use crate::common;

use common::{eventually, is_mounted, run, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

const MIB: u64 = 1 << 20;

/// A folder with a card, its sidecar, two mount points and a state directory.
struct Workspace {
    folder: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Workspace {
        let workspace = Workspace {
            folder: tempfile::Builder::new().prefix("holdfast-card.").tempdir().expect("a folder"),
        };
        for name in ["alice", "bob"] {
            fs::create_dir(workspace.path(name)).expect("made");
        }
        workspace
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn volume(&self, state: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(self.folder.path()).env("HOLDFAST_STATE_DIR", self.path(state));
        command.arg("volume").args(arguments);
        command
    }

    fn format(&self, card: &str) {
        File::create(self.path(card)).expect("made").set_len(80 * MIB).expect("sized");
        run(&mut self
            .volume("state", &["format", card, "--sidecar", &format!("{card}.d"), "--label", "TESTED"]));
    }

    const MOUNT: [&str; 5] = ["alice", "--user", "alice", "--session", "bob=bob"];

    /// The arguments that mount the card for alice and bob.
    fn mount(&self, card: &str) -> Mounted<'_> {
        let sidecar = format!("{card}.d");
        let arguments = [&["mount", card, "--sidecar", &*sidecar], &Workspace::MOUNT[..]].concat();
        let child = self.volume("state", &arguments).stdout(Stdio::null()).spawn().expect("starts");
        let mounted = Mounted { workspace: self, child };
        eventually("the mounts are there", || self.is_mounted("alice") && self.is_mounted("bob"));
        mounted
    }

    /// Mounting must be refused; returns the command's output.
    fn refused(&self, state: &str, card: &str, sidecar: &str) -> Output {
        let arguments = [&["mount", card, "--sidecar", sidecar], &Workspace::MOUNT[..]].concat();
        let output = self.volume(state, &arguments).output().expect("runs");
        assert!(!output.status.success());
        assert!(!self.is_mounted("alice") && !self.is_mounted("bob"));
        output
    }

    fn is_mounted(&self, name: &str) -> bool {
        is_mounted(&self.path(name))
    }

    /// Copies the card together with its sidecar.
    fn copy(&self, card: &str, to: &str) {
        for (from, to) in [(card.to_owned(), to.to_owned()), (format!("{card}.d"), format!("{to}.d"))] {
            let _ = fs::remove_dir_all(self.path(&to));
            run(Command::new("cp").args(["-a", "-T"]).arg(self.path(&from)).arg(self.path(&to)));
        }
    }
}

struct Mounted<'a> {
    workspace: &'a Workspace,
    child: Child,
}

impl Mounted<'_> {
    fn unmount(mut self) {
        for name in ["alice", "bob"] {
            holdfast_testing::unmount(&self.workspace.path(name));
        }
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for name in ["alice", "bob"] {
            let _ = Command::new("umount")
                .arg("-l")
                .arg(self.workspace.path(name))
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Proves: a card is formatted, mounted for two users, used and mounted again, and each user's files stay that user's
/// only. The command ends with its last mount. Without Holdfast it is an ordinary card, which `fsck.fat` and mtools
/// read.
#[test]
fn used() {
    let workspace = Workspace::new();
    workspace.format("card");
    assert_eq!(
        fs::metadata(workspace.path("card.d/key")).expect("there").permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(fs::metadata(workspace.path("card.d")).expect("there").permissions().mode() & 0o777, 0o700);
    let mounted = workspace.mount("card");
    fs::write(workspace.path("alice/Letter to Bob.txt"), b"not for Bob").expect("written");
    fs::write(workspace.path("bob/mine"), b"Bob's").expect("written");
    assert!(fs::read(workspace.path("bob/Letter to Bob.txt")).is_err());
    assert!(fs::remove_file(workspace.path("bob/Letter to Bob.txt")).is_err());
    // Programs that do more than read and write.
    run(Command::new("git").args(["init", "-q"]).arg(workspace.path("alice/repository")));
    fs::write(workspace.path("alice/repository/file"), b"content").expect("written");
    run(Command::new("git").arg("-C").arg(workspace.path("alice/repository")).args(["add", "file"]));
    let commit = ["-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "first"];
    run(Command::new("git").arg("-C").arg(workspace.path("alice/repository")).args(commit));
    run(Command::new("git").arg("-C").arg(workspace.path("alice/repository")).args(["fsck", "--strict"]));
    mounted.unmount();

    let card = fs::read(workspace.path("card")).expect("read");
    fs::write(workspace.path("partition"), &card[1 << 20..]).expect("written");
    run(Command::new("fsck.fat").args(["-n", "-V"]).arg(workspace.path("partition")));
    let listed = run(Command::new("mdir").arg("-b").arg("-i").arg(workspace.path("partition")).arg("::"));
    assert!(listed.contains("Letter to Bob.txt"), "{listed}");

    let mounted = workspace.mount("card");
    assert_eq!(fs::read(workspace.path("alice/Letter to Bob.txt")).expect("read"), b"not for Bob");
    assert_eq!(fs::read(workspace.path("bob/mine")).expect("read"), b"Bob's");
    assert!(fs::read(workspace.path("alice/mine")).is_err());
    run(Command::new("git").arg("-C").arg(workspace.path("alice/repository")).args(["fsck", "--strict"]));
    mounted.unmount();
}

/// Proves: a card without its sidecar, with another card's, with a changed one, or in an older state together with its
/// sidecar, is refused in words. What does not fit is refused before anything is lost.
#[test]
fn refused() {
    let workspace = Workspace::new();
    workspace.format("card");
    workspace.format("other");
    let mounted = workspace.mount("card");
    fs::write(workspace.path("alice/a"), b"one").expect("written");
    mounted.unmount();
    workspace.copy("card", "old");
    let mounted = workspace.mount("card");
    fs::write(workspace.path("alice/a"), b"two").expect("written");
    mounted.unmount();

    let words = |output: Output| text(&output);
    let missing = words(workspace.refused("state", "card", "nothing.d"));
    assert!(missing.contains("--sidecar names the directory"), "{missing}");
    let others = words(workspace.refused("state", "card", "other.d"));
    assert!(!others.is_empty());
    let elsewhere = words(workspace.refused("elsewhere", "card", "card.d"));
    assert!(elsewhere.contains("--freshness-unknown"), "{elsewhere}");
    let older = words(workspace.refused("state", "old", "old.d"));
    assert!(older.contains("older"), "{older}");

    // The policy table, the log and the card, each changed alone.
    for (file, offset) in [("card.d/policy", 4096 + 100), ("card.d/policy", 200), ("card", (1 << 20) + 70)] {
        workspace.copy("card", "kept");
        let changed = File::options().read(true).write(true).open(workspace.path(file)).expect("opens");
        let mut byte = [0];
        changed.read_exact_at(&mut byte, offset).expect("read");
        changed.write_all_at(&[byte[0] ^ 4], offset).expect("written");
        workspace.refused("state", "card", "card.d");
        for (from, to) in [("kept", "card"), ("kept.d/policy", "card.d/policy"), ("kept.d/log", "card.d/log")]
        {
            fs::copy(workspace.path(from), workspace.path(to)).expect("put back");
        }
    }
    let mounted = workspace.mount("card");
    assert_eq!(fs::read(workspace.path("alice/a")).expect("read"), b"two");
    mounted.unmount();

    let again = workspace.volume("state", &["format", "card", "--sidecar", "new.d"]).output().expect("runs");
    assert!(!again.status.success() && text(&again).contains("--erase"), "{}", text(&again));
    let again = workspace
        .volume("state", &["format", "card", "--sidecar", "card.d", "--erase"])
        .output()
        .expect("runs");
    assert!(!again.status.success() && text(&again).contains("already"), "{}", text(&again));
    File::create(workspace.path("small")).expect("made").set_len(MIB).expect("sized");
    let small =
        workspace.volume("state", &["format", "small", "--sidecar", "small.d"]).output().expect("runs");
    assert!(!small.status.success() && text(&small).contains("64 MiB"), "{}", text(&small));
    assert!(!workspace.path("small.d").exists());
}

/// Proves: blocks that belong to signed programs pass to the next version of the program by a signed list, and to no
/// other version. A list signed with another key, or for another package, is refused.
#[test]
fn ownership_passes_by_a_signed_rule() {
    let workspace = Workspace::new();
    let lists = workspace.path("config/holdfast/programs");
    fs::create_dir_all(&lists).expect("made");
    let old = PathBuf::from(env!("CARGO_BIN_EXE_holdfast"));
    // Another version: a copy with more bytes, which behaves the same.
    let new = workspace.path("holdfast-2");
    let mut bytes = fs::read(&old).expect("read");
    bytes.extend(b"the next version");
    fs::write(&new, bytes).expect("written");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).expect("executable");
    let command = |program: &PathBuf, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(workspace.folder.path()).args(arguments);
        command
            .env("HOLDFAST_STATE_DIR", workspace.path("state"))
            .env("XDG_CONFIG_HOME", workspace.path("config"));
        command
    };
    for key in ["publisher", "other"] {
        run(&mut command(&old, &["keygen", "--out", key]));
    }
    let sign = |key: &str, name: &str, file: &str, programs: &[&PathBuf]| {
        let out = lists.join(file);
        let _ = fs::remove_file(&out);
        let mut command = command(&old, &["program", "sign", "--key", key, "--name", name, "--out"]);
        run(command.arg(out).args(programs));
    };
    let format = [
        "volume",
        "format",
        "card",
        "--sidecar",
        "card.d",
        "--components-signed-by",
        "publisher.pub/holdfast",
    ];
    File::create(workspace.path("card")).expect("made").set_len(80 * MIB).expect("sized");
    let unsigned = command(&old, &format).output().expect("runs");
    assert!(text(&unsigned).contains("is on no list"), "{}", text(&unsigned));
    assert!(!workspace.path("card.d/log").exists(), "nothing was begun");

    sign("publisher", "holdfast", "one.hfpkg", &[&old]);
    run(&mut command(&old, &format));
    let mount = [&["volume", "mount", "card", "--sidecar", "card.d"], &Workspace::MOUNT[..]].concat();
    let mounted = |program: &PathBuf| {
        let child = command(program, &mount).stdout(Stdio::null()).spawn().expect("starts");
        let mounted = Mounted { workspace: &workspace, child };
        eventually("the mounts are there", || workspace.is_mounted("alice") && workspace.is_mounted("bob"));
        mounted
    };
    let first = mounted(&old);
    fs::write(workspace.path("alice/kept"), "by the old version").expect("written");
    first.unmount();

    let refused = |program: &PathBuf| {
        let output = command(program, &mount).output().expect("runs");
        assert!(!output.status.success() && text(&output).contains("is on no list"), "{}", text(&output));
        assert!(!workspace.is_mounted("alice"));
    };
    refused(&new);
    sign("other", "holdfast", "two.hfpkg", &[&new]);
    sign("publisher", "tools", "three.hfpkg", &[&new]);
    refused(&new);
    sign("publisher", "holdfast", "four.hfpkg", &[&new]);
    let second = mounted(&new);
    assert_eq!(fs::read(workspace.path("alice/kept")).expect("read"), b"by the old version");
    fs::write(workspace.path("alice/more"), "by the new version").expect("written");
    second.unmount();

    // The blocks pass back, or to no version at all.
    let third = mounted(&old);
    assert_eq!(fs::read(workspace.path("alice/more")).expect("read"), b"by the new version");
    third.unmount();
    fs::remove_dir_all(&lists).expect("removed");
    refused(&old);
}
