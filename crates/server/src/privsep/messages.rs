//! The messages between front end and back end: four requests with their replies, each of bounded size.
//!
//! ```text
//! Nonce                                          -> Nonce(32 bytes)
//! Sign { transcript }                            -> Signature(64 bytes)
//! Introduce { transcript, signature, address }   -> Introduced, with a stream (a file may come along: the TCP
//!                                                   connection)
//! Log { warning, text }                          -> Logged
//! ```

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_components::Bounds;
use holdfast_rpc::Limits;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The port of the channel, at both ends.
pub const BACK_END_PORT: &str = "back-end";
/// Most bytes of a line for the log.
pub const LOG_LINE_BYTES_MAX: usize = 400;

/// The bounds of the channel.
pub const BOUNDS: Bounds = Bounds { body_bytes_max: 32 << 10, files_max: 1, in_flight_max: 4 };

/// A request of the front end to the back end.
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum BackEndRequest {
    /// Random bytes for a ServerHello.
    Nonce,
    /// The server's signature of a transcript.
    Sign {
        /// From the ClientHello to the server's Certificate.
        transcript: Vec<u8>,
    },
    /// A stream to the back end for the device that signed.
    Introduce {
        /// From the ClientHello to the client's Certificate.
        transcript: Vec<u8>,
        /// The client's signature of the transcript.
        signature: Vec<u8>,
        /// The client's address.
        address: Address,
    },
    /// A line for the log.
    Log {
        /// Whether the line is a warning; otherwise it is information.
        warning: bool,
        /// The line. It is not trusted: control characters are replaced, and at most one line a second is
        /// written.
        text: String,
    },
}

/// The back end's reply to a [`BackEndRequest`].
#[derive(Debug, BorshSerialize, BorshDeserialize)]
pub enum BackEndReply {
    /// Random bytes for a ServerHello.
    Nonce([u8; 32]),
    /// The server's signature.
    Signature([u8; 64]),
    /// The peer's signature is valid. A file comes with the reply: the stream for the connection.
    Introduced,
    /// The line was logged, or dropped because there were too many.
    Logged,
}

/// An IP address and a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Address {
    /// An IPv4 address.
    Four([u8; 4], u16),
    /// An IPv6 address.
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

/// The configuration of a front end. There is no secret in it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FrontEndSettings {
    /// The server's public key.
    pub key: [u8; 32],
    counts: [u64; 8],
    times_ms: [u64; 5],
}

impl FrontEndSettings {
    /// The configuration for a server with this key and these limits.
    pub fn new(key: [u8; 32], limits: &Limits) -> FrontEndSettings {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        FrontEndSettings {
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

    /// Proves: a front end gets the limits of its server.
    #[test]
    fn limits_survive() {
        let limits = Limits { strangers_max: 7, idle_max: Duration::from_secs(5), ..Limits::default() };
        let orders = FrontEndSettings::new([3; 32], &limits);
        let bytes = borsh::to_vec(&orders).unwrap();
        let back: FrontEndSettings = borsh::from_slice(&bytes).unwrap();
        assert_eq!(format!("{:?}", back.limits()), format!("{limits:?}"));
    }

    /// Proves: addresses of both kinds are restored when decoded.
    #[test]
    fn addresses_survive() {
        for text in ["192.0.2.1:80", "[2001:db8::1]:7440"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddr::from(Address::from(address)), address);
        }
    }
}
