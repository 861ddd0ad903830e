//! How old the newest head is that enough witnesses have co-signed. There is no clock here: the time is an
//! argument.
//!
//! A witness's time counts for a head by itself: at that time the witness had seen no other history of this
//! log, and it will never sign one that does not extend the head. So it does not matter whether all witnesses
//! signed the *same* head. The age is that of the quorum-th newest time, and fewer witnesses than the quorum
//! cannot make it younger.
//!
//! **Clocks.** This machine's wall clock is read once; from then on a monotonic clock is used. A time that a
//! quorum has signed cannot be in the future, so it sets the clock forward. Within one run the age therefore
//! only falls when witnesses sign. A wall clock that is behind makes an old head seem fresh at first, for at
//! most one bound; one that is ahead makes a fresh head look stale.

use std::time::Duration;

/// Witnesses of which this many may be lying or away: fewer than a third.
pub fn default_quorum(witnesses: usize) -> usize {
    witnesses - witnesses.saturating_sub(1) / 3
}

/// The newest times, and the bound.
#[derive(Clone, Debug)]
pub struct Freshness {
    quorum: usize,
    bound_ms: u64,
    /// Seconds since 1970 by each witness.
    newest_s: Vec<Option<u64>>,
    /// A time that has certainly passed (milliseconds since 1970), and the monotonic clock's reading at that
    /// time.
    anchor_ms: (u64, u64),
}

/// The age of the newest head, and whether it is too old.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreshnessStatus {
    /// Age of the head, in seconds; `None` before there was one.
    pub age_s: Option<u64>,
    /// Whether it is older than the bound, or there is none.
    pub is_stale: bool,
}

impl Freshness {
    /// Nothing was vouched for yet. `wall_ms` is the wall clock, `now_ms` one that never jumps nor stops.
    pub fn new(witnesses: usize, quorum: usize, bound: Duration, wall_ms: u64, now_ms: u64) -> Freshness {
        Freshness {
            quorum: quorum.clamp(1, witnesses.max(1)),
            bound_ms: bound.as_millis() as u64,
            newest_s: vec![None; witnesses],
            anchor_ms: (wall_ms, now_ms),
        }
    }

    /// A verified head was signed by these witnesses (their places) at these times.
    pub fn handle_vouched(&mut self, by: &[(usize, u64)], now_ms: u64) {
        for (place, time_s) in by {
            if let Some(newest) = self.newest_s.get_mut(*place) {
                *newest = (*newest).max(Some(*time_s));
            }
        }
        let signed_ms = self.quorum_time_s().map_or(0, |time_s| time_s.saturating_mul(1000));
        if signed_ms > self.time_ms(now_ms) {
            self.anchor_ms = (signed_ms, now_ms);
        }
    }

    /// The status at this time, in milliseconds of a monotonic clock.
    pub fn status(&self, now_ms: u64) -> FreshnessStatus {
        let signed = self.quorum_time_s();
        let age_ms = signed.map(|time_s| self.time_ms(now_ms).saturating_sub(time_s.saturating_mul(1000)));
        FreshnessStatus {
            age_s: age_ms.map(|age| age / 1000),
            is_stale: age_ms.is_none_or(|age| age > self.bound_ms),
        }
    }

    /// Number of witnesses with a time that is not too old by itself.
    pub fn vouching(&self, now_ms: u64) -> usize {
        let oldest_ms = self.time_ms(now_ms).saturating_sub(self.bound_ms);
        self.newest_s.iter().flatten().filter(|time_s| time_s.saturating_mul(1000) >= oldest_ms).count()
    }

    fn quorum_time_s(&self) -> Option<u64> {
        let mut times: Vec<u64> = self.newest_s.iter().flatten().copied().collect();
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.get(self.quorum - 1).copied()
    }

    fn time_ms(&self, now_ms: u64) -> u64 {
        let (time_ms, at_ms) = self.anchor_ms;
        time_ms.saturating_add(now_ms.saturating_sub(at_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_S: u64 = 1_700_000_000;

    fn fresh(witnesses: usize, quorum: usize, wall_s: u64) -> Freshness {
        Freshness::new(witnesses, quorum, Duration::from_secs(10), wall_s * 1000, 0)
    }

    fn status_at(freshness: &Freshness, now_s: u64) -> (Option<u64>, bool) {
        let FreshnessStatus { age_s, is_stale } = freshness.status(now_s * 1000);
        (age_s, is_stale)
    }

    /// The default leaves two quorums more witnesses in common than may lie.
    #[test]
    fn quorums_overlap_in_an_honest_one() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7, 10].map(default_quorum), [1, 2, 3, 3, 4, 5, 5, 7]);
        for witnesses in 1..100 {
            let quorum = default_quorum(witnesses);
            let lying = witnesses - quorum;
            assert!(2 * quorum - witnesses > lying, "{witnesses}");
        }
    }

    /// The quorum-th newest time counts: a minority can make the head neither older nor younger.
    #[test]
    fn a_minority_changes_nothing() {
        let mut freshness = fresh(4, 3, START_S);
        assert_eq!(status_at(&freshness, 0), (None, true));
        freshness.handle_vouched(&[(0, START_S), (1, START_S)], 0);
        assert_eq!(status_at(&freshness, 0), (None, true), "two of three");
        freshness.handle_vouched(&[(2, START_S)], 0);
        assert_eq!(status_at(&freshness, 0), (Some(0), false));
        // One is away, one lies about the time by years.
        freshness.handle_vouched(&[(0, START_S + 9), (1, START_S + 1_000_000_000)], 9000);
        assert_eq!(status_at(&freshness, 9), (Some(9), false));
        assert_eq!(status_at(&freshness, 11), (Some(11), true));
        freshness.handle_vouched(&[(3, START_S + 11)], 11_000);
        assert_eq!(status_at(&freshness, 11), (Some(2), false), "the fourth stands in: {freshness:?}");
        freshness.handle_vouched(&[(7, START_S + 11)], 11_000);
    }

    /// An older time never replaces a newer one.
    #[test]
    fn times_only_grow() {
        let mut freshness = fresh(1, 1, START_S);
        freshness.handle_vouched(&[(0, START_S)], 0);
        freshness.handle_vouched(&[(0, START_S - 100)], 1000);
        assert_eq!(status_at(&freshness, 1), (Some(1), false));
    }

    /// A clock that is behind accepts an old head for one bound at most; one fresh head corrects it
    /// permanently. A clock that is ahead makes heads look old.
    #[test]
    fn wrong_clocks() {
        let mut behind = fresh(1, 1, START_S - 3600);
        behind.handle_vouched(&[(0, START_S - 3000)], 0);
        assert_eq!(status_at(&behind, 0), (Some(0), false), "50 minutes old, and it cannot be told");
        assert_eq!(status_at(&behind, 11), (Some(11), true), "but no longer than the bound");
        behind.handle_vouched(&[(0, START_S + 12)], 12_000);
        assert_eq!(status_at(&behind, 13), (Some(1), false));
        let mut ahead = fresh(1, 1, START_S + 3600);
        ahead.handle_vouched(&[(0, START_S)], 0);
        assert_eq!(status_at(&ahead, 0), (Some(3600), true));
    }
}
