//! The pump: the one thread that signs. It combines requests of callers into one operation, drives the signer
//! through it, and answers.
//!
//! Invariants:
//! - One operation is in flight at a time; requests that arrive meanwhile share the next one.
//! - Nothing is sent before the signer's state is durable. Nothing read from a view is handed out before the
//!   floor that includes the view is durable.
//! - An answer is given only for a view that was ordered after the request. Results planned on the last view
//!   count only if the server took the operation on exactly that view (the fast path), or if the same plan
//!   results on the view it answered with.
//! - An operation that does not fit its place in the order is committed without effect *at once* and made
//!   again, so no device ever waits for another before COMMIT.

mod answering;
mod durable;
mod exchange;
mod placement;
mod take_up;

pub(super) use take_up::TakeUp;

use super::queue::{Job, NextWork};
use super::settle::ParkedRequests;
use super::shared::{Shared, stopped};
use crate::backend::ReadSet;
use crate::error::FsError;
use crate::evidence::now_ns;
use crate::pauses::Pauses;
use crate::state::StateLog;
use crate::tree::{Allocator, Base, Plan, ReadError, Transaction};
use holdfast_content::{DeviceId, Handle, Membership, Tag};
use holdfast_crypto::{Digest, KeyHolder, SignError};
use holdfast_protocol::certificate::{DELTAS_MAX, Delta, Path};
use holdfast_protocol::leases::{LEASE_REQUESTS_MAX, LeaseGrant, LeaseRequest, Withheld};
use holdfast_protocol::message::{Request, ViewReply};
use holdfast_protocol::signer::{Effect, Event, Misuse, OperationEnd, Signer};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tracing::{trace, trace_span};

/// Most requests in one operation.
const JOBS_MAX: usize = 256;
/// No further edit joins an operation with this many changes; one edit alone may make more.
const CHANGES_MAX: usize = 512;
/// Most files, besides those that an operation changes, for which leases are requested with it.
const SIBLINGS_MAX: usize = 1024;
/// After this long without a request, the pump tidies up.
const IDLE: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach the server.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// State of the pump's thread.
pub(super) struct Pump {
    shared: Arc<Shared>,
    key: Arc<dyn KeyHolder>,
    signer: Signer,
    state: StateLog,
    /// Allocator of file numbers, as ended operations left it.
    allocator: Allocator,
    /// The allocator to store while an operation is in flight, in case its outcome never becomes certain.
    reserve: Option<Allocator>,
    /// The membership block read last, with its address.
    members: Option<(Digest, Arc<Membership>)>,
    base: Arc<Base>,
    /// Files that other devices held exclusively at the operation's position in the order.
    withheld: Arc<Withheld>,
    /// Files that other devices are expected to hold exclusively at the next operation's position.
    foreseen: Arc<Withheld>,
    parking: Arc<ParkedRequests>,
    /// The highest number that the key had signed for when the pump began.
    signed: u64,
    superseded: Vec<Digest>,
    /// The reply being checked, as evidence if an alarm is raised.
    reply: Option<ViewReply>,
    /// What is needed to take up a declared restore.
    take_up: TakeUp,
}

/// Why the pump's thread ends.
pub(super) enum PumpEnd {
    /// It was stopped, or the engine is frozen; all callers have got their answers.
    Stopped,
}

/// One operation, from its plan to its answer.
#[derive(Default)]
struct Operation {
    jobs: Vec<Job>,
    /// The plan that the certificate declares; `None` for one recovered after a restart.
    plan: Option<Plan>,
    /// The allocator as the plan left it.
    work: Option<Allocator>,
    /// The epoch in which the operation began.
    epoch: Option<Digest>,
    verdicts: Vec<RequestOutcome>,
    /// Whether the callers have their answers.
    answered: bool,
    ticket: Option<u64>,
    effective: bool,
    /// The server's final answer to a request it did not take.
    refusal: Option<FsError>,
    /// Whether the server's answer should have the whole view, because its difference from the accepted view
    /// could not be resolved.
    wants_whole: bool,
    /// Address of this device's table before the operation.
    former_table: Option<Digest>,
    lease: OperationLeases,
}

