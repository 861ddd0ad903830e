//! Unpublished bytes, in local files: for each changed file, one sparse *data* file with bytes at their own
//! offsets, and one *journal* that says which of them count.
//!
//! Neither is synced: data that a program wrote but did not fsync may be lost in a crash, as on any disk. But
//! what remains after a crash of the client alone is found again ([`SpoolDirectory::leftovers`]) and can be
//! saved.
//!
//! Invariants: a range is in the journal only after its bytes are in the data file; a journal is replaced as
//! a whole by renaming; an incomplete last record is ignored. The directory belongs to one process at a time
//! (the client's state lock ensures that).

use super::overlay::{Overlay, Piece};
use crate::error::FsError;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Format of a spool's journal.
const FORMAT: u16 = 1;
/// Largest record; a longer one is damage.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// Number of bytes that are moved at once.
const STEP_BYTES: u64 = 1 << 20;
/// A journal is rewritten when it has more than four times as many records as pieces, and at least this many.
const COMPACT_RECORDS_MIN: u64 = 4096;

/// An inode as it is stored in a journal: the published content under a change, or the source of a copy.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SavedInode {
    /// Its canonical encoding.
    pub bytes: Vec<u8>,
    /// The addresses of the blocks it refers to, by number.
    pub references: Vec<Digest>,
}

/// The first record of a spool's journal.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Header {
    /// Inode number of the file.
    pub ino: u64,
    /// Its path in the mount, as last known.
    pub path: Vec<u8>,
    /// The published content under the changes.
    pub base: SavedInode,
    /// Number of bytes of the base that still count.
    pub visible: u64,
    /// Size of the file in bytes.
    pub size: u64,
}

/// A change of a file that is not published yet.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Record {
    /// Bytes were written to the spool.
    Spool {
        /// First offset.
        start: u64,
        /// The offset after the last byte.
        end: u64,
    },
    /// A range became zeroes.
    Hole {
        /// First offset.
        start: u64,
        /// The offset after the last byte.
        end: u64,
    },
    /// A range became a copy of another file's published bytes.
    Copy {
        /// First offset.
        start: u64,
        /// The offset after the last byte.
        end: u64,
        /// The file whose bytes are copied.
        source: SavedInode,
        /// The offset in that file.
        from: u64,
    },
    /// The size in bytes was set.
    Size(u64),
    /// The file has no name: none of it is needed once its process has ended.
    Removed,
}

/// The directory of unpublished bytes.
pub struct SpoolDirectory {
    path: PathBuf,
    /// Files with lower numbers belong to earlier processes.
    first: u64,
    next: AtomicU64,
    /// Journals that this process left in place.
    kept: Mutex<HashSet<PathBuf>>,
}

/// One file's unpublished bytes. Dropping it removes the files; [`SpoolDirectory::keep`] leaves them in
/// place.
pub struct Spool {
    data: Arc<File>,
    journal: File,
    records: u64,
    data_path: PathBuf,
    journal_path: PathBuf,
    kept: bool,
}

/// A spool left behind by a process that ended.
pub struct LeftoverSpool {
    /// The first record of the journal.
    pub header: Header,
    /// The changes after it, oldest first.
    pub records: Vec<Record>,
    /// Whether the journal ends with an incomplete or malformed change: the machine crashed, or its disk
    /// altered the file. Later changes may be missing.
    pub is_torn: bool,
    /// The spooled bytes.
    pub data: Arc<File>,
    data_path: PathBuf,
    journal_path: PathBuf,
}

impl SpoolDirectory {
    /// Opens a directory, making it if needed, readable only by its owner.
    ///
    /// # Errors
    /// [`FsError::Local`].
    pub fn open(path: &Path) -> Result<SpoolDirectory, FsError> {
        let failed = |error: io::Error| FsError::local(format_args!("spool {}", path.display()), &error);
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let mut next = 0;
        for entry in fs::read_dir(path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if let Some(number) = number_of(Path::new(&name)) {
                next = next.max(number + 1);
            }
        }
        Ok(SpoolDirectory {
            path: path.to_owned(),
            first: next,
            next: AtomicU64::new(next),
            kept: Mutex::default(),
        })
    }

