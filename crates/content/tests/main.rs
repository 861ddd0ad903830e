//! All integration tests of this crate, linked once: `scripts/test only content::MODULE::`.

mod file_model;
mod golden;
mod groups;
mod live_model;
mod map_hostile;
mod map_model;
mod objects;
mod reading;
mod untrusted_bytes;

use holdfast_content::{Change, LiveMap};

/// An empty map with these changes pushed onto it, in their order.
fn with_changes(changes: impl IntoIterator<Item = Change>) -> LiveMap {
    let mut map = LiveMap::EMPTY;
    changes.into_iter().for_each(|change| map.push(change));
    map
}
