//! The states of the server's machine, and the steps between them, each made once.

use super::Mail;
use super::restores::is_present;
use crate::intern::Interner;
use crate::world::{Operation, World, receipt_for, writes};
use holdfast_content::{DeviceId, OperationStatus, PrincipalId, Restore};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::message::{Receipt, Request, Response, ServerError, ViewReply};
use holdfast_protocol::sequencer::{
    CommitOutcome, FastOutcome, OrderingRecord, OrderingStatus, Sequencer, Step, UpdateOutcome,
};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{Structure, View};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// When pending operations time out; all of them arrived at time 0.
const ABORT_AFTER_MS: u64 = 1_000;

/// A state of the server.
pub(super) struct Server {
    pub(super) sequencer: Sequencer,
    /// The present view.
    pub(super) view: View,
    /// Every operation ever ordered, with whether it writes the register.
    pub(super) log: Vec<(Operation, bool)>,
    leaves: Vec<Digest>,
}

impl Server {
    /// The epoch that it is in.
    pub(super) fn epoch(&self) -> Digest {
        self.sequencer.epoch()
    }

    /// The restores that were declared.
    pub(super) fn restores(&self) -> Vec<Restore> {
        self.sequencer.membership().restores.clone()
    }

    /// Whether the server orders operations of this device.
    pub(super) fn is_member(&self, device: DeviceId) -> bool {
        self.sequencer.membership().is_active(device)
    }

    /// Whether the server has no reason to refuse a device: it is a member, and no change of membership is
    /// pending.
    pub(super) fn may_serve(&self, device: DeviceId) -> bool {
        let changing = self.sequencer.pending().any(|certificate| certificate.new_members().is_some());
        self.is_member(device) && !changing
    }

    /// The operations that may be declared dead.
    pub(super) fn alive(&self) -> Vec<Operation> {
        self.sequencer.pending().map(|certificate| (certificate.device, certificate.number)).collect()
    }

    /// The last write with effect among the first `size` operations, without those of `device` above `last`.
    pub(super) fn last_write(&self, size: usize, device: DeviceId, last: u64) -> Option<Operation> {
        let counts = |(operation, is_write): &&(Operation, bool)| {
            let (author, number) = *operation;
            *is_write
                && (author != device || number <= last)
                && self.view.status_of(author, number) == OperationStatus::Committed
        };
        self.log.iter().take(size).rfind(counts).map(|(operation, _)| *operation)
    }

    fn statuses(&self) -> impl Iterator<Item = (Operation, OperationStatus)> {
        self.log
            .iter()
            .map(|((device, number), _)| ((*device, *number), self.view.status_of(*device, *number)))
    }
}

/// All states met so far.
#[derive(Default)]
pub(super) struct Servers {
    states: Interner<Vec<u8>, Server>,
    handled: HashMap<(u32, DeviceId, u32, bool), (u32, u32)>,
    killed: HashMap<(u32, DeviceId), u32>,
    looks: HashMap<(u32, u64), u32>,
    /// The states after restoring each backup.
    pub(super) put_back: HashMap<u32, u32>,
}

impl Servers {
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    pub(super) fn get(&self, server: u32) -> Rc<Server> {
        self.states.get(server)
    }

    /// The server right after the founding.
    pub(super) fn create(&mut self, world: &mut World) -> u32 {
        let (certificate, structure) = (world.founding_certificate.clone(), world.founding.clone());
        let membership = world.membership.clone();
        let root = world.key(DeviceId(0)).public();
        let entry = ((DeviceId(0), 1), certificate.value.clone());
        let step =
            Sequencer::create(root, certificate, structure, membership, ABORT_AFTER_MS).expect("valid");
        self.keep(world, step.answer.0, Vec::new(), Vec::new(), &BTreeMap::from([entry]), &step.records)
            .expect("nothing is wrong yet")
            .0
    }

