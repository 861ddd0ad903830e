//! Decides how much work to spend on saving bytes, from estimates of the link and the user's choice.

use holdfast_content::Chunker;
use holdfast_content::file::ChunkerConfig;
use holdfast_rpc::LinkEstimate;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which ways of saving bytes on slow links are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum TransferMode {
    /// All ways that are worth their cost on the link.
    #[default]
    Full,
    /// Only compression of each block; for comparison.
    Plain,
    /// The methods of LBFS, for comparison: chunks of its sizes, a question to the server for each chunk,
    /// compression of each chunk, no delta.
    Lbfs,
}

impl TransferMode {
    /// The chunker for a file that was divided with `present` before.
    pub fn chunks(self, size: u64, present: Chunker) -> ChunkerConfig {
        match self {
            TransferMode::Full => ChunkerConfig::for_file(size, present),
            TransferMode::Plain => ChunkerConfig::DEFAULT,
            TransferMode::Lbfs => ChunkerConfig::LBFS,
        }
    }
}

impl std::str::FromStr for TransferMode {
    type Err = String;

    fn from_str(text: &str) -> Result<TransferMode, String> {
        match text {
            "full" => Ok(TransferMode::Full),
            "plain" => Ok(TransferMode::Plain),
            "lbfs" => Ok(TransferMode::Lbfs),
            other => Err(format!("there is no way of transfer `{other}`; there are full, plain and lbfs")),
        }
    }
}

/// Estimates of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Time from a request to its answer when nothing else is under way.
    pub round_trip: Duration,
    /// Bytes a second to the server.
    pub up: u64,
    /// Bytes a second from the server.
    pub down: u64,
}

impl Link {
    /// Makes a link from measurements. Until the rate has been measured, the link to a distant server is
    /// assumed to be slow; `None` for a server nearby.
    pub(super) fn from_estimate(estimate: &LinkEstimate) -> Option<Link> {
        let assumed = (estimate.rtt >= FAR).then_some(FAR_RATE);
        let (sent, received) = (estimate.sent_bytes_per_second, estimate.received_bytes_per_second);
        let (up, down) = (sent.or(received).or(assumed)?, received.or(sent).or(assumed)?);
        Some(Link { round_trip: estimate.rtt, up, down })
    }
}

impl Link {
    /// Whether a round trip takes longer than the work for a few requests.
    pub(super) fn is_far(&self) -> bool {
        self.round_trip >= FAR
    }
}

/// Configuration of transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransferConfig {
    /// Which ways of saving bytes are used.
    pub mode: TransferMode,
    /// Assumed estimates of the link; `None` to measure it.
    pub link: Option<Link>,
}

/// A server counts as distant from this round trip time on.
const FAR: Duration = Duration::from_millis(5);
/// Assumed rate of the link to a distant server: 10 Mbit/s.
const FAR_RATE: u64 = 1_250_000;
/// Above this rate, in bytes a second, a delta gains nothing: making it takes as long as sending. About 50
/// Mbit/s.
const DELTA_RATE_MAX: u64 = 6_250_000;
/// Up to this rate, in bytes a second, the best compression is worth its time: 0.1 Mbit/s.
const THOROUGH_RATE_MAX: u64 = 12_500;
/// Longest time for which one message should occupy a link: if it is cut off in the middle, all of it is sent
/// again.
const MESSAGE_TIME: Duration = Duration::from_secs(2);
/// Bounds of a message's size in bytes, however slow or fast the link is.
const MESSAGE_BYTES_MIN: usize = 64 << 10;
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Level of zstd for a delta over a link of this rate; `None` if a delta is not worth its time.
pub(super) fn delta_level(rate: u64) -> Option<i8> {
    if rate <= THOROUGH_RATE_MAX {
        Some(19)
    } else if rate <= DELTA_RATE_MAX {
        Some(3)
    } else {
        None
    }
}

/// About the most bytes of a message over a link of this rate.
pub(super) fn message_bytes(rate: u64) -> usize {
    let bytes = rate.saturating_mul(MESSAGE_TIME.as_secs());
    bytes.clamp(MESSAGE_BYTES_MIN as u64, MESSAGE_BYTES_MAX as u64) as usize
}

/// Whether sending takes longer than asking whether it is necessary.
pub(super) fn asking_pays(link: &Link, bytes: usize) -> bool {
    Duration::from_secs_f64(bytes as f64 / link.up.max(1) as f64) > link.round_trip
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the slower the link, the more work is spent on saving bytes; over fast links, none.
    #[test]
    fn the_link_decides() {
        assert_eq!(delta_level(10_000), Some(19));
        assert_eq!(delta_level(48_000), Some(3));
        assert_eq!(delta_level(1_250_000), Some(3));
        assert_eq!(delta_level(12_500_000), None);
        assert_eq!(message_bytes(1), 64 << 10);
        assert_eq!(message_bytes(48_000), 96_000);
        assert_eq!(message_bytes(u64::MAX), 1 << 20);
        let link = Link { round_trip: Duration::from_millis(100), up: 50_000, down: 50_000 };
        assert!(asking_pays(&link, 6_000));
        assert!(!asking_pays(&link, 4_000));
    }

    /// Proves: an unknown rate is taken from the other direction, or else from the distance.
    #[test]
    fn what_is_not_known() {
        let estimate = |rtt, sent, received| LinkEstimate {
            rtt: Duration::from_millis(rtt),
            sent_bytes_per_second: sent,
            received_bytes_per_second: received,
            loss: 0.0,
        };
        let rates = |estimate| Link::from_estimate(&estimate).map(|link| (link.up, link.down));
        assert_eq!(rates(estimate(30, Some(5), Some(7))), Some((5, 7)));
        assert_eq!(rates(estimate(30, None, Some(7))), Some((7, 7)));
        assert_eq!(rates(estimate(30, Some(5), None)), Some((5, 5)));
        assert_eq!(rates(estimate(30, None, None)), Some((FAR_RATE, FAR_RATE)));
        assert_eq!(rates(estimate(1, None, None)), None);
    }
}
