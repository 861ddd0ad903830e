//! The Holdfast client: signer, cache, views, write-back and the inode API.
#![forbid(unsafe_code)]

pub mod admin;
pub(crate) mod backend;
pub mod engine;
pub mod error;
pub mod evidence;
pub mod files;
pub mod interrupt;
mod pauses;
pub mod pinned;
pub mod processes;
pub mod reader;
pub mod rebuild;
pub mod remote;
pub mod state;
pub mod statement;
pub mod store;
pub mod tree;

pub use engine::{
    Engine, EngineConfig, HeadStatus, LockTarget, Notice, PastState, PastTree, PeerPresence, PeerStatus,
    PeersPolicy, PeersStatus, Pin, ReclaimReport, ReclaimedFile, ResendHook, ResendReport, ResendStatus,
    RestoreReport, RestoredHook, Snapshot, Status, WhenPeerLost, WhenStale, WitnessPolicy,
};
pub use error::{FrozenReport, FsError, IntegrityReport, StartError};
pub use files::{
    ConflictReport, FileSystem, GATHER, MountOptions, WriteBack, WriteBackOptions, WriteBackStatus,
};
pub use tree::{Changes, Edit, Transaction, View};
