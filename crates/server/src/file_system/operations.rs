//! The requests that put an operation into the order. Each request is checked outside the lock, and its
//! blocks are stored. Under the lock, the sequencer decides and its records are appended. The caller makes
//! the records durable ([`FileSystem::settle`]); only then the reply leaves.

use super::checks::{Author, Blocks, announced_membership, check_handles, verified};
use super::ledger::Ledger;
use super::prepared_view::PreparedView;
use super::{FileSystem, devices_of};
use crate::refusal::{RequestError, refuse};
use holdfast_content::DeviceId;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{LeaseGrant, LeaseRequest};
use holdfast_protocol::message::{Receipt, Response, ServerError};
use holdfast_protocol::sequencer::{CommitOutcome, FastOutcome, UpdateOutcome};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use holdfast_store::Allowance;

impl FileSystem {
    /// Records the superuser's declaration that this is a restored state. The caller makes it durable before
    /// it replies.
    pub(crate) fn declare_restore(
        &self,
        author: Author,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
    ) -> Result<Receipt, RequestError> {
        let device = author.device;
        let certificate = verified(certificate, author)?;
        let structure = verified(structure, author)?;
        let membership = announced_membership(&self.resources, self.id, certificate.value(), &given)?;
        let Some(membership) = membership else { return refuse("a restore is declared in a membership") };
        self.check_structure(device, structure.value(), &given)?;
        self.store_attached(device, given, None)?;
        let mut ledger = self.current()?;
        let receipt = ledger.step(&*self.order, |sequencer| {
            sequencer.restored(device, &certificate, &structure, membership)
        })?;
        self.committed(&mut ledger, device);
        Ok(receipt)
    }

    /// Carries out UPDATE. The caller makes the outcome durable before it replies.
    pub(crate) fn update(
        &self,
        author: Author,
        certificate: Signed<Certificate>,
        given: Blocks,
        log_size: u64,
        by_difference: bool,
        lease_request: Option<LeaseRequest>,
    ) -> Result<(Response, Option<LeaseGrant>), RequestError> {
        let device = author.device;
        let certificate = verified(certificate, author)?;
        let number = number_of(device, certificate.value());
        let membership = announced_membership(&self.resources, self.id, certificate.value(), &given);
        let membership = self.or_never(device, number, membership)?;
        let taken = self.store_attached(device, given, self.allowance(device));
        self.or_never(device, number, taken)?;
        let now_ms = self.now_ms();
        let (prepared, grant) = {
            let mut ledger = self.current()?;
            let touched = self.if_free(&ledger, device, certificate.value(), lease_request.as_ref());
            let touched = touched.ok_or(ServerError::Busy)?;
            ledger.must_prove(log_size)?;
            let size = ledger.sequencer().log_size();
            let updated = ledger
                .step(&*self.order, |sequencer| sequencer.update(now_ms, device, &certificate, membership))?;
            let reply = match updated {
                UpdateOutcome::View(reply) => reply,
                UpdateOutcome::Aborted => return Ok((Response::Aborted, None)),
                UpdateOutcome::Refused => return Ok((Response::Refused, None)),
            };
            // A resent request gets the same view as the first time, which may be outdated; then no new lease
            // is granted.
            let fresh = ledger.sequencer().log_size() > size;
            let grant = self.grant(&ledger, device, lease_request.as_ref(), &touched, fresh);
            (PreparedView::new(&ledger, reply, device, log_size)?, grant)
        };
        let answer = match by_difference {
            true => Response::Difference(prepared.difference(self.blocks(), self.id)),
            false => Response::View(prepared.whole(self.blocks(), self.id)),
        };
        Ok((answer, grant))
    }

    /// Carries out COMMIT. Returns the receipt, or `None` if the operation was aborted. The caller makes the
    /// outcome durable before it replies.
    pub(crate) fn commit(
        &self,
        author: Author,
        structure: Signed<Structure>,
        given: Blocks,
    ) -> Result<Option<Receipt>, RequestError> {
        let device = author.device;
        let structure = verified(structure, author)?;
        let number = (structure.value().device() == device).then(|| structure.value().number());
        let whole = self.check_structure(device, structure.value(), &given);
        self.or_never(device, number, whole)?;
        // An ordered operation must not fail half-way because a block exceeds the limit, so the reserve may
        // be used too.
        let allowance = self.allowance(device);
        let allowance = allowance.map(|all| Allowance { bytes: all.bytes + all.reserve, reserve: 0, ..all });
        let taken = self.store_attached(device, given, allowance);
        self.or_never(device, number, taken)?;
        let mut ledger = self.current()?;
        let outcome = ledger.step(&*self.order, |sequencer| sequencer.commit(device, &structure))?;
        let receipt = match outcome {
            CommitOutcome::Committed(receipt) => receipt,
            CommitOutcome::Aborted => return Ok(None),
        };
        self.committed(&mut ledger, device);
        Ok(Some(receipt))
    }

