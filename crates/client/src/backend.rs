//! What files need of the engine, and no more. [`Backend`] is what a write-back answers in the engine's place: views,
//! edits, blocks, locks. [`Upstream`] is the rest, which is the engine's whether or not a write-back stands before it.
//! Tests put an in-memory file system in the engine's place.

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

/// Called before an operation that only looks is sent; what it returns lives until the answer is here.
pub type LookHook = Box<dyn Fn() -> Result<Guard, FsError> + Send + Sync>;

/// What an operation's author relies on in its view, beside what the plan of an edit shows: no other device may hold it
/// exclusively at the operation's place in the order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReadSet {
    /// These files.
    pub files: BTreeSet<Handle>,
    /// All files: the view has everything that any device has acknowledged to its programs by then.
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
    /// Process or open file description, as the kernel numbers them.
    pub owner: u64,
    /// Number of the process, which other clients are shown.
    pub process: u32,
    /// The bytes to lock.
    pub range: LockRange,
}

/// A past state that the server keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PastState {
    /// Which one, and when its last operation was declared by its author's clock.
    pub point: Point,
    /// The name by which it is listed here; `None`: it has none but its time.
    pub name: Option<Arc<Signed<Name>>>,
}

/// A sink that stores data before an operation names it, holding a bounded amount in memory.
pub trait Upload: BlockSink {
    /// Waits until the data is at the server or rides along with the next operation. Keep the guard until
    /// that operation is made. `content` is what has been made of it, if that is one file's.
    ///
    /// # Errors
    /// The data could not be stored.
    fn finish(self: Box<Self>, content: Option<&Content>) -> Result<Guard, FsError>;
}

/// What is waited for once uploaded data is named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UploadKind {
    /// Nobody waits longer than until it is safe from whatever may become of this process.
    Usual,
    /// Somebody waits until it is durable at the server.
    Awaited,
}

/// A view that leases make the present one.
pub struct LeasedView {
    /// The view.
    pub view: Arc<dyn View>,
    /// Tells for [`Backend::leased_for`] what it rests on.
    pub stamp: u64,
}

/// What answers programs: the engine, or a write-back in front of it.
pub trait Backend: Send + Sync {
    /// A view that was ordered after this call began, by whoever is going to read these files. One operation serves all
    /// who wait.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    fn fetch(&self, reads: ReadSet) -> Result<Arc<dyn View>, FsError>;

    /// Makes an edit and returns a view that contains it.
    ///
    /// # Errors
    /// What the plan answered, or as [`Backend::fetch`].
    fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<dyn View>, FsError>;

    /// The last accepted view; nothing promises that it is fresh.
    fn latest(&self) -> Arc<dyn View>;

    /// The last accepted view, if leases say that it is the present one for these files. If not, the next operation
    /// asks for leases of them.
    fn leased(&self, _files: &[Handle]) -> Option<LeasedView> {
        None
    }

    /// How long what was read under a lease stays present unless it is recalled; `None` if it may be outdated already.
    fn leased_for(&self, _stamp: u64, _files: &[Handle]) -> Option<Duration> {
        None
    }

    /// Whether leases say that the last accepted view is the present one for these files.
    fn holds_leases(&self, _files: &[Handle]) -> bool {
        false
    }

    /// The source of verified blocks.
    fn source(&self) -> Arc<dyn BlockSource + Send + Sync>;

    /// Where data goes before it is named.
    fn upload(&self, about: WriteTarget, kind: UploadKind) -> Box<dyn Upload + '_>;

    /// Asks the server to keep these blocks, and all they refer to, until the guard is dropped. Does not wait.
    fn pin(&self, roots: Vec<Digest>) -> Guard;

    /// A file's content is about to be read. A hint.
    fn prepare_read(&self, _file: Handle, _path: &[u8], _inode: &Inode) {}

    /// A file's content was read or published here: a later version of it may be compared with this one.
    fn note_version(&self, _file: Handle, _path: Vec<u8>, _inode: &Inode) {}

