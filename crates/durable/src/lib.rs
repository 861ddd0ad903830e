//! Small files that must survive a crash: read within bounds, and replaced whole or not at all. Everything that Holdfast
//! keeps in a file of its own, rather than in a log or a store, is written here, so that no place forgets to sync the file
//! before it gets its name, or the directory after.
#![forbid(unsafe_code)]

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permission bits of what only its owner may read.
pub const PRIVATE: u32 = 0o600;
/// Permission bits of what everybody may read, as far as the umask lets them.
pub const PUBLIC: u32 = 0o644;

/// Reads a file, or of a longer one `bytes_max + 1` bytes; `None` when there is none.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Not to wait for ever if it is a pipe.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Puts a file in place, whole and durably, or not at all. One process at a time may do this to one path. What an
/// interrupted call left (`PATH.partial`) is made anew, with the permission bits `mode`.
///
/// # Errors
/// The file system's. The file at `path` is what it was, or the new one.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let partial = partial(path);
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    if let Err(error) = write() {
        // A full disk must not also keep what was not put in place.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    rename(&partial, path)
}

/// Gives a file that is whole and synced its name, durably.
///
/// # Errors
/// The file system's.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    sync_parent(to)
}

/// Removes a file durably, if it is there.
///
/// # Errors
/// The file system's.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.and_then(|()| sync_parent(path)),
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The file system's.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Makes the name of a file durable: those of its directory.
///
/// # Errors
/// The file system's.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes a directory with everything above it; its own name is durable afterwards.
///
/// # Errors
/// The file system's.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    sync_parent(path)
}

/// Where [`replace`] writes a file before it gets its name.
fn partial(path: &Path) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Proves: a file is replaced whole with the permission bits that are asked for, whatever an interrupted call left;
    /// what cannot be put in place leaves nothing; a file that is not there is none, and a directory is no file.
    #[test]
    fn files_are_replaced_whole() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("note");
        assert_eq!(read(&path, 10).expect("no error"), None);
        std::fs::write(partial(&path), b"what an interrupted call left, longer").expect("written");
        replace(&path, b"first", PRIVATE).expect("replaced");
        assert_eq!(read(&path, 10).expect("read"), Some(b"first".to_vec()));
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, PRIVATE);
        replace(&path, b"second", PUBLIC).expect("replaced");
        assert_eq!(read(&path, 3).expect("read"), Some(b"seco".to_vec()), "one byte more than the bound");
        assert!(!partial(&path).exists());
        let below = path.join("below");
        assert!(replace(&below, b"x", PRIVATE).is_err());
        let taken = folder.path().join("taken");
        make_directory(&taken.join("inner"), 0o700).expect("made");
        assert!(replace(&taken, b"x", PRIVATE).is_err() && taken.join("inner").is_dir());
        assert_eq!(read(&taken, 1).expect_err("a directory").kind(), io::ErrorKind::InvalidInput);
        remove(&path).expect("removed");
        remove(&path).expect("it is gone already");
        assert!(!path.exists());
    }
}
