//! The policy table: sorted extents in pages, all of them in memory, so that no look-up ever reads the disk.
//!
//! Invariants: the first page begins at block 0 and a page lasts until the next one, so every block is in
//! exactly one extent; within a page, extents ascend and neighbours have different labels; a page fits into a
//! block. A change only rewrites the pages of its range (and merges pages that became small with their
//! neighbours), which are few blocks.

use crate::format::{
    self, Body, EXTENTS_PER_PAGE_MAX, FORMAT, FORMAT_PLAIN, Header, Image, PIECE_BYTES_MAX, body, image,
};
use crate::labels::{Label, Labels};
use crate::{Block, BlockRange, Damage, Disk, Refused};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

/// The most pages that one change rewrites, so that the set to be committed atomically stays small.
pub const PAGES_PER_CHANGE_MAX: usize = 64;
/// Most small pages next to them that it merges with.
const NEIGHBOURS_PER_CHANGE_MAX: usize = 4;

struct Page {
    slot: u32,
    /// First block and label's number.
    extents: Vec<(u64, u32)>,
}

pub(crate) struct Table {
    disk: Disk,
    generation: u64,
    /// The pages, by the first block that each describes.
    pages: BTreeMap<u64, Page>,
    /// Slots that were used and hold no page now.
    free: BTreeSet<u32>,
    /// Number of slots that were ever used.
    slots: u32,
    labels: Labels,
    /// Extra bytes that are stored besides the labels, and the slots of their pieces.
    extra: Vec<u8>,
    extra_slots: Vec<u32>,
}

/// The content of a slot.
#[derive(Clone, Copy)]
enum SlotContent {
    /// The page that begins at this block.
    Page(u64),
    /// A piece of the extra bytes.
    Piece(usize),
    Nothing,
}

impl Table {
    /// A table with one label for the whole disk, and the blocks that store it.
    pub fn create(disk: Disk, label: Label, generation: u64) -> Result<(Table, Vec<Image>), Refused> {
        let mut labels = Labels::new(format::label_blocks(&disk));
        let number = labels.intern(label)?;
        labels.add_use(number);
        let page = Page { slot: 0, extents: vec![(0, number)] };
        let pages = BTreeMap::from([(0, page)]);
        let free = BTreeSet::new();
        let (extra, extra_slots) = (Vec::new(), Vec::new());
        let mut table = Table { disk, generation, pages, free, slots: 1, labels, extra, extra_slots };
        let images = table.images(&[(0, SlotContent::Page(0))]);
        Ok((table, images))
    }

    /// A table of these extents, each ⟨first block, label⟩ and lasting until the next, and the blocks that
    /// store it. If there is room, pages are only partly filled, so that later changes do not split each of
    /// them.
    pub fn of(
        disk: Disk,
        extents: impl Iterator<Item = (u64, Label)>,
    ) -> Result<(Table, Vec<Image>), Refused> {
        let mut labels = Labels::new(format::label_blocks(&disk));
        let mut numbered: Vec<(u64, u32)> = Vec::new();
        for (first, label) in extents {
            let follows = numbered.last().map_or(first == 0, |(before, _)| *before < first);
            if !follows || first >= disk.blocks {
                return Err(Refused::BeyondDisk(disk.blocks));
            }
            if !label.owner.is_storable() {
                return Err(Refused::NotStorable(label.owner));
            }
            let number = labels.intern(label)?;
            if numbered.last().is_none_or(|(_, before)| *before != number) {
                labels.add_use(number);
                numbered.push((first, number));
            }
        }
        let slots_max = format::page_slots(&disk);
        let loose = EXTENTS_PER_PAGE_MAX * 3 / 4;
        let fits = |per_page: usize| numbered.len().div_ceil(per_page) as u64 <= slots_max;
        let per_page = if fits(loose) { loose } else { EXTENTS_PER_PAGE_MAX };
        if numbered.is_empty() || !fits(per_page) {
            return Err(if numbered.is_empty() { Refused::BeyondDisk(0) } else { Refused::Full });
        }
        let pages: BTreeMap<u64, Page> = (0..)
            .zip(numbered.chunks(per_page))
            .map(|(slot, extents)| (extents[0].0, Page { slot, extents: extents.to_vec() }))
            .collect();
        let stored: Vec<(u32, SlotContent)> =
            pages.iter().map(|(first, page)| (page.slot, SlotContent::Page(*first))).collect();
        let slots = stored.len() as u32;
        let (free, extra, extra_slots) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut table = Table { disk, generation: 1, pages, free, slots, labels, extra, extra_slots };
        let images = table.images(&stored);
        Ok((table, images))
    }

