//! The store's state in memory: the changes of the index since its last checkpoint, and the small state of
//! each file system. All of it follows from the log; the functions here apply records to it, in operation and
//! in recovery alike.

use crate::StoreError;
use crate::charges::{Changes, Charges};
use crate::holds::Hold;
use crate::index::Index;
use crate::pins::Pins;
use crate::record::{BlockRecord, DroppedRecord, HoldsRecord, Location, OrderingRecord, PinRecord};
use crate::record::{RenewRecord, SignedRecord, StoreRecord};
use crate::window::OpenWindows;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, PublicKey};
use holdfast_log::Position;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Index key of a block: address, then the number of the file system (big-endian).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(pub(crate) [u8; 36]);

impl Key {
    pub(crate) fn new(file_system: u32, address: &Digest) -> Key {
        let mut bytes = [0; 36];
        bytes[..32].copy_from_slice(&address.0);
        bytes[32..].copy_from_slice(&file_system.to_be_bytes());
        Key(bytes)
    }

    pub(crate) fn address(&self) -> Digest {
        Digest(self.0[..32].try_into().expect("32 bytes"))
    }

    pub(crate) fn file_system(&self) -> u32 {
        u32::from_be_bytes(self.0[32..].try_into().expect("4 bytes"))
    }
}

/// Index key of a signed block: file system, key, number, time, position. The bytes sort as the numbers do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SignedKey(pub(crate) [u8; 60]);

impl SignedKey {
    pub(crate) fn new(
        file_system: u32,
        key: &PublicKey,
        number: u64,
        stored_ns: i64,
        at: Position,
    ) -> SignedKey {
        let mut bytes = [0; 60];
        bytes[..4].copy_from_slice(&file_system.to_be_bytes());
        bytes[4..36].copy_from_slice(&key.0);
        bytes[36..44].copy_from_slice(&number.to_be_bytes());
        bytes[44..52].copy_from_slice(&(stored_ns as u64 ^ 1 << 63).to_be_bytes());
        bytes[52..].copy_from_slice(&at.to_u64().to_be_bytes());
        SignedKey(bytes)
    }

    pub(crate) fn position(&self) -> Position {
        Position::from_u64(u64::from_be_bytes(self.0[52..].try_into().expect("8 bytes")))
    }
}

/// The index's entry of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) location: Location,
    /// When a device last relied on the block, in nanoseconds since 1970.
    pub(crate) age_ns: i64,
    /// Whether the block refers to nothing, so that the collector need not read it.
    pub(crate) leaf: bool,
    /// The device that stored the block first and is charged for it.
    pub(crate) owner: DeviceId,
}

impl Entry {
    pub(crate) fn renewed(self, at_ns: i64) -> Entry {
        Entry { age_ns: self.age_ns.max(at_ns), ..self }
    }
}

/// A change of the index since its checkpoint.
#[derive(Clone, Copy)]
pub(crate) struct Recent {
    /// The new entry; `None` if the block was dropped.
    pub(crate) entry: Option<Entry>,
    /// Whether this replaces the checkpoint's entry. Otherwise the checkpoint was not read (a STORE does no
    /// look-up); if it has an older copy, that one keeps its location and header.
    pub(crate) settled: bool,
}

/// A copy of a block: which, and where.
pub(crate) type BlockCopy = (Key, Position);

/// A batch on its way into the index.
pub(crate) struct IndexBatch {
    pub(crate) blocks: HashMap<Key, Recent>,
    pub(crate) signed: BTreeMap<SignedKey, Option<u32>>,
    pub(crate) duplicates: Vec<BlockCopy>,
    pub(crate) image: Vec<u8>,
}

