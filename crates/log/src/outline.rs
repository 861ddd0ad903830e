//! Outlines: everything that a scan of heads reads of a sealed segment, without the bodies. For media from
//! which a whole segment is expensive to read.
//!
//! ```text
//! 0 magic "HFOUTLN1" | 8 segment u32 | 12 zero [4] | 16 the segment's length u64 | 24 the segment's header [64]
//! then for each frame, in order: its fixed part [40] | its head
//! last BLAKE3 of all before, its first 16 bytes
//! ```
//!
//! Numbers are little-endian. Frames follow each other in a segment without gaps, so their positions follow
//! from their lengths.
//!
//! Invariant: an outline is accepted completely or not at all. Its frames must fill the segment exactly, so
//! none can be left out. Each is verified as in the segment, by tags that cover its position and are keyed by
//! the header's salt. So an outline says what the segment said when it was written; it does not prove that
//! the bodies are still there.

use crate::frame::{self, FRAME_BYTES, HEADER_BYTES, Header, RecordHead, SegmentKey};
use crate::{HEAD_BYTES_MAX, Position};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"HFOUTLN1";
const FIRST_BYTES: usize = 24 + HEADER_BYTES as usize;
const SUM_BYTES: usize = 16;

/// The outline of a sealed segment, made from all its bytes. `None`: something in it is not as it was written, or it would
/// have no outline much shorter than itself.
pub fn outline_of(number: u32, segment: &[u8]) -> Option<Vec<u8>> {
    let (header, _) = segment.split_first_chunk::<{ HEADER_BYTES as usize }>()?;
    let Header::Ours(key) = frame::decode_header(number, header) else { return None };
    let mut out = Vec::with_capacity(FIRST_BYTES + segment.len() / 64);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(segment.len() as u64).to_le_bytes());
    out.extend_from_slice(header);
    let mut offset = HEADER_BYTES;
    while offset < segment.len() as u64 {
        let rest = &segment[offset as usize..];
        let at = Position { segment: number, offset: offset as u32 };
        let (_, taken) = verified(&key, at, rest)?;
        out.extend_from_slice(&rest[..taken.outlined]);
        offset += taken.in_segment;
        if out.len() + SUM_BYTES > segment.len() / 2 {
            return None;
        }
    }
    let sum = sum_of(&out);
    out.extend_from_slice(&sum);
    (offset == segment.len() as u64).then_some(out)
}

fn sum_of(bytes: &[u8]) -> [u8; SUM_BYTES] {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("16 of 32 bytes")
}

/// Lengths of a verified frame, in bytes.
struct VerifiedFrame {
    outlined: usize,
    in_segment: u64,
}

/// Verifies the frame and head at the beginning of `bytes`; `None` if they do not belong to this position.
fn verified(key: &SegmentKey, at: Position, bytes: &[u8]) -> Option<(RecordHead, VerifiedFrame)> {
    let fixed = frame::decode_fixed(key, at.offset, bytes)?;
    let outlined = FRAME_BYTES + fixed.head_length as usize;
    debug_assert!(fixed.head_length as usize <= HEAD_BYTES_MAX, "decode_fixed refuses longer ones");
    let head = fixed.verify_head(key, at, bytes.get(FRAME_BYTES..outlined)?)?;
    Some((head, VerifiedFrame { outlined, in_segment: fixed.length() }))
}

/// An outline, verified.
pub(crate) struct Outline {
    number: u32,
    key: SegmentKey,
    bytes: Vec<u8>,
    /// Offset of the next frame, in `bytes` and in the segment.
    next: usize,
    offset: u64,
    /// Ranges of the segment that were punched out.
    holes: Vec<Range<u64>>,
}

impl Outline {
    /// The outline of a segment with this number and length; `None`: the bytes are not one.
    pub(crate) fn of_bytes(number: u32, length: u64, mut bytes: Vec<u8>) -> Option<Outline> {
        let (rest, sum) = bytes.split_last_chunk::<SUM_BYTES>()?;
        let first = rest.get(..FIRST_BYTES)?;
        let is_of_it = &first[..8] == MAGIC
            && first[8..12] == number.to_le_bytes()
            && first[12..16] == [0; 4]
            && first[16..24] == length.to_le_bytes()
            && *sum == sum_of(rest);
        if !is_of_it {
            return None;
        }
        let Header::Ours(key) = frame::decode_header(number, &first[24..]) else { return None };
        bytes.truncate(bytes.len() - SUM_BYTES);
        let mut outline =
            Outline { number, key, bytes, next: FIRST_BYTES, offset: HEADER_BYTES, holes: Vec::new() };
        while outline.offset < length {
            outline.step()?;
        }
        let is_exact = outline.offset == length && outline.next == outline.bytes.len();
        (outline.next, outline.offset) = (FIRST_BYTES, HEADER_BYTES);
        is_exact.then_some(outline)
    }

    /// The outline of the segment with these holes.
    pub(crate) fn with_holes(self, holes: Vec<Range<u64>>) -> Outline {
        Outline { holes, ..self }
    }

    /// Whether a record at this offset was punched out.
    pub(crate) fn is_hole(&self, offset: u64) -> bool {
        self.holes.iter().any(|hole| hole.contains(&offset))
    }

