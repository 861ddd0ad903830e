//! The state of an engine that callers and the pump's thread share.

use super::commits::Commits;
use super::freshness::FreshnessMonitor;
use super::leaf_keeper::LeafKeeper;
use super::leases::Leases;
use super::notes::Notes;
use super::notices::{Notice, Notices};
use super::peers::Peers;
use super::queue::{Job, Queue, QueuedEvent, RequestPriority, SignerEvent, Waiter};
use super::resend::Resend;
use super::restored::Restores;
use super::snapshot::Snapshot;
use crate::backend::{LookHook, ReadSet};
use crate::error::{FrozenReport, FsError, IntegrityReport};
use crate::evidence::{Evidence, now_ns};
use crate::remote::Remote;
use crate::store::VerifiedStore;
use crate::tree::{Base, Edit, ReadError, TableCache};
use holdfast_content::{ContentError, DeviceId, Handle, SourceError, Tag};
use holdfast_crypto::{SignError, encode};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::leases::Withheld;
use holdfast_protocol::message::{Request, Response, ServerError};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use holdfast_rpc::RpcError;
use lru::LruCache;
use parking_lot::{Mutex, RwLock};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing::Span;

/// Longest single wait for another device's operation, in milliseconds; after that, the present view is
/// checked again.
const SETTLE_MS_MAX: u64 = 30_000;
/// How long a call waits for a server that has not answered for the full deadline of an earlier call.
const SILENT_PATIENCE: Duration = Duration::from_secs(5);

/// Most files for which integrity failures are counted.
const FAILURES_KEPT: usize = 8192;
/// From this many failures of a file on, each power of two is logged.
const FAILURES_TOLD: u64 = 64;

/// Counts since the start.
#[derive(Default)]
pub(super) struct Counters {
    pub operations: AtomicU64,
    pub fast: AtomicU64,
    pub refused: AtomicU64,
    pub pushes: AtomicU64,
    pub conflicts: AtomicU64,
    pub gathered: AtomicU64,
    pub rounds: AtomicU64,
    pub fsyncs: AtomicU64,
    pub replaced_tables: AtomicU64,
}

/// A view that callers read from, with its place in the sequence of views that this engine has accepted.
#[derive(Clone)]
pub(super) struct LatestView {
    /// Number of views accepted before it.
    pub sequence: u64,
    /// The view to read from.
    pub base: Arc<Base>,
    /// The floor that includes the view; it determines which pending operations may complete the view.
    pub floor: Arc<Floor>,
    /// Files that other devices held exclusively at that position in the order; this view may be outdated for
    /// them.
    pub withheld: Arc<Withheld>,
}

/// Counts how often each file's content was found wrong, for a bounded number of files.
pub(super) struct Failures(LruCache<Option<Handle>, u64>);

impl Default for Failures {
    fn default() -> Failures {
        Failures(LruCache::new(NonZeroUsize::new(FAILURES_KEPT).expect("not zero")))
    }
}

impl Failures {
    /// Counts one more failure of a file; returns their number.
    fn note(&mut self, file: Option<Handle>) -> u64 {
        let times = self.0.get_or_insert_mut(file, || 0);
        *times += 1;
        *times
    }
}

/// The state of one engine that callers and the pump share.
pub(super) struct Shared {
    pub address: String,
    pub me: DeviceId,
    pub deadline: Duration,
    pub remote: Arc<dyn Remote>,
    pub store: VerifiedStore,
    pub evidence: Arc<Evidence>,
    /// Integrity failures of each file.
    pub failures: Mutex<Failures>,
    pub tables: Arc<TableCache>,
    pub queue: Queue,
    pub commits: Commits,
    pub notes: Notes,
    pub counters: Counters,
    /// The last accepted view.
    pub latest: RwLock<LatestView>,
    pub in_flight: AtomicBool,
    /// Why the key did not sign when it was last asked; `None` if it did.
    key_trouble: RwLock<Option<String>>,
    /// Whether the server says that this device is no member.
    excluded: AtomicBool,
    /// Whether a call has waited its full time in vain and no answer has come since.
    silent: AtomicBool,
    pub last_operation: AtomicU64,
    frozen: RwLock<Option<Arc<FrozenReport>>>,
    /// A failure of this machine after which the engine cannot go on.
    broken: RwLock<Option<FsError>>,
    pub notices: Notices,
    pub leases: Leases,
    /// Set once, when the engine has started.
    pub freshness: OnceLock<Arc<FreshnessMonitor>>,
    /// Set once, when the engine has started to meet peers.
    pub peers: OnceLock<Arc<Peers>>,
    /// Set once, when the engine has started; stays empty if no leaves of the log are stored.
    pub leaf_keeper: OnceLock<Arc<LeafKeeper>>,
    /// The restore that was taken up last.
    pub restores: Restores,
    /// Makes operations of this device again that a restore lost.
    pub resend: Arc<Resend>,
    /// Called before each operation that only reads.
    pub before_look: OnceLock<LookHook>,
}

