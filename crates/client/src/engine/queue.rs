//! The queue of requests that wait for an operation, and of events for the signer.

use super::leases::RedoneGuard;
use super::snapshot::Snapshot;
use crate::backend::ReadSet;
use crate::error::{FrozenReport, FsError};
use crate::interrupt::{self, Woken};
use crate::tree::Edit;
use holdfast_crypto::Digest;
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::packed::Difference;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Span;

/// One caller's request, which waits to be carried out by an operation.
pub(super) struct Job {
    /// What to change; `None` for a fetch.
    pub edit: Option<Arc<Mutex<dyn Edit>>>,
    /// What the caller is going to read in the view.
    pub reads: ReadSet,
    /// The waiting caller. `None` if it already has its answer and the work is only made again, because the
    /// server declared the first attempt dead.
    pub waiter: Option<Arc<Waiter>>,
    /// The ticket through which a flush waits for work that is made again.
    pub ticket: Option<u64>,
    /// Whether it must have an operation of its own, because it has spoiled a shared one.
    pub alone: bool,
    /// How often the server refused an operation with this request.
    pub refusals: u32,
    /// The block that was missing when the request was last planned.
    pub missing: Option<Digest>,
    /// Held while the work is made again although its caller has its answer.
    pub redone: Option<RedoneGuard>,
    /// Whether the request waits while the resend runs.
    pub priority: RequestPriority,
    /// What the caller is doing, for a trace: a request of the kernel, or the sending of gathered edits.
    pub span: Span,
}

/// Whether a request waits while the resend runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestPriority {
    /// A program's request; it waits.
    Usual,
    /// A request of the resend, or one that must not wait for it.
    First,
}

impl Job {
    /// Whether its caller has given up. A request whose caller already has its answer is never abandoned.
    pub fn is_abandoned(&self) -> bool {
        self.waiter.as_ref().is_some_and(|waiter| waiter.is_abandoned())
    }

    /// Answers the caller, if one waits.
    pub fn answer(&self, result: Result<Arc<Snapshot>, FsError>) {
        if let Some(waiter) = &self.waiter {
            waiter.answer(result);
        }
    }
}

/// A caller that waits for its answer.
#[derive(Default)]
pub(super) struct Waiter {
    state: Mutex<WaiterState>,
    answered: Condvar,
}

#[derive(Default)]
struct WaiterState {
    result: Option<Result<Arc<Snapshot>, FsError>>,
    abandoned: bool,
}

impl Waiter {
    /// Whether the caller has given up or has already got an error; a request not yet under way is then
    /// dropped.
    fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.abandoned || state.result.is_some()
    }

    fn answer(&self, result: Result<Arc<Snapshot>, FsError>) {
        self.state.lock().result.get_or_insert(result);
        self.answered.notify_all();
    }

    /// Waits for the answer. After the deadline, or when the caller is interrupted, the request is withdrawn,
    /// unless it is already under way.
    pub fn wait(&self, deadline: Instant, late: impl FnOnce() -> FsError) -> Result<Arc<Snapshot>, FsError> {
        let mut state = self.state.lock();
        while state.result.is_none() {
            let woken = interrupt::wait(&self.answered, &mut state, Some(deadline));
            if woken != Woken::Notified && state.result.is_none() {
                state.abandoned = true;
                return Err(if woken == Woken::Interrupted { FsError::Interrupted } else { late() });
            }
        }
        state.result.clone().expect("it is there")
    }
}

/// Most queued events for a pushed view to be added; beyond that, it is dropped.
const EVENTS_MAX: usize = 16;

/// An event that the signer must handle before the reader that found it goes on.
pub(super) struct QueuedEvent {
    /// The event.
    pub event: SignerEvent,
    /// Signals the reader that the signer has handled the event.
    pub done: std::sync::mpsc::Sender<()>,
}

/// What the signer must learn, from a reader or from the server.
pub(super) enum SignerEvent {
    /// A pending operation was committed; its structure, already verified by the reader.
    Committed(Box<Signed<Structure>>),
    /// The server gave a structure that is not the announced one.
    Alarm(Box<Alarm>),
    /// The present view should be fetched, without an operation.
    Look,
    /// The server pushed a view with operations of other devices.
    Pushed(Box<Difference>),
    /// Everything is frozen, for a reason that the signer did not find.
    Froze(Box<FrozenReport>),
}

/// The requests that are not part of an operation yet.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    events: Vec<QueuedEvent>,
    /// Whether a caller waits for notes to become durable.
    sync_notes: bool,
    /// Which requests wait for the resend.
    hold: QueueHold,
    stopped: bool,
}

/// Which requests wait for the resend.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum QueueHold {
    /// No request waits.
    #[default]
    Nothing,
    /// Requests that change something wait, because the resend itself is paused.
    Changes,
    /// All requests wait except those of the resend.
    All,
}

