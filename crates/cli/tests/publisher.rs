//! `holdfast publish` as it is by default: the tree is walked and parsed by a sandboxed process of its own.

use crate::common;

use common::memory::{has_in_memory, seed_of};
use common::publisher::Publisher;
use common::{eventually, run, run_json, text};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// The walker of a publishing process, stopped while it has `file` open.
fn stopped_walker(publishing: &Child, file: &PathBuf) -> u32 {
    let mut found = None;
    eventually("a walker reads the file in its sandbox", || {
        let threads = fs::read_dir(format!("/proc/{}/task", publishing.id())).expect("the publisher runs");
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

/// The open descriptors of a process: their targets, and the flags they were opened with.
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

fn begin(publisher: &Publisher) -> Child {
    let mut command = publisher.holdfast();
    command.args(["--json", "publish", "tree", "--to", "release", "--key", "key", "--level", "19"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Bytes that take a while to compress.
fn large(seed: u32) -> Vec<u8> {
    (seed..seed + 8_000_000).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Proves: the walker has no privileges, no writable file, no file outside the tree, no directory, no network, and not
/// the key, which the publishing process has. When it is killed, only this publishing fails and says so; the next one
/// works.
#[test]
fn walks_apart() {
    let publisher = Publisher::new();
    publisher.write("small", "small");
    publisher.publish(&[]);
    let root = fs::read(publisher.path("release/root")).expect("read");
    publisher.write("large", large(1));
    let tree = publisher.path("tree").canonicalize().expect("a path");

    let publishing = begin(&publisher);
    let walker = stopped_walker(&publishing, &tree.join("large"));
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
        let target = leads_to.to_string_lossy();
        let is_channel =
            ["socket:", "pipe:", "/dev/null", "/memfd:"].iter().any(|start| target.starts_with(start));
        assert!(is_of_tree || is_channel, "{target} {flags:o}");
    }
    let seed = seed_of(&publisher.path("key"));
    assert!(has_in_memory(publishing.id().into(), &seed), "the search finds what is there");
    assert!(!has_in_memory(walker.into(), &seed), "the walker has the key");

    let listings = run_json(publisher.holdfast().args(["components", "--json"]));
    let own = listings.as_array().expect("a list").iter().find(|listing| listing["pid"] == publishing.id());
    let listed = &own.expect("the publisher's components")["components"][0];
    assert_eq!((&listed["name"], &listed["pid"]), (&"publish-walker".into(), &walker.into()));
    assert_eq!((&listed["lacking"], &listed["files"]), (&serde_json::json!([]), &serde_json::json!([])));
    assert_eq!(listed["profile"]["doors"], serde_json::json!(["threads"]));

    run(Command::new("kill").args(["-KILL", &walker.to_string()]));
    let output = publishing.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the process that reads the tree ended"), "{}", text(&output));
    assert_eq!(fs::read(publisher.path("release/root")).expect("read"), root, "the release is as it was");

    let report = publisher.publish(&[]);
    assert_eq!((&report["sequence"], &report["names"]), (&2.into(), &2.into()));
    assert_eq!(report["notes"], serde_json::json!([]));
    run(publisher.holdfast().args(["verify", &format!("hf+release:{}@release", publisher.id())]));
}

/// Proves: where namespaces cannot be made, nothing is published, and the error says why and what can be done;
/// `publish` never works without a sandbox by itself. With the option for that it publishes in one process, and says
/// what that means.
#[test]
fn where_sandboxes_cannot_be_made() {
    let publisher = Publisher::new();
    publisher.write("small", "small");
    let publish = |extra: &str| -> Output {
        let script = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" publish tree --to release --key key {extra}"
        );
        Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", &script, env!("CARGO_BIN_EXE_holdfast")])
            .current_dir(publisher.folder.path())
            .env("HOLDFAST_STATE_DIR", publisher.path("state"))
            .env("HOLDFAST_CACHE_DIR", publisher.path("cache"))
            .output()
            .expect("it runs")
    };
    let refused = publish("");
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(71), "{printed}");
    for words in ["cannot be shut in", "namespaces", "nothing was published", "--one-process"] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    assert!(!publisher.path("release/root").exists());
    let whole = publish("--one-process");
    let printed = text(&whole);
    assert!(whole.status.success() && printed.contains("had the keys in its memory"), "{printed}");
    run(publisher.holdfast().args(["verify", &format!("hf+release:{}@release", publisher.id())]));
}

/// Proves: the option to publish in one process is refused for a live file system, whose tree is not parsed.
#[test]
fn one_process_is_for_trees() {
    let publisher = Publisher::new();
    let address = format!("hf://127.0.0.1:1/{}/docs", "0".repeat(64));
    let arguments = ["publish", &address, "--to", "release", "--key", "key", "--one-process"];
    assert!(publisher.refused(64, &arguments).contains("for directories of this machine"));
}

/// Proves: a key is not published together with the tree that it signs.
#[test]
fn a_key_in_the_tree() {
    let publisher = Publisher::new();
    fs::create_dir(publisher.path("tree/private")).expect("made");
    fs::copy(publisher.path("key"), publisher.path("tree/private/key")).expect("copied");
    fs::set_permissions(
        publisher.path("tree/private/key"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .expect("set");
    let publish = ["publish", "tree", "--to", "release", "--key", "tree/private/key"];
    assert!(publisher.refused(64, &publish).contains("would be published with it"));
    assert!(!publisher.path("release").exists());
    run(publisher.holdfast().args(publish).args(["--exclude", "/private"]));
    let listed = run(publisher.holdfast().args(["ls", &format!("hf+release:{}@release", publisher.id())]));
    assert!(!listed.contains("private"), "{listed}");
}
