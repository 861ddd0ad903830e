//! The requests to the monitor, with their guards.

use crate::regions::{Discard, Regions};
use crate::{BlockId, Layout, MonitorError, PageId, REGION_PAGES_MAX, Reference, RegionId, Status};
use holdfast_access::{Access, Acl, Alias, Limit, Objects, Principal};
use holdfast_volume::Volume;
use parking_lot::Mutex;
use std::ops::Range;

/// Bytes of a page, and of the largest block.
pub const PAGE_BYTES: usize = 4096;

/// Most blocks in one reply to [`Monitor::places`].
const PLACES_MAX: usize = 1024;

/// A page's content.
pub type Page = [u8; PAGE_BYTES];

/// The memory of regions. It stores bytes and decides nothing.
pub trait Memory {
    /// A view by which a process reads a region, and the region's words with the status of its pages.
    type View;

    /// The error of the memory, which says what the system reported.
    type Error: std::fmt::Display;

    /// Writes the status of a page into its region's words ([`words`]). Readers see this before anything done
    /// later, and after anything done earlier.
    fn note(&self, page: PageId, words: Words);

    /// Creates a region's memory, filled with zeroes.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn create(&self, region: RegionId, pages: usize) -> Result<(), Self::Error>;

    /// Copies a page out.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn read(&self, page: PageId, into: &mut Page) -> Result<(), Self::Error>;

    /// Copies a page in.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn write(&self, page: PageId, from: &Page) -> Result<(), Self::Error>;

    /// Fills a page with zeroes again, so that it takes no memory.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn clear(&self, page: PageId) -> Result<(), Self::Error>;

    /// Returns a view by which a process can read a region.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn view(&self, region: RegionId) -> Result<Self::View, Self::Error>;

    /// Revokes all views of a region. The content stays.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn revoke(&self, region: RegionId) -> Result<(), Self::Error>;

    /// Frees a region's memory, and revokes its views.
    ///
    /// # Errors
    /// [`Memory::Error`]
    fn remove(&self, region: RegionId) -> Result<(), Self::Error>;
}

/// A disk of the monitor.
pub struct Disk {
    /// The volume that verifies it.
    pub volume: Volume,
    /// The layout of its blocks.
    pub layout: Layout,
    /// The principal that may transfer: the DiskDriver of its bus.
    pub driver: Principal,
}

/// Components that the monitor recognises by their program, whatever the name of their process.
pub struct Names {
    /// The principal that may make regions and assign blocks to them.
    pub policy_manager: Principal,
    /// The principal that may see the status of all pages.
    pub cache_manager: Principal,
}

/// The direction of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub enum Direction {
    /// From the disk to memory.
    Fill,
    /// From memory to the disk.
    Drain,
}

/// A block's new content, for [`Monitor::write_together`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The page where the block is cached.
    pub at: Reference,
    /// The bytes of the whole block.
    pub bytes: Vec<u8>,
}

/// The two words of a page in its region's memory.
pub type Words = [u64; 2];

/// The words of a page: its reference, and whether it is filled. A process that reads a page through a view
/// looks at them before and after. If both times they are those of a filled page with its reference, the
/// bytes it has read are the block.
pub fn words(at: Reference, is_filled: bool) -> Words {
    let second = u64::from(at.generation) << 32 | u64::from(at.block.disk) << 16 | u64::from(is_filled);
    [at.block.number, second]
}

/// The error for a region whose memory failed.
fn memory_failed<E: std::fmt::Display>(region: RegionId) -> impl FnOnce(E) -> MonitorError {
    move |error| MonitorError::Memory { region, error: error.to_string() }
}

/// The words of a page without a block. No reference to a filled page has these words.
const NOTHING: Words = [0, 0];

/// The monitor (see the crate's documentation). Every method takes the name that the request was made in.
pub struct Monitor<M> {
    regions: Mutex<Regions>,
    memory: M,
    disks: Vec<Disk>,
    names: Names,
    /// Held during a change, so that memory and disk agree on which change was the last.
    writing: Mutex<()>,
}

