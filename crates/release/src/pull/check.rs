//! Whether a tree is whole: every block that a record reaches is there, and is what its address says.
//!
//! Breadth first, and the blocks of a level in the order in which they lie, so that packs are read from their beginning
//! to their end. Memory: 16 bytes for each block that was seen, and the addresses of one level.

use super::PullError;
use super::fetch::Fetcher;
use super::local;
use crate::index::{Index, Key, Place, key_of};
use crate::{layout, pack};
use holdfast_content::{BODY_BYTES_MAX, BlockKind};
use holdfast_crypto::{Digest, DigestKey};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Fewer blocks are not divided among threads.
const PART_BLOCKS_MIN: usize = 256;

/// What is wrong with a tree.
pub enum Bad {
    /// A block is in no pack.
    Missing(String),
    /// A block is not what it should be.
    Block {
        /// The number of its pack.
        pack: u32,
        /// What is wrong.
        why: String,
    },
    /// Somebody wants to stop.
    Stopped(PullError),
}

/// Checks trees of one digest key.
pub struct Check<'a> {
    fetcher: &'a Fetcher<'a>,
    index: &'a Index,
    key: DigestKey,
    reached: HashSet<Key>,
    /// What is known to be in no pack, and of that what was reached.
    without: Option<&'a HashSet<Key>>,
    lacking: Vec<Digest>,
    verified: AtomicU64,
    known: AtomicU64,
}

/// Whether the block of an address at a place was checked before.
pub type IsKnown<'a> = dyn Fn(&Place, &Digest) -> bool + Sync + 'a;

impl<'a> Check<'a> {
    /// Of the blocks that `index` has in the directory.
    pub fn new(fetcher: &'a Fetcher<'a>, index: &'a Index, key: DigestKey) -> Check<'a> {
        let (verified, known) = Default::default();
        let (reached, lacking) = Default::default();
        Check { fetcher, index, key, reached, without: None, lacking, verified, known }
    }

    /// That blocks of these keys are in no pack is no fault; they are noted.
    pub fn without(self, keys: &'a HashSet<Key>) -> Check<'a> {
        Check { without: Some(keys), ..self }
    }

    /// Those of them that were reached, each once.
    pub fn lacking(self) -> Vec<Digest> {
        self.lacking
    }

    /// Begins anew.
    pub fn forget(&mut self) {
        self.reached.clear();
        self.verified.store(0, Relaxed);
        self.known.store(0, Relaxed);
    }

    /// Blocks whose content was checked.
    pub fn verified(&self) -> u64 {
        self.verified.load(Relaxed)
    }

    /// Blocks of which that was known.
    pub fn known(&self) -> u64 {
        self.known.load(Relaxed)
    }

    /// Checks what `root` reaches and no tree before it.
    pub fn tree(&mut self, root: &Digest, is_known: &IsKnown<'_>) -> Result<(), Bad> {
        let mut level = vec![*root];
        while !level.is_empty() {
            let mut places = Vec::new();
            for address in level {
                if self.reached.insert(key_of(&address)) {
                    if self.without.is_some_and(|keys| keys.contains(&key_of(&address))) {
                        self.lacking.push(address);
                        continue;
                    }
                    let place = local::place(self.index, &address)
                        .ok_or_else(|| Bad::Missing(format!("its index has no block {}", address.short())))?;
                    places.push((place, address));
                }
            }
            places.sort_unstable();
            level = self.level(&places, is_known)?;
        }
        Ok(())
    }

    /// Checks some blocks; returns what they refer to.
    fn level(&self, places: &[(Place, Digest)], is_known: &IsKnown<'_>) -> Result<Vec<Digest>, Bad> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = places.len().div_ceil(threads).max(PART_BLOCKS_MIN);
        if places.len() <= part {
            return self.part(places, is_known);
        }
        std::thread::scope(|scope| {
            let parts: Vec<_> =
                places.chunks(part).map(|part| scope.spawn(move || self.part(part, is_known))).collect();
            let mut below = Vec::new();
            for part in parts {
                below.extend(part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
            }
            Ok(below)
        })
    }

    fn part(&self, places: &[(Place, Digest)], is_known: &IsKnown<'_>) -> Result<Vec<Digest>, Bad> {
        let mut below = Vec::new();
        let mut open: Option<(u32, File)> = None;
        for (place, address) in places {
            let bad = |why: String| {
                let name = layout::pack(&self.index.packs[place.pack as usize].digest);
                Bad::Block { pack: place.pack, why: format!("block {} in {name}: {why}", address.short()) }
            };
            let unreadable = |error: io::Error| bad(error.to_string());
            let file = match &mut open {
                Some((number, file)) if *number == place.pack => file,
                other => {
                    let name = layout::pack(&self.index.packs[place.pack as usize].digest);
                    let file = File::open(self.fetcher.target().join(name)).map_err(unreadable)?;
                    &mut other.insert((place.pack, file)).1
                }
            };
            let known = is_known(place, address);
            // Of a chunk that is known no more than what says that it is one.
            if known && self.is_chunk(file, place).map_err(unreadable)? {
                self.count(&self.known)?;
                continue;
            }
            let mut bytes = vec![0; place.bytes as usize];
            file.read_exact_at(&mut bytes, place.offset.into()).map_err(unreadable)?;
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

    fn is_chunk(&self, file: &File, place: &Place) -> io::Result<bool> {
        let mut kind = [0];
        let at = u64::from(place.offset) + pack::HEADER_BYTES as u64;
        file.read_exact_at(&mut kind, at)?;
        Ok(place.bytes as usize > pack::HEADER_BYTES && kind == [BlockKind::Chunk as u8])
    }

    fn count(&self, counter: &AtomicU64) -> Result<(), Bad> {
        counter.fetch_add(1, Relaxed);
        let steps = self.fetcher.steps();
        match steps.blocks.fetch_add(1, Relaxed) % 1024 {
            1023 => steps.step().map_err(Bad::Stopped),
            _ => Ok(()),
        }
    }
}
