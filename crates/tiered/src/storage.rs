//! The view that the log has of a bucket: segments and all other files, by their names.

use crate::catalogue::{self, CondemnedSegment};
use crate::file::TieredFile;
use crate::tiered::{LocalSegment, Tiered};
use crate::{adopt, pages};
use holdfast_log::{Storage, StorageFile, StorageLock, SyncSite, segment_name, segment_number};
use std::io;
use std::sync::Arc;

impl Storage for Tiered {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let inner = self.inner();
        let Some(number) = segment_number(name) else { return inner.local.create(name) };
        {
            let state = inner.state.lock();
            if state.has_begun && state.waiting() >= inner.settings.cache_bytes {
                let why = format!(
                    "{} bytes wait to be sent to {}, which is all the room they have (cache=...)",
                    state.waiting(),
                    inner.bucket.describe()
                );
                return Err(io::Error::new(io::ErrorKind::StorageFull, why));
            }
        }
        let file = inner.local.create(name)?;
        let mut state = inner.state.lock();
        state.has_begun = true;
        state.growing.insert(number, LocalSegment::new());
        state.files.insert(number, file);
        drop(state);
        Ok(Arc::new(TieredFile::new(inner.clone(), number)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let inner = self.inner();
        let Some(number) = segment_number(name) else { return inner.local.open(name) };
        let state = inner.state.lock();
        let is_here = state.growing.get(&number).is_some_and(|growing| growing.removed_after.is_none());
        if !is_here && !state.catalogue.segments.contains_key(&number) {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}")));
        }
        drop(state);
        Ok(Arc::new(TieredFile::new(inner.clone(), number)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let inner = self.inner();
        let mut names = inner.local.list()?;
        let is_own =
            |name: &str| name.starts_with(catalogue::FILE) || pages::is_file(name) || name == adopt::MARKER;
        names.retain(|name| segment_number(name).is_none() && !is_own(name));
        let state = inner.state.lock();
        let growing = state.growing.iter().filter(|(_, growing)| growing.removed_after.is_none());
        names.extend(growing.map(|(number, _)| segment_name(*number)));
        let listed = state.catalogue.segments.keys().filter(|number| !state.growing.contains_key(number));
        names.extend(listed.map(|number| segment_name(*number)));
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let inner = self.inner();
        let Some(number) = segment_number(name) else { return inner.local.remove(name) };
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        let after = state.greatest();
        if let Some(growing) = state.growing.get_mut(&number) {
            if growing.is_sealed && growing.written > holdfast_log::SEGMENT_HEADER_BYTES {
                // The segment is sent all the same, because records that were moved out of it are not in the
                // bucket yet.
                growing.removed_after = Some(after);
                state.catalogue.leaving.insert(number, after);
                state.is_dirty = true;
                return Ok(());
            }
            state.growing.remove(&number);
            state.files.remove(&number);
            return inner.local.remove(name);
        }
        let Some(entry) = state.catalogue.segments.remove(&number) else {
            return Err(io::Error::new(io::ErrorKind::NotFound, format!("there is no {name}")));
        };
        state.catalogue.condemned.push(CondemnedSegment { entry, after, unlisted_s: None });
        state.is_dirty = true;
        inner.drop_copy(state, number);
        drop(guard);
        inner.pages.forget(&*inner.local, number);
        inner.wake.notify_all();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner().local.rename(from, to)
    }

    fn sync_dir(&self, site: SyncSite) -> io::Result<()> {
        self.inner().local.sync_dir(site)?;
        self.inner().save()
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>> {
        self.inner().local.lock(name)
    }

    fn entropy(&self) -> io::Result<[u8; 16]> {
        self.inner().local.entropy()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner().local.free_bytes()
    }

    fn describe(&self) -> String {
        format!("{} ({})", self.inner().local.describe(), self.inner().bucket.describe())
    }
}
