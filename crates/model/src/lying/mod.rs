//! A lying server, and honest clients.
//!
//! The clients are the real machine ([`Signer`](holdfast_protocol::signer::Signer)) with the real check. The
//! server is nothing but a choice. It has every signature ever sent, and answers an UPDATE or a look with any
//! view that can be made of them ([`views`]); it acknowledges or denies anything to anybody, and answers
//! waits with any structure. A view that the client's check refuses leads nowhere (the client freezes, and
//! whatever others can still do they could do without it), so only accepted views are steps. A state consists
//! of the pool of signatures and the clients: what the server has presented to whom only matters as far as
//! clients remember it.
//!
//! An omniscient observer checks the promises ([`knowledge`]): no client accepts two things that cannot both
//! be true; what it accepts has one order; what was acknowledged stays in that; floors never go back; the
//! register has the last write that took effect, on each branch.

pub mod apart;
mod body;
pub mod knowledge;
mod views;

pub use body::{Body, Busy};

use crate::explore::{Action, Model, Step, Violation};
use crate::intern::Interner;
use crate::warrants::is_new;
use crate::world::{Kind, World, name, writes};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, encode};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::log_tree::leaf;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{Forecast, Outcome, Structure, View};
use knowledge::{Archive, Knowledge};
use std::collections::HashMap;
use std::rc::Rc;

/// The operations and crashes of one client.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its device.
    pub device: DeviceId,
    /// Numbers it may use up.
    pub operations: u64,
    /// What its operations may be.
    pub kinds: Vec<Kind>,
    /// How often it may crash.
    pub crashes: u32,
}

/// What a crash loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Nothing: notes are durable too.
    Everything,
    /// What was noted since the client last persisted its state.
    Notes,
    /// What was persisted since its last operation ended: the client sends first (the shortcut of trace T1).
    SendsFirst,
    /// As [`Durability::SendsFirst`], but the numbers of that time had been reserved, and are given up (the
    /// candidate of the notes).
    Reserved,
}

/// A configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Users with a device each.
    pub users: u32,
    /// The clients.
    pub clients: Vec<Plan>,
    /// Whether they go the fast path where they can.
    pub fast: bool,
    /// Whether they go the slow path.
    pub slow: bool,
    /// Whether clients look.
    pub looks: bool,
    /// Whether clients wait for others' operations.
    pub waits: bool,
    /// Whether the server declares operations dead.
    pub aborts: bool,
    /// Whether operations may end without effect.
    pub nothing: bool,
    /// Most entries in a pending list.
    pub pending_max: usize,
    /// Whether views that no order can hold are left out before the check sees them.
    pub prune: bool,
    /// Number of places that the server may leave empty in a log before a view.
    pub gaps: u64,
    /// What a crash loses.
    pub durability: Durability,
}

/// Something signed, or shown.
pub(crate) enum Artefact {
    Certificate(Signed<Certificate>),
    Structure { signed: Signed<Structure> },
    Forecast(Forecast),
}

/// A client.
struct Client<B> {
    body: B,
    busy: Busy,
    /// The log as it knows it.
    log: u32,
    knowledge: u32,
    /// The signature whose outcome the client waits for, or the founding's.
    in_flight: u32,
}

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
    View,
    ViewNothing,
    Look,
    Learn,
    Acknowledge,
    Deny,
    Crash,
}

/// The result of an event: the client after it, and what it added to the pool.
#[derive(Clone)]
struct EventOutcome {
    client: u32,
    artefacts: Vec<u32>,
    broken: Option<String>,
    what: u32,
}

/// The model.
pub struct Lying<B: Body> {
    config: Config,
    world: World,
    archive: Archive,
    artefacts: Interner<Vec<u8>, Artefact>,
    knowledge: Interner<Knowledge, Knowledge>,
    clients: Interner<(Vec<u8>, u32, u32, u32), Client<B>>,
    pools: Interner<Vec<u32>, Vec<u32>>,
    words: Interner<String, String>,
    /// The forecasts of structures.
    twins: HashMap<u32, u32>,
    views: HashMap<(u32, u32, u8), Rc<Vec<EventOutcome>>>,
    checked: HashMap<(u32, Vec<u32>), Option<EventOutcome>>,
    simple: HashMap<(u32, u8, u32), Option<EventOutcome>>,
    /// Views that clients were shown, and those they believed.
    pub shown: (u64, u64),
}

