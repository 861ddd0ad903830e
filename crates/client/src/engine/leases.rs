//! The leases of this run: they decide what may be read from the newest accepted view without asking the
//! server.
//!
//! [`LeaseHolder`] makes the decisions. This module supplies the time and carries out recalls in their order:
//! stop serving, notify the hooks that keep copies, acknowledge. And it handles two cases in which even under
//! a lease the newest accepted view may not be current: an operation whose caller already has its answer must
//! be made again; or an operation has waited so long for its COMMIT that the server may have declared it
//! dead.

use super::lease_requests::LeaseRequests;
use super::shared::Shared;
use crate::backend::ReadSet;
use crate::pauses::Pauses;
use crate::remote::Remote;
use holdfast_content::Handle;
use holdfast_protocol::leases::{LeaseGrant, LeaseHolder, LeaseRequest, RecalledLeases};
use holdfast_protocol::message::{Request, Response};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Longest time for which the server holds a request for recalls, in milliseconds.
const AWAIT_MS: u32 = 50_000;
/// How much longer than that the answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// For so long after it has read something that another device held exclusively, this device counts as
/// working in the same files, in milliseconds.
const CONTENDED_MS: u64 = 1_000;
/// Pauses after requests without an answer.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long the end of this run may wait for the server to take note of it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Called with the leases that a recall took away; nothing is served under them any more. When the hook
/// returns, the recall is acknowledged.
pub type RecallHook = Box<dyn Fn(&RecalledLeases) + Send + Sync>;

/// Leases of one engine.
pub(super) struct Leases {
    enabled: bool,
    run: u128,
    state: Mutex<State>,
    changed: Condvar,
    /// Operations that must be made again although their callers have their answers.
    redone: Arc<AtomicUsize>,
    hooks: Mutex<Vec<RecallHook>>,
    /// Number of answers given under a lease.
    pub reads: AtomicU64,
    /// Number of recalls carried out.
    pub recalls: AtomicU64,
}

#[derive(Default)]
struct State {
    holder: LeaseHolder,
    requests: LeaseRequests,
    wants_exclusive: bool,
    /// When something that another device held exclusively was last read.
    contended_ms: Option<u64>,
    /// Until when an operation that waits for its COMMIT is certainly not dead.
    unconfirmed: Option<u64>,
    /// Size of the log in the last accepted view, or in a pushed view on its way to the pump.
    log_size: u64,
    stop: bool,
}

/// Counts an operation, while this guard lives, whose caller has its answer and which must be made again.
pub(super) struct RedoneGuard(Arc<AtomicUsize>);

impl Drop for RedoneGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Leases {
    /// The leases of a run. Without `enabled`, none are ever requested.
    pub fn new(enabled: bool, run: u128) -> Leases {
        Leases {
            enabled,
            run,
            state: Mutex::default(),
            changed: Condvar::new(),
            redone: Arc::default(),
            hooks: Mutex::default(),
            reads: AtomicU64::new(0),
            recalls: AtomicU64::new(0),
        }
    }

    /// Whether leases guarantee that the newest accepted view is current for these files. `Some`: a stamp,
    /// with which [`time_left`](Self::time_left) checks later that nothing was lost since. Leases of files
    /// without one are requested with the next operation.
    pub fn hold(&self, files: &[Handle]) -> Option<u64> {
        if !self.enabled {
            return None;
        }
        let now_ms = now_ms();
        let mut state = self.state.lock();
        let mut all = true;
        for file in files {
            if state.holder.holds(*file, now_ms) {
                state.requests.answered(*file);
            } else {
                state.requests.want(*file, now_ms);
                all = false;
            }
        }
        (all && state.is_certain(now_ms) && !self.is_redoing()).then(|| state.holder.losses())
    }

