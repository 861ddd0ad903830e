//! Reads what a log says of the disk, without opening or changing anything: for tools, and for checking the order of
//! writes.

use crate::layout::{BLOCK_BYTES, Header};
use crate::records::{CLIENT, Record};
use crate::recover::{decode, survey};
use crate::{VolumeError, VolumeKey};
use holdfast_log::device::Device;
use holdfast_log::ring::{Lsn, Recovered, Tag};
use std::sync::Arc;

/// What one record of the log says about one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The block.
    pub block: u64,
    /// Start of the record.
    pub record: Lsn,
    /// The tag of the content that it announces; `None` if the block was discarded.
    pub tag: Option<Tag>,
    /// The log has the content itself.
    pub is_whole: bool,
    /// The log says that the disk has the last of these, or something later, durably.
    pub is_stable: bool,
}

/// The claims of the log since its last checkpoint, in its order.
///
/// # Errors
/// As [`Volume::open`](crate::Volume::open).
pub fn claims(log: Arc<dyn Device>, key: &VolumeKey) -> Result<Vec<Claim>, VolumeError> {
    let header = Header::read(&*log, key)?;
    let found = Recovered::open(log, header.ring(), key.ring(), key.volume(), None)?;
    let survey = survey(&found)?;
    let mut claims = Vec::new();
    for record in found.cursor(CLIENT) {
        let record = record?;
        if record.start < survey.from {
            continue;
        }
        let is_stable = record.start < survey.stable;
        let mut claim = |block, tag, is_whole| {
            claims.push(Claim { block, record: record.start, tag, is_whole, is_stable });
        };
        match decode(&record)? {
            Record::Hashes { first, tags } => {
                (first..).zip(tags).for_each(|(block, tag)| claim(block, Some(tag), false));
            }
            Record::Inline { first, bytes } => {
                for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    claim(block, Some(key.block(block, bytes)), true);
                }
            }
            Record::Discard { first, count } => {
                (first..first.saturating_add(count)).for_each(|block| claim(block, None, true));
            }
            Record::Together { blocks } => {
                blocks
                    .iter()
                    .for_each(|(block, bytes)| claim(*block, Some(key.block(*block, &bytes[..])), true));
            }
            Record::Stable { .. } | Record::Checkpoint { .. } | Record::Opened => {}
        }
    }
    Ok(claims)
}