    /// The path of the spool directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins to spool a file's changes.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn create(&self, header: &Header, records: &[Record]) -> Result<Spool, FsError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let data_path = self.path.join(format!("{number:016x}.data"));
        let journal_path = self.path.join(format!("{number:016x}.journal"));
        let failed = |error: io::Error| FsError::local("spooling unpublished data", &error);
        let data = new_file(&data_path).map_err(failed)?;
        let journal = write_journal(&journal_path, header, records).map_err(|error| {
            let _ = fs::remove_file(&data_path);
            failed(error)
        })?;
        Ok(Spool {
            data: Arc::new(data),
            journal,
            records: records.len() as u64,
            data_path,
            journal_path,
            kept: false,
        })
    }

    /// Begins to spool a file's changes with the bytes that another spool has in `range`; here they begin at
    /// `to`.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn create_moved(
        &self,
        header: &Header,
        from: &Spool,
        range: Range<u64>,
        to: u64,
    ) -> Result<Spool, FsError> {
        let mut spool = self.create(header, &[])?;
        let mut at = range.start;
        while at < range.end {
            let mut bytes = vec![0; (range.end - at).min(STEP_BYTES) as usize];
            read_spooled(&from.data, at, &mut bytes)?;
            spool.write(to + (at - range.start), &bytes)?;
            at += bytes.len() as u64;
        }
        spool.note(&Record::Spool { start: to, end: to + (range.end - range.start) })?;
        Ok(spool)
    }

    /// Leaves a spool's files in place, to be found as leftovers.
    pub fn keep(&self, mut spool: Spool) {
        spool.kept = true;
        self.kept.lock().insert(spool.journal_path.clone());
    }

    /// The spools left by earlier processes or by [`SpoolDirectory::keep`]. A journal that cannot be read is
    /// reported in the log and left in place.
    pub fn leftovers(&self) -> Vec<LeftoverSpool> {
        let Ok(entries) = fs::read_dir(&self.path) else { return Vec::new() };
        let mut found = Vec::new();
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for journal_path in paths {
            let is_journal = journal_path.extension().is_some_and(|extension| extension == "journal");
            let is_earlier = number_of(&journal_path).is_some_and(|number| number < self.first);
            if !is_journal || !(is_earlier || self.kept.lock().contains(&journal_path)) {
                continue;
            }
            match LeftoverSpool::read(&journal_path) {
                Ok(leftover) if leftover.records.contains(&Record::Removed) => leftover.remove(),
                Ok(leftover) => found.push(leftover),
                Err(error) => tracing::warn!(
                    journal = %journal_path.display(), %error,
                    "a spool journal from an earlier run cannot be read; it stays where it is"
                ),
            }
        }
        found
    }
}

impl Spool {
    /// The spooled bytes, for reading without the lock that guards this spool.
    pub fn data(&self) -> Arc<File> {
        self.data.clone()
    }

    /// Writes bytes at their offset. They count once [`Spool::note`] has recorded them.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
        self.data
            .write_all_at(bytes, offset)
            .map_err(|error| FsError::local("spooling unpublished data", &error))
    }

    /// Records a change in the journal.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; the change then does not count.
    pub fn note(&mut self, record: &Record) -> Result<(), FsError> {
        let bytes = frame(record);
        self.journal.write_all(&bytes).map_err(|error| FsError::local("noting unpublished data", &error))?;
        self.records += 1;
        Ok(())
    }

    /// Whether the journal is much longer than its content requires.
    pub fn is_wordy(&self, pieces: usize) -> bool {
        self.records > COMPACT_RECORDS_MIN && self.records > 4 * pieces as u64
    }

    /// Replaces the journal.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; the earlier journal then still counts.
    pub fn rewrite(&mut self, header: &Header, records: &[Record]) -> Result<(), FsError> {
        let failed = |error: io::Error| FsError::local("noting unpublished data", &error);
        let new_path = self.journal_path.with_extension("journal-new");
        let journal = write_journal(&new_path, header, records).map_err(failed)?;
        fs::rename(&new_path, &self.journal_path).map_err(failed)?;
        self.journal = journal;
        self.records = records.len() as u64;
        Ok(())
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if !self.kept {
            // The journal is removed first: bytes without a journal are never found as leftovers.
            let _ = fs::remove_file(&self.journal_path);
            let _ = fs::remove_file(&self.data_path);
        }
    }
}

