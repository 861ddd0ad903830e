//! Implements the interface that `files` needs ([`super::backend`]) by an engine.

use super::backend::{Backend, Changes, Guard, LeasedView, MakeContent, Names, Plan, Upload, View};
use super::{FileSystem, Ino, MountOptions, ReadAheadFile, WriteBack, WriteBackOptions};
use crate::engine::{Engine, LockTarget, LookHook, Notice, PastState, PastTree, Snapshot};
use crate::error::FsError;
use crate::store::{self, TransferMode, WriteTarget};
use crate::tree::{Edit, Transaction, Tree};
use holdfast_content::{
    Block, BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, Membership,
    PrincipalId, Reference, UserId,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

impl FileSystem {
    /// Serves the file system of `engine`.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub fn new(engine: Arc<Engine>, options: MountOptions) -> Result<Arc<FileSystem>, FsError> {
        FileSystem::over(&engine.clone(), Arc::new(EngineBackend { engine, is_lenient: false }), options)
    }

    /// The same, with changes kept here and sent in the background.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub fn behind(
        engine: &Arc<Engine>,
        back: Arc<WriteBack>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        FileSystem::over(engine, back, options)
    }

    fn over(
        engine: &Arc<Engine>,
        backend: Arc<dyn Backend>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        let files = FileSystem::with_backend(backend, options)?;
        if engine.head().is_some() || engine.meets_peers() {
            let _ = files.engine.set(engine.clone());
        }
        let told = Arc::downgrade(&files);
        engine.on_notice(Box::new(move |notice| {
            if let (Notice::Order(report), Some(files)) = (notice, told.upgrade()) {
                files.notice(&FsError::Frozen(report.clone()));
            }
        }));
        let told = Arc::downgrade(&files);
        engine.on_lock_lost(Box::new(move |file| {
            if let Some(files) = told.upgrade() {
                files.lock_lost(file);
            }
        }));
        let told = Arc::downgrade(&files);
        engine.on_recall(Box::new(move |dropped| {
            if let Some(files) = told.upgrade() {
                files.recalled(dropped.everything);
            }
        }));
        Ok(files)
    }
}

impl WriteBack {
    /// Sends what is made here to the file system of `engine`.
    ///
    /// # Errors
    /// [`FsError::Local`]: the journal cannot be used.
    pub fn over(engine: Arc<Engine>, options: WriteBackOptions) -> Result<Arc<WriteBack>, FsError> {
        let is_lenient = !options.gathers;
        let back = WriteBack::start(Arc::new(EngineBackend { engine: engine.clone(), is_lenient }), options)?;
        let told = Arc::downgrade(&back);
        engine.on_recall(Box::new(move |dropped| {
            if let (true, Some(back)) = (dropped.exclusive, told.upgrade()) {
                back.recalled();
            }
        }));
        Ok(back)
    }
}

struct EngineBackend {
    engine: Arc<Engine>,
    /// Views are of what is known here, for who goes on while the server is away: each that is fetched has everything that was
    /// acknowledged anywhere by then, and is not looked at again.
    is_lenient: bool,
}

struct SnapshotView {
    snapshot: Arc<Snapshot>,
    me: DeviceId,
}

impl EngineBackend {
    fn view(&self, snapshot: Arc<Snapshot>) -> Arc<dyn View> {
        let snapshot = if self.is_lenient { Arc::new(snapshot.lenient()) } else { snapshot };
        Arc::new(SnapshotView { snapshot, me: self.engine.me().0 })
    }
}

impl Backend for EngineBackend {
    fn fetch(&self) -> Result<Arc<dyn View>, FsError> {
        self.fetch_of(&[])
    }

    fn fetch_of(&self, files: &[Handle]) -> Result<Arc<dyn View>, FsError> {
        Ok(self.view(match self.is_lenient {
            true => self.engine.fetch_everything()?,
            false => self.engine.fetch_of(files)?,
        }))
    }

    fn before_look(&self, hook: LookHook) {
        self.engine.before_look(hook);
    }

