//! Servers that are restored to an older state, with or without a declaration by the superuser.
//!
//! A backup is taken once at any time, and restored once at any later time. If that is declared, it is the
//! server from then on. Requests and answers of the epoch before may still be delivered. Each client adopts
//! the restore at any time, whatever it is doing, with the answer to a look; [`Alarm::Restored`], and no
//! other alarm, tells it to. If the restore is not declared, exploration stops there, and the next view is
//! checked against each client.
//!
//! Promises: a declared restore raises no alarm. A client that had an acknowledgement for a lost operation is
//! notified. What is acknowledged in the new epoch keeps all other promises, and everybody can make progress
//! in it. An undeclared restore raises an alarm at clients that have seen more, and at no others.

use super::client::{Client, ClientEvent, Clients};
use super::server::{Server, Servers};
use super::{Honest, Mail, Restores, State, Verb, action};
use crate::explore::{Step, Violation};
use crate::world::{Operation, World, sent};
use holdfast_content::{DeviceId, Membership, OperationStatus, PrincipalId};
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::certificate::{Certificate, Delta};
use holdfast_protocol::check::check_look;
use holdfast_protocol::epoch::{Declaration, latest};
use holdfast_protocol::message::{Request, Response, ViewReply};
use holdfast_protocol::order::last_vector;
use holdfast_protocol::restore::{remaining_log, take_up};
use holdfast_protocol::sequencer::settled;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Signer, Tables};
use std::collections::BTreeMap;

/// Whether a request is of the epoch that the server is in.
pub(super) fn is_present(server: &Server, request: &Request) -> bool {
    let epoch = server.epoch();
    match request {
        Request::Update { certificate, .. } | Request::Fast { certificate, .. } => {
            certificate.value.file_system == epoch
        }
        Request::Commit { structure, .. } => structure.value.forecast.file_system == epoch,
        _ => true,
    }
}

impl Servers {
    /// The state of a server that was restored to `backup`, with a declaration of the superuser.
    pub(super) fn put_back(&mut self, world: &mut World, backup: u32) -> Result<u32, String> {
        if let Some(known) = self.put_back.get(&backup) {
            return Ok(*known);
        }
        let mut sequencer = self.get(backup).sequencer.clone();
        let members = sequencer.membership().clone();
        let key = world.key(DeviceId::SUPERUSER).clone();
        let (file_system, head) = (key.public().file_system_id(), sequencer.look().view.log);
        let declaration = Declaration {
            file_system,
            epoch: latest(file_system, &members.restores),
            size: head.size,
            root: head.root,
            base: sequencer.epoch(),
            declared_ns: 0,
            nonce: [1; 16],
        };
        let mut restores = members.restores.clone();
        let signed = Signed::new(declaration, &key);
        restores.push(signed.value.with(signed.signature));
        // The superuser's device has done nothing since the founding, and adopts the restore first.
        let floor = world.superuser.floor().clone();
        let refused = |alarm: Alarm| format!("the superuser alarms at a restore: {alarm}");
        let from = remaining_log(&floor, &restores).map_err(refused)?.ok_or("it was declared before")?;
        let mut reply = self.shown(world, backup, from.head().size);
        reply.view = settled(&reply.view);
        let (floor, _) = take_up(&floor, &restores, &members, &reply).map_err(refused)?;
        let version = last_vector(&reply.view).get(PrincipalId::Members) + 1;
        let next = Membership { version, restores, warrant: None, ..members };
        let Delta::SetMembers { reference } = world.set_members(&next) else { unreachable!("it is one") };
        let tables = Tables::from([(PrincipalId::Members, reference)]);
        let effects = Signer::in_epoch(floor).declare(&key, reference, 0, &tables);
        let Some(Request::Fast { certificate, structure, .. }) =
            sent(&effects.map_err(|why| why.to_string())?)
        else {
            return Err("a restore is declared by one operation".to_owned());
        };
        let operation = (DeviceId::SUPERUSER, certificate.value.number);
        let declared: BTreeMap<Operation, Certificate> = [(operation, certificate.value.clone())].into();
        let certificate = certificate.verified(key.public()).ok_or("a bad signature")?;
        let structure = structure.verified(key.public()).ok_or("a bad signature")?;
        let step = sequencer.restored(DeviceId::SUPERUSER, &certificate, &structure, next);
        let step = step.map_err(|why| format!("an honest declaration is refused: {why}"))?;
        let (server, _) = self.advance(world, backup, sequencer, step, &declared)?;
        self.put_back.insert(backup, server);
        Ok(server)
    }

