//! Commands that tests run to their end.

use crate::{PATIENCE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};

/// Runs a command to its end and returns what it wrote to standard output.
///
/// # Panics
/// With all it printed, unless it succeeded.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = ended(command.stdin(Stdio::null()));
    assert!(output.status.success(), "{command:?} failed: {}\n{}", output.status, text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command printed until it ended, whether or not it succeeded.
///
/// # Panics
/// With what it printed, if it goes on for twice [`PATIENCE`] and is killed.
#[track_caller]
pub fn ended(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let pid = Pid::from_child(&child);
    let (sender, over) = channel::<()>();
    let watch = std::thread::spawn(move || {
        let is_late = over.recv_timeout(2 * PATIENCE) == Err(RecvTimeoutError::Timeout);
        if is_late {
            let _ = kill_process(pid, Signal::KILL);
        }
        is_late
    });
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    drop(sender);
    assert!(!watch.join().expect("it watches"), "{command:?} did not end: {}", text(&output));
    output
}

/// Unmounts a directory, which a program that has just looked at it may keep busy for a moment.
///
/// # Panics
/// If it is busy for [`PATIENCE`].
#[track_caller]
pub fn unmount(directory: &Path) {
    eventually("it is unmounted", || {
        let umount = Command::new("umount").arg(directory).stderr(Stdio::null()).status();
        umount.expect("umount runs").success()
    });
}

/// All a command printed: standard output, then standard error.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
