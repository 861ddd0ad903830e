//! Sending: a prefix of a bucket becomes a mirror of the release that a directory of this machine has.
//!
//! Order, as on a disk: packs, indexes and hints; then older records, new keys and the record; `root` last.
//! Files that nobody needs any more are removed after that. So a reader sees the release before or this one,
//! however sending ends. Each object is there whole or not at all, and what was sent is not sent again.
//!
//! Invariants: a file named by a digest is sent only if its content has that digest. Nothing newer is
//! replaced by something older. A file is removed only if it belongs to a release, the directory does not
//! have it, and it has not been needed for a while.

mod contents;
mod patient;
mod unneeded;

pub use contents::{BucketContents, FirstKeySet};

use crate::form::{self, Kind};
use crate::keys::{KeyChain, ReleaseId};
use crate::layout;
use crate::publish::PublishError;
use crate::publish::store::read_index;
use crate::record::{RootFile, authenticate};
use crate::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_tiered::{Bucket, BucketError, S3};
use parking_lot::Mutex;
use patient::Steps;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Headers of files that are named by their digest, which never change.
const FOR_EVER: [(&str, &str); 2] =
    [("cache-control", "public, max-age=31536000, immutable"), ("content-type", "application/octet-stream")];
/// Headers of files that are replaced.
const FOR_SECONDS: [(&str, &str); 2] =
    [("cache-control", "public, max-age=10"), ("content-type", "application/octet-stream")];

/// Options of a transfer.
pub struct SendOptions<'a> {
    /// The directory with the release. It must not change during the transfer.
    pub folder: &'a Path,
    /// A file of this machine that remembers which files of the bucket are not needed any more, and since
    /// when.
    pub memory: &'a Path,
    /// How long files that are not needed any more stay, in seconds, for readers that still use an older
    /// index.
    pub window_s: u64,
    /// Now, in seconds since 1970.
    pub now_s: u64,
    /// How far the bucket's listing is trusted.
    pub belief: BucketTrust,
    /// How many files are sent at once.
    pub connections: usize,
}

/// How far a bucket's listing is trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BucketTrust {
    /// The names and lengths in the listing are trusted.
    Listing,
    /// The listing is not trusted: every file is read, and a damaged one is sent again.
    Content,
}

/// The progress of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Bytes that were sent so far, and bytes in all.
    pub bytes: (u64, u64),
    /// Whether the bucket is not answering at the moment.
    pub is_away: bool,
}

