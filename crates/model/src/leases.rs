//! Leases, model-checked: every interleaving of a few operations of clients that share a directory, with the
//! real [`LeaseTable`] of the server and the real [`LeaseHolder`] of the clients.
//!
//! The rest is as small as possible; `holdfast_sim::leases` runs the same machines at random, longer and with
//! more around them. An operation is ordered when the table allows it, and its answer contains the state at
//! that place. A client that holds a file exclusively changes it without asking, and sends the change later,
//! at the latest before it acknowledges a recall. Requests and answers are late, repeated or lost, time
//! passes, clients die, the server restarts.
//!
//! Values of a file only grow, so *no older than* is a comparison of numbers. Promises in every state:
//! - What is read under a lease, or in an answer, is no older than the last change before the reading
//!   began.
//! - No operation that reads or changes a file is ordered while another client holds the file exclusively.
//! - A change that a client made without asking is not overtaken on its way to the server.
//! - No operation has to wait for longer than a term.
//! - While an operation of a client waits for another client, it has no changes to send that the other may
//!   be waiting for: a client's operations are ordered one after the other.
//!
//! There is no promise for a change whose author has died, or that the author has not sent for longer than it
//! held the file: the file is *uncertain* from then on.

use crate::explore::{Action, Model, Step, Violation};
use crate::intern::Interner;
use crate::world::{GROUP, World};
use holdfast_content::{DeviceId, Handle, Membership};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::{Certificate, Delta, Path};
use holdfast_protocol::leases::{
    ClaimId, Footprint, LeaseGrant, LeaseHolder, LeaseRequest, LeaseTable, Recall, Scope, TERM_MS, Withheld,
};
use holdfast_protocol::locks::SessionId;
use holdfast_protocol::vector::VoidSet;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Files, all of one group: what each client may do with each of them.
const FILES: usize = 2;
/// Most copies of answers to one client that are under way.
const ANSWERS_MAX: usize = 2;

/// What an operation does with a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Reads it, and asks for a lease of it.
    Read(usize),
    /// Reads it because it is about to change it.
    Edit(usize),
    /// Changes it.
    Change(usize),
}

/// A rule of the server or of the clients that is left out, which the model must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortcut {
    /// None: everybody follows the rules.
    None,
    /// Operations are ordered without waiting for recalls.
    NoWaiting,
    /// What operations read is ignored.
    ReadsIgnored,
    /// Answers do not say what others hold exclusively.
    NothingWithheld,
    /// A repeated request is granted leases like a new one.
    RepeatGranted,
    /// The server does not know after a restart who held leases.
    Forgetful,
    /// Clients count terms from the answer.
    LateCount,
    /// Clients acknowledge a recall before they have sent what they changed by themselves.
    HastyFlush,
    /// Clients change files by themselves while they wait for an answer.
    MakesMeanwhile,
    /// The server lies: it recalls nothing. Readers may then be a term behind, but no more.
    NeverRecalls,
}

/// One client.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The client's operations, each made at most once, in any order.
    pub operations: Vec<Kind>,
    /// Whether it wishes to hold files exclusively.
    pub exclusive: bool,
    /// How often the client changes a file without asking.
    pub makes: u8,
    /// How often the client dies.
    pub deaths: u8,
}

/// The model to explore.
#[derive(Clone, Debug)]
pub struct Config {
    /// The clients.
    pub clients: Vec<Plan>,
    /// Times that pass at once, in milliseconds, each once.
    pub times: Vec<u64>,
    /// How often the server restarts.
    pub restarts: u8,
    /// How often a request is repeated.
    pub repeats: u8,
    /// How often the server recalls everything although nobody needs it.
    pub false_recalls: u8,
    /// The rule that is left out.
    pub shortcut: Shortcut,
}

type Values = [u64; FILES];

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Operation {
    number: u64,
    wish: LeaseRequest,
    /// Files that it changes, and the values of those that were made before.
    changes: BTreeMap<usize, Option<u64>>,
    begun_ms: u64,
    /// The value of each file when the operation began.
    begun: Values,
}

