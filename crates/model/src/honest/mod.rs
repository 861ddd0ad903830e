//! An honest server, honest clients, and an unreliable network.
//!
//! The machines are the real ones: [`Signer`](holdfast_protocol::signer::Signer) and
//! [`Sequencer`](holdfast_protocol::sequencer::Sequencer). The network may deliver each request at any time,
//! again, or never, and so the answers to the request that a client waits for, to looks, and to questions
//! about other devices' operations. A client crashes at any time: what was persisted is there, what was only
//! noted may be. (A crash before an effect equals one before its event; a crash between making durable and
//! sending equals one after sending with the message lost.) Each change of the server goes through its
//! records, as after a crash. Any pending operation may be declared dead at any time.
//!
//! Promises, in every state: no alarm; no honest request is refused, except a removed device's; what was
//! acknowledged is there, and is not given up; what a client takes for committed or aborted is so at the
//! server; an operation's status never changes once it is settled; the register holds the last write that
//! took effect, for the server and for each client up to the place of its view (all operations have one place
//! in the log, between their beginning and their end, so this is linearizability); half a write is never
//! visible. And from every state, each client that is a member can commit an operation with only the server's
//! help.

mod client;
mod restores;
mod server;

use crate::explore::{Action, Model, Step, Violation};
use crate::intern::Interner;
use crate::lying::{Durability, Plan};
use crate::world::{Kind, World, name};
use client::Clients;
use holdfast_content::DeviceId;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::structure::Outcome;
use server::Servers;
use std::collections::HashSet;

/// What happens with backups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restores {
    /// There are no backups.
    Never,
    /// One is put back, and the superuser declares it.
    Declared,
    /// One is put back, and nobody says so.
    Undeclared,
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Users with a device each.
    pub users: u32,
    /// The clients.
    pub clients: Vec<Plan>,
    /// Whether they try the fast path.
    pub fast: bool,
    /// Whether they also take the slow path when the fast one would do.
    pub slow: bool,
    /// Whether operations may end without effect.
    pub nothing: bool,
    /// Whether clients wait for what others have pending, and learn of it.
    pub waits: bool,
    /// Whether clients look.
    pub looks: bool,
    /// Whether the server declares pending operations dead.
    pub aborts: bool,
    /// Whether a backup of the server is taken, and put back.
    pub restores: Restores,
    /// What a crash loses.
    pub durability: Durability,
}

/// The state of one client and of its messages under way.
#[derive(Clone, Default)]
struct ClientState {
    machine: u32,
    /// The accepted view whose tables are being computed, plus one.
    folding: u32,
    /// States that a crash may leave, oldest first.
    durable: Vec<u32>,
    crashes: u32,
    /// Numbers whose commit was reported to the caller.
    acknowledged: u32,
    /// Answers to the present request.
    answers: Vec<u32>,
    /// Structures that were waited for.
    learned: Vec<u32>,
    /// Answers to looks.
    looks: Vec<u32>,
    /// Earlier requests that may still be delivered.
    sent: Vec<u32>,
}

#[derive(Clone)]
struct State {
    server: u32,
    /// The state of the server that a backup holds, plus one.
    backup: u32,
    /// Whether it was put back.
    is_restored: u32,
    places: Vec<ClientState>,
}

impl State {
    fn encode(&self) -> Vec<u32> {
        let mut out = vec![self.server, self.backup, self.is_restored];
        for place in &self.places {
            out.extend([place.machine, place.folding, place.crashes, place.acknowledged]);
            for list in [&place.durable, &place.answers, &place.learned, &place.looks, &place.sent] {
                out.push(list.len() as u32);
                out.extend(list);
            }
        }
        out
    }

    fn decode(mut from: &[u32], clients: usize) -> State {
        let mut take = |count: usize| {
            let (now, later) = from.split_at(count);
            from = later;
            now.to_vec()
        };
        let (server, backup, is_restored) = (take(1)[0], take(1)[0], take(1)[0]);
        let places = (0..clients)
            .map(|_| {
                let fixed = take(4);
                let mut list = || {
                    let length = take(1)[0] as usize;
                    take(length)
                };
                ClientState {
                    machine: fixed[0],
                    folding: fixed[1],
                    crashes: fixed[2],
                    acknowledged: fixed[3],
                    durable: list(),
                    answers: list(),
                    learned: list(),
                    looks: list(),
                    sent: list(),
                }
            })
            .collect();
        State { server, backup, is_restored, places }
    }
}

