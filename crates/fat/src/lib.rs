//! FAT32 without I/O, for the file system driver of a volume whose parts do not trust each other.
//!
//! The driver is given blocks of metadata (`Metadata`) and gives back transactions: whole blocks that the caller
//! commits all or none. It writes nothing, and it has no way to see the contents of a file: it names their blocks, and
//! who may look at them is decided elsewhere. `docs/internals/fat.md` says what is supported and what is refused.
//!
//! * `Layout`: where everything is, from a boot sector in which every field is suspect.
//! * `check`, `Fat::walk`: whether a file system is sound, and whose each block is.
//! * `Fat`: look up, list, map; create, unlink, rename, resize, as transactions.
//! * `Fat::limbo`, `Fat::returning`, `Fat::free`: blocks of deleted files come back before they are free.
//! * `format`, `partitions`: making a file system, and finding one.

#![forbid(unsafe_code)]

mod change;
mod check;
mod directory;
mod draft;
mod entry;
mod error;
pub mod format;
mod fs;
mod layout;
mod limbo;
mod names;
mod nodes;
pub mod partitions;
mod problem;
mod size;
mod space;
mod state;
mod summary;
mod table;
mod time;

pub use change::{Facts, Replace};
pub use check::{Checked, Finding, WalkedFile, check};
pub use draft::{Metadata, Transaction};
pub use entry::Attributes;
pub use error::{FatError, Result};
pub use fs::{Change, DirectoryEntry, EXTENTS_MAX, Extent, Fat, Kind, ListedFile, Options, Sizes, Stat};
pub use layout::{Area, BLOCK_BYTES_MAX, BlockId, BlockRange, FIRST_CLUSTER, Layout, Mirroring, Run};
pub use limbo::{LimboId, LimboItem, Returning};
pub use names::{NAME_UNITS_MAX, Name};
pub use nodes::{FILES_MAX, FileId, ROOT};
pub use problem::Problem;
pub use size::{FILE_BYTES_MAX, Resized};
pub use time::Moment;