impl Operation {
    /// Whether the operation only sends changes that the client made without asking.
    fn is_flush(&self) -> bool {
        !self.changes.is_empty() && self.changes.values().all(Option::is_some)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Answer {
    number: u64,
    values: Values,
    grant: LeaseGrant,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Question {
    None,
    /// The server has nothing to recall yet.
    Parked {
        epoch: u64,
        acknowledged: u64,
    },
    Answered {
        epoch: u64,
        acknowledged: u64,
        recall: Recall,
    },
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    run: u128,
    holder: LeaseHolder,
    /// The newest view.
    view: Values,
    /// Changes of this client that are not under way yet.
    gathered: BTreeMap<usize, u64>,
    operation: Option<Operation>,
    answers: Vec<Answer>,
    question: Question,
    /// A recall waits until this client has sent its changes.
    flushes: bool,
    /// Indices of those operations of its plan that it has not begun.
    left: BTreeSet<usize>,
    makes: u8,
    deaths: u8,
    next_number: u64,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    client: usize,
    operation: Operation,
    claim: Option<ClaimId>,
}

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    now_ms: u64,
    table: LeaseTable,
    /// Sessions that the server has noted durably.
    noted: BTreeSet<SessionId>,
    committed: Values,
    /// The values after the last changes, whether they are at the server or not; and since when.
    present: Values,
    since_ms: Values,
    uncertain: [bool; FILES],
    answered: BTreeMap<(usize, u64), Values>,
    waiting: Vec<Waiting>,
    clients: Vec<Client>,
    times: BTreeSet<usize>,
    restarts: u8,
    repeats: u8,
    false_recalls: u8,
}

/// An action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    Begin(usize),
    ArriveAgain,
    Hear(usize),
    Make(usize),
    Send,
    Ask,
    ServerHears,
    Recalled,
    Die,
    Pass(usize),
    Restart,
    RecallAll,
}

/// The model.
pub struct Leases {
    config: Config,
    membership: Membership,
    states: Interner<Rc<State>, Rc<State>>,
}

fn handle(file: usize) -> Handle {
    Handle { principal: GROUP, number: file as u64 + 1 }
}

fn device(client: usize) -> DeviceId {
    DeviceId(client as u32 + 1)
}

fn session(client: usize, run: u128) -> SessionId {
    SessionId { device: device(client), run }
}

impl Leases {
    /// Clients that have done nothing yet.
    pub fn new(config: Config) -> Leases {
        let membership = World::new(config.clients.len() as u32).membership;
        Leases { config, membership, states: Interner::default() }
    }

    fn certificate(&self, client: usize, operation: &Operation) -> Certificate {
        let delta = |file: &usize| Delta::SetInode { number: 1, file: handle(*file), inode: None };
        Certificate {
            file_system: Digest::ZERO,
            device: device(client),
            number: operation.number,
            previous: Digest::ZERO,
            path: Path::Slow,
            voids: VoidSet::default(),
            ineffective: VoidSet::default(),
            time_ns: 0,
            deltas: operation.changes.keys().map(delta).collect(),
        }
    }

    fn touched(&self, client: usize, operation: &Operation) -> Footprint {
        let nothing = LeaseRequest::none(0);
        let wish = if self.is(Shortcut::ReadsIgnored) { &nothing } else { &operation.wish };
        Footprint::by(&self.certificate(client, operation), &self.membership).reading(Some(wish), |_| true)
    }

    fn is(&self, shortcut: Shortcut) -> bool {
        self.config.shortcut == shortcut
    }

    /// The possible actions of a client, or of the server.
    fn events(&self, state: &State) -> Vec<(u8, Event)> {
        let mut events = Vec::new();
        for (index, client) in state.clients.iter().enumerate() {
            let mut may = |event| events.push((index as u8, event));
            let now_ms = state.now_ms;
            match &client.operation {
                None if client.gathered.is_empty() => {
                    // Changes made under an exclusive lease are sent before another operation begins.
                    client.left.iter().for_each(|operation| may(Event::Begin(*operation)));
                }
                None => may(Event::Send),
                Some(operation) => {
                    let is_ordered = state.answered.contains_key(&(index, operation.number));
                    if is_ordered && state.repeats > 0 && client.answers.len() < ANSWERS_MAX {
                        may(Event::ArriveAgain);
                    }
                }
            }
            (0..client.answers.len()).for_each(|answer| may(Event::Hear(answer)));
            let goes_straight = client
                .operation
                .as_ref()
                .is_some_and(|operation| operation.changes.values().any(Option::is_none));
            let asks = client.operation.as_ref().is_some_and(|operation| !operation.is_flush());
            let may_make = !asks || (self.is(Shortcut::MakesMeanwhile) && !goes_straight);
            if client.makes > 0 && may_make {
                let holds = |file: &usize| client.holder.holds_exclusively(handle(*file), now_ms);
                (0..FILES).filter(holds).for_each(|file| may(Event::Make(file)));
            }
            match &client.question {
                Question::None if client.holder.must_ask(now_ms) && !client.flushes => may(Event::Ask),
                Question::Parked { epoch, acknowledged } => {
                    let id = session(index, client.run);
                    if state.table.clone().recall(id, *epoch, *acknowledged, now_ms).is_some() {
                        may(Event::ServerHears);
                    }
                }
                Question::Answered { .. } => may(Event::Recalled),
                Question::None => {}
            }
            if client.deaths > 0 {
                may(Event::Die);
            }
        }
        state.times.iter().for_each(|time| events.push((Action::SERVER, Event::Pass(*time))));
        if state.restarts > 0 {
            events.push((Action::SERVER, Event::Restart));
        }
        if state.false_recalls > 0 {
            events.push((Action::SERVER, Event::RecallAll));
        }
        events
    }

