//! An edit, and the tree that it is planned on.

use super::membership::MembershipChanges;
use super::view::Names;
use crate::error::FsError;
use holdfast_content::{
    BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, PrincipalId, UserId,
};
use std::sync::{Arc, OnceLock};

/// One change of a program, as a plan that can run on any state of the tree, as often as needed. Many share one signed
/// operation, and all are planned again on a newer view when the server has ordered something else before.
///
/// A plan must depend on nothing but the tree it is given and the edit's own fixed parameters: no clock, no randomness.
/// It may keep results in `self`; those of the last plan count.
pub trait Edit: Send {
    /// Reads through, and applies changes to, `changes`.
    ///
    /// # Errors
    /// An error means that the edit changes nothing; if the view it was found in is the one the operation is
    /// ordered on, the caller of `modify` gets it.
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError>;

    /// What was planned last has its place in the order: also when its caller no longer waits, which is how one
    /// who gave up can find out. By the time a later edit is planned, this was called or never will be.
    fn ordered(&mut self) {}
}

impl<F: FnMut(&mut dyn Changes) -> Result<(), FsError> + Send> Edit for F {
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        self(changes)
    }
}

/// Tells what an edit made, once it is in the order: also when nobody has waited for the answer.
pub type OrderedResult<T> = Arc<OnceLock<T>>;

/// Makes content from blocks, putting new ones into a sink.
pub type MakeContent<'a> = &'a dyn Fn(&dyn BlockSource, &mut dyn BlockSink) -> Result<Content, ContentError>;

/// The tree as one operation is about to leave it. Reads see earlier edits of the same operation and count as
/// preconditions. An edit gets the engine's ([`super::Transaction`]), or that of a write-back, where it is made first.
pub trait Changes {
    /// The device that makes the operation.
    fn me(&self) -> DeviceId;

    /// The user that this device belongs to.
    fn user(&self) -> UserId;

    /// The file's inode. Of a directory it says nothing about entries, nor about changes of entries that are
    /// pending.
    ///
    /// # Errors
    /// [`FsError::NotFound`] and errors of the data itself.
    fn inode(&mut self, file: Handle) -> Result<Arc<Inode>, FsError>;

    /// What a name in a directory stands for.
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

    /// Writes a file's inode: a new file's, or all of an existing one's. The entries of an existing directory
    /// are kept whatever `inode` says of them; use [`Changes::set_entry`].
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`].
    fn set_inode(&mut self, file: Handle, inode: Inode) -> Result<(), FsError>;

    /// Removes a file's inode. Names that still lead to it become stale.
    ///
    /// # Errors
    /// [`FsError::Access`].
    fn remove_inode(&mut self, file: Handle) -> Result<(), FsError>;

    /// Makes, replaces or (with `None`) removes a name; `time_ns` becomes the directory's time of change unless
    /// that is later.
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

    /// Makes content for a file with the blocks at hand, and new ones, which travel with the operation.
    ///
    /// # Errors
    /// What it means for the file that a block could not be had.
    fn make_content(&mut self, file: Handle, make: MakeContent<'_>) -> Result<Content, FsError>;

    /// The membership, for edits that change it, or that need what only the engine knows.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: the edit is planned elsewhere than by the engine.
    fn membership(&mut self) -> Result<MembershipChanges<'_>, FsError> {
        Err(FsError::Invalid("an edit of the membership is planned by the engine only".to_owned()))
    }
}
