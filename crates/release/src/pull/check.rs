//! Checks that a tree is whole: every block that a record reaches is there and has the digest of its address.
//!
//! The check is breadth first, and the blocks of a level are read in the order of their locations, so that
//! packs are read from beginning to end. It uses 16 bytes of memory for each block seen, and the addresses of
//! one level.

use super::PullError;
use super::fetch::Fetcher;
use super::local;
use crate::index::{BlockLocation, Index, Key, key_of};
use crate::{layout, pack};
use holdfast_content::{BODY_BYTES_MAX, BlockKind};
use holdfast_crypto::{Digest, DigestKey};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Levels with fewer blocks are not divided among threads.
const PART_BLOCKS_MIN: usize = 256;

/// What is wrong with a tree.
pub enum CheckError {
    /// A block is in no pack.
    Missing(String),
    /// A block does not have its digest, or is malformed.
    Block {
        /// The number of its pack.
        pack: u32,
        /// What is wrong.
        why: String,
    },
    /// The caller asked to stop.
    Stopped(PullError),
}

/// Checks trees of one digest key.
pub struct Check<'a> {
    fetcher: &'a Fetcher<'a>,
    index: &'a Index,
    key: DigestKey,
    reached: HashSet<Key>,
    /// Keys of blocks that may be missing from all packs; `lacking` has those of them that were reached.
    without: Option<&'a HashSet<Key>>,
    lacking: Vec<Digest>,
    verified: AtomicU64,
    known: AtomicU64,
}

/// Whether an earlier pull has checked the block of an address at a location.
pub type IsKnown<'a> = dyn Fn(&BlockLocation, &Digest) -> bool + Sync + 'a;

impl<'a> Check<'a> {
    /// Prepares to check trees whose blocks `index` finds in the directory.
    pub fn new(fetcher: &'a Fetcher<'a>, index: &'a Index, key: DigestKey) -> Check<'a> {
        let (verified, known) = Default::default();
        let (reached, lacking) = Default::default();
        Check { fetcher, index, key, reached, without: None, lacking, verified, known }
    }

    /// Allows blocks with these keys to be in no pack: [`Check::lacking`] returns those that were reached.
    pub fn without(self, keys: &'a HashSet<Key>) -> Check<'a> {
        Check { without: Some(keys), ..self }
    }

    /// The blocks that were reached and are allowed to be missing, each once.
    pub fn lacking(self) -> Vec<Digest> {
        self.lacking
    }

    /// Discards all results, to check everything again.
    pub fn forget(&mut self) {
        self.reached.clear();
        self.verified.store(0, Relaxed);
        self.known.store(0, Relaxed);
    }

    /// Blocks whose content was checked.
    pub fn verified(&self) -> u64 {
        self.verified.load(Relaxed)
    }

    /// Blocks that an earlier pull had checked.
    pub fn known(&self) -> u64 {
        self.known.load(Relaxed)
    }

    /// Checks what `root` reaches and earlier trees do not.
    pub fn tree(&mut self, root: &Digest, is_known: &IsKnown<'_>) -> Result<(), CheckError> {
        let mut level = vec![*root];
        while !level.is_empty() {
            let mut locations = Vec::new();
            for address in level {
                if self.reached.insert(key_of(&address)) {
                    if self.without.is_some_and(|keys| keys.contains(&key_of(&address))) {
                        self.lacking.push(address);
                        continue;
                    }
                    let location = local::location(self.index, &address).ok_or_else(|| {
                        CheckError::Missing(format!("its index has no block {}", address.short()))
                    })?;
                    locations.push((location, address));
                }
            }
            locations.sort_unstable();
            level = self.level(&locations, is_known)?;
        }
        Ok(())
    }

    /// Checks some blocks; returns the addresses that they refer to.
    fn level(
        &self,
        locations: &[(BlockLocation, Digest)],
        is_known: &IsKnown<'_>,
    ) -> Result<Vec<Digest>, CheckError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = locations.len().div_ceil(threads).max(PART_BLOCKS_MIN);
        if locations.len() <= part {
            return self.part(locations, is_known);
        }
        std::thread::scope(|scope| {
            let parts: Vec<_> =
                locations.chunks(part).map(|part| scope.spawn(move || self.part(part, is_known))).collect();
            let mut below = Vec::new();
            for part in parts {
                below.extend(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(below)
        })
    }

    fn part(
        &self,
        locations: &[(BlockLocation, Digest)],
        is_known: &IsKnown<'_>,
    ) -> Result<Vec<Digest>, CheckError> {
        let mut below = Vec::new();
        let mut open: Option<(u32, File)> = None;
        for (location, address) in locations {
            let bad = |why: String| {
                let name = layout::pack(&self.index.packs[location.pack as usize].digest);
                CheckError::Block {
                    pack: location.pack,
                    why: format!("block {} in {name}: {why}", address.short()),
                }
            };
            let unreadable = |error: io::Error| bad(error.to_string());
            let file = match &mut open {
                Some((number, file)) if *number == location.pack => file,
                other => {
                    let name = layout::pack(&self.index.packs[location.pack as usize].digest);
                    let file = File::open(self.fetcher.target().join(name)).map_err(unreadable)?;
                    &mut other.insert((location.pack, file)).1
                }
            };
            let known = is_known(location, address);
            // If the block was checked before and is a chunk, only the bytes that show its kind are read.
            if known && self.is_chunk(file, location).map_err(unreadable)? {
                self.count(&self.known)?;
                continue;
            }
            let mut bytes = vec![0; location.bytes as usize];
            file.read_exact_at(&mut bytes, location.offset.into()).map_err(unreadable)?;
            let frame = pack::Frame::first(&bytes).map(|(frame, _)| frame);
            let stored = frame
                .filter(|frame| frame.address == *address)
                .and_then(|frame| frame.stored())
                .ok_or_else(|| bad("it does not lie where the index says".into()))?;
            if known {
                below.extend(stored.references);
                self.count(&self.known)?;
                continue;
            }
            let block = stored
                .open_any(&self.key, *address, BODY_BYTES_MAX)
                .map_err(|error| bad(error.to_string()))?;
            below.extend_from_slice(block.references());
            self.count(&self.verified)?;
        }
        Ok(below)
    }

    fn is_chunk(&self, file: &File, location: &BlockLocation) -> io::Result<bool> {
        let mut kind = [0];
        let at = u64::from(location.offset) + pack::HEADER_BYTES as u64;
        file.read_exact_at(&mut kind, at)?;
        Ok(location.bytes as usize > pack::HEADER_BYTES && kind == [BlockKind::Chunk as u8])
    }

    fn count(&self, counter: &AtomicU64) -> Result<(), CheckError> {
        counter.fetch_add(1, Relaxed);
        let steps = self.fetcher.steps();
        match steps.blocks.fetch_add(1, Relaxed) % 1024 {
            1023 => steps.step().map_err(CheckError::Stopped),
            _ => Ok(()),
        }
    }
}
