//! The inode API: the calls that the kernel makes, through FUSE, to a mounted file system. Blocking and
//! thread-safe.
//!
//! - *Names and attributes* are answered from verified views ([`View`]). Each system call on a path gets a
//!   fresh view; [`views`] says when several requests share one. Changes of names and attributes are edits of
//!   their own. They are planned at their place in the order of operations, so that O_EXCL, rename and link
//!   counts hold across clients.
//! - *Data* is close-to-open: an open takes the content of a fresh view ([`state`]), writes go to a local
//!   spool ([`spool`]), and flush, fsync or release publish them as a whole ([`compose`], `publish`). The
//!   last publication wins.
//! - *Failures* affect one file: wrong data fails calls on that file; a failed publication is reported at
//!   close or fsync, and its bytes are kept for `salvage`. Only a wrong order of operations stops everything.
//!
//! Locks and their order: [`nodes`]. What programs may rely on: `docs/semantics.md`.

mod compose;
mod conflict_copies;
mod conflict_copy_id;
mod data;
mod directory;
mod edit;
mod leases;
mod locks;
mod lookup;
mod names;
mod nodes;
mod orphans;
mod overlay;
mod owners;
mod past;
mod program_rules;
mod publish;
mod read_ahead;
mod salvage;
mod setattr;
mod space;
mod spool;
mod start;
mod state;
mod types;
mod views;
mod write_back;
mod xattr;

#[cfg(test)]
mod tests;

pub use conflict_copies::{CONFLICT_COPIES_MAX, ConflictCopy, ConflictCopyPart};
pub use holdfast_protocol::locks::LockRange;
pub use holdfast_protocol::message::{LockHolder, LockMode, LockSpace};
pub use leases::{Forget, LeaseBasis, NAMES_LIVE, NameLife};
pub use locks::Lock;
pub use owners::{OwnerMap, UnmappedOwner};
pub use past::{FOLDER, PastEntry, PastFile, PastVersion, time_name};
pub use program_rules::{OpenAdmission, OpenAttempt, OpenDecision, ProgramGuard, RULES};
pub use salvage::{SalvageReport, SalvagedFile};
pub use space::seek_in;
pub use state::allocated;
pub(crate) use state::content_digest;
pub use types::*;
pub use write_back::{ConflictReport, GATHER, WriteBack, WriteBackOptions, WriteBackStatus};
pub(crate) use write_back::{
    EntryChange, InodeChange, JournalInode, NetChange, Outcome, Record, Replay, ReplayKind, Sender,
};

use crate::backend::{Backend, ReadSet, Upstream};
use crate::error::{FrozenReport, FsError};
use crate::interrupt;
use crate::tree::View;
use directory::OpenDirectory;
use holdfast_content::{Handle, Inode, InodeKind, NAME_BYTES_MAX};
use nodes::{Node, NodeState, Nodes, Pages};
use parking_lot::Mutex;
use spool::SpoolDirectory;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use views::{FetchedView, REQUEST_AGE_MAX, RecentView, Tokens};

/// Owner shown for files that the mounting user may not write.
pub const NOBODY: u32 = 65534;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Owner shown for files that the mounting user may write.
    pub uid: u32,
    /// The group that this mount shows for the user's files.
    pub gid: u32,
    /// The local users and groups that represent users and groups of the file system.
    pub owners: OwnerMap,
    /// Directory of unpublished bytes; this process must be its only user.
    pub spool_dir: PathBuf,
    /// Directory where unpublished bytes are saved when they cannot be published.
    pub salvage_dir: PathBuf,
    /// Whether all changes are refused.
    pub read_only: bool,
}

/// Called, without any lock held, with an inode whose pages the kernel should drop. If there is a sender, it
/// is to be used once the kernel has dropped them.
pub type Invalidate = Box<dyn Fn(Ino, Option<std::sync::mpsc::Sender<()>>) + Send + Sync>;

