//! `holdfast get` that is cut off: what it makes is whole or not there, and the same command continues it.

use crate::common;

use common::publisher::Publisher;
use common::{assert_same_trees, eventually, noise, run, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn get(publisher: &Publisher, from: &str, path: &str, round: usize) -> Command {
    let mut command = publisher.holdfast();
    // Another cache for each run, so that only the partial tree is reused.
    command.env("HOLDFAST_CACHE_DIR", publisher.path(&format!("cache{round}")));
    command.args(["get", from, path, "got", "--id", &publisher.id()]).stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("it runs")
}

/// Overwrites bytes in the mirror's packs, or puts them back.
fn replace_in_packs(publisher: &Publisher, what: &[u8], with: &[u8]) {
    let packs = fs::read_dir(publisher.path("release/packs")).expect("packs").flatten();
    let replaced = packs.filter(|pack| {
        let bytes = fs::read(pack.path()).expect("read");
        let Some(at) = bytes.windows(what.len()).position(|window| window == what) else { return false };
        let pack = File::options().write(true).open(pack.path()).expect("opened");
        pack.write_all_at(with, at as u64).expect("written");
        true
    });
    assert_eq!(replaced.count(), 1);
}

/// Proves: a mirror that fails in the middle leaves nothing under the final name, and the command says where the
/// partial tree is and what to do. The same command continues: what was fetched stays, files that are damaged or of an
/// older release are made anew, and what the newer release does not have is removed.
#[test]
fn a_mirror_that_fails_in_the_middle() {
    let publisher = Publisher::new();
    let (first, last) = (noise(1, 600_000), noise(2, 300_000));
    publisher.write("a/first", &first);
    publisher.write("a/small", "small");
    publisher.write("a/changes", "old");
    publisher.write("a/goes/away", "gone");
    publisher.write("z", &last);
    symlink("a/first", publisher.path("tree/a/link")).expect("a link");
    fs::hard_link(publisher.path("tree/a/first"), publisher.path("tree/a/too")).expect("a link");
    publisher.write("a/pair", "one or two");
    fs::hard_link(publisher.path("tree/a/pair"), publisher.path("tree/a/pair too")).expect("a link");
    File::create(publisher.path("tree/a/sparse"))
        .and_then(|file| {
            file.set_len(10 << 20)?;
            file.write_all_at(b"in the middle", 5 << 20)
        })
        .expect("written");
    fs::set_permissions(publisher.path("tree/a"), fs::Permissions::from_mode(0o555)).expect("set");
    publisher.publish(&[]);
    replace_in_packs(&publisher, &last[1000..1100], &noise(9, 100));
    let failed = output(get(&publisher, "release", ".", 1));
    let printed = text(&failed);
    assert!(!failed.status.success() && !publisher.path("got").exists(), "{printed}");
    assert!(
        printed.contains("got was not made")
            && printed.contains(".got.partial")
            && printed.contains("goes on"),
        "{printed}"
    );
    let partial = publisher.path(".got.partial");
    let number = |path: &Path| fs::metadata(path).expect("stat").ino();
    let inodes = ["a/first", "a/sparse", "a/small"].map(|name| number(&partial.join(name)));
    // A power cut lost these bytes in a file whose size and times are right.
    let damaged = partial.join("a/small");
    let time = fs::metadata(&damaged).expect("stat").modified().expect("a time");
    fs::write(&damaged, [0; 5]).expect("written");
    File::options().write(true).open(&damaged).and_then(|file| file.set_modified(time)).expect("set");

    replace_in_packs(&publisher, &noise(9, 100), &last[1000..1100]);
    fs::set_permissions(publisher.path("tree/a"), fs::Permissions::from_mode(0o755)).expect("set");
    publisher.write("a/changes", "new");
    fs::remove_file(publisher.path("tree/a/pair too")).expect("removed");
    publisher.write("a/pair too", "one or two");
    fs::remove_dir_all(publisher.path("tree/a/goes")).expect("removed");
    fs::set_permissions(publisher.path("tree/a"), fs::Permissions::from_mode(0o555)).expect("set");
    publisher.publish(&[]);
    run(&mut get(&publisher, "release", ".", 2));
    let got = publisher.path("got");
    assert_same_trees(&got, &publisher.path("tree"));
    let now = ["a/first", "a/sparse", "a/small"].map(|name| number(&got.join(name)));
    assert!(inodes[..2] == now[..2], "what was fetched stays");
    assert_eq!(number(&got.join("a/too")), now[0]);
    assert_ne!(number(&got.join("a/pair too")), number(&got.join("a/pair")), "two files by now");
    assert_eq!(fs::metadata(got.join("a")).expect("stat").mode() & 0o7777, 0o555);
    assert!(fs::metadata(got.join("a/sparse")).expect("stat").blocks() < 1024);
    assert!(!partial.exists());
    let again = text(&output(get(&publisher, "release", ".", 2)));
    assert!(again.contains("got: it is there already"), "{again}");
    for tree in [got, publisher.path("tree")] {
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o755)).expect("set");
    }
}

/// Proves: a single file that is cut off while it is fetched does not appear, and is whole after the same command was
/// run again.
#[test]
fn one_file() {
    let publisher = Publisher::new();
    let content = noise(3, 3 << 20);
    publisher.write("folder/file", &content);
    publisher.publish(&[]);
    let end = content.len() - 1000;
    replace_in_packs(&publisher, &content[end..end + 100], &noise(9, 100));
    let failed = output(get(&publisher, "release", "folder/file", 1));
    assert!(!failed.status.success() && text(&failed).contains("got was not made"), "{}", text(&failed));
    assert!(!publisher.path("got").exists());
    replace_in_packs(&publisher, &noise(9, 100), &content[end..end + 100]);
    run(&mut get(&publisher, "release", "folder/file", 2));
    assert!(fs::read(publisher.path("got")).expect("read") == content);
    assert!(!publisher.path(".got.partial").exists());
}

/// Proves: whenever the command is killed, its target is whole or not there, and the last run makes it whole. Of two
/// that run at once, one is refused.
#[test]
fn killed() {
    let mut publisher = Publisher::new();
    for number in 0..200 {
        publisher.write(&format!("{}/{number}", number % 7), noise(number, 100 + 1_000 * number as usize));
    }
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let got = publisher.path("got");
    for round in 0..12 {
        let mut one = get(&publisher, &url, ".", 1);
        let mut one = one.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(25 * round));
        one.kill().expect("killed");
        one.wait().expect("ended");
        if got.exists() {
            assert_same_trees(&got, &publisher.path("tree"));
            fs::remove_dir_all(&got).expect("removed");
        }
    }
    let partial = publisher.path(".got.partial");
    let _ = fs::create_dir(&partial);
    let held = File::open(&partial).expect("opened");
    held.lock().expect("locked");
    let refused = output(get(&publisher, &url, ".", 1));
    assert!(text(&refused).contains("another holdfast release get is making it"), "{}", text(&refused));
    drop(held);
    // Only root can give it away.
    if chown(&partial, Some(65_534), None).is_ok() {
        let refused = output(get(&publisher, &url, ".", 1));
        assert!(text(&refused).contains("somebody else's") && !got.exists(), "{}", text(&refused));
        chown(&partial, Some(rustix::process::getuid().as_raw()), None).expect("given back");
    }
    eventually("nobody else holds it", || output(get(&publisher, &url, ".", 1)).status.success());
    assert_same_trees(&got, &publisher.path("tree"));
}
