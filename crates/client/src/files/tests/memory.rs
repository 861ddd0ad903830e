//! An in-memory file system that replaces the engine: a plain tree of inodes and names, one lock, and a list
//! of faults to inject. Every edit is planned twice, as the engine may do, so that edits that cannot be run
//! again fail the tests.

use super::super::{Caller, FileSystem, MountOptions, OwnerMap, WriteBack, WriteBackOptions};
use crate::backend::{
    Backend, Guard, LeasedView, LockTarget, LookHook, ReadSet, Upload, UploadKind, Upstream,
};
use crate::error::{FrozenReport, FsError, IntegrityReport};
use crate::store::WriteTarget;
use crate::store::account::Account;
use crate::tree::{Changes, Edit, MakeContent, Names, View};
use holdfast_content::{
    Block, BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, InodeKind,
    MemoryBlocks, PrincipalId, Reference, SourceError, UserId,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::locks::{Conflict, Holder, LockAttempt, LockOutcome, LockTable, SessionId};
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The principal that both clients of a world may write.
pub const SHARED: PrincipalId = PrincipalId::User(UserId::SUPERUSER);

#[derive(Clone, Default)]
struct Tree {
    position: u64,
    inodes: BTreeMap<Handle, Arc<Inode>>,
    names: BTreeMap<Handle, BTreeMap<Vec<u8>, Entry>>,
    next: BTreeMap<PrincipalId, u64>,
}

/// The state that the server would have.
pub struct World {
    pub blocks: MemoryBlocks,
    tree: Mutex<Arc<Tree>>,
    pins: Mutex<Vec<Vec<Digest>>>,
    locks: Mutex<LockTable>,
    lock_changes: Condvar,
    delegation: Mutex<Delegation>,
    recalled: Condvar,
}

/// The client that holds the whole file system, or some files of it, exclusively.
#[derive(Default)]
struct Delegation {
    holder: Option<(DeviceId, Weak<WriteBack>)>,
    /// Only these files are held.
    files: Option<BTreeSet<Handle>>,
    /// The client from which the holding is being recalled.
    recalling: Option<DeviceId>,
}

/// One client's engine.
pub struct Memory {
    pub world: Arc<World>,
    device: DeviceId,
    writes: BTreeSet<PrincipalId>,
    /// The newest tree that this client has been shown.
    seen: Mutex<Arc<Tree>>,
    pub fetches: AtomicU64,
    pub edits: AtomicU64,
    pub commits: AtomicU64,
    /// Answers to the next calls that need the server.
    pub fault: Mutex<Option<FsError>>,
    /// Answers to the next waits for commits.
    pub commit_fault: Mutex<Option<FsError>>,
    /// Answers to the next edits, after they were made.
    pub late: Mutex<Option<FsError>>,
    /// While this gate is closed, edits wait.
    pub gate: Barrier,
    /// The next operation that only reads waits at this gate.
    pub look_gate: Mutex<Option<Arc<Barrier>>>,
    before_look: OnceLock<LookHook>,
    /// Files that it has leases of, in addition to those it holds exclusively. They are never recalled.
    /// Without this it has no leases.
    pub leases: Mutex<Option<BTreeSet<Handle>>>,
    /// Runs when a view finds that another client holds this file: the fetch waits for it, and continues as a
    /// later one.
    pub meanwhile: Meanwhile,
    wants_exclusive: AtomicBool,
    account: Account,
}

pub type Meanwhile = Arc<Mutex<Option<(Handle, Box<dyn FnOnce() + Send>)>>>;

/// A gate that a test can close.
#[derive(Default)]
pub struct Barrier {
    state: Mutex<(bool, u32)>,
    changed: Condvar,
}

impl Barrier {
    pub fn close(&self) {
        self.state.lock().0 = true;
    }

    pub fn open(&self) {
        self.state.lock().0 = false;
        self.changed.notify_all();
    }

    /// Waits until a thread waits at the gate.
    pub fn somebody_waits(&self) {
        let mut state = self.state.lock();
        while state.1 == 0 {
            self.changed.wait(&mut state);
        }
    }

    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while state.0 {
            self.changed.wait(&mut state);
        }
        state.1 -= 1;
    }
}

