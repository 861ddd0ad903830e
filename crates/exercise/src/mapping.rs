//! A shared mapping of a file's beginning. All unsafe code of the crate.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;

/// A shared, writable mapping; unmapped when dropped.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

impl Mapping {
    /// Maps the first `length` bytes, which the file must have as long as the mapping exists: touching pages
    /// beyond its end is a fatal signal (SIGBUS), as for every program that maps a file.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: &File, length: u64) -> io::Result<Mapping> {
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0)?
        };
        Ok(Mapping { start, length })
    }

    /// Copies bytes out of the mapping.
    ///
    /// # Panics
    /// If the range is not within the mapping.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} is not mapped");
        let mut bytes = vec![0; range.len()];
        // SAFETY: the source is within the mapping, which lives as long as `self`; the target is our own. No
        // reference into the mapping is made, so others may write the file meanwhile.
        unsafe {
            let from = self.start.cast::<u8>().add(range.start);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len());
        }
        bytes
    }

    /// Copies bytes into the mapping.
    ///
    /// # Panics
    /// If they do not fit within the mapping.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let end = at.checked_add(bytes.len()).expect("an address");
        assert!(end <= self.length, "{at}..{end} is not mapped");
        // SAFETY: as for `read`, the other way round.
        unsafe {
            let to = self.start.cast::<u8>().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Writes changed pages to the file, durably (MS_SYNC).
    ///
    /// # Errors
    /// Those of msync(2).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: this is the whole of a mapping that lives as long as `self`.
        unsafe { msync(self.start, self.length, MsyncFlags::SYNC) }.map_err(io::Error::from)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole of a mapping that nobody can use any more. It fails for no valid mapping.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}