impl LeftoverSpool {
    fn read(journal_path: &Path) -> io::Result<LeftoverSpool> {
        let data_path = journal_path.with_extension("data");
        let data = Arc::new(File::open(&data_path)?);
        let mut journal = io::BufReader::new(File::open(journal_path)?);
        let damaged = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let mut format = [0; 2];
        journal.read_exact(&mut format)?;
        if u16::from_le_bytes(format) != FORMAT {
            return Err(damaged("of another format"));
        }
        let header = next(&mut journal)?.ok_or_else(|| damaged("without a beginning"))?;
        let mut records = Vec::new();
        let is_torn = loop {
            if journal.fill_buf()?.is_empty() {
                break false;
            }
            match next(&mut journal)? {
                Some(record) => records.push(record),
                None => break true,
            }
        };
        Ok(LeftoverSpool { header, records, is_torn, data, data_path, journal_path: journal_path.to_owned() })
    }

    /// Replays the changes. Returns what is laid over the base, how much of the base counts, and the size.
    /// `decode` makes another file's content from what was saved of it; where it cannot, the range stays
    /// unchanged and is returned.
    pub fn replay<S: Clone + PartialEq>(
        &self,
        decode: &dyn Fn(&SavedInode) -> Option<S>,
    ) -> (Overlay<S>, u64, u64, Vec<Range<u64>>) {
        let mut overlay = Overlay::default();
        let (mut visible, mut size) = (self.header.visible, self.header.size);
        let mut lost = Vec::new();
        for record in &self.records {
            let (range, piece) = match record {
                Record::Size(new) => {
                    overlay.cut(*new);
                    visible = visible.min(*new);
                    size = *new;
                    continue;
                }
                Record::Removed => continue,
                Record::Spool { start, end } => (*start..*end, Piece::Spool),
                Record::Hole { start, end } => (*start..*end, Piece::Hole),
                Record::Copy { start, end, source, from } => match decode(source) {
                    Some(source) => (*start..*end, Piece::Copy(source, *from)),
                    None => {
                        lost.push(*start..*end);
                        continue;
                    }
                },
            };
            size = size.max(range.end);
            overlay.insert(range, piece);
        }
        (overlay, visible, size, lost)
    }

    /// Removes the spool, once it is saved elsewhere.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.journal_path);
        let _ = fs::remove_file(&self.data_path);
    }
}

