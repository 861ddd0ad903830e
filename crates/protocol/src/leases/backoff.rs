//! Times that double each time that their reason comes again soon.

/// A time in milliseconds that is twice as long each time that it begins again soon after its end.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Backoff {
    until_ms: u64,
    lasts_ms: u64,
}

impl Backoff {
    /// Begins now, for `least_ms`, or, if it has ended less than its last length ago, for twice that, up to `most_ms`.
    pub fn begin(&mut self, least_ms: u64, most_ms: u64, now_ms: u64) {
        let goes_on = now_ms.saturating_sub(self.until_ms) < self.lasts_ms;
        self.lasts_ms = if goes_on { (self.lasts_ms * 2).min(most_ms) } else { least_ms };
        self.until_ms = now_ms + self.lasts_ms;
    }

    /// Whether the time has not ended yet.
    pub fn lasts(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }

    /// Number of times that its length was doubled.
    pub fn doublings(&self, least_ms: u64, now_ms: u64) -> u32 {
        if self.is_forgotten(now_ms) { 0 } else { (self.lasts_ms / least_ms.max(1)).max(1).ilog2() }
    }

    /// Whether it would begin with the shortest length again.
    pub fn is_forgotten(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms.saturating_add(self.lasts_ms)
    }
}
