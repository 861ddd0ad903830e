//! Pulling: a directory becomes a mirror of a release, or is brought up to date (the read-only paper's
//! `pulldb`).
//!
//! Order: blocks and the index come first; then the tree of every record to be retained is checked; then come
//! keys and records, and `root` last. So the directory has the previous release or this one however the pull
//! ends, and the next pull uses what a killed one has fetched. Files that nobody needs any more are removed
//! at the end.
//!
//! Invariant: nothing is put in place that was not checked from its record down. A pack's name only proves
//! that it is the pack that an index names, and an index is an unsigned hint from a mirror.

mod check;
mod fetch;
mod local;
mod origin;
mod records;
mod requests;

use crate::admit::{self, AdmitError};
use crate::index::{BlockLocation, Index, PACK_BYTES_MAX, PackName};
use crate::layout;
use crate::mirror::{Directory, Mirror, Mirrors, Unavailable};
use crate::open::{self, OpenError, Options};
use crate::publish::PublishError;
use crate::publish::compose::{lock, tidy_beside, write_named};
use crate::publish::store::{read_index, sync_directory};
use crate::record::{Location, RootFile};
use crate::trust::Trust;
use check::{Check, CheckError};
use fetch::{Fetcher, WantedFile, is_as_named};
use holdfast_crypto::{Digest, DigestKey};
use local::Local;
use records::LocalRelease;
use requests::CountedMirror;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most bytes of an index: indexes are held in memory, and their size is not signed.
const INDEX_BYTES_MAX: u64 = 1 << 30;

/// Options of a pull.
pub struct PullOptions<'a> {
    /// The directory that becomes a mirror.
    pub target: &'a Path,
    /// How many releases to retain, this one included, if the source has so many.
    pub keep: usize,
    /// Other release directories on this machine from which blocks can be copied.
    pub from: &'a [PathBuf],
    /// Whether to skip reading blocks again that an earlier pull has checked.
    pub quick: bool,
    /// How many files are fetched at once.
    pub connections: usize,
}

/// The progress of a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes of files that are present, and bytes in all.
    pub bytes: (u64, u64),
    /// The number of blocks that were checked.
    pub blocks: u64,
}

/// The report of a pull, for people.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Report {
    /// Number of the release that the directory has now.
    pub sequence: u64,
    /// The last second at which the release is in force, since 1970.
    pub valid_until_s: u64,
    /// Whether the directory had another release, or none.
    pub changed: bool,
    /// The number of releases in the directory.
    pub releases: u64,
    /// Bytes received from mirrors.
    pub bytes_fetched: u64,
    /// Bytes of new files that were on this machine already.
    pub bytes_reused: u64,
    /// The number of requests to mirrors.
    pub requests: u64,
    /// Packs that were fetched.
    pub packs_added: u64,
    /// The number of packs that were there already.
    pub packs_kept: u64,
    /// Blocks whose content was checked.
    pub blocks_verified: u64,
    /// Blocks that an earlier pull had checked; only their references were followed.
    pub blocks_known: u64,
    /// Notices for people.
    pub notices: Vec<String>,
}

/// Why a directory was not updated. It is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// No mirror has a valid release, or it is revoked.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// This machine's disk failed, or what was on it before is damaged.
    #[error(transparent)]
    Disk(#[from] PublishError),
    /// No mirror has a file that the release needs.
    #[error("{0}; {there} is as it was, and what was fetched is used next time", there = .1.display())]
    Unavailable(Unavailable, PathBuf),
    /// The mirrors' files do not make up a whole release.
    #[error("release {sequence} is not whole: {why}; {} is as it was. {way_out}", target.display())]
    Torn {
        /// The number of the release.
        sequence: u64,
        /// What is wrong.
        why: String,
        /// The directory.
        target: PathBuf,
        /// What the user can do about it.
        way_out: &'static str,
    },
    /// The directory has a newer state than the mirrors.
    #[error("{}: {why}; it is left as it is", target.display())]
    Behind {
        /// The directory.
        target: PathBuf,
        /// What the directory has.
        why: String,
    },
    /// The directory holds something else.
    #[error("{}: {why}; name an empty directory, or one with this release", target.display())]
    Foreign {
        /// The directory.
        target: PathBuf,
        /// What is in the directory.
        why: String,
    },
    /// The disk has too little free space.
    #[error(
        "{}: {needed} bytes are needed and {free} are free; make room, or keep fewer releases with --keep",
        target.display()
    )]
    NoRoom {
        /// The directory.
        target: PathBuf,
        /// Bytes that are needed.
        needed: u64,
        /// Bytes that the disk has free.
        free: u64,
    },
    /// The caller asked to stop.
    #[error("stopped; the release that was there is as it was, and what was fetched is used next time")]
    Stopped,
}

