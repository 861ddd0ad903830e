//! Connecting directly to other clients of the file system: finding them, exchanging the latest operations,
//! and what to do when a connected peer falls silent (SUNDR section 3.2).
//!
//! The attack: a server keeps two devices apart and shows each a history that is true but incomplete. As soon
//! as one of them has an operation that the other was not shown, and the two can communicate, their two
//! receipts prove what the server did ([`holdfast_protocol::peers`]), and everything freezes, with evidence.
//!
//! Peers are found by [`records`] in the file system itself, and by [`beacons`] on the local network. Neither
//! is trusted: they lead to connections, over which a peer proves that it has the key of a device in the
//! membership in force ([`connections`]). Its reports are judged on a separate thread ([`judging`]), so that
//! a server that does not answer does not keep this device from sending.
//!
//! Invariants: no unproven report of a peer freezes a device or is used as content. The resources of each
//! peer are bounded: [`DEVICE_CONNECTIONS_MAX`] connections, one report that is not judged yet,
//! [`ADDRESSES_MAX`] addresses of each kind, and a number of messages and of requests to the server per
//! second.

mod beacons;
mod connections;
mod judging;
mod records;
mod status;
#[cfg(test)]
mod tests;
mod watching;

use super::Engine;
use super::leases::now_ms;
use super::meeting::{PeerHook, PeersPolicy, PeersStatus, WhenPeerLost};
use super::queue::RequestPriority;
use super::shared::Shared;
use super::snapshot::Snapshot;
use super::stop::Stop;
use crate::backend::ReadSet;
use crate::error::{FsError, StartError};
use crate::processes::{PeerChannel, Processes};
use crate::tree::Edit;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::peers::{Change, DeviceProgress, Presence, Roster};
use holdfast_rpc::ServerAddress;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Most connections to other clients.
const CONNECTIONS_MAX: usize = 64;
/// Most connections to one device. (Both ends may make one at the same time, and a dead one may not have been
/// noticed.)
const DEVICE_CONNECTIONS_MAX: usize = 4;
/// Most connections in each direction that are not authenticated yet.
const BEGINNING_MAX: usize = 24;
/// Most addresses remembered for one device, from records and from beacons separately.
const ADDRESSES_MAX: usize = 3;

/// The peers that one engine knows of, and its connections to them.
pub(super) struct Peers {
    policy: PeersPolicy,
    processes: Arc<Processes>,
    /// Random number of this run of the device.
    run: u64,
    /// Addresses at which other devices can connect to this one.
    announced: Vec<SocketAddr>,
    port: u16,
    state: Mutex<PeersState>,
    /// Notified when a peer has sent a report that is to be judged.
    said: Condvar,
    /// Number of connections that are not authenticated yet: those made to this device, and those it makes.
    beginning: [AtomicUsize; 2],
    /// Whether programs must wait because a peer is lost.
    is_paused: AtomicBool,
    has_left: AtomicBool,
    hooks: Mutex<Vec<PeerHook>>,
    stop: Stop,
}

/// The devices that may be connected, and the known progress of each.
struct PeersState {
    roster: Roster,
    known: BTreeMap<DeviceId, PeerState>,
    connections: Vec<Arc<PeerConnection>>,
    trouble: Option<String>,
}

/// What is known of one peer.
#[derive(Default)]
struct PeerState {
    recorded: Vec<SocketAddr>,
    heard: VecDeque<SocketAddr>,
    /// When it may be called next, and how long to wait if that fails.
    call_at_ms: u64,
    call_pause_ms: u64,
    /// Its last report, until that is found to agree.
    said: Option<Box<DeviceProgress>>,
    /// When to judge that report, in milliseconds of this process's clock.
    judge_at_ms: u64,
    /// Size of the log up to which both devices have seen the same, and when that was found, in nanoseconds
    /// since 1970.
    agreed: Option<(u64, i64)>,
    /// When its last message came, in nanoseconds since 1970.
    heard_ns: Option<i64>,
    trouble: Option<String>,
}

/// A connection to a peer whose key and device are known.
struct PeerConnection {
    device: DeviceId,
    channel: PeerChannel,
    /// The last progress sent to it, and when, in milliseconds.
    told: Mutex<(Option<DeviceProgress>, u64)>,
}

/// The function that a thread runs.
type Task = Box<dyn FnOnce(&Arc<Peers>, &Arc<Shared>) + Send>;