/// The kind of an action; a detail is in the lower bits of [`Action::what`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Verb {
    Fetch,
    Write,
    Rotate,
    Enact,
    FastFetch,
    FastWrite,
    FastRotate,
    FastEnact,
    Deliver,
    DeliverLate,
    DeliverAfterTimeOut,
    Answer,
    FoldDone,
    FoldNothing,
    Crash,
    Ask,
    Learn,
    AskLook,
    Look,
    TakeUp,
    Kill,
    Backup,
    PutBack,
}

const VERBS: [Verb; 23] = [
    Verb::Fetch,
    Verb::Write,
    Verb::Rotate,
    Verb::Enact,
    Verb::FastFetch,
    Verb::FastWrite,
    Verb::FastRotate,
    Verb::FastEnact,
    Verb::Deliver,
    Verb::DeliverLate,
    Verb::DeliverAfterTimeOut,
    Verb::Answer,
    Verb::FoldDone,
    Verb::FoldNothing,
    Verb::Crash,
    Verb::Ask,
    Verb::Learn,
    Verb::AskLook,
    Verb::Look,
    Verb::TakeUp,
    Verb::Kill,
    Verb::Backup,
    Verb::PutBack,
];

/// The actor of mishaps such as crashes, on which no progress may depend.
const MISFORTUNE: u8 = Action::SERVER - 1;

fn action(actor: usize, verb: Verb, detail: u32) -> Action {
    let helps = !matches!(verb, Verb::Crash | Verb::DeliverLate | Verb::Backup | Verb::PutBack);
    let actor = match verb {
        Verb::Kill => Action::SERVER,
        Verb::Backup | Verb::PutBack => MISFORTUNE,
        _ => actor as u8,
    };
    Action { actor, helps, commits: false, what: (verb as u32) << 24 | detail }
}

/// Requests and answers, by number.
#[derive(Default)]
pub(crate) struct Mail {
    requests: Interner<Vec<u8>, Request>,
    responses: Interner<Vec<u8>, Response>,
}

impl Mail {
    fn request(&mut self, request: Request) -> u32 {
        self.requests.add(holdfast_crypto::encode(&request), || request)
    }

    fn response(&mut self, response: Response) -> u32 {
        self.responses.add(holdfast_crypto::encode(&response), || response)
    }
}

/// The model.
pub struct Honest {
    config: Config,
    world: World,
    mail: Mail,
    servers: Servers,
    clients: Clients,
    /// Pairs of a client's and the server's state that were found to agree.
    agreed: HashSet<(u32, u32)>,
}

impl Honest {
    /// The model of a configuration.
    pub fn new(config: Config) -> Honest {
        Honest {
            world: World::new(config.users),
            config,
            mail: Mail::default(),
            servers: Servers::default(),
            clients: Clients::default(),
            agreed: HashSet::new(),
        }
    }

    fn device(&self, at: usize) -> DeviceId {
        self.config.clients[at].device
    }

    /// Carries out what a machine's step brought with it.
    fn moved(&mut self, state: &State, at: usize, next: &client::Next) -> State {
        let mut state = state.clone();
        let place = &mut state.places[at];
        let before = self.clients.get(place.machine).request;
        place.machine = next.machine;
        match next.kept {
            client::CrashRemnant::Nothing => {}
            client::CrashRemnant::Noted if self.config.durability == Durability::Everything => {
                place.durable = vec![next.machine];
            }
            client::CrashRemnant::Persisted
                if matches!(self.config.durability, Durability::SendsFirst | Durability::Reserved) => {}
            client::CrashRemnant::Noted => {
                if !place.durable.contains(&next.machine) {
                    place.durable.push(next.machine);
                }
            }
            client::CrashRemnant::Persisted => place.durable = vec![next.machine],
        }
        place.folding = next.folding;
        place.acknowledged |= next.acknowledged.map_or(0, |number| 1 << number);
        let now = self.clients.get(place.machine).request;
        if before != now {
            place.answers.clear();
            if let Some(before) = before
                && !place.sent.contains(&before)
            {
                place.sent.push(before);
            }
        }
        state
    }

    /// Drops requests that can have no effect any more, so that states with equal futures are equal.
    fn tidied(&mut self, mut state: State) -> State {
        for at in 0..state.places.len() {
            let device = self.device(at);
            let place = &mut state.places[at];
            let current = self.clients.get(place.machine).request;
            let (servers, world, mail) = (&mut self.servers, &mut self.world, &mut self.mail);
            let server = state.server;
            place.sent.retain(|request| {
                Some(*request) != current && servers.matters(world, mail, server, device, *request)
            });
            for list in [&mut place.sent, &mut place.answers, &mut place.learned, &mut place.looks] {
                list.sort_unstable();
                list.dedup();
            }
        }
        state
    }

