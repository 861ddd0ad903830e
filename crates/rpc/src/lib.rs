//! Transport: one authenticated, encrypted, multiplexed channel between a client and a server.
//!
//! TLS 1.3 with raw Ed25519 public keys on both sides (RFC 7250), without certificates, over TCP or QUIC;
//! inside it, length-delimited frames, each with the id of its request. This crate decides nothing about file
//! systems: it knows the peer's key, limits the memory that a peer can use, and gives every wait an end.
//!
//! Invariants:
//! - The client talks only to a server whose TLS key is in a list signed by the file system's superuser,
//!   whose key in turn has the file system's id as its digest. A false name service or a machine in the
//!   middle gets no further than the handshake.
//! - This crate sends a request without an answer again only if carrying it out twice has no effect
//!   ([`is_idempotent`]). For every other request the caller gets [`RpcError::Lost`] and decides.
//! - No peer makes this crate allocate memory before it has sent the bytes, nor beyond its share
//!   ([`Limits`]).
//! - A peer that misbehaves loses its connection, and nobody else is affected.
//!
//! The full description, with all limits, is in `docs/internals/transport.md`.
#![forbid(unsafe_code)]

mod address;
mod budget;
mod choice;
mod connection;
mod dial;
mod error;
mod estimate;
mod flow;
mod frame;
mod gauge;
mod handshake_error;
#[cfg(test)]
mod hostile;
mod link;
mod meeting;
pub mod privsep;
mod quic;
mod serve;
mod socket;
mod sockets;
mod throttle;
mod tls;

pub use address::{Address, AddressError, BLOCKS_PORT, BlocksAddress, DEFAULT_PORT, ServerAddress};
pub use choice::Transport;
pub use connection::{
    Connection, ConnectionOptions, Connector, Lane, RETRIEVED_BYTES_MAX, ServerProof, Traffic,
    collect_blocks, is_idempotent,
};
pub use dial::check_welcome;
pub use error::{RpcError, WrongServer};
pub use estimate::LinkEstimate;
pub use frame::{FRAME_HEADER_BYTES, FrameError, FrameHeader};
pub use meeting::{Invitation, MEETING_PATIENCE, MeetingError, MeetingRole, PeerStream, meet};
pub use serve::{Limits, Listeners, Service, Session, serve};
pub use sockets::{
    OwnSockets, SocketFuture, Sockets, assume_bbr_is_missing, diagnosis_socket, prepare, use_diagnosis_socket,
};
pub use throttle::Throttle;