    /// Stores a state that resulted from `records`, and checks its promises if it is new.
    fn keep(
        &mut self,
        world: &World,
        sequencer: Sequencer,
        mut log: Vec<(Operation, bool)>,
        mut leaves: Vec<Digest>,
        declared: &BTreeMap<Operation, Certificate>,
        records: &[OrderingRecord],
    ) -> Result<(u32, bool), String> {
        let checkpoint = sequencer.checkpoint();
        let (sequencer, _) = Sequencer::restore(Some(&checkpoint), [[0u8; 0]; 0], ABORT_AFTER_MS, 0)
            .map_err(|error| format!("the server's checkpoint does not restore: {error}"))?;
        let view = sequencer.look().view;
        for record in records {
            if let OrderingRecord::Create { certificate, .. }
            | OrderingRecord::Update { certificate, .. }
            | OrderingRecord::Restore { certificate, .. }
            | OrderingRecord::Fast { certificate, .. } = record
            {
                let operation = (certificate.value.device, certificate.value.number);
                log.push((operation, writes(&declared[&operation].deltas)));
                let pending = view.pending.iter().map(|entry| &entry.forecast);
                let mut shown = view.slots.values().map(|slot| &slot.value.forecast).chain(pending);
                let forecast = shown
                    .find(|forecast| (forecast.device, forecast.number()) == operation)
                    .ok_or("what was just ordered is not shown")?;
                leaves.push(holdfast_protocol::log_tree::leaf(forecast.certificate, forecast.digest()));
            }
        }
        let before = self.states.len();
        let server = self.states.add(sequencer.checkpoint(), || Server { sequencer, view, log, leaves });
        if self.states.len() == before {
            return Ok((server, false));
        }
        let state = self.states.get(server);
        let register = world.register(&state.view)?;
        let expected = state.last_write(state.log.len(), DeviceId(u32::MAX), 0);
        if register.value != expected {
            return Err(format!("the register holds {:?}, the last write was {expected:?}", register.value));
        }
        Ok((server, true))
    }

    /// Advances from a state by `records`, through a crash, and checks that no settled status changed.
    pub(super) fn advance<T>(
        &mut self,
        world: &mut World,
        from: u32,
        after: Sequencer,
        step: Step<T>,
        declared: &BTreeMap<Operation, Certificate>,
    ) -> Result<(u32, T), String> {
        let Step { answer, records, .. } = step;
        if records.is_empty() {
            return Ok((from, answer));
        }
        let former = self.get(from);
        let bytes = records.iter().map(OrderingRecord::to_bytes);
        let (restored, _) =
            Sequencer::restore(Some(&former.sequencer.checkpoint()), bytes, ABORT_AFTER_MS, 0)
                .map_err(|error| format!("the server's records do not restore: {error}"))?;
        let after = Sequencer::restore(Some(&after.checkpoint()), [[0u8; 0]; 0], ABORT_AFTER_MS, 0)
            .map_err(|error| error.to_string())?
            .0;
        if restored != after {
            return Err("a restart brings the server into another state".to_owned());
        }
        let (log, leaves) = (former.log.clone(), former.leaves.clone());
        let (server, new) = self.keep(world, restored, log, leaves, declared, &records)?;
        let now = self.get(server);
        if now.log.len() < former.log.len() || now.log[..former.log.len()] != former.log[..] {
            return Err("the same state of the server has another past".to_owned());
        }
        follows(world, &former.view, &now.view)?;
        if new || records.len() > 1 {
            for (operation, status) in former.statuses() {
                let later = now.view.status_of(operation.0, operation.1);
                if status != OperationStatus::Pending && later != status {
                    return Err(format!("{operation:?} was {status:?}, and is now {later:?}"));
                }
            }
        }
        Ok((server, answer))
    }