/// Counts the progress, and reports it before each change on the disk.
struct Steps<'a> {
    progress: &'a (dyn Fn(Progress) -> bool + Sync),
    bytes: AtomicU64,
    bytes_all: AtomicU64,
    blocks: AtomicU64,
}

impl Steps<'_> {
    fn step(&self) -> Result<(), PullError> {
        let bytes = (self.bytes.load(Relaxed), self.bytes_all.load(Relaxed));
        match (self.progress)(Progress { bytes, blocks: self.blocks.load(Relaxed) }) {
            true => Ok(()),
            false => Err(PullError::Stopped),
        }
    }
}

/// Updates a directory. `progress` is called before each change on the disk and now and then, from several
/// threads, and returns whether to go on.
///
/// # Errors
/// [`PullError`].
pub fn pull(
    options: &Options,
    mirrors: Vec<Arc<dyn Mirror>>,
    pull_options: &PullOptions<'_>,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<Report, PullError> {
    let target = pull_options.target;
    let (mirrors, requests) = CountedMirror::all(mirrors);
    let trust = Trust::open(&options.trust, options.id).map_err(OpenError::from)?;
    make(target)?;
    let _lock = lock(target)?;
    records::no_other(target, options.id)?;
    let admitted = look(options, &trust, &mirrors, target)?;
    let (chain, record) = (&admitted.chain, &admitted.accepted.record);
    let here = LocalRelease::read(target, chain);
    let root = here.not_older(target, &admitted.file)?;
    let all = Mirrors::new(mirrors);
    let older = records::older(&all, chain, record.sequence, pull_options.keep)
        .map_err(|error| PullError::Unavailable(error, target.to_owned()))?;
    let steps =
        Steps { progress, bytes: AtomicU64::new(0), bytes_all: AtomicU64::new(0), blocks: AtomicU64::new(0) };
    steps.step()?;

    let fetcher = Fetcher::new(&all, target, &steps);
    let source = fetch_index(&fetcher, &root)?;
    let known = here.index(target);
    let is_good = |pack: &PackName| {
        let location = Location { digest: pack.digest, bytes: pack.bytes };
        let wanted = WantedFile::new(layout::pack(&pack.digest), location);
        wanted.is_there(target)
            && (pull_options.quick || is_as_named(&target.join(&wanted.name), &pack.digest))
    };
    let (index, missing) = origin::with_own(&source, known.as_ref(), &is_good);
    let mut locals = Vec::new();
    if let Some(known) = &known {
        locals.push(Local::new(target, known.clone())?);
    }
    for from in pull_options.from {
        locals.push(Local::open(from)?);
    }
    let (mut added, kept) = fetch_packs(&fetcher, pull_options, &index, &root, &locals)?;
    let records: Vec<&RootFile> = [&root].into_iter().chain(&older).collect();
    let (index, made) = match missing.is_empty() {
        true => (index, HashSet::new()),
        false => origin::fetch(&fetcher, &index, &missing, &records, &locals, pull_options.connections)?,
    };
    added.extend(made);
    drop(locals);
    // If the directory stores blocks of the origin in packs of its own, its index differs from the mirrors'.
    let at_source = root.index;
    let root = match source.packs.iter().any(PackName::is_origin) {
        true => {
            let index = write_named(target, layout::index, &index.clone().encode())?;
            RootFile { index, ..root }
        }
        false => root,
    };
    let records: Vec<&RootFile> = [&root].into_iter().chain(&older).collect();

    let is_as_before = here.location() == Some(root.index)
        && here.sequence() == Some(record.sequence)
        && added.is_empty()
        && records::are_installed(target, chain, &older);
    let counts = match pull_options.quick && is_as_before {
        true => Counts::default(),
        false => {
            check_trees(&fetcher, &index, known.as_ref().filter(|_| pull_options.quick), &records, &added)?
        }
    };
    for folder in ["packs", "index", "hints"] {
        if target.join(folder).is_dir() {
            sync_directory(&target.join(folder))?;
        }
    }
    steps.step()?;

    let keep = records.len();
    let changed = here.sequence() != Some(record.sequence);
    let before = here.location().filter(|_| changed && known.is_some());
    records::install(target, chain, &root, &older, &|| steps.step())?;
    // The mirrors' index stays in the directory too, because the next pull begins with it.
    let beside: Vec<Location> = before.into_iter().chain([at_source]).collect();
    tidy_beside(target, keep, &beside)?;
    let warnings = admitted.accepted.warnings.iter().map(ToString::to_string);
    Ok(Report {
        sequence: record.sequence,
        valid_until_s: admitted.accepted.valid_until_s,
        changed,
        releases: keep as u64,
        bytes_fetched: requests.bytes(),
        bytes_reused: fetcher.reused(),
        requests: requests.count(),
        packs_added: added.len() as u64,
        packs_kept: kept,
        blocks_verified: counts.verified,
        blocks_known: counts.known,
        notices: warnings.chain(admitted.notices.iter().cloned()).collect(),
    })
}

