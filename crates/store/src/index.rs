//! The index on disk: a redb database in a file of the store's directory. It is written in large sorted
//! batches. Each is a durable transaction that also records up to which position of the log it covers.

use crate::StoreError;
use crate::charges::{Changes, Charge, Payer};
use crate::record::Location;
use crate::state::{BlockCopy, Entry, IndexBatch, Key, SignedKey};
use holdfast_content::DeviceId;
use holdfast_log::{Position, Storage, StorageFile, SyncSite};
use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const NAME: &str = "index.redb";
const NEW_NAME: &str = "index-new.redb";
const SYNC: SyncSite = SyncSite("store: index");
const ADOPTED: SyncSite = SyncSite("store: rebuilt index in its place");
const BLOCKS: TableDefinition<&[u8; 36], &[u8; 24]> = TableDefinition::new("blocks 2");
/// The table of versions whose entries did not name the device that stored a block. Such an index is rebuilt
/// from the segments.
const BLOCKS_BEFORE: TableDefinition<&[u8; 36], &[u8; 20]> = TableDefinition::new("blocks");
/// Number of the file system and device (big-endian), to blocks and bytes that it is charged for.
const CHARGES: TableDefinition<&[u8; 8], &[u8; 16]> = TableDefinition::new("charges");
const SIGNED: TableDefinition<&[u8; 60], &[u8; 4]> = TableDefinition::new("signed");
/// Since when a block is dead, in nanoseconds since 1970.
const DEAD: TableDefinition<&[u8; 36], i64> = TableDefinition::new("dead");
const STATE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
const IMAGE: &str = "image 1";
/// Set in an entry's length when the block refers to nothing; no record is that long.
const LEAF: u32 = 1 << 31;

/// An index that is usable, and the state image of its last checkpoint, if it has one.
type OpenedIndex = (Index, Option<Vec<u8>>);

pub(crate) struct Index {
    storage: Arc<dyn Storage>,
    cache_bytes: usize,
    name: Mutex<&'static str>,
    /// Written to (opened anew, checked) only by a holder of the store's `checkpointing` lock; readers may hold
    /// the state lock. `None` after an opening failed.
    database: RwLock<Option<Database>>,
    /// Found damaged: the file is removed, and the next opening of the store rebuilds it.
    condemned: AtomicBool,
}

