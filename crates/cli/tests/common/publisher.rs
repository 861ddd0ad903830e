//! A publisher for end-to-end tests of releases, through the real `holdfast` command.

use super::{eventually, exits, free_port, is_mounted, run, run_json, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with a publisher's key (`key`), tree (`tree`) and release directory (`release`), and the processes that serve or
/// mount the release. Dropping it unmounts and ends them.
pub struct Publisher {
    pub folder: tempfile::TempDir,
    pub servers: Vec<Child>,
    pub mounts: Vec<PathBuf>,
}

impl Publisher {
    pub fn new() -> Publisher {
        Publisher::in_folder("holdfast-test.")
    }

    /// A publisher in a temporary folder whose name begins so.
    pub fn in_folder(prefix: &str) -> Publisher {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir().expect("a folder");
        let publisher = Publisher { folder, servers: Vec::new(), mounts: Vec::new() };
        run(publisher.holdfast().args(["keygen", "--out", "key"]));
        fs::create_dir(publisher.path("tree")).expect("made");
        publisher
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file of the tree, and makes the directories above it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path("tree").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, content).expect("written");
    }

    pub fn holdfast(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .current_dir(self.folder.path())
            .env("HOLDFAST_STATE_DIR", self.path("state"))
            .env("HOLDFAST_CACHE_DIR", self.path("cache"))
            .env_remove("HOLDFAST_REVOCATIONS")
            .env_remove("SOURCE_DATE_EPOCH");
        command
    }

    /// Publishes the tree; returns what the command reports.
    pub fn publish(&self, extra: &[&str]) -> serde_json::Value {
        let mut command = self.holdfast();
        command.args(["--json", "publish", "tree", "--to", "release", "--key", "key"]).args(extra);
        run_json(&mut command)
    }

    /// The id of the published release.
    pub fn id(&self) -> String {
        // The command prints the report of an expired release too, and fails.
        let output =
            self.holdfast().args(["--json", "release", "show", "release"]).output().expect("it runs");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        report["release"].as_str().expect("an id").to_owned()
    }

    /// Serves a release directory; returns its URL.
    pub fn serve(&mut self, directory: &str) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        let server = self
            .holdfast()
            .args(["serve", directory, "--listen", &address])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs");
        self.servers.push(server);
        eventually("the server answers", || std::net::TcpStream::connect(&address).is_ok());
        format!("http://{address}/")
    }

    pub fn try_mount(&mut self, url: &str, extra: &[&str]) -> (PathBuf, Output) {
        let directory = self.path(&format!("mnt{}", self.mounts.len()));
        fs::create_dir_all(&directory).expect("made");
        let id = self.id();
        let mut command = self.holdfast();
        command.args(["mount", url]).arg(&directory).args(["--id", &id]).args(extra);
        let output = command.output().expect("it runs");
        self.mounts.push(directory.clone());
        (directory, output)
    }

    #[track_caller]
    pub fn mount(&mut self, url: &str, extra: &[&str]) -> PathBuf {
        let (directory, output) = self.try_mount(url, extra);
        assert!(output.status.success(), "{}", text(&output));
        directory
    }

    pub fn umount(&self, directory: &Path) {
        run(self.holdfast().arg("umount").arg(directory));
    }

    /// Removes the cache. The process of a mount uses it for a moment after `umount` has returned.
    pub fn remove_cache(&self) {
        let cache = self.path("cache");
        eventually("the cache is free", || {
            let _ = fs::remove_dir_all(&cache);
            !cache.exists()
        });
    }

    /// Runs a command that must end with `code`, and returns what it printed.
    #[track_caller]
    pub fn refused(&self, code: i32, arguments: &[&str]) -> String {
        exits(self.holdfast().args(arguments), code)
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        for directory in self.mounts.iter().filter(|directory| is_mounted(directory)) {
            let clean = self.holdfast().arg("umount").arg(directory).output();
            if !clean.is_ok_and(|output| output.status.success()) {
                let _ = Command::new("fusermount3").arg("-uz").arg(directory).output();
            }
        }
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
