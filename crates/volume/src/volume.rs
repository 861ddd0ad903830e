//! A volume in use: reading, writing, flushing, discarding.

use crate::buffers::{BufferContent, Buffers, Bytes};
use crate::key::VolumeKey;
use crate::layout::{BLOCK_BYTES, Header, io};
use crate::map::{Map, Value};
use crate::{BadBlock, VolumeError};
use holdfast_log::device::Device;
use holdfast_log::ring::{Anchor, Ring, RingStatistics};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::trace_span;

/// Sectors that callers may address.
const SECTOR_BYTES: u64 = 512;
/// Attempts on a block that changes while it is read.
const ATTEMPTS: u32 = 1000;
/// How long to wait for other threads, which signal when they are done, before checking again.
pub(crate) const WAIT: Duration = Duration::from_millis(10);
/// Bad blocks remembered for people.
const BAD_MAX: usize = 1000;

/// Options of an open volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Dirty blocks beyond which writers wait.
    pub dirty_max: usize,
    /// Longest run, in blocks, whose content is written to the log.
    pub inline_max: usize,
    /// Hashes a block may have since it was last stable; more force a flush.
    pub candidates_max: usize,
    /// Nodes of the block map in memory.
    pub nodes_max: usize,
    /// Pause of the background thread between rounds.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            dirty_max: 16_384,
            inline_max: 16,
            candidates_max: 8,
            nodes_max: 16_384,
            pause: Duration::from_millis(50),
        }
    }
}

/// Counters since the volume was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Bytes that callers read and wrote.
    pub read_bytes: u64,
    /// Bytes that callers wrote.
    pub written_bytes: u64,
    /// Blocks verified against their tags.
    pub verified: u64,
    /// Blocks that were hashed.
    pub hashed: u64,
    /// Flushes that callers asked for.
    pub flushes: u64,
    /// Flushes of the disk.
    pub disk_flushes: u64,
    /// Checkpoints of the map.
    pub checkpoints: u64,
    /// Number of blocks that did not match their tag.
    pub refused: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub verified: AtomicU64,
    pub hashed: AtomicU64,
    pub flushes: AtomicU64,
    pub disk_flushes: AtomicU64,
    pub checkpoints: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Default)]
struct Flushing {
    started: u64,
    done: u64,
    running: bool,
}

pub(crate) struct Inner {
    pub disk: Arc<dyn Device>,
    pub log: Arc<dyn Device>,
    pub ring: Ring,
    pub map: Map,
    pub key: VolumeKey,
    pub header: Header,
    pub options: Options,
    pub buffers: Mutex<Buffers>,
    /// Buffers became fewer, or there is work.
    pub changed: Condvar,
    /// Locked by a hash pass, so that a block's records are in the order of its versions.
    pub hashing: Mutex<()>,
    pub checkpointing: Mutex<()>,
    /// Locked until the record is in the log: a thread that finds nothing to make stable must find that record.
    pub stabilising: Mutex<()>,
    pub counters: Counters,
    /// Number of threads that may hash at once.
    pub processors: usize,
    flushing: Mutex<Flushing>,
    flushed: Condvar,
    /// Locked while parts of blocks are changed.
    pub partial: Mutex<()>,
    bad: Mutex<BTreeMap<u64, BadBlock>>,
    failed: Mutex<Option<String>>,
    stopping: AtomicBool,
    /// Makes the anchor durable before a flush is acknowledged.
    anchor_keeper: OnceLock<Arc<dyn AnchorKeeper>>,
}

/// Stores a volume's anchor where an attacker who has the disk and the log cannot reach it.
pub trait AnchorKeeper: Send + Sync {
    /// Makes `anchor`, or a newer one, durable. May be called by several threads at once, and out of order.
    ///
    /// # Errors
    /// Why the anchor cannot be written.
    fn keep(&self, anchor: &Anchor) -> Result<(), String>;
}