/// The small state of one file system.
#[derive(Clone, BorshSerialize, BorshDeserialize)]
pub(crate) struct FileSystem {
    pub(crate) number: u32,
    /// Number of the last ordering record.
    pub(crate) sequence: u64,
    pub(crate) checkpoint: Option<Location>,
    /// Ordering records after the checkpoint: number and location.
    pub(crate) ordering: Vec<(u64, Location)>,
    pub(crate) pins: Pins,
    /// Why its ordering records cannot be trusted to be all there.
    pub(crate) damaged: Option<String>,
    /// Why a block that is not in the index may be lost rather than unknown. A complete mark clears this.
    pub(crate) suspect: Option<String>,
}

/// A stretch that a rebuild could not read.
#[derive(Clone, BorshSerialize, BorshDeserialize)]
pub(crate) struct LostRecord {
    pub(crate) position: u64,
    pub(crate) why: String,
}

#[derive(BorshSerialize, BorshDeserialize)]
pub(crate) struct Image {
    /// The log is folded in up to here.
    pub(crate) applied: u64,
    pub(crate) round: u64,
    pub(crate) file_systems: BTreeMap<Digest, FileSystem>,
    pub(crate) lost: Vec<LostRecord>,
}

/// Most damaged blocks remembered at once; beyond, they are only errors.
const DAMAGED_MAX: usize = 1 << 20;
/// Most stretches of damage remembered one by one.
const LOST_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) blocks: HashMap<Key, Recent>,
    pub(crate) signed: BTreeMap<SignedKey, Option<u32>>,
    /// Copies that are not needed because there is an older one. The next checkpoint logs them as dropped;
    /// otherwise a rebuild would take them for the block once the older copy is gone.
    pub(crate) duplicates: Vec<BlockCopy>,
    pub(crate) frozen: Option<Arc<IndexBatch>>,
    /// Up to where the log is folded into frozen batches.
    pub(crate) folded: Position,
    pub(crate) file_systems: BTreeMap<Digest, FileSystem>,
    /// Blocks that DECREF may still drop. Never restored: a restart ends every window.
    pub(crate) young: OpenWindows,
    /// Number of the last collection round.
    pub(crate) round: u64,
    /// Drops of a round whose last record has not been seen.
    pending: Option<(u64, Vec<(Key, Position)>)>,
    /// Records that a rebuild could not read.
    pub(crate) lost: Vec<LostRecord>,
    /// Whether the present replay added to `lost`.
    newly_lost: bool,
    /// Blocks found damaged. Clients that ask are told that they are absent, so that they send them again.
    pub(crate) damaged: HashSet<Key>,
    /// The holds, by file system and in order of name.
    pub(crate) holds: BTreeMap<Digest, Vec<Hold>>,
    /// While it is found out whether a tree to be held is whole: nothing is taken back.
    pub(crate) holding: bool,
    /// The charges of all payers.
    pub(crate) charges: Charges,
    /// While a collection runs: blocks of its file system that were stored or relied on since it began.
    pub(crate) touched: Option<TouchedBlocks>,
}

/// Blocks that clients touched while a collection runs.
pub(crate) struct TouchedBlocks {
    pub(crate) file_system: u32,
    pub(crate) addresses: HashSet<Digest>,
    /// Taken since the last drain, still to be marked.
    pub(crate) fresh: Vec<Digest>,
    pub(crate) overflown: bool,
}

impl TouchedBlocks {
    pub(crate) fn new(file_system: u32) -> TouchedBlocks {
        TouchedBlocks { file_system, addresses: HashSet::new(), fresh: Vec::new(), overflown: false }
    }
}

/// Most such blocks; beyond that the collection is given up.
const TOUCHED_MAX: usize = 1 << 20;

impl State {
    pub(crate) fn restore(image: &[u8]) -> Result<(State, Position), StoreError> {
        let bad = |error: &dyn std::fmt::Display| StoreError::Index(error.to_string());
        let mut rest = image;
        let image = Image::deserialize(&mut rest).map_err(|error| bad(&error))?;
        // Images from before there were holds end here.
        let holds = match rest {
            [] => BTreeMap::new(),
            rest => holdfast_crypto::decode(rest).map_err(|error| bad(&error))?,
        };
        let state = State {
            file_systems: image.file_systems,
            round: image.round,
            lost: image.lost,
            holds,
            folded: Position::from_u64(image.applied),
            ..State::default()
        };
        Ok((state, Position::from_u64(image.applied)))
    }