    /// Reads a stored table whole. `read` reads a block, counted from the table's first.
    pub fn open<E: Display>(
        disk: Disk,
        mut read: impl FnMut(u64) -> Result<Box<Block>, E>,
    ) -> Result<Table, Damage> {
        let mut next = |block: u64| {
            let unreadable = |error: E| Damage::Unreadable { block, why: error.to_string() };
            let bytes = read(block).map_err(unreadable)?;
            body(&disk, block, &bytes)
        };
        let malformed = |block, why| Damage::Malformed { block, why };
        let Body::Header(header) = next(0)? else { return Err(malformed(0, "it is not the header")) };
        if header.disk != (Disk { number: header.disk.number, ..disk.clone() }) {
            return Err(Damage::OtherDisk);
        }
        let (labels_max, slots_max) = (format::label_blocks(&disk), format::page_slots(&disk));
        if u64::from(header.label_blocks) > labels_max || u64::from(header.page_slots) > slots_max {
            return Err(malformed(0, "it counts more blocks than the table has"));
        }
        let mut labels = Labels::new(labels_max);
        for block in 1..=u64::from(header.label_blocks) {
            let Body::Labels(stored) = next(block)? else {
                return Err(malformed(block, "it holds no labels"));
            };
            labels.load(stored).map_err(|why| malformed(block, why))?;
        }
        let (mut pages, mut free, mut pieces) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        for slot in 0..header.page_slots {
            let block = 1 + labels_max + u64::from(slot);
            let extents = match next(block)? {
                Body::Page(extents) => extents,
                Body::Kept(number, bytes) if header.format == FORMAT => {
                    if pieces.insert(number, (slot, bytes)).is_some() {
                        return Err(malformed(block, "a piece of what is kept beside is there twice"));
                    }
                    continue;
                }
                _ => return Err(malformed(block, "it is not a page")),
            };
            let Some((first, _)) = extents.first().copied() else {
                free.insert(slot);
                continue;
            };
            let rising = |pair: &[(u64, u32)]| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1;
            if extents.len() > EXTENTS_PER_PAGE_MAX || !extents.windows(2).all(rising) {
                return Err(malformed(block, "its extents are out of order"));
            }
            if !extents.iter().all(|(first, number)| *first < disk.blocks && labels.add_use(*number)) {
                return Err(malformed(block, "an extent is beyond the disk, or its label is unknown"));
            }
            if pages.insert(first, Page { slot, extents }).is_some() {
                return Err(malformed(block, "two pages begin at the same block"));
            }
        }
        if pages.keys().next() != Some(&0) {
            return Err(malformed(0, "no page begins at block 0"));
        }
        let overlap = pages.values().zip(pages.keys().skip(1)).find(|(page, next)| page.last() >= **next);
        if let Some((page, _)) = overlap {
            return Err(malformed(1 + labels_max + u64::from(page.slot), "it overlaps the next page"));
        }
        if !labels.all_used() {
            return Err(malformed(0, "a label is used by no extent"));
        }
        let (mut extra, mut extra_slots) = (Vec::new(), Vec::new());
        for (expected, (number, (slot, bytes))) in (0..).zip(pieces) {
            // All but the last are whole.
            if number != expected || bytes.is_empty() || extra.len() % PIECE_BYTES_MAX != 0 {
                return Err(malformed(0, "a piece of what is kept beside is missing"));
            }
            if bytes.len() > PIECE_BYTES_MAX {
                return Err(malformed(0, "a piece of what is kept beside is too long"));
            }
            extra.extend(bytes);
            extra_slots.push(slot);
        }
        if extra.is_empty() != (header.format == FORMAT_PLAIN) {
            return Err(malformed(0, "its format is not that of what it keeps"));
        }
        let (generation, slots) = (header.generation, header.page_slots);
        Ok(Table { disk, generation, pages, free, slots, labels, extra, extra_slots })
    }

