//! The past states that a server stores.
//!
//! Each structure is stored once, however many states need it. In the state after n operations, each device's
//! slot is its newest stored structure whose place in the log is below n. So a state costs the structures
//! that are new in it, its last certificate, and its dead entries.
//!
//! Invariants:
//! - A point is recorded only when nothing is pending, so that it can never change.
//! - The structures of a stored point are stored. The newest structure of each device is stored even if no
//!   point needs it, since later points will.
//! - Structures and points stay encoded in memory. There are many, few are read, and a decoded one may take
//!   ten times the memory (for example the void numbers of a device that was often refused).
//! - Everything here follows from the ordering records and from [`HistoryRecord`]s. What a server had not
//!   yet saved when it died comes back when it replays the ordering records.

use super::{Point, Retention, SNAPSHOTS_MAX, Snapshot, SnapshotEnd};
use crate::certificate::Certificate;
use crate::sequencer::{OrderingRecord, Sequencer};
use crate::signed::{Signable, Signed};
use crate::structure::{LogHead, Outcome, PendingEntry, Structure, View};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, decode, encode};
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

/// Most bytes of points without names, and of points with names. A point has a few hundred bytes, mostly its
/// certificate, which contains the time of the state; a large operation's certificate has a megabyte.
const POINTS_BYTES_MAX: usize = 64 << 20;
/// Most structures in one record.
const STRUCTURES_PER_RECORD: usize = 64;
const SECOND_NS: i64 = 1_000_000_000;

/// A change of an archive, as a file stores it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum HistoryRecord {
    /// Structures that points show, each after earlier ones of its device.
    Structures(Vec<Signed<Structure>>),
    /// A point, all of whose structures stand before it.
    Point(PointRecord),
    /// Points that were dropped, by the size of their logs.
    Dropped(Vec<u64>),
    /// A point was given a name.
    Named(Signed<Snapshot>),
    /// A point has lost its name.
    Ended(Signed<SnapshotEnd>),
    /// The file has all stored states of a log up to this size. Others before it were dropped, and replaying
    /// records must not bring them back.
    UpTo(u64),
}

impl HistoryRecord {
    /// Least size of the log that the record refers to.
    pub fn reaches(&self) -> u64 {
        match self {
            HistoryRecord::Structures(list) => {
                let places = list.iter().map(|structure| structure.value.forecast.log.size);
                places.max().map_or(0, |place| place.saturating_add(1))
            }
            HistoryRecord::Point(kept) => kept.log.size,
            HistoryRecord::UpTo(size) => *size,
            HistoryRecord::Dropped(_) | HistoryRecord::Named(_) | HistoryRecord::Ended(_) => 0,
        }
    }
}

/// A past state, as a file stores it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct PointRecord {
    /// The log of updates at that state.
    pub log: LogHead,
    /// When the server recorded it, by the server's clock. Retention goes by this time.
    pub noted_ns: i64,
    /// Certificate of the last operation.
    pub newest: Signed<Certificate>,
    /// Operations that were dead, and not given up by their authors yet.
    pub dead: Vec<PendingEntry>,
}

/// An encoded value, which takes no more memory than its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Encoded<T>(Box<[u8]>, PhantomData<T>);

impl<T: BorshSerialize + BorshDeserialize> Encoded<T> {
    fn of(value: &T) -> Encoded<T> {
        Encoded(encode(value).into_boxed_slice(), PhantomData)
    }

    fn value(&self) -> T {
        decode(&self.0).expect("it was encoded here")
    }
}

/// A point in encoded form, with the fields that are needed often.
#[derive(Clone, PartialEq, Eq, Debug)]
struct IndexedPoint {
    log: LogHead,
    noted_ns: i64,
    /// Time of the last operation, by its certificate, in nanoseconds since 1970.
    time_ns: i64,
    kept: Encoded<PointRecord>,
}

