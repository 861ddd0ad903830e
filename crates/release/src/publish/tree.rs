//! The second pass: makes the tree.

use super::memory::FileSigns;
use super::scan::{HardLinks, Scan, below, display_path};
use super::store::Lane;
use super::walk_io::{
    Attributes, ENTRIES_MAX, Entry, FileId, FileStatus, KNOWN_MAX, OPENED_MAX, OpenFile, WalkIo, WalkResult,
    WalkSink,
};
use super::{Options, Progress, PublishError};
use holdfast_content::catalog::{self, CatalogEntry};
use holdfast_content::{
    Content, ContentError, DeviceId, ExtentMap, FILE_BYTES_MAX, INLINE_BYTES_MAX, Inode, InodeKind, LiveMap,
    MapRoot, MerkleMap, TARGET_BYTES_MAX, Value,
    file::{self, ChunkerConfig},
};
use rustix::fs::{FileType, SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Files of at least this size are stored apart from small ones.
const LARGE_BYTES: u64 = 1 << 20;
/// How often a file that changes while it is read is tried.
const TRIES: u32 = 3;
/// Names between two reports of progress.
const REPORT_NAMES: u64 = 64;
/// Most notes that are collected.
const NOTES_MAX: usize = 100;

struct Builder<'a> {
    options: &'a Options<'a>,
    scan: &'a Scan,
    io: &'a dyn WalkIo,
    map: MerkleMap,
    so_far: Progress,
    links: BTreeMap<FileId, Value>,
    read: u64,
    notes: Vec<String>,
}

/// Makes the tree.
///
/// # Errors
/// [`PublishError`].
pub fn build(options: &Options<'_>, scan: &Scan, io: &dyn WalkIo) -> Result<WalkResult, PublishError> {
    let mut builder = Builder {
        options,
        scan,
        io,
        map: MerkleMap::new(options.digest_key),
        so_far: Progress { names: (0, scan.names), bytes: (0, scan.bytes) },
        links: BTreeMap::new(),
        read: 0,
        notes: Vec::new(),
    };
    let inode = builder.directory(None, b"")?;
    let root = inode.store(&mut WalkSink(io)).map_err(|error| builder.unfit(b"", &error))?;
    builder.report()?;
    let Builder { read, notes, .. } = builder;
    Ok(WalkResult { root, names: scan.names, bytes: scan.bytes, read, notes, hints: None })
}

