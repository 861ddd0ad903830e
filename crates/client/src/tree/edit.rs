//! An edit, and the tree that it is planned on.

use super::membership::MembershipChanges;
use super::view::Names;
use crate::error::FsError;
use holdfast_content::{
    BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, PrincipalId, UserId,
};
use std::sync::{Arc, OnceLock};

/// One change of a program, as a plan that can run on any state of the tree, as often as needed. Many edits
/// share one signed operation, and all are planned again on a newer view if the server has ordered something
/// else before.
///
/// A plan must depend only on the tree it is given and on the edit's own fixed parameters: not on a clock or
/// on randomness. It may store results in `self`; those of the last plan count.
pub trait Edit: Send {
    /// Reads through, and applies changes to, `changes`.
    ///
    /// # Errors
    /// An error means that the edit changes nothing; if the view it was found in is the one the operation is
    /// ordered on, the caller of `modify` gets it.
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError>;

    /// Called when the last plan has its place in the order, even if the caller no longer waits: so a caller
    /// that gave up can find out. When a later edit is planned, this was either called before or never will
    /// be.
    fn ordered(&mut self) {}
}

impl<F: FnMut(&mut dyn Changes) -> Result<(), FsError> + Send> Edit for F {
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        self(changes)
    }
}

/// The result of an edit, set once it is in the order, even if its caller did not wait for the answer.
pub type OrderedResult<T> = Arc<OnceLock<T>>;

/// Makes content from blocks, and puts new blocks into a sink.
pub type MakeContent<'a> = &'a dyn Fn(&dyn BlockSource, &mut dyn BlockSink) -> Result<Content, ContentError>;

/// The tree as one operation is about to leave it. Reads see earlier edits of the same operation and count as
/// preconditions. Edits run on the engine's ([`super::Transaction`]), or first on a write-back's.
pub trait Changes {
    /// The device that makes the operation.
    fn me(&self) -> DeviceId;

    /// The user that this device belongs to.
    fn user(&self) -> UserId;

    /// The inode of a file. For a directory, this does not count as reading its entries, so pending changes
    /// of entries do not matter.
    ///
    /// # Errors
    /// [`FsError::NotFound`] and errors of the data itself.
    fn inode(&mut self, file: Handle) -> Result<Arc<Inode>, FsError>;

    /// The entry of a name in a directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`] or [`FsError::NotDirectory`] for the directory, errors of the data itself.
    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError>;

    /// At most `limit` entries after a name, in byte order; fewer only at the end.
    ///
    /// # Errors
    /// As [`Changes::entry`].
    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError>;

    /// Whether this device may write what `principal` owns.
    fn may_write(&self, principal: PrincipalId) -> bool;

    /// A number for a new file of `principal`.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::NoSpace`]; errors of the principal's table.
    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError>;

    /// Writes a file's inode: that of a new file, or all of an existing one. The entries of an existing
    /// directory stay as they are, whatever `inode` has; use [`Changes::set_entry`] for them.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`].
    fn set_inode(&mut self, file: Handle, inode: Inode) -> Result<(), FsError>;

    /// Removes a file's inode. Names that still lead to it become stale.
    ///
    /// # Errors
    /// [`FsError::Access`].
    fn remove_inode(&mut self, file: Handle) -> Result<(), FsError>;

    /// Makes, replaces or (with `None`) removes a name. `time_ns` becomes the directory's time of change
    /// unless that is later already.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`] for a bad name.
    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        time_ns: i64,
    ) -> Result<(), FsError>;

    /// Makes content for a file from available blocks and new ones; the new blocks are sent with the
    /// operation.
    ///
    /// # Errors
    /// The file's error if a block could not be fetched.
    fn make_content(&mut self, file: Handle, make: MakeContent<'_>) -> Result<Content, FsError>;

    /// The membership, for edits that change it or need the engine's base.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: the edit is not being planned by the engine.
    fn membership(&mut self) -> Result<MembershipChanges<'_>, FsError> {
        Err(FsError::Invalid("an edit of the membership is planned by the engine only".to_owned()))
    }
}
