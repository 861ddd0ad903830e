//! Publishing: makes the tree of a release from a directory, and a release from the tree ([`publication`]:
//! the order of all steps; [`compose`]: the release; [`bucket`]: a release in a bucket).
//!
//! The tree is made in two passes. The first ([`scan`]) reads names and attributes only: it counts for the
//! progress bar, and finds files with several names. The second ([`tree`]) walks directories depth first,
//! cuts and hashes what has changed since the last time ([`memory`]), and puts new blocks into packs
//! ([`store`]): the subdirectories of a directory first, then its files in order of name, then its own nodes.
//! So a directory and its small files are one piece of a pack. At the end, hints are made of the directories
//! ([`crate::hints`]). (The paper's database generator makes everything anew each time, and plans to do what
//! is done here.)
//!
//! Memory grows with the number of blocks of the release (some 60 bytes for each, to know which exist) and
//! with the number of files with several names, but not with the number of other files.

pub mod apart;
pub mod bucket;
pub mod compose;
pub mod folder;
pub mod hold;
pub mod live;
mod local;
mod memory;
pub mod publication;
mod retention;
pub mod rules;
mod scan;
pub mod store;
mod tree;
mod walk_io;

use crate::hints;
use crate::index::Index;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::Program;
use holdfast_content::Reference;
use holdfast_crypto::DigestKey;
use local::Local;
use rules::Rules;
use std::io;
use std::path::{Path, PathBuf};
use store::{Added, PackStore};
use walk_io::{WalkIo, WalkResult};

/// Most bytes of a release's hints. A tree that would need more (one with some two million directories) has
/// no hints, so looking up a path in it takes some more round trips.
const HINTS_BYTES_MAX: usize = 256 << 20;

/// Options of a publishing.
pub struct Options<'a> {
    /// The directory to publish.
    pub source: &'a Path,
    /// The release directory; blocks go into its packs.
    pub target: &'a Path,
    /// The key of all digests of the release.
    pub digest_key: DigestKey,
    /// The rules: what to leave out, and which directories are opaque.
    pub rules: &'a Rules,
    /// Later modification times are replaced by this one, in seconds since 1970 (SOURCE_DATE_EPOCH).
    pub newest: Option<i64>,
    /// The compression level of zstd.
    pub level: i32,
    /// The number of threads that compress.
    pub threads: usize,
    /// The database of what was published, so that only changes are read next time, and the state of the
    /// release directory that it is valid for. It is trusted: protect it like the tree.
    pub memory: Option<Memory<'a>>,
}

/// The database that remembers what was published.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// The path of the database.
    pub file: &'a Path,
    /// The digest of the record for which the database is valid: all blocks of that release are there.
    pub basis: Option<holdfast_crypto::Digest>,
}

/// The progress of a publishing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Progress {
    /// Names processed so far, and in all.
    pub names: (u64, u64),
    /// Bytes of files processed so far, and in all.
    pub bytes: (u64, u64),
}

/// The tree of a release.
pub struct PublishedTree {
    /// The root directory's inode.
    pub root: Reference,
    /// All blocks of the release directory, old and new.
    pub index: Index,
    /// What was added to the release directory.
    pub added: Added,
    /// Names in the tree.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that were read, because they were new or had changed.
    pub read: u64,
    /// What could not be published, for people: attributes of other namespaces, for example.
    pub notes: Vec<String>,
    /// Hints for the tree, if they were made and are not too large.
    pub hints: Option<Vec<u8>>,
    /// Makes the memory of this walk valid for the release whose record has this digest. To be called once
    /// that record is in force.
    pub remember: Box<dyn FnOnce(holdfast_crypto::Digest) -> Result<(), PublishError>>,
}