/// A mounted client.
pub struct Client {
    pub files: Arc<FileSystem>,
    pub memory: Arc<Memory>,
    pub dir: tempfile::TempDir,
}

impl std::ops::Deref for Client {
    type Target = FileSystem;
    fn deref(&self) -> &FileSystem {
        &self.files
    }
}

pub fn caller(thread: u32) -> Caller {
    Caller { uid: 1000, gid: 1000, thread }
}

impl World {
    pub fn new() -> Arc<World> {
        let mut tree = Tree::default();
        let root = Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 0);
        tree.inodes.insert(Handle::ROOT, Arc::new(root));
        tree.names.insert(Handle::ROOT, BTreeMap::new());
        tree.next.insert(SHARED, 1024);
        Arc::new(World {
            blocks: MemoryBlocks::new(DigestKey::WELL_KNOWN),
            tree: Mutex::new(Arc::new(tree)),
            pins: Mutex::default(),
            locks: Mutex::new(LockTable::new(1, 0)),
            lock_changes: Condvar::new(),
            delegation: Mutex::default(),
            recalled: Condvar::new(),
        })
    }

    /// Gives a client the whole file system exclusively, once the earlier holder has sent its gathered
    /// changes. The client gets it with an operation of its own, whose view it has.
    pub fn delegate(&self, memory: &Memory, back: &Arc<WriteBack>) {
        self.comes(memory.device);
        let mut delegation = self.delegation.lock();
        memory.accept(self.tree.lock().clone());
        delegation.holder = Some((memory.device, Arc::downgrade(back)));
        delegation.files = None;
    }

    /// Gives a client these files exclusively.
    pub fn delegate_files(&self, memory: &Memory, back: &Arc<WriteBack>, files: &[Handle]) {
        self.delegate(memory, back);
        self.delegation.lock().files = Some(files.iter().copied().collect());
    }

    /// The client that holds the whole file system loses it without notice.
    pub fn lapse(&self) {
        self.delegation.lock().holder = None;
    }

    /// Recalls the whole file system from its holder.
    pub fn recall(&self) {
        self.comes(DeviceId(u32::MAX));
    }

    /// Called when a device is about to operate: another client that holds the whole file system gives it up
    /// first.
    fn comes(&self, device: DeviceId) {
        let mut delegation = self.delegation.lock();
        while delegation.recalling.is_some_and(|holder| holder != device) {
            self.recalled.wait(&mut delegation);
        }
        if delegation.holder.as_ref().is_none_or(|(holder, _)| *holder == device) {
            return;
        }
        let (holder, back) = delegation.holder.take().unwrap();
        delegation.recalling = Some(holder);
        drop(delegation);
        if let Some(back) = back.upgrade() {
            back.recalled();
        }
        self.delegation.lock().recalling = None;
        self.recalled.notify_all();
    }

    /// A client that may write `SHARED` and `also`.
    pub fn client(self: &Arc<World>, device: u32, also: &[PrincipalId]) -> Client {
        let dir = tempfile::tempdir().unwrap();
        let memory = self.memory(device, also);
        let files = FileSystem::with_engine(memory.clone(), options(dir.path())).unwrap();
        Client { files, memory, dir }
    }

    pub fn memory(self: &Arc<World>, device: u32, also: &[PrincipalId]) -> Arc<Memory> {
        Arc::new(Memory {
            world: self.clone(),
            device: DeviceId(device),
            writes: also.iter().copied().chain([SHARED]).collect(),
            seen: Mutex::new(self.tree.lock().clone()),
            fetches: AtomicU64::new(0),
            edits: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            fault: Mutex::new(None),
            commit_fault: Mutex::new(None),
            late: Mutex::new(None),
            gate: Barrier::default(),
            meanwhile: Meanwhile::default(),
            look_gate: Mutex::new(None),
            before_look: OnceLock::new(),
            leases: Mutex::new(None),
            wants_exclusive: AtomicBool::new(false),
            account: Account::default(),
        })
    }

    /// A client that may write `SHARED` and sends in the background, with its journal in `dir`.
    pub fn write_back(
        self: &Arc<World>,
        device: u32,
        dir: &std::path::Path,
    ) -> (Arc<FileSystem>, Arc<Memory>, Arc<WriteBack>) {
        self.behind(device, dir, journal_options(device, dir))
    }

    /// Like [`Self::write_back`], with these options.
    pub fn behind(
        self: &Arc<World>,
        device: u32,
        dir: &std::path::Path,
        options: WriteBackOptions,
    ) -> (Arc<FileSystem>, Arc<Memory>, Arc<WriteBack>) {
        let memory = self.memory(device, &[]);
        let back = WriteBack::start(memory.clone(), options).unwrap();
        let files = FileSystem::with_write_back(back.clone(), self::options(dir)).unwrap();
        (files, memory, back)
    }

    /// A client that may write `also` only.
    pub fn stranger(self: &Arc<World>, device: u32, also: &[PrincipalId]) -> Client {
        let dir = tempfile::tempdir().unwrap();
        let mut memory = Arc::into_inner(self.memory(device, also)).unwrap();
        memory.writes.remove(&SHARED);
        let memory = Arc::new(memory);
        let files = FileSystem::with_engine(memory.clone(), options(dir.path())).unwrap();
        Client { files, memory, dir }
    }

    /// Roots that are pinned at present.
    pub fn pinned(&self) -> usize {
        self.pins.lock().iter().map(Vec::len).sum()
    }

    /// Bytes of all stored blocks.
    pub fn stored_bytes(&self) -> usize {
        let addresses = self.blocks.addresses();
        addresses.iter().filter_map(|address| self.blocks.stored(address)).map(|block| block.body.len()).sum()
    }

    /// A directory that belongs to `principal`, made without an edit.
    pub fn plant_directory(&self, name: &[u8], principal: PrincipalId) {
        let mut tree = self.tree.lock();
        let tree = Arc::make_mut(&mut tree);
        let handle = Handle { principal, number: 1 };
        tree.next.insert(principal, 1024);
        let inode = Inode::new(InodeKind::Directory, 0o775, DeviceId(0), 0);
        tree.inodes.insert(handle, Arc::new(inode));
        tree.names.insert(handle, BTreeMap::new());
        let entry = Entry { handle, kind: InodeKind::Directory };
        tree.names.get_mut(&Handle::ROOT).unwrap().insert(name.to_vec(), entry);
        tree.position += 1;
    }
}