    /// How much longer the leases behind a stamp last; `None` if any were lost since.
    pub fn time_left(&self, stamp: u64, files: &[Handle]) -> Option<Duration> {
        let now_ms = now_ms();
        let state = self.state.lock();
        let holds = files.iter().all(|file| state.holder.holds(*file, now_ms));
        if state.holder.losses() != stamp || !holds || !state.is_certain(now_ms) || self.is_redoing() {
            return None;
        }
        let certain_ms = state.unconfirmed.map_or(u64::MAX, |until_ms| until_ms.saturating_sub(now_ms));
        Some(Duration::from_millis(state.holder.left_ms(now_ms).min(certain_ms)))
    }

    /// Makes the next operation ask for a lease of a file.
    pub fn want(&self, file: Handle) {
        if self.enabled {
            let now_ms = now_ms();
            let mut state = self.state.lock();
            if !state.holder.holds(file, now_ms) {
                state.requests.want(file, now_ms);
            }
        }
    }

    /// Requests a lease of a file with the next operation that only reads, but only if no other device has to
    /// give up anything for it.
    pub fn want_ahead(&self, file: Handle) {
        if self.enabled {
            let now_ms = now_ms();
            let mut state = self.state.lock();
            if !state.holder.holds(file, now_ms) {
                state.requests.want_ahead(file);
            }
        }
    }

    /// Whether files may be read from the newest accepted view: each is under lease or held exclusively.
    pub fn holds(&self, files: &[Handle]) -> bool {
        let now_ms = now_ms();
        let state = self.state.lock();
        let holder = &state.holder;
        let holds = |file: &Handle| holder.holds(*file, now_ms) || holder.holds_exclusively(*file, now_ms);
        files.iter().all(holds) && state.is_certain(now_ms) && !self.is_redoing()
    }

    /// The request for leases to send with the next operation, which reads `reads`. `siblings`: files that
    /// are likely to be changed next. `looks`: whether a caller is going to read in its view. `changes`:
    /// whether it changes something.
    ///
    /// Only an operation that `looks` requests leases of files that were read: it waits for devices that hold
    /// them exclusively. An operation that sends changes made here must not wait for them, as they may be
    /// waiting for it. If the operation `changes` nothing and reads nothing that is likely to be changed, it
    /// also requests what [`want_ahead`](Self::want_ahead) named.
    pub fn request(
        &self,
        reads: &ReadSet,
        siblings: &[Handle],
        looks: bool,
        changes: bool,
    ) -> Option<LeaseRequest> {
        if !self.enabled {
            return None;
        }
        let now_ms = now_ms();
        let mut state = self.state.lock();
        let (edits, reads_only): (Vec<Handle>, Vec<Handle>) =
            reads.files.iter().copied().partition(|file| state.requests.is_edited(file, now_ms));
        let asks_ahead = looks && !changes && edits.is_empty();
        let also = if asks_ahead { state.requests.take_ahead() } else { siblings.to_vec() };
        Some(LeaseRequest {
            run: self.run,
            scopes: if looks { state.requests.take() } else { Vec::new() },
            reads: reads_only,
            edits,
            also,
            reads_everything: reads.everything,
            exclusive: state.wants_exclusive,
        })
    }

    /// Of these files, which an operation changes: those for which, if they are directories, leases of the
    /// files in them should be requested too.
    pub fn wanting_siblings(&self, files: impl Iterator<Item = Handle>) -> Vec<Handle> {
        let now_ms = now_ms();
        let state = self.state.lock();
        let wants = |file: &Handle| state.requests.wants_siblings(file, now_ms);
        if state.wants_exclusive { files.filter(wants).collect() } else { Vec::new() }
    }

    /// Notes that an operation changes these files: a program that reads one of them soon is likely to change
    /// it again.
    pub fn edits(&self, files: impl Iterator<Item = Handle>) {
        let now_ms = now_ms();
        let mut state = self.state.lock();
        if state.wants_exclusive {
            files.for_each(|file| state.requests.edited(file, now_ms));
        }
    }

    /// Notes that something is read that another device holds exclusively.
    pub fn note_contended(&self) {
        self.state.lock().contended_ms = Some(now_ms());
    }

