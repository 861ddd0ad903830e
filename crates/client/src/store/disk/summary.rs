//! Summaries of segments: the places of the blocks in the first part of a segment, so that opening a large
//! cache need not read the header of each block. They are not trusted either: a wrong one costs time.
//!
//! ⟨magic, number of bytes of the segment that are covered, rows ⟨key, offset, length; its highest bit:
//! used⟩⟩, little-endian.

use super::names::SegmentName;
use super::{Key, TEMPORARY, ignore_absent, open_plainly, record};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const MAGIC: u32 = 0x4842_5332;
const HEADER: usize = 4 + 8;
const ROW: usize = 16 + 4 + 4;
const USED: u32 = 1 << 31;
/// Most bytes read of a summary.
const BYTES_MAX: u64 = 64 << 20;

/// A block: its key, its place, and whether it was used.
pub struct SummaryRow {
    pub key: Key,
    pub offset: u32,
    pub length: u32,
    pub used: bool,
}

fn path_of(directory: &Path, name: SegmentName) -> PathBuf {
    directory.join(format!("{name}.index"))
}

/// Writes a summary of the first `covered` bytes of a segment atomically.
///
/// # Errors
/// I/O errors.
pub fn write(directory: &Path, name: SegmentName, covered: u64, rows: &[SummaryRow]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER + ROW * rows.len());
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&covered.to_le_bytes());
    for row in rows {
        bytes.extend_from_slice(&row.key);
        bytes.extend_from_slice(&row.offset.to_le_bytes());
        bytes.extend_from_slice(&(row.length | if row.used { USED } else { 0 }).to_le_bytes());
    }
    let temporary = directory.join(format!("{TEMPORARY}{}-{name}.index", std::process::id()));
    fs::write(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path_of(directory, name)))
        .inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// The summary of a segment of `length` bytes, and how many bytes it covers; `None` if there is no valid one.
pub fn read(directory: &Path, name: SegmentName, length: u64) -> Option<(Vec<SummaryRow>, u64)> {
    let file = open_plainly(&path_of(directory, name)).ok()?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let (header, rows) = bytes.split_at_checked(HEADER)?;
    let covered = u64::from_le_bytes(header[4..].try_into().ok()?);
    if header[..4] != MAGIC.to_le_bytes() || covered > length || rows.len() % ROW != 0 {
        return None;
    }
    let row = |row: &[u8; ROW]| {
        let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes"));
        let (offset, length) = (word(16), word(20) & !USED);
        let is_within = offset as usize >= record::BLOCK_HEADER
            && length as usize <= record::BLOCK_MAX
            && u64::from(offset) + u64::from(length) <= covered;
        let key = row[..16].try_into().expect("16 bytes");
        is_within.then_some(SummaryRow { key, offset, length, used: word(20) & USED != 0 })
    };
    let rows: Option<Vec<SummaryRow>> = rows.as_chunks::<ROW>().0.iter().map(row).collect();
    Some((rows?, covered))
}

/// Removes a segment's summary.
///
/// # Errors
/// I/O errors.
pub fn remove(directory: &Path, name: SegmentName) -> io::Result<()> {
    ignore_absent(fs::remove_file(path_of(directory, name)))
}
