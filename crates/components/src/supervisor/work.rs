//! The supervisor's thread: starts and connects components, watches them, cleans up after them, and restarts
//! them.

use super::{Event, ProcessName, RunningProcess, Shared, Slot, SupervisorState, WORDS_BYTES_MAX};
use crate::alias::AliasPage;
use crate::channel::Channel;
use crate::channel::packet::{self, Patience, wait as wait_for};
use crate::error::{ComponentError, During, Result};
use crate::kernel;
use crate::plan::{End, RegionGrant};
use crate::ports::{ComponentMessage, Role, SupervisorMessage};
use crate::region::Access;
use crate::sandbox::{Profile, call_name};
use crate::spawn::{self, Exit};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a component may take to enter its sandbox.
const GUARDED_WAIT: Duration = Duration::from_secs(5);
/// Shortest time between reads of a component's output.
const HEAR_EVERY: Duration = Duration::from_millis(20);
/// How long killed components may take to end.
const GONE_WAIT: Duration = Duration::from_secs(2);

/// Sends a message. A component that does not read its messages is stuck or hostile.
pub(super) fn send_message(
    running: &RunningProcess,
    message: &SupervisorMessage,
    files: &[OwnedFd],
) -> Result<()> {
    let bytes = borsh::to_vec(message).expect("a vector takes everything");
    if bytes.len() > crate::ports::CONTROL_BYTES_MAX {
        return Err(ComponentError::Plan("a component's configuration is too large".to_owned()));
    }
    packet::send(running.child.control.as_fd(), &[&bytes], &packet::borrowed(files), Patience::Never)
        .map_err(|_| ComponentError::PeerDoesNotRead("control".to_owned()))
}

pub(super) fn give_region(running: &RunningProcess, profile: &Profile, grant: &RegionGrant) -> Result<()> {
    if grant.access == Access::ReadWrite && grant.region.bytes() > profile.region_bytes_max {
        let words = format!("region {} is larger than its profile lets it write", grant.name);
        return Err(ComponentError::Plan(words));
    }
    let message = SupervisorMessage::Region {
        name: grant.name.clone(),
        access: grant.access,
        bytes: grant.region.bytes(),
    };
    send_message(running, &message, &[grant.region.view(grant.access)?])
}