impl Index {
    /// Opens the index, or makes one. Returns it with the state image of its last checkpoint, if it has one;
    /// `None` if it is damaged.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        cache_bytes: usize,
    ) -> Result<Option<OpenedIndex>, StoreError> {
        let opened = Index::open_file(storage, cache_bytes, NAME).and_then(|index| {
            if index.is_of_older_form()? {
                tracing::info!(
                    "the block index does not say yet who stored what; it is made anew from the segments"
                );
                return Ok(None);
            }
            let image = index.image()?;
            Ok(Some((index, image)))
        });
        match opened {
            Err(error @ (StoreError::Index(_) | StoreError::IndexDamaged(_))) => {
                tracing::warn!(%error, "the block index is unusable and is rebuilt from the segments");
                Ok(None)
            }
            other => other,
        }
    }

    /// Begins an empty index in a second file; [`Index::adopt`] replaces the old file with it. Until then a
    /// crash loses no checkpoint.
    pub(crate) fn begin(storage: Arc<dyn Storage>, cache_bytes: usize) -> Result<Index, StoreError> {
        remove_file(&*storage, NEW_NAME)?;
        Index::open_file(storage, cache_bytes, NEW_NAME)
    }

    /// Replaces the old index by a rebuilt one, durably: later checkpoints go to this file only.
    pub(crate) fn adopt(&self) -> Result<(), StoreError> {
        let mut name = self.name.lock();
        if *name == NEW_NAME {
            self.storage
                .rename(NEW_NAME, NAME)
                .and_then(|()| self.storage.sync_dir(ADOPTED))
                .map_err(|error| StoreError::io("renaming", NEW_NAME, &error))?;
            *name = NAME;
        }
        Ok(())
    }

    fn open_file(
        storage: Arc<dyn Storage>,
        cache_bytes: usize,
        name: &'static str,
    ) -> Result<Index, StoreError> {
        let database = RwLock::new(Some(open_database(&storage, cache_bytes, name)?));
        let (name, condemned) = (Mutex::new(name), AtomicBool::new(false));
        Ok(Index { storage, cache_bytes, name, database, condemned })
    }

    /// Opens the file anew after a failure made the handle unusable.
    pub(crate) fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.write();
        if self.condemned.load(Ordering::Acquire) {
            return Err(gone());
        }
        // The old handle is closed first: two caches over one file would disagree.
        if !close(database.take()) {
            return Err(self.condemn("its pages make no sense"));
        }
        *database = Some(open_database(&self.storage, self.cache_bytes, *self.name.lock())?);
        Ok(())
    }

    /// Checks every page, repairing what can be repaired. Waits for readers.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let mut guard = self.database.write();
        let Some(database) = guard.as_mut() else { return Err(unopened()) };
        let checked = catch_unwind(AssertUnwindSafe(|| database.check_integrity()));
        drop(guard);
        match checked {
            Ok(Ok(true)) => Ok(()),
            Ok(Err(error @ redb::DatabaseError::Storage(redb::StorageError::Io(_)))) => Err(wrap(error)),
            Ok(Ok(false)) => Err(self.condemn("its pages are inconsistent")),
            Ok(Err(error)) => Err(self.condemn(&error.to_string())),
            Err(_) => Err(self.condemn("its pages make no sense")),
        }
    }

    /// Runs one access. The database panics on some damaged pages, which is the medium's fault and must not
    /// stop the server.
    fn run<T>(&self, access: impl FnOnce(&Database) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if self.condemned.load(Ordering::Acquire) {
            return Err(gone());
        }
        let guard = self.database.read();
        let Some(database) = guard.as_ref() else { return Err(unopened()) };
        let result = catch_unwind(AssertUnwindSafe(|| access(database)));
        drop(guard);
        match result {
            Ok(Err(StoreError::IndexDamaged(why))) => Err(self.condemn(&why)),
            Ok(result) => result,
            Err(_) => Err(self.condemn("its pages make no sense")),
        }
    }

    /// Gives the index up: nothing durable is lost with it.
    fn condemn(&self, why: &str) -> StoreError {
        tracing::error!(why, "the block index is damaged; the next start rebuilds it from the segments");
        self.condemned.store(true, Ordering::Release);
        let _ = remove_file(&*self.storage, *self.name.lock());
        StoreError::IndexDamaged(why.to_owned())
    }

    fn is_of_older_form(&self) -> Result<bool, StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            Ok(existing(&transaction, BLOCKS_BEFORE)?.is_some())
        })
    }

    /// The charges of all payers at the last checkpoint.
    pub(crate) fn charges(&self) -> Result<BTreeMap<Payer, Charge>, StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, CHARGES)? else { return Ok(BTreeMap::new()) };
            let found = table.iter().map_err(wrap)?.map(|found| {
                let (key, value) = found.map_err(wrap)?;
                Ok((decode_payer(key.value()), decode_charge(value.value())))
            });
            found.collect()
        })
    }

    /// Replaces all charges.
    pub(crate) fn write_charges(&self, charges: &BTreeMap<Payer, Charge>) -> Result<(), StoreError> {
        self.run(|database| {
            let mut transaction = database.begin_write().map_err(wrap)?;
            transaction.set_quick_repair(true);
            {
                let mut table = transaction.open_table(CHARGES).map_err(wrap)?;
                table.retain(|_, _| false).map_err(wrap)?;
                for (payer, charge) in charges {
                    table.insert(&encode_payer(*payer), &encode_charge(*charge)).map_err(wrap)?;
                }
            }
            transaction.commit().map_err(wrap)
        })
    }

    fn image(&self) -> Result<Option<Vec<u8>>, StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, STATE)? else { return Ok(None) };
            Ok(table.get(IMAGE).map_err(wrap)?.map(|value| value.value().to_vec()))
        })
    }

    /// Looks a block up.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, BLOCKS)? else { return Ok(None) };
            Ok(table.get(&key.0).map_err(wrap)?.map(|value| decode_entry(value.value())))
        })
    }

    /// The greatest signed-block key in `from..before`, and its length.
    pub(crate) fn last_signed(
        &self,
        from: &SignedKey,
        before: &SignedKey,
    ) -> Result<Option<(SignedKey, u32)>, StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, SIGNED)? else { return Ok(None) };
            let mut range = table.range::<&[u8; 60]>(&from.0..&before.0).map_err(wrap)?;
            match range.next_back() {
                None => Ok(None),
                Some(found) => {
                    let (key, value) = found.map_err(wrap)?;
                    Ok(Some((SignedKey(*key.value()), u32::from_le_bytes(*value.value()))))
                }
            }
        })
    }

    /// Visits every block entry of the last checkpoint, in key order.
    pub(crate) fn visit(
        &self,
        visit: &mut dyn FnMut(Key, Entry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, BLOCKS)? else { return Ok(()) };
            for found in table.iter().map_err(wrap)? {
                let (key, value) = found.map_err(wrap)?;
                visit(Key(*key.value()), decode_entry(value.value()))?;
            }
            Ok(())
        })
    }

    /// Visits every block entry of the last checkpoint, in key order, with the time since when the block is
    /// dead, if the last collection found it so. `gone` is called for dead blocks without an entry.
    pub(crate) fn visit_with_dead(
        &self,
        visit: &mut dyn FnMut(Key, Entry, Option<i64>),
        gone: &mut dyn FnMut(Key),
    ) -> Result<(), StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, BLOCKS)? else { return Ok(()) };
            let dead = existing(&transaction, DEAD)?;
            let dead = dead.as_ref().map(|table| table.iter()).transpose().map_err(wrap)?;
            let dead = dead.into_iter().flatten().map(|found| {
                let (key, since_ns) = found.map_err(wrap)?;
                Ok::<_, StoreError>((Key(*key.value()), since_ns.value()))
            });
            let mut dead = dead.peekable();
            for found in table.iter().map_err(wrap)? {
                let (key, value) = found.map_err(wrap)?;
                let (key, entry) = (Key(*key.value()), decode_entry(value.value()));
                // Both in order of key.
                while let Some(earlier) =
                    dead.next_if(|next| next.as_ref().map_or(true, |(dead, _)| *dead < key))
                {
                    gone(earlier?.0);
                }
                let here = dead.next_if(|next| matches!(next, Ok((dead, _)) if *dead == key)).transpose()?;
                visit(key, entry, here.map(|(_, since_ns)| since_ns));
            }
            dead.try_for_each(|left| left.map(|(key, _)| gone(key)))
        })
    }

    /// Notes blocks that died at `since_ns`, and blocks that are not dead any more.
    pub(crate) fn write_dead(&self, since_ns: i64, died: &[Key], not: &[&[Key]]) -> Result<(), StoreError> {
        if died.is_empty() && not.iter().all(|keys| keys.is_empty()) {
            return Ok(());
        }
        self.run(|database| {
            let mut transaction = database.begin_write().map_err(wrap)?;
            transaction.set_quick_repair(true);
            {
                let mut table = transaction.open_table(DEAD).map_err(wrap)?;
                for key in not.iter().copied().flatten() {
                    table.remove(&key.0).map_err(wrap)?;
                }
                for key in died {
                    table.insert(&key.0, since_ns).map_err(wrap)?;
                }
            }
            transaction.commit().map_err(wrap)
        })
    }

    /// Visits every signed-block entry of the last checkpoint.
    pub(crate) fn visit_signed(&self, visit: &mut dyn FnMut(SignedKey, u32)) -> Result<(), StoreError> {
        self.run(|database| {
            let transaction = database.begin_read().map_err(wrap)?;
            let Some(table) = existing(&transaction, SIGNED)? else { return Ok(()) };
            for found in table.iter().map_err(wrap)? {
                let (key, value) = found.map_err(wrap)?;
                visit(SignedKey(*key.value()), u32::from_le_bytes(*value.value()));
            }
            Ok(())
        })
    }

    /// Writes a frozen batch, durably and atomically. Before that, `log_duplicates` gets the copies that are
    /// not needed because there is an older one. Returns the new charges of payers whose charges changed.
    pub(crate) fn write(
        &self,
        frozen: &IndexBatch,
        log_duplicates: &mut dyn FnMut(Vec<BlockCopy>) -> Result<(), StoreError>,
    ) -> Result<Vec<(Payer, Charge)>, StoreError> {
        self.run(|database| {
            let mut transaction = database.begin_write().map_err(wrap)?;
            // Fast reopening after a crash matters more than the price of a rare commit.
            transaction.set_quick_repair(true);
            let mut duplicates = frozen.duplicates.clone();
            let mut changes = Changes::default();
            let mut charged = Vec::new();
            {
                let mut table = transaction.open_table(BLOCKS).map_err(wrap)?;
                // In key order, so that neighbouring entries share pages.
                let mut keys: Vec<&Key> = frozen.blocks.keys().collect();
                keys.sort_unstable();
                for key in keys {
                    let recent = &frozen.blocks[key];
                    let Some(mut entry) = recent.entry else {
                        if let Some(older) = table.remove(&key.0).map_err(wrap)? {
                            changes.uncharge(key, &decode_entry(older.value()));
                        }
                        continue;
                    };
                    if !recent.settled {
                        let older = table.get(&key.0).map_err(wrap)?.map(|value| decode_entry(value.value()));
                        if let Some(older) = older {
                            if older.location != entry.location {
                                duplicates.push((*key, entry.location.position));
                            }
                            entry = older.renewed(entry.age_ns);
                        }
                    }
                    changes.charge(key, &entry);
                    if let Some(older) = table.insert(&key.0, &encode_entry(&entry)).map_err(wrap)? {
                        changes.uncharge(key, &decode_entry(older.value()));
                    }
                }
                let mut table = transaction.open_table(CHARGES).map_err(wrap)?;
                for (payer, change) in changes.iter() {
                    let key = encode_payer(payer);
                    let before = table.get(&key).map_err(wrap)?.map(|value| decode_charge(value.value()));
                    let now = before.unwrap_or_default().plus(change);
                    table.insert(&key, &encode_charge(now)).map_err(wrap)?;
                    charged.push((payer, now));
                }
                let mut table = transaction.open_table(SIGNED).map_err(wrap)?;
                for (key, length) in &frozen.signed {
                    match length {
                        Some(length) => drop(table.insert(&key.0, &length.to_le_bytes()).map_err(wrap)?),
                        None => drop(table.remove(&key.0).map_err(wrap)?),
                    }
                }
                let mut table = transaction.open_table(STATE).map_err(wrap)?;
                table.insert(IMAGE, frozen.image.as_slice()).map_err(wrap)?;
            }
            if !duplicates.is_empty() {
                log_duplicates(duplicates)?;
            }
            transaction.commit().map_err(wrap)?;
            Ok(charged)
        })
    }
}

