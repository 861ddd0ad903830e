//! Directory entries: 32 bytes, with a short name and attributes, or with a piece of a long name.
//!
//! ```text
//! entry   0 name [11] | 11 attributes | 12 case bits | 13 created: hundredths, 14 time, 16 date | 18 accessed: date
//!        20 cluster, upper half | 22 modified: time, 24 date | 26 cluster, lower half | 28 size u32
//! piece   0 number, +0x40 for the last | 1 units [5] | 11 0x0f | 12 zero | 13 sum | 14 units [6] | 26 zero [2] | 28 units [2]
//! ```
//! The pieces of a name come last first, before the entry.

use crate::layout::ENTRY_BYTES;
use crate::names::Name;
use crate::time::Stored;

pub(crate) const SIZE: usize = ENTRY_BYTES as usize;
/// Units in one piece of a long name.
const PIECE_UNITS: usize = 13;
const PIECES_MAX: u8 = 20;
/// The first byte of an entry that was deleted.
pub(crate) const DELETED: u8 = 0xe5;
/// The attributes of a piece of a long name, of the six bits that count.
const PIECE: u8 = 0x0f;
const LAST_PIECE: u8 = 0x40;
pub(crate) const DOT: [u8; 11] = *b".          ";
pub(crate) const DOT_DOT: [u8; 11] = *b"..         ";

/// The attributes of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Attributes {
    /// The read-only attribute. The driver stores it; whether it is enforced is decided above.
    pub read_only: bool,
    /// The hidden attribute.
    pub hidden: bool,
    /// The system attribute.
    pub system: bool,
    /// Changed since the last backup.
    pub archive: bool,
}

impl Attributes {
    const BITS: u8 = 0x27;

    pub(crate) fn of(bits: u8) -> Attributes {
        Attributes {
            read_only: bits & 0x01 != 0,
            hidden: bits & 0x02 != 0,
            system: bits & 0x04 != 0,
            archive: bits & 0x20 != 0,
        }
    }

    /// Replaces these attributes in the bits of an entry.
    pub(crate) fn in_bits(self, bits: u8) -> u8 {
        bits & !Attributes::BITS
            | u8::from(self.read_only)
            | u8::from(self.hidden) << 1
            | u8::from(self.system) << 2
            | u8::from(self.archive) << 5
    }
}

/// An entry with a short name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) short: [u8; 11],
    pub(crate) attributes: u8,
    pub(crate) case_bits: u8,
    pub(crate) created: Stored,
    pub(crate) accessed: u16,
    pub(crate) modified: Stored,
    pub(crate) first: u32,
    pub(crate) size: u32,
}

impl Entry {
    pub(crate) const DIRECTORY: u8 = 0x10;
    pub(crate) const LABEL: u8 = 0x08;
    pub(crate) const ARCHIVE: u8 = 0x20;
    pub(crate) const HIDDEN_SYSTEM: u8 = 0x06;

    /// An empty file's or directory's entry, whose times are all `stored`.
    pub(crate) fn new(short: [u8; 11], attributes: u8, first: u32, stored: Stored) -> Entry {
        Entry {
            short,
            attributes,
            case_bits: 0,
            created: stored,
            accessed: stored.date,
            modified: Stored { hundredths: 0, ..stored },
            first,
            size: 0,
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8; SIZE]) -> Entry {
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Entry {
            short: bytes[..11].try_into().expect("eleven bytes"),
            attributes: bytes[11],
            case_bits: bytes[12],
            created: Stored { hundredths: bytes[13], time: two(14), date: two(16) },
            accessed: two(18),
            modified: Stored { hundredths: 0, time: two(22), date: two(24) },
            first: u32::from(two(20)) << 16 | u32::from(two(26)),
            size: u32::from_le_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..11].copy_from_slice(&self.short);
        bytes[11] = self.attributes;
        bytes[12] = self.case_bits;
        bytes[13] = self.created.hundredths;
        bytes[14..16].copy_from_slice(&self.created.time.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.created.date.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.accessed.to_le_bytes());
        bytes[20..22].copy_from_slice(&((self.first >> 16) as u16).to_le_bytes());
        bytes[22..24].copy_from_slice(&self.modified.time.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.modified.date.to_le_bytes());
        bytes[26..28].copy_from_slice(&(self.first as u16).to_le_bytes());
        bytes[28..].copy_from_slice(&self.size.to_le_bytes());
        bytes
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.attributes & Entry::DIRECTORY != 0
    }

    pub(crate) fn is_label(&self) -> bool {
        self.attributes & Entry::LABEL != 0
    }
}

