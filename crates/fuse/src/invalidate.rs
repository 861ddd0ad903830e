//! Dropping the kernel's pages of files that changed elsewhere.
//!
//! On a thread of its own: the kernel may wait, in such a call, for the answer to a read that is waiting for
//! whoever asked for the pages to be dropped. What waits is a set of inodes, so it is bounded by what the
//! kernel knows.

use fuser::{INodeNo, Notifier};
use holdfast_client::files::FileSystem;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

#[derive(Default)]
struct Waiting {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    /// With those who wait for it.
    inodes: BTreeMap<u64, Vec<Sender<()>>>,
    ended: bool,
}

/// Ends the thread when it is dropped.
pub(crate) struct Invalidator(Arc<Waiting>);

impl Invalidator {
    /// Drops pages whenever `fs` says so.
    pub(crate) fn start(fs: &FileSystem, notifier: Notifier) -> io::Result<Invalidator> {
        let waiting = Arc::new(Waiting::default());
        let worker = Arc::clone(&waiting);
        std::thread::Builder::new().name("invalidate".to_owned()).spawn(move || worker.work(&notifier))?;
        let asked = Arc::clone(&waiting);
        fs.on_invalidate(Box::new(move |ino, done| {
            let mut list = asked.list.lock();
            if !list.ended {
                list.inodes.entry(ino.0).or_default().extend(done);
            }
            asked.changed.notify_one();
        }));
        Ok(Invalidator(waiting))
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        let mut list = self.0.list.lock();
        list.ended = true;
        // Whoever waits is told by the end of its channel.
        list.inodes.clear();
        drop(list);
        self.0.changed.notify_one();
    }
}

impl Waiting {
    fn work(&self, notifier: &Notifier) {
        let mut list = self.list.lock();
        while !list.ended {
            let Some((ino, waiting)) = list.inodes.pop_first() else {
                self.changed.wait(&mut list);
                continue;
            };
            drop(list);
            if let Err(error) = notifier.inval_inode(INodeNo(ino), 0, 0) {
                tracing::debug!(%error, ino, "pages were not dropped");
            }
            for done in waiting {
                // Who gave up waiting need not be told.
                let _ = done.send(());
            }
            list = self.list.lock();
        }
    }
}