    /// The extra bytes, which are stored besides the labels.
    pub fn extra(&self) -> &[u8] {
        &self.extra
    }

    /// Replaces the extra bytes. Returns the blocks to be stored, as one set.
    pub fn set_extra(&mut self, bytes: Vec<u8>) -> Result<Vec<Image>, Refused> {
        let needed = bytes.len().div_ceil(PIECE_BYTES_MAX);
        if needed as u64 > self.extra_slots.len() as u64 + self.free_slots() {
            return Err(Refused::Full);
        }
        let mut stored = Vec::new();
        while self.extra_slots.len() > needed {
            let slot = self.extra_slots.pop().expect("it has more than are needed");
            self.free.insert(slot);
            stored.push((slot, SlotContent::Nothing));
        }
        while self.extra_slots.len() < needed {
            let slot = self.take_slot();
            self.extra_slots.push(slot);
        }
        self.extra = bytes;
        stored.extend(
            self.extra_slots.iter().enumerate().map(|(piece, slot)| (*slot, SlotContent::Piece(piece))),
        );
        self.generation += 1;
        Ok(self.images(&stored))
    }

    /// A free slot. The caller has ensured that there is one.
    fn take_slot(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Extents, label numbers and free page slots.
    pub fn counts(&self) -> (u64, u64, u64) {
        let extents = self.pages.values().map(|page| page.extents.len() as u64).sum();
        (extents, self.labels.len() as u64, self.free_slots())
    }

    fn free_slots(&self) -> u64 {
        format::page_slots(&self.disk) - u64::from(self.slots) + self.free.len() as u64
    }

    pub fn label(&self, number: u32) -> &Label {
        self.labels.get(number).expect("extents use labels that are there")
    }

    /// The extents that have blocks in the range, whole, in order, with their labels' numbers. Neighbours in
    /// different pages may have the same label.
    pub fn extents(&self, range: BlockRange) -> impl Iterator<Item = (BlockRange, u32)> {
        let first_page = self.page_of(range.first());
        self.pages.range(first_page..range.end()).flat_map(move |(first, page)| {
            let ends = page.extents.iter().skip(1).map(|extent| extent.0).chain([self.end_of(*first)]);
            let whole = page.extents.iter().zip(ends).map(|((first, number), end)| {
                let extent = BlockRange::new(*first, end - first).expect("extents are not empty");
                (extent, *number)
            });
            whole.filter(move |(extent, _)| extent.overlaps(&range))
        })
    }

    /// The first block of the page that contains this block.
    fn page_of(&self, block: u64) -> u64 {
        *self.pages.range(..=block).next_back().expect("the first page begins at block 0").0
    }

    /// The first block after the page that begins at this one.
    fn end_of(&self, first: u64) -> u64 {
        self.pages.range(first + 1..).next().map_or(self.disk.blocks, |(next, _)| *next)
    }

    /// Gives the blocks of the range new labels: each old number in `new` is replaced by that label. Returns
    /// the blocks to be stored, as one set.
    pub fn relabel(&mut self, range: BlockRange, new: BTreeMap<u32, Label>) -> Result<Vec<Image>, Refused> {
        let (mut from, mut to) = (self.page_of(range.first()), range.end());
        let mut held: usize = self.pages.range(from..to).map(|(_, page)| page.extents.len()).sum();
        if self.pages.range(from..to).count() > PAGES_PER_CHANGE_MAX {
            return Err(Refused::TooScattered);
        }
        for _ in 0..NEIGHBOURS_PER_CHANGE_MAX {
            let small = |(_, page): &(_, &Page)| held + page.extents.len() <= EXTENTS_PER_PAGE_MAX / 2;
            if let Some((first, page)) = self.pages.range(..from).next_back().filter(small) {
                (from, held) = (*first, held + page.extents.len());
            } else if let Some((first, page)) = self.pages.range(to..).next().filter(small) {
                (to, held) = (*first + 1, held + page.extents.len());
            }
        }
        let touched: Vec<u64> = self.pages.range(from..to).map(|(first, _)| *first).collect();
        let old: Vec<(u64, u32)> =
            self.pages.range(from..to).flat_map(|(_, page)| page.extents.iter().copied()).collect();
        let end = self.end_of(*touched.last().expect("a range has a page"));
        // A range in the middle of an extent makes three of it.
        let needed = (old.len() + 2).div_ceil(EXTENTS_PER_PAGE_MAX);
        if needed as u64 > touched.len() as u64 + self.free_slots() {
            return Err(Refused::Full);
        }
        let numbers = self.intern(new)?;
        let extents = relabelled(&old, end, range, &numbers);
        for (_, number) in &extents {
            self.labels.add_use(*number);
        }
        for (_, number) in &old {
            self.labels.drop_use(*number);
        }
        for (_, number) in &old {
            self.labels.unuse(*number);
        }
        let mut slots: Vec<u32> =
            touched.iter().map(|first| self.pages.remove(first).expect("it was touched").slot).collect();
        slots.reverse();
        let mut stored = Vec::new();
        let per_page = extents.len().div_ceil(extents.len().div_ceil(EXTENTS_PER_PAGE_MAX));
        for part in extents.chunks(per_page) {
            let slot = slots.pop().unwrap_or_else(|| self.take_slot());
            self.pages.insert(part[0].0, Page { slot, extents: part.to_vec() });
            stored.push((slot, SlotContent::Page(part[0].0)));
        }
        for slot in slots {
            self.free.insert(slot);
            stored.push((slot, SlotContent::Nothing));
        }
        self.generation += 1;
        Ok(self.images(&stored))
    }

    /// The numbers of new labels; on failure none is left behind.
    fn intern(&mut self, new: BTreeMap<u32, Label>) -> Result<BTreeMap<u32, u32>, Refused> {
        let mut numbers = BTreeMap::new();
        for (old, label) in new {
            match self.labels.intern(label) {
                Ok(number) => numbers.insert(old, number),
                Err(why) => {
                    numbers.values().for_each(|number| self.labels.unuse(*number));
                    return Err(why);
                }
            };
        }
        Ok(numbers)
    }

    /// The header, the label blocks that changed, and these slots: each with the page that it holds, by its first
    /// block, or with none.
    fn images(&mut self, slots: &[(u32, SlotContent)]) -> Vec<Image> {
        let header = Header {
            format: if self.extra.is_empty() { FORMAT_PLAIN } else { FORMAT },
            disk: self.disk.clone(),
            generation: self.generation,
            label_blocks: self.labels.blocks_used() as u32,
            page_slots: self.slots,
        };
        let mut images = vec![image(&self.disk, 0, &Body::Header(header))];
        for block in std::mem::take(&mut self.labels.changed) {
            images.push(image(&self.disk, 1 + block as u64, &Body::Labels(self.labels.stored(block))));
        }
        for (slot, held) in slots {
            let body = match held {
                SlotContent::Page(first) => Body::Page(self.pages[first].extents.clone()),
                SlotContent::Piece(piece) => {
                    let bytes = self.extra.chunks(PIECE_BYTES_MAX).nth(*piece).expect("it has that piece");
                    Body::Kept(*piece as u32, bytes.to_vec())
                }
                SlotContent::Nothing => Body::Page(Vec::new()),
            };
            let block = 1 + format::label_blocks(&self.disk) + u64::from(*slot);
            images.push(image(&self.disk, block, &body));
        }
        images
    }
}

impl Page {
    /// The first block of the page's last extent.
    fn last(&self) -> u64 {
        self.extents.last().expect("pages are not empty").0
    }
}

/// `old`, which ends at `end`, with the labels in the range replaced and neighbours with the same label
/// merged.
fn relabelled(
    old: &[(u64, u32)],
    end: u64,
    range: BlockRange,
    numbers: &BTreeMap<u32, u32>,
) -> Vec<(u64, u32)> {
    let mut extents: Vec<(u64, u32)> = Vec::with_capacity(old.len() + 2);
    let mut push = |first: u64, number: u32| {
        if extents.last().is_none_or(|last| last.1 != number) {
            extents.push((first, number));
        }
    };
    let ends = old.iter().skip(1).map(|extent| extent.0).chain([end]);
    for ((first, number), end) in old.iter().copied().zip(ends) {
        let (inside, after) = (range.first().max(first), range.end().max(first).min(end));
        if first < range.first() || inside >= after {
            push(first, number);
        }
        if inside < after {
            push(inside, numbers[&number]);
            if after < end {
                push(after, number);
            }
        }
    }
    extents
}
