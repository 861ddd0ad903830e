//! Begins to bring a file's cached bytes to its medium. The only unsafe code of this crate: no library that it uses has
//! the call.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Starts writing out a range without waiting (`sync_file_range`). If that cannot be started, the next flush
/// writes the range and reports errors; this call consumes no error.
pub(crate) fn begin(file: &File, offset: u64, length: u64) {
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call has no pointers.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
}