impl Peers {
    fn new(
        policy: PeersPolicy,
        processes: Arc<Processes>,
        run: u64,
        announced: Vec<SocketAddr>,
        port: u16,
    ) -> Peers {
        let roster = Roster::new(policy.timeout.as_millis() as u64);
        let (known, connections) = Default::default();
        Peers {
            policy,
            processes,
            run,
            announced,
            port,
            state: Mutex::new(PeersState { roster, known, connections, trouble: None }),
            said: Condvar::new(),
            beginning: Default::default(),
            is_paused: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            hooks: Mutex::default(),
            stop: Stop::default(),
        }
    }

    /// Whether programs may read or change anything.
    pub fn may_work(&self) -> Result<(), FsError> {
        match self.is_paused.load(Relaxed) {
            true => Err(FsError::Outdated(self.words())),
            false => Ok(()),
        }
    }

    /// Whether an operation may be made. Changes that are kept for sending wait, as they do for an
    /// unreachable server.
    pub fn may_operate(&self) -> Result<(), FsError> {
        match self.is_paused.load(Relaxed) {
            true => Err(FsError::Unreachable(self.words())),
            false => Ok(()),
        }
    }

    fn words(&self) -> String {
        let state = self.state.lock();
        let lost = state.roster.peers().iter().filter(|(_, peer)| peer.presence == Presence::Lost);
        let lost: Vec<String> = lost.map(|(device, _)| format!("device {}", device.0)).collect();
        format!(
            "{} was met directly, has not logged out, and is silent; whether the server shows the same to both is not \
             known until it is back. `holdfast evidence peers go-on` ends the waiting for it",
            lost.join(", ")
        )
    }

    /// Registers a hook, and calls it at once if a peer is lost already.
    pub fn on_change(&self, hook: PeerHook) {
        if self.state.lock().roster.is_anybody_lost() {
            hook(true, &self.words());
        }
        self.hooks.lock().push(hook);
    }

    /// Acts on changes of presence: sets the pause, and calls the hooks.
    fn changed(&self, changes: &[Change]) {
        let is_anybody_lost = self.state.lock().roster.is_anybody_lost();
        self.is_paused.store(is_anybody_lost && self.policy.when_lost == WhenPeerLost::Pause, SeqCst);
        for change in changes {
            let device = change.device.0;
            match change.presence {
                Presence::Lost => tracing::warn!(device, "a peer is lost"),
                Presence::Met => tracing::info!(device, "met a peer"),
                Presence::LoggedOut => tracing::info!(device, "a peer has logged out"),
                Presence::LoggedIn => {}
            }
            // Peers that log in and out properly are not reported.
            let words = match (change.before, change.presence) {
                (_, Presence::Lost) => self.words(),
                (Presence::Lost, Presence::Met) => format!("device {device} is met again"),
                (Presence::Lost, _) => format!("device {device} has logged out"),
                _ => continue,
            };
            self.hooks.lock().iter().for_each(|hook| hook(is_anybody_lost, &words));
        }
    }

    /// Stops waiting for lost peers, until they are connected again. Returns which they were.
    pub fn stop_waiting_for_lost(&self) -> Vec<DeviceId> {
        let given_up = self.state.lock().roster.stop_waiting_for_lost();
        self.changed(&[]);
        given_up
    }

    /// Tells all peers that this run ends properly.
    pub fn leave(&self, shared: &Arc<Shared>) {
        if self.has_left.swap(true, SeqCst) {
            return;
        }
        self.say_goodbye();
        records::log_out(self, shared);
    }

    /// Ends all threads and connections.
    pub fn stop(&self) {
        self.stop.ask();
        self.said.notify_all();
        for connection in &self.state.lock().connections {
            connection.channel.hang_up();
        }
    }
}

/// The listener, which is needed before everything else.
///
/// # Errors
/// No listener can be had.
pub(super) fn listen(policy: &PeersPolicy) -> Result<TcpListener, StartError> {
    let bound = match policy.listen {
        Some(address) => TcpListener::bind(address),
        None => TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")),
    };
    let listener = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|source| StartError::Local { what: "listening for other clients".to_owned(), source })
}

/// Addresses at which others can reach this machine: the one it listens at, or the one from which it reaches
/// the server.
fn announced(listener: &TcpListener, server: &ServerAddress) -> (Vec<SocketAddr>, u16) {
    let Ok(local) = listener.local_addr() else { return (Vec::new(), 0) };
    if !local.ip().is_unspecified() {
        return (vec![local], local.port());
    }
    let towards = |server: SocketAddr| -> std::io::Result<IpAddr> {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // Nothing is sent: the system reports which address it would use.
        socket.connect(server)?;
        Ok(socket.local_addr()?.ip())
    };
    let servers = (server.host.as_str(), server.port).to_socket_addrs();
    let mut found: Vec<SocketAddr> = Vec::new();
    for ip in servers.into_iter().flatten().filter_map(|server| towards(server).ok()) {
        let address = SocketAddr::new(ip, local.port());
        if !found.contains(&address) && found.len() < ADDRESSES_MAX {
            found.push(address);
        }
    }
    (found, local.port())
}

