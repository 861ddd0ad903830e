//! A block device, from adding it to removing it.

use crate::control::{CONTROL, Control, DeviceParameters};
use crate::queue;
use holdfast_volume::Disk;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How often to look for the device's file before giving up: udev may be slow to create it.
const LOOKS: u32 = 200;

/// Why a device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no ublk, or it is not loaded, or this process may not use it.
    #[error(
        "{CONTROL}: {0}; is this root, and has the kernel ublk (modprobe ublk_drv)? Attach without --ublk, or with --nbd, instead"
    )]
    Absent(io::Error),
    /// The kernel is too old.
    #[error(
        "this kernel's ublk lacks what is needed, which came with Linux 6.5; attach without --ublk, or with --nbd, instead"
    )]
    Old,
    /// The kernel refused.
    #[error("{action} a ublk device: {error}")]
    Refused {
        /// The action that failed.
        action: &'static str,
        /// What the kernel reported.
        error: io::Error,
    },
}

/// Whether this kernel has ublk, and it is loaded.
pub fn is_available() -> bool {
    Path::new(CONTROL).exists()
}

/// A block device, until it is dropped.
pub struct Device {
    number: u32,
    control: Control,
    serving: Option<JoinHandle<()>>,
}

impl Device {
    /// Makes a device of `disk`, whose size must not change, and starts it.
    ///
    /// # Errors
    /// See [`UblkError`].
    pub fn start(disk: Arc<dyn Disk>, is_read_only: bool) -> Result<Device, UblkError> {
        let refused = |action: &'static str| move |error| UblkError::Refused { action, error };
        let mut control = Control::open().map_err(UblkError::Absent)?;
        if !control.can_serve() {
            return Err(UblkError::Old);
        }
        let number = control.add().map_err(refused("making"))?;
        // From here on, the device is removed again if anything fails.
        let mut device = Device { number, control, serving: None };
        let shape = DeviceParameters { size_bytes: disk.size_bytes(), is_read_only };
        device.control.shape(number, &shape).map_err(refused("shaping"))?;
        let character = open(&PathBuf::from(format!("/dev/ublkc{number}"))).map_err(refused("opening"))?;
        let (ready, answer) = channel();
        let serve = move || queue::serve(disk, character, &ready);
        let thread = thread::Builder::new().name("holdfast-ublk".into()).spawn(serve);
        device.serving = Some(thread.map_err(refused("serving"))?);
        let ended = || Err(io::Error::other("its thread ended"));
        answer.recv().unwrap_or_else(|_| ended()).map_err(refused("serving"))?;
        device.control.start(number, std::process::id()).map_err(refused("starting"))?;
        Ok(device)
    }

    /// The path of the block device.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// Whether a file system on the device is mounted, or another program has opened it exclusively.
    pub fn is_busy(&self) -> bool {
        let flags = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(self.path(), flags, rustix::fs::Mode::empty());
        opened.is_err_and(|error| error == rustix::io::Errno::BUSY)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let stopped = self.control.stop(self.number);
        if let Some(thread) = self.serving.take() {
            let _ = thread.join();
        }
        if let Err(error) = stopped.and_then(|()| self.control.delete(self.number)) {
            tracing::error!(%error, device = self.number, "a ublk device is left behind");
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    for _ in 0..LOOKS {
        match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => thread::sleep(Duration::from_millis(10)),
            opened => return opened,
        }
    }
    File::options().read(true).write(true).open(path)
}
