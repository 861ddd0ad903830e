//! The memory of the last publishing of a tree: the attributes that each file had, and its value in the
//! release.
//!
//! A file whose size, times and inode number are unchanged is not read again. There are two exceptions: a
//! file that was changed so shortly before it was examined that a later change could have the same time; and
//! every file if the release directory is not as the last publishing left it, because blocks may then be
//! missing.

use super::walk_io::FileStatus;
use super::{Memory, PublishError};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Value;
use holdfast_crypto::Digest;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

const FILES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("files");
const BASIS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("basis");
const BASIS_KEY: &[u8] = b"record";
/// Files between two commits; [`BATCH_BYTES`] bounds their bytes too.
const BATCH: usize = 20_000;
const BATCH_BYTES: usize = 16 << 20;
/// A later change may get the same time as this one if it is less old than this when the file is examined.
const YOUNG_NS: i64 = 2_000_000_000;

/// The signs by which a file counts as unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FileSigns {
    device: u64,
    number: u64,
    size: u64,
    mode: u32,
    links: u32,
    modified_ns: i64,
    changed_ns: i64,
    /// A digest of the options that a file's inode depends on.
    options: u64,
}

impl FileSigns {
    /// The signs of a file; `links` is the number of its names in the tree.
    pub fn of(status: &FileStatus, links: u32, options: u64) -> FileSigns {
        FileSigns {
            device: status.device,
            number: status.number,
            size: status.size,
            mode: status.mode,
            links,
            modified_ns: status.modified_ns,
            changed_ns: status.changed_ns,
            options,
        }
    }

    fn is_young(&self, now_ns: i64) -> bool {
        self.changed_ns.max(self.modified_ns) > now_ns - YOUNG_NS
    }
}

/// The database of the last publishing, and that of this one.
pub struct PublishMemory {
    last: Option<Database>,
    next: Option<NewMemory>,
    now_ns: i64,
}

struct NewMemory {
    file: PathBuf,
    made: PathBuf,
    database: Database,
    batch: Vec<(Vec<u8>, Vec<u8>)>,
    batch_bytes: usize,
}

impl PublishMemory {
    /// Opens the memory of the last publishing if it is valid, and starts a new one.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn open(memory: Option<Memory<'_>>) -> Result<PublishMemory, PublishError> {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let Some(Memory { file, basis }) = memory else {
            return Ok(PublishMemory { last: None, next: None, now_ns });
        };
        let last = basis.and_then(|basis| {
            let database = Database::open(file).ok()?;
            let read = database.begin_read().ok()?;
            let table = read.open_table(BASIS).ok()?;
            let same = table.get(BASIS_KEY).ok()??.value() == basis.0;
            drop((table, read));
            same.then_some(database)
        });
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).map_err(|error| PublishError::local(folder, &error))?;
        }
        let made = file.with_extension(format!("new-{}", std::process::id()));
        let _ = std::fs::remove_file(&made);
        let database = Database::create(&made).map_err(|error| failed(&made, &error))?;
        let next = NewMemory { file: file.to_owned(), made, database, batch: Vec::new(), batch_bytes: 0 };
        Ok(PublishMemory { last, next: Some(next), now_ns })
    }

    /// Whether a previous publishing is remembered.
    pub fn has_last(&self) -> bool {
        self.last.is_some()
    }

    /// The value of a file, if its signs are unchanged.
    pub fn find<S: BorshDeserialize + PartialEq>(&self, path: &[u8], signs: &S) -> Option<Value> {
        let read = self.last.as_ref()?.begin_read().ok()?;
        let table = read.open_table(FILES).ok()?;
        let known = table.get(path).ok()??;
        let (then, value): (S, Value) = holdfast_crypto::decode(known.value()).ok()?;
        (then == *signs).then_some(value)
    }

    /// Remembers the value of a file, unless the file is too young.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn add(&mut self, path: &[u8], signs: &FileSigns, value: &Value) -> Result<(), PublishError> {
        match signs.is_young(self.now_ns) {
            true => Ok(()),
            false => self.add_signed(path, signs, value),
        }
    }

    /// Like [`PublishMemory::add`], for signs that change with everything about a file, so that young files
    /// can be added too.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn add_signed<S: BorshSerialize>(
        &mut self,
        path: &[u8],
        signs: &S,
        value: &Value,
    ) -> Result<(), PublishError> {
        let Some(next) = &mut self.next else { return Ok(()) };
        let entry = (path.to_vec(), holdfast_crypto::encode(&(signs, value)));
        next.batch_bytes += entry.0.len() + entry.1.len();
        next.batch.push(entry);
        if next.batch.len() >= BATCH || next.batch_bytes >= BATCH_BYTES { next.write() } else { Ok(()) }
    }

    /// Makes the new database valid for the release whose record has the digest `basis`.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn keep(mut self, basis: Digest) -> Result<(), PublishError> {
        self.last = None;
        let Some(mut next) = self.next.take() else { return Ok(()) };
        next.write()?;
        let failed = |error: &dyn std::fmt::Display| failed(&next.made, error);
        let write = next.database.begin_write().map_err(|error| failed(&error))?;
        {
            let mut table = write.open_table(BASIS).map_err(|error| failed(&error))?;
            table.insert(BASIS_KEY, &basis.0[..]).map_err(|error| failed(&error))?;
        }
        write.commit().map_err(|error| failed(&error))?;
        std::fs::rename(&next.made, &next.file).map_err(|error| PublishError::local(&next.file, &error))
    }
}

impl NewMemory {
    fn write(&mut self) -> Result<(), PublishError> {
        self.batch_bytes = 0;
        let failed = |error: &dyn std::fmt::Display| failed(&self.made, error);
        let mut write = self.database.begin_write().map_err(|error| failed(&error))?;
        // The database only saves time: if the machine crashes, the whole tree is read once more.
        write.set_durability(Durability::None).map_err(|error| failed(&error))?;
        {
            let mut table = write.open_table(FILES).map_err(|error| failed(&error))?;
            for (path, value) in self.batch.drain(..) {
                table.insert(&path[..], &value[..]).map_err(|error| failed(&error))?;
            }
        }
        write.commit().map_err(|error| failed(&error))
    }
}

impl Drop for NewMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.made);
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> PublishError {
    PublishError::Local { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: however much is remembered, little of it is in memory before it is written, and all of it is
    /// there later.
    #[test]
    fn little_waits_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("seen");
        let memory = |basis| Some(Memory { file: &file, basis });
        let mut seen = PublishMemory::open(memory(None)).unwrap();
        let value = Value { bytes: vec![7; 1 << 20], references: Vec::new() };
        for number in 0..40u32 {
            seen.add_signed(&number.to_le_bytes(), &number, &value).unwrap();
            let waiting: usize =
                seen.next.iter().flat_map(|next| &next.batch).map(|entry| entry.1.len()).sum();
            assert!(waiting < BATCH_BYTES);
        }
        let basis = Digest([1; 32]);
        seen.keep(basis).unwrap();
        let seen = PublishMemory::open(memory(Some(basis))).unwrap();
        for number in 0..40u32 {
            assert_eq!(seen.find(&number.to_le_bytes(), &number), Some(value.clone()));
        }
        drop(seen);
        assert!(!PublishMemory::open(memory(Some(Digest([2; 32])))).unwrap().has_last());
    }
}
