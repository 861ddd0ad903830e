//! Where a tree is brought to, whatever stands behind it.

use super::source::SourceFile;
use holdfast_client::FsError;
use holdfast_content::InodeKind;
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;

/// Why something could not be done.
#[derive(Debug)]
pub enum Trouble {
    /// This machine's file systems, of the source or of a mount.
    Local(io::Error),
    /// The file system that is imported into.
    Engine(FsError),
    /// Of what has this name.
    Named(String, Box<Trouble>),
    /// There is something else than a directory.
    NotADirectory,
    /// The number of a device does not fit.
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
    /// Of what has this name.
    pub fn named(self, name: impl Into<String>) -> Trouble {
        Trouble::Named(name.into(), Box::new(self))
    }
}

/// What is there already under a name.
#[derive(Clone, Debug)]
pub struct There {
    /// Its kind.
    pub kind: InodeKind,
    /// Its permission bits.
    pub mode: u32,
    /// Its size in bytes.
    pub size: u64,
    /// When it was modified last.
    pub modified_ns: i64,
    /// Its number of a device.
    pub device_number: u32,
    /// Its inode number.
    pub ino: u64,
}

/// How a file came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Put {
    /// It is there.
    Done,
    /// Its source changed while it was read, so it was left out.
    Changed,
}

/// A writable tree.
pub trait Target: Sync {
    /// A directory in it.
    type Directory: Clone + Send + Sync;

    /// The directory that everything goes into, made if needed; `None` if it is not there and must not be made.
    ///
    /// # Errors
    /// [`Trouble`].
    fn root(&self, make: bool) -> Result<Option<Self::Directory>, Trouble>;

    /// What is in a directory.
    ///
    /// # Errors
    /// [`Trouble`].
    fn list(&self, directory: &Self::Directory) -> Result<BTreeMap<Vec<u8>, There>, Trouble>;

    /// A directory that is there.
    fn enter(&self, directory: &Self::Directory, name: &[u8], there: &There) -> Self::Directory;

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Trouble`].
    fn make_directory(&self, directory: &Self::Directory, name: &[u8]) -> Result<Self::Directory, Trouble>;

    /// Gives a directory its attributes.
    ///
    /// # Errors
    /// [`Trouble`].
    fn finish_directory(
        &self,
        directory: &Self::Directory,
        metadata: &Metadata,
        xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<(), Trouble>;

    /// Brings in a file, whole, in the place of what has its name if it may.
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

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`Trouble`].
    fn link(&self, from: (&Self::Directory, &[u8]), to: (&Self::Directory, &[u8])) -> Result<(), Trouble>;

    /// Sets the permission bits of a file.
    ///
    /// # Errors
    /// [`Trouble`].
    fn set_mode(&self, directory: &Self::Directory, name: &[u8], mode: u32) -> Result<(), Trouble>;

    /// Removes a name, if it is a directory's an empty one's.
    ///
    /// # Errors
    /// [`Trouble`].
    fn remove(&self, directory: &Self::Directory, name: &[u8], kind: InodeKind) -> Result<(), Trouble>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`Trouble`].
    fn link_target(&self, directory: &Self::Directory, name: &[u8]) -> Result<Vec<u8>, Trouble>;

    /// Whether a file has the same bytes.
    ///
    /// # Errors
    /// [`Trouble`].
    fn has_bytes_of(
        &self,
        directory: &Self::Directory,
        name: &[u8],
        source: &SourceFile,
    ) -> Result<bool, Trouble>;

    /// Waits until all is durable.
    ///
    /// # Errors
    /// [`Trouble`].
    fn settle(&self) -> Result<(), Trouble>;
}
