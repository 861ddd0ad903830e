//! Small files that must survive a crash. They are read up to a limit, and replaced completely or not at all.
//! Every file of Holdfast that is not in a log or a store is written by this crate, so that no code forgets
//! to sync the file before it is renamed, or the directory after.
#![forbid(unsafe_code)]

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Permission bits of a file that only its owner may read.
pub const PRIVATE: u32 = 0o600;
/// Permission bits of a file that everybody may read, as far as the umask allows.
pub const PUBLIC: u32 = 0o644;

/// Reads a file; of a longer one only `bytes_max + 1` bytes. Returns `None` if there is none.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if it is not a regular file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // Without this flag, opening a pipe would wait for ever.
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

/// Replaces a file durably, completely or not at all. Only one process at a time may do this to one path. A
/// file that an interrupted call has left (`PATH.partial`) is made again. `mode`: the permission bits.
///
/// # Errors
/// The file system's error. The file at `path` is either unchanged or the new one.
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
        // If the disk is full, the unused file must not take space too.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    rename(&partial, path)
}

/// Renames a file that is complete and synced, durably.
///
/// # Errors
/// The file system's error.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    sync_parent(to)
}

/// Removes a file durably, if it exists.
///
/// # Errors
/// The file system's error.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.and_then(|()| sync_parent(path)),
    }
}

/// Makes the names in a directory durable.
///
/// # Errors
/// The file system's error.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Makes the name of a file durable, with all names in its directory.
///
/// # Errors
/// The file system's error.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes a directory, and all directories above it that do not exist. Its own name is durable afterwards.
///
/// # Errors
/// The file system's error.
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

    /// Proves: a file is replaced completely, with the requested permission bits, whatever an interrupted
    /// call has left; a file that cannot be put in place leaves nothing; an absent file is `None`, and a
    /// directory is not a file.
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
