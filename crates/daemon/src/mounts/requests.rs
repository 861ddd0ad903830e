//! The requests to the daemon that serves the mounts of a key, and its replies.

use super::conflicts::ConflictPart;
use super::past::PastState;
use super::pinning::PinState;
use super::rules::RulesReport;
use super::settings::MountSettings;
use super::status::MountDaemonStatus;
use crate::control::{Encoded, requests};
use crate::membership::{
    Administer, MembershipReport, PrepareChange, QuotaUsage, ShowMembership, ShowUsage, SubmitChange,
};
use holdfast_client::ReclaimReport;
use holdfast_client::files::{ConflictCopy, PastVersion};
use holdfast_client::reader::VerifiedView;
use holdfast_protocol::floor::Floor;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Mount the file system on another directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mount(pub MountSettings);

/// Publish everything unsaved, and unmount. The reply is what is left to be sent, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unmount {
    /// Absolute path of the mount point.
    pub directory: PathBuf,
    /// Whether to unmount although programs use it.
    pub lazy: bool,
}

/// Report the daemon's status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status;

/// Copy what is unpublished to the salvage folder. The reply is the number of files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Salvage;

/// List conflict copies, a page at a time, in order of when they were overwritten.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListConflicts {
    /// Only those after this one, identified by when it was overwritten (nanoseconds since 1970) and its id.
    pub after: Option<(i64, String)>,
}

/// Read a part of a conflict copy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadConflict {
    /// The id of the copy.
    pub id: String,
    /// The first byte of the part.
    pub offset: u64,
}

/// Remove conflict copies.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DropConflicts {
    /// The ids of the copies.
    pub ids: Vec<String>,
}

/// List retained past states, a page at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPastStates {
    /// The mount point.
    pub directory: PathBuf,
    /// How many states to skip.
    pub from: usize,
}

/// Name the present state, so that it is retained.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TakeSnapshot {
    /// The mount point.
    pub directory: PathBuf,
    /// The name.
    pub name: String,
}

/// Remove a snapshot's name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndSnapshot {
    /// The mount point.
    pub directory: PathBuf,
    /// The name.
    pub name: String,
}

/// List the versions of a path in past states.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListVersions {
    /// The mount point.
    pub directory: PathBuf,
    /// The path from the mount's root; bytes, since names need not be text.
    pub path: Vec<u8>,
}

/// Remove files that no directory names. The reply is `None` if another client is doing so.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    /// Whether to list the files only.
    pub dry_run: bool,
}

/// Pin a path in the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The path from the root of the file system.
    pub path: String,
}

/// Remove a pin.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unpin {
    /// The path from the root of the file system.
    pub path: String,
}

/// List what is pinned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPins;

/// List a file's rules for programs, and which programs were refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowRules {
    /// The mount point.
    pub directory: PathBuf,
    /// The file's inode number.
    pub inode: u64,
}

/// Set or remove a file's rules for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetRules {
    /// The mount point.
    pub directory: PathBuf,
    /// The file's inode number.
    pub inode: u64,
    /// The rules as stored; `None`: no rules.
    pub rules: Option<Vec<u8>>,
}

/// Stop waiting for lost peers. The reply is their device numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GiveUpLostPeers;

/// Fetch a view in which nothing is pending.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchView;

/// Return the floor of this device, including what was changed here just before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchFloor;

/// Return the floor of this device at this moment, without waiting for operations under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchFloorNow;

requests! {
    /// What the daemon that serves the mounts of a key can be asked.
    MountRequest {
        Mount => ();
        Unmount => Option<String>;
        Status => MountDaemonStatus, QUICK;
        Salvage => usize;
        ListConflicts => Vec<ConflictCopy>;
        ReadConflict => ConflictPart;
        DropConflicts => ();
        ListPastStates => Vec<PastState>;
        TakeSnapshot => PastState;
        EndSnapshot => ();
        ListVersions => Vec<PastVersion>;
        Reclaim => Option<ReclaimReport>;
        Pin => PinState;
        Unpin => ();
        ListPins => Vec<PinState>;
        ShowRules => RulesReport;
        SetRules => ();
        GiveUpLostPeers => Vec<u32>;
        ShowMembership => MembershipReport;
        ShowUsage => Vec<QuotaUsage>;
        Administer => String;
        PrepareChange => crate::control::Bytes;
        SubmitChange => String;
        FetchView => Encoded<VerifiedView>;
        FetchFloor => Encoded<Floor>;
        FetchFloorNow => Encoded<Floor>;
    }
}
