//! Errors of calls, by their cause.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::SignError;
use holdfast_protocol::message::ServerError;

/// Why a call brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum RpcError {
    /// Medium: no connection to any of the addresses could be made before the deadline.
    #[error("the server at {address} cannot be reached: {why}")]
    Unreachable {
        /// The address tried last.
        address: String,
        /// The system's error.
        why: String,
    },
    /// Medium: the connection broke while the request was under way.
    #[error("the connection to the server was lost before the answer came")]
    Lost {
        /// Whether the server may have got the request. If not, it certainly did nothing.
        maybe_sent: bool,
    },
    /// Medium: no answer came before the deadline.
    #[error("the server did not answer in time")]
    Deadline {
        /// Whether the server may have got the request.
        maybe_sent: bool,
    },
    /// Peer: it could not prove that it may serve this file system.
    #[error("the server at {address} is not the right one: {why}")]
    WrongServer {
        /// The server's address.
        address: String,
        /// What the proof lacks.
        why: WrongServer,
    },
    /// Peer: it speaks none of our versions of the protocol.
    #[error("the server speaks versions {} to {} of the protocol, this program {} to {}; upgrade the older one",
        server.0, server.1, ours.0, ours.1)]
    Version {
        /// The server's oldest and newest.
        server: (u16, u16),
        /// Our range of versions.
        ours: (u16, u16),
    },
    /// Peer: it answered that it did not carry out the request.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Peer: it sent something that no honest server sends.
    #[error("the server's answer is malformed: {0}")]
    Malformed(String),
    /// Peer: none of several servers with the same blocks gave a usable answer, and trying again at once
    /// makes no sense.
    #[error("{0}")]
    NotHad(String),
    /// Caller: the holder of the device's key did not sign the handshake.
    #[error(transparent)]
    Key(#[from] SignError),
    /// Caller: the request is larger than a message may be.
    #[error("a request of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Caller: the connection was closed on this side.
    #[error("the connection was closed")]
    Closed,
}

/// What is wrong with a server's proof of identity.
#[derive(Debug, Clone, PartialEq, Eq, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum WrongServer {
    /// The server sent no proof.
    #[error("it showed no proof that it may serve the file system")]
    NoProof,
    /// The proof is for another file system than the requested one.
    #[error("its superuser key belongs to another file system")]
    OtherFileSystem,
    /// The list of server keys is not signed by the superuser.
    #[error("its list of server keys is not signed by the file system's superuser")]
    BadSignature,
    /// The list of server keys is older than one seen before.
    #[error("its list of server keys is number {found}, but number {expected} was seen before")]
    OldList {
        /// Highest sequence seen before.
        expected: u64,
        /// The sequence number it presented.
        found: u64,
    },
    /// Its own key is not in the list.
    #[error("its key {found} is not in the list that the superuser signed")]
    NotListed {
        /// Its TLS key, in hexadecimal digits.
        found: String,
    },
    /// The server does not speak the agreed application protocol, or has no Ed25519 raw public key.
    #[error("it is no Holdfast server: {0}")]
    NotHoldfast(String),
    /// The server has another key than the only one that is allowed.
    #[error("its key is {found}, but that of its address is {expected}")]
    OtherKey {
        /// The key in the address, in hexadecimal digits.
        expected: String,
        /// Its TLS key, in hexadecimal digits.
        found: String,
    },
}

impl RpcError {
    /// Whether the server may have carried out the request although no answer came. The caller must then send
    /// the same bytes again (or give the operation up for good): see docs/internals/protocol.md.
    pub fn maybe_sent(&self) -> bool {
        matches!(self, RpcError::Lost { maybe_sent: true } | RpcError::Deadline { maybe_sent: true })
    }

    /// Whether waiting may help: the server was not reached, or its answer was lost.
    pub fn is_transient(&self) -> bool {
        matches!(self, RpcError::Unreachable { .. } | RpcError::Lost { .. } | RpcError::Deadline { .. })
            || matches!(self, RpcError::Server(ServerError::Busy | ServerError::Elsewhere(_)))
    }
}