/// The leases that go with an operation.
#[derive(Default)]
struct OperationLeases {
    /// What the operation reads.
    reads: ReadSet,
    /// Files in the directories that the operation changes, at most [`SIBLINGS_MAX`]: they are likely to be
    /// changed next, so leases of them are requested with it.
    siblings: Vec<Handle>,
    /// Whether a caller is going to read in the operation's view.
    looks: bool,
    /// Whether the operation changes something.
    changes: bool,
    request: Option<LeaseRequest>,
    /// When its declaration was first sent.
    first_sent_ms: Option<u64>,
    /// The leases that were granted, and the time from which their term counts.
    grant: Option<(LeaseGrant, u64)>,
    /// Files that other devices hold exclusively.
    withheld: Option<Withheld>,
}

/// What an operation means for one request.
enum RequestOutcome {
    /// This is the caller's answer.
    Answer(Result<(), FsError>),
    /// The request must be planned again.
    Again,
    /// The request must be planned again, in an operation of its own.
    Alone,
    /// The request must be planned again once these operations are settled.
    Wait(BTreeSet<Tag>),
}

/// A plan, with its result for each request.
struct PlannedOperation {
    plan: Result<Plan, ReadError>,
    results: Vec<(Result<(), FsError>, BTreeSet<Tag>)>,
    /// Files that the edits read, including edits that failed.
    reads: BTreeSet<Handle>,
    /// How many requests took part; the others did not fit.
    took: usize,
}

impl Pump {
    pub fn new(
        shared: Arc<Shared>,
        key: Arc<dyn KeyHolder>,
        signer: Signer,
        state: StateLog,
        allocator: Allocator,
        signed: u64,
        take_up: TakeUp,
    ) -> Pump {
        let base = shared.latest.read().base.clone();
        let parking = Arc::new(ParkedRequests::new(shared.clone()));
        Pump {
            shared,
            key,
            signer,
            state,
            allocator,
            reserve: None,
            members: None,
            base,
            withheld: Arc::new(Withheld::everything()),
            foreseen: Arc::new(Withheld::everything()),
            parking,
            signed,
            superseded: Vec::new(),
            reply: None,
            take_up,
        }
    }

    /// Finishes what an earlier process left unfinished.
    fn recover(&mut self) -> Result<(), PumpEnd> {
        self.take_server_keys()?;
        let effects = self.step(Event::Restarted)?;
        let mut operation = Operation { answered: true, ..Operation::default() };
        self.drive(effects, &mut operation)?;
        self.catch_up()?;
        self.renew_base();
        Ok(())
    }

    /// Gives up a number that the key has signed for and that this state does not include: an earlier process
    /// ended between the signature and its own record of it, so nothing with that number was sent.
    fn catch_up(&mut self) -> Result<(), PumpEnd> {
        let used = self.signer.floor().used;
        match self.signed.saturating_sub(used) {
            0 => return Ok(()),
            1 => {}
            more => {
                self.shared.break_down(FsError::Key(format!(
                    "this device's state is older than what its key has signed, by {more} operations: it was put back. \
                     Put back what is newer; or make a new key (`holdfast keygen`) and have the superuser enrol it as \
                     another device (`holdfast fs device add`)"
                )));
                return Err(PumpEnd::Stopped);
            }
        }
        if let Err(misuse) = self.signer.skip() {
            self.shared.break_down(FsError::Refused(misuse.to_string()));
            return Err(PumpEnd::Stopped);
        }
        tracing::info!(number = self.signed, "gave up a number that was signed for and not sent");
        let signer = self.signer.clone();
        self.persist(&signer, &Operation { answered: true, ..Operation::default() })
    }

    /// The pump's thread: makes operations until it is stopped.
    pub fn run(mut self) {
        let _alarm = PanicNotifier(self.shared.clone());
        if self.recover().is_err() {
            return self.end();
        }
        loop {
            match self.shared.queue.take(JOBS_MAX, IDLE) {
                NextWork::Jobs(jobs) => {
                    self.shared.in_flight.store(true, Relaxed);
                    let result = self.operate(jobs);
                    self.shared.in_flight.store(false, Relaxed);
                    if result.is_err() {
                        break;
                    }
                    if self.superseded.len() >= durable::SUPERSEDED_MAX {
                        self.give_up_superseded();
                    }
                }
                NextWork::Events(events) => {
                    if self.handle_events(events).is_err() {
                        break;
                    }
                }
                NextWork::SyncNotes => self.keep_notes(),
                NextWork::Idle => {
                    self.give_up_superseded();
                    self.keep_notes();
                }
                NextWork::Stopped => break,
            }
        }
        self.end();
    }

