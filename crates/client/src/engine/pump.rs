//! The one thread that signs: it gathers what callers wish for into one operation, drives the signer through it,
//! and answers.
//!
//! Invariants:
//! - one operation is in flight at a time; whoever arrives meanwhile shares the next one;
//! - nothing is sent before the signer's state is durable, and nothing read from a view is handed out before the
//!   floor that holds it is;
//! - an answer is given only for a view that was sequenced after the wish: results planned on the last view
//!   count only if the server took the operation on exactly that view (fast path) or the same plan comes out on
//!   the view it answered with;
//! - an operation that does not fit its place in the order is committed without effect *at once* and made again,
//!   so nobody ever waits for anybody before COMMIT.

use super::queue::{Job, Learned, Lesson, Taken};
use super::settle::Parking;
use super::shared::{Place, Shared, is_definite, stopped};
use super::snapshot::Snapshot;
use crate::error::{FrozenReport, FsError};
use crate::evidence::now_ns;
use crate::state::{Frozen, State, StateError, StateLog};
use crate::tree::{Allocator, Base, Plan, ReadError, Transaction};
use holdfast_content::{Handle, Membership, PrincipalId, Reference, Tag};
use holdfast_crypto::{Digest, SigningKey, encode};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::certificate::Path;
use holdfast_protocol::check::{Accepted, membership_wanted};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{
    ATTACHED_BYTES_MAX, BATCH_MAX, Receipt, Request, Response, ServerError, ViewReply,
};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, Finished, Signer, Tables};
use holdfast_protocol::structure::{Outcome, Structure, View};
use holdfast_rpc::RpcError;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Most wishes in one operation.
const JOBS_MAX: usize = 256;
/// No further edit joins an operation with this many changes; one edit alone may make more.
const CHANGES_MAX: usize = 512;
/// After this long without a wish the pump tidies up.
const IDLE: Duration = Duration::from_secs(1);
/// Longest pause between attempts to reach the server.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Refusals of one wish after which the caller is told.
const REFUSALS_MAX: u32 = 64;
/// Superseded tables given up at once.
const SUPERSEDED_MAX: usize = 256;

/// The thread's own state.
pub(super) struct Pump {
    shared: Arc<Shared>,
    key: SigningKey,
    signer: Signer,
    state: StateLog,
    allocator: Allocator,
    /// The membership block read last.
    members: Option<(Digest, Arc<Membership>)>,
    base: Arc<Base>,
    parking: Arc<Parking>,
    /// A state that may be lost in a power failure at the cost of a resend.
    noted: bool,
    superseded: Vec<Digest>,
    /// The reply in hand when an alarm is raised.
    reply: Option<ViewReply>,
}

/// Why the thread ends.
pub(super) enum End {
    /// It was told to, or froze; whoever waits has been told.
    Stopped,
}

/// One operation on its way.
#[derive(Default)]
struct Operation {
    jobs: Vec<Job>,
    /// The plan that the certificate declares; `None` for one recovered after a restart.
    plan: Option<Plan>,
    /// Numbers as the plan left them.
    work: Option<Allocator>,
    verdicts: Vec<Verdict>,
    /// Whether the callers have their answers.
    answered: bool,
    ticket: Option<u64>,
    effective: bool,
    /// The server's final answer to a request it did not take.
    refusal: Option<FsError>,
    /// The own table before it.
    former_table: Option<Digest>,
}

/// What an operation means for one wish.
enum Verdict {
    /// The caller's answer.
    Answer(Result<(), FsError>),
    /// It must be planned again.
    Again,
    /// It must be planned again, by itself.
    Alone,
    /// It must be planned again once these are settled.
    Wait(BTreeSet<Tag>),
}

/// A plan with what it means for each wish.
struct Planned {
    plan: Result<Plan, ReadError>,
    results: Vec<(Result<(), FsError>, BTreeSet<Tag>)>,
    /// How many wishes took part; the rest did not fit.
    took: usize,
}

