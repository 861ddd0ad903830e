//! Makes the content to publish from a file's base and its changes.
//!
//! Small files are cut anew as a whole (or stored in the inode). Large files keep the extents that did not
//! change: only the changed ranges are cut and stored, copies of other files are copies of extents, and holes
//! stay holes. At close, ranges where writing in place has left many small extents are cut anew.
//!
//! Memory is bounded: runs are streamed from the spool, and extents are inserted in batches.

use super::overlay::{Overlay, Piece};
use super::spool::read_spooled;
use super::state::{DataLocation, Snapshot};
use crate::error::FsError;
use crate::store::TransferMode;
use holdfast_content::file::{self, ChunkerConfig};
use holdfast_content::{
    BlockSink, BlockSource, Chunker, Content, ContentError, DeviceId, Extent, ExtentMap, INLINE_BYTES_MAX,
    Inode, InodeKind,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

/// Files up to this size are cut as a whole at each publication.
const WHOLE_BYTES_MAX: u64 = 1 << 20;
/// Zeroes at least this long become holes in files that are cut as a whole.
const HOLE_BYTES_MIN: u64 = 64 << 10;
/// Most ranges and extents that are inserted at once.
const GRAFTS_MAX: usize = 4096;
/// Most bytes of a run that are inserted at once.
const RUN_BYTES: u64 = 256 << 20;
/// Written runs with no larger gap than this between them are stored as one.
const GAP_BYTES: u64 = 4 << 10;
/// Number of bytes that are read at once.
const STEP_BYTES: u64 = 1 << 20;
/// Bytes on either side of a change in which extents are counted.
const WINDOW_BYTES: u64 = 256 << 10;
/// More extents than this in a window, and more than one in so many bytes, are too many.
const WINDOW_EXTENTS: u64 = 16;
/// Most changes that are examined for fragments one by one.
const FRAGMENT_RANGES_MAX: usize = 1024;

/// Why a file is published now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishReason {
    /// The content must become durable; the file stays open.
    Sync,
    /// The file is being closed: fragments are cut anew.
    Close,
}

/// Why content could not be made.
#[derive(Debug)]
pub enum ComposeError {
    /// A published block of this inode could not be read or is malformed.
    Content(Arc<Inode>, ContentError),
    /// The spool could not be read.
    Local(FsError),
}

/// Content that is ready to be published.
pub struct ComposedContent {
    /// The content.
    pub content: Content,
    /// Whether the file was cut as a whole, or its fragments were cut anew.
    pub whole: bool,
}

/// Makes the content of a changed file.
///
/// # Errors
/// [`ComposeError`].
pub fn compose(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    snapshot: &Snapshot,
    occasion: PublishReason,
    mode: TransferMode,
) -> Result<ComposedContent, ComposeError> {
    let places = merged(snapshot.places(0..snapshot.size));
    if places.iter().all(|(_, place)| matches!(place, DataLocation::Zero)) {
        return Ok(ComposedContent { content: Content::None, whole: true });
    }
    let keeps_holes = |(range, place): &(Range<u64>, DataLocation)| {
        matches!(place, DataLocation::Zero) && range.end - range.start >= HOLE_BYTES_MIN
    };
    if snapshot.size <= INLINE_BYTES_MAX as u64 {
        let bytes = read_all(source, snapshot, &places)?;
        return Ok(ComposedContent { content: inline(bytes), whole: true });
    }
    let config = cutting(snapshot, mode);
    let whole = |result: Result<(ExtentMap, u64), ContentError>| match result {
        Ok((map, _)) => Ok(ComposedContent { content: Content::Extents(map), whole: true }),
        Err(error) => Err(blame(snapshot, error)),
    };
    if snapshot.size <= WHOLE_BYTES_MAX && !places.iter().any(keeps_holes) {
        let bytes = read_all(source, snapshot, &places)?;
        return whole(file::from_reader(sink, &config, bytes.as_slice()));
    }
    if let [(_, DataLocation::Spool)] = places.as_slice() {
        let failure = RefCell::new(None);
        let reader = RangeReader::new(source, snapshot, 0..snapshot.size, &failure);
        let cut = file::from_reader(sink, &config, reader);
        return match failure.take() {
            Some(error) => Err(error),
            None => whole(cut),
        };
    }
    let (base, visible) = (&snapshot.base, snapshot.visible);
    let mut map = base_map(source, sink, base, visible).map_err(|error| blame(snapshot, error))?;
    map = lay_changes(source, sink, snapshot, map, &config)?;
    let mut tidied = false;
    if occasion == PublishReason::Close {
        let windows = fragmented(source, snapshot, &map).map_err(|error| blame(snapshot, error))?;
        if !windows.is_empty() {
            map = file::rechunk(source, sink, &config, &map, &windows)
                .map_err(|error| blame(snapshot, error))?;
            tidied = true;
        }
    }
    Ok(ComposedContent { content: content_of(map), whole: tidied })
}

