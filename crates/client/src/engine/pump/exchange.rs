//! Exchanges messages with the server about the operation in flight.

use super::{Operation, OperationLeases, PAUSE_MAX, Pump, PumpEnd};
use crate::engine::leases::now_ms;
use crate::engine::shared::is_definite;
use crate::error::FsError;
use crate::pauses::Pauses;
use crate::tree::{Plan, ReadError};
use holdfast_content::{Membership, Reference};
use holdfast_crypto::Digest;
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::leases::{LeaseGrant, Withheld};
use holdfast_protocol::message::{ATTACHED_BYTES_MAX, BATCH_MAX, Request, Response, ServerError, ViewReply};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::signer::{Effect, Event};
use holdfast_protocol::structure::{Structure, View};
use holdfast_rpc::RpcError;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How often an operation is sent with blocks packed against others before it is sent with plain blocks.
const PACKED_ATTEMPTS: u32 = 2;

impl Pump {
    /// Sends a request until an answer settles something, however long that takes: the operation is signed,
    /// so it cannot be abandoned. Callers give up by their own deadlines.
    pub(super) fn send(
        &mut self,
        request: Request,
        operation: &mut Operation,
    ) -> Result<VecDeque<Effect>, PumpEnd> {
        let mut pauses = Pauses::new(Duration::from_millis(20), PAUSE_MAX);
        let committing = matches!(request, Request::Commit { .. });
        let mut was_away = false;
        loop {
            if self.shared.queue.is_stopped() && !committing {
                return Err(PumpEnd::Stopped);
            }
            let error = match self.call_after_reconnect(&request, operation, &mut was_away) {
                Ok(Response::View(reply)) => return self.accept(*reply, operation),
                Ok(Response::Committed(receipt)) => return self.step(Event::Committed(receipt)),
                Ok(Response::Difference(difference)) => {
                    let floor = self.signer.floor();
                    match difference.resolve(&floor.view, floor.log().size) {
                        Ok(reply) => return self.accept(*reply, operation),
                        Err(error) if !operation.wants_whole => {
                            tracing::debug!(%error, "asking for the whole view");
                            operation.wants_whole = true;
                            continue;
                        }
                        Err(_) => crate::store::unexpected("an operation", &Response::Difference(difference)),
                    }
                }
                Ok(Response::Refused) => {
                    self.shared.counters.refused.fetch_add(1, Relaxed);
                    return self.step(Event::Refused);
                }
                Ok(Response::RefusedAt(difference)) => {
                    self.shared.counters.refused.fetch_add(1, Relaxed);
                    let effects = self.step(Event::Refused)?;
                    self.adopt(&difference)?;
                    return Ok(effects);
                }
                Ok(Response::Aborted) => return self.step(Event::Aborted),
                Ok(other) => crate::store::unexpected("an operation", &other),
                Err(error) => error,
            };
            if is_definite(&error) {
                tracing::warn!(%error, "the server did not take an operation");
                let effects = self.step(Event::Refused)?;
                // The server may have been restored to an older state; until that is taken up, it may refuse
                // anything.
                let is_of_before = self.look()? || matches!(error, RpcError::Server(ServerError::OtherEpoch));
                operation.refusal = (!is_of_before).then(|| FsError::from(&error));
                return Ok(effects);
            }
            tracing::debug!(%error, "no answer; asking again");
            was_away |= !matches!(error, RpcError::Server(_));
            if let RpcError::Server(ServerError::NoSpace | ServerError::Storage(_)) = &error {
                self.fail_waiting(operation, &FsError::from(&error));
            }
            if self.shared.queue.is_stopped() {
                // Unmounting does not wait for a server that is away; a restart sends the operation again.
                return Err(PumpEnd::Stopped);
            }
            std::thread::sleep(pauses.after_failure());
        }
    }

