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

/// After so many refusals of one request, the caller gets an error.
const REFUSALS_MAX: u32 = 64;

impl Pump {
    /// Answers the callers of an operation that is signed, durable here and on its way to be committed. Only
    /// `fsync` and `close` wait for the commit.
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

    /// Judges edits that failed because of bad data. The view they failed on is current, so the failure is
    /// real. There is one exception: a missing block may be gone because the view has moved on once more;
    /// such an edit is tried again.
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

    /// Notes which files other devices held exclusively at the operation's position in the order, since
    /// callers read its view from now on.
    pub(super) fn note_withheld(&mut self, operation: &mut Operation) {
        if let Some(withheld) = operation.lease.withheld.take() {
            self.withheld = Arc::new(withheld);
            self.foreseen = self.withheld.clone();
        }
    }

    /// Puts the leases granted with the operation in force, since its view is now the one that is read.
    fn take_up(&self, operation: &mut Operation) {
        if let Some((grant, sent_ms)) = operation.lease.grant.take() {
            self.shared.leases.take_up(&grant, sent_ms);
        }
    }

    /// Ends an operation: answers its callers, or queues their requests again.
    pub(super) fn conclude(&mut self, mut operation: Operation, finished: Option<OperationEnd>) {
        self.reserve = None;
        self.renew_base();
        self.shared.leases.accepted(self.signer.floor().log().size);
        let is_committed = matches!(finished, Some(OperationEnd::Committed(_)));
        if is_committed {
            self.note_withheld(&mut operation);
        }
        // Changes that callers were already answered for leave the view.
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
            // The operation was refused or declared dead: it has no effect, and everything is made again.
            // Callers that have their answer do not notice, unless the change has become impossible.
            if let Some(work) = operation.work.take() {
                // Numbers reserved in an epoch that a restore has ended are no longer reserved.
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

    /// Queues the requests of an operation that was not ordered, or was declared dead, for planning again.
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

    /// Gives an error to all callers that wait for an operation that cannot go on, or wait behind it. The
    /// operation itself goes on when it can, since it is signed.
    pub(super) fn fail_waiting(&self, operation: &Operation, error: &FsError) {
        for job in &operation.jobs {
            job.answer(Err(error.clone()));
        }
        self.shared.queue.fail_waiting(error);
    }

    /// Queues requests that must be made again, and settles those that were.
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