    pub(crate) fn image(&self, applied: Position) -> Vec<u8> {
        let mut image = holdfast_crypto::encode(&Image {
            applied: applied.to_u64(),
            round: self.round,
            file_systems: self.file_systems.clone(),
            lost: self.lost.clone(),
        });
        if !self.holds.is_empty() {
            image.extend(holdfast_crypto::encode(&self.holds));
        }
        image
    }

    pub(crate) fn number(&self, file_system: &Digest) -> Option<u32> {
        self.file_systems.get(file_system).map(|found| found.number)
    }

    pub(crate) fn file_system(&mut self, id: &Digest) -> &mut FileSystem {
        if self.file_systems.contains_key(id) {
            return self.file_systems.get_mut(id).expect("looked up above");
        }
        let next = self.file_systems.values().map(|found| found.number + 1).max().unwrap_or(1);
        // A record lost during this replay may have been the new one's first.
        let suspect = if self.newly_lost { self.lost.last().map(|lost| lost.why.clone()) } else { None };
        self.file_systems.entry(*id).or_insert_with(|| FileSystem {
            number: next,
            sequence: 0,
            checkpoint: None,
            ordering: Vec::new(),
            pins: Pins::default(),
            damaged: None,
            suspect,
        })
    }

    /// A block's entry according to memory: the changes since the last freeze over those of the frozen batch.
    pub(crate) fn recent(&self, key: &Key) -> Option<Recent> {
        let newer = self.blocks.get(key).copied();
        let older = self.frozen.as_ref().and_then(|frozen| frozen.blocks.get(key)).copied();
        match (newer, older) {
            (Some(Recent { entry: Some(entry), settled: false }), Some(older)) => {
                // If there is an older copy, that one counts.
                let merged = older.entry.map_or(entry, |older| older.renewed(entry.age_ns));
                Some(Recent { entry: Some(merged), settled: older.settled })
            }
            (newer, older) => newer.or(older),
        }
    }

    /// Looks a block up. The oldest copy counts: its header is the one RETRIEVE returns.
    pub(crate) fn get(&self, index: &Index, key: &Key) -> Result<Option<Entry>, StoreError> {
        resolve(self.recent(key), index, key)
    }

    /// Why a block that is not here may be lost rather than unknown.
    pub(crate) fn suspect(&self, file_system: &Digest) -> Option<String> {
        match self.file_systems.get(file_system) {
            Some(found) => found.suspect.clone(),
            None => self.lost.first().map(|lost| lost.why.clone()),
        }
    }

