//! Publishing: makes the tree of a release from a directory.
//!
//! Two passes. The first ([`scan`]) looks at names and attributes only: it counts, for the progress bar, and finds
//! which files have several names. The second ([`tree`]) goes through directories depth first, cuts and hashes what
//! has changed since the last time ([`seen`]), and puts new blocks into packs ([`store`]): the subdirectories of a
//! directory first, then its files in order of name, then its own nodes. So a directory with its small files is one
//! piece of a pack. At last hints are made of the directories ([`crate::hints`]). (The paper's database generator makes everything anew each time, and plans for what is done here.)
//!
//! Memory does not grow with the number of files but for some 60 bytes a block of the release, to know which are
//! there, and for files with several names.

pub mod apart;
pub mod compose;
mod desk;
pub mod folder;
pub mod hold;
mod keep;
pub mod live;
mod local;
pub mod rules;
mod scan;
mod seen;
pub mod store;
mod tree;

use crate::hints;
use crate::index::Index;
use borsh::{BorshDeserialize, BorshSerialize};
use desk::{Desk, Walked};
use holdfast_components::Program;
use holdfast_content::Reference;
use holdfast_crypto::DigestKey;
use local::Local;
use rules::Rules;
use std::io;
use std::path::{Path, PathBuf};
use store::{Added, PackStore};

/// Most bytes of a release's hints. A tree that needs more, of some two million directories, has none; looking up a
/// path of it costs some round trips more.
const HINTS_BYTES_MAX: usize = 256 << 20;

/// What to publish, and how.
pub struct Options<'a> {
    /// The tree.
    pub source: &'a Path,
    /// The release directory; blocks go into its packs.
    pub target: &'a Path,
    /// Keys every digest of the release.
    pub digest_key: DigestKey,
    /// What to leave out, and which directories are opaque.
    pub rules: &'a Rules,
    /// Times later than this become this, in seconds since 1970 (SOURCE_DATE_EPOCH).
    pub newest: Option<i64>,
    /// zstd's level.
    pub level: i32,
    /// Threads that compress.
    pub threads: usize,
    /// Where it is remembered what was published, so that only what has changed is read next time; and which
    /// state of the release directory that is good for. Trusted: keep it as safe as the tree.
    pub memory: Option<Memory<'a>>,
}

/// What is remembered between publishing and publishing again.
#[derive(Clone, Copy)]
pub struct Memory<'a> {
    /// The file.
    pub file: &'a Path,
    /// What must not have changed since for it to count: the blocks of that release are all there.
    pub basis: Option<holdfast_crypto::Digest>,
}

/// What there is to do, and what is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Progress {
    /// Names so far, and in all.
    pub names: (u64, u64),
    /// Bytes of files so far, and in all.
    pub bytes: (u64, u64),
}

/// The tree of a release.
pub struct Published {
    /// The root directory's inode.
    pub root: Reference,
    /// All blocks of the release directory, old and new.
    pub index: Index,
    /// What is new.
    pub added: Added,
    /// Names in the tree.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that were read, as they were not known from the last time.
    pub read: u64,
    /// What could not be kept, for people: sockets without a meaning elsewhere are kept, foreign attributes are not.
    pub notes: Vec<String>,
    /// Hints for the tree, if who made it makes them and there are not too many.
    pub hints: Option<Vec<u8>>,
    /// Makes what was seen count for the release whose record has this digest; call it once that is in force.
    pub remember: Box<dyn FnOnce(holdfast_crypto::Digest) -> Result<(), PublishError>>,
}

/// Why nothing was published.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PublishError {
    /// A file could not be read or written.
    #[error("{path}: {why}")]
    Local {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A file of the release directory is not what it should be.
    #[error(
        "{path} is damaged: {why}; get it from a mirror with `holdfast pull`, or publish into an empty directory"
    )]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A file changed while it was read, again and again.
    #[error("{path} changes while it is read; publish a copy or a snapshot of the tree")]
    Changing {
        /// Which.
        path: PathBuf,
    },
    /// Something about the tree cannot be published.
    #[error("{path} cannot be published: {why}")]
    Unfit {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// Something of a live file system could not be read.
    #[error("{path} cannot be read from the live file system: {why}")]
    Live {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The server of the live file system does not keep the release's blocks.
    #[error(
        "the live file system's server does not keep the blocks of this release: {0}; nothing was published"
    )]
    NotHeld(String),
    /// The process that reads the tree cannot be shut in here.
    #[error("the process that reads the tree cannot be shut in on this system: {0}; nothing was published")]
    Sandbox(String),
    /// The process that reads the tree ended before it was done.
    #[error(
        "the process that reads the tree ended: {0}; nothing was published. Try again; if it ends once more, something \
         in the tree makes it"
    )]
    Ended(String),
    /// The process that reads the tree said what no honest one says.
    #[error(
        "the process that reads the tree does not do what it should ({0}) and was ended; nothing was published. \
         Something in the tree may have taken it over: find out what before you publish again"
    )]
    Misbehaved(String),
    /// Somebody wants to stop.
    #[error("stopped; the release directory is as it was")]
    Stopped,
}

impl PublishError {
    /// A failure of the operating system.
    pub fn local(path: &Path, error: &io::Error) -> PublishError {
        PublishError::Local { path: path.to_owned(), why: error.to_string() }
    }
}

/// Makes the tree of a release, in this process. `index` is that of the release directory as it is, `progress` is told
/// now and then and says whether to go on. Nothing refers to what was added until a record does.
///
/// # Errors
/// [`PublishError`]; the release directory is as it was but for packs that nothing refers to.
pub fn publish(
    options: &Options<'_>,
    index: &Index,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Published, PublishError> {
    publish_by(options, index, progress, |local| walk(options, local))
}

/// The same, where what walks and parses the tree is a process of its own that `program` starts ([`apart`]).
///
/// # Errors
/// As of [`publish`]; and that process cannot be shut in, ended, or said what no honest one says.
pub fn publish_apart(
    options: &Options<'_>,
    index: &Index,
    program: Program,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Published, PublishError> {
    publish_by(options, index, progress, |local| apart::walk(options, local, index, program))
}

fn publish_by(
    options: &Options<'_>,
    index: &Index,
    progress: &mut dyn FnMut(Progress) -> bool,
    walk: impl FnOnce(&Local<'_>) -> Result<Walked, PublishError>,
) -> Result<Published, PublishError> {
    let store = PackStore::open(options.target, options.digest_key, index, options.level, options.threads)?;
    let seen = seen::Seen::open(options.memory)?;
    let local = Local::new(options.source, options.rules, &store, seen, progress);
    let walked = walk(&local)?;
    let seen = local.into_seen();
    let (index, added) = store.finish()?;
    Ok(Published {
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

/// Both passes, and hints: all that parses the tree or what was made of it.
fn walk(options: &Options<'_>, desk: &dyn Desk) -> Result<Walked, PublishError> {
    let scan = scan::scan(options.source, desk)?;
    let mut walked = tree::build(options, &scan, desk)?;
    let hints = hints::make(desk, &walked.root)
        .map_err(|error| PublishError::Damaged { path: options.target.to_owned(), why: error.to_string() })?;
    if hints.len() <= HINTS_BYTES_MAX {
        walked.hints = Some(hints);
    } else {
        walked.notes.push("it has too many directories for hints; looking up a path takes longer".to_owned());
    }
    Ok(walked)
}