impl IndexedPoint {
    fn of(kept: &PointRecord) -> IndexedPoint {
        let PointRecord { log, noted_ns, newest, .. } = kept;
        IndexedPoint {
            log: *log,
            noted_ns: *noted_ns,
            time_ns: newest.value.time_ns,
            kept: Encoded::of(kept),
        }
    }

    fn bytes(&self) -> usize {
        self.kept.0.len()
    }
}

/// Which states become points when the archive records the present one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointPolicy {
    /// None, unless a client asks for the present state.
    None,
    /// The last of each second.
    LastOfSecond,
    /// Every state. For replayed records, whose times are not known to the second. All blocks that these
    /// states refer to are there, since the archive is saved before a collection drops anything.
    Each,
}

/// Past states of one file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Archive {
    points: BTreeMap<u64, IndexedPoint>,
    /// Bytes of these records.
    bytes: usize,
    structures: BTreeMap<DeviceId, BTreeMap<u64, Encoded<Signed<Structure>>>>,
    named: BTreeMap<String, Signed<Snapshot>>,
    /// Certificate of the last operation in the log, as far as it was seen.
    newest: Option<Signed<Certificate>>,
    /// Whether something may have changed since the last point.
    changed: bool,
    /// Size of the log up to which the file has all points.
    up_to: u64,
    /// Points that are in the file.
    saved: BTreeSet<u64>,
    /// The last structure of each device that is in the file.
    saved_structures: BTreeMap<DeviceId, u64>,
    /// Records of points that were dropped or named, not in the file yet.
    unsaved: Vec<HistoryRecord>,
}

impl Archive {
    /// The archive of these records, for a log of `log_size` operations. A file may have been saved before a
    /// power loss cut the log; records beyond the log were never acknowledged and are ignored.
    ///
    /// Also returns whether there were such records: then the file must be written anew, from
    /// [`Archive::all`].
    pub fn restore(records: impl IntoIterator<Item = HistoryRecord>, log_size: u64) -> (Archive, bool) {
        let mut archive = Archive::begin();
        records.into_iter().for_each(|record| archive.replay(record));
        let is_cut = archive.cut(log_size);
        (archive, is_cut)
    }

    /// An empty archive without a file yet.
    pub fn begin() -> Archive {
        Archive { changed: true, ..Archive::default() }
    }

    /// Drops all records beyond a log of `log_size` operations. Returns whether there were any.
    pub fn cut(&mut self, log_size: u64) -> bool {
        let beyond: Vec<u64> =
            self.points.range(log_size.saturating_add(1)..).map(|(size, _)| *size).collect();
        let mut is_cut = !beyond.is_empty() || self.up_to > log_size;
        self.up_to = self.up_to.min(log_size);
        for size in beyond {
            self.drop_point(size);
        }
        for structures in self.structures.values_mut() {
            let before = structures.len();
            structures.retain(|place, _| *place < log_size);
            is_cut |= structures.len() < before;
        }
        let lost = |snapshot: &Signed<Snapshot>| !self.points.contains_key(&snapshot.value.log.size);
        let lost: Vec<String> =
            self.named.iter().filter(|(_, named)| lost(named)).map(|(name, _)| name.clone()).collect();
        for name in lost {
            self.named.remove(&name);
        }
        is_cut
    }

    /// The next record of a file.
    pub fn replay(&mut self, record: HistoryRecord) {
        match record {
            HistoryRecord::Structures(list) => {
                for structure in list {
                    let (device, place) = (structure.value.device(), structure.value.forecast.log.size);
                    self.saved_structures.insert(device, place);
                    self.structures.entry(device).or_default().insert(place, Encoded::of(&structure));
                }
            }
            HistoryRecord::Point(kept) => {
                self.saved.insert(kept.log.size);
                self.insert(&kept);
            }
            HistoryRecord::UpTo(size) => self.up_to = size,
            HistoryRecord::Dropped(sizes) => {
                for size in sizes {
                    self.saved.remove(&size);
                    self.forget(size);
                }
            }
            HistoryRecord::Named(snapshot) => {
                self.named.insert(snapshot.value.name.clone(), snapshot);
            }
            HistoryRecord::Ended(end) => {
                self.named.retain(|_, snapshot| snapshot.value.digest() != end.value.snapshot);
            }
        }
    }

