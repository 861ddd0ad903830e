//! The durable journal: edits and data that are not at the server yet, in append-only segments.
//!
//! A segment is a sequence of frames ⟨length, tag, body⟩. The tag is a digest of the body: it distinguishes
//! damage from what was written; [`super::damage`] distinguishes damage from a torn end. A segment's first
//! frame has the journal's header as it was when the segment began. The other frames hold blocks of data,
//! edits, and how far the edits have been sent. Appending does not wait for the disk; [`Journal::sync`] does,
//! once for all callers that ask at that moment.
//!
//! Invariants:
//! - What was appended before a successful [`Journal::sync`] is found again after any crash.
//! - Data is written before the edit that refers to it.
//! - A segment is removed once all edits in it, or referring to data in it, are at the server, no open file
//!   has data in it, and every writer that was active at that time has ended.
//! - Blocks read back are verified like any others.

use super::damage::{self, DamageAssessment, DamagedContents, DamagedSegment};
use super::record::Record;
use crate::error::FsError;
use crate::files::space::ROOM_MIN;
use crate::files::state::content_roots;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{BODY_BYTES_MAX, Block, Handle, PrincipalId, StoredBlock};
use holdfast_crypto::{Digest, DigestKey, Domain, decode, encode};
use holdfast_log::FileLock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Version of the frame format.
const FORMAT: u16 = 1;
/// Length in bytes after which a new segment begins.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Shortest such length, in bytes, however small the bound of the journal is.
const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// Bytes of a frame's length and tag, before its body.
pub(super) const HEADER_BYTES: u64 = 4 + 16;
/// How long to wait until a process that is ending releases the directory.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);
/// Longest body in bytes; a longer one is damage.
pub(super) const BODY_MAX: usize = 8 << 20;

/// A range of numbers that this device may give to new files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NumberRange {
    /// The user or group whose numbers these are.
    pub principal: PrincipalId,
    /// The first number.
    pub first: u64,
    /// How many numbers.
    pub count: u64,
}

/// A name that another device had taken: the file that has it here has another name at the server.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct NameMapping {
    /// The file.
    pub handle: Handle,
    /// Directory and name that it has here.
    pub local: (Handle, Vec<u8>),
    /// Directory and name that it has at the server.
    pub at_server: (Handle, Vec<u8>),
}

/// What a journal stores besides edits and data.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct JournalHeader {
    /// Random number that distinguishes this journal from others.
    pub id: u128,
    /// Number of the last edit that is at the server.
    pub done: u64,
    /// Number of the last edit of a batch that may be at the server.
    pub sending: u64,
    /// Numbers that are reserved for new files.
    pub numbers: Vec<NumberRange>,
    /// Files whose names here differ from those at the server.
    pub placed: Vec<NameMapping>,
}

/// A frame of a segment.
#[derive(BorshSerialize, BorshDeserialize)]
pub(super) enum Frame {
    Begin {
        format: u16,
        standing: JournalHeader,
    },
    Block {
        address: Digest,
        block: StoredBlock,
    },
    Edit(Record),
    Numbers(NumberRange),
    /// Edits up to this number are being sent.
    Sending(u64),
    /// Edits up to this number are at the server.
    Done {
        last: u64,
        placed: Vec<NameMapping>,
    },
}

#[derive(Clone, Copy)]
struct BlockLocation {
    segment: u64,
    offset: u64,
    length: u32,
    /// Whether the block refers to no others.
    leaf: bool,
}

struct Segment {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    /// Number of the last edit that needs it.
    needed_by: u64,
    /// Number of guards on data in it, such as those of open files.
    holders: usize,
    /// When it became unneeded: the number that the next writer would get. Writers with lower numbers may
    /// still rely on it.
    unneeded_at: Option<u64>,
}

struct State {
    segments: BTreeMap<u64, Segment>,
    blocks: HashMap<Digest, BlockLocation>,
    /// Number of frames that were appended since the start.
    appended: u64,
    standing: JournalHeader,
    /// Numbers of the writers whose edit is still to come.
    writers: BTreeSet<u64>,
    next_writer: u64,
    broken: Option<FsError>,
}

