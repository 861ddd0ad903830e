//! Begins to bring a file's cached bytes to its medium. The only unsafe code of this crate: no library that it uses has
//! the call.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// Begins it and does not wait for it (`sync_file_range`). What cannot be begun is left to the next flush, which also tells
/// of what failed: this call, which waits for nothing, takes no error from it.
pub(crate) fn begin(file: &File, offset: u64, length: u64) {
    let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and the call has no pointers.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE) };
}
