//! QUIC: one connection to a server for each lane, with one stream that carries the same greeting and frames
//! as a TCP connection. (In a shared connection, which has one send buffer, control would wait for bulk.)
//!
//! TLS is the same as over TCP: raw keys on both sides, no tickets, no early data, so nothing can be
//! replayed. A client whose address changes continues the connection (the server makes it prove the new
//! address first).

use crate::flow::{Flow, Gauge, Pipe};
use crate::handshake_error::PeerKeyError;
use crate::socket::CountedStream;
use crate::sockets::Sockets;
use crate::tls;
use holdfast_crypto::{PublicKey, SigningKey};
use quinn::congestion::BbrConfig;
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime,
    TransportConfig,
};
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A connection without traffic for this long is dead. Clients ping more often.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// Bytes that a peer that is not admitted may send before its data is read.
const RECEIVE_BYTES_STRANGER: u32 = 64 << 10;
/// Receive window of an admitted peer, in bytes.
const RECEIVE_BYTES: u32 = 8 << 20;
/// Bytes that may be unacknowledged while the link is unknown.
pub(crate) const SEND_BYTES: u64 = 64 << 10;
/// Bytes that may be unacknowledged on the fastest link.
pub(crate) const SEND_BYTES_MAX: u64 = 8 << 20;
/// Streams of a connection. Ours open one.
const STREAMS_MAX: u32 = 2;

fn transport(receive: u32, streams: u32) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(Arc::new(BbrConfig::default()))
        .max_concurrent_bidi_streams(streams.into())
        .max_concurrent_uni_streams(0u32.into())
        .max_idle_timeout(Some(IDLE_MAX.try_into().expect("a minute fits")))
        .stream_receive_window(RECEIVE_BYTES.into())
        .receive_window(receive.into())
        .send_window(SEND_BYTES)
        .datagram_receive_buffer_size(None);
    Arc::new(transport)
}

pub(crate) fn server_config(key: &SigningKey) -> ServerConfig {
    server_config_of(tls::server_config(key))
}

/// As [`server_config`], with the caller's TLS settings.
pub(crate) fn server_config_of(tls: Arc<rustls::ServerConfig>) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(crypto_of(tls));
    config.transport_config(transport(RECEIVE_BYTES_STRANGER, STREAMS_MAX));
    // An honest peer has few and small datagrams of handshakes that are not accepted yet.
    config.max_incoming(256).incoming_buffer_size(16 << 10).incoming_buffer_size_total(2 << 20);
    config
}

pub(crate) fn crypto_of(tls: Arc<rustls::ServerConfig>) -> Arc<QuicServerConfig> {
    Arc::new(QuicServerConfig::try_from(tls).expect("the provider has QUIC's first cipher"))
}

pub(crate) fn client_config(config: Arc<rustls::ClientConfig>) -> ClientConfig {
    let tls = QuicClientConfig::try_from(config).expect("the provider has QUIC's first cipher");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(transport(RECEIVE_BYTES, 0));
    config
}

/// The peer's key after the handshake, or what is missing.
pub(crate) fn peer_key(connection: &Connection) -> Result<PublicKey, PeerKeyError> {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    if data.and_then(|data| data.protocol).as_deref() != Some(tls::ALPN) {
        return Err(PeerKeyError::OtherProtocol(String::from_utf8_lossy(tls::ALPN).into_owned()));
    }
    let shown = connection.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer>>().ok());
    let key = shown.and_then(|chain| tls::key_of(chain.first()?));
    key.ok_or(PeerKeyError::NoKey)
}

/// A stream as the rest of this crate knows streams.
pub(crate) fn pipe(connection: &Connection, send: SendStream, receive: RecvStream) -> Pipe {
    let stream = CountedStream::over(tokio::io::join(receive, send));
    let flow = Flow::new(stream.activity(), Some(Gauge::Quic(connection.clone())));
    Pipe { stream: Box::new(stream), flow }
}

/// Lets an admitted peer send as much as the link carries.
pub(crate) fn widen(connection: &Connection) {
    connection.set_receive_window(RECEIVE_BYTES.into());
}

/// Why no stream was opened.
pub(crate) enum StreamError {
    /// The network failed, or the server does not answer.
    Unreachable(String),
    /// TLS failed; the text is quinn's.
    Refused(String),
}

/// A client's end: a socket with its own thread, since signing the handshake takes as long as the key holder
/// needs.
pub(crate) struct Quic {
    endpoint: Endpoint,
    config: ClientConfig,
    _stop: oneshot::Sender<()>,
}

impl Quic {
    pub(crate) fn start(config: Arc<rustls::ClientConfig>, sockets: &dyn Sockets) -> io::Result<Quic> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let endpoint = {
            let _entered = runtime.enter();
            Endpoint::new(EndpointConfig::default(), None, sockets.udp()?, Arc::new(TokioRuntime))?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let closing = endpoint.clone();
        std::thread::Builder::new().name("holdfast-quic".to_owned()).spawn(move || {
            runtime.block_on(async {
                let _ = stopped.await;
                closing.close(0u32.into(), b"");
                // The last datagram notifies the server; without it, the server would wait for the idle time.
                let _ = tokio::time::timeout(Duration::from_millis(200), closing.wait_idle()).await;
            });
            runtime.shutdown_background();
        })?;
        let config = client_config(config);
        Ok(Quic { endpoint, config, _stop: stop })
    }

    /// A new connection to a server and a stream of it.
    pub(crate) async fn open(&self, address: SocketAddr) -> Result<(Pipe, PublicKey), StreamError> {
        let connection = self.connection(address).await?;
        let key = peer_key(&connection).map_err(|error| StreamError::Refused(error.to_string()))?;
        let (send, receive) =
            connection.open_bi().await.map_err(|error| StreamError::Unreachable(error.to_string()))?;
        Ok((pipe(&connection, send, receive), key))
    }

    async fn connection(&self, address: SocketAddr) -> Result<Connection, StreamError> {
        let connecting = self
            .endpoint
            .connect_with(self.config.clone(), address, "holdfast.invalid")
            .map_err(|error| StreamError::Unreachable(error.to_string()))?;
        connecting.await.map_err(|error| match &error {
            quinn::ConnectionError::TransportError(_) => StreamError::Refused(error.to_string()),
            _ => StreamError::Unreachable(error.to_string()),
        })
    }
}
