//! The files that are served: small ones in memory, large ones open.

use super::names::{Lifetime, lifetime};
use crate::folder::Folder;
use bytes::Bytes;
use holdfast_http_server::Pieces;
use hyper::header::HeaderValue;
use lru::LruCache;
use parking_lot::Mutex;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Files of up to so many bytes are cached in memory; longer ones are sent in pieces of this length.
pub const PIECE_BYTES: u64 = 64 << 10;
/// Most long files that stay open.
const OPEN_FILES_MAX: u64 = 512;
/// For how long a file that can change is assumed to be unchanged.
const CHANGING_FOR: Duration = Duration::from_secs(1);
/// For how long an immutable file is used without checking whether it still exists. When a new release no
/// longer needs it, its disk space must become free although it is open here.
const IMMUTABLE_FOR: Duration = Duration::from_secs(60);

/// Whether a call may wait for the disk. It must not on threads that serve connections, because all of them
/// would wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The call must not wait: [`ReadError::WouldWait`] is returned instead.
    No,
    /// The call may wait.
    Yes,
}

/// Why a file could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// Reading would have to wait.
    WouldWait,
    /// The file cannot be read.
    Failed(io::Error),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Failed(error)
    }
}

/// A file of the release.
#[derive(Debug)]
pub struct ServedFile {
    /// The length in bytes.
    pub bytes: u64,
    /// The entity tag, which changes with the content.
    pub etag: HeaderValue,
    /// Whether the file can change.
    pub lifetime: Lifetime,
    /// Where its bytes are.
    pub content: Content,
}

/// Where the bytes of a file are.
#[derive(Debug)]
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// In an open file.
    Open(File),
}

/// The directory, and a cache of its files. All threads share it.
pub struct Files {
    folder: Folder,
    cache: Mutex<Cache>,
    /// Most bytes of memory for small files. An open file counts as such a fraction of it that there is room
    /// for [`OPEN_FILES_MAX`].
    bytes_max: u64,
}

struct Cache {
    entries: LruCache<Box<str>, Entry>,
    bytes: u64,
}

struct Entry {
    found: Arc<ServedFile>,
    looked: Instant,
    weight: u64,
}

impl Files {
    /// Serves the files of `directory`, with at most `cache_bytes_max` of small ones in memory.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn open(directory: &Path, cache_bytes_max: u64) -> io::Result<Files> {
        Ok(Files {
            folder: Folder::open(directory)?,
            cache: Mutex::new(Cache { entries: LruCache::unbounded(), bytes: 0 }),
            bytes_max: cache_bytes_max.max(PIECE_BYTES),
        })
    }

    /// A file; `None` if it does not exist, or its name is not of the layout.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn get(&self, name: &str, wait: Wait) -> Result<Option<Arc<ServedFile>>, ReadError> {
        match (self.known(name), wait) {
            (Some(found), _) => Ok(Some(found)),
            (None, Wait::No) => Err(ReadError::WouldWait),
            (None, Wait::Yes) => Ok(self.load(name)?),
        }
    }

    fn known(&self, name: &str) -> Option<Arc<ServedFile>> {
        let mut cache = self.cache.lock();
        let entry = cache.entries.get(name)?;
        let fresh_for = match entry.found.lifetime {
            Lifetime::Immutable => IMMUTABLE_FOR,
            Lifetime::Changing => CHANGING_FOR,
        };
        (entry.looked.elapsed() < fresh_for).then(|| entry.found.clone())
    }

    /// Loads a file from the disk into the cache.
    fn load(&self, name: &str) -> io::Result<Option<Arc<ServedFile>>> {
        let Some(lifetime) = lifetime(name) else { return Ok(None) };
        let found =
            self.folder.file(name)?.map(|(file, bytes)| read(name, lifetime, file, bytes)).transpose()?;
        let mut cache = self.cache.lock();
        if let Some(before) = cache.entries.pop(name) {
            cache.bytes -= before.weight;
        }
        let Some(found) = found.map(Arc::new) else { return Ok(None) };
        let weight = match &found.content {
            Content::Memory(bytes) => bytes.len() as u64 + 512,
            Content::Open(_) => self.bytes_max / OPEN_FILES_MAX,
        };
        cache.bytes += weight;
        cache.entries.put(name.into(), Entry { found: found.clone(), looked: Instant::now(), weight });
        while cache.bytes > self.bytes_max {
            let Some((_, oldest)) = cache.entries.pop_lru() else { break };
            cache.bytes -= oldest.weight;
        }
        Ok(Some(found))
    }
}

impl ServedFile {
    /// A range of the file, complete.
    ///
    /// # Errors
    /// [`ReadError`]; also if the file is shorter.
    pub fn read(&self, range: Range<u64>, wait: Wait) -> Result<Bytes, ReadError> {
        if range.start > range.end || range.end > self.bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter").into());
        }
        let file = match &self.content {
            Content::Memory(bytes) => return Ok(bytes.slice(range.start as usize..range.end as usize)),
            Content::Open(file) => file,
        };
        let mut bytes = vec![0; (range.end - range.start) as usize];
        match wait {
            Wait::Yes => file.read_exact_at(&mut bytes, range.start)?,
            Wait::No => {
                let now = ReadWriteFlags::NOWAIT;
                match preadv2(file, &mut [IoSliceMut::new(&mut bytes)], range.start, now) {
                    Ok(read) if read == bytes.len() => {}
                    // The rest is not in the page cache, or the file system cannot say.
                    Ok(_) | Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR | Errno::NOSYS) => {
                        return Err(ReadError::WouldWait);
                    }
                    Err(error) => return Err(io::Error::from(error).into()),
                }
            }
        }
        Ok(bytes.into())
    }
}

impl Pieces for ServedFile {
    fn read_now(&self, range: Range<u64>) -> Option<io::Result<Bytes>> {
        match ServedFile::read(self, range, Wait::No) {
            Ok(bytes) => Some(Ok(bytes)),
            Err(ReadError::Failed(error)) => Some(Err(error)),
            Err(ReadError::WouldWait) => None,
        }
    }

    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        ServedFile::read(self, range, Wait::Yes).map_err(|error| match error {
            ReadError::Failed(error) => error,
            ReadError::WouldWait => io::ErrorKind::WouldBlock.into(),
        })
    }
}

fn read(name: &str, lifetime: Lifetime, file: File, bytes: u64) -> io::Result<ServedFile> {
    let etag = match lifetime {
        Lifetime::Immutable => format!("\"{}\"", name.rsplit('/').next().unwrap_or(name)),
        Lifetime::Changing => {
            let metadata = file.metadata()?;
            format!("\"{:x}.{:x}-{bytes:x}\"", metadata.mtime(), metadata.mtime_nsec())
        }
    };
    let etag = HeaderValue::try_from(etag).map_err(io::Error::other)?;
    let content = match bytes <= PIECE_BYTES {
        true => {
            let mut content = vec![0; bytes as usize];
            file.read_exact_at(&mut content, 0)?;
            Content::Memory(content.into())
        }
        false => Content::Open(file),
    };
    Ok(ServedFile { bytes, etag, lifetime, content })
}
