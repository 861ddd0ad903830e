//! Fetches files that are named by their digest, writes them to the disk piece by piece, and checks them
//! meanwhile.

use super::local::{Local, Piece, Source};
use super::{PullError, Steps};
use crate::index::PackName;
use crate::mirror::{MirrorFailure, Mirrors, Unavailable};
use crate::publish::PublishError;
use crate::record::Location;
use crate::{layout, pack};
use holdfast_crypto::{Digest, DigestKey, Domain};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Bytes of one request, which are in memory at once.
const PIECE_BYTES: u64 = 4 << 20;

/// A file to fetch.
#[derive(Clone, Debug)]
pub struct WantedFile {
    /// The name of the file at a mirror.
    pub name: String,
    /// The digest of the file.
    pub digest: Digest,
    /// The size in bytes.
    pub bytes: u64,
}

impl WantedFile {
    /// A file, by its location.
    pub fn new(name: String, location: Location) -> WantedFile {
        WantedFile { name, digest: location.digest, bytes: location.bytes }
    }

    /// Whether a file of the right length is there.
    pub fn is_there(&self, target: &Path) -> bool {
        fs::symlink_metadata(target.join(&self.name))
            .is_ok_and(|there| there.is_file() && there.len() == self.bytes)
    }

    fn partial(&self, target: &Path) -> PathBuf {
        target.join(format!("{}.partial", self.name))
    }
}

/// Fetches files from mirrors into a directory.
pub struct Fetcher<'a> {
    mirrors: &'a Mirrors,
    target: &'a Path,
    steps: &'a Steps<'a>,
    reused: AtomicU64,
}

/// Why a file was not written.
enum FetchError {
    /// The file was written, but has another digest.
    Other,
    /// The mirrors do not have it.
    Unavailable(Unavailable),
    Pull(PullError),
}

impl From<PublishError> for FetchError {
    fn from(error: PublishError) -> FetchError {
        FetchError::Pull(error.into())
    }
}

