//! A server in two processes: a *front end* that faces the network and has no data, and a *back end* that has
//! the key and the data and parses no TLS.
//!
//! ```text
//! network ── front end: sockets, TLS, QUIC, frames, pace ──┬─ requests: a nonce, a signature, an introduction
//!                                                          └─ one stream a connection: frames ── back end: Service
//! ```
//!
//! The back end does not trust the front end. It draws the random bytes of each ServerHello, signs only
//! transcripts that contain them and name its own key, and accepts a connection as a device's only if that
//! device's own signature covers the transcript that the back end signed ([`handshake`]). Bytes on a
//! connection's stream are treated like an unknown peer's: framed, limited and decoded by the same code, with
//! all limits. So an attacker in the front end can read and alter what passes through it, refuse service, and
//! send requests in the name of devices that connect *at that moment*. The attacker cannot act as a device
//! that does not connect, nor sign anything that a client would accept as an order, a receipt, or a list of
//! keys.
//!
//! Besides requests and replies a stream carries *notes*: frames with the id 0, which no client may send.

pub(crate) mod back_end;
mod front_end;
pub mod handshake;
mod relay;
#[cfg(test)]
mod tests;
mod transcript;

pub use back_end::{HandshakeService, VerifiedConnection, serve_introduced};
pub use front_end::{BackEnd, BackEndError, prepare_listeners, run, use_diagnosis_socket};

use crate::estimate::LinkEstimate;
use borsh::{BorshDeserialize, BorshSerialize};
use std::time::Duration;

/// The id of notes.
pub(crate) const NOTE_ID: u64 = 0;
/// Most bytes of a note.
pub(crate) const NOTE_BYTES_MAX: usize = 64;

/// What front end and back end send each other on a stream besides requests and replies.
#[derive(Clone, Copy, PartialEq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Note {
    /// From the back end: the peer is a member's device.
    Admitted,
    /// From the front end: the estimate of the link. A lie only slows the connection.
    Link {
        /// Round trip in microseconds.
        rtt_us: u32,
        /// Bytes a second to the peer.
        sent: Option<u64>,
        /// Bytes a second from it.
        received: Option<u64>,
        /// Losses in millionths.
        loss_ppm: u32,
    },
    /// From the back end: report when each request came, because the time of operations is logged.
    Trace,
    /// From the front end, before a request: when it came, in microseconds since 1970. A lie only falsifies
    /// the log.
    Arrived(u64),
}

/// Microseconds since 1970: a clock that a sandboxed process can read, and that both processes share.
pub(crate) fn clock_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

impl From<LinkEstimate> for Note {
    fn from(link: LinkEstimate) -> Note {
        Note::Link {
            rtt_us: u32::try_from(link.rtt.as_micros()).unwrap_or(u32::MAX),
            sent: link.sent_bytes_per_second,
            received: link.received_bytes_per_second,
            loss_ppm: (link.loss.clamp(0.0, 1.0) * 1e6) as u32,
        }
    }
}

impl Note {
    /// The front end's estimate of its link.
    pub fn link(self) -> Option<LinkEstimate> {
        match self {
            Note::Admitted | Note::Trace | Note::Arrived(_) => None,
            Note::Link { rtt_us, sent, received, loss_ppm } => Some(LinkEstimate {
                rtt: Duration::from_micros(rtt_us.into()),
                sent_bytes_per_second: sent,
                received_bytes_per_second: received,
                loss: f64::from(loss_ppm.min(1_000_000)) / 1e6,
            }),
        }
    }
}
