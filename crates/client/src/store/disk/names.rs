//! Names of the files in a cache directory.

use std::fmt;

/// A segment's name. Plain segments sort first, from the oldest to the newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SegmentName {
    /// The pin whose blocks it holds; `None` for a segment that may be removed when room is needed.
    pub pin: Option<u64>,
    /// Number of the segment.
    pub number: u64,
}

impl SegmentName {
    /// Parses the name of a segment's file.
    pub fn parse(name: &str) -> Option<SegmentName> {
        if let Some(number) = name.strip_suffix(".segment") {
            return Some(SegmentName { pin: None, number: number_of(number)? });
        }
        let (pin, number) = name.strip_suffix(".pinned")?.split_once('.')?;
        Some(SegmentName { pin: Some(hex(pin)?), number: number_of(number)? })
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pin {
            None => write!(f, "{:016x}.segment", self.number),
            Some(pin) => write!(f, "{pin:016x}.{:016x}.pinned", self.number),
        }
    }
}

/// Parses a number; refuses one so large that no other could follow it.
fn number_of(text: &str) -> Option<u64> {
    hex(text).filter(|number| *number < 1 << 62)
}

/// Parses exactly sixteen lower-case hexadecimal digits, so that one number has one name.
pub fn hex(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}
