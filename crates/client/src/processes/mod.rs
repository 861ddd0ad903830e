//! The client's processes: the *main* process, which has files and the kernel's requests; the *signer*, which
//! alone has the device's key; and the *network* process, which alone reads from the network.
//!
//! ```text
//! main ──sign── signer ──handshake── network ── server
//!   └────────────── requests, answers ──┘
//! ```
//!
//! The latter two are sandboxed ([`holdfast_components`]): no files, no network except sockets that are
//! handed to them, no programs. The main process starts them before anything is read from the network, hands
//! over the key without reading it where possible, and does not have the key afterwards. Where the system
//! cannot make sandboxes, nothing is started, and the reason is reported.
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
