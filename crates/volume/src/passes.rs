//! The passes over buffers: the hash pass (the paper's hashd), write-back, flushes, checkpoints.

use crate::VolumeError;
use crate::buffers::{Candidate, Task};
use crate::layout::{BLOCK_BYTES, io};
use crate::map::Value;
use crate::records::{CHECKPOINT, CLIENT, DISCARD, HASHES, INLINE, STABLE};
use crate::volume::{Inner, WAIT};
use holdfast_log::ring::{LogClient, Lsn, Tag};
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::Ordering::Relaxed;
use tracing::trace_span;

/// Most blocks hashed, or written, before the locks are let go.
const BATCH_BLOCKS: usize = 1024;
/// Fewest blocks for which a thread is worth its start.
const SHARE_BLOCKS: usize = 128;
/// Shortest run, in blocks, that the system is asked to write to the medium at once. Shorter runs may still
/// grow.
const WRITE_OUT_BLOCKS: usize = 16;
/// Bytes of a tag.
const TAG_BYTES: usize = 16;
/// Number of blocks with unstable hashes beyond which the disk is flushed.
const PENDING_MAX: usize = 1 << 16;
/// Dirty leaves of the map beyond which a checkpoint is made.
const LEAVES_MAX: usize = 8192;

/// Runs of neighbours among tasks in order of block, at most `longest` each.
fn runs(tasks: &[Task], longest: usize) -> impl Iterator<Item = &[Task]> {
    let by_block = tasks.chunk_by(|a, b| a.block + 1 == b.block);
    by_block.flat_map(move |run| run.chunks(longest))
}

impl Inner {
    /// Bytes that a batch may add to the log.
    pub fn batch_bytes(&self) -> u64 {
        let (bytes, _) = self.ring.room();
        (bytes / 16).min((BATCH_BLOCKS * BLOCK_BYTES) as u64)
    }

    /// Ensures that a batch fits into the log. The caller holds the lock of `hashing`, so that nobody else
    /// uses the space.
    pub fn have_room(&self) -> Result<(), VolumeError> {
        let (bytes, used) = self.ring.room();
        if used + 2 * self.batch_bytes() > bytes / 2 {
            let wanted = Lsn(self.ring.end().0.saturating_sub(bytes / 4));
            self.checkpoint(wanted)?;
        }
        Ok(())
    }