fn named(by: &Alias, principal: &Principal, what: &'static str) -> Result<(), MonitorError> {
    // A caller who speaks for a component, but with restrictions, is not the component.
    let is_it = by.principal() == principal && *by.scope() == holdfast_access::Scope::EVERYTHING;
    if is_it { Ok(()) } else { Err(MonitorError::Denied(what)) }
}

impl<M: Memory> Monitor<M> {
    /// A monitor of these disks, which are named by their position in the list, with room for `pages_max`
    /// pages.
    pub fn new(memory: M, disks: Vec<Disk>, names: Names, pages_max: usize) -> Monitor<M> {
        Monitor {
            regions: Mutex::new(Regions::new(pages_max)),
            memory,
            disks,
            names,
            writing: Mutex::new(()),
        }
    }

    fn disk(&self, number: u16) -> Result<&Disk, MonitorError> {
        let none = MonitorError::NoBlock(BlockId { disk: number, number: 0 });
        self.disks.get(usize::from(number)).ok_or(none)
    }

    /// The disk and the offset of a block, its length in bytes, and the number of blocks from it to the end
    /// of its extent, itself included.
    fn place(&self, block: BlockId) -> Result<(&Disk, u64, usize, u64), MonitorError> {
        let disk = self.disk(block.disk)?;
        let (offset, bytes, more) = disk.layout.find(block.number).ok_or(MonitorError::NoBlock(block))?;
        Ok((disk, offset, bytes, more))
    }

    /// Creates a region of pages without blocks, for PolicyMgr.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::TooLong`], [`MonitorError::Memory`].
    pub fn create_region(&self, by: &Alias, acl: Acl, pages: usize) -> Result<RegionId, MonitorError> {
        named(by, &self.names.policy_manager, "making regions")?;
        let mut regions = self.regions.lock();
        let id = regions.create(acl, pages)?;
        let made = self.memory.create(id, pages).map_err(memory_failed(id));
        made.inspect_err(|_| regions.remove(id).expect("it is there and has no blocks"))?;
        Ok(id)
    }

    /// Assigns pages of a region to blocks, for PolicyMgr: to all of them or to none. PolicyMgr answers for
    /// it that everybody on the region's ACL may have the blocks.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoBlock`], [`MonitorError::NoRegion`],
    /// [`MonitorError::TooLong`], [`MonitorError::Assigned`], [`MonitorError::Cached`],
    /// [`MonitorError::NoMemory`].
    pub fn assign(
        &self,
        by: &Alias,
        region: RegionId,
        first: u32,
        blocks: &[BlockId],
    ) -> Result<Vec<Reference>, MonitorError> {
        named(by, &self.names.policy_manager, "giving regions blocks")?;
        blocks.iter().try_for_each(|block| self.place(*block).map(|_| ()))?;
        let mut regions = self.regions.lock();
        let references = regions.assign(region, first, blocks)?;
        references.iter().for_each(|at| self.memory.note(at.page, words(*at, false)));
        Ok(references)
    }

    /// Changes a region's ACL, for PolicyMgr. Afterwards nobody has a view of it without asking again.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`], [`MonitorError::Memory`].
    pub fn set_acl(&self, by: &Alias, region: RegionId, acl: Acl) -> Result<(), MonitorError> {
        named(by, &self.names.policy_manager, "changing the ACL of a region")?;
        let mut regions = self.regions.lock();
        regions.set_acl(region, acl)?;
        self.memory.revoke(region).map_err(memory_failed(region))
    }

    /// Frees pages that are not dirty, for PolicyMgr: all of them or none.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`], [`MonitorError::Busy`],
    /// [`MonitorError::WrongStatus`], [`MonitorError::Memory`].
    pub fn free(&self, by: &Alias, region: RegionId, pages: Range<u32>) -> Result<(), MonitorError> {
        named(by, &self.names.policy_manager, "freeing pages")?;
        self.drop_pages(&mut self.regions.lock(), region, pages, Discard::Nothing)
    }

