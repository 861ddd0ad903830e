//! Layers that count and time what passes through them: a storage, and the way to the server.

use holdfast_client::remote::Remote;
use holdfast_log::{LocalStorage, Storage, StorageFile, StorageLock, SyncSite};
use holdfast_protocol::message::{Request, Response, Welcome};
use holdfast_rpc::{Connection, RpcError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Whether a sync reaches the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syncs {
    /// A sync reaches the disk.
    Real,
    /// It returns at once, as on memory that keeps its content without power.
    Free,
}

/// How often something happened (a sync, or a call), and how long that took in all; and what was written.
#[derive(Default)]
pub struct Meter {
    count: AtomicU64,
    nanoseconds: AtomicU64,
    bytes: AtomicU64,
    writing_nanoseconds: AtomicU64,
}

impl Meter {
    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.count.fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        result
    }

    /// Count and nanoseconds so far, then bytes written and the nanoseconds of that.
    pub fn read(&self) -> [u64; 4] {
        let counters = [&self.count, &self.nanoseconds, &self.bytes, &self.writing_nanoseconds];
        counters.map(|counter| counter.load(Relaxed))
    }
}

/// A directory whose syncs and written bytes are counted.
pub struct MeteredStorage {
    inner: LocalStorage,
    meter: Arc<Meter>,
    syncs: Syncs,
}

impl MeteredStorage {
    /// Counts what happens in `inner` on `meter`.
    pub fn new(inner: LocalStorage, meter: Arc<Meter>, syncs: Syncs) -> MeteredStorage {
        MeteredStorage { inner, meter, syncs }
    }

    fn file(&self, inner: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(MeteredFile { inner, meter: self.meter.clone(), syncs: self.syncs })
    }
}

impl Storage for MeteredStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.file(self.inner.create(name)?))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.file(self.inner.open(name)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, site: SyncSite) -> io::Result<()> {
        self.meter.time(|| match self.syncs {
            Syncs::Real => self.inner.sync_dir(site),
            Syncs::Free => Ok(()),
        })
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>> {
        self.inner.lock(name)
    }

    fn entropy(&self) -> io::Result<[u8; 16]> {
        self.inner.entropy()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

struct MeteredFile {
    inner: Arc<dyn StorageFile>,
    meter: Arc<Meter>,
    syncs: Syncs,
}

impl StorageFile for MeteredFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = Instant::now();
        let result = self.inner.write_at(offset, bytes);
        self.meter.bytes.fetch_add(bytes.len() as u64, Relaxed);
        self.meter.writing_nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Relaxed);
        result
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buffer)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.inner.reserve(length)
    }

    fn sync(&self, site: SyncSite) -> io::Result<()> {
        self.meter.time(|| match self.syncs {
            Syncs::Real => self.inner.sync(site),
            Syncs::Free => Ok(()),
        })
    }

    fn drop_cache(&self) {
        self.inner.drop_cache();
    }
}

/// A connection on which the time that callers wait for answers is counted.
pub struct MeteredRemote {
    inner: Connection,
    meter: Arc<Meter>,
}

impl MeteredRemote {
    /// Counts the calls on `inner` on `meter`.
    pub fn new(inner: Connection, meter: Arc<Meter>) -> MeteredRemote {
        MeteredRemote { inner, meter }
    }
}

impl Remote for MeteredRemote {
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        self.meter.time(|| Remote::call(&self.inner, request, deadline))
    }

    fn welcome(&self) -> Option<Welcome> {
        self.inner.welcome()
    }

    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }

    fn traffic(&self) -> (u64, u64) {
        Remote::traffic(&self.inner)
    }
}
