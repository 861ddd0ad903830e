//! Advisory locks: flock(2) and fcntl(2), across clients.
//!
//! Taking a lock makes the file what it is at that moment for everybody: what is unpublished here is published, and
//! what others have published is taken up, by open descriptors too. Giving one up publishes what was written under
//! it, durably, before anybody else can have it. So programs that lock see each other's changes whatever machines
//! they run on.

use super::compose::Occasion;
use super::nodes::{Node, NodeState};
use super::state::{Named, content_roots};
use super::{Caller, FileHandleId, FileSystem, OpenFile, ino_of};
use crate::engine::LockPlace;
use crate::error::FsError;
use holdfast_content::Handle;
use holdfast_protocol::locks::LockRange;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A lock, as the kernel asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// flock or fcntl.
    pub space: LockSpace,
    /// Process or open file description, as the kernel numbers them.
    pub owner: u64,
    /// The process.
    pub process: u32,
    /// Bytes.
    pub range: LockRange,
}

impl FileSystem {
    /// Takes a lock, and brings the file up to date. `Some`: somebody else holds it, and waiting was not wanted.
    ///
    /// # Errors
    /// As [`crate::Engine::lock`], and what publishing or looking at the file meets; then the lock is not held.
    pub fn lock(
        &self,
        caller: &Caller,
        handle: FileHandleId,
        lock: &Lock,
        mode: LockMode,
        wait: bool,
    ) -> Result<Option<LockHolder>, FsError> {
        self.run(|| {
            self.tokens.spend_any(caller.thread);
            let open = self.open_file(handle)?;
            let place = place_of(handle, &open.node, lock);
            if lock.space == LockSpace::Fcntl {
                open.lock_owners.lock().insert(lock.owner);
            }
            if let Some(holder) = self.backend.lock(&place, mode, wait)? {
                return Ok(Some(holder));
            }
            if let Err(error) = self.bring_up_to_date(&open.node) {
                self.backend.unlock(&place);
                return Err(error);
            }
            Ok(None)
        })
    }

    /// Who is in the way of a lock.
    ///
    /// # Errors
    /// As [`crate::Engine::test_lock`].
    pub fn test_lock(
        &self,
        handle: FileHandleId,
        lock: &Lock,
        mode: LockMode,
    ) -> Result<Option<LockHolder>, FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            self.backend.test_lock(&place_of(handle, &open.node, lock), mode)
        })
    }

    /// Publishes what was written, then gives a lock up.
    ///
    /// # Errors
    /// What publishing meets; the lock is then still held, and giving it up can be tried again.
    pub fn unlock(&self, handle: FileHandleId, lock: &Lock) -> Result<(), FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            let place = place_of(handle, &open.node, lock);
            if self.backend.holds_locks(place.file, place.space, place.owner) {
                self.publish_durably(&open.node)?;
                self.backend.unlock(&place);
            }
            Ok(())
        })
    }

    /// A process has closed the file: whatever it held of it (fcntl) is free.
    pub fn closed_by(&self, handle: FileHandleId, owner: u64) {
        let Ok(open) = self.open_file(handle) else { return };
        // When the descriptor itself ends, which is later, the process may have locked the file again by another.
        open.lock_owners.lock().remove(&owner);
        self.give_up(open.node.handle(), LockSpace::Fcntl, owner);
    }

    /// A descriptor has ended, once all is published: its own locks are free, and those of fcntl that belong to no process
    /// (F_OFD_SETLK), of which the kernel tells no end.
    pub(super) fn locks_ended(&self, handle: FileHandleId, file: Handle, owners: &BTreeSet<u64>) {
        self.give_up(file, LockSpace::Flock, handle.0);
        for &owner in owners {
            // The kernel gives the number of one that has ended to the next.
            let is_again =
                |open: &Arc<OpenFile>| open.node.handle() == file && open.lock_owners.lock().contains(&owner);
            if !self.files.lock().values().any(is_again) {
                self.give_up(file, LockSpace::Fcntl, owner);
            }
        }
    }

    fn give_up(&self, file: Handle, space: LockSpace, owner: u64) {
        if self.backend.holds_locks(file, space, owner) {
            self.backend.unlock(&LockPlace { file, space, owner, process: 0, range: LockRange::ALL });
        }
    }

    /// The server forgot a lock of a file, and somebody else took it. What was written under it must not overwrite
    /// what they wrote.
    pub(super) fn lock_lost(&self, file: Handle) {
        let Some(node) = self.nodes.find(ino_of(file)) else { return };
        let mut state = node.state();
        state.lock_lost = state.open > 0;
        tracing::error!(path = %self.path_of(&node), "a lock of this file was lost; writing to it fails until it is \
            closed, or locked again");
    }

    fn publish_durably(&self, node: &Node) -> Result<(), FsError> {
        let is_pending = node.state().file.as_ref().is_some_and(|file| file.is_pending());
        if is_pending {
            self.publish(node, Occasion::Sync)?;
            self.commit(node, Occasion::Sync)?;
        }
        Ok(())
    }

    fn bring_up_to_date(&self, node: &Node) -> Result<(), FsError> {
        self.publish(node, Occasion::Sync)?;
        let view = self.backend.fetch()?;
        let inode = match view.inode(node.handle()) {
            // It goes on without a name, for those who have it open.
            Err(FsError::NotFound) => {
                self.gone(node.handle(), node.ino);
                return Ok(());
            }
            other => other?,
        };
        let roots = content_roots(&inode);
        let pin = (!roots.is_empty()).then(|| self.backend.pin(roots));
        let is_other = {
            let mut state = node.state();
            let NodeState { file, lock_lost, .. } = &mut *state;
            let Some(file) = file else { return Ok(()) };
            *lock_lost = false;
            let is_other = file.refresh(&inode, view.position(), false);
            if is_other {
                file.pins.extend(pin);
            }
            is_other && file.named == Named::Yes
        };
        if is_other { self.invalidate_now(node.ino) } else { Ok(()) }
    }
}

/// What belongs to a descriptor goes by its number here: the kernel's is given to the next as soon as it is closed, and so
/// before its end is told.
fn place_of(handle: FileHandleId, node: &Node, lock: &Lock) -> LockPlace {
    let Lock { space, owner, process, range } = *lock;
    let owner = if space == LockSpace::Flock { handle.0 } else { owner };
    LockPlace { file: node.handle(), space, owner, process, range }
}
