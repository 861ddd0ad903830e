//! Once a day, the process that serves mounts removes files of its user that no directory names.
//!
//! A file is removed if two searches, a day apart, found it without a name and unchanged: until then, another
//! machine may have it open.

use super::service::Service;
use holdfast_client::ReclaimReport;
use std::collections::HashSet;
use std::sync::Weak;
use std::time::Duration;

/// When a new process searches first, so that short mounts do not.
const FIRST: Duration = Duration::from_secs(3600);
/// How often it searches.
const EVERY: Duration = Duration::from_secs(86_400);
/// In larger file systems it does not search; `holdfast fs reclaim` does.
const INODES_MAX: u64 = 200_000;

/// Starts the searches, on a thread of its own that ends with the process.
pub fn start(service: Weak<Service>) {
    let work = move || {
        let mut tidying = Tidying::default();
        std::thread::sleep(FIRST);
        while let Some(service) = service.upgrade() {
            tidying.search(|dry_run, seen| {
                let reclaimed = service.reclaim(dry_run, INODES_MAX, &|file| {
                    !dry_run && file.inode_number().is_none_or(|ino| !seen.contains(&ino))
                });
                reclaimed
                    .inspect_err(|error| tracing::info!(%error, "no search for files without a name"))
                    .ok()?
            });
            drop(service);
            std::thread::sleep(EVERY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("tidy".to_owned()).spawn(work) {
        tracing::warn!(%error, "files without a name will not be looked for");
    }
}

/// The files that the last search found.
#[derive(Default)]
struct Tidying {
    seen: HashSet<u64>,
}

impl Tidying {
    /// Removes files that were found before and are found again, and remembers those that are found now.
    fn search(&mut self, mut reclaim: impl FnMut(bool, &HashSet<u64>) -> Option<ReclaimReport>) {
        if !self.seen.is_empty() {
            reclaim(false, &self.seen);
        }
        let found = reclaim(true, &self.seen);
        self.seen = found.map(|found| found.files.iter().map(|file| file.ino).collect()).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_client::ReclaimedFile;
    use std::cell::RefCell;

    /// Proves: a file is removed only if the search before found it too; after a failed search, two more are
    /// needed.
    #[test]
    fn what_is_found_twice_is_removed() {
        let there = RefCell::new(vec![1, 2]);
        let removed = RefCell::new(Vec::<u64>::new());
        let fails = RefCell::new(false);
        let mut tidying = Tidying::default();
        let mut search = || {
            tidying.search(|dry_run, seen| {
                if *fails.borrow() {
                    return None;
                }
                let mut found: Vec<u64> = there.borrow().clone();
                if !dry_run {
                    found.retain(|ino| seen.contains(ino));
                    removed.borrow_mut().extend(&found);
                    there.borrow_mut().retain(|ino| !found.contains(ino));
                }
                let files = found.iter().map(|ino| ReclaimedFile { ino: *ino, bytes: 0 }).collect();
                Some(ReclaimReport { inodes: 9, files, detached: Vec::new() })
            });
        };
        search();
        assert!(removed.borrow().is_empty());
        there.borrow_mut().push(3);
        search();
        assert_eq!(*removed.borrow(), [1, 2]);
        *fails.borrow_mut() = true;
        search();
        *fails.borrow_mut() = false;
        search();
        assert_eq!(*removed.borrow(), [1, 2]);
        search();
        assert_eq!(*removed.borrow(), [1, 2, 3]);
    }
}