pub fn journal_options(device: u32, dir: &std::path::Path) -> WriteBackOptions {
    WriteBackOptions {
        directory: dir.join("journal"),
        bytes_max: 1 << 30,
        salvage_dir: dir.join("salvage"),
        name: format!("device {device}"),
        gather: Duration::ZERO,
        gathers: false,
        patience: holdfast_testing::PATIENCE,
    }
}

pub fn options(dir: &std::path::Path) -> MountOptions {
    MountOptions {
        uid: 1000,
        gid: 1000,
        owners: OwnerMap::default(),
        spool_dir: dir.join("spool"),
        salvage_dir: dir.join("salvage"),
        read_only: false,
    }
}

pub fn frozen() -> FsError {
    FsError::Frozen(Arc::new(FrozenReport {
        what: "the server rolled back".into(),
        noticed_ns: 0,
        last_good_operation: 1,
        evidence: None,
        is_local: false,
        is_restored: false,
    }))
}

impl Memory {
    fn ask(&self) -> Result<(), FsError> {
        match &*self.fault.lock() {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    fn changes<'a>(&'a self, tree: &'a mut Tree) -> MemoryChanges<'a> {
        MemoryChanges { memory: self, tree }
    }

    fn accept(&self, tree: Arc<Tree>) -> Arc<dyn View> {
        let mut seen = self.seen.lock();
        if tree.position > seen.position {
            *seen = tree.clone();
        }
        self.view_of(tree)
    }

    fn view_of(&self, tree: Arc<Tree>) -> Arc<dyn View> {
        let (world, meanwhile) = (self.world.clone(), self.meanwhile.clone());
        Arc::new(MemoryView { tree: Mutex::new(tree), writes: self.writes.clone(), world, meanwhile })
    }

    pub fn wants_exclusive(&self) -> bool {
        self.wants_exclusive.load(Ordering::SeqCst)
    }

    pub fn fetch_count(&self) -> u64 {
        self.fetches.load(Ordering::SeqCst)
    }
}

fn lock_holder(conflict: &Conflict) -> LockHolder {
    LockHolder {
        device: conflict.holder.session.device,
        run: conflict.holder.session.run,
        process: conflict.process,
        range: conflict.range,
        mode: conflict.mode,
    }
}

impl Memory {
    fn session(&self) -> SessionId {
        SessionId { device: self.device, run: 1 }
    }

    fn lock_attempt(&self, place: &LockTarget, mode: Option<LockMode>, wait: bool) -> (Holder, LockAttempt) {
        let LockTarget { file, space, owner, process, range } = *place;
        let attempt = LockAttempt { file, space, range, mode, process, reclaim: false, wait };
        (Holder { session: self.session(), owner }, attempt)
    }
}

impl Backend for Memory {
    fn fetch(&self, _: ReadSet) -> Result<Arc<dyn View>, FsError> {
        let _looking = self.before_look.get().map(|begin| begin()).transpose()?;
        self.fetches.fetch_add(1, Ordering::SeqCst);
        let gate = self.look_gate.lock().take();
        gate.inspect(|gate| gate.pass());
        self.ask()?;
        self.world.comes(self.device);
        let tree = self.world.tree.lock().clone();
        Ok(self.accept(tree))
    }

    fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<dyn View>, FsError> {
        self.edits.fetch_add(1, Ordering::SeqCst);
        self.gate.pass();
        self.ask()?;
        self.world.comes(self.device);
        let mut tree = self.world.tree.lock();
        let mut planned = Tree::clone(&tree);
        // Planned once without effect, on a base that is then refused; the result must not matter.
        let mut vain = planned.clone();
        vain.next.values_mut().for_each(|next| *next += 7);
        let _ = edit.lock().plan(&mut self.changes(&mut vain));
        edit.lock().plan(&mut self.changes(&mut planned))?;
        planned.position += 1;
        *tree = Arc::new(planned);
        edit.lock().ordered();
        match &*self.late.lock() {
            Some(error) => Err(error.clone()),
            None => Ok(self.accept(tree.clone())),
        }
    }

    fn latest(&self) -> Arc<dyn View> {
        self.view_of(self.seen.lock().clone())
    }

    fn leased(&self, files: &[Handle]) -> Option<LeasedView> {
        let leases = self.leases.lock();
        let leases = leases.as_ref()?;
        let is_held = |file: &Handle| leases.contains(file) || self.holds_exclusively(&[*file]);
        files.iter().all(is_held).then(|| LeasedView { view: self.latest(), stamp: 0 })
    }

    fn source(&self) -> Arc<dyn BlockSource + Send + Sync> {
        Arc::new(WorldBlocks(self.world.clone()))
    }

    fn upload(&self, _: WriteTarget, _: UploadKind) -> Box<dyn Upload + '_> {
        Box::new(MemoryUpload(self))
    }

    fn flush_commits(&self) -> Result<(), FsError> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        match &*self.commit_fault.lock() {
            Some(fault) => Err(fault.clone()),
            None => self.ask(),
        }
    }