/// An open journal.
pub struct Journal {
    directory: PathBuf,
    key: DigestKey,
    state: Mutex<State>,
    /// How many of the appended frames are durable; locked while a caller waits for the disk.
    synced: Mutex<u64>,
    segment_bytes: u64,
    make_room: OnceLock<MakeRoom>,
    _lock: FileLock,
}

/// Tries to free so many bytes on a full disk; returns whether it did. Called with the journal's lock held.
pub type MakeRoom = Box<dyn Fn(u64) -> bool + Send + Sync>;

/// What an earlier process left in the journal.
pub struct RecoveredJournal {
    /// Edits that may not be at the server yet, oldest first.
    pub records: Vec<Record>,
    /// The header, as brought up to date by later frames.
    pub standing: JournalHeader,
    /// Damaged segments. If there are any, [`Journal::remove_damage`] must run before anything is sent.
    pub damaged: Vec<DamagedSegment>,
    /// What the damage means for the edits.
    pub doubt: DamageAssessment,
}

impl Journal {
    /// Opens or creates the journal in `directory`, which should take at most `bytes_max`. Segments are kept
    /// short in proportion, because the last one stays when everything is sent.
    ///
    /// # Errors
    /// [`FsError::Local`]: the folder cannot be used, another process uses it, or it is of another format.
    pub fn open(
        directory: &Path,
        key: DigestKey,
        bytes_max: u64,
    ) -> Result<(Journal, RecoveredJournal), FsError> {
        Journal::open_with(directory, key, (bytes_max / 4).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES))
    }

    pub(super) fn open_with(
        directory: &Path,
        key: DigestKey,
        segment_bytes: u64,
    ) -> Result<(Journal, RecoveredJournal), FsError> {
        let failed = |error: io::Error| local(directory, &error);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(directory.join("lock"))
            .map_err(failed)?;
        let lock = FileLock::take_within(lock, LOCK_PATIENCE).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                failed(io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it"))
            }
            _ => failed(error),
        })?;
        let mut numbers: Vec<u64> = fs::read_dir(directory)
            .map_err(failed)?
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                u64::from_str_radix(name.strip_suffix(".segment")?, 16).ok()
            })
            .collect();
        numbers.sort_unstable();
        let state = State {
            segments: BTreeMap::new(),
            blocks: HashMap::new(),
            appended: 0,
            standing: JournalHeader::default(),
            writers: BTreeSet::new(),
            next_writer: 0,
            broken: None,
        };
        let journal = Journal {
            directory: directory.to_owned(),
            key,
            state: Mutex::new(state),
            synced: Mutex::new(0),
            segment_bytes,
            make_room: OnceLock::new(),
            _lock: lock,
        };
        let mut recovered = RecoveredJournal {
            records: Vec::new(),
            standing: JournalHeader::default(),
            damaged: Vec::new(),
            doubt: DamageAssessment::default(),
        };
        let mut lost = DamagedContents::default();
        let last = numbers.last().copied();
        for number in numbers {
            journal.load(number, Some(number) == last, &mut recovered, &mut lost)?;
        }
        let done = recovered.standing.done;
        recovered.records.retain(|record| record.number > done);
        {
            let mut state = journal.state.lock();
            if !recovered.damaged.is_empty() {
                recovered.doubt =
                    lost.assess(&recovered.records, done, &|address| references(&state, address));
            }
            if recovered.standing.id == 0 {
                recovered.standing.id = random()?;
            }
            state.standing = recovered.standing.clone();
            for record in &recovered.records {
                journal.need(&mut state, record);
            }
            journal.begin_segment(&mut state, last.map_or(0, |last| last + 1))?;
            journal.drop_unneeded(&mut state);
        }
        journal.sync()?;
        Ok((journal, recovered))
    }

    /// Reads one segment. A torn end of the last one is cut off: nothing in it was ever acknowledged as
    /// saved.
    fn load(
        &self,
        number: u64,
        is_last: bool,
        recovered: &mut RecoveredJournal,
        lost: &mut DamagedContents,
    ) -> Result<(), FsError> {
        let path = self.path(number);
        let failed = |error: io::Error| local(&path, &error);
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(failed)?;
        let mut length = file.metadata().map_err(failed)?.len();
        let mut state = self.state.lock();
        let (mut offset, mut needed_by) = (0, 0);
        let mut damaged = DamagedSegment { path: path.clone(), lost: Vec::new() };
        while offset < length {
            let body = read_frame(&file, offset, length);
            let frame = body.and_then(|body| Some((body.len() as u32, decode::<Frame>(&body).ok()?)));
            let Some((body_length, frame)) = frame else {
                let next = damage::behind(&file, offset, length);
                if next.is_none() && is_last {
                    tracing::warn!(file = %path.display(), offset, length, "the journal ends torn here");
                    file.set_len(offset).and_then(|()| file.sync_all()).map_err(failed)?;
                    length = offset;
                    break;
                }
                let range = offset..next.unwrap_or(length);
                offset = range.end;
                lost.add(&file, &range);
                damaged.lost.push(range);
                continue;
            };
            let standing = &mut recovered.standing;
            match frame {
                Frame::Begin { format, .. } if format != FORMAT => {
                    let error = io::Error::new(io::ErrorKind::InvalidData, "it is of another format");
                    return Err(failed(error));
                }
                // The header covers everything in earlier segments, including removed ones.
                Frame::Begin { standing: by_then, .. } => *standing = by_then,
                Frame::Block { address, block } => {
                    let leaf = block.references.is_empty();
                    let place = BlockLocation { segment: number, offset, length: body_length, leaf };
                    state.blocks.entry(address).or_insert(place);
                }
                Frame::Edit(record) => {
                    needed_by = needed_by.max(record.number);
                    take(&mut standing.numbers, &record.taken);
                    recovered.records.push(record);
                }
                Frame::Numbers(numbers) => standing.numbers.push(numbers),
                Frame::Sending(last) => standing.sending = standing.sending.max(last),
                Frame::Done { last, placed } => {
                    standing.done = standing.done.max(last);
                    standing.placed = placed;
                }
            }
            offset += HEADER_BYTES + u64::from(body_length);
        }
        if !damaged.lost.is_empty() {
            recovered.damaged.push(damaged);
        }
        state.segments.insert(number, Segment::new(file, path, length, needed_by));
        Ok(())
    }

    /// Rewrites every segment without its damaged frames and without withheld changes, once both are saved
    /// elsewhere. Consumes the journal, since frames move.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; the next start then finds the damage again.
    pub fn remove_damage(self, recovered: &RecoveredJournal) -> Result<(), FsError> {
        let created = recovered.records.iter().flat_map(|record| &record.inodes);
        let created = created.filter(|change| change.seen.is_none()).map(|change| change.handle).collect();
        let state = self.state.into_inner();
        for segment in state.segments.into_values() {
            let failed = |error: io::Error| local(&segment.path, &error);
            let new_path = segment.path.with_extension("new");
            let options = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).clone();
            let mut new = BufWriter::new(options.open(&new_path).map_err(failed)?);
            let (mut offset, length) = (0, segment.file.metadata().map_err(failed)?.len());
            while offset < length {
                let Some(body) = read_frame(&segment.file, offset, length) else {
                    offset = damage::behind(&segment.file, offset, length).unwrap_or(length);
                    continue;
                };
                offset += HEADER_BYTES + body.len() as u64;
                let written = match decode(&body) {
                    Ok(Frame::Edit(mut record)) => {
                        damage::withhold(&mut record, &recovered.doubt.withheld, &created);
                        new.write_all(&framed(&encode(&Frame::Edit(record))))
                    }
                    Ok(_) => new.write_all(&framed(&body)),
                    Err(_) => Ok(()),
                };
                written.map_err(failed)?;
            }
            let new = new.into_inner().map_err(|error| failed(error.into_error()))?;
            new.sync_all().map_err(failed)?;
            fs::rename(&new_path, &segment.path).map_err(failed)?;
        }
        File::open(&self.directory)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| local(&self.directory, &error))
    }

    /// Registers, once, the function that makes room when the disk is full.
    pub fn on_full(&self, make_room: MakeRoom) {
        let _ = self.make_room.set(make_room);
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016x}.segment"))
    }

    fn begin_segment(&self, state: &mut State, number: u64) -> Result<(), FsError> {
        let path = self.path(number);
        let failed = |error: io::Error| local(&path, &error);
        if let Some((_, full)) = state.segments.last_key_value() {
            full.file.sync_data().map_err(|error| local(&full.path, &error))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        File::open(&self.directory).and_then(|folder| folder.sync_all()).map_err(failed)?;
        state.segments.insert(number, Segment::new(file, path, 0, 0));
        let begin = Frame::Begin { format: FORMAT, standing: state.standing.clone() };
        self.append(state, &begin).map(drop)
    }

    /// Appends a frame to the last segment.
    fn append(&self, state: &mut State, frame: &Frame) -> Result<BlockLocation, FsError> {
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        let (last, full) = {
            let (number, segment) = state.segments.last_key_value().expect("there is always one");
            (*number, segment.bytes >= self.segment_bytes)
        };
        if full {
            self.begin_segment(state, last + 1)?;
        }
        let body = encode(frame);
        let bytes = framed(&body);
        let (number, segment) = state.segments.iter_mut().next_back().expect("there is always one");
        let offset = segment.bytes;
        let mut written = segment.file.write_all_at(&bytes, offset);
        if let (Err(error), Some(make_room)) = (&written, self.make_room.get())
            && error.kind() == io::ErrorKind::StorageFull
            && make_room((bytes.len() as u64).max(ROOM_MIN))
        {
            written = segment.file.write_all_at(&bytes, offset);
        }
        if let Err(error) = written {
            // Frames after an incomplete one could not be found again.
            if let Err(cut) = segment.file.set_len(offset) {
                state.broken = Some(local(&segment.path, &cut));
            }
            return Err(local(&segment.path, &error));
        }
        segment.bytes += bytes.len() as u64;
        let leaf = matches!(frame, Frame::Block { block, .. } if block.references.is_empty());
        let place = BlockLocation { segment: *number, offset, length: body.len() as u32, leaf };
        state.appended += 1;
        Ok(place)
    }

    /// Makes everything appended so far durable.
    ///
    /// # Errors
    /// [`FsError::Local`]; it is then unknown what is durable, and the journal accepts nothing more.
    pub fn sync(&self) -> Result<(), FsError> {
        let target = self.state.lock().appended;
        let mut synced = self.synced.lock();
        if *synced >= target {
            return Ok(());
        }
        let (file, path, appended) = {
            let state = self.state.lock();
            if let Some(broken) = &state.broken {
                return Err(broken.clone());
            }
            let (_, segment) = state.segments.last_key_value().expect("there is always one");
            (segment.file.clone(), segment.path.clone(), state.appended)
        };
        if let Err(error) = file.sync_data() {
            let error = local(&path, &error);
            self.state.lock().broken = Some(error.clone());
            return Err(error);
        }
        *synced = appended;
        Ok(())
    }

    /// Stores a block. The caller must hold a [`WriteGuard`].
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn put(&self, block: &Block) -> Result<(), FsError> {
        let address = block.reference().address;
        let is_safe = |state: &State| {
            let segment = state.blocks.get(&address).and_then(|place| state.segments.get(&place.segment));
            segment.is_some_and(|segment| segment.unneeded_at.is_none())
        };
        if is_safe(&self.state.lock()) {
            return Ok(());
        }
        let frame = Frame::Block { address, block: block.to_stored() };
        let mut state = self.state.lock();
        let place = self.append(&mut state, &frame)?;
        state.blocks.insert(address, place);
        Ok(())
    }

    /// Random number of the journal, drawn when it was created.
    pub fn id(&self) -> u128 {
        self.state.lock().standing.id
    }

    /// Whether the journal has a block.
    pub fn contains(&self, address: &Digest) -> bool {
        self.state.lock().blocks.contains_key(address)
    }

    /// A block of the journal, verified; `None` if it is not there or damaged.
    pub fn get(&self, address: &Digest) -> Option<Block> {
        let (file, place) = {
            let state = self.state.lock();
            let place = *state.blocks.get(address)?;
            (state.segments.get(&place.segment)?.file.clone(), place)
        };
        let end = place.offset + HEADER_BYTES + u64::from(place.length);
        match decode(&read_frame(&file, place.offset, end)?).ok()? {
            Frame::Block { block, .. } => block.open_any(&self.key, *address, BODY_BYTES_MAX).ok(),
            _ => None,
        }
    }

    /// Appends an edit.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; the edit does not count as made then.
    pub fn note(&self, record: &Record) -> Result<(), FsError> {
        let mut state = self.state.lock();
        let place = self.append(&mut state, &Frame::Edit(record.clone()))?;
        take(&mut state.standing.numbers, &record.taken);
        let segment = state.segments.get_mut(&place.segment).expect("it was just written");
        segment.needed_by = segment.needed_by.max(record.number);
        self.need(&mut state, record);
        Ok(())
    }

    /// Marks the segments with data that an edit refers to as needed until the edit is at the server.
    fn need(&self, state: &mut State, record: &Record) {
        let inodes = record.inodes.iter().filter_map(|change| change.new.as_ref());
        let roots = inodes.flat_map(|kept| content_roots(&kept.0)).collect();
        for number in reached(state, roots) {
            if let Some(segment) = state.segments.get_mut(&number) {
                segment.needed_by = segment.needed_by.max(record.number);
                segment.unneeded_at = None;
            }
        }
    }

    /// Stores numbers that this device may give to new files.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn add_numbers(&self, numbers: NumberRange) -> Result<(), FsError> {
        let mut state = self.state.lock();
        self.append(&mut state, &Frame::Numbers(numbers))?;
        state.standing.numbers.push(numbers);
        Ok(())
    }

    /// Notes that a batch up to edit `last` is about to be sent. The note is durable when this returns.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`].
    pub fn sending(&self, last: u64) -> Result<(), FsError> {
        {
            let mut state = self.state.lock();
            self.append(&mut state, &Frame::Sending(last))?;
            state.standing.sending = last;
        }
        self.sync()
    }

    /// Notes that all edits up to `last` are at the server, and frees the space they took.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]; after a restart, the client then asks the server again.
    pub fn done(&self, last: u64, placed: &[NameMapping]) -> Result<(), FsError> {
        let mut state = self.state.lock();
        self.append(&mut state, &Frame::Done { last, placed: placed.to_vec() })?;
        state.standing.done = last;
        state.standing.placed = placed.to_vec();
        let (newest, bytes) = {
            let (number, segment) = state.segments.last_key_value().expect("there is always one");
            (*number, segment.bytes)
        };
        let waits = state.segments.values().any(|segment| segment.needed_by > last);
        if !waits && bytes > self.segment_bytes / 4 {
            self.begin_segment(&mut state, newest + 1)?;
        }
        self.drop_unneeded(&mut state);
        Ok(())
    }

    /// Removes segments that nothing needs. The newest one stays.
    fn drop_unneeded(&self, state: &mut State) {
        let newest = state.segments.last_key_value().map_or(0, |(number, _)| *number);
        let first_writer = state.writers.first().copied().unwrap_or(state.next_writer);
        let mut unneeded = Vec::new();
        for (number, segment) in &mut state.segments {
            if *number == newest || segment.needed_by > state.standing.done || segment.holders > 0 {
                segment.unneeded_at = None;
            } else if first_writer >= *segment.unneeded_at.get_or_insert(state.next_writer) {
                unneeded.push(*number);
            }
        }
        for number in &unneeded {
            let segment = state.segments.remove(number).expect("it was just found");
            if let Err(error) = fs::remove_file(&segment.path) {
                tracing::warn!(file = %segment.path.display(), %error, "a journal that is sent cannot be removed");
            }
        }
        if !unneeded.is_empty() {
            state.blocks.retain(|_, place| !unneeded.contains(&place.segment));
        }
    }

    /// Size of the journal on disk, in bytes.
    pub fn bytes(&self) -> u64 {
        self.state.lock().segments.values().map(|segment| segment.bytes).sum()
    }

    /// Keeps all present and later content of the journal until the result is dropped. For a writer whose
    /// edit is still to come.
    pub fn writing(self: &Arc<Journal>) -> WriteGuard {
        let mut state = self.state.lock();
        let number = state.next_writer;
        state.next_writer += 1;
        state.writers.insert(number);
        WriteGuard { journal: self.clone(), number }
    }

    /// Keeps all blocks that `roots` reach until the result is dropped, for an open file. `None` if the
    /// journal has none of them.
    pub fn hold(self: &Arc<Journal>, roots: &[Digest]) -> Option<JournalHold> {
        let mut state = self.state.lock();
        let segments = reached(&state, roots.to_vec());
        for number in &segments {
            if let Some(segment) = state.segments.get_mut(number) {
                segment.holders += 1;
                segment.unneeded_at = None;
            }
        }
        (!segments.is_empty()).then(|| JournalHold { journal: self.clone(), segments })
    }
}