impl Shared {
    pub(super) fn start_all(&self) -> Result<()> {
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
    fn guard(&self, state: &mut SupervisorState, index: usize) -> Result<()> {
        state.counter += 1;
        let process = ProcessName { realm: state.realm, counter: state.counter };
        let slot = &mut state.slots[index];
        let aliases = Arc::new(AliasPage::create()?);
        aliases.set(0, &process.to_bytes())?;
        let child = spawn::component(&self.program, &slot.plan.program, &slot.plan.profile)?;
        let mut buffer = [0; 4096];
        let word =
            packet::receive(child.control.as_fd(), &mut buffer, 1, Patience::of(GUARDED_WAIT)).ok().and_then(
                |(bytes, files)| Some((borsh::from_slice::<ComponentMessage>(&buffer[..bytes]).ok()?, files)),
            );
        let violations = match word {
            Some((ComponentMessage::Guarded { lacking }, mut files)) if files.len() == 1 => {
                slot.lacking = lacking;
                files.remove(0)
            }
            other => {
                spawn::kill(&child.pidfd);
                let exit = spawn::wait(&child.pidfd);
                let mut message = [0; 1024];
                let bytes = rustix::io::read(&child.words, &mut message).unwrap_or(0);
                let reason = match other {
                    Some((ComponentMessage::Failed(words), _)) => spawn::printable(words.as_bytes()),
                    _ => format!(
                        "it did not shut itself in ({exit:?}) {}",
                        spawn::printable(&message[..bytes])
                    ),
                };
                return Err(ComponentError::NotStarted { component: slot.plan.name.clone(), reason });
            }
        };
        let (pid, uid) = (child.pid, child.uid);
        slot.running = Some(Arc::new(RunningProcess {
            child,
            process,
            aliases: Arc::clone(&aliases),
            violations,
            words: Mutex::default(),
            read_next: Mutex::new(Some(Instant::now())),
            violation: Mutex::new(None),
        }));
        (self.listener)(Event::Starting { component: &slot.plan.name, process, pid, uid, aliases: &aliases });
        Ok(())
    }

    /// Makes a channel if both ends are up.
    fn connect(&self, state: &mut SupervisorState, index: usize) -> Result<()> {
        let plan = state.channels[index].clone();
        let holder = |end: &End| -> Option<(Option<Arc<RunningProcess>>, Arc<AliasPage>)> {
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
        let give =
            |end: &End, role: Role, to: Option<Arc<RunningProcess>>, socket: OwnedFd, peer: OwnedFd| match to
            {
                None => {
                    self.ports.attach(role, generation, Channel::new(&end.port, socket, &peer, plan.bounds)?);
                    Ok(())
                }
                Some(running) => {
                    let message = SupervisorMessage::Attach {
                        port: end.port.clone(),
                        role,
                        generation,
                        bounds: plan.bounds,
                    };
                    // A process that does not take the message is dead or stuck; its end is noticed, or
                    // forced.
                    if send_message(&running, &message, &[socket, peer]).is_err() {
                        spawn::kill(&running.child.pidfd);
                    }
                    Ok(())
                }
            };
        give(&plan.asks, Role::Asks, asks.0, a, serves.1.reader()?)?;
        give(&plan.serves, Role::Serves, serves.0, b, asks.1.reader()?)
    }

    /// Sends a component its remaining ports, regions and files, and lets it begin.
    fn begin(&self, state: &mut SupervisorState, index: usize) -> Result<()> {
        let slot = &state.slots[index];
        let Some(running) = &slot.running else { return Ok(()) };
        for channel in &state.channels {
            for (end, role) in channel.ends() {
                if end.component.as_deref() == Some(&slot.plan.name) {
                    send_message(running, &SupervisorMessage::Port { port: end.port.clone(), role }, &[])?;
                }
            }
        }
        for grant in &slot.plan.regions {
            give_region(running, &slot.plan.profile, grant)?;
        }
        for (name, file) in &slot.plan.files {
            let copy = file.try_clone().during("handing out a file")?;
            send_message(running, &SupervisorMessage::File { name: name.clone() }, &[copy])?;
        }
        for (port, other) in peers(state, &slot.plan.name) {
            let is_gone = |slot: &&Slot| slot.plan.name == other && (slot.down.is_some() || slot.done);
            if state.slots.iter().any(|slot| is_gone(&slot)) {
                send_message(running, &SupervisorMessage::Gone { port }, &[])?;
            }
        }
        let begin = SupervisorMessage::Begin {
            configuration: slot.plan.configuration.clone(),
            run: running.process.counter,
        };
        send_message(running, &begin, &[])
    }

    /// Notifies the components at the other ends of a component's channels that it will not come back.
    fn send_gone(&self, state: &SupervisorState, name: &str) {
        for channel in &state.channels {
            let [(asks, _), (serves, _)] = channel.ends();
            for (end, other) in [(asks, serves), (serves, asks)] {
                if other.component.as_deref() != Some(name) {
                    continue;
                }
                let Some(component) = &end.component else {
                    self.ports.mark_gone(&end.port);
                    continue;
                };
                let slot = state.slots.iter().find(|slot| slot.plan.name == *component);
                if let Some(running) = slot.and_then(|slot| slot.running.as_ref()) {
                    // A component that does not read its messages misses this one.
                    let _ = send_message(running, &SupervisorMessage::Gone { port: end.port.clone() }, &[]);
                }
            }
        }
    }

    pub(super) fn kill_all(&self) {
        for slot in &mut self.state.lock().slots {
            if let Some(running) = slot.running.take() {
                running.aliases.revoke_all();
                spawn::kill(&running.child.pidfd);
                let _ = spawn::wait(&running.child.pidfd);
            }
        }
    }

    /// The main loop of the supervisor's thread.
    pub(super) fn run(&self, woken: &OwnedFd) {
        loop {
            let (running, time) = {
                let state = self.state.lock();
                let running: Vec<_> = state.slots.iter().map(|slot| slot.running.clone()).collect();
                if state.stopping.is_some() && running.iter().all(Option::is_none) {
                    return;
                }
                let due = state.slots.iter().filter_map(|slot| slot.due);
                let mute = running.iter().flatten().filter_map(|running| *running.read_next.lock());
                let mute = mute.filter(|moment| *moment > Instant::now());
                let next = due.chain(state.stopping).chain(mute).min();
                (running, next.map(|moment| moment.saturating_duration_since(Instant::now())))
            };
            let mut events = vec![PollFd::new(woken, PollFlags::IN)];
            for running in running.iter().flatten() {
                events.push(PollFd::new(&running.child.pidfd, PollFlags::IN));
                events.push(PollFd::new(&running.violations, PollFlags::IN));
                events.push(match running.is_heard() {
                    true => PollFd::new(&running.child.words, PollFlags::IN),
                    false => PollFd::new(&running.child.pidfd, PollFlags::empty()),
                });
            }
            if wait_for(&mut events, time).is_err() {
                // The system is out of memory; nothing is lost by looking again later.
                std::thread::sleep(HEAR_EVERY);
                continue;
            }
            let is_ready = |place: usize| !events[place].revents().is_empty();
            if is_ready(0) {
                let _ = rustix::io::read(woken, &mut [0; 16]);
            }
            let mut ended = Vec::new();
            let present =
                running.iter().enumerate().filter_map(|(index, running)| Some((index, running.as_ref()?)));
            for (place, (index, running)) in present.enumerate() {
                let place = 1 + 3 * place;
                if is_ready(place + 2) && running.is_heard() {
                    running.read_output();
                }
                if events[place + 1].revents().contains(PollFlags::IN) {
                    running.judge();
                }
                if is_ready(place) {
                    ended.push((index, Arc::clone(running)));
                }
            }
            drop(events);
            drop(running);
            let mut state = self.state.lock();
            for (index, running) in ended {
                self.clean_up(&mut state, index, &running);
            }
            if state.stopping.is_some_and(|moment| moment <= Instant::now()) {
                for running in state.slots.iter().filter_map(|slot| slot.running.as_ref()) {
                    spawn::kill(&running.child.pidfd);
                }
                // They were killed, so it only remains to wait until they have ended.
                state.stopping = Some(Instant::now() + GONE_WAIT);
            }
            self.start_due(&mut state);
        }
    }

    /// A process has ended: says why, and decides whether there will be another.
    fn clean_up(&self, state: &mut SupervisorState, index: usize, running: &RunningProcess) {
        running.aliases.revoke_all();
        let exit = spawn::wait(&running.child.pidfd);
        running.read_output();
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
        (self.listener)(Event::Ended {
            component: &slot.plan.name,
            process: running.process,
            reason: &reason,
            restarts,
        });
        if !restarts {
            let slot = &mut state.slots[index];
            slot.release();
            let name = slot.plan.name.clone();
            if !stopping {
                self.send_gone(state, &name);
            }
        }
    }

    /// Decides, after a component has crashed, when it is restarted, or that it stays down.
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

    fn start_due(&self, state: &mut SupervisorState) {
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
                if slot.down.is_some() {
                    slot.release();
                    self.send_gone(state, &name);
                }
            }
        }
    }

