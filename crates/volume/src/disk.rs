//! The interface of a disk that is exported: to the kernel, or to programs of this and other machines.

use crate::{Volume, VolumeError};
use std::io;

/// Bytes at fixed places. Errors carry their errno; those without one are EIO. Thread-safe, and one for all: a flush
/// makes durable what was written by whoever, on whatever way.
pub trait Disk: Send + Sync + 'static {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// EIO for what is not what was written, or cannot be read.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`. Durable after [`Disk::flush`].
    ///
    /// # Errors
    /// What the program is to see.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the program is to see.
    fn flush(&self) -> io::Result<()>;

    /// A range is no longer needed, and reads as zeroes.
    ///
    /// # Errors
    /// What the program is to see.
    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()>;

    /// A range is no longer needed; parts of blocks may stay as they are.
    ///
    /// # Errors
    /// What the program is to see.
    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length)
    }
}

impl Disk for Volume {
    fn size_bytes(&self) -> u64 {
        Volume::size_bytes(self)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        Volume::read(self, offset, buffer).map_err(io::Error::other)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        Volume::write(self, offset, bytes).map_err(io::Error::other)
    }

    fn flush(&self) -> io::Result<()> {
        Volume::flush(self).map_err(io::Error::other)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        Volume::write_zeroes(self, offset, length).map_err(io::Error::other)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        Volume::discard(self, offset, length).map_err(io::Error::other)
    }
}

/// Where the block begins that was refused, if that is why an operation on a [`Disk`] failed.
pub fn refused_at(error: &io::Error) -> Option<u64> {
    match error.get_ref()?.downcast_ref()? {
        VolumeError::BadBlock { bad, .. } => Some(bad.number * crate::BLOCK_BYTES as u64),
        _ => None,
    }
}
