//! The engine: one signer, one order, many callers.
//!
//! Callers come from any thread, block, and get an answer or an error by their deadline. One thread (the
//! pump) combines their requests into signed operations. The protocol decides what happens to an operation on
//! its way ([`holdfast_protocol::signer::Signer`]); this module transfers data and wakes callers.

mod backend;
mod commits;
mod freshness;
mod leaf_keeper;
mod lease_requests;
mod leases;
mod locks;
mod meeting;
mod notes;
mod notices;
mod past;
#[cfg_attr(not(feature = "peers"), path = "without_peers.rs")]
mod peers;
mod pins;
mod pump;
mod queue;
mod quota;
mod reclaim;
mod resend;
pub(crate) mod restored;
mod settle;
mod shared;
mod snapshot;
mod start;
mod status;
mod stop;

pub use crate::backend::{LockTarget, PastState};
pub use freshness::{HeadStatus, StaleHook, WhenStale, WitnessPolicy};
pub use holdfast_protocol::leases::RecalledLeases;
pub use leases::RecallHook;
pub use meeting::{PeerHook, PeerPresence, PeerStatus, PeersPolicy, PeersStatus, WhenPeerLost};
pub use notices::{Notice, NoticeHook};
pub use past::PastTree;
pub use pins::Pin;
pub use reclaim::{ReclaimReport, ReclaimedFile};
pub use resend::{ResendHook, ResendReport, ResendStatus};
pub use restored::{RestoreReport, RestoredHook};
pub use snapshot::Snapshot;
pub(crate) use start::explain;
pub use status::Status;

use crate::backend::ReadSet;
use crate::error::FsError;
use crate::processes::Processes;
use crate::store::TransferConfig;
use crate::store::VerifiedStore;
use crate::tree::{Edit, ReadError};
use holdfast_content::{ContentError, DeviceId, Handle, Membership, SourceError, UserId};
use holdfast_crypto::{Digest, KeyHolder};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{LockHolder, LockMode, LockSpace};
use holdfast_rpc::{Address, RpcError, Transport};
use locks::Locks;
use parking_lot::Mutex;
use pins::Pins;
use shared::Shared;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Called with the reason why there is no connection.
pub type TroubleHook = Arc<dyn Fn(&RpcError) + Send + Sync>;

/// Configuration of an engine.
#[derive(Clone)]
pub struct EngineConfig {
    /// The file system and where to find it.
    pub address: Address,
    /// Signs for this device.
    pub key: Arc<dyn KeyHolder>,
    /// The processes that have the key, if this process does not.
    pub processes: Option<Arc<Processes>>,
    /// Directory of this key's durable state; each file system and key needs its own.
    pub state_dir: PathBuf,
    /// Directory of the block cache; `None` for no persistent cache.
    pub cache_dir: Option<PathBuf>,
    /// Bound of the persistent cache in bytes.
    pub cache_bytes: u64,
    /// Bound of the cache in memory in bytes.
    pub memory_bytes: usize,
    /// Longest time for which a call waits for the server.
    pub deadline: Duration,
    /// Whether calls, once the engine has started, wait without limit until they are answered or interrupted.
    pub hard: bool,
    /// How the server is reached.
    pub transport: Transport,
    /// How data is sent and fetched.
    pub transfer: TransferConfig,
    /// Whether to start from local state if no server answers, for mounts that can do without one for a
    /// while.
    pub starts_away: bool,
    /// Whether to request leases, under which data can be read again without a message.
    pub leases: bool,
    /// Whether operations of this device that a declared restore lost are made again automatically.
    pub sends_again: bool,
    /// Whether to go on after an alarm about the order that the user has looked into. The state accepted
    /// before the alarm stays the floor, so a server that still shows the same raises the same alarm.
    pub acknowledge_alarm: bool,
    /// The witnesses that co-sign heads, if there are any.
    pub witnesses: Option<WitnessPolicy>,
    /// How to meet other clients, if at all. Needs [`EngineConfig::processes`].
    pub peers: Option<PeersPolicy>,
    /// Called while the first connection fails, each time for a new reason.
    pub on_trouble: Option<TroubleHook>,
}

impl EngineConfig {
    /// The usual settings, with a key that other processes have.
    pub fn with_processes(address: Address, processes: &Arc<Processes>, state_dir: PathBuf) -> EngineConfig {
        let key: Arc<dyn KeyHolder> = processes.clone();
        EngineConfig { processes: Some(processes.clone()), ..EngineConfig::new(address, key, state_dir) }
    }

