//! The process that starts components, connects them, watches them, and starts a crashed one anew.
//!
//! One thread does it all, because the kernel ends a component together with the thread that started it: when the
//! supervisor goes, however it goes, everything goes. It waits for ends of processes, for violations, for words, and
//! for the time to start something again.
//!
//! A crash costs what the component had in flight. Its aliases end with it, so what it left in queues is refused; its
//! peers see the channel end, their requests in flight become *unknown whether done*, and when it is up again they get a
//! new channel under the old name and may ask again with the same number. What was acknowledged must be where a crash
//! does not reach: in a region, which the supervisor holds, or in the log. A component keeps nothing that cannot be
//! made again from there.

use crate::alias::AliasPage;
use crate::channel::Channel;
use crate::channel::packet::{self, Patience, wait as wait_for};
use crate::error::{ComponentError, During, Result};
use crate::kernel;
use crate::listing::{self, Listing};
use crate::plan::{ComponentPlan, End, Plan, RegionGrant};
use crate::ports::{Order, Ports, Role, Word};
use crate::region::{Access, Region};
use crate::sandbox::call_name;
use crate::spawn::{self, Child, Exit, Program};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a component may take to shut itself in.
const GUARDED_WAIT: Duration = Duration::from_secs(5);
/// How long components have to end when asked to.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// How much of a component's last words is kept.
const WORDS_BYTES_MAX: usize = 2 << 10;

/// The name of a process. Never used again: the first half was drawn for this supervisor, the second counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessName {
    /// Drawn at random when the supervisor started.
    pub realm: [u8; 16],
    /// Counts its components.
    pub counter: u64,
}

impl ProcessName {
    /// As bytes of the size of a principal's digest: the realm, the counter (big endian), zeros.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&self.realm);
        bytes[16..24].copy_from_slice(&self.counter.to_be_bytes());
        bytes
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for byte in self.realm {
            write!(f, "{byte:02x}")?;
        }
        write!(f, ":{}", self.counter)
    }
}

/// What the supervisor tells whoever it works for, from its thread.
pub enum Event<'a> {
    /// A component is in its sandbox and about to begin. Its entry 0 should become itself, and what else was proven
    /// for it may be entered; until then it can say nothing.
    Starting {
        /// Which.
        component: &'a str,
        /// This process of it.
        process: ProcessName,
        /// Its number on this system.
        pid: i32,
        /// Its user.
        uid: u32,
        /// Its aliases, to be kept by who changes them.
        aliases: &'a Arc<AliasPage>,
    },
    /// A component ended. Its aliases are revoked.
    Ended {
        /// Which.
        component: &'a str,
        /// This process of it.
        process: ProcessName,
        /// Why, in words.
        reason: &'a str,
        /// Whether it will be started anew.
        restarts: bool,
    },
}

/// Who is told.
pub type Listener = Box<dyn Fn(Event) + Send + Sync>;

/// A process of a component.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) process: ProcessName,
    aliases: Arc<AliasPage>,
    violations: OwnedFd,
    words: Mutex<VecDeque<u8>>,
    violation: Mutex<Option<i32>>,
}

/// A component of the plan, whether it runs or not.
pub(crate) struct Slot {
    pub(crate) plan: ComponentPlan,
    pub(crate) running: Option<Arc<Running>>,
    /// New starts, ever.
    pub(crate) restarts: u32,
    /// New starts within the window.
    recent: VecDeque<Instant>,
    due: Option<Instant>,
    /// Why it stays down.
    pub(crate) down: Option<String>,
    /// It ended by itself, with success.
    pub(crate) done: bool,
    pub(crate) last_end: Option<String>,
}

pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) realm: [u8; 16],
    counter: u64,
    pub(crate) slots: Vec<Slot>,
    pub(crate) channels: Vec<crate::plan::ChannelPlan>,
    generations: Vec<u64>,
    stopping: Option<Instant>,
}

