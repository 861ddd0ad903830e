//! The requests to the daemon that has a volume attached, and its replies.

use super::repair::Repaired;
use super::scrub::Progress;
use super::status::VolumeStatus;
use crate::control::requests;
use holdfast_failure::Failure;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Report the volume's status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status;

/// Write everything and end. The reply is a failure to write everything, if the volume was detached
/// nevertheless.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Detach;

/// Read and verify every block, in the background.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scrub {
    /// MiB a second; 0: no limit.
    pub rate_mib: u64,
    /// Whether to begin at the first block, rather than where the last scrub was stopped.
    pub from_start: bool,
}

/// Stop the scrub.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StopScrub;

/// Repair bad blocks from a copy of the disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Repair {
    /// The copy.
    pub from: PathBuf,
}

requests! {
    /// What the daemon that has a volume attached can be asked.
    VolumeRequest {
        Status => VolumeStatus, QUICK;
        Detach => Option<Failure>;
        Scrub => Progress;
        StopScrub => ();
        Repair => Repaired;
    }
}
