//! Asking a bucket that may be away for a while.

use super::{Progress, SendError};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long a bucket may be away before it is given up.
const PATIENCE: Duration = Duration::from_secs(300);
/// The first pause; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The progress of a transfer, and who receives it.
pub struct Steps<'a> {
    progress: &'a (dyn Fn(Progress) -> bool + Sync),
    bytes: AtomicU64,
    bytes_all: u64,
    is_away: AtomicBool,
}

impl Steps<'_> {
    /// Counts steps of a transfer of so many bytes.
    pub fn new(progress: &(dyn Fn(Progress) -> bool + Sync), bytes_all: u64) -> Steps<'_> {
        Steps { progress, bytes: AtomicU64::new(0), bytes_all, is_away: AtomicBool::new(false) }
    }

    /// Notes that so many bytes are there.
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

    /// Asks, again and again while the bucket is away, but not for ever.
    ///
    /// # Errors
    /// [`SendError`]: it is away, refuses, or somebody wants to stop.
    pub fn ask<T, E: Into<SendError>>(&self, ask: impl Fn() -> Result<T, E>) -> Result<T, SendError> {
        let since = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            self.step()?;
            match ask().map_err(E::into) {
                Err(error @ SendError::Away { .. }) => {
                    if !self.is_away.swap(true, Relaxed) {
                        tracing::warn!("{error}; it is asked again");
                    }
                    if since.elapsed() > PATIENCE {
                        return Err(error);
                    }
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                other => {
                    self.is_away.store(false, Relaxed);
                    return other;
                }
            }
        }
    }
}
