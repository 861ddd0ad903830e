//! A lock on a file or directory (flock(2)) that ends with its holder.

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;
use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a killed process may take to end: first its memory is freed and its last write finished.
const ENDING_MAX: Duration = Duration::from_secs(30);

/// An exclusive lock on a file or directory, until this is dropped.
///
/// Closing a descriptor does not end its lock while a copy of the descriptor exists, and a process that
/// starts a program has copies of all its descriptors for a moment, between fork and exec. So the lock is
/// released explicitly.
pub struct FileLock(File);

impl FileLock {
    /// Takes the lock of `file`, without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: another process holds it.
    pub fn take(file: File) -> io::Result<FileLock> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(FileLock(file))
    }

    /// As [`FileLock::take`], but waits up to `patience` for a process that is just ending.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: another process still holds it after `patience`.
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

    /// Takes the lock of `file`, and waits if the process that holds it is just ending.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`], with the process that holds it.
    pub fn take_after_ending(file: File) -> io::Result<FileLock> {
        let end = Instant::now() + ENDING_MAX;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(FileLock(file)),
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
            let holder = holder(&file).filter(|holder| !is_ending(*holder));
            if holder.is_some() || Instant::now() >= end {
                let who = holder.map_or_else(|| "another process".to_owned(), describe);
                return Err(io::Error::new(io::ErrorKind::WouldBlock, format!("{who} has it")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until no other process holds the lock of `file`, and takes it.
    ///
    /// # Errors
    /// The file system failed.
    pub fn wait(file: File) -> io::Result<FileLock> {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(FileLock(file))
    }
}

/// The process that holds the lock of a file. `None` if the system does not say, or if that process is gone
/// and another one has a copy of its descriptor.
fn holder(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let device = metadata.dev();
    let wanted = format!("{:02x}:{:02x}:{}", major(device), minor(device), metadata.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK  ADVISORY  WRITE 4321 fe:01:123456 0 EOF`; waiting processes have `->` after the number.
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&wanted.as_str());
        is_it.then(|| fields[4].parse().ok())?
    })
}

/// Whether a process is gone, was killed, or has ended but for some of its threads.
pub fn is_ending(process: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return true };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let kill = 1_u64 << (Signal::KILL.as_raw() - 1);
    let pending = |name: &str| u64::from_str_radix(field(name), 16).is_ok_and(|signals| signals & kill != 0);
    field("State:").starts_with(['Z', 'X']) || pending("SigPnd:") || pending("ShdPnd:")
}

fn describe(process: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({})", name.trim())
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If this fails, the lock ends with the last descriptor.
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

    /// Proves: one holder at a time; and a copy of the holder's descriptor, as in a process that is just
    /// being started, does not keep a lock that the holder has released.
    #[test]
    fn given_up_whoever_else_has_the_descriptor() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = open(folder.path());
        let copy = file.try_clone().expect("a copy");
        let held = FileLock::take(file).expect("nobody has it");
        let refused = FileLock::take(open(folder.path())).err().expect("it is held");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let refused = FileLock::take_after_ending(open(folder.path())).err().expect("it is held");
        assert!(refused.to_string().contains(&format!("process {} (", std::process::id())), "{refused}");
        drop(held);
        drop(FileLock::take(open(folder.path())).expect("it was given up"));
        drop(FileLock::wait(open(folder.path())).expect("it was given up"));
        drop(copy);
    }
}
