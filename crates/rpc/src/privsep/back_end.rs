//! The back end: serves connections that the front end introduced, each over a stream of its own, with the
//! same limits and the same distrust as of any peer.

use super::front_end::{BackEnd, BackEndError};
use super::handshake::{HandshakeError, Handshakes};
use crate::serve::{Limits, Service, serve_streams};
use holdfast_crypto::{KeyHolder, PublicKey, Signature};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketType, getpeername, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Most introductions that wait to be served.
const WAITING_MAX: usize = 256;

/// A connection whose peer the back end has made sure of.
#[derive(Debug)]
pub struct VerifiedConnection {
    /// Carries frames and notes; does not block.
    pub stream: UnixStream,
    /// The key whose signature covers the handshake.
    pub peer: PublicKey,
    /// The peer's address.
    pub address: SocketAddr,
    /// Whether the address comes from the kernel (for a TCP connection), rather than from the front end only.
    pub address_is_sure: bool,
}

/// Answers a front end: the implementation of [`BackEnd`] that has the key.
pub struct HandshakeService {
    key: Arc<dyn KeyHolder>,
    handshakes: Mutex<Handshakes>,
    introduced: mpsc::Sender<VerifiedConnection>,
}

impl HandshakeService {
    /// For a server with this key; [`serve_introduced`] must serve the connections that it introduces.
    pub fn new(key: Arc<dyn KeyHolder>) -> (HandshakeService, mpsc::Receiver<VerifiedConnection>) {
        let (introduced, receiver) = mpsc::channel(WAITING_MAX);
        (HandshakeService { key, handshakes: Mutex::default(), introduced }, receiver)
    }

    /// The peer's address: according to the kernel, if the front end passed the socket, or else the one that
    /// the front end claims.
    pub(super) fn address_of(
        claimed: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<(SocketAddr, bool), BackEndError> {
        let Some(tcp) = tcp else { return Ok((claimed, false)) };
        let family = sockopt::socket_domain(&tcp);
        let kind = sockopt::socket_type(&tcp);
        let is_tcp = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6))
            && matches!(kind, Ok(SocketType::STREAM));
        let peer = getpeername(&tcp).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        match (is_tcp, peer) {
            (true, Some(peer)) => Ok((peer, true)),
            _ => Err(BackEndError("what was shown is no TCP connection".to_owned())),
        }
    }
}

fn refused(error: HandshakeError) -> BackEndError {
    BackEndError(error.to_string())
}

impl BackEnd for HandshakeService {
    fn nonce(&self) -> Result<[u8; 32], BackEndError> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| BackEndError(error.to_string()))?;
        self.handshakes.lock().begin(Instant::now(), random);
        Ok(random)
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, BackEndError> {
        self.handshakes.lock().sign(Instant::now(), &transcript, &*self.key).map_err(refused)
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, BackEndError> {
        let peer =
            self.handshakes.lock().introduce(Instant::now(), &transcript, &signature).map_err(refused)?;
        let (address, address_is_sure) = HandshakeService::address_of(address, tcp)?;
        let pair = || {
            let (own, other) = UnixStream::pair()?;
            own.set_nonblocking(true)?;
            other.set_nonblocking(true)?;
            Ok((own, other))
        };
        let (stream, other) = pair().map_err(|error: io::Error| BackEndError(error.to_string()))?;
        let busy = |_| BackEndError("no more connections are taken now".to_owned());
        self.introduced
            .try_send(VerifiedConnection { stream, peer, address, address_is_sure })
            .map_err(busy)?;
        Ok(other)
    }
}

/// Serves introduced connections until `shutdown` completes, then lets outstanding requests finish.
///
/// # Errors
/// The system's error.
pub async fn serve_introduced<S: Service>(
    introduced: mpsc::Receiver<VerifiedConnection>,
    service: Arc<S>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_streams(introduced, service, limits, shutdown).await
}