impl Segment {
    fn new(file: File, path: PathBuf, bytes: u64, needed_by: u64) -> Segment {
        Segment { file: Arc::new(file), path, bytes, needed_by, holders: 0, unneeded_at: None }
    }
}

/// Keeps data in the journal until the edit that names it is made; created by [`Journal::writing`].
pub struct WriteGuard {
    journal: Arc<Journal>,
    number: u64,
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        state.writers.remove(&self.number);
        self.journal.drop_unneeded(&mut state);
    }
}

/// Keeps blocks in the journal while it lives; created by [`Journal::hold`].
pub struct JournalHold {
    journal: Arc<Journal>,
    segments: BTreeSet<u64>,
}

impl Drop for JournalHold {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        for number in &self.segments {
            if let Some(segment) = state.segments.get_mut(number) {
                segment.holders -= 1;
            }
        }
        self.journal.drop_unneeded(&mut state);
    }
}

/// The segments with blocks that `roots` reach.
fn reached(state: &State, roots: Vec<Digest>) -> BTreeSet<u64> {
    let (mut waiting, mut seen, mut segments) = (roots, HashSet::new(), BTreeSet::new());
    while let Some(address) = waiting.pop() {
        let Some(place) = state.blocks.get(&address) else { continue };
        if !state.segments.contains_key(&place.segment) || !seen.insert(address) {
            continue;
        }
        segments.insert(place.segment);
        waiting.extend(references(state, &address).unwrap_or_default());
    }
    segments
}

