//! What the two processes of a publishing say to each other. The walker asks, one question at a time; the publisher
//! answers. What is longer than a packet goes in parts.
//!
//! ```text
//! packet of the walker:     Part(bytes) -> Taken      Last(bytes) -> the first part of the answer      More -> the next part
//! packet of the publisher:  Taken      Part(bytes)      Last(bytes), with the first of these the files
//! ```
//!
//! A question has at most [`QUESTION_BYTES_MAX`] bytes and is decoded canonically: nothing may follow it.
//!
//! There is no question by which the walker names a path, a release, a number, a date or a key. It is public so that tests
//! can speak it as an enemy.

use crate::index::Key;
use crate::pack::FRAME_BYTES_MAX;
pub use crate::publish::Progress;
use crate::publish::PublishError;
pub use crate::publish::desk::{Attributes, KNOWN_MAX, Looked, OPENED_MAX, Walked};
pub use crate::publish::seen::Signs;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::{BODY_BYTES_MAX, Bounds, FILES_MAX};
use holdfast_content::Value;
use holdfast_crypto::Digest;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The port of the channel, at both ends.
pub const PORT: &str = "tree";
/// What the channel carries.
pub const BOUNDS: Bounds =
    Bounds { body_bytes_max: BODY_BYTES_MAX as u32, files_max: FILES_MAX as u8, in_flight_max: 1 };
/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = BODY_BYTES_MAX - 64;
/// Most bytes of a question: a block is the longest.
pub const QUESTION_BYTES_MAX: usize = FRAME_BYTES_MAX + (64 << 10);
/// Most bytes of files' memory in one question; a single file's may be more.
pub const REMEMBER_BYTES: usize = 32 << 10;
/// Bytes of blocks in one question; a single block's may be more.
pub const PUT_BYTES: usize = 48 << 10;
/// Most blocks in one answer to [`Question::There`].
pub const THERE_MAX: usize = 64 << 10;

/// A packet of the walker.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Ask {
    /// A question's next part.
    Part(Vec<u8>),
    /// Its last.
    Last(Vec<u8>),
    /// The answer's next part is wanted.
    More,
}

/// A packet of the publisher.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Told {
    /// A part came.
    Taken,
    /// An answer's next part.
    Part(Vec<u8>),
    /// Its last.
    Last(Vec<u8>),
}

/// A question.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Question {
    /// What is to be done?
    Terms,
    /// Leave so many directories, and enter one of the innermost that is open then; without a name the tree.
    Enter(u32, Option<Vec<u8>>),
    /// Leave so many directories.
    Leave(u32),
    /// Which names are in it, from this one on?
    Entries(u64),
    /// Open files in it, at most [`OPENED_MAX`].
    Open(Vec<Vec<u8>>),
    /// Where does a link in it lead?
    Link(Vec<u8>),
    /// Which blocks were there before, from this place of the index on?
    There(u64),
    /// Here are blocks, each as a frame of a pack; whether it lies with those of large files.
    Put(Vec<(bool, Vec<u8>)>),
    /// A block, please.
    Fetch(Digest),
    /// What did these files become the last time? At most [`KNOWN_MAX`].
    Known(Vec<(Vec<u8>, Signs)>),
    /// This is what these became.
    Remember(Vec<(Vec<u8>, Signs, Value)>),
    /// So far it is. Shall it go on?
    Progress(Progress),
    /// The next part of the tree's hints.
    Hints(Vec<u8>),
    /// This is the tree.
    Done(Walked),
    /// It cannot be published.
    Failed(Fault),
}

/// An answer that may be an error of the system, by its number.
pub type OrErrno<T> = Result<T, i32>;
/// A name in a directory.
pub type Named = (Vec<u8>, OrErrno<Looked>);
/// The answer to [`Question::Enter`]: what it is, and the first names in it.
pub type Entered = OrErrno<((Looked, Attributes), OrErrno<Vec<Named>>)>;
/// The answer to [`Question::Open`] for each name, with a file if it is one.
pub type Met = OrErrno<(Looked, Attributes)>;
/// The answer to [`Question::There`]: some, and where the next are.
pub type There = (Vec<Key>, Option<u64>);

/// What a walker is to do. There is no secret in it that the release does not tell.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct Terms {
    /// What to call the tree.
    pub source: Vec<u8>,
    /// Keys every digest.
    pub digest_key: [u8; 32],
    /// Patterns: which directories are opaque. What is to be left out it does not hear of.
    pub opaque: Vec<String>,
    /// See [`crate::publish::Options::newest`].
    pub newest: Option<i64>,
    /// zstd's.
    pub level: i32,
    /// Whether anything is known from the last time.
    pub remembers: bool,
    /// That compress.
    pub threads: u32,
}

/// Why a tree cannot be published.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Fault {
    /// See [`PublishError::Local`].
    Local(Vec<u8>, String),
    /// See [`PublishError::Changing`].
    Changing(Vec<u8>),
    /// See [`PublishError::Unfit`].
    Unfit(Vec<u8>, String),
    /// See [`PublishError::Damaged`]: what an earlier publishing left is not what it should be.
    Damaged(String),
    /// Somebody wanted to stop.
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
            // A walk meets no other.
            other => Fault::Unfit(Vec::new(), other.to_string()),
        }
    }
}