/// The report of a transfer, for people.
#[derive(Clone, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Number of the release that the bucket has now.
    pub sequence: u64,
    /// Files that were sent.
    pub files_sent: u64,
    /// The bytes of those files.
    pub bytes_sent: u64,
    /// Files that were there already.
    pub files_there: u64,
    /// Files of the previous release that were missing or damaged and were sent again.
    pub mended: Vec<String>,
    /// Files that were not needed any more and were removed.
    pub files_removed: u64,
    /// Files that are not needed any more and stay for a while.
    pub files_unneeded: u64,
    /// Requests to the bucket.
    pub requests: u64,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// Why a transfer failed. The bucket has the release that it had before.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The bucket refused a request or failed.
    #[error(transparent)]
    Bucket(BucketError),
    /// The bucket does not answer, or is overloaded.
    #[error("{bucket} cannot be reached: {why}")]
    Away {
        /// The bucket.
        bucket: String,
        /// What is wrong.
        why: String,
    },
    /// Reading the release directory failed.
    #[error(transparent)]
    Disk(#[from] PublishError),
    /// The directory is not a release directory.
    #[error(transparent)]
    Directory(#[from] ReleaseDirError),
    /// Nothing has been published in the directory yet.
    #[error("{}: no release is in force there, so there is nothing to send", .0.display())]
    Nothing(PathBuf),
    /// The bucket holds something else.
    #[error("{bucket}: {why}; name a prefix with nothing below it, or one with this release")]
    Foreign {
        /// The bucket.
        bucket: String,
        /// What is there.
        why: String,
    },
    /// The bucket has a newer state than the directory.
    #[error("{bucket}: {why}; it is left as it is")]
    Behind {
        /// The bucket.
        bucket: String,
        /// What is there.
        why: String,
    },
    /// The caller asked to stop.
    #[error("stopped; readers see the release that was there, and what was sent is not sent again")]
    Stopped,
}

impl From<BucketError> for SendError {
    fn from(error: BucketError) -> SendError {
        match error {
            BucketError::Away { bucket, why } => SendError::Away { bucket, why },
            error => SendError::Bucket(error),
        }
    }
}

/// A file named by its digest.
struct NamedFile {
    name: String,
    digest: Digest,
    bytes: u64,
}

/// The release of the directory that is sent.
struct LocalRelease {
    chain: KeyChain,
    root: RootFile,
    named: Vec<NamedFile>,
    /// Records by sequence number, as stored in the directory.
    records: BTreeMap<u64, Vec<u8>>,
    revoked: Option<Vec<u8>>,
}

/// Updates the bucket to what the directory has. `progress` is called before each request, from several
/// threads, and returns whether to go on.
///
/// # Errors
/// [`SendError`]. Readers then see the release that was there before.
pub fn send(
    bucket: &S3,
    options: &SendOptions<'_>,
    progress: &(dyn Fn(Progress) -> bool + Sync),
) -> Result<Report, SendError> {
    let own = LocalRelease::read(options.folder)?;
    let steps = Steps::new(progress, own.named.iter().map(|file| file.bytes).sum());
    let contents = steps.ask(|| BucketContents::look(bucket))?;
    let known = contents.known(bucket, &own.chain)?;
    let root = not_older(bucket, options.folder, &own.root, known.as_ref())?;
    let mut report = Report { sequence: root.record.value.sequence, ..Report::default() };

    let expected = known.as_ref().map(|known| needed(options.folder, known)).unwrap_or_default();
    let lacking = lacking(bucket, options, &own, &contents, &steps)?;
    report.mended =
        lacking.iter().map(|file| &file.name).filter(|name| expected.contains(*name)).cloned().collect();
    report.files_there = (own.named.len() - lacking.len()) as u64;
    several(options.connections, &lacking, &|file| send_named(bucket, options.folder, file, &steps))?;
    report.files_sent = lacking.len() as u64;
    report.bytes_sent = lacking.iter().map(|file| file.bytes).sum();

    let mut put = |name: &str, bytes: &[u8]| -> Result<(), SendError> {
        if contents.names.contains_key(name) && steps.ask(|| found(bucket, name))?.as_deref() == Some(bytes) {
            report.files_there += 1;
            return Ok(());
        }
        steps.ask(|| bucket.put_with(name, &FOR_SECONDS, bytes))?;
        report.files_sent += 1;
        report.bytes_sent += bytes.len() as u64;
        Ok(())
    };
    let newest = root.record.value.sequence;
    for (sequence, bytes) in own.records.iter().filter(|(sequence, _)| **sequence != newest) {
        put(&layout::record(*sequence), bytes)?;
    }
    for set in own.chain.sets() {
        put(&layout::keys(set.value.number), &form::write(set))?;
    }
    if let Some(revoked) = &own.revoked {
        put(layout::REVOKED, revoked)?;
    }
    let bytes = form::write(&root);
    put(&layout::record(newest), &bytes)?;
    if steps.ask(|| found(bucket, layout::ROOT))? != contents.root {
        let why = "somebody else has published there meanwhile".to_owned();
        return Err(SendError::Behind { bucket: bucket.describe(), why });
    }
    put(layout::ROOT, &bytes)?;

    // The release is in force now. What cannot be removed now is removed next time.
    if let Err(error) = remove(bucket, options, &own, &contents, &steps, &mut report) {
        report.notes.push(format!("files that nobody needs any more are still there: {error}"));
    }
    let counts = bucket.counts();
    report.requests = counts.put + counts.get + counts.head + counts.list + counts.delete;
    Ok(report)
}

impl LocalRelease {
    fn read(folder: &Path) -> Result<LocalRelease, SendError> {
        let dir = ReleaseDir::new(folder);
        let chain = dir.chain()?;
        let root = dir.root(&chain)?.ok_or_else(|| SendError::Nothing(folder.to_owned()))?;
        let revoked = dir.revoked(chain.id())?.map(|_| read(&dir.file(layout::REVOKED))).transpose()?;
        let mut named = Vec::new();
        for kind in ["packs", "index", "hints"] {
            for name in names(&folder.join(kind))? {
                // Other names belong to a publisher that was stopped.
                if let Some(digest) = Digest::from_hex(&name) {
                    let path = folder.join(kind).join(&name);
                    let bytes =
                        fs::metadata(&path).map_err(|error| PublishError::local(&path, &error))?.len();
                    named.push(NamedFile { name: format!("{kind}/{name}"), digest, bytes });
                }
            }
        }
        let mut records = BTreeMap::new();
        for name in names(&folder.join("records"))? {
            if let Ok(sequence) = name.parse() {
                records.insert(sequence, read(&folder.join("records").join(name))?);
            }
        }
        Ok(LocalRelease { chain, root, named, records, revoked })
    }

    /// The names of all files of the directory, except keys and the like, which always stay.
    fn names(&self) -> BTreeSet<String> {
        let records = self.records.keys().map(|sequence| layout::record(*sequence));
        self.named.iter().map(|file| file.name.clone()).chain(records).collect()
    }
}

fn names(folder: &Path) -> Result<Vec<String>, PublishError> {
    let failed = |error: std::io::Error| PublishError::local(folder, &error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name());
    let names: Vec<_> = entries.map(name).collect::<Result<_, _>>().map_err(failed)?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
}

fn read(path: &Path) -> Result<Vec<u8>, PublishError> {
    fs::read(path).map_err(|error| PublishError::local(path, &error))
}

/// An object; `None` if it is missing.
fn found(bucket: &S3, name: &str) -> Result<Option<Vec<u8>>, BucketError> {
    match bucket.get(name, None) {
        Err(error) if error.is_absent() => Ok(None),
        other => other.map(Some),
    }
}

/// The root file to put in place: the directory's, with the bucket's renewal if that lasts longer.
fn not_older(
    bucket: &S3,
    folder: &Path,
    own: &RootFile,
    known: Option<&RootFile>,
) -> Result<RootFile, SendError> {
    let Some(known) = known else { return Ok(own.clone()) };
    let (present, new) = (&known.record.value, &own.record.value);
    let behind = |why: String| Err(SendError::Behind { bucket: bucket.describe(), why });
    if present.sequence > new.sequence {
        let folder = folder.display();
        return behind(format!("release {} is there, and {folder} has {}", present.sequence, new.sequence));
    }
    if present.sequence == new.sequence && present != new {
        return behind(format!("another release {} is there", present.sequence));
    }
    let end = |file: &RootFile| file.freshness.as_ref().map_or(0, |renewal| renewal.value.expires_s);
    match present == new && end(known) > end(own) {
        true => Ok(RootFile { freshness: known.freshness.clone(), ..own.clone() }),
        false => Ok(own.clone()),
    }
}

/// The files that the bucket's present release needs, if its index is in the directory too.
fn needed(folder: &Path, root: &RootFile) -> BTreeSet<String> {
    let index = read_index(folder, &root.index.digest);
    let packs = index.into_iter().flat_map(|index| index.packs);
    let packs = packs.filter(|pack| !pack.is_origin()).map(|pack| layout::pack(&pack.digest));
    let hints = root.hints.map(|hints| layout::hints(&hints.digest));
    packs.chain(hints).chain([layout::index(&root.index.digest)]).collect()
}

/// The files to send: those that the bucket lacks or has with another length, and damaged ones if content is
/// checked.
fn lacking<'a>(
    bucket: &S3,
    options: &SendOptions<'_>,
    own: &'a LocalRelease,
    contents: &BucketContents,
    steps: &Steps<'_>,
) -> Result<Vec<&'a NamedFile>, SendError> {
    let is_listed = |file: &&NamedFile| contents.names.get(&file.name) == Some(&file.bytes);
    let (listed, mut lacking): (Vec<_>, Vec<_>) = own.named.iter().partition(is_listed);
    let is_good = |file: &NamedFile, bytes: &[u8]| digest_of(bytes) == file.digest;
    let altered = Mutex::new(Vec::new());
    several(options.connections, &listed, &|file| {
        let is_there = match options.belief {
            BucketTrust::Listing => true,
            BucketTrust::Content => {
                steps.ask(|| found(bucket, &file.name))?.is_some_and(|bytes| is_good(file, &bytes))
            }
        };
        match is_there {
            true => steps.done(file.bytes),
            false => altered.lock().push(*file),
        }
        Ok(())
    })?;
    lacking.extend(altered.into_inner());
    lacking.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(lacking)
}

