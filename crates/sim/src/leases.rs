//! Leases under virtual time: several clients that change and read files, one server, a network that loses and delays,
//! clients that fall silent, sleep and die, a server that is killed; and servers that lie.
//!
//! The machines are those that ship ([`LeaseTable`], [`LeaseHolder`]); around them is as little as it takes: an
//! operation has its place in the order when the table lets it, is committed a little later, and its answer brings the
//! state of that place. A client that holds a file exclusively changes it by itself, and sends that later, or before it
//! acknowledges a recall. The oracle: whatever is read, under a lease or in an operation's answer, by a client or by its
//! kernel, is what the last change has left that was committed, or acknowledged by whoever holds the file exclusively,
//! when the reading began, or a later one; unless a change of the client's own is on its way.

use crate::random::Random;
use holdfast_content::{DeviceId, Handle, Membership, PrincipalId, UserId};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::{Certificate, Delta, Path};
use holdfast_protocol::leases::{
    ClaimId, Footprint, LeaseGrant, LeaseHolder, LeaseRequest, LeaseTable, Recall, Scope, Withheld,
};
use holdfast_protocol::locks::SessionId;
use holdfast_protocol::vector::VoidSet;
use std::collections::{BTreeMap, BTreeSet};

/// The term of leases, in milliseconds.
pub const TERM_MS: u64 = 10_000;
const CLIENTS: u32 = 4;
const FILES: u64 = 3;
/// How long a kernel caches what it was given.
const KERNEL_MS: u64 = 1_000;
/// The time without an answer after which a client asks again.
const AGAIN_MS: u64 = 700;

/// A fault of the server, or of the drivers around the machines: the oracle must notice each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// The server orders changes without waiting for recalls.
    NoWaiting,
    /// The server grants leases of what others have pending.
    PendingGranted,
    /// The server grants leases to a repeated request as to a new one.
    RepeatGranted,
    /// The server forgets over a restart who held leases.
    Forgetful,
    /// Clients count the term from the answer.
    LateCount,
    /// Clients acknowledge before the kernel has forgotten.
    HastyAcknowledgement,
    /// The server lies: it never recalls anything.
    NeverRecalls,
    /// The server recalls everything all the time.
    AlwaysRecalls,
    /// The server ignores what operations read.
    ReadsIgnored,
    /// The server does not say what others hold exclusively.
    NothingWithheld,
    /// Clients acknowledge before they have sent what they changed by themselves.
    HastyFlush,
}

/// The outcome of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    /// Operations with an answer.
    pub operations: u64,
    /// Reads under lease.
    pub leased: u64,
    /// Reads under lease that were outdated.
    pub outdated: u64,
    /// The largest age of an outdated read, in milliseconds.
    pub outdated_ms_max: u64,
    /// Recalls that were carried out.
    pub recalls: u64,
    /// Files read in answers to operations.
    pub fetched: u64,
    /// Changes made under exclusive leases.
    pub made_here: u64,
    /// Steps in which every client held something exclusively.
    pub exclusive: [u64; CLIENTS as usize],
    /// Steps in which some client had the delegation.
    pub delegated: u64,
    /// Operations that read or changed what another held exclusively.
    pub intruded: u64,
    /// The longest wait of an operation that changes nothing, in milliseconds.
    pub waited_ms_max: u64,
}

type State = BTreeMap<Handle, u64>;

#[derive(Clone)]
struct Operation {
    number: u64,
    changes: State,
    /// These operations were acknowledged before.
    are_made: bool,
    lease_request: LeaseRequest,
    /// When the request was sent first, by its client's clock: the term counts from then.
    begun_ms: u64,
}

#[derive(Clone)]
enum Message {
    Operation { operation: Operation, sent_ms: u64 },
    Answer { run: u128, number: u64, state: State, grant: LeaseGrant, sent_ms: u64 },
    Question { run: u128, epoch: u64, acknowledged: u64 },
    Recalled { run: u128, epoch: u64, acknowledged: u64, recall: Option<Recall> },
}

