//! Live maps: a Merkle map with a short ordered list of changes on top (SUNDR 3.3.2, figure 5: the change log
//! of an i-handle), so that one change costs a few bytes and no node.
//!
//! Invariants:
//! - Changes are ordered, oldest first. Of the changes of one key, the latest that counts decides; changes
//!   of different keys commute.
//! - A change with a [`Tag`] is another device's operation, folded in while it was pending (SUNDR 3.4.2).
//!   It counts if and only if that operation's status is [`OperationStatus::Committed`]. While the status is
//!   pending, the change stays in the list, tagged, and is never folded into the root. So an aborted
//!   operation leaves nothing behind.
//!
//! Attack answered: "laundering". A server that drops a pending operation after others have seen it cannot
//! have its effects survive in a map under another device's signature.

use crate::codec::{Reader, Writer};
use crate::error::{ContentError, Malformed, Misuse, within};
use crate::map::KeyValue;
use crate::map::check_key;
use crate::{BlockSink, BlockSource, DeviceId, MapRoot, MerkleMap, Value};
use borsh::{BorshDeserialize, BorshSerialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Number of changes above which writers compact a map.
pub const CHANGES_WANTED_MAX: usize = 128;
/// Most changes of a map: readers refuse more.
pub const CHANGES_MAX: usize = 1024;

/// Names an operation: the `number`-th of `device`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Tag {
    /// The device whose operation it is.
    pub device: DeviceId,
    /// The device's number of the operation.
    pub number: u64,
}

/// The status of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperationStatus {
    /// The operation took effect.
    Committed,
    /// The operation will never take effect.
    Aborted,
    /// The operation may still take effect or not.
    Pending,
}

/// Looks up the status of operations. Closures implement it.
pub trait OperationStatuses {
    /// The status of the operation `tag`.
    fn status(&self, tag: &Tag) -> OperationStatus;
}

impl<F: Fn(&Tag) -> OperationStatus> OperationStatuses for F {
    fn status(&self, tag: &Tag) -> OperationStatus {
        self(tag)
    }
}

/// Statuses of which none is known: every tagged change is pending.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllPending;

impl OperationStatuses for AllPending {
    fn status(&self, _: &Tag) -> OperationStatus {
        OperationStatus::Pending
    }
}

/// One change of one key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// Its new value; `None` removes it.
    pub value: Option<Value>,
    /// The pending operation that made the change; `None` for a change that counts unconditionally.
    pub tag: Option<Tag>,
}

/// A Merkle map under a list of changes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct LiveMap {
    /// The map under the changes.
    pub root: MapRoot,
    /// Oldest first.
    pub changes: Vec<Change>,
}

/// The result of a look-up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lookup<T> {
    /// The value, by the changes that count.
    pub value: Option<T>,
    /// The latest pending operation that would change the answer if it committed.
    pub unsettled: Option<Tag>,
}

impl<T> Lookup<T> {
    /// Converts the value.
    ///
    /// # Errors
    /// The error of `f`.
    pub fn try_map<U, E>(self, f: impl FnOnce(T) -> Result<U, E>) -> Result<Lookup<U>, E> {
        Ok(Lookup { value: self.value.map(f).transpose()?, unsettled: self.unsettled })
    }
}

/// The result of a range read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing<T> {
    /// Keys and values in ascending order, by the changes that count.
    pub entries: Vec<(Vec<u8>, T)>,
    /// Pending operations with changes in the part that was read.
    pub unsettled: BTreeSet<Tag>,
    /// Whether the map holds nothing beyond the last entry.
    pub complete: bool,
}

/// The changes of one key.
struct Overlay<'a> {
    /// The latest change that counts.
    settled: Option<Option<&'a Value>>,
    /// The latest pending change after it.
    unsettled: Option<Tag>,
}

impl LiveMap {
    /// The empty map.
    pub const EMPTY: LiveMap = LiveMap { root: MapRoot(None), changes: Vec::new() };

    /// A map without changes.
    pub fn of(root: MapRoot) -> LiveMap {
        LiveMap { root, changes: Vec::new() }
    }