impl Pump {
    pub fn new(
        shared: Arc<Shared>,
        key: SigningKey,
        signer: Signer,
        state: StateLog,
        allocator: Allocator,
    ) -> Pump {
        let base = shared.latest.read().base.clone();
        let parking = Arc::new(Parking::new(shared.clone()));
        Pump {
            shared,
            key,
            signer,
            state,
            allocator,
            members: None,
            base,
            parking,
            noted: false,
            superseded: Vec::new(),
            reply: None,
        }
    }

    /// Finishes what an earlier process left unfinished.
    fn recover(&mut self) -> Result<(), End> {
        self.greet()?;
        let effects = self.step(Event::Restarted)?;
        let mut operation = Operation { answered: true, ..Operation::default() };
        self.drive(effects, &mut operation)?;
        self.renew_base();
        Ok(())
    }

    /// Serves until it is stopped.
    pub fn run(mut self) {
        let _alarm = TellOfPanic(self.shared.clone());
        if self.recover().is_err() {
            return self.end();
        }
        loop {
            match self.shared.queue.take(JOBS_MAX, IDLE) {
                Taken::Jobs(jobs) => {
                    self.shared.in_flight.store(true, Relaxed);
                    let result = self.operate(jobs);
                    self.shared.in_flight.store(false, Relaxed);
                    if result.is_err() {
                        break;
                    }
                }
                Taken::Lessons(lessons) => {
                    if self.learn(lessons).is_err() {
                        break;
                    }
                }
                Taken::Idle => self.tidy(),
                Taken::Stopped => break,
            }
        }
        self.end();
    }

    /// Saves what may be lost and tells everybody who still waits.
    fn end(&mut self) {
        if self.shared.check().is_ok() && self.noted {
            let _ = self.save(None);
        }
        let error = self.shared.check().err().unwrap_or_else(stopped);
        for job in self.shared.queue.drain() {
            job.answer(Err(error.clone()));
        }
        self.parking.fail(&error);
        self.shared.commits.lose_all(&error);
    }

