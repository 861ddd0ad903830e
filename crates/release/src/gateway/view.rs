//! What a gateway shows: a tree, and what is to be said about it.

/// How something is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mood {
    /// All is as it should be.
    Good,
    /// People should know.
    Warn,
    /// Do not use it.
    Bad,
    /// Neither good nor bad.
    Plain,
}

/// Something to be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Banner {
    /// How.
    pub mood: Mood,
    /// What.
    pub head: String,
    /// More of it.
    pub lines: Vec<String>,
}

/// What is to be said about the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    /// What it is called.
    pub title: String,
    /// What to tell on every page.
    pub banners: Vec<Banner>,
    /// Who signed it, and the like.
    pub facts: Vec<(&'static str, String)>,
    /// Whether its content may be shown.
    pub usable: bool,
    /// Whether it has releases that can be compared.
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
    /// Something else, in words.
    Other(&'static str),
}

/// A line of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The name.
    pub name: Vec<u8>,
    /// What it stands for.
    pub kind: Kind,
    /// Bytes of a file.
    pub size: u64,
    /// When it was changed, in seconds since 1970.
    pub modified_s: i64,
    /// Where a link leads.
    pub target: Option<Vec<u8>>,
}

/// A part of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// In order of name.
    pub rows: Vec<Row>,
    /// How many names the directory has, if that is known.
    pub total: Option<u64>,
    /// Whether there are more after these.
    pub more: bool,
    /// Whether it shows only names that are known already.
    pub opaque: bool,
}

/// Bytes of a file, as they are read.
pub trait Content: Send + Sync {
    /// At most `length` bytes from `offset` on; fewer only at the end.
    ///
    /// # Errors
    /// [`Trouble`].
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, Trouble>;
}

/// A file that can be read.
pub struct Opened {
    /// Its size.
    pub size: u64,
    /// When it was changed, in seconds since 1970.
    pub modified_s: i64,
    /// Another one if its bytes are others. Letters, digits and dashes.
    pub tag: String,
    /// Its bytes.
    pub content: Box<dyn Content>,
}

/// Where a path leads.
pub enum Thing {
    /// To a directory.
    Directory,
    /// To a file.
    File(Opened),
    /// To something that has neither names nor bytes, in words.
    Other(&'static str),
    /// To nothing. Whether that is proven.
    Nothing {
        /// By what was signed, or merely so.
        proven: bool,
    },
    /// Out of the tree.
    Outside,
}

/// Why something cannot be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// In words.
    pub why: String,
    /// Whether it was altered.
    pub is_false: bool,
}

/// What is different from the release before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Names, with `/` between them.
    pub path: Vec<u8>,
    /// `+`, `-`, `~`.
    pub mark: char,
    /// In words.
    pub what: &'static str,
}

/// A tree that is shown.
pub trait View: Send + Sync {
    /// What is to be said about it.
    fn about(&self) -> About;

    /// Where a path leads. Every name is one that a directory may have.
    ///
    /// # Errors
    /// [`Trouble`].
    fn look(&self, path: &[Vec<u8>]) -> Result<Thing, Trouble>;

    /// At most `limit` names of a directory after `after`, in order of bytes.
    ///
    /// # Errors
    /// [`Trouble`].
    fn list(&self, path: &[Vec<u8>], after: Option<&[u8]>, limit: usize) -> Result<Listing, Trouble>;

    /// At most `limit` differences from the release before.
    ///
    /// # Errors
    /// [`Trouble`]; also if there is none before.
    fn changes(&self, limit: usize) -> Result<Vec<Change>, Trouble>;
}
