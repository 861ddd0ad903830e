//! The protocol between the two processes of a publishing. The walker sends requests, one at a time; the
//! publisher replies. A request or reply that is longer than a packet is sent in parts.
//!
//! ```text
//! packet of the walker:     Part(bytes) -> Received   Last(bytes) -> first part of the reply   More -> next part
//! packet of the publisher:  Received   Part(bytes)   Last(bytes), with the first of these the files
//! ```
//!
//! A request has at most [`REQUEST_BYTES_MAX`] bytes and is decoded canonically: nothing may follow it.
//!
//! In no request can the walker name a path, a release, a number, a date or a key. The protocol is public so
//! that tests can act as a hostile walker.

use crate::index::Key;
use crate::pack::FRAME_BYTES_MAX;
pub use crate::publish::Progress;
use crate::publish::PublishError;
pub use crate::publish::memory::FileSigns;
pub use crate::publish::walk_io::{Attributes, FileStatus, KNOWN_MAX, OPENED_MAX, WalkResult};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{BODY_BYTES_MAX, Bounds, FILES_MAX};
use holdfast_content::Value;
use holdfast_crypto::Digest;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The port of the channel, at both ends.
pub const PORT: &str = "tree";
/// The bounds of the channel.
pub const BOUNDS: Bounds =
    Bounds { body_bytes_max: BODY_BYTES_MAX as u32, files_max: FILES_MAX as u8, in_flight_max: 1 };
/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = BODY_BYTES_MAX - 64;
/// Most bytes of a request: a block is the longest.
pub const REQUEST_BYTES_MAX: usize = FRAME_BYTES_MAX + (64 << 10);
/// Most bytes of [`Request::Remember`]; one with a single file may be longer.
pub const REMEMBER_BYTES: usize = 32 << 10;
/// Bytes of blocks in one [`Request::Put`]; one with a single block may be longer.
pub const PUT_BYTES: usize = 48 << 10;
/// Most blocks in one reply to [`Request::KnownBlocks`].
pub const KNOWN_BLOCKS_MAX: usize = 64 << 10;

/// A packet of the walker.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum RequestPacket {
    /// The next part of a request.
    Part(Vec<u8>),
    /// The last part of a request.
    Last(Vec<u8>),
    /// Asks for the next part of the reply.
    More,
}

/// A packet of the publisher.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum ReplyPacket {
    /// A part of the request has arrived.
    Received,
    /// The next part of a reply.
    Part(Vec<u8>),
    /// The last part of a reply.
    Last(Vec<u8>),
}

/// What the walker asks of the publisher.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Request {
    /// Returns the [`WalkOptions`].
    Options,
    /// Leaves so many directories, and then enters a directory of the innermost open one; without a name, the
    /// tree.
    Enter(u32, Option<Vec<u8>>),
    /// Leaves so many directories.
    Leave(u32),
    /// Returns names in the innermost directory, from this number on.
    Entries(u64),
    /// Opens files in the innermost directory, at most [`OPENED_MAX`].
    Open(Vec<Vec<u8>>),
    /// Returns the target of a link in the innermost directory.
    Link(Vec<u8>),
    /// Returns which blocks the release directory had before, from this position in the index.
    KnownBlocks(u64),
    /// Stores blocks, each as a frame of a pack. The flag tells whether it goes to the lane of large files.
    Put(Vec<(bool, Vec<u8>)>),
    /// Returns a block by its address.
    Fetch(Digest),
    /// Returns the values of these files in the previous publishing. At most [`KNOWN_MAX`].
    Known(Vec<(Vec<u8>, FileSigns)>),
    /// Records the values of these files.
    Remember(Vec<(Vec<u8>, FileSigns, Value)>),
    /// Reports progress; the reply tells whether to go on.
    Progress(Progress),
    /// Sends the next part of the tree's hints.
    Hints(Vec<u8>),
    /// Ends the walk: the tree is complete.
    Done(WalkResult),
    /// Ends the walk: the tree cannot be published.
    Failed(Fault),
}

/// A reply that may be an error of the system, by its number (errno).
pub type OrErrno<T> = Result<T, i32>;
/// A name in a directory, and the status of its file.
pub type NamedStatus = (Vec<u8>, OrErrno<FileStatus>);
/// The reply to [`Request::Enter`]: the directory's status and attributes, and the first names in it.
pub type EnterReply = OrErrno<((FileStatus, Attributes), OrErrno<Vec<NamedStatus>>)>;
/// The reply to [`Request::Open`] for each name; open files are attached to the packet.
pub type OpenReply = OrErrno<(FileStatus, Attributes)>;
/// The reply to [`Request::KnownBlocks`]: some keys, and the position of the next.
pub type KnownBlocks = (Vec<Key>, Option<u64>);

/// The options of a walk. They contain nothing that is secret from readers of the release.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct WalkOptions {
    /// The path of the tree, for messages.
    pub source: Vec<u8>,
    /// The key of all digests of the release.
    pub digest_key: [u8; 32],
    /// Patterns of opaque directories. (Names to leave out are not sent to the walker at all.)
    pub opaque: Vec<String>,
    /// See [`crate::publish::Options::newest`].
    pub newest: Option<i64>,
    /// The compression level of zstd.
    pub level: i32,
    /// Whether the publisher remembers a previous publishing.
    pub remembers: bool,
    /// The number of threads that compress.
    pub threads: u32,
}

/// Why a tree cannot be published.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Fault {
    /// Stands for [`PublishError::Local`]: the path, and why.
    Local(Vec<u8>, String),
    /// Stands for [`PublishError::Changing`]: the path.
    Changing(Vec<u8>),
    /// Stands for [`PublishError::Unfit`]: the path, and why.
    Unfit(Vec<u8>, String),
    /// Stands for [`PublishError::Damaged`]: what an earlier publishing left is damaged.
    Damaged(String),
    /// The publisher was asked to stop.
    Stopped,
}

/// A path as bytes.
pub fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// A path from bytes.
pub fn path_of(bytes: Vec<u8>) -> PathBuf {
    std::ffi::OsString::from_vec(bytes).into()
}

impl From<PublishError> for Fault {
    fn from(error: PublishError) -> Fault {
        match error {
            PublishError::Local { path, why } => Fault::Local(bytes_of(&path), why),
            PublishError::Changing { path } => Fault::Changing(bytes_of(&path)),
            PublishError::Unfit { path, why } => Fault::Unfit(bytes_of(&path), why),
            PublishError::Damaged { why, .. } => Fault::Damaged(why),
            PublishError::Stopped => Fault::Stopped,
            // No other error occurs in a walk.
            other => Fault::Unfit(Vec::new(), other.to_string()),
        }
    }
}
