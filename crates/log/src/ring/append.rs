//! Appending, group commit, and making room.

use super::block::{BLOCK_BYTES, LogBlock, PAYLOAD_BYTES, RECORD_HEADER_BYTES, Superblock, Tag};
use super::recover::Recovered;
use super::{Anchor, ClientId, Epoch, Lsn, RingError, RingKey};
use crate::device::Device;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Superblocks before the first slot.
pub(super) const SUPERBLOCKS: u64 = 2;
/// Fewest log blocks that make sense.
const SLOTS_MIN: u64 = 64;
/// Sealed blocks in memory beyond which they are written, without a flush.
const SEALED_MAX: usize = 256;

/// A client whose records are in the ring.
pub trait LogClient: Send + Sync {
    /// Makes the client independent of records before `wanted`, as far as it can, and returns the oldest
    /// record that it still needs. May append records ([`Ring::append_reserved`]) and force them.
    ///
    /// # Errors
    /// A text that says why the client cannot.
    fn checkpoint(&self, wanted: Lsn) -> Result<Lsn, String>;
}

/// Counters since the ring was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RingStatistics {
    /// Records appended.
    pub records: u64,
    /// Bytes of the records' bodies.
    pub record_bytes: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Number of checkpoints requested of clients.
    pub checkpoints: u64,
}

#[derive(Default)]
struct Counters {
    records: AtomicU64,
    record_bytes: AtomicU64,
    blocks: AtomicU64,
    flushes: AtomicU64,
    checkpoints: AtomicU64,
}

/// An open ring. Cloning it is cheap; all methods are thread-safe and block.
#[derive(Clone)]
pub struct Ring(Arc<Inner>);

struct Inner {
    device: Arc<dyn Device>,
    range: Range<u64>,
    key: RingKey,
    name: [u8; 16],
    epoch: Epoch,
    slots: u64,
    /// Blocks that only checkpoints may use.
    reserve: u64,
    tail: Mutex<Tail>,
    commit: Mutex<Commit>,
    committed: Condvar,
    space: Mutex<Space>,
    making_room: Mutex<()>,
    clients: Mutex<BTreeMap<ClientId, Arc<dyn LogClient>>>,
    counters: Counters,
}

/// The end of the stream.
struct Tail {
    /// The block that is being filled.
    number: u64,
    payload: Vec<u8>,
    first: Option<usize>,
    /// The tag of the block before it.
    previous: Tag,
    /// Sealed and not yet written.
    sealed: Vec<(u64, [u8; BLOCK_BYTES])>,
    /// The last block known durable.
    durable: (u64, Tag),
    /// The last block sealed, and its tag.
    last: (u64, Tag),
}

struct Commit {
    stable: Lsn,
    running: bool,
    failed: Option<String>,
}

struct Space {
    sequence: u64,
    /// Nothing before this is needed, and a durable superblock says so.
    head: Lsn,
}

impl Ring {
    /// Makes an empty ring in `range` of a device, and overwrites what is there.
    ///
    /// # Errors
    /// [`RingError::TooSmall`], [`RingError::Io`].
    pub fn format(
        device: &dyn Device,
        range: Range<u64>,
        key: &RingKey,
        name: [u8; 16],
    ) -> Result<(), RingError> {
        let slots = slots_of(device, &range)?;
        // A block of an earlier ring with the same key must not pass for one of this ring.
        let zeroes = vec![0; 1 << 20];
        let end = range.start + (SUPERBLOCKS + slots) * BLOCK_BYTES as u64;
        let mut at = range.start;
        while at < end {
            let count = (end - at).min(zeroes.len() as u64);
            io(device, "clearing the log on", device.write_at(at, &zeroes[..count as usize]))?;
            at += count;
        }
        io(device, "flushing", device.flush())?;
        let first = Superblock { ring: name, sequence: 1, head: Lsn::at(1, 0), slots };
        for copy in 0..SUPERBLOCKS {
            write_superblock(device, &range, key, &first, copy)?;
        }
        io(device, "flushing", device.flush())
    }

    /// Continues after recovery. `salt` must be random. Nothing is written before the first record.
    pub(super) fn resume(found: &Recovered, salt: [u8; 16], reserve: u64) -> Ring {
        let epoch = Epoch { number: found.epoch + 1, salt };
        let number = found.end_block + 1;
        let last = (found.end_block, found.end_tag);
        Ring(Arc::new(Inner {
            device: found.device.clone(),
            range: found.range.clone(),
            key: found.key.clone(),
            name: found.superblock.ring,
            epoch,
            slots: found.superblock.slots,
            reserve: reserve.min(found.superblock.slots / 2),
            tail: Mutex::new(Tail {
                number,
                payload: Vec::with_capacity(PAYLOAD_BYTES),
                first: None,
                previous: found.end_tag,
                sealed: Vec::new(),
                durable: last,
                last,
            }),
            commit: Mutex::new(Commit { stable: Lsn::at(number, 0), running: false, failed: None }),
            committed: Condvar::new(),
            space: Mutex::new(Space { sequence: found.superblock.sequence, head: found.superblock.head }),
            making_room: Mutex::new(()),
            clients: Mutex::default(),
            counters: Counters::default(),
        }))
    }

