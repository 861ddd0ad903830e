//! Stored layout of the ring's superblocks and log blocks.
//!
//! ```text
//! superblock  0 magic [8] | 8 format u32 | 12 zero [4] | 16 ring [16] | 32 sequence u64 | 40 head u64
//!            48 slots u64 | 56 zero [24] | 80 tag [16] | 96 zero to 4096
//! log block   0 magic [4] | 4 used u16 | 6 first u16 | 8 number u64 | 16 epoch u64 | 24 salt [16] | 40 durable u64
//!            48 previous tag [16] | 64 tag [16] | 80 payload [4016]
//! record      0 client u8 | 1 kind u8 | 2 zero [2] | 4 length u32 | 8 body
//! ```
//!
//! Numbers are little-endian. A tag is keyed BLAKE3 over the whole block with the tag's bytes zero, cut to 16
//! bytes. The key of a log block is derived from the operator's key, the ring's name, the epoch and its salt.
//! `durable` is the number up to which the log was durable when the block was made: who presents such a block
//! cannot deny the blocks before. Records continue from payload to payload; `first` is the offset of the
//! first one that begins in a block.

use super::{Lsn, RingKey};

/// Size of a log block and of a superblock, in bytes.
pub const BLOCK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 80;
/// Bytes of records in a log block.
pub const PAYLOAD_BYTES: usize = BLOCK_BYTES - HEADER_BYTES;
/// Bytes before a record's body.
pub const RECORD_HEADER_BYTES: usize = 8;
/// No record begins in the block.
const NO_FIRST: u16 = u16::MAX;
const FORMAT: u32 = 1;
const SUPERBLOCK_MAGIC: &[u8; 8] = b"HFVOLLOG";
const BLOCK_MAGIC: &[u8; 4] = b"HFLB";

/// A tag: keyed BLAKE3, cut.
pub type Tag = [u8; 16];

/// The session between two openings of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Grows with every opening.
    pub number: u64,
    /// Random, so that nothing from a discarded tail is valid where a number is used again.
    pub salt: [u8; 16],
}

/// The contents of a superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The ring's name.
    pub ring: [u8; 16],
    /// Grows with every writing.
    pub sequence: u64,
    /// Start of the oldest record that is still needed.
    pub head: Lsn,
    /// Log blocks in the ring.
    pub slots: u64,
}

/// Why bytes are no superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSuperblock {
    /// The block is not of this ring, or was torn.
    Foreign,
    /// The tag does not fit: damaged, forged, or of another key.
    BadTag,
    /// Written by a newer version of this program.
    Newer(u32),
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

impl Superblock {
    /// The stored form.
    pub fn encode(&self, key: &RingKey) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..8].copy_from_slice(SUPERBLOCK_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.ring);
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.head.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.slots.to_le_bytes());
        let tag = key.tag_superblock(&bytes);
        bytes[80..96].copy_from_slice(&tag);
        bytes
    }

    /// The ring's name as the bytes claim it.
    pub fn claimed_name(bytes: &[u8; BLOCK_BYTES]) -> Option<[u8; 16]> {
        (bytes[..8] == *SUPERBLOCK_MAGIC).then(|| array(bytes, 16))
    }

    /// Reads and verifies the stored form.
    ///
    /// # Errors
    /// [`NoSuperblock`].
    pub fn decode(bytes: &[u8; BLOCK_BYTES], key: &RingKey) -> Result<Superblock, NoSuperblock> {
        if bytes[..8] != *SUPERBLOCK_MAGIC {
            return Err(NoSuperblock::Foreign);
        }
        let format = u32::from_le_bytes(array(bytes, 8));
        if format > FORMAT {
            return Err(NoSuperblock::Newer(format));
        }
        let tag: Tag = array(bytes, 80);
        let mut blank = *bytes;
        blank[80..96].fill(0);
        if !constant_time_eq(&key.tag_superblock(&blank), &tag) {
            return Err(NoSuperblock::BadTag);
        }
        Ok(Superblock {
            ring: array(bytes, 16),
            sequence: u64_at(bytes, 32),
            head: Lsn(u64_at(bytes, 40)),
            slots: u64_at(bytes, 48),
        })
    }
}

