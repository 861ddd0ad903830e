//! `holdfast get` that is cut off: what it makes is whole or not there, and the same command goes on.

use crate::common;

use common::desk::Desk;
use common::{eventually, noise, run, text};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn get(desk: &Desk, from: &str, path: &str, round: usize) -> Command {
    let mut command = desk.holdfast();
    // Nothing is kept of what an earlier run has fetched, but for what it made.
    command.env("HOLDFAST_CACHE_DIR", desk.path(&format!("cache{round}")));
    command.args(["get", from, path, "got", "--id", &desk.id()]).stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Output {
    command.output().expect("it runs")
}

fn same(left: &Path, right: &Path) {
    let compared = Command::new("diff").args(["-r", "--no-dereference"]).args([left, right]).output();
    let compared = compared.expect("diff runs");
    assert!(compared.status.success(), "{}", text(&compared));
}

/// Overwrites what the mirror has of some bytes, or puts them back.
fn replace_in_packs(desk: &Desk, what: &[u8], with: &[u8]) {
    let packs = fs::read_dir(desk.path("release/packs")).expect("packs").flatten();
    let replaced = packs.filter(|pack| {
        let bytes = fs::read(pack.path()).expect("read");
        let Some(at) = bytes.windows(what.len()).position(|window| window == what) else { return false };
        let pack = File::options().write(true).open(pack.path()).expect("opened");
        pack.write_all_at(with, at as u64).expect("written");
        true
    });
    assert_eq!(replaced.count(), 1);
}

/// Proves: a mirror that fails in the middle leaves nothing under the final name, and it is said where the rest is and what
/// to do.
/// The same command goes on: what was fetched stays, what is damaged or of an older release is made anew, and what the
/// newer release does not have is gone.
#[test]
fn a_mirror_that_fails_in_the_middle() {
    let desk = Desk::new();
    let (first, last) = (noise(1, 600_000), noise(2, 300_000));
    desk.write("a/first", &first);
    desk.write("a/small", "small");
    desk.write("a/changes", "old");
    desk.write("a/goes/away", "gone");
    desk.write("z", &last);
    symlink("a/first", desk.path("tree/a/link")).expect("a link");
    fs::hard_link(desk.path("tree/a/first"), desk.path("tree/a/too")).expect("a link");
    desk.write("a/pair", "one or two");
    fs::hard_link(desk.path("tree/a/pair"), desk.path("tree/a/pair too")).expect("a link");
    File::create(desk.path("tree/a/sparse"))
        .and_then(|file| {
            file.set_len(10 << 20)?;
            file.write_all_at(b"in the middle", 5 << 20)
        })
        .expect("written");
    fs::set_permissions(desk.path("tree/a"), fs::Permissions::from_mode(0o555)).expect("set");
    desk.publish(&[]);
    replace_in_packs(&desk, &last[1000..1100], &noise(9, 100));
    let failed = output(get(&desk, "release", ".", 1));
    let said = text(&failed);
    assert!(!failed.status.success() && !desk.path("got").exists(), "{said}");
    assert!(
        said.contains("got was not made") && said.contains(".got.partial") && said.contains("goes on"),
        "{said}"
    );
    let partial = desk.path(".got.partial");
    let number = |path: &Path| fs::metadata(path).expect("stat").ino();
    let kept = ["a/first", "a/sparse", "a/small"].map(|name| number(&partial.join(name)));
    // Bytes that a power cut lost, in a file that looks as it should.
    let damaged = partial.join("a/small");
    let time = fs::metadata(&damaged).expect("stat").modified().expect("a time");
    fs::write(&damaged, [0; 5]).expect("written");
    File::options().write(true).open(&damaged).and_then(|file| file.set_modified(time)).expect("set");

    replace_in_packs(&desk, &noise(9, 100), &last[1000..1100]);
    fs::set_permissions(desk.path("tree/a"), fs::Permissions::from_mode(0o755)).expect("set");
    desk.write("a/changes", "new");
    fs::remove_file(desk.path("tree/a/pair too")).expect("removed");
    desk.write("a/pair too", "one or two");
    fs::remove_dir_all(desk.path("tree/a/goes")).expect("removed");
    fs::set_permissions(desk.path("tree/a"), fs::Permissions::from_mode(0o555)).expect("set");
    desk.publish(&[]);
    run(&mut get(&desk, "release", ".", 2));
    let got = desk.path("got");
    same(&got, &desk.path("tree"));
    let now = ["a/first", "a/sparse", "a/small"].map(|name| number(&got.join(name)));
    assert!(kept[..2] == now[..2], "what was fetched stays");
    assert_eq!(number(&got.join("a/too")), now[0]);
    assert_ne!(number(&got.join("a/pair too")), number(&got.join("a/pair")), "two files by now");
    assert_eq!(fs::metadata(got.join("a")).expect("stat").mode() & 0o7777, 0o555);
    assert!(fs::metadata(got.join("a/sparse")).expect("stat").blocks() < 1024);
    assert!(!partial.exists());
    let again = text(&output(get(&desk, "release", ".", 2)));
    assert!(again.contains("got: it is there already"), "{again}");
    for tree in [got, desk.path("tree")] {
        fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o755)).expect("set");
    }
}

/// Proves: a single file that is cut off while it is fetched is not there, and is whole after the same command was run again.
#[test]
fn one_file() {
    let desk = Desk::new();
    let content = noise(3, 3 << 20);
    desk.write("folder/file", &content);
    desk.publish(&[]);
    let end = content.len() - 1000;
    replace_in_packs(&desk, &content[end..end + 100], &noise(9, 100));
    let failed = output(get(&desk, "release", "folder/file", 1));
    assert!(!failed.status.success() && text(&failed).contains("got was not made"), "{}", text(&failed));
    assert!(!desk.path("got").exists());
    replace_in_packs(&desk, &noise(9, 100), &content[end..end + 100]);
    run(&mut get(&desk, "release", "folder/file", 2));
    assert!(fs::read(desk.path("got")).expect("read") == content);
    assert!(!desk.path(".got.partial").exists());
}

/// Proves: whenever it is killed, what it makes is whole or not there; the last run makes it whole. Two at once do not meet.
#[test]
fn killed() {
    let mut desk = Desk::new();
    for number in 0..200 {
        desk.write(&format!("{}/{number}", number % 7), noise(number, 100 + 1_000 * number as usize));
    }
    desk.publish(&[]);
    let url = desk.serve("release");
    let got = desk.path("got");
    for round in 0..12 {
        let mut one = get(&desk, &url, ".", 1);
        let mut one = one.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        std::thread::sleep(std::time::Duration::from_millis(25 * round));
        one.kill().expect("killed");
        one.wait().expect("ended");
        if got.exists() {
            same(&got, &desk.path("tree"));
            fs::remove_dir_all(&got).expect("removed");
        }
    }
    let partial = desk.path(".got.partial");
    let _ = fs::create_dir(&partial);
    let held = File::open(&partial).expect("opened");
    held.lock().expect("locked");
    let refused = output(get(&desk, &url, ".", 1));
    assert!(text(&refused).contains("another holdfast release get is making it"), "{}", text(&refused));
    drop(held);
    // Only root can give it away.
    if chown(&partial, Some(65_534), None).is_ok() {
        let refused = output(get(&desk, &url, ".", 1));
        assert!(text(&refused).contains("somebody else's") && !got.exists(), "{}", text(&refused));
        chown(&partial, Some(rustix::process::getuid().as_raw()), None).expect("given back");
    }
    eventually("nobody else holds it", || output(get(&desk, &url, ".", 1)).status.success());
    same(&got, &desk.path("tree"));
}