    /// Registers a client, to be asked for checkpoints. Every client with records in the ring must be
    /// registered before anything is appended.
    pub fn register(&self, id: ClientId, client: Arc<dyn LogClient>) {
        self.0.clients.lock().insert(id, client);
    }

    /// Appends a record, and returns its [`Lsn`] and that of the record after it. Buffered: not stable until
    /// [`Ring::force`]. Waits for checkpoints if the ring is full; the caller must hold no lock that they
    /// need.
    ///
    /// # Errors
    /// [`RingError::TooLarge`], [`RingError::Full`], [`RingError::Checkpoint`], [`RingError::Poisoned`].
    pub fn append(&self, client: ClientId, kind: u8, parts: &[&[u8]]) -> Result<Range<Lsn>, RingError> {
        loop {
            if let Some(place) = self.try_append(client, kind, parts, self.0.reserve)? {
                return Ok(place);
            }
            self.make_room(blocks_of(parts))?;
        }
    }

    /// Appends a record of a checkpoint, for which space is reserved.
    ///
    /// # Errors
    /// As [`Ring::append`]; [`RingError::Full`] if the reserve does not suffice.
    pub fn append_reserved(
        &self,
        client: ClientId,
        kind: u8,
        parts: &[&[u8]],
    ) -> Result<Range<Lsn>, RingError> {
        let place = self.try_append(client, kind, parts, 0)?;
        place.ok_or_else(|| RingError::Full { oldest: self.0.space.lock().head })
    }

    fn try_append(
        &self,
        client: ClientId,
        kind: u8,
        parts: &[&[u8]],
        kept: u64,
    ) -> Result<Option<Range<Lsn>>, RingError> {
        let inner = &*self.0;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let limit = self.record_bytes_max();
        if length > limit {
            return Err(RingError::TooLarge { found: length, limit });
        }
        if let Some(failed) = &inner.commit.lock().failed {
            return Err(RingError::Poisoned(failed.clone()));
        }
        let mut tail = inner.tail.lock();
        let head = inner.space.lock().head;
        // Includes the block that is being filled, and one more, since forcing it begins another.
        let live = tail.number + 1 - head.block();
        if live + blocks_of(parts) + 1 + kept > inner.slots {
            return Ok(None);
        }
        let start = inner.begin_record(&mut tail);
        let mut header = [0; RECORD_HEADER_BYTES];
        (header[0], header[1]) = (client.0, kind);
        header[4..].copy_from_slice(&(length as u32).to_le_bytes());
        inner.fill(&mut tail, &header);
        for part in parts {
            inner.fill(&mut tail, part);
        }
        let end = Lsn::at(tail.number, tail.payload.len());
        let overflows = tail.sealed.len() >= SEALED_MAX;
        drop(tail);
        inner.counters.records.fetch_add(1, Relaxed);
        inner.counters.record_bytes.fetch_add(length as u64, Relaxed);
        if overflows {
            self.write_out()?;
        }
        Ok(Some(start..end))
    }

    /// Largest body of a record, in bytes.
    pub fn record_bytes_max(&self) -> usize {
        let quarter = (self.0.slots / 4) as usize * PAYLOAD_BYTES;
        quarter.min(4 << 20)
    }

    /// Everything before this is durable.
    pub fn stable(&self) -> Lsn {
        self.0.commit.lock().stable
    }

    /// The position of the next record, or shortly before it.
    pub fn end(&self) -> Lsn {
        let tail = self.0.tail.lock();
        Lsn::at(tail.number, tail.payload.len())
    }

    /// The oldest record in the ring.
    pub fn head(&self) -> Lsn {
        self.0.space.lock().head
    }

    /// Size of the ring, and bytes in use.
    pub fn room(&self) -> (u64, u64) {
        let number = self.0.tail.lock().number;
        let used = number + 1 - self.head().block();
        (self.0.slots * BLOCK_BYTES as u64, used * BLOCK_BYTES as u64)
    }

