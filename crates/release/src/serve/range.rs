//! Parses the only kind of range that is served: a single one, in bytes.

/// The range that a `Range` header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// Everything: there is no such header, or one that is not understood, which HTTP says to ignore.
    Whole,
    /// Part of it. Not empty, and within it.
    Part(std::ops::Range<u64>),
    /// A part that is not there.
    Beyond,
}

/// Reads a `Range` header for a file of `bytes` bytes.
pub fn wanted(header: &[u8], bytes: u64) -> Range {
    let parsed =
        std::str::from_utf8(header).ok().and_then(|text| text.strip_prefix("bytes=")).and_then(parse);
    match parsed {
        None => Range::Whole,
        Some((Some(first), _)) if first >= bytes => Range::Beyond,
        Some((Some(first), None)) => Range::Part(first..bytes),
        Some((Some(first), Some(last))) => Range::Part(first..bytes.min(last.saturating_add(1))),
        // The last so many bytes.
        Some((None, Some(0))) => Range::Beyond,
        Some((None, Some(_))) if bytes == 0 => Range::Beyond,
        Some((None, Some(length))) => Range::Part(bytes.saturating_sub(length)..bytes),
        Some((None, None)) => Range::Whole,
    }
}

/// The first and the last byte; either may be left out.
fn parse(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let number = |text: &str| match text {
        "" => Some(None),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok().map(Some),
        _ => None,
    };
    let (first, last) = text.trim().split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    // A range whose end is before its start is not valid.
    (first.is_none() || last.is_none() || first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: ranges are interpreted as in RFC 9110, section 14.
    #[test]
    fn ranges() {
        for (header, bytes, expected) in [
            ("bytes=0-9", 100, Range::Part(0..10)),
            ("bytes=90-", 100, Range::Part(90..100)),
            ("bytes=90-1000", 100, Range::Part(90..100)),
            ("bytes=0-18446744073709551615", 100, Range::Part(0..100)),
            ("bytes=-10", 100, Range::Part(90..100)),
            ("bytes=-1000", 100, Range::Part(0..100)),
            ("bytes=100-", 100, Range::Beyond),
            ("bytes=0-0", 0, Range::Beyond),
            ("bytes=-0", 100, Range::Beyond),
            ("bytes=-5", 0, Range::Beyond),
            ("bytes=9-0", 100, Range::Whole),
            ("bytes=0-1,5-6", 100, Range::Whole),
            ("bytes=-", 100, Range::Whole),
            ("bytes=+1-2", 100, Range::Whole),
            ("bytes=0-99999999999999999999", 100, Range::Whole),
            ("lines=0-9", 100, Range::Whole),
            ("", 100, Range::Whole),
        ] {
            assert_eq!(wanted(header.as_bytes(), bytes), expected, "{header}");
        }
    }
}
