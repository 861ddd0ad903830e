//! Runs an operation's plan again at its position in the order, to check whether it still holds there, and
//! makes the view that callers read from.

use super::{Operation, Pump, PumpEnd, RequestOutcome};
use crate::engine::queue::{QueuedEvent, SignerEvent};
use crate::engine::shared::LatestView;
use crate::tree::{Base, ReadError};
use holdfast_content::{Membership, OperationStatus};
use holdfast_protocol::certificate::Path;
use holdfast_protocol::check::{AcceptedView, membership_wanted};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, Tables};
use holdfast_protocol::structure::{Outcome, Structure, View};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

impl Pump {
    /// Called when the operation has been ordered: runs its plan at that position, to check whether it still
    /// holds there.
    pub(super) fn fold(
        &mut self,
        accepted: &AcceptedView,
        operation: &mut Operation,
    ) -> Result<VecDeque<Effect>, PumpEnd> {
        self.base = Arc::new(self.base_of(accepted.view.clone()));
        self.note_withheld(operation);
        self.shared.last_operation.store(accepted.forecast.number(), Relaxed);
        match self.try_fold(operation) {
            Ok((outcome, tables)) => {
                operation.effective &= outcome == Outcome::Done;
                match self.sign(Event::Folded { outcome, tables })? {
                    Ok(effects) => Ok(effects),
                    Err(refusal) => {
                        self.refused_by_key(&refusal, operation);
                        self.step(Event::Restarted)
                    }
                }
            }
            Err(error) => {
                // Other devices' tables cannot be read, or they have too much pending, so that not even a
                // structure without effect can be made: the number is given up.
                operation.verdicts = operation
                    .jobs
                    .iter()
                    .map(|_| match &error {
                        ReadError::Overflow(tag) => RequestOutcome::Wait([*tag].into()),
                        error => {
                            RequestOutcome::Answer(Err(self.shared.explain(None, None, error, &self.base)))
                        }
                    })
                    .collect();
                self.step(Event::Restarted)
            }
        }
    }

    pub(super) fn try_fold(&mut self, operation: &mut Operation) -> Result<(Outcome, Tables), ReadError> {
        let (Some(declared), Some(work)) = (&mut operation.plan, &operation.work) else {
            return Ok((Outcome::Done, Tables::new()));
        };
        let planned = self.plan(&operation.jobs, self.allocator.again(work), Path::Slow);
        // Files that the plan reads now and did not read before may be outdated, if other devices hold them
        // exclusively.
        let is_withheld = planned.reads.iter().any(|file| self.withheld.has(file));
        let all_fit = planned.took == operation.jobs.len() && !is_withheld;
        let outcome = match planned.plan {
            Ok(mut plan) if all_fit && plan.deltas == declared.deltas && plan.conflicts.is_empty() => {
                match plan.build(&self.base) {
                    Ok(tables) => {
                        operation.verdicts = planned.results.into_iter().map(RequestOutcome::of).collect();
                        operation.work = Some(plan.allocator.clone());
                        self.reserve = Some(plan.allocator.clone().without_effect());
                        operation.plan = Some(plan);
                        return Ok((Outcome::Done, tables));
                    }
                    Err(error) => Err(error),
                }
            }
            Ok(plan) => Ok(plan.conflicts),
            Err(error) => Err(error),
        };
        // The operation takes no effect. Every edit is planned again, whatever its result, since it may have
        // been judged together with others that take no effect either.
        let alone = outcome.is_err() && operation.jobs.len() > 1;
        let overflow = match &outcome {
            Err(ReadError::Overflow(tag)) => Some(*tag),
            _ => None,
        };
        operation.verdicts = operation
            .jobs
            .iter()
            .zip(planned.results.into_iter().map(Some).chain(std::iter::repeat_with(|| None)))
            .map(|(job, result)| match (result, &outcome) {
                _ if job.edit.is_none() => RequestOutcome::Answer(Ok(())),
                (_, Err(_)) if overflow.is_some() => RequestOutcome::Wait(overflow.into_iter().collect()),
                (_, Err(_)) if alone => RequestOutcome::Alone,
                (_, Err(error)) => {
                    RequestOutcome::Answer(Err(self.shared.explain(None, None, error, &self.base)))
                }
                (Some((_, tags)), _) if !tags.is_empty() => RequestOutcome::Wait(tags),
                _ => RequestOutcome::Again,
            })
            .collect();
        self.shared.counters.conflicts.fetch_add(1, Relaxed);
        let tables = declared.give_way(&self.base)?;
        let outcome = if declared.deltas.is_empty() { Outcome::Done } else { Outcome::Nothing };
        operation.effective = false;
        Ok((outcome, tables))
    }