    /// Notes that a block cannot be served, so that a client that has it sends it again.
    pub(crate) fn note_damaged(&mut self, key: Key) {
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(key);
        }
    }

    pub(crate) fn touch(&mut self, file_system: u32, address: &Digest) {
        if let Some(touched) = self.touched.as_mut().filter(|touched| touched.file_system == file_system) {
            if touched.addresses.len() >= TOUCHED_MAX {
                touched.overflown = true;
            } else if touched.addresses.insert(*address) {
                touched.fresh.push(*address);
            }
        }
    }

    pub(crate) fn apply_block(&mut self, record: &BlockRecord, location: Location) -> Key {
        let number = self.file_system(&record.file_system).number;
        let key = Key::new(number, &record.address);
        let leaf = record.references.is_empty();
        let entry = Entry { location, age_ns: record.age_ns, leaf, owner: record.owner };
        self.charge_stored(&key, &entry, record.replaces);
        let recent = match self.blocks.get(&key) {
            Some(Recent { entry: Some(older), settled }) if !record.replaces => {
                if older.location != location {
                    self.duplicates.push((key, location.position));
                }
                Recent { entry: Some(older.renewed(record.age_ns)), settled: *settled }
            }
            Some(Recent { entry: None, settled: true }) => Recent { entry: Some(entry), settled: true },
            _ => Recent { entry: Some(entry), settled: record.replaces },
        };
        self.blocks.insert(key, recent);
        if record.replaces {
            self.damaged.remove(&key);
        }
        self.touch(number, &record.address);
        key
    }

    /// Charges for a copy, unless it is known to be a second one. (Blocks that only the index on disk has are
    /// not looked up; its next checkpoint corrects the charge.)
    fn charge_stored(&mut self, key: &Key, entry: &Entry, replaces: bool) {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.blocks.get(key));
        let known = self.blocks.get(key).or(frozen).copied();
        let changes: &mut Changes = &mut self.charges.recent;
        match known {
            Some(Recent { entry: Some(older), .. }) if replaces => {
                changes.uncharge(key, &older);
                changes.charge(key, entry);
            }
            Some(Recent { entry: Some(_), .. }) => {}
            // The copy replaces one that the index has.
            None if replaces => {}
            _ => changes.charge(key, entry),
        }
    }

    /// Applies a block that the collector moved: as [`State::apply_block`], but its age does not change.
    pub(crate) fn apply_moved(&mut self, record: &BlockRecord, location: Location) {
        let touched = self.touched.take();
        self.apply_block(record, location);
        self.touched = touched;
    }

    pub(crate) fn apply_renew(&mut self, index: &Index, record: &RenewRecord) -> Result<(), StoreError> {
        let number = self.file_system(&record.file_system).number;
        for address in &record.addresses {
            let key = Key::new(number, address);
            match self.blocks.get_mut(&key) {
                Some(Recent { entry: Some(entry), .. }) => *entry = entry.renewed(record.at_ns),
                Some(Recent { entry: None, .. }) => {}
                None => {
                    if let Some(entry) = self.get(index, &key)? {
                        let entry = Some(entry.renewed(record.at_ns));
                        self.blocks.insert(key, Recent { entry, settled: true });
                    }
                }
            }
            self.young.keep(&key);
            self.touch(number, address);
        }
        Ok(())
    }

    pub(crate) fn apply_dropped(&mut self, index: &Index, record: &DroppedRecord) -> Result<(), StoreError> {
        let number = self.file_system(&record.file_system).number;
        self.round = self.round.max(record.round);
        let copies = record
            .copies
            .iter()
            .map(|(position, address)| (Key::new(number, address), Position::from_u64(*position)));
        let mut pending = match self.pending.take() {
            Some((round, pending)) if round == record.round => pending,
            // A round that a crash cut short never happened.
            _ => Vec::new(),
        };
        pending.extend(copies);
        if !record.last {
            self.pending = Some((record.round, pending));
            return Ok(());
        }
        for (key, position) in pending {
            let found = self.get(index, &key)?;
            if let Some(entry) = found.filter(|entry| entry.location.position == position) {
                self.charges.recent.uncharge(&key, &entry);
                self.blocks.insert(key, Recent { entry: None, settled: true });
                self.young.keep(&key);
            }
        }
        Ok(())
    }

    pub(crate) fn apply_ordering(&mut self, record: &OrderingRecord, location: Location) {
        let file_system = self.file_system(&record.file_system);
        file_system.sequence = file_system.sequence.max(record.sequence);
        // The collector moves records: the last copy counts.
        match file_system.ordering.binary_search_by_key(&record.sequence, |(sequence, _)| *sequence) {
            Ok(found) => file_system.ordering[found].1 = location,
            Err(place) => file_system.ordering.insert(place, (record.sequence, location)),
        }
    }

    pub(crate) fn apply_checkpoint(&mut self, record: &OrderingRecord, location: Location) {
        let file_system = self.file_system(&record.file_system);
        file_system.sequence = file_system.sequence.max(record.sequence);
        file_system.checkpoint = Some(location);
        file_system.ordering.retain(|(sequence, _)| *sequence > record.sequence);
    }

    pub(crate) fn apply_signed(&mut self, record: &SignedRecord, location: Location) {
        let number = self.file_system(&record.file_system).number;
        let key = SignedKey::new(number, &record.key, record.number, record.stored_ns, location.position);
        if record.moved_from != 0 {
            let from = Position::from_u64(record.moved_from);
            let old = SignedKey::new(number, &record.key, record.number, record.stored_ns, from);
            self.signed.insert(old, None);
        }
        self.signed.insert(key, Some(location.length));
    }

    pub(crate) fn apply_pin(&mut self, record: &PinRecord) {
        let number = self.file_system(&record.file_system).number;
        for address in &record.addresses {
            self.touch(number, address);
        }
        let file_system = self.file_system(&record.file_system);
        file_system.pins.set(record.holder, record.until_ns, record.addresses.clone());
    }

    pub(crate) fn apply_holds(&mut self, record: &HoldsRecord) {
        let number = self.file_system(&record.file_system).number;
        for root in record.holds.iter().flat_map(|hold| &hold.roots) {
            self.touch(number, root);
        }
        match record.holds.is_empty() {
            true => drop(self.holds.remove(&record.file_system)),
            false => drop(self.holds.insert(record.file_system, record.holds.clone())),
        }
    }

    pub(crate) fn apply(
        &mut self,
        index: &Index,
        record: &StoreRecord,
        location: Location,
    ) -> Result<(), StoreError> {
        match record {
            StoreRecord::Block(record) => drop(self.apply_block(record, location)),
            StoreRecord::Renew(record) => self.apply_renew(index, record)?,
            StoreRecord::Dropped(record) => self.apply_dropped(index, record)?,
            StoreRecord::Ordering(record) => self.apply_ordering(record, location),
            StoreRecord::Checkpoint(record) => self.apply_checkpoint(record, location),
            StoreRecord::Signed(record) => self.apply_signed(record, location),
            StoreRecord::Pin(record) => self.apply_pin(record),
            StoreRecord::Holds(record) => self.apply_holds(record),
        }
        Ok(())
    }

    /// Notes that a record could not be read during recovery and that its content is unknown.
    pub(crate) fn note_lost(&mut self, position: Position, why: String) {
        self.newly_lost = true;
        for file_system in self.file_systems.values_mut() {
            file_system.suspect = Some(why.clone());
        }
        // The newest must be among them: it decides whose ordering records may be gone.
        self.lost.truncate(LOST_MAX - 1);
        self.lost.push(LostRecord { position: position.to_u64(), why });
    }

    /// Whether a replay may write a checkpoint here: not amid the records of a round.
    pub(crate) fn may_checkpoint(&self) -> bool {
        self.pending.is_none()
    }

    /// Ends a replay: an unfinished round never happened, and a file system whose last ordering checkpoint is
    /// older than some lost record may have lost ordering records with it.
    pub(crate) fn end_replay(&mut self) {
        self.pending = None;
        self.newly_lost = false;
        for file_system in self.file_systems.values_mut() {
            let checkpoint = file_system.checkpoint.map_or(0, |location| location.position.to_u64());
            let newest = self.lost.iter().rev().find(|lost| lost.position > checkpoint);
            file_system.damaged = newest.map(|lost| lost.why.clone());
        }
    }
}

/// A block's entry according to memory, completed from the index on disk where needed.
pub(crate) fn resolve(recent: Option<Recent>, index: &Index, key: &Key) -> Result<Option<Entry>, StoreError> {
    match recent {
        Some(Recent { entry, settled: true }) => Ok(entry),
        Some(Recent { entry: Some(entry), settled: false }) => {
            Ok(Some(index.get(key)?.map_or(entry, |older| older.renewed(entry.age_ns))))
        }
        Some(Recent { entry: None, settled: false }) | None => index.get(key),
    }
}
