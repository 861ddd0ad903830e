//! The operations on the file, and their frequencies.

use holdfast_sim::random::Random;
use std::ops::Range;

/// One operation; ranges are of bytes.
#[derive(Debug)]
pub enum Operation {
    /// Read, also beyond the end.
    Read(Range<u64>),
    /// Write, also beyond the end.
    Write(Range<u64>),
    /// Read through a mapping the part of the range that is within the file.
    MapRead(Range<u64>),
    /// Write through a shared mapping, growing the file first; and msync?
    MapWrite(Range<u64>, bool),
    /// Cut or extend.
    SetSize(u64),
    /// Make a hole.
    Punch(Range<u64>),
    /// Zero; and keep the size?
    Zero(Range<u64>, bool),
    /// Allocate, extending the file.
    Allocate(Range<u64>),
    /// Copy the part of the range that is within the file to this offset.
    Copy(Range<u64>, u64),
    /// fsync.
    Sync,
    /// Seek data and hole from here.
    Seek(u64),
    /// Close, and open in this directory; so that every write is synced (O_SYNC)?
    Reopen(usize, bool),
    /// Open once more, write, and close. Without an offset: append (O_APPEND) as many bytes.
    Aside(Option<u64>, u64),
    /// Open for reading in this directory, read all, and close.
    Look(usize),
}

/// Chooses an operation for a file of `size` bytes, which may become at most `bytes_max` long.
pub fn choose(random: &mut Random, bytes_max: u64, size: u64, directories: usize) -> Operation {
    let range = range(random, bytes_max);
    match random.below(100) {
        0..16 => Operation::Read(range),
        16..36 => Operation::Write(range),
        36..44 => Operation::MapRead(range),
        44..56 => Operation::MapWrite(range, random.chance(20)),
        56..61 => Operation::SetSize(place(random, bytes_max)),
        // A little longer or shorter: the last page is where caches go wrong.
        61..64 => Operation::SetSize((size + random.below(200)).saturating_sub(100).min(bytes_max)),
        64..69 => Operation::Punch(range),
        69..74 => Operation::Zero(range, random.chance(50)),
        74..76 => Operation::Allocate(range),
        76..82 => Operation::Copy(range, place(random, bytes_max)),
        82..84 => Operation::Sync,
        84..88 => Operation::Seek(place(random, bytes_max)),
        88..93 => Operation::Reopen(random.below(directories as u64) as usize, random.chance(20)),
        93..96 => {
            let length = range.end - range.start;
            let fits = size + length <= bytes_max;
            Operation::Aside((!fits || random.chance(50)).then_some(range.start), length)
        }
        _ => Operation::Look(random.below(directories as u64) as usize),
    }
}

/// An offset, every other time at the beginning of a page.
fn place(random: &mut Random, bytes_max: u64) -> u64 {
    let at = random.below(bytes_max);
    if random.chance(50) { at & !4095 } else { at }
}

/// A range that is not empty; mostly short, and in half of all cases of whole pages.
fn range(random: &mut Random, bytes_max: u64) -> Range<u64> {
    let start = place(random, bytes_max);
    let longest = (bytes_max - start).min(if random.chance(80) { 40 << 10 } else { bytes_max / 2 });
    let end = start + 1 + random.below(longest);
    let end = if random.chance(50) { end.next_multiple_of(4096) } else { end };
    start..end.min(bytes_max)
}
