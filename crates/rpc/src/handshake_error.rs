//! Why a handshake brought no peer.

use quinn::ConnectionError;
use std::io;

/// What a peer lacks after a complete handshake.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerKeyError {
    /// It speaks another application protocol than this one.
    #[error("it does not speak {0}")]
    OtherProtocol(String),
    /// It has shown something else than a key as Holdfast has them.
    #[error("it has no Ed25519 raw public key")]
    NoKey,
}

/// Why the handshake of a connection that came in was not completed.
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
    /// Peer: what it lacks.
    #[error(transparent)]
    Key(#[from] PeerKeyError),
    /// The back end did not take it.
    #[error("nobody was introduced")]
    NotIntroduced,
}