impl<B: Body> Lying<B> {
    /// The model of a configuration.
    pub fn new(config: Config) -> Lying<B> {
        let mut world = World::new(config.users);
        let is_careless =
            |plan: &&Plan| plan.kinds.iter().any(|kind| matches!(kind, Kind::EnactAnyway { .. }));
        world.careless = config.clients.iter().filter(is_careless).map(|plan| plan.device).collect();
        Lying {
            world,
            config,
            archive: Archive::default(),
            artefacts: Interner::default(),
            knowledge: Interner::default(),
            clients: Interner::default(),
            pools: Interner::default(),
            words: Interner::default(),
            twins: HashMap::new(),
            views: HashMap::new(),
            checked: HashMap::new(),
            simple: HashMap::new(),
            shown: (0, 0),
        }
    }

    fn certificate(&mut self, certificate: &Signed<Certificate>) -> u32 {
        self.artefacts.add(encode(&(0u8, certificate)), || Artefact::Certificate(certificate.clone()))
    }

    /// Keeps a structure with what its signer knew.
    fn structure(&mut self, signed: &Signed<Structure>, declared: &Certificate, known: &Knowledge) -> u32 {
        let mut known = known.clone();
        let records = signed.value.forecast.pending.iter();
        known.recorded.extend(records.map(|record| ((record.device, record.number), record.forecast)));
        let knowledge = self.knowledge.add(known.clone(), || known);
        let make = || Artefact::Structure { signed: signed.clone() };
        let number = self.artefacts.add(encode(&(1u8, signed, knowledge)), make);
        let brought = self.world.brought(&signed.value, &declared.deltas);
        let knowledge = self.knowledge.get(knowledge);
        self.archive.sign(number, &signed.value, writes(&declared.deltas), brought, knowledge);
        number
    }

    fn forecast(&mut self, forecast: &Forecast) -> u32 {
        self.artefacts.add(encode(&(2u8, forecast)), || Artefact::Forecast(forecast.clone()))
    }

    fn client(&mut self, body: B, log: u32, knowledge: &Knowledge, in_flight: u32) -> u32 {
        let knowledge = self.knowledge.add(knowledge.clone(), || knowledge.clone());
        let world = &self.world;
        let known = (body.bytes(), log, knowledge, in_flight);
        self.clients.add(known, || {
            let busy = body.busy(world);
            Client { body, busy, log, knowledge, in_flight }
        })
    }

    /// Interns a set of artefacts. Forecasts that are also in a signed structure are left out.
    fn pool(&mut self, mut pool: Vec<u32>) -> u32 {
        for artefact in pool.clone() {
            let twin = match &*self.artefacts.get(artefact) {
                Artefact::Structure { signed } => match self.twins.get(&artefact) {
                    Some(twin) => Some(*twin),
                    None => {
                        let twin = self.forecast(&signed.value.forecast);
                        self.twins.insert(artefact, twin);
                        Some(twin)
                    }
                },
                _ => None,
            };
            pool.retain(|other| Some(*other) != twin);
        }
        pool.sort_unstable();
        pool.dedup();
        self.pools.add(pool.clone(), || pool)
    }

    fn word(&mut self, word: String) -> u32 {
        self.words.add(word.clone(), || word)
    }

    /// Adds a step of a client, together with its consequences. `shown`: the log of the view it accepted.
    fn told(
        &mut self,
        before: &Client<B>,
        body: B,
        seen: Option<(&View, &[u32])>,
        shown: Option<u32>,
        what: String,
    ) -> EventOutcome {
        let mut broken = None;
        let (was, is) = (before.body.floor(), body.floor());
        let elements = was.element.as_ref().zip(is.element.as_ref());
        let back = is.log().size < was.log().size
            || elements.is_some_and(|(earlier, later)| !earlier.vector.at_most(&later.vector));
        if B::KEEPS_FLOOR && back {
            broken = Some("the floor goes back".to_owned());
        }
        let mut known = (*self.knowledge.get(before.knowledge)).clone();
        if let Some((view, signatures)) = seen
            && let Err(why) = self.archive.accept(&mut known, signatures, is, view, &self.world)
        {
            broken = Some(why);
        }
        if let Err(why) = is_new(&mut self.world, before.body.floor(), body.floor()) {
            broken = Some(why);
        }
        for (operation, forecast) in body.assumes() {
            known.assumed.insert((operation, forecast));
        }
        let busy = body.busy(&self.world);
        let mut artefacts = Vec::new();
        match &busy {
            Busy::Idle => {}
            Busy::Update(certificate) => artefacts.push(self.certificate(certificate)),
            Busy::Fast(certificate, structure) if before.busy != busy => {
                artefacts.push(self.structure(structure, &certificate.value, &known));
            }
            Busy::Fast(..) => {}
            Busy::Commit(structure) => {
                if let Busy::Update(certificate) = &before.busy {
                    let certificate = certificate.value.clone();
                    artefacts.push(self.structure(structure, &certificate, &known));
                }
            }
        }
        let log = self.log_of(before, &body, shown);
        let what = self.word(what);
        let in_flight = match &busy {
            Busy::Fast(..) | Busy::Commit(_) => artefacts.last().copied().unwrap_or(before.in_flight),
            Busy::Idle | Busy::Update(_) => 0,
        };
        let client = self.client(body, log, &known, in_flight);
        EventOutcome { client, artefacts, broken, what }
    }