impl Builder<'_> {
    fn failed(&self, path: &[u8], error: Errno) -> PublishError {
        PublishError::local(&display_path(self.options.source, path), &error.into())
    }

    fn unfit(&self, path: &[u8], error: &ContentError) -> PublishError {
        // If a block could not be written, that is the reason why it cannot be read back.
        self.io.check().err().unwrap_or_else(|| PublishError::Unfit {
            path: display_path(self.options.source, path),
            why: error.to_string(),
        })
    }

    fn report(&mut self) -> Result<(), PublishError> {
        self.io.check()?;
        if self.io.progress(self.so_far) { Ok(()) } else { Err(PublishError::Stopped) }
    }

    fn note(&mut self, path: &[u8], what: &str) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(format!("{}: {what}", display_path(self.options.source, path).display()));
        }
    }

    fn directory(&mut self, name: Option<&CStr>, path: &[u8]) -> Result<Inode, PublishError> {
        let (before, attributes) = self.io.enter(name).map_err(|error| self.failed(path, error))?;
        let mut root = MapRoot(None);
        let mut from = 0;
        loop {
            let entries = self.io.entries(from).map_err(|error| self.failed(path, error))?;
            let are_last = entries.len() < ENTRIES_MAX;
            from += entries.len() as u64;
            let edits = self.batch(path, entries)?;
            root = self
                .map
                .apply(self.io, &mut WalkSink(self.io), &root, edits)
                .map_err(|error| self.unfit(path, &error))?;
            if are_last {
                break;
            }
        }
        self.io.leave();
        let mut inode = self.inode(&before, InodeKind::Directory, 1);
        inode.content = Content::Directory(LiveMap::of(root));
        self.attributes(attributes, path, &mut inode);
        if self.options.rules.is_opaque(path) {
            inode.xattrs.insert(catalog::OPAQUE.to_vec(), Vec::new());
        }
        Ok(inode)
    }

    /// Makes the entries for some names of a directory: its subdirectories first, then the other files.
    fn batch(
        &mut self,
        path: &[u8],
        entries: Vec<Entry>,
    ) -> Result<BTreeMap<Vec<u8>, Option<Value>>, PublishError> {
        let mut edits = BTreeMap::new();
        let mut others = Vec::new();
        for Entry { name, status } in entries {
            let path = below(path, &name);
            let status = match status {
                Ok(status) => status,
                // The file was removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(self.failed(&path, error)),
            };
            if status.kind() == FileType::Directory {
                let inode = self.directory(Some(&name), &path)?;
                edits.insert(name.to_bytes().to_vec(), Some(self.value(&path, &inode, None)?));
                self.count(0)?;
            } else {
                others.push((path, name, status));
            }
        }
        for group in others.chunks(KNOWN_MAX) {
            self.group(group, &mut edits)?;
        }
        Ok(edits)
    }

    /// Makes the entries of some files of a directory. Those whose values are not remembered are opened
    /// several at a time, because each request may go to another process.
    fn group(
        &mut self,
        group: &[(Vec<u8>, CString, FileStatus)],
        edits: &mut BTreeMap<Vec<u8>, Option<Value>>,
    ) -> Result<(), PublishError> {
        let options = self.options.newest.map_or(0, |newest| newest as u64 | 1 << 63);
        let signs_of = |(path, _, status): &(Vec<u8>, CString, FileStatus)| {
            let links = self.scan.links.get(&status.id()).map_or(1, |link| link.count);
            (path.clone(), FileSigns::of(status, links, options))
        };
        let wanted: Vec<(Vec<u8>, FileSigns)> = group.iter().map(signs_of).collect();
        let known = self.io.known(&wanted);
        let mut seen_ids = HashSet::new();
        let is_read = |(known, (_, _, status)): &(&Option<Value>, &(Vec<u8>, CString, FileStatus))| {
            let is_made = self.links.contains_key(&status.id()) || !seen_ids.insert(status.id());
            known.is_none() && status.kind() == FileType::RegularFile && !is_made
        };
        let read: Vec<&CStr> =
            known.iter().zip(group).filter(is_read).map(|(_, (_, name, _))| name.as_c_str()).collect();
        let mut ahead = Ahead { names: read.into(), opened: VecDeque::new() };
        for ((_, name, status), (known, (path, signs))) in group.iter().zip(known.into_iter().zip(wanted)) {
            let opened = ahead.of(self.io, name);
            if let Some(value) = self.other(name, &path, status, &signs, known, opened)? {
                edits.insert(name.to_bytes().to_vec(), Some(value));
            }
        }
        Ok(())
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
        CatalogEntry::value_of(&mut WalkSink(self.io), inode, link).map_err(|error| self.unfit(path, &error))
    }

    /// Makes the entry of a file that is not a directory; `opened` has the file if it was opened ahead.
    fn other(
        &mut self,
        name: &CStr,
        path: &[u8],
        status: &FileStatus,
        signs: &FileSigns,
        known: Option<Value>,
        opened: Option<Result<OpenFile, Errno>>,
    ) -> Result<Option<Value>, PublishError> {
        let link = self.scan.links.get(&status.id());
        if let Some(made) = self.links.get(&status.id()).filter(|_| link.is_some()) {
            let made = made.clone();
            self.count(0)?;
            return Ok(Some(made));
        }
        let links = link.map_or(1, |link| link.count);
        let is_file = status.kind() == FileType::RegularFile;
        let size = if is_file { status.size } else { 0 };
        let link_number = link.map(HardLinks::number);
        let value = match known {
            Some(value) => value,
            None => match self.make(name, path, status, links, link_number, opened)? {
                Some(value) => value,
                None => return Ok(None),
            },
        };
        self.io.remember(path, signs, &value)?;
        if link.is_some() {
            self.links.insert(status.id(), value.clone());
        }
        self.count(size)?;
        Ok(Some(value))
    }

    /// Makes the entry of a file that is not a directory; `None` if it was removed meanwhile.
    fn make(
        &mut self,
        name: &CStr,
        path: &[u8],
        status: &FileStatus,
        links: u32,
        link_number: Option<u64>,
        opened: Option<Result<OpenFile, Errno>>,
    ) -> Result<Option<Value>, PublishError> {
        let kind = match status.kind() {
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
            InodeKind::File => match self.file(name, path, links, opened)? {
                Some(inode) => inode,
                None => return Ok(None),
            },
            InodeKind::Symlink => {
                let target = match self.io.link(name) {
                    Ok(target) => target,
                    Err(Errno::NOENT) => return Ok(None),
                    Err(error) => return Err(self.failed(path, error)),
                };
                if target.is_empty() || target.len() > TARGET_BYTES_MAX {
                    let why = format!("the link's target has {} bytes", target.len());
                    return Err(PublishError::Unfit { path: display_path(self.options.source, path), why });
                }
                let mut inode = self.inode(status, kind, links);
                inode.size = target.len() as u64;
                inode.content = Content::Target(target);
                inode
            }
            InodeKind::CharDevice | InodeKind::BlockDevice => {
                let mut inode = self.inode(status, kind, links);
                match u32::try_from(status.device_number) {
                    Ok(number) => inode.device_number = number,
                    Err(_) => {
                        self.note(path, "its device number is too large, left out");
                        return Ok(None);
                    }
                }
                inode
            }
            _ => self.inode(status, kind, links),
        };
        self.value(path, &inode, link_number).map(Some)
    }

    /// An inode with the attributes in `status`, except size and content.
    fn inode(&self, status: &FileStatus, kind: InodeKind, links: u32) -> Inode {
        let mut modified_ns = status.modified_ns;
        if let Some(newest) = self.options.newest {
            modified_ns = modified_ns.min(newest.saturating_mul(1_000_000_000));
        }
        let mut inode = Inode::new(kind, status.mode & 0o7777, DeviceId(0), modified_ns);
        inode.links = links;
        inode
    }

    fn file(
        &mut self,
        name: &CStr,
        path: &[u8],
        links: u32,
        mut opened: Option<Result<OpenFile, Errno>>,
    ) -> Result<Option<Inode>, PublishError> {
        for _ in 0..TRIES {
            let opened = opened.take().unwrap_or_else(|| open_one(self.io, name));
            let OpenFile { file, status: before, attributes } = match opened {
                Ok(opened) => opened,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(self.failed(path, error)),
            };
            let mut inode = self.inode(&before, InodeKind::File, links);
            self.attributes(attributes, path, &mut inode);
            self.content(&file, path, before.size, before.blocks, &mut inode)?;
            let after = match self.look_again(&file, name) {
                Ok(after) => after,
                // Another file may have taken its name by now.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(self.failed(path, error)),
            };
            if FileSigns::of(&before, links, 0) == FileSigns::of(&after, links, 0) {
                self.read += 1;
                return Ok(Some(inode));
            }
        }
        Err(PublishError::Changing { path: display_path(self.options.source, path) })
    }

    /// The status of a file after it was read. FUSE file systems without `allow_other` return it only to the
    /// user who mounted them, and so not to a walker; then the publisher determines it by the file's name.
    fn look_again(&self, file: &File, name: &CStr) -> Result<FileStatus, Errno> {
        match fstat(file) {
            Err(Errno::ACCESS) => open_one(self.io, name).map(|opened| opened.status),
            status => status.map(FileStatus::from),
        }
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
            return Err(PublishError::Unfit { path: display_path(self.options.source, path), why });
        }
        inode.size = size;
        let failed = |error: &io::Error| PublishError::local(&display_path(self.options.source, path), error);
        if size <= INLINE_BYTES_MAX as u64 {
            let mut bytes = Vec::with_capacity(size as usize);
            file.take_at(0, size).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
            inode.content = if bytes.is_empty() { Content::None } else { Content::Inline(bytes) };
            return Ok(());
        }
        self.io.set_lane(if size >= LARGE_BYTES { Lane::Large } else { Lane::Small });
        let runs = Runs { file, at: 0, size, dense: blocks.saturating_mul(512) >= size };
        let map = cut(self.io, runs);
        self.io.set_lane(Lane::Small);
        let map = map.map_err(|error| match error {
            ContentError::Input(why) => {
                PublishError::Local { path: display_path(self.options.source, path), why }
            }
            other => self.unfit(path, &other),
        })?;
        inode.content = Content::Extents(map);
        self.io.check()
    }

    fn attributes(&mut self, attributes: Attributes, path: &[u8], inode: &mut Inode) {
        if attributes.is_cut {
            self.note(path, "more extended attributes than a file can have; not all are kept");
        }
        inode.xattrs.extend(attributes.entries);
    }
}

