//! Which past states are stored: the newest of each span of time, with longer spans for older states.
//!
//! Example: `all:1d,1h:7d,1d:30d,7d:1y` keeps every state for a day (at most one a second), then one an hour
//! for seven days, and so on. `0` keeps only states that have names.
//!
//! Invariant: bounded. However fast things change, at most [`Retention::points_max`] states are kept without a name.

use std::fmt;
use std::str::FromStr;

const SECOND_NS: i64 = 1_000_000_000;
/// Most states without a name.
const POINTS_MAX: usize = 16_384;
/// Most rules in a retention.
const TIERS_MAX: usize = 16;
/// Longest time for which a rule keeps states, in seconds: a century.
const SECONDS_MAX: i64 = 100 * 366 * 86_400;

/// One rule: the newest state of each span of `every_ns` is kept for `for_ns`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tier {
    /// Nanoseconds; at least a second.
    pub every_ns: i64,
    /// For how long, in nanoseconds.
    pub for_ns: i64,
}

/// Rules on which past states are kept, and for how long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Retention {
    /// The rules; a state is kept if one of them keeps it.
    pub tiers: Vec<Tier>,
    /// Most states without a name.
    pub points_max: usize,
}

impl Default for Retention {
    /// Every state for a day, one an hour for seven days, one a day for thirty, one a week for a year.
    fn default() -> Retention {
        "all:1d,1h:7d,1d:30d,7d:1y".parse().expect("it is well formed")
    }
}

impl Retention {
    /// Drops nothing, as long as the number of states is within the limit.
    pub fn everything() -> Retention {
        let tier = Tier { every_ns: SECOND_NS, for_ns: SECONDS_MAX * SECOND_NS };
        Retention { tiers: vec![tier], points_max: POINTS_MAX }
    }
}

/// A text is not a valid retention.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no rule for what to keep: it is 0, or a list of EVERY:FOR such as all:1d,1h:7d,1d:30d,7d:1y"
)]
pub struct RetentionError(String);

impl FromStr for Retention {
    type Err = RetentionError;

    fn from_str(text: &str) -> Result<Retention, RetentionError> {
        let wrong = || RetentionError(text.to_owned());
        let points_max = POINTS_MAX;
        if text == "0" {
            return Ok(Retention { tiers: Vec::new(), points_max });
        }
        let tier = |rule: &str| {
            let (every, kept) = rule.split_once(':')?;
            let every_ns = if every == "all" { SECOND_NS } else { span(every)? };
            Some(Tier { every_ns, for_ns: span(kept)? })
        };
        let tiers: Option<Vec<Tier>> = text.split(',').map(tier).collect();
        let tiers = tiers.filter(|tiers| tiers.len() <= TIERS_MAX).ok_or_else(wrong)?;
        Ok(Retention { tiers, points_max })
    }
}

/// Parses a number with its unit; the result is in nanoseconds.
fn span(text: &str) -> Option<i64> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        'y' => 366 * 86_400,
        _ => return None,
    };
    let count: i64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = count.checked_mul(seconds).filter(|seconds| (1..=SECONDS_MAX).contains(seconds))?;
    seconds.checked_mul(SECOND_NS)
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tiers.is_empty() {
            return f.write_str("0");
        }
        for (number, tier) in self.tiers.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            let seconds = |ns: i64| ns / SECOND_NS;
            write!(f, "{comma}{}s:{}s", seconds(tier.every_ns), seconds(tier.for_ns))?;
        }
        Ok(())
    }
}

impl Retention {
    /// Whether anything is kept but named states.
    pub fn keeps_any(&self) -> bool {
        !self.tiers.is_empty()
    }

