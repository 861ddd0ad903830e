//! The status of operations, according to a view.
//!
//! A tagged change in a table (a pending operation that a later one folded in) counts if and only if its
//! operation is committed with effect. A slot has only the latest structure, so every later structure of a
//! device lists, cumulatively, the numbers that were given up or committed without effect.

use crate::structure::{Outcome, View};
use holdfast_content::{DeviceId, OperationStatus, OperationStatuses, Tag};

impl View {
    /// The status of the `number`-th operation of `device`.
    pub fn status_of(&self, device: DeviceId, number: u64) -> OperationStatus {
        let mut entries = self.pending.iter().filter(|entry| entry.certificate.value.device == device);
        let given_up = entries.any(|entry| {
            let certificate = &entry.certificate.value;
            (entry.dead && certificate.number == number)
                || certificate.voids.contains(number)
                || certificate.ineffective.contains(number)
        });
        let Some(slot) = self.slots.get(&device).map(|slot| &slot.value) else {
            return if given_up { OperationStatus::Aborted } else { OperationStatus::Pending };
        };
        let nothing = slot.number() == number && slot.outcome == Outcome::Nothing;
        if given_up
            || nothing
            || slot.forecast.voids.contains(number)
            || slot.forecast.ineffective.contains(number)
        {
            OperationStatus::Aborted
        } else if number <= slot.number() {
            OperationStatus::Committed
        } else {
            OperationStatus::Pending
        }
    }

    /// Whether no operation is pending (dead ones are settled).
    pub fn is_settled(&self) -> bool {
        self.pending.iter().all(|entry| entry.dead)
    }
}

impl OperationStatuses for View {
    fn status(&self, tag: &Tag) -> OperationStatus {
        self.status_of(tag.device, tag.number)
    }
}
