//! The interface of a disk that is exported to the kernel, or to programs of this and other machines.

use crate::{Volume, VolumeError};
use std::io;

/// A disk. Errors carry their errno; those without one are EIO. Thread-safe, and shared: a flush makes
/// durable what any caller wrote, by whatever way.
pub trait Disk: Send + Sync + 'static {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// EIO for a block that has changed since it was written, or cannot be read.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`. Durable after [`Disk::flush`].
    ///
    /// # Errors
    /// The error that the program gets.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The error that the program gets.
    fn flush(&self) -> io::Result<()>;

    /// Makes a range read as zeroes; its content is no longer needed.
    ///
    /// # Errors
    /// The error that the program gets.
    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Says that a range is no longer needed. It may read as zeroes or, in parts, as before.
    ///
    /// # Errors
    /// The error that the program gets.
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

/// If an operation on a [`Disk`] failed because a block was refused: the byte offset of that block.
pub fn refused_at(error: &io::Error) -> Option<u64> {
    match error.get_ref()?.downcast_ref()? {
        VolumeError::BadBlock { bad, .. } => Some(bad.number * crate::BLOCK_BYTES as u64),
        _ => None,
    }
}
