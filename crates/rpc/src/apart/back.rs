//! The back end: serves connections that the front end introduced, each over a stream of its own, with the same
//! limits and the same suspicion as any peer's.

use super::front::{Desk, Refused};
use super::handshake::{Handshakes, Offence};
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

/// Introductions that wait to be taken up.
const WAITING_MAX: usize = 256;

/// A connection whose peer the back end has made sure of.
#[derive(Debug)]
pub struct Introduced {
    /// Carries frames and notes; does not block.
    pub stream: UnixStream,
    /// Whose signature covers the handshake.
    pub peer: PublicKey,
    /// Where it comes from.
    pub address: SocketAddr,
    /// Whether the kernel says so (of a TCP connection), or only the front end does.
    pub address_is_sure: bool,
}

/// What the back end does for a front end: the other side of a [`Desk`].
pub struct Reception {
    key: Arc<dyn KeyHolder>,
    handshakes: Mutex<Handshakes>,
    introduced: mpsc::Sender<Introduced>,
}

impl Reception {
    /// For a server with this key; what it introduces is to be served by [`serve_introduced`].
    pub fn new(key: Arc<dyn KeyHolder>) -> (Reception, mpsc::Receiver<Introduced>) {
        let (introduced, receiver) = mpsc::channel(WAITING_MAX);
        (Reception { key, handshakes: Mutex::default(), introduced }, receiver)
    }

    /// Where a connection comes from, by the kernel's word where there is any.
    pub(super) fn address_of(
        claimed: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<(SocketAddr, bool), Refused> {
        let Some(tcp) = tcp else { return Ok((claimed, false)) };
        let family = sockopt::socket_domain(&tcp);
        let kind = sockopt::socket_type(&tcp);
        let is_tcp = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6))
            && matches!(kind, Ok(SocketType::STREAM));
        let peer = getpeername(&tcp).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        match (is_tcp, peer) {
            (true, Some(peer)) => Ok((peer, true)),
            _ => Err(Refused("what was shown is no TCP connection".to_owned())),
        }
    }
}

fn refused(offence: Offence) -> Refused {
    Refused(offence.to_string())
}

impl Desk for Reception {
    fn nonce(&self) -> Result<[u8; 32], Refused> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| Refused(error.to_string()))?;
        self.handshakes.lock().begin(Instant::now(), random);
        Ok(random)
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, Refused> {
        self.handshakes.lock().sign(Instant::now(), &transcript, &*self.key).map_err(refused)
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, Refused> {
        let peer =
            self.handshakes.lock().introduce(Instant::now(), &transcript, &signature).map_err(refused)?;
        let (address, address_is_sure) = Reception::address_of(address, tcp)?;
        let pair = || {
            let (own, other) = UnixStream::pair()?;
            own.set_nonblocking(true)?;
            other.set_nonblocking(true)?;
            Ok((own, other))
        };
        let (stream, other) = pair().map_err(|error: io::Error| Refused(error.to_string()))?;
        let busy = |_| Refused("no more connections are taken now".to_owned());
        self.introduced.try_send(Introduced { stream, peer, address, address_is_sure }).map_err(busy)?;
        Ok(other)
    }
}

/// Serves what is introduced until `shutdown` completes, then lets requests under way finish.
///
/// # Errors
/// The system's.
pub async fn serve_introduced<S: Service>(
    introduced: mpsc::Receiver<Introduced>,
    service: Arc<S>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    serve_streams(introduced, service, limits, shutdown).await
}
