//! `holdfast publish` as it is by default: what walks and parses the tree is a process of its own, which holds nothing.

mod common;

use common::desk::Desk;
use common::{eventually, run, text};
use std::fs;
use std::process::{Child, Command, Stdio};

/// The walker of a publishing that has begun, stopped where it is.
fn stopped_walker(publisher: &Child) -> i32 {
    let mut found = None;
    eventually("a walker runs in its sandbox", || {
        let children = format!("/proc/{0}/task", publisher.id());
        let tasks = fs::read_dir(children).expect("the publisher runs");
        let children = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
        found = children
            .flat_map(|line| line.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
            .find(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                status.contains("Seccomp:\t2\n")
            });
        found.is_some()
    });
    let pid = found.expect("it was found");
    run(Command::new("kill").args(["-STOP", &pid.to_string()]));
    pid
}

fn begin(desk: &Desk) -> Child {
    let mut command = desk.holdfast();
    command.args(["--json", "publish", "tree", "--to", "release", "--key", "key", "--level", "19"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Bytes that take a while.
fn large(seed: u32) -> Vec<u8> {
    (seed..seed + 4_000_000).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// Proves: the walker has no privileges, no file that can be written, none outside of the tree and no directory; killed, it
/// takes nothing with it but the publishing, which says so, and which works the next time.
#[test]
fn walks_apart() {
    let desk = Desk::new();
    desk.write("small", "small");
    desk.publish(&[]);
    let root = fs::read(desk.path("release/root")).expect("read");
    desk.write("large", large(1));

    let publisher = begin(&desk);
    let walker = stopped_walker(&publisher);
    let status = fs::read_to_string(format!("/proc/{walker}/status")).expect("a status");
    for line in ["NoNewPrivs:\t1\n", "CapEff:\t0000000000000000\n", "CapBnd:\t0000000000000000\n"] {
        assert!(status.contains(line), "{line}{status}");
    }
    let tree = desk.path("tree").canonicalize().expect("a path");
    for entry in fs::read_dir(format!("/proc/{walker}/fd")).expect("files").flatten() {
        let leads_to = fs::read_link(entry.path()).expect("a link");
        let number = entry.file_name();
        let info = fs::read_to_string(format!("/proc/{walker}/fdinfo/{}", number.display())).expect("info");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:\t")).expect("flags");
        let is_for_reading = flags.ends_with('0') || flags.ends_with('4');
        let is_of_tree = leads_to.starts_with(&tree) && is_for_reading && !leads_to.is_dir();
        let shown = leads_to.to_string_lossy();
        let is_channel =
            ["socket:", "pipe:", "/dev/null", "/memfd:"].iter().any(|start| shown.starts_with(start));
        assert!(is_of_tree || is_channel, "{shown} {flags}");
    }
    let listings = run(desk.holdfast().args(["components", "--json"]));
    assert!(listings.contains("publish-walker"), "{listings}");

    run(Command::new("kill").args(["-KILL", &walker.to_string()]));
    let output = publisher.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("the process that reads the tree ended"), "{}", text(&output));
    assert_eq!(fs::read(desk.path("release/root")).expect("read"), root, "the release is as it was");

    let report = desk.publish(&[]);
    assert_eq!((&report["sequence"], &report["names"]), (&2.into(), &2.into()));
    run(desk.holdfast().args(["verify", &format!("hf+release:{}@release", desk.id())]));
}

/// Proves: where namespaces cannot be made nothing is published, and it is said why.
#[test]
fn never_without_its_walls() {
    let desk = Desk::new();
    desk.write("small", "small");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .arg("echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" publish tree --to release --key key")
        .arg(env!("CARGO_BIN_EXE_holdfast"))
        .current_dir(desk.folder.path())
        .env("HOLDFAST_STATE_DIR", desk.path("state"))
        .env("HOLDFAST_CACHE_DIR", desk.path("cache"))
        .output()
        .expect("it runs");
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("cannot be shut in") && said.contains("namespaces"), "{said}");
    assert!(!desk.path("release/root").exists());
}
