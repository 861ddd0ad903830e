//! Ranges of segments that were read from the bucket, cached in sparse local files.
//!
//! Only the process that wrote a file knows which ranges it has, so files of an earlier run are removed.

use crate::bucket::{Bucket, BucketError};
use crate::entry::{Entry, ObjectRange};
use crate::names::StoreId;
use crate::settings::TieredError;
use crate::tiered::Inner;
use holdfast_log::{Storage, StorageFile};
use parking_lot::{Condvar, Mutex};
use std::collections::btree_map;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a page in bytes; a page is requested as a whole.
pub(crate) const PAGE_BYTES: u64 = 1 << 20;
const PREFIX: &str = "ranges-";

#[derive(Default)]
struct Cached {
    segments: BTreeMap<u32, Segment>,
    /// Pages that a thread is requesting at the moment.
    loading: BTreeSet<(u32, u64)>,
    bytes: u64,
}

struct Segment {
    file: Arc<dyn StorageFile>,
    pages: BTreeSet<u64>,
    bytes: u64,
    used: u64,
}

/// The cache of ranges that were read.
pub(crate) struct Pages {
    cached: Mutex<Cached>,
    answered: Condvar,
    clock: AtomicU64,
}

fn name_of(number: u32) -> String {
    format!("{PREFIX}{number:010}")
}

/// Reads `count` bytes that lie in several objects. Bytes in holes are zeros.
fn fetch(bucket: &dyn Bucket, ranges: Vec<ObjectRange>, count: usize) -> Result<Vec<u8>, BucketError> {
    let mut bytes = Vec::with_capacity(count);
    for ObjectRange { object, range, at } in ranges {
        bytes.resize(at as usize, 0);
        bytes.extend(bucket.get(&object, Some(range))?);
    }
    bytes.resize(count, 0);
    Ok(bytes)
}

/// Whether a file belongs to the cache.
pub(crate) fn is_file(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl Pages {
    /// An empty cache. Removes the files of an earlier run.
    pub(crate) fn new(local: &dyn Storage) -> Result<Pages, TieredError> {
        let names = local.list().map_err(TieredError::io("listing", &local.describe()))?;
        for name in names.iter().filter(|name| is_file(name)) {
            local.remove(name).map_err(TieredError::io("removing", name))?;
        }
        Ok(Pages { cached: Mutex::default(), answered: Condvar::new(), clock: AtomicU64::new(1) })
    }

    /// The next value of a counter that serves as a clock.
    pub(crate) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.cached.lock().bytes
    }

    /// The time at which the least recently used segment was used; `None` if the cache is empty.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.cached.lock().segments.values().map(|segment| segment.used).min()
    }

    /// Removes the ranges of the least recently used segment. Returns whether there was one.
    pub(crate) fn drop_oldest(&self, local: &dyn Storage) -> bool {
        let cached = self.cached.lock();
        let oldest = cached.segments.iter().min_by_key(|(_, segment)| segment.used);
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        drop(cached);
        self.forget(local, number);
        true
    }

    /// Removes the ranges of a segment.
    pub(crate) fn forget(&self, local: &dyn Storage, number: u32) {
        let mut cached = self.cached.lock();
        if let Some(segment) = cached.segments.remove(&number) {
            cached.bytes -= segment.bytes;
            let name = name_of(number);
            if let Err(error) = local.remove(&name) {
                tracing::warn!(name, %error, "ranges of a segment cannot be removed");
            }
        }
    }

    /// Fills `buffer` from `offset` of a segment, which must be that long.
    pub(crate) fn read(
        &self,
        inner: &Inner,
        segment: (&StoreId, &Entry),
        offset: u64,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        let mut at = offset;
        while at < end {
            let page = at / PAGE_BYTES;
            let start = page * PAGE_BYTES;
            let until = end.min(start + PAGE_BYTES);
            let into = &mut buffer[(at - offset) as usize..(until - offset) as usize];
            self.read_page(inner, segment, page, at - start, into)?;
            at = until;
        }
        Ok(())
    }

    fn read_page(
        &self,
        inner: &Inner,
        (store, entry): (&StoreId, &Entry),
        page: u64,
        within: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let number = entry.number;
        let mut cached = self.cached.lock();
        loop {
            let used = self.tick();
            if let Some(segment) =
                cached.segments.get_mut(&number).filter(|segment| segment.pages.contains(&page))
            {
                segment.used = used;
                let file = segment.file.clone();
                drop(cached);
                let count = file.read_at(page * PAGE_BYTES + within, into)?;
                return match count == into.len() {
                    true => Ok(()),
                    false => Err(io::Error::other("a range that was kept here is cut short")),
                };
            }
            if cached.loading.insert((number, page)) {
                break;
            }
            self.answered.wait(&mut cached);
        }
        drop(cached);
        let start = page * PAGE_BYTES;
        let wanted = start..entry.length.min(start + PAGE_BYTES);
        let count = (wanted.end - wanted.start) as usize;
        let came = inner.note(fetch(&*inner.bucket, entry.ranges(store, wanted), count));
        if let Ok(bytes) = &came {
            into.copy_from_slice(&bytes[within as usize..within as usize + into.len()]);
            // A page that cannot be stored is requested again.
            if let Err(error) = self.keep(&*inner.local, number, page, bytes) {
                tracing::debug!(%error, "a range of a segment cannot be kept");
            }
        }
        self.cached.lock().loading.remove(&(number, page));
        self.answered.notify_all();
        match came {
            Ok(_) => {
                inner.make_room();
                Ok(())
            }
            Err(error) if error.is_absent() => {
                let why = format!(
                    "{error}, though it was written and not removed by this server: {} was changed behind its back. Put the \
                     object back (an earlier version or a copy); clients that have its blocks bring those back when they \
                     store them again",
                    inner.bucket.describe()
                );
                Err(io::Error::new(io::ErrorKind::NotFound, why))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn keep(&self, local: &dyn Storage, number: u32, page: u64, bytes: &[u8]) -> io::Result<()> {
        let mut guard = self.cached.lock();
        let cached = &mut *guard;
        let segment = match cached.segments.entry(number) {
            btree_map::Entry::Occupied(entry) => entry.into_mut(),
            btree_map::Entry::Vacant(entry) => {
                let file = local.create(&name_of(number))?;
                entry.insert(Segment { file, pages: BTreeSet::new(), bytes: 0, used: self.tick() })
            }
        };
        segment.file.write_at(page * PAGE_BYTES, bytes)?;
        if segment.pages.insert(page) {
            segment.bytes += bytes.len() as u64;
            cached.bytes += bytes.len() as u64;
        }
        Ok(())
    }
}