struct Waiting {
    since_ms: u64,
    client: u32,
    operation: Operation,
    sent_ms: u64,
    claim: Option<ClaimId>,
}

/// The state of a file from some moment on, and its writer.
struct Version {
    value: u64,
    at_ms: u64,
    by: u32,
}

struct Pending {
    client: u32,
    change: (Handle, u64),
    commit_ms: u64,
}

struct Client {
    run: u128,
    holder: LeaseHolder,
    state: State,
    /// Changes made here that are not on their way yet.
    gathered: State,
    /// A recall waits for these changes, and for those on their way.
    flushes: bool,
    /// Until when they can be sent before others go on, by the client's own clock.
    gathered_until_ms: u64,
    under_way: Option<(Operation, u64)>,
    next_number: u64,
    asked_ms: Option<u64>,
    /// No request before this time: a recall is being carried out.
    busy_until_ms: u64,
    /// What the kernel caches, and until when.
    kernel: BTreeMap<Handle, (u64, u64)>,
    kernel_forgets_ms: Option<u64>,
    asleep_until_ms: u64,
    inbox: Vec<Message>,
    clock_ahead_ms: u64,
}

/// A run of the simulator.
struct World {
    random: Random,
    fault: Fault,
    now_ms: u64,
    table: LeaseTable,
    committed: State,
    /// The states of each file with their times: of what was ordered, or acknowledged by an exclusive holder.
    since: BTreeMap<Handle, Vec<Version>>,
    /// Files of which a change was acknowledged by a client that died or slept for too long with it, and the time from
    /// which this is over, because others have changed the file.
    uncertain: BTreeSet<Handle>,
    certain_since: BTreeMap<Handle, u64>,
    pending: Vec<Pending>,
    waiting: Vec<Waiting>,
    answered: BTreeMap<(u32, u64), State>,
    noted: BTreeSet<SessionId>,
    clients: Vec<Client>,
    mail: Vec<(u64, u32, bool, Message)>,
    membership: Membership,
    report: Report,
    work: Work,
}

/// What clients do in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// All operate at all times, and ask for leases.
    Leases,
    /// One is alone for a while; they ask to hold files exclusively, and for no leases.
    Lonely,
    /// All operate at all times, and ask for leases, mostly exclusive ones.
    Contended,
}

/// How long only one client operates, in runs in which one is alone.
const ALONE_MS: u64 = 30_000;
/// How long all operate then.
const TOGETHER_MS: u64 = 3_000;

/// Runs clients that hold files exclusively, one after the other, under leases of the usual term.
pub fn run_lonely(seed: u64, fault: Fault, steps: u64) -> Report {
    let mut world = World::new(seed, fault);
    world.work = Work::Lonely;
    world.table = LeaseTable::new(holdfast_protocol::leases::TERM_MS, 1);
    world.run(steps)
}

/// Runs clients that all want to hold files exclusively at once, and leases; each step is ten milliseconds.
pub fn run_contended(seed: u64, fault: Fault, steps: u64) -> Report {
    let mut world = World::new(seed, fault);
    world.work = Work::Contended;
    world.run(steps)
}

/// Runs `steps` of ten milliseconds each.
pub fn run(seed: u64, fault: Fault, steps: u64) -> Report {
    World::new(seed, fault).run(steps)
}

fn files() -> Vec<Handle> {
    let of =
        |user| (1..=FILES).map(move |number| Handle { principal: PrincipalId::User(UserId(user)), number });
    (0..2).flat_map(of).collect()
}

fn certificate(client: u32, changes: &State) -> Certificate {
    let delta =
        |(file, number): (&Handle, &u64)| Delta::SetInode { number: *number, file: *file, inode: None };
    Certificate {
        file_system: Digest::ZERO,
        device: DeviceId(client),
        number: 1,
        previous: Digest::ZERO,
        path: Path::Slow,
        voids: VoidSet::default(),
        ineffective: VoidSet::default(),
        time_ns: 0,
        deltas: changes.iter().map(delta).collect(),
    }
}