/// The blocks that a block refers to; `None` if the journal does not have it.
fn references(state: &State, address: &Digest) -> Option<Vec<Digest>> {
    let place = state.blocks.get(address)?;
    if place.leaf {
        return Some(Vec::new());
    }
    let file = &state.segments.get(&place.segment)?.file;
    let end = place.offset + HEADER_BYTES + u64::from(place.length);
    match decode(&read_frame(file, place.offset, end)?) {
        Ok(Frame::Block { block, .. }) => Some(block.references),
        _ => None,
    }
}

/// Removes used numbers from the free ranges.
fn take(numbers: &mut Vec<NumberRange>, taken: &[Handle]) {
    for handle in taken {
        let found = numbers.iter().position(|free| {
            free.principal == handle.principal
                && (free.first..free.first + free.count).contains(&handle.number)
        });
        let Some(at) = found else { continue };
        let free = numbers.remove(at);
        let before = NumberRange { count: handle.number - free.first, ..free };
        let after = NumberRange {
            first: handle.number + 1,
            count: free.first + free.count - handle.number - 1,
            ..free
        };
        let rest = [before, after].into_iter().filter(|rest| rest.count > 0);
        for (offset, rest) in rest.enumerate() {
            numbers.insert(at + offset, rest);
        }
    }
}

