//! The server's end: accepts connections, verifies the peers' keys, limits what each may cost, and passes
//! requests to a [`Service`].
//!
//! A peer is a *stranger* until the service admits it (its key is a member's). Strangers share a few slots,
//! may send only small frames and are dropped soon, so they cannot keep members out. A peer that breaks the
//! framing, stalls or floods loses its own connection; no other peer is affected.

pub(crate) mod limiter;
mod peer;
mod quic;
#[cfg(test)]
mod tests;

use crate::estimate::LinkEstimate;
use crate::flow::Flow;
use crate::privsep::VerifiedConnection;
use crate::throttle::Throttle;
use crate::tls;
use holdfast_crypto::{PublicKey, SigningKey};
use holdfast_protocol::message::{Request, Response};
use limiter::Admission;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};

/// Limits on what peers may cost. Each time is for one step.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections of one key; a new one beyond that closes the oldest, which is probably dead.
    pub connections_per_peer_max: usize,
    /// Most connections that are not admitted (yet).
    pub strangers_max: usize,
    /// Most of those from one IP address.
    pub strangers_per_address_max: usize,
    /// TLS handshake and greeting must be done within this time.
    pub greeting_patience: Duration,
    /// A greeted stranger is dropped after this time.
    pub stranger_patience: Duration,
    /// Largest frame of a stranger, in bytes.
    pub stranger_frame_bytes_max: usize,
    /// Most requests of one connection under way; beyond them we stop reading.
    pub requests_max: usize,
    /// Most request bytes of one connection under way; beyond them we stop reading.
    pub request_bytes_max: usize,
    /// Most answer bytes of one connection under way; beyond them its requests wait.
    pub answer_bytes_max: usize,
    /// A connection without traffic for this long is dropped (clients ping).
    pub idle_max: Duration,
    /// A single frame may take this long, and a second more for each `frame_rate_min` bytes.
    pub frame_patience: Duration,
    /// Bytes a second below which a frame's sender or receiver is taken for dead.
    pub frame_rate_min: usize,
    /// How long outstanding requests may take to finish at shutdown.
    pub shutdown_patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections_max: 1024,
            connections_per_peer_max: 8,
            strangers_max: 128,
            strangers_per_address_max: 32,
            greeting_patience: Duration::from_secs(10),
            stranger_patience: Duration::from_secs(30),
            stranger_frame_bytes_max: 4096,
            requests_max: 256,
            request_bytes_max: 16 << 20,
            answer_bytes_max: 32 << 20,
            idle_max: Duration::from_secs(120),
            frame_patience: Duration::from_secs(60),
            frame_rate_min: 8 << 10,
            shutdown_patience: Duration::from_secs(5),
        }
    }
}

impl Limits {
    pub(crate) fn patience_for(&self, bytes: usize) -> Duration {
        self.frame_patience + Duration::from_secs((bytes / self.frame_rate_min.max(1)) as u64)
    }
}

/// One authenticated connection, with the service's state of it.
#[derive(Debug)]
pub struct Session<T> {
    /// Number of the connection since the server started, for logs.
    pub id: u64,
    /// The key the peer proved to hold. Says nothing about what it may do.
    pub peer: PublicKey,
    /// The peer's address.
    pub address: SocketAddr,
    /// Whether this process has determined the address itself, rather than a front end.
    pub address_is_sure: bool,
    /// The service's state of this session.
    pub state: T,
    admitted: AtomicBool,
    ending: Notify,
    flow: Arc<Flow>,
}

impl<T> Session<T> {
    /// Lifts the limits on strangers from this connection.
    pub fn admit(&self) {
        self.admitted.store(true, Ordering::Release);
    }

    /// The estimate of the link to the peer, from its own traffic.
    pub fn estimate(&self) -> Option<LinkEstimate> {
        self.flow.estimate()
    }

    /// Ends the connection, without another answer.
    pub fn end(&self) {
        self.ending.notify_one();
    }

    /// Whether [`Session::admit`] was called.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Ordering::Acquire)
    }
}

