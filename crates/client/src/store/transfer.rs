//! How much trouble is taken over sending and fetching: what the link is like decides, and what the user asked for.

use holdfast_content::Chunker;
use holdfast_content::file::ChunkerConfig;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Which of the means against slow links are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransferMode {
    /// All that the link makes worth while.
    #[default]
    Full,
    /// Compression block by block only; to compare with.
    Plain,
    /// What LBFS does: chunks of its sizes, the server asked for each, compression chunk by chunk, no delta; to
    /// compare with.
    Lbfs,
}

impl TransferMode {
    /// How a file is cut that was cut with `present` before.
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

/// What a link is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// From a request to its answer when nothing else is under way.
    pub round_trip: Duration,
    /// Bytes a second to the server.
    pub up: u64,
    /// Bytes a second from it.
    pub down: u64,
}

/// How transfers are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransferConfig {
    /// Which means are used.
    pub mode: TransferMode,
    /// What the link is taken to be like; `None`: it is measured.
    pub link: Option<Link>,
}

/// Faster than this, in bytes a second, nothing is gained by a delta: making it takes as long as sending. About
/// 50 Mbit/s.
const DELTA_RATE_MAX: u64 = 6_250_000;
/// Slower than this the best compression pays: 0.1 Mbit/s.
const THOROUGH_RATE_MAX: u64 = 12_500;
/// For how long one message may keep a link busy: what is cut off in the middle is sent again.
const MESSAGE_TIME: Duration = Duration::from_secs(2);
/// However slow a link is, a message may have as many bytes.
const MESSAGE_BYTES_MIN: usize = 64 << 10;
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// zstd's level for a delta over a link of this rate; `None` if none pays.
pub(super) fn delta_level(rate: u64) -> Option<i8> {
    match rate {
        ..=THOROUGH_RATE_MAX => Some(19),
        ..=DELTA_RATE_MAX => Some(3),
        _ => None,
    }
}

/// Most bytes of a message over a link of this rate, about.
pub(super) fn message_bytes(rate: u64) -> usize {
    let bytes = rate.saturating_mul(MESSAGE_TIME.as_secs());
    bytes.clamp(MESSAGE_BYTES_MIN as u64, MESSAGE_BYTES_MAX as u64) as usize
}

/// Whether sending takes longer than asking whether it must be sent.
pub(super) fn asking_pays(link: &Link, bytes: usize) -> bool {
    Duration::from_secs_f64(bytes as f64 / link.up.max(1) as f64) > link.round_trip
}

/// Measures the link by the calls that are made over it anyway.
#[derive(Default)]
pub(super) struct LinkMeter(Mutex<Measured>);

#[derive(Default)]
struct Measured {
    under_way: usize,
    /// When the link became busy, or was measured last.
    since: Option<Instant>,
    up: u64,
    down: u64,
    round_trip: Option<Duration>,
    rate_up: Option<u64>,
    rate_down: Option<u64>,
}

/// Fewer bytes say nothing about the rate.
const MEASURED_BYTES_MIN: u64 = 24 << 10;
/// Fewer bytes say nothing but the round trip.
const SMALL_BYTES_MAX: u64 = 2 << 10;

impl LinkMeter {
    /// A call begins.
    pub(super) fn begin(&self) {
        let mut state = self.0.lock();
        if state.under_way == 0 {
            (state.since, state.up, state.down) = (Some(Instant::now()), 0, 0);
        }
        state.under_way += 1;
    }

    /// A call that took `elapsed` has ended, having moved so many bytes; none if it failed.
    pub(super) fn end(&self, up: usize, down: usize, elapsed: Duration) {
        let mut state = self.0.lock();
        state.under_way -= 1;
        state.up += up as u64;
        state.down += down as u64;
        let bytes = (up + down) as u64;
        if bytes == 0 {
            return;
        }
        state.round_trip = match state.round_trip {
            // What was quick once may have become slow: the least is forgotten by and by.
            Some(known) if bytes > SMALL_BYTES_MAX || elapsed > known => {
                Some(if bytes > SMALL_BYTES_MAX { known.min(elapsed) } else { known + (elapsed - known) / 16 })
            }
            _ => Some(elapsed),
        };
        let Some(since) = state.since else { return };
        let busy = since.elapsed();
        let quiet = state.round_trip.unwrap_or_default().min(busy / 2);
        let seconds = (busy - quiet).as_secs_f64().max(1e-6);
        let smooth = |known: Option<u64>, bytes: u64| {
            let rate = (bytes as f64 / seconds) as u64;
            Some(known.map_or(rate, |known| (known / 4).saturating_mul(3).saturating_add(rate / 4)).max(1))
        };
        if state.up.max(state.down) < MEASURED_BYTES_MIN {
            return;
        }
        if state.up >= MEASURED_BYTES_MIN {
            state.rate_up = smooth(state.rate_up, state.up);
        }
        if state.down >= MEASURED_BYTES_MIN {
            state.rate_down = smooth(state.rate_down, state.down);
        }
        (state.since, state.up, state.down) = (Some(Instant::now()), 0, 0);
    }

    /// The link, once something is known about its rate. One way stands for the other as long as only one is known.
    pub(super) fn link(&self) -> Option<Link> {
        let state = self.0.lock();
        let (up, down) = (state.rate_up.or(state.rate_down)?, state.rate_down.or(state.rate_up)?);
        Some(Link { round_trip: state.round_trip.unwrap_or_default(), up, down })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the slower the link, the more trouble; fast ones take today's path.
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

    /// Proves: nothing is claimed about a link before enough has moved over it, failed calls count for nothing, and
    /// the rate that is claimed is not above what was moved in the time it took.
    #[test]
    fn measured_by_what_moves() {
        let meter = LinkMeter::default();
        meter.begin();
        meter.end(100, 100, Duration::from_millis(10));
        meter.begin();
        meter.end(0, 0, Duration::from_secs(10));
        assert_eq!(meter.link(), None);
        let began = Instant::now();
        meter.begin();
        std::thread::sleep(Duration::from_millis(50));
        meter.end(100_000, 10, began.elapsed());
        let link = meter.link().unwrap();
        assert!(link.up <= 2 * 100_000 * 1000 / 50, "{link:?}");
        assert_eq!(link.up, link.down);
        assert_eq!(link.round_trip, Duration::from_millis(10));
    }
}
