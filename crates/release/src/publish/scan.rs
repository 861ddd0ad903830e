//! The first pass: counts, and finds files with several names.

use super::walk_io::{ENTRIES_MAX, Entry, FileId, FileStatus, WalkIo};
use super::{Progress, PublishError};
use holdfast_crypto::{DigestKey, Domain};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names between two reports of progress.
const REPORT_NAMES: u64 = 256;

/// The result of the first pass.
#[derive(Debug, Default)]
pub struct Scan {
    /// Bytes of files; one with several names counts once.
    pub names: u64,
    /// Bytes of files; of one with several names, once.
    pub bytes: u64,
    /// Files with several names in the tree.
    pub links: HashMap<FileId, HardLinks>,
}

/// A file with several names.
#[derive(Clone, Debug)]
pub struct HardLinks {
    /// How many names it has in the tree.
    pub count: u32,
    /// The first of its paths in byte order.
    first: Vec<u8>,
}

impl HardLinks {
    /// A file whose first name, `path`, is about to be added.
    pub fn at(path: &[u8]) -> HardLinks {
        HardLinks { count: 0, first: path.to_vec() }
    }

    /// Counts one more name of the file.
    pub fn add(&mut self, path: Vec<u8>) {
        self.count += 1;
        self.first = std::mem::take(&mut self.first).min(path);
    }

    /// The number that its names share in the release. It depends only on its first path.
    pub fn number(&self) -> u64 {
        let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, &self.first);
        u64::from_le_bytes(*digest.0.first_chunk().expect("32 bytes"))
    }
}

/// `path` with `name` appended.
pub fn below(path: &[u8], name: &CStr) -> Vec<u8> {
    match path {
        b"" => name.to_bytes().to_vec(),
        path => [path, b"/", name.to_bytes()].concat(),
    }
}

/// A path in the tree, for messages.
pub fn display_path(source: &Path, path: &[u8]) -> PathBuf {
    source.join(std::ffi::OsStr::from_bytes(path))
}

struct Scanner<'a> {
    source: &'a Path,
    io: &'a dyn WalkIo,
    found: Scan,
}

/// Scans a tree.
///
/// # Errors
/// [`PublishError`].
pub fn scan(source: &Path, io: &dyn WalkIo) -> Result<Scan, PublishError> {
    let mut scanner = Scanner { source, io, found: Scan::default() };
    scanner.directory(None, b"")?;
    let mut found = scanner.found;
    found.links.retain(|_, link| link.count > 1);
    Ok(found)
}

impl Scanner<'_> {
    fn failed(&self, path: &[u8], error: Errno) -> PublishError {
        PublishError::local(&display_path(self.source, path), &error.into())
    }

    fn directory(&mut self, name: Option<&CStr>, path: &[u8]) -> Result<(), PublishError> {
        self.io.enter(name).map_err(|error| self.failed(path, error))?;
        let mut from = 0;
        loop {
            let entries = self.io.entries(from).map_err(|error| self.failed(path, error))?;
            let are_last = entries.len() < ENTRIES_MAX;
            from += entries.len() as u64;
            for entry in entries {
                self.entry(entry, path)?;
            }
            if are_last {
                break;
            }
        }
        self.io.leave();
        Ok(())
    }

    fn entry(&mut self, entry: Entry, folder: &[u8]) -> Result<(), PublishError> {
        let path = below(folder, &entry.name);
        let status = match entry.status {
            Ok(status) => status,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(self.failed(&path, error)),
        };
        self.found.names += 1;
        if self.found.names.is_multiple_of(REPORT_NAMES) {
            let so_far = (0, self.found.names);
            if !self.io.progress(Progress { names: so_far, bytes: (0, self.found.bytes) }) {
                return Err(PublishError::Stopped);
            }
        }
        match status.kind() {
            FileType::Directory => self.directory(Some(&entry.name), &path),
            kind => {
                self.file(&status, kind, path);
                Ok(())
            }
        }
    }

    fn file(&mut self, status: &FileStatus, kind: FileType, path: Vec<u8>) {
        let mut is_first = true;
        if status.has_more_names {
            let link = self.found.links.entry(status.id()).or_insert_with(|| HardLinks::at(&path));
            is_first = link.count == 0;
            link.add(path);
        }
        if kind == FileType::RegularFile && is_first {
            self.found.bytes += status.size;
        }
    }
}
