//! The first pass: counts, and finds files with several names.

use super::rules::Rules;
use super::{Progress, PublishError};
use holdfast_crypto::{DigestKey, Domain};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names between two reports.
const REPORT_NAMES: u64 = 256;

/// What the first pass has found.
#[derive(Debug, Default)]
pub struct Scan {
    /// Names.
    pub names: u64,
    /// Bytes of files; of one with several names, once.
    pub bytes: u64,
    /// Files with several names in the tree.
    pub links: HashMap<FileId, Link>,
}

/// A file on this machine.
pub type FileId = (u64, u64);

/// A file with several names.
#[derive(Clone, Debug)]
pub struct Link {
    /// How many are in the tree.
    pub count: u32,
    /// The first in order of bytes.
    first: Vec<u8>,
}

impl Link {
    /// A file of which no name was found yet but is about to be: `path`.
    pub fn at(path: &[u8]) -> Link {
        Link { count: 0, first: path.to_vec() }
    }

    /// One more name.
    pub fn add(&mut self, path: Vec<u8>) {
        self.count += 1;
        self.first = std::mem::take(&mut self.first).min(path);
    }

    /// The number that its names share in the release: it depends on its first path alone.
    pub fn number(&self) -> u64 {
        let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, &self.first);
        u64::from_le_bytes(*digest.0.first_chunk().expect("32 bytes"))
    }
}

/// The identity of what was looked at.
pub fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Opens the directory to publish.
pub fn open_root(source: &Path) -> Result<OwnedFd, PublishError> {
    openat(CWD, source, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| PublishError::local(source, &error.into()))
}

/// Opens a subdirectory.
pub fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

/// The names in a directory, in order of bytes.
pub fn names_in(directory: BorrowedFd<'_>) -> Result<Vec<CString>, Errno> {
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

/// Attributes of a name itself.
pub fn look(directory: BorrowedFd<'_>, name: &CStr) -> Result<Stat, Errno> {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// `path` with one more name.
pub fn below(path: &[u8], name: &CStr) -> Vec<u8> {
    match path {
        b"" => name.to_bytes().to_vec(),
        path => [path, b"/", name.to_bytes()].concat(),
    }
}

/// A path in the tree, for messages.
pub fn shown(source: &Path, path: &[u8]) -> PathBuf {
    source.join(std::ffi::OsStr::from_bytes(path))
}

struct Scanner<'a> {
    source: &'a Path,
    rules: &'a Rules,
    progress: &'a mut dyn FnMut(Progress) -> bool,
    found: Scan,
}

/// Looks through a tree.
///
/// # Errors
/// [`PublishError`].
pub fn scan(
    source: &Path,
    rules: &Rules,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Scan, PublishError> {
    let mut scanner = Scanner { source, rules, progress, found: Scan::default() };
    let root = open_root(source)?;
    scanner.directory(root.as_fd(), b"")?;
    let mut found = scanner.found;
    found.links.retain(|_, link| link.count > 1);
    Ok(found)
}

impl Scanner<'_> {
    fn directory(&mut self, directory: BorrowedFd<'_>, path: &[u8]) -> Result<(), PublishError> {
        let failed =
            |path: &[u8], error: Errno| PublishError::local(&shown(self.source, path), &error.into());
        for name in names_in(directory).map_err(|error| failed(path, error))? {
            let path = below(path, &name);
            if self.rules.is_excluded(&path) {
                continue;
            }
            let failed = |error: Errno| PublishError::local(&shown(self.source, &path), &error.into());
            let stat = match look(directory, &name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error)),
            };
            self.found.names += 1;
            if self.found.names.is_multiple_of(REPORT_NAMES) {
                let so_far = (0, self.found.names);
                if !(self.progress)(Progress { names: so_far, bytes: (0, self.found.bytes) }) {
                    return Err(PublishError::Stopped);
                }
            }
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    let inside = open_directory(directory, &name).map_err(failed)?;
                    self.directory(inside.as_fd(), &path)?;
                }
                kind => self.file(&stat, kind, path),
            }
        }
        Ok(())
    }

    fn file(&mut self, stat: &Stat, kind: FileType, path: Vec<u8>) {
        let mut is_first = true;
        if stat.st_nlink > 1 {
            let link = self.found.links.entry(file_id(stat)).or_insert_with(|| Link::at(&path));
            is_first = link.count == 0;
            link.add(path);
        }
        if kind == FileType::RegularFile && is_first {
            self.found.bytes += stat.st_size as u64;
        }
    }
}