    /// Counters since the ring was opened.
    pub fn statistics(&self) -> RingStatistics {
        let counters = &self.0.counters;
        RingStatistics {
            records: counters.records.load(Relaxed),
            record_bytes: counters.record_bytes.load(Relaxed),
            blocks: counters.blocks.load(Relaxed),
            flushes: counters.flushes.load(Relaxed),
            checkpoints: counters.checkpoints.load(Relaxed),
        }
    }

    /// The anchor of the ring's present state.
    pub fn anchor(&self) -> Anchor {
        let (number, tag) = self.0.tail.lock().durable;
        Anchor { ring: self.0.name, number, tag }
    }

    /// Waits until everything before `lsn` is durable. Concurrent callers share a flush.
    ///
    /// # Errors
    /// [`RingError::Poisoned`], [`RingError::Io`].
    pub fn force(&self, lsn: Lsn) -> Result<(), RingError> {
        let inner = &*self.0;
        let lsn = lsn.min(self.end());
        loop {
            {
                let mut commit = inner.commit.lock();
                loop {
                    if let Some(failed) = &commit.failed {
                        return Err(RingError::Poisoned(failed.clone()));
                    }
                    if commit.stable >= lsn {
                        return Ok(());
                    }
                    if !commit.running {
                        break;
                    }
                    inner.committed.wait(&mut commit);
                }
                commit.running = true;
            }
            let flushed = inner.seal_and_flush();
            let mut commit = inner.commit.lock();
            commit.running = false;
            match &flushed {
                Ok(stable) => commit.stable = commit.stable.max(*stable),
                Err(error) => commit.failed = Some(error.to_string()),
            }
            inner.committed.notify_all();
            drop(commit);
            flushed?;
        }
    }

    /// Writes full blocks without making them durable, so that memory stays bounded.
    fn write_out(&self) -> Result<(), RingError> {
        let inner = &*self.0;
        {
            let mut commit = inner.commit.lock();
            loop {
                if let Some(failed) = &commit.failed {
                    return Err(RingError::Poisoned(failed.clone()));
                }
                if !commit.running {
                    break;
                }
                if inner.tail.lock().sealed.len() < 4 * SEALED_MAX {
                    return Ok(());
                }
                inner.committed.wait(&mut commit);
            }
            commit.running = true;
        }
        let sealed = std::mem::take(&mut inner.tail.lock().sealed);
        let written = inner.write(&sealed);
        let mut commit = inner.commit.lock();
        commit.running = false;
        if let Err(error) = &written {
            commit.failed = Some(error.to_string());
        }
        inner.committed.notify_all();
        written
    }

    /// Requests checkpoints of clients until `blocks` more fit in addition to the reserve, and half of the ring if
    /// possible.
    fn make_room(&self, blocks: u64) -> Result<(), RingError> {
        let inner = &*self.0;
        let _one = inner.making_room.lock();
        let fits = || {
            let live = inner.tail.lock().number + 1 - inner.space.lock().head.block();
            live + blocks + 1 + inner.reserve <= inner.slots
        };
        if fits() {
            return Ok(());
        }
        inner.counters.checkpoints.fetch_add(1, Relaxed);
        let wanted = Lsn::at((inner.tail.lock().number + blocks).saturating_sub(inner.slots / 2), 0);
        let clients: Vec<_> = inner.clients.lock().values().cloned().collect();
        // Without clients nothing is given up.
        let mut oldest = if clients.is_empty() { self.head() } else { self.end() };
        for client in clients {
            oldest = oldest.min(client.checkpoint(wanted).map_err(RingError::Checkpoint)?);
        }
        self.advance(oldest)?;
        match fits() {
            true => Ok(()),
            false => Err(RingError::Full { oldest }),
        }
    }

    /// Drops everything before `oldest`, which must be the start of a record, or the end.
    ///
    /// # Errors
    /// [`RingError::Poisoned`], [`RingError::Io`].
    pub fn advance(&self, oldest: Lsn) -> Result<(), RingError> {
        let inner = &*self.0;
        // The position that a superblock calls the beginning must be durable.
        self.force(oldest)?;
        let mut space = inner.space.lock();
        let (last, _) = inner.tail.lock().durable;
        let oldest = if oldest.block() > last { Lsn::at(last, PAYLOAD_BYTES) } else { oldest };
        if oldest <= space.head || last == 0 {
            return Ok(());
        }
        let next =
            Superblock { ring: inner.name, sequence: space.sequence + 1, head: oldest, slots: inner.slots };
        if let Err(error) = inner.replace_superblock(&next) {
            inner.commit.lock().failed.get_or_insert_with(|| error.to_string());
            return Err(error);
        }
        *space = Space { sequence: next.sequence, head: oldest };
        Ok(())
    }
}

