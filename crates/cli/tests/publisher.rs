//! `holdfast publish` as it is by default: what walks and parses the tree is a process of its own, which holds nothing.

use crate::common;

use common::desk::Desk;
use common::memory::{has_in_memory, seed_of};
use common::{eventually, run, text};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// The walker of a publishing that has begun, stopped while it has `file` open.
fn stopped_walker(publisher: &Child, file: &PathBuf) -> u32 {
    let mut found = None;
    eventually("a walker reads the file in its sandbox", || {
        let threads = fs::read_dir(format!("/proc/{}/task", publisher.id())).expect("the publisher runs");
        let children = threads.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
        found = children
            .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
            .find(|pid| open_files(*pid).iter().any(|(leads_to, _)| leads_to == file));
        found.is_some()
    });
    let pid = found.expect("it was found");
    run(Command::new("kill").args(["-STOP", &pid.to_string()]));
    pid
}

/// What a process has open: where it leads to, and the flags it was opened with.
fn open_files(process: u32) -> Vec<(PathBuf, u32)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let look = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let number = entry.file_name();
        let info = fs::read_to_string(format!("/proc/{process}/fdinfo/{}", number.display())).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t"))?;
        Some((fs::read_link(entry.path()).ok()?, u32::from_str_radix(flags, 8).ok()?))
    };
    entries.filter_map(look).collect()
}

fn begin(desk: &Desk) -> Child {
    let mut command = desk.holdfast();
    command.args(["--json", "publish", "tree", "--to", "release", "--key", "key", "--level", "19"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Bytes that take a while.
fn large(seed: u32) -> Vec<u8> {
    (seed..seed + 8_000_000).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Proves: the walker has no privileges, no file that can be written, none outside of the tree, no directory, no network
/// and not the key, which the publisher has; killed, it takes nothing with it but the publishing, which says so, and which
/// works the next time.
#[test]
fn walks_apart() {
    let desk = Desk::new();
    desk.write("small", "small");
    desk.publish(&[]);
    let root = fs::read(desk.path("release/root")).expect("read");
    desk.write("large", large(1));
    let tree = desk.path("tree").canonicalize().expect("a path");

    let publisher = begin(&desk);
    let walker = stopped_walker(&publisher, &tree.join("large"));
    let status = fs::read_to_string(format!("/proc/{walker}/status")).expect("a status");
    for line in
        ["NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n"]
    {
        assert!(status.contains(line), "{line}{status}");
    }
    for namespace in ["user", "mnt", "pid", "net", "ipc", "uts"] {
        let of =
            |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).expect("a namespace");
        assert_ne!(of(&walker.to_string()), of("self"), "{namespace}");
    }
    for (leads_to, flags) in open_files(walker) {
        let is_for_reading = flags & 3 == 0;
        let is_of_tree = leads_to.starts_with(&tree) && is_for_reading && leads_to.is_file();
        let shown = leads_to.to_string_lossy();
        let is_channel =
            ["socket:", "pipe:", "/dev/null", "/memfd:"].iter().any(|start| shown.starts_with(start));
        assert!(is_of_tree || is_channel, "{shown} {flags:o}");
    }
    let seed = seed_of(&desk.path("key"));
    assert!(has_in_memory(publisher.id().into(), &seed), "the search finds what is there");
    assert!(!has_in_memory(walker.into(), &seed), "the walker has the key");

    let listings: Value =
        serde_json::from_str(&run(desk.holdfast().args(["components", "--json"]))).expect("JSON");
    let own = listings.as_array().expect("a list").iter().find(|listing| listing["pid"] == publisher.id());
    let listed = &own.expect("the publisher's components")["components"][0];
    assert_eq!((&listed["name"], &listed["pid"]), (&"publish-walker".into(), &walker.into()));
    assert_eq!((&listed["lacking"], &listed["files"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(listed["profile"]["doors"], serde_json::json!(["threads"]));

    run(Command::new("kill").args(["-KILL", &walker.to_string()]));
    let output = publisher.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the process that reads the tree ended"), "{}", text(&output));
    assert_eq!(fs::read(desk.path("release/root")).expect("read"), root, "the release is as it was");

    let report = desk.publish(&[]);
    assert_eq!((&report["sequence"], &report["names"]), (&2.into(), &2.into()));
    assert_eq!(report["notes"], serde_json::json!([]));
    run(desk.holdfast().args(["verify", &format!("hf+release:{}@release", desk.id())]));
}

/// Proves: where namespaces cannot be made nothing is published, and it is said why and what can be done; it never goes
/// without by itself. Asked to, it publishes in one process, and says what that means.
#[test]
fn where_sandboxes_cannot_be_made() {
    let desk = Desk::new();
    desk.write("small", "small");
    let publish = |extra: &str| -> Output {
        let script = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" publish tree --to release --key key {extra}"
        );
        Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", &script, env!("CARGO_BIN_EXE_holdfast")])
            .current_dir(desk.folder.path())
            .env("HOLDFAST_STATE_DIR", desk.path("state"))
            .env("HOLDFAST_CACHE_DIR", desk.path("cache"))
            .output()
            .expect("it runs")
    };
    let refused = publish("");
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(71), "{said}");
    for words in ["cannot be shut in", "namespaces", "nothing was published", "--one-process"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!desk.path("release/root").exists());
    let whole = publish("--one-process");
    let said = text(&whole);
    assert!(whole.status.success() && said.contains("had the keys in its memory"), "{said}");
    run(desk.holdfast().args(["verify", &format!("hf+release:{}@release", desk.id())]));
}

/// Proves: a file system that is live has no tree to be parsed, so there is nothing to go without.
#[test]
fn one_process_is_for_trees() {
    let desk = Desk::new();
    let address = format!("hf://127.0.0.1:1/{}/docs", "0".repeat(64));
    let arguments = ["publish", &address, "--to", "release", "--key", "key", "--one-process"];
    assert!(desk.refused(64, &arguments).contains("for directories of this machine"));
}

/// Proves: a key is not published with the tree that it signs.
#[test]
fn a_key_in_the_tree() {
    let desk = Desk::new();
    fs::create_dir(desk.path("tree/private")).expect("made");
    fs::copy(desk.path("key"), desk.path("tree/private/key")).expect("copied");
    fs::set_permissions(desk.path("tree/private/key"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("set");
    let publish = ["publish", "tree", "--to", "release", "--key", "tree/private/key"];
    assert!(desk.refused(64, &publish).contains("would be published with it"));
    assert!(!desk.path("release").exists());
    run(desk.holdfast().args(publish).args(["--exclude", "/private"]));
    let listed = run(desk.holdfast().args(["ls", &format!("hf+release:{}@release", desk.id())]));
    assert!(!listed.contains("private"), "{listed}");
}
