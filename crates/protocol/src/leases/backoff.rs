//! Times that double whenever their cause returns soon.

/// A period in milliseconds. It is twice as long each time that it begins again soon after its last end.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Backoff {
    until_ms: u64,
    lasts_ms: u64,
}

impl Backoff {
    /// Begins a period now. It takes `least_ms`, or twice as long as the last one (at most `most_ms`) if less
    /// time than that last one took has passed since its end.
    pub fn begin(&mut self, least_ms: u64, most_ms: u64, now_ms: u64) {
        let goes_on = now_ms.saturating_sub(self.until_ms) < self.lasts_ms;
        self.lasts_ms = if goes_on { (self.lasts_ms * 2).min(most_ms) } else { least_ms };
        self.until_ms = now_ms + self.lasts_ms;
    }

    /// Whether the period has not ended yet.
    pub fn lasts(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }

    /// How often the present length was doubled from `least_ms`.
    pub fn doublings(&self, least_ms: u64, now_ms: u64) -> u32 {
        if self.is_forgotten(now_ms) { 0 } else { (self.lasts_ms / least_ms.max(1)).max(1).ilog2() }
    }

    /// Whether the next period would have the shortest length again.
    pub fn is_forgotten(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms.saturating_add(self.lasts_ms)
    }
}
