//! The interface that files use of the engine. [`Backend`] is the part that a write-back can serve instead of
//! the engine: views, edits, blocks, locks. [`Upstream`] is the rest, which the engine serves whether or not
//! there is a write-back. Tests replace the engine by an in-memory file system.

use crate::error::FsError;
use crate::store::account::Account;
use crate::store::{ReadAheadFile, TransferMode, WriteTarget};
use crate::tree::{Edit, View};
use holdfast_content::{
    BlockSink, BlockSource, Content, ContentError, DeviceId, Handle, Inode, Membership, UserId,
};
use holdfast_crypto::Digest;
use holdfast_protocol::history::{Point, Snapshot as Name};
use holdfast_protocol::locks::LockRange;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use holdfast_protocol::signed::Signed;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Keeps something alive until it is dropped.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Called before an operation that only reads is sent. The guard it returns is kept until the answer has
/// come.
pub type LookHook = Box<dyn Fn() -> Result<Guard, FsError> + Send + Sync>;

/// What the author of an operation reads in its view, in addition to what the plan of an edit shows. No other
/// device may hold it exclusively at the operation's place in the order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReadSet {
    /// The operation reads these files.
    pub files: BTreeSet<Handle>,
    /// The operation may read all files: the view has everything that any device has acknowledged to its
    /// programs by then.
    pub everything: bool,
}

impl ReadSet {
    /// The operation may read anything.
    pub fn everything() -> ReadSet {
        ReadSet { everything: true, files: BTreeSet::new() }
    }

    /// The operation reads these files.
    pub fn of(files: &[Handle]) -> ReadSet {
        ReadSet { files: files.iter().copied().collect(), everything: false }
    }
}

/// A range of a file, and the process on this machine that locks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTarget {
    /// The file.
    pub file: Handle,
    /// Whether the lock is of `flock` or of `fcntl`.
    pub space: LockSpace,
    /// Process or open file description, by the number the kernel gives it.
    pub owner: u64,
    /// Number of the process, which is shown to other clients.
    pub process: u32,
    /// The bytes to lock.
    pub range: LockRange,
}

/// A past state that the server keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastState {
    /// Identifies the state, with the time its last operation's author declared.
    pub point: Point,
    /// The name by which it is listed here; `None`: it is listed by its time.
    pub name: Option<Arc<Signed<Name>>>,
}

/// A sink that stores data before an operation refers to it, with a bounded amount in memory.
pub trait Upload: BlockSink {
    /// Waits until the data is at the server, or will be sent with the next operation. Keep the guard until
    /// that operation is made. `content` is the content made of the data, if that is one file's.
    ///
    /// # Errors
    /// The data could not be stored.
    fn finish(self: Box<Self>, content: Option<&Content>) -> Result<Guard, FsError>;
}

/// What a caller waits for, once an operation refers to the uploaded data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UploadKind {
    /// At most until the data is safe even if this process fails.
    Usual,
    /// Until the data is durable at the server.
    Awaited,
}

/// A view that is the present one because of leases.
pub struct LeasedView {
    /// The view.
    pub view: Arc<dyn View>,
    /// Identifies, for [`Backend::leased_for`], the leases that the view rests on.
    pub stamp: u64,
}

/// What serves the calls of programs: the engine, or a write-back in front of it.
pub trait Backend: Send + Sync {
    /// A view that was ordered after this call began, for a caller that will read these files. One operation
    /// serves all callers that wait.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    fn fetch(&self, reads: ReadSet) -> Result<Arc<dyn View>, FsError>;

    /// Makes an edit and returns a view that contains it.
    ///
    /// # Errors
    /// Those that the plan returned, or as [`Backend::fetch`].
    fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<dyn View>, FsError>;

    /// The last accepted view, which may be outdated.
    fn latest(&self) -> Arc<dyn View>;

    /// The last accepted view, if by leases it is the present one for these files. If not, the next operation
    /// asks for leases of them.
    fn leased(&self, _files: &[Handle]) -> Option<LeasedView> {
        None
    }

    /// How long data read under a lease stays present unless the lease is recalled; `None` if the data may be
    /// outdated already.
    fn leased_for(&self, _stamp: u64, _files: &[Handle]) -> Option<Duration> {
        None
    }

    /// Whether, by leases, the last accepted view is the present one for these files.
    fn holds_leases(&self, _files: &[Handle]) -> bool {
        false
    }

    /// The source of verified blocks.
    fn source(&self) -> Arc<dyn BlockSource + Send + Sync>;

    /// A sink for data that no operation refers to yet.
    fn upload(&self, about: WriteTarget, kind: UploadKind) -> Box<dyn Upload + '_>;

    /// Asks the server to keep these blocks, and all that they refer to, until the guard is dropped. Does not
    /// wait.
    fn pin(&self, roots: Vec<Digest>) -> Guard;

    /// A hint that a file's content is about to be read.
    fn prepare_read(&self, _file: Handle, _path: &[u8], _inode: &Inode) {}