    fn pin(&self, roots: Vec<Digest>) -> Guard {
        self.world.pins.lock().push(roots.clone());
        Box::new(Unpin(self.world.clone(), roots))
    }

    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError> {
        let (holder, attempt) = self.lock_attempt(place, Some(mode), wait);
        let mut table = self.world.locks.lock();
        loop {
            table.renew_session(holder.session, 0);
            match table.request(holder, &attempt, 0) {
                LockOutcome::Granted => return Ok(None),
                LockOutcome::Conflict(_) if wait => self.world.lock_changes.wait(&mut table),
                LockOutcome::Conflict(conflict) => return Ok(Some(lock_holder(&conflict))),
                other => panic!("{other:?}"),
            }
        }
    }

    fn unlock(&self, place: &LockTarget) -> Result<(), FsError> {
        let (holder, attempt) = self.lock_attempt(place, None, false);
        self.world.locks.lock().request(holder, &attempt, 0);
        self.world.lock_changes.notify_all();
        Ok(())
    }
}

impl Upstream for Memory {
    fn me(&self) -> (DeviceId, UserId) {
        (self.device, UserId::SUPERUSER)
    }

    fn account(&self) -> &Account {
        &self.account
    }

    fn membership(&self) -> Arc<holdfast_content::Membership> {
        let nobody = holdfast_crypto::SigningKey::from_seed(&[9; 32]).public();
        Arc::new(holdfast_content::Membership::founding("test", "root", nobody))
    }

