//! The log: append, group commit, segments, reading, recovery.

use crate::frame::{self, BodyTag, FRAME_BYTES, HEADER_BYTES, Header, Position, Record, RecordHead};
use crate::scan::{Damage, Reader, Scan, ScanItem};
use crate::segments::{Segment, Segments, first_position, read_header};
use crate::storage::{Storage, SyncSite};
use crate::{HEAD_BYTES_MAX, LogError, RECORD_BYTES_MAX};
use parking_lot::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets must fit 32 bits, with room for the largest record.
const SEGMENT_BYTES_MAX: u32 = 1 << 30;

/// The settings of a log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Length at which a segment is sealed, in bytes; at most 1 GiB.
    pub segment_bytes: u32,
    /// Appended bytes that are buffered before they are written (not synced) to the file.
    pub buffer_bytes: usize,
    /// The caller's anchor: the log was durable up to here. An end before it is loss, not a torn tail.
    pub known_durable: Position,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { segment_bytes: 64 << 20, buffer_bytes: 256 << 10, known_durable: Position::START }
    }
}

/// An open log. Cloning it is cheap; all methods are thread-safe and block.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    config: LogConfig,
    segments: Arc<Segments>,
    appender: Mutex<Appender>,
    commit: Mutex<Commit>,
    committed: Condvar,
    /// Everything before this is in the file; what follows may still be in the appender's buffer.
    written: AtomicU64,
    syncs: AtomicU64,
}

struct Appender {
    active: Arc<Segment>,
    /// End of the records before the active segment.
    previous: Position,
    /// Appended but not yet written; begins at `written`.
    buffer: Vec<u8>,
    written: u64,
}

struct Commit {
    durable: Position,
    running: bool,
    failed: Option<String>,
}

/// The result of opening a log. As an iterator it yields every record in order; damage is an `Err`, after
/// which the iteration continues.
pub struct Recovery {
    scan: Scan,
    /// Damage in the last segment, before a position that was known durable.
    pub damage: Vec<Damage>,
    /// A torn tail that was cut off: its position, and its number of bytes. Nothing in it was acknowledged.
    pub truncated: Option<(Position, u64)>,
    /// The end of the log.
    pub end: Position,
}

impl Iterator for Recovery {
    type Item = Result<RecordHead, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.scan.next()? {
            Ok(ScanItem::Record(head)) => Ok(head),
            Ok(ScanItem::Damaged(damage)) => Err(damage.into()),
            Err(error) => Err(error),
        })
    }
}