    /// The sequencer has just applied `record`. If nothing is pending now and something has changed since the last
    /// point, there is a point here.
    pub fn observe(
        &mut self,
        sequencer: &Sequencer,
        record: &OrderingRecord,
        noted_ns: i64,
        noting: PointPolicy,
    ) {
        match record {
            OrderingRecord::Create { certificate, structure, .. }
            | OrderingRecord::Fast { certificate, structure, .. }
            | OrderingRecord::Restore { certificate, structure, .. } => {
                self.changed |=
                    !certificate.value.deltas.is_empty() && structure.value.outcome == Outcome::Done;
                self.newest = Some(certificate.clone());
            }
            OrderingRecord::Update { certificate, .. } => {
                self.changed |= !certificate.value.deltas.is_empty();
                self.newest = Some(certificate.clone());
            }
            OrderingRecord::Commit { .. } | OrderingRecord::Dead { .. } => {}
            OrderingRecord::Burn { .. } => return,
        }
        if noting != PointPolicy::None && self.changed {
            self.note(sequencer, noted_ns, noting);
        }
    }

    /// Records the present state if nothing is pending, and returns the size of its log; or that of an
    /// earlier point if nothing has changed since.
    pub fn note(&mut self, sequencer: &Sequencer, noted_ns: i64, noting: PointPolicy) -> Option<u64> {
        let log = sequencer.head();
        let last = self.points.last_key_value().map(|(size, kept)| (*size, kept.noted_ns));
        if let Some((size, _)) = last
            && (!self.changed || size >= log.size)
        {
            return Some(size);
        }
        if noting == PointPolicy::Each && log.size <= self.up_to {
            self.changed &= sequencer.dead().is_none();
            return None;
        }
        let newest = self.newest.clone()?;
        let dead = sequencer.dead()?;
        for (device, slot) in sequencer.slots() {
            let place = slot.value.forecast.log.size;
            let structures = self.structures.entry(*device).or_default();
            let before = structures.last_key_value().map(|(before, _)| *before);
            if before.is_some_and(|before| before >= place) {
                continue;
            }
            structures.insert(place, Encoded::of(slot));
            // The previous point was stored only because it was the newest.
            if let Some(before) = before
                && self.points.range(before + 1..=place).next().is_none()
            {
                structures.remove(&before);
            }
        }
        // Never before an existing point, or spans of time would have two newest ones. And replayed states
        // stay apart in time, whatever their authors' clocks said.
        let apart = if noting == PointPolicy::Each { SECOND_NS } else { 0 };
        let at_ns = match last {
            Some((_, before_ns)) if noted_ns <= before_ns => before_ns.saturating_add(apart),
            _ => noted_ns,
        };
        self.insert(&PointRecord { log, noted_ns: at_ns, newest, dead });
        self.changed = false;
        self.bound();
        if let Some((size, before_ns)) = last
            && noting != PointPolicy::Each
            && before_ns.div_euclid(SECOND_NS) == at_ns.div_euclid(SECOND_NS)
            && !self.is_named(size)
        {
            self.drop_point(size);
        }
        Some(log.size)
    }

    /// The points, oldest first, after `after`, and whether there are more.
    pub fn points(&self, after: u64, limit: usize) -> (Vec<Point>, bool) {
        let mut points = self.points.range(after.saturating_add(1)..);
        let shown = |(size, held): (&u64, &IndexedPoint)| Point { log_size: *size, time_ns: held.time_ns };
        let list: Vec<Point> = points.by_ref().take(limit).map(shown).collect();
        (list, points.next().is_some())
    }

