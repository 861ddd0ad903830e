//! A directory: slots of 32 bytes in a chain of clusters; a name takes several slots.
//!
//! Reading is tolerant where no harm can result: pieces of long names that do not fit are skipped, and the
//! file appears with its short name. Nothing after the end mark is read, and what is there is dropped
//! permanently when the mark moves.

use crate::Result;
use crate::draft::Draft;
use crate::entry::{self, DELETED, DOT, DOT_DOT, Entry, Pieces};
use crate::layout::{Area, BlockId, ENTRIES_MAX, Layout, Run};
use crate::names::{self, Name, ShortName};
use crate::table::{cluster_at, total};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A directory whose chain was followed to its end.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// The first cluster, which identifies the directory: it never changes.
    pub(crate) first: u32,
    pub(crate) runs: Arc<[Run]>,
}

/// A file found in a directory.
#[derive(Clone, Debug)]
pub(crate) struct FileEntry {
    /// The first slot of its name.
    pub(crate) first_slot: u32,
    /// The slot of its entry.
    pub(crate) slot: u32,
    /// The name as it is shown.
    pub(crate) name: String,
    pub(crate) entry: Entry,
}

impl FileEntry {
    fn of(entry: Entry, slot: u32, pieces: &Pieces) -> (FileEntry, bool) {
        let long = (!entry.is_label()).then(|| pieces.finish(&entry.short)).flatten();
        match long.and_then(|(units, first_slot)| names::shown_long(units).map(|name| (name, first_slot))) {
            Some((name, first_slot)) => (FileEntry { first_slot, slot, name, entry }, true),
            None => {
                let name = names::shown_short(&entry.short, entry.case_bits);
                (FileEntry { first_slot: slot, slot, name, entry }, false)
            }
        }
    }
}

/// Free slots for an entry.
pub(crate) struct FreeSlots {
    pub(crate) slot: u32,
    /// Whether the end mark is among these slots, and must be written again after them.
    moves_end: bool,
}

impl Directory {
    pub(crate) fn slots(&self, layout: &Layout) -> u32 {
        let slots = total(&self.runs) * u64::from(layout.cluster_bytes) / entry::SIZE as u64;
        slots.min(u64::from(ENTRIES_MAX)) as u32
    }

    fn place(&self, layout: &Layout, slot: u32) -> (BlockId, usize) {
        let byte = u64::from(slot) * entry::SIZE as u64;
        let each = u64::from(layout.cluster_bytes);
        let cluster = cluster_at(&self.runs, byte / each).expect("a slot of this directory");
        let first = layout.blocks(Run { start: cluster.start, count: 1 }).start;
        let inside = byte % each;
        let block = u64::from(layout.block_bytes);
        (BlockId { area: Area::Data, index: first + inside / block }, (inside % block) as usize)
    }

    pub(crate) fn read(&self, draft: &Draft, slot: u32) -> Result<[u8; entry::SIZE]> {
        let (block, at) = self.place(draft.layout, slot);
        draft.look(block, |bytes| bytes[at..at + entry::SIZE].try_into().expect("a whole slot"))
    }