    fn drop_pages(
        &self,
        regions: &mut Regions,
        region: RegionId,
        pages: Range<u32>,
        lose: Discard,
    ) -> Result<(), MonitorError> {
        for index in regions.free(region, pages, lose)? {
            let page = PageId { region, index };
            // The next block in the page must not be taken for this one.
            self.memory.note(page, NOTHING);
            self.memory.clear(page).map_err(memory_failed(region))?;
        }
        Ok(())
    }

    /// Removes a region without blocks, for PolicyMgr.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`], [`MonitorError::InUse`],
    /// [`MonitorError::Memory`].
    pub fn remove_region(&self, by: &Alias, region: RegionId) -> Result<(), MonitorError> {
        named(by, &self.names.policy_manager, "giving up regions")?;
        let mut regions = self.regions.lock();
        regions.remove(region)?;
        self.memory.remove(region).map_err(memory_failed(region))
    }

    /// Erases blocks, in memory and on the disk, for PolicyMgr, before they get another owner. The volume's
    /// log has this before all later writes, so no crash brings the content back to a new owner.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoBlock`], [`MonitorError::Busy`], [`MonitorError::Volume`].
    pub fn erase(&self, by: &Alias, first: BlockId, count: u64) -> Result<(), MonitorError> {
        named(by, &self.names.policy_manager, "erasing blocks")?;
        let last = first.number.checked_add(count).ok_or(MonitorError::NoBlock(first))?;
        if count == 0 {
            return Ok(());
        }
        self.place(BlockId { number: last - 1, ..first })?;
        let _one = self.writing.lock();
        {
            let mut regions = self.regions.lock();
            for page in regions.places_of(first, count) {
                self.drop_pages(&mut regions, page.region, page.index..page.index + 1, Discard::Content)?;
            }
        }
        let mut number = first.number;
        while number < last {
            let (disk, offset, bytes, more) = self.place(BlockId { number, ..first })?;
            let blocks = more.min(last - number);
            erase_bytes(&disk.volume, offset..offset + blocks * bytes as u64)?;
            number += blocks;
        }
        Ok(())
    }

