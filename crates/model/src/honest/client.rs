//! The states of the clients' machines, and the steps between them, each made once.

use super::Mail;
use super::restores::go_over;
use super::server::Server;
use crate::intern::Interner;
use crate::world::{Kind, Operation, World, name, sent};
use holdfast_content::{DeviceId, Membership, OperationStatus, PrincipalId};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::check::AcceptedView;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::signer::{Effect, Event, OperationEnd, Signer};
use holdfast_protocol::structure::Outcome;
use std::collections::HashMap;
use std::rc::Rc;

/// A state of a client.
pub(super) struct Client {
    pub(super) signer: Signer,
    pub(super) is_idle: bool,
    /// The request that it waits for an answer to.
    pub(super) request: Option<u32>,
}

impl Client {
    /// Numbers used so far.
    pub(super) fn used(&self) -> u64 {
        self.signer.floor().used
    }

    /// Whether it has given a number up.
    pub(super) fn voids(&self, number: u64) -> bool {
        self.signer.floor().voids.contains(number)
    }

    /// Others' operations that it may wait for.
    pub(super) fn waits_for(&self) -> Vec<Operation> {
        let floor = self.signer.floor();
        let alive = floor.view.pending.iter().filter(|entry| !entry.dead);
        alive
            .map(|entry| (entry.forecast.device, entry.forecast.number()))
            .filter(|(device, _)| *device != floor.device)
            .collect()
    }

    /// Whether the membership it knows has this device.
    pub(super) fn knows_as_active(&self, world: &mut World, device: DeviceId) -> bool {
        let view = &self.signer.floor().view;
        view.handle(PrincipalId::Members)
            .is_some_and(|(_, handle)| world.membership_at(&handle.reference).is_active(device))
    }
}

/// An event for a client's machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum ClientEvent {
    /// Begin; whether on the fast path.
    Begin(Kind, bool),
    /// The answer to the present request.
    Answer(u32),
    /// The tables are computed.
    Fold(Outcome),
    /// A structure that the client waited for.
    Learn(u32),
    /// A view from a look.
    Look(u32),
    /// The view of a server whose restore the client adopts.
    TakeUp(u32),
    /// First event after a crash.
    Restart,
    /// A restart after which the numbers up to this one, which had been reserved, are given up.
    RestartFrom(u64),
}

/// What a crash leaves of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CrashRemnant {
    /// The state before the step.
    Nothing,
    /// The new state, or one of those before.
    Noted,
    /// The new state.
    Persisted,
}

/// The result of a step.
#[derive(Clone)]
pub(super) struct Next {
    pub(super) machine: u32,
    pub(super) kept: CrashRemnant,
    /// The accepted view whose tables are wanted, plus one.
    pub(super) folding: u32,
    pub(super) acknowledged: Option<u64>,
    /// An operation was committed, with effect.
    pub(super) committed: bool,
    /// First and last of the client's operations that a restore has lost.
    pub(super) lost: Option<(u64, u64)>,
}

/// An accepted view, and the certificate it is for.
pub(super) struct Folding {
    accepted: AcceptedView,
    certificate: Certificate,
}

/// All states met so far.
#[derive(Default)]
pub(super) struct Clients {
    states: Interner<Vec<u8>, Client>,
    foldings: Interner<(Vec<u8>, Vec<u8>), Folding>,
    steps: HashMap<(u32, u32, ClientEvent), Next>,
}

