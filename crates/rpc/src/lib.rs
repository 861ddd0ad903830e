//! Transport: one authenticated, encrypted, multiplexed channel between a client and a server.
//!
//! TLS 1.3 with raw Ed25519 public keys on both sides (RFC 7250), no certificates, over TCP or QUIC; inside it, length-delimited
//! frames, each with the id of the request it belongs to. This crate decides nothing about file systems: it
//! knows who is at the other end, bounds what that peer can make us hold, and gives every wait an end.
//!
//! Invariants:
//! - the client talks only to a server whose TLS key stands in a list that the file system's superuser signed,
//!   and whose superuser key digests to the file system's id; a lying name service or a machine in the middle
//!   gets no further than the handshake;
//! - a request whose answer was lost is sent again by this crate only if doing so twice changes nothing
//!   ([`is_idempotent`]); of every other the caller hears [`RpcError::Lost`] and decides;
//! - no peer makes us allocate before it has sent the bytes, nor beyond its share ([`Limits`]);
//! - a peer that misbehaves loses its connection and nobody else notices.
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
