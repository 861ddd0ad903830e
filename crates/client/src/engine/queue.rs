//! Those who wait for an operation, and what they wait for.

use super::leases::Redone;
use super::snapshot::Snapshot;
use crate::error::{FrozenReport, FsError};
use crate::interrupt::{self, Woken};
use crate::tree::Edit;
use holdfast_content::Handle;
use holdfast_crypto::Digest;
use holdfast_protocol::alarm::Alarm;
use holdfast_protocol::packed::Difference;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What an operation's author relies on in its view, beside what the plan of an edit shows: no other device may hold it
/// exclusively at the operation's place in the order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Reads {
    pub files: BTreeSet<Handle>,
    pub everything: bool,
}

impl Reads {
    /// Anything.
    pub fn everything() -> Reads {
        Reads { everything: true, files: BTreeSet::new() }
    }

    /// These files.
    pub fn of(files: &[Handle]) -> Reads {
        Reads { files: files.iter().copied().collect(), everything: false }
    }
}

/// One caller's wish.
pub(super) struct Job {
    /// What to change; `None` for a fetch.
    pub edit: Option<Arc<Mutex<dyn Edit>>>,
    /// What the caller is going to read in the answer.
    pub reads: Reads,
    /// Who waits. `None` when the caller has its answer and the work must only be done again, because the
    /// server declared the first attempt dead.
    pub waiter: Option<Arc<Waiter>>,
    /// The ticket under which a flush waits for work done again.
    pub ticket: Option<u64>,
    /// Must not share an operation: it spoiled one.
    pub alone: bool,
    /// How often the server refused an operation that carried it.
    pub refusals: u32,
    /// The block that was missing when it was planned last.
    pub missing: Option<Digest>,
    /// It is made again although its caller has the answer.
    pub redone: Option<Redone>,
    /// When its turn is.
    pub turn: Turn,
}

/// Whether a wish waits while what a restore lost is made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It does.
    Usual,
    /// It is part of that.
    First,
}

impl Job {
    /// Whether nobody wants it any more. Work whose caller already has its answer is always wanted.
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

/// One caller.
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
    /// Whether it has given up, or was told of a failure: what is not on its way then is not made any more.
    fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.abandoned || state.result.is_some()
    }

    fn answer(&self, result: Result<Arc<Snapshot>, FsError>) {
        self.state.lock().result.get_or_insert(result);
        self.answered.notify_all();
    }

    /// Waits for the answer. After the deadline, or when the caller is interrupted, the wish is withdrawn, unless it
    /// is on its way already.
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

/// Most lessons that wait when another is added of which nothing depends.
const LESSONS_MAX: usize = 16;

/// What a reader found out that the signer must know before the reader uses it.
pub(super) struct Lesson {
    /// What was learned.
    pub what: Learned,
    /// Tells the reader that the signer knows.
    pub done: std::sync::mpsc::Sender<()>,
}

/// See [`Lesson`].
pub(super) enum Learned {
    /// An operation that was pending is committed: this is its structure, already verified by the reader.
    Committed(Box<Signed<Structure>>),
    /// The server gave a structure that is not the one announced.
    Alarm(Box<Alarm>),
    /// The present view is wanted, without an operation.
    Look,
    /// What others have done, as the server shows it to who is at work.
    Pushed(Box<Difference>),
    /// Everything is frozen for a reason that the signer did not find.
    Froze(Box<FrozenReport>),
}

/// The wishes that no operation carries yet.
#[derive(Default)]
pub(super) struct Queue {
    jobs: Mutex<Jobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    lessons: Vec<Lesson>,
    /// Somebody waits for what was noted to be durable.
    keep: bool,
    /// What waits while what has its turn first is made.
    held: Held,
    stopped: bool,
}

/// Which wishes wait for those whose turn is first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Held {
    /// None.
    #[default]
    Nothing,
    /// Those that change something: what comes first has to wait itself.
    Changes,
    /// All.
    All,
}

impl Jobs {
    /// Where the first wish is whose turn it is.
    fn next(&self) -> Option<usize> {
        self.waiting.iter().position(|job| match self.held {
            Held::Nothing => true,
            Held::Changes => job.turn == Turn::First || job.edit.is_none(),
            Held::All => job.turn == Turn::First,
        })
    }
}

