//! How a daemon that serves mounts stands, and asking it without waiting for ever.

use super::requests::Status;
use crate::control::Client;
use holdfast_client::WriteBackStatus;
use holdfast_client::store::account::Traffic;
use holdfast_failure::{Exit, Outcome};
use holdfast_fuse::mountpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// One process that serves the mounts of one key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountDaemonStatus {
    /// Address.
    pub address: String,
    /// Process id.
    pub process: u32,
    /// When it began, nanoseconds since the epoch.
    pub started_ns: i64,
    /// What it has mounted.
    pub mounts: Vec<MountStatus>,
    /// What waits to be sent, if changes are sent in the background.
    #[serde(default)]
    pub write_back: Option<WriteBackStatus>,
    /// Where it keeps its state, its log and evidence.
    pub state_dir: PathBuf,
    /// The signer and its connection, as the engine describes itself.
    pub engine: Value,
    /// The files that caused most to cross the link.
    #[serde(default)]
    pub files: Vec<FileTraffic>,
}

/// What one file caused to cross the link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileTraffic {
    /// Its path, or what else it was for.
    pub path: String,
    /// Bytes.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// One mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// Where.
    pub directory: PathBuf,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether other users may use it.
    pub allow_other: bool,
    /// Files with changes that are not at the server yet.
    pub unsaved: Vec<String>,
}

/// What became of asking the process that uses a state directory how things stand.
pub enum DaemonState {
    /// There is none.
    Nobody,
    /// It said.
    Says(Box<MountDaemonStatus>),
    /// It is there, but does not answer.
    Silent(u32),
}

/// How long a process may take to say how things stand: more than a busy machine needs, and less than [`Client::call`]
/// waits, after which it would be taken for one that has ended.
pub const REPLY_WAIT: Duration = Duration::from_secs(12);

/// Asks the process that uses a state directory, for a while.
///
/// # Errors
/// The socket belongs to somebody else, or what answers is of another version.
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
            // It ended just now.
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
