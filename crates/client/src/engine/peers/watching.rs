//! What goes on by itself: peers are told how far this device is, those that are not connected are called, and silence is
//! noticed.

use super::{Peers, Seat, visiting};
use crate::engine::leases::now_ms;
use crate::engine::shared::Shared;
use holdfast_protocol::peers::{Latest, Presence, Word};
use std::sync::Arc;
use std::time::Duration;

/// How often.
const EVERY: Duration = Duration::from_millis(500);
/// The longest silence of this device, unless peers are lost sooner.
const HERE_MS_MAX: u64 = 5_000;

/// Watches until it is stopped.
pub(super) fn run(peers: &Arc<Peers>, shared: &Arc<Shared>) {
    while !peers.stop.pause(EVERY) {
        peers.forget_strangers(shared);
        let seats = peers.desk.lock().seats.clone();
        for seat in &seats {
            peers.tell(shared, seat);
        }
        let changes = peers.desk.lock().roster.poll(now_ms());
        if !changes.is_empty() {
            peers.changed(&changes);
        }
        peers.call_some(shared);
    }
}

impl Peers {
    /// Tells a peer how far this device is, if that is news, or that it is there, if it was not told for a while.
    pub(super) fn tell(&self, shared: &Shared, seat: &Seat) {
        let latest = Latest::of(&shared.latest.read().floor);
        let here_ms = (self.policy.timeout.as_millis() as u64 / 6).min(HERE_MS_MAX);
        let mut told = seat.told.lock();
        let now_ms = now_ms();
        let word = if told.0.as_ref() != Some(&latest) {
            told.0 = Some(latest.clone());
            Word::Latest(Box::new(latest))
        } else if now_ms.saturating_sub(told.1) >= here_ms {
            Word::Here
        } else {
            return;
        };
        told.1 = now_ms;
        seat.visit.say_or_hang_up(&word);
    }

    /// Says goodbye to everybody.
    pub(super) fn say_goodbye(&self) {
        let seats = self.desk.lock().seats.clone();
        seats.iter().for_each(|seat| seat.visit.say_or_hang_up(&Word::Bye));
    }

    /// Hangs up on who is no member any more, and does not wait for it.
    fn forget_strangers(&self, shared: &Shared) {
        let membership = shared.latest.read().base.membership.clone();
        // Before the first view there is no membership to go by.
        if membership.devices.len() <= 1 {
            return;
        }
        let is_member =
            |device| membership.devices.get(&device).is_some_and(|known| known.removed_at.is_none());
        let mut desk = self.desk.lock();
        for seat in desk.seats.iter().filter(|seat| !is_member(seat.device)) {
            seat.visit.hang_up();
        }
        let was_anybody_lost = desk.roster.is_anybody_lost();
        desk.roster.retain(is_member);
        desk.known.retain(|device, _| is_member(*device));
        let is_anybody_lost = desk.roster.is_anybody_lost();
        drop(desk);
        if was_anybody_lost != is_anybody_lost {
            self.changed(&[]);
        }
    }

    /// Calls those that are there and not connected, each when its time has come.
    fn call_some(self: &Arc<Self>, shared: &Arc<Shared>) {
        let now_ms = now_ms();
        let mut calls = Vec::new();
        {
            let mut desk = self.desk.lock();
            let present = |device| {
                let peer = desk.roster.peers().get(device);
                peer.is_some_and(|peer| peer.presence != Presence::LoggedOut) && !desk.has_seat(*device)
            };
            let due: Vec<_> = (desk.known.iter())
                .filter(|(device, known)| known.call_at_ms <= now_ms && present(device))
                .map(|(device, known)| (*device, known.addresses()))
                .filter(|(_, addresses)| !addresses.is_empty())
                .collect();
            for (device, addresses) in due {
                // Until it is known what becomes of it.
                if let Some(known) = desk.known.get_mut(&device) {
                    known.call_at_ms = now_ms + 30_000;
                }
                calls.push((device, addresses));
            }
        }
        for (device, addresses) in calls {
            visiting::call(self, shared, device, addresses);
        }
    }
}
