//! Threads for requests that must wait.
//!
//! The threads that read the kernel's requests also answer them, because handing a request to another thread
//! costs more than most answers. But the last reader never does: it hands its request over to this pool, so
//! that there is always somebody left to read, and one request that waits for a server never keeps another
//! from being answered. The pool grows with what waits, up to [`THREADS_MAX`]; its queue is bounded, and when
//! it is full too the kernel has to wait.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Most requests that can wait at the same time, besides those of the readers.
pub(crate) const THREADS_MAX: usize = 64;
/// Most requests in the queue.
const QUEUE_MAX: usize = 256;
/// How long a thread stays without work before it ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A growing, bounded pool of threads. Dropping it waits for the jobs already taken.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    threads_max: usize,
    state: Mutex<PoolState>,
    work: Condvar,
    room: Condvar,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// Runs a job that answers one request. The job's reply answers EIO when it is dropped. So a panic, which
/// would be a mistake of ours, costs one request and not the mount.
pub(crate) fn contain(job: impl FnOnce()) {
    if std::panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a request ended in a panic");
    }
}

impl Pool {
    pub(crate) fn new(threads_max: usize) -> Pool {
        let shared = Shared {
            threads_max: threads_max.max(1),
            state: Mutex::new(PoolState::default()),
            work: Condvar::new(),
            room: Condvar::new(),
        };
        Pool { shared: Arc::new(shared) }
    }

    /// Runs `job` on a thread of the pool; waits while the queue is full. If no thread can be started at all,
    /// the caller runs it.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.state.lock();
        while state.queue.len() >= QUEUE_MAX {
            self.shared.room.wait(&mut state);
        }
        state.queue.push_back(job);
        if state.queue.len() > state.idle && state.threads < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("fuse-wait".to_owned()).spawn(move || shared.work());
            match spawned {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => {
                    tracing::warn!(%error, "no thread for a request that waits; answering it in line");
                    if let Some(job) = state.queue.pop_back() {
                        drop(state);
                        job();
                    }
                    return;
                }
                Err(_) => {}
            }
        }
        self.shared.work.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        self.shared.work.notify_all();
        while state.threads > 0 {
            self.shared.room.wait(&mut state);
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                self.room.notify_one();
                drop(state);
                contain(job);
                state = self.state.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        self.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    /// A job that waits keeps no other job from running, up to the limit of the pool.
    #[test]
    fn a_waiting_job_blocks_no_other() {
        let pool = Pool::new(4);
        let (release, gate) = mpsc::channel::<()>();
        pool.submit(Box::new(move || gate.recv().unwrap_or(())));
        let (done, results) = mpsc::channel();
        for number in 0..100 {
            let done = done.clone();
            pool.submit(Box::new(move || done.send(number).expect("the test listens")));
        }
        drop(done);
        let mut results: Vec<i32> = results.iter().collect();
        results.sort_unstable();
        assert_eq!(results, (0..100).collect::<Vec<_>>());
        drop(release);
    }

    /// Dropping the pool runs everything it has taken; a panic in a job harms no other.
    #[test]
    fn drop_waits_and_a_panic_is_contained() {
        let count = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(2);
        for number in 0..50 {
            let count = Arc::clone(&count);
            pool.submit(Box::new(move || {
                count.fetch_add(1, Ordering::SeqCst);
                assert!(number != 7, "job seven fails on purpose");
            }));
        }
        drop(pool);
        assert_eq!(count.load(Ordering::SeqCst), 50);
    }
}