    /// The stored state after `log_size` operations, with the certificate of its last one.
    pub fn state(&self, log_size: u64) -> Option<(View, Signed<Certificate>)> {
        let kept = self.points.get(&log_size)?.kept.value();
        let newest = |structures: &BTreeMap<u64, Encoded<Signed<Structure>>>| {
            structures.range(..log_size).next_back().map(|(_, structure)| structure.value())
        };
        let slots = self.structures.iter().filter_map(|(device, all)| Some((*device, newest(all)?)));
        let view = View { slots: slots.collect(), pending: kept.dead, log: kept.log };
        Some((view, kept.newest))
    }

    /// Number of stored points.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether there is no point.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// The head of the log of a kept point.
    pub fn head(&self, log_size: u64) -> Option<LogHead> {
        Some(self.points.get(&log_size)?.log)
    }

    /// Snapshots in order of name.
    pub fn snapshots(&self) -> impl Iterator<Item = &Signed<Snapshot>> {
        self.named.values()
    }

    /// The snapshot of this name.
    pub fn by_name(&self, name: &str) -> Option<&Signed<Snapshot>> {
        self.named.get(name)
    }

    /// Gives a point a name. Returns whether there is such a point. The caller checks that the user may do
    /// so.
    pub fn name(&mut self, snapshot: Signed<Snapshot>) -> bool {
        if self.head(snapshot.value.log.size) != Some(snapshot.value.log) {
            return false;
        }
        self.unsaved.push(HistoryRecord::Named(snapshot.clone()));
        self.named.insert(snapshot.value.name.clone(), snapshot);
        true
    }

    /// Ends a snapshot, as this record says.
    pub fn end(&mut self, end: Signed<SnapshotEnd>) {
        self.replay(HistoryRecord::Ended(end.clone()));
        self.unsaved.push(HistoryRecord::Ended(end));
    }

    /// Drops points that have no name and that `policy` does not retain. Returns how many.
    pub fn retain(&mut self, policy: &Retention, now_ns: i64) -> usize {
        let named = self.named_sizes();
        let nameless: Vec<(u64, i64)> = self
            .points
            .iter()
            .filter(|(size, _)| !named.contains(*size))
            .map(|(size, kept)| (*size, kept.noted_ns))
            .collect();
        let noted: Vec<i64> = nameless.iter().map(|(_, noted)| *noted).collect();
        let kept = policy.kept(&noted, now_ns);
        let gone: Vec<u64> =
            nameless.iter().zip(kept).filter(|(_, kept)| !kept).map(|((size, _), _)| *size).collect();
        for size in &gone {
            self.drop_point(*size);
        }
        gone.len()
    }

    /// The addresses of everything that stored states refer to: roots for garbage collection. A structure
    /// that is stored only because it is the newest of its device, and that no state needs, is no root: if it
    /// is still in force, the present state refers to it.
    pub fn roots(&self) -> impl Iterator<Item = Digest> {
        let structures = self.structures.values().flat_map(|all| {
            all.iter().filter(|(place, _)| {
                let next = all.range(*place + 1..).next().map_or(u64::MAX, |(next, _)| *next);
                self.points.range(*place + 1..=next).next().is_some()
            })
        });
        structures.flat_map(|(_, structure)| {
            let handles = structure.value().value.handles;
            handles.into_values().map(|handle| handle.reference.address)
        })
    }

