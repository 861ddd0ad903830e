//! `holdfast server` for its operator: who may create file systems, collecting, scrubbing and figures, with the server
//! running and stopped.

use crate::common;

use common::{World, eventually, exits, free_port, run, run_json, text};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// Garbage is collected and everything is scrubbed while the server runs and while it does not; what is in use stays.
#[test]
fn gc_scrub_and_stats() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna").join("anna");
    let content = "a line of text that stays\n".repeat(20_000);
    fs::write(anna.join("stays"), &content).expect("written");
    for round in 0..5 {
        fs::write(anna.join("goes"), format!("round {round}\n").repeat(50_000)).expect("written");
    }
    fs::remove_file(anna.join("goes")).expect("removed");
    for running in [true, false] {
        if !running {
            world.umount("anna");
            world.stop_server();
        }
        let figures = run_json(world.operator("stats").arg("--json"));
        assert_eq!(figures["running"], running);
        assert!(figures["blocks"].as_u64().expect("a number") > 0);
        assert_eq!(figures["file_systems"][0]["id"], world.fsid());
        let collected = run_json(world.operator("gc").arg("--json"));
        assert_eq!(collected[0]["error"], serde_json::Value::Null, "{collected}");
        assert!(collected[0]["missing"].as_array().expect("a list").is_empty());
        let scrubbed = run_json(world.operator("scrub").arg("--json"));
        assert_eq!(scrubbed["bad_count"], 0);
        assert!(scrubbed["records"].as_u64().expect("a number") > 0);
    }
    world.start_server();
    let anna = world.mount("anna").join("anna");
    assert_eq!(fs::read_to_string(anna.join("stays")).expect("read"), content);
}

/// A server that gets SIGTERM just after it said that it serves ends in order, with a front end and without.
#[test]
fn a_signal_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..12 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        command.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
        command.args(if round % 2 == 0 { &["--one-process"][..] } else { &[] });
        let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().expect("piped")).read_line(&mut line).expect("read");
        assert!(line.contains("holdfast serves"), "{line}");
        run(Command::new("kill").arg(server.id().to_string()));
        eventually("it ends", || server.try_wait().expect("a child").is_some());
        assert_eq!(server.wait().expect("ended").code(), Some(0), "round {round}");
    }
}