    fn content_error(&self, handle: Handle, _: String, _: &Inode, error: ContentError) -> FsError {
        match error {
            ContentError::Source(SourceError::Missing(_)) => FsError::Stale,
            ContentError::Source(SourceError::Unreachable(_, why)) => FsError::Unreachable(why),
            other => FsError::Integrity(Arc::new(IntegrityReport {
                file: Some(handle),
                path: None,
                what: other.to_string(),
                missing: Default::default(),
                noticed_ns: 0,
                last_good_operation: 1,
                evidence: None,
            })),
        }
    }

    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError> {
        let (holder, attempt) = self.lock_attempt(place, Some(mode), false);
        Ok(self.world.locks.lock().test(holder, &attempt, 0).map(|conflict| lock_holder(&conflict)))
    }

    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.world.locks.lock().holds(Holder { session: self.session(), owner }, file, space)
    }

    fn is_reachable(&self) -> bool {
        !matches!(&*self.fault.lock(), Some(FsError::Unreachable(_)))
    }

    fn before_look(&self, hook: LookHook) {
        let _ = self.before_look.set(hook);
    }

    fn want_exclusive(&self, wanted: bool) {
        self.wants_exclusive.store(wanted, Ordering::SeqCst);
    }

    fn exclusive(&self) -> Option<Duration> {
        self.holds_exclusively(&[]).then_some(Duration::from_secs(10))
    }

    fn has_delegation(&self) -> bool {
        self.holds_exclusively(&[]) && self.world.delegation.lock().files.is_none()
    }

    fn holds_exclusively(&self, files: &[Handle]) -> bool {
        let delegation = self.world.delegation.lock();
        let has = |file: &Handle| delegation.files.as_ref().is_none_or(|held| held.contains(file));
        delegation.holder.as_ref().is_some_and(|(holder, _)| *holder == self.device) && files.iter().all(has)
    }
}

struct Unpin(Arc<World>, Vec<Digest>);

impl Drop for Unpin {
    fn drop(&mut self) {
        let mut pins = self.0.pins.lock();
        let at = pins.iter().position(|roots| *roots == self.1).unwrap();
        pins.swap_remove(at);
    }
}

struct WorldBlocks(Arc<World>);

impl BlockSource for WorldBlocks {
    fn digest_key(&self) -> DigestKey {
        BlockSource::digest_key(&self.0.blocks)
    }

    fn fetch(
        &self,
        reference: &Reference,
        kind: holdfast_content::BlockKind,
    ) -> Result<Arc<Block>, SourceError> {
        self.0.blocks.fetch(reference, kind)
    }
}

struct MemoryUpload<'a>(&'a Memory);

impl BlockSink for MemoryUpload<'_> {
    fn digest_key(&self) -> DigestKey {
        DigestKey::WELL_KNOWN
    }

    fn put(&mut self, block: Block) -> Reference {
        (&self.0.world.blocks).put(block)
    }
}

impl Upload for MemoryUpload<'_> {
    fn finish(self: Box<Self>, _: Option<&Content>) -> Result<Guard, FsError> {
        self.0.ask()?;
        Ok(Box::new(()))
    }
}

