//! The process that starts components, connects them, watches them, and restarts a crashed one.
//!
//! One thread does everything, because the kernel ends a component together with the thread that started it:
//! if the supervisor ends for whatever reason, so do all components. The thread waits for ends of processes,
//! for violations, for output, and for the time of a restart.
//!
//! A crash loses what the component had in flight. Its aliases end with it, so what it left in queues is
//! refused. Its peers see the channel end, and their requests in flight become *unknown whether done*. When
//! it runs again they get a new channel under the old name and may repeat requests with the same numbers.
//! What was acknowledged must be where a crash does not reach: in a region, which the supervisor holds, or in
//! the log. A component has no other state than what can be restored from there.

mod work;

use crate::alias::AliasPage;
use crate::error::{ComponentError, During, Result};
use crate::listing::{self, Listing};
use crate::plan::{ComponentPlan, Plan, RegionGrant};
use crate::ports::{Ports, SupervisorMessage};
use crate::region::{Access, Region};
use crate::sandbox::{self, Wall};
use crate::spawn::{self, Child, Program};
use parking_lot::Mutex;
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use work::{give_region, send_message};

/// How long components may take to end when asked to.
const STOP_WAIT: Duration = Duration::from_secs(2);
/// Number of bytes of a component's output that are stored, the last ones.
const WORDS_BYTES_MAX: usize = 2 << 10;

/// The name of a process. Never used again: the first half was drawn for this supervisor, the second counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessName {
    /// Drawn at random when the supervisor started.
    pub realm: [u8; 16],
    /// Counts the supervisor's processes.
    pub counter: u64,
}

impl ProcessName {
    /// The name as bytes of the size of a principal's digest: the realm, the counter (big endian), zeros.
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

/// An event that the supervisor reports, on its thread.
pub enum Event<'a> {
    /// A component is in its sandbox and about to start. Entry 0 of its aliases is the name of its process
    /// ([`ProcessName::to_bytes`]). The listener may replace it with the digest of a principal, and add
    /// entries for what was proven.
    Starting {
        /// The component's name.
        component: &'a str,
        /// The process that started.
        process: ProcessName,
        /// Its number on this system.
        pid: i32,
        /// The user on this system that it runs as.
        uid: u32,
        /// The page of its aliases, for the listener to change.
        aliases: &'a Arc<AliasPage>,
    },
    /// A component ended. Its aliases are revoked.
    Ended {
        /// The component's name.
        component: &'a str,
        /// The process that ended.
        process: ProcessName,
        /// Why it ended, in words.
        reason: &'a str,
        /// Whether it will be restarted.
        restarts: bool,
    },
}

/// Called with every event.
pub type Listener = Box<dyn Fn(Event) + Send + Sync>;

/// A process of a component.
pub(crate) struct RunningProcess {
    pub(crate) child: Child,
    pub(crate) process: ProcessName,
    aliases: Arc<AliasPage>,
    violations: OwnedFd,
    words: Mutex<VecDeque<u8>>,
    /// When its output is read again; `None`: it has closed its output.
    read_next: Mutex<Option<Instant>>,
    violation: Mutex<Option<i32>>,
}

/// A component of the plan, whether it runs or not.
pub(crate) struct Slot {
    pub(crate) plan: ComponentPlan,
    pub(crate) running: Option<Arc<RunningProcess>>,
    /// Restarts since the supervisor began.
    pub(crate) restarts: u32,
    /// The times of the restarts within the window.
    recent: VecDeque<Instant>,
    due: Option<Instant>,
    /// Why it is not restarted any more.
    pub(crate) down: Option<String>,
    /// Whether it exited successfully.
    pub(crate) done: bool,
    pub(crate) last_end: Option<String>,
    /// Walls that its process was started without, or the last one it had.
    pub(crate) lacking: Vec<Wall>,
}

pub(crate) struct SupervisorState {
    pub(crate) name: String,
    pub(crate) realm: [u8; 16],
    counter: u64,
    pub(crate) slots: Vec<Slot>,
    pub(crate) channels: Vec<crate::plan::ChannelPlan>,
    generations: Vec<u64>,
    stopping: Option<Instant>,
}

struct Shared {
    state: Mutex<SupervisorState>,
    program: Program,
    ports: Arc<Ports>,
    /// The page of the supervising process itself.
    host_aliases: Arc<AliasPage>,
    listener: Listener,
}

/// Supervises the components of a plan.
pub struct Supervisor {
    shared: Arc<Shared>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
    /// Answers `holdfast components`; dropped with the supervisor.
    _listing: Option<listing::Socket>,
}

impl Supervisor {
    /// Starts everything in a plan. On return, all components are in their sandboxes and have started.
    ///
    /// `listener` is called on the supervisor's thread while it holds its state: it must be quick and must
    /// not call the supervisor.
    ///
    /// # Errors
    /// The plan is inconsistent, or a component cannot be started; then none runs.
    pub fn start(
        program: Program,
        mut plan: Plan,
        listener: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Supervisor> {
        plan.check()?;
        if sandbox::all_walls_are_required() {
            for component in &mut plan.components {
                component.profile.accept_without.clear();
            }
        }
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
            lacking: Vec::new(),
        });
        let state = SupervisorState {
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
            listener: Box::new(listener),
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
        let lacking = Listing::of(&shared.state.lock()).lacking();
        if let Some(words) = sandbox::weaker(&lacking) {
            // All components of this process run on one kernel, so one line in the log is enough.
            static SAID: Once = Once::new();
            SAID.call_once(|| tracing::warn!("{words}"));
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

    /// The present state of all components.
    pub fn listing(&self) -> Listing {
        Listing::of(&self.shared.state.lock())
    }

    /// Passes a region to a component, now and after each restart. Replaces a region of the same name.
    ///
    /// # Errors
    /// There is no such component, or it does not read its messages.
    pub fn grant(&self, component: &str, name: &str, region: &Arc<Region>, access: Access) -> Result<()> {
        let mut state = self.shared.state.lock();
        let slot = slot_of(&mut state, component)?;
        let grant = RegionGrant { name: name.to_owned(), region: Arc::clone(region), access };
        if let Some(running) = &slot.running {
            give_region(running, &slot.plan.profile, &grant)?;
        }
        slot.plan.regions.retain(|known| known.name != name);
        slot.plan.regions.push(grant);
        Ok(())
    }

    /// Withdraws a region from a component, also for later restarts. A malicious component keeps its view;
    /// only [`Region::revoke`] takes that away, from every holder.
    ///
    /// # Errors
    /// There is no such component.
    pub fn withdraw(&self, component: &str, name: &str) -> Result<()> {
        let mut state = self.shared.state.lock();
        let slot = slot_of(&mut state, component)?;
        slot.plan.regions.retain(|known| known.name != name);
        if let Some(running) = &slot.running {
            send_message(running, &SupervisorMessage::Withdraw { name: name.to_owned() }, &[])?;
        }
        Ok(())
    }

    /// Kills a component's process, as a crash would.
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
                if send_message(running, &SupervisorMessage::Stop, &[]).is_err() {
                    spawn::kill(&running.child.pidfd);
                }
            }
        }
        self.shared.ports.stop();
        let _ = rustix::io::write(&self.wake, b"!");
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Regions and files are dropped now, rather than when the last request for a listing was answered.
        self.shared.state.lock().slots.clear();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.end();
    }
}

fn slot_of<'a>(state: &'a mut SupervisorState, component: &str) -> Result<&'a mut Slot> {
    let found = state.slots.iter_mut().find(|slot| slot.plan.name == component);
    found.ok_or_else(|| ComponentError::NoSuchComponent(component.to_owned()))
}
