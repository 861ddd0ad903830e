//! Stored layout of segments and records.
//!
//! A segment is a header and frames, each at a multiple of eight bytes:
//!
//! ```text
//! header  0 magic [8] | 8 format u32 | 12 segment u32 | 16 salt [16] | 32 zero [16] | 48 tag [16]
//! frame   0 head length u32 | 4 body length u32 | 8 kind u8 | 9 zero [3] | 12 check u32
//!        16 durable u64 | 24 body tag [8] | 32 head tag [8] | 40 head | body | zero padding to 8
//! ```
//!
//! Numbers are little-endian. `check` covers the other 36 fixed bytes and the offset, so that a scan finds frames
//! at the price of one short hash an offset; `head tag` covers offset, fixed fields and head; `body tag` covers
//! the body, so a head can be trusted without its body being read. Check and head tag are keyed by the segment's
//! salt. `durable` is a position the log had made durable before the frame was written.

use std::fmt;

pub(crate) const LOG_FORMAT: u32 = 1;
/// Bytes of a segment's header, before its first record.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
pub(crate) use SEGMENT_HEADER_BYTES as HEADER_BYTES;
pub(crate) const FRAME_BYTES: usize = 40;
pub(crate) const ALIGNMENT: u64 = 8;
const MAGIC: &[u8; 8] = b"HFSEGMNT";
const HEADER_KEY: &[u8; 32] = b"holdfast log segment header    1";
const BODY_KEY: &[u8; 32] = b"holdfast log record body       1";

/// Largest head of a record, in bytes.
pub const HEAD_BYTES_MAX: usize = 1 << 20;
/// Largest head and body of a record together, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// A position in the log. Later records have greater positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position {
    /// Segment number, from 1.
    pub segment: u32,
    /// Offset of the frame in the segment, in bytes.
    pub offset: u32,
}

impl Position {
    /// The position before all records.
    pub const START: Position = Position { segment: 0, offset: 0 };

    /// This position as one number; the numbers sort as positions do.
    pub fn to_u64(self) -> u64 {
        u64::from(self.segment) << 32 | u64::from(self.offset)
    }

    /// The reverse of [`Position::to_u64`].
    pub fn from_u64(number: u64) -> Position {
        Position { segment: (number >> 32) as u32, offset: number as u32 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {}", self.segment, self.offset)
    }
}

/// The head of a verified record; its body was not necessarily read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// The record's position.
    pub position: Position,
    /// The caller's record kind.
    pub kind: u8,
    /// The head, as appended.
    pub head: Vec<u8>,
    /// Length of the body in bytes.
    pub body_length: u32,
    pub(crate) body_tag: [u8; 8],
    pub(crate) durable: Position,
}

impl RecordHead {
    /// Bytes that the record takes in its segment.
    pub fn stored_length(&self) -> u32 {
        frame_length(self.head.len(), self.body_length as usize) as u32
    }

    pub(crate) fn body_offset(&self) -> u64 {
        u64::from(self.position.offset) + (FRAME_BYTES + self.head.len()) as u64
    }
}

/// A verified record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The record's position.
    pub position: Position,
    /// The caller's record kind.
    pub kind: u8,
    /// The head, as appended.
    pub head: Vec<u8>,
    /// The body, as appended.
    pub body: Vec<u8>,
}

/// The tag of a body, computed outside the log's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyTag([u8; 8]);

impl BodyTag {
    /// Tags a body.
    pub fn of(body: &[u8]) -> BodyTag {
        let digest = blake3::keyed_hash(BODY_KEY, body);
        BodyTag(digest.as_bytes()[..8].try_into().expect("8 of 32 bytes"))
    }
}

/// The fixed part of a frame whose check fits; head and body are not yet verified.
pub(crate) struct Frame {
    fixed: [u8; FRAME_BYTES],
    pub(crate) head_length: u32,
    pub(crate) body_length: u32,
    pub(crate) kind: u8,
}

pub(crate) type SegmentKey = [u8; 32];

pub(crate) fn frame_length(head: usize, body: usize) -> u64 {
    ((FRAME_BYTES + head + body) as u64).next_multiple_of(ALIGNMENT)
}

/// Name of a segment's file.
pub fn segment_name(segment: u32) -> String {
    format!("segment-{segment:010}.log")
}

/// The number of the segment in a file of this name; `None`: no segment has such a name.
pub fn segment_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("segment-")?.strip_suffix(".log")?.parse().ok()?;
    (segment_name(number) == name).then_some(number)
}

pub(crate) fn encode_header(segment: u32, salt: &[u8; 16]) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&LOG_FORMAT.to_le_bytes());
    bytes[12..16].copy_from_slice(&segment.to_le_bytes());
    bytes[16..32].copy_from_slice(salt);
    let tag = blake3::keyed_hash(HEADER_KEY, &bytes[..48]);
    bytes[48..].copy_from_slice(&tag.as_bytes()[..16]);
    bytes
}

/// The contents of a segment header.
pub(crate) enum Header {
    /// Ours; frames are keyed by this.
    Ours(SegmentKey),
    /// A segment of this newer format.
    Newer(u32),
    /// Not a header of this segment.
    Bad,
}

