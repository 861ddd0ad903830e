//! Limits on connections: counts them, and decides which one is dropped when there are too many.

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
pub(crate) struct ConnectionLimiter {
    limits: Limits,
    counts: Mutex<ConnectionCounts>,
}

#[derive(Default)]
struct ConnectionCounts {
    connections: usize,
    /// In order of arrival.
    strangers: Vec<Arc<Stranger>>,
    by_peer: HashMap<PublicKey, VecDeque<Arc<Notify>>>,
}

/// A connection that is not admitted, or not yet.
struct Stranger {
    address: IpAddr,
    /// Whether it has proved that it holds a key.
    has_proved_key: AtomicBool,
    /// Closed once a newer connection has taken this one's slot.
    slot: Semaphore,
}

/// The slot of one connection; freed on drop.
pub(crate) struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    stranger: Arc<Stranger>,
    peer: Option<(PublicKey, Arc<Notify>)>,
}

impl ConnectionLimiter {
    pub(crate) fn new(limits: Limits) -> Arc<ConnectionLimiter> {
        Arc::new(ConnectionLimiter { limits, counts: Mutex::default() })
    }

    /// Whether few slots for strangers are left. Then the sender of a datagram must first prove its address,
    /// since a forged one costs nothing.
    pub(crate) fn is_pressed(&self) -> bool {
        self.counts.lock().strangers.len() >= self.limits.strangers_max / 8
    }

    /// Admits a new connection as a stranger, or returns why not. If there are too many strangers, one is
    /// displaced, so that idle connections do not keep new ones out.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, &'static str> {
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
        let (has_proved_key, slot) = (AtomicBool::new(false), Semaphore::new(0));
        let stranger = Arc::new(Stranger { address, has_proved_key, slot });
        counts.strangers.push(stranger.clone());
        Ok(ConnectionSlot { limiter: self.clone(), stranger, peer: None })
    }
}

/// Completes when a newer connection displaces this one.
pub(crate) fn displaced(slot: &ConnectionSlot) -> impl Future<Output = ()> + Send + use<> {
    let stranger = slot.stranger.clone();
    async move {
        // There are no permits: this waits until the semaphore is closed.
        let _ = stranger.slot.acquire().await;
    }
}

/// Numbers new connections, and logs refused ones, at a limited rate.
pub(crate) struct Admission {
    limiter: Arc<ConnectionLimiter>,
    ids: AtomicU64,
    refusals: Throttle,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Admission {
        Admission {
            limiter: ConnectionLimiter::new(limits),
            ids: AtomicU64::new(1),
            refusals: Throttle::default(),
        }
    }

    /// As [`ConnectionLimiter::is_pressed`].
    pub(crate) fn is_pressed(&self) -> bool {
        self.limiter.is_pressed()
    }

    /// A slot for a connection from this address, with its number.
    pub(crate) fn enter(&self, address: SocketAddr) -> Option<(u64, ConnectionSlot)> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        match self.limiter.enter(address.ip()) {
            Ok(slot) => Some((id, slot)),
            Err(why) => {
                if let Some(suppressed) = self.refusals.allow() {
                    tracing::warn!(connection = id, %address, why, suppressed, "connection refused");
                }
                None
            }
        }
    }
}

/// The addresses that one attacker probably owns together: an IPv4 address, or a /64 of IPv6.
fn prefix(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(six) => match six.to_ipv4_mapped() {
            Some(four) => IpAddr::V4(four),
            None => IpAddr::V6((u128::from(six) & !u128::from(u64::MAX)).into()),
        },
    }
}

impl ConnectionSlot {
    /// The connection is an admitted peer's; how many those have is counted elsewhere.
    pub(crate) fn leave_strangers(&mut self) {
        self.limiter.counts.lock().leave(&self.stranger);
    }

    /// Notes that the peer has proved that it holds a key: strangers that have not are displaced first.
    pub(crate) fn note_proved_key(&self) {
        self.stranger.has_proved_key.store(true, Ordering::Relaxed);
    }