    /// Goes to the record at an offset, or to the end. Returns whether there is a record.
    pub(crate) fn seek(&mut self, offset: u64) -> bool {
        (self.next, self.offset) = (FIRST_BYTES, HEADER_BYTES);
        while self.offset < offset && self.step().is_some() {}
        self.offset == offset
    }

    /// The next record, and where the one behind it begins; `None` at the end.
    pub(crate) fn step(&mut self) -> Option<(RecordHead, u64)> {
        let at = Position { segment: self.number, offset: u32::try_from(self.offset).ok()? };
        let (head, taken) = verified(&self.key, at, self.bytes.get(self.next..)?)?;
        self.next += taken.outlined;
        self.offset += taken.in_segment;
        Some((head, self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyTag, frame::encode_frame};

    fn segment(number: u32) -> Vec<u8> {
        let salt = [7; 16];
        let mut bytes = frame::encode_header(number, &salt).to_vec();
        let key = frame::segment_key(number, &salt);
        for one in 0..5u8 {
            let (head, body) = (vec![one; 9 + usize::from(one)], vec![one; 300]);
            let offset = bytes.len() as u32;
            encode_frame(&mut bytes, &key, offset, Position::START, one, &head, (&body, BodyTag::of(&body)));
        }
        bytes
    }

    fn heads(outline: &mut Outline) -> Vec<RecordHead> {
        std::iter::from_fn(|| outline.step().map(|(head, _)| head)).collect()
    }

    /// Proves: an outline has the same records as the segment, at the same positions; its layout is that of
    /// the golden file.
    #[test]
    fn it_says_what_the_segment_says() {
        let segment = segment(3);
        let bytes = outline_of(3, &segment).expect("it is sound");
        let golden = include_str!("../tests/golden/outline.hex");
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden.split_whitespace().collect::<String>());
        let mut outline = Outline::of_bytes(3, segment.len() as u64, bytes).expect("it is its own");
        let found = heads(&mut outline);
        assert_eq!(found.iter().map(|head| head.kind).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        for head in &found {
            let body = &segment[head.body_offset() as usize..][..head.body_length as usize];
            assert!(frame::body_fits(head, body));
        }
        assert!(outline.seek(found[2].position.offset.into()));
        assert_eq!(heads(&mut outline), found[2..]);
        assert!(outline.seek(segment.len() as u64) && heads(&mut outline).is_empty());
        assert!(!outline.seek(u64::from(found[2].position.offset) + 8));
    }

    /// Proves: nothing of an outline is accepted that was altered, truncated, or belongs to another segment.
    /// Even with a recomputed checksum, a frame that was left out, doubled, exchanged or changed is detected.
    #[test]
    fn altered_ones_are_refused() {
        let segment = segment(3);
        let length = segment.len() as u64;
        let bytes = outline_of(3, &segment).expect("it is sound");
        assert!(Outline::of_bytes(4, length, bytes.clone()).is_none());
        assert!(Outline::of_bytes(3, length + 8, bytes.clone()).is_none());
        for at in 0..bytes.len() {
            assert!(Outline::of_bytes(3, length, bytes[..at].to_vec()).is_none());
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert!(Outline::of_bytes(3, length, altered.clone()).is_none());
            altered.truncate(bytes.len() - SUM_BYTES);
            let sum = sum_of(&altered);
            altered.extend_from_slice(&sum);
            assert!(altered == bytes || Outline::of_bytes(3, length, altered).is_none(), "offset {at}");
        }
        let mut frames = Vec::new();
        let mut rest = &bytes[FIRST_BYTES..bytes.len() - SUM_BYTES];
        while !rest.is_empty() {
            let (frame, others) = rest.split_at(FRAME_BYTES + rest[0] as usize);
            frames.push(frame);
            rest = others;
        }
        let forged = |order: &[usize]| {
            let mut out = bytes[..FIRST_BYTES].to_vec();
            order.iter().for_each(|at| out.extend_from_slice(frames[*at]));
            let sum = sum_of(&out);
            out.extend_from_slice(&sum);
            Outline::of_bytes(3, length, out).is_some()
        };
        assert!(forged(&[0, 1, 2, 3, 4]));
        for order in [&[0, 1, 2, 3][..], &[0, 1, 3, 4], &[0, 1, 2, 3, 4, 4], &[1, 0, 2, 3, 4], &[]] {
            assert!(!forged(order), "{order:?}");
        }
    }

    /// Proves: a segment in which anything is wrong has no outline, nor one of which it would be most.
    #[test]
    fn what_is_damaged_has_none() {
        let whole = segment(3);
        for at in (0..whole.len()).step_by(5) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let made = outline_of(3, &damaged);
            // A scan of heads does not look at bodies and padding either.
            if let Some(made) = made {
                assert_eq!(made, outline_of(3, &whole).unwrap(), "offset {at}");
            }
            let cut = outline_of(3, &whole[..at]);
            assert!(cut.is_none_or(|cut| Outline::of_bytes(3, at as u64, cut).is_some()), "offset {at}");
        }
        let salt = [7; 16];
        let mut short = frame::encode_header(3, &salt).to_vec();
        let key = frame::segment_key(3, &salt);
        encode_frame(&mut short, &key, 64, Position::START, 1, &[1; 90], (&[], BodyTag::of(&[])));
        assert_eq!(outline_of(3, &short), None);
        assert_eq!(outline_of(3, &[]), None);
    }
}
