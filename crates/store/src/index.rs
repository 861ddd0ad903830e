//! The index on disk: a redb database in a file of the store's directory. It is written in large sorted batches,
//! each a durable transaction that also records up to where the log is folded in.

use crate::StoreError;
use crate::record::Location;
use crate::state::{Entry, Frozen, Key, SignedKey};
use holdfast_log::{Position, Storage, StorageFile, SyncSite};
use parking_lot::RwLock;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::fmt;
use std::io;
use std::sync::Arc;

const NAME: &str = "index.redb";
const SYNC: SyncSite = SyncSite("store: index");
const BLOCKS: TableDefinition<&[u8; 36], &[u8; 20]> = TableDefinition::new("blocks");
const SIGNED: TableDefinition<&[u8; 60], &[u8; 4]> = TableDefinition::new("signed");
const STATE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
const IMAGE: &str = "image 1";
/// Set in an entry's length when the block refers to nothing; no record is that long.
const LEAF: u32 = 1 << 31;

pub(crate) struct Index {
    storage: Arc<dyn Storage>,
    cache_bytes: usize,
    database: RwLock<Arc<Database>>,
}

impl Index {
    /// Opens the index, or begins an empty one when there is none or it is unusable. Returns the state image of
    /// its last checkpoint, if it has one.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        cache_bytes: usize,
    ) -> Result<(Index, Option<Vec<u8>>), StoreError> {
        let database = match open_database(&storage, cache_bytes) {
            Ok(database) => database,
            Err(error) => {
                tracing::warn!(%error, "the block index is unusable and will be rebuilt from the segments");
                return Index::begin(storage, cache_bytes).map(|index| (index, None));
            }
        };
        let index = Index { storage, cache_bytes, database: RwLock::new(Arc::new(database)) };
        match index.image() {
            Ok(image) => Ok((index, image)),
            Err(error) => {
                tracing::warn!(%error, "the block index is unusable and will be rebuilt from the segments");
                let Index { storage, database, .. } = index;
                drop(database);
                Index::begin(storage, cache_bytes).map(|index| (index, None))
            }
        }
    }

    /// Begins an empty index in place of whatever is there.
    pub(crate) fn begin(storage: Arc<dyn Storage>, cache_bytes: usize) -> Result<Index, StoreError> {
        remove_file(&*storage)?;
        let database = open_database(&storage, cache_bytes)?;
        Ok(Index { storage, cache_bytes, database: RwLock::new(Arc::new(database)) })
    }

    /// Opens the file anew after a failure made the handle unusable.
    pub(crate) fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.write();
        // The old handle must be closed first: two caches over one file would disagree.
        let memory = redb::backends::InMemoryBackend::new();
        *database = Arc::new(Database::builder().create_with_backend(memory).map_err(wrap)?);
        *database = Arc::new(open_database(&self.storage, self.cache_bytes)?);
        Ok(())
    }

    fn handle(&self) -> Arc<Database> {
        self.database.read().clone()
    }

    fn image(&self) -> Result<Option<Vec<u8>>, StoreError> {
        let transaction = self.handle().begin_read().map_err(wrap)?;
        let table = match transaction.open_table(STATE) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(wrap(error)),
        };
        Ok(table.get(IMAGE).map_err(wrap)?.map(|value| value.value().to_vec()))
    }

    /// Looks a block up.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let transaction = self.handle().begin_read().map_err(wrap)?;
        let table = match transaction.open_table(BLOCKS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(wrap(error)),
        };
        Ok(table.get(&key.0).map_err(wrap)?.map(|value| decode_entry(value.value())))
    }

    /// The greatest signed-block key in `from..before`, and its length.
    pub(crate) fn last_signed(
        &self,
        from: &SignedKey,
        before: &SignedKey,
    ) -> Result<Option<(SignedKey, u32)>, StoreError> {
        let transaction = self.handle().begin_read().map_err(wrap)?;
        let table = match transaction.open_table(SIGNED) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(wrap(error)),
        };
        let mut range = table.range::<&[u8; 60]>(&from.0..&before.0).map_err(wrap)?;
        match range.next_back() {
            None => Ok(None),
            Some(found) => {
                let (key, value) = found.map_err(wrap)?;
                Ok(Some((SignedKey(*key.value()), u32::from_le_bytes(*value.value()))))
            }
        }
    }

    /// Visits every block entry of the last checkpoint, in key order.
    pub(crate) fn visit(
        &self,
        visit: &mut dyn FnMut(Key, Entry) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let transaction = self.handle().begin_read().map_err(wrap)?;
        let table = match transaction.open_table(BLOCKS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(wrap(error)),
        };
        for found in table.iter().map_err(wrap)? {
            let (key, value) = found.map_err(wrap)?;
            visit(Key(*key.value()), decode_entry(value.value()))?;
        }
        Ok(())
    }

    /// Visits every signed-block entry of the last checkpoint.
    pub(crate) fn visit_signed(&self, visit: &mut dyn FnMut(SignedKey, u32)) -> Result<(), StoreError> {
        let transaction = self.handle().begin_read().map_err(wrap)?;
        let table = match transaction.open_table(SIGNED) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
            Err(error) => return Err(wrap(error)),
        };
        for found in table.iter().map_err(wrap)? {
            let (key, value) = found.map_err(wrap)?;
            visit(SignedKey(*key.value()), u32::from_le_bytes(*value.value()));
        }
        Ok(())
    }

    /// Folds a frozen batch in, durably and all at once.
    pub(crate) fn write(&self, frozen: &Frozen) -> Result<(), StoreError> {
        let mut transaction = self.handle().begin_write().map_err(wrap)?;
        // Fast reopening after a crash matters more than the price of a rare commit.
        transaction.set_quick_repair(true);
        {
            let mut table = transaction.open_table(BLOCKS).map_err(wrap)?;
            // In key order, so that neighbouring entries share pages.
            let mut keys: Vec<&Key> = frozen.blocks.keys().collect();
            keys.sort_unstable();
            for key in keys {
                let recent = &frozen.blocks[key];
                let Some(mut entry) = recent.entry else {
                    table.remove(&key.0).map_err(wrap)?;
                    continue;
                };
                if !recent.settled {
                    let older = table.get(&key.0).map_err(wrap)?.map(|value| decode_entry(value.value()));
                    if let Some(older) = older {
                        entry = older.renewed(entry.age_ns);
                    }
                }
                table.insert(&key.0, &encode_entry(&entry)).map_err(wrap)?;
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
        transaction.commit().map_err(wrap)
    }
}

fn remove_file(storage: &dyn Storage) -> Result<(), StoreError> {
    match storage.remove(NAME) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("removing", NAME, &error))
        }
        _ => Ok(()),
    }
}