/// The bytes appended to the base, as a file of its own: [`append`] adds it to the end of any other content.
///
/// # Errors
/// [`ComposeError::Local`], since all of these bytes are in the spool.
pub fn cut_appendix(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    snapshot: &Snapshot,
    mode: TransferMode,
) -> Result<Inode, ComposeError> {
    let mut appendix = Inode::new(InodeKind::File, 0, DeviceId(0), 0);
    let range = snapshot.base.size..snapshot.size;
    appendix.size = range.end - range.start;
    let failure = RefCell::new(None);
    let mut reader = RangeReader::new(source, snapshot, range, &failure);
    let made = if appendix.size <= INLINE_BYTES_MAX as u64 {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes);
        read.map(|_| inline(bytes)).map_err(|error| ContentError::Input(error.to_string()))
    } else {
        file::from_reader(sink, &cutting(snapshot, mode), reader).map(|(map, _)| Content::Extents(map))
    };
    match failure.take() {
        Some(error) => Err(error),
        None => {
            appendix.content = made.map_err(|error| blame(snapshot, error))?;
            Ok(appendix)
        }
    }
}

/// The content of `present` followed by all of `appendix`. Neither is read, unless it is tiny: this runs in a
/// plan, and other edits wait for it.
///
/// # Errors
/// [`ContentError`]: a node of either could not be had.
pub fn append(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    present: &Inode,
    appendix: &Inode,
) -> Result<Content, ContentError> {
    let size = present.size + appendix.size;
    if size <= INLINE_BYTES_MAX as u64 {
        let mut bytes = file::read(source, present, 0, present.size as usize)?;
        bytes.extend(file::read(source, appendix, 0, appendix.size as usize)?);
        return Ok(inline(bytes));
    }
    let map = base_map(source, sink, present, present.size)?;
    let mut grafts = Grafts { source, map, cleared: Vec::new(), added: Vec::new() };
    copy(&mut grafts, sink, present.size..size, appendix, 0)?;
    grafts.flush(sink)?;
    Ok(content_of(grafts.map))
}

/// How the file is cut: as before, unless its present size is far outside the range for which that is meant.
fn cutting(snapshot: &Snapshot, mode: TransferMode) -> ChunkerConfig {
    let present = match &snapshot.base.content {
        Content::Extents(map) => map.chunker,
        _ => Chunker::InPlace,
    };
    mode.chunks(snapshot.size, present)
}

/// Content of few bytes, stored in the inode. Zeroes at the end are not stored.
fn inline(mut bytes: Vec<u8>) -> Content {
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    if bytes.is_empty() { Content::None } else { Content::Inline(bytes) }
}

fn content_of(map: ExtentMap) -> Content {
    if map.is_empty() { Content::None } else { Content::Extents(map) }
}

/// Reads a range of a file that has changes. `places` says where its bytes are.
///
/// # Errors
/// [`ComposeError`].
pub fn read_places(
    source: &dyn BlockSource,
    data: Option<&File>,
    places: &[(Range<u64>, DataLocation)],
    out: &mut [u8],
) -> Result<(), ComposeError> {
    let begin = places.first().map_or(0, |(range, _)| range.start);
    for (range, place) in places {
        let out = &mut out[(range.start - begin) as usize..(range.end - begin) as usize];
        match place {
            DataLocation::Zero => out.fill(0),
            DataLocation::Spool => match data {
                Some(data) => read_spooled(data, range.start, out).map_err(ComposeError::Local)?,
                None => unreachable!("spooled ranges have a spool"),
            },
            DataLocation::Published(inode, offset) => {
                out.fill(0);
                file::read_into(source, inode, *offset, out)
                    .map_err(|error| ComposeError::Content(inode.clone(), error))?;
            }
        }
    }
    Ok(())
}

/// Joins neighbours that continue each other, whichever layer they come from.
fn merged(places: Vec<(Range<u64>, DataLocation)>) -> Vec<(Range<u64>, DataLocation)> {
    let mut merged: Vec<(Range<u64>, DataLocation)> = Vec::with_capacity(places.len());
    for (range, place) in places {
        if let Some((last, last_place)) = merged.last_mut()
            && last.end == range.start
            && matches!(
                (&*last_place, &place),
                (DataLocation::Spool, DataLocation::Spool) | (DataLocation::Zero, DataLocation::Zero)
            )
        {
            last.end = range.end;
        } else {
            merged.push((range, place));
        }
    }
    merged
}

