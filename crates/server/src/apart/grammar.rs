//! What front end and back end say over their channel: four questions, each of bounded size.
//!
//! ```text
//! Nonce                                          -> Nonce(32 bytes)
//! Sign { transcript }                            -> Signature(64 bytes)
//! Introduce { transcript, signature, address }   -> Introduced, with a stream   (one file with it: the TCP connection)
//! Words { warning, text }                        -> Heard
//! ```

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::Bounds;
use holdfast_rpc::Limits;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The port of the channel, at both ends.
pub const DESK: &str = "desk";
/// Most bytes of a line for the log.
pub const WORDS_BYTES_MAX: usize = 400;

/// What the channel carries.
pub const BOUNDS: Bounds = Bounds { body_bytes_max: 32 << 10, files_max: 1, in_flight_max: 4 };

/// What a front end asks.
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum Ask {
    /// Random bytes for a ServerHello.
    Nonce,
    /// The server's signature.
    Sign {
        /// From the ClientHello to the server's Certificate.
        transcript: Vec<u8>,
    },
    /// A stream for whoever signed.
    Introduce {
        /// From the ClientHello to the client's Certificate.
        transcript: Vec<u8>,
        /// The client's.
        signature: Vec<u8>,
        /// Where it comes from.
        address: Address,
    },
    /// A line for the log.
    Words {
        /// More than information.
        warning: bool,
        /// The line. Untrusted: control characters are replaced, and no more than one a second are written.
        text: String,
    },
}

/// What it is answered.
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum Told {
    /// Random bytes.
    Nonce([u8; 32]),
    /// The server's signature.
    Signature([u8; 64]),
    /// A file is with it: the stream.
    Introduced,
    /// Written down, or left out.
    Heard,
}

/// An IP address and a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Address {
    /// Of IPv4.
    Four([u8; 4], u16),
    /// Of IPv6.
    Six([u8; 16], u16),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        match address.ip() {
            IpAddr::V4(four) => Address::Four(four.octets(), address.port()),
            IpAddr::V6(six) => Address::Six(six.octets(), address.port()),
        }
    }
}

impl From<Address> for SocketAddr {
    fn from(address: Address) -> SocketAddr {
        match address {
            Address::Four(four, port) => (Ipv4Addr::from(four), port).into(),
            Address::Six(six, port) => (Ipv6Addr::from(six), port).into(),
        }
    }
}

/// What a front end is told when it begins. There is no secret in it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Orders {
    /// The server's public key.
    pub key: [u8; 32],
    counts: [u64; 8],
    times_ms: [u64; 5],
}

impl Orders {
    /// For a server with this key and these limits.
    pub fn new(key: [u8; 32], limits: &Limits) -> Orders {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Orders {
            key,
            counts: [
                limits.connections_max,
                limits.connections_per_peer_max,
                limits.strangers_max,
                limits.strangers_per_address_max,
                limits.stranger_frame_bytes_max,
                limits.requests_max,
                limits.request_bytes_max,
                limits.frame_rate_min,
            ]
            .map(|count| count as u64),
            times_ms: [
                limits.greeting_patience,
                limits.stranger_patience,
                limits.idle_max,
                limits.frame_patience,
                limits.shutdown_patience,
            ]
            .map(ms),
        }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        let [connections, per_peer, strangers, per_address, stranger_frame, requests, request_bytes, rate] =
            self.counts.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let [greeting, stranger, idle, frame, shutdown] = self.times_ms.map(Duration::from_millis);
        Limits {
            connections_max: connections,
            connections_per_peer_max: per_peer,
            strangers_max: strangers,
            strangers_per_address_max: per_address,
            greeting_patience: greeting,
            stranger_patience: stranger,
            stranger_frame_bytes_max: stranger_frame,
            requests_max: requests,
            request_bytes_max: request_bytes,
            idle_max: idle,
            frame_patience: frame,
            frame_rate_min: rate,
            shutdown_patience: shutdown,
            ..Limits::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a front end begins with the limits that its server has.
    #[test]
    fn limits_survive() {
        let limits = Limits { strangers_max: 7, idle_max: Duration::from_secs(5), ..Limits::default() };
        let orders = Orders::new([3; 32], &limits);
        let bytes = borsh::to_vec(&orders).unwrap();
        let back: Orders = borsh::from_slice(&bytes).unwrap();
        assert_eq!(format!("{:?}", back.limits()), format!("{limits:?}"));
    }

    /// Proves: addresses of both kinds survive.
    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:7440"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddr::from(Address::from(address)), address);
        }
    }
}
