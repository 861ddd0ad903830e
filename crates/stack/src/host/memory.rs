//! The memory of regions: files on a tmpfs that can only be reached through views given to components. Each
//! has a second file for its words.

use crate::views::{WORDS_BYTES, to_bytes};
use holdfast_components::{Access, Region, Regions};
use holdfast_monitor::{Memory, PAGE_BYTES, Page, PageId, RegionId, Words};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

struct RegionMemory {
    bytes: Region,
    words: Region,
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

    fn memory(&self, region: RegionId) -> Result<Arc<RegionMemory>, String> {
        self.regions_memory.read().get(&region).cloned().ok_or_else(|| "it has no memory".to_owned())
    }
}

fn at(page: PageId) -> u64 {
    u64::from(page.index) * PAGE_BYTES as u64
}

impl Memory for Tmpfs {
    type View = [OwnedFd; 2];

    fn note(&self, page: PageId, words: Words) {
        let memory = self.memory(page.region).expect("a region that is noted is there");
        // Each half is eight aligned bytes, which the kernel copies in one store. A mixture of two successive
        // states is never one of a filled page: either one of them is of a page without a block, or both are
        // of the same block.
        let written = memory.words.write_at(u64::from(page.index) * WORDS_BYTES as u64, &to_bytes(words));
        written.expect("the words of a region have room for all its pages");
    }

    fn create(&self, region: RegionId, pages: usize) -> Result<(), String> {
        let bytes = self.regions.region((pages * PAGE_BYTES) as u64).map_err(|error| error.to_string())?;
        let words = self.regions.region((pages * WORDS_BYTES) as u64).map_err(|error| error.to_string())?;
        self.regions_memory.write().insert(region, Arc::new(RegionMemory { bytes, words }));
        Ok(())
    }

    fn read(&self, page: PageId, into: &mut Page) -> Result<(), String> {
        self.memory(page.region)?.bytes.read_at(at(page), into).map_err(|error| error.to_string())
    }

    fn write(&self, page: PageId, from: &Page) -> Result<(), String> {
        self.memory(page.region)?.bytes.write_at(at(page), from).map_err(|error| error.to_string())
    }

    fn clear(&self, page: PageId) -> Result<(), String> {
        self.memory(page.region)?.bytes.punch(page.index.into()).map_err(|error| error.to_string())
    }

    fn view(&self, region: RegionId) -> Result<[OwnedFd; 2], String> {
        let memory = self.memory(region)?;
        let view = |region: &Region| region.view(Access::ReadOnly).map_err(|error| error.to_string());
        Ok([view(&memory.bytes)?, view(&memory.words)?])
    }

    fn revoke(&self, region: RegionId) -> Result<(), String> {
        self.memory(region)?.bytes.revoke().map_err(|error| error.to_string())
    }

    fn remove(&self, region: RegionId) -> Result<(), String> {
        // Dropped, it is gone for everybody.
        self.regions_memory.write().remove(&region).map(|_| ()).ok_or_else(|| "it has no memory".to_owned())
    }
}