/// The result of checking a directory that holds a whole release.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedRelease {
    /// The last second at which the release counts, since 1970.
    pub valid_until_s: u64,
    /// Blocks whose content was checked.
    pub blocks_verified: u64,
    /// Notices for people.
    pub notices: Vec<String>,
}

/// Checks that a directory of this machine has a release in force, and everything that its records refer to.
///
/// # Errors
/// [`PullError`].
pub fn check(
    options: &Options,
    folder: &Path,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<CheckedRelease, PullError> {
    let trust = Trust::open(&options.trust, options.id).map_err(OpenError::from)?;
    let mirrors: Vec<Arc<dyn Mirror>> = vec![Arc::new(Directory::new(folder))];
    let admitted = open::best(&trust, &mirrors, options)?;
    let root = &admitted.file;
    let all = Mirrors::new(mirrors);
    let older = records::older(&all, &admitted.chain, root.record.value.sequence, usize::MAX)
        .map_err(|error| PullError::Unavailable(error, folder.to_owned()))?;
    let steps =
        Steps { progress, bytes: AtomicU64::new(0), bytes_all: AtomicU64::new(0), blocks: AtomicU64::new(0) };
    let fetcher = Fetcher::new(&all, folder, &steps);
    let index = read_index(folder, &root.index.digest)?;
    let records: Vec<&RootFile> = [root].into_iter().chain(&older).collect();
    let counts =
        check_trees(&fetcher, &index, None, &records, &HashSet::new()).map_err(|error| match error {
            // A file is fetched only if it is damaged here, so that it is unavailable means that.
            PullError::Unavailable(error, _) => PullError::Disk(PublishError::Damaged {
                path: folder.join(error.file),
                why: "its content is not what its name says".into(),
            }),
            other => other,
        })?;
    let warnings = admitted.accepted.warnings.iter().map(ToString::to_string);
    Ok(CheckedRelease {
        valid_until_s: admitted.accepted.valid_until_s,
        blocks_verified: counts.verified,
        notices: warnings.chain(admitted.notices.iter().cloned()).collect(),
    })
}

fn make(target: &Path) -> Result<(), PullError> {
    holdfast_durable::make_directory(target, 0o755)
        .map_err(|error| PublishError::local(target, &error).into())
}

/// The record in force, according to the mirrors and to what the directory has. If the release is revoked,
/// the certificate is put into the directory for its readers.
fn look(
    options: &Options,
    trust: &Trust,
    mirrors: &[Arc<dyn Mirror>],
    target: &Path,
) -> Result<admit::Admitted, PullError> {
    let answer = match admit::not_revoked_at(trust, &Directory::new(target)) {
        Ok(_) => open::best(trust, mirrors, options),
        Err(error) => Err(OpenError::Final(error)),
    };
    if let Err(OpenError::Final(AdmitError::Revoked { .. })) = &answer {
        records::install_revocation(trust, target)?;
    }
    Ok(answer?)
}

fn fetch_index(fetcher: &Fetcher<'_>, root: &RootFile) -> Result<Index, PullError> {
    let (location, target) = (root.index, fetcher.target());
    let torn = |why: String| torn(target, root, root, why);
    if location.bytes > INDEX_BYTES_MAX {
        return Err(torn(format!("its index is said to have {} bytes", location.bytes)));
    }
    let wanted = WantedFile::new(layout::index(&location.digest), location);
    if !wanted.is_there(target) || read_index(target, &location.digest).is_err() {
        fetcher.room_for(std::slice::from_ref(&wanted))?;
        fetcher.fetch(&wanted, &[], &[])?;
    }
    let index = read_index(target, &location.digest)
        .map_err(|error| torn(format!("what was named as its index is none: {error}")))?;
    match index.packs.iter().all(|pack| pack.bytes <= PACK_BYTES_MAX) {
        true => Ok(index),
        false => Err(torn("its index names a pack that is larger than any may be".into())),
    }
}

/// The error that the release of `file` is not whole. `newest` is the newest one that the mirrors have.
fn torn(target: &Path, newest: &RootFile, file: &RootFile, why: String) -> PullError {
    let sequence = file.record.value.sequence;
    let way_out = match sequence == newest.record.value.sequence {
        true => "Name other mirrors, and leave out the one whose index this is",
        false => "Name other mirrors, or leave out older releases with --keep",
    };
    PullError::Torn { sequence, why, target: target.to_owned(), way_out }
}

/// Fetches the packs and hints that the directory lacks. Returns the fetched packs, and the number of those
/// that were there.
fn fetch_packs(
    fetcher: &Fetcher<'_>,
    pull_options: &PullOptions<'_>,
    index: &Index,
    root: &RootFile,
    locals: &[Local],
) -> Result<(HashSet<Digest>, u64), PullError> {
    let names: BTreeMap<Digest, u64> = index.packs.iter().map(|pack| (pack.digest, pack.bytes)).collect();
    let packs = names.iter().map(|(digest, bytes)| {
        WantedFile::new(layout::pack(digest), Location { digest: *digest, bytes: *bytes })
    });
    let (there, missing): (Vec<WantedFile>, Vec<WantedFile>) =
        packs.partition(|pack| pack.is_there(pull_options.target));
    let mut wanted = missing;
    let added: HashSet<Digest> = wanted.iter().map(|pack| pack.digest).collect();
    let hints = root.hints.map(|hints| WantedFile::new(layout::hints(&hints.digest), hints));
    wanted.extend(hints.filter(|hints| match pull_options.quick {
        true => !hints.is_there(pull_options.target),
        false => !is_as_named(&pull_options.target.join(&hints.name), &hints.digest),
    }));
    fetcher.room_for(&wanted)?;
    let pieces = local::pieces(index, &added, locals);
    fetcher.fetch_all(&wanted, &pieces, locals, pull_options.connections)?;
    Ok((added, there.len() as u64))
}

#[derive(Default)]
struct Counts {
    verified: u64,
    known: u64,
}

/// Checks that the trees of `records` are whole. A pack that is damaged on this disk is fetched again.
fn check_trees(
    fetcher: &Fetcher<'_>,
    index: &Index,
    known: Option<&Index>,
    records: &[&RootFile],
    added: &HashSet<Digest>,
) -> Result<Counts, PullError> {
    let mut counts = Counts::default();
    let mut repaired: HashSet<Digest> = HashSet::new();
    let packs_known: HashMap<Digest, u32> = known
        .iter()
        .flat_map(|index| index.packs.iter().enumerate().map(|(number, pack)| (pack.digest, number as u32)))
        .collect();
    let is_known = |location: &BlockLocation, address: &Digest| {
        let pack = index.packs[location.pack as usize].digest;
        let (Some(known), Some(number)) = (known, packs_known.get(&pack)) else { return false };
        !added.contains(&pack)
            && local::location(known, address) == Some(BlockLocation { pack: *number, ..*location })
    };
    let mut by_key: BTreeMap<[u8; 32], Vec<&RootFile>> = BTreeMap::new();
    for file in records {
        by_key.entry(file.record.value.digest_key.0).or_default().push(*file);
    }
    for (key, files) in by_key {
        let mut check = Check::new(fetcher, index, DigestKey(key));
        // The newest is checked first, and one after the other, so that it is clear which one is not whole.
        // What they share is read once.
        let mut rest = &files[..];
        while let Some((file, after)) = rest.split_first() {
            let (pack, why) = match check.tree(&file.record.value.root_dir.address, &is_known) {
                Ok(()) => {
                    rest = after;
                    continue;
                }
                Err(CheckError::Stopped(error)) => return Err(error),
                Err(CheckError::Missing(why)) => (None, why),
                Err(CheckError::Block { pack, why }) => (Some(index.packs[pack as usize]), why),
            };
            let damaged = pack.filter(|pack| !added.contains(&pack.digest) && repaired.insert(pack.digest));
            match damaged {
                Some(pack) if fetcher.repair(&pack)? => {
                    check.forget();
                    rest = &files[..];
                }
                _ => return Err(torn(fetcher.target(), records[0], file, why)),
            }
        }
        counts.verified += check.verified();
        counts.known += check.known();
    }
    Ok(counts)
}

/// Writes a small file unless it has this content already.
fn put(target: &Path, name: &str, bytes: &[u8]) -> Result<(), PublishError> {
    let path = target.join(name);
    let failed = |error: std::io::Error| PublishError::local(&path, &error);
    if fs::read(&path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    holdfast_durable::make_directory(path.parent().unwrap_or(target), 0o755).map_err(failed)?;
    holdfast_durable::replace(&path, bytes, 0o644).map_err(failed)
}
