//! What a device does to adopt a declared restore ([`crate::epoch`]).
//!
//! Little of its own state survives. It checks the server's present view like a client that has accepted
//! nothing. It adds what it alone can check: which operation in its own slot it has signed, which of its own
//! operations were pending in the restored state, and that the part of its log that is left is the beginning
//! of the present one. Everything beyond that which it had accepted is lost, and it reports so.

use crate::alarm::{Alarm, Operation};
use crate::check::check_look;
use crate::epoch::{self, Epochs, are_declared};
use crate::floor::{Floor, OwnOperation};
use crate::log_tree::verify_consistency;
use crate::members::Members;
use crate::message::ViewReply;
use crate::signed::Signable;
use crate::structure::{LogHead, Outcome};
use holdfast_content::{DeviceId, Restore};

/// A device number that nobody has, used to check a view as a client that has accepted nothing.
const NOBODY: DeviceId = DeviceId(u32::MAX);

/// What a device lost by a restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreLoss {
    /// Number of lost operations, of all devices, that it had seen.
    pub seen: u64,
    /// First and last number of its own acknowledged operations that are lost.
    pub own: Option<(u64, u64)>,
}

/// The part of a device's log that is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemainingLog {
    /// All of the log; views must extend it, by a proof from this head.
    All(LogHead),
    /// The log of the restore, which does not have all that the device has seen. The present view must extend
    /// it, proven from this head. Whether it is the beginning of the device's own log can only be checked
    /// with the leaves.
    Beginning(LogHead),
}

impl RemainingLog {
    /// The head from which the server has to prove consistency.
    pub fn head(&self) -> LogHead {
        match self {
            RemainingLog::All(head) | RemainingLog::Beginning(head) => *head,
        }
    }
}

/// The part of the log of `floor` that is left after `restores`, which must be declared and follow its epoch.
/// `None`: the floor has already adopted them.
///
/// # Errors
/// [`Alarm`]: the superuser has not signed them, or they are not later.
pub fn remaining_log(floor: &Floor, restores: &[Restore]) -> Result<Option<RemainingLog>, Alarm> {
    if !are_declared(&floor.superuser, restores) {
        let what = "it tells of a restore that its superuser has not declared".to_owned();
        return Err(Alarm::Malformed { device: None, what });
    }
    let epochs = Epochs::of(floor.file_system(), restores);
    if epochs.latest() == floor.epoch {
        return Ok(None);
    }
    let Some(left) = epochs.left_of(&floor.epoch) else { return Err(Alarm::EpochWentBack) };
    let log = floor.log();
    Ok(Some(if log.size <= left.size { RemainingLog::All(log) } else { RemainingLog::Beginning(left) }))
}

/// The floor of a device in the epoch after `restores`, and what it lost. `reply` proves that its log extends
/// the one from [`remaining_log`]. `members` is the membership that the reply names; it contains these
/// restores, except for one that is only being declared.
///
/// # Errors
/// [`Alarm`].
pub fn take_up(
    old: &Floor,
    restores: &[Restore],
    members: &dyn Members,
    reply: &ViewReply,
) -> Result<(Floor, RestoreLoss), Alarm> {
    let Some(left) = remaining_log(old, restores)? else {
        return Ok((old.clone(), RestoreLoss { seen: 0, own: None }));
    };
    let (view, kept) = (&reply.view, left.head());
    if !verify_consistency(kept, view.log, &reply.consistency) {
        return Err(Alarm::LogNotExtended { known: kept, found: view.log });
    }
    let stranger = Floor::unseen(old.superuser, NOBODY, members);
    let shown = ViewReply { consistency: Vec::new(), blocks: Vec::new(), ..reply.clone() };
    let seen = check_look(&stranger, members, &shown)?;
    let epoch = epoch::latest(old.file_system(), restores);
    let mut floor = Floor { device: old.device, server_keys: old.server_keys.clone(), epoch, ..stranger };
    own_slot(old, &floor, reply)?;
    if let Some(slot) = view.slots.get(&old.device).map(|slot| &slot.value) {
        floor.used = slot.number();
        floor.voids = slot.forecast.voids.clone();
        floor.ineffective = slot.forecast.ineffective.clone();
        if slot.outcome == Outcome::Nothing {
            floor.ineffective.insert(slot.number());
        }
        let offered = OwnOperation { certificate: slot.forecast.certificate, forecast: None };
        floor.offered.insert(slot.number(), offered);
    }
    // An operation that was pending in the restored state is dead now, and this device continues to list it.
    for entry in view.pending.iter().filter(|entry| entry.certificate.value.device == old.device) {
        let certificate = &entry.certificate.value;
        let number = certificate.number;
        if !entry.dead {
            return Err(Alarm::NeverSent(Operation { device: old.device, number }));
        }
        floor.voids = certificate.voids.clone();
        (floor.used + 1..=number).for_each(|number| floor.voids.insert(number));
        floor.ineffective = certificate.ineffective.clone();
        floor.used = number;
        let forecast = Some(entry.forecast.digest());
        floor.offered.insert(number, OwnOperation { certificate: certificate.digest(), forecast });
    }
    floor.accept(view, view.clone(), seen.frontier);
    let lost = lost(old, &floor, kept.size);
    Ok((floor, lost))
}

/// Checks that this device's slot in the restored state has what this device signed.
fn own_slot(old: &Floor, floor: &Floor, reply: &ViewReply) -> Result<(), Alarm> {
    let Some(slot) = reply.view.slots.get(&old.device) else { return Ok(()) };
    let (number, epoch) = (slot.value.number(), slot.value.forecast.file_system);
    if epoch == floor.epoch {
        // This device has signed it after the restore, and its state here does not know of it.
        return Err(Alarm::StateBehind { known: old.last(), found: number });
    }
    if epoch != old.epoch {
        return Ok(());
    }
    if number > old.used {
        return Err(Alarm::StateBehind { known: old.used, found: number });
    }
    let is_another = match old.own() {
        Some(own) if own.value.number() == number => own != slot,
        _ => old.offered.get(&number).is_some_and(|made| made.certificate != slot.value.forecast.certificate),
    };
    if is_another { Err(Alarm::Cloned { number }) } else { Ok(()) }
}

fn lost(old: &Floor, floor: &Floor, kept: u64) -> RestoreLoss {
    let seen = old.log().size - kept.min(old.log().size);
    // The restored state may have an operation of this device for which it had no receipt yet.
    let is_left = |number: u64| {
        let slot = floor.own().map(|slot| &slot.value);
        slot.is_some_and(|slot| slot.forecast.file_system == old.epoch && slot.number() >= number)
    };
    let own =
        old.own().filter(|own| own.value.forecast.file_system == old.epoch && !is_left(own.value.number()));
    let first = floor.own().map_or(1, |slot| slot.value.number() + 1);
    RestoreLoss { seen, own: own.map(|own| (first.min(own.value.number()), own.value.number())) }
}

#[cfg(test)]
mod tests;