    /// Carries out a fast operation: the receipt, or the refusal. If `known` is given, the size of the log
    /// that the author has accepted, a refusal comes with the view it rests on. The caller makes the outcome
    /// durable before it replies.
    pub(crate) fn fast(
        &self,
        author: Author,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
        known: Option<u64>,
        lease_request: Option<LeaseRequest>,
    ) -> Result<(Result<Receipt, Response>, Option<LeaseGrant>), RequestError> {
        let device = author.device;
        let certificate = verified(certificate, author)?;
        let structure = verified(structure, author)?;
        let number = number_of(device, certificate.value());
        let whole =
            announced_membership(&self.resources, self.id, certificate.value(), &given).and_then(|members| {
                self.check_structure(device, structure.value(), &given)?;
                Ok(members)
            });
        let membership = self.or_never(device, number, whole)?;
        let taken = self.store_attached(device, given, self.allowance(device));
        self.or_never(device, number, taken)?;
        let now_ms = self.now_ms();
        let mut ledger = self.current()?;
        let touched = self.if_free(&ledger, device, certificate.value(), lease_request.as_ref());
        let touched = touched.ok_or(ServerError::Busy)?;
        let size = ledger.sequencer().log_size();
        let outcome = ledger.step(&*self.order, |sequencer| {
            sequencer.fast(now_ms, device, &certificate, &structure, membership)
        })?;
        let receipt = match outcome {
            FastOutcome::Accepted(receipt) => receipt,
            FastOutcome::Refused => {
                let Some(log_size) = known else { return Ok((Err(Response::Refused), None)) };
                let look = Box::new(ledger.sequencer().look());
                let prepared = PreparedView::new(&ledger, look, device, log_size)?;
                drop(ledger);
                let difference = prepared.difference(self.blocks(), self.id);
                return Ok((Err(Response::RefusedAt(difference)), None));
            }
        };
        self.committed(&mut ledger, device);
        let fresh = ledger.sequencer().log_size() > size;
        let grant = self.grant(&ledger, device, lease_request.as_ref(), &touched, fresh);
        Ok((Ok(receipt), grant))
    }

    /// Turns a refusal that depends only on the operation itself into a durable one, before its author hears
    /// of it and gives the operation up. Another copy of the request may still wait here for leases, with the
    /// blocks that this copy lacked; it must not be carried out later.
    fn or_never<T>(
        &self,
        device: DeviceId,
        number: Option<u64>,
        result: Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let for_good = |error: &ServerError| {
            matches!(
                error,
                ServerError::Invalid(_) | ServerError::NotAllowed(_) | ServerError::OverQuota { .. }
            )
        };
        match (result, number) {
            (Err(RequestError::Client(error)), Some(number)) if for_good(&error) => {
                self.current()?.step(&*self.order, |sequencer| Ok(sequencer.give_up(device, number)))?;
                self.sync()?;
                self.tell_waiters();
                Err(error.into())
            }
            (result, _) => result,
        }
    }

    /// Makes an outcome durable and returns the reply, with a signed receipt if the operation is committed.
    pub(crate) fn settle(&self, outcome: Result<Receipt, Response>) -> Result<Response, RequestError> {
        self.sync()?;
        self.tell_waiters();
        let counters = &self.resources.counters;
        if self.is_checkpoint_due() {
            counters.checkpoints_due.notify_one();
        }
        Ok(match outcome {
            Ok(receipt) => {
                counters.operations.add(1);
                Response::Committed(Signed::new(receipt, &self.resources.key))
            }
            Err(otherwise) => otherwise,
        })
    }

    fn committed(&self, ledger: &mut Ledger, device: DeviceId) {
        ledger.note_commit(device);
        self.worked.lock().insert(device, self.now_ms());
        let membership = ledger.sequencer().membership();
        if self.devices.read().version != membership.version {
            *self.devices.write() = devices_of(membership);
        }
    }

    /// Checks that a structure names only tables that are stored. Otherwise a member that commits a table it
    /// never stored would make the server look as if it had lost data.
    fn check_structure(
        &self,
        device: DeviceId,
        structure: &Structure,
        given: &Blocks,
    ) -> Result<(), RequestError> {
        if structure.device() != device {
            return refuse("the structure is another device's");
        }
        let former = self.ledger.lock().slot(device);
        check_handles(&self.resources, self.id, structure, former.as_ref().map(|slot| &slot.value), given)
    }
}

/// The operation's number, if the operation is the device's own.
fn number_of(device: DeviceId, certificate: &Certificate) -> Option<u64> {
    (certificate.device == device).then_some(certificate.number)
}
