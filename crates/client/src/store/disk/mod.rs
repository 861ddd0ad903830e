//! The persistent block cache of one file system or release, shared by all processes of a user.
//!
//! Nothing here is trusted: every block read from a segment is verified against the reference it is wanted
//! for, exactly like a block from the server; a block that fails is dropped and fetched again. So the files
//! need no fsync, no recovery and no particular order. Damage to them, whatever the cause, costs time, but
//! never correctness.
//!
//! *Sharing.* A directory holds segments ([`record`]), which only grow. Each has at most one writer, which
//! holds its lock (`flock`); every process reads all of them. After a miss, a process finds out what others
//! have added, by the directory's time of change and the lengths of segments that are not full. A segment
//! left by a dead process is continued by the next writer, which first cuts off a half-written record. Any
//! process may remove or replace a segment at any time: a process that is reading it still has the file, and
//! its writer begins another one.
//!
//! *Room.* When the bound is exceeded, the oldest segment is removed. Its blocks that were used since they
//! were added are first copied to the end, at most three quarters of a segment (so this is CLOCK, applied to
//! segments). Notes in segments inform all processes of uses.
//!
//! *Memory*: about 40 to 70 bytes for each cached block, and at most one block for each [`BYTES_PER_ENTRY`]
//! bytes of the bound. Open files: at most [`SEGMENTS_MAX`].

mod check;
mod names;
pub mod pins;
mod record;
mod summary;

pub use check::CheckReport;

use borsh::BorshDeserialize;
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use names::SegmentName;
use record::{Record, key_of};
use rustix::fs::{FlockOperation, flock};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

type Key = [u8; 16];

/// Default bound in bytes: 4 GiB.
pub const BYTES_MAX_DEFAULT: u64 = 4 << 30;
/// Name of the file with the bound in bytes chosen for a directory, in decimal.
const SIZE_FILE: &str = "size";
/// Name of the file that is locked while segments are removed or replaced.
const LOCK_FILE: &str = "lock";
/// Prefix of the name of a file that is still being written.
const TEMPORARY: &str = "tmp-";
/// Most segments of one directory; more are ignored.
const SEGMENTS_MAX: usize = 512;
/// The index has at most one block for each so many bytes of the bound.
const BYTES_PER_ENTRY: u64 = 1024;
/// Uses are written to a note when there are this many.
const NOTES_AT_ONCE: usize = 512;
/// How often a process tries to create a segment while others do the same.
const ATTEMPTS: u32 = 64;
/// A segment's summary is rewritten when it covers this many bytes less than are known of the segment.
const SUMMARY_STEP: u64 = 1 << 20;
/// One part in [`FREE_SHARE`] of the disk stays free, but no more than [`FREE_MAX`] bytes.
const FREE_SHARE: u64 = 20;
const FREE_MAX: u64 = 1 << 30;
/// How long nothing is added after the disk was found full of other data.
const FULL_PAUSE: Duration = Duration::from_secs(10);
/// If the directory's time of change is this recent, another change may get the same time.
const CLOCK_STEP: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
struct RecordLocation {
    slot: u32,
    offset: u32,
    length: u32,
    /// Whether the block was read since it was added.
    used: bool,
}

struct Segment {
    name: SegmentName,
    file: Arc<File>,
    /// Distinguishes the file from another one that replaced it.
    inode: u64,
    /// Offset up to which its records are in the index.
    scanned: u64,
    /// Its length in bytes when it was last checked.
    length: u64,
}

/// A bounded cache of stored blocks on disk.
pub struct DiskCache {
    directory: PathBuf,
    index: HashMap<Key, RecordLocation>,
    segments: HashMap<u32, Segment>,
    by_name: BTreeMap<SegmentName, u32>,
    next_slot: u32,
    /// The segment that this process writes to; its file holds the lock.
    own: Option<u32>,
    /// The directory's time of change when it was last listed.
    listed_at: Option<(i64, i64)>,
    bytes_max: u64,
    /// Bound in bytes for a directory for which none was chosen.
    bytes_max_given: u64,
    /// Uses for which no note was written yet.
    notes: Vec<Key>,
    /// Buffer for encoding records.
    record: Vec<u8>,
    /// Nothing is added until this time, because the disk is full of other data.
    full_until: Option<Instant>,
}