    fn check(&mut self, state: &State, action: Action) -> Result<(), Violation> {
        let broken = |what: String| Violation { action, what };
        for (at, place) in state.places.iter().enumerate() {
            let client = self.clients.get(place.machine);
            for number in 0..32 {
                if place.acknowledged & (1 << number) != 0 && client.voids(number) {
                    return Err(broken(format!(
                        "{} gave up operation {number}, which was acknowledged",
                        at + 1
                    )));
                }
            }
            if self.agreed.insert((place.machine, state.server)) {
                let server = self.servers.get(state.server);
                client::agree(&self.world, &client, &server).map_err(broken)?;
            }
        }
        Ok(())
    }

    fn push(&mut self, out: &mut Vec<Step>, action: Action, state: State) -> Result<(), Violation> {
        let state = self.tidied(state);
        self.check(&state, action)?;
        out.push(Step { action, to: state.encode() });
        Ok(())
    }

    /// A step of a client's machine; an alarm breaks a promise.
    fn client_step(
        &mut self,
        out: &mut Vec<Step>,
        state: &State,
        at: usize,
        mut action: Action,
        event: client::ClientEvent,
    ) -> Result<(), Violation> {
        let (machine, folding) = (state.places[at].machine, state.places[at].folding);
        let next = self
            .clients
            .step(&mut self.world, &mut self.mail, machine, folding, event)
            .map_err(|what| Violation { action, what })?;
        action.commits = next.committed;
        let mut state = self.moved(state, at, &next);
        let place = &mut state.places[at];
        match event {
            client::ClientEvent::Learn(structure) => place.learned.retain(|known| *known != structure),
            client::ClientEvent::Look(view) => place.looks.retain(|known| *known != view),
            // A driver begins nothing before it has, or has given up, the answer to its look.
            client::ClientEvent::Begin(..) => place.looks.clear(),
            _ => {}
        }
        self.push(out, action, state)
    }

