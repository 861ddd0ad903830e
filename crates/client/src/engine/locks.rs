//! Advisory locks that this run of the program holds at the server: takes them, gives them up, keeps them
//! alive, and claims them again when the server has lost them.
//!
//! Every [`TICK`], a message tells the server that this run is still alive. When the server's epoch for this
//! run changes (because it restarted, or gave the run up after a long silence), all locks are claimed again.
//! Locks that another holder has got meanwhile are lost, and the mount is notified of each.

use super::shared::Shared;
use crate::backend::LockTarget;
use crate::error::FsError;
use crate::interrupt;
use crate::remote::call_patiently;
use holdfast_content::Handle;
use holdfast_protocol::locks::Ranges;
use holdfast_protocol::message::{
    LockHolder, LockMode, LockReply, LockRequest, LockSpace, Request, Response,
};
use holdfast_rpc::RpcError;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_secs(10);
/// Longest time for which the server holds a request that waits for a lock.
const AWAIT: Duration = Duration::from_secs(20);
/// Pause before a server that has just started is asked again.
const GRACE_PAUSE: Duration = Duration::from_millis(200);
/// How long the request of an interrupted call may still be on its way.
const DOUBT: Duration = Duration::from_secs(1);
/// How long the end of this run may wait for the server to take note of it.
const FAREWELL: Duration = Duration::from_secs(2);

type Holder = (Handle, LockSpace, u64);
type LostHook = Box<dyn Fn(Handle) + Send + Sync>;

/// All locks of this run.
pub(super) struct Locks {
    run: u128,
    state: Mutex<State>,
    changed: Condvar,
    lost: Mutex<Vec<LostHook>>,
}

#[derive(Default)]
struct State {
    held: HashMap<Holder, (Ranges, u32)>,
    epoch: Option<u64>,
    /// Set when the server has forgotten this run's locks, so that they must be reclaimed.
    reclaim: bool,
    /// Ranges for which the server may not have what [`State::held`] says, because the answer to a request
    /// did not come; each with the time to repeat it.
    doubtful: Vec<(Instant, LockTarget)>,
    stop: bool,
}

impl Locks {
    pub fn new(run: u128) -> Locks {
        Locks { run, state: Mutex::default(), changed: Condvar::new(), lost: Mutex::default() }
    }

    /// Takes a lock. `Some`: another holder has it, and `wait` was not set.
    pub fn lock(
        &self,
        shared: &Shared,
        place: &LockTarget,
        mode: LockMode,
        wait: bool,
    ) -> Result<Option<LockHolder>, FsError> {
        loop {
            let lock = self.request(place, Some(mode), wait);
            match self.ask(shared, &Request::Lock(lock.clone())) {
                Err(error) => {
                    self.note_unanswered(*place);
                    return Err(error);
                }
                Ok(LockReply::Granted) => {
                    self.note(place, Some(mode));
                    return Ok(None);
                }
                Ok(LockReply::Held(holder)) if !wait => return Ok(Some(holder)),
                Ok(LockReply::Held(_)) => {
                    if place.space == LockSpace::Flock {
                        // A conversion gives up the old lock first, as flock(2) does.
                        self.note(place, None);
                    }
                    let request = Request::AwaitLock { lock, wait_ms: AWAIT.as_millis() as u32 };
                    // Whatever the answer is, the lock itself is requested again.
                    let _ = shared.remote.call(request, AWAIT + shared.patience());
                }
                Ok(LockReply::Deadlock) => return Err(FsError::Deadlock),
                Ok(LockReply::TooMany) => return Err(FsError::TooManyLocks),
                Ok(LockReply::Grace { .. }) => std::thread::sleep(GRACE_PAUSE),
            }
            if interrupt::is_raised() {
                return Err(FsError::Interrupted);
            }
            shared.check()?;
        }
    }

    /// The holder that conflicts with a lock. The server's claim about its process is not trusted: a process
    /// number other than 0 is always that of a process here, according to this run's own record.
    pub fn test(
        &self,
        shared: &Shared,
        place: &LockTarget,
        mode: LockMode,
    ) -> Result<Option<LockHolder>, FsError> {
        match self.ask(shared, &Request::TestLock(self.request(place, Some(mode), false)))? {
            LockReply::Held(mut holder) => {
                let is_here = holder.run == self.run;
                holder.process = if is_here { self.process_in_the_way(place, mode) } else { 0 };
                Ok(Some(holder))
            }
            _ => Ok(None),
        }
    }

    /// Gives up a range. If the server does not answer, the request is repeated later.
    pub fn unlock(&self, shared: &Shared, place: &LockTarget) {
        self.note(place, None);
        if self.ask(shared, &Request::Lock(self.request(place, None, false))).is_err() {
            self.note_unanswered(*place);
        }
    }

    /// Whether an owner holds any lock on a file.
    pub fn holds(&self, file: Handle, space: LockSpace, owner: u64) -> bool {
        self.state.lock().held.contains_key(&(file, space, owner))
    }

    /// Number of ranges held.
    pub fn count(&self) -> usize {
        self.state.lock().held.values().map(|(ranges, _)| ranges.len()).sum()
    }

