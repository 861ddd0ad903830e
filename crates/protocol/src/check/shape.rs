//! Check 1: limits, signatures, the device's own slot, and certificates that continue their devices' slots.

use super::policy::{Policy, Rule};
use super::{Context, DEVICES_MAX, PENDING_MAX, PRINCIPALS_MAX};
use crate::alarm::{Alarm, Operation};
use crate::certificate::{DELTAS_MAX, Path};
use crate::floor::Floor;
use crate::members::{Member, Members};
use crate::signed::{Signable, Signed};
use crate::structure::{Forecast, Outcome, PendingEntry, Structure, View};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use std::collections::BTreeMap;

fn malformed(device: Option<DeviceId>, what: impl Into<String>) -> Alarm {
    Alarm::Malformed { device, what: what.into() }
}

fn within(device: Option<DeviceId>, what: &str, found: usize, limit: usize) -> Result<(), Alarm> {
    if found > limit {
        return Err(malformed(device, format!("{found} {what}, at most {limit} are allowed")));
    }
    Ok(())
}

/// Checks sizes, before anything is computed from them.
pub(super) fn limits(view: &View) -> Result<(), Alarm> {
    within(None, "slots", view.slots.len(), DEVICES_MAX)?;
    within(None, "pending entries", view.pending.len(), PENDING_MAX)?;
    for slot in view.slots.values() {
        forecast_limits(&slot.value.forecast)?;
        within(Some(slot.value.device()), "i-handles", slot.value.handles.len(), PRINCIPALS_MAX)?;
    }
    for entry in &view.pending {
        forecast_limits(&entry.forecast)?;
        within(Some(entry.forecast.device), "deltas", entry.certificate.value.deltas.len(), DELTAS_MAX)?;
    }
    Ok(())
}

fn forecast_limits(forecast: &Forecast) -> Result<(), Alarm> {
    let device = Some(forecast.device);
    within(device, "versions in a vector", forecast.vector.versions().len(), PRINCIPALS_MAX)?;
    within(device, "records", forecast.pending.len() + forecast.aborted.len(), PENDING_MAX)?;
    if !forecast.voids.is_well_formed() || !forecast.ineffective.is_well_formed() {
        return Err(malformed(device, "a set of numbers is not in canonical form"));
    }
    Ok(())
}

/// Check 1, except for the limits, which are checked before.
pub(super) fn check(context: &Context<'_>) -> Result<(), Alarm> {
    let Context { floor, members, view, .. } = context;
    let expected = view.handle(PrincipalId::Members).map_or(0, |(_, handle)| handle.version);
    if members.version() > expected || (expected == 0 && !view.slots.is_empty()) {
        return Err(Alarm::Membership { expected, found: members.version() });
    }
    for (device, slot) in &view.slots {
        if slot.value.device() != *device || slot.value.number() == 0 {
            return Err(malformed(Some(*device), "a slot holds another device's structure"));
        }
        well_formed(context, &slot.value.forecast)?;
        if floor.view.slots.get(device) == Some(slot) {
            membership_allows(members.member(*device), &slot.value.forecast)?;
        } else {
            signature(*members, slot, context.policy)?;
        }
    }
    own_slot(context)?;
    let mut last = BTreeMap::new();
    for entry in &view.pending {
        pending_entry(context, entry)?;
        let certificate = &entry.certificate.value;
        if let Some((number, dead)) = last.insert(certificate.device, (certificate.number, entry.dead)) {
            let operation = Operation { device: certificate.device, number };
            if number >= certificate.number {
                return Err(Alarm::WrongNumber { operation, what: "it is shown out of order".to_owned() });
            }
            if !dead {
                return Err(Alarm::WrongNumber {
                    operation,
                    what: format!("its device went on to {}, yet it is shown as alive", certificate.number),
                });
            }
        }
    }
    Ok(())
}

/// Checks a structure's signature, by a device that was a member at that place in the order.
pub(super) fn signature(
    members: &dyn Members,
    slot: &Signed<Structure>,
    policy: &dyn Policy,
) -> Result<(), Alarm> {
    let forecast = &slot.value.forecast;
    let member = membership_allows(members.member(forecast.device), forecast)?;
    if !policy.on(Rule::Signatures) || slot.verify(&member.key) {
        Ok(())
    } else {
        Err(Alarm::BadSignature(Operation { device: forecast.device, number: forecast.number() }))
    }
}

