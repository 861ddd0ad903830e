//! The second pass: makes the tree.

use super::scan::{self, Scan, below, file_id, look, names_in, open_directory, shown};
use super::seen::{Seen, Signs, nanoseconds};
use super::store::{Into, Lane, PackStore};
use super::{Options, Progress, PublishError};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, Content, ContentError, DeviceId, ExtentMap,
    FILE_BYTES_MAX, INLINE_BYTES_MAX, Inode, InodeKind, LiveMap, MapRoot, MerkleMap, Reference,
    TARGET_BYTES_MAX, Value,
    file::{self, ChunkerConfig},
};
use holdfast_crypto::Digest;
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat, fstat, openat, readlinkat, seek};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Names of a directory that are put into its map at once.
const BATCH_NAMES: usize = 4096;
/// Files of this size on lie apart from the small ones.
const LARGE_BYTES: u64 = 1 << 20;
/// How often a file that changes while it is read is read again.
const TRIES: u32 = 3;
/// Names between two reports.
const REPORT_NAMES: u64 = 64;
/// Most notes kept.
const NOTES_MAX: usize = 100;

/// What the second pass has to tell.
pub struct Told {
    /// Files that were read.
    pub read: u64,
    /// What could not be kept.
    pub notes: Vec<String>,
    /// See [`super::Published::remember`].
    pub remember: Box<dyn FnOnce(Digest) -> Result<(), PublishError>>,
}

struct Builder<'a> {
    options: &'a Options<'a>,
    scan: &'a Scan,
    store: &'a PackStore,
    map: MerkleMap,
    seen: Seen,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    so_far: Progress,
    links: BTreeMap<scan::FileId, Value>,
    read: u64,
    notes: Vec<String>,
}

