//! The front end: accepts connections, completes handshakes with the help of a [`BackEnd`], and relays frames
//! between peers and the back end.
//!
//! It has no key, no file, and no way to make a connection. Each handshake has TLS settings of its own, so
//! that an introduced peer belongs to the connection on which it was introduced. Requests to the back end are
//! short and block.

use super::relay::relay;
use super::transcript;
use crate::flow::Pipe;
use crate::gauge;
use crate::handshake_error::HandshakeError;
use crate::quic;
use crate::serve::limiter::{Admission, ConnectionSlot, displaced};
use crate::serve::{Limits, Listeners};
use crate::socket::{self, CountedStream};
use crate::throttle::Throttle;
use crate::tls::{self, RawKeyVerifier};
use holdfast_crypto::{PublicKey, Signature};
use parking_lot::Mutex;
use quinn::{Endpoint, Incoming};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{self, CertifiedKey};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureAlgorithm, SignatureScheme,
};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The front end's requests to the back end. Calls block, for as long as a signature takes.
pub trait BackEnd: Send + Sync + 'static {
    /// Random bytes for one ServerHello.
    ///
    /// # Errors
    /// The back end is not there.
    fn nonce(&self) -> Result<[u8; 32], BackEndError>;

    /// The server's signature of a transcript that ends with its Certificate.
    ///
    /// # Errors
    /// The transcript is not one that may be signed.
    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, BackEndError>;

    /// A stream to the back end for the device that made this signature of a transcript that ends with its
    /// Certificate. `tcp`: the connection, if it is one, so that the back end can ask the kernel for its
    /// address.
    /// # Errors
    /// The signature is invalid, or the back end accepts no more.
    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        address: SocketAddr,
        tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, BackEndError>;
}

/// Why the back end refuses a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackEndError(pub String);

impl fmt::Display for BackEndError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<BackEndError> for Error {
    fn from(refused: BackEndError) -> Error {
        Error::General(refused.0)
    }
}

/// Prepares listeners for a front end: they do not block, and accepted connections inherit the socket options
/// that a front end may not set. Returns a netlink socket over which the front end reads the counters of its
/// connections, if one is available.
///
/// # Errors
/// The system's error.
pub fn prepare_listeners(
    tcp: &std::net::TcpListener,
    udp: Option<&std::net::UdpSocket>,
) -> std::io::Result<Option<OwnedFd>> {
    tcp.set_nonblocking(true)?;
    socket::tune_listener(tcp);
    if let Some(udp) = udp {
        udp.set_nonblocking(true)?;
    }
    Ok(gauge::diagnosis_socket())
}

/// Called in a front end: from now on counters of connections are read over this netlink socket, or not at
/// all.
pub fn use_diagnosis_socket(socket: Option<OwnedFd>) {
    gauge::use_diagnosis_socket(socket);
}

/// One handshake: the peer's address, its socket, and the stream that the back end gave for it.
#[derive(Debug)]
struct HandshakeState {
    address: SocketAddr,
    tcp: Mutex<Option<OwnedFd>>,
    introduced: Mutex<Option<UnixStream>>,
}

/// Verifies a client's signature here and in the back end.
struct RemoteVerifier {
    back_end: Arc<dyn BackEnd>,
    handshake: Arc<HandshakeState>,
    usual: RawKeyVerifier,
}

impl fmt::Debug for RemoteVerifier {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("RemoteVerifier").field("handshake", &self.handshake).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct RemoteSigner(Arc<dyn BackEnd>);

impl fmt::Debug for RemoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("RemoteSigner")
    }
}