struct Shared {
    state: Mutex<State>,
    program: Program,
    ports: Arc<Ports>,
    /// The page of the supervising process itself.
    host_aliases: Arc<AliasPage>,
    told: Listener,
}

/// Components that run.
pub struct Supervisor {
    shared: Arc<Shared>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
    /// Answers `holdfast components`; goes with the supervisor.
    _listing: Option<listing::Socket>,
}

impl Supervisor {
    /// Starts everything in a plan. When this returns, all components are in their sandboxes and have begun.
    ///
    /// # Errors
    /// The plan does not hold together, or a component cannot be started; then none runs.
    pub fn start(
        program: Program,
        plan: Plan,
        told: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Supervisor> {
        plan.check()?;
        let mut realm = [0; 16];
        getrandom::fill(&mut realm).map_err(|error| ComponentError::System {
            what: "drawing a name",
            source: std::io::Error::other(error.to_string()),
        })?;
        let slots = plan.components.into_iter().map(|plan| Slot {
            plan,
            running: None,
            restarts: 0,
            recent: VecDeque::new(),
            due: None,
            down: None,
            done: false,
            last_end: None,
        });
        let state = State {
            name: plan.name,
            realm,
            counter: 0,
            slots: slots.collect(),
            generations: vec![0; plan.channels.len()],
            channels: plan.channels,
            stopping: None,
        };
        let host_aliases = Arc::new(AliasPage::create()?);
        host_aliases.set(0, &ProcessName { realm, counter: 0 }.to_bytes())?;
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            program,
            ports: Ports::new(None),
            host_aliases,
            told: Box::new(told),
        });
        let (woken, wake) =
            pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).during("starting a supervisor")?;
        let (report, outcome) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("supervisor".to_owned())
            .spawn(move || {
                let started = theirs.start_all();
                let failed = started.is_err();
                let _ = report.send(started);
                if failed {
                    theirs.kill_all();
                } else {
                    theirs.run(&woken);
                }
            })
            .during("starting a supervisor")?;
        let lost = || Err(ComponentError::Plan("the supervisor's thread is gone".to_owned()));
        if let Err(error) = outcome.recv().unwrap_or_else(|_| lost()) {
            let _ = thread.join();
            return Err(error);
        }
        let listed = Arc::clone(&shared);
        let socket = listing::Socket::open(move || Listing::of(&listed.state.lock()));
        if let Err(error) = &socket {
            tracing::warn!(%error, "`holdfast components` will not show these components");
        }
        Ok(Supervisor { shared, wake, thread: Some(thread), _listing: socket.ok() })
    }

    /// The ends of channels that the supervising process itself has.
    pub fn ports(&self) -> &Arc<Ports> {
        &self.shared.ports
    }

    /// The aliases of the supervising process; entry 0 is itself.
    pub fn aliases(&self) -> &Arc<AliasPage> {
        &self.shared.host_aliases
    }

    /// How things are.
    pub fn listing(&self) -> Listing {
        Listing::of(&self.shared.state.lock())
    }

    /// Hands a region to a component, now and whenever it is started anew.
    ///
    /// # Errors
    /// There is no such component, or it does not read its orders.
    pub fn grant(&self, component: &str, name: &str, region: &Arc<Region>, access: Access) -> Result<()> {
        let mut state = self.shared.state.lock();
        let slot = slot_of(&mut state, component)?;
        let grant = RegionGrant { name: name.to_owned(), region: Arc::clone(region), access };
        if let Some(running) = &slot.running {
            give_region(running, &grant)?;
        }
        slot.plan.regions.retain(|known| known.name != name);
        slot.plan.regions.push(grant);
        Ok(())
    }

    /// Has a component forget a region, and hands it to no later process of it. A component that means ill keeps its
    /// view: [`Region::revoke`] takes that away, from everybody.
    ///
    /// # Errors
    /// There is no such component.
    pub fn withdraw(&self, component: &str, name: &str) -> Result<()> {
        let mut state = self.shared.state.lock();
        let slot = slot_of(&mut state, component)?;
        slot.plan.regions.retain(|known| known.name != name);
        if let Some(running) = &slot.running {
            order(running, &Order::Withdraw { name: name.to_owned() }, &[])?;
        }
        Ok(())
    }

    /// Hands a region's new place to everybody who holds it, after [`Region::revoke`].
    ///
    /// # Errors
    /// A component does not read its orders.
    pub fn grant_again(&self, region: &Arc<Region>) -> Result<()> {
        let state = self.shared.state.lock();
        for slot in &state.slots {
            for grant in slot.plan.regions.iter().filter(|grant| Arc::ptr_eq(&grant.region, region)) {
                if let Some(running) = &slot.running {
                    give_region(running, grant)?;
                }
            }
        }
        Ok(())
    }

    /// Ends one process of a component at once, as a crash would.
    ///
    /// # Errors
    /// There is no such component, or it does not run.
    pub fn kill(&self, component: &str) -> Result<()> {
        let mut state = self.shared.state.lock();
        let slot = slot_of(&mut state, component)?;
        match &slot.running {
            Some(running) => spawn::kill(&running.child.pidfd),
            None => {
                let reason = slot.down.clone().or(slot.last_end.clone()).unwrap_or_default();
                return Err(ComponentError::Down { component: component.to_owned(), reason });
            }
        }
        Ok(())
    }

    /// Asks all components to end, and ends those that do not.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.stopping.get_or_insert(Instant::now() + STOP_WAIT);
            for running in state.slots.iter().filter_map(|slot| slot.running.as_ref()) {
                if order(running, &Order::Stop, &[]).is_err() {
                    spawn::kill(&running.child.pidfd);
                }
            }
        }
        self.shared.ports.stop();
        let _ = rustix::io::write(&self.wake, b"!");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}