pub(super) fn random() -> Result<u128, FsError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| FsError::Local {
        kind: io::ErrorKind::Other,
        text: format!("no random numbers: {error}"),
    })?;
    Ok(u128::from_le_bytes(bytes) | 1)
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &tag(body), body].concat()
}

pub(super) fn tag(body: &[u8]) -> [u8; 16] {
    let digest = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, body);
    digest.0[..16].try_into().expect("16 bytes")
}

/// The body of the frame at `offset`; `None` if it is torn, damaged or beyond `end`.
pub(super) fn read_frame(file: &File, offset: u64, end: u64) -> Option<Vec<u8>> {
    let mut header = [0; HEADER_BYTES as usize];
    if offset + HEADER_BYTES > end {
        return None;
    }
    file.read_exact_at(&mut header, offset).ok()?;
    let length = u32::from_le_bytes(header[..4].try_into().expect("4 bytes")) as usize;
    if length > BODY_MAX || offset + HEADER_BYTES + length as u64 > end {
        return None;
    }
    let mut body = vec![0; length];
    file.read_exact_at(&mut body, offset + HEADER_BYTES).ok()?;
    (tag(&body) == header[4..]).then_some(body)
}

fn local(path: &Path, error: &io::Error) -> FsError {
    FsError::local(format_args!("the write-back journal {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::super::record::{InodeChange, JournalInode};
    use super::*;
    use holdfast_content::{
        BlockKind, Content, DeviceId, Extent, ExtentMap, Extents, Inode, InodeKind, UserId,
    };

    const KEY: DigestKey = DigestKey::WELL_KNOWN;
    const OWNER: PrincipalId = PrincipalId::User(UserId(7));

    fn block(seed: u64) -> Block {
        let mut state = seed | 1 << 40;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let bytes = (0..3000).map(|_| next()).collect();
        Block::new(&KEY, BlockKind::Chunk, Vec::new(), bytes)
    }

    /// An edit that makes a file of one block.
    fn edit(number: u64, block: &Block) -> Record {
        let handle = Handle { principal: OWNER, number: 5000 + number };
        let mut inode = Inode::new(InodeKind::File, 0o644, DeviceId(1), 5);
        inode.size = u64::from(block.reference().length);
        let extent = Extent { reference: block.reference(), skip: 0, length: block.reference().length };
        let mut map = ExtentMap::empty();
        map.extents = Extents::Inline(vec![(0, extent)]);
        inode.content = Content::Extents(map);
        let new = Some(JournalInode(Arc::new(inode)));
        let change = InodeChange { handle, path: b"file".to_vec(), seen: None, new };
        Record { number, at_ns: 9, inodes: vec![change], entries: Vec::new(), taken: vec![handle] }
    }

    fn fill(journal: &Arc<Journal>, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            let writing = journal.writing();
            let block = block(number);
            journal.put(&block).unwrap();
            journal.note(&edit(number, &block)).unwrap();
            drop(writing);
        }
    }

    fn segments(directory: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "segment"))
            .collect();
        found.sort();
        found
    }

    fn open(directory: &Path, segment_bytes: u64) -> (Arc<Journal>, RecoveredJournal) {
        let (journal, recovered) = Journal::open_with(directory, KEY, segment_bytes).unwrap();
        (Arc::new(journal), recovered)
    }

    /// Proves: wherever a crash tears the end, exactly the edits before it are found, with their data; and
    /// numbers that they used are not given out again.
    #[test]
    fn torn_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path(), 1 << 30);
        journal.add_numbers(NumberRange { principal: OWNER, first: 5000, count: 100 }).unwrap();
        fill(&journal, 1..=3);
        drop(journal);
        let file = segments(folder.path()).pop().unwrap();
        let whole = fs::read(&file).unwrap();
        let (mut before, mut seen) = (0, BTreeSet::new());
        for length in (0..=whole.len()).rev().step_by(61).collect::<Vec<_>>().into_iter().rev() {
            let torn = tempfile::tempdir().unwrap();
            fs::write(torn.path().join(file.file_name().unwrap()), &whole[..length]).unwrap();
            let (journal, recovered) = open(torn.path(), 1 << 30);
            let found: Vec<u64> = recovered.records.iter().map(|record| record.number).collect();
            assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
            assert!(found.len() >= before && recovered.damaged.is_empty());
            before = found.len();
            for record in &recovered.records {
                let roots = content_roots(&record.inodes[0].new.as_ref().unwrap().0);
                assert_eq!(journal.get(&roots[0]).unwrap(), block(record.number));
                for free in &recovered.standing.numbers {
                    assert!(!(free.first..free.first + free.count).contains(&record.taken[0].number));
                }
            }
            seen.insert(found.len());
        }
        assert_eq!(seen, (0..=3).collect());
    }

    /// Proves: wherever one bit of the last segment is flipped, everything in other frames is found; no
    /// change is sent of the file that needs the damaged frame; and after the damage is removed, the journal
    /// is whole, without anything of that file.
    #[test]
    fn damage_is_found_and_withheld() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path(), 1 << 30);
        fill(&journal, 1..=5);
        drop(journal);
        let file = segments(folder.path()).pop().unwrap();
        let whole = fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(37) {
            let copy = tempfile::tempdir().unwrap();
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(copy.path().join(file.file_name().unwrap()), bytes).unwrap();
            let (journal, recovered) = Journal::open_with(copy.path(), KEY, 1 << 30).unwrap();
            assert_eq!(recovered.damaged.len(), 1, "byte {at}");
            assert_eq!(recovered.damaged[0].lost.len(), 1, "byte {at}");
            let found: BTreeSet<u64> = recovered.records.iter().map(|record| record.number).collect();
            let is_whole = |number: &u64| {
                let roots = content_roots(&edit(*number, &block(*number)).inodes[0].new.as_ref().unwrap().0);
                found.contains(number) && journal.contains(&roots[0])
            };
            let whole: BTreeSet<u64> = (1..=5).filter(is_whole).collect();
            // The first frame is the header; the others are one block and one edit for each file.
            assert!(whole.len() >= 4, "byte {at}: {whole:?}");
            let withheld: BTreeSet<u64> =
                recovered.doubt.withheld.iter().map(|handle| handle.number - 5000).collect();
            assert!(
                (1..=5).all(|number| whole.contains(&number)
                    || withheld.contains(&number)
                    || !found.contains(&number)),
                "byte {at}: {withheld:?}"
            );
            journal.remove_damage(&recovered).unwrap();
            let (_, healed) = open(copy.path(), 1 << 30);
            assert!(healed.damaged.is_empty());
            let sent = healed.records.iter().filter(|record| !record.inodes.is_empty());
            let sent: BTreeSet<u64> = sent.map(|record| record.number).collect();
            assert_eq!(sent, whole.difference(&withheld).copied().collect(), "byte {at}");
        }
    }

    /// Proves: damage in a segment that is not the last is found too, also if its end is missing.
    #[test]
    fn damage_before_the_last_segment() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path(), 8000);
        fill(&journal, 1..=12);
        drop(journal);
        let files = segments(folder.path());
        assert!(files.len() > 3, "{files:?}");
        let length = fs::metadata(&files[1]).unwrap().len();
        OpenOptions::new().write(true).open(&files[1]).unwrap().set_len(length - 10).unwrap();
        let (_, recovered) = open(folder.path(), 8000);
        assert_eq!(recovered.damaged.len(), 1, "{:?}", recovered.damaged);
        let found: BTreeSet<u64> = recovered.records.iter().map(|record| record.number).collect();
        assert!(found.contains(&1) && found.contains(&12), "{found:?}");
        assert!(recovered.doubt.edits_lost > 0 || !recovered.doubt.withheld.is_empty());
    }

    /// Proves: bytes in a file's data that look like frames are not taken for frames of the journal.
    #[test]
    fn contents_are_not_frames() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path(), 1 << 30);
        let forged = framed(&encode(&Frame::Edit(edit(77, &block(77)))));
        let padded = [&[7; 100], &forged[..], &[7; 100]].concat();
        journal.put(&Block::new(&KEY, BlockKind::Chunk, Vec::new(), padded)).unwrap();
        fill(&journal, 1..=2);
        drop(journal);
        let file = segments(folder.path()).pop().unwrap();
        let mut bytes = fs::read(&file).unwrap();
        let first = HEADER_BYTES as usize + u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
        // The length of the frame with the forged one in it.
        bytes[first] ^= 1;
        fs::write(&file, bytes).unwrap();
        let (_, recovered) = open(folder.path(), 1 << 30);
        let found: Vec<u64> = recovered.records.iter().map(|record| record.number).collect();
        assert_eq!(found, [1, 2]);
    }

    /// Proves: space is freed once edits are sent, except while an open file has data there, and while a
    /// writer is active that may rely on it; and sent edits are not found again.
    #[test]
    fn space_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _) = open(folder.path(), 8000);
        fill(&journal, 1..=12);
        let many = segments(folder.path()).len();
        let held = journal.hold(&[block(1).reference().address]).unwrap();
        let writing = journal.writing();
        journal.done(12, &[]).unwrap();
        assert_eq!(segments(folder.path()).len(), many);
        drop(writing);
        assert_eq!(segments(folder.path()).len(), 2, "the one that is held, and the one in use");
        assert_eq!(journal.get(&block(1).reference().address).unwrap(), block(1));
        assert!(journal.get(&block(5).reference().address).is_none());
        drop(held);
        assert_eq!(segments(folder.path()).len(), 1);
        drop(journal);
        let (_, recovered) = open(folder.path(), 8000);
        assert_eq!((recovered.records.len(), recovered.standing.done), (0, 12));
    }
}