    /// The records of everything that the file lacks, for a log of `log_size` operations. From then on they
    /// count as saved.
    pub fn take_unsaved(&mut self, log_size: u64) -> Vec<HistoryRecord> {
        let mut records: Vec<HistoryRecord> = Vec::new();
        for (device, structures) in &self.structures {
            let from = self.saved_structures.get(device).map_or(0, |place| place + 1);
            let fresh: Vec<_> = structures.range(from..).map(|(_, structure)| structure).collect();
            records.extend(fresh.chunks(STRUCTURES_PER_RECORD).map(record_of));
        }
        for (device, structures) in &self.structures {
            if let Some((place, _)) = structures.last_key_value() {
                let saved = self.saved_structures.entry(*device).or_default();
                *saved = (*saved).max(*place);
            }
        }
        for (size, held) in &self.points {
            if self.saved.insert(*size) {
                records.push(HistoryRecord::Point(held.kept.value()));
            }
        }
        records.append(&mut self.unsaved);
        if log_size > self.up_to {
            self.up_to = log_size;
            records.push(HistoryRecord::UpTo(log_size));
        }
        records
    }

    /// The records of a new file with all of the archive.
    pub fn all(&self) -> impl Iterator<Item = HistoryRecord> {
        let structures = self.structures.values().flat_map(|structures| {
            let all: Vec<_> = structures.values().collect();
            let records: Vec<Vec<_>> = all.chunks(STRUCTURES_PER_RECORD).map(<[_]>::to_vec).collect();
            records.into_iter().map(|some| record_of(&some))
        });
        let points = self.points.values().map(|held| HistoryRecord::Point(held.kept.value()));
        let named = self.named.values().cloned().map(HistoryRecord::Named);
        let up_to = (self.up_to > 0).then_some(HistoryRecord::UpTo(self.up_to));
        structures.chain(points).chain(named).chain(up_to)
    }

    fn insert(&mut self, kept: &PointRecord) {
        let held = IndexedPoint::of(kept);
        self.bytes += held.bytes();
        if let Some(before) = self.points.insert(kept.log.size, held) {
            self.bytes -= before.bytes();
        }
    }

    /// Drops the oldest points without a name until the rest is within its limit of memory.
    fn bound(&mut self) {
        if self.bytes <= POINTS_BYTES_MAX {
            return;
        }
        let named = self.named_sizes();
        let most = POINTS_BYTES_MAX + self.bytes_of(&named);
        while self.bytes > most {
            let Some(oldest) = self.points.keys().find(|size| !named.contains(size)).copied() else { return };
            self.drop_point(oldest);
        }
    }

    fn named_sizes(&self) -> BTreeSet<u64> {
        self.named.values().map(|named| named.value.log.size).collect()
    }

    fn bytes_of(&self, sizes: &BTreeSet<u64>) -> usize {
        sizes.iter().filter_map(|size| Some(self.points.get(size)?.bytes())).sum()
    }

    /// Whether there is room for another snapshot.
    pub fn has_room(&self) -> bool {
        self.named.len() < SNAPSHOTS_MAX && self.bytes_of(&self.named_sizes()) <= POINTS_BYTES_MAX
    }

    fn is_named(&self, log_size: u64) -> bool {
        self.named.values().any(|snapshot| snapshot.value.log.size == log_size)
    }

    fn drop_point(&mut self, size: u64) {
        if self.saved.remove(&size) {
            match self.unsaved.last_mut() {
                Some(HistoryRecord::Dropped(sizes)) => sizes.push(size),
                _ => self.unsaved.push(HistoryRecord::Dropped(vec![size])),
            }
        }
        self.forget(size);
    }

    /// Forgets a point, and the structures that no other shows.
    fn forget(&mut self, size: u64) {
        let Some(kept) = self.points.remove(&size) else { return };
        self.bytes -= kept.bytes();
        for structures in self.structures.values_mut() {
            let Some(place) = structures.range(..size).next_back().map(|(place, _)| *place) else { continue };
            // The newest stays: later points rely on it.
            let Some(next) = structures.range(place + 1..).next().map(|(next, _)| *next) else { continue };
            if self.points.range(place + 1..=next).next().is_none() {
                structures.remove(&place);
            }
        }
    }
}

fn record_of(structures: &[&Encoded<Signed<Structure>>]) -> HistoryRecord {
    HistoryRecord::Structures(structures.iter().map(|structure| structure.value()).collect())
}