/// A mounted file system.
pub struct FileSystem {
    /// What serves the calls of programs: the engine, or a write-back in front of it.
    backend: Arc<dyn Backend>,
    /// The engine, for calls that do not go through a write-back.
    engine: Arc<dyn Upstream>,
    options: MountOptions,
    nodes: Nodes,
    tokens: Tokens,
    spool: SpoolDirectory,
    files: Mutex<HashMap<FileHandleId, Arc<OpenFile>>>,
    directories: Mutex<HashMap<FileHandleId, Arc<OpenDirectory>>>,
    next_handle: AtomicU64,
    frozen: OnceLock<Arc<FrozenReport>>,
    /// The attributes of the root that were shown last.
    root_shown: Mutex<Option<Attributes>>,
    saving: AtomicBool,
    /// Taken by each salvage, before all other locks.
    salvaging: Mutex<()>,
    invalidate: OnceLock<Invalidate>,
    kernel: leases::Kernel,
    read_ahead: read_ahead::ReadAhead,
    pasts: past::PastNodes,
    /// Asked before files with rules for programs are opened.
    guard: OnceLock<Arc<dyn ProgramGuard>>,
    /// Shared-memory files that could not be opened here because another mount has them open, each with the
    /// time of the last refusal; the latest first.
    shared_memory_refused: Mutex<VecDeque<(String, Instant)>>,
    this: Weak<FileSystem>,
}

struct OpenFile {
    node: Arc<Node>,
    flags: OpenFlags,
    /// Offset at which the last read ended. Serves to recognise sequential reading.
    read_end: AtomicU64,
    /// Offset up to which data was fetched ahead.
    ahead: AtomicU64,
    /// Whether its content was read before. The backend is given a hint at the first read.
    is_prepared: AtomicBool,
    /// Number of bytes to fetch ahead next time.
    window: AtomicU64,
    /// Owners that have taken fcntl locks through this open file.
    lock_owners: Mutex<BTreeSet<u64>>,
    /// Set for a new file with rules: whether the program that made it may use the descriptor.
    admitted: OnceLock<Arc<dyn OpenAdmission>>,
}

impl FileSystem {
    fn start(
        engine: Arc<dyn Upstream>,
        backend: Arc<dyn Backend>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        let spool = SpoolDirectory::open(&options.spool_dir)?;
        let left = spool.leftovers().len();
        if left > 0 {
            tracing::warn!(
                files = left,
                spool = %options.spool_dir.display(),
                "an earlier run ended with unpublished data; `holdfast salvage` gets it out"
            );
        }
        Ok(Arc::new_cyclic(|this: &Weak<FileSystem>| FileSystem {
            backend,
            engine,
            options,
            nodes: Nodes::default(),
            tokens: Tokens::default(),
            spool,
            files: Mutex::default(),
            directories: Mutex::default(),
            next_handle: AtomicU64::new(1),
            frozen: OnceLock::new(),
            root_shown: Mutex::default(),
            saving: AtomicBool::new(false),
            salvaging: Mutex::new(()),
            invalidate: OnceLock::new(),
            kernel: leases::Kernel::default(),
            read_ahead: read_ahead::ReadAhead::default(),
            pasts: past::PastNodes::default(),
            guard: OnceLock::new(),
            shared_memory_refused: Mutex::default(),
            this: this.clone(),
        }))
    }

    /// The path of a file, as last found here; empty if it is not known as far as the root.
    fn known_path(&self, handle: Handle) -> Vec<u8> {
        let path = self.nodes.path(ino_of(handle));
        if path.starts_with(b"?") { Vec::new() } else { path }
    }

    /// The path of a file that was looked up here, for messages; its number if the path was forgotten.
    pub fn display_path(&self, ino: Ino) -> String {
        match self.nodes.path(ino) {
            path if path == b"?" => format!("(inode {})", ino.0),
            path => String::from_utf8_lossy(&path).into_owned(),
        }
    }

    /// Registers the hook that makes the kernel drop pages; only the first call counts. Without a hook, pages
    /// are dropped only at opens.
    pub fn on_invalidate(&self, invalidate: Invalidate) {
        let _ = self.invalidate.set(invalidate);
    }

    /// The options of this mount.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Runs one call. Refuses it if the order of operations was found wrong before, and records if this call
    /// finds it wrong.
    fn run<T>(&self, call: impl FnOnce() -> Result<T, FsError>) -> Result<T, FsError> {
        if let Some(report) = self.frozen.get() {
            return Err(FsError::Frozen(report.clone()));
        }
        self.engine.may_read()?;
        call().inspect_err(|error| self.notice(error)).map_err(|error| match error {
            // Whatever the call was waiting for, it ended because its caller was interrupted.
            FsError::Unreachable(_) | FsError::Key(_) if interrupt::is_raised() => FsError::Interrupted,
            error => error,
        })
    }