/// The answer of `address` to a GET: its status, and its body.
fn get(address: &str, path: &str) -> (u32, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// The figures follow the work, over HTTP and printed once. A supervisor is told that a server has ended, and that it
/// runs again.
#[test]
fn figures_for_monitoring() {
    let mut world = World::new(&["anna"]);
    let listen = format!("127.0.0.1:{}", free_port());
    let mut metrics = world.holdfast("operator");
    metrics.args(["server", "metrics", "--listen", &listen, "--data"]).arg(world.data());
    let mut exporter = metrics.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    eventually("it listens", || TcpStream::connect(&listen).is_ok());
    let figure = |name: &str| -> f64 {
        let (status, text) = get(&listen, "/metrics");
        assert_eq!(status, 200);
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{name}: {text}"))
    };
    assert_eq!(
        (get(&listen, "/healthz").0, get(&listen, "/readyz").0, get(&listen, "/other").0),
        (200, 200, 404)
    );
    let before = figure("holdfast_operations_total");
    let anna = world.mount("anna").join("anna");
    fs::write(anna.join("file"), "content").expect("written");
    world.umount("anna");
    assert!(figure("holdfast_operations_total") > before);
    let printed = run(world.holdfast("operator").args(["server", "metrics", "--data"]).arg(world.data()));
    let of_log = format!("holdfast_log_operations{{file_system=\"{}\"}} ", world.fsid());
    assert!(printed.contains("holdfast_up 1\n") && printed.contains(&of_log), "{printed}");

    world.stop_server();
    assert_eq!(figure("holdfast_up"), 0.0);
    let (status, why) = get(&listen, "/healthz");
    assert!(status == 503 && why.contains("no server runs"), "{status} {why}");
    assert_eq!(get(&listen, "/readyz").0, 503);
    world.start_server();
    eventually("it is there again", || get(&listen, "/readyz").0 == 200);
    exporter.kill().expect("it runs");
    exporter.wait().expect("it ended");
}

/// Root is not to write into the data directory of another user, whose server could not read the files: with no server
/// running, that is refused, and the way out named.
#[test]
fn another_users_directory() {
    if run(Command::new("id").arg("-u")).trim() != "0" {
        return;
    }
    let mut world = World::new(&["anna"]);
    world.keygen("another");
    run(Command::new("chown").args(["-R", "12345"]).arg(world.data()));
    run(&mut world.operator("stats"));
    world.stop_server();
    let mut allow = world.holdfast("operator");
    allow.args(["server", "allow", "--data"]).arg(world.data()).arg(world.path("another.key.pub"));
    for mut command in [world.operator("stats"), world.operator("gc"), allow] {
        let output = exits(&mut command, 77);
        assert!(output.contains("--reuid 12345"), "{output}");
    }
}

/// A scrub finds a byte that the disk changed, names the block, and ends with an exit code of its own.
#[test]
fn scrub_finds_damage() {
    let mut world = World::new(&["anna"]);
    let anna = world.mount("anna").join("anna");
    // Incompressible, so that it is stored as it is and can be found again.
    let marker: String = (0..4000u32).map(|n| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    fs::write(anna.join("file"), &marker).expect("written");
    world.umount("anna");
    world.stop_server();
    let mut damaged = false;
    for entry in fs::read_dir(world.data().join("store")).expect("a directory") {
        let path = entry.expect("an entry").path();
        let Ok(mut bytes) = fs::read(&path) else { continue };
        // In the middle of a segment's data, and not in its last record.
        if path.extension().is_some_and(|extension| extension == "log") && bytes.len() > 8192 {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(&path, bytes).expect("written");
            damaged = true;
        }
    }
    assert!(damaged, "there is a segment to damage");
    exits(&mut world.operator("scrub"), 65);
}

/// Who may create file systems: nobody, listed keys only, or everybody on this machine.
#[test]
fn who_may_create() {
    let mut world = World::new(&["anna"]);
    world.keygen("another");
    let address = format!("127.0.0.1:{}", world.port);
    let create = |world: &World| {
        let mut command = world.holdfast("another");
        command.args(["fs", "create", &address, "--name", "ours", "--superuser"]).arg(world.key("another"));
        command
    };
    for policy in ["nobody", "listed"] {
        world.stop_server();
        world.start_server_with(&["--create", policy]);
        let output = create(&world).stdin(Stdio::null()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(77), "{}", text(&output));
        assert!(text(&output).contains("holdfast server allow"), "{}", text(&output));
    }
    let public = fs::read_to_string(world.path("another.key.pub")).expect("a key");
    let mut allow = world.holdfast("operator");
    allow.args(["server", "allow", "--data"]).arg(world.data()).arg(public.trim());
    assert!(run(&mut allow).contains(public.split(' ').nth(1).expect("a key")));
    // The running server reads the list again.
    let created = run(&mut create(&world));
    assert!(created.contains("hf://") && created.contains("every member can read everything"), "{created}");
    // The same key again, and a file system of that key elsewhere, are refused without harm.
    let again = create(&world).stdin(Stdio::null()).output().expect("it runs");
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
    let url =
        created.split_whitespace().find(|word| word.starts_with("hf://")).expect("an address").to_owned();
    let mut show = world.holdfast("another");
    let report = run_json(show.args(["fs", "show", &url, "--json", "--key"]).arg(world.key("another")));
    assert_eq!((report["name"].as_str(), report["version"].as_u64()), (Some("ours"), Some(1)));
    // Both file systems are on this server.
    let anna = world.mount("anna");
    fs::write(anna.join("team/a"), "a").expect("the other file system works on");
}
