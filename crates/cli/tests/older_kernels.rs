//! Server and mounts on a kernel without Landlock: they run, and say what is weaker; where complete sandboxes are
//! required they refuse. Here strace answers for the kernel. How components behave is tested in `crates/components`,
//! and a real older kernel in `scripts/test-old-kernel`.

use crate::common;

use common::process::Process;
use common::{World, ended, eventually, run, text};
use std::fs::{self, File};
use std::process::{Command, Stdio};

/// What commands print where there is no Landlock.
const WEAKER: &str = "sandboxes are weaker on this system: no Landlock";

/// The command and all that it starts, on a kernel without Landlock. The tracer is not its parent, and ends by itself.
fn without_landlock(command: &Command) -> Command {
    let mut traced = Command::new("/usr/bin/strace");
    traced.args([
        "-D",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=landlock_create_ruleset:error=EOPNOTSUPP",
    ]);
    traced.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    traced
}

/// A server serves and warns once. With `--require-sandbox`, or the variable for it, it does not start, and says why.
#[test]
fn a_server_without_landlock() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut holdfast = Command::new(env!("CARGO_BIN_EXE_holdfast"));
    holdfast.args(["server", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
    let mut refused = without_landlock(&holdfast);
    let by_option = ended(refused.arg("--require-sandbox"));
    let by_variable = ended(without_landlock(&holdfast).env("HOLDFAST_REQUIRE_SANDBOX", "1"));
    for refused in [by_option, by_variable] {
        let printed = text(&refused);
        assert_eq!(refused.status.code(), Some(71), "{printed}");
        assert!(
            printed.contains("lacks Landlock here") && printed.contains("--require-sandbox"),
            "{printed}"
        );
        assert!(!printed.contains("holdfast serves") && !printed.contains(WEAKER), "{printed}");
    }
    let log = folder.path().join("said");
    let mut server = Process::default();
    server.begin(&mut without_landlock(&holdfast), &log);
    eventually("it serves", || fs::read_to_string(&log).expect("read").contains("holdfast serves"));
    assert_eq!(fs::read_to_string(&log).expect("read").matches(WEAKER).count(), 1);
    server.stop();
}

/// A mount works; the command that mounts and the listing of components say what is weaker. With `--require-sandbox`
/// neither the running process nor a new one serves another mount.
#[test]
fn a_mount_without_landlock() {
    let world = World::new(&["anna"]);
    let mount = |point: &str| {
        fs::create_dir_all(world.path(point)).expect("a mount point");
        let mut command = world.holdfast("anna");
        command.args(["mount", &world.url]).arg(world.path(point)).arg("--key").arg(world.key("anna"));
        command
    };
    let printed = world.path("said");
    let words = File::create(&printed).expect("made");
    // Not through a pipe, as the tracer has a copy of it for as long as the mount runs.
    let mut command = without_landlock(&mount("weak"));
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(words).status().expect("it runs");
    let printed = fs::read_to_string(printed).expect("read");
    assert!(status.success(), "{printed}");
    let written = fs::write(world.path("weak").join("anna/file"), "content");
    let listed = run(world.holdfast("anna").args(["components", "--json"]));
    let another = ended(mount("strong").arg("--require-sandbox"));
    run(world.holdfast("anna").arg("umount").arg(world.path("weak")));
    written.expect("written");
    assert_eq!(printed.matches(WEAKER).count(), 1, "{printed}");
    let listings: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let lacking =
        |listing: &serde_json::Value| listing["components"][0]["lacking"] == serde_json::json!(["landlock"]);
    assert!(listings.as_array().expect("a list").iter().any(lacking), "{listed}");
    let printed = text(&another);
    assert_eq!(another.status.code(), Some(71), "{printed}");
    assert!(printed.contains("may lack walls"), "{printed}");

    let refused = ended(without_landlock(&mount("weak")).arg("--require-sandbox"));
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(71), "{printed}");
    assert!(printed.contains("lacks Landlock here"), "{printed}");
    // On this kernel, which has Landlock, sandboxes are complete.
    run(mount("strong").arg("--require-sandbox"));
    run(world.holdfast("anna").arg("umount").arg(world.path("strong")));
}