/// A volume in use. Thread-safe; calls block.
pub struct Volume {
    pub(crate) inner: Arc<Inner>,
    background: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct Parts {
    pub disk: Arc<dyn Device>,
    pub log: Arc<dyn Device>,
    pub ring: Ring,
    pub map: Map,
    pub key: VolumeKey,
    pub header: Header,
    pub options: Options,
}

impl Volume {
    pub(crate) fn begin(parts: Parts, refused: Vec<BadBlock>) -> Volume {
        let Parts { disk, log, ring, map, key, header, options } = parts;
        let inner = Arc::new(Inner {
            disk,
            log,
            ring,
            map,
            key,
            header,
            options,
            buffers: Mutex::default(),
            changed: Condvar::new(),
            hashing: Mutex::new(()),
            checkpointing: Mutex::new(()),
            stabilising: Mutex::new(()),
            counters: Counters::default(),
            processors: std::thread::available_parallelism().map_or(1, |count| count.get().min(4)),
            flushing: Mutex::default(),
            flushed: Condvar::new(),
            anchor_keeper: OnceLock::new(),
            partial: Mutex::new(()),
            bad: Mutex::new(refused.into_iter().map(|bad| (bad.number, bad)).collect()),
            failed: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        Volume { inner, background: Mutex::default() }
    }

    /// Starts hashing, writing back and making checkpoints in the background.
    ///
    /// # Errors
    /// [`VolumeError::Io`]: no thread could be started.
    pub fn start(&self) -> Result<(), VolumeError> {
        let weak = Arc::downgrade(&self.inner);
        let thread =
            std::thread::Builder::new().name("holdfast-hashd".into()).spawn(move || background(&weak));
        let thread = io(&*self.inner.disk, "starting the thread for", thread)?;
        *self.background.lock() = Some(thread);
        Ok(())
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.inner.header.blocks * BLOCK_BYTES as u64
    }

    /// Reads whole sectors.
    ///
    /// # Errors
    /// [`VolumeError::BadBlock`], [`VolumeError::Range`], [`VolumeError::Io`], [`VolumeError::BadMap`].
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        inner.check(offset, buffer.len() as u64)?;
        inner.counters.read_bytes.fetch_add(buffer.len() as u64, Relaxed);
        let end = offset + buffer.len() as u64;
        let blocks = offset / BLOCK_BYTES as u64..end.div_ceil(BLOCK_BYTES as u64);
        let start = blocks.start * BLOCK_BYTES as u64;
        if start == offset && blocks.end * BLOCK_BYTES as u64 == end {
            return inner.read_blocks(blocks, buffer);
        }
        let mut whole = vec![0; (blocks.end - blocks.start) as usize * BLOCK_BYTES];
        inner.read_blocks(blocks, &mut whole)?;
        let skipped = (offset - start) as usize;
        buffer.copy_from_slice(&whole[skipped..skipped + buffer.len()]);
        Ok(())
    }

    /// Writes whole sectors. Durable after [`Volume::flush`].
    ///
    /// # Errors
    /// [`VolumeError::Range`], [`VolumeError::Stopped`]; and as [`Volume::read`] for parts of a block.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        inner.check(offset, bytes.len() as u64)?;
        inner.must_run()?;
        inner.counters.written_bytes.fetch_add(bytes.len() as u64, Relaxed);
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let block = offset / BLOCK_BYTES as u64;
            let skipped = (offset % BLOCK_BYTES as u64) as usize;
            let count = rest.len().min(BLOCK_BYTES - skipped);
            let (now, after) = rest.split_at(count);
            if count == BLOCK_BYTES {
                // As many whole blocks as there are, under one lock.
                let whole = rest.len() / BLOCK_BYTES;
                let (now, after) = rest.split_at(whole * BLOCK_BYTES);
                inner.wait_for_room()?;
                let copies: Vec<Bytes> =
                    now.as_chunks::<BLOCK_BYTES>().0.iter().map(|bytes| Arc::new(*bytes)).collect();
                let mut buffers = inner.buffers.lock();
                for (block, bytes) in (block..).zip(copies) {
                    buffers.put(block, bytes);
                }
                drop(buffers);
                inner.mend(block..block + whole as u64);
                (offset, rest) = (offset + now.len() as u64, after);
                continue;
            }
            inner.write_part(block, skipped, now)?;
            (offset, rest) = (offset + count as u64, after);
        }
        Ok(())
    }