    pub(crate) fn write(&self, draft: &mut Draft, slot: u32, bytes: &[u8; entry::SIZE]) -> Result<()> {
        let (block, at) = self.place(draft.layout, slot);
        draft.edit(block)?[at..at + entry::SIZE].copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn entry(&self, draft: &Draft, slot: u32) -> Result<Entry> {
        Ok(Entry::from_bytes(&self.read(draft, slot)?))
    }

    /// Shows slots to `see`, from one on, until it says to stop or the directory ends. Gives the slot after the last.
    fn each(
        &self,
        draft: &Draft,
        from: u32,
        mut see: impl FnMut(u32, &[u8; entry::SIZE]) -> ControlFlow<()>,
    ) -> Result<u32> {
        let slots = self.slots(draft.layout);
        let mut slot = from;
        while slot < slots {
            let (block, at) = self.place(draft.layout, slot);
            let flow = draft.look(block, |bytes| {
                for bytes in bytes[at..].chunks_exact(entry::SIZE) {
                    if slot == slots {
                        break;
                    }
                    slot += 1;
                    see(slot - 1, bytes.try_into().expect("a whole slot"))?;
                }
                ControlFlow::Continue(())
            })?;
            if flow.is_break() {
                break;
            }
        }
        Ok(slot)
    }

    /// Finds a name. Like `Scan`, but does not assemble other names.
    pub(crate) fn find(&self, draft: &Draft, name: &Name) -> Result<Option<FileEntry>> {
        let mut pieces = Pieces::none();
        let mut found = None;
        self.each(draft, 0, |slot, bytes| {
            match Slot::of(bytes) {
                Slot::End => return ControlFlow::Break(()),
                Slot::Deleted => drop(pieces.drop()),
                Slot::Piece => drop(pieces.take(bytes, slot)),
                Slot::Entry(entry) => {
                    let is = |(units, _): (&[u16], u32)| name.is_long(units);
                    let this = pieces.finish(&entry.short).is_some_and(is) || name.is_short(&entry.short);
                    if this && !entry.is_label() && !is_dots(&entry) {
                        found = Some(FileEntry::of(entry, slot, &pieces).0);
                        return ControlFlow::Break(());
                    }
                    pieces.drop();
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    pub(crate) fn is_empty(&self, draft: &Draft) -> Result<bool> {
        let mut scan = Scan::new(self, 0);
        while let Some(found) = scan.next(draft)? {
            if !found.entry.is_label() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The short name that a name gets here.
    pub(crate) fn short_for(&self, draft: &Draft, name: &Name) -> Result<Option<ShortName>> {
        let mut taken = std::collections::BTreeSet::new();
        let Some(wished) = ShortName::choose(name, |_| false) else { return Ok(None) };
        self.each(draft, 0, |_, bytes| {
            match Slot::of(bytes) {
                Slot::End => return ControlFlow::Break(()),
                // All that could be chosen begin alike.
                Slot::Entry(entry) if entry.short[0] == wished.bytes[0] => {
                    taken.insert(entry.short);
                }
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        Ok(ShortName::choose(name, |short| taken.contains(short)))
    }

    /// Slots in a row for an entry of so many, or how many must be added at the end.
    pub(crate) fn room(&self, draft: &Draft, count: u32) -> Result<std::result::Result<FreeSlots, u32>> {
        let slots = self.slots(draft.layout);
        let (mut row, mut end, mut enough) = (0, None, None);
        self.each(draft, 0, |slot, bytes| {
            match bytes[0] {
                0 => {
                    end = Some(slot);
                    return ControlFlow::Break(());
                }
                DELETED => row += 1,
                _ => row = 0,
            }
            if row == count {
                enough = Some(slot + 1 - count);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        if let Some(slot) = enough {
            return Ok(Ok(FreeSlots { slot, moves_end: false }));
        }
        // From the end mark on, all slots are free.
        let end = end.unwrap_or(slots);
        let slot = end - row;
        Ok(match slots - slot >= count {
            true => Ok(FreeSlots { slot, moves_end: slot + count > end }),
            false => Err(count - (slots - slot)),
        })
    }

    /// Writes entries in a row.
    pub(crate) fn fill(
        &self,
        draft: &mut Draft,
        room: &FreeSlots,
        entries: &[[u8; entry::SIZE]],
    ) -> Result<()> {
        for (slot, bytes) in (room.slot..).zip(entries) {
            self.write(draft, slot, bytes)?;
        }
        let end = room.slot + entries.len() as u32;
        if room.moves_end && end < self.slots(draft.layout) {
            self.write(draft, end, &[0; entry::SIZE])?;
        }
        Ok(())
    }

    /// Marks an entry and the pieces of its name as deleted.
    pub(crate) fn remove(&self, draft: &mut Draft, first_slot: u32, slot: u32) -> Result<()> {
        for slot in first_slot..=slot {
            let mut bytes = self.read(draft, slot)?;
            bytes[0] = DELETED;
            self.write(draft, slot, &bytes)?;
        }
        Ok(())
    }
}

/// The content of a slot.
enum Slot {
    End,
    Deleted,
    Piece,
    Entry(Entry),
}

impl Slot {
    fn of(bytes: &[u8; entry::SIZE]) -> Slot {
        match bytes[0] {
            0 => Slot::End,
            DELETED => Slot::Deleted,
            _ if entry::is_piece(bytes) => Slot::Piece,
            _ => Slot::Entry(Entry::from_bytes(bytes)),
        }
    }
}

fn is_dots(entry: &Entry) -> bool {
    entry.short == DOT || entry.short == DOT_DOT
}

/// Reads the entries of a directory one after the other.
pub(crate) struct Scan<'d> {
    directory: &'d Directory,
    slot: u32,
    /// Whether pieces of long names were passed over since the last entry.
    pub(crate) broken: bool,
}

impl<'d> Scan<'d> {
    /// Starts at a slot: 0, or the one after an entry.
    pub(crate) fn new(directory: &'d Directory, slot: u32) -> Scan<'d> {
        Scan { directory, slot, broken: false }
    }

    /// The scan's position; at the end, the slot of the end mark or the number of slots.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The next entry, which may be a label. `.` and `..` are skipped.
    pub(crate) fn next(&mut self, draft: &Draft) -> Result<Option<FileEntry>> {
        let (mut pieces, mut broken) = (Pieces::none(), false);
        let (mut found, mut ended) = (None, false);
        let after = self.directory.each(draft, self.slot, |slot, bytes| {
            match Slot::of(bytes) {
                Slot::End => {
                    ended = true;
                    return ControlFlow::Break(());
                }
                Slot::Deleted => broken |= pieces.drop(),
                Slot::Piece => broken |= pieces.take(bytes, slot),
                Slot::Entry(entry) if is_dots(&entry) => broken |= pieces.drop(),
                Slot::Entry(entry) => {
                    let (this, long) = FileEntry::of(entry, slot, &pieces);
                    broken |= pieces.drop() && !long;
                    found = Some(this);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        // At the end the scan stays at the mark, so that asking again gives nothing again.
        self.slot = (after - u32::from(ended)).max(self.slot);
        self.broken |= broken | pieces.drop();
        Ok(found)
    }
}