    /// A hint that a file's content was read or published here: a later version may be compared with it.
    fn note_version(&self, _file: Handle, _path: Vec<u8>, _inode: &Inode) {}

    /// Fails if programs may not write so many bytes more.
    ///
    /// # Errors
    /// [`FsError::Quota`], [`FsError::NoSpace`].
    fn room(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    /// How many bytes may still be written on this machine, if that is limited now.
    fn room_left(&self) -> Option<u64> {
        None
    }

    /// Waits until all operations made so far are committed, and so durable.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    fn flush_commits(&self) -> Result<(), FsError>;

    /// Waits until everything published so far is safe even if this process fails: `close` waits for this.
    ///
    /// # Errors
    /// As [`Backend::flush_commits`].
    fn keep_commits(&self) -> Result<(), FsError> {
        self.flush_commits()
    }

    /// As [`crate::Engine::lock`].
    ///
    /// # Errors
    /// As [`crate::Engine::lock`].
    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError>;

    /// Gives up the locks of a range.
    ///
    /// # Errors
    /// [`FsError::Interrupted`]: the locks are held as before.
    fn unlock(&self, place: &LockTarget) -> Result<(), FsError>;
}

/// The engine: what files call directly, and what a write-back is built on.
pub trait Upstream: Backend {
    /// This device and its user.
    fn me(&self) -> (DeviceId, UserId);

    /// The membership in force.
    fn membership(&self) -> Arc<Membership>;

    /// Fails if programs may not read, because of witnesses or peers.
    ///
    /// # Errors
    /// [`FsError::Outdated`].
    fn may_read(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Fails if programs may not change anything, because of witnesses or peers.
    ///
    /// # Errors
    /// [`FsError::Outdated`], [`FsError::ReadOnly`].
    fn may_change(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// All offences of the server noticed since the start, and other reasons why programs wait; one line of
    /// text for each.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Past states that are kept, oldest first, then those with names.
    ///
    /// # Errors
    /// As [`crate::Engine::past_states`].
    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        Ok(Arc::default())
    }

    /// A past state, verified.
    ///
    /// # Errors
    /// As [`crate::Engine::past`].
    fn past(&self, _state: &PastState) -> Result<Arc<dyn View>, FsError> {
        Err(FsError::NotFound)
    }

    /// The error to report when the bytes of a file's published content could not be read or are malformed.
    /// Applies the rule on missing blocks: if the file was provably replaced, it is [`FsError::Stale`]; if it
    /// still refers to the block, [`FsError::Integrity`].
    fn content_error(&self, file: Handle, path: String, inode: &Inode, error: ContentError) -> FsError;

    /// How much this user stores at the server and may store, if there is a limit.
    fn quota(&self) -> Option<Usage> {
        None
    }

    /// The holder that prevents a lock, if any.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Access`].
    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError>;

    /// Whether an owner holds locks of a file.
    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool;

    /// Makes the next operation ask for a lease of a file.
    fn want_lease(&self, _file: Handle) {}

    /// Makes the next operation that only reads ask for a lease of a file that is likely to be read next. It
    /// is granted only if no other device has to give up anything for it, and the operation does not wait for
    /// it.
    fn want_lease_ahead(&self, _file: Handle) {}

    /// Counts of what is read and written, for statistics, and the speed of the link.
    fn account(&self) -> &Account;

    /// How data is cut and moved.
    fn transfer_mode(&self) -> TransferMode {
        TransferMode::Full
    }

    /// A hint that the content of these small files is likely to be read soon. Does not wait.
    fn read_ahead(&self, _files: &[ReadAheadFile]) {}

    /// Called when the local disk is full: frees data that is only cached there. Returns whether that freed
    /// enough.
    fn make_room(&self, _bytes: u64) -> bool {
        false
    }

    /// Whether the server can be reached, as far as is known.
    fn is_reachable(&self) -> bool;

    /// Registers a hook that is called before each operation that only reads is sent, whoever requested it.
    /// Changes that another device may recall while the operation waits for that device must be sent before:
    /// this device's operations are ordered one after the other, so an operation that waits for another
    /// device would stand before changes still to be sent. The guard is kept until the answer has come. Only
    /// the first call counts.
    fn before_look(&self, _hook: LookHook) {}

    /// Whether to ask for exclusive holding of what is changed.
    fn want_exclusive(&self, _wanted: bool) {}

    /// How long this client holds anything exclusively unless it is recalled; other devices can neither read
    /// nor change that meanwhile. `None`: it holds nothing so.
    fn exclusive(&self) -> Option<Duration> {
        None
    }

    /// Whether it holds the whole file system exclusively, so that the last accepted view is the present one.
    fn has_delegation(&self) -> bool {
        false
    }

    /// Whether it holds all of these files exclusively.
    fn holds_exclusively(&self, _files: &[Handle]) -> bool {
        false
    }

    /// Whether anything that another device held exclusively was read a moment ago.
    fn is_contended(&self) -> bool {
        false
    }
}
