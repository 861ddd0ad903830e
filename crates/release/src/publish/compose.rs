//! Composes a whole release: the tree, the index and the record to be signed; and removes what is no longer
//! needed.
//!
//! Order on disk: packs, then the index, then (once it is signed) the record. So a copy of the directory,
//! taken at any moment, has a whole release, the previous one or this one. A release that was not finished
//! leaves only packs, which the next publication removes.

use super::folder::FolderBlocks;
use super::hold;
use super::live::{self, LiveSource};
use super::retention::{self, RetainedRelease};
use super::store::{read_index, sync_directory};
use super::{Memory, Options, Progress, PublishError, PublishedTree, publish, publish_apart, rules::Rules};
use crate::draft::Draft;
use crate::index::Index;
use crate::record::{Location, Record, RootFile};
use crate::release_dir::{ReleaseDir, ReleaseDirError};
use crate::signing::{Signable, Signed};
use crate::{form, hints, layout};
use holdfast_components::Program;
use holdfast_content::Reference;
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_log::FileLock;
use std::fs::{self, File};
use std::path::Path;

/// Options of a new release.
pub struct ReleaseOptions<'a> {
    /// The directory to publish.
    pub source: &'a Path,
    /// The release directory, which has its keys already.
    pub target: &'a Path,
    /// Now, in seconds since 1970.
    pub now_s: u64,
    /// How long the record is valid, in seconds.
    pub life_s: u64,
    /// A title or version for people.
    pub note: &'a str,
    /// The number of releases to retain, this one included.
    pub keep: usize,
    /// The digest key if this is the first release; later ones use the same.
    pub first_key: DigestKey,
    /// The rules: what to leave out, and which directories are opaque.
    pub rules: &'a Rules,
    /// Later modification times are replaced by this one, in seconds since 1970.
    pub newest: Option<i64>,
    /// The compression level of zstd.
    pub level: i32,
    /// The number of threads that compress.
    pub threads: usize,
    /// The database that remembers what was published before.
    pub memory: Option<&'a Path>,
    /// The live directory to publish; `source` is then only its name for messages.
    pub live: Option<LiveSource<'a>>,
}

/// A release that is not signed yet.
pub struct Composed {
    /// The record, and everything its signers need.
    pub draft: Draft,
    /// The report for people.
    pub report: Report,
    remember: Box<dyn FnOnce(Digest) -> Result<(), PublishError>>,
}

/// The report of a publishing, for people.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Report {
    /// The number of the release.
    pub sequence: u64,
    /// Names in the tree.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Files that were read, because they were new or had changed.
    pub files_read: u64,
    /// Blocks that were not there before.
    pub blocks_added: u64,
    /// The bytes of those blocks as stored in packs.
    pub bytes_added: u64,
    /// Blocks of the live file system that no release referred to before.
    pub blocks_at_origin: u64,
    /// Whether the tree is the same as in the previous release.
    pub unchanged: bool,
    /// What could not be published, for people.
    pub notes: Vec<String>,
}

impl Composed {
    /// Makes the memory of this publishing valid for the next one. To be called once the record is signed and
    /// installed.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn remember(self) -> Result<(), PublishError> {
        let root = self.draft.root.as_ref().expect("it was made with one");
        (self.remember)(root.record.value.digest())
    }
}

fn bad_directory(error: &ReleaseDirError, target: &Path) -> PublishError {
    PublishError::Damaged { path: target.to_owned(), why: error.to_string() }
}

/// Locks the directory against other processes that publish into it.
///
/// # Errors
/// [`PublishError`]: another process has locked it, or it is not a directory.
pub fn lock(target: &Path) -> Result<FileLock, PublishError> {
    let folder = File::open(target).map_err(|error| PublishError::local(target, &error))?;
    FileLock::take(folder).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => PublishError::Local {
            path: target.to_owned(),
            why: "somebody else is publishing into it or copying to it; try again later".into(),
        },
        _ => PublishError::local(target, &error),
    })
}

/// Makes a release without signatures, in this process.
///
/// # Errors
/// [`PublishError`].
pub fn compose(
    release_options: &ReleaseOptions<'_>,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Composed, PublishError> {
    compose_by(release_options, progress, publish)
}

