//! The files of a file system (nodes of its log tree, past states) in etcd, where a standby finds them.
//!
//! A file consists of chunks of 64 KiB under a number of its own; a key for its name has that number. Written
//! bytes stay in memory until the file is synced. Creations, removals and renames are durable at once.

use super::namespace::random;
use super::shard::Inner;
use crate::order::OrderError;
use holdfast_etcd::{Get, Keys, Step};
use holdfast_log::{Storage, StorageFile, StorageLock, SyncSite};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

const CHUNK_BYTES: u64 = 64 << 10;
/// How many chunks are put in one transaction.
const CHUNKS_AT_ONCE: usize = 8;
/// Most chunks of a file held in memory.
const CHUNKS_KEPT: usize = 256;

impl From<OrderError> for io::Error {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Full(why) => io::Error::new(io::ErrorKind::StorageFull, why),
            // The error says nothing about the files: they may be intact.
            error @ (OrderError::Away(_) | OrderError::Lost) => {
                io::Error::new(io::ErrorKind::NotConnected, error.to_string())
            }
            error => io::Error::other(error.to_string()),
        }
    }
}

/// The files of one file system.
pub(super) struct Files(Arc<Inner>);

impl Files {
    pub(super) fn of(shard: Arc<Inner>) -> Files {
        Files(shard)
    }

    fn name_key(&self, name: &str) -> Vec<u8> {
        self.0.space.key("name", &format!("{}/{name}", self.0.id))
    }

    fn chunks(&self, number: &str) -> Keys {
        let prefix = self.0.space.key("file", &format!("{}/{number}/", self.0.id));
        Keys::below(&String::from_utf8_lossy(&prefix))
    }

    fn number_of(&self, name: &str) -> io::Result<Option<String>> {
        let found = self.0.ask(&Get::one(self.name_key(name)))?;
        Ok(found.into_iter().next().map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
    }

    fn existing(&self, name: &str) -> io::Result<String> {
        self.number_of(name)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn file(&self, number: String, length: u64) -> Arc<dyn StorageFile> {
        let contents = Contents { length, chunks: BTreeMap::new(), unsynced: BTreeSet::new() };
        Arc::new(File { shard: self.0.clone(), number, contents: Mutex::new(contents) })
    }
}

impl Storage for Files {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        if self.number_of(name)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = super::hex(&self.entropy()?);
        self.0.change(vec![Step::Put(self.name_key(name), number.clone().into(), None)])?;
        Ok(self.file(number, 0))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let number = self.existing(name)?;
        let last = self.0.ask(&Get { limit: 1, last_first: true, ..Get::all(self.chunks(&number)) })?;
        let length = last.first().and_then(|pair| {
            let text = String::from_utf8_lossy(&pair.key).into_owned();
            let place = u64::from_str_radix(text.rsplit('/').next()?, 16).ok()?;
            Some(place * CHUNK_BYTES + pair.value.len() as u64)
        });
        Ok(self.file(number, length.unwrap_or(0)))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let prefix = self.0.space.key("name", &format!("{}/", self.0.id));
        let names = Keys::below(&String::from_utf8_lossy(&prefix));
        let found = self.0.ask(&Get { keys_only: true, ..Get::all(names) })?;
        let name = |key: &[u8]| String::from_utf8_lossy(key).rsplit('/').next().unwrap_or("").to_owned();
        Ok(found.iter().map(|pair| name(&pair.key)).collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let number = self.existing(name)?;
        let steps = vec![Step::Delete(Keys::One(self.name_key(name))), Step::Delete(self.chunks(&number))];
        Ok(self.0.change(steps)?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let number = self.existing(from)?;
        let mut steps = vec![
            Step::Put(self.name_key(to), number.into(), None),
            Step::Delete(Keys::One(self.name_key(from))),
        ];
        if let Some(replaced) = self.number_of(to)? {
            steps.push(Step::Delete(self.chunks(&replaced)));
        }
        Ok(self.0.change(steps)?)
    }

    fn sync_dir(&self, _site: SyncSite) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _name: &str) -> io::Result<Box<dyn StorageLock>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "being the active server is the lock"))
    }

    fn entropy(&self) -> io::Result<[u8; 16]> {
        random().map_err(io::Error::other)
    }

    fn describe(&self) -> String {
        format!("{} (file system {})", self.0.space.kv.describe(), self.0.id)
    }
}