    /// Registers a hook that is called with files whose locks were lost.
    pub fn on_lost(&self, hook: LostHook) {
        self.lost.lock().push(hook);
    }

    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Body of the thread that keeps the locks alive at the server, until it is stopped.
    pub fn run(&self, shared: &Shared) {
        loop {
            let (stop, held, doubtful, reclaim) = {
                let mut state = self.state.lock();
                if !(state.stop || state.reclaim) {
                    let first = state.doubtful.iter().map(|(due, _)| *due).min();
                    let tick = Instant::now() + TICK;
                    self.changed.wait_until(&mut state, first.map_or(tick, |due| due.min(tick)));
                }
                let now = Instant::now();
                let (doubtful, later) =
                    std::mem::take(&mut state.doubtful).into_iter().partition(|(due, _)| *due <= now);
                state.doubtful = later;
                let doubtful: Vec<(Instant, LockTarget)> = doubtful;
                (state.stop, !state.held.is_empty(), doubtful, state.reclaim)
            };
            if stop {
                if held {
                    let _ = shared.remote.call(Request::EndLocks { run: self.run }, FAREWELL);
                }
                return;
            }
            for (_, place) in doubtful {
                if self.assert(shared, &place).is_err() {
                    self.note_unanswered(place);
                }
            }
            if held && self.ask(shared, &Request::KeepLocks { run: self.run }).is_ok() && reclaim {
                self.reclaim(shared);
            } else if reclaim {
                // The server is away, so there is no hurry.
                self.changed.wait_for(&mut self.state.lock(), Duration::from_secs(1));
            }
        }
    }

    /// Makes the server's record of a range match what is held here.
    fn assert(&self, shared: &Shared, place: &LockTarget) -> Result<(), FsError> {
        let held = self.state.lock().held.get(&(place.file, place.space, place.owner)).cloned();
        self.ask(shared, &Request::Lock(self.request(place, None, false)))?;
        let Some((ranges, process)) = held else { return Ok(()) };
        for (range, mode) in ranges.iter().filter(|(range, _)| range.overlaps(&place.range)) {
            self.claim(shared, LockTarget { range, process, ..*place }, mode)?;
        }
        Ok(())
    }

    fn reclaim(&self, shared: &Shared) {
        let held: Vec<(LockTarget, LockMode)> = {
            let mut state = self.state.lock();
            state.reclaim = false;
            let places = |(&(file, space, owner), (ranges, process)): (&Holder, &(Ranges, u32))| {
                let process = *process;
                let place = move |(range, mode)| (LockTarget { file, space, owner, process, range }, mode);
                ranges.iter().map(place).collect::<Vec<_>>()
            };
            state.held.iter().flat_map(places).collect()
        };
        for (place, mode) in held {
            if self.claim(shared, place, mode).is_err() {
                self.state.lock().reclaim = true;
                return;
            }
        }
    }

    /// Claims a lock again. If another holder has it, it is lost.
    fn claim(&self, shared: &Shared, place: LockTarget, mode: LockMode) -> Result<(), FsError> {
        let lock = LockRequest { reclaim: true, ..self.request(&place, Some(mode), false) };
        if self.ask(shared, &Request::Lock(lock))? == LockReply::Granted {
            return Ok(());
        }
        self.note(&place, None);
        tracing::error!(file = %place.file, process = place.process,
            "a lock was lost: the server forgot it, and somebody else has it now");
        for hook in &*self.lost.lock() {
            hook(place.file);
        }
        Ok(())
    }

    fn request(&self, place: &LockTarget, mode: Option<LockMode>, wait: bool) -> LockRequest {
        LockRequest {
            run: self.run,
            owner: place.owner,
            process: place.process,
            file: place.file,
            space: place.space,
            range: place.range,
            mode,
            reclaim: false,
            wait,
        }
    }

    fn ask(&self, shared: &Shared, request: &Request) -> Result<LockReply, FsError> {
        let answer = call_patiently(&*shared.remote, request, shared.patience());
        match answer.map_err(|error| FsError::from(&error))? {
            Response::Locks { epoch, answer } => {
                shared.note_answer();
                let mut state = self.state.lock();
                if state.epoch.replace(epoch).is_some_and(|known| known != epoch) && !state.held.is_empty() {
                    state.reclaim = true;
                    self.changed.notify_all();
                }
                Ok(answer)
            }
            other => {
                let error: RpcError = crate::store::unexpected("Lock", &other);
                Err(FsError::from(&error))
            }
        }
    }

    /// Number of the process of this mount that holds a conflicting lock; 0 if none does.
    fn process_in_the_way(&self, place: &LockTarget, mode: LockMode) -> u32 {
        let state = self.state.lock();
        let mut others = state.held.iter().filter(|((file, space, owner), (ranges, _))| {
            (*file, *space) == (place.file, place.space)
                && *owner != place.owner
                && ranges.conflict(place.range, mode).is_some()
        });
        others.next().map_or(0, |(_, (_, process))| *process)
    }

    fn note(&self, place: &LockTarget, mode: Option<LockMode>) {
        let mut state = self.state.lock();
        let holder = (place.file, place.space, place.owner);
        let (ranges, process) = state.held.entry(holder).or_default();
        ranges.set(place.range, mode);
        // When a range is given up, the kernel does not say by which process.
        if mode.is_some() {
            *process = place.process;
        }
        if ranges.is_empty() {
            state.held.remove(&holder);
        }
    }

    /// Notes that the answer to a request did not come, so that the server may hold the lock or not.
    fn note_unanswered(&self, place: LockTarget) {
        self.state.lock().doubtful.push((Instant::now() + DOUBT, place));
        self.changed.notify_all();
    }
}
