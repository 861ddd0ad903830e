//! Copies blocks to their new store, each with its owner and the time at which it was stored. Then copies
//! holds and pins, and checks that nothing is missing.
//!
//! Invariant: memory is bounded by one page of the list of blocks, and the blocks that the threads are
//! copying.

use super::{ConvertError, ConvertedFileSystem};
use crate::block_store::BlockStore;
use crate::server_core::ServerCore;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use holdfast_protocol::block_server::{ListedBlock, LoadedBlock};
use holdfast_protocol::message::BATCH_MAX;
use holdfast_store::HoldOutcome;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Number of copying threads. Each waits for the new store's disk, so several together are faster.
const THREADS: usize = 8;
/// How many blocks a thread takes at a time.
const RUN: usize = 256;
/// Most bytes stored with one call.
const CALL_BYTES: usize = 4 << 20;
/// A holder of pins that no client has. Setting its pins makes durable what was stored before.
const NOBODY: u64 = u64::MAX;

/// Copies the blocks of one file system.
pub(super) struct BlockCopier<'a> {
    from: &'a dyn BlockStore,
    to: &'a dyn BlockStore,
    id: Digest,
    now_ns: i64,
    /// A block that was relied on since this time must not be collected, in nanoseconds since 1970.
    young_ns: i64,
}

/// What one copying thread has done.
#[derive(Default)]
struct CopyTotals {
    bytes: u64,
    sent_blocks: u64,
    sent_bytes: u64,
    damaged: Vec<(Digest, String)>,
}

