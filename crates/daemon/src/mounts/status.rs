//! How a daemon that serves mounts stands, and asking it without waiting for ever.

use holdfast_client::WriteBackStatus;
use holdfast_client::store::account::Traffic;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

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
