//! What was read first of a mounted release is fetched ahead by the next mount.

use crate::common;

use common::{eventually, free_port, is_mounted, run};
use holdfast_testing::noise;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

struct Desk {
    folder: tempfile::TempDir,
    id: String,
    url: String,
    server: Option<Child>,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::Builder::new().prefix("holdfast-test.").tempdir().expect("a folder");
        let mut desk = Desk { folder, id: String::new(), url: String::new(), server: None };
        fs::create_dir(desk.path("mnt")).expect("made");
        for number in 0..10 {
            let directory = desk.path(&format!("tree/{number}"));
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join("file"), noise(number, 20_000)).expect("written");
            fs::write(desk.path(&format!("tree/large {number}")), noise(100 + number, 1_500_000))
                .expect("written");
        }
        run(desk.command().args(["keygen", "--out", "key"]));
        run(desk.command().args(["publish", "tree", "--to", "release", "--key", "key"]));
        let shown = run(desk.command().args(["--json", "release", "show", "release"]));
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
        desk.id = shown["release"].as_str().expect("an id").to_owned();
        desk.serve();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command
            .current_dir(self.folder.path())
            .env("HOLDFAST_STATE_DIR", self.path("state"))
            .env("HOLDFAST_CACHE_DIR", self.path("cache"));
        command
    }

    fn serve(&mut self) {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = self.command();
        command.args(["serve", "release", "--listen", &address]).stdout(Stdio::null()).stderr(Stdio::null());
        self.server = Some(command.spawn().expect("it runs"));
        eventually("the server answers", || std::net::TcpStream::connect(&address).is_ok());
        self.url = format!("http://{address}/");
    }

    fn stop_server(&mut self) {
        let mut server = self.server.take().expect("it runs");
        server.kill().expect("killed");
        server.wait().expect("gone");
    }

    /// Mounts with an empty cache of blocks.
    fn mount(&self, extra: &[&str]) -> PathBuf {
        for entry in fs::read_dir(self.cache()).into_iter().flatten() {
            let path = entry.expect("read").path();
            if path.is_dir() {
                fs::remove_dir_all(path).expect("removed");
            }
        }
        run(self.command().args(["mount", &self.url, "mnt", "--id", &self.id]).args(extra));
        self.path("mnt")
    }

    fn umount(&self) {
        run(self.command().args(["umount", "mnt"]));
        // Only then is nothing written to its cache any more.
        eventually("the mount's process ends", || {
            let found = Command::new("pgrep").args(["-f", &self.id]).output().expect("it runs");
            found.stdout.is_empty()
        });
    }

    fn cache(&self) -> PathBuf {
        self.path("cache/releases").join(&self.id)
    }

    fn list(&self) -> PathBuf {
        self.cache().join("first-touch")
    }

    /// Bytes of blocks in the cache.
    fn cached_bytes(&self) -> u64 {
        let run = Command::new("du").args(["-sb", "--exclude=first-touch"]).arg(self.cache()).output();
        let said = String::from_utf8(run.expect("it runs").stdout).expect("text");
        said.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }

    fn times_fetched_ahead(&self) -> usize {
        let log = self.path("state/releases").join(&self.id).join("log");
        fs::read_to_string(log).unwrap_or_default().matches("fetched ahead").count()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        if is_mounted(&self.path("mnt")) {
            let _ = Command::new("fusermount3").arg("-uz").arg(self.path("mnt")).output();
        }
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn read_all(mnt: &Path) {
    for number in (0..10).rev() {
        assert_eq!(fs::read(mnt.join(format!("{number}/file"))).expect("read"), noise(number, 20_000));
    }
}

/// What was read is remembered at the end of a mount, for its owner only, and is fetched ahead by the next one: it can
/// be read when the server is gone; and nothing else is fetched. A list that somebody damaged is forgotten and made
/// again; with --no-first-touch there is none.
#[test]
fn the_next_mount_fetches_it_ahead() {
    let mut desk = Desk::new();
    let mnt = desk.mount(&["--no-first-touch"]);
    read_all(&mnt);
    desk.umount();
    let mnt = desk.mount(&[]);
    assert!(!desk.list().exists());
    read_all(&mnt);
    fs::metadata(mnt.join("large 3")).expect("there");
    desk.umount();
    eventually("it is remembered", || desk.list().exists());
    assert_eq!(fs::metadata(desk.list()).expect("there").mode() & 0o777, 0o600);
    assert_eq!(desk.times_fetched_ahead(), 0);

    let mnt = desk.mount(&[]);
    eventually("it is fetched ahead", || desk.times_fetched_ahead() == 1);
    desk.stop_server();
    read_all(&mnt);
    assert!(desk.cached_bytes() < 1_000_000, "what nobody read was fetched");
    let list = fs::metadata(desk.list()).expect("there").ino();
    desk.umount();
    eventually("it is remembered again", || fs::metadata(desk.list()).is_ok_and(|found| found.ino() != list));

    fs::write(desk.list(), b"HF-warm\x01 what is this?").expect("written");
    desk.serve();
    let mnt = desk.mount(&[]);
    File::open(mnt.join("large 5"))
        .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()))
        .expect("read");
    desk.umount();
    eventually("it is made again", || {
        fs::read(desk.list()).is_ok_and(|list| list.windows(7).any(|window| window == b"large 5"))
    });
    assert_eq!(desk.times_fetched_ahead(), 1);
}
