//! Which tables are in force. Each must be signed by a device that may write it, and none may be dropped,
//! replaced or rolled back.
//!
//! A structure repeats the tables that its device advanced earlier, until another device advances them. A
//! client that saw the earlier structure checks this. A client that did not relies on the server's checks and
//! on the device itself, which could as well have written that table anew.

use super::Context;
use super::policy::Rule;
use crate::alarm::{Alarm, Operation};
use crate::floor::Floor;
use crate::handles::{self, Offence};
use crate::members::Members;
use crate::signed::{Signable, Signed};
use crate::structure::{HandleVersion, Structure, View};
use holdfast_content::{DeviceId, PrincipalId};
use std::collections::BTreeMap;

/// The tables in force: for each principal the one with the highest version.
fn in_force(view: &View) -> Result<BTreeMap<PrincipalId, (DeviceId, HandleVersion)>, Alarm> {
    let mut tables: BTreeMap<PrincipalId, (DeviceId, HandleVersion)> = BTreeMap::new();
    for (device, slot) in &view.slots {
        for (principal, handle) in &slot.value.handles {
            match tables.get(principal) {
                Some((_, other)) if other.version > handle.version => {}
                Some((_, other)) if other.version == handle.version => {
                    return Err(Alarm::WrongHandle {
                        operation: Operation { device: *device, number: slot.value.number() },
                        principal: *principal,
                        what: format!("version {} is in two structures", handle.version),
                    });
                }
                _ => {
                    tables.insert(*principal, (*device, *handle));
                }
            }
        }
    }
    Ok(tables)
}

/// Checks all new slots, and the tables in force against those of the last view.
pub(super) fn check(context: &Context<'_>, merged: &View) -> Result<(), Alarm> {
    let floor = context.floor;
    for (device, slot) in &merged.slots {
        if floor.view.slots.get(device) != Some(slot) {
            check_slot(floor, context.members, merged, slot)?;
        }
    }
    let tables = in_force(merged)?;
    for (principal, (_, known)) in in_force(&floor.view)? {
        let found = tables.get(&principal).map_or(0, |(_, handle)| handle.version);
        if found < known.version && context.policy.on(Rule::Tables) {
            return Err(Alarm::TableWentBack { principal, known: known.version, found });
        }
    }
    Ok(())
}

/// Checks one structure that was not in the last accepted view.
pub(super) fn check_slot(
    floor: &Floor,
    members: &dyn Members,
    view: &View,
    slot: &Signed<Structure>,
) -> Result<(), Alarm> {
    let structure = &slot.value;
    let device = structure.device();
    let operation = Operation { device, number: structure.number() };
    let known = floor.view.slots.get(&device).map(|known| &known.value);
    let since = known.map_or(0, |known| known.forecast.vector.get(PrincipalId::Members));
    // If the certificate was seen while it was pending, it says which tables the structure must advance.
    let announced = floor
        .view
        .pending
        .iter()
        .map(|entry| &entry.certificate.value)
        .find(|certificate| (certificate.device, certificate.number) == (device, operation.number))
        .filter(|certificate| certificate.digest() == structure.forecast.certificate);
    // The device may have advanced the repeated tables in an operation that this client never saw.
    let skipped = known.map_or(0, Structure::number) + 1 < operation.number;
    let announced = announced.filter(|_| !skipped);
    // Module `membership` checks that the superuser made the membership in force.
    let may_write =
        |principal| principal == PrincipalId::Members || members.may_write(device, principal, since);
    handles::check(structure, known, announced, view, &may_write).map_err(|offence| match offence {
        Offence::Unauthorised(principal) => Alarm::Unauthorised { operation, principal },
        Offence::Wrong(principal, what) => Alarm::WrongHandle { operation, principal, what: what.to_owned() },
    })
}
