//! The backend that `files` uses when changes are written back later.

use super::super::backend::{Backend, Guard, LeasedView, PathOf, Plan, Upload, View};
use super::super::state::content_roots;
use super::super::{Ino, ReadAheadFile};
use super::{UNLOCK_PATIENCE, WriteBack};
use crate::engine::{LockTarget, Notice, PastState};
use crate::error::FsError;
use crate::store::{TransferMode, WriteTarget};
use holdfast_content::{BlockSource, ContentError, DeviceId, Handle, Inode, Membership, UserId};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

impl Backend for WriteBack {
    fn fetch(&self) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.fetch_gathering(&[]),
            false => self.shared.fetch(),
        }
    }

    fn fetch_of(&self, files: &[Handle]) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.fetch_gathering(files),
            false => self.shared.fetch(),
        }
    }

    fn modify(&self, plan: Arc<Mutex<dyn Plan>>) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.gather(plan)?,
            false => self.shared.modify(&plan)?,
        }
        Ok(self.shared.view())
    }

    fn latest(&self) -> Arc<dyn View> {
        self.shared.accept(self.shared.inner.latest());
        self.shared.view()
    }

    fn make_room(&self, bytes: u64) -> bool {
        self.shared.inner.make_room(bytes)
    }

    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        self.shared.source()
    }

    fn leased(&self, files: &[Handle]) -> Option<LeasedView> {
        let LeasedView { view, stamp } = self.shared.inner.leased(&self.shared.not_fresh(files))?;
        self.shared.accept(view);
        Some(LeasedView { view: self.shared.view(), stamp })
    }

    fn leased_for(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        self.shared.inner.leased_for(stamp, &self.shared.not_fresh(files))
    }

    fn holds_leases(&self, files: &[Handle]) -> bool {
        self.shared.inner.holds_leases(&self.shared.not_fresh(files))
    }

    fn want_lease(&self, file: Handle) {
        self.shared.inner.want_lease(file);
    }

    fn want_lease_ahead(&self, file: Handle) {
        self.shared.inner.want_lease_ahead(file);
    }

    fn upload(&self, about: WriteTarget) -> Box<dyn Upload + '_> {
        match self.shared.options.gathers {
            true => Box::new(self.shared.gathering_sink(about, false)),
            false => Box::new(self.shared.sink()),
        }
    }

    fn upload_awaited(&self, about: WriteTarget) -> Box<dyn Upload + '_> {
        match self.shared.options.gathers {
            true => Box::new(self.shared.gathering_sink(about, true)),
            false => Box::new(self.shared.sink()),
        }
    }

    fn transfer_mode(&self) -> TransferMode {
        self.shared.inner.transfer_mode()
    }

    fn prepare_read(&self, file: Handle, path: &[u8], inode: &Inode) {
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.prepare_read(file, path, inode);
        }
    }

    fn read_ahead(&self, files: &[ReadAheadFile]) {
        self.shared.inner.read_ahead(files);
    }

    fn note_version(&self, file: Handle, path: Vec<u8>, inode: &Inode) {
        // Content that is only in the journal is noted when it is sent.
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.note_version(file, path, inode);
        }
    }

    fn ahead_bytes(&self) -> u64 {
        self.shared.inner.ahead_bytes()
    }

    fn has_read(&self, ino: Ino, bytes: usize) {
        self.shared.inner.has_read(ino, bytes);
    }

    fn room(&self, bytes: u64) -> Result<(), FsError> {
        if self.shared.room_left().is_some_and(|left| left <= bytes) {
            return Err(FsError::NoSpace);
        }
        self.shared.inner.room(bytes)
    }

    fn quota(&self) -> Option<Usage> {
        self.shared.inner.quota()
    }

    fn has_written(&self, ino: Ino, bytes: usize) {
        self.shared.inner.has_written(ino, bytes);
    }

    fn membership(&self) -> Arc<Membership> {
        self.shared.inner.membership()
    }

    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        self.shared.inner.past_states()
    }

    fn past(&self, state: &PastState) -> Result<Arc<dyn View>, FsError> {
        self.shared.inner.past(state)
    }

    fn room_left(&self) -> Option<u64> {
        self.shared.room_left()
    }

    fn device(&self) -> DeviceId {
        self.shared.inner.device()
    }

    fn user(&self) -> UserId {
        self.shared.inner.user()
    }

    /// Durable means: in the journal, or, where edits are only gathered, at the server.
    fn flush_commits(&self) -> Result<(), FsError> {
        match self.shared.options.gathers {
            true => self.shared.flush_gathered(),
            false => self.shared.journal.sync(),
        }
    }

    fn keep_commits(&self) -> Result<(), FsError> {
        match self.shared.options.gathers {
            true => self.shared.flush_inner(),
            false => self.shared.journal.sync(),
        }
    }

    fn content_error(&self, handle: Handle, path: String, inode: &Inode, error: ContentError) -> FsError {
        self.shared.inner.content_error(handle, path, inode, error)
    }

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        let here = self.shared.journal.hold(&roots);
        // The server cannot keep what it does not have yet.
        let there: Vec<Digest> =
            roots.into_iter().filter(|root| !self.shared.journal.contains(root)).collect();
        let there = (!there.is_empty()).then(|| self.shared.inner.pin(there));
        Box::new((here, there))
    }

    /// A program that takes a lock must see what others wrote under it, and others what was written here before.
    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        if self.shared.options.gathers {
            self.shared.drain()?;
            return self.shared.inner.lock(place, mode, wait);
        }
        self.settled()?;
        let held = self.shared.inner.lock(place, mode, wait)?;
        if held.is_none() {
            self.shared.accept(self.shared.inner.fetch()?);
        }
        Ok(held)
    }

    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError> {
        self.shared.inner.test_lock(place, mode)
    }

    fn unlock(&self, place: &LockTarget) -> Result<(), FsError> {
        let patience = if self.shared.is_server_away() { Duration::ZERO } else { UNLOCK_PATIENCE };
        match self.shared.settle(patience) {
            Ok(true) => {}
            // The caller is called off, not the lock: it must not be free before what was written under it is there.
            Err(FsError::Interrupted) => return Err(FsError::Interrupted),
            // The lock lapses at the server as this machine's others do while it is away; what was written under it
            // is compared with what is there before it counts.
            _ => tracing::warn!("a lock is given up before what was written under it is at the server"),
        }
        self.shared.inner.unlock(place)
    }

    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.shared.inner.holds_locks(file, space, owner)
    }

    fn notices(&self) -> Vec<Notice> {
        self.shared.inner.notices()
    }

    fn is_reachable(&self) -> bool {
        match self.shared.options.gathers {
            true => self.shared.inner.is_reachable(),
            false => !self.shared.is_server_away(),
        }
    }

    fn tell_paths(&self, paths: PathOf) {
        self.shared.paths.write().push(paths);
    }
}

impl WriteBack {
    /// Fails unless every edit is at the server.
    pub(super) fn settled(&self) -> Result<(), FsError> {
        if self.shared.is_server_away() {
            return Err(FsError::Unreachable("locks are the server's, and it is away".to_owned()));
        }
        match self.shared.settle(UNLOCK_PATIENCE)? {
            true => Ok(()),
            false => {
                let why = "what was changed here before could not be sent in time".to_owned();
                Err(FsError::Unreachable(why))
            }
        }
    }
}