    /// The usual settings: calls wait a minute at most; the caches take 256 MiB in memory and 4 GiB on disk.
    pub fn new(address: Address, key: impl Into<Arc<dyn KeyHolder>>, state_dir: PathBuf) -> EngineConfig {
        EngineConfig {
            address,
            key: key.into(),
            processes: None,
            state_dir,
            cache_dir: None,
            cache_bytes: 4 << 30,
            memory_bytes: 256 << 20,
            deadline: Duration::from_secs(60),
            hard: false,
            transport: Transport::default(),
            transfer: TransferConfig::default(),
            starts_away: false,
            leases: true,
            sends_again: true,
            acknowledge_alarm: false,
            witnesses: None,
            peers: None,
            on_trouble: None,
        }
    }
}

/// A duration without practical limit that can still be added to any point in time.
const FOREVER: Duration = Duration::from_secs(100 * 366 * 86_400);
/// How long a stop waits for the running request while there is a connection.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
/// How long a stop waits where no answer is expected: without a connection; and for the request for recalls,
/// after the server was informed that no lease is held any more.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);

/// Signs for one device of one file system. Dropping it stops it.
pub struct Engine {
    shared: Arc<Shared>,
    pins: Arc<Pins>,
    locks: Arc<Locks>,
    pasts: past::PastStates,
    quota: quota::Quota,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Fetches a view that is ordered after this call began. Calls that arrive together share one signed
    /// operation. To read something in it that another device holds exclusively takes another operation, for
    /// which that device gives it up.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] or [`FsError::Frozen`].
    pub fn fetch(&self) -> Result<Arc<Snapshot>, FsError> {
        self.fetch_of(&[])
    }

