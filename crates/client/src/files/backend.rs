//! What files need of the engine, and no more: verified views, edits, blocks. The engine implements it; tests
//! put an in-memory file system in its place.

use super::{Ino, ReadAheadFile};
use crate::engine::{LockTarget, LookHook, Notice, PastState};
use crate::error::FsError;
use crate::store::{TransferMode, WriteTarget};
use holdfast_content::{
    BlockSink, BlockSource, Content, ContentError, DeviceId, Entry, Handle, Inode, Membership, PrincipalId,
    UserId,
};
use holdfast_crypto::Digest;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace, Usage};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// Names and their entries, in byte order of name.
pub type Names = Vec<(Vec<u8>, Entry)>;
/// Keeps something alive until it is dropped.
pub type Guard = Box<dyn Any + Send + Sync>;

/// The file system at one place in the order: verified, immutable.
pub trait View: Send + Sync {
    /// Place in the order; a later view has a greater one.
    fn position(&self) -> u64;

    /// The inode of a file.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is none; integrity and reachability failures.
    fn inode(&self, handle: Handle) -> Result<Arc<Inode>, FsError>;

    /// What a name in a directory stands for.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::NotFound`] if the directory is not there; and as above.
    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError>;

    /// At most `limit` entries after `after`.
    ///
    /// # Errors
    /// As [`View::entry`].
    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError>;

    /// Whether this device may write what `principal` owns.
    fn may_write(&self, principal: PrincipalId) -> bool;

    /// All users and groups: whoever files can belong to.
    fn principals(&self) -> Vec<PrincipalId>;

    /// What a user, a group or the user of a device is called, for people.
    fn name_of(&self, principal: PrincipalId) -> String;
}

/// The file system as one operation is about to leave it. Reads see earlier edits of the same operation and
/// count as preconditions.
pub trait Changes {
    /// As [`View::inode`].
    ///
    /// # Errors
    /// As [`View::inode`].
    fn inode(&mut self, handle: Handle) -> Result<Arc<Inode>, FsError>;