    fn happens(&self, state: &mut State, index: usize, event: Event) -> Result<(), String> {
        let now_ms = state.now_ms;
        match event {
            Event::Begin(operation) => self.begin(state, index, operation),
            Event::Send => {
                let made = std::mem::take(&mut state.clients[index].gathered);
                let changes = made.into_iter().map(|(file, value)| (file, Some(value))).collect();
                self.send(state, index, changes, |_| {});
            }
            Event::ArriveAgain => {
                state.repeats -= 1;
                let operation = state.clients[index].operation.clone().expect("it is under way");
                let values = state.answered[&(index, operation.number)];
                self.answer(state, index, &operation, values, self.is(Shortcut::RepeatGranted));
            }
            Event::Hear(answer) => self.hear(state, index, answer)?,
            Event::Make(file) => {
                state.clients[index].makes -= 1;
                let value = next_value(state, file);
                state.clients[index].gathered.insert(file, value);
                (state.present[file], state.since_ms[file]) = (value, now_ms);
            }
            Event::Ask => {
                let client = &mut state.clients[index];
                let (epoch, acknowledged) = (client.holder.epoch(), client.holder.last_recall());
                client.question = Question::Parked { epoch, acknowledged };
                self.question_heard(state, index);
            }
            Event::ServerHears => self.question_heard(state, index),
            Event::Recalled => {
                let client = &mut state.clients[index];
                let question = std::mem::replace(&mut client.question, Question::None);
                let Question::Answered { epoch, acknowledged, recall } = question else {
                    unreachable!("it is answered")
                };
                client.holder.note_answer(epoch, acknowledged);
                if let Some(dropped) = client.holder.recalled(epoch, &recall) {
                    let is_made = |operation: &Operation| operation.changes.values().any(Option::is_some);
                    let has_made =
                        !client.gathered.is_empty() || client.operation.as_ref().is_some_and(is_made);
                    client.flushes |= dropped.exclusive && has_made && !self.is(Shortcut::HastyFlush);
                }
            }
            Event::Die => {
                let client = &mut state.clients[index];
                client.deaths -= 1;
                client.run += 1;
                client.holder = LeaseHolder::default();
                client.question = Question::None;
                client.flushes = false;
                client.answers.clear();
                for file in std::mem::take(&mut client.gathered).into_keys() {
                    state.uncertain[file] = true;
                }
                self.send_again(state, index);
            }
            Event::Pass(time) => {
                state.times.remove(&time);
                state.now_ms += self.config.times[time];
                self.lapse(state);
            }
            Event::Restart => {
                state.restarts -= 1;
                state.table = LeaseTable::new(TERM_MS, 1_000);
                state.waiting.iter_mut().for_each(|waiting| waiting.claim = None);
                if !self.is(Shortcut::Forgetful) {
                    for id in &state.noted {
                        state.table.inherit(*id, true, now_ms + TERM_MS);
                    }
                }
            }
            Event::RecallAll => {
                state.false_recalls -= 1;
                for file in 0..FILES {
                    let _ = state.table.recall_conflicts(
                        DeviceId(99),
                        &Footprint::file(handle(file)),
                        false,
                        now_ms,
                    );
                }
            }
        }
        self.serve(state)
    }

