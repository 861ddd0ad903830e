//! One segment: a local file while it is being written and as long as there is a local copy; in the bucket
//! from then on.

use crate::punch;
use crate::settings::TieredError;
use crate::tiered::Inner;
use holdfast_log::{StorageFile, SyncSite};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The two sync sites after which the log writes nothing more to a segment.
const SEALS: [SyncSite; 2] = [SyncSite::SEAL, SyncSite::RECOVERED_TAIL];

pub(crate) struct TieredFile {
    inner: Arc<Inner>,
    number: u32,
}

impl TieredFile {
    pub(crate) fn new(inner: Arc<Inner>, number: u32) -> TieredFile {
        TieredFile { inner, number }
    }

    /// The local file, if the segment is not in the bucket yet.
    fn growing(&self) -> io::Result<Arc<dyn StorageFile>> {
        let state = self.inner.state.lock();
        match state.growing.get(&self.number).and_then(|_| state.files.get(&self.number)) {
            Some(file) => Ok(file.clone()),
            None => Err(io::Error::other("it is in the bucket already, where nothing is altered")),
        }
    }
}

impl StorageFile for TieredFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.growing()?.write_at(offset, bytes)?;
        if let Some(growing) = self.inner.state.lock().growing.get_mut(&self.number) {
            growing.written = growing.written.max(offset + bytes.len() as u64);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let entry = {
            let mut guard = self.inner.state.lock();
            let state = &mut *guard;
            if let Some(file) = state.files.get(&self.number).cloned() {
                if let Some(used) = state.copies.get_mut(&self.number) {
                    *used = self.inner.pages.tick();
                }
                drop(guard);
                return file.read_at(offset, buffer);
            }
            // A reader that has opened a segment can read it to the end, even if it is removed meanwhile.
            let entry = state.catalogue.last(self.number);
            let entry =
                entry.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the segment was removed"))?;
            (state.catalogue.store, entry.clone())
        };
        let (store, entry) = entry;
        let count = entry.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        self.inner.pages.read(&self.inner, (&store, &entry), offset, &mut buffer[..count])?;
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.inner.state.lock();
        if let Some(entry) = state.catalogue.segments.get(&self.number) {
            return Ok(entry.length);
        }
        match state.files.get(&self.number).cloned() {
            Some(file) => {
                drop(state);
                file.len()
            }
            None => Err(io::Error::new(io::ErrorKind::NotFound, "the segment was removed")),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        if !self.inner.state.lock().growing.contains_key(&self.number) {
            // Recovery cuts off an incomplete end, which no segment in the bucket has.
            return match self.len()? == length {
                true => Ok(()),
                false => Err(io::Error::other(format!(
                    "its object in {} is damaged from offset {length} on; `holdfast server scrub` lists what is, and \
                     a good copy of the object brings it back",
                    self.inner.bucket.describe()
                ))),
            };
        }
        self.growing()?.truncate(length)?;
        if let Some(growing) = self.inner.state.lock().growing.get_mut(&self.number) {
            growing.cut(length);
        }
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        self.growing()?.reserve(length)
    }

    fn sync(&self, site: SyncSite) -> io::Result<()> {
        let written = match self.inner.state.lock().growing.get(&self.number) {
            Some(growing) => growing.written,
            None => return Ok(()),
        };
        self.growing()?.sync(site)?;
        let mut state = self.inner.state.lock();
        if let Some(growing) = state.growing.get_mut(&self.number) {
            growing.synced = growing.synced.max(written);
            if SEALS.contains(&site) {
                growing.is_sealed = true;
                self.inner.wake.notify_all();
            }
        }
        Ok(())
    }

    fn outline(&self) -> io::Result<Option<Vec<u8>>> {
        let (name, sum) = {
            let state = self.inner.state.lock();
            let Some(entry) = state.catalogue.segments.get(&self.number) else { return Ok(None) };
            let store = &state.catalogue.store;
            // A local file can be read as fast as its outline. And blocks in lost objects must not look
            // present.
            let is_lost = || entry.objects(store).iter().any(|(name, _)| state.lost_objects.contains(name));
            if state.files.contains_key(&self.number) || is_lost() {
                return Ok(None);
            }
            match entry.outline_name(store).zip(entry.outline) {
                Some(outline) => outline,
                None => return Ok(None),
            }
        };
        match self.inner.note(self.inner.bucket.get(&name, None)) {
            Ok(bytes) if bytes.ends_with(&sum) => Ok(Some(bytes)),
            Ok(_) => {
                tracing::warn!(object = name, "it is not what was written; the segment is read in its place");
                Ok(None)
            }
            Err(error) if error.is_absent() => {
                tracing::warn!("{error}; the segment is read in its place");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn holes(&self) -> Vec<Range<u64>> {
        let state = self.inner.state.lock();
        match state.catalogue.last(self.number) {
            Some(entry) if !state.growing.contains_key(&self.number) => entry.holes(),
            _ => Vec::new(),
        }
    }

    fn can_punch_holes(&self) -> bool {
        punch::is_possible(&self.inner, self.number)
    }

    fn punch_holes(&self, holes: &[Range<u64>]) -> io::Result<bool> {
        punch::punch(&self.inner, self.number, holes).map_err(TieredError::into_io)
    }

    fn drop_cache(&self) {
        let file = {
            let mut state = self.inner.state.lock();
            self.inner.drop_copy(&mut state, self.number);
            state.files.get(&self.number).cloned()
        };
        match file {
            Some(file) => file.drop_cache(),
            None => self.inner.pages.forget(&*self.inner.local, self.number),
        }
    }
}