    /// As [`View::entry`].
    ///
    /// # Errors
    /// As [`View::entry`].
    fn entry(&mut self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError>;

    /// As [`View::entries`].
    ///
    /// # Errors
    /// As [`View::entries`].
    fn entries(&mut self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError>;

    /// Whether this device may write what `principal` owns.
    fn may_write(&mut self, principal: PrincipalId) -> bool;

    /// A fresh i-number of `principal`.
    ///
    /// # Errors
    /// [`FsError::Access`] or [`FsError::NoSpace`].
    fn allocate(&mut self, principal: PrincipalId) -> Result<Handle, FsError>;

    /// Makes or replaces an inode. Of a directory everything but the content counts.
    ///
    /// # Errors
    /// [`FsError::Access`], or the inode breaks a limit.
    fn set_inode(&mut self, handle: Handle, inode: Inode) -> Result<(), FsError>;

    /// Removes an inode.
    ///
    /// # Errors
    /// [`FsError::Access`].
    fn remove_inode(&mut self, handle: Handle) -> Result<(), FsError>;

    /// Makes, replaces or (with `None`) removes a name; the directory's times become `now_ns`.
    ///
    /// # Errors
    /// [`FsError::Access`].
    fn set_entry(
        &mut self,
        directory: Handle,
        name: &[u8],
        entry: Option<Entry>,
        now_ns: i64,
    ) -> Result<(), FsError>;

    /// Makes content for `handle` of content that is there already. New blocks travel with the operation.
    ///
    /// # Errors
    /// What it means for the file that a block could not be had.
    fn make_content(&mut self, handle: Handle, make: MakeContent<'_>) -> Result<Content, FsError>;
}

/// Makes content from blocks, putting new ones into a sink.
pub type MakeContent<'a> = &'a dyn Fn(&dyn BlockSource, &mut dyn BlockSink) -> Result<Content, ContentError>;

/// One edit. The engine gathers many into one signed operation and plans them again on a newer base when the
/// server has ordered something else before.
pub trait Plan: Send {
    /// Makes the edit, or says why it cannot be; then nothing of it happens.
    ///
    /// # Errors
    /// What the system call is to report.
    fn plan(&mut self, changes: &mut dyn Changes) -> Result<(), FsError>;

    /// What was planned last has its place in the order. Called also when the caller has given up waiting, and
    /// before a later edit of this client is planned.
    fn ordered(&mut self);
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

/// A view that leases make the present one.
pub struct LeasedView {
    /// The view.
    pub view: Arc<dyn View>,
    /// Tells for [`Backend::leased_for`] what it rests on.
    pub stamp: u64,
}

/// The engine, as files see it.
pub trait Backend: Send + Sync {
    /// A view that was ordered after this call began. One operation serves all who wait.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    fn fetch(&self) -> Result<Arc<dyn View>, FsError>;

    /// As [`Backend::fetch`], by whoever is going to read these files.
    ///
    /// # Errors
    /// As [`Backend::fetch`].
    fn fetch_of(&self, _files: &[Handle]) -> Result<Arc<dyn View>, FsError> {
        self.fetch()
    }

    /// Sets what is called before each operation that only looks is sent, whoever asks for it: what others may recall while it
    /// waits for them has to be sent before. The guard lives until its answer is here. Once.
    fn before_look(&self, _hook: LookHook) {}

    /// Makes an edit and returns a view that contains it.
    ///
    /// # Errors
    /// What the plan answered, or as [`Backend::fetch`].
    fn modify(&self, plan: Arc<Mutex<dyn Plan>>) -> Result<Arc<dyn View>, FsError>;

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

    /// Whether something was looked at a moment ago that another device held exclusively.
    fn is_contended(&self) -> bool {
        false
    }

    /// Makes the next operation ask for a lease of a file.
    fn want_lease(&self, _file: Handle) {}

    /// Makes the next operation that only looks ask for a lease of a file that is likely to be read next. It is granted if nobody
    /// has to give up anything for it, and not waited for.
    fn want_lease_ahead(&self, _file: Handle) {}

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

    /// Whether to ask for what is changed.
    fn want_exclusive(&self, _wanted: bool) {}

    /// The source of verified blocks.
    fn source(&self) -> Arc<dyn BlockSource + Send + Sync>;

    /// The local disk is full: gives up what is only cached there. Whether that has made room.
    fn make_room(&self, _bytes: u64) -> bool {
        false
    }

    /// Where data goes before it is named.
    fn upload(&self, about: WriteTarget) -> Box<dyn Upload + '_>;

    /// As [`Backend::upload`], of data that somebody waits for until it is durable at the server.
    fn upload_awaited(&self, about: WriteTarget) -> Box<dyn Upload + '_> {
        self.upload(about)
    }

    /// How data is cut and moved.
    fn transfer_mode(&self) -> TransferMode {
        TransferMode::Full
    }

    /// A file's content is about to be read. A hint.
    fn prepare_read(&self, _file: Handle, _path: &[u8], _inode: &Inode) {}

    /// The content of these small files is likely to be read soon. A hint; does not wait.
    fn read_ahead(&self, _files: &[ReadAheadFile]) {}

    /// A file's content was read or published here: a later version of it may be compared with this one.
    fn note_version(&self, _file: Handle, _path: Vec<u8>, _inode: &Inode) {}

    /// How many bytes are worth having under way ahead of a sequential reader.
    fn ahead_bytes(&self) -> u64 {
        8 << 20
    }

    /// A program read bytes of a file; for statistics.
    fn has_read(&self, _ino: Ino, _bytes: usize) {}

    /// Whether programs may write so many bytes more.
    ///
    /// # Errors
    /// [`FsError::Quota`].
    fn room(&self, _bytes: u64) -> Result<(), FsError> {
        Ok(())
    }

    /// How many bytes may still be written on this machine, where that is bounded now.
    fn room_left(&self) -> Option<u64> {
        None
    }

    /// What this user has at the server and may have, where there is a limit.
    fn quota(&self) -> Option<Usage> {
        None
    }

    /// A program wrote bytes of a file; for statistics.
    fn has_written(&self, _ino: Ino, _bytes: usize) {}

    /// Number of this device.
    fn device(&self) -> DeviceId;

    /// The user that this device belongs to.
    fn user(&self) -> UserId;

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

    /// What to report when the bytes of a file's published content could not be had or are malformed. Applies
    /// the rule on missing blocks: proven replaced is [`FsError::Stale`], still referred to is
    /// [`FsError::Integrity`].
    fn content_error(&self, handle: Handle, path: String, inode: &Inode, error: ContentError) -> FsError;

    /// Asks the server to keep these blocks, and all they refer to, until the guard is dropped. Does not wait.
    fn pin(&self, roots: Vec<Digest>) -> Guard;

    /// As [`crate::Engine::lock`].
    ///
    /// # Errors
    /// As [`crate::Engine::lock`].
    fn lock(&self, place: &LockTarget, mode: LockMode, wait: bool) -> Result<Option<LockHolder>, FsError>;

    /// As [`crate::Engine::test_lock`].
    ///
    /// # Errors
    /// As [`crate::Engine::test_lock`].
    fn test_lock(&self, place: &LockTarget, mode: LockMode) -> Result<Option<LockHolder>, FsError>;

    /// Gives up the locks of a range.
    fn unlock(&self, place: &LockTarget) -> Result<(), FsError>;

    /// Whether an owner holds locks of a file.
    fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool;

    /// Every offence of the server noticed since the start.
    fn notices(&self) -> Vec<Notice>;

    /// Whether the server is there, as far as is known.
    fn is_reachable(&self) -> bool;

    /// Past states that are kept, oldest first, then those with names.
    ///
    /// # Errors
    /// As [`crate::Engine::past_states`].
    fn past_states(&self) -> Result<Arc<Vec<PastState>>, FsError> {
        Ok(Arc::default())
    }

    /// The membership in force.
    fn membership(&self) -> Arc<Membership>;

    /// A past state, verified.
    ///
    /// # Errors
    /// As [`crate::Engine::past`].
    fn past(&self, _state: &PastState) -> Result<Arc<dyn View>, FsError> {
        Err(FsError::NotFound)
    }

    /// Gives it a way to learn what a mount calls files. Most need none.
    fn tell_paths(&self, _paths: PathOf) {}
}

/// The path of a file as a mount knows it; empty where it does not.
pub type PathOf = Box<dyn Fn(Handle) -> Vec<u8> + Send + Sync>;