    fn start_again(&self, state: &mut SupervisorState, index: usize, name: &str) -> Result<()> {
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

impl Slot {
    /// Closes what only another process of this component would use, since there will be none. (The kernel
    /// ends a mount, together with the programs that wait for it, when no process has its session open any
    /// more.)
    fn release(&mut self) {
        self.plan.files.clear();
        self.plan.regions.clear();
    }
}

/// The ports of a component, each with the component at the other end.
fn peers(state: &SupervisorState, name: &str) -> Vec<(String, String)> {
    let mut peers = Vec::new();
    for channel in &state.channels {
        let [(asks, _), (serves, _)] = channel.ends();
        for (end, other) in [(asks, serves), (serves, asks)] {
            if end.component.as_deref() == Some(name)
                && let Some(other) = &other.component
            {
                peers.push((end.port.clone(), other.clone()));
            }
        }
    }
    peers
}

impl RunningProcess {
    /// Whether the component's output may be read at the moment.
    fn is_heard(&self) -> bool {
        self.read_next.lock().is_some_and(|moment| moment <= Instant::now())
    }

    /// Stores the last of a component's output, and then does not read for a moment: a component that writes
    /// a lot, or closes its output, must not keep the supervisor busy.
    fn read_output(&self) {
        let mut read_next = self.read_next.lock();
        *read_next = Some(Instant::now() + HEAR_EVERY);
        let mut words = self.words.lock();
        let mut buffer = [0; 1024];
        // As much as the pipe holds, but a limited number of times: a component may write faster than this
        // reads.
        for _ in 0..64 {
            match rustix::io::read(&self.child.words, &mut buffer) {
                Ok(0) => {
                    *read_next = None;
                    return;
                }
                Err(_) => return,
                Ok(bytes) => words.extend(&buffer[..bytes]),
            }
            let surplus = words.len().saturating_sub(WORDS_BYTES_MAX);
            words.drain(..surplus);
        }
    }

    /// The process made a system call that its profile does not permit. The call is not carried out, and the
    /// process ends.
    fn judge(&self) {
        if let Ok(Some(number)) = kernel::next_violation(self.violations.as_fd()) {
            self.violation.lock().get_or_insert(number);
            spawn::kill(&self.child.pidfd);
        }
    }

    /// Why a process ended, in words.
    fn reason(&self, exit: Option<&Exit>) -> String {
        if let Some(number) = *self.violation.lock() {
            return format!("it used a forbidden system call, {}; it was stopped", call_name(number.into()));
        }
        let mut words = self.words.lock();
        let message = spawn::printable(words.make_contiguous());
        let message = if message.is_empty() { message } else { format!("; its last words: {message}") };
        match exit {
            Some(Exit::Code(0)) => "it is done".to_owned(),
            Some(Exit::Code(101)) => format!("it panicked{message}"),
            Some(Exit::Code(code)) => format!("it ended with code {code}{message}"),
            // Process 1 of a namespace cannot be ended by its own SIGABRT, so glibc's abort ends in SIGSEGV.
            Some(Exit::Signal(libc::SIGSEGV)) => {
                format!("it crashed (SIGSEGV: bad memory access, or abort){message}")
            }
            Some(Exit::Signal(libc::SIGBUS)) => {
                format!("it crashed (SIGBUS: it touched a region that was revoked){message}")
            }
            Some(Exit::Signal(libc::SIGKILL)) => format!("it was killed{message}"),
            Some(Exit::Signal(libc::SIGSYS)) => "it used a system call of another architecture".to_owned(),
            Some(Exit::Signal(signal)) => format!("it was ended by signal {signal}{message}"),
            None => format!("it is gone{message}"),
        }
    }
}