struct File {
    shard: Arc<Inner>,
    number: String,
    contents: Mutex<Contents>,
}

struct Contents {
    length: u64,
    /// The chunks in memory.
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Chunks that have changed since they were last written to etcd.
    unsynced: BTreeSet<u64>,
}

impl File {
    fn key(&self, place: u64) -> Vec<u8> {
        self.shard.space.key("file", &format!("{}/{}/{place:016x}", self.shard.id, self.number))
    }

    fn load(&self, contents: &mut Contents, place: u64) -> io::Result<()> {
        if contents.chunks.contains_key(&place) {
            return Ok(());
        }
        if contents.chunks.len() > CHUNKS_KEPT {
            let unsynced = &contents.unsynced;
            contents.chunks.retain(|place, _| unsynced.contains(place));
        }
        let found = match place * CHUNK_BYTES < contents.length {
            true => self.shard.ask(&Get::one(self.key(place)))?.into_iter().next(),
            false => None,
        };
        contents.chunks.insert(place, found.map(|pair| pair.value).unwrap_or_default());
        Ok(())
    }
}

impl StorageFile for File {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut contents = self.contents.lock();
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (place, within) = (at / CHUNK_BYTES, (at % CHUNK_BYTES) as usize);
            let count = rest.len().min(CHUNK_BYTES as usize - within);
            self.load(&mut contents, place)?;
            let chunk = contents.chunks.entry(place).or_default();
            if chunk.len() < within + count {
                chunk.resize(within + count, 0);
            }
            chunk[within..within + count].copy_from_slice(&rest[..count]);
            contents.unsynced.insert(place);
            (at, rest) = (at + count as u64, &rest[count..]);
        }
        contents.length = contents.length.max(at);
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut contents = self.contents.lock();
        let wanted = contents.length.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let (place, within) = (at / CHUNK_BYTES, (at % CHUNK_BYTES) as usize);
            let count = (wanted - done).min(CHUNK_BYTES as usize - within);
            self.load(&mut contents, place)?;
            let chunk = contents.chunks.entry(place).or_default();
            // Bytes that a later write skipped are zeroes.
            let there = chunk.get(within..).unwrap_or_default();
            let there = &there[..there.len().min(count)];
            buffer[done..done + there.len()].copy_from_slice(there);
            buffer[done + there.len()..done + count].fill(0);
            done += count;
        }
        Ok(wanted)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.contents.lock().length)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut contents = self.contents.lock();
        if length >= contents.length {
            contents.length = length;
            return Ok(());
        }
        let (place, within) = (length / CHUNK_BYTES, (length % CHUNK_BYTES) as usize);
        if within > 0 {
            self.load(&mut contents, place)?;
            if let Some(chunk) = contents.chunks.get_mut(&place) {
                chunk.truncate(within);
            }
            contents.unsynced.insert(place);
        }
        let first = place + u64::from(within > 0);
        contents.chunks.retain(|place, _| *place < first);
        contents.unsynced.retain(|place| *place < first);
        let after = Keys::Range(self.key(first), self.key(u64::MAX));
        self.shard.change(vec![Step::Delete(after)])?;
        contents.length = length;
        Ok(())
    }

    fn reserve(&self, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self, _site: SyncSite) -> io::Result<()> {
        let mut contents = self.contents.lock();
        let places: Vec<u64> = contents.unsynced.iter().copied().collect();
        for places in places.chunks(CHUNKS_AT_ONCE) {
            let put = |place: &u64| Step::Put(self.key(*place), contents.chunks[place].clone(), None);
            self.shard.change(places.iter().map(put).collect())?;
            places.iter().for_each(|place| {
                contents.unsynced.remove(place);
            });
        }
        Ok(())
    }
}