    /// The server's answer to a client that has to adopt the restores of its membership; `None` if there are
    /// none.
    pub(super) fn taken_up(
        &mut self,
        world: &mut World,
        mail: &mut Mail,
        server: u32,
        client: &Client,
    ) -> Result<Option<u32>, String> {
        let restores = self.get(server).restores();
        match remaining_log(client.signer.floor(), &restores) {
            Ok(None) => Ok(None),
            Ok(Some(left)) => Ok(Some(self.look(world, mail, server, left.head().size))),
            Err(alarm) => Err(format!("an honest restore is refused: {alarm}")),
        }
    }
}

impl Honest {
    /// A client that sees a declared restore adopts it.
    pub(super) fn take_up(&mut self, out: &mut Vec<Step>, state: &State, at: usize) -> Result<(), Violation> {
        let client = self.clients.get(state.places[at].machine);
        if state.is_restored == 0 || client.signer.floor().epoch == self.servers.get(state.server).epoch() {
            return Ok(());
        }
        let broken = |what| Violation { action: action(at, Verb::TakeUp, 0), what };
        let shown = self.servers.taken_up(&mut self.world, &mut self.mail, state.server, &client);
        let Some(shown) = shown.map_err(broken)? else { return Ok(()) };
        let (machine, event) = (state.places[at].machine, ClientEvent::TakeUp(shown));
        let next = self.clients.step(&mut self.world, &mut self.mail, machine, 0, event).map_err(broken)?;
        let (server, acknowledged) = (self.servers.get(state.server), state.places[at].acknowledged);
        all_is_told(&server, self.device(at), acknowledged, next.lost).map_err(broken)?;
        let mut state = self.moved(state, at, &next);
        let place = &mut state.places[at];
        place.acknowledged = 0;
        place.durable = vec![place.machine];
        for list in [&mut place.answers, &mut place.learned, &mut place.looks] {
            list.clear();
        }
        self.push(out, action(at, Verb::TakeUp, shown), state)
    }

    /// A backup is taken, or put back.
    pub(super) fn backups(&mut self, out: &mut Vec<Step>, state: &State) -> Result<(), Violation> {
        if state.backup == 0 {
            let next = State { backup: state.server + 1, ..state.clone() };
            return self.push(out, action(0, Verb::Backup, 0), next);
        }
        if state.is_restored != 0 || state.backup == state.server + 1 {
            return Ok(());
        }
        let act = action(0, Verb::PutBack, 0);
        let devices: Vec<DeviceId> = self.config.clients.iter().map(|plan| plan.device).collect();
        let (world, mail) = (&mut self.world, &mut self.mail);
        let (servers, clients) = (&mut self.servers, &mut self.clients);
        let result = match self.config.restores {
            Restores::Undeclared => Ok(state.backup - 1),
            _ => undeclared(world, mail, servers, clients, state, &devices)
                .and_then(|()| servers.put_back(world, state.backup - 1)),
        };
        let server = result.map_err(|what| Violation { action: act, what })?;
        // The restored backup is the server from then on.
        self.push(out, act, State { server, is_restored: 1, backup: u32::MAX, ..state.clone() })
    }
}

/// A client adopts the restore; returns the first and last of its operations that are lost.
pub(super) fn go_over(
    world: &mut World,
    signer: &mut Signer,
    reply: &ViewReply,
) -> Result<Option<(u64, u64)>, String> {
    let floor = signer.floor();
    let refused = |alarm: Alarm| format!("an honest restore is refused: {alarm}");
    let members = world.members(floor, &reply.view).map_err(refused)?;
    match check_look(floor, &*members, reply) {
        Err(Alarm::Restored { .. }) => {}
        Err(alarm) => return Err(format!("an honest restore is taken for something else: {alarm}")),
        Ok(_) => return Err("a restore is passed over".to_owned()),
    }
    let (taken, lost) = take_up(floor, &members.restores, &*members, reply).map_err(refused)?;
    *signer = Signer::in_epoch(taken);
    Ok(lost.own)
}