/// Why nothing was published.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    Local {
        /// The path of the file.
        path: PathBuf,
        /// The reason, in words.
        why: String,
    },
    /// A file of the release directory is not what it should be.
    #[error(
        "{path} is damaged: {why}; get it from a mirror with `holdfast release pull`, or publish into an empty directory"
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file kept changing while it was read.
    #[error("{path} changes while it is read; publish a copy or a snapshot of the tree")]
    Changing {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file or directory of the tree cannot be published.
    #[error("{path} cannot be published: {why}")]
    Unfit {
        /// The path of the file.
        path: PathBuf,
        /// The reason, in words.
        why: String,
    },
    /// Something of a live file system could not be read.
    #[error("{path} cannot be read from the live file system: {why}")]
    Live {
        /// The path in the live file system.
        path: PathBuf,
        /// The reason, in words.
        why: String,
    },
    /// The server of the live file system does not hold the release's blocks.
    #[error(
        "the live file system's server does not keep the blocks of this release: {0}; nothing was published"
    )]
    NotHeld(String),
    /// The process that reads the tree cannot be sandboxed on this system.
    #[error("the process that reads the tree cannot be shut in on this system: {0}; nothing was published")]
    Sandbox(String),
    /// The process that reads the tree ended before it was done.
    #[error(
        "the process that reads the tree ended: {0}; nothing was published. Try again; if it ends once more, something \
         in the tree makes it"
    )]
    Ended(String),
    /// The process that reads the tree sent what no honest one sends.
    #[error(
        "the process that reads the tree does not do what it should ({0}) and was ended; nothing was published. \
         Something in the tree may have taken it over: find out what before you publish again"
    )]
    Misbehaved(String),
    /// The caller asked to stop.
    #[error("stopped; the release directory is as it was")]
    Stopped,
}

impl PublishError {
    /// A failure of the operating system.
    pub fn local(path: &Path, error: &io::Error) -> PublishError {
        PublishError::Local { path: path.to_owned(), why: error.to_string() }
    }
}

/// Makes the tree of a release, in this process. `index` is the present one of the release directory.
/// `progress` is called now and then and returns whether to go on. Nothing refers to the added blocks until a
/// record does.
///
/// # Errors
/// [`PublishError`]; the release directory is as it was, except for packs that nothing refers to.
pub fn publish(
    options: &Options<'_>,
    index: &Index,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<PublishedTree, PublishError> {
    publish_by(options, index, progress, |local| walk(options, local))
}

/// Like [`publish`], but a sandboxed process that `program` starts walks and parses the tree ([`apart`]).
///
/// # Errors
/// Those of [`publish`]; also if that process cannot be sandboxed, ended early, or misbehaved.
pub fn publish_apart(
    options: &Options<'_>,
    index: &Index,
    program: Program,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<PublishedTree, PublishError> {
    publish_by(options, index, progress, |local| apart::walk(options, local, index, program))
}

fn publish_by(
    options: &Options<'_>,
    index: &Index,
    progress: &mut dyn FnMut(Progress) -> bool,
    walk: impl FnOnce(&Local<'_>) -> Result<WalkResult, PublishError>,
) -> Result<PublishedTree, PublishError> {
    let store = PackStore::open(options.target, options.digest_key, index, options.level, options.threads)?;
    let seen = memory::PublishMemory::open(options.memory)?;
    let local = Local::new(options.source, options.rules, &store, seen, progress);
    let walked = walk(&local)?;
    let seen = local.into_seen();
    let (index, added) = store.finish()?;
    Ok(PublishedTree {
        root: walked.root,
        index,
        added,
        names: walked.names,
        bytes: walked.bytes,
        read: walked.read,
        notes: walked.notes,
        hints: walked.hints,
        remember: Box::new(move |record| seen.keep(record)),
    })
}

/// Makes both passes, and the hints: everything that parses the tree, or blocks made from it.
fn walk(options: &Options<'_>, io: &dyn WalkIo) -> Result<WalkResult, PublishError> {
    let scan = scan::scan(options.source, io)?;
    let mut walked = tree::build(options, &scan, io)?;
    let hints = hints::make(io, &walked.root)
        .map_err(|error| PublishError::Damaged { path: options.target.to_owned(), why: error.to_string() })?;
    if hints.len() <= HINTS_BYTES_MAX {
        walked.hints = Some(hints);
    } else {
        walked.notes.push("it has too many directories for hints; looking up a path takes longer".to_owned());
    }
    Ok(walked)
}
