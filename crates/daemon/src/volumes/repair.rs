//! Repairs bad blocks of a volume in use from a copy of the disk, which need not be trusted.

use super::media;
use holdfast_failure::Outcome;
use holdfast_volume::{BLOCK_BYTES, Volume};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The result of a repair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repaired {
    /// Numbers of blocks that are good again.
    pub repaired: Vec<u64>,
    /// Numbers of blocks for which the copy lacks the content that was written last.
    pub left: Vec<u64>,
}

/// Repairs the blocks that were found to be bad.
///
/// # Errors
/// The copy cannot be opened, or the volume fails.
pub fn mend(volume: &Volume, from: &Path) -> Outcome<Repaired> {
    let replica = media::open_for_reading(from)?;
    let mut done = Repaired { repaired: Vec::new(), left: Vec::new() };
    let mut bytes = [0; BLOCK_BYTES];
    for bad in volume.bad_blocks() {
        let offset = bad.number * BLOCK_BYTES as u64;
        // The copy may be shorter, or bad at the same position.
        let is_read = replica.read_at(offset, &mut bytes).is_ok();
        if is_read && volume.repair(bad.number, &bytes)? {
            tracing::info!(block = bad.number, "mended from a copy");
            done.repaired.push(bad.number);
        } else {
            done.left.push(bad.number);
        }
    }
    Ok(done)
}