impl<'a> Fetcher<'a> {
    /// Fetches from `mirrors` into `target`.
    pub fn new(mirrors: &'a Mirrors, target: &'a Path, steps: &'a Steps<'a>) -> Fetcher<'a> {
        Fetcher { mirrors, target, steps, reused: AtomicU64::new(0) }
    }

    /// The directory that files are fetched into.
    pub fn target(&self) -> &Path {
        self.target
    }

    /// The mirrors that are asked.
    pub fn mirrors(&self) -> &Mirrors {
        self.mirrors
    }

    /// The progress of the pull, which also tells whether to go on.
    pub fn steps(&self) -> &Steps<'a> {
        self.steps
    }

    /// Bytes that did not have to be fetched.
    pub fn reused(&self) -> u64 {
        self.reused.load(Relaxed)
    }

    /// Checks that the disk has room for all of these files.
    pub fn room_for(&self, wanted: &[WantedFile]) -> Result<(), PullError> {
        let left = |file: &WantedFile| {
            let partial = fs::metadata(file.partial(self.target)).map_or(0, |partial| partial.len());
            file.bytes.saturating_sub(partial)
        };
        let needed = wanted.iter().fold(0u64, |sum, file| sum.saturating_add(left(file)));
        let space = rustix::fs::statvfs(self.target)
            .map_err(|error| PublishError::local(self.target, &error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        match needed <= free {
            true => Ok(()),
            false => Err(PullError::NoRoom { target: self.target.to_owned(), needed, free }),
        }
    }

    /// Fetches all of these, several at once.
    pub fn fetch_all(
        &self,
        wanted: &[WantedFile],
        pieces: &HashMap<Digest, Vec<Piece>>,
        locals: &[Local],
        connections: usize,
    ) -> Result<(), PullError> {
        self.steps.bytes_all.fetch_add(wanted.iter().map(|file| file.bytes).sum(), Relaxed);
        let next = AtomicUsize::new(0);
        let failed: Mutex<Option<PullError>> = Mutex::new(None);
        let work = || {
            while failed.lock().is_none() {
                let Some(file) = wanted.get(next.fetch_add(1, Relaxed)) else { return };
                let pieces = pieces.get(&file.digest).map_or(&[][..], Vec::as_slice);
                if let Err(error) = self.fetch(file, pieces, locals) {
                    failed.lock().get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..connections.clamp(1, wanted.len().max(1)) {
                scope.spawn(work);
            }
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Fetches one file, or composes it from `pieces`, and puts it in place if it has its digest.
    pub fn fetch(&self, wanted: &WantedFile, pieces: &[Piece], locals: &[Local]) -> Result<(), PullError> {
        let whole = [Piece { range: 0..wanted.bytes, source: None }];
        let first = if pieces.is_empty() { &whole } else { pieces };
        let from_any = |range: Range<u64>| {
            let length = range.end - range.start;
            let check = |bytes: Vec<u8>| match bytes.len() as u64 == length {
                true => Ok(bytes),
                false => Err(format!("it has other than {} bytes", wanted.bytes).into()),
            };
            let (bytes, _) = self.mirrors.get_checked(&wanted.name, Some(range), length, &check)?;
            Ok(bytes)
        };
        let mut failures = Vec::new();
        match self.make(wanted, first, locals, &from_any) {
            Ok(()) => return Ok(()),
            Err(FetchError::Pull(error)) => return Err(error),
            Err(FetchError::Unavailable(error)) => {
                return Err(PullError::Unavailable(error, self.target.to_owned()));
            }
            Err(FetchError::Other) => {}
        }
        // The whole file is fetched from one mirror after the other, which shows which one sends bad content.
        for mirror in self.mirrors.each() {
            let from_one = |range: Range<u64>| {
                let length = range.end - range.start;
                let unavailable = |answer| Unavailable {
                    file: wanted.name.clone(),
                    failures: vec![answer],
                    dropped: Vec::new(),
                };
                let bytes = mirror
                    .get(&wanted.name, Some(range), length)
                    .map_err(|error| unavailable(MirrorFailure::Failed(error)))?;
                let short =
                    || MirrorFailure::Bad { mirror: mirror.name().to_owned(), why: "it is cut short".into() };
                if bytes.len() as u64 == length { Ok(bytes) } else { Err(unavailable(short())) }
            };
            match self.make(wanted, &whole, &[], &from_one) {
                Ok(()) => return Ok(()),
                Err(FetchError::Pull(error)) => return Err(error),
                Err(FetchError::Unavailable(error)) => failures.extend(error.failures),
                Err(FetchError::Other) => {
                    let why = format!("the content of {} is not what its name says", wanted.name);
                    self.mirrors.report_bad(mirror.name(), &why);
                    failures.push(MirrorFailure::Bad { mirror: mirror.name().to_owned(), why });
                }
            }
        }
        let error = Unavailable { file: wanted.name.clone(), failures, dropped: Vec::new() };
        Err(PullError::Unavailable(error, self.target.to_owned()))
    }

    /// Writes a file from pieces, continuing where an earlier pull ended.
    fn make(
        &self,
        wanted: &WantedFile,
        pieces: &[Piece],
        locals: &[Local],
        get: &dyn Fn(Range<u64>) -> Result<Vec<u8>, Unavailable>,
    ) -> Result<(), FetchError> {
        let partial = wanted.partial(self.target);
        let failed = |error: io::Error| PublishError::local(&partial, &error);
        self.steps.step().map_err(FetchError::Pull)?;
        fs::create_dir_all(partial.parent().unwrap_or(self.target)).map_err(failed)?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o644).open(&partial);
        let file = file.map_err(failed)?;
        let mut hasher = DigestKey::WELL_KNOWN.hasher(Domain::ReleaseFile);
        let mut done = file.metadata().map_err(failed)?.len();
        if done > wanted.bytes {
            file.set_len(0).map_err(failed)?;
            done = 0;
        }
        read_all(&file, done, &mut |bytes| {
            hasher = std::mem::replace(&mut hasher, DigestKey::WELL_KNOWN.hasher(Domain::ReleaseFile))
                .update(bytes);
        })
        .map_err(failed)?;
        self.steps.bytes.fetch_add(done, Relaxed);
        let mut reused = done;
        for piece in pieces {
            while done < piece.range.end {
                let range = done..piece.range.end.min(done + PIECE_BYTES);
                let bytes = match piece.source.and_then(|source| copy(source, &piece.range, &range, locals)) {
                    Some(bytes) => {
                        reused += bytes.len() as u64;
                        bytes
                    }
                    None => get(range.clone()).map_err(FetchError::Unavailable)?,
                };
                self.steps.step().map_err(FetchError::Pull)?;
                file.write_all_at(&bytes, done).map_err(failed)?;
                hasher = hasher.update(&bytes);
                self.steps.bytes.fetch_add(range.end - range.start, Relaxed);
                done = range.end;
            }
        }
        if hasher.finish() != wanted.digest {
            self.steps.bytes.fetch_sub(done, Relaxed);
            fs::remove_file(&partial).map_err(failed)?;
            return Err(FetchError::Other);
        }
        self.reused.fetch_add(reused, Relaxed);
        self.steps.step().map_err(FetchError::Pull)?;
        let place = file.sync_data().and_then(|()| fs::rename(&partial, self.target.join(&wanted.name)));
        Ok(place.map_err(failed)?)
    }

    /// Fetches a pack again if it is damaged here. Returns whether it was.
    pub fn repair(&self, pack: &PackName) -> Result<bool, PullError> {
        let location = Location { digest: pack.digest, bytes: pack.bytes };
        let wanted = WantedFile::new(layout::pack(&pack.digest), location);
        if is_as_named(&self.target.join(&wanted.name), &pack.digest) {
            return Ok(false);
        }
        self.steps.bytes_all.fetch_add(wanted.bytes, Relaxed);
        self.fetch(&wanted, &[], &[]).map(|()| true)
    }
}

/// Whether a file has the digest that names it. `false` if it cannot be read.
pub fn is_as_named(path: &Path, digest: &Digest) -> bool {
    let mut hasher = Some(DigestKey::WELL_KNOWN.hasher(Domain::ReleaseFile));
    let read = File::open(path).and_then(|file| {
        let length = file.metadata()?.len();
        read_all(&file, length, &mut |bytes| hasher = hasher.take().map(|hasher| hasher.update(bytes)))
    });
    read.is_ok() && hasher.is_some_and(|hasher| hasher.finish() == *digest)
}

/// Reads the first `length` bytes of a file, piece by piece.
fn read_all(file: &File, length: u64, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
    let mut file = file.take(length);
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => each(&buffer[..count]),
        }
    }
}

/// The part `range` of a piece that is available locally; `None` if it is unreadable or wrong.
fn copy(source: Source, piece: &Range<u64>, range: &Range<u64>, locals: &[Local]) -> Option<Vec<u8>> {
    let bytes = match source {
        Source::Magic => pack::MAGIC.to_vec(),
        Source::Frame(number, place) => locals.get(number)?.frame(&place).ok()?,
    };
    let part = (range.start - piece.start) as usize..(range.end - piece.start) as usize;
    bytes.get(part).map(<[u8]>::to_vec)
}