    /// Saves what may be lost, and fails all requests that still wait.
    fn end(&mut self) {
        // Saves the report also if another thread froze the engine: the state on disk may not include it yet.
        let is_frozen = self.shared.frozen().is_some();
        if is_frozen || self.shared.check().is_ok() && self.shared.notes.has_pending() {
            let _ = self.save(None);
        }
        let error = self.shared.check().err().unwrap_or_else(stopped);
        for job in self.shared.queue.drain() {
            job.answer(Err(error.clone()));
        }
        self.parking.fail(&error);
        self.shared.commits.lose_all(&error);
        self.shared.notes.end(&error);
        if self.shared.check().is_ok() && self.shared.remote.is_connected() {
            self.give_up_superseded();
        }
    }

    /// Makes one operation for these requests, or for as many of them as fit.
    fn operate(&mut self, mut jobs: Vec<Job>) -> Result<(), PumpEnd> {
        let number = self.signer.floor().used + 1;
        let device = self.shared.me.0;
        let _span =
            trace_span!(target: "operation", "operation", device, number, jobs = jobs.len()).entered();
        let mut fast = self.signer.wants_fast() && self.members.is_some();
        let path = |fast| if fast { Path::Fast } else { Path::Slow };
        let mut planned = self.plan(&jobs, self.allocator.begin(), path(fast));
        let (reads, siblings) = (planned.all_reads(&jobs), self.siblings(&planned));
        self.shared.leases.edits(planned.changed());
        if fast && (reads.everything || reads.files.iter().any(|file| self.foreseen.has(file))) {
            // The holder of such a file sends its changes first, so this view will not be current by then.
            fast = false;
            planned = self.plan(&jobs, self.allocator.begin(), path(fast));
        }
        let changes = planned.changed().next().is_some();
        let rest = jobs.split_off(planned.took);
        if !rest.is_empty() {
            self.shared.queue.push_front(rest);
        }
        for job in &jobs {
            job.span
                .in_scope(|| trace!(target: "operation", operation = number, "is carried by an operation"));
        }
        let looks = jobs.iter().any(|job| job.edit.is_none());
        let mut verdicts: Vec<RequestOutcome> =
            planned.results.into_iter().map(|(result, _)| RequestOutcome::Answer(result)).collect();
        let mut plan = match planned.plan {
            Ok(plan) if self.is_lawful(&plan) => plan,
            // Nothing can be declared: a fetch shows whether the view is current. If it is, one of the edits
            // is to blame, and each is tried by itself.
            unusable => {
                let alone = jobs.len() == 1;
                let error = match unusable {
                    Ok(_) => FsError::TooLarge,
                    Err(error) => self.shared.describe(None, &error),
                };
                for (job, verdict) in jobs.iter().zip(&mut verdicts) {
                    if job.edit.is_some() {
                        *verdict = if alone {
                            RequestOutcome::Answer(Err(error.clone()))
                        } else {
                            RequestOutcome::Alone
                        };
                    }
                }
                self.empty_plan()
            }
        };
        let tables = if fast { plan.build(&self.base).ok() } else { None };
        if fast && tables.is_none() {
            // The plan was made for the fast path, without re-mapping directories; so it must not be declared
            // on the slow path.
            plan = match self.plan(&jobs, self.allocator.begin(), Path::Slow).plan {
                Ok(plan) if self.is_lawful(&plan) => plan,
                _ => self.empty_plan(),
            };
        }
        let mut operation = Operation {
            verdicts,
            work: Some(plan.allocator.clone()),
            former_table: self.own_table(),
            epoch: Some(self.signer.floor().epoch),
            jobs,
            lease: OperationLeases { reads, siblings, looks, changes, ..OperationLeases::default() },
            ..Operation::default()
        };
        // What this operation reserves must not be relied on before it is committed; the numbers it used are
        // spent in any case.
        self.reserve = Some(plan.allocator.clone().without_effect());
        let deltas = plan.deltas.clone();
        operation.effective = !deltas.is_empty();
        operation.plan = Some(plan);
        let counters = &self.shared.counters;
        counters.operations.fetch_add(1, Relaxed);
        if tables.is_some() {
            counters.fast.fetch_add(1, Relaxed);
        }
        let begin = Event::Begin { deltas, time_ns: now_ns(), fast: tables };
        let driven = match self.sign(begin) {
            Ok(Ok(effects)) => self.drive(effects, &mut operation),
            Ok(Err(refusal)) => {
                self.refused_by_key(&refusal, &mut operation);
                Ok(Some(OperationEnd::GivenUp))
            }
            Err(end) => Err(end),
        };
        match driven {
            Ok(finished) => {
                self.conclude(operation, finished);
                Ok(())
            }
            Err(end) => {
                let error = self.shared.check().err().unwrap_or_else(stopped);
                for job in &operation.jobs {
                    job.answer(Err(error.clone()));
                }
                Err(end)
            }
        }
    }