impl Log {
    /// Opens (or begins) the log in `storage`, finds its end, cuts off a torn tail, and starts a new segment.
    /// The caller must hold a lock on the storage.
    ///
    /// # Errors
    /// The medium failed, the format is newer, or records known durable are gone.
    pub fn open(storage: Arc<dyn Storage>, mut config: LogConfig) -> Result<(Log, Recovery), LogError> {
        config.segment_bytes = config.segment_bytes.min(SEGMENT_BYTES_MAX);
        let segments = Arc::new(Segments::new(storage.clone()));
        let mut numbers: Vec<u32> = storage
            .list()
            .map_err(|error| LogError::io("listing", &storage.describe(), &error))?
            .iter()
            .filter_map(|name| frame::segment_number(name))
            .collect();
        numbers.sort_unstable();
        let greatest = numbers.last().copied().unwrap_or(0).max(config.known_durable.segment);
        let mut damage = Vec::new();
        let mut truncated = None;
        let mut end = Position::START;
        while let Some(&number) = numbers.last() {
            let name = frame::segment_name(number);
            let file = storage.open(&name).map_err(|error| LogError::io("opening", &name, &error))?;
            let length = file.len().map_err(|error| LogError::io("measuring", &name, &error))?;
            let header = read_header(number, &*file)?;
            if let Header::Newer(found) = header {
                return Err(LogError::NewerFormat { file: name, found, supported: frame::LOG_FORMAT });
            }
            if length <= HEADER_BYTES {
                // Begun but never used: nothing in it can have been acknowledged.
                segments.remove(number)?;
                numbers.pop();
                continue;
            }
            let Header::Ours(key) = header else {
                return Err(LogError::Damaged { file: name, offset: 0, why: "bad segment header".into() });
            };
            let segment = Arc::new(Segment { number, file, key });
            let tail = find_end(&segment, length, config.known_durable)?;
            if tail.end < length {
                truncated = Some((Position { segment: number, offset: tail.end as u32 }, length - tail.end));
            }
            damage = tail.damage;
            end = Position { segment: number, offset: tail.end as u32 };
            // After a kill (not a power loss) the tail may be in the page cache only. It counts from here on,
            // so it must be durable; and cut bytes must not come back once later segments exist.
            segment.file.truncate(tail.end).map_err(|error| LogError::io("truncating", &name, &error))?;
            segment
                .file
                .sync(SyncSite::RECOVERED_TAIL)
                .map_err(|error| LogError::io("syncing", &name, &error))?;
            segments.insert(number, tail.end, &segment.file.holes());
            segments.remember(segment);
            break;
        }
        if end < config.known_durable {
            return Err(LogError::Lost { expected: config.known_durable, found: end });
        }
        for &number in numbers.iter().rev().skip(1) {
            let name = frame::segment_name(number);
            let file = storage.open(&name).map_err(|error| LogError::io("opening", &name, &error))?;
            let length = file.len().map_err(|error| LogError::io("measuring", &name, &error))?;
            segments.insert(number, length, &file.holes());
        }
        let active = begin_segment(&segments, &config, greatest + 1)?;
        let start = first_position(active.number);
        let log = Log(Arc::new(Inner {
            segments: segments.clone(),
            appender: Mutex::new(Appender {
                active,
                previous: end,
                buffer: Vec::new(),
                written: HEADER_BYTES,
            }),
            commit: Mutex::new(Commit { durable: start, running: false, failed: None }),
            committed: Condvar::new(),
            written: AtomicU64::new(start.to_u64()),
            syncs: AtomicU64::new(0),
            config,
        }));
        let scan = Scan::new(segments, Position::START, end, false);
        Ok((log, Recovery { scan, damage, truncated, end }))
    }

    /// Appends a record without a head. Buffered: not durable until [`Log::sync`].
    ///
    /// # Errors
    /// The disk is full (nothing was appended), the record is too large, or the log is poisoned.
    pub fn append(&self, kind: u8, body: &[u8]) -> Result<Position, LogError> {
        self.append_parts(kind, &[], body, BodyTag::of(body))
    }

    /// Appends a record with a head and a body. Scans read and verify the head without the body; the caller
    /// made the body's tag outside any lock. Buffered: not durable until [`Log::sync`].
    ///
    /// # Errors
    /// The disk is full (nothing was appended), the record is too large, or the log is poisoned.
    pub fn append_parts(
        &self,
        kind: u8,
        head: &[u8],
        body: &[u8],
        tag: BodyTag,
    ) -> Result<Position, LogError> {
        let inner = &*self.0;
        if head.len() > HEAD_BYTES_MAX {
            return Err(LogError::TooLarge { found: head.len(), limit: HEAD_BYTES_MAX });
        }
        if head.len() + body.len() > RECORD_BYTES_MAX {
            return Err(LogError::TooLarge { found: head.len() + body.len(), limit: RECORD_BYTES_MAX });
        }
        let (durable, failed) = {
            let commit = inner.commit.lock();
            (commit.durable, commit.failed.clone())
        };
        if let Some(why) = failed {
            return Err(LogError::Poisoned(why));
        }
        let mut appender = inner.appender.lock();
        let length = frame::frame_length(head.len(), body.len());
        if appender.end() > HEADER_BYTES && appender.end() + length > u64::from(inner.config.segment_bytes) {
            self.roll(&mut appender)?;
        }
        let at = Position { segment: appender.active.number, offset: appender.end() as u32 };
        let key = appender.active.key;
        frame::encode_frame(&mut appender.buffer, &key, at.offset, durable, kind, head, (body, tag));
        if appender.buffer.len() >= inner.config.buffer_bytes {
            self.write_out(&mut appender)?;
        }
        Ok(at)
    }