impl World {
    fn new(seed: u64, fault: Fault) -> World {
        let mut random = Random::new(seed);
        let state: State = files().into_iter().map(|file| (file, 0)).collect();
        let client = |random: &mut Random| Client {
            run: u128::from(random.number()),
            holder: LeaseHolder::default(),
            state: state.clone(),
            gathered: State::new(),
            flushes: false,
            gathered_until_ms: 0,
            under_way: None,
            next_number: 1,
            asked_ms: None,
            busy_until_ms: 0,
            kernel: BTreeMap::new(),
            kernel_forgets_ms: None,
            asleep_until_ms: 0,
            inbox: Vec::new(),
            clock_ahead_ms: random.below(1_000_000),
        };
        let clients = (0..CLIENTS).map(|_| client(&mut random)).collect();
        // Every device is the superuser's, so that it may write everything.
        let mut membership = crate::order::membership(CLIENTS);
        for device in membership.devices.values_mut() {
            device.user = UserId::SUPERUSER;
        }
        World {
            random,
            fault,
            now_ms: 1_000,
            table: LeaseTable::new(TERM_MS, 1),
            since: state
                .keys()
                .map(|file| (*file, vec![Version { value: 0, at_ms: 0, by: CLIENTS }]))
                .collect(),
            uncertain: BTreeSet::new(),
            certain_since: BTreeMap::new(),
            committed: state,
            pending: Vec::new(),
            waiting: Vec::new(),
            answered: BTreeMap::new(),
            noted: BTreeSet::new(),
            clients,
            mail: Vec::new(),
            membership,
            report: Report::default(),
            work: Work::Leases,
        }
    }

    fn run(mut self, steps: u64) -> Report {
        for _ in 0..steps {
            self.step();
        }
        self.report
    }

    /// Whether a client operates now.
    fn may_operate(&self, client: u32) -> bool {
        let (phase, since_ms) = (self.now_ms / ALONE_MS, self.now_ms % ALONE_MS);
        self.work != Work::Lonely || since_ms < TOGETHER_MS || phase % u64::from(CLIENTS) == u64::from(client)
    }

    /// A client with its clock.
    fn clocked(&self, client: u32) -> (&Client, u64) {
        let one = &self.clients[client as usize];
        (one, self.now_ms + one.clock_ahead_ms)
    }

    /// Whether a client holds any of these files exclusively.
    fn holds_exclusively(&self, client: u32, mut files: impl Iterator<Item = Handle>) -> bool {
        let (one, clock_ms) = self.clocked(client);
        files.any(|file| one.holder.holds_exclusively(file, clock_ms))
    }

    fn step(&mut self) {
        self.now_ms += 10;
        self.commit();
        self.serve();
        let due: Vec<_> = {
            let now_ms = self.now_ms;
            let (due, later) = std::mem::take(&mut self.mail).into_iter().partition(|mail| mail.0 <= now_ms);
            self.mail = later;
            due
        };
        for (_, client, to_server, message) in due {
            if to_server {
                self.receive(client, message);
            } else {
                self.clients[client as usize].inbox.push(message);
            }
        }
        for client in 0..CLIENTS {
            self.live(client);
        }
        for client in 0..CLIENTS {
            let (one, clock_ms) = self.clocked(client);
            let (exclusive, delegated) =
                (one.holder.exclusive_ms(clock_ms) > 0, one.holder.has_delegation(clock_ms));
            // Others may go on by now.
            let late = clock_ms >= one.gathered_until_ms;
            let sent = one
                .under_way
                .iter()
                .filter(|(operation, _)| !self.answered.contains_key(&(client, operation.number)));
            let sent = sent.flat_map(|(operation, _)| operation.changes.keys());
            let unsent: Vec<Handle> = one.gathered.keys().chain(sent).filter(|_| late).copied().collect();
            self.uncertain.extend(unsent);
            self.report.exclusive[client as usize] += u64::from(exclusive);
            self.report.delegated += u64::from(delegated);
        }
        if self.work != Work::Lonely && self.random.below(3_000) == 0 {
            self.restart();
        }
        if self.fault == Fault::AlwaysRecalls && self.random.chance(20) {
            for file in files() {
                let _ = self.table.recall_conflicts(
                    DeviceId(CLIENTS + 1),
                    &Footprint::file(file),
                    false,
                    self.now_ms,
                );
            }
        }
    }

