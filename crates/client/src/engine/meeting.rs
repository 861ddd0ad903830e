//! Settings and status for meeting other clients. The work is done by [`super::peers`].

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// What a mount does while a peer is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenPeerLost {
    /// Warns, and goes on.
    Warn,
    /// Refuses everything until the peer is back, has logged out, or the user decides to go on.
    Pause,
}

/// Settings for meeting other clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeersPolicy {
    /// Address to listen at; `None`: a free port of all addresses.
    pub listen: Option<SocketAddr>,
    /// Whether to announce this device on the local network, and listen to announcements there.
    pub beacon: bool,
    /// A peer counts as lost after so long a silence.
    pub timeout: Duration,
    /// What a mount does when a peer is lost.
    pub when_lost: WhenPeerLost,
}

/// Called when a peer is lost or back: whether any peer is lost now, and a text for the user.
pub type PeerHook = Box<dyn Fn(bool, &str) + Send + Sync>;

/// The presence of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerPresence {
    /// It has announced itself, but was not met, or is not waited for any more.
    LoggedIn,
    /// It has been met and answers.
    Met,
    /// It was met, has not logged out, and is silent.
    Lost,
    /// It has logged out properly.
    LoggedOut,
}

/// Status of one peer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Number of its device.
    pub device: u32,
    /// Name of its device.
    pub name: String,
    /// Name of the user that the device belongs to.
    pub user: String,
    /// Addresses at which it is announced to listen.
    pub addresses: Vec<String>,
    /// Whether the peer is there.
    pub standing: PeerPresence,
    /// When it was last heard, in nanoseconds since 1970.
    pub heard_ns: Option<i64>,
    /// Number of operations for which it was found that both devices have seen the same.
    pub agreed_operations: Option<u64>,
    /// When that was found, in nanoseconds since 1970.
    pub agreed_ns: Option<i64>,
    /// The last failure to reach it.
    pub trouble: Option<String>,
}

/// Status of this device and its peers, for `holdfast evidence peers` and `status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeersStatus {
    /// Addresses at which this device listens.
    pub listens: Vec<String>,
    /// After how many seconds of silence a peer counts as lost.
    pub timeout_s: u64,
    /// What this mount does when a peer is lost.
    pub when_lost: WhenPeerLost,
    /// Whether everything waits for a lost peer.
    pub is_paused: bool,
    /// Why this device's own record could not be written, if it could not.
    pub trouble: Option<String>,
    /// The peers, ordered by device number.
    pub peers: Vec<PeerStatus>,
}
