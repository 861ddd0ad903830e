//! Small files, read within bounds and replaced whole.

use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Reads a file, or of a longer one `bytes_max + 1` bytes; `None` when there is none.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    // So that opening a pipe does not wait for ever.
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

/// Puts a file in place whole and durably, or not at all. One process at a time may do this to one path.
///
/// # Errors
/// The file system's. The file at `path` is what it was, or the new one.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes names in a directory durable.
///
/// # Errors
/// The file system's.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Makes a directory with everything above it.
///
/// # Errors
/// The file system's.
pub fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}