    /// The files in directories that this plan changes, at most [`SIBLINGS_MAX`]. Directories that this
    /// device has also changed within the last second are mostly left out, since their files were requested
    /// then.
    fn siblings(&self, planned: &PlannedOperation) -> Vec<Handle> {
        let directories: BTreeSet<Handle> = planned.directories().collect();
        let mut all = Vec::new();
        for directory in self.shared.leases.wanting_siblings(directories.into_iter()) {
            // The view was just planned on, so its nodes are in memory. Files that cannot be listed are left
            // out.
            let Ok((entries, _)) = self.base.entries(directory, None, SIBLINGS_MAX) else { continue };
            all.extend(entries.into_iter().map(|(_, entry)| entry.handle));
        }
        all.truncate(SIBLINGS_MAX);
        all
    }

    /// Plans as many requests as fit, on the present base.
    fn plan(&self, jobs: &[Job], allocator: Allocator, path: Path) -> PlannedOperation {
        let _span = trace_span!(target: "operation", "plan", ?path).entered();
        let base = self.base.clone();
        // An edit that fails on an outdated view has not failed for good: see `judge`.
        let explain = |file: Option<Handle>, error: &ReadError| self.shared.describe(file, error);
        let mut transaction = Transaction::new(&base, allocator, &explain);
        let mut results = Vec::new();
        for job in jobs {
            let Some(edit) = &job.edit else {
                results.push((Ok(()), BTreeSet::new()));
                continue;
            };
            if transaction.len() >= CHANGES_MAX {
                break;
            }
            results.push(transaction.run(&mut *edit.lock()));
        }
        let reads = transaction.reads();
        PlannedOperation { plan: transaction.finish(path), took: results.len(), results, reads }
    }

    /// Whether this device may declare the plan as one operation: a change of the membership under a warrant
    /// must be the only change in it.
    fn is_lawful(&self, plan: &Plan) -> bool {
        let changes_members = || plan.deltas.iter().any(|delta| matches!(delta, Delta::SetMembers { .. }));
        plan.deltas.len() <= DELTAS_MAX
            && (plan.deltas.len() <= 1 || self.shared.me == DeviceId::SUPERUSER || !changes_members())
    }

    fn empty_plan(&self) -> Plan {
        let explain = |_: Option<Handle>, _: &ReadError| FsError::Busy;
        let transaction = Transaction::new(&self.base, self.allocator.begin(), &explain);
        transaction.finish(Path::Slow).expect("a plan without changes reads nothing")
    }

    /// Passes an event to the signer. It never objects to a driver that follows its rules.
    fn step(&mut self, event: Event<'_>) -> Result<VecDeque<Effect>, PumpEnd> {
        match self.signer.step(&*self.key, event) {
            Ok(effects) => Ok(effects.into()),
            Err(misuse) => {
                self.shared.break_down(FsError::Refused(misuse.to_string()));
                Err(PumpEnd::Stopped)
            }
        }
    }

    /// Passes an event to the signer that needs a signature. If the key's keeper is unreachable, this waits
    /// as for a server that does not answer: nothing is lost, and callers give up by their own deadlines. A
    /// keeper that refuses is not asked again, as it may be a person.
    fn sign(&mut self, event: Event<'static>) -> Result<Result<VecDeque<Effect>, SignError>, PumpEnd> {
        let _span = trace_span!(target: "operation", "sign").entered();
        let mut pauses = Pauses::new(Duration::from_millis(20), PAUSE_MAX);
        loop {
            let error = match self.signer.step(&*self.key, event.clone()) {
                Ok(effects) => {
                    self.shared.key_did(None);
                    return Ok(Ok(effects.into()));
                }
                Err(Misuse::NotSigned(error)) => error,
                Err(misuse) => {
                    self.shared.break_down(FsError::Refused(misuse.to_string()));
                    return Err(PumpEnd::Stopped);
                }
            };
            self.shared.key_did(Some(&error));
            if matches!(error, SignError::Refused(_)) {
                return Ok(Err(error));
            }
            if self.shared.queue.is_stopped() {
                return Err(PumpEnd::Stopped);
            }
            std::thread::sleep(pauses.after_failure());
        }
    }

