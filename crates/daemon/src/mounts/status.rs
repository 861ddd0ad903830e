//! The status of a daemon that serves mounts, and requests for it with a bounded wait.

use holdfast_client::WriteBackStatus;
use holdfast_client::store::account::Traffic;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// The status of one process that serves the mounts of one key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountDaemonStatus {
    /// Address of the file system.
    pub address: String,
    /// Process id.
    pub process: u32,
    /// When it started, in nanoseconds since 1970.
    pub started_ns: i64,
    /// Its mounts.
    pub mounts: Vec<MountStatus>,
    /// What waits to be sent, if changes are sent in the background.
    #[serde(default)]
    pub write_back: Option<WriteBackStatus>,
    /// The directory of its state, log and evidence.
    pub state_dir: PathBuf,
    /// The signer and its connection, as the engine describes itself.
    pub engine: Value,
    /// The files that caused most traffic.
    #[serde(default)]
    pub files: Vec<FileTraffic>,
}

/// The traffic that one file caused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileTraffic {
    /// Its path, or another purpose in words.
    pub path: String,
    /// Counts of bytes.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// One mount.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MountStatus {
    /// The mount point.
    pub directory: PathBuf,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether other users may use it.
    pub allow_other: bool,
    /// Files with changes that are not at the server yet.
    pub unsaved: Vec<String>,
}