pub(crate) fn decode_header(segment: u32, bytes: &[u8]) -> Header {
    let Ok(bytes) = <&[u8; HEADER_BYTES as usize]>::try_from(bytes) else { return Header::Bad };
    if &bytes[..8] != MAGIC {
        return Header::Bad;
    }
    let format = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
    if format > LOG_FORMAT {
        return Header::Newer(format);
    }
    let salt: [u8; 16] = bytes[16..32].try_into().expect("16 bytes");
    if *bytes != encode_header(segment, &salt) {
        return Header::Bad;
    }
    Header::Ours(segment_key(segment, &salt))
}

pub(crate) fn segment_key(segment: u32, salt: &[u8; 16]) -> SegmentKey {
    let mut hasher = blake3::Hasher::new_derive_key("holdfast log frame key 1");
    hasher.update(salt).update(&segment.to_le_bytes());
    *hasher.finalize().as_bytes()
}

fn check_of(key: &SegmentKey, offset: u32, fixed: &[u8; FRAME_BYTES]) -> [u8; 4] {
    let mut input = [0; FRAME_BYTES];
    input[..12].copy_from_slice(&fixed[..12]);
    input[12..16].copy_from_slice(&offset.to_le_bytes());
    input[16..].copy_from_slice(&fixed[16..]);
    blake3::keyed_hash(key, &input).as_bytes()[..4].try_into().expect("4 of 32 bytes")
}

fn head_tag_of(key: &SegmentKey, offset: u32, fixed: &[u8; FRAME_BYTES], head: &[u8]) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&offset.to_le_bytes()).update(&fixed[..12]).update(&fixed[16..32]).update(head);
    hasher.finalize().as_bytes()[..8].try_into().expect("8 of 32 bytes")
}

/// Appends one frame to `out`; its offset in the segment is `offset`.
pub(crate) fn encode_frame(
    out: &mut Vec<u8>,
    key: &SegmentKey,
    offset: u32,
    durable: Position,
    kind: u8,
    head: &[u8],
    (body, tag): (&[u8], BodyTag),
) {
    let mut fixed = [0; FRAME_BYTES];
    fixed[..4].copy_from_slice(&(head.len() as u32).to_le_bytes());
    fixed[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    fixed[8] = kind;
    fixed[16..24].copy_from_slice(&durable.to_u64().to_le_bytes());
    fixed[24..32].copy_from_slice(&tag.0);
    let head_tag = head_tag_of(key, offset, &fixed, head);
    fixed[32..].copy_from_slice(&head_tag);
    let check = check_of(key, offset, &fixed);
    fixed[12..16].copy_from_slice(&check);
    let length = frame_length(head.len(), body.len()) as usize;
    let start = out.len();
    out.reserve(length);
    out.extend_from_slice(&fixed);
    out.extend_from_slice(head);
    out.extend_from_slice(body);
    out.resize(start + length, 0);
}

/// Reads the fixed part of a frame; `None` if these bytes are no frame of this offset.
pub(crate) fn decode_fixed(key: &SegmentKey, offset: u32, bytes: &[u8]) -> Option<Frame> {
    let fixed: [u8; FRAME_BYTES] = bytes.get(..FRAME_BYTES)?.try_into().ok()?;
    // Cheap refusals first: a scan through foreign bytes tries every eighth offset.
    let number = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().expect("4 bytes"));
    let (head_length, body_length) = (number(0), number(4));
    let total = u64::from(head_length) + u64::from(body_length);
    if fixed[32..] == [0; 8]
        || fixed[9..12] != [0; 3]
        || head_length as usize > HEAD_BYTES_MAX
        || total > RECORD_BYTES_MAX as u64
    {
        return None;
    }
    if check_of(key, offset, &fixed) != fixed[12..16] {
        return None;
    }
    Some(Frame { fixed, head_length, body_length, kind: fixed[8] })
}

impl Frame {
    /// Verifies the head that follows the fixed part; `None` when it was altered.
    pub(crate) fn verify_head(&self, key: &SegmentKey, at: Position, head: &[u8]) -> Option<RecordHead> {
        let tag = head_tag_of(key, at.offset, &self.fixed, head);
        (tag == self.fixed[32..40]).then(|| RecordHead {
            position: at,
            kind: self.kind,
            head: head.to_vec(),
            body_length: self.body_length,
            body_tag: self.fixed[24..32].try_into().expect("8 bytes"),
            durable: Position::from_u64(u64::from_le_bytes(self.fixed[16..24].try_into().expect("8 bytes"))),
        })
    }

    pub(crate) fn length(&self) -> u64 {
        frame_length(self.head_length as usize, self.body_length as usize)
    }
}

/// Whether `body` is the one that `head` was appended with.
pub(crate) fn body_fits(head: &RecordHead, body: &[u8]) -> bool {
    body.len() == head.body_length as usize && BodyTag::of(body).0 == head.body_tag
}

/// Bytes that a record of these lengths takes in its segment.
pub fn stored_length(head: usize, body: usize) -> u32 {
    frame_length(head, body) as u32
}