    /// For times at which states were recorded, oldest first: which of them to keep at `now_ns`. A time in
    /// the future, because a clock was set back, counts as now.
    pub fn kept(&self, noted_ns: &[i64], now_ns: i64) -> Vec<bool> {
        let mut kept = vec![false; noted_ns.len()];
        let mut widest = 1;
        loop {
            kept.fill(false);
            for tier in &self.tiers {
                // The finest rule gives way when there is too much.
                let for_ns =
                    if tier.every_ns == self.finest_ns() { tier.for_ns / widest } else { tier.for_ns };
                let mut span = None;
                for (index, noted) in noted_ns.iter().enumerate().rev() {
                    if now_ns.saturating_sub(*noted) > for_ns {
                        continue;
                    }
                    let of = noted.div_euclid(tier.every_ns);
                    if span != Some(of) {
                        kept[index] = true;
                        span = Some(of);
                    }
                }
            }
            if kept.iter().filter(|keep| **keep).count() <= self.points_max {
                return kept;
            }
            widest = match widest.checked_mul(2) {
                Some(next) if next < 1 << 40 => next,
                _ => return self.newest(kept),
            };
        }
    }

    fn finest_ns(&self) -> i64 {
        self.tiers.iter().map(|tier| tier.every_ns).min().unwrap_or(SECOND_NS)
    }

    /// Drops the oldest states that exceed the limit.
    fn newest(&self, mut kept: Vec<bool>) -> Vec<bool> {
        let mut left = self.points_max;
        for keep in kept.iter_mut().rev().filter(|keep| **keep) {
            *keep = left > 0;
            left = left.saturating_sub(1);
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600 * SECOND_NS;
    const DAY: i64 = 24 * HOUR;

    /// Proves: rules are read as they are written, and nonsense is refused with what would be right.
    #[test]
    fn rules_are_read() {
        let usual = Retention::default();
        assert_eq!(usual.tiers.len(), 4);
        assert_eq!(usual.tiers[1], Tier { every_ns: HOUR, for_ns: 7 * DAY });
        assert_eq!(usual.to_string().parse::<Retention>(), Ok(usual));
        assert!(!"0".parse::<Retention>().expect("a rule").keeps_any());
        for wrong in
            ["", "1d", "all", "all:", "all:0d", "0s:1d", "1x:1d", "1h:7d,", "-1h:2d", "1h:9999999999y"]
        {
            let error = wrong.parse::<Retention>().expect_err(wrong);
            assert!(error.to_string().contains("all:1d,1h:7d"), "{error}");
        }
    }

    /// Proves: a state every ten minutes for two years is thinned as the rules say: all of the last day, then
    /// one an hour, a day and a week, and none after a year.
    #[test]
    fn older_states_are_further_apart() {
        let now = 800 * DAY;
        let noted: Vec<i64> = (0..).map(|n| n * HOUR / 6).take_while(|at| *at <= now).collect();
        let kept = Retention::default().kept(&noted, now);
        let ages = |from: i64, to: i64| {
            let within = |at: &i64| (from..to).contains(&(now - at));
            noted.iter().zip(&kept).filter(|(at, kept)| **kept && within(at)).count()
        };
        assert_eq!(ages(0, DAY), 144);
        assert_eq!(ages(2 * DAY, 7 * DAY), 5 * 24);
        assert_eq!(ages(8 * DAY, 30 * DAY), 22);
        assert!((47..=49).contains(&ages(31 * DAY, 366 * DAY)), "{}", ages(31 * DAY, 366 * DAY));
        assert_eq!(ages(367 * DAY, 800 * DAY), 0);
        // Thinning what is left once more drops nothing.
        let left: Vec<i64> = noted.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(at, _)| *at).collect();
        assert!(Retention::default().kept(&left, now).into_iter().all(|keep| keep));
    }

    /// Proves: the number of states is bounded, the oldest of the finest rule is dropped first, and a clock
    /// that was set back loses nothing.
    #[test]
    fn what_is_kept_is_bounded() {
        let policy = Retention { points_max: 100, ..Retention::default() };
        let now = 10 * DAY;
        let noted: Vec<i64> = (0..5000).map(|n| now - (5000 - n) * SECOND_NS).collect();
        let kept = policy.kept(&noted, now);
        let count = kept.iter().filter(|keep| **keep).count();
        assert!((30..=100).contains(&count), "{count}");
        assert!(kept[4999] && kept[4998]);
        let later = vec![now + DAY, now + 2 * DAY];
        assert_eq!(Retention::default().kept(&later, now), vec![true, true]);
    }
}