    /// One operation for these wishes, or for as many of them as fit.
    fn operate(&mut self, mut jobs: Vec<Job>) -> Result<(), End> {
        let fast = self.signer.wants_fast() && self.members.is_some();
        let planned = self.plan(&jobs, self.allocator.begin(), if fast { Path::Fast } else { Path::Slow });
        let rest = jobs.split_off(planned.took);
        if !rest.is_empty() {
            self.shared.queue.push_front(rest);
        }
        let mut plan = match planned.plan {
            Ok(plan) => plan,
            // The last known view cannot be read; a fetch shows whether the present one can.
            Err(_) => self.empty_plan(),
        };
        let tables = if fast { plan.build(&self.base).ok() } else { None };
        if fast && tables.is_none() && !plan.deltas.is_empty() {
            // Planned for the fast path, so directories are not re-mapped: not fit to be declared for the slow
            // one.
            plan = match self.plan(&jobs, self.allocator.begin(), Path::Slow).plan {
                Ok(plan) => plan,
                Err(_) => self.empty_plan(),
            };
        }
        let mut operation = Operation {
            verdicts: planned.results.into_iter().map(|(result, _)| Verdict::Answer(result)).collect(),
            work: Some(plan.allocator.clone()),
            former_table: self.own_table(),
            jobs,
            ..Operation::default()
        };
        let deltas = plan.deltas.clone();
        operation.effective = !deltas.is_empty();
        operation.plan = Some(plan);
        let counters = &self.shared.counters;
        counters.operations.fetch_add(1, Relaxed);
        if tables.is_some() {
            counters.fast.fetch_add(1, Relaxed);
        }
        let begun = self.step(Event::Begin { deltas, time_ns: now_ns(), fast: tables });
        match begun.and_then(|effects| self.drive(effects, &mut operation)) {
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

    /// Plans as many wishes as fit, on the present base.
    fn plan(&self, jobs: &[Job], allocator: Allocator, path: Path) -> Planned {
        let base = self.base.clone();
        // What fails on an outdated view is no failure yet: see `judge`.
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
        Planned { plan: transaction.finish(path), took: results.len(), results }
    }

    fn empty_plan(&self) -> Plan {
        let explain = |_: Option<Handle>, _: &ReadError| FsError::Busy;
        let transaction = Transaction::new(&self.base, self.allocator.begin(), &explain);
        transaction.finish(Path::Slow).expect("a plan without changes reads nothing")
    }

    /// What readers found out while they waited.
    fn learn(&mut self, lessons: Vec<Lesson>) -> Result<(), End> {
        for Lesson { what, done } in lessons {
            match what {
                Learned::Alarm(alarm) => {
                    self.freeze(&alarm);
                    return Err(End::Stopped);
                }
                Learned::Committed(structure) => self.learn_one(*structure)?,
            }
            let _ = done.send(());
        }
        Ok(())
    }

    /// The reader has verified the structure against the view it read; the signer may be further by now.
    fn learn_one(&mut self, structure: Signed<Structure>) -> Result<(), End> {
        let (device, number) = (structure.value.device(), structure.value.number());
        let view = &self.signer.floor().view;
        let later = view.slots.get(&device).is_some_and(|slot| slot.value.number() > number);
        let given_up = structure.value.outcome == Outcome::Done
            && view.fate_of(device, number) == holdfast_content::Fate::Aborted;
        if later && !given_up {
            return Ok(());
        }
        let members = self.base.membership.clone();
        let event = Event::Learned { structure, members: &*members };
        let effects = self.step(event)?;
        self.drive(effects, &mut Operation { answered: true, ..Operation::default() })?;
        self.renew_base();
        self.shared.publish(self.base.clone(), self.floor());
        Ok(())
    }

    fn floor(&self) -> Arc<Floor> {
        Arc::new(self.signer.floor().clone())
    }

    /// Tells the signer something; it never objects to a driver that keeps its rules.
    fn step(&mut self, event: Event<'_>) -> Result<VecDeque<Effect>, End> {
        match self.signer.step(&self.key, event) {
            Ok(effects) => Ok(effects.into()),
            Err(misuse) => {
                self.shared.break_down(FsError::Refused(misuse.to_string()));
                Err(End::Stopped)
            }
        }
    }

    /// Does what the signer says until the operation is over.
    fn drive(
        &mut self,
        mut effects: VecDeque<Effect>,
        operation: &mut Operation,
    ) -> Result<Option<Finished>, End> {
        let mut finished = None;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::Persist(bytes) => self.persist(bytes, operation)?,
                Effect::Note(_) => self.noted = true,
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
                Effect::FreezeAll => return Err(End::Stopped),
            }
        }
        Ok(finished)
    }

    /// Makes the signer's state durable. A full disk is waited for; any other failure is the end, since what is
    /// durable is then unknown.
    fn persist(&mut self, bytes: Vec<u8>, operation: &Operation) -> Result<(), End> {
        // What this operation reserves is not to be relied on before it is committed; its numbers are spent in
        // any case.
        let allocator = operation.work.clone().map_or_else(|| self.allocator.clone(), Allocator::burned);
        loop {
            match self.save(Some((&bytes, &allocator))) {
                Ok(()) => return Ok(()),
                Err(StateError::Full) => {
                    for job in &operation.jobs {
                        job.answer(Err(FsError::NoSpace));
                    }
                    if self.shared.queue.is_stopped() {
                        return Err(End::Stopped);
                    }
                    std::thread::sleep(PAUSE_MAX);
                }
                Err(error) => {
                    self.shared.break_down(FsError::Local {
                        kind: std::io::ErrorKind::Other,
                        text: format!("the state of this device could not be saved: {error}"),
                    });
                    return Err(End::Stopped);
                }
            }
        }
    }

