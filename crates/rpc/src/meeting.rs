//! The channel between two clients: a knock, then TLS 1.3 with both devices' keys.
//!
//! Invariants:
//! - A peer that does not know the file system's id gets nothing from a listening client, neither its key's
//!   name nor a signature: the connection ends after a false knock.
//! - A client that connects knows beforehand which key must answer, and shows its own key to no other.
//! - The application protocol differs from the servers', so no handshake of one kind is valid as one of the
//!   other.
//!
//! The caller checks whether the peer's key is a member's.

use crate::handshake_error::PeerKeyError;
use crate::tls;
use holdfast_crypto::{Digest, KeyHolder, PublicKey};
use holdfast_protocol::peers::{KNOCK_BYTES, SALT_BYTES, is_knock, knock};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The application protocol (ALPN).
const ALPN: &[u8] = b"holdfast-peer/1";

/// How long a handshake may take, without the time that the key holder needs.
pub const MEETING_PATIENCE: Duration = Duration::from_secs(10);

/// An end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeetingRole {
    /// The peer connected to us.
    Accepting,
    /// We connected, and expect this key.
    Connecting(PublicKey),
}

/// The keys and the file system of a meeting.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Our own key.
    pub key: Arc<dyn KeyHolder>,
    /// The file system that both know.
    pub file_system: Digest,
    /// The end that this process is.
    pub role: MeetingRole,
}

/// A stream to a peer that has proven its key.
pub trait PeerStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> PeerStream for T {}

/// Why no channel could be made.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// Peer: it does not know the file system.
    #[error("it does not know the file system")]
    Stranger,
    /// Peer, or the holder of our key: the handshake failed.
    #[error("the handshake failed: {0}")]
    Handshake(String),
    /// Medium: the connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Makes a connected socket a channel to a peer, and returns the peer's key. It waits for the holder of our
/// key without limit, but for the peer's first byte no longer than [`MEETING_PATIENCE`]. The caller sets a
/// deadline for the whole.
///
/// # Errors
/// [`MeetingError`].
pub async fn meet(
    mut tcp: TcpStream,
    invitation: Invitation,
) -> Result<(PublicKey, Box<dyn PeerStream>), MeetingError> {
    let Invitation { key, file_system, role } = invitation;
    let failed = |error: io::Error| MeetingError::Handshake(error.to_string());
    let strange = |error: PeerKeyError| MeetingError::Handshake(error.to_string());
    match role {
        MeetingRole::Accepting => {
            let mut knocked = [0; KNOCK_BYTES];
            let read = tokio::time::timeout(MEETING_PATIENCE, tcp.read_exact(&mut knocked)).await;
            read.map_err(|_| MeetingError::Stranger)??;
            if !is_knock(&file_system, &key.public().file_system_id(), &knocked) {
                return Err(MeetingError::Stranger);
            }
            let acceptor = TlsAcceptor::from(tls::accepting(key, ALPN));
            let stream = acceptor.accept(tcp).await.map_err(failed)?;
            let peer = tls::peer_key_of(stream.get_ref().1, ALPN).map_err(strange)?;
            Ok((peer, Box::new(stream)))
        }
        MeetingRole::Connecting(expected) => {
            let mut salt = [0; SALT_BYTES];
            getrandom::fill(&mut salt).map_err(|error| MeetingError::Handshake(error.to_string()))?;
            tcp.write_all(&knock(&file_system, &expected.file_system_id(), salt)).await?;
            let connector = TlsConnector::from(tls::connecting(key, expected, ALPN));
            let stream = connector.connect(tls::server_name(), tcp).await.map_err(failed)?;
            let peer = tls::peer_key_of(stream.get_ref().1, ALPN).map_err(strange)?;
            Ok((peer, Box::new(stream)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::SigningKey;
    use tokio::net::TcpListener;

    const FILE_SYSTEM: Digest = Digest([7; 32]);

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn invitation(seed: u8, file_system: Digest, role: MeetingRole) -> Invitation {
        Invitation { key: key(seed).into(), file_system, role }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        (near.expect("connected"), far.expect("accepted").0)
    }

    /// The results at both ends of a meeting of keys 1 and 2.
    async fn met(
        expected: u8,
        knows: Digest,
    ) -> (
        Result<(PublicKey, Box<dyn PeerStream>), MeetingError>,
        Result<(PublicKey, Box<dyn PeerStream>), MeetingError>,
    ) {
        let (near, far) = pair().await;
        let connecting = invitation(1, knows, MeetingRole::Connecting(key(expected).public()));
        tokio::join!(meet(near, connecting), meet(far, invitation(2, FILE_SYSTEM, MeetingRole::Accepting)))
    }

    fn block_on<T>(task: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(task)
    }

    /// Proves: both ends learn each other's key, and bytes pass both ways.
    #[test]
    fn two_devices_meet() {
        block_on(async {
            let (near, far) = met(2, FILE_SYSTEM).await;
            let ((their, mut near), (our, mut far)) = (near.expect("met"), far.expect("met"));
            assert_eq!((their, our), (key(2).public(), key(1).public()));
            near.write_all(b"word").await.and(near.flush().await).expect("sent");
            let mut word = [0; 4];
            far.read_exact(&mut word).await.expect("came");
            assert_eq!(&word, b"word");
        });
    }

    /// Proves: a stranger gets not one byte, and another key than the expected one is not shown ours.
    #[test]
    fn strangers_are_not_answered() {
        block_on(async {
            let (near, far) = met(2, Digest([8; 32])).await;
            assert!(near.is_err() && matches!(far, Err(MeetingError::Stranger)));
            // The knock names the expected key, so a client with another one does not answer it.
            let (near, far) = met(3, FILE_SYSTEM).await;
            assert!(near.is_err() && matches!(far, Err(MeetingError::Stranger)));
            let (mut near, far) = pair().await;
            near.write_all(&[0; 600]).await.expect("sent");
            let outcome = meet(far, invitation(2, FILE_SYSTEM, MeetingRole::Accepting)).await;
            assert!(matches!(outcome, Err(MeetingError::Stranger)));
            let mut answer = Vec::new();
            let _ = near.read_to_end(&mut answer).await;
            assert!(answer.is_empty(), "{answer:?}");
        });
    }

    /// Proves: a client that answers a knock for another key, which it has seen, is detected in the
    /// handshake.
    #[test]
    fn another_key_is_refused() {
        block_on(async {
            let (near, far) = pair().await;
            let connecting = invitation(1, FILE_SYSTEM, MeetingRole::Connecting(key(2).public()));
            let impostor = async move {
                let mut far = far;
                let mut knocked = [0; KNOCK_BYTES];
                far.read_exact(&mut knocked).await.expect("a knock");
                TlsAcceptor::from(tls::accepting(Arc::new(key(9)), ALPN)).accept(far).await
            };
            let (near, far) = tokio::join!(meet(near, connecting), impostor);
            assert!(matches!(near, Err(MeetingError::Handshake(_))));
            assert!(far.is_err(), "no key was shown to it");
        });
    }
}
