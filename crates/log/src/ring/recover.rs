//! Opening a ring: finding its end, telling a torn tail from an attack, and reading clients' records back.

use super::append::{SUPERBLOCKS, io, offset_of, slots_of};
use super::block::{BLOCK_BYTES, LogBlock, NoSuperblock, RECORD_HEADER_BYTES, Superblock, Tag};
use super::{Anchor, ClientId, Lsn, Ring, RingError, RingKey};
use crate::device::Device;
use std::ops::Range;
use std::sync::Arc;

/// Blocks read at once.
const READ_BLOCKS: u64 = 64;

/// A ring whose blocks are verified, before anything is appended.
pub struct Recovered {
    pub(super) device: Arc<dyn Device>,
    pub(super) range: Range<u64>,
    pub(super) key: RingKey,
    pub(super) superblock: Superblock,
    /// The last block of the log, its tag and the greatest epoch seen.
    pub(super) end_block: u64,
    pub(super) end_tag: Tag,
    pub(super) epoch: u64,
    /// Number of blocks after the end that were written and cut off. None of them was ever called durable.
    pub cut_off: u64,
}

/// A record that a client wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingRecord {
    /// The [`Lsn`] at which it begins.
    pub start: Lsn,
    /// The [`Lsn`] after it.
    pub end: Lsn,
    /// The client's kind of record.
    pub kind: u8,
    /// Its body.
    pub body: Vec<u8>,
}

/// Reads a few blocks at once.
struct Reader<'a> {
    found: &'a Recovered,
    window: Vec<u8>,
    first: u64,
}

impl<'a> Reader<'a> {
    fn new(found: &'a Recovered) -> Reader<'a> {
        Reader { found, window: Vec::new(), first: 0 }
    }

    /// The bytes in the slot of a block, unverified.
    fn bytes(&mut self, number: u64) -> Result<&[u8; BLOCK_BYTES], RingError> {
        let held = (self.window.len() / BLOCK_BYTES) as u64;
        if number < self.first || number >= self.first + held {
            let Recovered { device, range, superblock, .. } = self.found;
            // Neither beyond the end of the ring, nor around it.
            let to_wrap = superblock.slots - (number - 1) % superblock.slots;
            let count = READ_BLOCKS.min(to_wrap);
            self.window.resize(count as usize * BLOCK_BYTES, 0);
            let offset = offset_of(range, number, superblock.slots);
            io(&**device, "reading the log on", device.read_at(offset, &mut self.window))?;
            self.first = number;
        }
        let at = (number - self.first) as usize * BLOCK_BYTES;
        Ok(self.window[at..at + BLOCK_BYTES].try_into().expect("a block"))
    }

    /// The block with this number, if its slot contains it.
    fn block(&mut self, number: u64) -> Result<Option<LogBlock>, RingError> {
        let key = &self.found.key;
        let block = LogBlock::decode(self.bytes(number)?, key);
        Ok(block.filter(|block| block.number == number))
    }
}

impl Recovered {
    /// Reads and verifies the ring in `range`. `anchor` is what the caller knows of it from elsewhere.
    ///
    /// # Errors
    /// [`RingError::NotOurs`], [`RingError::Damaged`], [`RingError::RolledBack`], [`RingError::Forked`] and others:
    /// nothing was changed.
    pub fn open(
        device: Arc<dyn Device>,
        range: Range<u64>,
        key: RingKey,
        name: [u8; 16],
        anchor: Option<&Anchor>,
    ) -> Result<Recovered, RingError> {
        let room = slots_of(&*device, &range)?;
        let superblock = newest_superblock(&*device, &range, &key, name, room)?;
        let mut found = Recovered {
            device,
            range,
            key,
            superblock,
            end_block: superblock.head.block().saturating_sub(1),
            end_tag: Tag::default(),
            epoch: 0,
            cut_off: 0,
        };
        found.find_end(anchor)?;
        // After a kill (not a power loss) blocks may be in the page cache only. They count from here on, so
        // they must be durable.
        io(&*found.device, "flushing", found.device.flush())?;
        Ok(found)
    }

