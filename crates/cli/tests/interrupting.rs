//! Programs that wait for a server that does not answer can be interrupted, whatever they wait for.

use crate::common;

use common::{World, eventually, noise, run};
use std::fs;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// Signals a process or a process group.
#[track_caller]
fn signal(target: &str, name: &str) {
    run(Command::new("kill").args([&format!("-{name}"), "--", target]));
}

/// A shell that runs its first part at once, and the second when the test says so.
struct Shell {
    what: &'static str,
    child: Child,
    go: ChildStdin,
}

impl Shell {
    fn prepare(team: &Path, what: &'static str, first: &str) -> Shell {
        let ready = team.parent().expect("a mount").with_extension("ready");
        let _ = fs::remove_file(&ready);
        let script = format!("{first}; : > '{}'; read go; {what}", ready.display());
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(team)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        eventually("the shell is ready", || ready.exists());
        let go = child.stdin.take().expect("a pipe");
        Shell { what, child, go }
    }

    fn go(&mut self) {
        writeln!(self.go, "go").expect("the shell listens");
    }

    /// Signals the shell and the programs it has started.
    #[track_caller]
    fn signal(&mut self, name: &str) {
        assert!(
            self.child.try_wait().expect("a child").is_none(),
            "{}: it should wait for the server",
            self.what
        );
        signal(&format!("-{}", self.child.id()), name);
    }

    #[track_caller]
    fn ends(&mut self) {
        let what = format!("the signal ends it: {}", self.what);
        eventually(&what, || self.child.try_wait().expect("a child").is_some());
        let status = self.child.wait().expect("it ended");
        assert!(status.signal().is_some() || !status.success(), "{}: {status}", self.what);
    }
}

/// Calls of every kind end soon after SIGTERM or SIGKILL while the server does not answer. When it answers again, the
/// mount goes on, and no alarm is raised.
#[test]
fn every_kind_of_waiting_call() {
    let mut world = World::new(&["anna", "ben"]);
    // Without leases, so that every call waits for the server.
    let anna = world.mount_with("anna", &["--no-leases"]);
    let content = noise(1, 1_200_000);
    for name in ["cold", "cold-too"] {
        fs::write(anna.join("team").join(name), &content).expect("written");
    }
    fs::write(anna.join("team/small"), "small").expect("written");
    let team = world.mount_with("ben", &["--no-leases"]).join("team");
    let kinds = [
        ("stat small", ""),
        ("ls", ""),
        ("exec 3< small", ""),
        (": > created", ""),
        ("mkdir made", ""),
        ("rm small", ""),
        ("mv small moved", ""),
        ("ln -s target link", ""),
        ("chmod 600 small", ""),
        ("truncate -s 3 small", ""),
        ("head -c 900000 <&3 | tail -c 1", "exec 3< cold"),
        ("head -c 900000 <&3 | tail -c 1", "exec 3< cold-too"),
        ("echo unsaved >&3", "exec 3> closed"),
        ("sync written", "echo saved > written"),
    ];
    let mut shells: Vec<Shell> = kinds
        .iter()
        .map(|(what, first)| Shell::prepare(&team, what, if first.is_empty() { ":" } else { first }))
        .collect();
    let server = world.server_process().to_string();
    signal(&server, "STOP");
    shells.iter_mut().for_each(Shell::go);
    // Most have begun their calls by now; those that have not must end all the same.
    std::thread::sleep(Duration::from_millis(500));
    // All are signalled before the first is waited for: the kernel makes who changes a directory wait, deaf to signals,
    // for another who is changing it.
    for (number, shell) in shells.iter_mut().enumerate() {
        shell.signal(if number % 2 == 0 { "TERM" } else { "KILL" });
    }
    shells.iter_mut().for_each(Shell::ends);
    signal(&server, "CONT");
    eventually("the mount goes on", || fs::write(team.join("after"), "works").is_ok());
    assert_eq!(fs::read(team.join("cold")).expect("read"), content);
    assert!(!world.status("ben").to_lowercase().contains("alarm:"), "{}", world.status("ben"));
}

/// A signal that a program handles interrupts none of its calls, as programs do not expect that of files. SIGKILL ends
/// it nevertheless, also after such a signal.
#[test]
fn caught_signals_interrupt_nothing() {
    let mut world = World::new(&["anna"]);
    let team = world.mount_with("anna", &["--no-leases"]).join("team");
    let kinds = [
        (": > made", "trap : USR1"),
        ("echo saved > written", "trap : USR1"),
        ("echo more >&3; exec 3>&-", "trap : USR1; exec 3> closed"),
        ("exec 3< closed", "trap : USR1; : > closed"),
    ];
    let mut shells: Vec<Shell> =
        kinds.iter().map(|(what, first)| Shell::prepare(&team, what, first)).collect();
    let mut killed = Shell::prepare(&team, "echo lost > killed", "trap : USR1");
    let server = world.server_process().to_string();
    signal(&server, "STOP");
    shells.iter_mut().for_each(Shell::go);
    killed.go();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        shells.iter_mut().for_each(|shell| shell.signal("USR1"));
        killed.signal("USR1");
    }
    killed.signal("KILL");
    signal(&server, "CONT");
    for shell in &mut shells {
        let status = shell.child.wait().expect("it ends");
        assert!(status.success(), "{}: {status}", shell.what);
    }
    killed.ends();
    assert_eq!(fs::read_to_string(team.join("written")).expect("read"), "saved\n");
    assert_eq!(fs::read_to_string(team.join("closed")).expect("read"), "more\n");
}
