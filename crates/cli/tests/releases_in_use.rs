//! Releases at work: a program compiled straight from a mount, mounts that are killed, caches that are full or damaged.

use crate::common;

use common::publisher::Publisher;
use common::{assert_same_trees, eventually, is_mounted, noise, run, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Software distribution (the paper's section 5.1): GNU hello is configured and compiled straight from a mount, which
/// goes on when one of its two mirrors is killed in the middle.
#[test]
fn compiled_from_a_mount() {
    let mut publisher = Publisher::new();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the checkout");
    let archive = run(&mut Command::new(project.join("scripts/hello-source")));
    let mut untar = Command::new("tar");
    untar.args(["xzf", archive.trim(), "--strip-components=1", "-C"]).arg(publisher.path("tree"));
    run(&mut untar);
    publisher.publish(&["--note", "hello 2.10"]);
    let (first, second) = (publisher.serve("release"), publisher.serve("release"));
    let mount = publisher.mount(&first, &["--mirror", &second]);
    let build = publisher.path("build");
    fs::create_dir(&build).expect("made");
    let mut configure = Command::new(mount.join("configure"));
    run(configure.arg("--quiet").env("FORCE_UNSAFE_CONFIGURE", "1").current_dir(&build));
    publisher.servers[0].kill().expect("killed");
    run(Command::new("make").arg("-s").current_dir(&build));
    assert_eq!(run(Command::new(build.join("hello")).env("LC_ALL", "C")), "Hello, world!\n");
    assert_same_trees(&mount, &publisher.path("tree"));
}

/// A mount in the foreground, as a process of its own, with this cache.
fn mount_in_foreground(publisher: &Publisher, url: &str, directory: &Path, cache: &Path) -> Child {
    fs::create_dir_all(directory).expect("made");
    let child = publisher
        .holdfast()
        .env("HOLDFAST_CACHE_DIR", cache)
        .args(["mount", url])
        .arg(directory)
        .args(["--foreground", "--id", &publisher.id()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    eventually("it is mounted", || is_mounted(directory));
    child
}

/// All files below the cache's folder.
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

/// A mount that is killed at any time does not hinder the next one. Whether its cache is torn or damaged, what is read
/// is what was published.
#[test]
fn killed_and_spoilt() {
    let mut publisher = Publisher::new();
    for number in 0..60 {
        publisher.write(&format!("{}/{number}", number % 7), noise(number as u64, 1_000 + number * 4_000));
    }
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let (mount, cache) = (publisher.path("mnt"), publisher.path("its-cache"));
    publisher.mounts.push(mount.clone());
    for round in 0..8u64 {
        let mut process = mount_in_foreground(&publisher, &url, &mount, &cache);
        let mut reader = Command::new("cp")
            .arg("-r")
            .arg(&mount)
            .arg(publisher.path("copy"))
            .stderr(Stdio::null())
            .spawn();
        std::thread::sleep(Duration::from_millis(12 * round));
        process.kill().expect("killed");
        process.wait().expect("ended");
        reader.as_mut().expect("cp runs").wait().expect("an error for the reader, and no waiting for ever");
        // The mount's watcher may have unmounted it first.
        let _ = Command::new("fusermount3").arg("-uz").arg(&mount).output();
        eventually("the dead mount is gone", || !is_mounted(&mount));
        let _ = fs::remove_dir_all(publisher.path("copy"));
    }
    let mut process = mount_in_foreground(&publisher, &url, &mount, &cache);
    assert_same_trees(&mount, &publisher.path("tree"));
    run(publisher.holdfast().arg("umount").arg(&mount));
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
    let mut process = mount_in_foreground(&publisher, &url, &mount, &cache);
    assert_same_trees(&mount, &publisher.path("tree"));
    run(publisher.holdfast().arg("umount").arg(&mount));
    process.wait().expect("ended");
}

/// When the cache's disk is full, everything can be read.
#[test]
fn a_full_cache() {
    let mut publisher = Publisher::new();
    for number in 0..20 {
        publisher.write(&format!("{number}"), noise(number as u64, 500_000));
    }
    publisher.publish(&[]);
    let url = publisher.serve("release");
    let cache = publisher.path("small-disk");
    fs::create_dir(&cache).expect("made");
    let small = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(&cache).output();
    if !small.is_ok_and(|output| output.status.success()) {
        eprintln!("not tested: only root can mount a small disk");
        return;
    }
    let mount = publisher.path("mnt");
    publisher.mounts.push(mount.clone());
    let mut process = mount_in_foreground(&publisher, &url, &mount, &cache);
    let compared =
        Command::new("diff").arg("-r").arg(&mount).arg(publisher.path("tree")).output().expect("it runs");
    let unmounted = publisher.holdfast().arg("umount").arg(&mount).output().expect("it runs");
    let _ = process.wait();
    let mut again = mount_in_foreground(&publisher, &url, &mount, &cache);
    let read = fs::read(mount.join("7"));
    let unmounted_again = publisher.holdfast().arg("umount").arg(&mount).output().expect("it runs");
    if !unmounted_again.status.success() {
        let _ = again.kill();
    }
    let _ = again.wait();
    holdfast_testing::unmount(&cache);
    assert!(compared.status.success(), "{}", text(&compared));
    for unmounted in [unmounted, unmounted_again] {
        assert!(unmounted.status.success(), "{}", text(&unmounted));
    }
    assert!(read.expect("read") == fs::read(publisher.path("tree/7")).expect("read"));
}
