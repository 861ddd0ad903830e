//! Answers the callers of an operation, and decides which of their requests go on waiting.

use super::{Operation, Pump, RequestOutcome, directories_of};
use crate::engine::leases::dead_at_ms;
use crate::engine::shared::LatestView;
use crate::engine::snapshot::Snapshot;
use crate::error::FsError;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::OperationEnd;
use holdfast_protocol::structure::Structure;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Refusals of one request after which the caller is told.
const REFUSALS_MAX: u32 = 64;

impl Pump {
    /// Answers the callers of an operation that is signed, durable here and on its way to be committed. Only
    /// `fsync` and `close` wait for the rest.
    pub(super) fn answer_early(&mut self, structure: &Signed<Structure>, operation: &mut Operation) {
        if operation.answered {
            return;
        }
        self.judge(operation);
        let mut view = self.signer.floor().view.clone();
        view.slots.insert(self.shared.me, structure.clone());
        self.base = Arc::new(self.base_of(view));
        let place = self.publish();
        if operation.effective {
            let sent_ms = operation.lease.first_sent_ms.unwrap_or_default();
            self.shared.leases.unconfirmed(Some(dead_at_ms(&*self.shared.remote, sent_ms)));
        }
        self.take_up(operation);
        let answered = operation.verdicts.iter().zip(&operation.jobs);
        let pieces = answered
            .filter(|(verdict, job)| matches!(verdict, RequestOutcome::Answer(Ok(()))) && job.edit.is_some())
            .filter(|(_, job)| job.ticket.is_none())
            .count();
        let ticket = (operation.effective && pieces > 0).then(|| self.shared.commits.open(pieces));
        self.answer(operation, place, ticket);
        operation.ticket = ticket;
        operation.answered = true;
    }

    /// An edit that failed because of bad data: the view it failed on is the present one, so the failure is
    /// real; except that a missing block may have gone because the view has moved on once more.
    pub(super) fn judge(&self, operation: &mut Operation) {
        for (job, verdict) in operation.jobs.iter_mut().zip(&mut operation.verdicts) {
            let RequestOutcome::Answer(Err(FsError::Integrity(report))) = verdict else { continue };
            if report.missing.is_some() && report.missing != job.missing {
                job.missing = report.missing;
                *verdict = RequestOutcome::Again;
            } else {
                let error = self.shared.announce(FsError::Integrity(report.clone()), &self.base);
                *verdict = RequestOutcome::Answer(Err(error));
            }
        }
    }

    pub(super) fn answer(&self, operation: &Operation, place: LatestView, ticket: Option<u64>) {
        let snapshot = Arc::new(Snapshot::new(self.shared.clone(), place, ticket));
        for (job, verdict) in operation.jobs.iter().zip(&operation.verdicts) {
            if let RequestOutcome::Answer(result) = verdict {
                if let (Ok(()), Some(edit)) = (result, &job.edit) {
                    edit.lock().ordered();
                }
                job.answer(result.clone().map(|()| snapshot.clone()));
            }
        }
    }

    /// Notes which files others held exclusively at the operation's position in the order, whose view is read from now.
    pub(super) fn note_withheld(&mut self, operation: &mut Operation) {
        if let Some(withheld) = operation.lease.withheld.take() {
            self.withheld = Arc::new(withheld);
            self.foreseen = self.withheld.clone();
        }
    }

    /// Leases that were granted with the operation count from now on, since its view is the one that is read.
    fn take_up(&self, operation: &mut Operation) {
        if let Some((grant, sent_ms)) = operation.lease.grant.take() {
            self.shared.leases.take_up(&grant, sent_ms);
        }
    }