    fn send(&mut self, client: u32, to_server: bool, message: Message) {
        if self.random.chance(8) {
            return;
        }
        let slow = if self.random.chance(5) { 3_000 } else { 60 };
        let due_ms = self.now_ms + self.random.below(slow);
        if self.random.chance(3) {
            let late_ms = due_ms + self.random.below(15_000);
            self.mail.push((late_ms, client, to_server, message.clone()));
        }
        self.mail.push((due_ms, client, to_server, message));
    }

    fn commit(&mut self) {
        let now_ms = self.now_ms;
        let (due, later) =
            std::mem::take(&mut self.pending).into_iter().partition(|op| op.commit_ms <= now_ms);
        self.pending = later;
        for Pending { change: (file, value), .. } in due {
            self.committed.insert(file, value);
        }
    }

    /// A client has changed a file, or an operation that changes it is ordered. What the client made by itself before
    /// counts from then on; unless others have changed the file since, as it had slept for too long, or what it made
    /// after that is lost.
    fn is_now(&mut self, client: u32, file: Handle, value: u64) {
        if self.uncertain.remove(&file) {
            self.certain_since.insert(file, self.now_ms);
        }
        let is_newer_here =
            self.clients[client as usize].gathered.get(&file).is_some_and(|made| *made != value);
        let history = self.since.get_mut(&file).expect("a file");
        let made = history.iter().rposition(|version| version.value == value).unwrap_or(0);
        let is_anothers = history[made..].iter().any(|version| version.by != client);
        let is_last = history.last().is_some_and(|last| last.value == value);
        if !is_last && (!is_newer_here || is_anothers) {
            history.push(Version { value, at_ms: self.now_ms, by: client });
        }
    }