    fn modify(&self, plan: Arc<Mutex<dyn Plan>>) -> Result<Arc<dyn View>, FsError> {
        let made = self.engine.modify(Arc::new(Mutex::new(PlanEdit(plan))));
        Ok(self.view(made.inspect_err(|error| self.engine.note_quota(error))?))
    }

    fn make_room(&self, bytes: u64) -> bool {
        self.engine.store().make_room(bytes)
    }

    fn latest(&self) -> Arc<dyn View> {
        self.view(self.engine.latest())
    }

    fn leased(&self, files: &[Handle]) -> Option<LeasedView> {
        let (snapshot, stamp) = self.engine.leased(files)?;
        Some(LeasedView { view: self.view(snapshot), stamp })
    }

    fn leased_for(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        self.engine.leased_for(stamp, files)
    }

    fn holds_leases(&self, files: &[Handle]) -> bool {
        self.engine.holds_leases(files)
    }

    fn is_contended(&self) -> bool {
        self.engine.is_contended()
    }

    fn want_lease(&self, file: Handle) {
        self.engine.want_lease(file);
    }

    fn want_lease_ahead(&self, file: Handle) {
        self.engine.want_lease_ahead(file);
    }

    fn exclusive(&self) -> Option<Duration> {
        self.engine.exclusive()
    }

    fn has_delegation(&self) -> bool {
        self.engine.delegation()
    }

    fn holds_exclusively(&self, files: &[Handle]) -> bool {
        self.engine.holds_exclusively(files)
    }

    fn want_exclusive(&self, wanted: bool) {
        self.engine.want_exclusive(wanted);
    }

    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        Arc::new(self.engine.store().clone())
    }

    fn upload(&self, about: WriteTarget) -> Box<dyn Upload + '_> {
        Box::new(StoreUpload { upload: self.engine.store().upload_of(about), engine: self.engine.clone() })
    }

    fn transfer_mode(&self) -> TransferMode {
        self.engine.store().transfer_mode()
    }

    fn prepare_read(&self, file: Handle, path: &[u8], inode: &Inode) {
        self.engine.store().prepare_read(&file, path, &inode.content);
    }

    fn read_ahead(&self, files: &[ReadAheadFile]) {
        self.engine.store().read_ahead(files);
    }

    fn note_version(&self, file: Handle, path: Vec<u8>, inode: &Inode) {
        self.engine.store().note_version(file, path, &inode.content, inode.size);
    }

    fn ahead_bytes(&self) -> u64 {
        self.engine.store().account().pace().ahead_bytes()
    }

    fn has_read(&self, ino: Ino, bytes: usize) {
        self.engine.store().account().read(ino.0, bytes);
    }

    fn room(&self, bytes: u64) -> Result<(), FsError> {
        self.engine.room(bytes)
    }

    fn quota(&self) -> Option<Usage> {
        self.engine.quota()
    }

    fn has_written(&self, ino: Ino, bytes: usize) {
        self.engine.store().account().written(ino.0, bytes);
    }

    fn device(&self) -> DeviceId {
        self.engine.me().0
    }

    fn user(&self) -> UserId {
        self.engine.me().1
    }

    fn flush_commits(&self) -> Result<(), FsError> {
        self.engine.flush_commits().inspect_err(|error| self.engine.note_quota(error))
    }

    fn keep_commits(&self) -> Result<(), FsError> {
        self.engine.settle_commits()
    }

    fn content_error(&self, handle: Handle, path: String, inode: &Inode, error: ContentError) -> FsError {
        match inode.ihash(&self.engine.store().digest_key()) {
            Ok(ihash) => self.engine.judge(handle, path, ihash, &error),
            // An inode that came from the server can be encoded; one of our own making that cannot is refused
            // before it is used.
            Err(misuse) => FsError::Invalid(misuse.to_string()),
        }
    }

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        Box::new(self.engine.pin(roots))
    }

    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        self.engine.lock(place, mode, wait)
    }

    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError> {
        self.engine.test_lock(place, mode)
    }

    fn unlock(&self, place: &LockTarget) -> Result<(), FsError> {
        self.engine.unlock(place);
        Ok(())
    }

    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.engine.holds_locks(file, space, owner)
    }

    fn notices(&self) -> Vec<Notice> {
        self.engine.notices()
    }

    fn is_reachable(&self) -> bool {
        self.engine.is_connected()
    }

    fn membership(&self) -> Arc<Membership> {
        self.engine.membership()
    }

    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        self.engine.past_states()
    }

    fn past(&self, state: &PastState) -> Result<Arc<dyn View>, FsError> {
        Ok(Arc::new(PastView(self.engine.past(state)?)))
    }
}

