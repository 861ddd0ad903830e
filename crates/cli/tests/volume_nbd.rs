//! Protected volumes attached as NBD servers, through the real command and the NBD clients of others.

use crate::common;

use common::{ended, run, run_json, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A folder with an image and a state directory, whose volume is detached at the end.
struct Home(tempfile::TempDir);

impl Home {
    /// A workspace with a protected image of 16 MiB, each byte of which is 7.
    fn new() -> Home {
        let home = Home(tempfile::Builder::new().prefix("holdfast-volume-nbd.").tempdir().expect("a folder"));
        fs::write(home.path("disk"), vec![7; 16 << 20]).expect("written");
        run(&mut home.volume(&["protect", "disk", "--log", "disk.log", "--key", "disk.key"]));
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn volume(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(self.0.path()).env("HOLDFAST_STATE_DIR", self.path("state"));
        command.env("HOLDFAST_LOG", "info,operation=trace");
        command.arg("volume").args(arguments);
        command
    }

    fn attach(&self, arguments: &[&str]) -> String {
        let all: Vec<&str> = ["attach", "disk"].iter().chain(arguments).copied().collect();
        run(&mut self.volume(&all)).trim().to_owned()
    }

    /// The log of the process that serves the volume.
    fn volume_log(&self) -> String {
        let folders = fs::read_dir(self.path("state/volumes")).expect("volumes");
        let logs = folders.filter_map(|folder| fs::read_to_string(folder.ok()?.path().join("log")).ok());
        logs.collect()
    }

    /// Runs commands of `qemu-io` on a served volume.
    fn qemu_io(&self, uri: &str, commands: &[&str]) -> Output {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]);
        for words in commands {
            command.args(["-c", words]);
        }
        // `qemu-io` is in Debian's package qemu-utils.
        ended(command.arg(uri).stdin(Stdio::null()))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = self.volume(&["detach", "disk"]).output();
    }
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", text(output));
}

/// Proves: a volume is served at a socket of its owner, can be written and read there, reports where a block was
/// changed behind its back, stays attached while a client uses it, and becomes a plain image again. Its log traces a
/// flush.
#[test]
fn a_volume_at_a_socket() {
    let home = Home::new();
    let socket = home.path("nbd");
    let uri = home.attach(&["--nbd", &format!("unix:{}", socket.display())]);
    assert_eq!(uri, format!("nbd+unix:///?socket={}", socket.display()));
    let mode = fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may connect");
    succeeded(&home.qemu_io(&uri, &["write -P 9 1M 64k", "flush", "read -P 9 1M 64k", "read -P 7 2M 4M"]));
    let status = run_json(&mut home.volume(&["status", "disk", "--json"]));
    assert_eq!(status["attached"]["export"]["kind"], "nbd");
    assert_eq!(status["attached"]["export"]["path"], uri.as_str());
    let log = home.volume_log();
    for part in ["log hashes", "force the log"] {
        let is_part =
            |line: &str| line.contains("nbd request{") && line.contains(part) && line.contains("Flush");
        assert!(log.lines().any(is_part), "{part}: {log}");
    }

    let file = File::options().write(true).open(home.path("disk")).expect("opened");
    file.write_all_at(b"!", (8 << 20) + 77).expect("spoilt");
    let read = home.qemu_io(&uri, &["read 8M 4k"]);
    assert!(text(&read).contains("Input/output error"), "{}", text(&read));
    let seen = r"
import sys, nbd
h = nbd.NBD()
h.connect_uri(sys.argv[1])
places = []
try:
    h.pread_structured(65536, 8388608 - 4096, lambda data, offset, status, error: places.append((offset, status)))
except nbd.Error as error:
    assert error.errno == 'EIO', error
assert (8388608, nbd.READ_ERROR) in places, places
print('seen', flush=True)
sys.stdin.read()
";
    let mut client = Command::new("/usr/bin/python3")
        .args(["-c", seen, &uri])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it runs (package python3-libnbd)");
    let mut line = String::new();
    let mut told = std::io::BufReader::new(client.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut told, &mut line).expect("read");
    assert_eq!(line, "seen\n", "the place is told");
    let refused = home.volume(&["detach", "disk"]).output().expect("it runs");
    assert!(!refused.status.success() && text(&refused).contains("client"), "{}", text(&refused));
    drop(client.stdin.take());
    succeeded(&client.wait_with_output().expect("it ends"));

    succeeded(&home.qemu_io(&uri, &["write -P 5 8M 4k"]));
    run(&mut home.volume(&["detach", "disk"]));
    assert!(!socket.exists());
    let mut expected = vec![7; 16 << 20];
    expected[1 << 20..][..64 << 10].fill(9);
    expected[8 << 20..][..4 << 10].fill(5);
    assert!(fs::read(home.path("disk")).expect("read") == expected, "it is a plain image");
}

/// Proves: a port is open on this machine only, and an address that cannot be listened on is named in the error.
#[test]
fn a_volume_at_a_port() {
    let home = Home::new();
    for (address, words) in [
        ("0.0.0.0:0", "can be reached from other machines"),
        ("unix:/nowhere/at/all", "listening on unix:/nowhere/at/all"),
        ("localhost", "no address to listen on"),
    ] {
        let refused = home.volume(&["attach", "disk", "--nbd", address]).output().expect("it runs");
        assert!(!refused.status.success() && text(&refused).contains(words), "{}", text(&refused));
    }
    let both = home.volume(&["attach", "disk", "--nbd", ":0", "--ublk"]).output().expect("it runs");
    assert!(!both.status.success() && text(&both).contains("cannot be used with"), "{}", text(&both));
    let uri = home.attach(&["--nbd", ":0", "--anchor-every-flush"]);
    assert!(uri.starts_with("nbd://127.0.0.1:"), "{uri}");
    succeeded(
        &home.qemu_io(&uri, &["write -f -P 3 0 1M", "discard 4M 4M", "read -P 3 0 1M", "read -P 0 4M 4M"]),
    );
    run(&mut home.volume(&["detach", "disk"]));
    run(&mut home.volume(&["attach", "disk", "--nbd", ":0"]));
}

/// Proves: on a kernel without ublk the error says so, with the way out; on one with it, the device appears and
/// disappears.
#[test]
fn a_volume_as_a_ublk_device() {
    let home = Home::new();
    if !holdfast_ublk::is_available() {
        let refused = home.volume(&["attach", "disk", "--ublk"]).output().expect("it runs");
        assert!(!refused.status.success() && text(&refused).contains("--nbd"), "{}", text(&refused));
        return;
    }
    let device = PathBuf::from(home.attach(&["--ublk"]));
    assert_eq!(fs::read(&device).expect("read"), vec![7; 16 << 20]);
    run(&mut home.volume(&["detach", "disk"]));
    assert!(!device.exists());
}