    /// Walks from the head to the last block that follows its predecessor.
    fn find_end(&mut self, anchor: Option<&Anchor>) -> Result<(), RingError> {
        let start = self.superblock.head.block();
        let slots = self.superblock.slots;
        let (mut end, mut end_tag, mut epoch) = (start - 1, Tag::default(), 0);
        let mut anchored = None;
        let mut cut_off = 0;
        {
            let mut reader = Reader::new(self);
            let mut previous: Option<Tag> = None;
            for number in start..start + slots {
                let Some(block) = reader.block(number)? else { break };
                let follows = previous.is_none_or(|previous| previous == block.previous);
                if !follows || block.epoch.number < epoch {
                    break;
                }
                if previous.is_none() {
                    anchored = anchor.filter(|a| a.number + 1 == number).map(|_| block.previous);
                }
                anchored = anchored.or(anchor.filter(|a| a.number == number).map(|_| block.tag));
                (end, end_tag, epoch) = (number, block.tag, block.epoch.number);
                previous = Some(block.tag);
            }
            // No block after the end may prove that there was more.
            for number in end + 1..start + slots {
                let Some(block) = reader.block(number)? else { continue };
                cut_off += 1;
                epoch = epoch.max(block.epoch.number);
                if block.durable > end {
                    let why = format!("log block {number} was made when block {} was durable", block.durable);
                    return Err(self.damaged(end + 1, why));
                }
            }
        }
        if end < start && start > 1 {
            return Err(self.damaged(start, "the oldest record that is needed was in it".into()));
        }
        if let Some(anchor) = anchor {
            let device = self.device.describe();
            if anchor.number > end {
                return Err(RingError::RolledBack { device, found: end, anchor: Box::new(*anchor) });
            }
            if anchored.is_some_and(|tag| tag != anchor.tag) || anchor.ring != self.superblock.ring {
                return Err(RingError::Forked { device, anchor: Box::new(*anchor) });
            }
        }
        (self.end_block, self.end_tag, self.epoch, self.cut_off) = (end, end_tag, epoch, cut_off);
        Ok(())
    }

    fn damaged(&self, number: u64, why: String) -> RingError {
        RingError::Damaged {
            device: self.device.describe(),
            number,
            offset: offset_of(&self.range, number, self.superblock.slots),
            why,
        }
    }
}

fn newest_superblock(
    device: &dyn Device,
    range: &Range<u64>,
    key: &RingKey,
    name: [u8; 16],
    room: u64,
) -> Result<Superblock, RingError> {
    let mut newest: Option<Superblock> = None;
    for copy in 0..SUPERBLOCKS {
        let mut bytes = [0; BLOCK_BYTES];
        let offset = range.start + copy * BLOCK_BYTES as u64;
        io(device, "reading the log's superblock on", device.read_at(offset, &mut bytes))?;
        match Superblock::decode(&bytes, key) {
            Ok(read) if read.ring == name => {
                newest = newest.filter(|newest| newest.sequence >= read.sequence).or(Some(read));
            }
            Err(NoSuperblock::Newer(found)) if newest.is_none() => {
                return Err(RingError::NewerFormat { device: device.describe(), found });
            }
            Ok(_) | Err(_) => {}
        }
    }
    let superblock = newest.ok_or_else(|| RingError::NotOurs { device: device.describe() })?;
    match superblock.slots <= room {
        true => Ok(superblock),
        false => Err(RingError::TooSmall { device: device.describe(), found: room, least: superblock.slots }),
    }
}

/// The name in the first superblock in `range`. Not verified: only for finding the key, and for messages.
pub fn claimed_name(device: &dyn Device, range: &Range<u64>) -> Option<[u8; 16]> {
    let mut bytes = [0; BLOCK_BYTES];
    (0..SUPERBLOCKS).find_map(|copy| {
        device.read_at(range.start + copy * BLOCK_BYTES as u64, &mut bytes).ok()?;
        Superblock::claimed_name(&bytes)
    })
}

impl Recovered {
    /// A client's records, oldest first.
    pub fn cursor(&self, client: ClientId) -> Cursor<'_> {
        let head = self.superblock.head;
        Cursor {
            reader: Reader::new(self),
            client,
            block: None,
            next: head.block(),
            offset: Some(head.offset()),
            failed: false,
        }
    }

    /// The oldest record in the ring.
    pub fn head(&self) -> Lsn {
        self.superblock.head
    }

    /// The [`Lsn`] after the last record.
    pub fn end(&self) -> Lsn {
        Lsn::at(self.end_block + 1, 0)
    }

    /// The anchor of the recovered state.
    pub fn anchor(&self) -> Anchor {
        Anchor { ring: self.superblock.ring, number: self.end_block, tag: self.end_tag }
    }