fn read_all(
    source: &dyn BlockSource,
    snapshot: &Snapshot,
    places: &[(Range<u64>, DataLocation)],
) -> Result<Vec<u8>, ComposeError> {
    let mut bytes = vec![0; snapshot.size as usize];
    read_places(source, snapshot.data.as_deref(), places, &mut bytes)?;
    Ok(bytes)
}

/// The part of the base that still counts, as extents.
fn base_map(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    base: &Inode,
    visible: u64,
) -> Result<ExtentMap, ContentError> {
    let cut = (visible < base.size).then_some(visible);
    match &base.content {
        Content::Extents(map) if cut.is_none() => Ok(map.clone()),
        Content::Extents(map) => file::splice(source, sink, map, &[], cut),
        Content::Inline(bytes) => {
            let bytes = &bytes[..bytes.len().min(visible as usize)];
            file::splice(source, sink, &ExtentMap::empty(), &[(0, bytes)], None)
        }
        _ => Ok(ExtentMap::empty()),
    }
}

/// Ranges to clear and extents to insert there, collected and applied in batches.
struct Grafts<'a> {
    source: &'a dyn BlockSource,
    map: ExtentMap,
    cleared: Vec<Range<u64>>,
    added: Vec<(u64, Extent)>,
}

impl Grafts<'_> {
    fn flush(&mut self, sink: &mut dyn BlockSink) -> Result<(), ContentError> {
        let (cleared, added) = (std::mem::take(&mut self.cleared), std::mem::take(&mut self.added));
        if !cleared.is_empty() {
            self.map = self.map.graft(self.source, sink, &cleared, &added)?;
        }
        Ok(())
    }

    fn flush_if_many(&mut self, sink: &mut dyn BlockSink) -> Result<(), ContentError> {
        if self.cleared.len() + self.added.len() >= GRAFTS_MAX { self.flush(sink) } else { Ok(()) }
    }
}

fn lay_changes(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    snapshot: &Snapshot,
    map: ExtentMap,
    config: &ChunkerConfig,
) -> Result<ExtentMap, ComposeError> {
    let mut grafts = Grafts { source, map, cleared: Vec::new(), added: Vec::new() };
    let whose = |error| blame(snapshot, error);
    // A piece never reaches beyond the size: truncation cuts pieces too.
    for (range, kind) in runs(snapshot) {
        match kind {
            Piece::Hole => grafts.cleared.push(range),
            Piece::Spool => {
                let mut at = range.start;
                // In steps, so that the extents of a long run do not fill the memory.
                while at < range.end {
                    let end = range.end.min(at.saturating_add(RUN_BYTES));
                    let failure = RefCell::new(None);
                    let reader = RangeReader::new(source, snapshot, at..end, &failure);
                    let cut = file::cut_run_at(sink, config, at, reader, &mut grafts.added);
                    match (failure.take(), cut) {
                        (Some(error), _) => return Err(error),
                        (None, cut) => cut.map_err(whose)?,
                    };
                    grafts.cleared.push(at..end);
                    grafts.flush_if_many(sink).map_err(whose)?;
                    at = end;
                }
            }
            Piece::Copy(inode, from) => {
                let copied = copy(&mut grafts, sink, range, &inode, from);
                copied.map_err(|error| ComposeError::Content(inode.clone(), error))?;
            }
        }
        grafts.flush_if_many(sink).map_err(whose)?;
    }
    grafts.flush(sink).map_err(whose)?;
    Ok(grafts.map)
}

/// The changes, with written runs joined where the gap is small. The bytes of the gap are stored again, which
/// costs less than a separate chunk for each run.
fn runs(snapshot: &Snapshot) -> Vec<(Range<u64>, Piece<Arc<Inode>>)> {
    let mut runs: Vec<(Range<u64>, Piece<Arc<Inode>>)> = Vec::new();
    for (range, piece) in snapshot.changes.iter() {
        match runs.last_mut() {
            Some((last, Piece::Spool)) if *piece == Piece::Spool && range.start - last.end <= GAP_BYTES => {
                last.end = range.end;
            }
            _ => runs.push((range, piece.clone())),
        }
    }
    runs
}

