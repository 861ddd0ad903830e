//! The recordings of Linux' dm-log-writes: every write below it, in the order of completion, with flushes and marks.
//!
//! ```text
//! sector 0: magic u64 | version u64 | entries u64 | sector size u32
//! then for each entry, from a sector of its own: sector u64 | sectors u64 | flags u64 | length of a mark u64 | mark
//!     and the data in the sectors after it, unless it is a discard
//! ```

use std::io::{self, Read};

const MAGIC: u64 = 0x6a_7366_7773_6872;
const SUPER_BYTES: usize = 28;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// The longest entry that is read into memory.
const ENTRY_BYTES_MAX: u64 = 64 << 20;

/// Something that happened below a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Bytes were written. What comes before a `flush` is durable; `durable` bytes are so themselves.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
        /// All that had ended before is durable.
        is_flush: bool,
        /// These bytes are durable too.
        is_durable: bool,
    },
    /// The content of a range may be anything.
    Discard {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
    /// Somebody made a note (`dmsetup message NAME 0 mark TEXT`).
    Mark(String),
}

/// Reads a record from its beginning.
pub struct Record<R> {
    source: R,
    left: u64,
    sector_bytes: usize,
}

impl<R: Read> Record<R> {
    /// Begins to read.
    ///
    /// # Errors
    /// It cannot be read, or is no record.
    pub fn open(mut source: R) -> io::Result<Record<R>> {
        let mut first = [0; 512];
        source.read_exact(&mut first)?;
        let number = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("8 bytes"));
        let sector_bytes = u32::from_le_bytes(first[24..SUPER_BYTES].try_into().expect("4 bytes")) as usize;
        if number(0) != MAGIC || number(8) != 1 || !matches!(sector_bytes, 512 | 1024 | 2048 | 4096) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no record of dm-log-writes"));
        }
        source.read_exact(&mut vec![0; sector_bytes - 512])?;
        Ok(Record { source, left: number(16), sector_bytes })
    }

    fn event(&mut self) -> io::Result<Event> {
        let mut head = vec![0; self.sector_bytes];
        self.source.read_exact(&mut head)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "an entry of the record makes no sense");
        let bytes_of = |sectors: u64| sectors.checked_mul(self.sector_bytes as u64);
        let (offset, length) =
            (bytes_of(number(0)).ok_or_else(wrong)?, bytes_of(number(8)).ok_or_else(wrong)?);
        let flags = number(16);
        if flags & MARK != 0 {
            let text = head[32..].get(..number(24) as usize).ok_or_else(wrong)?;
            return Ok(Event::Mark(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned()));
        }
        if flags & DISCARD != 0 {
            return Ok(Event::Discard { offset, length });
        }
        if length > ENTRY_BYTES_MAX {
            return Err(wrong());
        }
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes)?;
        Ok(Event::Write { offset, bytes, is_flush: flags & FLUSH != 0, is_durable: flags & FUA != 0 })
    }
}

impl<R: Read> Iterator for Record<R> {
    type Item = io::Result<Event>;

    fn next(&mut self) -> Option<io::Result<Event>> {
        self.left = self.left.checked_sub(1)?;
        let event = self.event();
        if event.is_err() {
            self.left = 0;
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(entries: u64, rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = [MAGIC, 1, entries].map(u64::to_le_bytes).concat();
        bytes.extend_from_slice(&512u32.to_le_bytes());
        bytes.resize(512, 0);
        for part in rest {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        }
        bytes
    }

    fn entry(sector: u64, sectors: u64, flags: u64, mark: &str) -> Vec<u8> {
        let head = [sector, sectors, flags, mark.len() as u64].map(u64::to_le_bytes).concat();
        [&head[..], mark.as_bytes()].concat()
    }

    /// Proves: writes, flushes, discards and marks are read as they were recorded, and nonsense is an error.
    #[test]
    fn what_was_recorded_is_read() {
        let data = [7; 1024];
        let parts = [
            entry(9, 2, FUA, ""),
            data.to_vec(),
            entry(0, 0, FLUSH, ""),
            entry(4, 8, DISCARD, ""),
            entry(0, 0, MARK, "here"),
        ];
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bytes = record(4, &parts);
        let events: Vec<_> =
            Record::open(&bytes[..]).expect("a record").map(|event| event.expect("read")).collect();
        let write =
            |offset, bytes, is_flush, is_durable| Event::Write { offset, bytes, is_flush, is_durable };
        let expected = [
            write(9 * 512, data.to_vec(), false, true),
            write(0, vec![], true, false),
            Event::Discard { offset: 2048, length: 4096 },
            Event::Mark("here".into()),
        ];
        assert_eq!(events, expected);
        assert!(Record::open(&[0; 512][..]).is_err());
        for bad in [entry(0, u64::MAX, 0, ""), entry(u64::MAX, 1, 0, ""), entry(0, 1 << 40, 0, "")] {
            let bytes = record(2, &[&bad]);
            let events: Vec<_> = Record::open(&bytes[..]).expect("a record").collect();
            assert!(events.len() == 1 && events[0].is_err());
        }
        let mut long = entry(0, 0, MARK, "here");
        long[24..32].copy_from_slice(&481u64.to_le_bytes());
        assert!(Record::open(&record(1, &[&long])[..]).expect("a record").all(|event| event.is_err()));
    }
}
