//! Finds what the pending operations affect, to detect conflicts (SUNDR 3.4.2).
//!
//! Conflicts are judged by declared deltas only, since nothing else is visible of a pending operation. An
//! operation that sets entries of a directory and re-maps it, without declaring the directory's inode, leaves
//! all other entries alone. So operations on different names of one directory do not conflict; both are
//! included.
//!
//! Deltas of a device that may not write the files they name are ignored, as they have no effect.

use holdfast_content::{DeviceId, Entry, Handle, Membership, PrincipalId, Tag};
use holdfast_protocol::certificate::Delta;
use holdfast_protocol::structure::{PendingEntry, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The live pending operations of a view, by what they affect.
#[derive(Default, Debug)]
pub struct Touches {
    /// Files whose inode changes as a whole: declared inodes, removals, and re-mappings of anything but a
    /// directory whose entries change.
    whole: HashMap<Handle, Tag>,
    /// Inodes that change as a whole, by location in tables, since the file named by a delta is only claimed
    /// by its author.
    slots: HashMap<(DeviceId, u64), Tag>,
    /// Directory entries that change.
    entries: HashMap<Handle, BTreeMap<Vec<u8>, Tag>>,
    /// The latest time of change that these give each directory.
    times: HashMap<Handle, i64>,
    /// Preallocated ranges: the owner, the first and the last number.
    ranges: Vec<(PrincipalId, u64, u64, Tag)>,
    members: Option<Tag>,
}

/// The tag of a pending operation.
pub fn tag_of(entry: &PendingEntry) -> Tag {
    Tag { device: entry.certificate.value.device, number: entry.certificate.value.number }
}

/// The deltas of a pending operation that its author has the right to make.
pub fn lawful_deltas<'a>(
    entry: &'a PendingEntry,
    membership: &'a Membership,
) -> impl Iterator<Item = &'a Delta> {
    let device = entry.certificate.value.device;
    entry.certificate.value.deltas.iter().filter(move |delta| {
        let principal = match delta {
            Delta::SetInode { file, .. } | Delta::SetTable { file, .. } => file.principal,
            Delta::SetEntry { directory, entry, .. } => {
                let sound = entry.is_none_or(|(handle, kind)| {
                    Entry::from_value(&Entry { handle, kind }.to_value()).is_ok()
                });
                if !sound {
                    return false;
                }
                directory.principal
            }
            Delta::Preallocate { principal, .. } => *principal,
            // The membership is changed by device 0, or by any device under a warrant.
            Delta::SetMembers { .. } => return membership.is_active(device),
        };
        membership.may_write(device, principal)
    })
}

impl Touches {
    /// Collects what the live pending operations of other devices affect.
    pub fn of(view: &View, membership: &Membership, me: DeviceId) -> Touches {
        let mut touches = Touches::default();
        for entry in &view.pending {
            let tag = tag_of(entry);
            if entry.dead || tag.device == me {
                continue;
            }
            let deltas: Vec<&Delta> = lawful_deltas(entry, membership).collect();
            let named: BTreeSet<Handle> = deltas
                .iter()
                .filter_map(|delta| match delta {
                    Delta::SetEntry { directory, .. } => Some(*directory),
                    _ => None,
                })
                .collect();
            for delta in deltas {
                match delta {
                    Delta::SetInode { number, file, .. } => {
                        touches.whole.insert(*file, tag);
                        touches.slots.insert((tag.device, *number), tag);
                    }
                    Delta::SetTable { file, number } if number.is_none() || !named.contains(file) => {
                        touches.whole.insert(*file, tag);
                    }
                    Delta::SetTable { .. } => {}
                    Delta::Preallocate { principal, first, count, .. } => {
                        let last = first.saturating_add(u64::from(*count).saturating_sub(1));
                        touches.ranges.push((*principal, *first, last, tag));
                    }
                    Delta::SetEntry { directory, name, time_ns, .. } => {
                        let time = touches.times.entry(*directory).or_insert(*time_ns);
                        *time = (*time).max(*time_ns);
                        touches.entries.entry(*directory).or_default().insert(name.clone(), tag);
                    }
                    Delta::SetMembers { .. } => touches.members = Some(tag),
                }
            }
        }
        touches
    }

    /// A pending operation that changes the file as a whole, named by its handle or by its location.
    pub fn whole(&self, file: Handle, place: Option<(DeviceId, u64)>) -> Option<Tag> {
        let by_place = || self.slots.get(&place?).copied();
        self.whole.get(&file).copied().or_else(by_place)
    }

    /// A pending operation that changes this entry.
    pub fn entry(&self, directory: Handle, name: &[u8]) -> Option<Tag> {
        self.entries.get(&directory)?.get(name).copied()
    }

    /// Pending operations that change any entry of the directory.
    pub fn entries(&self, directory: Handle) -> impl Iterator<Item = Tag> {
        self.entries.get(&directory).into_iter().flat_map(|names| names.values().copied())
    }

    /// The time of change that pending changes of entries will give the directory.
    pub fn time(&self, directory: Handle) -> Option<i64> {
        self.times.get(&directory).copied()
    }

    /// A pending range that overlaps this one.
    pub fn range(&self, principal: PrincipalId, first: u64, last: u64) -> Option<Tag> {
        self.ranges
            .iter()
            .find(|(owner, start, end, _)| *owner == principal && *start <= last && first <= *end)
            .map(|(.., tag)| *tag)
    }

    /// A pending change of the membership.
    pub fn members(&self) -> Option<Tag> {
        self.members
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.entries.is_empty() && self.ranges.is_empty() && self.members.is_none()
    }
}
