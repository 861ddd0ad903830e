//! The leases of this run: what may be read from the newest accepted view without asking.
//!
//! Decided by [`LeaseHolder`]; this module keeps the time, carries recalls out in their order (stop serving, tell
//! whoever keeps copies, acknowledge), and knows the two cases in which even a lease does not make the newest accepted
//! view the present one: while an operation whose caller has its answer must be made again, and when one has waited for
//! its COMMIT for so long that the server may have declared it dead.

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

/// Longest time for which the server holds one question for recalls, in milliseconds.
const AWAIT_MS: u32 = 50_000;
/// How much longer than that its answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// For how long who has looked at something that another device held exclusively is taken to work where that one does, in
/// milliseconds.
const CONTENDED_MS: u64 = 1_000;
/// Pauses after questions without an answer.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long the end of this run may wait for the server to hear of it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Called with what a recall took away, which is not served any more; the recall is acknowledged when it returns.
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
    /// Times that something was answered under a lease.
    pub reads: AtomicU64,
    /// Number of recalls that were carried out.
    pub recalls: AtomicU64,
}

#[derive(Default)]
struct State {
    holder: LeaseHolder,
    requests: LeaseRequests,
    wants_exclusive: bool,
    /// When something was looked at last that another device held exclusively.
    contended_ms: Option<u64>,
    /// Until when an operation that waits for its COMMIT is not dead for certain.
    unconfirmed: Option<u64>,
    /// Size of the log that was accepted last, or will be with what was handed to the pump.
    log_size: u64,
    stop: bool,
}

/// While it lives, an operation whose caller has its answer is still to be made again.
pub(super) struct RedoneGuard(Arc<AtomicUsize>);

impl Drop for RedoneGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Leases {
    /// Leases of a run; without `enabled` none are ever asked for.
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

    /// Whether the newest accepted view is the present one for these files. `Some`: a stamp, by which can be told later
    /// that nothing was lost since. Files without a lease are asked for.
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

    /// How long a stamp's leases last, if nothing was lost since.
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

    /// Asks for a lease of a file with the next operation that only looks, as far as nobody has to give up anything for it.
    pub fn want_ahead(&self, file: Handle) {
        if self.enabled {
            let now_ms = now_ms();
            let mut state = self.state.lock();
            if !state.holder.holds(file, now_ms) {
                state.requests.want_ahead(file);
            }
        }
    }

    /// Whether files may be read from the newest accepted view: they are under lease, or held exclusively.
    pub fn holds(&self, files: &[Handle]) -> bool {
        let now_ms = now_ms();
        let state = self.state.lock();
        let holder = &state.holder;
        let holds = |file: &Handle| holder.holds(*file, now_ms) || holder.holds_exclusively(*file, now_ms);
        files.iter().all(holds) && state.is_certain(now_ms) && !self.is_redoing()
    }

    /// What to say with the next operation, which reads this; `beside`: what is likely to be changed next.
    ///
    /// Only one that `looks` asks for leases of what was looked at: it waits for whoever holds that exclusively, and
    /// one that sends what was changed here must not, as they may be waiting for it. If it `changes` nothing and reads
    /// nothing that is likely to be changed, it asks for what [`want_ahead`](Self::want_ahead) named as well.
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

    /// Of these files, which an operation changes, those in which, if they are directories, what is in them is to be
    /// asked for too.
    pub fn wanting_siblings(&self, files: impl Iterator<Item = Handle>) -> Vec<Handle> {
        let now_ms = now_ms();
        let state = self.state.lock();
        let wants = |file: &Handle| state.requests.wants_siblings(file, now_ms);
        if state.wants_exclusive { files.filter(wants).collect() } else { Vec::new() }
    }

    /// Notes that an operation changes these files: programs that read them soon after are about to change them again.
    pub fn edits(&self, files: impl Iterator<Item = Handle>) {
        let now_ms = now_ms();
        let mut state = self.state.lock();
        if state.wants_exclusive {
            files.for_each(|file| state.requests.edited(file, now_ms));
        }
    }

    /// Something is looked at that another device holds exclusively.
    pub fn note_contended(&self) {
        self.state.lock().contended_ms = Some(now_ms());
    }

    /// Whether something that another device held exclusively was read a moment ago.
    pub fn is_contended(&self) -> bool {
        self.state.lock().contended_ms.is_some_and(|at_ms| now_ms() < at_ms + CONTENDED_MS)
    }

