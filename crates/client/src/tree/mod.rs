//! The file tree of a view, and plans to change it. Pure: given a source of blocks, it decides; it knows no
//! clock, no thread and no network.
//!
//! - [`Base`]: a verified view and how files are found in it;
//! - [`Touches`]: what is pending, and so what conflicts;
//! - [`Transaction`] and [`Edit`]: planning;
//! - [`survey()`]: everything there is, to find what nothing refers to;
//! - [`Plan`]: deltas for the certificate, i-handles for the structure.
//!
//! Attack answered: laundering (SUNDR 3.4.2). What another device has pending is folded in only as changes
//! tagged with that operation, which count if and only if it is committed; so nobody's signature ever vouches
//! for somebody else's unfinished operation.

mod allocate;
mod base;
mod plan;
mod survey;
mod touches;
mod transaction;

pub use allocate::{Allocator, Range};
pub use base::{Base, Entries, InodeLocation, ReadError, TableCache, directory_of, laid_over};
pub use plan::Plan;
pub use survey::{Survey, UnreferencedFile, each_file, survey};
pub use touches::{Touches, tag_of};
pub use transaction::{Edit, Explain, PlanSink, Transaction};

use crate::error::FsError;
use holdfast_content::{Entry, Handle, Inode};
use holdfast_crypto::Digest;
use std::sync::Arc;

/// Verified reading of files and directories.
pub trait Tree {
    /// The file's inode.
    ///
    /// # Errors
    /// [`FsError::NotFound`], and errors of the data itself.
    fn inode(&self, file: Handle) -> Result<Arc<Inode>, FsError>;

    /// What a name in a directory stands for.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] for the directory, errors of the data itself.
    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError>;

    /// At most `limit` entries after a name, in byte order; fewer only at the end.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] for the directory, errors of the data itself.
    fn entries(
        &self,
        directory: Handle,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>, FsError>;

    /// The file's i-hash: changes whenever anything about the file does.
    ///
    /// # Errors
    /// [`FsError::NotFound`], and errors of the data itself.
    fn ihash(&self, file: Handle) -> Result<Digest, FsError>;
}
