//! Times and durations as text, and back. All are whole seconds, in UTC, since the beginning of 1970.

use jiff::SignedDuration;
use jiff::civil::DateTime;

/// The beginning of 1970.
const EPOCH: DateTime = jiff::civil::date(1970, 1, 1).at(0, 0, 0, 0);

/// The last second of the year 9999. No file of a release contains a later time.
pub const LATEST_S: u64 = 253_402_300_799;

const DAY_S: u64 = 86_400;

/// A time as text, such as `2026-03-01 12:30:05 UTC`.
pub fn moment(seconds: u64) -> String {
    if seconds > LATEST_S {
        return "a time after the year 9999".to_owned();
    }
    let time = EPOCH + SignedDuration::from_secs(seconds as i64);
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// A time in nanoseconds since 1970. Times out of range (before 1677, after 2262) become the nearest that
/// fits.
pub fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    let exact = i128::from(seconds) * 1_000_000_000 + i128::from(rest);
    exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// A duration in a suitable unit, such as `3 days`.
pub fn span(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / DAY_S, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// Parses `2026-03-01`, `2026-03-01 12:30`, `2026-03-01 12:30:05`, also with `T` in the middle and `Z` or `
/// UTC` at the end.
pub fn parse_moment(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_suffix(" UTC").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (day_text, time_text) = match text.split_once(['T', ' ']) {
        Some((day, time)) => (day, Some(time)),
        None => (text, None),
    };
    let numbers = |text: &str, separator: char, widths: &[usize]| -> Option<Vec<u64>> {
        let parts: Vec<&str> = text.split(separator).collect();
        let fits = parts.len() == widths.len()
            && parts
                .iter()
                .zip(widths)
                .all(|(part, width)| part.len() == *width && part.bytes().all(|byte| byte.is_ascii_digit()));
        if fits { parts.iter().map(|part| part.parse().ok()).collect() } else { None }
    };
    let day = numbers(day_text, '-', &[4, 2, 2])?;
    let time = match time_text {
        None => vec![0, 0, 0],
        Some(text) if text.len() == 5 => numbers(&format!("{text}:00"), ':', &[2, 2, 2])?,
        Some(text) => numbers(text, ':', &[2, 2, 2])?,
    };
    let small = |number: u64| i8::try_from(number).ok();
    let time = DateTime::new(
        i16::try_from(day[0]).ok()?,
        small(day[1])?,
        small(day[2])?,
        small(time[0])?,
        small(time[1])?,
        small(time[2])?,
        0,
    );
    u64::try_from(time.ok()?.duration_since(EPOCH).as_secs()).ok()
}

/// Parses `7d`, `12h`, `30m`, `45s`, `2w`: at least a second, at most a hundred years.
pub fn parse_span(text: &str) -> Option<u64> {
    let unit = match text.chars().next_back()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => DAY_S,
        'w' => 7 * DAY_S,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let seconds = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    (1..=36_525 * DAY_S).contains(&seconds).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: nanoseconds are counted correctly before 1970, and are limited to what 64 bits hold.
    #[test]
    fn before_1970_and_after_2262() {
        assert_eq!(nanoseconds(-2, 750_000_000), -1_250_000_000);
        assert_eq!(nanoseconds(-9_223_372_037, 145_224_193), i64::MIN + 1);
        assert_eq!((nanoseconds(i64::MAX, 1), nanoseconds(i64::MIN, 1)), (i64::MAX, i64::MIN));
    }

    /// Proves: times are formatted correctly and parsed back; days that do not exist, and other text, are
    /// rejected.
    #[test]
    fn moments() {
        for (seconds, words) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_700_000_000, "2023-11-14 22:13:20 UTC"),
            (LATEST_S, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(moment(seconds), words);
            assert_eq!(parse_moment(words), Some(seconds));
            assert_eq!(parse_moment(&words.replace(" UTC", "Z").replacen(' ', "T", 1)), Some(seconds));
        }
        assert_eq!(moment(u64::MAX), "a time after the year 9999");
        assert_eq!(parse_moment("2023-11-14"), Some(1_699_920_000));
        assert_eq!(parse_moment("2023-11-14 00:01"), Some(1_699_920_060));
        for nonsense in [
            "",
            "2023",
            "2023-02-29",
            "2023-13-01",
            "2023-00-10",
            "2023-01-32",
            "2023-01-00",
            "1969-12-31",
            "2023-01-01 24:00",
            "2023-01-01 1:00",
            "2023-1-1",
            "+023-01-01",
            "2023-01-01 é:00:",
        ] {
            assert_eq!(parse_moment(nonsense), None, "{nonsense}");
        }
    }

    /// Proves: every day from 1970 to 2400 is parsed back as itself.
    #[test]
    fn every_day() {
        for day in 0..157_000u64 {
            assert_eq!(parse_moment(&moment(day * DAY_S)), Some(day * DAY_S));
        }
    }

    /// Proves: durations are parsed with their unit, and formatted in a suitable one.
    #[test]
    fn spans() {
        assert_eq!(parse_span("7d"), Some(604_800));
        assert_eq!(parse_span("2w"), Some(1_209_600));
        assert_eq!(parse_span("90m"), Some(5400));
        for nonsense in ["", "d", "7", "0d", "-1d", "1.5d", "7 d", "99999999999999999999d", "40000d", "7é"] {
            assert_eq!(parse_span(nonsense), None, "{nonsense}");
        }
        assert_eq!(span(1), "1 second");
        assert_eq!(span(604_800), "7 days");
        assert_eq!(span(86_400), "24 hours");
    }
}
