//! Imports into a directory, in a mount or elsewhere.

use super::source::{self, SourceFile, modified_ns};
use super::target::{Put, Target, There, Trouble};
use holdfast_content::InodeKind;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, XattrFlags, fchmod, fsetxattr,
    futimens, linkat, mknodat, openat, utimensat,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes read and written at once.
const PIECE_BYTES: usize = 1 << 20;

/// The directory to import into.
pub struct MountedTarget {
    path: PathBuf,
    temporary: AtomicU64,
}

impl MountedTarget {
    /// The directory at `path`.
    pub fn new(path: PathBuf) -> MountedTarget {
        MountedTarget { path, temporary: AtomicU64::new(0) }
    }

    fn temporary(&self, directory: &Path) -> PathBuf {
        let number = self.temporary.fetch_add(1, Relaxed);
        directory.join(format!(".holdfast-import-{}-{number}", std::process::id()))
    }

    fn put(&self, directory: &Path, name: &[u8], source: &SourceFile, replace: bool) -> io::Result<Put> {
        let to = at(directory, name);
        let mode = Mode::from_raw_mode(0o600);
        let nameless = openat(CWD, directory, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode);
        let (file, temporary) = match nameless {
            Ok(file) => (File::from(file), None),
            // Some file systems do not support files without a name.
            Err(_) => {
                let temporary = self.temporary(directory);
                (File::options().read(true).write(true).create_new(true).open(&temporary)?, Some(temporary))
            }
        };
        let put = fill(&file, source).and_then(|put| {
            if put == Put::Changed {
                return Ok(put);
            }
            let from = match &temporary {
                Some(temporary) => temporary.clone(),
                None => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            };
            let link = |to: &Path| linkat(CWD, &from, CWD, to, AtFlags::SYMLINK_FOLLOW);
            match link(&to) {
                Err(rustix::io::Errno::EXIST) if replace => {
                    let beside = self.temporary(directory);
                    link(&beside)?;
                    fs::rename(&beside, &to).inspect_err(|_| drop(fs::remove_file(&beside)))?;
                }
                other => other?,
            }
            Ok(put)
        });
        if let Some(temporary) = temporary {
            let _ = fs::remove_file(temporary);
        }
        put
    }
}

fn fill(file: &File, source: &SourceFile) -> io::Result<Put> {
    let mut piece = vec![0; PIECE_BYTES.min(source.metadata.len() as usize)];
    for range in source.data()? {
        let mut at = range.start;
        while at < range.end {
            let count = piece.len().min((range.end - at) as usize);
            match source.file.read_at(&mut piece[..count], at)? {
                0 => return Ok(Put::Changed),
                count => {
                    file.write_all_at(&piece[..count], at)?;
                    at += count as u64;
                }
            }
        }
    }
    file.set_len(source.metadata.len())?;
    dress(file, &source.metadata, &source.xattrs)?;
    Ok(if source.is_unchanged()? { Put::Done } else { Put::Changed })
}

/// Sets the attributes of a file or directory.
fn dress(file: &File, metadata: &Metadata, xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> io::Result<()> {
    for (name, value) in xattrs {
        fsetxattr(file, name.as_slice(), value, XattrFlags::empty())?;
    }
    fchmod(file, Mode::from_raw_mode(metadata.mode() & 0o7777))?;
    Ok(futimens(file, &times(metadata))?)
}

fn times(metadata: &Metadata) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() },
    }
}

fn at(directory: &Path, name: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(name))
}

fn local(error: impl Into<io::Error>) -> Trouble {
    Trouble::Local(error.into())
}

impl Target for MountedTarget {
    type Directory = PathBuf;

    fn root(&self, make: bool) -> Result<Option<PathBuf>, Trouble> {
        if make {
            fs::create_dir_all(&self.path).map_err(local)?;
        }
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_dir() => Ok(Some(self.path.clone())),
            Ok(_) => Err(Trouble::NotADirectory),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self, directory: &PathBuf) -> Result<BTreeMap<Vec<u8>, There>, Trouble> {
        let there = |metadata: &Metadata| There {
            kind: source::kind_of(metadata),
            mode: metadata.mode() & 0o7777,
            size: metadata.len(),
            modified_ns: modified_ns(metadata),
            device_number: u32::try_from(metadata.rdev()).unwrap_or(u32::MAX),
            ino: metadata.ino(),
        };
        let found = source::list(directory).map_err(local)?;
        Ok(found.into_iter().map(|(name, metadata)| (name, there(&metadata))).collect())
    }

