//! The cache of a user: shared by mounts, bounded, pinned, checked, full and damaged; and what `holdfast stats` reports
//! of it. Real mounts, real processes.

use crate::common;

use common::{World, eventually, run, run_json};
use holdfast_testing::noise;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The figures that `holdfast stats` reports of `who`'s mount.
fn stats(world: &World, who: &str) -> Value {
    let point = world.path(&format!("{who}-mnt"));
    run_json(world.holdfast(who).args(["--json", "stats"]).arg(point))[0][1].clone()
}

fn number(figures: &Value, path: &str) -> u64 {
    figures.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {figures}"))
}

/// The figures of one file, found by the end of its path.
fn of_file(figures: &Value, name: &str, what: &str) -> u64 {
    let files = figures["files"].as_array().expect("files");
    let found = files.iter().find(|file| file["path"].as_str().is_some_and(|path| path.ends_with(name)));
    found.map_or(0, |file| file[what].as_u64().expect("a number"))
}

fn cache_list(world: &World, who: &str) -> Value {
    run_json(world.holdfast(who).args(["--json", "cache"]))[0].clone()
}

fn segments(world: &World, who: &str) -> Vec<PathBuf> {
    let folder = world.path(&format!("{who}-cache")).join(world.fsid());
    let files = fs::read_dir(folder).expect("a cache folder").map(|entry| entry.expect("an entry").path());
    files.filter(|path| path.extension().is_some_and(|end| end == "segment" || end == "pinned")).collect()
}

/// Proves: what one mount of a user has fetched, another process of the same user reads without a message for it; only
/// this user can read the cache's folder.
#[test]
fn mounts_share_a_cache() {
    let mut world = World::new(&["anna", "ben", "carla"]);
    let anna = world.mount("anna");
    let bytes = noise(1, 3 << 20);
    fs::write(anna.join("team/large"), &bytes).expect("written");
    let shared = world.path("shared-cache");
    world.environment.push(("HOLDFAST_CACHE_DIR".into(), shared.display().to_string()));
    let ben = world.mount("ben");
    let carla = world.mount("carla");
    assert_eq!(fs::read(ben.join("team/large")).expect("read"), bytes);
    assert!(of_file(&stats(&world, "ben"), "team/large", "received") > 3 << 20);
    // The cache is written in the background.
    eventually("it is cached", || number(&cache_list(&world, "ben"), "/bytes") > 3 << 20);
    assert_eq!(fs::read(carla.join("team/large")).expect("read"), bytes);
    let figures = stats(&world, "carla");
    assert_eq!(of_file(&figures, "team/large", "received"), 0, "{figures}");
    assert!(number(&figures, "/store/saved/disk") > 3 << 20, "{figures}");
    let mode = fs::metadata(shared.join(world.fsid())).expect("a folder").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Proves: the figures add up: what is charged to files is what was received and sent in blocks, that is the
/// connection's traffic but for framing, and the bytes that programs asked for are those they read and wrote.
#[test]
fn figures_add_up() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    for seed in 0..4 {
        fs::write(anna.join(format!("team/file-{seed}")), noise(seed, 1 << 20)).expect("written");
    }
    let figures = stats(&world, "anna");
    let sum = |figures: &Value, what: &str| -> u64 {
        figures["files"]
            .as_array()
            .expect("files")
            .iter()
            .map(|file| file[what].as_u64().expect("number"))
            .sum()
    };
    let sent = sum(&figures, "sent");
    assert_eq!(sent, number(&figures, "/store/bytes_sent"), "{figures}");
    assert!((sent..sent + sent / 20).contains(&number(&figures, "/bytes_sent")), "{figures}");
    assert_eq!(sum(&figures, "written"), 4 << 20);
    assert!(of_file(&figures, "team/file-2", "sent") >= 1 << 20);

    let ben = world.mount("ben");
    for seed in 0..4 {
        assert_eq!(fs::read(ben.join(format!("team/file-{seed}"))).expect("read"), noise(seed, 1 << 20));
    }
    let figures = stats(&world, "ben");
    let received = sum(&figures, "received");
    assert!(received >= number(&figures, "/store/bytes_fetched"), "{figures}");
    assert!((received..received + received / 20).contains(&number(&figures, "/bytes_received")), "{figures}");
    assert_eq!(sum(&figures, "read"), 4 << 20, "{figures}");
    let text = run(world.holdfast("ben").arg("stats"));
    for word in ["Programs read", "Received", "Round trips", "team/file-0"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

/// Proves: reading a part of a small file fetches all of it, in few requests: some for the nodes of its map, some for
/// its data; a read in the middle of a large file does not.
#[test]
fn small_files_come_whole() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/small"), noise(1, 900 << 10)).expect("written");
    fs::write(anna.join("team/large"), noise(2, 20 << 20)).expect("written");
    let ben = world.mount("ben");
    let read_some = |name: &str, at: u64| {
        let mut bytes = vec![0; 4096];
        let file = fs::File::open(ben.join(name)).expect("opened");
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at).expect("read");
    };
    fs::metadata(ben.join("team/small")).expect("looked up");
    let before = number(&stats(&world, "ben"), "/store/retrieves");
    read_some("team/small", 300 << 10);
    eventually("all of it is here", || of_file(&stats(&world, "ben"), "team/small", "received") >= 900 << 10);
    let requests = number(&stats(&world, "ben"), "/store/retrieves") - before;
    assert!(requests <= 6, "{requests} requests for one small file");
    read_some("team/large", 9 << 20);
    let received = of_file(&stats(&world, "ben"), "team/large", "received");
    assert!((4096..4 << 20).contains(&received), "{received} bytes for 4096 of a large file");
}