    /// The value of `key` according to `statuses`.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn get(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        key: &[u8],
    ) -> Result<Lookup<Value>, ContentError> {
        let overlay = self.overlay(statuses, key);
        let value = match overlay.settled {
            Some(value) => value.cloned(),
            None => MerkleMap::new(source.digest_key()).get(source, &self.root, key)?,
        };
        Ok(Lookup { value, unsettled: overlay.unsettled })
    }

    fn overlay(&self, statuses: &dyn OperationStatuses, key: &[u8]) -> Overlay<'_> {
        Self::overlay_of(self.changes.iter().rev().filter(|change| change.key == key), statuses)
    }

    /// Judges the changes of one key, latest first.
    fn overlay_of<'a>(
        latest_first: impl Iterator<Item = &'a Change>,
        statuses: &dyn OperationStatuses,
    ) -> Overlay<'a> {
        let mut unsettled = None;
        for change in latest_first {
            match change.tag.map_or(OperationStatus::Committed, |tag| statuses.status(&tag)) {
                OperationStatus::Committed => {
                    return Overlay { settled: Some(change.value.as_ref()), unsettled };
                }
                OperationStatus::Aborted => {}
                OperationStatus::Pending => unsettled = unsettled.or(change.tag),
            }
        }
        Overlay { settled: None, unsettled }
    }

    /// The changes of all keys that have any, judged.
    fn overlays(&self, statuses: &dyn OperationStatuses) -> BTreeMap<&[u8], Overlay<'_>> {
        let mut by_key: BTreeMap<&[u8], Vec<&Change>> = BTreeMap::new();
        for change in &self.changes {
            by_key.entry(&change.key).or_default().push(change);
        }
        by_key
            .into_iter()
            .map(|(key, changes)| (key, Self::overlay_of(changes.into_iter().rev(), statuses)))
            .collect()
    }

    /// At most `limit` entries from `from` on, in ascending order.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn range(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        from: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Listing<Value>, ContentError> {
        let overlays = self.overlays(statuses);
        let in_range: Vec<_> = overlays.range::<[u8], _>((from, Bound::Unbounded)).collect();
        // Each change can hide one entry of the root, and one more entry tells whether there are more. So if
        // not all of the root was read, at least `limit` entries are left before the last one read, and no
        // change after that one matters.
        let wanted = limit.saturating_add(in_range.len()).saturating_add(1);
        let base = MerkleMap::new(source.digest_key()).range(source, &self.root, from, wanted)?;
        let mut merged: BTreeMap<Vec<u8>, Value> = base.into_iter().collect();
        for (key, overlay) in &in_range {
            match overlay.settled {
                Some(Some(value)) => drop(merged.insert(key.to_vec(), value.clone())),
                Some(None) => drop(merged.remove(**key)),
                None => {}
            }
        }
        let complete = merged.len() <= limit;
        let entries: Vec<_> = merged.into_iter().take(limit).collect();
        let covered = |key: &[u8]| {
            complete || entries.last().is_some_and(|(last, _): &(Vec<u8>, Value)| key <= last.as_slice())
        };
        let unsettled = in_range
            .iter()
            .filter(|(key, _)| covered(key))
            .filter_map(|(_, overlay)| overlay.unsettled)
            .collect();
        Ok(Listing { entries, unsettled, complete })
    }

    /// The last entry whose key is below `upper` (or, if included, equal to it), and pending operations with
    /// changes from there to `upper`.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn floor(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        upper: Bound<&[u8]>,
    ) -> Result<(Option<KeyValue>, BTreeSet<Tag>), ContentError> {
        let map = MerkleMap::new(source.digest_key());
        let overlays = self.overlays(statuses);
        let mut changed = overlays.range::<[u8], _>((Bound::Unbounded, upper)).rev().peekable();
        let mut base = map.floor(source, &self.root, upper)?;
        let mut unsettled = BTreeSet::new();
        loop {
            let next = changed.peek().map(|(key, _)| **key);
            match (&base, next) {
                (None, None) => return Ok((None, unsettled)),
                (Some((key, _)), next) if next.is_none_or(|next| next < key.as_slice()) => {
                    return Ok((base, unsettled));
                }
                _ => {
                    let (key, overlay) = changed.next().expect("peeked");
                    unsettled.extend(overlay.unsettled);
                    let hides = base.as_ref().is_some_and(|(base_key, _)| base_key.as_slice() == *key);
                    match overlay.settled {
                        Some(Some(value)) => return Ok((Some((key.to_vec(), value.clone())), unsettled)),
                        Some(None) if hides => {
                            base = map.floor(source, &self.root, Bound::Excluded(key))?;
                        }
                        None if hides => return Ok((base, unsettled)),
                        _ => {}
                    }
                }
            }
        }
    }

    /// Adds a change. An untagged one replaces an earlier untagged one of its key, unless a tagged one of
    /// that key is between them, since that one may or may not count.
    pub fn push(&mut self, change: Change) {
        if change.tag.is_none() {
            let last = self.changes.iter().rposition(|earlier| earlier.key == change.key);
            if let Some(index) = last.filter(|index| self.changes[*index].tag.is_none()) {
                self.changes.remove(index);
            }
        }
        self.changes.push(change);
    }

    /// Number of entries if every pending operation aborts. Exact; looks up every changed key.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn count(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
    ) -> Result<u64, ContentError> {
        let map = MerkleMap::new(source.digest_key());
        let overlays = self.overlays(statuses);
        let mut count = self.root.len();
        if !self.root.is_empty() {
            let keys: Vec<&[u8]> = overlays.keys().copied().collect();
            map.warm(source, &self.root, &keys)?;
        }
        for (key, overlay) in overlays {
            let Some(settled) = overlay.settled else { continue };
            let before = !self.root.is_empty() && map.get(source, &self.root, key)?.is_some();
            match (before, settled.is_some()) {
                (false, true) => count += 1,
                (true, false) => count -= 1,
                _ => {}
            }
        }
        Ok(count)
    }

    /// Drops aborted changes, removes the tags of committed ones, and drops those that a later settled change of the
    /// same key has replaced. Needs no block.
    pub fn settle(&mut self, statuses: &dyn OperationStatuses) {
        let changes = std::mem::take(&mut self.changes);
        for mut change in changes {
            match change.tag.map(|tag| statuses.status(&tag)) {
                Some(OperationStatus::Aborted) => continue,
                Some(OperationStatus::Committed) => change.tag = None,
                Some(OperationStatus::Pending) | None => {}
            }
            self.push(change);
        }
    }

    /// Drops tags whose status is known. Then, if more than `force_over` changes are left, folds into the
    /// root every change that counts and has no pending one of its key before it. Pending ones stay.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed; [`Misuse`]: a change is over the limits.
    pub fn settle_and_compact(
        &self,
        source: &dyn BlockSource,
        sink: &mut dyn BlockSink,
        statuses: &dyn OperationStatuses,
        force_over: usize,
    ) -> Result<LiveMap, ContentError> {
        let mut settled = self.clone();
        settled.settle(statuses);
        if settled.changes.len() <= force_over {
            return Ok(settled);
        }
        let mut pending_keys = BTreeSet::new();
        let mut edits = BTreeMap::new();
        let mut kept = Vec::new();
        for change in settled.changes {
            if change.tag.is_some() || pending_keys.contains(&change.key) {
                pending_keys.insert(change.key.clone());
                kept.push(change);
            } else {
                edits.insert(change.key, change.value);
            }
        }
        let root = MerkleMap::new(source.digest_key()).apply(source, sink, &settled.root, edits)?;
        Ok(LiveMap { root, changes: kept })
    }

    /// Whether it keeps the limits that readers demand.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        within("number of changes", self.changes.len() as u64, 0, CHANGES_MAX as u64)?;
        self.changes.iter().try_for_each(|change| {
            check_key(&change.key)?;
            change.value.as_ref().map_or(Ok(()), Value::check)
        })
    }

    /// Writes a map that [`LiveMap::check`] has accepted.
    pub(crate) fn write(&self, writer: &mut Writer) {
        self.root.write(writer);
        writer.u16(self.changes.len() as u16);
        for change in &self.changes {
            writer.bytes16(&change.key);
            writer.borsh(&change.tag);
            match &change.value {
                None => writer.u8(0),
                Some(value) => {
                    writer.u8(1);
                    value.write(writer);
                }
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<LiveMap, Malformed> {
        let root = MapRoot::read(reader)?;
        let count = reader.u16()?;
        within("number of changes", count.into(), 0, CHANGES_MAX as u64)?;
        let mut changes = Vec::with_capacity(count.into());
        for _ in 0..count {
            let key = reader.bytes16()?;
            check_key(key)?;
            let tag = reader.borsh()?;
            let value = if reader.flag("value flag")? { Some(Value::read(reader)?) } else { None };
            changes.push(Change { key: key.to_vec(), value, tag });
        }
        Ok(LiveMap { root, changes })
    }
}

/// Makes a checked value's offence the caller's.
pub(crate) fn misuse(result: Result<(), Malformed>) -> Result<(), ContentError> {
    result.map_err(|why| Misuse::from(why).into())
}
