//! `holdfast pull` as its users run it: from a server, again, killed, and with mistakes.

mod common;

use common::{eventually, free_port, run};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Desk {
    folder: tempfile::TempDir,
    servers: Vec<Child>,
}

impl Drop for Desk {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(seed) | 1 << 40;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::Builder::new().prefix("holdfast-test.").tempdir().expect("a folder");
        let desk = Desk { folder, servers: Vec::new() };
        run(desk.holdfast().args(["keygen", "--out", "key"]));
        fs::create_dir_all(desk.path("tree/src")).expect("made");
        for number in 0..20 {
            fs::write(desk.path(&format!("tree/src/{number}")), noise(number, 30_000)).expect("written");
        }
        fs::write(desk.path("tree/large"), noise(100, 20_000_000)).expect("written");
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn holdfast(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .current_dir(self.folder.path())
            .env("HOLDFAST_STATE_DIR", self.path("state"))
            .env("HOLDFAST_CACHE_DIR", self.path("cache"))
            .env_remove("HOLDFAST_REVOCATIONS")
            .env_remove("SOURCE_DATE_EPOCH");
        command
    }

    /// Publishes the tree; returns the release's id.
    fn publish(&self) -> String {
        let mut command = self.holdfast();
        command.args(["--json", "publish", "tree", "--to", "release", "--key", "key"]);
        let report: serde_json::Value = serde_json::from_str(&run(&mut command)).expect("JSON");
        report["id"].as_str().expect("an id").to_owned()
    }

    fn serve(&mut self, directory: &str) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        let mut server = self.holdfast();
        server.args(["serve", directory, "--listen", &address]).stdout(Stdio::null()).stderr(Stdio::null());
        self.servers.push(server.spawn().expect("it runs"));
        eventually("the server answers", || std::net::TcpStream::connect(&address).is_ok());
        format!("http://{address}/")
    }

    fn pull(&self, from: &str) -> Command {
        let mut command = self.holdfast();
        command.args(["--json", "pull", from, "copy"]);
        command
    }

    fn pulled(&self, from: &str) -> serde_json::Value {
        serde_json::from_str(&run(&mut self.pull(from))).expect("JSON")
    }
}

/// Proves: pulled over HTTP, also when it is killed again and again, and served on, a release is what was published; a
/// change costs what changed; and other directories are left alone, with a reason.
#[test]
fn a_mirror_of_a_mirror() {
    let mut desk = Desk::new();
    let id = desk.publish();
    let url = desk.serve("release");
    let link = format!("hf+release:{id}@{url}");
    for milliseconds in [5, 20, 50, 100] {
        let mut killed =
            desk.pull(&link).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().expect("killed, or ended");
        killed.wait().expect("ended");
    }
    let first = desk.pulled(&link);
    assert_eq!(first["sequence"], 1);
    let second = desk.pulled(&link);
    assert_eq!(second["changed"], false);
    assert!(second["bytes_fetched"].as_u64() < Some(5_000), "{second}");

    fs::write(desk.path("tree/src/3"), noise(1003, 30_000)).expect("written");
    desk.publish();
    let mut changed = second;
    // The server looks again for its record once a second.
    eventually("the server has the release", || {
        changed = desk.pulled(&link);
        changed["sequence"] == 2
    });
    assert_eq!(changed["releases"], 2);
    assert!(changed["bytes_fetched"].as_u64() < Some(100_000), "{changed}");
    assert!(changed["requests"].as_u64() <= Some(10), "{changed}");

    let mirror = desk.serve("copy");
    run(desk.holdfast().args(["get", &format!("hf+release:{id}@{mirror}"), ".", "got"]));
    let same = Command::new("diff").args(["-r"]).arg(desk.path("tree")).arg(desk.path("got")).status();
    assert!(same.expect("it runs").success());

    let refused = |arguments: &[&str]| {
        let output = desk.holdfast().arg("pull").args(arguments).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = refused(&[&link, "tree"]);
    assert!(code == Some(73) && said.contains("no file of a release"), "{code:?} {said}");
    let (code, said) = refused(&[&url, "copy"]);
    assert!(code == Some(64) && said.contains("--id"), "{code:?} {said}");
    let (code, said) = refused(&[&link, "copy", "--from", "tree"]);
    assert!(code == Some(74) && said.contains("tree/root"), "{code:?} {said}");
    let lock = fs::File::open(desk.path("copy")).expect("opened");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let (code, said) = refused(&[&link, "copy"]);
    assert!(code == Some(74) && said.contains("somebody else"), "{code:?} {said}");
}
