//! Marking: which blocks of a file system are reachable, by headers only.

use crate::StoreError;
use crate::collect::CollectStage;
use crate::record::{BlockRecord, StoreRecord};
use crate::state::Key;
use crate::store::Shared;
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, LogError, Position, ScanDepth, ScanItem};
use std::collections::{HashMap, HashSet};

/// Most missing blocks named in a report.
const MISSING_MAX: usize = 1024;
/// Number of blocks that are marked before other work is done.
const STRIDE: u64 = 4096;

/// The places of marked blocks: about ten bytes a block.
pub(crate) struct Marks<'a> {
    shared: &'a Shared,
    file_system: Digest,
    number: u32,
    places: HashMap<u32, HashSet<u32>>,
    /// Marks of dead blocks that are retained, and of blocks that these reach.
    kept: HashMap<u32, HashSet<u32>>,
    count: u64,
    missing: HashSet<Digest>,
}

impl<'a> Marks<'a> {
    pub(crate) fn new(shared: &'a Shared, file_system: Digest, number: u32) -> Marks<'a> {
        Marks {
            shared,
            file_system,
            number,
            places: HashMap::new(),
            kept: HashMap::new(),
            count: 0,
            missing: HashSet::new(),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn contains(&self, at: Position) -> bool {
        let holds = |places: &HashMap<u32, HashSet<u32>>| {
            places.get(&at.segment).is_some_and(|offsets| offsets.contains(&at.offset))
        };
        holds(&self.places) || holds(&self.kept)
    }

    pub(crate) fn missing(&self) -> Vec<Digest> {
        let mut missing: Vec<Digest> = self.missing.iter().copied().take(MISSING_MAX).collect();
        missing.sort_unstable();
        missing
    }

    pub(crate) fn is_missing(&self, address: &Digest) -> bool {
        self.missing.contains(address)
    }

    /// Marks everything reachable from `start`.
    ///
    /// A block that is referred to but not in the index is searched in the segments: a client may refer to a
    /// block that was dropped, which then lives again. If it is nowhere, it was never stored, and the client
    /// that refers to it is to blame. But if records were lost, the block may have been in one of them, and
    /// the collection is refused.
    pub(crate) fn mark(
        &mut self,
        start: Vec<Digest>,
        now_ns: i64,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<(), StoreError> {
        let mut absent: HashSet<Digest> = HashSet::new();
        self.walk(start, &mut absent, watch)?;
        loop {
            absent.retain(|address| !self.missing.contains(address));
            if absent.is_empty() {
                return Ok(());
            }
            if let Some(why) = self.shared.state().suspect(&self.file_system) {
                let address = *absent.iter().next().expect("not empty");
                return Err(StoreError::MayBeDamaged { address, why });
            }
            let found = self.resurrect(&absent, now_ns)?;
            for address in &found {
                absent.remove(address);
            }
            self.missing.extend(absent.drain());
            self.walk(found, &mut absent, watch)?;
        }
    }

    /// Marks everything that exists of what `stack` reaches, and adds the rest to `absent`.
    pub(crate) fn walk(
        &mut self,
        mut stack: Vec<Digest>,
        absent: &mut HashSet<Digest>,
        watch: &mut dyn FnMut(CollectStage),
    ) -> Result<(), StoreError> {
        while let Some(address) = stack.pop() {
            let key = Key::new(self.number, &address);
            let Some(entry) = self.shared.state().get(&self.shared.index, &key)? else {
                absent.insert(address);
                continue;
            };
            let Position { segment, offset } = entry.location.position;
            if !self.places.entry(segment).or_default().insert(offset) {
                continue;
            }
            self.count += 1;
            if self.count.is_multiple_of(STRIDE) {
                watch(CollectStage::Marking(self.count));
                self.shared.relieve_held()?;
            }
            stack.extend(self.shared.references(&self.file_system, &address, &entry)?);
        }
        Ok(())
    }

    /// Marks the retained dead blocks and what they reach. Blocks missing below them are no loss; one whose header
    /// cannot be read is not retained.
    pub(crate) fn keep_below(&mut self, mut stack: Vec<Digest>) -> Result<(), StoreError> {
        while let Some(address) = stack.pop() {
            let key = Key::new(self.number, &address);
            let Some(entry) = self.shared.state().get(&self.shared.index, &key)? else { continue };
            let Position { segment, offset } = entry.location.position;
            // Live blocks have been walked already.
            if self.contains(entry.location.position) || !self.kept.entry(segment).or_default().insert(offset)
            {
                continue;
            }
            match self.shared.references(&self.file_system, &address, &entry) {
                Ok(references) => stack.extend(references),
                Err(error @ StoreError::Log(LogError::Damaged { .. } | LogError::Io { .. })) => {
                    tracing::error!(%address, %error, "a deleted block is damaged");
                    self.shared.state().note_damaged(key);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Looks for blocks in every segment and puts those it finds back into the index.
    fn resurrect(&self, absent: &HashSet<Digest>, now_ns: i64) -> Result<Vec<Digest>, StoreError> {
        let mut found = HashSet::new();
        for scanned in self.shared.log.scan(Position::START, ScanDepth::Heads)? {
            let head = match scanned? {
                ScanItem::Record(head) => head,
                ScanItem::Damaged(damage) => return Err(LogError::from(damage).into()),
            };
            let StoreRecord::Block(block) = StoreRecord::decode(&head)? else { continue };
            if block.file_system != self.file_system || !absent.contains(&block.address) {
                continue;
            }
            let record = self.shared.log.read(head.position, head.stored_length())?;
            let mut state = self.shared.state();
            // If the block was stored again meanwhile, that copy is as good.
            if state.get(&self.shared.index, &Key::new(self.number, &block.address))?.is_none() {
                // A new copy: the old one is dead on record.
                let block = BlockRecord { age_ns: now_ns, replaces: true, ..block.clone() };
                let copy = StoreRecord::Block(block.clone());
                let location = copy.append(&self.shared.log, &record.body, BodyTag::of(&record.body))?;
                state.apply_block(&block, location);
            }
            found.insert(block.address);
        }
        Ok(found.into_iter().collect())
    }
}