    pub(super) fn base_of(&self, view: View) -> Base {
        let members = match &self.members {
            Some((_, members)) => members.clone(),
            None => self.base.membership.clone(),
        };
        let blocks = Arc::new(self.shared.store.clone());
        Base::new(Arc::new(view), members, self.shared.me, blocks, self.shared.tables.clone())
    }

    /// Makes a new base from the view that the signer has accepted.
    pub(super) fn renew_base(&mut self) {
        let floor = self.signer.floor();
        if let Ok(reference) = membership_wanted(floor, &floor.view)
            && self.members.as_ref().is_none_or(|(address, _)| *address != reference.address)
        {
            // Without the membership, the next operation takes the slow path, whose answer brings it.
            self.members = Membership::load(&self.shared.store, &reference)
                .ok()
                .map(|members| (reference.address, Arc::new(members)));
        }
        self.base = Arc::new(self.base_of(self.signer.floor().view.clone()));
    }

    /// Makes the present base the view that callers read from.
    pub(super) fn publish(&self) -> LatestView {
        let floor = Arc::new(self.signer.floor().clone());
        self.shared.publish(self.base.clone(), floor, self.withheld.clone())
    }

    /// Handles events found by other threads while they read or waited.
    pub(super) fn handle_events(&mut self, events: Vec<QueuedEvent>) -> Result<(), PumpEnd> {
        for QueuedEvent { event: what, done } in events {
            match what {
                SignerEvent::Alarm(alarm) => {
                    self.freeze(&alarm);
                    return Err(PumpEnd::Stopped);
                }
                SignerEvent::Committed(structure) => self.learn_structure(*structure)?,
                // While an operation is on its way, its own view counts.
                SignerEvent::Look if self.signer.is_idle() => {
                    self.look()?;
                    self.renew_base();
                    self.publish();
                }
                SignerEvent::Look => {}
                SignerEvent::Pushed(difference) => {
                    if self.signer.is_idle() {
                        self.adopt(&difference)?;
                    }
                    // If the view was not accepted, the log's size must be that of the accepted view again.
                    self.shared.leases.accepted(self.signer.floor().log().size);
                }
                SignerEvent::Froze(report) => {
                    self.shared.freeze(*report);
                    let _ = self.save(None);
                    return Err(PumpEnd::Stopped);
                }
            }
            let _ = done.send(());
        }
        Ok(())
    }

    /// Passes a structure to the signer that a reader has verified against the view it read; the signer may
    /// have accepted a later view since.
    pub(super) fn learn_structure(&mut self, structure: Signed<Structure>) -> Result<(), PumpEnd> {
        let (device, number) = (structure.value.device(), structure.value.number());
        let view = &self.signer.floor().view;
        let later = view.slots.get(&device).is_some_and(|slot| slot.value.number() > number);
        let given_up = structure.value.outcome == Outcome::Done
            && view.status_of(device, number) == OperationStatus::Aborted;
        if later && !given_up {
            return Ok(());
        }
        let members = self.base.membership.clone();
        let event = Event::Learned { structure, members: &*members };
        let effects = self.step(event)?;
        self.drive(effects, &mut Operation { answered: true, ..Operation::default() })?;
        self.renew_base();
        self.publish();
        Ok(())
    }
}