    /// Whether something that another device held exclusively was read a moment ago.
    pub fn is_contended(&self) -> bool {
        self.state.lock().contended_ms.is_some_and(|at_ms| now_ms() < at_ms + CONTENDED_MS)
    }

    /// Puts back the request of an operation that had no effect, so that the next one repeats it.
    pub fn restore_request(&self, request: LeaseRequest) {
        self.state.lock().requests.put_back(request.scopes);
    }

    /// Puts a grant in force. The view of its operation must be the newest accepted one.
    pub fn take_up(&self, grant: &LeaseGrant, sent_ms: u64) {
        self.state.lock().holder.granted(grant, sent_ms, now_ms());
        if !grant.scopes.is_empty() || !grant.exclusive.is_empty() {
            let (scopes, exclusive) = (grant.scopes.len(), grant.exclusive.len());
            tracing::debug!(scopes, exclusive, first = ?grant.exclusive.first(), "leases granted");
        }
        self.changed.notify_all();
    }

    /// Sets the time until which the newest accepted view is certain: it includes an operation that is not
    /// committed yet, and after that time the server may have declared it dead. `None`: the operation is
    /// committed, or no longer in the view.
    pub fn unconfirmed(&self, until_ms: Option<u64>) {
        self.state.lock().unconfirmed = until_ms;
    }

    /// Notes that a view was accepted whose log has `log_size` leaves.
    pub fn accepted(&self, log_size: u64) {
        self.state.lock().log_size = log_size;
    }

    /// Counts an operation that must be made again, until the guard is dropped.
    pub fn redo(&self) -> RedoneGuard {
        self.redone.fetch_add(1, SeqCst);
        RedoneGuard(self.redone.clone())
    }

    /// Whether the newest accepted view may lack changes that callers were already answered for.
    pub fn is_redoing(&self) -> bool {
        self.redone.load(SeqCst) > 0
    }

    /// How much longer this run has exclusive access to anything, under which the newest accepted view is
    /// current. `None`: it has none, or that is not certain.
    pub fn exclusive(&self) -> Option<Duration> {
        if !self.enabled || self.is_redoing() {
            return None;
        }
        let now_ms = now_ms();
        let state = self.state.lock();
        let left_ms = state.holder.exclusive_ms(now_ms);
        (left_ms > 0 && state.is_certain(now_ms)).then(|| Duration::from_millis(left_ms))
    }

    /// Whether this device holds the delegation of the whole file system.
    pub fn has_delegation(&self) -> bool {
        self.exclusive().is_some() && self.state.lock().holder.has_delegation(now_ms())
    }

    /// Whether this device holds all of these files exclusively.
    pub fn holds_exclusively(&self, files: &[Handle]) -> bool {
        let now_ms = now_ms();
        let state = self.state.lock();
        files.iter().all(|file| state.holder.holds_exclusively(*file, now_ms))
    }

    /// Sets whether operations ask, from now on, for exclusive access to what they change.
    pub fn want_exclusive(&self, wanted: bool) {
        self.state.lock().wants_exclusive = wanted;
    }

    /// Number of scopes held.
    pub fn held(&self) -> usize {
        let mut state = self.state.lock();
        state.holder.expire(now_ms());
        state.holder.count()
    }