impl Jobs {
    /// Index of the first request that does not have to wait.
    fn next(&self) -> Option<usize> {
        self.waiting.iter().position(|job| match self.hold {
            QueueHold::Nothing => true,
            QueueHold::Changes => job.priority == RequestPriority::First || job.edit.is_none(),
            QueueHold::All => job.priority == RequestPriority::First,
        })
    }
}

/// What the pump is to do next.
pub(super) enum NextWork {
    /// Requests to put into one operation.
    Jobs(Vec<Job>),
    /// These events must reach the signer before anything else.
    Events(Vec<QueuedEvent>),
    /// No request waits, but a caller waits for notes to be durable.
    SyncNotes,
    /// No request came within the time.
    Idle,
    /// The queue has been stopped.
    Stopped,
}

impl Queue {
    /// Adds a request; `false` once the engine has stopped.
    pub fn push(&self, job: Job) -> bool {
        let mut jobs = self.jobs.lock();
        if !jobs.stopped {
            jobs.waiting.push_back(job);
            self.arrived.notify_one();
        }
        !jobs.stopped
    }

    /// Adds an event for the signer; `false` once the engine has stopped.
    pub fn push_event(&self, event: QueuedEvent) -> bool {
        let mut jobs = self.jobs.lock();
        if !jobs.stopped {
            jobs.events.push(event);
            self.arrived.notify_one();
        }
        !jobs.stopped
    }

    /// Adds a view that the server pushed. The pump accepts it if it follows the accepted one by then. The
    /// view is dropped while many events wait: the next operation's view includes its content.
    pub fn push_view(&self, difference: Difference) {
        let mut jobs = self.jobs.lock();
        if !jobs.stopped && jobs.events.len() < EVENTS_MAX {
            let (done, _) = std::sync::mpsc::channel();
            jobs.events.push(QueuedEvent { event: SignerEvent::Pushed(Box::new(difference)), done });
            self.arrived.notify_one();
        }
    }

    /// Makes notes durable as soon as the pump is free; `false` once the engine has stopped.
    pub fn sync_notes(&self) -> bool {
        let mut jobs = self.jobs.lock();
        jobs.sync_notes = true;
        self.arrived.notify_one();
        !jobs.stopped
    }

    /// Takes the events that were added since the last call.
    pub fn events(&self) -> Vec<QueuedEvent> {
        std::mem::take(&mut self.jobs.lock().events)
    }

    /// Sets which requests wait for the resend.
    pub fn hold(&self, held: QueueHold) {
        self.jobs.lock().hold = held;
        self.arrived.notify_one();
    }

    /// Puts requests back to the front, in their order.
    pub fn push_front(&self, again: Vec<Job>) {
        let mut jobs = self.jobs.lock();
        for job in again.into_iter().rev() {
            jobs.waiting.push_front(job);
        }
        self.arrived.notify_one();
    }

    /// Takes up to `count` requests; waits at most `patience` for the first.
    pub fn take(&self, count: usize, patience: Duration) -> NextWork {
        let mut jobs = self.jobs.lock();
        let end = Instant::now() + patience;
        loop {
            if jobs.stopped {
                return NextWork::Stopped;
            }
            if !jobs.events.is_empty() {
                return NextWork::Events(std::mem::take(&mut jobs.events));
            }
            jobs.waiting.retain(|job| !job.is_abandoned());
            if jobs.next().is_some() {
                // An operation also makes durable what was noted before it.
                break;
            }
            if std::mem::take(&mut jobs.sync_notes) {
                return NextWork::SyncNotes;
            }
            let late = self.arrived.wait_until(&mut jobs, end).timed_out();
            if late && jobs.next().is_none() && jobs.events.is_empty() && !jobs.stopped {
                return NextWork::Idle;
            }
        }
        if jobs.hold != QueueHold::Nothing {
            let next = jobs.next();
            return NextWork::Jobs(next.and_then(|at| jobs.waiting.remove(at)).into_iter().collect());
        }
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(next) = jobs.waiting.front()
        {
            if next.alone && !taken.is_empty() {
                break;
            }
            let alone = next.alone;
            taken.extend(jobs.waiting.pop_front());
            if alone {
                break;
            }
        }
        NextWork::Jobs(taken)
    }

    /// Removes and returns all requests.
    pub fn drain(&self) -> Vec<Job> {
        let mut jobs = self.jobs.lock();
        jobs.events.clear();
        jobs.waiting.drain(..).collect()
    }

    /// Answers all waiting callers with an error. Work whose caller already has its answer stays.
    pub fn fail_waiting(&self, error: &FsError) {
        self.jobs.lock().waiting.retain(|job| {
            job.answer(Err(error.clone()));
            job.waiter.is_none()
        });
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.jobs.lock().waiting.len()
    }

    /// Stops the queue: it takes no more requests.
    pub fn stop(&self) {
        self.jobs.lock().stopped = true;
        self.arrived.notify_all();
    }

    /// Whether the queue has been stopped.
    pub fn is_stopped(&self) -> bool {
        self.jobs.lock().stopped
    }
}