    /// The status as text, for readers on this machine: alarms with what to do, or that there are none.
    pub fn status_text(&self) -> String {
        let mut lines = self.engine.troubles();
        lines.extend(self.shared_memory_refusals());
        if lines.is_empty() {
            lines.push("working; everything seen so far was as its writers made it".to_owned());
        }
        lines.join("\n")
    }

    /// Called with each error: at the first one that shows a wrong order of operations, starts to save
    /// unpublished data.
    fn notice(&self, error: &FsError) {
        let FsError::Frozen(report) = error else { return };
        let _ = self.frozen.set(report.clone());
        if self.saving.swap(true, Ordering::SeqCst) {
            return;
        }
        let (this, why) = (self.this.clone(), report.to_string());
        let spawned = std::thread::Builder::new().name("salvage".into()).spawn(move || {
            if let Some(this) = this.upgrade()
                && let Err(error) = this.save_unsaved(&why)
            {
                tracing::error!(%error, "unpublished data could not be saved; it stays in the spool");
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "unpublished data could not be saved; it stays in the spool");
        }
    }

    fn may_change(&self) -> Result<(), FsError> {
        if self.options.read_only {
            return Err(FsError::ReadOnly);
        }
        self.engine.may_change()
    }

    /// A fresh view, in which these files will be read.
    fn fetch(&self, files: &[Handle]) -> Result<FetchedView, FsError> {
        let at = views::now();
        Ok(FetchedView { view: self.backend.fetch(ReadSet::of(files))?, at })
    }

    /// The present view of one file: the newest accepted view if there is a lease, else a fresh one.
    fn present(&self, file: Handle) -> Result<FetchedView, FsError> {
        match self.leased(&[file]) {
            Some(fetched) => Ok(fetched),
            None => self.fetch(&[file]),
        }
    }

    /// The view for a request on `ino`: that of the LOOKUP that the same thread has just made, else the
    /// present one.
    fn view_of(&self, caller: &Caller, ino: Ino) -> Result<FetchedView, FsError> {
        match self.tokens.take(caller.thread, ino) {
            Some(RecentView::Fresh(fetched)) => Ok(fetched),
            Some(RecentView::Listing(_, found_by)) => {
                let fetched = self.fetch(&[self.handle(ino)?])?;
                self.check_places(caller, &*fetched.view, &found_by)?;
                Ok(fetched)
            }
            None => self.present(self.handle(ino)?),
        }
    }

    /// The view for a request that only looks at attributes of `ino`. The view of a recent listing serves it
    /// too.
    fn view_to_look_at(&self, caller: &Caller, ino: Ino) -> Result<FetchedView, FsError> {
        match self.tokens.take(caller.thread, ino) {
            Some(RecentView::Fresh(fetched)) => Ok(fetched),
            Some(RecentView::Listing(fetched, _))
                if views::now().saturating_duration_since(fetched.at) <= REQUEST_AGE_MAX =>
            {
                Ok(fetched)
            }
            _ => {
                let handle = self.handle(ino)?;
                match (self.leased(&[handle]), self.tokens.directory_listed_at(caller.thread, ino)) {
                    (Some(leased), _) => Ok(leased),
                    // The kernel asks for a directory's attributes again after each change in it.
                    (None, Some(at)) if self.frozen.get().is_none() => {
                        Ok(FetchedView { view: self.backend.latest(), at })
                    }
                    _ => self.fetch(&[handle]),
                }
            }
        }
    }

    /// The handle of an inode number that came from the kernel.
    fn handle(&self, ino: Ino) -> Result<Handle, FsError> {
        if ino.is_past() {
            return Err(FsError::ReadOnly);
        }
        match self.nodes.find(ino) {
            Some(node) => Ok(node.handle()),
            None => handle_of(ino),
        }
    }

    /// Whether a program here has a file open, or some of it is not published.
    pub fn is_in_use(&self, file: Handle) -> bool {
        self.nodes.of(ino_of(file), file).iter().any(|node| {
            let state = node.state();
            state.open > 0 || state.file.is_some()
        })
    }

    fn open_file(&self, handle: FileHandleId) -> Result<Arc<OpenFile>, FsError> {
        let unknown = || FsError::Invalid("the file is not open".into());
        self.files.lock().get(&handle).cloned().ok_or_else(unknown)
    }

    /// The open file, for reading or changing its content, if its opener may use it.
    fn usable_file(&self, handle: FileHandleId) -> Result<Arc<OpenFile>, FsError> {
        let open = self.open_file(handle)?;
        match open.admitted.get() {
            Some(admitted) if !admitted.is_given() => {
                Err(FsError::Access("the rules of the file do not let its opener in".into()))
            }
            _ => Ok(open),
        }
    }

    fn new_handle(&self) -> FileHandleId {
        FileHandleId(self.next_handle.fetch_add(1, Ordering::Relaxed))
    }

    /// Tells the kernel to drop its pages of a file.
    fn invalidate(&self, ino: Ino) {
        if let Some(invalidate) = self.invalidate.get() {
            invalidate(ino, None);
        }
    }

    /// Tells the kernel to drop a file's pages, and waits until it has.
    fn invalidate_now(&self, ino: Ino) -> Result<(), FsError> {
        let Some(invalidate) = self.invalidate.get() else { return Ok(()) };
        let (done, told) = std::sync::mpsc::channel();
        invalidate(ino, Some(done));
        match interrupt::receive(&told) {
            None if interrupt::is_raised() => Err(FsError::Interrupted),
            // Also if the mount has ended: then there are no pages any more.
            _ => Ok(()),
        }
    }

    /// The attributes in a view that `stat` shows, where this client has nothing newer.
    fn published_attributes(&self, view: &dyn View, handle: Handle, inode: &Inode) -> Attributes {
        let (uid, gid) = self.owner_shown(handle.principal, view.may_write(handle.principal));
        Attributes {
            ino: ino_of(handle),
            kind: inode.kind,
            mode: inode.mode,
            links: if inode.kind == InodeKind::Directory { 1 } else { inode.links },
            size: inode.size,
            blocks: allocated(inode).div_ceil(512),
            modified_ns: inode.modified_ns,
            changed_ns: inode.changed_ns,
            uid,
            gid,
            device_number: inode.device_number,
            generation: 0,
        }
    }

    /// The attributes that `stat` shows: those of the view, or this client's own where it has unpublished
    /// changes or the file is open here for writing.
    fn attributes(&self, view: &dyn View, handle: Handle, inode: &Arc<Inode>) -> Attributes {
        let mut shown = self.published_attributes(view, handle, inode);
        if let Some(node) = self.nodes.find(shown.ino) {
            let mut state = node.state();
            let NodeState { writers, file, pages, .. } = &mut *state;
            if let Some(file) = file {
                let is_other = file.refresh(inode, view.position(), *writers > 0);
                own_attributes(file, &mut shown);
                // Open descriptors continue with the new version, but the kernel's pages are of the old one.
                if is_other && *pages != Pages::None {
                    drop(state);
                    self.invalidate(shown.ino);
                }
            }
        }
        shown
    }
}

/// Replaces published attributes with what this client knows of an open file.
fn own_attributes(file: &state::FileState, shown: &mut Attributes) {
    shown.mode = file.shown_mode();
    shown.links = match file.named {
        state::NameStatus::Named => file.latest.links,
        _ => 0,
    };
    shown.size = file.size;
    shown.blocks = file.allocated().div_ceil(512);
    shown.modified_ns = file.modified_ns;
    shown.changed_ns = file.changed_ns.max(file.latest.changed_ns);
}

/// The inode number of a handle that came from a verified directory.
fn ino_of(handle: Handle) -> Ino {
    // Handles out of range are refused where entries are read (`known_handle`); the root's is fixed.
    Ino(handle.inode_number().unwrap_or(0))
}

/// The handle of an inode number that came from the kernel.
fn handle_of(ino: Ino) -> Result<Handle, FsError> {
    Handle::from_inode_number(ino.0).ok_or(FsError::Stale)
}

/// Refuses a handle that has no inode number. A directory's writer may have entered any handle.
fn known_handle(handle: Handle) -> Result<Handle, FsError> {
    let invalid = || FsError::Invalid(format!("the directory names {handle}, which cannot be"));
    handle.inode_number().map(|_| handle).ok_or_else(invalid)
}

/// Checks a name that is to be looked up or made.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FsError::NameTooLong);
    }
    holdfast_content::directory::check_name(name).map_err(|error| FsError::Invalid(error.to_string()))
}

fn now_ns() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    }
}
