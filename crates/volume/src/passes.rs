//! What happens to buffers: the hash pass (the paper's hashd), write-back, flushes, checkpoints.

use crate::VolumeError;
use crate::buffers::{Candidate, Task};
use crate::layout::{BLOCK_BYTES, io};
use crate::map::Value;
use crate::records::{CHECKPOINT, CLIENT, DISCARD, HASHES, INLINE, STABLE};
use crate::volume::Inner;
use holdfast_log::ring::{LogClient, Lsn, Tag};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;

/// Most blocks hashed, or written, before the locks are let go.
const BATCH_BLOCKS: usize = 1024;
/// Bytes of a tag.
const TAG_BYTES: usize = 16;
/// Hashes that are not stable beyond which the disk is flushed.
const PENDING_MAX: usize = 1 << 18;
/// Dirty leaves of the map beyond which a checkpoint is made.
const LEAVES_MAX: usize = 8192;

/// Runs of neighbours among tasks in order of block, at most `longest` each.
fn runs(tasks: &[Task], longest: usize) -> impl Iterator<Item = &[Task]> {
    let by_block = tasks.chunk_by(|a, b| a.block + 1 == b.block);
    by_block.flat_map(move |run| run.chunks(longest))
}

impl Inner {
    /// Bytes that a batch may add to the log.
    fn batch_bytes(&self) -> u64 {
        let (bytes, _) = self.ring.room();
        (bytes / 16).min((BATCH_BLOCKS * BLOCK_BYTES) as u64)
    }

    /// Makes sure that a batch fits into the log.
    fn have_room(&self) -> Result<(), VolumeError> {
        let (bytes, used) = self.ring.room();
        if used + 2 * self.batch_bytes() > bytes / 2 {
            let wanted = Lsn(self.ring.end().0.saturating_sub(bytes / 4));
            self.checkpoint(wanted)?;
        }
        Ok(())
    }

    /// Makes a record for every buffer that has none; of these blocks `only`, if given.
    pub fn hash_pass(&self, only: Option<&BTreeSet<u64>>) -> Result<(), VolumeError> {
        // Those who go on writing meanwhile do not hold it up.
        let newest = self.buffers.lock().newest();
        loop {
            // A checkpoint hashes the blocks that it needs itself.
            if only.is_none() {
                self.have_room()?;
            }
            let one = self.hashing.lock();
            let tasks = self.buffers.lock().unlogged(BATCH_BLOCKS, newest, only);
            if tasks.is_empty() {
                return Ok(());
            }
            let tags: Vec<Tag> = tasks.iter().map(|task| self.key.block(task.block, &*task.bytes)).collect();
            self.counters.hashed.fetch_add(tags.len() as u64, Relaxed);
            let mut done = 0;
            let mut bytes = 0;
            let mut crowded = false;
            for run in tasks.chunk_by(|a, b| a.block + 1 == b.block) {
                // Small runs travel in the log whole: one flush instead of two, and torn writes are mended from it.
                let is_whole = run.len() <= self.options.inline_max;
                bytes += run.len() * if is_whole { BLOCK_BYTES } else { TAG_BYTES };
                if done > 0 && bytes as u64 > self.batch_bytes() {
                    break;
                }
                let first = run[0].block.to_le_bytes();
                let run_tags = &tags[done..done + run.len()];
                let place = if is_whole {
                    let mut parts: Vec<&[u8]> = vec![&first];
                    parts.extend(run.iter().map(|task| &task.bytes[..]));
                    self.ring.append_reserved(CLIENT, INLINE, &parts)?
                } else {
                    self.ring.append_reserved(CLIENT, HASHES, &[&first, run_tags.as_flattened()])?
                };
                let mut buffers = self.buffers.lock();
                for (task, tag) in run.iter().zip(run_tags) {
                    let candidate = Candidate { start: place.start, value: Value::Known(*tag), is_whole };
                    crowded |= buffers.logged(task, &place, candidate) >= self.options.candidates_max;
                }
                done += run.len();
            }
            drop(one);
            if crowded && only.is_none() {
                self.write_back(&|_, _| true)?;
                self.stabilise()?;
            }
        }
    }

    /// Writes buffers to the disk whose records are stable, or made so.
    pub fn write_back(&self, wanted: &dyn Fn(u64, &Candidate) -> bool) -> Result<(), VolumeError> {
        loop {
            let tasks = self.buffers.lock().begin_writing(BATCH_BLOCKS, wanted);
            let Some(end) = tasks.iter().map(|task| task.end).max() else { return Ok(()) };
            // The write-ahead rule.
            let written =
                self.ring.force(end).map_err(VolumeError::from).and_then(|()| self.write_tasks(&tasks));
            let mut buffers = self.buffers.lock();
            buffers.end_writing(&tasks, written.is_ok());
            drop(buffers);
            self.changed.notify_all();
            written?;
        }
    }

    fn write_tasks(&self, tasks: &[Task]) -> Result<(), VolumeError> {
        for run in runs(tasks, 256) {
            let bytes: Vec<u8> = run.iter().flat_map(|task| task.bytes.iter()).copied().collect();
            let offset = run[0].block * BLOCK_BYTES as u64;
            io(&*self.disk, "writing", self.disk.write_at(offset, &bytes))?;
        }
        Ok(())
    }