    fn enter(&self, directory: &PathBuf, name: &[u8], _: &There) -> PathBuf {
        at(directory, name)
    }

    fn make_directory(&self, directory: &PathBuf, name: &[u8]) -> Result<PathBuf, Trouble> {
        let made = at(directory, name);
        fs::create_dir(&made).map_err(local)?;
        Ok(made)
    }

    fn finish_directory(
        &self,
        directory: &PathBuf,
        metadata: &Metadata,
        xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), Trouble> {
        File::open(directory).and_then(|open| dress(&open, metadata, xattrs)).map_err(local)
    }

    fn put_file(
        &self,
        directory: &PathBuf,
        name: &[u8],
        source: &SourceFile,
        replace: bool,
    ) -> Result<Put, Trouble> {
        self.put(directory, name, source, replace).map_err(local)
    }

    fn put_symlink(
        &self,
        directory: &PathBuf,
        name: &[u8],
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Trouble> {
        let path = at(directory, name);
        std::os::unix::fs::symlink(OsStr::from_bytes(target), &path).map_err(local)?;
        utimensat(CWD, &path, &times(metadata), AtFlags::SYMLINK_NOFOLLOW).map_err(local)
    }

    fn put_special(
        &self,
        directory: &PathBuf,
        name: &[u8],
        kind: InodeKind,
        metadata: &Metadata,
    ) -> Result<(), Trouble> {
        let path = at(directory, name);
        let kind = match kind {
            InodeKind::Fifo => FileType::Fifo,
            InodeKind::Socket => FileType::Socket,
            InodeKind::BlockDevice => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        let mode = Mode::from_raw_mode(metadata.mode() & 0o7777);
        mknodat(CWD, &path, kind, mode, metadata.rdev()).map_err(local)?;
        self.set_mode(directory, name, metadata.mode() & 0o7777)?;
        utimensat(CWD, &path, &times(metadata), AtFlags::SYMLINK_NOFOLLOW).map_err(local)
    }

    fn link(&self, from: (&PathBuf, &[u8]), to: (&PathBuf, &[u8])) -> Result<(), Trouble> {
        fs::hard_link(at(from.0, from.1), at(to.0, to.1)).map_err(local)
    }

    fn set_mode(&self, directory: &PathBuf, name: &[u8], mode: u32) -> Result<(), Trouble> {
        fs::set_permissions(at(directory, name), fs::Permissions::from_mode(mode)).map_err(local)
    }

    fn remove(&self, directory: &PathBuf, name: &[u8], kind: InodeKind) -> Result<(), Trouble> {
        let path = at(directory, name);
        match kind {
            InodeKind::Directory => fs::remove_dir(path),
            _ => fs::remove_file(path),
        }
        .map_err(local)
    }

    fn link_target(&self, directory: &PathBuf, name: &[u8]) -> Result<Vec<u8>, Trouble> {
        fs::read_link(at(directory, name)).map(|target| target.into_os_string().into_vec()).map_err(local)
    }

    fn has_bytes_of(&self, directory: &PathBuf, name: &[u8], source: &SourceFile) -> Result<bool, Trouble> {
        let same = || -> io::Result<bool> {
            let theirs = source::open(&at(directory, name))?;
            if theirs.metadata()?.len() != source.metadata.len() {
                return Ok(false);
            }
            let (mut a, mut b) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
            let mut at = 0;
            loop {
                let count = theirs.read_at(&mut a, at)?;
                if count == 0 {
                    return Ok(at == source.metadata.len());
                }
                source.file.read_exact_at(&mut b[..count], at)?;
                if a[..count] != b[..count] {
                    return Ok(false);
                }
                at += count as u64;
            }
        };
        same().map_err(local)
    }

    fn settle(&self) -> Result<(), Trouble> {
        File::open(&self.path).and_then(|open| open.sync_all()).map_err(local)
    }
}
