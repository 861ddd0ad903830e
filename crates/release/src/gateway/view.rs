//! The interface between a gateway and the tree that it serves.

use bytes::Bytes;
use holdfast_http_server::Pieces;
use std::io;
use std::ops::Range;

/// Bytes of a file that are read at once.
pub const PIECE_BYTES: u64 = 256 << 10;

/// How a message is presented.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BannerStyle {
    /// All is as it should be.
    Good,
    /// A warning: people should know.
    Warn,
    /// An error: the content must not be used.
    Bad,
    /// A plain message, neither good nor bad.
    Plain,
}

/// A message to the reader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Banner {
    /// The style of the message.
    pub mood: BannerStyle,
    /// The headline.
    pub head: String,
    /// Further lines.
    pub lines: Vec<String>,
}

/// What every page says about the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TreeSummary {
    /// The title of the tree.
    pub title: String,
    /// The banners on every page.
    pub banners: Vec<Banner>,
    /// Facts about the tree, such as who signed it.
    pub facts: Vec<(&'static str, String)>,
    /// Whether its content may be served.
    pub usable: bool,
    /// Whether it is a release, which can be compared with the one before.
    pub is_release: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Another kind of file, in words.
    Other(&'static str),
}

/// A line of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The name.
    pub name: Vec<u8>,
    /// What the name stands for.
    pub kind: Kind,
    /// The size of a file in bytes.
    pub size: u64,
    /// When it was modified, in seconds since 1970.
    pub modified_s: i64,
    /// The target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

/// A page of a directory's entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// The entries, in order of name.
    pub rows: Vec<Row>,
    /// How many names the directory has, if that is known.
    pub total: Option<u64>,
    /// Whether there are more after these.
    pub more: bool,
    /// Whether the directory is opaque, so that only names that were used before are listed.
    pub opaque: bool,
}

/// The content of a file, read in pieces.
pub trait Content: Send + Sync {
    /// At most `length` bytes from `offset` on; fewer only at the end.
    ///
    /// # Errors
    /// [`ViewError`].
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ViewError>;
}

/// A file that can be read.
pub struct OpenFile {
    /// The size in bytes.
    pub size: u64,
    /// When it was modified, in seconds since 1970.
    pub modified_s: i64,
    /// A tag that changes with the content. Letters, digits and dashes.
    pub tag: String,
    /// The content of the file.
    pub content: Box<dyn Content>,
}

impl Pieces for OpenFile {
    fn read(&self, range: Range<u64>) -> io::Result<Bytes> {
        let length = (range.end - range.start) as usize;
        let read = match self.content.read(range.start, length) {
            Ok(bytes) if bytes.len() == length => Ok(bytes.into()),
            Ok(_) => Err("the file has become shorter".to_owned()),
            Err(view_error) => Err(view_error.why),
        };
        read.map_err(|why| {
            tracing::warn!(why, "a file was cut short on its way");
            io::Error::other(why)
        })
    }
}

/// What a path leads to.
pub enum PathTarget {
    /// A directory.
    Directory,
    /// A file.
    File(OpenFile),
    /// A file that has neither entries nor bytes, in words.
    Other(&'static str),
    /// Nothing.
    Nothing {
        /// Whether signed data proves that nothing is there.
        proven: bool,
    },
    /// Something outside of the tree.
    Outside,
}

/// Why something cannot be displayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewError {
    /// The reason, in words.
    pub why: String,
    /// Whether content was found to be altered.
    pub is_false: bool,
}

/// A difference from the release before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The names from the root, separated by `/`.
    pub path: Vec<u8>,
    /// `+` added, `-` removed, `~` changed.
    pub mark: char,
    /// What changed, in words.
    pub what: &'static str,
}

/// A tree that a gateway serves.
pub trait View: Send + Sync {
    /// What every page says about the tree.
    fn about(&self) -> TreeSummary;

    /// What a path leads to. The caller makes sure that every name is valid.
    ///
    /// # Errors
    /// [`ViewError`].
    fn look(&self, path: &[Vec<u8>]) -> Result<PathTarget, ViewError>;

    /// At most `limit` names of a directory after `after`, in order of bytes.
    ///
    /// # Errors
    /// [`ViewError`].
    fn list(&self, path: &[Vec<u8>], after: Option<&[u8]>, limit: usize) -> Result<Listing, ViewError>;

    /// At most `limit` differences from the release before.
    ///
    /// # Errors
    /// [`ViewError`]; also if there is no release before.
    fn changes(&self, limit: usize) -> Result<Vec<Change>, ViewError>;
}
