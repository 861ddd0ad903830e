//! Repeats requests to a bucket that is away for a while.

use super::{Progress, SendError};
use backon::{BlockingRetryable, ExponentialBuilder};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a bucket may be away before the transfer fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pauses between attempts, each twice as long as the one before, at most 15 s.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(500))
    .with_max_delay(Duration::from_secs(15))
    .without_max_times();

/// The progress of a transfer, and the function that receives it.
pub struct Steps<'a> {
    progress: &'a (dyn Fn(Progress) -> bool + Sync),
    bytes: AtomicU64,
    bytes_all: u64,
    is_away: AtomicBool,
}

impl Steps<'_> {
    /// Counts the progress of a transfer of so many bytes.
    pub fn new(progress: &(dyn Fn(Progress) -> bool + Sync), bytes_all: u64) -> Steps<'_> {
        Steps { progress, bytes: AtomicU64::new(0), bytes_all, is_away: AtomicBool::new(false) }
    }

    /// Notes that so many more bytes have been sent.
    pub fn done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn step(&self) -> Result<(), SendError> {
        let bytes = (self.bytes.load(Relaxed), self.bytes_all);
        match (self.progress)(Progress { bytes, is_away: self.is_away.load(Relaxed) }) {
            true => Ok(()),
            false => Err(SendError::Stopped),
        }
    }

    /// Sends a request, and repeats it while the bucket is away, for at most [`PATIENCE`].
    ///
    /// # Errors
    /// [`SendError`]: the bucket is away or refuses, or the caller wants to stop.
    pub fn ask<T, E: Into<SendError>>(&self, ask: impl Fn() -> Result<T, E>) -> Result<T, SendError> {
        let since = Instant::now();
        let attempt = || {
            self.step()?;
            ask().map_err(E::into)
        };
        let is_worth_another = |error: &SendError| {
            let is_away = matches!(error, SendError::Away { .. });
            if is_away && !self.is_away.swap(true, Relaxed) {
                tracing::warn!("{error}; it is asked again");
            }
            is_away && since.elapsed() <= PATIENCE
        };
        let outcome = attempt.retry(PAUSES).when(is_worth_another).call();
        if !matches!(outcome, Err(SendError::Away { .. } | SendError::Stopped)) {
            self.is_away.store(false, Relaxed);
        }
        outcome
    }
}
