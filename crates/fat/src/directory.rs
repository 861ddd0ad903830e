//! A directory: slots of 32 bytes in a chain of clusters, of which a name takes several.
//!
//! Reading is forgiving where nothing can be harmed: pieces of long names that do not fit are passed over, and the
//! file is there under its short name. Nothing after the end mark is read, and what lies there is cut off for good
//! when the mark moves.

use crate::Result;
use crate::draft::Draft;
use crate::entry::{self, DELETED, DOT, DOT_DOT, Entry, Pieces};
use crate::layout::{Area, BlockId, ENTRIES_MAX, Layout, Run};
use crate::names::{self, Name, Short};
use crate::table::{cluster_at, total};
use std::sync::Arc;

/// A directory whose chain was followed to its end.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// Its first cluster, which is its identity: it never changes.
    pub(crate) first: u32,
    pub(crate) runs: Arc<[Run]>,
}

/// A file found in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The first slot of its name.
    pub(crate) first_slot: u32,
    /// The slot of its entry.
    pub(crate) slot: u32,
    /// Its name as shown.
    pub(crate) name: String,
    pub(crate) entry: Entry,
}

impl Found {
    /// Whether the name asked for is this one's, long or short.
    pub(crate) fn is(&self, name: &Name) -> bool {
        name.is(&self.name) || name.is(&names::shown_short(&self.entry.short, 0))
    }
}

/// Room for an entry.
pub(crate) struct Room {
    pub(crate) slot: u32,
    /// Whether the end mark lies in it, so that it must be written anew after it.
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

    pub(crate) fn find(&self, draft: &Draft, name: &Name) -> Result<Option<Found>> {
        let mut scan = Scan::new(self, 0);
        while let Some(found) = scan.next(draft)? {
            if !found.entry.is_label() && found.is(name) {
                return Ok(Some(found));
            }
        }
        Ok(None)
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
    pub(crate) fn short_for(&self, draft: &Draft, name: &Name) -> Result<Option<Short>> {
        let mut taken = std::collections::BTreeSet::new();
        let mut scan = Scan::new(self, 0);
        while let Some(found) = scan.next(draft)? {
            taken.insert(found.entry.short);
        }
        Ok(Short::choose(name, |short| taken.contains(short)))
    }

    /// Slots in a row for an entry of so many, or how many must be added at the end.
    pub(crate) fn room(&self, draft: &Draft, count: u32) -> Result<std::result::Result<Room, u32>> {
        let slots = self.slots(draft.layout);
        let mut row = 0;
        for slot in 0..slots {
            match self.read(draft, slot)?[0] {
                0 => {
                    // All from here on is free.
                    let start = slot - row;
                    if slots - start >= count {
                        return Ok(Ok(Room { slot: start, moves_end: start + count > slot }));
                    }
                    return Ok(Err(count - (slots - start)));
                }
                DELETED => row += 1,
                _ => row = 0,
            }
            if row == count {
                return Ok(Ok(Room { slot: slot + 1 - count, moves_end: false }));
            }
        }
        Ok(Err(count - row))
    }

    /// Writes entries in a row.
    pub(crate) fn fill(&self, draft: &mut Draft, room: &Room, entries: &[[u8; entry::SIZE]]) -> Result<()> {
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

/// Goes through a directory.
pub(crate) struct Scan<'d> {
    directory: &'d Directory,
    slot: u32,
    pieces: Option<Pieces>,
    /// Whether pieces of long names were passed over since the last entry.
    pub(crate) broken: bool,
}

impl<'d> Scan<'d> {
    /// From a slot on: 0, or the one after an entry.
    pub(crate) fn new(directory: &'d Directory, slot: u32) -> Scan<'d> {
        Scan { directory, slot, pieces: None, broken: false }
    }

    /// Where the scan stands; at the end, the slot of the end mark or the number of slots.
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// The next entry, which may be a label. `.` and `..` are passed over.
    pub(crate) fn next(&mut self, draft: &Draft) -> Result<Option<Found>> {
        let slots = self.directory.slots(draft.layout);
        while self.slot < slots {
            let slot = self.slot;
            let bytes = self.directory.read(draft, slot)?;
            if bytes[0] == 0 {
                break;
            }
            self.slot += 1;
            if bytes[0] == DELETED {
                self.broken |= self.pieces.take().is_some();
            } else if entry::is_piece(&bytes) {
                let before = self.pieces.take();
                let had = before.is_some();
                let goes_on = before.and_then(|pieces| pieces.go_on(&bytes));
                self.pieces = match goes_on {
                    Some(pieces) => Some(pieces),
                    None => {
                        let begun = Pieces::begin(&bytes, slot);
                        self.broken |= had || begun.is_none();
                        begun
                    }
                };
            } else {
                let entry = Entry::from_bytes(&bytes);
                let pieces = self.pieces.take();
                if entry.short == DOT || entry.short == DOT_DOT {
                    self.broken |= pieces.is_some();
                    continue;
                }
                let long = pieces.as_ref().filter(|_| !entry.is_label()).and_then(|pieces| {
                    names::shown_long(pieces.finish(&entry.short)?).map(|name| (name, pieces))
                });
                self.broken |= pieces.is_some() && long.is_none();
                return Ok(Some(match long {
                    Some((name, pieces)) => Found { first_slot: pieces.first_slot, slot, name, entry },
                    None => {
                        let name = names::shown_short(&entry.short, entry.case_bits);
                        Found { first_slot: slot, slot, name, entry }
                    }
                }));
            }
        }
        self.broken |= self.pieces.take().is_some();
        Ok(None)
    }
}
