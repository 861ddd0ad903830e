//! The client in parts: the main process, which has files and the kernel's requests; the *signer*, which alone has the
//! device's key; and the *network* process, which alone reads what the network sends.
//!
//! ```text
//! main ──sign── signer ──handshake── network ── server
//!   └────────────── requests, answers ──┘
//! ```
//!
//! The two are sandboxed ([`holdfast_components`]): no files, no network but sockets that are handed to them, no
//! programs. The main process starts them before anything of the network is read, hands over the key unread where it
//! can, and is not trusted with it. Where the system cannot make sandboxes nothing is started, and the reason is told.
//!
//! See `docs/internals/processes.md`.

mod agent;
mod frames;
#[cfg_attr(not(feature = "peers"), path = "without_handshakes.rs")]
mod handshakes;
mod key;
mod link;
pub mod messages;
mod network;
#[cfg(feature = "peers")]
mod peer_channels;
pub mod record;
mod signer;
mod sockets;
mod two_slot_file;

pub use agent::connect_to_agent;
pub use key::{KeySource, Processes, ProcessesError};
#[cfg(feature = "peers")]
pub(crate) use peer_channels::{BeaconStream, PeerChannel};

use holdfast_components::Main;

/// The components, for [`holdfast_components::run_if_component`].
pub const COMPONENTS: &[(&str, Main)] =
    &[(messages::SIGNER, signer::main), (messages::NETWORK, network::main)];