    fn begin(&self, state: &mut State, index: usize, operation: usize) {
        state.clients[index].left.remove(&operation);
        let kind = self.config.clients[index].operations[operation];
        let changes = match kind {
            Kind::Change(file) => [(file, None)].into(),
            Kind::Read(_) | Kind::Edit(_) => BTreeMap::new(),
        };
        self.send(state, index, changes, |wish| match kind {
            Kind::Read(file) => {
                wish.scopes = vec![Scope::Principal(handle(file).principal), Scope::File(handle(file))]
            }
            Kind::Edit(file) => wish.edits = vec![handle(file)],
            Kind::Change(file) => wish.also = (0..FILES).filter(|other| *other != file).map(handle).collect(),
        });
    }

    fn send(
        &self,
        state: &mut State,
        index: usize,
        changes: BTreeMap<usize, Option<u64>>,
        about: impl FnOnce(&mut LeaseRequest),
    ) {
        let client = &mut state.clients[index];
        let exclusive = self.config.clients[index].exclusive;
        let mut wish = LeaseRequest { exclusive, ..LeaseRequest::none(client.run) };
        about(&mut wish);
        let (number, begun_ms, begun) = (client.next_number, state.now_ms, state.present);
        client.next_number += 1;
        let operation = Operation { number, wish, changes, begun_ms, begun };
        client.operation = Some(operation.clone());
        state.waiting.push(Waiting { client: index, operation, claim: None });
    }

    /// The server answers a client's question for recalls, if there are any.
    fn question_heard(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let Question::Parked { epoch, acknowledged } = client.question else { unreachable!("it is asked") };
        let id = session(index, client.run);
        let recall = match self.is(Shortcut::NeverRecalls) {
            true => None,
            false => state.table.recall(id, epoch, acknowledged, state.now_ms),
        };
        if let Some(recall) = recall {
            client.question = Question::Answered { epoch, acknowledged, recall };
        }
    }

    /// The next run of a client repeats the requests that were under way.
    fn send_again(&self, state: &mut State, index: usize) {
        let client = &mut state.clients[index];
        let Some(operation) = &mut client.operation else { return };
        operation.wish = LeaseRequest::none(client.run);
        let operation = operation.clone();
        if let Some(values) = state.answered.get(&(index, operation.number)).copied() {
            return self.answer(state, index, &operation, values, false);
        }
        for waiting in state.waiting.iter_mut().filter(|waiting| waiting.client == index) {
            waiting.operation = operation.clone();
            if let Some(claim) = waiting.claim.take() {
                state.table.end_claim(claim);
            }
        }
    }

    /// Orders what nothing forbids.
    fn serve(&self, state: &mut State) -> Result<(), String> {
        let mut at = 0;
        while at < state.waiting.len() {
            let Waiting { client, operation, claim } = state.waiting[at].clone();
            let wishes = operation.wish.exclusive;
            let touched = self.touched(client, &operation);
            let obstacle = match self.is(Shortcut::NeverRecalls) {
                true => None,
                false => state.table.recall_conflicts(device(client), &touched, wishes, state.now_ms),
            };
            if let Some(until_ms) = obstacle.filter(|_| !self.is(Shortcut::NoWaiting)) {
                if until_ms > state.now_ms + TERM_MS {
                    return Err(format!("{} waits until {until_ms} ms", name(client)));
                }
                if claim.is_none() {
                    state.waiting[at].claim = Some(state.table.claim(device(client), &touched, wishes));
                }
                at += 1;
                continue;
            }
            state.waiting.remove(at);
            self.order(state, client, &operation)?;
            if let Some(claim) = claim {
                state.table.end_claim(claim);
            }
            // What was granted or ended may let other operations continue, or stop them.
            at = 0;
        }
        // Questions are answered at once; the questions are in the state.
        state.table.take_recalled();
        state.table.take_freed();
        Ok(())
    }

    fn order(&self, state: &mut State, client: usize, operation: &Operation) -> Result<(), String> {
        let named = self.named(operation);
        for file in named.iter().chain(operation.changes.keys()) {
            let holds = |(other, one): (usize, &Client)| {
                other != client && one.holder.holds_exclusively(handle(*file), state.now_ms)
            };
            let holder = state.clients.iter().enumerate().position(holds);
            if let Some(holder) = holder.filter(|_| !self.is(Shortcut::NeverRecalls)) {
                return Err(format!(
                    "{}'s operation about file {file} is ordered while {} holds that exclusively",
                    name(client),
                    name(holder)
                ));
            }
        }
        for (file, made) in &operation.changes {
            match made {
                Some(value) => {
                    let is_overtaken = state.committed[*file] > *value && !state.uncertain[*file];
                    if is_overtaken && !self.is(Shortcut::NeverRecalls) {
                        return Err(format!("{}'s change of file {file} was overtaken", name(client)));
                    }
                    state.committed[*file] = *value;
                }
                None => {
                    let value = next_value(state, *file);
                    state.committed[*file] = value;
                    (state.present[*file], state.since_ms[*file]) = (value, state.now_ms);
                }
            }
        }
        let values = state.committed;
        state.answered.insert((client, operation.number), values);
        self.answer(state, client, operation, values, true);
        Ok(())
    }