    /// Looks at the server's view after a refusal for which an honest server has no reason. A server that was
    /// restored to an older state refuses everything, and only its view shows why. Returns whether a restore
    /// was taken up.
    pub(super) fn look(&mut self) -> Result<bool, PumpEnd> {
        let log_size = self.signer.floor().log().size;
        let answer = self.shared.remote.call(Request::Look { log_size }, self.shared.deadline);
        self.shared.looked(&answer);
        let Ok(Response::View(mut reply)) = answer else { return Ok(false) };
        reply.blocks.clear();
        let reference = match membership_wanted(self.signer.floor(), &reply.view) {
            Ok(reference) => reference,
            Err(alarm) => {
                self.reply = Some(*reply);
                self.freeze(&alarm);
                return Err(PumpEnd::Stopped);
            }
        };
        let Ok(members) = Membership::load(&self.shared.store, &reference) else { return Ok(false) };
        if self.takes_up(&members)? {
            return Ok(true);
        }
        self.reply = Some(*reply);
        let Some(reply) = &self.reply else { unreachable!("it was just put there") };
        let event = Event::Look { reply, members: &members };
        match self.signer.step(&*self.key, event) {
            Ok(effects) => {
                self.withheld = Arc::new(Withheld::everything());
                self.foreseen = self.withheld.clone();
                let mut operation = Operation { answered: true, ..Operation::default() };
                self.drive(effects.into(), &mut operation)?;
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    /// Accepts a view that the server pushed, or sent with a refusal, if it follows the accepted one; the
    /// next operation is then signed on it. Callers read nothing from it before that operation, which also
    /// makes it durable.
    pub(super) fn adopt(&mut self, difference: &Difference) -> Result<(), PumpEnd> {
        let floor = self.signer.floor();
        let Ok(mut reply) = difference.resolve(&floor.view, floor.log().size) else { return Ok(()) };
        self.shared.store.accept_hints(std::mem::take(&mut reply.blocks));
        let wanted = membership_wanted(floor, &reply.view);
        self.reply = Some(*reply);
        let members = match (wanted, &self.members) {
            (Err(alarm), _) => {
                self.freeze(&alarm);
                return Err(PumpEnd::Stopped);
            }
            (Ok(reference), Some((address, members))) if *address == reference.address => members.clone(),
            // The view of the next operation brings the membership.
            _ => return Ok(()),
        };
        let Some(reply) = &self.reply else { unreachable!("it was just put there") };
        let Ok(effects) = self.signer.step(&*self.key, Event::Look { reply, members: &*members }) else {
            return Ok(());
        };
        let effects = effects.into_iter().filter(|effect| !matches!(effect, Effect::Persist(_)));
        self.drive(effects.collect(), &mut Operation { answered: true, ..Operation::default() })?;
        self.withheld = Arc::new(Withheld::everything());
        self.renew_base();
        self.shared.counters.pushes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Makes one attempt. If the server has been away, it may have lost blocks that it acknowledged but that
    /// nothing refers to yet, and may have been rebuilt: so it is first asked which blocks it lacks.
    fn call_after_reconnect(
        &mut self,
        request: &Request,
        operation: &mut Operation,
        was_away: &mut bool,
    ) -> Result<Response, RpcError> {
        if *was_away {
            self.shared.store.store_missing(roots_of(request, operation))?;
            *was_away = false;
        }
        self.exchange(request, operation)
    }

    /// Makes one attempt, with the blocks that belong to the request.
    pub(super) fn exchange(
        &mut self,
        request: &Request,
        operation: &mut Operation,
    ) -> Result<Response, RpcError> {
        let mut request = request.clone();
        let unsent = self.shared.store.collect(roots_of(&request, operation));
        let mut packed_attempts = PACKED_ATTEMPTS;
        let response = loop {
            let plain = packed_attempts == 0;
            let riding =
                self.shared.store.send_ahead(unsent.clone(), ATTACHED_BYTES_MAX, BATCH_MAX, plain)?;
            match &mut request {
                Request::Fast { attached, .. }
                | Request::Update { attached, .. }
                | Request::Commit { attached, .. } => attached.clone_from(&riding.attached),
                _ => {}
            }
            if let Request::Fast { lease, by_difference, .. } | Request::Update { lease, by_difference, .. } =
                &mut request
            {
                *by_difference = !operation.wants_whole;
                let asked = &mut operation.lease;
                if asked.request.is_none() {
                    asked.request =
                        self.shared.leases.request(&asked.reads, &asked.siblings, asked.looks, asked.changes);
                }
                lease.clone_from(&asked.request);
                asked.first_sent_ms.get_or_insert_with(now_ms);
            }
            self.shared.counters.rounds.fetch_add(1, Relaxed);
            // The server may answer a repeated request as it answered the first one, so the term counts from
            // the first sending.
            let sent_ms = operation.lease.first_sent_ms.unwrap_or_default();
            let kind: &str = (&request).into();
            let round = tracing::trace_span!(target: "operation", "round trip", request = kind);
            let answer = round.in_scope(|| self.shared.remote.call_lent(&request, self.shared.deadline));
            let response = match answer? {
                Response::LeasedView(reply, grant) => {
                    operation.lease.granted(grant, sent_ms);
                    Response::View(reply)
                }
                Response::LeasedDifference(difference, grant) => {
                    operation.lease.granted(grant, sent_ms);
                    Response::Difference(difference)
                }
                Response::LeasedCommitted(receipt, grant) => {
                    operation.lease.granted(grant, sent_ms);
                    Response::Committed(receipt)
                }
                response => response,
            };
            if let Request::Fast { .. } | Request::Update { .. } = &request {
                // An operation without a request for leases counts as reading everything, so nothing is
                // withheld. Otherwise, the reply says what is withheld; without a grant, everything counts as
                // withheld.
                let withheld = || match operation.lease.request {
                    None => Withheld::default(),
                    Some(_) => Withheld::everything(),
                };
                operation.lease.withheld.get_or_insert_with(withheld);
            }
            match response {
                Response::Error(error) => return Err(error.into()),
                // The server has done nothing, since it lacks bases: the blocks are sent plain.
                Response::BasesMissing(missing) if !plain => {
                    packed_attempts -= 1;
                    self.shared.store.bases_missing(&riding, &missing);
                }
                response => {
                    self.shared.note_answer();
                    if matches!(
                        response,
                        Response::View(_) | Response::Difference(_) | Response::Committed(_)
                    ) {
                        self.shared.store.acknowledge(&riding);
                    }
                    break response;
                }
            }
        };
        self.take_server_keys().map_err(|PumpEnd::Stopped| RpcError::Closed)?;
        Ok(response)
    }

    /// Takes over a newer list of server keys, if the connection brought one.
    pub(super) fn take_server_keys(&mut self) -> Result<(), PumpEnd> {
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

    /// Handles the reply to an UPDATE.
    pub(super) fn accept(
        &mut self,
        mut reply: ViewReply,
        operation: &Operation,
    ) -> Result<VecDeque<Effect>, PumpEnd> {
        self.shared.store.accept_hints(std::mem::take(&mut reply.blocks));
        // Events from readers must be handled before a view is judged, because the view may contradict them.
        let events = self.shared.queue.events();
        self.handle_events(events)?;
        let members = self.membership_of(&reply.view, operation)?;
        if self.is_put_back(&members) {
            let effects = self.step(Event::Refused)?;
            self.takes_up(&members)?;
            return Ok(effects);
        }
        self.reply = Some(reply);
        let Some(reply) = &self.reply else { unreachable!("it was just put there") };
        let event = Event::Reply { reply, members: &*members };
        let check = tracing::trace_span!(target: "operation", "check the view");
        match check.in_scope(|| self.signer.step(&*self.key, event)) {
            Ok(effects) => {
                self.members_in_use(members);
                Ok(effects.into())
            }
            Err(misuse) => {
                self.shared.break_down(FsError::Refused(misuse.to_string()));
                Err(PumpEnd::Stopped)
            }
        }
    }

    pub(super) fn members_in_use(&mut self, members: Arc<Membership>) {
        if let Ok(reference) = membership_wanted(self.signer.floor(), &self.signer.floor().view) {
            self.members = Some((reference.address, members));
        }
    }

    /// The membership that a view refers to.
    pub(super) fn membership_of(
        &mut self,
        view: &View,
        operation: &Operation,
    ) -> Result<Arc<Membership>, PumpEnd> {
        let reference = match membership_wanted(self.signer.floor(), view) {
            Ok(reference) => reference,
            Err(alarm) => {
                self.freeze(&alarm);
                let _ = self.save(None);
                return Err(PumpEnd::Stopped);
            }
        };
        if let Some((address, members)) = &self.members
            && *address == reference.address
        {
            return Ok(members.clone());
        }
        self.load_membership(&reference, operation)
    }

    /// Loads a membership, however long that takes: without it, no view can be checked and no operation made.
    pub(super) fn load_membership(
        &self,
        reference: &Reference,
        operation: &Operation,
    ) -> Result<Arc<Membership>, PumpEnd> {
        let mut pauses = Pauses::new(Duration::from_millis(50), PAUSE_MAX);
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
                return Err(PumpEnd::Stopped);
            }
            std::thread::sleep(pauses.after_failure());
        }
    }
}

impl OperationLeases {
    fn granted(&mut self, grant: LeaseGrant, sent_ms: u64) {
        self.withheld = Some(grant.withheld.clone());
        self.grant = Some((grant, sent_ms));
    }
}

/// Roots of the trees that the blocks of a request belong to.
fn roots_of(request: &Request, operation: &Operation) -> Vec<Digest> {
    match request {
        Request::Fast { structure, .. } | Request::Commit { structure, .. } => roots(&structure.value),
        _ => operation.plan.iter().flat_map(Plan::declared).collect(),
    }
}

/// Roots of all tables that a structure refers to.
fn roots(structure: &Structure) -> Vec<Digest> {
    structure.handles.values().map(|handle| handle.reference.address).collect()
}
