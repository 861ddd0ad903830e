//! Checks 4 to 7: what operations record of each other agrees with the view, and nothing is recorded that
//! never was.

use super::policy::Rule;
use super::{Context, Element, Origin};
use crate::alarm::{Alarm, Operation};
use crate::structure::Record;
use holdfast_content::{DeviceId, PrincipalId};
use std::collections::HashSet;

fn each_record<'a>(
    context: &'a Context<'_>,
    of: impl Fn(Element<'a>) -> &'a [Record] + 'a,
) -> impl Iterator<Item = (Operation, Record)> + 'a {
    context
        .elements
        .iter()
        .filter(|element| element.origin != Origin::Own)
        .flat_map(move |element| of(*element).iter().map(|record| (element.operation(), *record)))
}

/// Check 4: an operation that was recorded as pending was committed with the same contents, or is still
/// pending.
pub(super) fn pending(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::PendingRecords) {
        return Ok(());
    }
    let hashes = context.policy.on(Rule::PendingHash);
    for (operation, record) in each_record(context, |element| &element.forecast.pending) {
        let recorded = Operation::from(record);
        let mismatch = Alarm::PendingMismatch { operation, recorded };
        if record.device == context.floor.device {
            let stored = context.floor.offered.get(&record.number).and_then(|offered| offered.forecast);
            if hashes && stored.is_some_and(|stored| stored != record.forecast) {
                return Err(mismatch);
            }
        }
        match context.slot_number(record.device).cmp(&record.number) {
            std::cmp::Ordering::Equal => {
                if hashes && context.slot_digest(record.device) != Some(record.forecast) {
                    return Err(mismatch);
                }
            }
            std::cmp::Ordering::Less => match context.entry(record.device, record.number) {
                None => return Err(Alarm::PendingMissing { operation, recorded }),
                Some(announced) if hashes && announced.digest() != record.forecast => return Err(mismatch),
                Some(_) => {}
            },
            std::cmp::Ordering::Greater => {}
        }
    }
    Ok(())
}

/// Check 5: an operation that was declared dead stays dead until its author has given it up.
pub(super) fn aborted(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::AbortedRecords) {
        return Ok(());
    }
    for (operation, record) in each_record(context, |element| &element.forecast.aborted) {
        let recorded = Operation::from(record);
        match context.slot_number(record.device).cmp(&record.number) {
            std::cmp::Ordering::Less => {
                let dead =
                    context.entry(record.device, record.number).filter(|announced| announced.entry.dead);
                match dead {
                    None => return Err(Alarm::AbortedNotDead { operation, recorded }),
                    Some(announced) if announced.digest() != record.forecast => {
                        return Err(Alarm::PendingMismatch { operation, recorded });
                    }
                    Some(_) => {}
                }
            }
            std::cmp::Ordering::Greater if context.is_void(record.device, record.number) => {}
            _ if record.device == context.floor.device => {
                return Err(Alarm::AcknowledgedLost { operation, number: record.number });
            }
            _ => return Err(Alarm::AbortedButCommitted { operation, recorded }),
        }
    }
    Ok(())
}

/// Whether `element` has a record of the operation, as pending or as dead.
fn remembers(element: &Element<'_>, device: DeviceId, number: u64) -> bool {
    let matches = |record: &Record| (record.device, record.number) == (device, number);
    element.forecast.pending.iter().any(matches) || element.forecast.aborted.iter().any(matches)
}

/// Check 6: every operation that saw another one pending or dead has a record of it.
pub(super) fn reflection(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::Reflection) {
        return Ok(());
    }
    // Each operation records all that were pending, so they are looked up in a set.
    let of = |records: &[Record]| -> HashSet<(DeviceId, u64)> {
        records.iter().map(|record| (record.device, record.number)).collect()
    };
    let remembered: Vec<_> = context
        .elements
        .iter()
        .map(|element| (of(&element.forecast.pending), of(&element.forecast.aborted)))
        .collect();
    for entry in &context.view.pending {
        let certificate = &entry.certificate.value;
        let (device, number) = (certificate.device, certificate.number);
        for (element, (pending, aborted)) in context.elements.iter().zip(&remembered) {
            let itself = matches!(element.origin, Origin::Pending(other) if std::ptr::eq(other, entry));
            let operation = (device, number);
            let has_seen = !itself && element.forecast.vector.device(device) >= number;
            let remembers = pending.contains(&operation) || (entry.dead && aborted.contains(&operation));
            if has_seen && !remembers {
                return Err(Alarm::Unrecorded {
                    operation: element.operation(),
                    hidden: Operation { device, number },
                });
            }
        }
    }
    Ok(())
}

/// Check 7: no operation saw a given-up operation as committed.
pub(super) fn void(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::Void) {
        return Ok(());
    }
    for (element, device, number) in seen(context) {
        let own = element.forecast.device == device;
        if !own && context.is_void(device, number) && !remembers(element, device, number) {
            return Err(Alarm::VoidReflected {
                operation: element.operation(),
                void: Operation { device, number },
            });
        }
    }
    Ok(())
}

/// Checks that the view leaves out no operation that another one in it knows of.
pub(super) fn hidden(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::Hidden) {
        return Ok(());
    }
    for (element, device, number) in seen(context) {
        let own = element.origin == Origin::Own && device == element.forecast.device;
        if !own && number > context.slot_number(device) && context.entry(device, number).is_none() {
            return Err(Alarm::Hidden {
                operation: element.operation(),
                hidden: Operation { device, number },
            });
        }
    }
    Ok(())
}

/// For each element, the last operation of each device that it has seen. For elements that the last accepted
/// view had too, only of devices whose operations changed since.
fn seen<'a>(context: &'a Context<'_>) -> impl Iterator<Item = (&'a Element<'a>, DeviceId, u64)> {
    context.elements.iter().flat_map(|element: &Element<'_>| {
        let vector = &element.forecast.vector;
        let all = (!element.is_known).then(|| {
            vector.versions().iter().filter_map(|(principal, number)| match principal {
                PrincipalId::Device(device) => Some((*device, *number)),
                _ => None,
            })
        });
        let some = element.is_known.then(|| {
            let changed = context.changed.iter().map(|device| (*device, vector.device(*device)));
            changed.filter(|(_, number)| *number > 0)
        });
        let seen = all.into_iter().flatten().chain(some.into_iter().flatten());
        seen.map(move |(device, number)| (element, device, number))
    })
}
