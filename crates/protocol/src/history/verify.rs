//! How a client verifies a past state.
//!
//! A state is a view, so it is checked as one, by a client without a floor ([`check_look`]): signatures by
//! members of that time, one order, nothing hidden, records that agree. The rest follows from what this
//! client has accepted since:
//!
//! 1. The state's log is the beginning of the accepted log, so it is of no other fork.
//! 2. Each operation in it has its place in that log, and one of them has the last place. So it is no
//!    mixture and leaves none out: an operation that another does not know of comes after it, and the last
//!    one knows all.
//! 3. Nothing is pending in it.
//! 4. What it presents as committed was never given up, what it presents as dead was never committed, and
//!    a structure or table that is still in force is the same.
//! 5. It is as old as the listing said: the author of its last operation signed the time.
//!
//! A server can still withhold a state. And a member that helps the server can have signed two structures for
//! one place that differ in *that member's own* tables, as at any time (`docs/threat-model.md`).

use super::{PastReply, Point};
use crate::alarm::{Alarm, Operation};
use crate::check::{check_look, given_up_consistently, membership_wanted};
use crate::floor::Floor;
use crate::log_tree::{UPDATES, leaf, verify_consistency};
use crate::members::Members;
use crate::message::ViewReply;
use crate::signed::{Signable, Signed};
use crate::structure::{Forecast, LogHead, Structure, View};
use holdfast_content::{DeviceId, OperationStatus, PrincipalId, Reference};
use holdfast_crypto::PublicKey;

/// A device number that nobody has, used to check a view as a client that has accepted nothing.
const NOBODY: DeviceId = DeviceId(u32::MAX);

/// A state that passed all checks. Only [`verify_past_state`] makes one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedPast {
    view: View,
    time_ns: i64,
    settled: Vec<Signed<Structure>>,
}

impl VerifiedPast {
    /// The state, to be read from.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Operations that were pending in the last accepted view and are committed in this state. A reader
    /// relies on them, so the client must learn them first ([`Floor::learn`]); otherwise the server could
    /// present them as dead afterwards (trace T9).
    pub fn settled(&self) -> &[Signed<Structure>] {
        &self.settled
    }

    /// When its last operation was declared, by its author's clock.
    pub fn time_ns(&self) -> i64 {
        self.time_ns
    }
}

/// Why a state that a server showed is not believed. Each is a lie, or damage: no honest server shows it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lie {
    /// The answer is not about the state that was requested.
    #[error("it is the state after {found} operations, and the one after {asked} was asked for")]
    OtherState {
        /// Size of the requested state's log.
        asked: u64,
        /// Size of the log in the answer.
        found: u64,
    },
    /// Operations in it are neither committed nor dead.
    #[error("operation {} of device {} is pending in it, and nothing is in a past state", .0.number, .0.device.0)]
    Unsettled(Operation),
    /// The state fails the checks of a view.
    #[error("its operations do not fit together: {}", .0.explain())]
    View(Box<Alarm>),
    /// Its log is not the beginning of the one accepted here.
    #[error("its log of {} operations is not the beginning of the log accepted here, which has {}: it is made up, or of a fork", .found.size, .known.size)]
    OtherLog {
        /// The log that was accepted before.
        known: LogHead,
        /// The log in the answer.
        found: LogHead,
    },
    /// An operation is not at its place in the log.
    #[error("operation {} of device {} is not at its place in the log of updates: it was never ordered, or not as it is shown", .0.number, .0.device.0)]
    NotInLog(Operation),
    /// The last operation in its log is none of those shown.
    #[error("the last operation of its log is left out")]
    NewestLeftOut,
    /// The state has another time than in the listing.
    #[error("it is dated {signed_ns} ns since 1970 by its author, and was listed with {listed_ns}")]
    OtherTime {
        /// The time in the list.
        listed_ns: i64,
        /// The time in the certificate.
        signed_ns: i64,
    },
    /// The certificate shown with it is not that of its last operation.
    #[error("the certificate shown with it is not that of its last operation")]
    OtherCertificate,
    /// The view that this device has accepted since contradicts it.
    #[error("operation {} of device {}: {what}", .operation.number, .operation.device.0)]
    Contradiction {
        /// The operation that differs from what was accepted.
        operation: Operation,
        /// How it differs.
        what: String,
    },
    /// A table that is in force now had other contents then, under the same version or a later one.
    #[error("the table of {0} was another than the one accepted here under that version")]
    OtherTable(PrincipalId),
}

/// The membership block of a state, which the caller fetches before [`verify_past_state`].
///
/// # Errors
/// [`Lie::View`]: the superuser did not sign the membership.
pub fn membership_of(superuser: PublicKey, view: &View) -> Result<Reference, Lie> {
    membership_wanted(&Floor::new(superuser, NOBODY), view).map_err(|alarm| Lie::View(Box::new(alarm)))
}