    /// Makes everything appended before the call durable. Threads that call together share one sync.
    ///
    /// # Errors
    /// The medium failed; the log is poisoned from then on.
    pub fn sync(&self) -> Result<(), LogError> {
        self.sync_at(SyncSite::COMMIT)
    }

    /// As [`Log::sync`], from a named site in the program, so that tests can distinguish it.
    ///
    /// # Errors
    /// The medium failed; the log is poisoned from then on.
    pub fn sync_at(&self, site: SyncSite) -> Result<(), LogError> {
        let inner = &*self.0;
        let target = {
            let appender = inner.appender.lock();
            Position { segment: appender.active.number, offset: appender.end() as u32 }
        };
        let mut commit = inner.commit.lock();
        loop {
            if let Some(why) = &commit.failed {
                return Err(LogError::Poisoned(why.clone()));
            }
            if commit.durable >= target {
                return Ok(());
            }
            if !commit.running {
                break;
            }
            inner.committed.wait(&mut commit);
        }
        commit.running = true;
        drop(commit);
        let result = self.write_and_sync(site);
        let mut commit = inner.commit.lock();
        commit.running = false;
        let result = match result {
            Ok(durable) => {
                commit.durable = commit.durable.max(durable);
                Ok(())
            }
            Err(error) => {
                commit.failed.get_or_insert_with(|| error.to_string());
                Err(error)
            }
        };
        inner.committed.notify_all();
        result
    }

    /// The end of the log: all records so far are before it, all later ones at or after it.
    pub fn end(&self) -> Position {
        let appender = self.0.appender.lock();
        if appender.end() == HEADER_BYTES {
            // An empty segment does not survive a restart, so no position in it may be used as an anchor.
            return appender.previous;
        }
        Position { segment: appender.active.number, offset: appender.end() as u32 }
    }

    /// Bytes in the active segment.
    pub fn active_bytes(&self) -> u64 {
        self.0.appender.lock().end()
    }

    /// Asks the system to forget cached segments, so that reads come from the medium. A hint.
    pub fn drop_cache(&self) {
        for (number, _) in self.0.segments.list() {
            if let Ok(segment) = self.0.segments.get(number) {
                segment.file.drop_cache();
            }
        }
    }

    /// Everything before this is durable.
    pub fn durable(&self) -> Position {
        self.0.commit.lock().durable
    }

    /// How many group commits reached the medium.
    pub fn sync_count(&self) -> u64 {
        self.0.syncs.load(Ordering::Relaxed)
    }

    /// Reads and verifies one record. `length_hint` is its expected stored length (0 when unknown) and saves a
    /// second read when it is right.
    ///
    /// # Errors
    /// The medium failed, the record is damaged, or its segment was removed.
    pub fn read(&self, at: Position, length_hint: u32) -> Result<Record, LogError> {
        let wanted = (length_hint as usize).clamp(FRAME_BYTES, RECORD_BYTES_MAX + FRAME_BYTES);
        let (head, frame, segment) = self.read_frame(at, wanted)?;
        let mut bytes = frame;
        let body_at = FRAME_BYTES + head.head.len();
        let total = body_at + head.body_length as usize;
        if bytes.len() < total {
            let have = bytes.len();
            bytes.resize(total, 0);
            let count = self.read_bytes(&segment, u64::from(at.offset) + have as u64, &mut bytes[have..])?;
            bytes.truncate(have + count);
        }
        bytes.truncate(total);
        let body = bytes.split_off(body_at.min(bytes.len()));
        if !frame::body_fits(&head, &body) {
            return Err(self.damaged(&segment, at, "the body of the record was altered"));
        }
        Ok(Record { position: at, kind: head.kind, head: head.head, body })
    }

