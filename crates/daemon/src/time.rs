//! Times as text.

use jiff::Timestamp;

/// The present time in nanoseconds since 1970.
pub fn now_ns() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// A time in UTC as text, such as `2026-03-01 12:30:05 UTC`.
pub fn moment(ns: i64) -> String {
    let time = Timestamp::from_nanosecond(ns.into()).expect("64 bits of nanoseconds are within its years");
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: some times with known results, a leap day and times before 1970 are converted correctly.
    #[test]
    fn moments() {
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(moment(951_782_400_000_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(moment(1_700_000_000_999_999_999), "2023-11-14 22:13:20 UTC");
        assert_eq!(moment(-1), "1969-12-31 23:59:59 UTC");
    }
}