    /// Continues: records can be appended then. `salt` must be random; `reserve_blocks` are reserved for
    /// checkpoints.
    pub fn resume(self, salt: [u8; 16], reserve_blocks: u64) -> Ring {
        Ring::resume(&self, salt, reserve_blocks)
    }
}

/// Reads one client's records.
pub struct Cursor<'a> {
    reader: Reader<'a>,
    client: ClientId,
    /// The block that is being read.
    block: Option<LogBlock>,
    /// The block after it.
    next: u64,
    /// Offset of the next record in the block; `None`: use the block's first one.
    offset: Option<usize>,
    failed: bool,
}

/// Why a record could not be read to its end.
enum Cut {
    /// The log ends in it, or it was cut off and another epoch began.
    Short,
    Failed(RingError),
}

impl From<RingError> for Cut {
    fn from(error: RingError) -> Cut {
        Cut::Failed(error)
    }
}

impl Cursor<'_> {
    /// Reads the next block; `false` at the end.
    fn advance(&mut self) -> Result<bool, RingError> {
        if self.next > self.reader.found.end_block {
            return Ok(false);
        }
        let found = self.reader.found;
        let gone = || found.damaged(self.next, "it was right when the log was opened".into());
        let block = self.reader.block(self.next)?.ok_or_else(gone)?;
        if self.block.as_ref().is_some_and(|before| before.tag != block.previous) {
            return Err(gone());
        }
        self.next += 1;
        self.block = Some(block);
        Ok(true)
    }

    /// Reads bytes of a record that has begun.
    fn take(&mut self, mut count: usize, into: &mut Vec<u8>) -> Result<(), Cut> {
        while count > 0 {
            let block = self.block.as_ref().expect("a record has begun in a block");
            let at = self.offset.unwrap_or(0);
            let bytes = &block.payload[at.min(block.payload.len())..];
            if bytes.is_empty() {
                let epoch = block.epoch;
                if !self.advance()? {
                    return Err(Cut::Short);
                }
                let next = self.block.as_ref().expect("it was read");
                if next.epoch != epoch {
                    self.offset = None;
                    return Err(Cut::Short);
                }
                self.offset = Some(0);
                continue;
            }
            let taken = count.min(bytes.len());
            into.extend_from_slice(&bytes[..taken]);
            self.offset = Some(at + taken);
            count -= taken;
        }
        Ok(())
    }

    /// Goes to the start of the next record; `false` at the end.
    fn begin(&mut self) -> Result<bool, RingError> {
        loop {
            if let Some(block) = &self.block {
                match self.offset.or(block.first) {
                    Some(offset) if offset < block.payload.len() => {
                        self.offset = Some(offset);
                        return Ok(true);
                    }
                    _ => self.offset = None,
                }
                if !self.advance()? {
                    return Ok(false);
                }
            } else {
                let offset = self.offset;
                if !self.advance()? {
                    return Ok(false);
                }
                self.offset = offset;
            }
        }
    }

    fn read(&mut self) -> Result<Option<RingRecord>, RingError> {
        loop {
            if !self.begin()? {
                return Ok(None);
            }
            let start = Lsn::at(self.next - 1, self.offset.unwrap_or(0));
            let mut header = Vec::with_capacity(RECORD_HEADER_BYTES);
            match self.take(RECORD_HEADER_BYTES, &mut header) {
                Ok(()) => {}
                Err(Cut::Short) => continue,
                Err(Cut::Failed(error)) => return Err(error),
            }
            let length = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes")) as usize;
            let slots = self.reader.found.superblock.slots as usize;
            if length > slots * BLOCK_BYTES {
                return Err(self.reader.found.damaged(self.next - 1, format!("a record of {length} bytes")));
            }
            let mut body = Vec::with_capacity(length.min(4 << 20));
            match self.take(length, &mut body) {
                Ok(()) => {}
                Err(Cut::Short) => continue,
                Err(Cut::Failed(error)) => return Err(error),
            }
            if header[0] == self.client.0 {
                let end = Lsn::at(self.next - 1, self.offset.unwrap_or(0));
                return Ok(Some(RingRecord { start, end, kind: header[1], body }));
            }
        }
    }
}

impl Iterator for Cursor<'_> {
    type Item = Result<RingRecord, RingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.read().transpose();
        self.failed = matches!(read, Some(Err(_)));
        read
    }
}