impl Shared {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        address: String,
        me: DeviceId,
        deadline: Duration,
        remote: Arc<dyn Remote>,
        store: VerifiedStore,
        evidence: Arc<Evidence>,
        tables: Arc<TableCache>,
        base: Arc<Base>,
        floor: Arc<Floor>,
        leases: Leases,
        resend: Arc<Resend>,
    ) -> Shared {
        Shared {
            address,
            me,
            deadline,
            remote,
            store,
            evidence,
            failures: Mutex::default(),
            tables,
            queue: Queue::default(),
            commits: Commits::default(),
            notes: Notes::default(),
            counters: Counters::default(),
            latest: RwLock::new(LatestView {
                sequence: 0,
                base,
                floor,
                withheld: Arc::new(Withheld::everything()),
            }),
            in_flight: AtomicBool::new(false),
            key_trouble: RwLock::default(),
            excluded: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            last_operation: AtomicU64::new(0),
            frozen: RwLock::default(),
            broken: RwLock::default(),
            notices: Notices::default(),
            leases,
            freshness: OnceLock::new(),
            peers: OnceLock::new(),
            leaf_keeper: OnceLock::new(),
            restores: Restores::default(),
            resend,
            before_look: OnceLock::new(),
        }
    }

    /// Fails once the engine is frozen or broken.
    pub fn check(&self) -> Result<(), FsError> {
        if let Some(report) = &*self.frozen.read() {
            return Err(FsError::Frozen(report.clone()));
        }
        if let Some(error) = &*self.broken.read() {
            return Err(error.clone());
        }
        Ok(())
    }

    /// The alarm's report, if the engine is frozen.
    pub fn frozen(&self) -> Option<Arc<FrozenReport>> {
        self.frozen.read().clone()
    }

    /// Queues a request and waits for its answer.
    pub fn submit(&self, edit: Option<Arc<Mutex<dyn Edit>>>) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.may_operate(edit.is_some())?;
        self.submit_in_turn(edit, ReadSet::default(), RequestPriority::Usual)
    }

    /// Whether an operation may be made, in view of the policies for an old head and for lost peers.
    pub fn may_operate(&self, changes: bool) -> Result<(), FsError> {
        self.freshness.get().map_or(Ok(()), |monitor| monitor.may_operate(changes))?;
        self.peers.get().map_or(Ok(()), |peers| peers.may_operate())
    }

    /// Queues a request with a priority, whatever the policies say, and waits for its answer.
    pub fn submit_in_turn(
        &self,
        edit: Option<Arc<Mutex<dyn Edit>>>,
        reads: ReadSet,
        turn: RequestPriority,
    ) -> Result<Arc<Snapshot>, FsError> {
        let waiter = Arc::new(Waiter::default());
        let job = Job {
            edit,
            reads,
            waiter: Some(waiter.clone()),
            ticket: None,
            alone: false,
            refusals: 0,
            missing: None,
            redone: None,
            priority: turn,
            span: Span::current(),
        };
        self.counters.gathered.fetch_add(1, Relaxed);
        if !self.queue.push(job) {
            return Err(self.check().err().unwrap_or_else(stopped));
        }
        // The engine may have frozen between the check and the push; then the request would never be
        // answered.
        self.check()?;
        waiter.wait(Instant::now() + self.patience(), || self.late())
    }

    /// Fetches a view that is ordered after this call began. `reads`: files to be read in it. For other
    /// files, exclusive access of other devices is noticed only when they are read.
    pub fn fetch(&self, reads: ReadSet) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.may_operate(false)?;
        let _guard = self.before_look.get().map(|begin| begin()).transpose()?;
        self.submit_in_turn(None, reads, RequestPriority::Usual)
    }

    /// Fetches a view for the resend, ahead of waiting requests.
    pub fn fetch_first(&self, reads: ReadSet) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.submit_in_turn(None, reads, RequestPriority::First)
    }

    /// Makes a modification for the resend, ahead of waiting requests.
    pub fn modify_first(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.submit_in_turn(Some(edit), ReadSet::default(), RequestPriority::First)
    }

    /// How long a call waits. Once a call has waited its full time in vain, later calls wait for a shorter
    /// time: programs try again and again, the kernel makes them wait for each other, and they cannot be
    /// interrupted.
    pub fn patience(&self) -> Duration {
        if self.silent.load(Relaxed) { self.deadline.min(SILENT_PATIENCE) } else { self.deadline }
    }

    /// Notes that the server has answered: calls wait their full time again.
    pub fn note_answer(&self) {
        self.silent.store(false, Relaxed);
    }

    /// Notes the result of the key's last signature; `None`: it signed.
    pub fn key_did(&self, trouble: Option<&SignError>) {
        let trouble = trouble.map(ToString::to_string);
        if *self.key_trouble.read() == trouble {
            return;
        }
        match &trouble {
            Some(why) => tracing::warn!(why, "the key does not sign"),
            None => tracing::info!("the key signs again"),
        }
        *self.key_trouble.write() = trouble;
    }

    /// Why the key did not sign when it was last asked to, for an operation or to connect.
    pub fn key_trouble(&self) -> Option<String> {
        self.key_trouble.read().clone().or_else(|| match self.remote.trouble() {
            Some(RpcError::Key(why)) => Some(why.to_string()),
            _ => None,
        })
    }

    /// The server's answer in words, if it refuses a connection; `None` if it accepts one or does not answer.
    pub fn turned_away(&self) -> Option<String> {
        match self.remote.trouble()? {
            error @ (RpcError::Server(_) | RpcError::WrongServer { .. } | RpcError::Version { .. }) => {
                Some(error.to_string())
            }
            _ => None,
        }
    }

    /// Learns from the answer to a Look request, which every member may send, whether this device is still a
    /// member.
    pub fn looked(&self, answer: &Result<Response, RpcError>) {
        let is_excluded = match answer {
            Ok(Response::View(_)) => false,
            Ok(Response::Error(ServerError::NotAllowed(_)))
            | Err(RpcError::Server(ServerError::NotAllowed(_))) => true,
            _ => return,
        };
        if self.excluded.swap(is_excluded, Relaxed) == is_excluded {
            return;
        }
        match is_excluded {
            true => tracing::error!(
                "the server takes nothing more from this device: it was removed from the file system, or its key was \
                 replaced; `holdfast status` says what becomes of unsaved work"
            ),
            false => tracing::info!("the server takes what this device signs again"),
        }
    }

    /// Whether the server says that this device is no longer a member.
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Relaxed)
    }

    /// The error for a call whose deadline has passed.
    pub fn late(&self) -> FsError {
        self.check().err().unwrap_or_else(|| {
            let waited = self.patience().as_secs();
            self.silent.store(true, Relaxed);
            if let Some(why) = self.key_trouble() {
                return FsError::Key(why);
            }
            if let Some(answer) = self.turned_away() {
                return FsError::Unreachable(answer);
            }
            FsError::Unreachable(format!("no answer within {waited} seconds"))
        })
    }

    /// Waits until another device's operation is settled, and returns its structure, not verified yet, if it
    /// was committed. `None` has no meaning: only a view shows whether an operation is dead.
    pub fn wait_settled(&self, tag: Tag, deadline: Instant) -> Option<Box<Signed<Structure>>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let abort_after = self.remote.welcome().map_or(10_000, |welcome| u64::from(welcome.abort_after_ms));
        let wait_ms = (abort_after + 500).min(SETTLE_MS_MAX).min(left.as_millis() as u64) as u32;
        let request = Request::FetchPending { device: tag.device, number: tag.number, wait_ms };
        let patience = Duration::from_millis(u64::from(wait_ms) + 5_000).min(left);
        match self.remote.call(request, patience) {
            Ok(Response::Structure(structure)) => structure,
            _ => None,
        }
    }

    /// Passes an event to the signer and waits until it has been handled, before anybody relies on it (trace
    /// T9).
    pub fn report_event(&self, what: SignerEvent) -> Result<(), FsError> {
        let (done, told) = std::sync::mpsc::channel();
        if self.queue.push_event(QueuedEvent { event: what, done }) {
            // If the engine stops first, this ends with an error.
            let _ = told.recv_timeout(self.deadline);
        }
        self.check()
    }

    /// Turns an error in the present view into the caller's error. An integrity failure has consequences:
    /// evidence and an entry in the log.
    pub fn explain(
        &self,
        file: Option<Handle>,
        path: Option<String>,
        error: &ReadError,
        base: &Base,
    ) -> FsError {
        let mut error = self.describe(file, error);
        if let FsError::Integrity(report) = &mut error {
            Arc::make_mut(report).path = path;
        }
        self.announce(error, base)
    }

    /// Saves evidence of an integrity failure that was found in the present view, and logs it.
    pub fn announce(&self, error: FsError, base: &Base) -> FsError {
        let FsError::Integrity(report) = error else { return error };
        let mut report = Arc::unwrap_or_clone(report);
        if let Some(address) = report.missing {
            let about = report.file.map_or(String::new(), |file| format!(" (file {file})"));
            let text = format!("{}{about}", report.what);
            report.evidence = self.evidence.keep_missing(address, encode(&*base.view), text);
        }
        if let (Some(evidence), Some(path)) = (&report.evidence, &report.path) {
            self.evidence.concerns(evidence, path);
        }
        let times = self.failures.lock().note(report.file);
        // Programs try again, and every block of a file may be damaged. So the failure is logged once, and
        // later only the number of failures.
        if times == 1 {
            tracing::error!(report = %report, "integrity failure");
        } else if times.is_power_of_two() && times >= FAILURES_TOLD {
            tracing::error!(report = %report, times, "integrity failures of this file so far");
        }
        let report = Arc::new(report);
        self.notices.publish(Notice::Data(report.clone()));
        FsError::Integrity(report)
    }

    /// Turns an error in any view into an [`FsError`], without consequences: the view may be outdated.
    pub fn describe(&self, file: Option<Handle>, error: &ReadError) -> FsError {
        let mut report = IntegrityReport {
            file,
            path: None,
            what: error.to_string(),
            noticed_ns: now_ns(),
            last_good_operation: self.last_operation.load(Relaxed),
            evidence: None,
            missing: None,
        };
        match error {
            ReadError::NotFound => return FsError::NotFound,
            ReadError::NotDirectory => return FsError::NotDirectory,
            ReadError::Overflow(_) => return FsError::Busy,
            ReadError::Content(ContentError::Source(SourceError::Unreachable(_, why))) => {
                return FsError::Unreachable(why.clone());
            }
            ReadError::Content(ContentError::Misuse(why)) => return FsError::Invalid(why.to_string()),
            ReadError::Content(ContentError::Input(why)) => return FsError::Invalid(why.clone()),
            ReadError::Content(ContentError::Source(SourceError::Altered(address, why))) => {
                report.what = format!("the server gave altered data: {why}");
                report.evidence = self.evidence.of_block(address);
            }
            ReadError::Content(ContentError::Source(SourceError::Missing(address))) => {
                report.what = format!(
                    "the server says that it does not have block {}, which its present state refers to",
                    address.short()
                );
                report.missing = Some(*address);
            }
            ReadError::Content(ContentError::Malformed { .. }) => {
                report.what =
                    format!("{error}; it is authentic, so whoever wrote it last wrote it so, not the server");
            }
            ReadError::Misplaced(_) => {}
        }
        FsError::Integrity(Arc::new(report))
    }

    /// Makes a view the latest.
    pub fn publish(&self, base: Arc<Base>, floor: Arc<Floor>, withheld: Arc<Withheld>) -> LatestView {
        if let Some(keeper) = self.leaf_keeper.get() {
            keeper.note(&floor);
        }
        let mut latest = self.latest.write();
        *latest = LatestView { sequence: latest.sequence + 1, base, floor, withheld };
        latest.clone()
    }

    /// Stops everything for good, because the server cannot be trusted any more.
    pub fn freeze(&self, report: FrozenReport) {
        let report = {
            let mut frozen = self.frozen.write();
            frozen.get_or_insert_with(|| Arc::new(report)).clone()
        };
        tracing::error!(report = %report, "frozen");
        self.notices.publish(Notice::Order(report.clone()));
        self.fail_all(&FsError::Frozen(report));
    }

    /// Stops everything, because this machine failed.
    pub fn break_down(&self, error: FsError) {
        tracing::error!(%error, "the local state failed");
        self.broken.write().get_or_insert(error.clone());
        self.fail_all(&error);
    }

    fn fail_all(&self, error: &FsError) {
        self.queue.stop();
        for job in self.queue.drain() {
            job.answer(Err(error.clone()));
        }
        self.commits.lose_all(error);
    }
}

/// The error of calls after [`super::Engine::stop`].
pub(super) fn stopped() -> FsError {
    FsError::Unreachable("the file system is being unmounted".to_owned())
}

/// Whether a server's refusal is final, so that the operation's number must be given up.
pub(super) fn is_definite(error: &RpcError) -> bool {
    match error {
        RpcError::Server(
            ServerError::Busy
            | ServerError::NoSpace
            | ServerError::Storage(_)
            | ServerError::AwaitsDeclaration,
        ) => false,
        RpcError::Server(_) | RpcError::TooLarge { .. } => true,
        _ => false,
    }
}
