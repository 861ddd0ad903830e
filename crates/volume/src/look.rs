//! Looking at a volume's log without changing it.

use crate::layout::Header;
use crate::recover::survey;
use crate::volume::Volume;
use crate::{VolumeError, VolumeKey};
use holdfast_log::device::Device;
use holdfast_log::ring::{Anchor, Recovered};
use std::sync::Arc;

/// A summary of a volume's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSummary {
    /// The header of the log.
    pub header: Header,
    /// Blocks that were taken over.
    pub adopted: u64,
    /// The anchor that fits the end of the log.
    pub end: Anchor,
}

impl Volume {
    /// Reads and verifies a log without changing anything. `anchor` is what the caller knows of it from
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Volume::open`], but never [`VolumeError::NotAdopted`].
    pub fn look(
        log: Arc<dyn Device>,
        key: &VolumeKey,
        anchor: Option<&Anchor>,
    ) -> Result<LogSummary, VolumeError> {
        let header = Header::read(&*log, key)?;
        let found = Recovered::open(log, header.ring(), key.ring(), key.volume(), anchor)?;
        let adopted = survey(&found)?.adopted;
        Ok(LogSummary { header, adopted, end: found.anchor() })
    }
}