/// Proves: what is pinned survives a restart and the clearing of everything else, is listed, and is brought up to date
/// when it is pinned again; what is unpinned can be cleared.
#[test]
fn pins_survive_restarts() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    let keep = anna.join("team/keep/deep");
    fs::create_dir_all(&keep).expect("made");
    for seed in 0..3 {
        fs::write(keep.join(format!("file-{seed}")), noise(seed, 700 << 10)).expect("written");
    }
    fs::write(anna.join("team/other"), noise(9, 1 << 20)).expect("written");
    let ben = world.mount("ben");
    let pinned = run_json(world.holdfast("ben").args(["--json", "cache", "pin"]).arg(ben.join("team/keep")));
    assert_eq!((pinned["files"].as_u64(), pinned["whole"].as_bool()), (Some(3), Some(true)), "{pinned}");
    assert!(number(&pinned, "/bytes") > 2 << 20);
    fs::read(ben.join("team/other")).expect("read");
    world.umount("ben");
    run(world.holdfast("ben").args(["cache", "clear", "--unpinned"]));
    let listed = cache_list(&world, "ben");
    assert_eq!(listed["pins"][0]["path"], "team/keep", "{listed}");
    assert_eq!(listed["bytes"], listed["bytes_pinned"], "{listed}");

    let ben = world.mount("ben");
    for seed in 0..3 {
        let name = format!("team/keep/deep/file-{seed}");
        assert_eq!(fs::read(ben.join(&name)).expect("read"), noise(seed, 700 << 10));
        assert_eq!(of_file(&stats(&world, "ben"), &name, "received"), 0);
    }
    fs::read(ben.join("team/other")).expect("read");
    assert!(of_file(&stats(&world, "ben"), "team/other", "received") >= 1 << 20);

    // The file changes and is pinned again: the new content is there, and the old one is removed after a while.
    fs::remove_file(keep.join("file-0")).expect("removed");
    fs::write(keep.join("file-1"), noise(77, 300 << 10)).expect("written");
    let again = run_json(world.holdfast("ben").args(["--json", "cache", "pin"]).arg(ben.join("team/keep")));
    assert_eq!(again["files"], 2, "{again}");
    assert!(number(&again, "/bytes") < number(&pinned, "/bytes"));
    run(world.holdfast("ben").args(["cache", "clear", "--unpinned"]));
    assert_eq!(fs::read(ben.join("team/keep/deep/file-1")).expect("read"), noise(77, 300 << 10));
    assert_eq!(of_file(&stats(&world, "ben"), "deep/file-1", "received"), 0);

    run(world.holdfast("ben").args(["cache", "unpin"]).arg(ben.join("team/keep")));
    run(world.holdfast("ben").args(["cache", "clear"]));
    let listed = cache_list(&world, "ben");
    assert_eq!((number(&listed, "/bytes_pinned"), listed["pins"].as_array().map(Vec::len)), (0, Some(0)));
    for (path, why) in [("team/absent", "no such"), ("team/other", "not pinned")] {
        let refused =
            world.holdfast("ben").args(["cache", "unpin"]).arg(ben.join(path)).output().expect("runs");
        assert!(!refused.status.success(), "{why}");
    }
    let nowhere = world.holdfast("ben").args(["cache", "pin", "/tmp"]).output().expect("runs");
    assert_eq!(nowhere.status.code(), Some(66), "{nowhere:?}");
}