fn slot_of<'a>(state: &'a mut State, component: &str) -> Result<&'a mut Slot> {
    let found = state.slots.iter_mut().find(|slot| slot.plan.name == component);
    found.ok_or_else(|| ComponentError::NoSuchComponent(component.to_owned()))
}

/// Gives an order. A component that does not read its orders is stuck or means ill.
fn order(running: &Running, order: &Order, files: &[OwnedFd]) -> Result<()> {
    let bytes = borsh::to_vec(order).expect("a vector takes everything");
    if bytes.len() > crate::ports::CONTROL_BYTES_MAX {
        return Err(ComponentError::Plan("a component's configuration is too large".to_owned()));
    }
    packet::send(running.child.control.as_fd(), &[&bytes], &packet::borrowed(files), Patience::Never)
        .map_err(|_| ComponentError::PeerDoesNotRead("control".to_owned()))
}

fn give_region(running: &Running, grant: &RegionGrant) -> Result<()> {
    let said = Order::Region { name: grant.name.clone(), access: grant.access, bytes: grant.region.bytes() };
    order(running, &said, &[grant.region.view(grant.access)?])
}

impl Shared {
    fn start_all(&self) -> Result<()> {
        let mut state = self.state.lock();
        for channel in &state.channels {
            for (end, role) in channel.ends() {
                if end.component.is_none() {
                    self.ports.declare(&end.port, role);
                }
            }
        }
        for index in 0..state.slots.len() {
            self.guard(&mut state, index)?;
        }
        for channel in 0..state.channels.len() {
            self.connect(&mut state, channel)?;
        }
        for index in 0..state.slots.len() {
            self.begin(&mut state, index)?;
        }
        Ok(())
    }

