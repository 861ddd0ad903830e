//! `holdfast server` as it is started by default: in two processes, of which the one that faces the network has no data
//! and no keys.

use crate::common;

use common::process::Process;
use common::{World, ended, eventually, eventually_some, run, run_json, text};
use std::fs;
use std::process::{Command, Stdio};

/// The front end of a server, as `holdfast components` lists it. Waits until there is one that is not the process `killed`.
fn front_end(world: &World, killed: Option<u64>) -> serde_json::Value {
    eventually_some("there is a front end", || {
        let listings = run_json(world.holdfast("operator").args(["components", "--json"]));
        let own = listings.as_array().expect("a list").iter().find(|listing| {
            listing["name"] == "server" && listing["pid"].as_u64() == Some(world.server_process().into())
        });
        let front = own.expect("the server's components")["components"][0].clone();
        front["pid"].as_u64().is_some_and(|pid| Some(pid) != killed).then_some(front)
    })
}

/// The front end is started by default and listed with its privileges. When it is killed while a file system is
/// mounted, another takes its place, and the mount goes on with all that was written.
#[test]
fn by_default_and_started_anew() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna").join("anna");
    fs::write(anna.join("before"), "before").expect("written");
    let mut killed = None;
    for round in 0..3 {
        let front = front_end(&world, killed);
        assert_eq!(front["name"], "server-front");
        assert_eq!(front["lacking"], serde_json::json!([]));
        assert_eq!(front["files"], serde_json::json!(["tcp", "udp", "counters"]));
        assert!(!front["guards"].as_array().expect("a list").is_empty());
        let pid = front["pid"].as_u64().expect("a process");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
        assert!(status.contains("Seccomp:\t2\n") && status.contains("NoNewPrivs:\t1\n"), "{status}");
        run(Command::new("kill").args(["-9", &pid.to_string()]));
        killed = Some(pid);
        fs::write(anna.join("after"), format!("after {round}")).expect("written");
    }
    world.umount("anna");
    let anna = world.mount("anna").join("anna");
    assert_eq!(fs::read_to_string(anna.join("before")).expect("read"), "before");
    assert_eq!(fs::read_to_string(anna.join("after")).expect("read"), "after 2");
    assert!(front_end(&world, killed)["restarts"].as_u64().expect("a number") > 0);
}

/// Where namespaces cannot be made, the server does not start, and says what is lacking and what can be done; it never
/// serves without a sandbox by itself. With `--one-process` it serves in one process and warns of it.
#[test]
fn where_sandboxes_cannot_be_made() {
    let folder = tempfile::tempdir().expect("a directory");
    let start = |extra: &str| {
        let script = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" server --listen 127.0.0.1:0 --data \"$1\" {extra}"
        );
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", &script, env!("CARGO_BIN_EXE_holdfast")]);
        command.arg(folder.path().join("data")).stdin(Stdio::null());
        command
    };
    let refused = ended(&mut start(""));
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(71), "{printed}");
    assert!(
        printed.contains("front end") && printed.contains("namespaces") && printed.contains("--one-process"),
        "{printed}"
    );
    assert!(!printed.contains("holdfast serves"), "{printed}");
    let path = folder.path().join("said");
    let mut whole = Process::default();
    whole.begin(&mut start("--one-process"), &path);
    eventually("it serves and warns", || {
        let printed = fs::read_to_string(&path).expect("read");
        printed.contains("holdfast serves") && printed.contains("faces the network itself")
    });
}
