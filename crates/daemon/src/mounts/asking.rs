//! Asks a daemon for the status of its mounts.

use super::requests::Status;
use super::status::MountDaemonStatus;
use crate::control::Client;
use holdfast_failure::{Exit, Outcome};
use holdfast_fuse::mountpoint;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The result of asking the process that uses a state directory for its status.
pub enum DaemonState {
    /// No process uses it.
    Nobody,
    /// The process replied.
    Says(Box<MountDaemonStatus>),
    /// The process with this id does not reply.
    Silent(u32),
}

/// How long a process may take to reply: longer than a busy machine needs, but shorter than the wait of
/// [`Client::call`], after which the process would be taken for one that has ended.
pub const REPLY_WAIT: Duration = Duration::from_secs(12);

/// Asks the process that uses a state directory, and waits for at most [`REPLY_WAIT`].
///
/// # Errors
/// The socket belongs to another user, or the process has another version.
pub fn ask(state_dir: &Path) -> Outcome<DaemonState> {
    let (state_dir, found) = (state_dir.to_owned(), Arc::new(AtomicU32::new(0)));
    let process = Arc::clone(&found);
    let asked = move || -> Outcome<DaemonState> {
        let Some(client) = Client::connect(&state_dir)? else { return Ok(DaemonState::Nobody) };
        let number = client.process().unwrap_or(0);
        process.store(number, Ordering::SeqCst);
        if is_stopped(number) {
            return Ok(DaemonState::Silent(number));
        }
        match client.call(&Status) {
            Ok(status) => Ok(DaemonState::Says(Box::new(status))),
            // It has just ended.
            Err(failure) if failure.code == Exit::Unavailable => Ok(DaemonState::Nobody),
            Err(failure) => Err(failure),
        }
    };
    mountpoint::within(REPLY_WAIT, asked)
        .unwrap_or_else(|| Ok(DaemonState::Silent(found.load(Ordering::SeqCst))))
}

/// Whether a process is stopped (SIGSTOP, Ctrl-Z, a debugger).
pub fn is_stopped(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("State:").is_some_and(|state| state.trim_start().starts_with(['T', 't']))
    })
}