/// Checks the state at `point`, shown with proofs up to the log of `present`. `members` is the membership that the state
/// itself names ([`membership_of`]).
///
/// # Errors
/// [`Lie`].
pub fn verify_past_state(
    present: &Floor,
    members: &dyn Members,
    point: Point,
    reply: &PastReply,
) -> Result<VerifiedPast, Lie> {
    let PastReply { view, peaks, newest, consistency, inclusion } = reply;
    if view.log.size != point.log_size {
        return Err(Lie::OtherState { asked: point.log_size, found: view.log.size });
    }
    if let Some(entry) = view.pending.iter().find(|entry| !entry.dead) {
        return Err(Lie::Unsettled(operation(&entry.forecast)));
    }
    let shown =
        ViewReply { view: view.clone(), peaks: peaks.clone(), consistency: Vec::new(), blocks: Vec::new() };
    check_look(&Floor::unseen(present.superuser, NOBODY, members), members, &shown)
        .map_err(|alarm| Lie::View(Box::new(alarm)))?;
    let known = present.log();
    if !verify_consistency(view.log, known, consistency) {
        return Err(Lie::OtherLog { known, found: view.log });
    }
    let slots = view.slots.values().map(|slot| &slot.value.forecast);
    let forecasts: Vec<&Forecast> = slots.chain(view.pending.iter().map(|entry| &entry.forecast)).collect();
    for (number, forecast) in forecasts.iter().enumerate() {
        let leaf = leaf(forecast.certificate, forecast.digest());
        let proof = inclusion.get(number).map_or(&[][..], |proof| proof);
        if !UPDATES.verify_inclusion(forecast.log.size, leaf, view.log, proof) {
            return Err(Lie::NotInLog(operation(forecast)));
        }
    }
    let last = forecasts.iter().find(|forecast| forecast.log.size + 1 == view.log.size);
    let last = last.ok_or(Lie::NewestLeftOut)?;
    if newest.value.digest() != last.certificate {
        return Err(Lie::OtherCertificate);
    }
    let signed_ns = newest.value.time_ns;
    if signed_ns != point.time_ns {
        return Err(Lie::OtherTime { listed_ns: point.time_ns, signed_ns });
    }
    check_statuses(present, view)?;
    let settled = view.slots.values().filter(|slot| has_settled(present, slot)).cloned().collect();
    Ok(VerifiedPast { view: view.clone(), time_ns: signed_ns, settled })
}

fn operation(forecast: &Forecast) -> Operation {
    Operation { device: forecast.device, number: forecast.number() }
}

/// Whether this was pending in the view accepted here: then it has been committed since.
fn has_settled(present: &Floor, slot: &Signed<Structure>) -> bool {
    present.view.pending.iter().any(|entry| !entry.dead && entry.forecast == slot.value.forecast)
}

/// Whether this is the own operation under way here: the server has taken it, and its receipt is not here yet.
fn is_under_way(present: &Floor, slot: &Signed<Structure>) -> bool {
    let (number, certificate) = (slot.value.number(), slot.value.forecast.certificate);
    slot.value.device() == present.device
        && number == present.used
        && number > present.last()
        && !present.voids.contains(number)
        && present.offered.get(&number).is_some_and(|made| made.certificate == certificate)
}

/// Checks the status of all operations in `view` against the view accepted since.
fn check_statuses(present: &Floor, view: &View) -> Result<(), Lie> {
    let contradiction =
        |operation: Operation, what: &str| Lie::Contradiction { operation, what: what.to_owned() };
    for (device, slot) in &view.slots {
        let shown = operation(&slot.value.forecast);
        if has_settled(present, slot) || is_under_way(present, slot) {
            continue;
        }
        let Some(now) = present.view.slots.get(device) else {
            return Err(contradiction(
                shown,
                "nothing of its device was committed by the view accepted here",
            ));
        };
        if now.value.number() < shown.number {
            return Err(contradiction(shown, "it is later than what its device has committed by now"));
        }
        if now.value.number() == shown.number && now != slot {
            return Err(contradiction(shown, "another structure was accepted here under this number"));
        }
        if now != slot {
            given_up_consistently(&slot.value, &now.value.forecast.voids, &now.value.forecast.ineffective)
                .map_err(|alarm| contradiction(shown, &alarm.explain()))?;
        }
    }
    for entry in &view.pending {
        let shown = operation(&entry.forecast);
        if present.view.status_of(shown.device, shown.number) == OperationStatus::Committed {
            return Err(contradiction(shown, "it is shown as dead, and its author has committed it"));
        }
    }
    let principals = view.slots.values().flat_map(|slot| slot.value.handles.keys());
    for principal in principals {
        let then = view.handle(*principal).filter(|(device, _)| {
            let number = |view: &View| view.slots.get(device).map(|slot| slot.value.number());
            number(view) <= number(&present.view)
        });
        let then = then.map(|(_, handle)| handle);
        let now = present.view.handle(*principal).map(|(_, handle)| handle);
        if let Some(then) = then
            && now
                .is_none_or(|now| now.version < then.version || (now.version == then.version && now != then))
        {
            return Err(Lie::OtherTable(*principal));
        }
    }
    Ok(())
}
