//! Pins: blocks that stay in the cache. Each pin has a file that describes it, and segments of its own, which
//! are not removed to make room. They count towards the bound like all others.

use super::names::{SegmentName, hex};
use super::record::{self, Record, key_of};
use super::{DiskCache, Key, TEMPORARY, ignore_absent, open_plainly, read_short, summary};
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use holdfast_log::FileLock;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size in bytes at which a pin's segment is followed by another.
const SEGMENT_BYTES: u64 = 256 << 20;
/// Most pins of one directory; more are ignored.
pub const PINS_MAX: usize = 1024;

/// The description of one pin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pin {
    /// Its number, after which its files are named.
    pub id: u64,
    /// The pinned path in the file system, from its root.
    pub path: String,
    /// When it was last brought up to date, in nanoseconds since 1970.
    pub at_ns: i64,
    /// Number of files that it keeps.
    pub files: u64,
    /// Number of blocks that it keeps.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Whether all of it was in the cache when the pin was made or updated.
    pub whole: bool,
}

/// All pins of a directory, ordered by path.
pub fn list(directory: &Path) -> Vec<Pin> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| hex(entry.file_name().to_str()?.strip_suffix(".pin")?));
    let mut pins: Vec<Pin> = ids.take(PINS_MAX).filter_map(|id| read(directory, id)).collect();
    pins.sort_by(|a, b| (&a.path, a.id).cmp(&(&b.path, b.id)));
    pins
}

fn read(directory: &Path, id: u64) -> Option<Pin> {
    let pin: Pin = serde_json::from_str(&read_short(&file_of(directory, id))?).ok()?;
    (pin.id == id).then_some(pin)
}

fn file_of(directory: &Path, id: u64) -> PathBuf {
    directory.join(format!("{id:016x}.pin"))
}

/// Writes the description of a pin atomically.
///
/// # Errors
/// I/O errors.
pub fn write(directory: &Path, pin: &Pin) -> io::Result<()> {
    let temporary = directory.join(format!("{TEMPORARY}{}-{:016x}.pin", std::process::id(), pin.id));
    fs::write(&temporary, serde_json::to_vec(pin)?)?;
    fs::rename(temporary, file_of(directory, pin.id))
}

/// Removes a pin. Its blocks stay in the cache like unpinned ones, until room is needed.
///
/// # Errors
/// I/O errors.
pub fn remove(directory: &Path, id: u64) -> io::Result<()> {
    let names = segments(directory)?;
    let mut next =
        names.iter().filter(|name| name.pin.is_none()).map(|name| name.number + 1).max().unwrap_or(0);
    for name in names.iter().filter(|name| name.pin == Some(id)) {
        let old = directory.join(name.to_string());
        loop {
            let new = SegmentName { pin: None, number: next };
            next += 1;
            match fs::hard_link(&old, directory.join(new.to_string())) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => break other?,
            }
        }
        ignore_absent(fs::remove_file(old))?;
        summary::remove(directory, *name)?;
    }
    ignore_absent(fs::remove_file(file_of(directory, id)))
}

pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    list(directory).iter().try_for_each(|pin| ignore_absent(fs::remove_file(file_of(directory, pin.id))))
}

fn segments(directory: &Path) -> io::Result<Vec<SegmentName>> {
    let entries = fs::read_dir(directory)?.flatten();
    let mut names: Vec<SegmentName> =
        entries.filter_map(|entry| SegmentName::parse(entry.file_name().to_str()?)).collect();
    names.sort_unstable();
    Ok(names)
}

/// Adds blocks to a pin. At most one instance for each pin exists at a time.
pub struct Pinning {
    directory: PathBuf,
    id: u64,
    /// Keeps the pin locked while this lives.
    _lock: FileLock,
    /// Blocks that the pin already has.
    known: HashSet<Key>,
    /// Blocks that the pin needs, as far as they were found.
    needed: HashSet<Key>,
    blocks: u64,
    bytes: u64,
    bytes_max: u64,
    current: Option<(File, u64)>,
    next: u64,
}