/// Inserts another inode's bytes, from offset `from` on, at `range`.
fn copy(
    grafts: &mut Grafts<'_>,
    sink: &mut dyn BlockSink,
    range: Range<u64>,
    inode: &Inode,
    from: u64,
) -> Result<(), ContentError> {
    match &inode.content {
        Content::Extents(map) => {
            let mut at = range.start;
            while at < range.end {
                let end = range.end.min(at.saturating_add(RUN_BYTES));
                let wanted = from + (at - range.start)..from + (end - range.start);
                for (offset, extent) in map.extents_in(grafts.source, wanted.clone())? {
                    let begin = offset.max(wanted.start);
                    let finish = (offset + u64::from(extent.length)).min(wanted.end);
                    let clipped = Extent {
                        reference: extent.reference,
                        skip: extent.skip + (begin - offset) as u32,
                        length: (finish - begin) as u32,
                    };
                    grafts.added.push((at + (begin - wanted.start), clipped));
                }
                grafts.cleared.push(at..end);
                grafts.flush_if_many(sink)?;
                at = end;
            }
        }
        Content::Inline(bytes) => {
            let length = (bytes.len() as u64).saturating_sub(from).min(range.end - range.start) as usize;
            if length > 0 {
                let bytes = &bytes[from as usize..from as usize + length];
                let config = ChunkerConfig::DEFAULT;
                file::cut_run_at(sink, &config, range.start, bytes, &mut grafts.added)?;
            }
            grafts.cleared.push(range);
        }
        _ => grafts.cleared.push(range),
    }
    Ok(())
}

/// The ranges, around what changed since the file was last cut, that have too many extents.
fn fragmented(
    source: &dyn BlockSource,
    snapshot: &Snapshot,
    map: &ExtentMap,
) -> Result<Vec<Range<u64>>, ContentError> {
    let mut changed: Overlay<()> = Overlay::default();
    let ranges = snapshot.fragments.iter().cloned().chain(snapshot.changes.iter().map(|(range, _)| range));
    for range in ranges {
        let end = range.end.saturating_add(WINDOW_BYTES).min(snapshot.size);
        changed.insert(range.start.saturating_sub(WINDOW_BYTES)..end, Piece::Hole);
    }
    if changed.len() > FRAGMENT_RANGES_MAX {
        changed.insert(0..snapshot.size, Piece::Hole);
    }
    let mut fragmented = Vec::new();
    for (window, _) in changed.iter() {
        let allowed = WINDOW_EXTENTS + (window.end - window.start) / (WINDOW_BYTES / WINDOW_EXTENTS);
        let mut count = 0;
        map.visit(source, window.clone(), &mut |_, _| {
            count += 1;
            Ok(count <= allowed)
        })?;
        if count > allowed {
            fragmented.push(window);
        }
    }
    Ok(fragmented)
}

/// Decides what an error concerns: the chunker reports errors of reading the spool as input errors; all
/// others concern the base.
fn blame(snapshot: &Snapshot, error: ContentError) -> ComposeError {
    match error {
        ContentError::Input(text) => ComposeError::Local(FsError::Local { kind: io::ErrorKind::Other, text }),
        error => ComposeError::Content(snapshot.base.clone(), error),
    }
}

/// Reads a range of a changed file, a step at a time.
struct RangeReader<'a> {
    source: &'a dyn BlockSource,
    snapshot: &'a Snapshot,
    range: Range<u64>,
    ready: Vec<u8>,
    taken: usize,
    /// Why reading failed. The chunker reports only the text of the error.
    failure: &'a RefCell<Option<ComposeError>>,
}

impl<'a> RangeReader<'a> {
    fn new(
        source: &'a dyn BlockSource,
        snapshot: &'a Snapshot,
        range: Range<u64>,
        failure: &'a RefCell<Option<ComposeError>>,
    ) -> RangeReader<'a> {
        RangeReader { source, snapshot, range, ready: Vec::new(), taken: 0, failure }
    }

    fn refill(&mut self) -> Result<(), ComposeError> {
        let step = self.range.start..self.range.end.min(self.range.start + STEP_BYTES);
        self.ready.resize((step.end - step.start) as usize, 0);
        self.taken = 0;
        let places = self.snapshot.places(step.clone());
        read_places(self.source, self.snapshot.data.as_deref(), &places, &mut self.ready)?;
        self.range.start = step.end;
        Ok(())
    }
}

impl Read for RangeReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.ready.len()
            && !self.range.is_empty()
            && let Err(error) = self.refill()
        {
            *self.failure.borrow_mut() = Some(error);
            return Err(io::Error::other("the changed file could not be read"));
        }
        let count = out.len().min(self.ready.len() - self.taken);
        out[..count].copy_from_slice(&self.ready[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