    /// Like [`Engine::fetch`], for a caller that is going to read these files.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    pub fn fetch_of(&self, files: &[Handle]) -> Result<Arc<Snapshot>, FsError> {
        self.shared.fetch(ReadSet::of(files))
    }

    /// Like [`Engine::fetch`]; the view includes everything that any device has acknowledged to its programs
    /// by then.
    ///
    /// # Errors
    /// As [`Engine::fetch`].
    pub fn fetch_everything(&self) -> Result<Arc<Snapshot>, FsError> {
        self.shared.fetch(ReadSet::everything())
    }

    /// What a declared restore of the server cost this device, if one was taken up since the start.
    pub fn restored(&self) -> Option<RestoreReport> {
        self.shared.restores.latest()
    }

    /// Registers a hook that is called with each declared restore that is taken up, including one at the
    /// start. It must not call the engine.
    pub fn on_restored(&self, hook: RestoredHook) {
        self.shared.restores.on_restored(hook);
    }

    /// The report of the resend after a declared restore, if there was one since the start.
    pub fn resend_report(&self) -> Option<ResendReport> {
        self.shared.resend.latest()
    }

    /// Registers a hook that is called once the resend has ended or does not go on. It must not call the
    /// engine.
    pub fn on_resend(&self, hook: ResendHook) {
        self.shared.resend.on_report(hook);
    }

    /// Makes a modification; the returned view includes its effect. When this returns, the operation is
    /// signed and has its place in the order. It is durable at the server after [`Engine::flush_commits`].
    ///
    /// # Errors
    /// Those of the edit, judged at the operation's place in the order; [`FsError::Unreachable`]: the
    /// deadline passed (the edit may still take effect); [`FsError::Frozen`].
    pub fn modify(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<Snapshot>, FsError> {
        self.shared.submit(Some(edit))
    }

    /// The last accepted view; it need not be current.
    pub fn latest(&self) -> Arc<Snapshot> {
        let place = self.shared.latest.read().clone();
        Arc::new(Snapshot::new(self.shared.clone(), place, None))
    }

    /// The last accepted view, if leases guarantee that it is current for these files, with a stamp for
    /// [`Engine::leased_for`]. Otherwise, the next operation requests leases of them.
    pub fn leased(&self, files: &[Handle]) -> Option<(Arc<Snapshot>, u64)> {
        let leases = &self.shared.leases;
        let stamp = leases.hold(files)?;
        let snapshot = self.latest();
        // An operation declared dead between these two steps is not in the view although its caller has its
        // answer.
        if leases.is_redoing() || self.shared.check().is_err() {
            return None;
        }
        leases.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Some((snapshot, stamp))
    }

    /// How long data that was read of these files with this stamp stays current, unless a lease is recalled;
    /// `None` if it may be outdated already.
    pub fn leased_for(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        self.shared.leases.time_left(stamp, files)
    }

    /// Registers a hook that is called with recalled leases. Nothing is served under them any more; the
    /// server is informed that they are given up once every hook has returned. By then, the hook must have
    /// sent everything that rests on lost exclusive access. It must not wait for fetches or modifications of
    /// other threads.
    pub fn on_recall(&self, hook: RecallHook) {
        self.shared.leases.on_recall(hook);
    }

    /// Sets whether operations ask for exclusive access to what they change.
    pub fn want_exclusive(&self, wanted: bool) {
        self.shared.leases.want_exclusive(wanted);
    }

    /// Whether this run has the delegation of the whole file system: until it is recalled
    /// ([`Engine::on_recall`]) or expires, no other device operates. Each operation extends it.
    pub fn delegation(&self) -> bool {
        self.shared.leases.has_delegation() && self.shared.check().is_ok()
    }

    /// Like [`Engine::settle_commits`], and also waits until the server's receipts are durable here
    /// (`fsync`). Then a server that denies what it acknowledged will be caught, whatever happens to this
    /// machine.
    ///
    /// # Errors
    /// As [`Engine::settle_commits`]; [`FsError::NoSpace`], [`FsError::Local`]: the receipts could not be saved.
    pub fn flush_commits(&self) -> Result<(), FsError> {
        self.settle_commits()?;
        let ask = || {
            if !self.shared.queue.sync_notes() {
                self.shared.notes.end(&self.shared.check().err().unwrap_or_else(shared::stopped));
            }
        };
        self.shared.notes.wait(Instant::now() + self.shared.patience(), ask, || self.shared.late())
    }

    /// Waits until every modification that has returned is committed at the server (`close`).
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`]; the error of a modification that the server had
    /// declared dead and that could not be made again. Each loss is reported once.
    pub fn settle_commits(&self) -> Result<(), FsError> {
        self.shared.commits.flush(Instant::now() + self.shared.patience(), || self.shared.late())
    }

    /// What this device has accepted, including its last operation and the server's receipt for it.
    /// Statements to others are made from it.
    pub fn floor(&self) -> Arc<Floor> {
        self.shared.latest.read().floor.clone()
    }

    /// This device and its user.
    pub fn me(&self) -> (DeviceId, UserId) {
        let base = self.shared.latest.read().base.clone();
        (base.me, base.user)
    }

    /// The membership in force in the last accepted view.
    pub fn membership(&self) -> Arc<Membership> {
        self.shared.latest.read().base.membership.clone()
    }

    /// The block store: reads file content ([`holdfast_content::BlockSource`]) and uploads it
    /// ([`VerifiedStore::upload`]).
    pub fn store(&self) -> &VerifiedStore {
        &self.shared.store
    }

    /// Turns an error from reading a file's content into the caller's error. For a missing block, it fetches
    /// the present view first: a file that was removed or replaced meanwhile is [`FsError::Stale`], and only
    /// a block that is still referred to raises the alarm. `path` is the file's path in the mount, for
    /// messages; `ihash` is the i-hash of the inode that led to the block.
    pub fn judge(&self, file: Handle, path: String, ihash: Digest, error: &ContentError) -> FsError {
        if let ContentError::Source(SourceError::Missing(_)) = error {
            let present = self.fetch_of(&[file]).and_then(|snapshot| snapshot.ihash(file));
            match present {
                Ok(present) if present == ihash => {}
                Ok(_) | Err(FsError::NotFound | FsError::Stale) => return FsError::Stale,
                Err(other) => return other,
            }
        }
        let base = self.shared.latest.read().base.clone();
        self.shared.explain(Some(file), Some(path), &ReadError::Content(error.clone()), &base)
    }

    /// Takes an advisory lock of a file, held against all clients until it is released or this program ends.
    /// With `wait`, waits without limit. `Some`: without `wait`, the holder that conflicts.
    ///
    /// # Errors
    /// [`FsError::Deadlock`], [`FsError::TooManyLocks`], [`FsError::Interrupted`]; [`FsError::Access`]: an exclusive
    /// lock of a file that this device may not write; [`FsError::Unreachable`].
    pub fn lock(
        &self,
        place: &LockTarget,
        mode: LockMode,
        wait: bool,
    ) -> Result<Option<LockHolder>, FsError> {
        self.locks.lock(&self.shared, place, mode, wait)
    }

    /// Releases a range. If the server is away, it is informed later.
    pub fn unlock(&self, place: &LockTarget) {
        self.locks.unlock(&self.shared, place);
    }

    /// Whether an owner holds locks of a file.
    pub fn holds_locks(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.locks.holds(file, space, owner)
    }

    /// Registers a hook that is called with a file whose lock was lost: the server lost its record of it, and
    /// another holder took it.
    pub fn on_lock_lost(&self, hook: Box<dyn Fn(Handle) + Send + Sync>) {
        self.locks.on_lost(hook);
    }

    /// Registers a hook that is called with every offence of the server, once for each, including those
    /// noticed already. When the order is wrong, the hook should have unsaved data saved to a folder. It must
    /// not call the engine.
    pub fn on_notice(&self, hook: NoticeHook) {
        self.shared.notices.on_notice(hook);
    }

    /// Registers a hook that is called when the newest head becomes too old, and when it is fresh again.
    pub fn on_stale(&self, hook: StaleHook) {
        if let Some(monitor) = self.shared.freshness.get() {
            monitor.on_change(hook);
        }
    }

    /// Status of the newest head that witnesses co-signed; `None` if there is no policy for witnesses.
    pub fn head(&self) -> Option<HeadStatus> {
        self.shared.freshness.get().map(|monitor| monitor.status())
    }

    /// Whether programs may read, according to the policies for witnesses and peers.
    ///
    /// # Errors
    /// [`FsError::Outdated`].
    pub fn may_read(&self) -> Result<(), FsError> {
        self.shared.freshness.get().map_or(Ok(()), |monitor| monitor.may_read())?;
        self.shared.peers.get().map_or(Ok(()), |peers| peers.may_work())
    }

    /// Whether programs may change anything, according to the policies for witnesses and peers.
    ///
    /// # Errors
    /// [`FsError::Outdated`], [`FsError::ReadOnly`].
    pub fn may_change(&self) -> Result<(), FsError> {
        self.shared.freshness.get().map_or(Ok(()), |monitor| monitor.may_change())?;
        self.shared.peers.get().map_or(Ok(()), |peers| peers.may_work())
    }

    /// All offences of the server noticed since the start, oldest first.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.notices.notices()
    }

    /// Whether there is a connection to the server, as far as this machine can tell.
    pub fn is_connected(&self) -> bool {
        self.shared.remote.is_connected()
    }

    /// Whether the server says that this device is no longer a member.
    pub fn is_excluded(&self) -> bool {
        self.shared.is_excluded()
    }

    /// Everything that `holdfast status` prints. Also makes the engine ask the server soon whether this
    /// device is still a member, since an idle mount sends no requests; a later status shows the answer.
    pub fn status(&self) -> Status {
        self.shared.resend.disturbed();
        status::of(&self.shared, self.locks.count())
    }

    /// Commits what is under way and stops; later calls fail. A server that is away is not waited for: what
    /// is signed but not acknowledged is sent again at the next start.
    pub fn stop(&self) {
        if let Some(peers) = self.shared.peers.get() {
            peers.leave(&self.shared);
            peers.stop();
        }
        self.shared.queue.stop();
        if let Some(monitor) = self.shared.freshness.get() {
            monitor.stop();
        }
        if let Some(keeper) = self.shared.leaf_keeper.get() {
            keeper.stop();
        }
        self.shared.resend.stop();
        self.pins.stop();
        self.locks.stop();
        self.shared.leases.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        let lessee = threads.pop();
        let begun = Instant::now();
        let is_over = || {
            let patience = if self.shared.remote.is_connected() { STOP_PATIENCE } else { SHORT_PATIENCE };
            begun.elapsed() > patience
        };
        threads.into_iter().for_each(|thread| join_unless(thread, &is_over));
        if let Some(lessee) = lessee {
            if self.shared.remote.is_connected() {
                self.shared.leases.give_up(&self.shared);
            }
            let end = Instant::now() + SHORT_PATIENCE;
            join_unless(lessee, &|| Instant::now() > end);
        }
        // Holders of a snapshot can go on reading; the directory is free for the next engine.
        self.shared.store.close_cache();
    }
}

/// Waits until a thread ends, or until `is_over`. A request to a server that is away may take longer than an
/// unmount should; what it sends is already in the durable state.
fn join_unless(thread: JoinHandle<()>, is_over: &dyn Fn() -> bool) {
    if thread.thread().id() == std::thread::current().id() {
        return;
    }
    while !thread.is_finished() && !is_over() {
        std::thread::sleep(Duration::from_millis(1));
    }
    if thread.is_finished() {
        let _ = thread.join();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}