/// Checks that a client with acknowledgements for lost operations is notified.
pub(super) fn all_is_told(
    server: &Server,
    device: DeviceId,
    acknowledged: u32,
    told: Option<(u64, u64)>,
) -> Result<(), String> {
    for number in (0..32).filter(|number| acknowledged & (1 << number) != 0) {
        let is_left = server.log.iter().any(|(operation, _)| *operation == (device, number))
            && server.view.status_of(device, number) == OperationStatus::Committed;
        let is_told = told.is_some_and(|(first, last)| (first..=last).contains(&number));
        if is_left == is_told {
            let who = crate::world::name(device);
            return Err(format!(
                "{who}'s acknowledged operation {number}: left {is_left}, told lost {is_told}"
            ));
        }
    }
    Ok(())
}

/// Checks the reaction of each client to the next view of a server with an undeclared restore.
pub(super) fn undeclared(
    world: &mut World,
    mail: &mut Mail,
    servers: &mut Servers,
    clients: &mut Clients,
    state: &State,
    devices: &[DeviceId],
) -> Result<(), String> {
    let backup = state.backup - 1;
    for (place, device) in state.places.iter().zip(devices) {
        let client = clients.get(place.machine);
        let told = match client.request {
            None if client.is_idle => {
                let size = client.signer.floor().log().size;
                ClientEvent::Look(servers.look(world, mail, backup, size))
            }
            Some(request) if matches!(&*mail.requests.get(request), Request::Update { .. }) => {
                let (_, answer) = servers.handle(world, mail, backup, *device, request, false)?;
                if !matches!(&*mail.responses.get(answer), Response::View(_)) {
                    continue;
                }
                ClientEvent::Answer(answer)
            }
            _ => continue,
        };
        let has_seen = seen(&client, &servers.get(backup));
        let alarms = clients.step(world, mail, place.machine, place.folding, told).is_err();
        let who = crate::world::name(*device);
        match has_seen {
            ObservedState::More if !alarms => {
                return Err(format!("{who} takes a restore that nobody declared"));
            }
            ObservedState::NoMore if alarms => {
                return Err(format!("{who} alarms, and has seen nothing that is lost"));
            }
            _ => {}
        }
    }
    Ok(())
}

enum ObservedState {
    /// The client knows operations that are lost, or that one of them was committed.
    More,
    /// The client knows that an operation was dead, or only what cannot be checked against the restored
    /// state.
    Statuses,
    NoMore,
}

fn seen(client: &Client, backup: &Server) -> ObservedState {
    let floor = client.signer.floor();
    let number = |device: &DeviceId| backup.view.slots.get(device).map_or(0, |slot| slot.value.number());
    // What was learned by waiting, and is in no view yet, may still be pending in a view under way. Nothing
    // is signed on such a view (trace T12), but it is no alarm by itself.
    let is_learned = |device: &DeviceId| floor.learned.contains_key(device);
    let mut beyond = floor.view.slots.iter().filter(|(device, slot)| slot.value.number() > number(device));
    let further = beyond.any(|(device, _)| !is_learned(device));
    if further || floor.log().size > backup.view.log.size {
        return ObservedState::More;
    }
    let is_dead_there = |device, number| {
        let mut entries = backup.view.pending.iter();
        entries
            .any(|entry| (entry.forecast.device, entry.forecast.number()) == (device, number) && entry.dead)
    };
    let dead = floor.view.pending.iter().filter(|entry| entry.dead);
    let mut dead = dead.map(|entry| (entry.forecast.device, entry.forecast.number()));
    // In the older state, operations that the client gave up may be alive.
    let gave_up = (1..=floor.used).any(|number| floor.voids.contains(number));
    let is_unclear = dead.any(|(device, number)| !is_dead_there(device, number)) || !floor.learned.is_empty();
    match is_unclear || gave_up {
        true => ObservedState::Statuses,
        false => ObservedState::NoMore,
    }
}