impl Clients {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, machine: u32) -> Rc<Client> {
        self.states.get(machine)
    }

    pub(super) fn folding(&self, folding: u32) -> Rc<Folding> {
        self.foldings.get(folding - 1)
    }

    pub(super) fn create(&mut self, world: &World, mail: &mut Mail, device: DeviceId) -> u32 {
        self.keep(world, mail, world.signer(device))
    }

    fn keep(&mut self, world: &World, mail: &mut Mail, signer: Signer) -> u32 {
        // "No answer" changes nothing, and returns the request that is waited for.
        let device = signer.floor().device;
        let again = signer.clone().step(world.key(device), Event::ConnectionLost).unwrap_or_default();
        let request = sent(&again).map(|request| mail.request(request));
        let is_idle = signer.is_idle();
        self.states.add(signer.to_bytes(), || Client { signer, is_idle, request })
    }

    /// Makes a step of the machine in state `machine`.
    ///
    /// # Errors
    /// In words: the machine raises an alarm, or goes behind what it had accepted.
    pub(super) fn step(
        &mut self,
        world: &mut World,
        mail: &mut Mail,
        machine: u32,
        folding: u32,
        told: ClientEvent,
    ) -> Result<Next, String> {
        if let Some(next) = self.steps.get(&(machine, folding, told)) {
            return Ok(next.clone());
        }
        let before = self.get(machine);
        let mut signer = match told {
            ClientEvent::Restart | ClientEvent::RestartFrom(_) => {
                Signer::restore(&before.signer.to_bytes()).map_err(|error| error.to_string())?
            }
            _ => before.signer.clone(),
        };
        let mut lost = None;
        let effects = match told {
            ClientEvent::TakeUp(response) => {
                let Response::View(reply) = &*mail.responses.get(response) else {
                    return Err("a look is answered by a view".to_owned());
                };
                lost = go_over(world, &mut signer, reply)?;
                vec![Effect::Persist(Box::new(signer.clone()))]
            }
            _ => self.tell(world, mail, &mut signer, &before, folding, told)?,
        };
        let floor = signer.floor();
        if floor.epoch == before.signer.floor().epoch && floor.log().size < before.signer.floor().log().size {
            return Err("the floor goes back".to_owned());
        }
        let number = before.used();
        let mut next = Next {
            machine: 0,
            kept: CrashRemnant::Nothing,
            folding: 0,
            acknowledged: None,
            committed: false,
            lost,
        };
        let waits_still = !matches!(
            told,
            ClientEvent::Fold(_)
                | ClientEvent::Restart
                | ClientEvent::RestartFrom(_)
                | ClientEvent::TakeUp(_)
        ) && folding > 0;
        if waits_still {
            next.folding = folding;
        }
        for effect in effects {
            match effect {
                Effect::Persist(state) => {
                    if *state != signer {
                        return Err("it persists another state than its own".to_owned());
                    }
                    next.kept = CrashRemnant::Persisted;
                }
                Effect::Note(_) => next.kept = CrashRemnant::Noted,
                Effect::Fold(accepted) => {
                    let Some(request) = before.request else { return Err("it folds nothing".to_owned()) };
                    let Request::Update { certificate, .. } = &*mail.requests.get(request) else {
                        return Err("it folds for no UPDATE".to_owned());
                    };
                    let bytes = holdfast_crypto::encode(&(&accepted.view, &accepted.forecast));
                    let known = (bytes, holdfast_crypto::encode(certificate));
                    let make = || Folding { accepted: *accepted, certificate: certificate.value.clone() };
                    next.folding = self.foldings.add(known, make) + 1;
                }
                Effect::Finished(OperationEnd::Committed(structure)) => {
                    next.acknowledged = Some(number);
                    next.committed = structure.value.outcome == Outcome::Done;
                }
                Effect::Alarm(alarm) => {
                    return Err(format!(
                        "{} alarms at an honest server: {alarm}",
                        name(signer.floor().device)
                    ));
                }
                Effect::Send(_) | Effect::Finished(_) | Effect::Advanced | Effect::FreezeAll => {}
            }
        }
        next.machine = self.keep(world, mail, signer);
        self.steps.insert((machine, folding, told), next.clone());
        Ok(next)
    }

    fn tell(
        &mut self,
        world: &mut World,
        mail: &Mail,
        signer: &mut Signer,
        before: &Client,
        folding: u32,
        told: ClientEvent,
    ) -> Result<Vec<Effect>, String> {
        let device = signer.floor().device;
        let misuse = |misuse: holdfast_protocol::signer::Misuse| misuse.to_string();
        let alarms = |alarm: holdfast_protocol::alarm::Alarm| format!("{} alarms: {alarm}", name(device));
        let key = world.key(device).clone();
        match told {
            ClientEvent::Begin(kind, fast) => {
                let deltas = world.deltas(signer.floor(), kind);
                let view = signer.floor().view.clone();
                let fast = fast.then(|| world.fold(&view, device, &deltas, Outcome::Done));
                signer.step(&key, Event::Begin { deltas, time_ns: 0, fast }).map_err(misuse)
            }
            ClientEvent::Answer(response) => match &*mail.responses.get(response) {
                Response::View(reply) => {
                    let members = world.members(signer.floor(), &reply.view).map_err(alarms)?;
                    signer.step(&key, Event::Reply { reply, members: &*members }).map_err(misuse)
                }
                Response::Committed(receipt) => {
                    signer.step(&key, Event::Committed(receipt.clone())).map_err(misuse)
                }
                Response::Aborted => signer.step(&key, Event::Aborted).map_err(misuse),
                // As a driver handles a definite error.
                Response::Refused | Response::Error(_) => signer.step(&key, Event::Refused).map_err(misuse),
                other => Err(format!("no request is answered by {other:?}")),
            },
            ClientEvent::Fold(outcome) => {
                let folding = self.folding(folding);
                let view = &folding.accepted.view;
                let tables = world.fold(view, device, &folding.certificate.deltas, outcome);
                signer.step(&key, Event::Folded { outcome, tables }).map_err(misuse)
            }
            ClientEvent::Learn(response) => {
                let Response::Structure(Some(structure)) = &*mail.responses.get(response) else {
                    return Err("a wait ends with a structure".to_owned());
                };
                let floor = signer.floor();
                let (_, handle) = floor.view.handle(PrincipalId::Members).ok_or("there is no membership")?;
                let members: Rc<Membership> = world.membership_at(&handle.reference);
                let event = Event::Learned { structure: (**structure).clone(), members: &*members };
                signer.step(&key, event).map_err(misuse)
            }
            ClientEvent::Look(response) => {
                let Response::View(reply) = &*mail.responses.get(response) else {
                    return Err("a look is answered by a view".to_owned());
                };
                let members = world.members(signer.floor(), &reply.view).map_err(alarms)?;
                signer.step(&key, Event::Look { reply, members: &*members }).map_err(misuse)
            }
            ClientEvent::TakeUp(_) => unreachable!("it is no event of the machine"),
            ClientEvent::Restart => {
                debug_assert_eq!(before.signer, *signer);
                signer.step(&key, Event::Restarted).map_err(misuse)
            }
            ClientEvent::RestartFrom(used) => {
                let mut effects = signer.step(&key, Event::Restarted).map_err(misuse)?;
                while signer.floor().used < used {
                    let event = Event::Begin { deltas: Vec::new(), time_ns: 0, fast: None };
                    // An operation is in flight: it is sent again, as after any crash.
                    if signer.step(&key, event).is_err() {
                        break;
                    }
                    effects = signer.step(&key, Event::Restarted).map_err(misuse)?;
                }
                Ok(effects)
            }
        }
    }
}

