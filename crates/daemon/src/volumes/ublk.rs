//! Volumes exported as ublk devices of this machine.

use super::export_report::ExportReport;
use super::nbd::GOING;
use super::served::Served;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::UnmountMode;
use holdfast_ublk::{Device, UblkError};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// A ublk device.
pub struct Ublk {
    device: Mutex<Option<Box<Device>>>,
    path: PathBuf,
}

impl Ublk {
    /// Creates the device.
    pub fn begin(disk: Arc<Served>) -> Outcome<Ublk> {
        let is_read_only = disk.is_read_only();
        let device = Device::start(disk, is_read_only).map_err(|error| match error {
            UblkError::Absent(_) | UblkError::Old => Failure::new(Exit::Unavailable, error.to_string()),
            UblkError::Refused { .. } => Failure::new(Exit::System, error.to_string()),
        })?;
        let path = device.path();
        Ok(Ublk { device: Mutex::new(Some(Box::new(device))), path })
    }

    /// A report for people.
    pub fn report(&self) -> ExportReport {
        ExportReport { kind: "ublk".to_owned(), directory: PathBuf::new(), path: self.path.clone() }
    }

    /// Removes the device, or refuses if it is in use.
    pub fn end(&self, manner: UnmountMode) -> Outcome {
        let mut device = self.device.lock();
        let is_busy =
            || manner == UnmountMode::Gently && device.as_ref().is_some_and(|device| device.is_busy());
        let end = Instant::now() + GOING;
        while is_busy() && Instant::now() < end {
            std::thread::sleep(GOING / 40);
        }
        if is_busy() {
            return Err(Failure::new(Exit::InUse, format!("{}: is in use", self.path.display()))
                .hint("unmount what is on it first"));
        }
        *device = None;
        Ok(())
    }
}