impl sign::SigningKey for RemoteSigner {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn sign::Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn sign::Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl sign::Signer for RemoteSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(transcript_of(message)?)?.0.to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// The transcript whose digest is at the end of a message to be signed.
fn transcript_of(message: &[u8]) -> Result<Vec<u8>, Error> {
    // 64 spaces, 33 bytes of purpose, a zero, and the digest.
    let digest = message.get(98..).unwrap_or_default();
    transcript::transcript_of(digest).ok_or_else(|| Error::General("a handshake that is too long".to_owned()))
}

impl ClientCertVerifier for RemoteVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.usual.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ClientCertVerifier::verify_tls12_signature(&self.usual, message, cert, dss)
    }

    /// Verified here, so that invalid signatures do not reach the back end; and again in the back end, which
    /// does not trust this process.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let valid = ClientCertVerifier::verify_tls13_signature(&self.usual, message, cert, dss)?;
        let tcp = self.handshake.tcp.lock().take();
        let stream = self.back_end.introduce(
            transcript_of(message)?,
            dss.signature().to_vec(),
            self.handshake.address,
            tcp,
        )?;
        *self.handshake.introduced.lock() = Some(stream);
        Ok(valid)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ClientCertVerifier::supported_verify_schemes(&self.usual)
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Shared by all connections.
struct FrontEnd {
    back_end: Arc<dyn BackEnd>,
    certified: Arc<CertifiedKey>,
    limits: Limits,
    admission: Admission,
    drops: Throttle,
    quic: quinn::ServerConfig,
}

/// Accepts and relays connections until `shutdown` completes. Runs on the calling thread, which needs a
/// runtime of its own with one thread.
///
/// # Errors
/// The system's error, if a listener cannot be used.
pub async fn run(
    listeners: Listeners,
    key: PublicKey,
    back_end: Arc<dyn BackEnd>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let nonces = back_end.clone();
    transcript::draw_nonces_from(move || nonces.nonce().ok());
    let certified = tls::presented(key, Arc::new(RemoteSigner(back_end.clone())));
    let usual =
        tls::server_config_of(transcript::provider(), Arc::new(RawKeyVerifier::new()), certified.clone());
    let front = Arc::new(FrontEnd {
        back_end,
        certified,
        admission: Admission::new(limits.clone()),
        limits,
        drops: Throttle::default(),
        quic: quic::server_config_of(usual),
    });
    let Listeners { tcp, udp } = listeners;
    let mut connections = JoinSet::new();
    let endpoint = udp.map(|udp| front.endpoint(udp)).transpose()?;
    if let Some(endpoint) = &endpoint {
        connections.spawn(front.clone().accept_quic(endpoint.clone()));
    }
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = tcp.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                if let Some((id, slot)) = front.admission.enter(address) {
                    let is_displaced = displaced(&slot);
                    let serve = front.clone().serve_tcp(stream, address, id, slot);
                    connections.spawn(until(is_displaced, serve));
                }
            }
            Err(error) => {
                // Out of descriptors or memory, or the peer is gone already: none of them ends the service.
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(tcp);
    if let Some(endpoint) = endpoint {
        endpoint.close(0u32.into(), b"the server is shutting down");
        let _ = tokio::time::timeout(Duration::from_millis(200), endpoint.wait_idle()).await;
    }
    // The back end has ended its sessions by now; these are their last bytes.
    let all_done = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_millis(500), all_done).await;
    Ok(())
}

impl FrontEnd {
    fn dropped(&self, id: u64, address: SocketAddr, why: &HandshakeError) {
        if let Some(suppressed) = self.drops.allow() {
            tracing::info!(connection = id, %address, %why, suppressed, "dropped before it was greeted");
        }
    }

    /// TLS settings for one handshake.
    fn settings(&self, handshake: &Arc<HandshakeState>) -> Arc<ServerConfig> {
        let verifier = RemoteVerifier {
            back_end: self.back_end.clone(),
            handshake: handshake.clone(),
            usual: RawKeyVerifier::new(),
        };
        tls::server_config_of(transcript::provider(), Arc::new(verifier), self.certified.clone())
    }