    /// Whether programs may write so many bytes more.
    ///
    /// # Errors
    /// [`FsError::Quota`], [`FsError::NoSpace`].
    fn room(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    /// How many bytes may still be written on this machine, where that is bounded now.
    fn room_left(&self) -> Option<u64> {
        None
    }

    /// Waits until all operations made so far are committed, hence durable.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    fn flush_commits(&self) -> Result<(), FsError>;

    /// Waits until what was published so far is safe from everything that may become of this process: what `close` waits
    /// for.
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
    /// [`FsError::Interrupted`]: it is held as before.
    fn unlock(&self, place: &LockTarget) -> Result<(), FsError>;
}

/// The engine: what files ask of it directly, and what a write-back is built on.
pub trait Upstream: Backend {
    /// This device and its user.
    fn me(&self) -> (DeviceId, UserId);

    /// The membership in force.
    fn membership(&self) -> Arc<Membership>;

    /// Whether programs may look at anything, as far as witnesses and peers go.
    ///
    /// # Errors
    /// [`FsError::Outdated`].
    fn may_read(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Whether programs may change anything, as far as witnesses and peers go.
    ///
    /// # Errors
    /// [`FsError::Outdated`], [`FsError::ReadOnly`].
    fn may_change(&self) -> Result<(), FsError> {
        Ok(())
    }

    /// Every offence of the server noticed since the start, and what else holds programs up; a line each, for people.
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

    /// What to report when the bytes of a file's published content could not be had or are malformed. Applies
    /// the rule on missing blocks: proven replaced is [`FsError::Stale`], still referred to is
    /// [`FsError::Integrity`].
    fn content_error(&self, file: Handle, path: String, inode: &Inode, error: ContentError) -> FsError;

    /// What this user has at the server and may have, where there is a limit.
    fn quota(&self) -> Option<Usage> {
        None
    }

    /// Who stands in the way of a lock.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Access`].
    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError>;

    /// Whether an owner holds locks of a file.
    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool;

    /// Makes the next operation ask for a lease of a file.
    fn want_lease(&self, _file: Handle) {}

    /// Makes the next operation that only looks ask for a lease of a file that is likely to be read next. It is granted if nobody
    /// has to give up anything for it, and not waited for.
    fn want_lease_ahead(&self, _file: Handle) {}

    /// What is read and written, for statistics, and the link's pace.
    fn account(&self) -> &Account;

    /// How data is cut and moved.
    fn transfer_mode(&self) -> TransferMode {
        TransferMode::Full
    }

    /// The content of these small files is likely to be read soon. A hint; does not wait.
    fn read_ahead(&self, _files: &[ReadAheadFile]) {}

    /// The local disk is full: gives up what is only cached there. Whether that has made room.
    fn make_room(&self, _bytes: u64) -> bool {
        false
    }

    /// Whether the server is there, as far as is known.
    fn is_reachable(&self) -> bool;

    /// Sets what is called before each operation that only looks is sent, whoever asks for it: what others may recall while it
    /// waits for them has to be sent before. This device's operations are ordered one after the other: one that waits for
    /// another device stands before what this one has yet to send. The guard lives until its answer is here. Once.
    fn before_look(&self, _hook: LookHook) {}

    /// Whether to ask for what is changed to be held exclusively.
    fn want_exclusive(&self, _wanted: bool) {}

    /// For how long this client holds anything exclusively unless it is recalled: so long nobody else reads or changes that.
    /// `None`: nothing.
    fn exclusive(&self) -> Option<Duration> {
        None
    }

    /// Whether that is the whole file system, so that the last accepted view is the present one.
    fn has_delegation(&self) -> bool {
        false
    }

    /// Whether that is all of these files.
    fn holds_exclusively(&self, _files: &[Handle]) -> bool {
        false
    }

    /// Whether something was looked at a moment ago that another device held exclusively.
    fn is_contended(&self) -> bool {
        false
    }
}
