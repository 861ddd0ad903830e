//! Taking up a declared restore: what a device makes of it ([`crate::epoch`]).
//!
//! Of its own state only a little goes over. It believes the view that the server shows now as somebody would who has seen
//! nothing, with what it alone can know on top: which operation in its own slot it has signed, what of its own was under
//! way in the state that is left, and that its log, as far as it is left, is the beginning of the one shown. What it has
//! accepted beyond that is lost, and it says so.

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

/// Number of a device that does not exist, as which a view is checked by a client that has seen nothing.
const NOBODY: DeviceId = DeviceId(u32::MAX);

/// What a restore cost a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreLoss {
    /// Number of operations, of all devices, that it had seen and that are lost.
    pub seen: u64,
    /// Operations of its own that were acknowledged to it, and are not left: from the first to the last number.
    pub own: Option<(u64, u64)>,
}

/// What is left of a device's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemainingLog {
    /// All of the log; views must extend it, by a proof from this head.
    All(LogHead),
    /// The log of the restore, and not all that the device has seen: what is shown must extend that, by a proof from here.
    /// Whether it is the beginning of the device's own is for whoever has the leaves to see.
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

/// What is left of `floor` after `restores`, which have to be declared and to follow its epoch. `None`: it has taken them
/// up.
///
/// # Errors
/// [`Alarm`]: they are not the superuser's, or not later.
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

/// The floor of a device in the epoch after `restores`, and what is lost of what it knew. `reply` proves that its log
/// extends what [`remaining_log`] says, and `members` is the membership that it names: it has these restores, but for
/// one that is only being declared.
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
    // An operation that was under way in the state that is left is dead now, and this device goes on listing it.
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

/// The own slot holds what this device has signed, in the state that is left.
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
    // The state that is left may have an operation of this device that it had no receipt for yet.
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