    /// The log that a client now believes in: that of the view, and its own operation if that has its place
    /// in it.
    fn log_of(&mut self, before: &Client<B>, body: &B, shown: Option<u32>) -> u32 {
        let head = body.floor().log();
        let mut leaves = self.world.log_at(shown.unwrap_or(before.log)).leaves.clone();
        // Only a client that forgets its floor has a log that gets shorter.
        leaves.truncate(head.size as usize);
        if (leaves.len() as u64) < head.size {
            leaves.push(match (&body.busy(&self.world), &before.busy) {
                (Busy::Commit(Signed { value, .. }), _) => {
                    leaf(value.forecast.certificate, body.logged(&value.forecast))
                }
                (_, Busy::Fast(_, structure)) => {
                    let forecast = &structure.value.forecast;
                    leaf(forecast.certificate, body.logged(forecast))
                }
                // Ordered, and given up there.
                _ => {
                    let floor = body.floor();
                    let offered = floor.offered.get(&floor.used).expect("it was declared");
                    leaf(offered.certificate, offered.forecast.expect("it has its place"))
                }
            });
        }
        let log = self.world.log(leaves);
        assert_eq!(self.world.log_at(log).frontier.head(), head, "the observer knows every client's log");
        log
    }

    /// An event that needs no view.
    fn tell(&mut self, client: u32, verb: Verb, detail: u32) -> Option<EventOutcome> {
        if let Some(told) = self.simple.get(&(client, verb as u8, detail)) {
            return told.clone();
        }
        let before = self.clients.get(client);
        let mut body = before.body.clone();
        let device = body.floor().device;
        let who = name(device);
        let told = match verb {
            Verb::Acknowledge => {
                let structure = before.busy.structure().cloned();
                structure.map(|structure| {
                    let number = structure.value.number();
                    let receipt = self.world.receipt(&structure.value);
                    let outcome = body.committed(&self.world, receipt);
                    let what = format!("server: acknowledges {who}{number}");
                    let mut told = self.told(&before, body, None, None, what);
                    self.settle(&mut told, |archive, known| match outcome {
                        true => archive.commit(known, (device, number), before.in_flight),
                        false => archive.abort(known, (device, number)),
                    });
                    told
                })
            }
            Verb::Deny => {
                let number = body.floor().used;
                body.denied(&self.world);
                let mut told = self.told(&before, body, None, None, format!("server: denies {who}{number}"));
                self.settle(&mut told, |archive, known| archive.abort(known, (device, number)));
                Some(told)
            }
            Verb::Learn => {
                let Artefact::Structure { signed } = &*self.artefacts.get(detail) else { return None };
                let seen = body.learn(&mut self.world, signed);
                let other = format!("{}{}", name(signed.value.device()), signed.value.number());
                seen.map(|view| {
                    self.told(&before, body, Some((&view, &[detail])), None, format!("{who}: learns {other}"))
                })
            }
            Verb::Crash => {
                // The state after the crash has the log of its time; what programs have read stays known.
                let left = self.clients.get(detail);
                let mut body = left.body.clone();
                let was = body.floor().used;
                let busy = matches!(left.busy, Busy::Update(_));
                body.restarted(&self.world);
                while self.config.durability == Durability::Reserved
                    && body.floor().used < before.body.floor().used
                {
                    if matches!(body.busy(&self.world), Busy::Idle) {
                        assert!(body.begin(&mut self.world, Kind::Fetch, false), "idle");
                    }
                    body.restarted(&self.world);
                }
                let known = (*self.knowledge.get(before.knowledge)).clone();
                let in_flight = if body.busy(&self.world).structure().is_some() { left.in_flight } else { 0 };
                let client = self.client(body, left.log, &known, in_flight);
                let what = self.word(format!("{who}: loses power and restarts"));
                let mut told = EventOutcome { client, artefacts: Vec::new(), broken: None, what };
                if busy {
                    self.settle(&mut told, |archive, known| archive.abort(known, (device, was)));
                }
                Some(told)
            }
            _ => {
                let kind =
                    self.config.clients.iter().find(|plan| plan.device == device)?.kinds[detail as usize];
                let fast =
                    matches!(verb, Verb::FastFetch | Verb::FastWrite | Verb::FastRotate | Verb::FastEnact);
                body.begin(&mut self.world, kind, fast).then(|| {
                    let path = if fast { "fast" } else { "slow" };
                    let number = body.floor().used;
                    let what = format!("{who}: begins {who}{number}, a {path} {kind:?}").to_lowercase();
                    let what = what.replacen(&who.to_lowercase(), &who, 1);
                    self.told(&before, body, None, None, what)
                })
            }
        };
        self.simple.insert((client, verb as u8, detail), told.clone());
        told
    }

