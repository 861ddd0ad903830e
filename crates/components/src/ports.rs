//! The ports, regions and files of a process by name, as provided by the runtime.
//!
//! A component gets them over its control channel, and so also new ends of channels when the component at the
//! other end was restarted. The supervisor's own process may hold ends as well, and gets them directly. Only
//! the supervisor holds the other end of a control channel, so its messages are trusted.

use crate::channel::packet::{self, PacketError};
use crate::channel::{Asker, Bounds, Channel, Ended, Patience, Reply, Request};
use crate::error::{ComponentError, Result};
use crate::merged::{Call, Handler};
use crate::region::{Access, View};
use crate::sandbox::Wall;
use borsh::{BorshDeserialize, BorshSerialize};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a control message.
pub(crate) const CONTROL_BYTES_MAX: usize = 32 << 10;
/// How long one thread waits for control messages before it lets another one wait.
const SLICE: Duration = Duration::from_millis(20);

/// A side of a channel.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// This end sends requests.
    Asks,
    /// This end serves requests.
    Serves,
}

/// Message from the supervisor to a component. Public, like [`ComponentMessage`], so that tests can send
/// hostile ones.
#[allow(missing_docs, reason = "what a field is, the sentence of its message says")]
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum SupervisorMessage {
    /// Declares a port of the component, which need not have a channel yet.
    Port { port: String, role: Role },
    /// An end of a channel, and the page of the other's aliases: two files.
    Attach { port: String, role: Role, generation: u64, bounds: Bounds },
    /// The component at the other end of a port's channel ended and will not be restarted.
    Gone { port: String },
    /// A view of a region: one file.
    Region { name: String, access: Access, bytes: u64 },
    /// Takes a view away from the component.
    Withdraw { name: String },
    /// An open file: one descriptor.
    File { name: String },
    /// All ports, regions and files were sent: begin. Contains the component's configuration, and a number
    /// that no run before has used.
    Begin { configuration: Vec<u8>, run: u64 },
    /// The component is to end.
    Stop,
}

/// Message from a component to the supervisor.
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum ComponentMessage {
    /// The component is in its sandbox: one file, the listener for violations.
    Guarded {
        /// Walls that the sandbox lacks.
        lacking: Vec<Wall>,
    },
    /// The component could not shut itself in, and runs nothing.
    Failed(String),
}

struct Port {
    role: Role,
    generation: u64,
    /// `None` until the component at the other end has started for the first time.
    channel: Option<Arc<Channel>>,
    /// Whether the other end will never come back, so that no thread waits for it.
    is_gone: bool,
}

#[derive(Default)]
struct PortTable {
    ports: BTreeMap<String, Port>,
    regions: BTreeMap<String, Arc<View>>,
    files: BTreeMap<String, OwnedFd>,
    /// For a component without a process of its own: the components that it calls, by port.
    calls: BTreeMap<String, Arc<Call>>,
    handler: Option<Handler>,
    begun: Option<(Vec<u8>, u64)>,
    stopping: bool,
    /// Incremented with every change of the table, so that waiting threads notice it.
    version: u64,
}

/// The ports, regions and files of a process.
pub struct Ports {
    control: Option<OwnedFd>,
    is_merged: bool,
    /// Locked while receiving from `control`.
    receiving: Mutex<Vec<u8>>,
    table: Mutex<PortTable>,
    changed: Condvar,
}

impl Ports {
    pub(crate) fn new(control: Option<OwnedFd>) -> Arc<Ports> {
        let receiving = Mutex::new(vec![0; if control.is_some() { CONTROL_BYTES_MAX } else { 0 }]);
        let (table, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Ports { control, is_merged: false, receiving, table, changed })
    }

    /// The ports of a component that has no process of its own ([`crate::Merged`]).
    pub(crate) fn merged(
        run: u64,
        regions: BTreeMap<String, Arc<View>>,
        files: Vec<(String, OwnedFd)>,
    ) -> Arc<Ports> {
        let files = files.into_iter().collect();
        let table =
            Mutex::new(PortTable { begun: Some((Vec::new(), run)), regions, files, ..PortTable::default() });
        let (receiving, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Ports { control: None, is_merged: true, receiving, table, changed })
    }

    pub(crate) fn connect(&self, port: &str, call: Call) {
        self.table.lock().calls.insert(port.to_owned(), Arc::new(call));
    }

    /// The handler of calls to this component. Waits until it is set.
    pub(crate) fn handler(&self, port: &str, patience: Patience) -> Result<Handler> {
        let mut table = self.table.lock();
        loop {
            let left = patience.left();
            match &table.handler {
                Some(handler) => return Ok(Arc::clone(handler)),
                None if table.stopping || left.is_some_and(|left| left.is_zero()) => {
                    return Err(ComponentError::Disconnected(port.to_owned()));
                }
                None => self.changed.wait_for(&mut table, left.map_or(SLICE, |left| left.min(SLICE))),
            };
        }
    }