fn membership_allows(member: Option<Member>, forecast: &Forecast) -> Result<Member, Alarm> {
    let member = member.ok_or(Alarm::UnknownDevice(forecast.device))?;
    let found = forecast.vector.get(PrincipalId::Members);
    match member.removed_at {
        Some(removed_at) if found >= removed_at => Err(Alarm::RemovedDevice {
            operation: Operation { device: forecast.device, number: forecast.number() },
            removed_at,
            found,
        }),
        _ => Ok(member),
    }
}

/// Checks that records and sets agree with the vector beside them.
fn well_formed(context: &Context<'_>, forecast: &Forecast) -> Result<(), Alarm> {
    let device = Some(forecast.device);
    let number = forecast.number();
    if !context.epochs.contains(&forecast.file_system) {
        return Err(malformed(device, "it belongs to another file system"));
    }
    if context.policy.on(Rule::Epochs) && !context.epochs.holds(&forecast.file_system, forecast.log.size) {
        return Err(malformed(device, "it was lost by a restore, and is shown again"));
    }
    let below = |set: &crate::vector::VoidSet| set.0.last_key_value().is_none_or(|(_, &last)| last < number);
    if !below(&forecast.voids) || !below(&forecast.ineffective) {
        return Err(malformed(device, "it gives up numbers that are not below its own"));
    }
    let mut pending: Vec<_> = forecast.pending.iter().map(|record| record.device).collect();
    pending.sort();
    let repeated = pending.windows(2).any(|pair| pair[0] == pair[1]);
    let stale = forecast.pending.iter().any(|record| {
        record.number != forecast.vector.device(record.device) || record.device == forecast.device
    });
    let unseen = forecast.aborted.iter().any(|record| record.number > forecast.vector.device(record.device));
    if repeated || stale || unseen {
        return Err(malformed(device, "what it remembers of others contradicts its version vector"));
    }
    Ok(())
}

fn own_slot(context: &Context<'_>) -> Result<(), Alarm> {
    let floor = context.floor;
    let shown = context.view.slots.get(&floor.device);
    if shown == floor.own() {
        return Ok(());
    }
    if let Some(shown) = shown {
        let number = shown.value.number();
        if floor.is_fresh() {
            return Err(Alarm::StateMissing { number });
        }
        if number > floor.used {
            return Err(Alarm::StateBehind { known: floor.used, found: number });
        }
        if signed_elsewhere(floor, &shown.value) {
            return Err(Alarm::Cloned { number });
        }
    }
    Err(Alarm::OwnSlot {
        expected: floor.own().map(|own| own.value.number()),
        found: shown.map(|shown| shown.value.number()),
    })
}

/// Whether this device's key has signed a structure that this state does not know. No server can forge that,
/// so another machine uses this key and this state.
fn signed_elsewhere(floor: &Floor, shown: &Structure) -> bool {
    let number = shown.number();
    match floor.own() {
        // This device commits only one structure with each number.
        Some(own) if own.value.number() == number => true,
        _ => {
            let made = floor.offered.get(&number);
            made.is_some_and(|made| made.certificate != shown.forecast.certificate)
        }
    }
}