    fn begin(&mut self, out: &mut Vec<Step>, state: &State, at: usize) -> Result<(), Violation> {
        let plan = self.config.clients[at].clone();
        let client = self.clients.get(state.places[at].machine);
        let server = self.servers.get(state.server);
        if !client.is_idle || client.used() >= plan.operations + u64::from(plan.device.0 == 0) {
            return Ok(());
        }
        if !server.is_member(plan.device) {
            return Ok(());
        }
        for kind in plan.kinds {
            let (slow, fast) = match kind {
                Kind::Fetch => (Verb::Fetch, Verb::FastFetch),
                Kind::Write => (Verb::Write, Verb::FastWrite),
                Kind::Rotate { old, .. } => {
                    if !client.knows_as_active(&mut self.world, old) {
                        continue;
                    }
                    (Verb::Rotate, Verb::FastRotate)
                }
                Kind::Enact { .. } | Kind::EnactAnyway { .. } => (Verb::Enact, Verb::FastEnact),
            };
            let wants_fast = self.config.fast && client.signer.wants_fast();
            if wants_fast {
                let event = client::ClientEvent::Begin(kind, true);
                self.client_step(out, state, at, action(at, fast, 0), event)?;
            }
            if !wants_fast || self.config.slow {
                let event = client::ClientEvent::Begin(kind, false);
                self.client_step(out, state, at, action(at, slow, 0), event)?;
            }
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        out: &mut Vec<Step>,
        state: &State,
        at: usize,
        request: u32,
        late: bool,
    ) -> Result<(), Violation> {
        let device = self.device(at);
        let is_update = matches!(&*self.mail.requests.get(request), Request::Update { .. });
        for expire in [false, true] {
            if expire && !(self.config.aborts && is_update) {
                continue;
            }
            let verb = match (late, expire) {
                (true, false) => Verb::DeliverLate,
                (_, true) => Verb::DeliverAfterTimeOut,
                _ => Verb::Deliver,
            };
            let action = action(at, verb, request);
            let (server, response) = self
                .servers
                .handle(&mut self.world, &mut self.mail, state.server, device, request, expire)
                .map_err(|what| Violation { action, what })?;
            let mut next = state.clone();
            next.server = server;
            if !late {
                let is_error = matches!(&*self.mail.responses.get(response), Response::Error(_));
                let server = self.servers.get(state.server);
                let is_due = server.may_serve(device)
                    && !self.may_be_late(request)
                    && restores::is_present(&server, &self.mail.requests.get(request));
                if is_error && is_due {
                    let what =
                        format!("an honest request is refused: {:?}", self.mail.responses.get(response));
                    return Err(Violation { action, what });
                }
                next.places[at].answers.push(response);
            }
            self.push(out, action, next)?;
        }
        Ok(())
    }

    /// Whether a request is about a change of the membership that another may have overtaken.
    fn may_be_late(&self, request: u32) -> bool {
        let is_submitted = |plan: &Plan| plan.kinds.iter().any(|kind| matches!(kind, Kind::Enact { .. }));
        match &*self.mail.requests.get(request) {
            Request::Update { certificate, .. } | Request::Fast { certificate, .. } => {
                certificate.value.new_members().is_some() && self.config.clients.iter().any(is_submitted)
            }
            _ => false,
        }
    }

    fn client_actions(&mut self, out: &mut Vec<Step>, state: &State, at: usize) -> Result<(), Violation> {
        let place = state.places[at].clone();
        let client = self.clients.get(place.machine);
        self.begin(out, state, at)?;
        if let Some(request) = client.request {
            self.deliver(out, state, at, request, false)?;
        }
        for request in &place.sent {
            self.deliver(out, state, at, *request, true)?;
        }
        for answer in &place.answers {
            self.client_step(
                out,
                state,
                at,
                action(at, Verb::Answer, *answer),
                client::ClientEvent::Answer(*answer),
            )?;
        }
        if place.folding > 0 {
            for (outcome, verb) in [(Outcome::Done, Verb::FoldDone), (Outcome::Nothing, Verb::FoldNothing)] {
                let wanted = match client::fitting(&mut self.world, &self.clients.folding(place.folding)) {
                    Outcome::Done => outcome == Outcome::Done || self.config.nothing,
                    Outcome::Nothing => outcome == Outcome::Nothing,
                };
                if wanted {
                    self.client_step(
                        out,
                        state,
                        at,
                        action(at, verb, 0),
                        client::ClientEvent::Fold(outcome),
                    )?;
                }
            }
        }
        if place.crashes > 0 {
            for machine in &place.durable {
                let mut next = state.clone();
                let crashed = &mut next.places[at];
                crashed.crashes -= 1;
                crashed.learned.clear();
                crashed.looks.clear();
                crashed.answers.clear();
                crashed.folding = 0;
                let told = match self.config.durability {
                    Durability::Reserved => client::ClientEvent::RestartFrom(client.used()),
                    _ => client::ClientEvent::Restart,
                };
                let request = client.request;
                crashed.sent.extend(request);
                crashed.machine = *machine;
                crashed.durable = vec![*machine];
                self.client_step(out, &next, at, action(at, Verb::Crash, *machine), told)?;
            }
        }
        if self.config.waits {
            for (device, number) in client.waits_for() {
                if let Some(structure) = self.servers.standing(&mut self.mail, state.server, device, number)
                    && !place.learned.contains(&structure)
                {
                    let mut next = state.clone();
                    next.places[at].learned.push(structure);
                    self.push(out, action(at, Verb::Ask, structure), next)?;
                }
            }
            for structure in &place.learned {
                let told = client::ClientEvent::Learn(*structure);
                self.client_step(out, state, at, action(at, Verb::Learn, *structure), told)?;
            }
        }
        self.take_up(out, state, at)?;
        let server = self.servers.get(state.server);
        if client.signer.floor().epoch != server.epoch() {
            // A client that looks adopts the restore.
            return Ok(());
        }
        if self.config.looks && client.is_idle && self.servers.get(state.server).is_member(self.device(at)) {
            // Looks are made between operations, one at a time.
            let log_size = client.signer.floor().log().size;
            if place.looks.is_empty() {
                let look = self.servers.look(&mut self.world, &mut self.mail, state.server, log_size);
                let mut next = state.clone();
                next.places[at].looks.push(look);
                self.push(out, action(at, Verb::AskLook, look), next)?;
            }
            for view in &place.looks {
                let told = client::ClientEvent::Look(*view);
                self.client_step(out, state, at, action(at, Verb::Look, *view), told)?;
            }
        }
        Ok(())
    }
}

impl Model for Honest {
    fn initial(&mut self) -> Vec<u32> {
        let server = self.servers.create(&mut self.world);
        let plans = self.config.clients.clone();
        let place = |plan: &Plan| {
            let machine = self.clients.create(&self.world, &mut self.mail, plan.device);
            ClientState { machine, durable: vec![machine], crashes: plan.crashes, ..ClientState::default() }
        };
        let places = plans.iter().map(place).collect();
        State { server, backup: 0, is_restored: 0, places }.encode()
    }

