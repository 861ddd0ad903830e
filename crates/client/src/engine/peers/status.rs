//! What `holdfast evidence peers` prints.

use super::{Peers, WhenPeerLost};
use crate::engine::shared::Shared;
use holdfast_protocol::peers::Presence;
use serde::{Deserialize, Serialize};

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

impl Peers {
    /// What `holdfast evidence peers` prints.
    pub fn status(&self, shared: &Shared) -> PeersStatus {
        let membership = shared.latest.read().base.membership.clone();
        let state = self.state.lock();
        let peers = state.roster.peers().iter().map(|(device, peer)| {
            let member = membership.devices.get(device);
            let user = member.and_then(|member| membership.users.get(&member.user));
            let known = state.known.get(device);
            let addresses = known.map(|known| known.addresses()).unwrap_or_default();
            let agreed = known.and_then(|known| known.agreed);
            PeerStatus {
                device: device.0,
                name: member.map_or_else(String::new, |member| member.name.clone()),
                user: user.map_or_else(String::new, |user| user.name.clone()),
                addresses: addresses.iter().map(ToString::to_string).collect(),
                standing: match peer.presence {
                    Presence::LoggedIn => PeerPresence::LoggedIn,
                    Presence::Met => PeerPresence::Met,
                    Presence::Lost => PeerPresence::Lost,
                    Presence::LoggedOut => PeerPresence::LoggedOut,
                },
                heard_ns: known.and_then(|known| known.heard_ns),
                agreed_operations: agreed.map(|(operations, _)| operations),
                agreed_ns: agreed.map(|(_, at_ns)| at_ns),
                trouble: known.and_then(|known| known.trouble.clone()),
            }
        });
        PeersStatus {
            listens: self.announced.iter().map(ToString::to_string).collect(),
            timeout_s: self.policy.timeout.as_secs(),
            when_lost: self.policy.when_lost,
            is_paused: self.is_paused.load(std::sync::atomic::Ordering::Relaxed),
            trouble: state.trouble.clone(),
            peers: peers.collect(),
        }
    }
}
