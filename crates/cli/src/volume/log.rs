//! Creating and checking logs of volumes.

use holdfast_daemon::volumes::folders::sync_parent;
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::secret::Secret;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::Device;
use holdfast_volume::{Plan, Volume};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a device that must be zero before it is used as a log.
const LOOKED_AT: usize = 1 << 20;

/// Whether the beginning of a device is all zeroes.
///
/// # Errors
/// The device cannot be read.
pub fn is_blank(device: &dyn Device) -> Outcome<bool> {
    let mut bytes = vec![0; LOOKED_AT.min(device.size_bytes() as usize)];
    device
        .read_at(0, &mut bytes)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", device.describe())))?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Makes a log of the right size, with its disk space reserved. It gets its name once it is complete.
pub fn make_log(
    path: &Path,
    disk: &dyn Device,
    secret: &Secret,
    volume: &[u8; 16],
    ring_bytes: Option<u64>,
) -> Outcome {
    let failed =
        |error: std::io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", path.display()));
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let file = File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&beside)
        .map_err(failed)?;
    let bytes = Plan::new(disk.size_bytes(), ring_bytes).bytes;
    // The space is reserved, because a log that cannot be written when its disk is full stops the volume.
    let made = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
        .map_err(std::io::Error::from)
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::Unsupported => file.set_len(bytes),
            _ => Err(error),
        })
        .and_then(|()| file.sync_all());
    let made = made.map_err(failed).and_then(|()| {
        drop(file);
        let medium = Medium::open(&beside)?;
        Volume::format(disk, &*medium.device, &secret.of(volume), ring_bytes)?;
        std::fs::rename(&beside, path).map_err(failed)?;
        sync_parent(path)
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    made
}