    /// Serves calls until the component is stopped.
    fn serve_calls(&self, handler: Handler) -> Ended {
        let mut table = self.table.lock();
        table.handler = Some(handler);
        self.changed.notify_all();
        while !table.stopping {
            self.changed.wait(&mut table);
        }
        // What the component holds is dropped with it, including others' ports.
        let gone = (table.handler.take(), std::mem::take(&mut table.calls));
        drop(table);
        drop(gone);
        Ended::Stopped
    }

    /// Answers requests with `threads` threads and a handler that owns what it needs, so that it also works
    /// where several components share a process. More than one thread needs [`crate::Permission::Threads`].
    ///
    /// # Errors
    /// The system failed; no peer can cause this.
    pub fn serve_owned(
        &self,
        threads: usize,
        answer: impl Fn(Request) -> Reply + Send + Sync + 'static,
    ) -> Result<Ended> {
        match self.is_merged {
            true => Ok(self.serve_calls(Arc::new(answer))),
            false => self.serve_with_threads(threads, answer),
        }
    }

    /// Ends this component from any of its threads; if it has a process of its own, the process.
    pub fn end(&self, code: i32) {
        match self.is_merged {
            true => self.stop(),
            false => std::process::exit(code),
        }
    }

    pub(crate) fn control(&self) -> Option<BorrowedFd<'_>> {
        self.control.as_ref().map(AsFd::as_fd)
    }

    /// An asker over a port. Give one port one asker, and share it.
    ///
    /// # Errors
    /// There is no such port, or this component serves it.
    pub fn asker<Q: BorshSerialize, A: BorshDeserialize>(
        self: &Arc<Ports>,
        port: &str,
    ) -> Result<Asker<Q, A>> {
        let table = self.table.lock();
        // Numbers of different runs differ, so that no server takes a new request for a repetition.
        let first = table.begun.as_ref().map_or(0, |(_, run)| *run) << 40;
        if let Some(call) = table.calls.get(port) {
            return Ok(Asker::new(port, Arc::clone(self), Some(Arc::clone(call)), first));
        }
        match table.ports.get(port) {
            Some(known) if known.role == Role::Asks => Ok(Asker::new(port, Arc::clone(self), None, first)),
            _ => Err(ComponentError::NoSuchPort(port.to_owned())),
        }
    }

    /// The names of the ports with a role.
    pub fn names(&self, role: Role) -> Vec<String> {
        let table = self.table.lock();
        table.ports.iter().filter(|(_, port)| port.role == role).map(|(name, _)| name.clone()).collect()
    }

    /// A region that was passed to this process.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn region(&self, name: &str) -> Result<Arc<View>> {
        let table = self.table.lock();
        table.regions.get(name).cloned().ok_or_else(|| ComponentError::NoSuchRegion(name.to_owned()))
    }

    /// Takes a file that was passed to this process.
    pub fn take_file(&self, name: &str) -> Option<OwnedFd> {
        self.table.lock().files.remove(name)
    }

    /// The present channel of a port, for a process with a loop of its own.
    ///
    /// # Errors
    /// There is no such port, or the other end is not up.
    pub fn channel(&self, port: &str) -> Result<Arc<Channel>> {
        self.channel_after(port, 0, Patience::Never).map(|(_, channel)| channel)
    }

    /// The descriptor that is readable when the supervisor has sent a message, for a process with a loop of
    /// its own; `None` in the supervisor's process.
    pub fn orders(&self) -> Option<BorrowedFd<'_>> {
        self.control()
    }

    /// Handles messages of the supervisor: new ends of channels, regions, and requests to end. A process with
    /// a loop of its own must call this when there are some; [`Ports::serve`] does it.
    ///
    /// # Errors
    /// A message is not understood, or the system fails.
    pub fn attend(&self, patience: Patience) -> Result<Option<Ended>> {
        match self.take_orders(patience) {
            Ok(()) => Ok(self.is_stopping().then_some(Ended::Stopped)),
            Err(ComponentError::Disconnected(_)) => Ok(Some(Ended::Orphaned)),
            Err(error) => Err(error),
        }
    }

    /// Whether the supervisor asked for the end.
    pub fn is_stopping(&self) -> bool {
        self.table.lock().stopping
    }

    /// Incremented with every port that is added.
    pub(crate) fn version(&self) -> u64 {
        self.table.lock().version
    }

    pub(crate) fn serving(&self) -> Vec<(String, u64, Arc<Channel>)> {
        let table = self.table.lock();
        let served = table.ports.iter().filter(|(_, port)| port.role == Role::Serves);
        served
            .filter_map(|(name, port)| Some((name.clone(), port.generation, port.channel.clone()?)))
            .collect()
    }

    /// The channel of a port, if it is newer than `generation`; waits for one.
    pub(crate) fn channel_after(
        &self,
        port: &str,
        generation: u64,
        patience: Patience,
    ) -> Result<(u64, Arc<Channel>)> {
        loop {
            let mut table = self.table.lock();
            match table.ports.get(port) {
                Some(Port { channel: Some(channel), generation: newer, .. }) if *newer > generation => {
                    return Ok((*newer, Arc::clone(channel)));
                }
                Some(port) if !table.stopping && !port.is_gone => {}
                Some(_) => return Err(ComponentError::Disconnected(port.to_owned())),
                None => return Err(ComponentError::NoSuchPort(port.to_owned())),
            }
            let left = patience.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ComponentError::Disconnected(port.to_owned()));
            }
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            if self.control.is_none() {
                self.changed.wait_for(&mut table, slice);
                continue;
            }
            drop(table);
            self.take_orders(Patience::of(slice))?;
        }
    }

    /// Waits until all ports, regions and files have arrived; returns the configuration and the number of the
    /// run.
    pub(crate) fn wait_for_begin(&self) -> Result<(Vec<u8>, u64)> {
        loop {
            if let Some(begun) = self.table.lock().begun.clone() {
                return Ok(begun);
            }
            self.take_orders(Patience::Forever)?;
        }
    }

    /// Receives messages of the supervisor: waits for the first, and takes all that are there.
    ///
    /// # Errors
    /// The supervisor is gone, so this process has no purpose any more.
    pub(crate) fn take_orders(&self, patience: Patience) -> Result<()> {
        let Some(control) = self.control() else { return Ok(()) };
        let Some(mut buffer) = (match patience.left() {
            None => Some(self.receiving.lock()),
            Some(left) => self.receiving.try_lock_for(left),
        }) else {
            return Ok(());
        };
        let mut patience = patience;
        loop {
            match packet::receive(control, &mut buffer, packet::FILES_MAX, patience) {
                Ok((bytes, files)) => self.apply(&buffer[..bytes], files)?,
                Err(PacketError::Late) => return Ok(()),
                Err(PacketError::Gone) => return Err(ComponentError::Disconnected("control".to_owned())),
                Err(PacketError::System(source)) => {
                    return Err(ComponentError::System { what: "receiving orders", source });
                }
                Err(PacketError::Large | PacketError::Files) => return Err(misunderstood()),
            }
            patience = Patience::Never;
        }
    }

    fn apply(&self, bytes: &[u8], files: Vec<OwnedFd>) -> Result<()> {
        let order: SupervisorMessage = borsh::from_slice(bytes).map_err(|_| misunderstood())?;
        let mut files = files.into_iter();
        let mut file = || files.next().ok_or_else(misunderstood);
        match order {
            SupervisorMessage::Port { port, role } => self.declare(&port, role),
            SupervisorMessage::Attach { port, role, generation, bounds } => {
                let (socket, page) = (file()?, file()?);
                self.attach(role, generation, Channel::new(&port, socket, &page, bounds)?);
            }
            SupervisorMessage::Gone { port } => self.mark_gone(&port),
            SupervisorMessage::Region { name, access, bytes } => {
                let view = View::new(file()?, access, bytes);
                self.table.lock().regions.insert(name, Arc::new(view));
            }
            SupervisorMessage::Withdraw { name } => {
                self.table.lock().regions.remove(&name);
            }
            SupervisorMessage::File { name } => {
                let file = file()?;
                self.table.lock().files.insert(name, file);
            }
            SupervisorMessage::Begin { configuration, run } => {
                self.table.lock().begun = Some((configuration, run))
            }
            SupervisorMessage::Stop => {
                self.table.lock().stopping = true;
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    /// Adds a port that has no channel yet.
    pub(crate) fn declare(&self, port: &str, role: Role) {
        let port_of = || Port { role, generation: 0, channel: None, is_gone: false };
        self.table.lock().ports.entry(port.to_owned()).or_insert_with(port_of);
    }

    /// Replaces the channel of the same name.
    pub(crate) fn attach(&self, role: Role, generation: u64, channel: Channel) {
        let mut table = self.table.lock();
        let name = channel.port().to_owned();
        table.ports.insert(name, Port { role, generation, channel: Some(Arc::new(channel)), is_gone: false });
        table.version += 1;
        self.changed.notify_all();
    }

    /// Notes that the other end of a port will not come back, so that nobody waits for it.
    pub(crate) fn mark_gone(&self, port: &str) {
        if let Some(port) = self.table.lock().ports.get_mut(port) {
            port.is_gone = true;
        }
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.table.lock().stopping = true;
        self.changed.notify_all();
    }
}

fn misunderstood() -> ComponentError {
    ComponentError::PeerMisbehaved {
        port: "control".to_owned(),
        offence: "an order that this version does not understand",
    }
}