    /// Handles the key's refusal to sign an operation: callers get an error, but requests that were already
    /// acknowledged are tried again after a pause.
    fn refused_by_key(&self, refusal: &SignError, operation: &mut Operation) {
        for (job, verdict) in operation.jobs.iter().zip(&mut operation.verdicts) {
            *verdict = match job.ticket {
                Some(_) => RequestOutcome::Again,
                None => RequestOutcome::Answer(Err(FsError::Key(refusal.to_string()))),
            };
        }
        if operation.jobs.iter().any(|job| job.ticket.is_some()) {
            std::thread::sleep(PAUSE_MAX);
        }
    }

    /// Carries out the signer's effects until the operation is over.
    fn drive(
        &mut self,
        mut effects: VecDeque<Effect>,
        operation: &mut Operation,
    ) -> Result<Option<OperationEnd>, PumpEnd> {
        let mut finished = None;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Persist(signer) => self.persist(&signer, operation)?,
                Effect::Note(_) => self.shared.notes.add(),
                Effect::Send(request) => {
                    if let Request::Commit { structure, .. } = &*request {
                        self.answer_early(structure, operation);
                    }
                    effects.extend(self.send(*request, operation)?);
                }
                Effect::Fold(accepted) => effects.extend(self.fold(&accepted, operation)?),
                Effect::Finished(how) => finished = Some(how),
                Effect::Advanced => {}
                Effect::Alarm(alarm) => self.freeze(&alarm),
                Effect::FreezeAll => return Err(PumpEnd::Stopped),
            }
        }
        Ok(finished)
    }
}

/// Fails all callers if the pump's thread panics, so that none waits in vain.
struct PanicNotifier(Arc<Shared>);

impl Drop for PanicNotifier {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = FsError::Local {
                kind: std::io::ErrorKind::Other,
                text: "the signing thread failed; unmount and mount again".to_owned(),
            };
            self.0.notes.end(&error);
            self.0.break_down(error);
        }
    }
}

impl PlannedOperation {
    /// Files that the operation changes.
    fn changed(&self) -> impl Iterator<Item = Handle> {
        self.plan.iter().flat_map(|plan| &plan.deltas).filter_map(|delta| match delta {
            Delta::SetInode { file, .. } | Delta::SetTable { file, .. } => Some(*file),
            Delta::SetEntry { directory, .. } => Some(*directory),
            Delta::Preallocate { .. } | Delta::SetMembers { .. } => None,
        })
    }

    /// Directories in which the operation changes names.
    fn directories(&self) -> impl Iterator<Item = Handle> {
        self.plan.iter().flat_map(directories_of)
    }

    /// What the operation reads and does not change: files named by callers, and files that the plan read.
    fn all_reads(&self, jobs: &[Job]) -> ReadSet {
        let mut all = ReadSet { files: self.reads.clone(), everything: false };
        for job in &jobs[..self.took] {
            all.everything |= job.reads.everything;
            all.files.extend(&job.reads.files);
        }
        for file in self.changed() {
            all.files.remove(&file);
        }
        if all.files.len() > LEASE_REQUESTS_MAX {
            all = ReadSet::everything();
        }
        all
    }
}

/// Directories in which a plan changes names.
fn directories_of(plan: &Plan) -> impl Iterator<Item = Handle> {
    plan.deltas.iter().filter_map(|delta| match delta {
        Delta::SetEntry { directory, .. } => Some(*directory),
        _ => None,
    })
}

impl RequestOutcome {
    fn of((result, tags): (Result<(), FsError>, BTreeSet<Tag>)) -> RequestOutcome {
        if tags.is_empty() { RequestOutcome::Answer(result) } else { RequestOutcome::Wait(tags) }
    }
}
