//! Releases at work: a program compiled straight from a mount, mounts that are killed, caches that are full or spoilt.

use crate::common;

use common::desk::Desk;
use common::{eventually, is_mounted, noise, run, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn same(left: &Path, right: &Path) {
    let compared = Command::new("diff").args(["-r", "--no-dereference"]).args([left, right]).output();
    let compared = compared.expect("diff runs");
    assert!(compared.status.success(), "{}", text(&compared));
}

/// Software distribution (the paper's section 5.1): GNU hello is configured and compiled straight from a mount, and goes
/// on when one of its two mirrors dies in the middle.
#[test]
fn compiled_from_a_mount() {
    let mut desk = Desk::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout");
    let archive = run(&mut Command::new(project.join("scripts/hello-source")));
    let mut untar = Command::new("tar");
    untar.args(["xzf", archive.trim(), "--strip-components=1", "-C"]).arg(desk.path("tree"));
    run(&mut untar);
    desk.publish(&["--note", "hello 2.10"]);
    let (first, second) = (desk.serve("release"), desk.serve("release"));
    let mount = desk.mount(&first, &["--mirror", &second]);
    let build = desk.path("build");
    fs::create_dir(&build).expect("made");
    let mut configure = Command::new(mount.join("configure"));
    run(configure.arg("--quiet").env("FORCE_UNSAFE_CONFIGURE", "1").current_dir(&build));
    desk.servers[0].kill().expect("killed");
    run(Command::new("make").arg("-s").current_dir(&build));
    assert_eq!(run(Command::new(build.join("hello")).env("LC_ALL", "C")), "Hello, world!\n");
    same(&mount, &desk.path("tree"));
}

/// A mount in a process of its own, with this cache.
fn mount_in_foreground(desk: &Desk, url: &str, directory: &Path, cache: &Path) -> Child {
    fs::create_dir_all(directory).expect("made");
    let child = desk
        .holdfast()
        .env("HOLDFAST_CACHE_DIR", cache)
        .args(["mount", url])
        .arg(directory)
        .args(["--foreground", "--id", &desk.id()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    eventually("it is mounted", || is_mounted(directory));
    child
}

/// Files of the cache, wherever they lie in it.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.file_type().expect("a kind").is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

/// A mount that is killed at any time leaves nothing that hinders the next one, whose cache may be torn or spoilt: what
/// is read is what was published.
#[test]
fn killed_and_spoilt() {
    let mut desk = Desk::new();
    for number in 0..60 {
        desk.write(&format!("{}/{number}", number % 7), noise(number as u64, 1_000 + number * 4_000));
    }
    desk.publish(&[]);
    let url = desk.serve("release");
    let (mount, cache) = (desk.path("mnt"), desk.path("its-cache"));
    desk.mounts.push(mount.clone());
    for round in 0..8u64 {
        let mut process = mount_in_foreground(&desk, &url, &mount, &cache);
        let mut reader =
            Command::new("cp").arg("-r").arg(&mount).arg(desk.path("copy")).stderr(Stdio::null()).spawn();
        std::thread::sleep(Duration::from_millis(12 * round));
        process.kill().expect("killed");
        process.wait().expect("ended");
        reader.as_mut().expect("cp runs").wait().expect("an error for the reader, and no waiting for ever");
        // Its watcher may have been faster.
        let _ = Command::new("fusermount3").arg("-uz").arg(&mount).output();
        eventually("the dead mount is gone", || !is_mounted(&mount));
        let _ = fs::remove_dir_all(desk.path("copy"));
    }
    let mut process = mount_in_foreground(&desk, &url, &mount, &cache);
    same(&mount, &desk.path("tree"));
    run(desk.holdfast().arg("umount").arg(&mount));
    process.wait().expect("ended");

    let mut spoilt = 0;
    for file in files_below(&cache) {
        let file = File::options().read(true).write(true).open(&file).expect("opened");
        let length = file.metadata().expect("stat").len();
        for at in (100..length).step_by(997) {
            file.write_all_at(b"spoilt", at).expect("written");
            spoilt += 1;
        }
    }
    assert!(spoilt > 1000, "the cache holds what was read");
    let mut process = mount_in_foreground(&desk, &url, &mount, &cache);
    same(&mount, &desk.path("tree"));
    run(desk.holdfast().arg("umount").arg(&mount));
    process.wait().expect("ended");
}

/// A disk that has no room for the cache keeps nobody from reading.
#[test]
fn a_full_cache() {
    let mut desk = Desk::new();
    for number in 0..20 {
        desk.write(&format!("{number}"), noise(number as u64, 500_000));
    }
    desk.publish(&[]);
    let url = desk.serve("release");
    let cache = desk.path("small-disk");
    fs::create_dir(&cache).expect("made");
    let small = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&cache).output();
    if !small.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: only root can mount a small disk");
        return;
    }
    let mount = desk.path("mnt");
    desk.mounts.push(mount.clone());
    let mut process = mount_in_foreground(&desk, &url, &mount, &cache);
    let compared =
        Command::new("diff").arg("-r").arg(&mount).arg(desk.path("tree")).output().expect("it runs");
    let unmounted = desk.holdfast().arg("umount").arg(&mount).output().expect("it runs");
    let _ = process.wait();
    let mut again = mount_in_foreground(&desk, &url, &mount, &cache);
    let read = fs::read(mount.join("7"));
    let unmounted_again = desk.holdfast().arg("umount").arg(&mount).output().expect("it runs");
    if !unmounted_again.status.success() {
        let _ = again.kill();
    }
    let _ = again.wait();
    holdfast_testing::unmount(&cache);
    assert!(compared.status.success(), "{}", text(&compared));
    for unmounted in [unmounted, unmounted_again] {
        assert!(unmounted.status.success(), "{}", text(&unmounted));
    }
    assert!(read.expect("read") == fs::read(desk.path("tree/7")).expect("read"));
}
