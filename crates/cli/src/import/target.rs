//! The target of an import, with two implementations.

use super::source::SourceFile;
use holdfast_client::FsError;
use holdfast_content::InodeKind;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;

/// Why something could not be done.
#[derive(Debug)]
pub enum Trouble {
    /// A local file system failed: the source's or a mount's.
    Local(io::Error),
    /// The file system that is imported into failed.
    Engine(FsError),
    /// A problem with the file of this name.
    Named(String, Box<Trouble>),
    /// Something other than a directory is in the place of one.
    NotADirectory,
    /// The device number does not fit.
    DeviceNumber,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Local(error) => error.fmt(f),
            Trouble::Engine(error) => error.fmt(f),
            Trouble::Named(name, trouble) => write!(f, "{name}: {trouble}"),
            Trouble::NotADirectory => f.write_str("it is no directory"),
            Trouble::DeviceNumber => f.write_str("its device number is too large"),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Local(error)
    }
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Trouble {
        Trouble::Engine(error)
    }
}

impl Trouble {
    /// Adds the name of the file.
    pub fn named(self, name: impl Into<String>) -> Trouble {
        Trouble::Named(name.into(), Box::new(self))
    }
}

/// An existing file in the target.
#[derive(Clone, Debug)]
pub struct There {
    /// Its kind.
    pub kind: InodeKind,
    /// Its permission bits.
    pub mode: u32,
    /// Its size in bytes.
    pub size: u64,
    /// When it was modified last, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// The device number, for device files.
    pub device_number: u32,
    /// Its inode number.
    pub ino: u64,
}

/// The outcome of importing a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// The file was imported.
    Done,
    /// The source changed while it was read, so the file was left out.
    Changed,
}

/// A writable tree.
pub trait Target: Sync {
    /// A directory in it.
    type Directory: Clone + Send + Sync;

    /// The directory that everything is imported into. It is created if `make`; `None` if it is missing and
    /// `make` is false.
    ///
    /// # Errors
    /// [`Trouble`].
    fn root(&self, make: bool) -> Result<Option<Self::Directory>, Trouble>;

    /// The names in a directory.
    ///
    /// # Errors
    /// [`Trouble`].
    fn list(&self, directory: &Self::Directory) -> Result<BTreeMap<Vec<u8>, There>, Trouble>;

    /// An existing directory in another.
    fn enter(&self, directory: &Self::Directory, name: &[u8], there: &There) -> Self::Directory;

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Trouble`].
    fn make_directory(&self, directory: &Self::Directory, name: &[u8]) -> Result<Self::Directory, Trouble>;

    /// Sets the attributes of a directory.
    ///
    /// # Errors
    /// [`Trouble`].
    fn finish_directory(
        &self,
        directory: &Self::Directory,
        metadata: &Metadata,
        xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), Trouble>;

    /// Imports a file, atomically replacing one with the same name if there is one.
    ///
    /// # Errors
    /// [`Trouble`].
    fn put_file(
        &self,
        directory: &Self::Directory,
        name: &[u8],
        source: &SourceFile,
        replace: bool,
    ) -> Result<Put, Trouble>;

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Trouble`].
    fn put_symlink(
        &self,
        directory: &Self::Directory,
        name: &[u8],
        target: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Trouble>;

    /// Makes a named pipe, a socket or a device.
    ///
    /// # Errors
    /// [`Trouble`].
    fn put_special(
        &self,
        directory: &Self::Directory,
        name: &[u8],
        kind: InodeKind,
        metadata: &Metadata,
    ) -> Result<(), Trouble>;

    /// Adds another name of a file.
    ///
    /// # Errors
    /// [`Trouble`].
    fn link(&self, from: (&Self::Directory, &[u8]), to: (&Self::Directory, &[u8])) -> Result<(), Trouble>;

    /// Sets the permission bits of a file.
    ///
    /// # Errors
    /// [`Trouble`].
    fn set_mode(&self, directory: &Self::Directory, name: &[u8], mode: u32) -> Result<(), Trouble>;

    /// Removes a name; a directory must be empty.
    ///
    /// # Errors
    /// [`Trouble`].
    fn remove(&self, directory: &Self::Directory, name: &[u8], kind: InodeKind) -> Result<(), Trouble>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`Trouble`].
    fn link_target(&self, directory: &Self::Directory, name: &[u8]) -> Result<Vec<u8>, Trouble>;

    /// Whether a file has the same content as the source.
    ///
    /// # Errors
    /// [`Trouble`].
    fn has_bytes_of(
        &self,
        directory: &Self::Directory,
        name: &[u8],
        source: &SourceFile,
    ) -> Result<bool, Trouble>;

    /// Waits until everything is durable.
    ///
    /// # Errors
    /// [`Trouble`].
    fn settle(&self) -> Result<(), Trouble>;
}
