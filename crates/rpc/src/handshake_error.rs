//! Why a handshake did not identify a peer.

use quinn::ConnectionError;
use std::io;

/// What a peer lacks after a complete handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerKeyError {
    /// It speaks another application protocol than this one.
    #[error("it does not speak {0}")]
    OtherProtocol(String),
    /// Its key is not of the kind that Holdfast uses.
    #[error("it has no Ed25519 raw public key")]
    NoKey,
}

/// Why the handshake of an incoming connection was not completed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// Peer: it took too long.
    #[error("the handshake took too long")]
    Slow,
    /// Peer or medium: TLS over TCP failed, or the system has no descriptors.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Peer or medium: QUIC failed.
    #[error(transparent)]
    Quic(#[from] ConnectionError),
    /// Peer: it lacks something.
    #[error(transparent)]
    Key(#[from] PeerKeyError),
    /// The back end did not accept the connection.
    #[error("nobody was introduced")]
    NotIntroduced,
}