fn open_one(io: &dyn WalkIo, name: &CStr) -> Result<OpenFile, Errno> {
    io.open(&[name]).pop().unwrap_or(Err(Errno::IO))
}

/// Files of a directory that will be read, opened some at a time.
struct Ahead<'a> {
    /// Files that are not opened yet, in the order in which they will be read.
    names: VecDeque<&'a CStr>,
    opened: VecDeque<(&'a CStr, Result<OpenFile, Errno>)>,
}

impl Ahead<'_> {
    /// The file with this name, if it is the next one.
    fn of(&mut self, io: &dyn WalkIo, name: &CStr) -> Option<Result<OpenFile, Errno>> {
        if self.opened.is_empty() && self.names.front() == Some(&name) {
            let some: Vec<&CStr> = self.names.drain(..self.names.len().min(OPENED_MAX)).collect();
            let opened = io.open(&some);
            self.opened = some.into_iter().zip(opened).collect();
        }
        let is_next = self.opened.front().is_some_and(|(next, _)| *next == name);
        if is_next { self.opened.pop_front().map(|(_, opened)| opened) } else { None }
    }
}

fn cut<R: Read>(
    io: &dyn WalkIo,
    runs: impl Iterator<Item = io::Result<(u64, R)>>,
) -> Result<ExtentMap, ContentError> {
    file::from_runs(&mut WalkSink(io), &ChunkerConfig::DEFAULT, runs, &mut 0)
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
            // The file system does not support this.
            Err(Errno::INVAL) => return Ok(Some((self.at, self.size))),
            Err(error) => return Err(error),
        };
        let end = seek(self.file, SeekFrom::Hole(start))?.min(self.size);
        Ok((start < end).then_some((start, end)))
    }
}

/// Reads a file from an offset on.
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