    /// Reads and verifies the head of one record; its body stays on the disk.
    ///
    /// # Errors
    /// The medium failed, the head is damaged, or its segment was removed.
    pub fn read_head(&self, at: Position) -> Result<RecordHead, LogError> {
        Ok(self.read_frame(at, 512)?.0)
    }

    /// Iterates over the records from `from` (the position of a record, or [`Position::START`]) to the
    /// present end. `bodies` says whether bodies are read and verified too.
    ///
    /// # Errors
    /// What is still in memory could not be written to the file.
    pub fn scan(&self, from: Position, bodies: ScanDepth) -> Result<Scan, LogError> {
        let end = {
            let mut appender = self.0.appender.lock();
            self.write_out(&mut appender)?;
            Position { segment: appender.active.number, offset: appender.end() as u32 }
        };
        Ok(Scan::new(self.0.segments.clone(), from, end, bodies == ScanDepth::Bodies))
    }

    /// Walks over one sealed segment.
    ///
    /// # Errors
    /// The segment is not known.
    pub fn scan_segment(&self, number: u32, bodies: ScanDepth) -> Result<Scan, LogError> {
        let length = self.0.segments.length(number).ok_or(LogError::SegmentGone(number))?;
        let end = Position { segment: number, offset: length.min(u64::from(u32::MAX)) as u32 };
        let segments = self.0.segments.clone();
        Ok(Scan::new(segments, first_position(number), end, bodies == ScanDepth::Bodies))
    }

    /// Sealed segments and the bytes that they take, oldest first; the active one is not among them.
    pub fn sealed_segments(&self) -> Vec<(u32, u64)> {
        let active = self.0.appender.lock().active.number;
        self.0.segments.list().into_iter().filter(|(number, _)| *number < active).collect()
    }

    /// Seals the active segment, if it holds anything, and begins another.
    ///
    /// # Errors
    /// The disk is full (nothing changed), or the medium failed.
    pub fn seal(&self) -> Result<(), LogError> {
        let mut appender = self.0.appender.lock();
        if appender.end() > HEADER_BYTES {
            self.roll(&mut appender)?;
        }
        Ok(())
    }

    /// Removes sealed segments for good. The caller has made whatever it still needs from them durable elsewhere.
    ///
    /// # Errors
    /// The medium failed; some may be gone already.
    pub fn remove_segments(&self, numbers: &[u32]) -> Result<(), LogError> {
        let active = self.0.appender.lock().active.number;
        for &number in numbers.iter().filter(|number| **number < active) {
            self.0.segments.remove(number)?;
        }
        let storage = &self.0.segments.storage;
        storage
            .sync_dir(SyncSite::SEGMENT_REMOVED)
            .map_err(|error| LogError::io("syncing", &storage.describe(), &error))
    }

    /// Whether [`Log::punch_holes`] can be used: only a medium that is expensive to read and write supports
    /// it.
    pub fn can_punch_holes(&self, number: u32) -> bool {
        let active = self.0.appender.lock().active.number;
        number < active && self.0.segments.get(number).is_ok_and(|segment| segment.file.can_punch_holes())
    }

    /// Frees the space of whole records of a sealed segment that nobody needs any more, without moving the
    /// others. `holes` are ranges between starts of records, in order and not adjacent. Scans skip holes, and
    /// reading a record in one is [`LogError::SegmentGone`]. `false`: the medium does not support it, and
    /// nothing has changed.
    ///
    /// # Errors
    /// The medium failed, or the segment was removed; nothing has changed.
    pub fn punch_holes(&self, number: u32, holes: &[Range<u64>]) -> Result<bool, LogError> {
        match self.0.appender.lock().active.number {
            active if number < active => {}
            _ => return Ok(false),
        }
        self.0.segments.punch_holes(number, holes)
    }