/// Why a block cannot be added to a pin.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The bound of the cache has no room for it.
    #[error("what is pinned would take more than {0} bytes, nine tenths of the cache's size")]
    TooLarge(u64),
    /// The disk failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Pinning {
    /// Starts to add blocks to a pin.
    ///
    /// # Errors
    /// I/O errors; [`io::ErrorKind::ResourceBusy`]: another process does the same at the moment.
    pub fn begin(cache: &DiskCache, id: u64) -> io::Result<Pinning> {
        let directory = cache.directory.clone();
        let options = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).clone();
        let lock = options.open(directory.join(format!("pinning-{id:016x}")))?;
        let lock = FileLock::take(lock).map_err(|_| {
            let words = "another process of this user fetches what is pinned just now";
            io::Error::new(io::ErrorKind::ResourceBusy, words)
        })?;
        let mine = segments(&directory)?.into_iter().filter(|name| name.pin == Some(id));
        let mut pinning = Pinning {
            // Pins may take nine tenths of the cache; the rest is for other blocks.
            bytes_max: cache.bytes_max / 10 * 9,
            directory,
            id,
            _lock: lock,
            known: HashSet::new(),
            needed: HashSet::new(),
            blocks: 0,
            bytes: 0,
            current: None,
            next: 0,
        };
        let mut own = 0;
        for name in mine {
            let Ok(file) = open_plainly(&pinning.directory.join(name.to_string())) else { continue };
            let length = file.metadata()?.len();
            let mut at = 0;
            while let Some((record, end)) = record::read(&file, at, length)? {
                if let Record::Block(address, ..) = record {
                    pinning.known.insert(key_of(&address));
                }
                at = end;
            }
            own += length;
            pinning.next = name.number + 1;
        }
        pinning.bytes_max = pinning.bytes_max.saturating_sub(cache.bytes_pinned().saturating_sub(own));
        Ok(pinning)
    }

    /// Adds a block.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn keep(&mut self, address: &Digest, block: &StoredBlock) -> Result<(), PinError> {
        if !self.needed.insert(key_of(address)) {
            return Ok(());
        }
        let mut record = Vec::new();
        if !record::block_record(&mut record, address, block) {
            return Ok(());
        }
        self.blocks += 1;
        self.bytes += record.len() as u64;
        if self.bytes > self.bytes_max {
            return Err(PinError::TooLarge(self.bytes_max));
        }
        if self.known.contains(&key_of(address)) {
            return Ok(());
        }
        if self.current.as_ref().is_none_or(|(_, length)| *length >= SEGMENT_BYTES) {
            let name = SegmentName { pin: Some(self.id), number: self.next };
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(self.directory.join(name.to_string()))?;
            self.current = Some((file, 0));
            self.next += 1;
        }
        let (file, length) = self.current.as_mut().expect("it was just made");
        file.write_all_at(&record, *length)?;
        *length += record.len() as u64;
        Ok(())
    }

    /// Number and bytes of the blocks needed so far.
    pub fn needed(&self) -> (u64, u64) {
        (self.blocks, self.bytes)
    }

    /// Ends an update in which all needed blocks were added. If more than half of the pin's bytes are no
    /// longer needed, they are removed.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(&mut self) -> io::Result<(u64, u64)> {
        self.current = None;
        let old: Vec<SegmentName> =
            segments(&self.directory)?.into_iter().filter(|name| name.pin == Some(self.id)).collect();
        let mut total = 0;
        for name in &old {
            total += fs::metadata(self.directory.join(name.to_string())).map_or(0, |data| data.len());
        }
        if total > 2 * self.bytes {
            self.known.clear();
            self.rewrite(&old)?;
        }
        Ok((self.blocks, self.bytes))
    }

    fn rewrite(&mut self, old: &[SegmentName]) -> io::Result<()> {
        let mut left = std::mem::take(&mut self.needed);
        let mut new: Option<(File, u64)> = None;
        for name in old {
            let path = self.directory.join(name.to_string());
            let file = open_plainly(&path)?;
            let length = file.metadata()?.len();
            let mut at = 0;
            while let Some((record, end)) = record::read(&file, at, length)? {
                if let Record::Block(address, ..) = record
                    && left.remove(&key_of(&address))
                {
                    if new.as_ref().is_none_or(|(_, length)| *length >= SEGMENT_BYTES) {
                        let name = SegmentName { pin: Some(self.id), number: self.next };
                        let mut options = OpenOptions::new();
                        let made = options.write(true).create_new(true).mode(0o600).clone();
                        new = Some((made.open(self.directory.join(name.to_string()))?, 0));
                        self.next += 1;
                    }
                    let mut bytes = vec![0; (end - at) as usize];
                    file.read_exact_at(&mut bytes, at)?;
                    let (out, length) = new.as_mut().expect("it was just made");
                    out.write_all_at(&bytes, *length)?;
                    *length += bytes.len() as u64;
                }
                at = end;
            }
        }
        old.iter().try_for_each(|name| {
            ignore_absent(fs::remove_file(self.directory.join(name.to_string())))?;
            summary::remove(&self.directory, *name)
        })
    }
}

impl Drop for Pinning {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.directory.join(format!("pinning-{:016x}", self.id)));
    }
}
