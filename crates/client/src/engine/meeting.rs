//! Meeting other clients, as whoever starts an engine asks for it and is told of it. What does it is [`super::peers`].

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// What a mount does while a peer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenPeerLost {
    /// Warns, and goes on.
    Warn,
    /// Refuses everything until it is back, has logged out, or the user says so.
    Pause,
}

/// Settings for meeting other clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeersPolicy {
    /// Where to listen; `None`: at a free port of all addresses.
    pub listen: Option<SocketAddr>,
    /// Whether to tell the local network, and hear what is told there.
    pub beacon: bool,
    /// A peer that is silent for so long counts as lost.
    pub timeout: Duration,
    /// What a mount does when a peer is lost.
    pub when_lost: WhenPeerLost,
}

/// Called when a peer is lost or back: whether anybody is lost now, and in words.
pub type PeerHook = Box<dyn Fn(bool, &str) + Send + Sync>;

/// Whether a peer is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerPresence {
    /// It has said that it is there, and was not met, or is not waited for any more.
    LoggedIn,
    /// It has been met, and answers.
    Met,
    /// It was met, has not logged out, and is silent.
    Lost,
    /// It has logged out in order.
    LoggedOut,
}

/// What is known of one peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Number of its device.
    pub device: u32,
    /// Name of its device.
    pub name: String,
    /// Name of the user that the device belongs to.
    pub user: String,
    /// Addresses at which it is said to listen.
    pub addresses: Vec<String>,
    /// Whether it is there.
    pub standing: PeerPresence,
    /// When it was heard last, nanoseconds since the epoch.
    pub heard_ns: Option<i64>,
    /// Operations of which both have seen the same, as far as can be told.
    pub agreed_operations: Option<u64>,
    /// When that was found, nanoseconds since the epoch.
    pub agreed_ns: Option<i64>,
    /// The last failure to reach it, in words.
    pub trouble: Option<String>,
}

/// How this device and its peers stand, for `holdfast evidence peers` and `status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeersStatus {
    /// Addresses at which this device listens.
    pub listens: Vec<String>,
    /// After how many seconds of silence a peer is lost.
    pub timeout_s: u64,
    /// What this mount does when a peer is lost.
    pub when_lost: WhenPeerLost,
    /// Whether everything waits for one that is lost.
    pub is_paused: bool,
    /// Why this device's own record could not be written, if so.
    pub trouble: Option<String>,
    /// The peers, in order of their devices' numbers.
    pub peers: Vec<PeerStatus>,
}
