//! Implements the interface through which files use the engine ([`crate::backend`]).

use super::{Engine, LockTarget, PastState, Pin, Snapshot};
use crate::backend::{Backend, Guard, LeasedView, LookHook, ReadSet, Upload, UploadKind, Upstream};
use crate::error::FsError;
use crate::store::account::Account;
use crate::store::{self, ReadAheadFile, TransferMode, WriteTarget};
use crate::tree::{Edit, View};
use holdfast_content::{
    Block, BlockSink, BlockSource, Content, ContentError, DeviceId, Handle, Inode, Membership, Reference,
    UserId,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

impl Backend for Engine {
    fn fetch(&self, reads: ReadSet) -> Result<Arc<dyn View>, FsError> {
        Ok(self.shared.fetch(reads)?)
    }

    fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<dyn View>, FsError> {
        Ok(Engine::modify(self, edit).inspect_err(|error| self.note_quota(error))?)
    }

    fn latest(&self) -> Arc<dyn View> {
        Engine::latest(self)
    }

    fn leased(&self, files: &[Handle]) -> Option<LeasedView> {
        let (view, stamp): (Arc<Snapshot>, u64) = Engine::leased(self, files)?;
        Some(LeasedView { view, stamp })
    }

    fn leased_for(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        Engine::leased_for(self, stamp, files)
    }

    fn holds_leases(&self, files: &[Handle]) -> bool {
        self.shared.leases.holds(files)
    }

    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        Arc::new(self.store().clone())
    }

    fn upload(&self, about: WriteTarget, _: UploadKind) -> Box<dyn Upload + '_> {
        Box::new(EngineUpload { upload: self.store().upload_of(about), engine: self })
    }

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        Box::new(Pin::new(self.pins.clone(), roots))
    }

    fn prepare_read(&self, file: Handle, path: &[u8], inode: &Inode) {
        self.store().prepare_read(&file, path, &inode.content);
    }

    fn note_version(&self, file: Handle, path: Vec<u8>, inode: &Inode) {
        self.store().note_version(file, path, &inode.content, inode.size);
    }

    fn room(&self, bytes: u64) -> Result<(), FsError> {
        Engine::room(self, bytes)
    }

    fn flush_commits(&self) -> Result<(), FsError> {
        Engine::flush_commits(self).inspect_err(|error| self.note_quota(error))
    }

    fn keep_commits(&self) -> Result<(), FsError> {
        self.settle_commits()
    }

    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        Engine::lock(self, place, mode, wait)
    }

    fn unlock(&self, place: &LockTarget) -> Result<(), FsError> {
        Engine::unlock(self, place);
        Ok(())
    }
}

impl Upstream for Engine {
    fn me(&self) -> (DeviceId, UserId) {
        Engine::me(self)
    }

    fn membership(&self) -> Arc<Membership> {
        Engine::membership(self)
    }

    fn may_read(&self) -> Result<(), FsError> {
        Engine::may_read(self)
    }

    fn may_change(&self) -> Result<(), FsError> {
        Engine::may_change(self)
    }

    fn troubles(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.notices().iter().map(|told| format!("ALARM: {told}")).collect();
        if self.is_excluded() {
            lines.push(
                "STOPPED: this device was removed from the file system, or its key was replaced".to_owned(),
            );
        }
        if self.head().is_some_and(|head| head.is_stale) {
            lines.push("STALE: no head that is new enough is vouched for by witnesses".to_owned());
        }
        if self.peers().is_some_and(|peers| peers.is_paused) {
            lines.push("PAUSED: a peer that was met is silent (`holdfast evidence peers`)".to_owned());
        }
        lines
    }

    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        Engine::past_states(self)
    }

    fn past(&self, state: &PastState) -> Result<Arc<dyn View>, FsError> {
        Ok(Engine::past(self, state)?)
    }

    fn content_error(&self, file: Handle, path: String, inode: &Inode, error: ContentError) -> FsError {
        match inode.ihash(&self.store().digest_key()) {
            Ok(ihash) => self.judge(file, path, ihash, &error),
            // An inode from the server can always be encoded; one made here that cannot be encoded is refused
            // before it is used.
            Err(misuse) => FsError::Invalid(misuse.to_string()),
        }
    }

    fn quota(&self) -> Option<Usage> {
        Engine::quota(self)
    }

    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError> {
        self.locks.test(&self.shared, place, mode)
    }

    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        Engine::holds_locks(self, file, space, owner)
    }

    fn want_lease(&self, file: Handle) {
        self.shared.leases.want(file);
    }

    fn want_lease_ahead(&self, file: Handle) {
        self.shared.leases.want_ahead(file);
    }

    fn account(&self) -> &Account {
        self.store().account()
    }

    fn transfer_mode(&self) -> TransferMode {
        self.store().transfer_mode()
    }

    fn read_ahead(&self, files: &[ReadAheadFile]) {
        self.store().read_ahead(files);
    }

    fn make_room(&self, bytes: u64) -> bool {
        self.store().make_room(bytes)
    }

    fn is_reachable(&self) -> bool {
        self.is_connected()
    }

    fn before_look(&self, hook: LookHook) {
        let _ = self.shared.before_look.set(hook);
    }

    fn want_exclusive(&self, wanted: bool) {
        Engine::want_exclusive(self, wanted);
    }

    fn exclusive(&self) -> Option<Duration> {
        let left = self.shared.leases.exclusive()?;
        self.shared.check().is_ok().then_some(left)
    }

    fn has_delegation(&self) -> bool {
        self.delegation()
    }

    fn holds_exclusively(&self, files: &[Handle]) -> bool {
        self.shared.leases.holds_exclusively(files)
    }

    fn is_contended(&self) -> bool {
        self.shared.leases.is_contended()
    }
}

struct EngineUpload<'a> {
    upload: store::Upload,
    engine: &'a Engine,
}

impl BlockSink for EngineUpload<'_> {
    fn digest_key(&self) -> DigestKey {
        self.upload.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        self.upload.put(block)
    }
}

impl Upload for EngineUpload<'_> {
    fn finish(self: Box<Self>, content: Option<&Content>) -> Result<Guard, FsError> {
        let finished = self.upload.finish_as(content);
        Ok(Box::new(finished.inspect_err(|error| self.engine.note_quota(error))?))
    }
}
