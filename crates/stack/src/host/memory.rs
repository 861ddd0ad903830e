//! The memory of regions: files on a tmpfs that nobody can reach but by the views that are handed out. Beside each, its
//! words.

use crate::views::{WORDS_BYTES, to_bytes};
use holdfast_components::{Access, Region, Regions};
use holdfast_monitor::{Memory, PAGE_BYTES, Page, PageId, RegionId, Words};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

struct Place {
    bytes: Region,
    words: Region,
}

/// See the module.
pub(super) struct Tmpfs {
    regions: Arc<Regions>,
    places: RwLock<HashMap<RegionId, Arc<Place>>>,
}

impl Tmpfs {
    pub(super) fn new(regions: Arc<Regions>) -> Tmpfs {
        Tmpfs { regions, places: RwLock::default() }
    }

    fn place(&self, region: RegionId) -> Result<Arc<Place>, String> {
        self.places.read().get(&region).cloned().ok_or_else(|| "it has no memory".to_owned())
    }
}

fn at(page: PageId) -> u64 {
    u64::from(page.index) * PAGE_BYTES as u64
}

impl Memory for Tmpfs {
    type View = [OwnedFd; 2];

    fn note(&self, page: PageId, words: Words) {
        let place = self.place(page.region).expect("a region that is noted is there");
        // Each half is eight aligned bytes, which the kernel copies in one store. A mixture of two notes that follow each
        // other is never one of a filled page: one of them is of a page without a block, or both are of the same.
        let written = place.words.write_at(u64::from(page.index) * WORDS_BYTES as u64, &to_bytes(words));
        written.expect("the words of a region have room for all its pages");
    }

    fn create(&self, region: RegionId, pages: usize) -> Result<(), String> {
        let bytes = self.regions.region((pages * PAGE_BYTES) as u64).map_err(|error| error.to_string())?;
        let words = self.regions.region((pages * WORDS_BYTES) as u64).map_err(|error| error.to_string())?;
        self.places.write().insert(region, Arc::new(Place { bytes, words }));
        Ok(())
    }

    fn read(&self, page: PageId, into: &mut Page) -> Result<(), String> {
        self.place(page.region)?.bytes.read_at(at(page), into).map_err(|error| error.to_string())
    }

    fn write(&self, page: PageId, from: &Page) -> Result<(), String> {
        self.place(page.region)?.bytes.write_at(at(page), from).map_err(|error| error.to_string())
    }

    fn clear(&self, page: PageId) -> Result<(), String> {
        self.place(page.region)?.bytes.punch(page.index.into()).map_err(|error| error.to_string())
    }

    fn view(&self, region: RegionId) -> Result<[OwnedFd; 2], String> {
        let place = self.place(region)?;
        let view = |region: &Region| region.view(Access::ReadOnly).map_err(|error| error.to_string());
        Ok([view(&place.bytes)?, view(&place.words)?])
    }

    fn revoke(&self, region: RegionId) -> Result<(), String> {
        self.place(region)?.bytes.revoke().map_err(|error| error.to_string())
    }

    fn remove(&self, region: RegionId) -> Result<(), String> {
        // Dropped, it is gone for everybody.
        self.places.write().remove(&region).map(|_| ()).ok_or_else(|| "it has no memory".to_owned())
    }
}