fn remove_file(storage: &dyn Storage, name: &str) -> Result<(), StoreError> {
    match storage.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("removing", name, &error))
        }
        _ => Ok(()),
    }
}

fn open_database(storage: &Arc<dyn Storage>, cache_bytes: usize, name: &str) -> Result<Database, StoreError> {
    let file = match storage.open(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => storage.create(name),
        other => other,
    };
    let file = file.map_err(|error| StoreError::io("opening", name, &error))?;
    let open = || Database::builder().set_cache_size(cache_bytes).create_with_backend(Backend(file));
    match catch_unwind(AssertUnwindSafe(open)) {
        Ok(opened) => opened.map_err(wrap),
        Err(_) => Err(StoreError::IndexDamaged("its pages make no sense".into())),
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let database = self.database.get_mut().take();
        if self.condemned.load(Ordering::Acquire) {
            // Closing it would touch the damaged pages.
            std::mem::forget(database);
        } else if !close(database) {
            self.condemn("its pages make no sense");
        }
    }
}

/// Closes a database, which writes to it, and so panics on some damaged pages. Returns whether it was sound.
fn close(database: Option<Database>) -> bool {
    catch_unwind(AssertUnwindSafe(|| drop(database))).is_ok()
}

fn unopened() -> StoreError {
    StoreError::Index("it could not be opened again after a failure".into())
}