/// Makes the tree: returns its root directory's inode.
///
/// # Errors
/// [`PublishError`].
pub fn build(
    options: &Options<'_>,
    scan: &Scan,
    store: &PackStore,
    seen: Seen,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<(Reference, Told), PublishError> {
    let root = scan::open_root(options.source)?;
    let mut builder = Builder {
        options,
        scan,
        store,
        map: MerkleMap::new(options.digest_key),
        seen,
        progress,
        so_far: Progress { names: (0, scan.names), bytes: (0, scan.bytes) },
        links: BTreeMap::new(),
        read: 0,
        notes: Vec::new(),
    };
    let inode = builder.directory(root.as_fd(), b"")?;
    let root = inode.store(&mut Into(store)).map_err(|error| builder.unfit(b"", &error))?;
    builder.report()?;
    let Builder { seen, read, notes, .. } = builder;
    Ok((root, Told { read, notes, remember: Box::new(move |record| seen.keep(record)) }))
}

impl Builder<'_> {
    fn failed(&self, path: &[u8], error: Errno) -> PublishError {
        PublishError::local(&shown(self.options.source, path), &error.into())
    }

    fn unfit(&self, path: &[u8], error: &ContentError) -> PublishError {
        // A block that could not be written is the cause of what cannot be read back.
        self.store.check().err().unwrap_or_else(|| PublishError::Unfit {
            path: shown(self.options.source, path),
            why: error.to_string(),
        })
    }

    fn report(&mut self) -> Result<(), PublishError> {
        self.store.check()?;
        if (self.progress)(self.so_far) { Ok(()) } else { Err(PublishError::Stopped) }
    }

    fn note(&mut self, path: &[u8], what: &str) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{}: {what}", shown(self.options.source, path).display()));
        }
    }

    fn directory(&mut self, directory: BorrowedFd<'_>, path: &[u8]) -> Result<Inode, PublishError> {
        let before = fstat(directory).map_err(|error| self.failed(path, error))?;
        let names = names_in(directory).map_err(|error| self.failed(path, error))?;
        let mut root = MapRoot(None);
        for batch in names.chunks(BATCH_NAMES) {
            let edits = self.batch(directory, path, batch)?;
            root = self
                .map
                .apply(self.store, &mut Into(self.store), &root, edits)
                .map_err(|error| self.unfit(path, &error))?;
        }
        let mut inode = self.inode(&before, InodeKind::Directory, 1);
        inode.content = Content::Directory(LiveMap::of(root));
        self.attributes(directory, path, &mut inode)?;
        if self.options.rules.is_opaque(path) {
            inode.xattrs.insert(catalog::OPAQUE.to_vec(), Vec::new());
        }
        Ok(inode)
    }

    /// Some names of a directory: first its subdirectories, then what lies in it itself.
    fn batch(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        names: &[CString],
    ) -> Result<BTreeMap<Vec<u8>, Option<Value>>, PublishError> {
        let mut edits = BTreeMap::new();
        let mut others = Vec::new();
        for name in names {
            let path = below(path, name);
            if self.options.rules.is_excluded(&path) {
                continue;
            }
            let stat = match look(directory, name) {
                Ok(stat) => stat,
                // Removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(self.failed(&path, error)),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let inside = open_directory(directory, name).map_err(|error| self.failed(&path, error))?;
                let inode = self.directory(inside.as_fd(), &path)?;
                edits.insert(name.to_bytes().to_vec(), Some(self.value(&path, &inode, None)?));
                self.count(0)?;
            } else {
                others.push((name, path, stat));
            }
        }
        for (name, path, stat) in others {
            if let Some(value) = self.other(directory, name, &path, &stat)? {
                edits.insert(name.to_bytes().to_vec(), Some(value));
            }
        }
        Ok(edits)
    }

    fn count(&mut self, bytes: u64) -> Result<(), PublishError> {
        self.so_far.names.0 += 1;
        self.so_far.bytes.0 += bytes;
        if self.so_far.names.0.is_multiple_of(REPORT_NAMES) || bytes >= LARGE_BYTES {
            self.report()?;
        }
        Ok(())
    }

    fn value(&self, path: &[u8], inode: &Inode, link: Option<u64>) -> Result<Value, PublishError> {
        CatalogEntry::value_of(&mut Into(self.store), inode, link).map_err(|error| self.unfit(path, &error))
    }

    /// Anything but a directory.
    fn other(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        stat: &Stat,
    ) -> Result<Option<Value>, PublishError> {
        let link = self.scan.links.get(&file_id(stat));
        if let Some(known) = self.links.get(&file_id(stat)).filter(|_| link.is_some()) {
            let known = known.clone();
            self.count(0)?;
            return Ok(Some(known));
        }
        let links = link.map_or(1, |link| link.count);
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let size = if is_file { stat.st_size as u64 } else { 0 };
        let signs = Signs::of(stat, links, self.options.newest.map_or(0, |newest| newest as u64 | 1 << 63));
        let known = self
            .seen
            .find(path, &signs)
            .filter(|value| value.references.iter().all(|reference| self.store.has(&reference.address)));
        let value = match known {
            Some(value) => value,
            None => match self.make(directory, name, path, stat, link.map(|link| (link.number(), links)))? {
                Some(value) => value,
                None => return Ok(None),
            },
        };
        self.seen.add(path, &signs, &value)?;
        if link.is_some() {
            self.links.insert(file_id(stat), value.clone());
        }
        self.count(size)?;
        Ok(Some(value))
    }

    /// Makes the entry of what is not a directory. `None` if it has gone meanwhile.
    fn make(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        stat: &Stat,
        link: Option<(u64, u32)>,
    ) -> Result<Option<Value>, PublishError> {
        let links = link.map_or(1, |(_, links)| links);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => InodeKind::File,
            FileType::Symlink => InodeKind::Symlink,
            FileType::Fifo => InodeKind::Fifo,
            FileType::Socket => InodeKind::Socket,
            FileType::CharacterDevice => InodeKind::CharDevice,
            FileType::BlockDevice => InodeKind::BlockDevice,
            _ => {
                self.note(path, "of a kind that is not known, left out");
                return Ok(None);
            }
        };
        let inode = match kind {
            InodeKind::File => match self.file(directory, name, path, links)? {
                Some(inode) => inode,
                None => return Ok(None),
            },
            InodeKind::Symlink => {
                let target = match readlinkat(directory, name, Vec::new()) {
                    Ok(target) => target.into_bytes(),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(error) => return Err(self.failed(path, error)),
                };
                if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                    let why = format!("the link's target has {} bytes", target.len());
                    return Err(PublishError::Unfit { path: shown(self.options.source, path), why });
                }
                let mut inode = self.inode(stat, kind, links);
                inode.size = target.len() as u64;
                inode.content = Content::Target(target);
                inode
            }
            InodeKind::CharDevice | InodeKind::BlockDevice => {
                let mut inode = self.inode(stat, kind, links);
                match u32::try_from(stat.st_rdev) {
                    Ok(number) => inode.device_number = number,
                    Err(_) => {
                        self.note(path, "its device number is too large, left out");
                        return Ok(None);
                    }
                }
                inode
            }
            _ => self.inode(stat, kind, links),
        };
        self.value(path, &inode, link.map(|(number, _)| number)).map(Some)
    }

    /// An inode with what `stat` says, but for size and content.
    fn inode(&self, stat: &Stat, kind: InodeKind, links: u32) -> Inode {
        let mut modified_ns = nanoseconds(stat.st_mtime, stat.st_mtime_nsec);
        if let Some(newest) = self.options.newest {
            modified_ns = modified_ns.min(newest.saturating_mul(1_000_000_000));
        }
        let mut inode = Inode::new(kind, stat.st_mode & 0o7777, DeviceId(0), modified_ns);
        inode.links = links;
        inode
    }

    fn file(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        links: u32,
    ) -> Result<Option<Inode>, PublishError> {
        // Not for ever on a FIFO that took a file's place.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file: OwnedFd = match openat(directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(self.failed(path, error)),
        };
        let file = File::from(file);
        for _ in 0..TRIES {
            let before = fstat(&file).map_err(|error| self.failed(path, error))?;
            let mut inode = self.inode(&before, InodeKind::File, links);
            self.attributes(file.as_fd(), path, &mut inode)?;
            self.content(&file, path, before.st_size as u64, before.st_blocks as u64, &mut inode)?;
            let after = fstat(&file).map_err(|error| self.failed(path, error))?;
            if Signs::of(&before, links, 0) == Signs::of(&after, links, 0) {
                self.read += 1;
                return Ok(Some(inode));
            }
        }
        Err(PublishError::Changing { path: shown(self.options.source, path) })
    }

    fn content(
        &mut self,
        file: &File,
        path: &[u8],
        size: u64,
        blocks: u64,
        inode: &mut Inode,
    ) -> Result<(), PublishError> {
        if size > FILE_BYTES_MAX {
            let why = format!("it has {size} bytes, and a file can have {FILE_BYTES_MAX}");
            return Err(PublishError::Unfit { path: shown(self.options.source, path), why });
        }
        inode.size = size;
        let failed = |error: &io::Error| PublishError::local(&shown(self.options.source, path), error);
        if size <= INLINE_BYTES_MAX as u64 {
            let mut bytes = Vec::with_capacity(size as usize);
            file.take_at(0, size).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
            inode.content = if bytes.is_empty() { Content::None } else { Content::Inline(bytes) };
            return Ok(());
        }
        self.store.set_lane(if size >= LARGE_BYTES { Lane::Large } else { Lane::Small });
        let runs = Runs { file, at: 0, size, dense: blocks.saturating_mul(512) >= size };
        let map = cut(self.store, runs);
        self.store.set_lane(Lane::Small);
        let map = map.map_err(|error| match error {
            ContentError::Input(why) => PublishError::Local { path: shown(self.options.source, path), why },
            other => self.unfit(path, &other),
        })?;
        inode.content = Content::Extents(map);
        self.store.check()
    }

    /// Keeps attributes of users. What the system or its administrator has attached means nothing elsewhere.
    fn attributes(
        &mut self,
        file: BorrowedFd<'_>,
        path: &[u8],
        inode: &mut Inode,
    ) -> Result<(), PublishError> {
        let names = match list_attributes(file) {
            Ok(names) => names,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(error) => return Err(self.failed(path, error)),
        };
        let mut total = 0;
        for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
            let value = match get_attribute(file, name) {
                Ok(value) => value,
                Err(Errno::NODATA) => continue,
                Err(error) => return Err(self.failed(path, error)),
            };
            total += name.len() + value.len();
            if name.len() > ATTRIBUTE_NAME_BYTES_MAX || total > ATTRIBUTE_BYTES_MAX {
                self.note(path, "more extended attributes than a file can have; not all are kept");
                break;
            }
            inode.xattrs.insert(name.to_vec(), value);
        }
        Ok(())
    }
}