    /// Notes, for the observer, the outcome of a client's own operation.
    fn settle(
        &mut self,
        told: &mut EventOutcome,
        note: impl FnOnce(&Archive, &mut Knowledge) -> Result<(), String>,
    ) {
        let client = self.clients.get(told.client);
        let mut known = (*self.knowledge.get(client.knowledge)).clone();
        if let Err(why) = note(&self.archive, &mut known) {
            told.broken = Some(why);
        }
        told.client = self.client(client.body.clone(), client.log, &known, client.in_flight);
    }

    fn push(
        &mut self,
        out: &mut Vec<Step>,
        state: &[u32],
        at: usize,
        verb: Verb,
        told: &EventOutcome,
    ) -> Result<(), Violation> {
        let action = Action { actor: at as u8, helps: true, commits: false, what: told.what };
        let mut to = state.to_vec();
        let place = 1 + 3 * at;
        to[place] = told.client;
        let noted = matches!(verb, Verb::Acknowledge | Verb::Deny | Verb::Learn);
        let persisted = match self.config.durability {
            Durability::Everything => true,
            Durability::Notes => !noted,
            Durability::SendsFirst | Durability::Reserved => verb == Verb::Crash,
        };
        if persisted || self.config.clients[at].crashes == 0 {
            to[place + 1] = told.client;
        }
        if verb == Verb::Crash {
            to[place + 2] -= 1;
        }
        if let Some(what) = &told.broken {
            return Err(Violation { action, what: what.clone() });
        }
        if !told.artefacts.is_empty() {
            let mut pool = (*self.pools.get(state[0])).clone();
            pool.extend(&told.artefacts);
            to[0] = self.pool(pool);
            let pool = self.pools.get(to[0]);
            for other in (0..self.config.clients.len()).map(|at| to[1 + 3 * at]) {
                let known = self.knowledge.get(self.clients.get(other).knowledge);
                for ((device, number), forecast) in &known.assumed {
                    let placed = |signed: &Signed<Structure>| {
                        (signed.value.device(), signed.value.number()) == (*device, *number)
                            && signed.value.forecast.digest() != *forecast
                    };
                    let elsewhere = pool.iter().any(|artefact| {
                        matches!(&*self.artefacts.get(*artefact), Artefact::Structure { signed } if placed(signed))
                    });
                    if elsewhere {
                        let what = format!(
                            "{}{number} was applied at one place and signed for another",
                            name(*device)
                        );
                        return Err(Violation { action, what });
                    }
                }
            }
        }
        out.push(Step { action, to });
        Ok(())
    }