    fn answer(&self, state: &mut State, client: usize, operation: &Operation, values: Values, fresh: bool) {
        let run = operation.wish.run;
        let touched = self.touched(client, operation);
        let id = session(client, run);
        let mut grant =
            state.table.grant(id, &operation.wish, &touched, fresh, &Footprint::default(), state.now_ms);
        if grant.term_ms > 0 {
            state.noted.insert(id);
        }
        if self.is(Shortcut::NothingWithheld) {
            grant.withheld = Withheld::default();
        }
        let one = &mut state.clients[client];
        // Answers to a dead run reach nobody.
        if one.run == run {
            one.answers.push(Answer { number: operation.number, values, grant });
        }
    }

    fn named(&self, operation: &Operation) -> BTreeSet<usize> {
        let wish = &operation.wish;
        let scopes = wish.scopes.iter().filter_map(|scope| match scope {
            Scope::File(file) => Some(*file),
            Scope::Principal(_) => None,
        });
        let files = scopes.chain(wish.edits.iter().copied());
        files.map(|file| file.number as usize - 1).collect()
    }

    fn hear(&self, state: &mut State, index: usize, answer: usize) -> Result<(), String> {
        let now_ms = state.now_ms;
        let Answer { number, values, grant } = state.clients[index].answers.remove(answer);
        let is_asked = |operation: &mut Operation| operation.number == number;
        let Some(operation) = state.clients[index].operation.take_if(is_asked) else { return Ok(()) };
        let named = self.named(&operation);
        let client = &mut state.clients[index];
        client.view = values;
        let sent_ms = if self.is(Shortcut::LateCount) { now_ms } else { operation.begun_ms };
        client.holder.granted(&grant, sent_ms, now_ms);
        client.flushes &= !client.gathered.is_empty();
        for (file, value) in values.iter().enumerate() {
            let is_told =
                !grant.withheld.has(&handle(file)) || (named.contains(&file) && grant.withheld.everything);
            let is_own =
                operation.changes.contains_key(&file) || state.clients[index].gathered.contains_key(&file);
            if is_told && !is_own && !state.uncertain[file] && *value < operation.begun[file] {
                let age_ms = now_ms - state.since_ms[file];
                if !self.is(Shortcut::NeverRecalls) || age_ms > TERM_MS {
                    return Err(format!("{} is answered with an outdated file {file}", name(index)));
                }
            }
        }
        Ok(())
    }

    /// Time has passed: changes that a client has not sent for longer than it held their files no longer keep
    /// others back.
    fn lapse(&self, state: &mut State) {
        for index in 0..state.clients.len() {
            let client = &mut state.clients[index];
            client.holder.expire(state.now_ms);
            let unordered = client
                .operation
                .iter()
                .filter(|operation| !state.answered.contains_key(&(index, operation.number)));
            let made = unordered.flat_map(|operation| &operation.changes).filter(|(_, made)| made.is_some());
            let files: Vec<usize> =
                client.gathered.keys().chain(made.map(|(file, _)| file)).copied().collect();
            for file in files {
                state.uncertain[file] |= !client.holder.holds_exclusively(handle(file), state.now_ms);
            }
        }
    }