/// Proves: mounts that are killed while they fill the cache leave a cache that works and has no wrong bytes.
#[test]
fn killed_while_filling() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    let bytes = noise(5, 24 << 20);
    fs::write(anna.join("team/large"), &bytes).expect("written");
    for round in 0..3 {
        let ben = world.mount("ben");
        let path = ben.join("team/large");
        let reader = std::thread::spawn(move || drop(fs::read(path)));
        eventually("something is cached", || {
            let sizes = segments(&world, "ben")
                .into_iter()
                .map(|path| fs::metadata(path).map_or(0, |data| data.len()));
            sizes.sum::<u64>() > (1 + 6 * round) << 20
        });
        let process = world.mount_process("ben").expect("it runs");
        let _ = Command::new("kill").args(["-9", &process.to_string()]).status();
        reader.join().expect("it ends");
        let _ = world.holdfast("ben").args(["umount", "--lazy"]).arg(&ben).output();
    }
    let checked = run_json(world.holdfast("ben").args(["--json", "cache", "check"]));
    assert_eq!(number(&checked[0][1], "/bad"), 0, "{checked}");
    assert!(number(&checked[0][1], "/blocks") > 10, "{checked}");
    let ben = world.mount("ben");
    assert_eq!(fs::read(ben.join("team/large")).expect("read"), bytes);
    let received = of_file(&stats(&world, "ben"), "team/large", "received");
    assert!(received < 20 << 20, "{received}: nothing of what was cached is used");
}

/// Proves: damage in the cache costs only time; a check finds exactly the damage while the mount runs.
#[test]
fn damage_is_found_and_dropped() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna");
    let bytes = noise(6, 2 << 20);
    fs::write(anna.join("team/file"), &bytes).expect("written");
    eventually("it is cached", || number(&cache_list(&world, "anna"), "/bytes") > 2 << 20);
    world.umount("anna");
    let anna = world.mount("anna");
    let segment = segments(&world, "anna").pop().expect("a segment");
    let mut content = fs::read(&segment).expect("read");
    for at in (100_000..content.len()).step_by(400_000) {
        content[at] ^= 0x40;
    }
    fs::write(&segment, &content).expect("written");
    let checked = run_json(world.holdfast("anna").args(["--json", "cache", "check"]));
    assert!((1..=6).contains(&number(&checked[0][1], "/bad")), "{checked}");
    let again = run_json(world.holdfast("anna").args(["--json", "cache", "check"]));
    assert_eq!(number(&again[0][1], "/bad"), 0, "{again}");
    assert_eq!(fs::read(anna.join("team/file")).expect("read"), bytes);
}

/// Proves: running mounts keep to a cache size that was chosen, too.
#[test]
fn a_size_is_chosen() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    fs::write(anna.join("team/large"), noise(7, 24 << 20)).expect("written");
    let ben = world.mount("ben");
    fs::read(ben.join("team/large")).expect("read");
    eventually("it is cached", || number(&cache_list(&world, "ben"), "/bytes") > 20 << 20);
    run(world.holdfast("ben").args(["cache", "size", "8M"]));
    fs::write(anna.join("team/more"), noise(8, 6 << 20)).expect("written");
    fs::read(ben.join("team/more")).expect("read");
    let listed = cache_list(&world, "ben");
    assert_eq!(number(&listed, "/bytes_max"), 8 << 20, "{listed}");
    // What a running mount has written since is not reduced by the command; the mount makes room at its next write.
    assert!(number(&listed, "/bytes") < 12 << 20, "{listed}");
    let bad = world.holdfast("ben").args(["cache", "size", "many"]).output().expect("runs");
    assert_eq!(bad.status.code(), Some(64));
}