    /// Orders every operation that nothing holds up.
    fn serve(&mut self) {
        let mut left = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            // Ordered already, by a copy of another run's request.
            if let Some(state) = self.answered.get(&(waiting.client, waiting.operation.number)).cloned() {
                self.answer(&waiting, state, false);
                if let Some(claim) = waiting.claim {
                    self.table.end_claim(claim);
                }
                continue;
            }
            let device = DeviceId(waiting.client);
            let touched = self.touched(&waiting);
            let operation = &waiting.operation;
            let is_contended =
                self.pending.iter().any(|pending| operation.changes.contains_key(&pending.change.0));
            let recalls = self.fault != Fault::NeverRecalls;
            let obstacle = recalls
                .then(|| {
                    self.table.recall_conflicts(
                        device,
                        &touched,
                        operation.lease_request.exclusive,
                        self.now_ms,
                    )
                })
                .flatten()
                .is_some();
            if is_contended || (obstacle && self.fault != Fault::NoWaiting) {
                waiting.claim.get_or_insert_with(|| {
                    self.table.claim(device, &touched, operation.lease_request.exclusive)
                });
                left.push(waiting);
                continue;
            }
            let about: Vec<Handle> = operation
                .changes
                .keys()
                .chain(&operation.lease_request.reads)
                .chain(&operation.lease_request.edits)
                .copied()
                .collect();
            let others = (0..CLIENTS).filter(|client| *client != waiting.client);
            let intrudes = |client: &u32| self.holds_exclusively(*client, about.iter().copied());
            self.report.intruded += others.filter(intrudes).count() as u64;
            if operation.changes.is_empty() && operation.lease_request.edits.is_empty() {
                let waited_ms = self.now_ms - waiting.since_ms;
                self.report.waited_ms_max = self.report.waited_ms_max.max(waited_ms);
            }
            let commit_ms = self.now_ms + self.random.below(200);
            for (file, value) in &operation.changes {
                let change = (*file, *value);
                self.pending.push(Pending { client: waiting.client, change, commit_ms });
            }
            // Who reads it from now on waits until it is committed.
            for (file, value) in waiting.operation.changes.clone() {
                self.is_now(waiting.client, file, value);
            }
            // What others have pending is not in the state: who reads it has to wait.
            let mut state = self.committed.clone();
            for pending in &self.pending {
                if pending.client == waiting.client {
                    state.insert(pending.change.0, pending.change.1);
                } else {
                    state.remove(&pending.change.0);
                }
            }
            self.answered.insert((waiting.client, waiting.operation.number), state.clone());
            self.answer(&waiting, state, true);
            if let Some(claim) = waiting.claim {
                self.table.end_claim(claim);
            }
        }
        self.waiting = left;
    }

    fn touched(&self, waiting: &Waiting) -> Footprint {
        let certificate = certificate(waiting.client, &waiting.operation.changes);
        let nothing = LeaseRequest::none(0);
        let lease_request = match self.fault {
            Fault::ReadsIgnored => &nothing,
            _ => &waiting.operation.lease_request,
        };
        Footprint::by(&certificate, &self.membership).reading(Some(lease_request), |_| true)
    }

    fn answer(&mut self, waiting: &Waiting, state: State, fresh: bool) {
        let mut pending = Footprint::default();
        if self.fault != Fault::PendingGranted {
            for other in self.pending.iter().filter(|other| other.client != waiting.client) {
                let change = [other.change].into();
                pending.add(&certificate(other.client, &change), &self.membership);
            }
        }
        let touched = self.touched(waiting);
        let lease_request = &waiting.operation.lease_request;
        let id = SessionId { device: DeviceId(waiting.client), run: lease_request.run };
        let fresh = fresh || self.fault == Fault::RepeatGranted;
        let mut grant = self.table.grant(id, lease_request, &touched, fresh, &pending, self.now_ms);
        if grant.term_ms > 0 {
            self.noted.insert(id);
        }
        if self.fault == Fault::NothingWithheld {
            grant.withheld = Withheld::default();
        }
        let (run, number, sent_ms) = (lease_request.run, waiting.operation.number, waiting.sent_ms);
        self.send(waiting.client, false, Message::Answer { run, number, state, grant, sent_ms });
    }

    fn receive(&mut self, client: u32, message: Message) {
        match message {
            Message::Operation { operation, sent_ms } => {
                let waiting = Waiting { since_ms: self.now_ms, client, operation, sent_ms, claim: None };
                let number = waiting.operation.number;
                if let Some(state) = self.answered.get(&(client, number)).cloned() {
                    return self.answer(&waiting, state, false);
                }
                let run = waiting.operation.lease_request.run;
                let is_known = |known: &Waiting| {
                    (known.client, known.operation.number, known.operation.lease_request.run)
                        == (client, number, run)
                };
                // Of one run's requests the first is answered.
                if !self.waiting.iter().any(is_known) {
                    self.waiting.push(waiting);
                }
            }
            Message::Question { run, epoch, acknowledged } => {
                let id = SessionId { device: DeviceId(client), run };
                let recall = match self.fault {
                    Fault::NeverRecalls => None,
                    _ => self.table.recall(id, epoch, acknowledged, self.now_ms),
                };
                self.send(client, false, Message::Recalled { run, epoch, acknowledged, recall });
            }
            Message::Answer { .. } | Message::Recalled { .. } => {}
        }
    }

    fn restart(&mut self) {
        self.table = LeaseTable::new(TERM_MS, self.now_ms * 1000);
        self.waiting.clear();
        if self.fault != Fault::Forgetful {
            for id in &self.noted {
                self.table.inherit(*id, self.work == Work::Contended, self.now_ms + TERM_MS);
            }
        }
    }

    /// What a client does in a step.
    fn live(&mut self, client: u32) {
        let index = client as usize;
        let now_ms = self.now_ms;
        let clock_ms = now_ms + self.clients[index].clock_ahead_ms;
        if self.clients[index].kernel_forgets_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            self.clients[index].kernel.clear();
            self.clients[index].kernel_forgets_ms = None;
        }
        // The kernel goes on even when the client's process does not.
        if self.random.chance(30) {
            let files = files();
            let file = *self.random.pick(&files);
            if let Some((value, until_ms)) = self.clients[index].kernel.get(&file)
                && clock_ms < *until_ms
            {
                self.check(client, file, *value);
            }
        }
        if now_ms < self.clients[index].asleep_until_ms {
            return;
        }
        match self.random.below(2_000) {
            0 => {
                self.clients[index].asleep_until_ms = now_ms + self.random.below(3 * TERM_MS);
                return;
            }
            1 => {
                // The client dies; its next run knows nothing of leases, and its kernel caches nothing.
                let run = u128::from(self.random.number());
                let one = &mut self.clients[index];
                (one.run, one.holder) = (run, LeaseHolder::default());
                (one.asked_ms, one.inbox) = (None, Vec::new());
                one.kernel.clear();
                (one.flushes, one.gathered_until_ms) = (false, 0);
                if let Some((operation, _)) = &mut one.under_way {
                    operation.lease_request =
                        LeaseRequest { exclusive: self.work != Work::Leases, ..LeaseRequest::none(run) };
                }
                // What was only here is lost; what was on its way is sent again.
                for file in std::mem::take(&mut self.clients[index].gathered).into_keys() {
                    self.uncertain.insert(file);
                }
            }
            _ => {}
        }
        // Reads under lease come first, also right after sleep, when recalls lie unread.
        let files = files();
        let file = *self.random.pick(&files);
        let holder = &self.clients[index].holder;
        if holder.holds(file, clock_ms) {
            let left_ms = holder.left_ms(clock_ms).min(KERNEL_MS);
            match self.seen(client, file) {
                Some(value) => {
                    self.check(client, file, value);
                    let is_own_pending =
                        self.pending.iter().any(|op| op.client == client && op.change.0 == file);
                    if !is_own_pending && !self.is_on_its_way(client, file) {
                        self.clients[index].kernel.insert(file, (value, clock_ms + left_ms));
                    }
                }
                // What others have pending is not leased.
                None => self.report.outdated += 1,
            }
        }
        for message in std::mem::take(&mut self.clients[index].inbox) {
            self.hear(client, message, clock_ms);
        }
        self.act(client, clock_ms);
    }

    fn hear(&mut self, client: u32, message: Message, clock_ms: u64) {
        let now_ms = self.now_ms;
        let kernel_ms = if self.fault == Fault::HastyAcknowledgement { 400 } else { 0 };
        let busy_ms = self.random.below(40);
        let one = &mut self.clients[client as usize];
        match message {
            Message::Answer { run, number, state, grant, sent_ms } => {
                // Nobody gets the answer to a request of a run that has died: its connection died with it.
                if run != one.run {
                    return;
                }
                if one.under_way.as_ref().is_none_or(|(operation, _)| operation.number != number) {
                    return;
                }
                let (operation, _) = one.under_way.take().expect("it is there");
                // Writes go through the kernel, which so knows of them.
                one.kernel.retain(|file, _| !operation.changes.contains_key(file));
                one.state = state;
                let sent_ms = if self.fault == Fault::LateCount { clock_ms } else { sent_ms };
                one.holder.granted(&grant, sent_ms, clock_ms);
                if one.holder.exclusive_ms(clock_ms) > 0 {
                    one.gathered_until_ms = clock_ms + one.holder.exclusive_ms(clock_ms);
                }
                let begun_ms = operation.begun_ms - one.clock_ahead_ms;
                self.report.operations += 1;
                for file in files() {
                    let is_named = operation.lease_request.reads.contains(&file);
                    if !grant.withheld.has(&file) || (is_named && grant.withheld.everything) {
                        self.check_fetched(client, file, begun_ms);
                    }
                }
            }
            Message::Recalled { run, epoch, acknowledged, recall } => {
                if run != one.run {
                    return;
                }
                one.asked_ms = None;
                one.holder.note_answer(epoch, acknowledged);
                let Some(recall) = recall else { return };
                if let Some(dropped) = one.holder.recalled(epoch, &recall) {
                    self.report.recalls += 1;
                    one.flushes |= dropped.exclusive && self.fault != Fault::HastyFlush;
                    if kernel_ms == 0 {
                        one.kernel.clear();
                        one.busy_until_ms = now_ms + busy_ms;
                    } else {
                        one.kernel_forgets_ms = Some(now_ms + kernel_ms);
                    }
                }
            }
            Message::Operation { .. } | Message::Question { .. } => {}
        }
    }

    fn act(&mut self, client: u32, clock_ms: u64) {
        let now_ms = self.now_ms;
        let index = client as usize;
        let one = &mut self.clients[index];
        one.holder.expire(clock_ms);
        // All of it is sent, or it is too late for that.
        let is_sent = one.gathered.is_empty() && one.under_way.is_none();
        one.flushes &= !is_sent && clock_ms < one.gathered_until_ms;
        let may_ask = one.asked_ms.is_none_or(|at_ms| now_ms >= at_ms + AGAIN_MS)
            && now_ms >= one.busy_until_ms
            && !one.flushes;
        if may_ask && one.holder.must_ask(clock_ms) {
            one.asked_ms = Some(now_ms);
            let (run, epoch, acknowledged) = (one.run, one.holder.epoch(), one.holder.last_recall());
            self.send(client, true, Message::Question { run, epoch, acknowledged });
        }
        match self.clients[index].under_way.clone() {
            Some((operation, sent_at_ms)) if now_ms >= sent_at_ms + AGAIN_MS => {
                if let Some((_, sent_at_ms)) = &mut self.clients[index].under_way {
                    *sent_at_ms = now_ms;
                }
                let sent_ms = operation.begun_ms;
                self.send(client, true, Message::Operation { operation, sent_ms });
            }
            None => {
                let one = &self.clients[index];
                let is_due = one.flushes || one.gathered_until_ms < clock_ms + 1_000 || self.random.chance(4);
                if !one.gathered.is_empty() && is_due {
                    let changes = std::mem::take(&mut self.clients[index].gathered);
                    self.begin(client, changes, true, clock_ms);
                } else if self.random.chance(4) && self.may_operate(client) {
                    let files = files();
                    let file = *self.random.pick(&files);
                    // Changes made here are at the server before anything is sent there directly.
                    let may_change = self.clients[index].gathered.is_empty() && self.random.chance(30);
                    let change = may_change.then(|| (file, self.random.number() >> 1));
                    self.begin(client, change.into_iter().collect(), false, clock_ms);
                }
            }
            Some(_) => {}
        }
        // A change made here, of a file that is held exclusively for long enough to send it, while nothing is sent
        // directly.
        let files = files();
        let file = *self.random.pick(&files);
        let holder = &self.clients[index].holder;
        let is_held = holder.holds_exclusively(file, clock_ms) && holder.exclusive_ms(clock_ms) > 500;
        let goes_straight =
            |(operation, _): &(Operation, u64)| !operation.are_made && !operation.changes.is_empty();
        if is_held
            && !self.clients[index].under_way.as_ref().is_some_and(goes_straight)
            && self.random.chance(20)
        {
            let value = self.random.number() >> 1;
            self.clients[index].gathered.insert(file, value);
            self.clients[index].kernel.remove(&file);
            self.is_now(client, file, value);
            self.report.made_here += 1;
        }
    }

    fn begin(&mut self, client: u32, changes: State, are_made: bool, clock_ms: u64) {
        let mut lease_request = LeaseRequest::none(self.clients[client as usize].run);
        for file in files() {
            if self.work != Work::Lonely {
                match self.random.below(4) {
                    0 => lease_request.scopes.push(Scope::File(file)),
                    1 => lease_request.scopes.push(Scope::Principal(file.principal)),
                    _ => {}
                }
            }
            match self.random.below(12) {
                0 | 1 => lease_request.reads.push(file),
                2 => lease_request.edits.push(file),
                _ => {}
            }
        }
        lease_request.exclusive = match self.work {
            Work::Leases => false,
            Work::Lonely => true,
            Work::Contended => self.random.chance(70),
        };
        let now_ms = self.now_ms;
        let one = &mut self.clients[client as usize];
        let operation =
            Operation { number: one.next_number, changes, are_made, lease_request, begun_ms: clock_ms };
        one.next_number += 1;
        one.under_way = Some((operation.clone(), now_ms));
        self.send(client, true, Message::Operation { operation, sent_ms: clock_ms });
    }

    /// The state of a file that a client shows its programs.
    fn seen(&self, client: u32, file: Handle) -> Option<u64> {
        let one = &self.clients[client as usize];
        one.gathered.get(&file).or_else(|| one.state.get(&file)).copied()
    }

    /// Whether a change of a client's own is on its way, or still to be sent.
    fn is_on_its_way(&self, client: u32, file: Handle) -> bool {
        let one = &self.clients[client as usize];
        let is_sent = |(operation, _): &(Operation, u64)| operation.changes.contains_key(&file);
        one.gathered.contains_key(&file) || one.under_way.as_ref().is_some_and(is_sent)
    }

    /// What was just fetched is no older than the state at the beginning of the fetch.
    fn check_fetched(&mut self, client: u32, file: Handle, begun_ms: u64) {
        // What others have pending has to be waited for.
        let Some(value) = self.seen(client, file) else { return };
        self.report.fetched += 1;
        let is_certain = self.certain_since.get(&file).is_none_or(|since_ms| begun_ms >= *since_ms);
        if !is_certain || self.uncertain.contains(&file) || self.is_on_its_way(client, file) {
            return;
        }
        let history = &self.since[&file];
        let found = history.iter().rposition(|version| version.value == value);
        let was = history.iter().rposition(|version| version.at_ms <= begun_ms);
        let is_own = self.pending.iter().any(|op| op.client == client && op.change == (file, value));
        if found < was && !is_own {
            self.report.outdated += 1;
        }
    }

    /// What is read under a lease is of the present state.
    fn check(&mut self, client: u32, file: Handle, value: u64) {
        self.report.leased += 1;
        if self.uncertain.contains(&file) || self.is_on_its_way(client, file) {
            return;
        }
        let own = self.pending.iter().rfind(|op| op.client == client && op.change.0 == file);
        let history = &self.since[&file];
        if history.last().is_some_and(|last| last.value == value)
            || own.is_some_and(|op| op.change.1 == value)
        {
            return;
        }
        self.report.outdated += 1;
        // The time until which it was the present state.
        let after = history.iter().rposition(|version| version.value == value).map(|at| at + 1);
        let changed_ms = after.and_then(|at| history.get(at)).map_or(0, |version| version.at_ms);
        self.report.outdated_ms_max = self.report.outdated_ms_max.max(self.now_ms - changed_ms);
    }
}
