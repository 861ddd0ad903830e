//! The counters of a server.

use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// A count since the server started.
#[derive(Default, Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters since the server started.
#[derive(Default, Debug)]
pub(crate) struct Counters {
    pub(crate) requests: Counter,
    pub(crate) refused: Counter,
    pub(crate) operations: Counter,
    pub(crate) blocks_stored: Counter,
    pub(crate) blocks_retrieved: Counter,
    pub(crate) bytes_retrieved: Counter,
    /// Wakes the task that writes checkpoints.
    pub(crate) checkpoints_due: Notify,
}
