//! The messages on the control socket. Each is a length (u32, little-endian) followed by borsh bytes.

use crate::block_store::{BlockStoreStatus, ScrubSummary};
use crate::order::etcd::OrderStatus;
use crate::witnessing::LogStatus;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;
use holdfast_protocol::message::HoldEntry;
use std::time::Duration;

/// Largest message on the socket.
pub(super) const MESSAGE_BYTES_MAX: u32 = 16 << 20;
/// Largest task on the socket.
pub(super) const TASK_BYTES_MAX: u32 = 1024;
/// How long the running server may send nothing.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(120);

/// A task that an operator can request.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Task {
    /// Collect garbage now.
    Collect = 1,
    /// Read everything and report damage.
    Scrub = 2,
    /// The figures of the server.
    Statistics = 3,
    /// Seal the log, so that it can be copied up to this moment.
    Seal = 4,
    /// List the holds of members.
    Holds = 5,
    /// End a hold, whichever member made it.
    Unhold {
        /// Its file system.
        file_system: Digest,
        /// Its name.
        name: String,
    } = 6,
    /// The status of logs with their witnesses.
    Witnesses = 7,
    /// Hand a file system over to another server.
    Move {
        /// The file system.
        file_system: Digest,
        /// Address of the server.
        to: String,
    } = 8,
}

/// The outcome of a [`Task`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Outcome {
    /// The outcome of [`Task::Collect`], by file system.
    Collected(Vec<(Digest, Result<CollectSummary, String>)>),
    /// The outcome of [`Task::Scrub`].
    Scrubbed(ScrubSummary),
    /// The outcome of [`Task::Statistics`].
    Statistics(Statistics),
    /// The task could not be carried out.
    Failed(String),
    /// The outcome of [`Task::Seal`]: numbers and lengths in bytes of all sealed segments, oldest first.
    Sealed(Vec<(u32, u64)>),
    /// The outcome of [`Task::Holds`], by file system.
    Holds(Vec<(Digest, Vec<HoldEntry>)>),
    /// The outcome of [`Task::Unhold`]: whether there was such a hold.
    Unheld(bool),
    /// The outcome of [`Task::Witnesses`].
    Witnesses(Vec<LogStatus>),
    /// The outcome of [`Task::Move`].
    Moved,
}

/// What a garbage collection did.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CollectSummary {
    /// Blocks found in use.
    pub marked: u64,
    /// Blocks dropped.
    pub dropped: u64,
    /// Bytes of the dropped blocks.
    pub dropped_bytes: u64,
    /// Blocks that nothing refers to, but that are too young to be dropped.
    pub kept: u64,
    /// Bytes of the retained blocks.
    pub kept_bytes: u64,
    /// Bytes given back: log files that were removed, and holes.
    pub removed_bytes: u64,
    /// Log files that were not removed because something in them cannot be read, with the reason.
    pub damaged: Vec<String>,
    /// Blocks that other blocks refer to but that are missing.
    pub missing: Vec<Digest>,
}

/// Figures of a server.
#[derive(Clone, Default, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statistics {
    /// File systems, with the number of operations each has ordered.
    pub file_systems: Vec<(Digest, u64)>,
    /// File systems that are not served, with the reason.
    pub unserved: Vec<(Digest, String)>,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of all blocks in the log.
    pub block_bytes: u64,
    /// How many of these bytes belong to deleted blocks, as of the last collection.
    pub deleted_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Free bytes on the disk; `None` if the system does not say.
    pub free_bytes: Option<u64>,
    /// Blocks known to be damaged.
    pub damaged_blocks: u64,
    /// Group commits since the server started.
    pub syncs: u64,
    /// Requests since the server started.
    pub requests: u64,
    /// Requests refused since then.
    pub refused: u64,
    /// Operations committed since then.
    pub operations: u64,
    /// Blocks stored since then.
    pub blocks_stored: u64,
    /// Blocks served since then.
    pub blocks_served: u64,
    /// Bytes of blocks served since then.
    pub bytes_served: u64,
    /// Whether a server is running on the directory.
    pub running: bool,
    /// The status of the block server or bucket that has the blocks. In that case the bytes of the log and
    /// the free bytes are those of this machine, and the figures of blocks are 0 while the block store cannot
    /// be reached.
    pub block_store: Option<Box<BlockStoreStatus>>,
    /// The status of the order, if it is in etcd.
    pub order: Option<Box<OrderStatus>>,
}

/// A message from the server while it carries out a task.
#[derive(BorshSerialize, BorshDeserialize)]
pub(super) enum Message {
    Progress(u64, u64),
    Finished(Outcome),
}