/// Proves: when the cache's disk is full, everything works without the cache.
#[test]
fn a_full_disk() {
    let mut world = World::new(&["anna", "ben"]);
    let anna = world.mount("anna");
    let bytes = noise(8, 6 << 20);
    fs::write(anna.join("team/large"), &bytes).expect("written");
    let cache = world.path("ben-cache");
    fs::create_dir_all(&cache).expect("made");
    let Some(_small) = Small::mount(&cache, "1M") else { return };
    let ben = world.mount("ben");
    assert_eq!(fs::read(ben.join("team/large")).expect("read"), bytes);
    fs::write(ben.join("team/back"), &bytes).expect("written");
    assert_eq!(fs::read(anna.join("team/back")).expect("read"), bytes);
    let used: u64 = segments(&world, "ben")
        .iter()
        .map(|path| fs::metadata(path).map_or(0, |data| data.blocks() * 512))
        .sum();
    assert!(used <= 1 << 20, "{used}");
    world.umount("ben");
}

/// Proves: where the cache and unsaved data share a small disk, the cache leaves a part free and gives way to what
/// programs write.
#[test]
fn the_cache_gives_way() {
    let mut world = World::new(&["anna", "ben"]);
    let disk = world.path("disk");
    fs::create_dir(&disk).expect("a directory");
    let Some(_small) = Small::mount(&disk, "64M") else { return };
    for name in ["ben-cache", "ben-state"] {
        fs::create_dir(disk.join(name)).expect("a directory");
        std::os::unix::fs::symlink(disk.join(name), world.path(name)).expect("a link");
    }
    let anna = world.mount("anna").join("team");
    let many: Vec<Vec<u8>> = (0..10).map(|seed| holdfast_testing::noise(seed, 8 << 20)).collect();
    for (number, bytes) in many.iter().enumerate() {
        fs::write(anna.join(format!("{number}")), bytes).expect("written");
    }
    let ben = world.mount("ben").join("team");
    for (number, bytes) in many.iter().enumerate() {
        assert!(fs::read(ben.join(format!("{number}"))).expect("read") == *bytes);
    }
    let free = || {
        let disk = rustix::fs::statvfs(&disk).expect("statvfs");
        disk.f_bavail * disk.f_frsize
    };
    // Blocks go into the cache in the background.
    eventually("the cache leaves some of the disk free", || free() >= 64 << 20 >> 5);
    let large = holdfast_testing::noise(99, 24 << 20);
    fs::write(ben.join("large"), &large).expect("the cache has given way");
    assert!(fs::read(anna.join("large")).expect("read") == large);
    world.umount("ben");
}

/// Proves: the repeating output of `--watch` works without a terminal, and ends at a signal.
#[test]
fn stats_are_watched() {
    let mut world = World::new(&["anna"]);
    world.mount("anna");
    let log = fs::File::create(world.path("watched")).expect("made");
    let mut watching = world
        .holdfast("anna")
        .args(["stats", "--watch"])
        .stdin(std::process::Stdio::null())
        .stdout(log)
        .spawn()
        .expect("it runs");
    let watched = || fs::read_to_string(world.path("watched")).unwrap_or_default();
    eventually("it was shown three times, with rates", || {
        watched().matches("Round trips").count() >= 3 && watched().contains("/s)")
    });
    watching.kill().expect("it can be ended");
    watching.wait().expect("it ended");
    assert!(!watched().contains('\x1b'), "no terminal, no control characters");
}

/// A file system of one megabyte, mounted where this user may mount.
struct Small(PathBuf);

impl Small {
    fn mount(on: &Path, size: &str) -> Option<Small> {
        let size = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "holdfast-test"]).arg(on).status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("skipped: this user may not mount");
            return None;
        }
        Some(Small(on.to_owned()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
