//! Which thread answers a request.

use crate::outstanding::{Call, Cancellation, Outstanding};
use crate::pool::{Pool, THREADS_MAX, contain};
use fuser::Request;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::{Span, trace_span};

/// Answers requests so that a request that waits keeps no other from being answered.
pub(crate) struct Answering {
    readers: usize,
    busy: AtomicUsize,
    pub(crate) outstanding: Outstanding,
    pool: Pool,
}

impl Answering {
    /// For a session with `readers` threads that read requests.
    pub(crate) fn new(readers: usize) -> Answering {
        Answering {
            readers,
            busy: AtomicUsize::new(0),
            outstanding: Outstanding::default(),
            pool: Pool::new(THREADS_MAX),
        }
    }

    /// Answers on this thread, unless it is the last one that reads requests. A program that waits for the
    /// answer may give up.
    pub(crate) fn answer(&self, request: &Request, job: impl FnOnce() + Send + 'static) {
        let call = self.begin(request, Cancellation::ToDeath(request.pid()));
        match self.reader() {
            Some(_busy) => contain(|| call.run(job)),
            None => self.pool.submit(Box::new(move || call.run(job))),
        }
    }

    /// Answers on another thread, because the answer will take a while. A program that waits for it may give
    /// up.
    pub(crate) fn wait(&self, request: &Request, job: impl FnOnce() + Send + 'static) {
        let call = self.begin(request, Cancellation::ToDeath(request.pid()));
        self.pool.submit(Box::new(move || call.run(job)));
    }

    /// Notes a request until it is answered. In a trace, its time counts from now on; it is idle while no
    /// thread works on it.
    pub(crate) fn begin(&self, request: &Request, yields: Cancellation) -> Call {
        let span = span_of(request);
        self.outstanding.begin(request.unique().0, yields, span)
    }

    /// Marks this thread as busy until the result is dropped. Returns `None` if no other thread would be left
    /// to read requests.
    pub(crate) fn reader(&self) -> Option<Busy<'_>> {
        let busy = Busy(&self.busy);
        (self.busy.fetch_add(1, Ordering::SeqCst) + 1 < self.readers).then_some(busy)
    }

    /// Runs a job on another thread.
    pub(crate) fn elsewhere(&self, job: impl FnOnce() + Send + 'static) {
        self.pool.submit(Box::new(job));
    }
}

/// The span of a request in a trace: the kernel's number for it, its kind, and its inode (for requests with a
/// name, the directory).
pub(crate) fn span_of(request: &Request) -> Span {
    let (unique, inode) = (request.unique().0, request.nodeid());
    trace_span!(target: "operation", "kernel request", unique, what = ?request.operation(), inode)
}

/// Counts a thread that reads requests as busy.
pub(crate) struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