    /// Notes that the connection is an admitted peer's. It no longer counts as a stranger, and if the peer
    /// has too many, its oldest is closed. Returns the notice by which this one may be closed later.
    pub(crate) fn admit(&mut self, peer: PublicKey) -> Arc<Notify> {
        if let Some((_, displaced_notice)) = &self.peer {
            return displaced_notice.clone();
        }
        let displaced_notice = Arc::new(Notify::new());
        let mut counts = self.limiter.counts.lock();
        counts.leave(&self.stranger);
        let connections = counts.by_peer.entry(peer).or_default();
        connections.push_back(displaced_notice.clone());
        if connections.len() > self.limiter.limits.connections_per_peer_max
            && let Some(oldest) = connections.pop_front()
        {
            oldest.notify_one();
        }
        self.peer = Some((peer, displaced_notice.clone()));
        displaced_notice
    }
}

impl ConnectionCounts {
    /// Number of strangers from an address.
    fn from(&self, address: IpAddr) -> usize {
        self.strangers.iter().filter(|stranger| stranger.address == address).count()
    }

    /// Displaces a stranger from this address: the oldest that has proved no key, else the oldest.
    fn displace(&mut self, address: IpAddr) {
        let from_there = || self.strangers.iter().filter(|stranger| stranger.address == address);
        let silent = from_there().find(|stranger| !stranger.has_proved_key.load(Ordering::Relaxed));
        if let Some(displaced) = silent.or_else(|| from_there().next()).cloned() {
            displaced.slot.close();
            self.leave(&displaced);
        }
    }

    fn leave(&mut self, stranger: &Arc<Stranger>) {
        self.strangers.retain(|other| !Arc::ptr_eq(other, stranger));
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut counts = self.limiter.counts.lock();
        counts.connections -= 1;
        counts.leave(&self.stranger);
        if let Some((peer, displaced_notice)) = &self.peer
            && let Some(connections) = counts.by_peer.get_mut(peer)
        {
            connections.retain(|other| !Arc::ptr_eq(other, displaced_notice));
            if connections.is_empty() {
                counts.by_peer.remove(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> Arc<ConnectionLimiter> {
        ConnectionLimiter::new(Limits {
            connections_max: 5,
            strangers_max: 3,
            strangers_per_address_max: 2,
            connections_per_peer_max: 2,
            ..Limits::default()
        })
    }

    /// Proves: strangers are limited in all and by address (an IPv6 /64 counts as one). Beyond that, those of
    /// the address with the most are displaced, silent ones first; members are not affected, and every slot
    /// becomes free again.
    #[test]
    fn strangers_are_bounded() {
        let limiter = limiter();
        let near: IpAddr = "2001:db8::1".parse().unwrap();
        let beside: IpAddr = "2001:db8::2".parse().unwrap();
        let far: IpAddr = "2001:db8:0:1::1".parse().unwrap();
        let left = |slots: &[&ConnectionSlot]| {
            slots.iter().map(|slot| slot.stranger.slot.is_closed()).collect::<Vec<_>>()
        };
        let mut first = limiter.enter(near).unwrap();
        let second = limiter.enter(beside).unwrap();
        let third = limiter.enter(far).unwrap();
        assert_eq!(left(&[&first, &second, &third]), [false; 3]);
        first.admit(PublicKey([1; 32]));
        let fourth = limiter.enter(near).unwrap();
        fourth.note_proved_key();
        let fifth = limiter.enter(near).unwrap();
        assert_eq!(left(&[&first, &second, &third, &fourth]), [false, true, false, false], "two from there");
        assert!(limiter.enter(near).is_err(), "five connections in all");
        drop(second);
        let sixth = limiter.enter(far).unwrap();
        assert_eq!(
            left(&[&third, &fourth, &fifth]),
            [false, false, true],
            "of those from the fullest address"
        );
        drop((first, third, fourth, fifth, sixth));
        let counts = limiter.counts.lock();
        assert_eq!((counts.connections, counts.strangers.len()), (0, 0));
        assert!(counts.by_peer.is_empty());
    }

    /// Proves: a peer's surplus connection closes its oldest, not its newest: after a change of network the
    /// dead ones must not keep their owner out.
    #[test]
    fn the_oldest_connection_goes() {
        let limiter = limiter();
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let mut slots = Vec::new();
        let mut displaced_notice = Vec::new();
        for _ in 0..3 {
            let mut slot = limiter.enter(address).unwrap();
            displaced_notice.push(slot.admit(PublicKey([1; 32])));
            slots.push(slot);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            displaced_notice[0].notified().await;
            let soon = std::time::Duration::from_millis(1);
            assert!(tokio::time::timeout(soon, displaced_notice[1].notified()).await.is_err());
            assert!(tokio::time::timeout(soon, displaced_notice[2].notified()).await.is_err());
        });
    }
}