struct MemoryView {
    tree: Mutex<Arc<Tree>>,
    writes: BTreeSet<PrincipalId>,
    world: Arc<World>,
    meanwhile: Meanwhile,
}

impl MemoryView {
    fn tree(&self) -> Arc<Tree> {
        self.tree.lock().clone()
    }
}

impl Tree {
    fn names(&self, directory: Handle) -> Result<&BTreeMap<Vec<u8>, Entry>, FsError> {
        let inode = self.inodes.get(&directory).ok_or(FsError::NotFound)?;
        match inode.kind {
            InodeKind::Directory => Ok(&self.names[&directory]),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn list(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.names(directory)?.range::<[u8], _>((from, Bound::Unbounded));
        Ok(names.take(limit).map(|(name, entry)| (name.clone(), *entry)).collect())
    }
}

impl View for MemoryView {
    fn position(&self) -> u64 {
        self.tree().position
    }

    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        let theirs = self.meanwhile.lock().take_if(|(awaited, _)| *awaited == handle);
        if let Some((_, act)) = theirs {
            act();
            *self.tree.lock() = self.world.tree.lock().clone();
        }
        self.tree().inodes.get(&handle).cloned().ok_or(FsError::NotFound)
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        Ok(self.tree().names(directory)?.get(name).copied())
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.tree().list(directory, after, limit)
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.writes.contains(&principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        self.tree().next.keys().copied().collect()
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        principal.to_string()
    }
}

struct MemoryChanges<'a> {
    memory: &'a Memory,
    tree: &'a mut Tree,
}

impl MemoryChanges<'_> {
    fn check(&self, principal: PrincipalId) -> Result<(), FsError> {
        match self.may_write(principal) {
            true => Ok(()),
            false => Err(FsError::Access(principal.to_string())),
        }
    }
}

impl Changes for MemoryChanges<'_> {
    fn me(&self) -> DeviceId {
        self.memory.device
    }

    fn user(&self) -> UserId {
        UserId::SUPERUSER
    }

    fn inode(&mut self, handle: Handle) -> Result<Arc<Inode>, FsError> {
        self.tree.inodes.get(&handle).cloned().ok_or(FsError::NotFound)
    }

    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        Ok(self.tree.names(directory)?.get(name).copied())
    }

    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.tree.list(directory, after, limit)
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        self.memory.writes.contains(&principal)
    }

    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError> {
        self.check(principal)?;
        let next = self.tree.next.entry(principal).or_insert(1024);
        *next += 1;
        Ok(Handle { principal, number: *next - 1 })
    }

    fn set_inode(&mut self, handle: Handle, inode: Inode) -> Result<(), FsError> {
        self.check(handle.principal)?;
        inode.check().map_err(|why| FsError::Invalid(why.to_string()))?;
        if inode.kind == InodeKind::Directory {
            self.tree.names.entry(handle).or_default();
        }
        self.tree.inodes.insert(handle, Arc::new(inode));
        Ok(())
    }

    fn remove_inode(&mut self, handle: Handle) -> Result<(), FsError> {
        self.check(handle.principal)?;
        self.tree.names.remove(&handle);
        self.tree.inodes.remove(&handle);
        Ok(())
    }

    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        now_ns: i64,
    ) -> Result<(), FsError> {
        self.check(directory.principal)?;
        self.tree.names(directory)?;
        let names = self.tree.names.get_mut(&directory).unwrap();
        match entry {
            Some(entry) => names.insert(name.to_vec(), entry),
            None => names.remove(name),
        };
        let inode = Arc::make_mut(self.tree.inodes.get_mut(&directory).unwrap());
        (inode.modified_ns, inode.changed_ns) = (now_ns, now_ns);
        Ok(())
    }

    fn make_content(&mut self, _: Handle, make: MakeContent<'_>) -> Result<Content, FsError> {
        let blocks = &self.memory.world.blocks;
        make(blocks, &mut { blocks }).map_err(|error| FsError::Invalid(error.to_string()))
    }
}