/// Whether an entry is a piece of a long name.
pub(crate) fn is_piece(bytes: &[u8; SIZE]) -> bool {
    bytes[11] & 0x3f == PIECE
}

/// The pieces of a long name, in the order in which they are stored.
pub(crate) fn pieces(name: &Name, sum: u8) -> Vec<[u8; SIZE]> {
    let units = name.units();
    let count = units.len().div_ceil(PIECE_UNITS);
    (0..count)
        .rev()
        .map(|piece| {
            let mut bytes = [0; SIZE];
            bytes[0] = (piece + 1) as u8 | if piece + 1 == count { LAST_PIECE } else { 0 };
            bytes[11] = PIECE;
            bytes[13] = sum;
            for at in 0..PIECE_UNITS {
                // A zero ends a name that does not fill its pieces; the rest are ones.
                let unit = match (piece * PIECE_UNITS + at).cmp(&units.len()) {
                    std::cmp::Ordering::Less => units[piece * PIECE_UNITS + at],
                    std::cmp::Ordering::Equal => 0,
                    std::cmp::Ordering::Greater => 0xffff,
                };
                bytes[unit_at(at)..unit_at(at) + 2].copy_from_slice(&unit.to_le_bytes());
            }
            bytes
        })
        .collect()
}

/// The offset of a unit in a piece of a long name.
fn unit_at(unit: usize) -> usize {
    match unit {
        0..5 => 1 + 2 * unit,
        5..11 => 14 + 2 * (unit - 5),
        _ => 28 + 2 * (unit - 11),
    }
}

/// A long name being put together.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    first_slot: u32,
    sum: u8,
    /// The number of the piece read last; 0 if none was.
    at: u8,
    length: usize,
    units: [u16; PIECES_MAX as usize * PIECE_UNITS],
}

impl Pieces {
    pub(crate) fn none() -> Pieces {
        Pieces { first_slot: 0, sum: 0, at: 0, length: 0, units: [0; PIECES_MAX as usize * PIECE_UNITS] }
    }

    /// Adds the next piece. Returns whether earlier pieces, or this one, belong to no entry.
    pub(crate) fn take(&mut self, bytes: &[u8; SIZE], slot: u32) -> bool {
        if self.at > 1 && bytes[0] == self.at - 1 && bytes[13] == self.sum {
            self.at -= 1;
            self.fill(bytes);
            return false;
        }
        let broken = self.drop();
        let count = bytes[0] & !LAST_PIECE;
        if bytes[0] & LAST_PIECE == 0 || !(1..=PIECES_MAX).contains(&count) {
            return true;
        }
        self.first_slot = slot;
        self.sum = bytes[13];
        self.at = count;
        self.length = usize::from(count) * PIECE_UNITS;
        self.fill(bytes);
        broken
    }

    fn fill(&mut self, bytes: &[u8; SIZE]) {
        let start = usize::from(self.at - 1) * PIECE_UNITS;
        for unit in 0..PIECE_UNITS {
            let at = unit_at(unit);
            self.units[start + unit] = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        }
    }

    /// Forgets the pieces; gives whether there were some.
    pub(crate) fn drop(&mut self) -> bool {
        std::mem::take(&mut self.at) != 0
    }

    /// The name and its first slot, if all pieces are there and belong to this short name.
    pub(crate) fn finish(&self, short: &[u8]) -> Option<(&[u16], u32)> {
        if self.at != 1 || self.sum != crate::names::short_sum(short) {
            return None;
        }
        let units = &self.units[..self.length];
        let length = units.iter().position(|unit| *unit == 0).unwrap_or(self.length);
        let possible = (1..=crate::names::NAME_UNITS_MAX).contains(&length);
        possible.then(|| (&units[..length], self.first_slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_come_back(bytes: [u8; SIZE]) {
            prop_assert_eq!(Entry::from_bytes(&bytes).to_bytes(), bytes);
        }

        #[test]
        fn long_names_come_back(text in "\\PC{1,120}") {
            if let Ok(name) = Name::new(&text) {
                let sum = crate::names::short_sum(b"SHORT   NAM");
                let stored = pieces(&name, sum);
                let mut read = Pieces::none();
                for (slot, piece) in (7..).zip(&stored) {
                    prop_assert!(!read.take(piece, slot));
                }
                prop_assert_eq!(read.finish(b"SHORT   NAM"), Some((name.units(), 7)));
                prop_assert_eq!(read.finish(b"OTHER   NAM"), None);
                prop_assert!(read.drop() && !read.drop());
            }
        }
    }
}