fn cut<R: Read>(
    store: &PackStore,
    runs: impl Iterator<Item = io::Result<(u64, R)>>,
) -> Result<ExtentMap, ContentError> {
    file::from_runs(&mut Into(store), &ChunkerConfig::DEFAULT, runs, &mut 0)
}

/// The runs of data of a file.
struct Runs<'a> {
    file: &'a File,
    at: u64,
    size: u64,
    dense: bool,
}

impl<'a> Iterator for Runs<'a> {
    type Item = io::Result<(u64, io::Take<At<'a>>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.size {
            return None;
        }
        let (start, end) = match self.dense {
            true => (0, self.size),
            false => match self.run() {
                Ok(run) => run?,
                Err(error) => {
                    self.at = self.size;
                    return Some(Err(error.into()));
                }
            },
        };
        self.at = end;
        Some(Ok((start, self.file.take_at(start, end - start))))
    }
}

impl Runs<'_> {
    /// The next run from `at` on.
    fn run(&self) -> Result<Option<(u64, u64)>, Errno> {
        let start = match seek(self.file, SeekFrom::Data(self.at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // A file system that cannot tell.
            Err(Errno::INVAL) => return Ok(Some((self.at, self.size))),
            Err(error) => return Err(error),
        };
        let end = seek(self.file, SeekFrom::Hole(start))?.min(self.size);
        Ok((start < end).then_some((start, end)))
    }
}

/// Reads a file from a place on.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

trait TakeAt {
    fn take_at(&self, at: u64, length: u64) -> io::Take<At<'_>>;
}

impl TakeAt for File {
    fn take_at(&self, at: u64, length: u64) -> io::Take<At<'_>> {
        At { file: self, at }.take(length)
    }
}

fn list_attributes(file: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    grow(|buffer| rustix::fs::flistxattr(file, buffer))
}

fn get_attribute(file: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
    let name = std::ffi::OsStr::from_bytes(name);
    grow(|buffer| rustix::fs::fgetxattr(file, name, buffer))
}

/// Asks with a larger buffer until the answer fits.
fn grow(mut ask: impl FnMut(&mut Vec<u8>) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 1024];
    loop {
        match ask(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 8, 0),
            Err(error) => return Err(error),
        }
    }
}