impl DiskCache {
    /// Opens (or creates) the cache in `directory`. It takes at most `bytes_max` bytes, unless another bound
    /// was chosen for the directory ([`DiskCache::choose_size`]). With 0, the present blocks are used, but
    /// none is added or removed.
    ///
    /// # Errors
    /// I/O errors of the directory itself; damaged segments are used as far as they are whole.
    pub fn open(directory: &Path, bytes_max: u64) -> io::Result<DiskCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        // Whoever has a block can find from its address here that this user has it, too.
        fs::set_permissions(directory, Permissions::from_mode(0o700))?;
        let mut cache = DiskCache {
            directory: directory.to_owned(),
            index: HashMap::new(),
            segments: HashMap::new(),
            by_name: BTreeMap::new(),
            next_slot: 0,
            own: None,
            listed_at: None,
            bytes_max,
            bytes_max_given: bytes_max,
            notes: Vec::new(),
            record: Vec::new(),
            full_until: None,
        };
        cache.list()?;
        cache.evict();
        Ok(cache)
    }

    /// Sets the bound in bytes of a directory, for all processes that use it now or later.
    ///
    /// # Errors
    /// I/O errors.
    pub fn choose_size(directory: &Path, bytes_max: u64) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let temporary = directory.join(format!("{TEMPORARY}size-{}", std::process::id()));
        fs::write(&temporary, format!("{bytes_max}\n"))?;
        fs::rename(&temporary, directory.join(SIZE_FILE))
    }

    /// The bound in bytes that was chosen for a directory, if one was.
    pub fn chosen_size(directory: &Path) -> Option<u64> {
        let text = read_short(&directory.join(SIZE_FILE))?;
        text.trim().parse().ok()
    }

    /// The cache directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a block is (probably) in the cache.
    pub fn contains(&self, address: &Digest) -> bool {
        self.index.contains_key(&key_of(address))
    }

    /// Bytes of all segments when they were last checked.
    pub fn bytes(&self) -> u64 {
        self.segments.values().map(|segment| segment.length).sum()
    }

    /// Bytes of segments of pins.
    pub fn bytes_pinned(&self) -> u64 {
        let pinned = self.segments.values().filter(|segment| segment.name.pin.is_some());
        pinned.map(|segment| segment.length).sum()
    }

    /// The bound on the cache's size, in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The place from which to read a block, so that it can be read without holding a lock. Counts as a use.
    pub fn locate(&mut self, address: &Digest) -> Option<Located> {
        let key = key_of(address);
        if !self.index.contains_key(&key) {
            self.follow();
        }
        let place = *self.index.get(&key)?;
        self.used(address);
        let segment = self.segments.get(&place.slot)?;
        Some(Located {
            file: segment.file.clone(),
            offset: place.offset.into(),
            length: place.length as usize,
        })
    }

    /// Notes that a block was used, here or in memory.
    pub fn used(&mut self, address: &Digest) {
        let key = key_of(address);
        let Some(place) = self.index.get_mut(&key).filter(|place| !place.used) else { return };
        place.used = true;
        self.notes.push(key);
        if self.notes.len() >= NOTES_AT_ONCE {
            self.tell_uses();
        }
    }

    /// Drops a block, because its bytes turned out to be bad.
    pub fn forget(&mut self, address: &Digest) {
        self.index.remove(&key_of(address));
    }

    /// Appends a block unless it is in the cache.
    ///
    /// # Errors
    /// I/O errors; the caller goes on without caching the block.
    pub fn insert(&mut self, address: Digest, block: &StoredBlock) -> io::Result<()> {
        if self.contains(&address) || self.bytes_max == 0 {
            return Ok(());
        }
        if !self.may_grow() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut record = std::mem::take(&mut self.record);
        let fits = record::block_record(&mut record, &address, block);
        let appended = if fits { self.append(&record) } else { Ok(()) };
        self.record = record;
        appended?;
        if fits && self.is_over() {
            self.evict();
        }
        Ok(())
    }

    /// Finds out what other processes have changed.
    pub fn follow(&mut self) {
        if self.is_changed() {
            let _ = self.list();
        }
        let full = self.segment_bytes();
        let growing = self.segments.iter().filter(|(slot, segment)| {
            Some(**slot) != self.own && (segment.length < full || segment.name.pin.is_some())
        });
        let growing: Vec<u32> = growing.map(|(slot, _)| *slot).collect();
        for slot in growing {
            let _ = self.scan(slot);
        }
    }

    /// Removes everything, or everything that is not pinned, even if it is in use.
    ///
    /// # Errors
    /// I/O errors.
    pub fn clear(&mut self, pinned_too: bool) -> io::Result<()> {
        self.list()?;
        self.notes.clear();
        self.full_until = None;
        for name in self.by_name.keys().filter(|name| pinned_too || name.pin.is_none()) {
            self.remove(*name)?;
        }
        if pinned_too {
            pins::remove_all(&self.directory)?;
        }
        self.list()
    }

    /// Enforces the bound now.
    pub fn shrink(&mut self) {
        let _ = self.list();
        self.evict();
    }

    fn segment_bytes(&self) -> u64 {
        (self.bytes_max / 64).clamp(1 << 20, 256 << 20)
    }

    fn is_over(&self) -> bool {
        let is_bound = self.bytes_max > 0;
        let is_full = self.bytes() > self.bytes_max || self.index.len() as u64 >= self.entries_max();
        is_bound && (is_full || self.lacking() > 0)
    }

    /// Whether the disk has more free space than must stay free; if not, space is first made by removing
    /// segments.
    fn may_grow(&mut self) -> bool {
        if self.full_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        self.full_until = None;
        if self.lacking() > 0 {
            self.evict();
            if self.lacking() > 0 {
                self.full_until = Some(Instant::now() + FULL_PAUSE);
                return false;
            }
        }
        true
    }

    /// Number of bytes by which the disk's free space is less than what must stay free.
    fn lacking(&self) -> u64 {
        let Ok(disk) = rustix::fs::statvfs(&self.directory) else { return 0 };
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        (bytes(disk.f_blocks) / FREE_SHARE).min(FREE_MAX).saturating_sub(bytes(disk.f_bavail))
    }

    /// Frees `wanted` bytes, and the space that must stay free, on a disk that is full. Returns whether any
    /// were freed.
    pub fn make_room(&mut self, wanted: u64) -> bool {
        let before = self.bytes();
        let wanted = wanted.saturating_add(self.lacking());
        let goes_on = |cache: &DiskCache| before - cache.bytes().min(before) < wanted;
        self.drop_segments(goes_on);
        if goes_on(self)
            && let Some(slot) = self.own.take()
        {
            self.drop_segment(slot);
        }
        self.bytes() < before
    }

    fn entries_max(&self) -> u64 {
        let bound = if self.bytes_max > 0 { self.bytes_max } else { BYTES_MAX_DEFAULT };
        (bound / BYTES_PER_ENTRY).max(1024)
    }

    fn path(&self, name: SegmentName) -> PathBuf {
        self.directory.join(name.to_string())
    }

    fn remove(&self, name: SegmentName) -> io::Result<()> {
        ignore_absent(fs::remove_file(self.path(name)))?;
        summary::remove(&self.directory, name)
    }

    fn is_changed(&self) -> bool {
        let Ok(metadata) = fs::metadata(&self.directory) else { return true };
        self.listed_at != Some((metadata.mtime(), metadata.mtime_nsec()))
    }

    /// Lists the segments, drops those that are gone and reads new ones.
    fn list(&mut self) -> io::Result<()> {
        let metadata = fs::metadata(&self.directory)?;
        let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let is_past = changed.elapsed().is_ok_and(|ago| ago > CLOCK_STEP);
        self.listed_at = is_past.then(|| (metadata.mtime(), metadata.mtime_nsec()));
        let mut found: BTreeMap<SegmentName, u64> = BTreeMap::new();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            if let Some(name) = entry.file_name().to_str().and_then(SegmentName::parse) {
                found.insert(name, entry.ino());
            }
        }
        // A process that was started with a bound of 0 adds nothing, whatever bound was chosen for the
        // directory.
        if self.bytes_max_given > 0 {
            self.bytes_max = Self::chosen_size(&self.directory).unwrap_or(self.bytes_max_given);
        }
        let is_gone = |segment: &Segment| found.get(&segment.name) != Some(&segment.inode);
        let gone: HashSet<u32> =
            self.segments.iter().filter(|(_, segment)| is_gone(segment)).map(|(slot, _)| *slot).collect();
        self.drop_slots(&gone);
        // If there are too many, the newest are taken: pins, and then plain segments from the end.
        let new = found.keys().rev().filter(|name| !self.by_name.contains_key(name));
        let room = SEGMENTS_MAX.saturating_sub(self.segments.len());
        let mut new: Vec<SegmentName> = new.take(room).copied().collect();
        new.reverse();
        for name in new {
            if let Ok(file) = open_plainly(&self.path(name)) {
                let _ = self.enter(name, file);
            }
        }
        Ok(())
    }

    fn drop_slots(&mut self, gone: &HashSet<u32>) {
        if gone.is_empty() {
            return;
        }
        for slot in gone {
            if let Some(segment) = self.segments.remove(slot) {
                self.by_name.remove(&segment.name);
            }
            if self.own == Some(*slot) {
                self.own = None;
            }
        }
        self.index.retain(|_, place| !gone.contains(&place.slot));
    }

    fn enter(&mut self, name: SegmentName, file: File) -> io::Result<u32> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let slot = self.next_slot;
        self.next_slot += 1;
        let segment = Segment { name, file: Arc::new(file), inode: metadata.ino(), scanned: 0, length: 0 };
        self.segments.insert(slot, segment);
        self.by_name.insert(name, slot);
        let (rows, covered) = summary::read(&self.directory, name, metadata.len()).unwrap_or_default();
        for row in rows {
            let place = RecordLocation { slot, offset: row.offset, length: row.length, used: row.used };
            self.note_location(row.key, place);
        }
        if let Some(segment) = self.segments.get_mut(&slot) {
            segment.scanned = covered;
        }
        self.scan(slot)?;
        self.sum_up(slot, covered);
        Ok(slot)
    }

    /// Writes a summary of a segment, so that the next process that opens the directory need not read it
    /// again.
    fn sum_up(&self, slot: u32, covered: u64) {
        let Some(segment) = self.segments.get(&slot) else { return };
        if segment.scanned < covered + SUMMARY_STEP {
            return;
        }
        let mine = self.index.iter().filter(|(_, place)| place.slot == slot);
        let row = |(key, place): (&Key, &RecordLocation)| summary::SummaryRow {
            key: *key,
            offset: place.offset,
            length: place.length,
            used: place.used,
        };
        let rows: Vec<summary::SummaryRow> = mine.map(row).collect();
        if let Err(error) = summary::write(&self.directory, segment.name, segment.scanned, &rows) {
            tracing::debug!(%error, "a segment could not be summed up");
        }
    }

    /// Notes where a block is.
    fn note_location(&mut self, key: Key, place: RecordLocation) {
        let has_room = (self.index.len() as u64) < self.entries_max();
        match self.index.entry(key) {
            // A pinned copy of a block is preferred, because it stays longest.
            Entry::Occupied(known)
                if pinned(&self.segments, known.get()) && !pinned(&self.segments, &place) => {}
            Entry::Occupied(mut known) => drop(known.insert(place)),
            Entry::Vacant(free) if has_room => drop(free.insert(place)),
            Entry::Vacant(_) => {}
        }
    }

    /// Reads the records of a segment that are not in the index yet.
    fn scan(&mut self, slot: u32) -> io::Result<()> {
        let Some(segment) = self.segments.get_mut(&slot) else { return Ok(()) };
        let file = segment.file.clone();
        segment.length = file.metadata()?.len();
        let (mut at, length) = (segment.scanned, segment.length);
        while at < length {
            let Some((record, end)) = record::read(&file, at, length)? else { break };
            match record {
                Record::Block(address, offset, length) => {
                    self.note_location(
                        key_of(&address),
                        RecordLocation { slot, offset, length, used: false },
                    );
                }
                Record::Note(keys) => {
                    for key in keys {
                        if let Some(place) = self.index.get_mut(&key) {
                            place.used = true;
                        }
                    }
                }
            }
            at = end;
        }
        if let Some(segment) = self.segments.get_mut(&slot) {
            segment.scanned = at;
        }
        Ok(())
    }

    fn tell_uses(&mut self) {
        for keys in std::mem::take(&mut self.notes).chunks(record::NOTE_KEYS_MAX) {
            // The note is only a hint, so an error does not matter.
            let _ = self.append(&record::note_record(keys));
        }
    }

    /// Appends a record to this process's segment, and reads it back into the index.
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if self.is_changed() {
            self.list()?;
        }
        let full = self.segment_bytes();
        let own = self.own.filter(|slot| self.segments.get(slot).is_some_and(|own| own.length < full));
        let slot = match own {
            Some(slot) => slot,
            None => self.take_segment()?,
        };
        let segment = self.segments.get_mut(&slot).expect("it was just found or made");
        let (file, offset) = (segment.file.clone(), segment.scanned);
        if let Err(error) = file.write_all_at(record, offset) {
            // A full disk may have taken the beginning of the record, which would be in the way of the next
            // one.
            let _ = file.set_len(offset);
            return Err(error);
        }
        self.scan(slot)
    }

    /// Finds a segment to write to: one that is not full and has no writer, or a new one.
    fn take_segment(&mut self) -> io::Result<u32> {
        if let Some(full) = self.own.take().and_then(|slot| self.segments.get(&slot)) {
            // A process that makes room may remove the segment from now on.
            let _ = flock(&full.file, FlockOperation::Unlock);
        }
        let full = self.segment_bytes();
        let free = self.by_name.iter().rev().filter(|(name, slot)| {
            name.pin.is_none() && self.segments.get(slot).is_some_and(|segment| segment.length < full)
        });
        let free: Vec<SegmentName> = free.map(|(name, _)| *name).collect();
        let mut slot = free.into_iter().find_map(|name| self.adopt(name));
        for _ in 0..ATTEMPTS {
            if slot.is_some() {
                break;
            }
            let last = self.by_name.keys().rfind(|name| name.pin.is_none());
            let number = last.map_or(0, |name| name.number + 1);
            let name = SegmentName { pin: None, number };
            slot = match self.create(name) {
                // Another process was faster.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::WouldBlock) =>
                {
                    self.list()?;
                    None
                }
                other => Some(other?),
            };
        }
        self.own = slot;
        slot.ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, "no segment can be made"))
    }

    fn create(&mut self, name: SegmentName) -> io::Result<u32> {
        let options = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).clone();
        let file = options.open(self.path(name))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        self.enter(name, file)
    }

    /// Continues a segment that has no writer.
    fn adopt(&mut self, name: SegmentName) -> Option<u32> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name)).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let here = fs::metadata(self.path(name)).ok()?.ino();
        if file.metadata().ok()?.ino() != here {
            return None;
        }
        let old = *self.by_name.get(&name)?;
        // Its records are read again, from the file that holds the lock.
        self.drop_slots(&HashSet::from([old]));
        let slot = self.enter(name, file).ok()?;
        let segment = self.segments.get_mut(&slot)?;
        if segment.scanned < segment.length {
            segment.file.set_len(segment.scanned).ok()?;
            segment.length = segment.scanned;
        }
        Some(slot)
    }

    /// Removes whole segments, the oldest first, until the bound is met. Segments being written to, and those
    /// of pins, stay.
    fn evict(&mut self) {
        if self.is_over() {
            self.drop_segments(DiskCache::is_over);
        }
    }

    /// Removes whole segments, the oldest first, while `goes_on`, except those being written to.
    fn drop_segments(&mut self, goes_on: impl Fn(&DiskCache) -> bool) {
        // The process that has the lock does this for all.
        let Ok(Some(_lock)) = self.lock() else { return };
        self.follow();
        self.tell_uses();
        let mut candidates: Vec<u32> =
            self.by_name.iter().filter(|(name, _)| name.pin.is_none()).map(|(_, slot)| *slot).collect();
        candidates.reverse();
        while goes_on(self)
            && let Some(slot) = candidates.pop()
        {
            if self.own == Some(slot) || !self.is_free(slot) {
                continue;
            }
            if self.lacking() == 0
                && let Err(error) = self.rewrite_used(slot)
            {
                tracing::debug!(%error, "used blocks could not be kept");
            }
            self.drop_segment(slot);
        }
    }

    fn drop_segment(&mut self, slot: u32) {
        let Some(name) = self.segments.get(&slot).map(|segment| segment.name) else { return };
        if self.remove(name).is_ok() {
            self.drop_slots(&HashSet::from([slot]));
        }
    }

    /// Whether no process writes to a segment.
    fn is_free(&self, slot: u32) -> bool {
        let Some(segment) = self.segments.get(&slot) else { return false };
        let free = flock(&segment.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = flock(&segment.file, FlockOperation::Unlock);
        free
    }

    /// Copies the used blocks of a segment to the end, where they count as unused.
    fn rewrite_used(&mut self, slot: u32) -> io::Result<()> {
        let Some(segment) = self.segments.get(&slot) else { return Ok(()) };
        let (file, mut left) = (segment.file.clone(), segment.length / 4 * 3);
        let used = self.index.values().filter(|place| place.slot == slot && place.used);
        let mut used: Vec<(u32, u32)> = used.map(|place| (place.offset, place.length)).collect();
        used.sort_unstable_by(|a, b| b.cmp(a));
        for (offset, length) in used {
            let bytes = u64::from(length) + record::BLOCK_HEADER as u64;
            if bytes > left {
                break;
            }
            left -= bytes;
            let mut record = vec![0; bytes as usize];
            file.read_exact_at(&mut record, u64::from(offset) - record::BLOCK_HEADER as u64)?;
            self.append(&record)?;
        }
        Ok(())
    }

    /// Takes the lock for removing and replacing segments; `None` if another process has it. Also removes
    /// half-written files that a former holder left behind.
    fn lock(&self) -> io::Result<Option<File>> {
        let path = self.directory.join(LOCK_FILE);
        let options = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).clone();
        let lock = options.open(path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(error) if error == rustix::io::Errno::WOULDBLOCK => return Ok(None),
            other => other?,
        }
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let is_old = || entry.metadata().is_ok_and(|data| age(&data) > Duration::from_secs(60));
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            let is_orphan = name.strip_suffix(".index").is_some_and(|of| !self.directory.join(of).exists());
            if is_orphan || name.starts_with(TEMPORARY) && is_old() {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Some(lock))
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.tell_uses();
    }
}

/// The place of a block. It stays readable even if its segment is removed meanwhile.
pub struct Located {
    file: Arc<File>,
    offset: u64,
    length: usize,
}

impl Located {
    /// Reads the block. `None` if the bytes are not an encoded block. The caller must verify that it is the
    /// *right* block.
    pub fn read(&self) -> Option<StoredBlock> {
        let mut bytes = vec![0u8; self.length];
        self.file.read_exact_at(&mut bytes, self.offset).ok()?;
        StoredBlock::try_from_slice(&bytes).ok()
    }
}

fn pinned(segments: &HashMap<u32, Segment>, place: &RecordLocation) -> bool {
    segments.get(&place.slot).is_some_and(|segment| segment.name.pin.is_some())
}

fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Opens a file for reading, without blocking if it is, say, a pipe.
fn open_plainly(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn age(metadata: &fs::Metadata) -> Duration {
    metadata.modified().ok().and_then(|changed| changed.elapsed().ok()).unwrap_or_default()
}

/// The content of a small text file; `None` if it is missing or not text. Of a long file, only the beginning
/// is read.
fn read_short(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    open_plainly(path).ok()?.take(64 << 10).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
