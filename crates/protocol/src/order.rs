//! The order of operations, and the forecast: what the order alone determines of a coming structure.
//!
//! Every operation has one place in the log of updates, so [`LogHead::size`] sorts the operations in a view.
//! Sorting is no check: `check` verifies that version vectors grow along that order.
//!
//! Both sides use [`forecast`]. If the server computed another structure than the client, honest runs would
//! look like attacks; so there is one function, and the simulator asserts that both agree.

use crate::certificate::Certificate;
use crate::signed::Signable;
use crate::structure::{Forecast, LogHead, Record, View};
use crate::vector::VersionVector;
use holdfast_content::PrincipalId;
use std::cmp::Ordering;

/// The forecasts of all slots and of all pending and dead entries, first to last.
pub fn ordered_elements(view: &View) -> Vec<&Forecast> {
    let mut elements: Vec<&Forecast> = elements(view).collect();
    elements.sort_by(in_order);
    elements
}

/// The vector of the last operation a view shows: every version number reached so far.
pub fn last_vector(view: &View) -> VersionVector {
    elements(view).max_by(in_order).map(|element| element.vector.clone()).unwrap_or_default()
}

fn elements(view: &View) -> impl Iterator<Item = &Forecast> {
    let slots = view.slots.values().map(|slot| &slot.value.forecast);
    slots.chain(view.pending.iter().map(|entry| &entry.forecast))
}

/// Compares two operations by place in the log, then by device and number, which only a false view needs. A number
/// is looked up in a vector of all devices, so it is not asked for in vain.
fn in_order(one: &&Forecast, other: &&Forecast) -> Ordering {
    let by_place = (one.log.size, one.device).cmp(&(other.log.size, other.device));
    by_place.then_with(|| one.number().cmp(&other.number()))
}

/// The records of pending and of dead operations in an operation ordered after `view`.
pub fn records(view: &View) -> (Vec<Record>, Vec<Record>) {
    let (dead, pending): (Vec<_>, Vec<_>) = view.pending.iter().partition(|entry| entry.dead);
    let record = |entries: Vec<&crate::structure::PendingEntry>| {
        entries.into_iter().map(|entry| entry.forecast.record()).collect()
    };
    (record(pending), record(dead))
}

/// The structure of the operation declared by `certificate`, without i-handles, if it is ordered right after
/// everything in `view`.
///
/// Its vector is that of the last operation in the order (of whatever device, and whether pending, committed
/// or dead), with the signer's own number and the tables it advances counted up. This is SUNDR 3.4.1, except
/// that following the order replaces the paper's comparison of group versions.
pub fn forecast(view: &View, certificate: &Certificate) -> Forecast {
    let mut vector = last_vector(view);
    vector.set(PrincipalId::Device(certificate.device), certificate.number);
    for principal in certificate.principals() {
        vector.set(principal, vector.get(principal).saturating_add(1));
    }
    let (pending, aborted) = records(view);
    Forecast {
        file_system: certificate.file_system,
        device: certificate.device,
        vector,
        pending,
        aborted,
        voids: certificate.voids.clone(),
        ineffective: certificate.ineffective.clone(),
        certificate: certificate.digest(),
        log: LogHead { size: view.log.size, root: view.log.root },
    }
}
