//! The status of a volume: from the process that has it attached, or from what is stored.

use super::anchor::{self, AnchorStatus};
use super::folders::{VolumeFolder, VolumeRecord};
use super::requests::Status;
use super::scrub;
use super::status::VolumeStatus;
use crate::control::Client;
use holdfast_failure::{Exit, Outcome};

/// The status of a volume, attached or not.
pub fn of(place: &VolumeFolder, about: &VolumeRecord) -> Outcome<VolumeStatus> {
    if let Some(process) = Client::connect(&place.directory)? {
        match process.call(&Status) {
            // It is just ending.
            Err(failure) if failure.code == Exit::Unavailable => {}
            other => return other,
        }
    }
    let (log_block, failed) = match anchor::read(&place.anchor_of(about)) {
        Ok(found) => (found.map(|anchor| anchor.number), None),
        Err(failure) => (None, Some(failure.message)),
    };
    Ok(VolumeStatus {
        volume: place.name(),
        disk: about.disk.clone(),
        log: about.log.clone(),
        key: about.key.clone(),
        size_bytes: about.size_bytes,
        protected: about.protected,
        attached: None,
        anchor: AnchorStatus {
            file: place.anchor_of(about),
            tpm: about.tpm,
            log_block,
            blocks_behind: None,
            every_flush: false,
            failed,
        },
        scrub: scrub::Progress::remembered(place),
    })
}
