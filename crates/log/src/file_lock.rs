//! A lock on a file or directory (flock(2)) that ends with its holder.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// A file or directory that this process has to itself, until this is dropped.
///
/// Closing a descriptor does not end its lock while another has been made of it, and a process that starts a program
/// has one for a moment: all its descriptors, between fork and exec. So the lock is given up explicitly.
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock of `file`, at once or not.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: somebody else has it.
    pub fn take(file: File) -> io::Result<FileLock> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(FileLock(file))
    }

    /// The same, for as long as a process that is just ending may still have it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: somebody else has had it for so long.
    pub fn take_within(file: File, patience: Duration) -> io::Result<FileLock> {
        let end = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(FileLock(file)),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the lock of `file`, when nobody else has it any more.
    ///
    /// # Errors
    /// The file system's.
    pub fn wait(file: File) -> io::Result<FileLock> {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(FileLock(file))
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // What cannot be given up ends with the last descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn open(path: &Path) -> File {
        File::open(path).expect("it is there")
    }

    /// Proves: one holder at a time, and a copy of its descriptor, as a process that is just being started has one,
    /// does not keep what the holder has given up.
    #[test]
    fn given_up_whoever_else_has_the_descriptor() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = open(folder.path());
        let copy = file.try_clone().expect("a copy");
        let held = FileLock::take(file).expect("nobody has it");
        let refused = FileLock::take(open(folder.path())).err().expect("it is held");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        drop(FileLock::take(open(folder.path())).expect("it was given up"));
        drop(FileLock::wait(open(folder.path())).expect("it was given up"));
        drop(copy);
    }
}
