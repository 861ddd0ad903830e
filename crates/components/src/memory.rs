//! Memory shared by several processes: mapped views, accessed only by atomic words and by copies.
//!
//! There are no references into such memory, since another process may change it at any moment: a value is
//! copied out once and checked afterwards, so what was checked is what is used. Touching a view of a revoked
//! region ends the process (`SIGBUS`); to get an error instead, read the file.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// A shared view of a file, unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: the memory belongs to the process, not to a thread, and is only reached by atomics and copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file.
    ///
    /// # Errors
    /// The file does not let itself be mapped so.
    pub(crate) fn new(file: impl AsFd, bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses the place, so nothing that is mapped is disturbed.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes, writable })
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The word with this number, counted in eight bytes from the start.
    ///
    /// # Panics
    /// The word is outside of the mapping.
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8, "word {index} is outside a mapping of {} bytes", self.bytes);
        // SAFETY: the place is inside the mapping, which lives as long as `self`, and aligned, as mappings
        // begin at pages. Others change it only through atomics of their own or by copies, which an atomic
        // tolerates.
        unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(index) }
    }

    /// Reads a word, and makes visible everything that was written before the word was stored.
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// Writes a word. A reader who sees it also sees everything written before.
    ///
    /// # Panics
    /// The mapping is read-only.
    pub(crate) fn store(&self, index: usize, value: u64) {
        assert!(self.writable, "a read-only mapping is not written");
        self.word(index).store(value, Ordering::Release);
    }

    fn inside(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }

    /// Copies out; whether the place is inside.
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u8]) -> bool {
        if !self.inside(offset, target.len()) {
            return false;
        }
        // SAFETY: the source is inside the mapping and the target is memory of ours; they cannot overlap, as
        // nobody holds a reference into a mapping.
        unsafe {
            ptr::copy_nonoverlapping(self.start.as_ptr().add(offset), target.as_mut_ptr(), target.len())
        };
        true
    }

    /// Copies in; whether the place is inside and may be written.
    pub(crate) fn copy_in(&self, offset: usize, source: &[u8]) -> bool {
        if !self.writable || !self.inside(offset, source.len()) {
            return false;
        }
        // SAFETY: as for `copy_out`, and the mapping is writable.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), self.start.as_ptr().add(offset), source.len()) };
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the range that was mapped, and no reference into it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.bytes) };
    }
}
