//! Makes and accepts connections to other clients, finds out which device each peer is, and reads its messages.

use super::{BEGINNING_MAX, CONNECTIONS_MAX, DEVICE_CONNECTIONS_MAX, PeerConnection, Peers};
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use crate::evidence::now_ns;
use crate::processes::PeerChannel;
use holdfast_content::DeviceId;
use holdfast_protocol::peers::{PeerMessage, VERSION};
use parking_lot::Mutex;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Interval at which the listener is checked, and so the shortest time between two accepted connections.
const DOOR_EVERY: Duration = Duration::from_millis(100);
/// Time limit for making a connection.
const CALL_PATIENCE: Duration = Duration::from_secs(5);
/// Time limit for a peer to identify itself.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Pause after each message: a peer that sends faster is not read faster.
const WORD_PAUSE: Duration = Duration::from_millis(50);
/// How long to wait for the present view when an unknown key connects: it may have been enrolled since.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);

/// Body of the thread that accepts connections until it is stopped.
pub(super) fn accept(peers: &Arc<Peers>, shared: &Arc<Shared>, listener: &TcpListener) {
    while !peers.stop.pause(DOOR_EVERY) {
        match listener.accept() {
            Ok((socket, from)) => {
                tracing::debug!(%from, "somebody calls");
                begin(peers, shared, None, move || Ok(socket));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
        }
    }
}

/// Connects to a device at its addresses, one after the other.
pub(super) fn call(peers: &Arc<Peers>, shared: &Arc<Shared>, device: DeviceId, addresses: Vec<SocketAddr>) {
    begin(peers, shared, Some(device), move || {
        let mut why = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(&address, CALL_PATIENCE) {
                Ok(socket) => return Ok(socket),
                Err(error) => why = io::Error::new(error.kind(), format!("{address}: {error}")),
            }
        }
        Err(why)
    });
}

/// Starts a thread that authenticates the peer on a new connection and serves it, unless there are too many.
fn begin(
    peers: &Arc<Peers>,
    shared: &Arc<Shared>,
    called: Option<DeviceId>,
    connect: impl FnOnce() -> io::Result<TcpStream> + Send + 'static,
) {
    // Connections made by a peer do not keep this device from connecting to it.
    let way = usize::from(called.is_some());
    if peers.beginning[way].fetch_add(1, SeqCst) >= BEGINNING_MAX {
        peers.beginning[way].fetch_sub(1, SeqCst);
        return;
    }
    let (host, keeper) = (peers.clone(), shared.clone());
    let body = move || {
        let introduced = connect()
            .map_err(|error| error.to_string())
            .and_then(|socket| host.handshake(&keeper, socket, called));
        host.beginning[way].fetch_sub(1, SeqCst);
        let outcome = introduced.and_then(|(connection, run)| host.serve_peer(&keeper, &connection, run));
        if let Err(why) = outcome {
            tracing::debug!(?called, why, "a meeting came to nothing");
            if let Some(device) = called.filter(|_| !host.stop.is_asked()) {
                let mut state = host.state.lock();
                let known = state.known.entry(device).or_default();
                known.call_later();
                known.trouble = Some(why);
            }
        }
    };
    if std::thread::Builder::new().name("holdfast-visit".to_owned()).spawn(body).is_err() {
        peers.beginning[way].fetch_sub(1, SeqCst);
    }
}

impl Peers {
    /// Authenticates both sides by their keys, and finds out which device the peer is; then records the
    /// connection.
    fn handshake(
        &self,
        shared: &Shared,
        socket: TcpStream,
        called: Option<DeviceId>,
    ) -> Result<(Arc<PeerConnection>, u64), String> {
        let expected = match called {
            Some(device) => {
                let membership = shared.latest.read().base.membership.clone();
                let member = membership.devices.get(&device).filter(|member| member.removed_at.is_none());
                Some(member.ok_or("it is no member any more")?.key)
            }
            None => None,
        };
        let file_system = shared.file_system();
        let visit = self.processes.meet(socket, file_system, expected)?;
        let device = shared.member_with(&visit.peer).or_else(|| {
            shared.look(LOOK_PATIENCE);
            shared.member_with(&visit.peer)
        });
        let device = device.ok_or_else(|| {
            visit.hang_up();
            "its key is no other member's".to_owned()
        })?;
        visit
            .send(&PeerMessage::Hello { version: VERSION, file_system, run: self.run })
            .and_then(|()| visit.set_patience(Some(HELLO_PATIENCE)))
            .map_err(|error| error.to_string())?;
        let run = match visit.receive() {
            Ok(PeerMessage::Hello { version: VERSION, file_system: theirs, run })
                if theirs == file_system =>
            {
                run
            }
            Ok(_) => return Err("it speaks of something else".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        visit.set_patience(Some(self.policy.timeout * 2)).map_err(|error| error.to_string())?;
        let connection = Arc::new(PeerConnection { device, channel: visit, told: Mutex::default() });
        let mut state = self.state.lock();
        let of_device = state.connections.iter().filter(|connection| connection.device == device).count();
        if self.stop.is_asked()
            || state.connections.len() >= CONNECTIONS_MAX
            || of_device >= DEVICE_CONNECTIONS_MAX
        {
            connection.channel.hang_up();
            return Err("there are connections enough".to_owned());
        }
        state.connections.push(connection.clone());
        let known = state.known.entry(device).or_default();
        (known.trouble, known.call_pause_ms) = (None, 0);
        Ok((connection, run))
    }

    /// Reads a peer's messages until either side closes the connection.
    fn serve_peer(&self, shared: &Shared, connection: &Arc<PeerConnection>, run: u64) -> Result<(), String> {
        let device = connection.device;
        self.note_heard(device, run);
        self.tell_progress(shared, connection);
        let end = loop {
            match connection.channel.receive() {
                Ok(PeerMessage::KeepAlive) => self.note_heard(device, run),
                Ok(PeerMessage::Progress(latest)) => {
                    self.note_heard(device, run);
                    let mut state = self.state.lock();
                    let known = state.known.entry(device).or_default();
                    known.said = Some(latest);
                    known.judge_at_ms = 0;
                    drop(state);
                    self.said.notify_all();
                }
                Ok(PeerMessage::Bye) => {
                    let change = self.state.lock().roster.handle_logout(device, run);
                    self.changed(change.as_slice());
                    break Ok(());
                }
                Ok(PeerMessage::Hello { .. }) => break Err("it introduced itself twice".to_owned()),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    break Err("the connection has ended".to_owned());
                }
                Err(error) => break Err(error.to_string()),
            }
            std::thread::sleep(WORD_PAUSE);
        };
        connection.channel.hang_up();
        let mut state = self.state.lock();
        state.connections.retain(|other| !Arc::ptr_eq(other, connection));
        state.known.entry(device).or_default().call_at_ms = now_ms() + 1_000;
        end
    }

    fn note_heard(&self, device: DeviceId, run: u64) {
        let change = {
            let mut state = self.state.lock();
            state.known.entry(device).or_default().heard_ns = Some(now_ns());
            state.roster.handle_heard(now_ms(), device, run)
        };
        if change.is_some() {
            self.changed(change.as_slice());
        }
    }
}

impl PeerChannel {
    /// Sends a message; closes the connection if that fails, since it is then of no use.
    pub(super) fn send_or_hang_up(&self, word: &PeerMessage) {
        if self.send(word).is_err() {
            self.hang_up();
        }
    }
}
