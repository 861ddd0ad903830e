//! Keeps a peer from filling the log: at most one line a second of a kind, with how many were left out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Allows one event a second and counts the others.
#[derive(Debug)]
pub struct Throttle {
    start: Instant,
    /// Second of the last event allowed, from 1; 0 before the first.
    last: AtomicU64,
    suppressed: AtomicU64,
}

impl Default for Throttle {
    fn default() -> Self {
        Throttle { start: Instant::now(), last: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }
}

impl Throttle {
    /// Whether this event may be logged, and how many before it were not.
    pub fn allow(&self) -> Option<u64> {
        self.allow_at(self.start.elapsed().as_secs() + 1)
    }

    fn allow_at(&self, second: u64) -> Option<u64> {
        let last = self.last.load(Ordering::Relaxed);
        let first = second > last
            && self.last.compare_exchange(last, second, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if first {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: one event a second passes, with the number of those that did not.
    #[test]
    fn one_a_second_passes() {
        let throttle = Throttle::default();
        let passed: Vec<_> = [1, 1, 1, 2, 2, 5, 5].map(|second| throttle.allow_at(second)).into();
        assert_eq!(passed, [Some(0), None, None, Some(2), None, Some(1), None]);
    }
}