    /// Transfers consecutive blocks from or to these pages, for a DiskDriver. If a page fails its checks, all
    /// are refused before anything is done; if a block is not what was written, all of them fail.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoBlock`], [`MonitorError::TooLong`],
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`], [`MonitorError::WrongBlock`],
    /// [`MonitorError::WrongStatus`], [`MonitorError::Busy`], [`MonitorError::Volume`],
    /// [`MonitorError::Memory`].
    pub fn transfer(
        &self,
        by: &Alias,
        direction: Direction,
        first: BlockId,
        pages: &[PageId],
    ) -> Result<(), MonitorError> {
        let (disk, offset, bytes, more) = self.place(first)?;
        named(by, &disk.driver, "transferring blocks of this disk")?;
        let count = pages.len();
        if count > REGION_PAGES_MAX || count as u64 > more {
            return Err(MonitorError::TooLong {
                found: count,
                pages_max: REGION_PAGES_MAX.min(more as usize),
            });
        }
        // Checks (i) and (ii) hold: every region was created by PolicyMgr.
        let mut regions = self.regions.lock();
        for (at, page) in pages.iter().enumerate() {
            let block = BlockId { number: first.number + at as u64, ..first };
            let begun = match direction {
                Direction::Fill => regions.begin_fill(*page, block),
                Direction::Drain => regions.begin_drain(*page, block),
            };
            if let Err(error) = begun {
                let before = if direction == Direction::Fill { Status::Empty } else { Status::Dirty };
                pages[..at].iter().for_each(|page| regions.end(*page, before));
                return Err(error);
            }
        }
        drop(regions);
        let mut buffer = vec![0; count * bytes];
        let moved = match direction {
            Direction::Fill => self.fill(disk, offset, bytes, &mut buffer, pages),
            Direction::Drain => self.drain(disk, offset, bytes, &mut buffer, pages),
        };
        let after = match (direction, &moved) {
            (_, Ok(())) => Status::Clean,
            (Direction::Fill, Err(_)) => Status::Empty,
            (Direction::Drain, Err(_)) => Status::Dirty,
        };
        let mut regions = self.regions.lock();
        for page in pages {
            regions.end(*page, after);
            self.note(&regions, *page);
        }
        moved
    }

    /// Writes the status of a page into its region's words.
    fn note(&self, regions: &Regions, page: PageId) {
        if let Ok((at, _, status)) = regions.reference(page) {
            self.memory.note(page, words(at, status != Status::Empty));
        }
    }

    fn fill(
        &self,
        disk: &Disk,
        offset: u64,
        bytes: usize,
        buffer: &mut [u8],
        pages: &[PageId],
    ) -> Result<(), MonitorError> {
        disk.volume.read(offset, buffer)?;
        for (page, block) in pages.iter().zip(buffer.chunks_exact(bytes)) {
            self.put(*page, block)?;
        }
        Ok(())
    }

    /// Writes a copy, so that nobody can change the content between its hash and the disk.
    fn drain(
        &self,
        disk: &Disk,
        offset: u64,
        bytes: usize,
        buffer: &mut [u8],
        pages: &[PageId],
    ) -> Result<(), MonitorError> {
        let mut whole = [0; PAGE_BYTES];
        for (page, block) in pages.iter().zip(buffer.chunks_exact_mut(bytes)) {
            let read = self.memory.read(*page, &mut whole);
            read.map_err(memory_failed(page.region))?;
            block.copy_from_slice(&whole[..bytes]);
        }
        Ok(disk.volume.write(offset, buffer)?)
    }

    fn put(&self, page: PageId, block: &[u8]) -> Result<(), MonitorError> {
        let mut whole = [0; PAGE_BYTES];
        whole[..block.len()].copy_from_slice(block);
        let written = self.memory.write(page, &whole);
        written.map_err(memory_failed(page.region))
    }

    /// Makes durable all that was transferred and [written together](Monitor::write_together). Everybody may
    /// call this: it changes and reveals nothing, and a component that acknowledges something as durable must
    /// not depend on another component for that.
    ///
    /// # Errors
    /// [`MonitorError::NoBlock`], [`MonitorError::Volume`].
    pub fn flush(&self, disk: u16) -> Result<(), MonitorError> {
        Ok(self.disk(disk)?.volume.flush()?)
    }

    /// Returns a view of a region to somebody on its ACL. A name that is restricted to some blocks gets no
    /// view, because a view shows all blocks of the region, now and later; it can use [`Monitor::read`].
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`], [`MonitorError::Memory`].
    pub fn view(&self, by: &Alias, region: RegionId) -> Result<M::View, MonitorError> {
        // Held, so that a change of the ACL comes either before or after this.
        let regions = self.regions.lock();
        let everywhere = Objects { first: 0, last: u128::MAX };
        let is_whole = *by.scope().objects() == Limit::Every;
        if !is_whole || !regions.acl(region)?.permits(by, Access::Read, everywhere) {
            return Err(MonitorError::Denied("a view of this region"));
        }
        self.memory.view(region).map_err(memory_failed(region))
    }

    /// Revokes all views, because a name by which somebody had one is no longer theirs. Whoever may still
    /// read asks again. For the host, which manages the names.
    ///
    /// # Errors
    /// [`MonitorError::Memory`].
    pub fn revoke_views(&self) -> Result<(), MonitorError> {
        let regions = self.regions.lock();
        let revoked = regions.ids().map(|region| self.memory.revoke(region).map_err(memory_failed(region)));
        // All are tried, even if one fails.
        revoked.collect::<Vec<_>>().into_iter().collect()
    }

    /// Copies a filled page, for somebody on the ACL.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::Outdated`], [`MonitorError::NoRegion`],
    /// [`MonitorError::WrongStatus`], [`MonitorError::Memory`].
    pub fn read(&self, by: &Alias, at: Reference, into: &mut Page) -> Result<(), MonitorError> {
        let regions = self.regions.lock();
        let (_, status) = regions.current(at)?;
        self.permits(&regions, by, at.page, Access::Read)?;
        if status == Status::Empty {
            return Err(MonitorError::WrongStatus { page: at.page, expected: Status::Clean, found: status });
        }
        let read = self.memory.read(at.page, into);
        read.map_err(memory_failed(at.page.region))
    }

    /// Changes a part of a block in memory, from byte `skipped` on, for somebody on the ACL. If the page is
    /// empty, only the whole block can be changed. The disk has the change when the page has been drained.
    /// With no bytes, this only checks whether the caller may write.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::Outdated`], [`MonitorError::NoRegion`],
    /// [`MonitorError::WrongLength`], [`MonitorError::WrongStatus`], [`MonitorError::Busy`],
    /// [`MonitorError::Memory`].
    pub fn write(&self, by: &Alias, at: Reference, skipped: usize, bytes: &[u8]) -> Result<(), MonitorError> {
        let mut regions = self.regions.lock();
        let (block, _) = regions.current(at)?;
        self.permits(&regions, by, at.page, Access::ReadWrite)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let (_, _, length, _) = self.place(block)?;
        let end = skipped.saturating_add(bytes.len());
        if end > length {
            return Err(MonitorError::WrongLength { expected: length, found: end });
        }
        let memory = || memory_failed(at.page.region);
        let is_whole = bytes.len() == length;
        let mut whole = [0; PAGE_BYTES];
        if !is_whole {
            self.memory.read(at.page, &mut whole).map_err(memory())?;
        }
        regions.dirty(at.page, is_whole)?;
        whole[skipped..end].copy_from_slice(bytes);
        self.memory.write(at.page, &whole).map_err(memory())?;
        self.note(&regions, at.page);
        Ok(())
    }

    fn permits(
        &self,
        regions: &Regions,
        by: &Alias,
        page: PageId,
        access: Access,
    ) -> Result<(), MonitorError> {
        let (_, block, _) = regions.reference(page)?;
        let objects = Objects::blocks(block.disk, block.number, 1).ok_or(MonitorError::NoBlock(block))?;
        let is_permitted = regions.acl(page.region)?.permits(by, access, objects);
        let what = if access == Access::Read { "reading this page" } else { "changing this page" };
        if is_permitted { Ok(()) } else { Err(MonitorError::Denied(what)) }
    }

    /// Replaces whole blocks of one disk, for somebody who may write them. After a crash, either all of them
    /// are replaced or none; calls take effect in their order. This is the journal of the file systems'
    /// metadata and of the policy table. It is durable after a flush.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`], [`MonitorError::Outdated`],
    /// [`MonitorError::Busy`], [`MonitorError::WrongLength`], [`MonitorError::Memory`];
    /// [`MonitorError::Volume`], also if the blocks are more than its log takes at once.
    pub fn write_together(&self, by: &Alias, disk: u16, writes: &[Write]) -> Result<(), MonitorError> {
        let disk_of = self.disk(disk)?;
        let _one = self.writing.lock();
        let mut together: Vec<(u64, &[u8])> = Vec::with_capacity(writes.len());
        {
            let mut regions = self.regions.lock();
            for write in writes {
                let (block, _) = regions.current(write.at)?;
                self.permits(&regions, by, write.at.page, Access::ReadWrite)?;
                regions.is_still(write.at.page)?;
                if block.disk != disk {
                    return Err(MonitorError::NoBlock(block));
                }
                let (_, offset, bytes, _) = self.place(block)?;
                if write.bytes.len() != bytes {
                    return Err(MonitorError::WrongLength { expected: bytes, found: write.bytes.len() });
                }
                together.push((offset, &write.bytes));
            }
            // Under this lock nobody can free, fill or drain these pages between the write to the disk and to
            // memory.
            disk_of.volume.write_together(&together)?;
            for write in writes {
                self.put(write.at.page, &write.bytes)?;
                regions.replace(write.at.page)?;
                self.note(&regions, write.at.page);
            }
        }
        Ok(())
    }

    /// Length of the block in a page, in bytes.
    ///
    /// # Errors
    /// [`MonitorError::NoRegion`], [`MonitorError::NoPage`].
    pub fn block_bytes(&self, page: PageId) -> Result<usize, MonitorError> {
        let (_, block, _) = self.regions.lock().reference(page)?;
        Ok(self.place(block)?.2)
    }

    /// The anchor of a disk's volume, which says how new its state is.
    pub fn anchor(&self, disk: u16) -> Option<holdfast_log::ring::Anchor> {
        Some(self.disks.get(usize::from(disk))?.volume.anchor())
    }

    /// Writes all dirty pages, whoever wrote them, and closes the volumes, so that the next opening has
    /// nothing to recover. No other request may follow. If a disk fails, the others are closed all the same.
    ///
    /// # Errors
    /// The first of [`MonitorError::Volume`], [`MonitorError::Memory`].
    pub fn close(&self) -> Result<(), MonitorError> {
        let dirty = self.regions.lock().dirty_pages();
        let mut outcome = Ok(());
        for (page, block) in dirty {
            let drained = self.place(block).and_then(|(disk, offset, bytes, _)| {
                self.drain(disk, offset, bytes, &mut vec![0; bytes], &[page])
            });
            outcome = outcome.and(drained);
        }
        for disk in &self.disks {
            outcome = outcome.and(disk.volume.close().map_err(MonitorError::from));
        }
        outcome
    }

    /// The status of pages; `None` for an outdated reference. For CacheMgr, and for anybody who may read the
    /// pages.
    ///
    /// # Errors
    /// [`MonitorError::Denied`], [`MonitorError::NoRegion`].
    pub fn look(&self, by: &Alias, references: &[Reference]) -> Result<Vec<Option<Status>>, MonitorError> {
        let regions = self.regions.lock();
        let is_cache = named(by, &self.names.cache_manager, "seeing what pages have").is_ok();
        let look = |at: &Reference| match regions.current(*at) {
            Err(_) => Ok(None),
            Ok((_, status)) if is_cache => Ok(Some(status)),
            Ok((_, status)) => {
                self.permits(&regions, by, at.page, Access::Read)?;
                Ok(Some(status))
            }
        };
        references.iter().map(look).collect()
    }

    /// The pages that cache these blocks, with their status, at most [`PLACES_MAX`]. For PolicyMgr, which
    /// frees and moves them.
    ///
    /// # Errors
    /// [`MonitorError::Denied`].
    pub fn places(
        &self,
        by: &Alias,
        first: BlockId,
        count: u64,
    ) -> Result<Vec<(Reference, BlockId, Status)>, MonitorError> {
        named(by, &self.names.policy_manager, "seeing where blocks are cached")?;
        let regions = self.regions.lock();
        let places = regions.places_of(first, count);
        Ok(places.iter().take(PLACES_MAX).filter_map(|page| regions.reference(*page).ok()).collect())
    }
}

/// Erases bytes of a volume. Whole blocks of the volume are discarded, which its log records at once. Parts
/// of blocks are overwritten together, which its log records as well.
fn erase_bytes(volume: &Volume, bytes: Range<u64>) -> Result<(), MonitorError> {
    let whole = PAGE_BYTES as u64;
    let first = bytes.start.next_multiple_of(whole).min(bytes.end);
    let last = (bytes.end / whole * whole).max(first);
    let zeroes = [0; PAGE_BYTES];
    let head = (bytes.start, &zeroes[..(first - bytes.start) as usize]);
    let tail = (last, &zeroes[..(bytes.end - last) as usize]);
    let parts: Vec<(u64, &[u8])> = [head, tail].into_iter().filter(|(_, part)| !part.is_empty()).collect();
    volume.write_together(&parts)?;
    Ok(volume.discard(first, last - first)?)
}
