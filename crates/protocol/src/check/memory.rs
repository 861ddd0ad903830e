//! Check 8: the view does not contradict what this device has accepted before.

use super::Context;
use super::policy::Rule;
use super::shape::continues;
use crate::alarm::{Alarm, Operation};
use crate::structure::View;
use std::cmp::Ordering;

/// Compares the view with the last one accepted. Returns the view together with what was learned since that
/// one.
pub(super) fn check(context: &Context<'_>) -> Result<View, Alarm> {
    let mut merged = context.view.clone();
    if !context.policy.on(Rule::Memory) {
        return Ok(merged);
    }
    for (device, known) in &context.floor.view.slots {
        let number = known.value.number();
        let found = context.slot_number(*device);
        match found.cmp(&number) {
            Ordering::Greater => {
                let forecast = &context.view.slots[device].value.forecast;
                continues(&known.value, &forecast.voids, &forecast.ineffective)?;
            }
            Ordering::Equal => {
                if context.view.slots.get(device) != Some(known) {
                    return Err(Alarm::SlotReplaced(Operation { device: *device, number }));
                }
                // This shares the vector's memory with views accepted before.
                merged.slots.insert(*device, known.clone());
            }
            Ordering::Less => {
                // A structure that was learned by waiting may be newer than a view that was already under
                // way. That view must still show the operation, alive and unchanged. `learned` holds no older
                // ones.
                let learned = context.floor.learned.get(device) == Some(&number);
                match context.entry(*device, number) {
                    Some(announced) if announced.entry.dead => {
                        return Err(Alarm::FateChanged {
                            device: *device,
                            number,
                            what: "it was committed, and is now declared dead".to_owned(),
                        });
                    }
                    Some(announced) if learned && announced.digest() == known.value.forecast.digest() => {
                        merged.slots.insert(*device, known.clone());
                        merged.pending.retain(|entry| entry.certificate.value.device != *device);
                    }
                    _ => return Err(Alarm::SlotWentBack { device: *device, known: number, found }),
                }
            }
        }
    }
    Ok(merged)
}