/// Like [`compose`], but a sandboxed process that `program` starts walks and parses a tree on this machine. A
/// live directory is read in this process: its blocks are not parsed further, and come from processes of
/// their own.
///
/// # Errors
/// [`PublishError`].
pub fn compose_apart(
    release_options: &ReleaseOptions<'_>,
    program: Program,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Composed, PublishError> {
    compose_by(release_options, progress, |options, index, progress| {
        publish_apart(options, index, program, progress)
    })
}

fn compose_by(
    release_options: &ReleaseOptions<'_>,
    progress: &mut dyn FnMut(Progress) -> bool,
    publish: impl FnOnce(
        &Options<'_>,
        &Index,
        &mut dyn FnMut(Progress) -> bool,
    ) -> Result<PublishedTree, PublishError>,
) -> Result<Composed, PublishError> {
    let dir = ReleaseDir::new(release_options.target);
    let chain = dir.chain().map_err(|error| bad_directory(&error, release_options.target))?;
    let last = dir.root(&chain).map_err(|error| bad_directory(&error, release_options.target))?;
    let record = last.as_ref().map(|file| &file.record.value);
    let index = match &last {
        Some(file) => read_index(release_options.target, &file.index.digest)?,
        None => Index::default(),
    };
    let digest_key = record.map_or(release_options.first_key, |record| record.digest_key);
    let memory = release_options.memory.map(|file| Memory { file, basis: record.map(Signable::digest) });
    let options = Options {
        source: release_options.source,
        target: release_options.target,
        digest_key,
        rules: release_options.rules,
        newest: release_options.newest,
        level: release_options.level,
        threads: release_options.threads,
        memory,
    };
    if release_options.live.is_some() && digest_key != DigestKey::WELL_KNOWN {
        let why = "its digests have a secret key of their own, so the blocks of a live file system are none of its; \
                   publish into an empty directory";
        return Err(PublishError::Unfit { path: release_options.target.to_owned(), why: why.into() });
    }
    let published = match &release_options.live {
        Some(live) => live::publish(&options, live, &index, progress)?,
        None => publish(&options, &index, progress)?,
    };
    let before = index;
    let sequence = record.map_or(1, |record| record.sequence + 1);
    let retained = retention::retained(release_options.target, release_options.keep.saturating_sub(1))?;
    let roots: Vec<Reference> = retained.iter().map(RetainedRelease::root).chain([published.root]).collect();
    let all = FolderBlocks::new(release_options.target, digest_key, published.index);
    if let Some(live) = &release_options.live {
        hold::hold(live.server, &all, &before, chain.id(), sequence, published.root.address)?;
    }
    let index = match retention::is_something_dropped(
        release_options.target,
        release_options.keep.saturating_sub(1),
    )? {
        true => retention::without_garbage(release_options.target, &all, &roots)?,
        false => all.index().clone(),
    };
    let location = write_named(release_options.target, layout::index, &index.encode())?;
    let hints = match release_options.live {
        Some(_) => Some(hints::make(&all, &published.root).map_err(|error| PublishError::Damaged {
            path: release_options.target.to_owned(),
            why: error.to_string(),
        })?),
        None => published.hints,
    };
    let hints = hints.map(|hints| write_named(release_options.target, layout::hints, &hints)).transpose()?;
    let record = Record {
        release: chain.id(),
        key_set: chain.current().number,
        sequence,
        issued_s: release_options.now_s,
        expires_s: release_options.now_s.saturating_add(release_options.life_s),
        digest_key,
        root_dir: published.root,
        previous: record.map(Signable::digest),
        note: release_options.note.to_owned(),
    };
    let report = Report {
        sequence: record.sequence,
        names: published.names,
        bytes: published.bytes,
        files_read: published.read,
        blocks_added: published.added.blocks,
        bytes_added: published.added.bytes,
        blocks_at_origin: published.added.at_origin,
        unchanged: last.as_ref().is_some_and(|last| last.record.value.root_dir == published.root),
        notes: published.notes,
    };
    let root = RootFile { record: Signed::unsigned(record), freshness: None, index: location, hints };
    let draft = Draft { sets: chain.sets().to_vec(), keys: None, root: Some(root), statement: None };
    Ok(Composed { draft, report, remember: published.remember })
}

/// Writes a file that is named by its digest.
pub(crate) fn write_named(
    target: &Path,
    name: impl Fn(&Digest) -> String,
    bytes: &[u8],
) -> Result<Location, PublishError> {
    let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, bytes);
    let path = target.join(name(&digest));
    let folder = path.parent().expect("it lies in a folder");
    let written = fs::create_dir_all(folder).and_then(|()| {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.as_file().sync_data()?;
        rustix::fs::fchmod(file.as_file(), rustix::fs::Mode::from_raw_mode(0o644))?;
        file.persist(&path)?;
        Ok(())
    });
    written.map_err(|error| PublishError::local(&path, &error))?;
    sync_directory(folder)?;
    Ok(Location { digest, bytes: bytes.len() as u64 })
}

/// Removes what no retained release needs: records, packs, indexes and unfinished files. To be called once a
/// record is installed. Files that the record before this one names stay, for readers that still use it.
///
/// # Errors
/// [`PublishError`].
pub fn tidy(target: &Path, keep: usize) -> Result<(), PublishError> {
    tidy_beside(target, keep, &[])
}

/// Like [`tidy`], but the indexes `beside` and the packs they name stay too.
///
/// # Errors
/// [`PublishError`].
pub(crate) fn tidy_beside(target: &Path, keep: usize, beside: &[Location]) -> Result<(), PublishError> {
    let dir = ReleaseDir::new(target);
    let chain = dir.chain().map_err(|error| bad_directory(&error, target))?;
    let Some(root) = dir.root(&chain).map_err(|error| bad_directory(&error, target))? else { return Ok(()) };
    let mut retained = retention::retained(target, keep)?;
    let mut named = vec![root.index];
    let before = root.record.value.sequence.saturating_sub(1);
    named.extend(
        retained.iter().filter(|retained| retained.sequence() == before).map(|retained| retained.file.index),
    );
    named.extend(root.hints);
    named.extend(beside);
    // Older records are changed to refer to the newest index before their own is removed.
    for old in &mut retained {
        if old.sequence() < before && old.file.index != root.index {
            old.file.index = root.index;
            old.file.hints = root.hints;
            let path = target.join(layout::record(old.sequence()));
            holdfast_durable::replace(&path, &form::write(&old.file), 0o644)
                .map_err(|error| PublishError::local(&path, &error))?;
        }
    }
    retention::remove_all_but(target, &retained, &named)
}
