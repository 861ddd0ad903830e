//! The list of what was read first of a mounted release, which the next mount fetches ahead.

use crate::common;

use common::publisher::Publisher;
use common::{eventually, noise, run};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A published tree of small and large files, and a mirror of it.
struct Fixture {
    publisher: Publisher,
    id: String,
    url: String,
}

impl Fixture {
    fn new() -> Fixture {
        let mut publisher = Publisher::new();
        for number in 0..10 {
            publisher.write(&format!("{number}/file"), noise(number, 20_000));
            publisher.write(&format!("large {number}"), noise(100 + number, 1_500_000));
        }
        let mount = publisher.path("mnt");
        fs::create_dir(&mount).expect("made");
        publisher.mounts.push(mount);
        publisher.publish(&[]);
        let (id, url) = (publisher.id(), publisher.serve("release"));
        Fixture { publisher, id, url }
    }

    fn serve(&mut self) {
        self.url = self.publisher.serve("release");
    }

    fn stop_server(&mut self) {
        let mut server = self.publisher.servers.pop().expect("it runs");
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
        run(self.publisher.holdfast().args(["mount", &self.url, "mnt", "--id", &self.id]).args(extra));
        self.publisher.path("mnt")
    }

    fn umount(&self) {
        run(self.publisher.holdfast().args(["umount", "mnt"]));
        // The mount's process may write to its cache until it ends.
        eventually("the mount's process ends", || {
            let found = Command::new("pgrep").args(["-f", &self.id]).output().expect("it runs");
            found.stdout.is_empty()
        });
    }

    fn cache(&self) -> PathBuf {
        self.publisher.path("cache/releases").join(&self.id)
    }

    fn list(&self) -> PathBuf {
        self.cache().join("first-touch")
    }

    /// Bytes of blocks in the cache.
    fn cached_bytes(&self) -> u64 {
        let run = Command::new("du").args(["-sb", "--exclude=first-touch"]).arg(self.cache()).output();
        let printed = String::from_utf8(run.expect("it runs").stdout).expect("text");
        printed.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    }

    fn times_fetched_ahead(&self) -> usize {
        let log = self.publisher.path("state/releases").join(&self.id).join("log");
        fs::read_to_string(log).unwrap_or_default().matches("fetched ahead").count()
    }
}

fn read_all(mnt: &Path) {
    for number in (0..10).rev() {
        assert_eq!(fs::read(mnt.join(format!("{number}/file"))).expect("read"), noise(number, 20_000));
    }
}

/// What was read is noted at the end of a mount, for its owner only, and fetched ahead by the next mount: it can be
/// read when the server is gone, and nothing else is fetched. A damaged list is dropped and made again. With
/// --no-first-touch there is no list.
#[test]
fn the_next_mount_fetches_it_ahead() {
    let mut fixture = Fixture::new();
    let mnt = fixture.mount(&["--no-first-touch"]);
    read_all(&mnt);
    fixture.umount();
    let mnt = fixture.mount(&[]);
    assert!(!fixture.list().exists());
    read_all(&mnt);
    fs::metadata(mnt.join("large 3")).expect("there");
    fixture.umount();
    eventually("it is remembered", || fixture.list().exists());
    assert_eq!(fs::metadata(fixture.list()).expect("there").mode() & 0o777, 0o600);
    assert_eq!(fixture.times_fetched_ahead(), 0);

    let mnt = fixture.mount(&[]);
    eventually("it is fetched ahead", || fixture.times_fetched_ahead() == 1);
    fixture.stop_server();
    read_all(&mnt);
    assert!(fixture.cached_bytes() < 1_000_000, "what nobody read was fetched");
    let list = fs::metadata(fixture.list()).expect("there").ino();
    fixture.umount();
    eventually("it is remembered again", || {
        fs::metadata(fixture.list()).is_ok_and(|found| found.ino() != list)
    });

    fs::write(fixture.list(), b"HF-warm\x01 what is this?").expect("written");
    fixture.serve();
    let mnt = fixture.mount(&[]);
    File::open(mnt.join("large 5"))
        .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()))
        .expect("read");
    fixture.umount();
    eventually("it is made again", || {
        fs::read(fixture.list()).is_ok_and(|list| list.windows(7).any(|window| window == b"large 5"))
    });
    assert_eq!(fixture.times_fetched_ahead(), 1);
}
