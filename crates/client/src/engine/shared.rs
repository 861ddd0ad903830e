//! State of an engine that callers and the pump's thread share.

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

/// Longest single wait for another device's operation; after it the present view is looked at again.
const SETTLE_MS_MAX: u64 = 30_000;
/// How long a call waits for a server that has been silent for a whole deadline already.
const SILENT_PATIENCE: Duration = Duration::from_secs(5);

/// Files of which it is remembered how often their content was found wrong.
const FAILURES_KEPT: usize = 8192;
/// From how many failures of a file on their number is told, at each power of two.
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

/// A view that callers read from, and its place among those this engine has accepted.
#[derive(Clone)]
pub(super) struct LatestView {
    /// Number of views that were accepted before it.
    pub sequence: u64,
    /// The view to read from.
    pub base: Arc<Base>,
    /// The floor with the view; it knows by which pending operations the view may be completed.
    pub floor: Arc<Floor>,
    /// Files that others held exclusively at that position, so that this view may be outdated for them.
    pub withheld: Arc<Withheld>,
}

/// How often each file's content was found wrong, for a bounded number of files.
pub(super) struct Failures(LruCache<Option<Handle>, u64>);

impl Default for Failures {
    fn default() -> Failures {
        Failures(LruCache::new(NonZeroUsize::new(FAILURES_KEPT).expect("not zero")))
    }
}

impl Failures {
    /// Counts one more failure; returns their number.
    fn note(&mut self, file: Option<Handle>) -> u64 {
        let times = self.0.get_or_insert_mut(file, || 0);
        *times += 1;
        *times
    }
}