    fn steps(&mut self, state: &[u32], out: &mut Vec<Step>) -> Result<(), Violation> {
        let state = State::decode(state, self.config.clients.len());
        for at in 0..state.places.len() {
            self.client_actions(out, &state, at)?;
        }
        if self.config.restores != Restores::Never {
            self.backups(out, &state)?;
        }
        if self.config.aborts {
            for (device, number) in self.servers.get(state.server).alive() {
                let action = action(0, Verb::Kill, device.0);
                let server = self
                    .servers
                    .kill(&mut self.world, state.server, device, number)
                    .map_err(|what| Violation { action, what })?;
                self.push(out, action, State { server, ..state.clone() })?;
            }
        }
        Ok(())
    }

    fn obliged(&mut self, state: &[u32]) -> Vec<u8> {
        let state = State::decode(state, self.config.clients.len());
        let server = self.servers.get(state.server);
        let obliged = |at: &usize| {
            let plan = &self.config.clients[*at];
            // A number for a fast attempt that is refused, and one for the slow path after that.
            let founding = u64::from(plan.device.0 == 0);
            let left = plan.operations + founding - self.clients.get(state.places[*at].machine).used();
            left >= 2
                && server.may_serve(plan.device)
                && server.is_member(plan.device)
                && plan.kinds.iter().any(|kind| !kind.changes_members())
        };
        (0..state.places.len()).filter(obliged).map(|at| at as u8).collect()
    }

    fn describe(&self, action: Action) -> String {
        let verb = VERBS[(action.what >> 24) as usize];
        let detail = action.what & 0xff_ffff;
        match verb {
            Verb::Backup => return "server: a backup is taken".to_owned(),
            Verb::PutBack => return "server: is put back to the backup".to_owned(),
            _ => {}
        }
        if verb == Verb::Kill {
            return format!("server: declares {}'s operation dead", name(DeviceId(detail)));
        }
        let who = name(self.device(usize::from(action.actor)));
        let request = |detail| match &*self.mail.requests.get(detail) {
            Request::Update { certificate, .. } => format!("UPDATE {}", certificate.value.number),
            Request::Fast { certificate, .. } => format!("FAST {}", certificate.value.number),
            Request::Commit { structure, .. } => format!("COMMIT {}", structure.value.number()),
            _ => "a request".to_owned(),
        };
        let response = |detail| match &*self.mail.responses.get(detail) {
            Response::View(reply) => format!("a view of {} operations", reply.view.log.size),
            Response::Structure(Some(structure)) => {
                format!("{}{}", name(structure.value.device()), structure.value.number())
            }
            other => format!("{other:?}").chars().take_while(|c| c.is_alphanumeric()).collect(),
        };
        match verb {
            Verb::Fetch => format!("{who}: begins a fetch"),
            Verb::Write => format!("{who}: begins a write"),
            Verb::Rotate => format!("{who}: begins a rotation"),
            Verb::Enact => format!("{who}: submits a warrant"),
            Verb::FastFetch => format!("{who}: begins a fast fetch"),
            Verb::FastWrite => format!("{who}: begins a fast write"),
            Verb::FastRotate => format!("{who}: begins a fast rotation"),
            Verb::FastEnact => format!("{who}: submits a warrant, fast"),
            Verb::Deliver => format!("server: takes {who}'s {}", request(detail)),
            Verb::DeliverLate => format!("server: takes {who}'s {}, late", request(detail)),
            Verb::DeliverAfterTimeOut => {
                format!("server: takes {who}'s {}, after a time-out of all pending", request(detail))
            }
            Verb::Answer => format!("{who}: gets its answer, {}", response(detail)),
            Verb::FoldDone => format!("{who}: signs, with effect"),
            Verb::FoldNothing => format!("{who}: signs, without effect"),
            Verb::Crash => format!("{who}: crashes and restarts"),
            Verb::Ask => format!("server: answers {who}'s wait with {}", response(detail)),
            Verb::Learn => format!("{who}: learns {}", response(detail)),
            Verb::AskLook => format!("server: answers {who}'s look with {}", response(detail)),
            Verb::Look => format!("{who}: looks at {}", response(detail)),
            Verb::TakeUp => format!("{who}: takes the restore up, {}", response(detail)),
            Verb::Kill | Verb::Backup | Verb::PutBack => unreachable!("handled above"),
        }
    }

    fn machines(&self) -> usize {
        self.servers.len() + self.clients.len()
    }
}