    /// Registers a hook that is called with recalled leases.
    pub fn on_recall(&self, hook: RecallHook) {
        self.hooks.lock().push(hook);
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Asks the server for recalls while leases are held, until it is stopped.
    pub fn run(&self, shared: &Shared) {
        let mut pauses = PAUSES;
        while let Some((epoch, acknowledged, log_size, wait_ms)) = self.next_question() {
            let log_size = Some(log_size);
            let request = Request::AwaitRecall { run: self.run, epoch, acknowledged, log_size, wait_ms };
            let patience = Duration::from_millis(wait_ms.into()) + PATIENCE;
            match shared.remote.call(request, patience) {
                Ok(Response::Difference(difference)) => {
                    pauses.reset();
                    {
                        let mut state = self.state.lock();
                        state.holder.note_answer(epoch, acknowledged);
                        state.log_size = state.log_size.max(difference.until);
                    }
                    shared.queue.push_view(difference);
                }
                Ok(Response::Recalled(recall)) => {
                    pauses.reset();
                    self.state.lock().holder.note_answer(epoch, acknowledged);
                    let Some(recall) = recall else { continue };
                    let dropped = {
                        let mut state = self.state.lock();
                        if state.stop {
                            return;
                        }
                        let dropped = state.holder.recalled(epoch, &recall);
                        if let Some(dropped) = &dropped {
                            state.requests.recalled(dropped, now_ms());
                        }
                        dropped
                    };
                    let Some(dropped) = dropped else { continue };
                    self.recalls.fetch_add(1, Relaxed);
                    tracing::debug!(
                        scopes = dropped.scopes.len(),
                        first = ?dropped.scopes.first(),
                        exclusive = dropped.exclusive,
                        everything = dropped.everything,
                        "leases recalled"
                    );
                    for hook in &*self.hooks.lock() {
                        hook(&dropped);
                    }
                }
                // Without an answer, the leases expire, and are requested anew.
                _ => {
                    shared.resend.disturbed();
                    let mut state = self.state.lock();
                    if !state.stop {
                        self.changed.wait_for(&mut state, pauses.after_failure());
                    }
                }
            }
        }
    }

    /// Drops all leases, because the newest accepted view is replaced by an unrelated one. When this returns,
    /// nothing is served under leases any more. A thread of its own calls the hooks, as they may wait for the
    /// caller.
    pub fn lose_all(shared: &Arc<Shared>) {
        let dropped = shared.leases.state.lock().holder.drop_all();
        let telling = shared.clone();
        let tell = move || telling.leases.hooks.lock().iter().for_each(|hook| hook(&dropped));
        if let Err(error) = std::thread::Builder::new().name("holdfast-lost".to_owned()).spawn(tell) {
            // Names cached by the kernel expire within a second.
            tracing::warn!(%error, "nobody can be told that leases are lost");
        }
    }

    /// Gives up all leases, once nothing is requested any more. The server then answers the request that
    /// [`run`](Self::run) waits in. To wait for that answer first would delay this run's end, and with it
    /// other devices that want the leases.
    pub fn give_up(&self, shared: &Shared) {
        if self.state.lock().holder.epoch() > 0 {
            let _ = shared.remote.call(Request::EndLeases { run: self.run }, FAREWELL);
        }
    }

    /// Epoch, last recall, log size and waiting time of the next request for recalls; `None`: the run has
    /// been stopped.
    fn next_question(&self) -> Option<(u64, u64, u64, u32)> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let now_ms = now_ms();
            state.holder.expire(now_ms);
            if state.holder.must_ask(now_ms) {
                // Without leases there is only a recall to acknowledge, and nothing to wait for.
                let wait_ms = if state.holder.is_empty(now_ms) { 0 } else { AWAIT_MS };
                return Some((state.holder.epoch(), state.holder.last_recall(), state.log_size, wait_ms));
            }
            self.changed.wait_until(&mut state, Instant::now() + PATIENCE);
        }
    }
}

impl State {
    fn is_certain(&self, now_ms: u64) -> bool {
        self.unconfirmed.is_none_or(|until_ms| now_ms < until_ms)
    }
}

/// Milliseconds of a clock that runs on while the machine sleeps.
pub(super) fn now_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// The earliest time at which the server may declare an operation dead whose UPDATE was first sent at
/// `sent_ms`.
pub(super) fn dead_at_ms(remote: &dyn Remote, sent_ms: u64) -> u64 {
    let abort_after_ms = remote.welcome().map_or(0, |welcome| u64::from(welcome.abort_after_ms));
    sent_ms + abort_after_ms - abort_after_ms / 8
}