/// State of one engine that callers and the pump share.
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
    /// Why the key did not sign when it was last asked to.
    key_trouble: RwLock<Option<String>>,
    /// The server says that this device is no member.
    excluded: AtomicBool,
    /// A call has waited its full time in vain, and no answer has come since.
    silent: AtomicBool,
    pub last_operation: AtomicU64,
    frozen: RwLock<Option<Arc<FrozenReport>>>,
    /// A failure of this machine that nothing can go on after.
    broken: RwLock<Option<FsError>>,
    pub notices: Notices,
    pub leases: Leases,
    /// Set once, when the engine has begun.
    pub freshness: OnceLock<Arc<FreshnessMonitor>>,
    /// Set once, when the engine has begun to meet peers.
    pub peers: OnceLock<Arc<Peers>>,
    /// Set once, when the engine has begun; `None` where no leaves of the log are kept.
    pub leaf_keeper: OnceLock<Arc<LeafKeeper>>,
    /// The declared restore that was taken up last.
    pub restores: Restores,
    /// Makes again what a restore lost of this device's operations.
    pub resend: Arc<Resend>,
    /// Called before each operation that only looks.
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

    /// Fails once the engine is frozen, broken or stopped.
    pub fn check(&self) -> Result<(), FsError> {
        if let Some(report) = &*self.frozen.read() {
            return Err(FsError::Frozen(report.clone()));
        }
        if let Some(error) = &*self.broken.read() {
            return Err(error.clone());
        }
        Ok(())
    }

    /// The alarm, if there was one.
    pub fn frozen(&self) -> Option<Arc<FrozenReport>> {
        self.frozen.read().clone()
    }

    /// Queues a request and waits for its answer.
    pub fn submit(&self, edit: Option<Arc<Mutex<dyn Edit>>>) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.may_operate(edit.is_some())?;
        self.submit_in_turn(edit, ReadSet::default(), RequestPriority::Usual)
    }

    /// Whether what was agreed for an old head, or a lost peer, lets an operation be made.
    pub fn may_operate(&self, changes: bool) -> Result<(), FsError> {
        self.freshness.get().map_or(Ok(()), |monitor| monitor.may_operate(changes))?;
        self.peers.get().map_or(Ok(()), |peers| peers.may_operate())
    }

    /// Queues a request in that turn, whatever programs wait for, and waits for its answer.
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
        // The engine may have frozen between the check and the push; then nobody would answer.
        self.check()?;
        waiter.wait(Instant::now() + self.patience(), || self.late())
    }

    /// A view sequenced after this call began. What else than `reads` others hold exclusively is found out when it is read.
    pub fn fetch(&self, reads: ReadSet) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.may_operate(false)?;
        let _guard = self.before_look.get().map(|begin| begin()).transpose()?;
        self.submit_in_turn(None, reads, RequestPriority::Usual)
    }

    /// A view for the resend, for which other requests wait.
    pub fn fetch_first(&self, reads: ReadSet) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.submit_in_turn(None, reads, RequestPriority::First)
    }

    /// A modification that belongs to the resend, so it does not wait for it.
    pub fn modify_first(&self, edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<Snapshot>, FsError> {
        self.check()?;
        self.submit_in_turn(Some(edit), ReadSet::default(), RequestPriority::First)
    }

    /// How long a call waits. Once one has waited its full time in vain, the next ones do not wait as long:
    /// programs ask again and again, the kernel lets them wait for one another, and nobody can interrupt them.
    pub fn patience(&self) -> Duration {
        if self.silent.load(Relaxed) { self.deadline.min(SILENT_PATIENCE) } else { self.deadline }
    }

    /// Notes that the server has answered: calls wait their full time again.
    pub fn note_answer(&self) {
        self.silent.store(false, Relaxed);
    }

    /// How the key did when it was last asked to sign; `None`: well.
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

    /// What the server answered instead of a connection, in words; `None`: it gives one, or does not answer.
    pub fn turned_away(&self) -> Option<String> {
        match self.remote.trouble()? {
            error @ (RpcError::Server(_) | RpcError::WrongServer { .. } | RpcError::Version { .. }) => {
                Some(error.to_string())
            }
            _ => None,
        }
    }

    /// Takes notice of the answer to a look, which every member may take: whether this device is one still.
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

    /// Whether the server says that this device is no member any more.
    pub fn is_excluded(&self) -> bool {
        self.excluded.load(Relaxed)
    }

    /// The error of a call whose deadline has passed.
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

    /// Waits until another device's operation is settled, and returns its structure if it was committed. It is
    /// not verified yet. `None` says nothing: only a view tells whether an operation is dead.
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

    /// Makes the signer know something before anybody relies on it (trace T9).
    pub fn report_event(&self, what: SignerEvent) -> Result<(), FsError> {
        let (done, told) = std::sync::mpsc::channel();
        if self.queue.push_event(QueuedEvent { event: what, done }) {
            // Ends with an error when the engine stops, and nobody is told.
            let _ = told.recv_timeout(self.deadline);
        }
        self.check()
    }

    /// What an error in the present view means to a caller: for good, with evidence and an entry in the log.
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

    /// Keeps evidence of an integrity failure that was found in the present view, and logs it.
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
        // Programs try again, and every block of a file may be damaged: it is told once, and then how often.
        if times == 1 {
            tracing::error!(report = %report, "integrity failure");
        } else if times.is_power_of_two() && times >= FAILURES_TOLD {
            tracing::error!(report = %report, times, "integrity failures of this file so far");
        }
        let report = Arc::new(report);
        self.notices.publish(Notice::Data(report.clone()));
        FsError::Integrity(report)
    }

    /// What an error in some view means, without any consequence: the view may be outdated.
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

    /// Takes a new view as the latest.
    pub fn publish(&self, base: Arc<Base>, floor: Arc<Floor>, withheld: Arc<Withheld>) -> LatestView {
        if let Some(keeper) = self.leaf_keeper.get() {
            keeper.note(&floor);
        }
        let mut latest = self.latest.write();
        *latest = LatestView { sequence: latest.sequence + 1, base, floor, withheld };
        latest.clone()
    }

    /// Stops everything for good: nothing the server shows is believed any more.
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

/// Whether a server's answer is final, so that the operation's number must be given up.
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