    fn client_steps(&mut self, state: &[u32], at: usize, out: &mut Vec<Step>) -> Result<(), Violation> {
        let id = state[1 + 3 * at];
        let client = self.clients.get(id);
        let plan = self.config.clients[at].clone();
        let founding = u64::from(plan.device == DeviceId::SUPERUSER);
        if matches!(client.busy, Busy::Idle) && client.body.floor().used < plan.operations + founding {
            for (index, kind) in plan.kinds.iter().enumerate() {
                let (slow, fast) = match kind {
                    Kind::Fetch => (Verb::Fetch, Verb::FastFetch),
                    Kind::Write => (Verb::Write, Verb::FastWrite),
                    Kind::Rotate { .. } => (Verb::Rotate, Verb::FastRotate),
                    Kind::Enact { .. } | Kind::EnactAnyway { .. } => (Verb::Enact, Verb::FastEnact),
                };
                for (wanted, verb) in [(self.config.slow, slow), (self.config.fast, fast)] {
                    let told = wanted.then(|| self.tell(id, verb, index as u32)).flatten();
                    if let Some(told) = told {
                        self.push(out, state, at, verb, &told)?;
                    }
                }
            }
        }
        if client.busy.structure().is_some()
            && let Some(told) = self.tell(id, Verb::Acknowledge, 0)
        {
            self.push(out, state, at, Verb::Acknowledge, &told)?;
        }
        if !matches!(client.busy, Busy::Idle)
            && let Some(told) = self.tell(id, Verb::Deny, 0)
        {
            self.push(out, state, at, Verb::Deny, &told)?;
        }
        let outcomes: &[Verb] = match &client.busy {
            Busy::Update(_) if self.config.nothing => &[Verb::View, Verb::ViewNothing],
            Busy::Update(_) => &[Verb::View],
            Busy::Idle if self.config.looks => &[Verb::Look],
            Busy::Fast(..) if self.config.looks && B::PUSHED => &[Verb::Look],
            _ => &[],
        };
        for verb in outcomes {
            for told in self.believed(id, state[0], *verb).iter() {
                self.push(out, state, at, *verb, told)?;
            }
        }
        if self.config.waits {
            for artefact in self.pools.get(state[0]).iter() {
                if let Artefact::Structure { signed } = &*self.artefacts.get(*artefact)
                    && client.body.floor().view.pending.iter().any(|entry| {
                        !entry.dead
                            && (entry.forecast.device, entry.forecast.number())
                                == (signed.value.device(), signed.value.number())
                    })
                    && let Some(told) = self.tell(id, Verb::Learn, *artefact)
                {
                    self.push(out, state, at, Verb::Learn, &told)?;
                }
            }
        }
        if state[3 + 3 * at] > 0 && state[2 + 3 * at] != id {
            let told = self.tell(id, Verb::Crash, state[2 + 3 * at]).expect("a crash always works");
            self.push(out, state, at, Verb::Crash, &told)?;
        }
        Ok(())
    }
}

impl<B: Body> Model for Lying<B> {
    fn initial(&mut self) -> Vec<u32> {
        let (certificate, founding) = (self.world.founding_certificate.clone(), self.world.founding.clone());
        let founding = self.structure(&founding, &certificate.value, &Knowledge::default());
        let mut state = vec![self.pool(vec![founding])];
        for plan in self.config.clients.clone() {
            let body = B::start(&self.world, plan.device);
            let mut known = Knowledge::default();
            let mut leaves = Vec::new();
            if let Some(own) = body.floor().own() {
                // The superuser begins with the founding.
                let forecast = &own.value.forecast;
                leaves.push(leaf(forecast.certificate, forecast.digest()));
                self.archive.commit(&mut known, (plan.device, 1), founding).expect("the first");
            }
            let log = self.world.log(leaves);
            let client = self.client(body, log, &known, 0);
            state.extend([client, client, plan.crashes]);
        }
        state
    }

    fn steps(&mut self, state: &[u32], out: &mut Vec<Step>) -> Result<(), Violation> {
        for at in 0..self.config.clients.len() {
            self.client_steps(state, at, out)?;
        }
        Ok(())
    }

    fn describe(&self, action: Action) -> String {
        (*self.words.get(action.what)).clone()
    }

    fn machines(&self) -> usize {
        self.clients.len()
    }
}

/// The outcome of an operation, in the order in which a configuration tries them.
fn outcome(verb: Verb) -> Outcome {
    if verb == Verb::ViewNothing { Outcome::Nothing } else { Outcome::Done }
}

/// A leaf of the log for an operation that nobody ever sees.
fn filler(place: u64) -> Digest {
    let mut bytes = [0xf1; 32];
    bytes[..8].copy_from_slice(&place.to_le_bytes());
    Digest(bytes)
}