    /// Says that a range is no longer needed: its whole blocks read as zeroes from then on; parts of blocks
    /// are unchanged.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn discard(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        inner.check(offset, length)?;
        inner.must_run()?;
        let blocks = offset.div_ceil(BLOCK_BYTES as u64)..(offset + length) / BLOCK_BYTES as u64;
        inner.discard(blocks)
    }

    /// Makes a range read as zeroes, parts of blocks too.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        self.inner.check(offset, length)?;
        let end = offset + length;
        let first = offset.next_multiple_of(BLOCK_BYTES as u64).min(end);
        let last = (end / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).max(first);
        let zeroes = [0; BLOCK_BYTES];
        self.write(offset, &zeroes[..(first - offset) as usize])?;
        self.discard(first, last - first)?;
        self.write(last, &zeroes[..(end - last) as usize])
    }

    /// Demands that `keeper` makes an anchor durable before a flush is acknowledged. Then an attacker who
    /// restores older copies of disk and log cannot undo a flush unnoticed. A second keeper is ignored.
    pub fn keep_anchor_at_every_flush(&self, keeper: Arc<dyn AnchorKeeper>) {
        let _ = self.inner.anchor_keeper.set(keeper);
    }

    /// Makes everything whose write has returned durable and authentic. Concurrent callers share one flush.
    ///
    /// # Errors
    /// [`VolumeError::Stopped`], [`VolumeError::Io`], [`VolumeError::Ring`]; [`VolumeError::Anchor`]:
    /// everything is durable except the anchor, so this flush is not acknowledged; a later one may succeed.
    pub fn flush(&self) -> Result<(), VolumeError> {
        self.flush_data()?;
        match self.inner.anchor_keeper.get() {
            // Taken after the flush, it covers all that the flush made durable.
            Some(keeper) => {
                let _span = trace_span!(target: "operation", "keep the anchor").entered();
                keeper.keep(&self.anchor()).map_err(VolumeError::Anchor)
            }
            None => Ok(()),
        }
    }

    fn flush_data(&self) -> Result<(), VolumeError> {
        let inner = &*self.inner;
        inner.counters.flushes.fetch_add(1, Relaxed);
        let mut state = inner.flushing.lock();
        // A running flush may have begun before our last write.
        let wanted = state.started + 1;
        loop {
            inner.must_run()?;
            if state.done >= wanted {
                return Ok(());
            }
            if state.running {
                inner.flushed.wait(&mut state);
                continue;
            }
            state.running = true;
            state.started += 1;
            let mine = state.started;
            drop(state);
            let flushed = inner.flush();
            state = inner.flushing.lock();
            state.running = false;
            if flushed.is_ok() {
                state.done = mine;
            }
            inner.flushed.notify_all();
            if let Err(error) = flushed {
                return Err(inner.stop_with(error));
            }
        }
    }

    /// Flushes, writes everything to the disk and makes a checkpoint, so that the next opening has nothing to
    /// recover.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn close(&self) -> Result<(), VolumeError> {
        self.inner.stopping.store(true, Relaxed);
        self.inner.changed.notify_all();
        if let Some(thread) = self.background.lock().take() {
            let _ = thread.join();
        }
        // No flush is acknowledged here, so no anchor is needed: whoever closes the volume writes its last
        // anchor.
        self.flush_data()?;
        self.inner.checkpoint_all().map_err(|error| self.inner.stop_with(error))
    }

    /// One round of the background work of [`Volume::start`], for callers that decide when it runs.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn work(&self) -> Result<(), VolumeError> {
        self.inner.must_run()?;
        self.inner.work().map_err(|error| self.inner.stop_with(error))
    }

    /// Writes everything to the disk, so that the log is not needed.
    ///
    /// # Errors
    /// As [`Volume::flush`].
    pub fn checkpoint(&self) -> Result<(), VolumeError> {
        self.inner.must_run()?;
        self.inner.checkpoint_all().map_err(|error| self.inner.stop_with(error))
    }

    /// An anchor for the present state.
    pub fn anchor(&self) -> Anchor {
        self.inner.ring.anchor()
    }

    /// Why nothing more is accepted, if something failed permanently.
    pub fn failure(&self) -> Option<String> {
        self.inner.failed.lock().clone()
    }

    /// The header of the log.
    pub fn header(&self) -> Header {
        self.inner.header
    }

    /// Blocks that were refused, since the start and by recovery.
    pub fn bad_blocks(&self) -> Vec<BadBlock> {
        self.inner.bad.lock().values().copied().collect()
    }

    /// Bytes of the log, and those of them in use.
    pub fn log_room(&self) -> (u64, u64) {
        self.inner.ring.room()
    }

    /// Statistics of the log.
    pub fn log_statistics(&self) -> RingStatistics {
        self.inner.ring.statistics()
    }

    /// Statistics of the volume.
    pub fn statistics(&self) -> Statistics {
        let counters = &self.inner.counters;
        Statistics {
            read_bytes: counters.read_bytes.load(Relaxed),
            written_bytes: counters.written_bytes.load(Relaxed),
            verified: counters.verified.load(Relaxed),
            hashed: counters.hashed.load(Relaxed),
            flushes: counters.flushes.load(Relaxed),
            disk_flushes: counters.disk_flushes.load(Relaxed),
            checkpoints: counters.checkpoints.load(Relaxed),
            refused: counters.refused.load(Relaxed),
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Relaxed);
        self.inner.changed.notify_all();
        if let Some(thread) = self.background.lock().take() {
            let _ = thread.join();
        }
    }
}

