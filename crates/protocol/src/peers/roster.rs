//! Which devices are present: logged in, met directly, logged out, or silent.
//!
//! Invariants: only a device that was met directly can be *lost*, since only then is silence a change. A
//! device that logged out is not lost, and late messages of a run that has ended do not bring it back. Time
//! is an argument.

use holdfast_content::DeviceId;
use std::collections::BTreeMap;

/// Most devices remembered. As many as a file system may have.
pub const PEERS_MAX: usize = crate::check::DEVICES_MAX;

/// The run of a device of which only a beacon was heard.
pub const UNKNOWN_RUN: u64 = 0;

/// Whether a peer is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// A record says that it is there, but it was not met, or is no longer expected.
    LoggedIn,
    /// It is there, and is heard.
    Met,
    /// It was met, has not logged out, and is silent.
    Lost,
    /// It logged out.
    LoggedOut,
}

/// The state of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Whether it is there.
    pub presence: Presence,
    /// Number of its run, as far as it is known.
    pub run: u64,
    /// When it was heard last, in milliseconds of the caller's clock.
    pub heard_ms: Option<u64>,
}

/// A change of a peer's presence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The peer's device.
    pub device: DeviceId,
    /// Its presence before.
    pub before: Presence,
    /// Its presence now.
    pub presence: Presence,
}

/// All peers of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    timeout_ms: u64,
    peers: BTreeMap<DeviceId, Peer>,
}

impl Roster {
    /// A roster without peers. A peer that was met counts as lost after `timeout_ms` of silence.
    pub fn new(timeout_ms: u64) -> Roster {
        Roster { timeout_ms, peers: BTreeMap::new() }
    }

    /// All peers, by device.
    pub fn peers(&self) -> &BTreeMap<DeviceId, Peer> {
        &self.peers
    }

    /// Notes that a record says that this run of the device has logged in.
    pub fn handle_login(&mut self, device: DeviceId, run: u64) {
        let is_room = self.peers.len() < PEERS_MAX;
        match self.peers.get_mut(&device) {
            Some(peer) if peer.presence == Presence::LoggedOut && peer.run != run => {
                *peer = Peer { presence: Presence::LoggedIn, run, heard_ms: peer.heard_ms };
            }
            Some(peer) if peer.presence == Presence::LoggedIn && run != UNKNOWN_RUN => peer.run = run,
            Some(_) => {}
            None if is_room => {
                self.peers.insert(device, Peer { presence: Presence::LoggedIn, run, heard_ms: None });
            }
            None => {}
        }
    }

    /// Notes that the device was heard directly. Returns what that changes, if anything.
    pub fn handle_heard(&mut self, now_ms: u64, device: DeviceId, run: u64) -> Option<Change> {
        self.handle_login(device, run);
        let peer = self.peers.get_mut(&device)?;
        if peer.presence == Presence::LoggedOut && peer.run == run {
            return None;
        }
        let before = std::mem::replace(&mut peer.presence, Presence::Met);
        (peer.run, peer.heard_ms) = (run, Some(now_ms));
        (before != Presence::Met).then_some(Change { device, before, presence: Presence::Met })
    }

    /// Notes that this run of the device has logged out, according to the device itself or a record.
    pub fn handle_logout(&mut self, device: DeviceId, run: u64) -> Option<Change> {
        let peer = self.peers.get_mut(&device)?;
        if peer.run != run || peer.presence == Presence::LoggedOut {
            return None;
        }
        let before = std::mem::replace(&mut peer.presence, Presence::LoggedOut);
        Some(Change { device, before, presence: Presence::LoggedOut })
    }

    /// Marks peers that have been silent for too long as lost, and returns these changes.
    pub fn poll(&mut self, now_ms: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        for (device, peer) in &mut self.peers {
            let silent_ms = peer.heard_ms.map_or(0, |heard_ms| now_ms.saturating_sub(heard_ms));
            if peer.presence == Presence::Met && silent_ms >= self.timeout_ms {
                peer.presence = Presence::Lost;
                changes.push(Change { device: *device, before: Presence::Met, presence: Presence::Lost });
            }
        }
        changes
    }

    /// Stops waiting for lost peers, until they are met again; returns which these were.
    pub fn stop_waiting_for_lost(&mut self) -> Vec<DeviceId> {
        let lost = self.peers.iter_mut().filter(|(_, peer)| peer.presence == Presence::Lost);
        lost.map(|(device, peer)| {
            peer.presence = Presence::LoggedIn;
            *device
        })
        .collect()
    }

    /// Forgets devices that are no members any more.
    pub fn retain(&mut self, is_member: impl Fn(DeviceId) -> bool) {
        self.peers.retain(|device, _| is_member(*device));
    }

    /// Whether any peer is lost.
    pub fn is_anybody_lost(&self) -> bool {
        self.peers.values().any(|peer| peer.presence == Presence::Lost)
    }
}
