//! The thread that maintains peers: it sends them this device's progress, calls those that are not connected,
//! and notices silence.

use super::{PeerConnection, Peers, connections};
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use holdfast_protocol::peers::{DeviceProgress, PeerMessage, Presence};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which this thread checks the peers.
const EVERY: Duration = Duration::from_millis(500);
/// Longest time without a message from this device; shorter if peers count as lost sooner.
const HERE_MS_MAX: u64 = 5_000;

/// Body of the thread that maintains peers, until it is stopped.
pub(super) fn run(peers: &Arc<Peers>, shared: &Arc<Shared>) {
    while !peers.stop.pause(EVERY) {
        peers.drop_removed_devices(shared);
        let connections = peers.state.lock().connections.clone();
        for connection in &connections {
            peers.tell_progress(shared, connection);
        }
        let changes = peers.state.lock().roster.poll(now_ms());
        if !changes.is_empty() {
            peers.changed(&changes);
        }
        peers.call_unconnected(shared);
    }
}

impl Peers {
    /// Sends this device's progress to a peer if that is new; or a sign of life, if nothing was sent for a
    /// while.
    pub(super) fn tell_progress(&self, shared: &Shared, connection: &PeerConnection) {
        let latest = DeviceProgress::of(&shared.latest.read().floor);
        let here_ms = (self.policy.timeout.as_millis() as u64 / 6).min(HERE_MS_MAX);
        let mut told = connection.told.lock();
        let now_ms = now_ms();
        let word = if told.0.as_ref() != Some(&latest) {
            told.0 = Some(latest.clone());
            PeerMessage::Progress(Box::new(latest))
        } else if now_ms.saturating_sub(told.1) >= here_ms {
            PeerMessage::KeepAlive
        } else {
            return;
        };
        told.1 = now_ms;
        connection.channel.send_or_hang_up(&word);
    }

    /// Tells all peers that this device leaves.
    pub(super) fn say_goodbye(&self) {
        let connections = self.state.lock().connections.clone();
        connections.iter().for_each(|connection| connection.channel.send_or_hang_up(&PeerMessage::Bye));
    }

    /// Closes connections to devices that are no longer members, and forgets them.
    fn drop_removed_devices(&self, shared: &Shared) {
        let membership = shared.latest.read().base.membership.clone();
        // Before the first view, the membership is not known.
        if membership.devices.len() <= 1 {
            return;
        }
        let is_member =
            |device| membership.devices.get(&device).is_some_and(|known| known.removed_at.is_none());
        let mut state = self.state.lock();
        for connection in state.connections.iter().filter(|connection| !is_member(connection.device)) {
            connection.channel.hang_up();
        }
        let was_anybody_lost = state.roster.is_anybody_lost();
        state.roster.retain(is_member);
        state.known.retain(|device, _| is_member(*device));
        let is_anybody_lost = state.roster.is_anybody_lost();
        drop(state);
        if was_anybody_lost != is_anybody_lost {
            self.changed(&[]);
        }
    }

    /// Calls those that are present and not connected, each when it is due.
    fn call_unconnected(self: &Arc<Self>, shared: &Arc<Shared>) {
        let now_ms = now_ms();
        let mut calls = Vec::new();
        {
            let mut state = self.state.lock();
            let present = |device| {
                let peer = state.roster.peers().get(device);
                peer.is_some_and(|peer| peer.presence != Presence::LoggedOut)
                    && !state.is_connected_to(*device)
            };
            let due: Vec<_> = (state.known.iter())
                .filter(|(device, known)| known.call_at_ms <= now_ms && present(device))
                .map(|(device, known)| (*device, known.addresses()))
                .filter(|(_, addresses)| !addresses.is_empty())
                .collect();
            for (device, addresses) in due {
                // No other call to this device begins before this one has ended.
                if let Some(known) = state.known.get_mut(&device) {
                    known.call_at_ms = now_ms + 30_000;
                }
                calls.push((device, addresses));
            }
        }
        for (device, addresses) in calls {
            connections::call(self, shared, device, addresses);
        }
    }
}