fn background(weak: &Weak<Inner>) {
    while let Some(inner) = weak.upgrade() {
        {
            let mut buffers = inner.buffers.lock();
            if !inner.stopping.load(Relaxed) {
                inner.changed.wait_for(&mut buffers, inner.options.pause);
            }
        }
        if inner.stopping.load(Relaxed) || inner.must_run().is_err() {
            return;
        }
        if let Err(error) = inner.work() {
            let error = inner.stop_with(error);
            tracing::error!(%error, "the volume stops");
            return;
        }
    }
}

impl Inner {
    pub fn check(&self, offset: u64, length: u64) -> Result<(), VolumeError> {
        let size = self.header.blocks * BLOCK_BYTES as u64;
        let end = offset.checked_add(length).filter(|end| *end <= size);
        let is_aligned = offset.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR_BYTES);
        match (end, is_aligned) {
            (Some(_), true) => Ok(()),
            _ => Err(VolumeError::Range { offset, end: offset.saturating_add(length) }),
        }
    }

    /// Whether nothing has failed that cannot be mended.
    pub fn must_run(&self) -> Result<(), VolumeError> {
        match &*self.failed.lock() {
            Some(failed) => Err(VolumeError::Stopped(failed.clone())),
            None => Ok(()),
        }
    }

    /// Stops the volume: after a failed write or flush it is unknown what is durable.
    pub fn stop_with(&self, error: VolumeError) -> VolumeError {
        self.failed.lock().get_or_insert_with(|| error.to_string());
        self.changed.notify_all();
        self.flushed.notify_all();
        error
    }

    pub fn wait_for_room(&self) -> Result<(), VolumeError> {
        let mut buffers = self.buffers.lock();
        while buffers.dirty() >= self.options.dirty_max {
            drop(buffers);
            self.must_run()?;
            // A writer that is faster than the background thread does its work.
            self.hash_pass()
                .and_then(|()| self.write_back(self.ring.end()))
                .map_err(|error| self.stop_with(error))?;
            buffers = self.buffers.lock();
            if buffers.dirty() >= self.options.dirty_max {
                // Other threads are writing the blocks.
                self.changed.wait_for(&mut buffers, WAIT);
            }
        }
        Ok(())
    }

    /// Blocks that were refused are good again.
    pub fn mend(&self, blocks: Range<u64>) {
        let mut bad = self.bad.lock();
        if !bad.is_empty() {
            bad.retain(|number, _| !blocks.contains(number));
        }
    }

    /// Writes a part of a block; reads and verifies the rest.
    fn write_part(&self, block: u64, skipped: usize, part: &[u8]) -> Result<(), VolumeError> {
        self.wait_for_room()?;
        let _one = self.partial.lock();
        loop {
            let stamp = self.buffers.lock().stamp(block);
            let mut whole = [0; BLOCK_BYTES];
            self.read_blocks(block..block + 1, &mut whole)?;
            whole[skipped..skipped + part.len()].copy_from_slice(part);
            let mut buffers = self.buffers.lock();
            if buffers.stamp(block) == stamp {
                buffers.put_part(block, Arc::new(whole));
                return Ok(());
            }
        }
    }

    /// Reads blocks into `buffer`, neighbours in one go, and verifies each.
    pub fn read_blocks(&self, blocks: Range<u64>, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let mut at = blocks.start;
        while at < blocks.end {
            // How many of the following blocks must be read from the disk.
            let mut run = Vec::new();
            {
                let buffers = self.buffers.lock();
                while at + (run.len() as u64) < blocks.end {
                    let block = at + run.len() as u64;
                    match buffers.content(block) {
                        BufferContent::Bytes(bytes) if run.is_empty() => {
                            let place = (at - blocks.start) as usize * BLOCK_BYTES;
                            buffer[place..place + BLOCK_BYTES].copy_from_slice(&*bytes);
                            at += 1;
                        }
                        BufferContent::Bytes(_) => break,
                        BufferContent::Value(value) => run.push(Some(value)),
                        BufferContent::Nothing => run.push(None),
                    }
                }
            }
            if run.is_empty() {
                continue;
            }
            let place = (at - blocks.start) as usize * BLOCK_BYTES;
            let into = &mut buffer[place..place + run.len() * BLOCK_BYTES];
            let values: Vec<Value> = match run.iter().copied().collect() {
                Some(newer) => newer,
                None => {
                    let stable = self.map.values(at..at + run.len() as u64)?;
                    run.iter().zip(stable).map(|(newer, stable)| newer.unwrap_or(stable)).collect()
                }
            };
            if values.iter().any(|value| *value != Value::Discarded) {
                let offset = at * BLOCK_BYTES as u64;
                io(&*self.disk, "reading", self.disk.read_at(offset, into))?;
            }
            for ((value, block), bytes) in values.iter().zip(at..).zip(into.chunks_exact_mut(BLOCK_BYTES)) {
                if !self.is_right(*value, block, bytes) {
                    self.read_again(block, bytes)?;
                }
            }
            at += run.len() as u64;
        }
        Ok(())
    }

    /// Whether what the disk has is what it should; discarded blocks become zeroes.
    fn is_right(&self, value: Value, block: u64, bytes: &mut [u8]) -> bool {
        match value {
            Value::Known(tag) => {
                self.counters.verified.fetch_add(1, Relaxed);
                crate::map::same_tag(&self.key.block(block, bytes), &tag)
            }
            Value::Discarded => {
                bytes.fill(0);
                true
            }
            Value::NotAdopted | Value::Refused => false,
        }
    }

    /// Reads a block again that did not verify: it may have been written while it was read, or it is bad.
    fn read_again(&self, block: u64, bytes: &mut [u8]) -> Result<(), VolumeError> {
        for _ in 0..ATTEMPTS {
            let (stamp, here) = {
                let buffers = self.buffers.lock();
                (buffers.stamp(block), buffers.content(block))
            };
            let value = match here {
                BufferContent::Bytes(found) => {
                    bytes.copy_from_slice(&*found);
                    return Ok(());
                }
                BufferContent::Value(value) => value,
                BufferContent::Nothing => self.map.get(block)?,
            };
            let offset = block * BLOCK_BYTES as u64;
            io(&*self.disk, "reading", self.disk.read_at(offset, bytes))?;
            if self.is_right(value, block, bytes) {
                return Ok(());
            }
            if self.buffers.lock().stamp(block) != stamp {
                continue;
            }
            let expected = match value {
                Value::Known(tag) => Some(tag),
                _ => None,
            };
            let bad = BadBlock { number: block, expected, found: self.key.block(block, bytes) };
            return Err(self.refuse(bad));
        }
        Err(VolumeError::Stopped(format!("block {block} changes faster than it can be read")))
    }

    fn refuse(&self, bad: BadBlock) -> VolumeError {
        self.counters.refused.fetch_add(1, Relaxed);
        let device = self.disk.describe();
        let mut known = self.bad.lock();
        if known.len() < BAD_MAX && known.insert(bad.number, bad).is_none() {
            tracing::error!(%device, %bad, "a block is not what was written; it is refused");
        }
        VolumeError::BadBlock { device, bad }
    }
}