impl Engine {
    /// Begins to connect to other clients.
    pub(super) fn meet_peers(
        self: Arc<Self>,
        policy: PeersPolicy,
        processes: &Arc<Processes>,
        server: &ServerAddress,
        listener: TcpListener,
    ) -> Result<Arc<Engine>, StartError> {
        processes.welcome_peers().map_err(|error| StartError::Key(error.to_string()))?;
        let (announced, port) = announced(&listener, server);
        let local = |source| StartError::Local { what: "drawing a number".to_owned(), source };
        let run = super::start::draw_run().map_err(local)? as u64;
        let peers = Arc::new(Peers::new(policy, processes.clone(), run, announced, port));
        let _ = self.shared.peers.set(peers.clone());
        let mut threads = Vec::new();
        let mut spawn = |name: &str, body: Task| {
            let (peers, shared) = (peers.clone(), self.shared.clone());
            threads.push(super::start::spawn(name, move || body(&peers, &shared))?);
            Ok::<(), StartError>(())
        };
        spawn("peer-records", Box::new(records::run))?;
        spawn("peer-judge", Box::new(judging::run))?;
        spawn("peer-door", Box::new(move |peers, shared| connections::accept(peers, shared, &listener)))?;
        spawn("peer-watch", Box::new(watching::run))?;
        if peers.policy.beacon {
            spawn("peer-beacons", Box::new(beacons::run))?;
        }
        let mut all = self.threads.lock();
        threads.into_iter().for_each(|thread| all.insert(0, thread));
        drop(all);
        Ok(self)
    }

    /// Registers a hook that is called when a peer is lost, and when it is back.
    pub fn on_peer(&self, hook: PeerHook) {
        if let Some(peers) = self.shared.peers.get() {
            peers.on_change(hook);
        }
    }

    /// Status of the peers; `None` if this engine connects to none.
    pub fn peers(&self) -> Option<PeersStatus> {
        self.shared.peers.get().map(|peers| peers.status(&self.shared))
    }

    /// Whether this engine connects to other clients.
    pub fn meets_peers(&self) -> bool {
        self.shared.peers.get().is_some()
    }

    /// Stops waiting for lost peers. Returns which devices they were; `None`: this engine connects to no
    /// peers.
    pub fn go_on_without_lost(&self) -> Option<Vec<DeviceId>> {
        self.shared.peers.get().map(|peers| peers.stop_waiting_for_lost())
    }
}

impl Shared {
    /// Queues a request that does not come from a program: it does not wait for a newer head, a lost peer or
    /// a resend.
    pub fn submit_freely(&self, edit: Option<Arc<Mutex<dyn Edit>>>) -> Result<Arc<Snapshot>, FsError> {
        self.submit_in_turn(edit, ReadSet::default(), RequestPriority::First)
    }

    /// Identifies the file system to peers: by its epoch, so that clients of different file systems do not
    /// connect.
    fn file_system(&self) -> Digest {
        self.latest.read().floor.epoch
    }

    /// The device with this key, if it is a member now and not this device.
    fn member_with(&self, key: &holdfast_crypto::PublicKey) -> Option<DeviceId> {
        let base = self.latest.read().base.clone();
        let device = base.membership.device_by_key(key)?;
        let is_member = base.membership.devices.get(&device).is_some_and(|known| known.removed_at.is_none());
        (is_member && device != self.me).then_some(device)
    }
}

impl PeersState {
    fn is_connected_to(&self, device: DeviceId) -> bool {
        self.connections.iter().any(|connection| connection.device == device)
    }

    fn note(&mut self, device: DeviceId, trouble: Option<String>) {
        self.known.entry(device).or_default().trouble = trouble;
    }
}

impl PeerState {
    /// Addresses at which to call the device, the newest first.
    fn addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<SocketAddr> = self.heard.iter().copied().collect();
        all.extend(self.recorded.iter().filter(|address| !self.heard.contains(address)));
        all
    }

    /// Records an address from the device's beacon.
    fn note_address(&mut self, address: SocketAddr) {
        if !self.heard.contains(&address) {
            self.heard.push_front(address);
            self.heard.truncate(ADDRESSES_MAX);
            self.call_pause_ms = 0;
        }
    }

    /// Records that a call has failed: the next one waits longer.
    fn call_later(&mut self) {
        self.call_pause_ms = (self.call_pause_ms * 2).clamp(2_000, 60_000);
        self.call_at_ms = now_ms() + self.call_pause_ms;
    }
}