impl Inner {
    /// The [`Lsn`] at which the next record begins.
    fn begin_record(&self, tail: &mut Tail) -> Lsn {
        if tail.payload.len() == PAYLOAD_BYTES {
            self.seal(tail);
        }
        let offset = tail.payload.len();
        tail.first.get_or_insert(offset);
        Lsn::at(tail.number, offset)
    }

    fn fill(&self, tail: &mut Tail, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if tail.payload.len() == PAYLOAD_BYTES {
                self.seal(tail);
            }
            let count = bytes.len().min(PAYLOAD_BYTES - tail.payload.len());
            tail.payload.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
        }
    }

    /// Ends the block that is being filled; it is never written to again.
    fn seal(&self, tail: &mut Tail) {
        let (bytes, tag) = LogBlock::encode(
            &self.key,
            &self.epoch,
            (tail.number, tail.durable.0),
            &tail.previous,
            tail.first,
            &tail.payload,
        );
        tail.sealed.push((tail.number, bytes));
        tail.last = (tail.number, tag);
        tail.previous = tag;
        tail.number += 1;
        tail.payload.clear();
        tail.first = None;
    }

    fn seal_and_flush(&self) -> Result<Lsn, RingError> {
        let (sealed, last) = {
            let mut tail = self.tail.lock();
            if !tail.payload.is_empty() {
                self.seal(&mut tail);
            }
            (std::mem::take(&mut tail.sealed), tail.last)
        };
        self.write(&sealed)?;
        self.flush()?;
        self.tail.lock().durable = last;
        Ok(Lsn::at(last.0 + 1, 0))
    }

    /// Writes the two copies one after the other: the first is durable before the second is touched. So one
    /// of them is whole whenever power fails, and otherwise both are equal.
    fn replace_superblock(&self, next: &Superblock) -> Result<(), RingError> {
        let device = &*self.device;
        // Makes the second copy of the last time durable: a flush by another caller may have begun before it
        // was written.
        self.flush()?;
        write_superblock(device, &self.range, &self.key, next, 0)?;
        self.flush()?;
        write_superblock(device, &self.range, &self.key, next, 1)
    }

    fn flush(&self) -> Result<(), RingError> {
        io(&*self.device, "flushing", self.device.flush())?;
        self.counters.flushes.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Writes sealed blocks, those that lie side by side in one go.
    fn write(&self, sealed: &[(u64, [u8; BLOCK_BYTES])]) -> Result<(), RingError> {
        let mut rest = sealed;
        while let Some((number, _)) = rest.first() {
            let slot = slot_of(*number, self.slots);
            let count = rest.len().min((self.slots - slot) as usize);
            let (run, after) = rest.split_at(count);
            let mut bytes = Vec::with_capacity(run.len() * BLOCK_BYTES);
            run.iter().for_each(|(_, block)| bytes.extend_from_slice(block));
            let offset = offset_of(&self.range, *number, self.slots);
            io(&*self.device, "writing the log on", self.device.write_at(offset, &bytes))?;
            self.counters.blocks.fetch_add(count as u64, Relaxed);
            rest = after;
        }
        Ok(())
    }
}

fn blocks_of(parts: &[&[u8]]) -> u64 {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    ((length + RECORD_HEADER_BYTES) / PAYLOAD_BYTES + 1) as u64
}

fn slot_of(number: u64, slots: u64) -> u64 {
    (number - 1) % slots
}

/// Byte offset of a block on the device.
pub(super) fn offset_of(range: &Range<u64>, number: u64, slots: u64) -> u64 {
    range.start + (SUPERBLOCKS + slot_of(number, slots)) * BLOCK_BYTES as u64
}

/// Number of log blocks that fit.
pub(super) fn slots_of(device: &dyn Device, range: &Range<u64>) -> Result<u64, RingError> {
    let end = range.end.min(device.size_bytes());
    let slots = (end.saturating_sub(range.start) / BLOCK_BYTES as u64).saturating_sub(SUPERBLOCKS);
    match slots >= SLOTS_MIN {
        true => Ok(slots),
        false => Err(RingError::TooSmall { device: device.describe(), found: slots, least: SLOTS_MIN }),
    }
}

fn write_superblock(
    device: &dyn Device,
    range: &Range<u64>,
    key: &RingKey,
    superblock: &Superblock,
    copy: u64,
) -> Result<(), RingError> {
    let offset = range.start + copy * BLOCK_BYTES as u64;
    io(device, "writing the log's superblock on", device.write_at(offset, &superblock.encode(key)))
}

pub(super) fn io<T>(
    device: &dyn Device,
    action: &'static str,
    result: std::io::Result<T>,
) -> Result<T, RingError> {
    result.map_err(|error| RingError::Io { action, device: device.describe(), error: error.to_string() })
}