    /// Checks whatever a client could read now under its leases, and that none that waits is waited for.
    fn check(&self, state: &State) -> Result<(), String> {
        for Waiting { client, operation, claim } in &state.waiting {
            if claim.is_some() && !operation.is_flush() && !state.clients[*client].gathered.is_empty() {
                return Err(format!(
                    "{} waits with changes of its own that others may wait for",
                    name(*client)
                ));
            }
        }
        for (index, client) in state.clients.iter().enumerate() {
            for file in 0..FILES {
                let changes = |operation: &Operation| operation.changes.contains_key(&file);
                let is_own =
                    client.gathered.contains_key(&file) || client.operation.as_ref().is_some_and(changes);
                let holds = client.holder.holds(handle(file), state.now_ms);
                if !holds || is_own || state.uncertain[file] || client.view[file] == state.present[file] {
                    continue;
                }
                if !self.is(Shortcut::NeverRecalls) || state.now_ms - state.since_ms[file] > TERM_MS {
                    return Err(format!(
                        "{} reads {} of file {file} under a lease, which is {}",
                        name(index),
                        client.view[file],
                        state.present[file]
                    ));
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, state: State) -> u32 {
        let state = Rc::new(state);
        self.states.add(state.clone(), || state)
    }
}

fn name(client: usize) -> char {
    char::from(b'A' + client as u8)
}

fn next_value(state: &State, file: usize) -> u64 {
    state.present[file].max(state.committed[file]) + 1
}

const EVENTS: u32 = 12;

/// An event as a number, for [`Action::what`].
fn number_of(event: Event) -> u32 {
    let (kind, about) = match event {
        Event::Begin(operation) => (0, operation),
        Event::ArriveAgain => (1, 0),
        Event::Hear(answer) => (2, answer),
        Event::Make(file) => (3, file),
        Event::Send => (4, 0),
        Event::Ask => (5, 0),
        Event::ServerHears => (6, 0),
        Event::Recalled => (7, 0),
        Event::Die => (8, 0),
        Event::Pass(time) => (9, time),
        Event::Restart => (10, 0),
        Event::RecallAll => (11, 0),
    };
    about as u32 * EVENTS + kind
}

impl Model for Leases {
    fn initial(&mut self) -> Vec<u32> {
        let client = |(index, plan): (usize, &Plan)| Client {
            run: (index as u128 + 1) * 10,
            holder: LeaseHolder::default(),
            view: [0; FILES],
            gathered: BTreeMap::new(),
            operation: None,
            answers: Vec::new(),
            question: Question::None,
            flushes: false,
            left: (0..plan.operations.len()).collect(),
            makes: plan.makes,
            deaths: plan.deaths,
            next_number: 1,
        };
        let state = State {
            now_ms: 1_000,
            table: LeaseTable::new(TERM_MS, 1),
            noted: BTreeSet::new(),
            committed: [0; FILES],
            present: [0; FILES],
            since_ms: [0; FILES],
            uncertain: [false; FILES],
            answered: BTreeMap::new(),
            waiting: Vec::new(),
            clients: self.config.clients.iter().enumerate().map(client).collect(),
            times: (0..self.config.times.len()).collect(),
            restarts: self.config.restarts,
            repeats: self.config.repeats,
            false_recalls: self.config.false_recalls,
        };
        vec![self.add(state)]
    }

    fn steps(&mut self, state: &[u32], out: &mut Vec<Step>) -> Result<(), Violation> {
        let before = self.states.get(state[0]);
        for (actor, event) in self.events(&before) {
            let action = Action { actor, helps: false, commits: false, what: number_of(event) };
            let mut after = (**before).clone();
            let index = if actor == Action::SERVER { 0 } else { usize::from(actor) };
            let happened = self.happens(&mut after, index, event);
            happened.and_then(|()| self.check(&after)).map_err(|what| Violation { action, what })?;
            let to = vec![self.add(after)];
            out.push(Step { action, to });
        }
        Ok(())
    }

    fn describe(&self, action: Action) -> String {
        let (kind, about) = (action.what % EVENTS, (action.what / EVENTS) as usize);
        let who = name(usize::from(action.actor.min(25)));
        match kind {
            0 => format!(
                "{who} begins: {:?}",
                self.config.clients[usize::from(action.actor)].operations[about]
            ),
            1 => format!("{who}'s request arrives again"),
            2 => format!("{who} has an answer"),
            3 => format!("{who} changes file {about} by itself"),
            4 => format!("{who} sends what it has made"),
            5 => format!("{who} asks for recalls, and acknowledges those that it has carried out"),
            6 => format!("the server hears {who}'s question for recalls"),
            7 => format!("{who} carries out a recall"),
            8 => format!("{who} dies and starts again"),
            9 => format!("{} ms pass", self.config.times[about]),
            10 => "the server restarts".to_owned(),
            _ => "the server recalls everything".to_owned(),
        }
    }

    fn machines(&self) -> usize {
        self.states.len()
    }
}