/// Whether an operation takes effect at its place in the order.
pub(super) fn fitting(world: &mut World, folding: &Folding) -> Outcome {
    let Folding { accepted, certificate } = folding;
    let version = accepted.forecast.vector.get(PrincipalId::Members);
    world.outcome_at(certificate.device, &accepted.view, version, &certificate.deltas)
}

/// Checks that whatever a client takes for true is true at the server.
pub(super) fn agree(world: &World, client: &Client, server: &Server) -> Result<(), String> {
    let floor = client.signer.floor();
    let device = floor.device;
    let who = name(device);
    if floor.epoch != server.epoch() {
        // Lost operations are reported when the restore is adopted.
        return Ok(());
    }
    if let Some(own) = floor.own() {
        match server.view.slots.get(&device) {
            None => return Err(format!("{who}'s acknowledged operation {} is lost", floor.last())),
            Some(slot) if slot.value.number() < floor.last() => {
                return Err(format!("{who}'s acknowledged operation {} is lost", floor.last()));
            }
            Some(slot) if slot.value.number() == floor.last() && slot != own => {
                return Err(format!("{who}'s acknowledged operation {} was replaced", floor.last()));
            }
            Some(_) => {}
        }
    }
    for ((author, number), _) in &server.log {
        let shown = floor.view.slots.get(author).is_some_and(|slot| slot.value.number() >= *number);
        let known = floor.view.status_of(*author, *number);
        if known == OperationStatus::Pending || (known == OperationStatus::Committed && !shown) {
            continue;
        }
        let true_fate = server.view.status_of(*author, *number);
        if known != true_fate {
            return Err(format!(
                "{who} takes operation {number} of {} for {known:?}, but it is {true_fate:?}",
                name(*author)
            ));
        }
    }
    let register = world.register(&floor.view)?;
    if register.is_settled && !floor.view.slots.is_empty() {
        let size = floor.view.log.size as usize;
        let expected = server.last_write(size, device, floor.last());
        if register.value != expected {
            return Err(format!("{who} reads {:?}, but the last write was {expected:?}", register.value));
        }
    }
    Ok(())
}
