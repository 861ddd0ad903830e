//! What became of operations, as a view shows it.
//!
//! A tagged change in somebody's table (a pending operation folded in by a later one) counts if and only if
//! that operation is committed with effect. A slot shows only the latest structure, so numbers that were given
//! up or committed without effect are listed, cumulatively, by all later structures of their device.

use crate::structure::{Outcome, View};
use holdfast_content::{DeviceId, Fate, Fates, Tag};

impl View {
    /// What became of the `number`-th operation of `device`.
    pub fn fate_of(&self, device: DeviceId, number: u64) -> Fate {
        let mut entries = self.pending.iter().filter(|entry| entry.certificate.value.device == device);
        let given_up = entries.any(|entry| {
            let certificate = &entry.certificate.value;
            (entry.dead && certificate.number == number)
                || certificate.voids.contains(number)
                || certificate.ineffective.contains(number)
        });
        let Some(slot) = self.slots.get(&device).map(|slot| &slot.value) else {
            return if given_up { Fate::Aborted } else { Fate::Pending };
        };
        let nothing = slot.number() == number && slot.outcome == Outcome::Nothing;
        if given_up
            || nothing
            || slot.forecast.voids.contains(number)
            || slot.forecast.ineffective.contains(number)
        {
            Fate::Aborted
        } else if number <= slot.number() {
            Fate::Committed
        } else {
            Fate::Pending
        }
    }

    /// Whether no operation is pending (dead ones are settled).
    pub fn is_settled(&self) -> bool {
        self.pending.iter().all(|entry| entry.dead)
    }
}

impl Fates for View {
    fn fate(&self, tag: &Tag) -> Fate {
        self.fate_of(tag.device, tag.number)
    }
}