    fn save(&mut self, what: Option<(&[u8], &Allocator)>) -> Result<(), StateError> {
        let (signer, allocator) = match what {
            Some((bytes, allocator)) => (bytes.to_vec(), allocator.clone()),
            None => (self.signer.to_bytes(), self.allocator.clone()),
        };
        let frozen = self.shared.frozen().map(|report| Frozen {
            what: report.what.clone(),
            noticed_ns: report.noticed_ns,
            last_good_operation: report.last_good_operation,
            evidence: report.evidence.as_ref().map(|path| path.display().to_string()),
        });
        let floor = self.signer.floor();
        self.state.save(&State {
            format: 1,
            file_system: floor.file_system,
            key: self.key.public(),
            signer,
            allocator,
            frozen,
        })?;
        self.noted = false;
        self.shared.counters.fsyncs.store(self.state.syncs(), Relaxed);
        Ok(())
    }

    /// Sends until there is an answer that settles something, however long that takes: the operation is signed,
    /// so it cannot be forgotten. Callers give up by their own deadlines.
    fn send(&mut self, request: Request, operation: &mut Operation) -> Result<VecDeque<Effect>, End> {
        let mut pause = Duration::from_millis(20);
        let committing = matches!(request, Request::Commit { .. });
        loop {
            if self.shared.queue.is_stopped() && !committing {
                return Err(End::Stopped);
            }
            let error = match self.exchange(&request, operation) {
                Ok(Response::View(reply)) => return self.accept(*reply, operation),
                Ok(Response::Committed(receipt)) => return self.committed(receipt),
                Ok(Response::Refused) => {
                    self.shared.counters.refused.fetch_add(1, Relaxed);
                    return self.step(Event::Refused);
                }
                Ok(Response::Aborted) => return self.step(Event::Aborted),
                Ok(other) => crate::store::unexpected("an operation", &other),
                Err(error) => error,
            };
            if is_definite(&error) {
                tracing::warn!(%error, "the server did not take an operation");
                operation.refusal = Some(FsError::from(&error));
                let effects = self.step(Event::Refused)?;
                self.look()?;
                return Ok(effects);
            }
            tracing::debug!(%error, "no answer; asking again");
            if let RpcError::Server(ServerError::NoSpace | ServerError::Storage(_)) = &error {
                for job in &operation.jobs {
                    job.answer(Err(FsError::from(&error)));
                }
            }
            if self.shared.queue.is_stopped() {
                // Unmounting does not wait for a server that is away; a restart sends it again.
                return Err(End::Stopped);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// After a refusal that an honest server has no reason for: does it still know what it showed before? One
    /// that was put back to an older state refuses everything, and only its view tells why.
    fn look(&mut self) -> Result<(), End> {
        let log_size = self.signer.floor().log().size;
        let Ok(Response::View(mut reply)) =
            self.shared.remote.call(Request::Look { log_size }, self.shared.deadline)
        else {
            return Ok(());
        };
        reply.blocks.clear();
        let reference = match membership_wanted(self.signer.floor(), &reply.view) {
            Ok(reference) => reference,
            Err(alarm) => {
                self.reply = Some(*reply);
                self.freeze(&alarm);
                return Err(End::Stopped);
            }
        };
        let Ok(members) = Membership::load(&self.shared.store, &reference) else { return Ok(()) };
        self.reply = Some(*reply);
        let Some(reply) = &self.reply else { unreachable!("it was just put there") };
        let event = Event::Look { reply, members: &members };
        match self.signer.step(&self.key, event) {
            Ok(effects) => {
                let mut operation = Operation { answered: true, ..Operation::default() };
                self.drive(effects.into(), &mut operation).map(drop)
            }
            Err(_) => Ok(()),
        }
    }

    /// One attempt, with the blocks that belong to the request.
    fn exchange(&mut self, request: &Request, operation: &Operation) -> Result<Response, RpcError> {
        let mut request = request.clone();
        let roots = match &request {
            Request::Fast { structure, .. } | Request::Commit { structure, .. } => roots(&structure.value),
            _ => operation.plan.iter().flat_map(Plan::declared).collect(),
        };
        let unsent = self.shared.store.collect(roots);
        let attached = self.shared.store.send_ahead(unsent, ATTACHED_BYTES_MAX, BATCH_MAX)?;
        match &mut request {
            Request::Fast { blocks, .. }
            | Request::Update { blocks, .. }
            | Request::Commit { blocks, .. } => {
                blocks.clone_from(&attached);
            }
            _ => {}
        }
        self.shared.counters.rounds.fetch_add(1, Relaxed);
        let response = match self.shared.remote.call(request, self.shared.deadline)? {
            Response::Error(error) => return Err(error.into()),
            response => response,
        };
        if matches!(response, Response::View(_) | Response::Committed(_)) {
            self.shared.store.acknowledge(&attached);
        }
        self.greet().map_err(|End::Stopped| RpcError::Closed)?;
        Ok(response)
    }

    /// Takes a newer list of server keys, if the connection brought one.
    fn greet(&mut self) -> Result<(), End> {
        let known = self.signer.floor().server_keys.as_ref().map_or(0, |keys| keys.value.sequence);
        let shown = self.shared.remote.welcome().and_then(|welcome| welcome.file_system);
        if let Some((_, keys)) = shown
            && (keys.value.sequence > known || self.signer.floor().server_keys.is_none())
        {
            let effects = self.step(Event::ServerKeys(keys))?;
            self.drive(effects, &mut Operation { answered: true, ..Operation::default() })?;
        }
        Ok(())
    }

    /// The answer to an UPDATE.
    fn accept(&mut self, mut reply: ViewReply, operation: &Operation) -> Result<VecDeque<Effect>, End> {
        self.shared.store.accept_hints(std::mem::take(&mut reply.blocks));
        // What has been read must be known before a view is judged that may contradict it.
        let lessons = self.shared.queue.lessons();
        self.learn(lessons)?;
        let members = self.membership_of(&reply.view, operation)?;
        self.reply = Some(reply);
        let Some(reply) = &self.reply else { unreachable!("it was just put there") };
        let event = Event::Reply { reply, members: &*members };
        match self.signer.step(&self.key, event) {
            Ok(effects) => {
                self.members_in_use(members);
                Ok(effects.into())
            }
            Err(misuse) => {
                self.shared.break_down(FsError::Refused(misuse.to_string()));
                Err(End::Stopped)
            }
        }
    }

    fn members_in_use(&mut self, members: Arc<Membership>) {
        if let Ok(reference) = membership_wanted(self.signer.floor(), &self.signer.floor().view) {
            self.members = Some((reference.address, members));
        }
    }

    /// The membership that a view names.
    fn membership_of(&mut self, view: &View, operation: &Operation) -> Result<Arc<Membership>, End> {
        let reference = match membership_wanted(self.signer.floor(), view) {
            Ok(reference) => reference,
            Err(alarm) => {
                self.freeze(&alarm);
                let _ = self.save(None);
                return Err(End::Stopped);
            }
        };
        if let Some((address, members)) = &self.members
            && *address == reference.address
        {
            return Ok(members.clone());
        }
        self.load_membership(&reference, operation)
    }

    /// Nothing can be believed or done without the membership, so it is asked for until it comes.
    fn load_membership(&self, reference: &Reference, operation: &Operation) -> Result<Arc<Membership>, End> {
        let mut pause = Duration::from_millis(50);
        loop {
            match Membership::load(&self.shared.store, reference) {
                Ok(members) => return Ok(Arc::new(members)),
                Err(error) => {
                    let error = self.shared.explain(None, None, &ReadError::Content(error), &self.base);
                    for job in &operation.jobs {
                        job.answer(Err(error.clone()));
                    }
                }
            }
            if self.shared.queue.is_stopped() {
                return Err(End::Stopped);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn committed(&mut self, receipt: Signed<Receipt>) -> Result<VecDeque<Effect>, End> {
        self.step(Event::Committed(receipt))
    }

    /// The operation has its place: is the plan still right there?
    fn fold(&mut self, accepted: &Accepted, operation: &mut Operation) -> Result<VecDeque<Effect>, End> {
        self.base = Arc::new(self.base_of(accepted.view.clone()));
        self.shared.last_operation.store(accepted.forecast.number(), Relaxed);
        match self.try_fold(operation) {
            Ok((outcome, tables)) => {
                operation.effective &= outcome == Outcome::Done;
                self.step(Event::Folded { outcome, tables })
            }
            Err(error) => {
                // Tables of others cannot be read, or too much is pending in them, so that not even a structure
                // without effect can be made: give the number up.
                operation.verdicts = operation
                    .jobs
                    .iter()
                    .map(|_| match &error {
                        ReadError::Overflow(tag) => Verdict::Wait([*tag].into()),
                        error => Verdict::Answer(Err(self.shared.explain(None, None, error, &self.base))),
                    })
                    .collect();
                self.step(Event::Restarted)
            }
        }
    }

    fn try_fold(&mut self, operation: &mut Operation) -> Result<(Outcome, Tables), ReadError> {
        let (Some(declared), Some(work)) = (&mut operation.plan, &operation.work) else {
            return Ok((Outcome::Done, Tables::new()));
        };
        let planned = self.plan(&operation.jobs, self.allocator.again(work), Path::Slow);
        let all_fit = planned.took == operation.jobs.len();
        let outcome = match planned.plan {
            Ok(mut plan) if all_fit && plan.deltas == declared.deltas && plan.conflicts.is_empty() => {
                match plan.build(&self.base) {
                    Ok(tables) => {
                        operation.verdicts = planned.results.into_iter().map(Verdict::of).collect();
                        operation.work = Some(plan.allocator.clone());
                        operation.plan = Some(plan);
                        return Ok((Outcome::Done, tables));
                    }
                    Err(error) => Err(error),
                }
            }
            Ok(plan) => Ok(plan.conflicts),
            Err(error) => Err(error),
        };
        // Without effect: every edit is planned again, whatever it came to, since it may have been judged
        // together with others that take no effect either.
        let alone = outcome.is_err() && operation.jobs.len() > 1;
        let overflow = match &outcome {
            Err(ReadError::Overflow(tag)) => Some(*tag),
            _ => None,
        };
        operation.verdicts = operation
            .jobs
            .iter()
            .zip(planned.results.into_iter().map(Some).chain(std::iter::repeat_with(|| None)))
            .map(|(job, result)| match (result, &outcome) {
                _ if job.edit.is_none() => Verdict::Answer(Ok(())),
                (_, Err(_)) if overflow.is_some() => Verdict::Wait(overflow.into_iter().collect()),
                (_, Err(_)) if alone => Verdict::Alone,
                (_, Err(error)) => Verdict::Answer(Err(self.shared.explain(None, None, error, &self.base))),
                (Some((_, tags)), _) if !tags.is_empty() => Verdict::Wait(tags),
                _ => Verdict::Again,
            })
            .collect();
        self.shared.counters.conflicts.fetch_add(1, Relaxed);
        let tables = declared.give_way(&self.base)?;
        let outcome = if declared.deltas.is_empty() { Outcome::Done } else { Outcome::Nothing };
        operation.effective = false;
        Ok((outcome, tables))
    }

    fn base_of(&self, view: View) -> Base {
        let members = match &self.members {
            Some((_, members)) => members.clone(),
            None => self.base.membership.clone(),
        };
        let blocks = Arc::new(self.shared.store.clone());
        Base::new(Arc::new(view), members, self.shared.me, blocks, self.shared.tables.clone())
    }

    /// Answers the callers of an operation that is signed, durable here and on its way to be committed. Only
    /// `fsync` and `close` wait for the rest.
    fn answer_early(&mut self, structure: &Signed<Structure>, operation: &mut Operation) {
        if operation.answered {
            return;
        }
        self.judge(operation);
        let mut view = self.signer.floor().view.clone();
        view.slots.insert(self.shared.me, structure.clone());
        self.base = Arc::new(self.base_of(view));
        let place = self.shared.publish(self.base.clone(), self.floor());
        let answered = operation.verdicts.iter().zip(&operation.jobs);
        let pieces = answered
            .filter(|(verdict, job)| matches!(verdict, Verdict::Answer(Ok(()))) && job.edit.is_some())
            .filter(|(_, job)| job.ticket.is_none())
            .count();
        let ticket = (operation.effective && pieces > 0).then(|| self.shared.commits.open(pieces));
        self.answer(operation, place, ticket);
        operation.ticket = ticket;
        operation.answered = true;
    }

    /// An edit that failed because of bad data: the view it failed on is the present one, so the failure is
    /// real; except that a missing block may have gone because the view has moved on once more.
    fn judge(&self, operation: &mut Operation) {
        for (job, verdict) in operation.jobs.iter_mut().zip(&mut operation.verdicts) {
            let Verdict::Answer(Err(FsError::Integrity(report))) = verdict else { continue };
            if report.missing.is_some() && report.missing != job.missing {
                job.missing = report.missing;
                *verdict = Verdict::Again;
            } else {
                let error = self.shared.announce(FsError::Integrity(report.clone()), &self.base);
                *verdict = Verdict::Answer(Err(error));
            }
        }
    }

    fn answer(&self, operation: &Operation, place: Place, ticket: Option<u64>) {
        let snapshot = Arc::new(Snapshot::new(self.shared.clone(), place, ticket));
        for (job, verdict) in operation.jobs.iter().zip(&operation.verdicts) {
            if let Verdict::Answer(result) = verdict {
                job.answer(result.clone().map(|()| snapshot.clone()));
            }
        }
    }

    /// After the operation: who is answered, who goes on waiting.
    fn conclude(&mut self, mut operation: Operation, finished: Option<Finished>) {
        self.renew_base();
        let place = self.shared.publish(self.base.clone(), self.floor());
        if let Some(Finished::Committed(structure)) = finished {
            self.shared.last_operation.store(structure.value.number(), Relaxed);
            let work = operation.work.take().unwrap_or_default();
            self.allocator = if operation.effective { work.committed() } else { work.burned() };
            if !operation.answered {
                self.judge(&mut operation);
                self.answer(&operation, place, None);
            }
            if let Some(ticket) = operation.ticket {
                self.shared.commits.settle(ticket);
            }
            self.remember_superseded(operation.former_table);
        } else {
            // Not taken, or dead: nothing of it counts, and everything is made again. Callers who have their
            // answer do not notice, unless it turns out to be impossible now.
            if let Some(work) = operation.work.take() {
                self.allocator = work.burned();
            }
            if finished != Some(Finished::GivenUp) {
                self.plan_again(&mut operation);
            }
            for (job, verdict) in operation.jobs.iter().zip(&operation.verdicts) {
                if let Verdict::Answer(Err(error)) = verdict {
                    job.answer(Err(error.clone()));
                }
            }
        }
        self.requeue(operation);
    }

    /// What an operation that was not taken, or died, means for its wishes.
    fn plan_again(&self, operation: &mut Operation) {
        let shared = operation.jobs.len() > 1;
        for (job, verdict) in operation.jobs.iter_mut().zip(&mut operation.verdicts) {
            if operation.answered && matches!(verdict, Verdict::Answer(_)) {
                let lost =
                    operation.effective && job.edit.is_some() && matches!(verdict, Verdict::Answer(Ok(())));
                if !lost {
                    continue;
                }
                job.waiter = None;
                job.ticket = job.ticket.or(operation.ticket);
            }
            job.refusals += 1;
            *verdict = match &operation.refusal {
                Some(_) if shared => Verdict::Alone,
                Some(error) => Verdict::Answer(Err(error.clone())),
                None if job.refusals > REFUSALS_MAX => {
                    let why = "again and again, without saying why";
                    Verdict::Answer(Err(FsError::Refused(why.to_owned())))
                }
                None => Verdict::Again,
            };
        }
    }

    /// Puts back what must be made again, and settles what was made again.
    fn requeue(&mut self, operation: Operation) {
        let mut again = Vec::new();
        for (mut job, verdict) in operation.jobs.into_iter().zip(operation.verdicts) {
            match verdict {
                Verdict::Answer(result) => {
                    if let (Some(ticket), None) = (job.ticket, &job.waiter) {
                        self.shared.commits.settle_one(ticket, result);
                    }
                }
                Verdict::Again => again.push(job),
                Verdict::Alone => {
                    job.alone = true;
                    again.push(job);
                }
                Verdict::Wait(tags) => self.parking.park(job, tags),
            }
        }
        if !again.is_empty() {
            self.shared.queue.push_front(again);
        }
    }

    /// Reads from what the signer has accepted and committed.
    fn renew_base(&mut self) {
        let floor = self.signer.floor();
        if let Ok(reference) = membership_wanted(floor, &floor.view)
            && self.members.as_ref().is_none_or(|(address, _)| *address != reference.address)
        {
            // Without it the next operation goes the slow path, whose answer brings the present one.
            self.members = Membership::load(&self.shared.store, &reference)
                .ok()
                .map(|members| (reference.address, Arc::new(members)));
        }
        self.base = Arc::new(self.base_of(self.signer.floor().view.clone()));
    }

    fn own_table(&self) -> Option<Digest> {
        let own = PrincipalId::Device(self.shared.me);
        self.signer.floor().own()?.value.handles.get(&own).map(|handle| handle.reference.address)
    }

    /// The own table that an operation replaced is nobody's any more.
    fn remember_superseded(&mut self, former: Option<Digest>) {
        let present = self.own_table();
        self.superseded.extend(former);
        self.superseded.retain(|table| Some(*table) != present);
        let excess = self.superseded.len().saturating_sub(SUPERSEDED_MAX);
        self.superseded.drain(..excess);
    }

    /// While nobody waits: give up tables that were replaced, and make the last note durable.
    fn tidy(&mut self) {
        if !self.superseded.is_empty() {
            let superseded = std::mem::take(&mut self.superseded);
            if let Err(error) = self.shared.store.dereference(superseded) {
                tracing::debug!(%error, "superseded tables are left to the collector");
            }
        }
        if self.noted && self.save(None).is_err() {
            tracing::debug!("a note could not be saved; a restart will ask the server instead");
        }
    }

    /// Keeps evidence and tells everybody.
    fn freeze(&mut self, alarm: &Alarm) {
        let what = alarm.explain();
        let reply = self.reply.take().map(|reply| encode(&reply)).unwrap_or_default();
        let floor = encode(self.signer.floor());
        let evidence = self.shared.evidence.keep_order(what.clone(), encode(alarm), floor, reply);
        self.shared.freeze(FrozenReport {
            what,
            noticed_ns: now_ns(),
            last_good_operation: self.signer.floor().last(),
            evidence,
        });
        // So that a restart finds the report, not only the alarm.
        let _ = self.save(None);
    }
}

/// Nobody is to wait for a thread that is gone.
struct TellOfPanic(Arc<Shared>);

impl Drop for TellOfPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.break_down(FsError::Local {
                kind: std::io::ErrorKind::Other,
                text: "the signing thread failed; unmount and mount again".to_owned(),
            });
        }
    }
}

impl Verdict {
    fn of((result, tags): (Result<(), FsError>, BTreeSet<Tag>)) -> Verdict {
        if tags.is_empty() { Verdict::Answer(result) } else { Verdict::Wait(tags) }
    }
}

/// Everything a structure's tables reach.
fn roots(structure: &Structure) -> Vec<Digest> {
    structure.handles.values().map(|handle| handle.reference.address).collect()
}
