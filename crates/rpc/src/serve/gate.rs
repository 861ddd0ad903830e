//! Who may hold a connection: counts, and who has to go when there are too many.

use super::Limits;
use crate::throttle::Throttle;
use holdfast_crypto::PublicKey;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Notify, Semaphore};

/// Shared by all connections of a server.
pub(crate) struct Gate {
    limits: Limits,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    connections: usize,
    /// In the order they came.
    strangers: Vec<Arc<Stranger>>,
    by_peer: HashMap<PublicKey, VecDeque<Arc<Notify>>>,
}

/// A connection that is not admitted, or not yet.
struct Stranger {
    address: IpAddr,
    /// Whether it has proved that it holds a key.
    was_heard: AtomicBool,
    /// Closed once a newer one has its place.
    place: Semaphore,
}

/// One connection's place; given up on drop.
pub(crate) struct Place {
    gate: Arc<Gate>,
    stranger: Arc<Stranger>,
    peer: Option<(PublicKey, Arc<Notify>)>,
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Arc<Gate> {
        Arc::new(Gate { limits, counts: Mutex::default() })
    }

    /// Whether places for strangers are becoming few: then those who come by datagram must first show that they
    /// are where they say, as a forged sender's address costs nothing.
    pub(crate) fn is_pressed(&self) -> bool {
        self.counts.lock().strangers.len() >= self.limits.strangers_max / 8
    }

    /// Lets a new connection in as a stranger, or says why not. Where strangers are too many, one gives way: whoever holds
    /// connections open and says nothing keeps nobody out.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Place, &'static str> {
        let address = prefix(address);
        let mut counts = self.counts.lock();
        if counts.connections >= self.limits.connections_max {
            return Err("too many connections");
        }
        if counts.from(address) >= self.limits.strangers_per_address_max {
            counts.displace(address);
        } else if counts.strangers.len() >= self.limits.strangers_max {
            let strangers = counts.strangers.iter().map(|stranger| stranger.address);
            if let Some(fullest) = strangers.max_by_key(|address| counts.from(*address)) {
                counts.displace(fullest);
            }
        }
        counts.connections += 1;
        let (was_heard, place) = (AtomicBool::new(false), Semaphore::new(0));
        let stranger = Arc::new(Stranger { address, was_heard, place });
        counts.strangers.push(stranger.clone());
        Ok(Place { gate: self.clone(), stranger, peer: None })
    }
}

/// Completes when the connection has to give its place to a newer one.
pub(crate) fn displaced(place: &Place) -> impl Future<Output = ()> + Send + use<> {
    let stranger = place.stranger.clone();
    async move {
        // There are no permits: this waits until it is closed.
        let _ = stranger.place.acquire().await;
    }
}

/// The way in: numbers connections, and logs those that are turned away, not too often.
pub(crate) struct Entrance {
    gate: Arc<Gate>,
    ids: AtomicU64,
    refusals: Throttle,
}

impl Entrance {
    pub(crate) fn new(limits: Limits) -> Entrance {
        Entrance { gate: Gate::new(limits), ids: AtomicU64::new(1), refusals: Throttle::default() }
    }

    /// See [`Gate::is_pressed`].
    pub(crate) fn is_pressed(&self) -> bool {
        self.gate.is_pressed()
    }

    /// A place for a connection from there, with its number.
    pub(crate) fn enter(&self, address: SocketAddr) -> Option<(u64, Place)> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        match self.gate.enter(address.ip()) {
            Ok(place) => Some((id, place)),
            Err(why) => {
                if let Some(suppressed) = self.refusals.allow() {
                    tracing::warn!(connection = id, %address, why, suppressed, "connection refused");
                }
                None
            }
        }
    }
}

/// What one attacker can be assumed to own: an IPv4 address, or a /64 of IPv6.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => IpAddr::V4(four),
            None => IpAddr::V6((u128::from(six) & !u128::from(u64::MAX)).into()),
        },
    }
}

impl Place {
    /// The connection is an admitted peer's; how many those have is counted elsewhere.
    pub(crate) fn leave_strangers(&mut self) {
        self.gate.counts.lock().leave(&self.stranger);
    }

    /// The peer has proved that it holds a key: those who have not give way first.
    pub(crate) fn heard(&self) {
        self.stranger.was_heard.store(true, Ordering::Relaxed);
    }

