//! The memory of regions: files on a tmpfs that can only be reached through views given to components. Each
//! has a second file for its words.

use crate::views::{WORDS_BYTES, to_bytes};
use holdfast_components::{Access, ComponentError, Region, Regions};
use holdfast_monitor::{Memory, PAGE_BYTES, Page, PageId, RegionId, Words};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

struct RegionMemory {
    bytes: Region,
    words: Region,
}

/// Why the memory of a region cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TmpfsError {
    /// There is no memory, or no more.
    #[error("it has no memory")]
    NoMemory,
    /// The system's error.
    #[error(transparent)]
    Region(#[from] ComponentError),
}

/// The memory of all regions, on a tmpfs.
pub(super) struct Tmpfs {
    regions: Arc<Regions>,
    regions_memory: RwLock<HashMap<RegionId, Arc<RegionMemory>>>,
}

impl Tmpfs {
    pub(super) fn new(regions: Arc<Regions>) -> Tmpfs {
        Tmpfs { regions, regions_memory: RwLock::default() }
    }

    fn memory(&self, region: RegionId) -> Result<Arc<RegionMemory>, TmpfsError> {
        self.regions_memory.read().get(&region).cloned().ok_or(TmpfsError::NoMemory)
    }
}

fn at(page: PageId) -> u64 {
    u64::from(page.index) * PAGE_BYTES as u64
}

impl Memory for Tmpfs {
    type View = [OwnedFd; 2];
    type Error = TmpfsError;

    fn note(&self, page: PageId, words: Words) {
        let memory = self.memory(page.region).expect("a region that is noted is there");
        // Each half is eight aligned bytes, which the kernel copies in one store. A mixture of two successive
        // states is never one of a filled page: either one of them is of a page without a block, or both are
        // of the same block.
        let written = memory.words.write_at(u64::from(page.index) * WORDS_BYTES as u64, &to_bytes(words));
        written.expect("the words of a region have room for all its pages");
    }

    fn create(&self, region: RegionId, pages: usize) -> Result<(), TmpfsError> {
        let bytes = self.regions.region((pages * PAGE_BYTES) as u64)?;
        let words = self.regions.region((pages * WORDS_BYTES) as u64)?;
        self.regions_memory.write().insert(region, Arc::new(RegionMemory { bytes, words }));
        Ok(())
    }

    fn read(&self, page: PageId, into: &mut Page) -> Result<(), TmpfsError> {
        Ok(self.memory(page.region)?.bytes.read_at(at(page), into)?)
    }

    fn write(&self, page: PageId, from: &Page) -> Result<(), TmpfsError> {
        Ok(self.memory(page.region)?.bytes.write_at(at(page), from)?)
    }

    fn clear(&self, page: PageId) -> Result<(), TmpfsError> {
        Ok(self.memory(page.region)?.bytes.punch(page.index.into())?)
    }

    fn view(&self, region: RegionId) -> Result<[OwnedFd; 2], TmpfsError> {
        let memory = self.memory(region)?;
        Ok([memory.bytes.view(Access::ReadOnly)?, memory.words.view(Access::ReadOnly)?])
    }

    fn revoke(&self, region: RegionId) -> Result<(), TmpfsError> {
        Ok(self.memory(region)?.bytes.revoke()?)
    }

    fn remove(&self, region: RegionId) -> Result<(), TmpfsError> {
        // Dropping it removes the memory for all components.
        self.regions_memory.write().remove(&region).map(|_| ()).ok_or(TmpfsError::NoMemory)
    }
}