    /// Starts a process of a component and waits until it is in its sandbox.
    fn guard(&self, state: &mut State, index: usize) -> Result<()> {
        state.counter += 1;
        let process = ProcessName { realm: state.realm, counter: state.counter };
        let slot = &mut state.slots[index];
        let aliases = Arc::new(AliasPage::create()?);
        aliases.set(0, &process.to_bytes())?;
        let child = spawn::component(&self.program, &slot.plan.program, &slot.plan.profile)?;
        let mut buffer = [0; 4096];
        let word = packet::receive(child.control.as_fd(), &mut buffer, 1, Patience::of(GUARDED_WAIT))
            .ok()
            .and_then(|(bytes, files)| Some((borsh::from_slice::<Word>(&buffer[..bytes]).ok()?, files)));
        let violations = match word {
            Some((Word::Guarded, mut files)) if files.len() == 1 => files.remove(0),
            other => {
                spawn::kill(&child.pidfd);
                let exit = spawn::wait(&child.pidfd);
                let mut said = [0; 1024];
                let bytes = rustix::io::read(&child.words, &mut said).unwrap_or(0);
                let reason = match other {
                    Some((Word::Failed(words), _)) => spawn::printable(words.as_bytes()),
                    _ => format!("it did not shut itself in ({exit:?}) {}", spawn::printable(&said[..bytes])),
                };
                return Err(ComponentError::NotStarted { component: slot.plan.name.clone(), reason });
            }
        };
        let (pid, uid) = (child.pid, child.uid);
        slot.running = Some(Arc::new(Running {
            child,
            process,
            aliases: Arc::clone(&aliases),
            violations,
            words: Mutex::default(),
            violation: Mutex::new(None),
        }));
        (self.told)(Event::Starting { component: &slot.plan.name, process, pid, uid, aliases: &aliases });
        Ok(())
    }

    /// Makes a channel if both ends are up.
    fn connect(&self, state: &mut State, index: usize) -> Result<()> {
        let plan = state.channels[index].clone();
        let holder = |end: &End| -> Option<(Option<Arc<Running>>, Arc<AliasPage>)> {
            let Some(name) = &end.component else { return Some((None, Arc::clone(&self.host_aliases))) };
            let slot = state.slots.iter().find(|slot| slot.plan.name == *name)?;
            let running = slot.running.clone()?;
            let aliases = Arc::clone(&running.aliases);
            Some((Some(running), aliases))
        };
        let (Some(asks), Some(serves)) = (holder(&plan.asks), holder(&plan.serves)) else { return Ok(()) };
        state.generations[index] += 1;
        let generation = state.generations[index];
        let (a, b) = packet::pair().during("making a channel")?;
        let give = |end: &End, role: Role, to: Option<Arc<Running>>, socket: OwnedFd, peer: OwnedFd| match to
        {
            None => {
                self.ports.attach(role, generation, Channel::new(&end.port, socket, &peer, plan.bounds)?);
                Ok(())
            }
            Some(running) => {
                let said = Order::Attach { port: end.port.clone(), role, generation, bounds: plan.bounds };
                // One that cannot be told is dead or stuck; its end is noticed, or made.
                if order(&running, &said, &[socket, peer]).is_err() {
                    spawn::kill(&running.child.pidfd);
                }
                Ok(())
            }
        };
        give(&plan.asks, Role::Asks, asks.0, a, serves.1.reader()?)?;
        give(&plan.serves, Role::Serves, serves.0, b, asks.1.reader()?)
    }

    /// Hands a component what else it has, and has it begin.
    fn begin(&self, state: &mut State, index: usize) -> Result<()> {
        let slot = &state.slots[index];
        let Some(running) = &slot.running else { return Ok(()) };
        for channel in &state.channels {
            for (end, role) in channel.ends() {
                if end.component.as_deref() == Some(&slot.plan.name) {
                    order(running, &Order::Port { port: end.port.clone(), role }, &[])?;
                }
            }
        }
        for grant in &slot.plan.regions {
            give_region(running, grant)?;
        }
        for (name, file) in &slot.plan.files {
            let copy = file.try_clone().during("handing out a file")?;
            order(running, &Order::File { name: name.clone() }, &[copy])?;
        }
        let begin =
            Order::Begin { configuration: slot.plan.configuration.clone(), run: running.process.counter };
        order(running, &begin, &[])
    }