    /// Makes a record for every buffer that has none.
    pub fn hash_pass(&self) -> Result<(), VolumeError> {
        // Writers do not hold it up meanwhile.
        let newest = self.buffers.lock().newest();
        loop {
            let _one = self.hashing.lock();
            self.have_room()?;
            let tasks = self.buffers.lock().unlogged(BATCH_BLOCKS, newest);
            if tasks.is_empty() {
                return Ok(());
            }
            self.keep_few_candidates(tasks.iter().map(|task| task.block))?;
            let tags = self.tags_of(&tasks);
            self.counters.hashed.fetch_add(tags.len() as u64, Relaxed);
            let mut done = 0;
            let mut bytes = 0;
            for run in self.records(&tasks) {
                // Small runs travel in the log whole: one flush instead of two, and torn writes are mended from it.
                let fits = (run.len() * BLOCK_BYTES) as u64 <= self.batch_bytes();
                let is_whole = fits && (run[0].is_part || run.len() <= self.options.inline_max);
                bytes += run.len() * if is_whole { BLOCK_BYTES } else { TAG_BYTES };
                if done > 0 && bytes as u64 > self.batch_bytes() {
                    break;
                }
                let first = run[0].block.to_le_bytes();
                let run_tags = &tags[done..done + run.len()];
                self.begin_append();
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
                    buffers.logged(task, &place, candidate);
                }
                buffers.end_append();
                done += run.len();
            }
        }
    }

    /// Buffers that one record describes.
    fn records<'a>(&self, tasks: &'a [Task]) -> impl Iterator<Item = &'a [Task]> {
        let longest = self.options.inline_max.max(1);
        let alike = tasks.chunk_by(|a, b| a.block + 1 == b.block && a.is_part == b.is_part);
        alike.flat_map(move |run| run.chunks(if run[0].is_part { longest } else { BATCH_BLOCKS }))
    }

    /// Hashes, with all processors if there is much.
    fn tags_of(&self, tasks: &[Task]) -> Vec<Tag> {
        let hash = |tasks: &[Task]| -> Vec<Tag> {
            tasks.iter().map(|task| self.key.block(task.block, &*task.bytes)).collect()
        };
        let share = tasks.len().div_ceil(self.processors).max(SHARE_BLOCKS);
        let (mine, others) = tasks.split_at(share.min(tasks.len()));
        std::thread::scope(|scope| {
            let others: Vec<_> = others.chunks(share).map(|tasks| scope.spawn(move || hash(tasks))).collect();
            let mut tags = hash(mine);
            for other in others {
                tags.extend(other.join().expect("hashing does not panic"));
            }
            tags
        })
    }

    /// Notes the present end of the log as a lower bound for the next record of this volume.
    fn begin_append(&self) {
        let mut buffers = self.buffers.lock();
        let end = self.ring.end();
        buffers.begin_append(end);
    }

    /// Before these blocks get one more hash: at their limit, those that they have are made stable.
    pub fn keep_few_candidates(&self, blocks: impl Iterator<Item = u64>) -> Result<(), VolumeError> {
        let most = self.buffers.lock().candidates_of(blocks);
        if most >= self.options.candidates_max.max(1) {
            self.settle_before(self.ring.end())?;
        }
        Ok(())
    }

    /// Brings to the disk what records before `before` describe, or something newer, and makes that stable.
    fn settle_before(&self, before: Lsn) -> Result<(), VolumeError> {
        while self.buffers.lock().has_due(before) {
            self.must_run()?;
            self.write_back(before)?;
            self.wait_for_writers(before);
        }
        self.stabilise()
    }

    /// Writes buffers with records before `before` to the disk, after making the records stable. What others are writing
    /// is left to them.
    pub fn write_back(&self, before: Lsn) -> Result<(), VolumeError> {
        loop {
            let tasks = self.buffers.lock().begin_writing(BATCH_BLOCKS, before);
            let Some(end) = tasks.iter().map(|task| task.end).max() else { return Ok(()) };
            // Write-ahead: the record is durable before the block is written.
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
            let mut bytes = Vec::with_capacity(run.len() * BLOCK_BYTES);
            run.iter().for_each(|task| bytes.extend_from_slice(&*task.bytes));
            let offset = run[0].block * BLOCK_BYTES as u64;
            io(&*self.disk, "writing", self.disk.write_at(offset, &bytes))?;
            // The disk works while the next blocks are hashed, not only when a flush waits for it.
            if run.len() >= WRITE_OUT_BLOCKS {
                self.disk.begin_write_out(offset, bytes.len() as u64);
            }
        }
        Ok(())
    }

    /// Flushes the disk. Everything written before is then stable, and its values are in the map. On return,
    /// the record that says so is in the log, even if another thread made it.
    fn stabilise(&self) -> Result<(), VolumeError> {
        let _one = self.stabilising.lock();
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
            // Under the lock, so that a reader finds each block either here or in the map.
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
        trace_span!(target: "operation", "log hashes").in_scope(|| self.hash_pass())?;
        let (end, needs_disk) = {
            let buffers = self.buffers.lock();
            (self.ring.end(), buffers.needs_disk())
        };
        trace_span!(target: "operation", "force the log").in_scope(|| self.ring.force(end))?;
        if needs_disk {
            let _span = trace_span!(target: "operation", "settle the disk").entered();
            // All of it, not only what the log lacks: an unstable record that is older than a stable one
            // would leave the old hashes of both valid.
            self.settle_before(end)?;
            // Or the old hashes could be true again after a crash.
            self.ring.force(self.ring.end())?;
        }
        Ok(())
    }

    /// Waits for writes to the disk that others have begun.
    fn wait_for_writers(&self, before: Lsn) {
        let mut buffers = self.buffers.lock();
        while buffers.is_writing(before) && self.must_run().is_ok() {
            self.changed.wait_for(&mut buffers, WAIT);
        }
    }

    /// Records that blocks are discarded.
    pub fn discard(&self, blocks: Range<u64>) -> Result<(), VolumeError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = blocks.end.min(at + (BATCH_BLOCKS * 16) as u64);
            let one = self.hashing.lock();
            let room = self.have_room().and_then(|()| self.keep_few_candidates(at..end));
            room.map_err(|error| self.stop_with(error))?;
            self.begin_append();
            let record = [at.to_le_bytes(), (end - at).to_le_bytes()].concat();
            let place = self.ring.append_reserved(CLIENT, DISCARD, &[&record]);
            let place = place.map_err(|error| self.stop_with(error.into()))?;
            {
                let mut buffers = self.buffers.lock();
                buffers.discard(at..end, place.start);
                buffers.end_append();
            }
            drop(one);
            self.mend(at..end);
            self.keep_bounded().map_err(|error| self.stop_with(error))?;
            at = end;
        }
        Ok(())
    }

    /// One round of the background thread's work.
    pub fn work(&self) -> Result<(), VolumeError> {
        self.hash_pass()?;
        // Records that are made meanwhile wait for the next round, so that this one ends.
        self.write_back(self.ring.end())?;
        self.keep_bounded()?;
        self.have_room()
    }

    /// Keeps the async map and the dirty part of the block map within their limits.
    fn keep_bounded(&self) -> Result<(), VolumeError> {
        if self.buffers.lock().pending() > PENDING_MAX {
            self.stabilise()?;
        }
        if self.map.dirty_leaves() > LEAVES_MAX {
            self.checkpoint(self.ring.end())?;
        }
        Ok(())
    }

    /// Writes everything to disk and map, so that nothing needs the log any more.
    pub fn checkpoint_all(&self) -> Result<(), VolumeError> {
        self.hash_pass()?;
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
        self.settle_before(wanted)?;
        self.write_checkpoint(wanted, self.header.blocks)
    }

    /// Writes the map's old leaves and the record of it.
    pub fn write_checkpoint(&self, wanted: Lsn, adopted: u64) -> Result<Lsn, VolumeError> {
        // The map's changes must be in the log before they are on the device.
        self.ring.force(self.ring.end())?;
        let root = self.map.write(wanted)?;
        io(&*self.log, "flushing", self.log.flush())?;
        let pending = {
            let buffers = self.buffers.lock();
            buffers.oldest().unwrap_or(self.ring.end())
        };
        // In this order, so that the second finds records that become stable in between.
        let from = self.map.oldest().map_or(pending, |oldest| oldest.min(pending));
        let body = [&root[..], &adopted.to_le_bytes(), &from.0.to_le_bytes()].concat();
        let place = self.ring.append_reserved(CLIENT, CHECKPOINT, &[&body])?;
        self.ring.force(place.end)?;
        self.map.settle();
        Ok(from)
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
