//! Files that the enemy holds, by their numbers: what it was handed cannot be kept from it by a library.

use std::os::fd::BorrowedFd;

/// A byte far behind the end of whatever can be written: a region that grows takes the memory of all others. How often
/// that was done.
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
