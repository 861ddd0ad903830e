//! What the daemon that serves the mounts of a key can be asked, and what it replies.

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

/// Mount once more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mount(pub MountSettings);

/// Publish everything unsaved, and unmount. The reply is what is left to be sent, in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unmount {
    /// Absolute path of the mount point.
    pub directory: PathBuf,
    /// Whether programs that use it are left behind.
    pub lazy: bool,
}

/// Say how things are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status;

/// Copy what is unpublished to the salvage folder. The reply is the number of files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Salvage;

/// List conflict copies, a page at a time, by when they were overwritten.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListConflicts {
    /// Only those after this one: when it was overwritten (nanoseconds since 1970), and its id.
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

/// List past states that are kept, a page at a time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPastStates {
    /// The mount point.
    pub directory: PathBuf,
    /// How many of the first to leave out.
    pub from: usize,
}

/// Give the present state a name, so that it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TakeSnapshot {
    /// The mount point.
    pub directory: PathBuf,
    /// The name.
    pub name: String,
}

/// Take a snapshot's name away.
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

/// Remove files that no directory names. The reply is `None` when somebody else is doing it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reclaim {
    /// Whether they are only listed.
    pub dry_run: bool,
}

/// Keep a path in the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// The path from the root of the file system.
    pub path: String,
}

/// Keep a path in the cache no longer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unpin {
    /// The path from the root of the file system.
    pub path: String,
}

/// List what is pinned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListPins;

/// Tell a file's rules for programs, and which programs were refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowRules {
    /// The mount point.
    pub directory: PathBuf,
    /// The file's inode number.
    pub inode: u64,
}

/// Set or end a file's rules for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetRules {
    /// The mount point.
    pub directory: PathBuf,
    /// The file's inode number.
    pub inode: u64,
    /// The rules as stored; `None`: no rules.
    pub rules: Option<Vec<u8>>,
}

/// Wait no longer for peers that are lost. The reply is their device numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GiveUpLostPeers;

/// Fetch a view in which nothing is pending.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchView;

/// Tell what this device has accepted, with what was changed here just now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FetchFloor;

/// Tell what this device has accepted at this moment, without waiting for what is under way.
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
