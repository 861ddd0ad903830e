//! Regions: memory that caches blocks in pages, with an ACL (paper, sections 3.2 and 4.4 to 4.7). Pure.
//!
//! Invariants:
//! - A block is in at most one page, so that nobody sees an older copy of it.
//! - A page is filled only from its own block, and written only to its own block.
//! - A dirty page is freed only together with the block's content.
//! - Ids of regions are never used again.

use crate::MonitorError;
use holdfast_access::Acl;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A block of a disk (the paper's ⟨bus, disk, block⟩; the bus follows from the disk).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, borsh::BorshSerialize, borsh::BorshDeserialize,
)]
pub struct BlockId {
    /// The disk.
    pub disk: u16,
    /// The block's number on the disk.
    pub number: u64,
}

/// A region.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, borsh::BorshSerialize, borsh::BorshDeserialize,
)]
pub struct RegionId(pub u64);

/// A page of a region.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, borsh::BorshSerialize, borsh::BorshDeserialize,
)]
pub struct PageId {
    /// The region.
    pub region: RegionId,
    /// The index of the page in its region.
    pub index: u32,
}

/// A cache reference: a page as long as it caches this block. The holder of an outdated reference is refused,
/// and never sees or changes the block that the page was assigned to since. A reference names its block, so
/// that a component that passes references on cannot pass one block off as another.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, borsh::BorshSerialize, borsh::BorshDeserialize,
)]
pub struct Reference {
    /// The page.
    pub page: PageId,
    /// Grows each time the page is assigned to a block.
    pub generation: u32,
    /// The block.
    pub block: BlockId,
}

/// Whether changes that were not written to the disk may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discard {
    /// No change may be lost: a page with such changes is not freed.
    Nothing,
    /// Changes may be lost, because the block is erased.
    Content,
}

/// The status of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub enum Status {
    /// The page has no block, or the block has not been read yet.
    Empty,
    /// The page has the same content as the disk.
    Clean,
    /// The page has changes that the disk does not have.
    Dirty,
}

#[derive(Clone, Copy)]
struct Page {
    block: BlockId,
    status: Status,
    /// Whether the page is being transferred. A page that is being written is clean, unless it was changed
    /// meanwhile.
    is_moving: bool,
}

struct Region {
    acl: Acl,
    pages: Vec<Option<Page>>,
    /// For each page, the generation of the block that it was last assigned to.
    generations: Vec<u32>,
}

/// All regions, with the pages in them.
pub struct Regions {
    regions: HashMap<RegionId, Region>,
    places: BTreeMap<BlockId, PageId>,
    next: u64,
    pages_max: usize,
}

impl Regions {
    /// No regions, with room for `pages_max` pages.
    pub fn new(pages_max: usize) -> Regions {
        Regions { regions: HashMap::new(), places: BTreeMap::new(), next: 1, pages_max }
    }

    fn region(&self, id: RegionId) -> Result<&Region, MonitorError> {
        self.regions.get(&id).ok_or(MonitorError::NoRegion(id))
    }

    fn region_mut(&mut self, id: RegionId) -> Result<&mut Region, MonitorError> {
        self.regions.get_mut(&id).ok_or(MonitorError::NoRegion(id))
    }

    fn page(&self, id: PageId) -> Result<Page, MonitorError> {
        let page = self.region(id.region)?.pages.get(id.index as usize).copied().flatten();
        page.ok_or(MonitorError::NoPage(id))
    }

    fn page_mut(&mut self, id: PageId) -> Result<&mut Page, MonitorError> {
        let page = self.region_mut(id.region)?.pages.get_mut(id.index as usize);
        page.and_then(Option::as_mut).ok_or(MonitorError::NoPage(id))
    }

    /// Creates a region of pages without blocks.
    ///
    /// # Errors
    /// [`MonitorError::TooLong`].
    pub fn create(&mut self, acl: Acl, pages: usize) -> Result<RegionId, MonitorError> {
        if pages > REGION_PAGES_MAX {
            return Err(MonitorError::TooLong { found: pages, pages_max: REGION_PAGES_MAX });
        }
        let id = RegionId(self.next);
        self.next += 1;
        let region = Region { acl, pages: vec![None; pages], generations: vec![0; pages] };
        self.regions.insert(id, region);
        Ok(id)
    }

