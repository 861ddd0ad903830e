//! The source of an import: reads it, and checks that files did not change meanwhile.

use holdfast_content::InodeKind;
use holdfast_release::moment::nanoseconds;
use rustix::fs::{OFlags, SeekFrom, fgetxattr, flistxattr, seek};
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Most bytes of attributes that Holdfast stores.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The kind of a file, from its metadata.
pub fn kind_of(metadata: &Metadata) -> InodeKind {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => InodeKind::Directory,
        () if kind.is_symlink() => InodeKind::Symlink,
        () if kind.is_fifo() => InodeKind::Fifo,
        () if kind.is_socket() => InodeKind::Socket,
        () if kind.is_block_device() => InodeKind::BlockDevice,
        () if kind.is_char_device() => InodeKind::CharDevice,
        () => InodeKind::File,
    }
}

/// The time of the last modification, in nanoseconds since 1970.
pub fn modified_ns(metadata: &Metadata) -> i64 {
    nanoseconds(metadata.mtime(), metadata.mtime_nsec())
}

/// The names in a directory, with their metadata.
///
/// # Errors
/// I/O errors. Names that vanish meanwhile are left out.
pub fn list(directory: &Path) -> io::Result<BTreeMap<Vec<u8>, Metadata>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(metadata) => drop(found.insert(entry.file_name().into_vec(), metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Opens a path as a file or directory, without following links or waiting.
///
/// # Errors
/// I/O errors.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// The attributes that are imported: `user.*`.
///
/// # Errors
/// I/O errors.
pub fn xattrs(file: &File) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let length = match flistxattr(file, &mut names) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut found = BTreeMap::new();
    for name in names {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let length = match fgetxattr(file, name, &mut value) {
            Err(rustix::io::Errno::NODATA) => continue,
            other => other?,
        };
        value.truncate(length);
        found.insert(name.to_vec(), value);
    }
    Ok(found)
}

/// A file that is being brought in.
pub struct SourceFile {
    /// The file.
    pub file: File,
    /// Its metadata when it was opened.
    pub metadata: Metadata,
    /// Its attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl SourceFile {
    /// Opens one.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(path: &Path) -> io::Result<SourceFile> {
        let file = open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is not a file any more"));
        }
        let xattrs = xattrs(&file)?;
        Ok(SourceFile { file, metadata, xattrs })
    }

    /// The ranges of the file that have data; all others are holes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn data(&self) -> io::Result<Vec<Range<u64>>> {
        let size = self.metadata.len();
        let mut found = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match seek(&self.file, SeekFrom::Data(at)) {
                Err(rustix::io::Errno::NXIO) => break,
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => at,
                other => other?,
            };
            let end = match seek(&self.file, SeekFrom::Hole(start)) {
                Err(rustix::io::Errno::NXIO) => break,
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => size,
                other => other?.min(size),
            };
            if end <= start {
                break;
            }
            found.push(start..end);
            at = end;
        }
        Ok(found)
    }

    /// Whether the file is unchanged since it was opened.
    ///
    /// # Errors
    /// I/O errors.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let told = |metadata: &Metadata| {
            (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec())
        };
        Ok(told(&now) == told(&self.metadata))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Proves: data is found around holes, and a change after opening is detected.
    #[test]
    fn holes_and_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sparse");
        let file = File::create(&path).expect("made");
        file.write_all_at(b"x", 1 << 20).expect("written");
        file.set_len(4 << 20).expect("extended");
        let source = SourceFile::open(&path).expect("opened");
        let data = source.data().expect("sought");
        assert!(data.iter().any(|range| range.contains(&(1 << 20))), "{data:?}");
        assert!(source.is_unchanged().expect("looked at"));
        file.write_all_at(b"y", 0).expect("written");
        file.set_len(5 << 20).expect("extended");
        assert!(!source.is_unchanged().expect("looked at"));
        assert!(SourceFile::open(dir.path()).is_err());
    }
}
