//! Advisory locks, flock(2) and fcntl(2), across clients.
//!
//! Taking a lock brings the file up to date: what is unpublished here is published, and what other clients
//! have published is taken over, also by open descriptors. Giving up a lock first publishes, durably, what
//! was written under it; only then can another owner take it. So programs that use locks see each other's
//! changes, on whatever machines they run.

use super::compose::PublishReason;
use super::nodes::{Node, NodeState};
use super::state::{NameStatus, content_roots};
use super::{Caller, FileHandleId, FileSystem, OpenFile, ino_of};
use crate::backend::ReadSet;
use crate::engine::LockTarget;
use crate::error::FsError;
use holdfast_content::Handle;
use holdfast_protocol::locks::LockRange;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lock, as the kernel requests it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Whether the lock was taken by `flock` or by `fcntl`.
    pub space: LockSpace,
    /// Process or open file description, by the number the kernel gives it.
    pub owner: u64,
    /// Number of the process that takes the lock.
    pub process: u32,
    /// The bytes to lock.
    pub range: LockRange,
}

/// Bytes of a file `NAME-shm` that SQLite locks. All programs that have a database in WAL mode open hold a
/// shared lock on the last of them. (SQLite's source: UNIX_SHM_BASE, UNIX_SHM_DMS.)
const SHARED_MEMORY_LOCKS: RangeInclusive<u64> = 120..=128;
/// End of the name of SQLite's shared-memory files.
const SHARED_MEMORY_NAME: &[u8] = b"-shm";
/// Most shared-memory files that are remembered as refused.
const SHARED_MEMORY_REFUSED_MAX: usize = 100;
/// How long such refusals are shown in the status.
const SHARED_MEMORY_SHOWN: Duration = Duration::from_secs(3600);
/// Owner, instead of a process, of the lock that shows other mounts that this one has a shared-memory file
/// open.
const MOUNT_OWNER: u64 = u64::MAX;
/// The byte of the file that is locked for this, far after all bytes that SQLite uses.
const MOUNT_BYTE: u64 = 1 << 62;

impl FileSystem {
    /// Takes a lock, and brings the file up to date. `Some`: another owner holds it, and the caller did not
    /// want to wait.
    ///
    /// # Errors
    /// As [`crate::Engine::lock`], and those of publishing or reading the file; then the lock is not held.
    pub fn lock(
        &self,
        caller: &Caller,
        handle: FileHandleId,
        lock: &Lock,
        mode: LockMode,
        wait: bool,
    ) -> Result<Option<LockHolder>, FsError> {
        self.run(|| {
            self.tokens.forget_token(caller.thread);
            let open = self.open_file(handle)?;
            let place = place_of(handle, &open.node, lock);
            if self.is_shared_memory(&open.node, lock)
                && let Some(holder) = self.have_alone(&open.node)?
            {
                return Ok(Some(holder));
            }
            if lock.space == LockSpace::Fcntl {
                open.lock_owners.lock().insert(lock.owner);
            }
            if let Some(holder) = self.backend.lock(&place, mode, wait)? {
                return Ok(Some(holder));
            }
            if let Err(error) = self.bring_up_to_date(&open.node) {
                // The lock is given up, since nothing was written under it.
                let _ = self.backend.unlock(&place);
                return Err(error);
            }
            Ok(None)
        })
    }

    /// Whether SQLite is about to map the shared memory of a database in WAL mode. What is written to a
    /// mapping is seen only by programs of this mount; with two mounts the database would become malformed.
    fn is_shared_memory(&self, node: &Node, lock: &Lock) -> bool {
        lock.space == LockSpace::Fcntl
            && SHARED_MEMORY_LOCKS.contains(&lock.range.start)
            && SHARED_MEMORY_LOCKS.contains(&lock.range.last)
            && self.nodes.path(node.ino).ends_with(SHARED_MEMORY_NAME)
    }

    /// Reserves a file for this mount for as long as it is open here. `Some`: another mount has it open.
    fn have_alone(&self, node: &Node) -> Result<Option<LockHolder>, FsError> {
        let held = self.backend.lock(&mount_place(node.handle()), LockMode::Exclusive, false)?;
        let path = self.path_of(node);
        let mut refused = self.shared_memory_refused.lock();
        refused.retain(|(_, when)| when.elapsed() < SHARED_MEMORY_SHOWN);
        let known = refused.iter().position(|(known, _)| *known == path);
        if let Some(known) = known {
            refused.remove(known);
        }
        if held.is_some() {
            if known.is_none() {
                tracing::error!("{}", shared_memory_words(&path));
            }
            refused.truncate(SHARED_MEMORY_REFUSED_MAX - 1);
            refused.push_front((path, Instant::now()));
        }
        Ok(held)
    }

    /// The lines of the status about databases that could not be opened because another mount has them open.
    pub(super) fn shared_memory_refusals(&self) -> Vec<String> {
        let refused = self.shared_memory_refused.lock();
        let recent = refused.iter().filter(|(_, when)| when.elapsed() < SHARED_MEMORY_SHOWN);
        recent.map(|(path, _)| format!("REFUSED: {}", shared_memory_words(path))).collect()
    }

