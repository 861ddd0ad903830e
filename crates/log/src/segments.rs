//! The segment files: which there are, how long, and a bounded number of open handles.

use crate::frame::{self, HEADER_BYTES, Header, SegmentKey};
use crate::outline::Outline;
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Position};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Most open file handles.
const HANDLES_MAX: usize = 128;

/// A segment whose header was checked.
pub(crate) struct Segment {
    pub(crate) number: u32,
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) key: SegmentKey,
}

impl Segment {
    /// Whether the bytes at an offset were punched out.
    pub(crate) fn is_hole(&self, offset: u64) -> bool {
        self.file.holes().iter().any(|hole| hole.contains(&offset))
    }
}

pub(crate) struct Segments {
    pub(crate) storage: Arc<dyn Storage>,
    known: RwLock<BTreeMap<u32, SegmentExtent>>,
    open: Mutex<Handles>,
}

/// The lengths of a segment, known without opening it.
#[derive(Clone, Copy)]
struct SegmentExtent {
    /// Up to where it holds records; the active one is as long as anything.
    length: u64,
    /// Number of those bytes that were punched out.
    punched: u64,
}

#[derive(Default)]
struct Handles {
    clock: u64,
    by_number: HashMap<u32, (u64, Arc<Segment>)>,
}

impl Segments {
    pub(crate) fn new(storage: Arc<dyn Storage>) -> Segments {
        Segments { storage, known: RwLock::default(), open: Mutex::default() }
    }

    pub(crate) fn insert(&self, number: u32, length: u64, holes: &[Range<u64>]) {
        self.known.write().insert(number, SegmentExtent { length, punched: bytes_of(holes) });
    }

    /// Numbers and the bytes that they take, ascending.
    pub(crate) fn list(&self) -> Vec<(u32, u64)> {
        let taken =
            |(number, known): (&u32, &SegmentExtent)| (*number, known.length.saturating_sub(known.punched));
        self.known.read().iter().map(taken).collect()
    }

    pub(crate) fn length(&self, number: u32) -> Option<u64> {
        self.known.read().get(&number).map(|known| known.length)
    }

    /// The first segment numbered at least `from`, and its length.
    pub(crate) fn at_or_after(&self, from: u32) -> Option<(u32, u64)> {
        self.known.read().range(from..).next().map(|(number, known)| (*number, known.length))
    }

    /// Gives back the room of stretches of a sealed segment; whether the medium can.
    pub(crate) fn punch_holes(&self, number: u32, holes: &[Range<u64>]) -> Result<bool, LogError> {
        let segment = self.get(number)?;
        let name = frame::segment_name(number);
        let is_done = segment
            .file
            .punch_holes(holes)
            .map_err(|error| LogError::io("punching holes into", &name, &error))?;
        if let Some(known) = self.known.write().get_mut(&number) {
            known.punched = bytes_of(&segment.file.holes());
        }
        Ok(is_done)
    }

    pub(crate) fn remember(&self, segment: Arc<Segment>) {
        let mut handles = self.open.lock();
        handles.clock += 1;
        let clock = handles.clock;
        handles.by_number.insert(segment.number, (clock, segment));
        if handles.by_number.len() > HANDLES_MAX {
            let oldest =
                handles.by_number.iter().min_by_key(|(_, (used, _))| *used).map(|(number, _)| *number);
            if let Some(oldest) = oldest {
                handles.by_number.remove(&oldest);
            }
        }
    }

    /// Opens a segment of the list.
    pub(crate) fn get(&self, number: u32) -> Result<Arc<Segment>, LogError> {
        {
            let mut handles = self.open.lock();
            handles.clock += 1;
            let clock = handles.clock;
            if let Some((used, segment)) = handles.by_number.get_mut(&number) {
                *used = clock;
                return Ok(segment.clone());
            }
        }
        if self.length(number).is_none() {
            return Err(LogError::SegmentGone(number));
        }
        let name = frame::segment_name(number);
        let file = match self.storage.open(&name) {
            Ok(file) => file,
            // Removed between the two looks.
            Err(_) if self.length(number).is_none() => return Err(LogError::SegmentGone(number)),
            Err(error) => return Err(LogError::io("opening", &name, &error)),
        };
        let segment = match read_header(number, &*file)? {
            Header::Ours(key) => Arc::new(Segment { number, file, key }),
            Header::Newer(found) => {
                return Err(LogError::NewerFormat { file: name, found, supported: frame::LOG_FORMAT });
            }
            Header::Bad => {
                return Err(LogError::Damaged { file: name, offset: 0, why: "bad segment header".into() });
            }
        };
        self.remember(segment.clone());
        Ok(segment)
    }

    /// The outline of a segment of this length, if the medium stores a valid one.
    pub(crate) fn outline(&self, number: u32, length: u64) -> Result<Option<Outline>, LogError> {
        let name = frame::segment_name(number);
        // The reader of the segment reports why it cannot be opened.
        let Ok(file) = self.storage.open(&name) else { return Ok(None) };
        let found = file.outline().map_err(|error| LogError::io("reading the outline of", &name, &error))?;
        let Some(bytes) = found else { return Ok(None) };
        let outline = Outline::of_bytes(number, length, bytes);
        if outline.is_none() {
            tracing::warn!(name, "the outline of a segment is not what was written; the segment is read");
        }
        Ok(outline.map(|outline| outline.with_holes(file.holes())))
    }

    /// Forgets and removes a segment; readers that hold it finish undisturbed.
    pub(crate) fn remove(&self, number: u32) -> Result<(), LogError> {
        let name = frame::segment_name(number);
        self.known.write().remove(&number);
        self.open.lock().by_number.remove(&number);
        match self.storage.remove(&name) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(LogError::io("removing", &name, &error)),
        }
    }
}

fn bytes_of(holes: &[Range<u64>]) -> u64 {
    holes.iter().map(|hole| hole.end - hole.start).sum()
}

pub(crate) fn read_header(number: u32, file: &dyn StorageFile) -> Result<Header, LogError> {
    let mut bytes = [0; HEADER_BYTES as usize];
    let count = file
        .read_at(0, &mut bytes)
        .map_err(|error| LogError::io("reading", &frame::segment_name(number), &error))?;
    Ok(frame::decode_header(number, &bytes[..count]))
}

/// The first position in a segment at which a record can be.
pub(crate) fn first_position(number: u32) -> Position {
    Position { segment: number, offset: HEADER_BYTES as u32 }
}