    fn write_and_sync(&self, site: SyncSite) -> Result<Position, LogError> {
        let (segment, end) = {
            let mut appender = self.0.appender.lock();
            self.write_out(&mut appender)?;
            (appender.active.clone(), appender.end())
        };
        self.0.syncs.fetch_add(1, Ordering::Relaxed);
        let name = frame::segment_name(segment.number);
        segment.file.sync(site).map_err(|error| LogError::io("syncing", &name, &error))?;
        Ok(Position { segment: segment.number, offset: end as u32 })
    }

    /// Writes the buffer to the file. The records in it have their positions already, so a failure here is
    /// fatal.
    fn write_out(&self, appender: &mut Appender) -> Result<(), LogError> {
        if appender.buffer.is_empty() {
            return Ok(());
        }
        let name = frame::segment_name(appender.active.number);
        if let Err(error) = appender.active.file.write_at(appender.written, &appender.buffer) {
            let error = LogError::io("writing", &name, &error);
            self.0.commit.lock().failed.get_or_insert_with(|| error.to_string());
            return Err(error);
        }
        appender.written += appender.buffer.len() as u64;
        appender.buffer.clear();
        let at = Position { segment: appender.active.number, offset: appender.written as u32 };
        self.0.written.store(at.to_u64(), Ordering::Release);
        Ok(())
    }

    /// Begins the next segment. A full disk is detected before anything has changed. Then the old segment is
    /// made durable, so that the commit of a later segment covers it.
    fn roll(&self, appender: &mut Appender) -> Result<(), LogError> {
        let inner = &*self.0;
        let next = begin_segment(&inner.segments, &inner.config, appender.active.number + 1)?;
        self.write_out(appender)?;
        let old = &appender.active;
        let name = frame::segment_name(old.number);
        let sealed = old.file.truncate(appender.written).and_then(|()| old.file.sync(SyncSite::SEAL));
        if let Err(error) = sealed {
            let error = LogError::io("syncing", &name, &error);
            inner.commit.lock().failed.get_or_insert_with(|| error.to_string());
            return Err(error);
        }
        inner.segments.insert(old.number, appender.written, &[]);
        let start = first_position(next.number);
        {
            let mut commit = inner.commit.lock();
            commit.durable = commit.durable.max(start);
        }
        let previous = Position { segment: old.number, offset: appender.written as u32 };
        *appender = Appender { active: next, previous, buffer: Vec::new(), written: HEADER_BYTES };
        inner.written.store(start.to_u64(), Ordering::Release);
        Ok(())
    }

    /// Reads at least `wanted` bytes of the record at `at` (fewer at the end of the file) and verifies its head.
    fn read_frame(
        &self,
        at: Position,
        wanted: usize,
    ) -> Result<(RecordHead, Vec<u8>, Arc<Segment>), LogError> {
        let segment = self.0.segments.get(at.segment)?;
        let mut bytes = vec![0; wanted];
        let count = self.read_bytes(&segment, at.offset.into(), &mut bytes)?;
        bytes.truncate(count);
        let Some(frame) = frame::decode_fixed(&segment.key, at.offset, &bytes) else {
            return Err(self.damaged(&segment, at, "no record begins here"));
        };
        let head_end = FRAME_BYTES + frame.head_length as usize;
        if bytes.len() < head_end {
            let have = bytes.len();
            bytes.resize(head_end, 0);
            let count = self.read_bytes(&segment, u64::from(at.offset) + have as u64, &mut bytes[have..])?;
            bytes.truncate(have + count);
        }
        let head = bytes
            .get(FRAME_BYTES..head_end)
            .and_then(|head| frame.verify_head(&segment.key, at, head))
            .ok_or_else(|| self.damaged(&segment, at, "the head of the record was altered"))?;
        Ok((head, bytes, segment))
    }

