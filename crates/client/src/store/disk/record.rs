//! The records of a segment, one after the other: ⟨magic, length of the rest, rest⟩, little-endian.
//!
//! The rest of a *block* record is the block's address and the encoded block. The rest of a *note* record is
//! a sequence of keys: blocks that a process has read since they were added.

use super::Key;
use borsh::BorshSerialize;
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const BLOCK_MAGIC: u32 = 0x4842_4332;
const NOTE_MAGIC: u32 = 0x4842_4e32;
/// Length of a record's magic and its length field, in bytes.
const PREFIX: usize = 4 + 4;
/// Bytes before an encoded block: magic, length and address.
pub const BLOCK_HEADER: usize = PREFIX + 32;
/// Most bytes of an encoded block: body, references and their counts.
pub const BLOCK_MAX: usize = (1 << 20) + 8192 * 32 + 64;
/// Most keys in one note.
pub const NOTE_KEYS_MAX: usize = 4096;

/// A record of a segment.
pub enum Record {
    /// A block: its address, the offset of its encoding, and the encoding's length.
    Block(Digest, u32, u32),
    /// Keys of blocks that were read.
    Note(Vec<Key>),
}

/// The first bytes of an address. They are enough to find a block, since every block found is verified.
pub fn key_of(address: &Digest) -> Key {
    address.0[..16].try_into().expect("16 of 32 bytes")
}

/// Encodes a block's record into `record`, replacing its content; returns whether the block is within the
/// allowed length.
pub fn block_record(record: &mut Vec<u8>, address: &Digest, block: &StoredBlock) -> bool {
    record.clear();
    record.extend_from_slice(&BLOCK_MAGIC.to_le_bytes());
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&address.0);
    block.serialize(record).expect("encoding into memory cannot fail");
    let length = (record.len() - PREFIX) as u32;
    record[4..PREFIX].copy_from_slice(&length.to_le_bytes());
    record.len() - BLOCK_HEADER <= BLOCK_MAX
}

/// Encodes a note.
pub fn note_record(keys: &[Key]) -> Vec<u8> {
    let mut record = Vec::with_capacity(PREFIX + 16 * keys.len());
    record.extend_from_slice(&NOTE_MAGIC.to_le_bytes());
    record.extend_from_slice(&((16 * keys.len()) as u32).to_le_bytes());
    keys.iter().for_each(|key| record.extend_from_slice(key));
    record
}

/// The record at `offset` of a file of `length` bytes, and the offset of the next one. `None`: there is no
/// whole or valid record.
///
/// # Errors
/// I/O errors.
pub fn read(file: &File, offset: u64, length: u64) -> io::Result<Option<(Record, u64)>> {
    let mut header = [0u8; BLOCK_HEADER];
    let here = length.saturating_sub(offset).min(BLOCK_HEADER as u64) as usize;
    if here < PREFIX {
        return Ok(None);
    }
    file.read_exact_at(&mut header[..here], offset)?;
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let rest = u64::from(word(4));
    let end = offset + PREFIX as u64 + rest;
    if end > length || end > u64::from(u32::MAX) {
        return Ok(None);
    }
    let record = match word(0) {
        BLOCK_MAGIC if (32..=BLOCK_MAX as u64 + 32).contains(&rest) => {
            let address = Digest(header[PREFIX..].try_into().expect("32 bytes"));
            Record::Block(address, (offset + BLOCK_HEADER as u64) as u32, rest as u32 - 32)
        }
        NOTE_MAGIC if rest <= 16 * NOTE_KEYS_MAX as u64 && rest % 16 == 0 => {
            let mut keys = vec![0u8; rest as usize];
            file.read_exact_at(&mut keys, offset + PREFIX as u64)?;
            Record::Note(keys.as_chunks::<16>().0.to_vec())
        }
        _ => return Ok(None),
    };
    Ok(Some((record, end)))
}