/// A past state. Nobody writes in it.
struct PastView(Arc<PastTree>);

impl View for PastView {
    fn position(&self) -> u64 {
        self.0.point().log_size
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.0.inode(handle)
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.0.entry(directory, name)
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.0.entries(directory, after, limit)
    }

    fn may_write(&self, _principal: PrincipalId) -> bool {
        false
    }

    fn principals(&self) -> Vec<PrincipalId> {
        principals_of(self.0.membership())
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        name_of(self.0.membership(), principal)
    }
}

fn principals_of(members: &Membership) -> Vec<PrincipalId> {
    let users = members.users.keys().map(|user| PrincipalId::User(*user));
    users.chain(members.groups.keys().map(|group| PrincipalId::Group(*group))).collect()
}

fn name_of(members: &Membership, principal: PrincipalId) -> String {
    let user = |user| members.users.get(&user).map(|user| user.name.clone());
    let name = match principal {
        PrincipalId::User(id) => user(id),
        PrincipalId::Group(id) => members.groups.get(&id).map(|group| group.name.clone()),
        PrincipalId::Device(id) => members.devices.get(&id).and_then(|device| user(device.user)),
        PrincipalId::Members => None,
    };
    name.unwrap_or_else(|| principal.to_string())
}

impl View for SnapshotView {
    fn position(&self) -> u64 {
        self.snapshot.sequence()
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.snapshot.inode(handle)
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.snapshot.entry(directory, name)
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.snapshot.entries(directory, after, limit)
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.snapshot.membership().may_write(self.me, principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        principals_of(&self.snapshot.membership())
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        name_of(&self.snapshot.membership(), principal)
    }
}

/// An edit of files, as the engine makes it.
pub(crate) struct PlanEdit(pub Arc<Mutex<dyn Plan>>);

impl Edit for PlanEdit {
    fn plan(&mut self, transaction: &mut Transaction<'_>) -> Result<(), FsError> {
        self.0.lock().plan(&mut TransactionChanges(transaction))
    }

    fn ordered(&mut self) {
        self.0.lock().ordered();
    }
}

struct TransactionChanges<'t, 'base>(&'t mut Transaction<'base>);

impl Changes for TransactionChanges<'_, '_> {
    fn inode(&mut self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.0.inode(handle)
    }

    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.0.entry(directory, name)
    }

    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.0.entries(directory, after, limit)
    }

    fn may_write(&mut self, principal: PrincipalId) -> bool {
        self.0.may_write(principal).is_ok()
    }

    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError> {
        self.0.allocate(principal)
    }

    fn set_inode(&mut self, handle: Handle, inode: Inode) -> Result<(), FsError> {
        self.0.set_inode(handle, inode)
    }

    fn remove_inode(&mut self, handle: Handle) -> Result<(), FsError> {
        self.0.remove_inode(handle)
    }

    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        now_ns: i64,
    ) -> Result<(), FsError> {
        self.0.set_entry(directory, name, entry, now_ns)
    }

    fn make_content(&mut self, handle: Handle, make: MakeContent<'_>) -> Result<Content, FsError> {
        self.0.make_content(handle, make)
    }
}

struct StoreUpload {
    upload: store::Upload,
    engine: Arc<Engine>,
}

impl BlockSink for StoreUpload {
    fn digest_key(&self) -> DigestKey {
        self.upload.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        self.upload.put(block)
    }
}

impl Upload for StoreUpload {
    fn finish(self: Box<Self>, content: Option<&Content>) -> Result<Guard, FsError> {
        let finished = self.upload.finish_as(content);
        Ok(Box::new(finished.inspect_err(|error| self.engine.note_quota(error))?))
    }
}