fn open_database(storage: &Arc<dyn Storage>, cache_bytes: usize) -> Result<Database, StoreError> {
    let file = match storage.open(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => storage.create(NAME),
        other => other,
    };
    let file = file.map_err(|error| StoreError::io("opening", NAME, &error))?;
    Database::builder().set_cache_size(cache_bytes).create_with_backend(Backend(file)).map_err(wrap)
}

fn wrap(error: impl Into<redb::Error>) -> StoreError {
    match error.into() {
        redb::Error::Io(error) => StoreError::io("writing", NAME, &error),
        error => StoreError::Index(error.to_string()),
    }
}

fn encode_entry(entry: &Entry) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&entry.location.position.to_u64().to_le_bytes());
    let leaf = if entry.leaf { LEAF } else { 0 };
    bytes[8..12].copy_from_slice(&(entry.location.length | leaf).to_le_bytes());
    bytes[12..].copy_from_slice(&entry.age_ns.to_le_bytes());
    bytes
}

fn decode_entry(bytes: &[u8; 20]) -> Entry {
    let position = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let length = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
    Entry {
        location: Location { position: Position::from_u64(position), length: length & !LEAF },
        leaf: length & LEAF != 0,
        age_ns: i64::from_le_bytes(bytes[12..].try_into().expect("8 bytes")),
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
