//! The backend interface of write-back: answers programs in place of the engine behind it.

use super::super::state::content_roots;
use super::{UNLOCK_PATIENCE, WriteBack};
use crate::backend::{Backend, Guard, LeasedView, LockTarget, ReadSet, Upload, UploadKind};
use crate::error::FsError;
use crate::store::WriteTarget;
use crate::tree::{Edit, View};
use holdfast_content::{BlockSource, Handle, Inode};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{LockHolder, LockMode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

impl Backend for WriteBack {
    fn fetch(&self, reads: ReadSet) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.fetch_gathering(reads),
            false => self.shared.fetch(),
        }
    }

    fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<dyn View>, FsError> {
        match self.shared.options.gathers {
            true => self.shared.gather(edit)?,
            false => self.shared.modify(&edit)?,
        }
        Ok(self.shared.view())
    }

    fn latest(&self) -> Arc<dyn View> {
        self.shared.accept(self.shared.inner.latest());
        self.shared.view()
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

    fn upload(&self, about: WriteTarget, kind: UploadKind) -> Box<dyn Upload + '_> {
        match self.shared.options.gathers {
            true => Box::new(self.shared.gathering_sink(about, kind)),
            false => Box::new(self.shared.sink()),
        }
    }

    fn prepare_read(&self, file: Handle, path: &[u8], inode: &Inode) {
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.prepare_read(file, path, inode);
        }
    }

    fn note_version(&self, file: Handle, path: Vec<u8>, inode: &Inode) {
        // Content that is only in the journal is noted when it is sent.
        if !content_roots(inode).iter().any(|root| self.shared.journal.contains(root)) {
            self.shared.inner.note_version(file, path, inode);
        }
    }

    fn room(&self, bytes: u64) -> Result<(), FsError> {
        if self.shared.room_left().is_some_and(|left| left <= bytes) {
            return Err(FsError::NoSpace);
        }
        self.shared.inner.room(bytes)
    }

    fn room_left(&self) -> Option<u64> {
        self.shared.room_left()
    }

    /// Waits until edits are durable: in the journal or, on a mount that only gathers, at the server.
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

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        let here = self.shared.journal.hold(&roots);
        // The server cannot pin blocks that it does not have yet.
        let there: Vec<Digest> =
            roots.into_iter().filter(|root| !self.shared.journal.contains(root)).collect();
        let there = (!there.is_empty()).then(|| self.shared.inner.pin(there));
        Box::new((here, there))
    }

    /// A program that takes a lock must see what others wrote under it, and others must see what was written
    /// here before.
    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        if self.shared.options.gathers {
            self.shared.drain()?;
            return self.shared.inner.lock(place, mode, wait);
        }
        self.settled()?;
        let held = self.shared.inner.lock(place, mode, wait)?;
        if held.is_none() {
            self.shared.accept(self.shared.inner.fetch(ReadSet::everything())?);
        }
        Ok(held)
    }

    fn unlock(&self, place: &LockTarget) -> Result<(), FsError> {
        let patience = if self.shared.is_server_away() { Duration::ZERO } else { UNLOCK_PATIENCE };
        match self.shared.settle(patience) {
            Ok(true) => {}
            // Only the waiting was interrupted: the lock must not be released before the data written under
            // it is at the server.
            Err(FsError::Interrupted) => return Err(FsError::Interrupted),
            // While the server is away, it lets this machine's locks expire anyway. What was written under
            // the lock is compared with the server's state before it is made there.
            _ => tracing::warn!("a lock is given up before what was written under it is at the server"),
        }
        self.shared.inner.unlock(place)
    }
}

impl WriteBack {
    /// Waits until every edit is at the server; fails if that cannot be reached.
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
