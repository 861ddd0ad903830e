//! FAT32 without I/O, for the file system driver of a volume whose parts do not trust each other.
//!
//! The driver gets blocks of metadata (`Metadata`) and returns transactions: sets of whole blocks that the
//! caller commits atomically. It writes nothing, and it cannot see the contents of a file: it only lists the
//! file's blocks, and who may read those is decided elsewhere. `docs/internals/fat.md` says what is supported
//! and what is refused.
//!
//! * `Layout`: the positions of everything, from a boot sector in which no field is trusted.
//! * `check`, `Fat::walk`: whether a file system is sound, and which file has each block.
//! * `Fat`: look up, list, map; create, unlink, rename, resize, as transactions.
//! * `Fat::limbo`, `Fat::returning`, `Fat::free`: blocks of deleted files are returned before they are
//!   free.
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
