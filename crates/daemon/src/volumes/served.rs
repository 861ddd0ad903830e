//! Serves a volume as a disk to the programs that it is exported to.

use holdfast_fuse::device_file::Disk;
use holdfast_volume::{Volume, VolumeError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How many failures of the medium are logged: a disk that is gone would fill the log.
const TOLD_MAX: u64 = 100;

/// A volume, with the requests that it serves.
pub struct Served {
    volume: Arc<Volume>,
    changes: Changes,
    begun: AtomicU64,
    ended: AtomicU64,
    told: AtomicU64,
}

/// Whether a volume may be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changes {
    Taken,
    Refused,
}

/// A request that is being served.
struct Request<'a>(&'a Served);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

impl Served {
    /// Serves `volume` for reading and writing.
    pub fn new(volume: Arc<Volume>) -> Served {
        let (begun, ended, told) = Default::default();
        Served { volume, changes: Changes::Taken, begun, ended, told }
    }

    /// Serves `volume` for reading only.
    pub fn read_only(volume: Arc<Volume>) -> Served {
        Served { changes: Changes::Refused, ..Served::new(volume) }
    }

    /// Whether it can only be read.
    pub fn is_read_only(&self) -> bool {
        self.changes == Changes::Refused
    }

    fn may_change(&self) -> io::Result<()> {
        match self.changes {
            Changes::Taken => Ok(()),
            Changes::Refused => Err(rustix::io::Errno::ROFS.into()),
        }
    }

    /// How many requests have begun, and how many of them have ended.
    pub fn requests(&self) -> (u64, u64) {
        // Read in this order, the second number never exceeds the first.
        let ended = self.ended.load(SeqCst);
        (self.begun.load(SeqCst), ended)
    }

    fn begin(&self) -> Request<'_> {
        self.begun.fetch_add(1, SeqCst);
        Request(self)
    }

    fn errno(&self, error: &VolumeError) -> io::Error {
        // The volume itself has logged bad blocks and the end of its service.
        let is_told = matches!(error, VolumeError::BadBlock { .. } | VolumeError::Stopped(_));
        if !is_told && self.told.fetch_add(1, SeqCst) < TOLD_MAX {
            tracing::error!(%error, "a request failed");
        }
        match error {
            // EIO for programs; the error says which block, for exports that can report it.
            VolumeError::BadBlock { .. } => io::Error::other(error.clone()),
            VolumeError::Range { .. } => rustix::io::Errno::INVAL.into(),
            _ => rustix::io::Errno::IO.into(),
        }
    }
}

impl Disk for Served {
    fn size_bytes(&self) -> u64 {
        self.volume.size_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let _request = self.begin();
        self.volume.read(offset, buffer).map_err(|error| self.errno(&error))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let _request = self.begin();
        self.may_change()?;
        self.volume.write(offset, bytes).map_err(|error| self.errno(&error))
    }

    fn flush(&self) -> io::Result<()> {
        let _request = self.begin();
        if self.is_read_only() {
            return Ok(());
        }
        self.volume.flush().map_err(|error| self.errno(&error))
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let _request = self.begin();
        self.may_change()?;
        self.volume.write_zeroes(offset, length).map_err(|error| self.errno(&error))
    }
}
