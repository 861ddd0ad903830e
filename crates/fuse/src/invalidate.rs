//! Drops what the kernel has cached of files that changed elsewhere: pages, names and attributes.
//!
//! Pages and names are dropped on threads of their own. When the kernel drops pages, it may wait for the
//! answer to a read, which may wait for the thread that dropped them. When it forgets a name, it may wait for
//! a program that is changing something in the name's directory. The waiting inodes are a set, bounded by
//! what the kernel has cached; the waiting names are bounded by what it was allowed to cache. Attributes are
//! dropped at once, because the kernel takes no lock for that.

use fuser::{INodeNo, Notifier};
use holdfast_client::files::{FileSystem, Ino};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Most batches of names that wait.
const BATCHES_MAX: usize = 16;

#[derive(Default)]
struct Waiting {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    /// Files whose pages are to be dropped, with the threads that wait for that.
    inodes: BTreeMap<u64, Vec<Sender<()>>>,
    names: VecDeque<Forgotten>,
    ended: bool,
}

/// Names that the kernel has to look up again. `done` is signalled when the last is forgotten.
struct Forgotten {
    names: Vec<(Ino, Box<[u8]>)>,
    done: Sender<()>,
}

/// Ends the threads when it is dropped.
pub(crate) struct Invalidator(Arc<Waiting>);

impl Invalidator {
    /// Drops pages, names and attributes whenever `fs` says so.
    pub(crate) fn start(fs: &FileSystem, notifier: Notifier) -> io::Result<Invalidator> {
        let waiting = Arc::new(Waiting::default());
        let spawn = |name: &str, work: fn(&Waiting, &Notifier)| {
            let (waiting, notifier) = (Arc::clone(&waiting), notifier.clone());
            std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&waiting, &notifier))
        };
        spawn("invalidate", Waiting::drop_pages)?;
        spawn("forget", Waiting::forget_names)?;
        let shared = Arc::clone(&waiting);
        fs.on_invalidate(Box::new(move |ino, done| {
            let mut list = shared.list.lock();
            if !list.ended {
                list.inodes.entry(ino.0).or_default().extend(done);
            }
            shared.changed.notify_all();
        }));
        let shared = Arc::clone(&waiting);
        fs.on_forget(Box::new(move |names, inos, done| {
            for ino in inos {
                // A negative offset means the attributes only.
                if let Err(error) = notifier.inval_inode(INodeNo(ino.0), -1, 0) {
                    tracing::debug!(%error, ino = ino.0, "attributes were not forgotten");
                }
            }
            let mut list = shared.list.lock();
            if list.names.len() >= BATCHES_MAX {
                // The kernel is slow with an earlier batch; the names that have waited longest have expired
                // by now.
                list.names.pop_front();
            }
            if !list.ended && !names.is_empty() {
                list.names.push_back(Forgotten { names, done });
            }
            shared.changed.notify_all();
        }));
        Ok(Invalidator(waiting))
    }
}

impl Drop for Invalidator {
    fn drop(&mut self) {
        let mut list = self.0.list.lock();
        list.ended = true;
        // Threads that wait notice that their channel is closed.
        list.inodes.clear();
        list.names.clear();
        drop(list);
        self.0.changed.notify_all();
    }
}

impl Waiting {
    fn drop_pages(&self, notifier: &Notifier) {
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
                // The thread may have stopped waiting.
                let _ = done.send(());
            }
            list = self.list.lock();
        }
    }

    fn forget_names(&self, notifier: &Notifier) {
        let mut list = self.list.lock();
        while !list.ended {
            let Some(Forgotten { names, done }) = list.names.pop_front() else {
                self.changed.wait(&mut list);
                continue;
            };
            drop(list);
            for (parent, name) in names {
                if let Err(error) = notifier.expire_entry(INodeNo(parent.0), OsStr::from_bytes(&name)) {
                    tracing::debug!(%error, parent = parent.0, "a name was not forgotten");
                }
            }
            let _ = done.send(());
            list = self.list.lock();
        }
    }
}
