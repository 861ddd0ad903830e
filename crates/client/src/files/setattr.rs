//! Changing attributes: mode, size, times. Owners are changed in `owners`.

use super::nodes::NodeState;
use super::state::{FileState, NameStatus};
use super::{Attributes, Caller, FileHandleId, FileSystem, Ino, SetAttributes, TimeToSet, now_ns};
use crate::error::FsError;
use holdfast_content::{FILE_BYTES_MAX, InodeKind};

impl FileSystem {
    /// Changes attributes.
    ///
    /// Mode and times of a file with unpublished changes are published with these changes; otherwise at once.
    /// A size set through an open file is published like a write; a size set by name is published before this
    /// returns.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`]: another owner's file, or an owner other than the one shown.
    /// [`FsError::Access`] for the size of another owner's file; [`FsError::TooLarge`],
    /// [`FsError::IsDirectory`], [`FsError::Stale`].
    pub fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        set: SetAttributes,
        handle: Option<FileHandleId>,
    ) -> Result<Attributes, FsError> {
        self.run(|| {
            self.may_change()?;
            let now = now_ns();
            let modified_ns = set.modified.map(|time| match time {
                TimeToSet::Now => now,
                TimeToSet::At(time) => time,
            });
            let mode = set.mode.map(|mode| mode & 0o7777);
            if let Some(copied) = self.change_owner(caller, ino, &set, modified_ns)? {
                return Ok(copied);
            }
            if let Some(size) = set.size {
                self.resize(caller, ino, size, handle, (mode, modified_ns), now)?;
            } else if !set.is_owner_only() || self.is_mine(ino)? {
                // Also if only an owner or a time of access was set, neither of which is stored: the time of
                // change shows that the call was made.
                self.settle(caller, ino)?;
                if !self.set_here(ino, mode, modified_ns, now)? {
                    self.edit_inode(ino, move |inode| {
                        inode.mode = mode.unwrap_or(inode.mode);
                        inode.modified_ns = modified_ns.unwrap_or(inode.modified_ns);
                        Ok(())
                    })?;
                }
            } else {
                return self.getattr(caller, ino, handle);
            }
            self.attributes_after(ino)
        })
    }

    fn is_mine(&self, ino: Ino) -> Result<bool, FsError> {
        Ok(self.backend.latest().may_write(self.handle(ino)?.principal))
    }

    /// Sets mode and times of a file with unpublished changes, or without a name. `false`: neither is the
    /// case.
    fn set_here(
        &self,
        ino: Ino,
        mode: Option<u32>,
        modified_ns: Option<i64>,
        now_ns: i64,
    ) -> Result<bool, FsError> {
        let Some(node) = self.nodes.find(ino) else { return Ok(false) };
        let mut state = node.state();
        let NodeState { file, removed, .. } = &mut *state;
        let Some(file) = file else {
            let Some(inode) = removed else { return Ok(false) };
            inode.mode = mode.unwrap_or(inode.mode);
            inode.modified_ns = modified_ns.unwrap_or(inode.modified_ns);
            inode.changed_ns = now_ns;
            return Ok(true);
        };
        if !file.is_dirty() && file.named == NameStatus::Named {
            return Ok(false);
        }
        file.set_attributes(mode, modified_ns, now_ns);
        Ok(true)
    }

    fn resize(
        &self,
        caller: &Caller,
        ino: Ino,
        size: u64,
        handle: Option<FileHandleId>,
        (mode, modified_ns): (Option<u32>, Option<i64>),
        now_ns: i64,
    ) -> Result<(), FsError> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let set = |file: &mut FileState| {
            file.set_size(size, now_ns)?;
            if mode.is_some() || modified_ns.is_some() {
                file.set_attributes(mode, modified_ns, now_ns);
            }
            Ok(())
        };
        if let Some(handle) = handle {
            self.tokens.forget_token(caller.thread);
            let open = self.usable_file(handle)?;
            if !open.flags.write {
                return Err(FsError::Invalid("the file is not open for writing".into()));
            }
            let mut state = open.node.state();
            return set(state.file.as_mut().expect("an open file has content"));
        }
        self.with_file(caller, ino, |node| set(node.state().file.as_mut().expect("an open file has content")))
    }

    /// Attributes after a change that this client has just made.
    fn attributes_after(&self, ino: Ino) -> Result<Attributes, FsError> {
        let handle = self.handle(ino)?;
        let view = self.backend.latest();
        match view.inode(handle) {
            Ok(inode) => Ok(self.attributes(&*view, handle, &inode)),
            Err(FsError::NotFound) => self.gone(handle, ino).ok_or(FsError::Stale),
            Err(error) => Err(error),
        }
    }

    /// Fails unless it is a regular file.
    pub(super) fn must_be_file(kind: InodeKind) -> Result<(), FsError> {
        match kind {
            InodeKind::File => Ok(()),
            InodeKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file".into())),
        }
    }
}