    async fn serve_tcp(
        self: Arc<Self>,
        tcp: TcpStream,
        address: SocketAddr,
        id: u64,
        mut slot: ConnectionSlot,
    ) {
        let handshaking = async {
            let copy = rustix::io::fcntl_dupfd_cloexec(&tcp, 0).map_err(std::io::Error::from)?;
            let handshake = Arc::new(HandshakeState {
                address,
                tcp: Mutex::new(Some(copy)),
                introduced: Mutex::default(),
            });
            let acceptor = tokio_rustls::TlsAcceptor::from(self.settings(&handshake));
            let stream = acceptor.accept(CountedStream::new(tcp)).await?;
            tls::peer_key(stream.get_ref().1)?;
            let flow = stream.get_ref().0.flow();
            Ok::<_, HandshakeError>((Pipe { stream: Box::new(stream), flow }, inner_of(&handshake)?))
        };
        match patiently(self.limits.greeting_patience, handshaking).await {
            Ok((pipe, inner)) => {
                slot.note_proved_key();
                let why = relay(pipe, inner, &self.limits, &mut slot).await;
                tracing::debug!(connection = id, %address, why, "connection ended");
            }
            Err(why) => self.dropped(id, address, &why),
        }
    }

    fn endpoint(&self, socket: std::net::UdpSocket) -> std::io::Result<Endpoint> {
        let runtime = Arc::new(quinn::TokioRuntime);
        Endpoint::new(quinn::EndpointConfig::default(), Some(self.quic.clone()), socket, runtime)
    }

    async fn accept_quic(self: Arc<Self>, endpoint: Endpoint) {
        let mut connections = JoinSet::new();
        loop {
            let incoming = tokio::select! {
                Some(_) = connections.join_next() => continue,
                incoming = endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { break };
            // An honest client returns with the proof at once.
            if !incoming.remote_address_validated() && self.admission.is_pressed() && incoming.may_retry() {
                let _ = incoming.retry();
                continue;
            }
            let address = incoming.remote_address();
            match self.admission.enter(address) {
                Some((id, slot)) => {
                    let is_displaced = displaced(&slot);
                    let serve = self.clone().serve_quic(incoming, address, id, slot);
                    connections.spawn(until(is_displaced, serve));
                }
                None => incoming.refuse(),
            }
        }
        while connections.join_next().await.is_some() {}
    }

    /// Serves one QUIC connection, of which one stream is relayed.
    async fn serve_quic(
        self: Arc<Self>,
        incoming: Incoming,
        address: SocketAddr,
        id: u64,
        mut slot: ConnectionSlot,
    ) {
        let handshaking = async {
            let handshake =
                Arc::new(HandshakeState { address, tcp: Mutex::default(), introduced: Mutex::default() });
            let mut config = self.quic.clone();
            config.crypto = quic::crypto_of(self.settings(&handshake));
            let connecting = incoming.accept_with(Arc::new(config))?;
            let connection = connecting.await?;
            quic::peer_key(&connection)?;
            let (send, receive) = connection.accept_bi().await?;
            Ok::<_, HandshakeError>((
                quic::pipe(&connection, send, receive),
                inner_of(&handshake)?,
                connection,
            ))
        };
        match patiently(self.limits.greeting_patience, handshaking).await {
            Ok((pipe, inner, connection)) => {
                slot.note_proved_key();
                let why = relay(pipe, inner, &self.limits, &mut slot).await;
                tracing::debug!(connection = id, %address, why, "connection ended");
                // Its last bytes may not have been delivered yet.
                let _ = tokio::time::timeout(Duration::from_secs(1), connection.closed()).await;
                connection.close(0u32.into(), b"");
            }
            Err(why) => self.dropped(id, address, &why),
        }
    }
}

/// Serves until `end`.
async fn until(end: impl Future<Output = ()>, serve: impl Future<Output = ()>) {
    tokio::select! {
        () = serve => {}
        () = end => {}
    }
}

async fn patiently<T>(
    patience: Duration,
    handshaking: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    let finished = tokio::time::timeout(patience, handshaking).await;
    finished.unwrap_or(Err(HandshakeError::Slow))
}

/// The stream to the back end that a handshake has obtained.
fn inner_of(handshake: &HandshakeState) -> Result<tokio::net::UnixStream, HandshakeError> {
    let stream = handshake.introduced.lock().take().ok_or(HandshakeError::NotIntroduced)?;
    Ok(tokio::net::UnixStream::from_std(stream)?)
}