    /// The holder that prevents a lock, if any.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Access`].
    pub fn test_lock(
        &self,
        handle: FileHandleId,
        lock: &Lock,
        mode: LockMode,
    ) -> Result<Option<LockHolder>, FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            self.engine.test_lock(&place_of(handle, &open.node, lock), mode)
        })
    }

    /// Publishes what was written, then gives up a lock.
    ///
    /// # Errors
    /// Those of publishing; then the lock is still held, and giving it up can be tried again.
    pub fn unlock(&self, handle: FileHandleId, lock: &Lock) -> Result<(), FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            let place = place_of(handle, &open.node, lock);
            if self.engine.holds_locks(place.file, place.space, place.owner) {
                self.publish_durably(&open.node)?;
                self.backend.unlock(&place)?;
            }
            Ok(())
        })
    }

    /// Called when a process has closed the file: its fcntl locks on it are given up, once what was written
    /// is published. If that fails, or is interrupted since the process is being killed, the locks are given
    /// up with the descriptor.
    pub fn closed_by(&self, handle: FileHandleId, owner: u64) {
        let Ok(open) = self.open_file(handle) else { return };
        let file = open.node.handle();
        let given_up = self.run(|| {
            if self.engine.holds_locks(file, LockSpace::Fcntl, owner) {
                self.publish_durably(&open.node)?;
                self.give_up(file, LockSpace::Fcntl, owner)?;
            }
            Ok(())
        });
        // When the descriptor itself ends, which is later, the process may have locked the file again through
        // another one.
        match given_up {
            Ok(()) => open.lock_owners.lock().remove(&owner),
            Err(_) => open.lock_owners.lock().insert(owner),
        };
    }

    /// Called when a descriptor has ended and everything is published: gives up its own locks, and those
    /// fcntl locks that belong to no process (F_OFD_SETLK), whose end the kernel does not report.
    pub(super) fn locks_ended(&self, handle: FileHandleId, file: Handle, owners: &BTreeSet<u64>) {
        self.give_up_ended(file, LockSpace::Flock, handle.0);
        if !self.files.lock().values().any(|open| open.node.handle() == file) {
            self.give_up_ended(file, LockSpace::Fcntl, MOUNT_OWNER);
        }
        for &owner in owners {
            // The kernel gives the number of an ended owner to the next one.
            let is_again =
                |open: &Arc<OpenFile>| open.node.handle() == file && open.lock_owners.lock().contains(&owner);
            if !self.files.lock().values().any(is_again) {
                self.give_up_ended(file, LockSpace::Fcntl, owner);
            }
        }
    }

    /// Gives up the locks of an owner that has ended. No later call would do it.
    fn give_up_ended(&self, file: Handle, space: LockSpace, owner: u64) {
        if let Err(error) = self.give_up(file, space, owner) {
            tracing::warn!(%error, "the locks of a descriptor that has ended are not given up");
        }
    }

    fn give_up(&self, file: Handle, space: LockSpace, owner: u64) -> Result<(), FsError> {
        match self.engine.holds_locks(file, space, owner) {
            true => {
                self.backend.unlock(&LockTarget { file, space, owner, process: 0, range: LockRange::ALL })
            }
            false => Ok(()),
        }
    }

    /// Called when the server forgot a lock of a file and another owner took it. What was written under the
    /// lost lock must not overwrite what the new owner wrote.
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
            self.publish(node, PublishReason::Sync)?;
            self.commit(node, PublishReason::Sync)?;
        }
        Ok(())
    }

    fn bring_up_to_date(&self, node: &Node) -> Result<(), FsError> {
        self.publish(node, PublishReason::Sync)?;
        let view = self.backend.fetch(ReadSet::of(&[node.handle()]))?;
        let inode = match view.inode(node.handle()) {
            // The file continues without a name, for the programs that have it open.
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
            is_other && file.named == NameStatus::Named
        };
        if is_other { self.invalidate_now(node.ino) } else { Ok(()) }
    }
}

fn mount_place(file: Handle) -> LockTarget {
    let range = LockRange { start: MOUNT_BYTE, last: MOUNT_BYTE };
    LockTarget { file, space: LockSpace::Fcntl, owner: MOUNT_OWNER, process: 0, range }
}

/// The message about a database that is in use on another machine.
fn shared_memory_words(path: &str) -> String {
    format!(
        "{path}: a SQLite database in WAL mode needs memory that all its processes share, so they must be on one machine, \
         and another has it open: \"database is locked\" until it closes it. With a rollback journal (PRAGMA \
         journal_mode=DELETE) all machines can use it"
    )
}

/// The target of a lock. A lock that belongs to a descriptor is identified by this client's number of the
/// descriptor: the kernel gives its own number to the next descriptor as soon as one is closed, before it
/// reports the end.
fn place_of(handle: FileHandleId, node: &Node, lock: &Lock) -> LockTarget {
    let Lock { space, owner, process, range } = *lock;
    let owner = if space == LockSpace::Flock { handle.0 } else { owner };
    LockTarget { file: node.handle(), space, owner, process, range }
}