    /// Reads from the file, and from the buffer what is not in the file yet.
    fn read_bytes(&self, segment: &Segment, offset: u64, into: &mut [u8]) -> Result<usize, LogError> {
        let end = Position { segment: segment.number, offset: (offset + into.len() as u64) as u32 };
        let mut limit = into.len();
        if end.to_u64() > self.0.written.load(Ordering::Acquire) {
            let appender = self.0.appender.lock();
            if appender.active.number == segment.number {
                if let Some(start) = offset.checked_sub(appender.written) {
                    let buffered = appender.buffer.get(start as usize..).unwrap_or(&[]);
                    let count = buffered.len().min(into.len());
                    into[..count].copy_from_slice(&buffered[..count]);
                    return Ok(count);
                }
                // A frame is written whole or not at all, so one that begins in the file ends in it.
                limit = limit.min((appender.written - offset) as usize);
            }
        }
        segment
            .file
            .read_at(offset, &mut into[..limit])
            .map_err(|error| LogError::io("reading", &frame::segment_name(segment.number), &error))
    }

    fn damaged(&self, segment: &Segment, at: Position, why: &str) -> LogError {
        if segment.is_hole(at.offset.into()) {
            return LogError::SegmentGone(at.segment);
        }
        LogError::Damaged {
            file: frame::segment_name(at.segment),
            offset: at.offset.into(),
            why: why.to_owned(),
        }
    }
}

/// How much of each record a scan reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanDepth {
    /// Heads only.
    Heads,
    /// Heads and bodies, all verified.
    Bodies,
}

impl Appender {
    fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }
}

/// Creates a segment, reserves its space, and makes its header and directory entry durable.
fn begin_segment(segments: &Segments, config: &LogConfig, number: u32) -> Result<Arc<Segment>, LogError> {
    let storage = &segments.storage;
    let name = frame::segment_name(number);
    let file = match storage.create(&name) {
        // Left by a roll that met a full disk and could not even remove it: nothing was ever written to it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            storage.remove(&name).and_then(|()| storage.create(&name))
        }
        other => other,
    }
    .map_err(|error| LogError::io("creating", &name, &error))?;
    let salt = storage.entropy().map_err(|error| LogError::io("seeding", &name, &error))?;
    let prepared = file
        .reserve(config.segment_bytes.into())
        .and_then(|()| file.write_at(0, &frame::encode_header(number, &salt)))
        .and_then(|()| file.sync(SyncSite::SEGMENT_HEADER))
        .and_then(|()| storage.sync_dir(SyncSite::SEGMENT_CREATED));
    if let Err(error) = prepared {
        let _ = storage.remove(&name);
        return Err(LogError::io("preparing", &name, &error));
    }
    let segment = Arc::new(Segment { number, file, key: frame::segment_key(number, &salt) });
    segments.insert(number, u64::MAX, &[]);
    segments.remember(segment.clone());
    Ok(segment)
}

struct Tail {
    end: u64,
    damage: Vec<Damage>,
}

/// Finds the end of the records in the last segment. A bad frame before a position that a later frame or the
/// anchor calls durable is damage; the first other bad frame is where a crash tore the tail.
fn find_end(segment: &Arc<Segment>, length: u64, anchor: Position) -> Result<Tail, LogError> {
    let mut reader = Reader::new(segment.clone(), length);
    let mut damage = Vec::new();
    let mut offset = HEADER_BYTES;
    let mut known: Option<Position> = None;
    while let Some((scanned, next)) = reader.step(offset, true)? {
        if let ScanItem::Damaged(found) = scanned {
            let known = match known {
                Some(known) => known,
                None => *known.insert(reader.greatest_claim(offset)?.max(anchor)),
            };
            if found.position >= known {
                return Ok(Tail { end: offset, damage });
            }
            damage.push(found);
        }
        offset = next;
    }
    Ok(Tail { end: length, damage })
}
