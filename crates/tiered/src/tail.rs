//! Objects with parts of a segment. Some are sent while the segment is being written, so that acknowledged
//! data is in the bucket. Others are joined from those when the segment is sealed.
//!
//! ```text
//! 0 magic "HFTAIL02" | 8 segment u32 | 12 previous segment u32 | 16 offset u64 | 24 previous segment's length u64
//! 32 acknowledged offset u32 | 36 acknowledged segment u32 | 40 BLAKE3 of all but these [24] | 64 the bytes
//! ```
//!
//! Numbers are little-endian. The first part of a segment begins at offset 0, and each other part where
//! another one ended. Several may be sent at the same time, so a crash can leave a gap before the last ones.
//! That is no loss, since none of them was acknowledged. But each part says up to where the log *was*
//! acknowledged when the part was begun: if the log does not reach that far, data is missing. The first part
//! of a segment is begun when the whole segment before it is in the bucket; the part names that segment and
//! its length.
//!
//! An earlier layout is only read: "HFTAIL01", with the SHA-256 of the bytes at 32 [32]. Those parts were
//! sent one after the other.

use holdfast_log::Position;
use sha2::{Digest as _, Sha256};

const MAGIC: &[u8; 8] = b"HFTAIL02";
const MAGIC_ONE: &[u8; 8] = b"HFTAIL01";
/// Bytes of the header before the segment's bytes.
pub(crate) const TAIL_HEADER_BYTES: usize = 64;
const SUMMED_BYTES: usize = 40;
const SUM_BYTES: usize = TAIL_HEADER_BYTES - SUMMED_BYTES;

/// The header of a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TailHead {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// The number and length of the segment before this one; number 0 if there is none.
    pub(crate) previous: (u32, u64),
    /// Everything before this position was acknowledged when the part was begun.
    pub(crate) acknowledged: Position,
}

/// A part whose checksum was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    pub(crate) head: TailHead,
    pub(crate) bytes: Vec<u8>,
}

impl TailHead {
    /// Writes the header to the beginning of `object`, whose rest are the bytes of the part.
    pub(crate) fn write(&self, object: &mut [u8]) {
        let (header, bytes) = object.split_at_mut(TAIL_HEADER_BYTES);
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&self.segment.to_le_bytes());
        header[12..16].copy_from_slice(&self.previous.0.to_le_bytes());
        header[16..24].copy_from_slice(&self.offset.to_le_bytes());
        header[24..32].copy_from_slice(&self.previous.1.to_le_bytes());
        header[32..40].copy_from_slice(&self.acknowledged.to_u64().to_le_bytes());
        let sum = sum_of(&header[..SUMMED_BYTES], bytes);
        header[SUMMED_BYTES..].copy_from_slice(&sum);
    }
}

fn sum_of(header: &[u8], bytes: &[u8]) -> [u8; SUM_BYTES] {
    let sum = *blake3::Hasher::new().update(header).update(bytes).finalize().as_bytes();
    *sum.first_chunk().expect("24 of 32 bytes")
}

impl Tail {
    /// Decodes and verifies a part. Returns `None` if it is not what was written.
    pub(crate) fn of_bytes(mut object: Vec<u8>) -> Option<Tail> {
        let (header, rest) = object.split_first_chunk::<TAIL_HEADER_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let (segment, previous, offset) = (word(8), (word(12), long(24)), long(16));
        let is_one = &header[..8] == MAGIC_ONE;
        let is_whole = match is_one {
            true => Sha256::digest(rest).as_slice() == &header[32..],
            false => &header[..8] == MAGIC && sum_of(&header[..SUMMED_BYTES], rest) == header[SUMMED_BYTES..],
        };
        let acknowledged = match (is_one, offset) {
            (false, _) => Position::from_u64(long(32)),
            // Such a part was begun only when everything before it was in the bucket.
            (true, 0) => Position { segment: previous.0, offset: u32::try_from(previous.1).ok()? },
            (true, offset) => Position { segment, offset: u32::try_from(offset).ok()? },
        };
        let head = TailHead { segment, offset, previous, acknowledged };
        if !is_whole || rest.is_empty() {
            return None;
        }
        object.drain(..TAIL_HEADER_BYTES);
        Some(Tail { head, bytes: object })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> TailHead {
        let acknowledged = Position { segment: 3, offset: 40 };
        TailHead { segment: 3, offset: 64, previous: (2, 900), acknowledged }
    }

    fn bytes_of(hex: &str) -> Vec<u8> {
        let hex: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        hex.chunks(2).map(byte).collect()
    }

    /// Proves: a part decodes to what was encoded, and equals the golden bytes; a part of the earlier layout
    /// is read; and every altered or shortened part is refused.
    #[test]
    fn altered_parts_are_refused() {
        let mut object = vec![5; TAIL_HEADER_BYTES + 20];
        head().write(&mut object);
        assert_eq!(object, bytes_of(include_str!("../tests/golden/tail-2.hex")));
        assert_eq!(Tail::of_bytes(object.clone()), Some(Tail { head: head(), bytes: vec![5; 20] }));
        for at in 0..object.len() {
            let mut altered = object.clone();
            altered[at] ^= 1;
            assert_eq!(Tail::of_bytes(altered), None);
            assert_eq!(Tail::of_bytes(object[..at].to_vec()), None);
        }
        let one = bytes_of(include_str!("../tests/golden/tail-1.hex"));
        let acknowledged = Position { segment: 3, offset: 64 };
        let expected = Tail { head: TailHead { acknowledged, ..head() }, bytes: vec![5; 20] };
        assert_eq!(Tail::of_bytes(one.clone()), Some(expected));
        for at in (0..8).chain(32..one.len()) {
            let mut altered = one.clone();
            altered[at] ^= 1;
            assert_eq!(Tail::of_bytes(altered), None);
        }
    }
}