    /// Carries out a request of `device`; `expire`: after everything pending has timed out.
    pub(super) fn handle(
        &mut self,
        world: &mut World,
        mail: &mut Mail,
        server: u32,
        device: DeviceId,
        request: u32,
        expire: bool,
    ) -> Result<(u32, u32), String> {
        let known = (server, device, request, expire);
        if let Some(known) = self.handled.get(&known) {
            return Ok(*known);
        }
        let now_ms = if expire { ABORT_AFTER_MS } else { 0 };
        let (next, response) = self.compute(world, server, device, &mail.requests.get(request), now_ms)?;
        let response = mail.response(response);
        self.handled.insert(known, (next, response));
        Ok((next, response))
    }

    fn compute(
        &mut self,
        world: &mut World,
        server: u32,
        device: DeviceId,
        request: &Request,
        now_ms: u64,
    ) -> Result<(u32, Response), String> {
        let mut sequencer = self.get(server).sequencer.clone();
        let key = world.key(device).public();
        let refused =
            |refusal: holdfast_protocol::sequencer::Refusal| Response::Error(ServerError::from(refusal));
        Ok(match request {
            Request::Update { certificate, log_size, .. } => {
                let membership = world.new_membership(&certificate.value);
                let declared = declared(certificate);
                let certificate = certificate.clone().verified(key).ok_or("a bad signature")?;
                match sequencer.update(now_ms, device, &certificate, membership) {
                    Err(refusal) => (server, refused(refusal)),
                    Ok(step) => {
                        let (next, answer) = self.advance(world, server, sequencer, step, &declared)?;
                        let response = match answer {
                            UpdateOutcome::View(reply) => self.proven(world, next, reply.view, *log_size),
                            UpdateOutcome::Aborted => Response::Aborted,
                            UpdateOutcome::Refused => Response::Refused,
                        };
                        (next, response)
                    }
                }
            }
            Request::Fast { certificate, structure, .. } => {
                let membership = world.new_membership(&certificate.value);
                let declared = declared(certificate);
                let value = structure.value.clone();
                let certificate = certificate.clone().verified(key).ok_or("a bad signature")?;
                let structure = structure.clone().verified(key).ok_or("a bad signature")?;
                match sequencer.fast(now_ms, device, &certificate, &structure, membership) {
                    Err(refusal) => (server, refused(refusal)),
                    Ok(step) => {
                        let (next, answer) = self.advance(world, server, sequencer, step, &declared)?;
                        let response = match answer {
                            FastOutcome::Accepted(receipt) => committed(world, &receipt, &value)?,
                            FastOutcome::Refused => Response::Refused,
                        };
                        (next, response)
                    }
                }
            }
            Request::Commit { structure, .. } => {
                let value = structure.value.clone();
                let structure = structure.clone().verified(key).ok_or("a bad signature")?;
                match sequencer.commit(device, &structure) {
                    Err(refusal) => (server, refused(refusal)),
                    Ok(step) => {
                        let (next, answer) =
                            self.advance(world, server, sequencer, step, &BTreeMap::new())?;
                        let response = match answer {
                            CommitOutcome::Committed(receipt) => committed(world, &receipt, &value)?,
                            CommitOutcome::Aborted => Response::Aborted,
                        };
                        (next, response)
                    }
                }
            }
            other => return Err(format!("clients send no {other:?}")),
        })
    }

    /// A view with the proof that its log extends what the client knows.
    fn proven(&self, world: &mut World, server: u32, view: View, known: u64) -> Response {
        Response::View(Box::new(self.reply(world, server, view, known)))
    }

    /// The server's present view.
    pub(super) fn shown(&self, world: &mut World, server: u32, known: u64) -> ViewReply {
        self.reply(world, server, self.get(server).sequencer.look().view, known)
    }

    fn reply(&self, world: &mut World, server: u32, view: View, known: u64) -> ViewReply {
        let leaves = self.get(server).leaves[..view.log.size as usize].to_vec();
        let log = world.log(leaves);
        let head = view.log;
        let reply = world.log_at(log).reply(view, known);
        assert_eq!(reply.view.log, head, "the leaves are those of the server's log");
        reply
    }