    fn kill_all(&self) {
        for slot in &mut self.state.lock().slots {
            if let Some(running) = slot.running.take() {
                running.aliases.revoke_all();
                spawn::kill(&running.child.pidfd);
                let _ = spawn::wait(&running.child.pidfd);
            }
        }
    }

    /// The thread's life.
    fn run(&self, woken: &OwnedFd) {
        loop {
            let (running, time) = {
                let state = self.state.lock();
                let running: Vec<_> = state.slots.iter().map(|slot| slot.running.clone()).collect();
                if state.stopping.is_some() && running.iter().all(Option::is_none) {
                    return;
                }
                let due = state.slots.iter().filter_map(|slot| slot.due);
                let next = due.chain(state.stopping).min();
                (running, next.map(|moment| moment.saturating_duration_since(Instant::now())))
            };
            let mut events = vec![PollFd::new(woken, PollFlags::IN)];
            for running in running.iter().flatten() {
                events.push(PollFd::new(&running.child.pidfd, PollFlags::IN));
                events.push(PollFd::new(&running.violations, PollFlags::IN));
                events.push(PollFd::new(&running.child.words, PollFlags::IN));
            }
            // A poll that fails is out of memory; everything is looked at then.
            let polled = wait_for(&mut events, time).is_ok();
            let is_ready =
                |place: usize, what: PollFlags| !polled || events[place].revents().intersects(what);
            if is_ready(0, PollFlags::IN) {
                let _ = rustix::io::read(woken, &mut [0; 16]);
            }
            let mut ended = Vec::new();
            let present =
                running.iter().enumerate().filter_map(|(index, running)| Some((index, running.as_ref()?)));
            for (place, (index, running)) in present.enumerate() {
                let place = 1 + 3 * place;
                if is_ready(place + 2, PollFlags::IN) {
                    running.hear();
                }
                if is_ready(place + 1, PollFlags::IN) {
                    running.judge();
                }
                if is_ready(place, PollFlags::IN) {
                    ended.push((index, Arc::clone(running)));
                }
            }
            drop(events);
            drop(running);
            let mut state = self.state.lock();
            for (index, running) in ended {
                self.bury(&mut state, index, &running);
            }
            if state.stopping.is_some_and(|moment| moment <= Instant::now()) {
                for running in state.slots.iter().filter_map(|slot| slot.running.as_ref()) {
                    spawn::kill(&running.child.pidfd);
                }
                // They end at once; there is nothing to wait for but that.
                state.stopping = Some(Instant::now() + STOP_WAIT);
            }
            self.start_due(&mut state);
        }
    }

    /// A process has ended: says why, and decides whether there will be another.
    fn bury(&self, state: &mut State, index: usize, running: &Running) {
        running.aliases.revoke_all();
        let exit = spawn::wait(&running.child.pidfd);
        running.hear();
        let reason = running.reason(exit.as_ref().ok());
        let stopping = state.stopping.is_some();
        let slot = &mut state.slots[index];
        slot.running = None;
        slot.last_end = Some(reason.clone());
        slot.done = matches!(exit, Ok(Exit::Code(0)));
        if !slot.done && !stopping {
            self.schedule(slot, &reason);
        }
        tracing::info!(component = slot.plan.name, reason, "a component ended");
        let restarts = slot.due.is_some();
        (self.told)(Event::Ended {
            component: &slot.plan.name,
            process: running.process,
            reason: &reason,
            restarts,
        });
    }

