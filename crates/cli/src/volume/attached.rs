//! Finds out where volumes are attached.

use holdfast_daemon::control::Client;
use holdfast_daemon::volumes::folders::VolumeFolder;
use holdfast_daemon::volumes::requests::Status;
use std::path::PathBuf;

/// The directory, file and device of an attached volume.
pub fn attached_at(folder: &VolumeFolder) -> Vec<PathBuf> {
    let Ok(Some(process)) = Client::connect(&folder.directory) else { return Vec::new() };
    let export =
        process.call(&Status).ok().and_then(|status| status.attached).map(|attached| attached.export);
    export.map_or(Vec::new(), |export| vec![export.directory, export.path])
}
