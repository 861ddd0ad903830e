//! A monitor over volumes on simulated devices, with memory that is a map.

use holdfast_access::{Access, Acl, Alias, Name, Principal, Scope};
use holdfast_log::simulated_device::Devices;
use holdfast_monitor::{
    Disk, Extent, Layout, Memory, Monitor, Names, PAGE_BYTES, Page, PageId, Reference, RegionId, Words, words,
};
use holdfast_volume::{Options, Volume, VolumeKey};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A region's bytes; those who have a view of it hold them too, until it is revoked.
type Bytes = Arc<Mutex<Option<Vec<u8>>>>;

/// Memory of regions.
#[derive(Default, Clone)]
pub struct Map(Arc<Mutex<HashMap<RegionId, (Bytes, AllWords)>>>);

/// A region's words.
type AllWords = Arc<Mutex<Vec<Words>>>;

/// A view, through which its holder reads without asking.
pub struct View {
    bytes: Bytes,
    words: AllWords,
}

impl View {
    /// What is seen of a page; nothing if the view was taken away.
    #[allow(dead_code, reason = "not every test looks")]
    pub fn read(&self, index: u32) -> Option<Page> {
        let from = index as usize * PAGE_BYTES;
        let bytes = self.bytes.lock().expect("locked");
        Some(bytes.as_ref()?[from..from + PAGE_BYTES].try_into().expect("a page"))
    }

    /// What is seen of a block by its reference, as components read: nothing if the page is not its block's any more, or
    /// not filled.
    #[allow(dead_code, reason = "not every test looks")]
    pub fn block(&self, at: Reference) -> Option<Page> {
        let is_it = || self.words.lock().expect("locked")[at.page.index as usize] == words(at, true);
        let page = is_it().then(|| self.read(at.page.index))??;
        is_it().then_some(page)
    }
}

impl Map {
    fn with<T>(&self, region: RegionId, what: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, String> {
        let bytes = self.0.lock().expect("locked").get(&region).cloned().ok_or("no memory")?.0;
        let mut bytes = bytes.lock().expect("locked");
        Ok(what(bytes.as_mut().ok_or("revoked")?))
    }
}

fn at(page: PageId) -> std::ops::Range<usize> {
    let from = page.index as usize * PAGE_BYTES;
    from..from + PAGE_BYTES
}

impl Memory for Map {
    type View = View;
    type Error = String;

    fn create(&self, region: RegionId, pages: usize) -> Result<(), String> {
        let bytes = Arc::new(Mutex::new(Some(vec![0; pages * PAGE_BYTES])));
        let words = Arc::new(Mutex::new(vec![[0, 0]; pages]));
        self.0.lock().expect("locked").insert(region, (bytes, words));
        Ok(())
    }

    fn read(&self, page: PageId, into: &mut Page) -> Result<(), String> {
        self.with(page.region, |bytes| into.copy_from_slice(&bytes[at(page)]))
    }

    fn write(&self, page: PageId, from: &Page) -> Result<(), String> {
        self.with(page.region, |bytes| bytes[at(page)].copy_from_slice(from))
    }

    fn clear(&self, page: PageId) -> Result<(), String> {
        self.write(page, &[0; PAGE_BYTES])
    }

    fn note(&self, page: PageId, noted: Words) {
        let (_, words) = self.0.lock().expect("locked").get(&page.region).cloned().expect("a region");
        words.lock().expect("locked")[page.index as usize] = noted;
    }

    fn view(&self, region: RegionId) -> Result<View, String> {
        let (bytes, words) = self.0.lock().expect("locked").get(&region).cloned().ok_or("no memory")?;
        Ok(View { bytes, words })
    }

    fn revoke(&self, region: RegionId) -> Result<(), String> {
        let mut regions = self.0.lock().expect("locked");
        let (bytes, words) = regions.get(&region).cloned().ok_or("no memory")?;
        let old = bytes.lock().expect("locked").take();
        regions.insert(region, (Arc::new(Mutex::new(old)), words));
        Ok(())
    }

    fn remove(&self, region: RegionId) -> Result<(), String> {
        self.revoke(region)?;
        self.0.lock().expect("locked").remove(&region);
        Ok(())
    }
}

/// A principal for a test.
pub fn user(name: &str) -> Principal {
    Principal::User(Name::new(name).expect("a name"))
}

/// In whose name a request comes, without restriction.
pub fn alias(name: &str) -> Alias {
    Alias::attested(user(name), Scope::EVERYTHING)
}

/// An ACL of one.
pub fn acl(name: &str, access: Access) -> Acl {
    Acl::of(user(name), access).expect("storable")
}

/// The bytes of a disk: the first blocks of 4096 bytes, then, off any block of the volume, some of 512.
pub const LARGE: u64 = 40;
pub const SMALL: u64 = 200;
const VOLUME_BLOCKS: u64 = 80;

fn key() -> VolumeKey {
    VolumeKey::new(&[5; 32], b"the monitored vo")
}

/// Devices with a volume, all zeroes.
pub fn devices() -> Devices {
    let devices = Devices::new();
    devices.record(false);
    devices.add("disk", VOLUME_BLOCKS as usize * PAGE_BYTES);
    devices.add("log", 2 << 20);
    Volume::format(&*devices.device(0), &*devices.device(1), &key(), Some(1 << 20)).expect("formatted");
    Volume::adopt(devices.device(0), devices.device(1), &key(), [1; 16], None, &|_, _| true)
        .expect("adopted");
    devices.forget();
    devices.record(true);
    devices
}

/// Opens a monitor of one disk.
pub fn monitor(devices: &Devices, pages_max: usize) -> (Monitor<Map>, Map) {
    let opened =
        Volume::open(devices.device(0), devices.device(1), &key(), Options::default(), None, [9; 16]);
    let volume = opened.expect("opens").0;
    let large = Extent { offset: 0, block_bytes: 4096, blocks: LARGE };
    let small = Extent { offset: LARGE * 4096 + 512 * 3, block_bytes: 512, blocks: SMALL };
    let layout = Layout::new(vec![large, small], VOLUME_BLOCKS * 4096).expect("sound");
    let names = Names { policy_manager: user("policy"), cache_manager: user("cache") };
    let memory = Map::default();
    let disk = Disk { volume, layout, driver: user("driver") };
    (Monitor::new(memory.clone(), vec![disk], names, pages_max), memory)
}