    /// A component crashed: when it is to be started anew, or that it stays down.
    fn schedule(&self, slot: &mut Slot, reason: &str) {
        let now = Instant::now();
        let policy = slot.plan.restart;
        slot.recent.retain(|start| now.saturating_duration_since(*start) <= policy.window);
        let times = slot.recent.len() as u32;
        if times >= policy.times_max {
            slot.down = Some(match times {
                0 => reason.to_owned(),
                _ => format!(
                    "it crashed {} times within {:?}; the last time: {reason}",
                    times + 1,
                    policy.window
                ),
            });
            tracing::error!(component = slot.plan.name, reason, "a component stays down");
            return;
        }
        slot.due = Some(now + policy.wait_before(times));
    }

    fn start_due(&self, state: &mut State) {
        for index in 0..state.slots.len() {
            let stopping = state.stopping.is_some();
            let slot = &mut state.slots[index];
            if stopping || slot.due.is_none_or(|due| due > Instant::now()) {
                continue;
            }
            slot.due = None;
            slot.restarts += 1;
            slot.recent.push_back(Instant::now());
            let name = slot.plan.name.clone();
            if let Err(error) = self.start_again(state, index, &name) {
                let reason = error.to_string();
                let slot = &mut state.slots[index];
                slot.last_end = Some(reason.clone());
                if let Some(running) = slot.running.take() {
                    running.aliases.revoke_all();
                    spawn::kill(&running.child.pidfd);
                    let _ = spawn::wait(&running.child.pidfd);
                }
                self.schedule(slot, &reason);
            }
        }
    }

    fn start_again(&self, state: &mut State, index: usize, name: &str) -> Result<()> {
        self.guard(state, index)?;
        for channel in 0..state.channels.len() {
            let is_its = |(end, _): (&End, Role)| end.component.as_deref() == Some(name);
            if state.channels[channel].ends().into_iter().any(is_its) {
                self.connect(state, channel)?;
            }
        }
        self.begin(state, index)
    }
}

impl Running {
    /// Keeps the last of what it says on its output.
    fn hear(&self) {
        let mut words = self.words.lock();
        let mut buffer = [0; 1024];
        // As much as the pipe holds, and not for ever: a component may talk faster than it is listened to.
        for _ in 0..64 {
            match rustix::io::read(&self.child.words, &mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(bytes) => words.extend(&buffer[..bytes]),
            }
            let surplus = words.len().saturating_sub(WORDS_BYTES_MAX);
            words.drain(..surplus);
        }
    }

    /// It made a system call that its profile does not have. The call is not carried out, and the process ends.
    fn judge(&self) {
        if let Ok(Some(number)) = kernel::next_violation(self.violations.as_fd()) {
            self.violation.lock().get_or_insert(number);
            spawn::kill(&self.child.pidfd);
        }
    }

    /// Why it ended, in words.
    fn reason(&self, exit: Option<&Exit>) -> String {
        if let Some(number) = *self.violation.lock() {
            return format!("it used a forbidden system call, {}; it was stopped", call_name(number.into()));
        }
        let mut words = self.words.lock();
        let said = spawn::printable(words.make_contiguous());
        let said = if said.is_empty() { said } else { format!("; its last words: {said}") };
        match exit {
            Some(Exit::Code(0)) => "it is done".to_owned(),
            Some(Exit::Code(101)) => format!("it panicked{said}"),
            Some(Exit::Code(code)) => format!("it ended with code {code}{said}"),
            // Process 1 of a namespace cannot be ended by its own SIGABRT, so glibc's abort ends in SIGSEGV.
            Some(Exit::Signal(libc::SIGSEGV)) => {
                format!("it crashed (SIGSEGV: bad memory access, or abort){said}")
            }
            Some(Exit::Signal(libc::SIGBUS)) => {
                format!("it crashed (SIGBUS: it touched a region that was revoked){said}")
            }
            Some(Exit::Signal(libc::SIGKILL)) => format!("it was killed{said}"),
            Some(Exit::Signal(libc::SIGSYS)) => "it used a system call of another architecture".to_owned(),
            Some(Exit::Signal(signal)) => format!("it was ended by signal {signal}{said}"),
            None => format!("it is gone{said}"),
        }
    }
}