/// Reads spooled bytes; bytes that were never written read as zeroes.
///
/// # Errors
/// [`FsError::Local`].
pub fn read_spooled(data: &File, mut offset: u64, mut buffer: &mut [u8]) -> Result<(), FsError> {
    while !buffer.is_empty() {
        match data.read_at(buffer, offset) {
            Ok(0) => {
                buffer.fill(0);
                return Ok(());
            }
            Ok(count) => {
                offset += count as u64;
                buffer = &mut buffer[count..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FsError::local("reading back unpublished data", &error)),
        }
    }
    Ok(())
}

fn number_of(path: &Path) -> Option<u64> {
    u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok()
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn frame<T: BorshSerialize>(value: &T) -> Vec<u8> {
    let body = holdfast_crypto::encode(value);
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    bytes
}

fn write_journal(path: &Path, header: &Header, records: &[Record]) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut file = new_file(path)?;
    let mut bytes = FORMAT.to_le_bytes().to_vec();
    bytes.extend_from_slice(&frame(header));
    for record in records {
        bytes.extend_from_slice(&frame(record));
    }
    file.write_all(&bytes)?;
    Ok(file)
}

/// The next value, or `None` at the end or where the rest is incomplete.
fn next<T: BorshDeserialize>(journal: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let torn = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(None),
        _ => Err(error),
    };
    if let Err(error) = journal.read_exact(&mut length) {
        return torn(error);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > RECORD_BYTES_MAX {
        return Ok(None);
    }
    let mut body = vec![0; length];
    if let Err(error) = journal.read_exact(&mut body) {
        return torn(error);
    }
    Ok(holdfast_crypto::decode(&body).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let base = SavedInode { bytes: vec![1, 2], references: vec![] };
        Header { ino: 7, path: b"a/b".to_vec(), base, visible: 10, size: 10 }
    }

    /// Proves: the spools that a process leaves behind are found with all recorded changes, an incomplete
    /// record does not spoil earlier ones, a dropped spool leaves nothing, and new numbers never collide with
    /// those of leftovers.
    #[test]
    fn leftovers_are_found_up_to_a_torn_record() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = SpoolDirectory::open(temporary.path()).unwrap();
        let mut spool = directory.create(&header(), &[Record::Size(8)]).unwrap();
        spool.write(20, b"hello").unwrap();
        spool.note(&Record::Spool { start: 20, end: 25 }).unwrap();
        spool.note(&Record::Hole { start: 0, end: 4 }).unwrap();
        let journal_path = spool.journal_path.clone();
        directory.keep(spool);
        assert_eq!(directory.leftovers().len(), 1);
        drop(directory.create(&header(), &[]).unwrap());
        let mut torn = OpenOptions::new().append(true).open(&journal_path).unwrap();
        torn.write_all(&[9, 0, 0, 0, 1]).unwrap();

        let directory = SpoolDirectory::open(temporary.path()).unwrap();
        let mut leftovers = directory.leftovers();
        assert_eq!(leftovers.len(), 1);
        let leftover = leftovers.pop().unwrap();
        assert_eq!(leftover.header, header());
        assert!(leftover.is_torn);
        let (overlay, visible, size, lost) = leftover.replay::<u8>(&|_| None);
        assert_eq!((visible, size, lost.len()), (8, 25, 0));
        assert_eq!(
            overlay.slices(0..25),
            vec![(0..4, Some(Piece::Hole)), (4..20, None), (20..25, Some(Piece::Spool))]
        );
        let mut bytes = [1; 10];
        read_spooled(&leftover.data, 18, &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0\0hello\0\0\0");
        let another = directory.create(&header(), &[]).unwrap();
        assert_ne!(another.journal_path, journal_path);
        leftover.remove();
        assert!(directory.leftovers().is_empty(), "live spools are not leftovers");
    }

    /// Proves: a rewritten journal contains the new records, and nothing earlier.
    #[test]
    fn rewriting_replaces_the_journal() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = SpoolDirectory::open(temporary.path()).unwrap();
        let mut spool = directory.create(&header(), &[]).unwrap();
        for _ in 0..5000 {
            spool.note(&Record::Spool { start: 0, end: 1 }).unwrap();
        }
        assert!(spool.is_wordy(1));
        spool.rewrite(&header(), &[Record::Spool { start: 0, end: 1 }]).unwrap();
        spool.note(&Record::Size(0)).unwrap();
        assert!(!spool.is_wordy(1));
        directory.keep(spool);
        let leftover = directory.leftovers().pop().unwrap();
        assert!(!leftover.is_torn);
        assert_eq!(leftover.records, vec![Record::Spool { start: 0, end: 1 }, Record::Size(0)]);
    }
}
