//! The input and output of a walk, in the process that can read the tree, the release directory and the
//! memory.
//!
//! It opens only directories and regular files below the tree, one directory after the other, and nothing
//! that the rules leave out. Names have one component, `..` is refused, and links are not followed. So
//! whatever asks it, even a walk that an attacker has taken over, gets no other file.

use super::memory::{FileSigns, PublishMemory};
use super::rules::Rules;
use super::scan::below;
use super::store::{Into, Lane, PackStore};
use super::walk_io::{Attributes, ENTRIES_MAX, Entry, FileStatus, OpenFile, WalkIo};
use super::{Progress, PublishError};
use holdfast_content::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, Block, BlockKind, BlockSink, BlockSource, Reference,
    SourceError, Value,
};
use holdfast_crypto::DigestKey;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The input and output of a walk in the publisher's process.
pub struct Local<'a> {
    source: &'a Path,
    rules: &'a Rules,
    /// The packs of the release directory.
    pub store: &'a PackStore,
    seen: RefCell<PublishMemory>,
    progress: RefCell<&'a mut dyn FnMut(Progress) -> bool>,
    open: RefCell<Vec<Level>>,
}

struct Level {
    directory: OwnedFd,
    /// The path of the directory in the tree.
    path: Vec<u8>,
    names: Option<Vec<CString>>,
}

impl<'a> Local<'a> {
    /// Prepares a walk of the tree `source`, without what `rules` leave out.
    pub fn new(
        source: &'a Path,
        rules: &'a Rules,
        store: &'a PackStore,
        seen: PublishMemory,
        progress: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Local<'a> {
        let (seen, progress) = (RefCell::new(seen), RefCell::new(progress));
        Local { source, rules, store, seen, progress, open: RefCell::default() }
    }

    /// Whether a previous publishing is remembered.
    pub fn has_memory(&self) -> bool {
        self.seen.borrow().has_last()
    }

    /// Leaves `count` directories, or all that are open if there are fewer.
    pub fn leave_some(&self, count: usize) {
        let mut open = self.open.borrow_mut();
        let left = open.len().saturating_sub(count);
        open.truncate(left);
    }

    /// Ends the walk and returns its memory.
    pub fn into_seen(self) -> PublishMemory {
        self.seen.into_inner()
    }

    fn within<T>(
        &self,
        name: &CStr,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if matches!(name.to_bytes(), b"" | b"." | b"..") || name.to_bytes().contains(&b'/') {
            return Err(Errno::INVAL);
        }
        let open = self.open.borrow();
        let Level { directory, path, .. } = open.last().ok_or(Errno::BADF)?;
        match self.rules.is_excluded(&below(path, name)) {
            true => Err(Errno::NOENT),
            false => act(directory.as_fd()),
        }
    }
}

impl WalkIo for Local<'_> {
    fn enter(&self, name: Option<&CStr>) -> Result<(FileStatus, Attributes), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match name {
            Some(name) => self
                .within(name, |directory| openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty()))?,
            None if self.open.borrow().is_empty() => openat(CWD, self.source, flags, Mode::empty())?,
            None => return Err(Errno::INVAL),
        };
        let status = fstat(&directory)?.into();
        let attributes = attributes(directory.as_fd())?;
        let mut open = self.open.borrow_mut();
        let path = match (name, open.last()) {
            (Some(name), Some(level)) => below(&level.path, name),
            _ => Vec::new(),
        };
        open.push(Level { directory, path, names: None });
        Ok((status, attributes))
    }

    fn leave(&self) {
        self.leave_some(1);
    }

    fn entries(&self, from: u64) -> Result<Vec<Entry>, Errno> {
        let mut open = self.open.borrow_mut();
        let Level { directory, path, names } = open.last_mut().ok_or(Errno::BADF)?;
        let names = match names {
            Some(names) => names,
            none => {
                let mut found = names_in(directory.as_fd())?;
                found.retain(|name| !self.rules.is_excluded(&below(path, name)));
                none.insert(found)
            }
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(names.len());
        let some = &names[from..names.len().min(from + ENTRIES_MAX)];
        let look = |name: &CString| {
            let status = statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW).map(FileStatus::from);
            Entry { name: name.clone(), status }
        };
        Ok(some.iter().map(look).collect())
    }

    fn open(&self, names: &[&CStr]) -> Vec<Result<OpenFile, Errno>> {
        names.iter().map(|name| self.within(name, |directory| open(directory, name))).collect()
    }

    fn link(&self, name: &CStr) -> Result<Vec<u8>, Errno> {
        self.within(name, |directory| readlinkat(directory, name, Vec::new()).map(CString::into_bytes))
    }

    fn set_lane(&self, lane: Lane) {
        self.store.set_lane(lane);
    }

    fn add(&self, block: Block) -> Reference {
        Into(self.store).put(block)
    }

    fn check(&self) -> Result<(), PublishError> {
        self.store.check()
    }

    fn known(&self, wanted: &[(Vec<u8>, FileSigns)]) -> Vec<Option<Value>> {
        let is_whole =
            |known: &Value| known.references.iter().all(|reference| self.store.has(&reference.address));
        let seen = self.seen.borrow();
        wanted.iter().map(|(path, signs)| seen.find(path, signs).filter(is_whole)).collect()
    }

    fn remember(&self, path: &[u8], signs: &FileSigns, value: &Value) -> Result<(), PublishError> {
        self.seen.borrow_mut().add(path, signs, value)
    }

    fn progress(&self, progress: Progress) -> bool {
        (self.progress.borrow_mut())(progress)
    }
}

impl BlockSource for Local<'_> {
    fn digest_key(&self) -> DigestKey {
        self.store.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        self.store.fetch(reference, kind)
    }
}

/// Opens a regular file for reading.
fn open(directory: BorrowedFd<'_>, name: &CStr) -> Result<OpenFile, Errno> {
    // Opening a device or a FIFO may have an effect, so the type is checked first. One may take the file's
    // place after the check, so opening must not block.
    let status: FileStatus = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.into();
    if status.kind() != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat(directory, name, flags, Mode::empty())?;
    let status: FileStatus = fstat(&file)?.into();
    if status.kind() != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let attributes = attributes(file.as_fd())?;
    Ok(OpenFile { file: File::from(file), status, attributes })
}

/// The names in a directory, in byte order.
fn names_in(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The attributes in the user's namespace. Those of the system or its administrator have no meaning
/// elsewhere.
fn attributes(file: BorrowedFd<'_>) -> Result<Attributes, Errno> {
    let mut found = Attributes::default();
    let names = match grow(|buffer| rustix::fs::flistxattr(file, buffer)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(found),
        Err(error) => return Err(error),
    };
    let mut total = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let text = std::ffi::OsStr::from_bytes(name);
        let value = match grow(|buffer| rustix::fs::fgetxattr(file, text, buffer)) {
            Ok(value) => value,
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error),
        };
        total += name.len() + value.len();
        if name.len() > ATTRIBUTE_NAME_BYTES_MAX || total > ATTRIBUTE_BYTES_MAX {
            found.is_cut = true;
            break;
        }
        found.entries.push((name.to_vec(), value));
    }
    Ok(found)
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