/// Answers requests.
pub trait Service: Send + Sync + 'static {
    /// The service's state of one connection.
    type State: Default + Send + Sync + 'static;

    /// Answers one request. The first request of every connection is a `Hello`, and no other is. Requests of
    /// one connection run concurrently.
    ///
    /// The future is dropped when the connection is lost: what must not be interrupted needs a task or thread
    /// of its own. It runs on the reactor and must not block.
    fn handle(
        &self,
        session: &Arc<Session<Self::State>>,
        request: Request,
    ) -> impl Future<Output = Response> + Send;

    /// Called when a connection that had been greeted ends.
    fn closed(&self, _session: &Session<Self::State>) {}
}

/// The listening sockets of a server.
#[derive(Debug)]
pub struct Listeners {
    /// The listener for TCP.
    pub tcp: TcpListener,
    /// The socket for connections over QUIC; `None`: none are offered.
    pub udp: Option<std::net::UdpSocket>,
}

impl From<TcpListener> for Listeners {
    fn from(tcp: TcpListener) -> Self {
        Listeners { tcp, udp: None }
    }
}

/// Shared by all connections of a server.
struct Serving<S> {
    service: Arc<S>,
    limits: Arc<Limits>,
    admission: Admission,
    closed: watch::Receiver<bool>,
    drops: Arc<Throttle>,
}

impl<S: Service> Serving<S> {
    fn new(service: Arc<S>, limits: Limits, closed: watch::Receiver<bool>) -> Self {
        Serving {
            service,
            admission: Admission::new(limits.clone()),
            limits: Arc::new(limits),
            closed,
            drops: Arc::new(Throttle::default()),
        }
    }

    async fn run(
        self: Arc<Self>,
        carrier: peer::Carrier,
        address: SocketAddr,
        id: u64,
        slot: limiter::ConnectionSlot,
    ) {
        let is_displaced = limiter::displaced(&slot);
        let arrival = peer::Arrival { carrier, address, id, slot, drops: self.drops.clone() };
        tokio::select! {
            () = peer::run(arrival, self.service.clone(), self.limits.clone(), self.closed.clone()) => {}
            () = is_displaced => {}
        }
    }
}

/// Serves connections that a front end introduces ([`crate::privsep`]).
pub(crate) async fn serve_streams<S: Service>(
    mut introduced: mpsc::Receiver<VerifiedConnection>,
    service: Arc<S>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (closing, closed) = watch::channel(false);
    let serving = Arc::new(Serving::new(service, limits, closed));
    let mut connections = tokio::task::JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let next = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            next = introduced.recv() => next,
        };
        let Some(VerifiedConnection { stream, peer, address, address_is_sure }) = next else { break };
        let stream = tokio::net::UnixStream::from_std(stream)?;
        if let Some((id, slot)) = serving.admission.enter(address) {
            let serving = serving.clone();
            let carrier = peer::Carrier::Introduced { stream, peer, address_is_sure };
            connections.spawn(serving.run(carrier, address, id, slot));
        }
    }
    drop(introduced);
    let _ = closing.send(true);
    let patience = serving.limits.shutdown_patience + Duration::from_secs(1);
    let all_done = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(patience, all_done).await;
    Ok(())
}

/// Serves until `shutdown` completes, then lets outstanding requests finish.
///
/// # Errors
/// The system's error, if a listener cannot be used.
pub async fn serve<S: Service>(
    listeners: impl Into<Listeners>,
    key: &SigningKey,
    service: Arc<S>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let Listeners { tcp: listener, udp } = listeners.into();
    let acceptor = tokio_rustls::TlsAcceptor::from(tls::server_config(key));
    let (closing, closed) = watch::channel(false);
    let serving = Arc::new(Serving::new(service, limits, closed));
    let mut connections = tokio::task::JoinSet::new();
    let endpoint = udp.map(|udp| quic::listen(udp, key)).transpose()?;
    if let Some(endpoint) = &endpoint {
        connections.spawn(quic::accept(endpoint.clone(), serving.clone()));
    }
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory, or the peer is gone already: none of them ends the service.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        if let Some((id, slot)) = serving.admission.enter(address) {
            let carrier = peer::Carrier::Tcp(stream, acceptor.clone());
            connections.spawn(serving.clone().run(carrier, address, id, slot));
        }
    }
    drop(listener);
    let _ = closing.send(true);
    let patience = serving.limits.shutdown_patience + Duration::from_secs(1);
    let all_done = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(patience, all_done).await;
    if let Some(endpoint) = endpoint {
        endpoint.close(0u32.into(), b"the server is shutting down");
        let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    }
    Ok(())
}