    /// Whether a late copy of a request could still change anything.
    pub(super) fn matters(
        &mut self,
        world: &mut World,
        mail: &mut Mail,
        server: u32,
        device: DeviceId,
        request: u32,
    ) -> bool {
        if !is_present(&self.get(server), &mail.requests.get(request)) {
            // An epoch that has ended never comes again.
            return false;
        }
        let Ok((next, response)) = self.handle(world, mail, server, device, request, false) else {
            // Broken promises are for those who deliver it.
            return true;
        };
        if next != server {
            return true;
        }
        if !matches!(&*mail.responses.get(response), Response::Error(_)) {
            return false;
        }
        // Refused for now; for ever if its number is passed.
        let view = &self.get(server).view;
        let (number, is_commit) = match &*mail.requests.get(request) {
            Request::Update { certificate, .. } | Request::Fast { certificate, .. } => {
                (certificate.value.number, false)
            }
            Request::Commit { structure, .. } => (structure.value.number(), true),
            _ => return false,
        };
        let slot = view.slots.get(&device).map_or(0, |slot| slot.value.number());
        let mut entries = view.pending.iter().filter(|entry| entry.forecast.device == device);
        if is_commit {
            entries.any(|entry| entry.forecast.number() == number && !entry.dead)
        } else {
            slot < number && !entries.any(|entry| entry.forecast.number() >= number)
        }
    }

    /// Declares an operation dead.
    pub(super) fn kill(
        &mut self,
        world: &mut World,
        server: u32,
        device: DeviceId,
        number: u64,
    ) -> Result<u32, String> {
        if let Some(known) = self.killed.get(&(server, device)) {
            return Ok(*known);
        }
        let mut sequencer = self.get(server).sequencer.clone();
        let step = sequencer.give_up(device, number);
        let (next, ()) = self.advance(world, server, sequencer, step, &BTreeMap::new())?;
        self.killed.insert((server, device), next);
        Ok(next)
    }

    /// The answer to a look.
    pub(super) fn look(&mut self, world: &mut World, mail: &mut Mail, server: u32, known: u64) -> u32 {
        if let Some(look) = self.looks.get(&(server, known)) {
            return *look;
        }
        let view = self.get(server).sequencer.look().view;
        let response = self.proven(world, server, view, known);
        let look = mail.response(response);
        self.looks.insert((server, known), look);
        look
    }

    /// The answer to a wait for an operation, if it is committed.
    pub(super) fn standing(
        &self,
        mail: &mut Mail,
        server: u32,
        device: DeviceId,
        number: u64,
    ) -> Option<u32> {
        match self.get(server).sequencer.standing(device, number) {
            OrderingStatus::Committed(structure) => Some(mail.response(Response::Structure(Some(structure)))),
            OrderingStatus::Pending | OrderingStatus::Gone => None,
        }
    }
}

/// Checks that a membership under a warrant comes into force right after the one that its warrant names.
fn follows(world: &mut World, before: &View, after: &View) -> Result<(), String> {
    let handle = |view: &View| view.handle(PrincipalId::Members).map(|(_, handle)| handle);
    let (Some(before), Some(after)) = (handle(before), handle(after)) else { return Ok(()) };
    match world.membership_at(&after.reference).warrant {
        Some(warrant)
            if before != after
                && (warrant.version, warrant.follows) != (before.version, before.reference.address) =>
        {
            Err(format!("membership {} does not follow what its warrant names", after.version))
        }
        _ => Ok(()),
    }
}

/// The server's answer to an operation that the sequencer took, whose receipt must be that of the structure sent.
fn committed(world: &mut World, receipt: &Receipt, structure: &Structure) -> Result<Response, String> {
    if *receipt != receipt_for(structure) {
        return Err("the receipt is not for what was sent".to_owned());
    }
    Ok(Response::Committed(world.receipt(structure)))
}

fn declared(certificate: &Signed<Certificate>) -> BTreeMap<Operation, Certificate> {
    let value = &certificate.value;
    debug_assert_ne!(value.digest(), Digest::ZERO);
    BTreeMap::from([((value.device, value.number), value.clone())])
}
