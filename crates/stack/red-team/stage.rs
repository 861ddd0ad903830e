//! Files that the enemy has open, by their numbers: a library cannot keep from it what it was given.

use std::os::fd::BorrowedFd;

/// Writes a byte far behind the end of every file that it can write, as a region that grows takes everybody's memory.
/// Returns how often that succeeded.
pub fn grow_everything() -> usize {
    let mut grown = 0;
    for number in 3..128 {
        for at in [65 << 20, 100 << 20, 400 << 20, 1 << 40] {
            // SAFETY: nothing is closed, and a number that is no file makes the call fail; no memory is touched.
            let file = unsafe { BorrowedFd::borrow_raw(number) };
            grown += usize::from(rustix::io::pwrite(file, b"grown", at).is_ok());
        }
    }
    grown
}