fn pending_entry(context: &Context<'_>, entry: &PendingEntry) -> Result<(), Alarm> {
    let Context { floor, members, view, .. } = context;
    let certificate = &entry.certificate.value;
    let forecast = &entry.forecast;
    let operation = Operation { device: certificate.device, number: certificate.number };
    let wrong_number = |what: &str| Alarm::WrongNumber { operation, what: what.to_owned() };
    let wrong_forecast = |what: &str| Alarm::WrongForecast { operation, what: what.to_owned() };

    if certificate.file_system != forecast.file_system {
        return Err(malformed(Some(certificate.device), "it belongs to another file system"));
    }
    if certificate.file_system != floor.epoch && !entry.dead {
        return Err(malformed(
            Some(certificate.device),
            "it was under way before a restore, and is shown as alive",
        ));
    }
    if (forecast.device, forecast.number()) != (certificate.device, certificate.number) {
        return Err(wrong_forecast("device or number"));
    }
    well_formed(context, forecast)?;
    let member = membership_allows(members.member(certificate.device), forecast)?;
    let known = floor.view.pending.iter().any(|known| known.certificate == entry.certificate);
    if !known && context.policy.on(Rule::Signatures) && !entry.certificate.verify(&member.key) {
        return Err(Alarm::BadSignature(operation));
    }
    if forecast.certificate != certificate.digest() {
        return Err(wrong_forecast("digest of the certificate"));
    }
    if forecast.voids != certificate.voids || forecast.ineffective != certificate.ineffective {
        return Err(wrong_forecast("numbers given up"));
    }
    if let Some(offence) = certificate.offence() {
        return Err(malformed(Some(certificate.device), offence));
    }
    if certificate.path != Path::Slow {
        return Err(wrong_number("a fast operation is never pending"));
    }
    let slot = view.slots.get(&certificate.device).map(|slot| &slot.value);
    if certificate.previous != slot.map_or(Digest::ZERO, |slot| slot.forecast.digest()) {
        return Err(Alarm::WrongPrevious(operation));
    }
    let last = slot.map_or(0, Structure::number);
    if certificate.number <= last {
        return Err(wrong_number("its device has committed a later one"));
    }
    if !certificate.voids.covers(last + 1, certificate.number - 1) {
        return Err(wrong_number("numbers before it are neither committed nor given up"));
    }
    if let Some(slot) = slot {
        continues(slot, &certificate.voids, &certificate.ineffective)?;
    }
    let since = floor
        .view
        .slots
        .get(&certificate.device)
        .map_or(0, |slot| slot.value.forecast.vector.get(PrincipalId::Members));
    for principal in certificate.principals() {
        // Any member may bring a membership under a warrant. The warrant itself is checked when the
        // membership is in force.
        let may_bring = principal == PrincipalId::Members;
        if !may_bring && !members.may_write(certificate.device, principal, since) {
            return Err(Alarm::Unauthorised { operation, principal });
        }
        if forecast.vector.get(principal) == 0 {
            return Err(wrong_forecast("version of a table it advances"));
        }
    }
    if certificate.device == floor.device {
        own_entry(context, entry, operation)?;
    }
    Ok(())
}

/// Checks a pending entry of this device, which must be one that it sent and has given up since.
fn own_entry(context: &Context<'_>, entry: &PendingEntry, operation: Operation) -> Result<(), Alarm> {
    let floor = context.floor;
    let number = operation.number;
    if number > floor.used {
        return Err(if floor.is_fresh() {
            Alarm::StateMissing { number }
        } else {
            Alarm::StateBehind { known: floor.used, found: number }
        });
    }
    let sent =
        floor.offered.get(&number).is_some_and(|offered| offered.certificate == entry.forecast.certificate);
    if !sent || !floor.voids.contains(number) {
        return Err(Alarm::NeverSent(operation));
    }
    if !entry.dead && context.certificate.is_some() {
        return Err(Alarm::WrongNumber {
            operation,
            what: "this device gave it up, yet it is shown as alive".to_owned(),
        });
    }
    Ok(())
}

/// Checks that given-up and ineffective numbers only grow, and never by numbers whose outcome was known
/// (check 8).
pub(crate) fn continues(
    earlier: &Structure,
    voids: &crate::vector::VoidSet,
    ineffective: &crate::vector::VoidSet,
) -> Result<(), Alarm> {
    let (device, number) = (earlier.device(), earlier.number());
    let changed = |number: u64, what: &str| Alarm::FateChanged { device, number, what: what.to_owned() };
    if !voids.contains_all(&earlier.forecast.voids)
        || !ineffective.contains_all(&earlier.forecast.ineffective)
    {
        return Err(changed(number, "numbers given up earlier are not listed any more"));
    }
    if let Some(number) = voids.added_up_to(&earlier.forecast.voids, number) {
        return Err(changed(number, "it was committed, and is now given up"));
    }
    let mut expected = earlier.forecast.ineffective.clone();
    if earlier.outcome == Outcome::Nothing {
        expected.insert(number);
        if !ineffective.contains(number) {
            return Err(changed(number, "it had no effect, and now claims one"));
        }
    }
    if let Some(number) = ineffective.added_up_to(&expected, number) {
        return Err(changed(number, "it had taken effect, and now claims none"));
    }
    Ok(())
}