fn gone() -> StoreError {
    StoreError::IndexDamaged("it was given up".into())
}

/// A table of the database; `None` if nothing was ever written to it.
fn existing<K: redb::Key, V: redb::Value>(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<K, V>,
) -> Result<Option<redb::ReadOnlyTable<K, V>>, StoreError> {
    match transaction.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(wrap(error)),
    }
}

fn wrap(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        // The file's content is wrong, not the medium.
        redb::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            StoreError::IndexDamaged(error.to_string())
        }
        redb::Error::Io(error) => StoreError::io("accessing", NAME, &error),
        redb::Error::Corrupted(why) => StoreError::IndexDamaged(why),
        error => StoreError::Index(error.to_string()),
    }
}

fn encode_payer((file_system, device): Payer) -> [u8; 8] {
    (u64::from(file_system) << 32 | u64::from(device.0)).to_be_bytes()
}

fn decode_payer(bytes: &[u8; 8]) -> Payer {
    let both = u64::from_be_bytes(*bytes);
    ((both >> 32) as u32, DeviceId(both as u32))
}

fn encode_charge(charge: Charge) -> [u8; 16] {
    (u128::from(charge.blocks) << 64 | u128::from(charge.bytes)).to_le_bytes()
}

fn decode_charge(bytes: &[u8; 16]) -> Charge {
    let both = u128::from_le_bytes(*bytes);
    Charge { blocks: (both >> 64) as u64, bytes: both as u64 }
}

fn encode_entry(entry: &Entry) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&entry.location.position.to_u64().to_le_bytes());
    let leaf = if entry.leaf { LEAF } else { 0 };
    bytes[8..12].copy_from_slice(&(entry.location.length | leaf).to_le_bytes());
    bytes[12..20].copy_from_slice(&entry.age_ns.to_le_bytes());
    bytes[20..].copy_from_slice(&entry.owner.0.to_le_bytes());
    bytes
}

fn decode_entry(bytes: &[u8; 24]) -> Entry {
    let position = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let length = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
    Entry {
        location: Location { position: Position::from_u64(position), length: length & !LEAF },
        leaf: length & LEAF != 0,
        age_ns: i64::from_le_bytes(bytes[12..20].try_into().expect("8 bytes")),
        owner: DeviceId(u32::from_le_bytes(bytes[20..].try_into().expect("4 bytes"))),
    }
}

/// redb on a [`StorageFile`].
struct Backend(Arc<dyn StorageFile>);

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Backend")
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if self.0.read_at(offset, out)? < out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync(SYNC)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}
