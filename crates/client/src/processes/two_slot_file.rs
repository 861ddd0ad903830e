//! The file of the signer's record. It has two slots, written alternately, so that one of them is intact
//! whenever power fails.
//!
//! ```text
//! at 0 and at 4 MiB:  magic "hfsigned" | sequence u64 | length u32 | digest (32) | bytes        little endian
//! ```
//!
//! The record read is the last one whose writing returned, or a later one whose signature was not given out.
//! If a first record was begun and no record is intact, the file counts as new. A file with two damaged
//! records is refused.

use holdfast_crypto::{Digest, DigestKey, Domain};
use rustix::fs::fdatasync;
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::os::fd::OwnedFd;

const MAGIC: &[u8; 8] = b"hfsigned";
const HEADER_BYTES: usize = 52;
const PLACE_BYTES: u64 = 4 << 20;
/// Most bytes of a record.
pub(super) const RECORD_BYTES_MAX: usize = PLACE_BYTES as usize - HEADER_BYTES;

/// The open file with its two slots.
pub(super) struct TwoSlotFile {
    file: OwnedFd,
    sequence: u64,
}

/// The content of one slot.
enum SlotContent {
    Nothing,
    Damaged,
    Record(u64, Vec<u8>),
}

fn digest(sequence: u64, bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &[&sequence.to_le_bytes(), bytes].concat())
}

impl TwoSlotFile {
    /// Reads the last record; `None` in a new file.
    ///
    /// # Errors
    /// The file cannot be read, or both records are damaged.
    pub(super) fn open(file: OwnedFd) -> io::Result<(TwoSlotFile, Option<Vec<u8>>)> {
        let mut damaged = 0;
        let mut newest: Option<(u64, Vec<u8>)> = None;
        for place in 0..2 {
            match read_slot(&file, place)? {
                SlotContent::Nothing => {}
                SlotContent::Damaged => damaged += 1,
                SlotContent::Record(sequence, bytes) => {
                    if newest.as_ref().is_none_or(|(known, _)| *known < sequence) {
                        newest = Some((sequence, bytes));
                    }
                }
            }
        }
        match newest {
            Some((sequence, bytes)) => Ok((TwoSlotFile { file, sequence }, Some(bytes))),
            None if damaged == 2 => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "both of its records are damaged"))
            }
            None => Ok((TwoSlotFile { file, sequence: 0 }, None)),
        }
    }

    /// Writes a record, durably.
    ///
    /// # Errors
    /// The record may have been written or not.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "what this key has signed is too long to keep",
            ));
        }
        // Whatever happens to this attempt, the next one uses the other slot only if this one is intact.
        let sequence = self.sequence + 1;
        let mut record = Vec::with_capacity(HEADER_BYTES + bytes.len());
        record.extend_from_slice(MAGIC);
        record.extend_from_slice(&sequence.to_le_bytes());
        record.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        record.extend_from_slice(&digest(sequence, bytes).0);
        record.extend_from_slice(bytes);
        let mut at = (sequence % 2) * PLACE_BYTES;
        let mut rest = &record[..];
        while !rest.is_empty() {
            match pwrite(&self.file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    at += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fdatasync(&self.file)?;
        self.sequence = sequence;
        Ok(())
    }
}

fn read_slot(file: &OwnedFd, place: u64) -> io::Result<SlotContent> {
    let mut header = [0; HEADER_BYTES];
    let got = read_at(file, &mut header, place * PLACE_BYTES)?;
    if header[..got].iter().all(|byte| *byte == 0) {
        return Ok(SlotContent::Nothing);
    }
    let sequence = u64::from_le_bytes(header[8..16].try_into().expect("eight"));
    let length = u32::from_le_bytes(header[16..20].try_into().expect("four")) as usize;
    if got < HEADER_BYTES || header[..8] != *MAGIC || length > RECORD_BYTES_MAX || sequence % 2 != place {
        return Ok(SlotContent::Damaged);
    }
    let mut bytes = vec![0; length];
    let got = read_at(file, &mut bytes, place * PLACE_BYTES + HEADER_BYTES as u64)?;
    let whole = got == length && header[20..] == digest(sequence, &bytes).0;
    Ok(if whole { SlotContent::Record(sequence, bytes) } else { SlotContent::Damaged })
}

fn read_at(file: &OwnedFd, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match pread(file, &mut buffer[got..], at + got as u64) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn open(file: &std::fs::File) -> io::Result<(TwoSlotFile, Option<Vec<u8>>)> {
        TwoSlotFile::open(file.try_clone().expect("cloned").into())
    }

    /// Proves: the last record written is read back; if it is damaged, the one before; if both are, the file
    /// is refused.
    #[test]
    fn the_last_whole_record() {
        let file = tempfile::tempfile().expect("a file");
        let (mut keep, found) = open(&file).expect("new");
        assert_eq!(found, None);
        for round in 0..5u8 {
            keep.write(&vec![round; 1000 * usize::from(round)]).expect("written");
            assert_eq!(open(&file).expect("whole").1, Some(vec![round; 1000 * usize::from(round)]));
        }
        // The last record is number 5, in the second slot.
        let last = PLACE_BYTES + HEADER_BYTES as u64 + 7;
        file.write_all_at(&[0xff], last).expect("damaged");
        let (mut keep, found) = open(&file).expect("one is whole");
        assert_eq!(found, Some(vec![3; 3000]));
        keep.write(b"next").expect("written");
        assert_eq!(open(&file).expect("whole").1.as_deref(), Some(&b"next"[..]));
        file.write_all_at(&[0xff], PLACE_BYTES + 30).expect("damaged");
        file.write_all_at(&[0xff], 30).expect("damaged");
        assert!(open(&file).is_err());
        assert!(keep.write(&vec![0; RECORD_BYTES_MAX + 1]).is_err());
    }

    /// Proves: a file in which the first record was cut off anywhere counts as new: no signature was given
    /// out.
    #[test]
    fn a_first_record_cut_off() {
        let whole = tempfile::tempfile().expect("a file");
        open(&whole).expect("new").0.write(b"first").expect("written");
        let mut bytes = vec![0; HEADER_BYTES + 5];
        whole.read_exact_at(&mut bytes, PLACE_BYTES).expect("read");
        for end in 0..bytes.len() {
            let file = tempfile::tempfile().expect("a file");
            file.write_all_at(&bytes[..end], PLACE_BYTES).expect("written");
            assert_eq!(open(&file).expect("usable").1, None, "{end}");
        }
    }
}