    /// The operation came to nothing: the next one asks for the same.
    pub fn restore_request(&self, request: LeaseRequest) {
        self.state.lock().requests.put_back(request.scopes);
    }

    /// Takes up a grant; the view of its operation is the newest accepted one.
    pub fn take_up(&self, grant: &LeaseGrant, sent_ms: u64) {
        self.state.lock().holder.granted(grant, sent_ms, now_ms());
        if !grant.scopes.is_empty() || !grant.exclusive.is_empty() {
            let (scopes, exclusive) = (grant.scopes.len(), grant.exclusive.len());
            tracing::debug!(scopes, exclusive, first = ?grant.exclusive.first(), "leases granted");
        }
        self.changed.notify_all();
    }

    /// An operation whose UPDATE was sent then is in the newest accepted view, but not committed: once the server may
    /// have declared it dead, nothing is certain. `None`: it is committed, or out of the view.
    pub fn unconfirmed(&self, until_ms: Option<u64>) {
        self.state.lock().unconfirmed = until_ms;
    }

    /// A view is accepted whose log has so many leaves.
    pub fn accepted(&self, log_size: u64) {
        self.state.lock().log_size = log_size;
    }

    /// Counts an operation that is to be made again.
    pub fn redo(&self) -> RedoneGuard {
        self.redone.fetch_add(1, SeqCst);
        RedoneGuard(self.redone.clone())
    }

    /// Whether the newest accepted view may lack what callers were told is there.
    pub fn is_redoing(&self) -> bool {
        self.redone.load(SeqCst) > 0
    }

    /// For how long this run holds anything exclusively, in which the newest accepted view is the present one. `None`: it
    /// does not, or that is not certain.
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

    /// Whether operations ask to hold exclusively what they change from now on.
    pub fn want_exclusive(&self, wanted: bool) {
        self.state.lock().wants_exclusive = wanted;
    }

    /// Number of scopes that are held.
    pub fn held(&self) -> usize {
        let mut state = self.state.lock();
        state.holder.expire(now_ms());
        state.holder.count()
    }

    /// Registers the hook that is called with leases that were recalled.
    pub fn on_recall(&self, hook: RecallHook) {
        self.hooks.lock().push(hook);
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Asks for recalls while there is anything to recall, until it is stopped.
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
                // Without an answer the leases run out, and everything is asked for again.
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

    /// Everything is lost: the newest accepted view is another one altogether. Nothing is served under leases any more when
    /// this returns; whoever keeps copies is told by a thread of its own, as they may wait for the caller.
    pub fn lose_all(shared: &Arc<Shared>) {
        let dropped = shared.leases.state.lock().holder.drop_all();
        let telling = shared.clone();
        let tell = move || telling.leases.hooks.lock().iter().for_each(|hook| hook(&dropped));
        if let Err(error) = std::thread::Builder::new().name("holdfast-lost".to_owned()).spawn(tell) {
            // Names that the kernel keeps expire within a second.
            tracing::warn!(%error, "nobody can be told that leases are lost");
        }
    }

    /// Gives up everything, once nothing is asked for any more. The server then answers the question that
    /// [`run`](Self::run) waits in; to wait for it first would hold up who ends, and then whoever wants what was held.
    pub fn give_up(&self, shared: &Shared) {
        if self.state.lock().holder.epoch() > 0 {
            let _ = shared.remote.call(Request::EndLeases { run: self.run }, FAREWELL);
        }
    }

    /// Epoch, number, size of the log and time of the next question; `None`: it is over.
    fn next_question(&self) -> Option<(u64, u64, u64, u32)> {
        let mut state = self.state.lock();
        loop {
            if state.stop {
                return None;
            }
            let now_ms = now_ms();
            state.holder.expire(now_ms);
            if state.holder.must_ask(now_ms) {
                // Nothing held: there is something to acknowledge, and nothing to wait for.
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

/// Milliseconds of a clock that goes on while the machine sleeps.
pub(super) fn now_ms() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// When an operation whose UPDATE was first sent at `sent_ms` may be declared dead by the server, at the earliest.
pub(super) fn dead_at_ms(remote: &dyn Remote, sent_ms: u64) -> u64 {
    let abort_after_ms = remote.welcome().map_or(0, |welcome| u64::from(welcome.abort_after_ms));
    sent_ms + abort_after_ms - abort_after_ms / 8
}