    /// Assigns empty pages to blocks: to all of them or to none.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::Cached`], [`MonitorError::NoMemory`].
    pub fn assign(
        &mut self,
        id: RegionId,
        first: u32,
        blocks: &[BlockId],
    ) -> Result<Vec<Reference>, MonitorError> {
        if self.places.len() + blocks.len() > self.pages_max {
            return Err(MonitorError::NoMemory { pages_max: self.pages_max });
        }
        let range = first as usize..(first as usize).saturating_add(blocks.len());
        let pages = &self.region(id)?.pages;
        let Some(free) = pages.get(range.clone()) else {
            return Err(MonitorError::TooLong { found: range.end, pages_max: pages.len() });
        };
        if let Some(at) = free.iter().position(Option::is_some) {
            return Err(MonitorError::Assigned(PageId { region: id, index: first + at as u32 }));
        }
        let mut places = HashMap::with_capacity(blocks.len());
        for (index, block) in (first..).zip(blocks) {
            let page = PageId { region: id, index };
            let other = self.places.get(block).copied().or(places.insert(*block, page));
            if let Some(page) = other {
                return Err(MonitorError::Cached { block: *block, page });
            }
        }
        self.places.extend(places);
        let region = self.region_mut(id)?;
        let mut references = Vec::with_capacity(blocks.len());
        for (index, block) in range.zip(blocks) {
            region.pages[index] = Some(Page { block: *block, status: Status::Empty, is_moving: false });
            // The number wraps after 2^32 assignments; then a reference from so long ago would be valid
            // again.
            region.generations[index] = region.generations[index].wrapping_add(1);
            let page = PageId { region: id, index: index as u32 };
            references.push(Reference { page, generation: region.generations[index], block: *block });
        }
        Ok(references)
    }

    /// The reference of a page, with its block and status. Readers without a lock see the same in the
    /// region's words.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`].
    pub fn reference(&self, id: PageId) -> Result<(Reference, BlockId, Status), MonitorError> {
        let page = self.page(id)?;
        let generation = self.region(id.region)?.generations[id.index as usize];
        Ok((Reference { page: id, generation, block: page.block }, page.block, page.status))
    }

    /// The block and status of a page, if the reference is still valid.
    ///
    /// # Errors
    /// [`MonitorError::Outdated`].
    pub fn current(&self, reference: Reference) -> Result<(BlockId, Status), MonitorError> {
        match self.reference(reference.page) {
            Ok((now, block, status)) if now == reference => Ok((block, status)),
            _ => Err(MonitorError::Outdated(reference)),
        }
    }

    /// The ACL of a region.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`].
    pub fn acl(&self, id: RegionId) -> Result<&Acl, MonitorError> {
        Ok(&self.region(id)?.acl)
    }

    /// Changes an ACL.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`].
    pub fn set_acl(&mut self, id: RegionId, acl: Acl) -> Result<(), MonitorError> {
        self.region_mut(id)?.acl = acl;
        Ok(())
    }

    /// The ids of all regions.
    pub fn ids(&self) -> impl Iterator<Item = RegionId> {
        self.regions.keys().copied()
    }

    /// Pages with changes that were not written to the disk, with their blocks.
    pub fn dirty_pages(&self) -> Vec<(PageId, BlockId)> {
        let is_dirty = |page: &PageId| matches!(self.reference(*page), Ok((_, _, Status::Dirty)));
        self.places.iter().filter(|(_, page)| is_dirty(page)).map(|(block, page)| (*page, *block)).collect()
    }

    /// The pages that cache these blocks.
    pub fn places_of(&self, first: BlockId, count: u64) -> Vec<PageId> {
        let end = BlockId { number: first.number.saturating_add(count), ..first };
        self.places.range(first..end).map(|(_, page)| *page).collect()
    }

