//! The status that `holdfast evidence peers` prints.

use super::Peers;
use crate::engine::meeting::{PeerPresence, PeerStatus, PeersStatus};
use crate::engine::shared::Shared;
use holdfast_protocol::peers::Presence;

impl Peers {
    /// The status that `holdfast evidence peers` prints.
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
