//! `mount.holdfast`: mounts from fstab, through mount(8) itself.

use crate::common;

use common::{World, eventually, is_mounted, run, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

/// The command in a folder of its own, under the name that mount(8) calls.
fn helper(world: &World) -> PathBuf {
    let folder = world.path("sbin");
    fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("mount.holdfast");
    symlink(env!("CARGO_BIN_EXE_holdfast"), &path).expect("a link");
    path
}

/// Called with the arguments that mount(8) passes, it mounts as the options say. Refusals have the exit codes of
/// mount(8) and name the reason.
#[test]
fn called_by_name() {
    let mut world = World::new(&["anna"]);
    let helper = helper(&world);
    let point = world.path("point");
    fs::create_dir(&point).expect("a directory");
    let mount = |url: &str, options: &str| {
        let mut command = Command::new(&helper);
        command.arg(url).arg(&point).args(["-v", "-o", options]);
        command.env("HOLDFAST_STATE_DIR", world.path("anna-state"));
        command.env("HOLDFAST_CACHE_DIR", world.path("anna-cache"));
        command.output().expect("it runs")
    };
    let key = format!("key={}", world.key("anna").display());
    let missing = format!("key={}", world.key("nobody").display());
    for (url, options, code, word) in [
        (&*world.url, "rw", 1, "key=FILE"),
        (&*world.url, &*format!("{key},uid=5"), 1, "uid=5"),
        ("hf://nonsense", &*key, 32, "nonsense"),
        (&*world.url, &*missing, 32, "no such file"),
    ] {
        let output = mount(url, options);
        assert_eq!(output.status.code(), Some(code), "{options}: {}", text(&output));
        assert!(text(&output).contains(word), "{options}: {}", text(&output));
        assert!(!is_mounted(&point));
    }
    let output = mount(&world.url, &format!("ro,noexec,nosuid,nofail,_netdev,{key}"));
    assert!(output.status.success() && text(&output).contains("is mounted on"), "{}", text(&output));
    let table = fs::read_to_string("/proc/self/mounts").expect("a table");
    let line = table.lines().find(|line| line.split(' ').nth(1) == point.to_str()).expect("it is mounted");
    let flags: Vec<&str> = line.split(' ').nth(3).expect("options").split(',').collect();
    for flag in ["ro", "noexec", "nosuid", "nodev"] {
        assert!(flags.contains(&flag), "{flag}: {line}");
    }
    run(world.holdfast("anna").arg("umount").arg(&point));
    assert!(!is_mounted(&point));
    world.stop_server();
}

/// A line in an fstab is enough: `mount DIR` mounts it, `mount -a` sees that it is mounted, `umount` publishes and ends
/// it. In a mount namespace of its own, so that /usr/sbin can be replaced.
#[test]
fn through_mount_and_fstab() {
    if run(Command::new("id").arg("-u")).trim() != "0" {
        return;
    }
    let world = World::new(&["anna", "ben"]);
    helper(&world);
    let point = world.path("point");
    fs::create_dir(&point).expect("a directory");
    let line = format!(
        "{} {} holdfast key={},state={},cache={},allow_other,noexec,_netdev,nofail 0 0\n",
        world.url,
        point.display(),
        world.key("anna").display(),
        world.path("anna-state").display(),
        world.path("anna-cache").display(),
    );
    fs::write(world.path("fstab"), &line).expect("written");
    fs::write(world.path("wrong"), line.replace("key=", "keys=")).expect("written");
    let script = r#"
        set -eu
        mount --bind sbin /usr/sbin
        mount --fstab fstab point
        grep -q " $PWD/point fuse.holdfast .*noexec.*allow_other" /proc/self/mounts
        mount --fstab fstab --all
        test "$(grep -c " $PWD/point " /proc/self/mounts)" = 1
        echo 'from fstab' > point/team/file
        umount point
        if grep " $PWD/point " /proc/self/mounts; then exit 1; fi
        if mount --fstab wrong point 2> refused; then exit 1; fi
        grep -q "unknown option 'keys=" refused
    "#;
    run(Command::new("unshare").args(["--mount", "sh", "-c", script]).current_dir(world.folder.path()));
    assert!(!is_mounted(&point), "it was seen in its own namespace only");
    eventually("the process ends with its mount", || {
        // Dead mounts are listed too, and another test may have left one: so only processes count.
        world.process_status("anna").is_null()
    });
    let mut world = world;
    let ben = world.mount("ben");
    assert_eq!(fs::read_to_string(ben.join("team/file")).expect("read"), "from fstab\n");
}

/// A release is mounted from fstab without a key, from several mirrors, and `stats` reports on it. Options that are for
/// writable file systems only, and a release with another id, are refused in the words of the command.
#[test]
fn releases_from_fstab() {
    if run(Command::new("id").arg("-u")).trim() != "0" {
        return;
    }
    let folder = tempfile::Builder::new().prefix("holdfast-test.").tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let holdfast = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.current_dir(folder.path());
        command.env("HOLDFAST_STATE_DIR", path("state")).env("HOLDFAST_CACHE_DIR", path("cache"));
        command
    };
    for name in ["tree", "point", "sbin"] {
        fs::create_dir(path(name)).expect("made");
    }
    fs::write(path("tree/file"), "from a release\n").expect("written");
    symlink(env!("CARGO_BIN_EXE_holdfast"), path("sbin/mount.holdfast")).expect("a link");
    run(holdfast().args(["keygen", "--out", "key"]));
    let published = run(holdfast().args(["publish", "tree", "--to", "release", "--key", "key"]));
    let id = published.lines().find_map(|line| line.strip_prefix("ID: ")).expect("an id").to_owned();
    let line = |id: &str, options: &str| {
        format!(
            "hf+release:{id}@{} {} holdfast mirror={},state={},cache={},refresh=60,{options}_netdev,nofail 0 0\n",
            path("nowhere").display(),
            path("point").display(),
            path("release").display(),
            path("state").display(),
            path("cache").display(),
        )
    };
    fs::write(path("fstab"), line(&id, "allow_other,noexec,")).expect("written");
    fs::write(path("with-key"), line(&id, "key=/k,")).expect("written");
    fs::write(path("another"), line(&"5e".repeat(32), "")).expect("written");
    let script = r#"
        set -eu
        mount --bind sbin /usr/sbin
        mount --fstab fstab point
        grep -q " $PWD/point fuse.holdfast ro,.*noexec.*allow_other" /proc/self/mounts
        mount --fstab fstab --all
        test "$(grep -c " $PWD/point " /proc/self/mounts)" = 1
        test "$(cat point/file)" = 'from a release'
        "$HOLDFAST" stats point > stats
        "$HOLDFAST" stats point --json > stats.json
        umount point
        if grep " $PWD/point " /proc/self/mounts; then exit 1; fi
        if mount --fstab with-key point 2> refused; then exit 1; fi
        grep -q "'key' is not for releases" refused
        if mount --fstab another point 2> refused; then exit 1; fi
        grep -q "not of 5e5e" refused
    "#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script]).current_dir(folder.path());
    unshare.env("HOLDFAST", env!("CARGO_BIN_EXE_holdfast"));
    unshare.env("HOLDFAST_STATE_DIR", path("state")).env("HOLDFAST_CACHE_DIR", path("cache"));
    run(&mut unshare);
    let stats = fs::read_to_string(path("stats")).expect("read");
    for word in [&*id, "bytes received", "blocks from mirrors", "  good, ", "good answers"] {
        assert!(stats.contains(word), "{word}: {stats}");
    }
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(path("stats.json")).expect("read")).expect("JSON");
    let release = &stats
        .as_array()
        .expect("a list")
        .iter()
        .find(|of| of[0].as_str().is_some_and(|of| of.contains(&id)));
    let figures = &release.expect("it is there")[1];
    assert!(figures["bytes_received"].as_u64().expect("a number") > 0, "{figures}");
    let mirrors = figures["mirrors"].as_array().expect("a list");
    assert_eq!(mirrors.len(), 2, "{figures}");
    assert!(
        mirrors.iter().any(|mirror| mirror["answers"].as_u64().is_some_and(|answers| answers > 0)),
        "{figures}"
    );
    assert!(!is_mounted(&path("point")));
}