    /// Flushes the disk: what was written before is stable, and the map learns of it.
    fn stabilise(&self) -> Result<(), VolumeError> {
        let written = self.buffers.lock().written();
        if written.is_empty() {
            return Ok(());
        }
        io(&*self.disk, "flushing", self.disk.flush())?;
        self.counters.disk_flushes.fetch_add(1, Relaxed);
        let before = {
            let mut buffers = self.buffers.lock();
            let end = self.ring.end();
            let stable = buffers.settle(&written);
            // Under the lock, so that a reader finds a block here or there.
            for (block, value, lsn) in stable {
                self.map.set(block, value, lsn)?;
            }
            buffers.oldest().unwrap_or(end)
        };
        self.ring.append_reserved(CLIENT, STABLE, &[&before.0.to_le_bytes()])?;
        Ok(())
    }

    /// Everything written so far is durable and authentic.
    pub fn flush(&self) -> Result<(), VolumeError> {
        self.hash_pass(None)?;
        self.ring.force(self.ring.end())?;
        if self.buffers.lock().needs_disk() {
            self.write_back(&|_, newest| !newest.is_whole)?;
            self.wait_for_writers();
            self.stabilise()?;
            // Or the old hashes could be true again after a crash.
            self.ring.force(self.ring.end())?;
        }
        Ok(())
    }

    /// Waits for writes to the disk that others have begun.
    fn wait_for_writers(&self) {
        let mut buffers = self.buffers.lock();
        while buffers.is_writing() && self.must_run().is_ok() {
            self.changed.wait_for(&mut buffers, std::time::Duration::from_millis(10));
        }
    }

    /// Records that blocks are discarded.
    pub fn discard(&self, blocks: Range<u64>) -> Result<(), VolumeError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + (BATCH_BLOCKS * 16) as u64);
            self.have_room().map_err(|error| self.stop_with(error))?;
            let _one = self.hashing.lock();
            let record = [at.to_le_bytes(), (end - at).to_le_bytes()].concat();
            let place = self.ring.append_reserved(CLIENT, DISCARD, &[&record]);
            let place = place.map_err(|error| self.stop_with(error.into()))?;
            self.buffers.lock().discard(at..end, place.start);
            self.mend(at..end);
            at = end;
        }
        Ok(())
    }

    /// One look of the background.
    pub fn work(&self) -> Result<(), VolumeError> {
        self.hash_pass(None)?;
        let (dirty, pending) = {
            let buffers = self.buffers.lock();
            (buffers.dirty(), buffers.pending())
        };
        if dirty > 0 {
            self.write_back(&|_, _| true)?;
        }
        if pending > PENDING_MAX {
            self.stabilise()?;
        }
        if self.map.dirty_leaves() > LEAVES_MAX {
            self.checkpoint_all()?;
        }
        self.have_room()
    }

    /// Makes the log unnecessary.
    pub fn checkpoint_all(&self) -> Result<(), VolumeError> {
        self.hash_pass(None)?;
        let end = self.ring.end();
        self.checkpoint(end)
    }

    /// Makes the records before `wanted` unnecessary, and gives them up.
    pub fn checkpoint(&self, wanted: Lsn) -> Result<(), VolumeError> {
        let oldest = self.make_checkpoint(wanted)?;
        Ok(self.ring.advance(oldest)?)
    }

    /// The oldest record needed afterwards.
    fn make_checkpoint(&self, wanted: Lsn) -> Result<Lsn, VolumeError> {
        let _one = self.checkpointing.lock();
        self.counters.checkpoints.fetch_add(1, Relaxed);
        // Old records must be true of the disk before the map may say so.
        loop {
            let old = self.buffers.lock().older_than(wanted);
            if old.is_empty() {
                break;
            }
            self.hash_pass(Some(&old))?;
            self.write_back(&|block, _| old.contains(&block))?;
            self.wait_for_writers();
            self.stabilise()?;
        }
        self.write_checkpoint(wanted, self.header.blocks)
    }

    /// Writes the map's old leaves and the record of it.
    pub fn write_checkpoint(&self, wanted: Lsn, adopted: u64) -> Result<Lsn, VolumeError> {
        // What the map says must be in the log before it is on the device.
        self.ring.force(self.ring.end())?;
        let root = self.map.write(wanted)?;
        io(&*self.log, "flushing", self.log.flush())?;
        let body = [&root[..], &adopted.to_le_bytes()].concat();
        let place = self.ring.append_reserved(CLIENT, CHECKPOINT, &[&body])?;
        self.ring.force(place.end)?;
        self.map.settle();
        *self.checkpoint.lock() = place.start;
        let pending = self.buffers.lock().oldest();
        Ok([Some(place.start), self.map.oldest(), pending].into_iter().flatten().min().expect("one at least"))
    }
}

/// Answers the log when others have filled it.
pub struct Checkpointer(pub Weak<Inner>);

impl LogClient for Checkpointer {
    fn checkpoint(&self, wanted: Lsn) -> Result<Lsn, String> {
        let inner = self.0.upgrade().ok_or("the volume is closed")?;
        inner.make_checkpoint(wanted).map_err(|error| error.to_string())
    }
}
