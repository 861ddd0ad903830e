//! Edits as closures, and the steps that several of them share.

use super::{FileSystem, known_handle};
use crate::error::FsError;
use crate::tree::{Changes, Edit, OrderedResult, View};
use holdfast_content::{Entry, Handle, Inode, InodeKind};
use parking_lot::Mutex;
use std::sync::Arc;

/// Most names that a file may have.
pub const LINKS_MAX: u32 = 65_000;

struct ClosureEdit<T, F> {
    run: F,
    /// The result of the last successful planning.
    made: Option<T>,
    result: OrderedResult<T>,
}

impl<T: Clone + Send + Sync, F: FnMut(&mut dyn Changes) -> Result<T, FsError> + Send> Edit
    for ClosureEdit<T, F>
{
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError> {
        self.made = None;
        self.made = Some((self.run)(changes)?);
        Ok(())
    }

    fn ordered(&mut self) {
        if let Some(made) = &self.made {
            let _ = self.result.set(made.clone());
        }
    }
}

impl FileSystem {
    /// Makes one edit. Returns the result of its last, successful planning, and a view that contains the
    /// edit.
    pub(super) fn edit<T: Clone + Send + Sync + 'static>(
        &self,
        run: impl FnMut(&mut dyn Changes) -> Result<T, FsError> + Send + 'static,
    ) -> Result<(T, Arc<dyn View>), FsError> {
        self.edit_with_result(OrderedResult::default(), run)
    }

    /// Like [`FileSystem::edit`], but `told` gets the result even if this returns an error because the answer
    /// came late. After any later operation of this client it is certain.
    pub(super) fn edit_with_result<T: Clone + Send + Sync + 'static>(
        &self,
        told: OrderedResult<T>,
        run: impl FnMut(&mut dyn Changes) -> Result<T, FsError> + Send + 'static,
    ) -> Result<(T, Arc<dyn View>), FsError> {
        let edit = Arc::new(Mutex::new(ClosureEdit { run, made: None, result: told }));
        let view = self.backend.modify(edit.clone())?;
        let made = edit.lock().made.take().expect("an edit that was made was planned");
        Ok((made, view))
    }
}

/// The inode of a directory, if this client may change names in it.
pub fn writable_directory(changes: &mut dyn Changes, directory: Handle) -> Result<Arc<Inode>, FsError> {
    let inode = changes.inode(directory)?;
    if inode.kind != InodeKind::Directory {
        return Err(FsError::NotDirectory);
    }
    if !changes.may_write(directory.principal) {
        return Err(FsError::Access(format!("the directory belongs to {}", directory.principal)));
    }
    Ok(inode)
}

/// The entry of a name, which must exist.
pub fn existing(changes: &mut dyn Changes, directory: Handle, name: &[u8]) -> Result<Entry, FsError> {
    let entry = changes.entry(directory, name)?.ok_or(FsError::NotFound)?;
    known_handle(entry.handle)?;
    Ok(entry)
}

/// The effect of removing a name on the inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NameRemoval {
    /// The inode remains: it has other names, or belongs to another owner, who may remove it.
    Remains(Handle),
    /// The inode is removed. With the inode as it was, unless its owner had removed it before.
    Removed(Handle, Option<Arc<Inode>>),
}

/// Removes one name from an inode, and the inode with its last name. Another principal's inode stays as it
/// is: a user who may write the directory may remove the name, but nothing else (SUNDR 4).
pub fn drop_link(changes: &mut dyn Changes, handle: Handle, now_ns: i64) -> Result<NameRemoval, FsError> {
    let inode = match changes.inode(handle) {
        Ok(inode) => inode,
        Err(FsError::NotFound) => return Ok(NameRemoval::Removed(handle, None)),
        Err(error) => return Err(error),
    };
    if !changes.may_write(handle.principal) {
        return Ok(NameRemoval::Remains(handle));
    }
    if inode.links <= 1 || inode.kind == InodeKind::Directory {
        changes.remove_inode(handle)?;
        return Ok(NameRemoval::Removed(handle, Some(inode)));
    }
    let mut inode = (*inode).clone();
    inode.links -= 1;
    inode.changed_ns = now_ns;
    changes.set_inode(handle, inode)?;
    Ok(NameRemoval::Remains(handle))
}