    /// Begins a transfer from the disk: `block` must be the page's, and the page must be empty (checks iii
    /// and iv).
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`], [`MonitorError::WrongBlock`],
    /// [`MonitorError::WrongStatus`], [`MonitorError::Busy`].
    pub fn begin_fill(&mut self, id: PageId, block: BlockId) -> Result<(), MonitorError> {
        self.begin(id, block, Status::Empty)?.is_moving = true;
        Ok(())
    }

    /// Begins a transfer to the disk: `block` must be the page's, and the page must be dirty (checks iii and
    /// iv). It is clean from now on, so that a change while it is copied makes it dirty again.
    ///
    /// # Errors
    /// As for [`Regions::begin_fill`].
    pub fn begin_drain(&mut self, id: PageId, block: BlockId) -> Result<(), MonitorError> {
        let page = self.begin(id, block, Status::Dirty)?;
        (page.is_moving, page.status) = (true, Status::Clean);
        Ok(())
    }

    fn begin(&mut self, id: PageId, block: BlockId, needed: Status) -> Result<&mut Page, MonitorError> {
        let page = self.still(id)?;
        if page.block != block {
            return Err(MonitorError::WrongBlock { page: id, expected: page.block, found: block });
        }
        if page.status != needed {
            return Err(MonitorError::WrongStatus { page: id, expected: needed, found: page.status });
        }
        Ok(page)
    }

    /// A page that is not being transferred.
    fn still(&mut self, id: PageId) -> Result<&mut Page, MonitorError> {
        match self.page_mut(id)? {
            page if page.is_moving => Err(MonitorError::Busy(id)),
            page => Ok(page),
        }
    }

    /// Ends a transfer. The page gets `status`, unless it was made dirty meanwhile. Nobody can have freed it.
    pub fn end(&mut self, id: PageId, status: Status) {
        let page = self.page_mut(id).expect("a page that is being transferred stays");
        page.is_moving = false;
        if page.status != Status::Dirty {
            page.status = status;
        }
    }

    /// Marks a page as dirty, before it is changed in memory. An empty page can only be changed as a whole.
    ///
    /// # Errors
    /// [`MonitorError::Busy`] if the page is being filled; [`MonitorError::WrongStatus`] if it is empty and
    /// only a part is to be changed; [`MonitorError::NoPage`].
    pub fn dirty(&mut self, id: PageId, is_whole: bool) -> Result<(), MonitorError> {
        let page = self.page_mut(id)?;
        match (page.status, page.is_moving) {
            (Status::Empty, true) => return Err(MonitorError::Busy(id)),
            (Status::Empty, false) if !is_whole => {
                return Err(MonitorError::WrongStatus {
                    page: id,
                    expected: Status::Clean,
                    found: Status::Empty,
                });
            }
            _ => page.status = Status::Dirty,
        }
        Ok(())
    }

    /// Marks a page as clean, because memory and disk both get the same new content for the whole block.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`], [`MonitorError::Busy`].
    pub fn replace(&mut self, id: PageId) -> Result<(), MonitorError> {
        self.still(id)?.status = Status::Clean;
        Ok(())
    }

    /// Checks that the page has a block and is not being transferred.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`], [`MonitorError::Busy`].
    pub fn is_still(&mut self, id: PageId) -> Result<(), MonitorError> {
        self.still(id).map(|_| ())
    }

    /// Frees pages, all of them or none, and returns those that had blocks. Dirty pages are not freed unless
    /// `lose` allows that their content is lost.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::Busy`], [`MonitorError::WrongStatus`].
    pub fn free(&mut self, id: RegionId, pages: Range<u32>, lose: Discard) -> Result<Vec<u32>, MonitorError> {
        let end = pages.end.min(self.region(id)?.pages.len() as u32);
        let mut taken = Vec::new();
        for index in pages.start.min(end)..end {
            let page = PageId { region: id, index };
            let Ok(found) = self.page(page) else { continue };
            if found.is_moving {
                return Err(MonitorError::Busy(page));
            }
            if found.status == Status::Dirty && lose == Discard::Nothing {
                return Err(MonitorError::WrongStatus { page, expected: Status::Clean, found: found.status });
            }
            taken.push((index, found.block));
        }
        for (index, block) in &taken {
            self.places.remove(block);
            self.region_mut(id)?.pages[*index as usize] = None;
        }
        Ok(taken.into_iter().map(|(index, _)| index).collect())
    }

    /// Removes a region whose pages have no blocks.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::InUse`].
    pub fn remove(&mut self, id: RegionId) -> Result<(), MonitorError> {
        if self.region(id)?.pages.iter().any(Option::is_some) {
            return Err(MonitorError::InUse(id));
        }
        self.regions.remove(&id);
        Ok(())
    }
}

/// Most pages of a region. A long file has several regions, so a change of an ACL, and the copying that it
/// causes, is bounded.
pub const REGION_PAGES_MAX: usize = 256;