impl<'a> BlockCopier<'a> {
    pub(super) fn new(core: &'a ServerCore, to: &'a dyn BlockStore, id: Digest) -> BlockCopier<'a> {
        let now_ns = core.resources.clock.wall_ns();
        let window = i64::try_from(core.resources.settings.store.gc_window.as_nanos()).unwrap_or(i64::MAX);
        BlockCopier { from: &*core.resources.blocks, to, id, now_ns, young_ns: now_ns.saturating_sub(window) }
    }

    /// Copies all blocks, then holds and pins, and compares. `progress` is given the bytes done since its
    /// last call.
    pub(super) fn all(
        &self,
        report: &mut ConvertedFileSystem,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ConvertError> {
        let mut after = 0;
        loop {
            let listed = self.from.list(self.id, after)?;
            let Some(last) = listed.last() else { break };
            after = last.place;
            let mut damaged = BTreeSet::new();
            self.blocks(&listed, |done| {
                progress(done.bytes);
                report.sent_blocks += done.sent_blocks;
                report.sent_bytes += done.sent_bytes;
                for (address, why) in done.damaged {
                    damaged.insert(address);
                    report.damaged.push(format!("{address}: {why}"));
                }
            })?;
            self.compare(&listed, &damaged)?;
            report.blocks += (listed.len() - damaged.len()) as u64;
        }
        let held = self.from.holds(self.id)?;
        // Holds that an earlier attempt has copied may have ended since.
        for old in
            self.to.holds(self.id)?.into_iter().filter(|old| held.iter().all(|hold| hold.name != old.name))
        {
            self.to.unhold(self.id, &old.name)?;
        }
        for hold in held {
            let name = hold.name.clone();
            if let HoldOutcome::Missing(missing) = self.to.hold(self.id, hold)? {
                report.broken_holds.push(format!("{name}: {} of its blocks are missing", missing.len()));
            }
        }
        let mut holder = None;
        while let Some(pinned) = self.from.pinned(self.id, holder)? {
            holder = Some(pinned.holder);
            if pinned.until_ns > self.now_ns {
                self.to.pin(self.id, pinned.holder, &pinned.addresses, pinned.until_ns, self.now_ns)?;
            }
        }
        self.to.pin(self.id, NOBODY, &[], i64::MIN, i64::MIN)?;
        self.to.sync()?;
        let (was, is) = (self.from.charges(self.id)?, self.to.charges(self.id)?);
        let devices: BTreeSet<_> = was.keys().chain(is.keys()).collect();
        report.other_charges =
            devices.into_iter().filter(|device| was.get(device) != is.get(device)).count() as u64;
        Ok(())
    }

    fn blocks(&self, listed: &[ListedBlock], mut take: impl FnMut(CopyTotals)) -> Result<(), ConvertError> {
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| {
            let (results, hear) = mpsc::channel();
            for _ in 0..THREADS {
                let (results, next, failure) = (results.clone(), &next, &failure);
                scope.spawn(move || {
                    while failure.lock().is_none() {
                        let run = listed.chunks(RUN).nth(next.fetch_add(1, Ordering::Relaxed));
                        let Some(run) = run else { return };
                        match self.run(run) {
                            Ok(done) => drop(results.send(done)),
                            Err(error) => *failure.lock() = Some(error),
                        }
                    }
                });
            }
            drop(results);
            hear.into_iter().for_each(&mut take);
        });
        match failure.into_inner() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Copies those of the listed blocks that are not in the new store yet.
    fn run(&self, listed: &[ListedBlock]) -> Result<CopyTotals, ConvertError> {
        let addresses: Vec<Digest> = listed.iter().map(|one| one.address).collect();
        let here = self.to.contains(self.id, &addresses)?;
        let mut done = CopyTotals {
            bytes: listed.iter().map(|one| u64::from(one.bytes)).sum(),
            ..CopyTotals::default()
        };
        let wanted: Vec<&ListedBlock> =
            listed.iter().zip(here).filter(|(_, here)| !here).map(|(one, _)| one).collect();
        let (mut together, mut wanted) = (StoreBatch::default(), wanted.as_slice());
        while !wanted.is_empty() {
            let addresses: Vec<Digest> = wanted.iter().map(|one| one.address).collect();
            let loaded = self.from.load(self.id, &addresses, CALL_BYTES)?;
            let (now, rest) = wanted.split_at(loaded.len());
            wanted = rest;
            for (one, loaded) in now.iter().zip(loaded) {
                let (header, block) = match loaded {
                    LoadedBlock::Present(header, block) => (header, block),
                    LoadedBlock::Absent => {
                        done.damaged.push((one.address, "it is not there".to_owned()));
                        continue;
                    }
                    LoadedBlock::Damaged(why) => {
                        done.damaged.push((one.address, why));
                        continue;
                    }
                };
                done.sent_blocks += 1;
                done.sent_bytes += u64::from(one.bytes);
                // The owner in the index counts: a device that stored a damaged block again is not charged
                // for it.
                let origin = Some((one.owner, header.stored_ns));
                if together.origin != origin || together.bytes >= CALL_BYTES {
                    self.store(&mut together)?;
                    together.origin = origin;
                }
                together.bytes += one.bytes as usize;
                together.blocks.push((one.address, block));
            }
        }
        self.store(&mut together)?;
        // The new store does not know when blocks were last relied on, so young ones are protected for a
        // whole window again.
        let young: Vec<Digest> =
            listed.iter().filter(|one| one.age_ns > self.young_ns).map(|one| one.address).collect();
        if !young.is_empty() {
            self.to.renew(self.id, &young, self.now_ns)?;
        }
        Ok(done)
    }

    fn store(&self, together: &mut StoreBatch) -> Result<(), ConvertError> {
        let StoreBatch { origin, blocks, .. } = std::mem::take(together);
        match origin {
            None => Ok(()),
            Some((owner, stored_ns)) => Ok(self.to.store(self.id, owner, blocks, None, stored_ns)?),
        }
    }

    /// Checks that all listed blocks are in the new store, except damaged ones.
    fn compare(&self, listed: &[ListedBlock], damaged: &BTreeSet<Digest>) -> Result<(), ConvertError> {
        let mut missing = 0;
        for listed in listed.chunks(BATCH_MAX) {
            let addresses: Vec<Digest> = listed.iter().map(|one| one.address).collect();
            let here = self.to.contains(self.id, &addresses)?;
            missing +=
                addresses.iter().zip(here).filter(|(one, here)| !here && !damaged.contains(one)).count();
        }
        match missing {
            0 => Ok(()),
            missing => {
                Err(ConvertError::Place(format!("the new place lacks {missing} blocks that it had taken")))
            }
        }
    }
}

/// Blocks with the same owner and time, which one call stores.
#[derive(Default)]
struct StoreBatch {
    origin: Option<(DeviceId, i64)>,
    bytes: usize,
    blocks: Vec<(Digest, StoredBlock)>,
}