    /// The connection is an admitted peer's: it no longer counts as a stranger, and if the peer has too many,
    /// its oldest is told to close. Returns what tells this one.
    pub(crate) fn admit(&mut self, peer: PublicKey) -> Arc<Notify> {
        if let Some((_, told)) = &self.peer {
            return told.clone();
        }
        let told = Arc::new(Notify::new());
        let mut counts = self.gate.counts.lock();
        counts.leave(&self.stranger);
        let connections = counts.by_peer.entry(peer).or_default();
        connections.push_back(told.clone());
        if connections.len() > self.gate.limits.connections_per_peer_max
            && let Some(oldest) = connections.pop_front()
        {
            oldest.notify_one();
        }
        self.peer = Some((peer, told.clone()));
        told
    }
}

impl Counts {
    /// How many strangers are from there.
    fn from(&self, address: IpAddr) -> usize {
        self.strangers.iter().filter(|stranger| stranger.address == address).count()
    }

    /// Takes the place of a stranger from there: of the oldest that has proved nothing, else of the oldest.
    fn displace(&mut self, address: IpAddr) {
        let from_there = || self.strangers.iter().filter(|stranger| stranger.address == address);
        let silent = from_there().find(|stranger| !stranger.was_heard.load(Ordering::Relaxed));
        if let Some(displaced) = silent.or_else(|| from_there().next()).cloned() {
            displaced.place.close();
            self.leave(&displaced);
        }
    }

    fn leave(&mut self, stranger: &Arc<Stranger>) {
        self.strangers.retain(|other| !Arc::ptr_eq(other, stranger));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.gate.counts.lock();
        counts.connections -= 1;
        counts.leave(&self.stranger);
        if let Some((peer, told)) = &self.peer
            && let Some(connections) = counts.by_peer.get_mut(peer)
        {
            connections.retain(|other| !Arc::ptr_eq(other, told));
            if connections.is_empty() {
                counts.by_peer.remove(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Arc<Gate> {
        Gate::new(Limits {
            connections_max: 5,
            strangers_max: 3,
            strangers_per_address_max: 2,
            connections_per_peer_max: 2,
            ..Limits::default()
        })
    }

    /// Proves: strangers are bounded in all and by address (an IPv6 /64 counts as one): beyond that those who have said
    /// nothing give way, of the address that has most; members pass them by,
    /// and every place is given back.
    #[test]
    fn strangers_are_bounded() {
        let gate = gate();
        let near: IpAddr = "2001:db8::1".parse().unwrap();
        let beside: IpAddr = "2001:db8::2".parse().unwrap();
        let far: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        let left = |places: &[&Place]| {
            places.iter().map(|place| place.stranger.place.is_closed()).collect::<Vec<_>>()
        };
        let mut first = gate.enter(near).unwrap();
        let second = gate.enter(beside).unwrap();
        let third = gate.enter(far).unwrap();
        assert_eq!(left(&[&first, &second, &third]), [false; 3]);
        first.admit(PublicKey([1; 32]));
        let fourth = gate.enter(near).unwrap();
        fourth.heard();
        let fifth = gate.enter(near).unwrap();
        assert_eq!(left(&[&first, &second, &third, &fourth]), [false, true, false, false], "two from there");
        assert!(gate.enter(near).is_err(), "five connections in all");
        drop(second);
        let sixth = gate.enter(far).unwrap();
        assert_eq!(
            left(&[&third, &fourth, &fifth]),
            [false, false, true],
            "of those from the fullest address"
        );
        drop((first, third, fourth, fifth, sixth));
        let counts = gate.counts.lock();
        assert_eq!((counts.connections, counts.strangers.len()), (0, 0));
        assert!(counts.by_peer.is_empty());
    }

    /// Proves: a peer's surplus connection closes its oldest, not its newest: after a change of network the dead
    /// ones must not keep their owner out.
    #[test]
    fn the_oldest_connection_goes() {
        let gate = gate();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let mut places = Vec::new();
        let mut told = Vec::new();
        for _ in 0..3 {
            let mut place = gate.enter(address).unwrap();
            told.push(place.admit(PublicKey([1; 32])));
            places.push(place);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            told[0].notified().await;
            let soon = std::time::Duration::from_millis(1);
            assert!(tokio::time::timeout(soon, told[1].notified()).await.is_err());
            assert!(tokio::time::timeout(soon, told[2].notified()).await.is_err());
        });
    }
}