/// Compares tags in constant time.
pub fn constant_time_eq(a: &Tag, b: &Tag) -> bool {
    a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// A verified log block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogBlock {
    /// Its number, from 1.
    pub number: u64,
    /// The epoch in which it was written.
    pub epoch: Epoch,
    /// Up to where the log was durable then.
    pub durable: u64,
    /// The tag of the block before it.
    pub previous: Tag,
    /// Its tag.
    pub tag: Tag,
    /// Offset, in the payload, of the first record that begins in it.
    pub first: Option<usize>,
    /// The bytes of records.
    pub payload: Vec<u8>,
}

impl LogBlock {
    /// Makes the stored form of a block whose payload is at most [`PAYLOAD_BYTES`] long, and its tag.
    pub fn encode(
        key: &RingKey,
        epoch: &Epoch,
        (number, durable): (u64, u64),
        previous: &Tag,
        first: Option<usize>,
        payload: &[u8],
    ) -> ([u8; BLOCK_BYTES], Tag) {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..4].copy_from_slice(BLOCK_MAGIC);
        bytes[4..6].copy_from_slice(&(payload.len() as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&first.map_or(NO_FIRST, |first| first as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..24].copy_from_slice(&epoch.number.to_le_bytes());
        bytes[24..40].copy_from_slice(&epoch.salt);
        bytes[40..48].copy_from_slice(&durable.to_le_bytes());
        bytes[48..64].copy_from_slice(previous);
        bytes[HEADER_BYTES..HEADER_BYTES + payload.len()].copy_from_slice(payload);
        let tag = key.of_epoch(epoch).tag(&bytes);
        bytes[64..80].copy_from_slice(&tag);
        (bytes, tag)
    }

    /// Reads and verifies the stored form; `None` if it is none of this ring, whatever the cause.
    pub fn decode(bytes: &[u8; BLOCK_BYTES], key: &RingKey) -> Option<LogBlock> {
        if bytes[..4] != *BLOCK_MAGIC {
            return None;
        }
        let epoch = Epoch { number: u64_at(bytes, 16), salt: array(bytes, 24) };
        let tag: Tag = array(bytes, 64);
        let mut blank = *bytes;
        blank[64..80].fill(0);
        if !constant_time_eq(&key.of_epoch(&epoch).tag(&blank), &tag) {
            return None;
        }
        let used = usize::from(u16_at(bytes, 4));
        let first = Some(u16_at(bytes, 6)).filter(|first| *first != NO_FIRST).map(usize::from);
        if used > PAYLOAD_BYTES || first.is_some_and(|first| first >= used) {
            return None;
        }
        Some(LogBlock {
            number: u64_at(bytes, 8),
            epoch,
            durable: u64_at(bytes, 40),
            previous: array(bytes, 48),
            tag,
            first,
            payload: bytes[HEADER_BYTES..HEADER_BYTES + used].to_vec(),
        })
    }
}

impl Lsn {
    /// The [`Lsn`] of an offset in the payload of a block.
    pub(super) fn at(number: u64, offset: usize) -> Lsn {
        Lsn(number * BLOCK_BYTES as u64 + offset as u64)
    }

    /// The block it is in.
    pub(super) fn block(self) -> u64 {
        self.0 / BLOCK_BYTES as u64
    }

    /// The offset in that block's payload.
    pub(super) fn offset(self) -> usize {
        (self.0 % BLOCK_BYTES as u64) as usize
    }
}

const _: () = assert!(HEADER_BYTES == 4 + 2 + 2 + 8 + 8 + 16 + 8 + 16 + 16);
const _: () = assert!(PAYLOAD_BYTES < NO_FIRST as usize);