fn digest_of(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::ReleaseFile, bytes)
}

fn send_named(bucket: &S3, folder: &Path, file: &NamedFile, steps: &Steps<'_>) -> Result<(), SendError> {
    let path = folder.join(&file.name);
    let bytes = read(&path)?;
    if digest_of(&bytes) != file.digest {
        let why = "its content is not what its name says, so it is not sent".to_owned();
        return Err(PublishError::Damaged { path, why }.into());
    }
    steps.ask(|| bucket.put_with(&file.name, &FOR_EVER, &bytes))?;
    steps.done(file.bytes);
    Ok(())
}

/// Calls `act` for each item, several at once, until one fails.
fn several<T: Sync>(
    connections: usize,
    all: &[T],
    act: &(dyn Fn(&T) -> Result<(), SendError> + Sync),
) -> Result<(), SendError> {
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<SendError>> = Mutex::new(None);
    let work = || {
        while failed.lock().is_none() {
            let Some(one) = all.get(next.fetch_add(1, Relaxed)) else { return };
            if let Err(error) = act(one) {
                failed.lock().get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..connections.clamp(1, all.len().max(1)) {
            scope.spawn(work);
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// Removes what the directory does not have. Records are removed at once, so that none is ever there without
/// its blocks; files are removed when nobody has needed them for a while.
fn remove(
    bucket: &S3,
    options: &SendOptions<'_>,
    own: &LocalRelease,
    contents: &BucketContents,
    steps: &Steps<'_>,
    report: &mut Report,
) -> Result<(), SendError> {
    let is_file =
        |name: &&String| ["packs/", "index/", "hints/", "records/"].iter().any(|kind| name.starts_with(kind));
    let stays = own.names();
    let gone = contents.names.keys().filter(is_file).filter(|name| !stays.contains(*name));
    let (records, files): (Vec<&String>, Vec<&String>) = gone.partition(|name| name.starts_with("records/"));
    for name in records {
        steps.ask(|| bucket.delete(name))?;
        report.files_removed += 1;
    }
    let mut memory = unneeded::Memory::read(options.memory);
    memory.note(files.iter().map(|name| name.as_str()), options.now_s);
    memory.write(options.memory)?;
    for name in files {
        if memory.is_over(name, options.now_s, options.window_s) {
            steps.ask(|| bucket.delete(name))?;
            memory.forget(name);
            report.files_removed += 1;
        } else {
            report.files_unneeded += 1;
        }
    }
    memory.write(options.memory).map_err(SendError::from)
}

/// Decodes a signed file; `None` if it is missing or malformed.
fn parsed<T: Kind>(bytes: Option<&[u8]>) -> Option<T> {
    form::read(bytes?).ok()
}

/// Whether a record is signed with these keys.
fn is_signed(chain: &KeyChain, file: &RootFile) -> bool {
    authenticate(chain, file).is_ok()
}

/// The release that a first key set defines.
fn id_of(set: &crate::keys::SignedKeySet) -> ReleaseId {
    use crate::signing::Signable;
    ReleaseId(set.value.digest())
}