/// What a look into the queue found.
pub(super) enum Taken {
    /// Wishes for one operation.
    Jobs(Vec<Job>),
    /// Something for the signer to know, first of all.
    Lessons(Vec<Lesson>),
    /// None, and somebody waits for what was noted to be durable.
    Keep,
    /// None, for a while.
    Idle,
    /// None, and there will be none.
    Stopped,
}

impl Queue {
    /// Adds a wish; hands it back once the engine has stopped.
    pub fn push(&self, job: Job) -> Result<(), Job> {
        let mut jobs = self.jobs.lock();
        if jobs.stopped {
            return Err(job);
        }
        jobs.waiting.push_back(job);
        self.arrived.notify_one();
        Ok(())
    }

    /// Hands in a lesson; `false` once the engine has stopped.
    pub fn teach(&self, lesson: Lesson) -> bool {
        let mut jobs = self.jobs.lock();
        if !jobs.stopped {
            jobs.lessons.push(lesson);
            self.arrived.notify_one();
        }
        !jobs.stopped
    }

    /// Hands in what the server shows of others' work: the pump goes on from there, if it follows what is accepted by then. While
    /// much waits to be known it is dropped: the next operation's view has it.
    pub fn push_view(&self, difference: Difference) {
        let mut jobs = self.jobs.lock();
        if !jobs.stopped && jobs.lessons.len() < LESSONS_MAX {
            let (done, _) = std::sync::mpsc::channel();
            jobs.lessons.push(Lesson { what: Learned::Pushed(Box::new(difference)), done });
            self.arrived.notify_one();
        }
    }

    /// Has what was noted made durable as soon as nothing is under way; `false` once the engine has stopped.
    pub fn keep_notes(&self) -> bool {
        let mut jobs = self.jobs.lock();
        jobs.keep = true;
        self.arrived.notify_one();
        !jobs.stopped
    }

    /// The lessons handed in since the last look.
    pub fn lessons(&self) -> Vec<Lesson> {
        std::mem::take(&mut self.jobs.lock().lessons)
    }

    /// From now on these wait for those whose turn is first.
    pub fn hold(&self, held: Held) {
        self.jobs.lock().held = held;
        self.arrived.notify_one();
    }

    /// Puts wishes back, before all others and in their order.
    pub fn push_front(&self, again: Vec<Job>) {
        let mut jobs = self.jobs.lock();
        for job in again.into_iter().rev() {
            jobs.waiting.push_front(job);
        }
        self.arrived.notify_one();
    }

    /// Takes up to `count` wishes; waits for the first for at most `patience`.
    pub fn take(&self, count: usize, patience: Duration) -> Taken {
        let mut jobs = self.jobs.lock();
        let end = Instant::now() + patience;
        loop {
            if jobs.stopped {
                return Taken::Stopped;
            }
            if !jobs.lessons.is_empty() {
                return Taken::Lessons(std::mem::take(&mut jobs.lessons));
            }
            jobs.waiting.retain(|job| !job.is_abandoned());
            if jobs.next().is_some() {
                // An operation makes durable what was noted before it.
                break;
            }
            if std::mem::take(&mut jobs.keep) {
                return Taken::Keep;
            }
            let late = self.arrived.wait_until(&mut jobs, end).timed_out();
            if late && jobs.next().is_none() && jobs.lessons.is_empty() && !jobs.stopped {
                return Taken::Idle;
            }
        }
        if jobs.held != Held::Nothing {
            let next = jobs.next();
            return Taken::Jobs(next.and_then(|at| jobs.waiting.remove(at)).into_iter().collect());
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
        Taken::Jobs(taken)
    }

    /// Everybody who waits.
    pub fn drain(&self) -> Vec<Job> {
        let mut jobs = self.jobs.lock();
        jobs.lessons.clear();
        jobs.waiting.drain(..).collect()
    }

    /// Answers all who wait with an error. Work whose caller has its answer stays.
    pub fn fail_waiting(&self, error: &FsError) {
        self.jobs.lock().waiting.retain(|job| {
            job.answer(Err(error.clone()));
            job.waiter.is_none()
        });
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.jobs.lock().waiting.len()
    }

    /// Takes no more wishes.
    pub fn stop(&self) {
        self.jobs.lock().stopped = true;
        self.arrived.notify_all();
    }

    /// Whether no more wishes are taken.
    pub fn is_stopped(&self) -> bool {
        self.jobs.lock().stopped
    }
}