    /// Ends an operation: answers callers, or makes their requests wait on.
    pub(super) fn conclude(&mut self, mut operation: Operation, finished: Option<OperationEnd>) {
        self.reserve = None;
        self.renew_base();
        self.shared.leases.accepted(self.signer.floor().log().size);
        let is_committed = matches!(finished, Some(OperationEnd::Committed(_)));
        if is_committed {
            self.note_withheld(&mut operation);
        }
        // What the callers were told of leaves the view.
        let _redone = (!is_committed && operation.answered).then(|| self.shared.leases.redo());
        let place = self.publish();
        self.shared.leases.unconfirmed(None);
        if is_committed {
            self.take_up(&mut operation);
        } else if let Some(request) = operation.lease.request.take() {
            self.shared.leases.restore_request(request);
        }
        if let Some(OperationEnd::Committed(structure)) = finished {
            self.shared.last_operation.store(structure.value.number(), Relaxed);
            if let Some(plan) = operation.plan.as_ref().filter(|_| operation.effective) {
                self.shared.resend.readable.note_directories(directories_of(plan));
            }
            if let Some(work) = operation.work.take() {
                self.allocator = if operation.effective { work.committed() } else { work.without_effect() };
            }
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
                // Numbers that it reserved in an epoch that a restore has ended are not reserved any more.
                let is_of_before = operation.epoch.is_some_and(|epoch| epoch != self.signer.floor().epoch);
                self.allocator = if is_of_before { work.after_restore() } else { work.without_effect() };
            }
            if finished != Some(OperationEnd::GivenUp) {
                self.plan_again(&mut operation);
            }
            for (job, verdict) in operation.jobs.iter().zip(&operation.verdicts) {
                if let RequestOutcome::Answer(Err(error)) = verdict {
                    job.answer(Err(error.clone()));
                }
            }
        }
        self.requeue(operation);
    }

    /// Plans the requests of an operation again that was not ordered, or died.
    pub(super) fn plan_again(&self, operation: &mut Operation) {
        let shared = operation.jobs.len() > 1;
        for (job, verdict) in operation.jobs.iter_mut().zip(&mut operation.verdicts) {
            if operation.answered && matches!(verdict, RequestOutcome::Answer(_)) {
                let lost = operation.effective
                    && job.edit.is_some()
                    && matches!(verdict, RequestOutcome::Answer(Ok(())));
                if !lost {
                    continue;
                }
                job.waiter = None;
                job.redone.get_or_insert_with(|| self.shared.leases.redo());
                job.ticket = job.ticket.or(operation.ticket);
            }
            job.refusals += 1;
            *verdict = match &operation.refusal {
                Some(_) if shared => RequestOutcome::Alone,
                Some(error) => RequestOutcome::Answer(Err(error.clone())),
                None if job.refusals > REFUSALS_MAX => {
                    let why = "again and again, without saying why";
                    tracing::warn!(refusals = job.refusals, "the server did not take a change, {why}");
                    RequestOutcome::Answer(Err(FsError::Refused(why.to_owned())))
                }
                None => RequestOutcome::Again,
            };
        }
    }

    /// While an operation cannot go on: whoever waits for it, or behind it, hears why. It goes on all the same
    /// when it can, since it is signed.
    pub(super) fn fail_waiting(&self, operation: &Operation, error: &FsError) {
        for job in &operation.jobs {
            job.answer(Err(error.clone()));
        }
        self.shared.queue.fail_waiting(error);
    }

    /// Puts back what must be made again, and settles what was made again.
    pub(super) fn requeue(&mut self, operation: Operation) {
        let mut again = Vec::new();
        for (mut job, verdict) in operation.jobs.into_iter().zip(operation.verdicts) {
            match verdict {
                RequestOutcome::Answer(result) => {
                    if let (Some(ticket), None) = (job.ticket, &job.waiter) {
                        self.shared.commits.settle_one(ticket, result);
                    }
                }
                RequestOutcome::Again => again.push(job),
                RequestOutcome::Alone => {
                    job.alone = true;
                    again.push(job);
                }
                RequestOutcome::Wait(tags) => self.parking.park(job, tags),
            }
        }
        if !again.is_empty() {
            self.shared.queue.push_front(again);
        }
    }
}
