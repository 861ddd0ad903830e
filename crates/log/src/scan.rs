//! Reading records in order, past damage: one bad record must not hide the good ones after it.

use crate::frame::{self, ALIGNMENT, FRAME_BYTES, HEADER_BYTES, RecordHead};
use crate::outline::Outline;
use crate::segments::{Segment, Segments, first_position};
use crate::{LogError, Position, is_away};
use std::io;
use std::ops::Range;
use std::sync::Arc;

const WINDOW_BYTES: usize = 256 << 10;

/// A range of the log that is not what was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The segment file.
    pub file: String,
    /// The position at which it begins.
    pub position: Position,
    /// Its length in bytes.
    pub length: u64,
    /// The record, when its head is good and only its body is damaged.
    pub record: Option<RecordHead>,
    /// The reason.
    pub why: String,
}

impl From<Damage> for LogError {
    fn from(damage: Damage) -> LogError {
        LogError::Damaged { file: damage.file, offset: damage.position.offset.into(), why: damage.why }
    }
}

/// An item of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScanItem {
    /// A record whose head is verified (and its body, in a scan that reads bodies).
    Record(RecordHead),
    /// A damaged range; the scan continues after it.
    Damaged(Damage),
}

/// Walks over records in log order. By default it reads heads only.
pub struct Scan {
    segments: Arc<Segments>,
    next: Position,
    end: Position,
    bodies: bool,
    reader: Option<Reader>,
    /// Used instead of the reader if heads are enough and the medium has an outline.
    outline: Option<Outline>,
}

impl Scan {
    pub(crate) fn new(segments: Arc<Segments>, from: Position, end: Position, bodies: bool) -> Scan {
        Scan { segments, next: from, end, bodies, reader: None, outline: None }
    }

    /// The position of the next record.
    pub fn position(&self) -> Position {
        self.next
    }

    fn skip_segment(&mut self) {
        (self.reader, self.outline) = (None, None);
        self.next = first_position(self.next.segment + 1);
    }

    /// Loads the outline of the next segment, if there is one for the whole segment.
    fn find_outline(&mut self, number: u32, length: u64) -> Result<(), LogError> {
        if self.bodies {
            return Ok(());
        }
        let mut outline = self.segments.outline(number, length)?;
        self.outline = outline.take_if(|outline| outline.seek(self.next.offset.into()));
        Ok(())
    }
}

impl Iterator for Scan {
    type Item = Result<ScanItem, LogError>;

    /// An error is a segment that cannot be opened or read; the scan continues with the next segment.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.next >= self.end {
                return None;
            }
            if let Some(outline) = &mut self.outline {
                let Some((head, next)) = outline.step() else {
                    self.skip_segment();
                    continue;
                };
                self.next.offset = next as u32;
                if outline.is_hole(head.position.offset.into()) {
                    continue;
                }
                return Some(Ok(ScanItem::Record(head)));
            }
            if self.reader.as_ref().is_none_or(|reader| reader.segment.number != self.next.segment) {
                let (number, length) = self.segments.at_or_after(self.next.segment)?;
                if number != self.next.segment || u64::from(self.next.offset) < HEADER_BYTES {
                    self.next = first_position(number);
                    continue;
                }
                let length = if number == self.end.segment { self.end.offset.into() } else { length };
                match self.find_outline(number, length) {
                    Ok(()) if self.outline.is_some() => continue,
                    Ok(()) => {}
                    Err(error) => {
                        self.skip_segment();
                        return Some(Err(error));
                    }
                }
                match self.segments.get(number) {
                    Ok(segment) => self.reader = Some(Reader::new(segment, length)),
                    Err(LogError::SegmentGone(_)) => {
                        self.skip_segment();
                        continue;
                    }
                    Err(error) => {
                        self.skip_segment();
                        return Some(Err(error));
                    }
                }
            }
            let reader = self.reader.as_mut().expect("opened above");
            match reader.step(self.next.offset.into(), self.bodies) {
                Ok(None) => self.skip_segment(),
                Ok(Some((scanned, next))) => {
                    self.next.offset = next as u32;
                    return Some(Ok(scanned));
                }
                Err(error) => {
                    self.skip_segment();
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Reads one segment through a window.
pub(crate) struct Reader {
    pub(crate) segment: Arc<Segment>,
    length: u64,
    holes: Vec<Range<u64>>,
    window: Vec<u8>,
    window_start: u64,
}

impl Reader {
    pub(crate) fn new(segment: Arc<Segment>, length: u64) -> Reader {
        let holes = segment.file.holes();
        Reader { segment, length, holes, window: Vec::new(), window_start: 0 }
    }

    /// The record or damage at `offset` or behind the hole that it is in, and where the next one begins; `None` at the end.
    pub(crate) fn step(&mut self, offset: u64, bodies: bool) -> Result<Option<(ScanItem, u64)>, LogError> {
        let mut offset = offset;
        loop {
            if let Some(hole) = self.holes.iter().find(|hole| hole.contains(&offset)) {
                offset = hole.end;
                continue;
            }
            let stepped = self.step_at(offset, bodies)?;
            if !matches!(stepped, Some((ScanItem::Damaged(_), _))) || !self.segment.is_hole(offset) {
                return Ok(stepped);
            }
            // Punched since.
            self.holes = self.segment.file.holes();
        }
    }

    fn step_at(&mut self, offset: u64, bodies: bool) -> Result<Option<(ScanItem, u64)>, LogError> {
        if offset >= self.length {
            return Ok(None);
        }
        let at = Position { segment: self.segment.number, offset: offset as u32 };
        let Some(frame) = self.fixed(offset).map_err(|error| self.io(&error))? else {
            let resume = self.find_frame(offset + ALIGNMENT)?;
            let damage = self.damage(at, resume - offset, None, "no record begins here".into());
            return Ok(Some((ScanItem::Damaged(damage), resume)));
        };
        let next = offset + frame.length();
        let head_at = offset + FRAME_BYTES as u64;
        let key = self.segment.key;
        let head = match self.bytes(head_at, frame.head_length as usize) {
            Ok(Some(head)) => frame.verify_head(&key, at, head),
            Ok(None) => None,
            Err(error) if is_away(&error) => return Err(self.io(&error)),
            Err(error) => {
                let damage =
                    self.damage(at, next - offset, None, format!("its head cannot be read: {error}"));
                return Ok(Some((ScanItem::Damaged(damage), next)));
            }
        };
        let Some(head) = head else {
            let why = format!("the head of a record of kind {} was altered", frame.kind);
            return Ok(Some((ScanItem::Damaged(self.damage(at, next - offset, None, why)), next)));
        };
        if bodies {
            let why = match self.bytes(head.body_offset(), head.body_length as usize) {
                Ok(Some(body)) if frame::body_fits(&head, body) => None,
                Ok(_) => Some("the body of the record was altered".to_owned()),
                Err(error) if is_away(&error) => return Err(self.io(&error)),
                Err(error) => Some(format!("the body of the record cannot be read: {error}")),
            };
            if let Some(why) = why {
                let damage = self.damage(at, next - offset, Some(head), why);
                return Ok(Some((ScanItem::Damaged(damage), next)));
            }
        }
        Ok(Some((ScanItem::Record(head), next)))
    }

    /// The next offset from `from` on at which a whole, verified head begins, or the end of the segment.
    fn find_frame(&mut self, from: u64) -> Result<u64, LogError> {
        let mut offset = from.next_multiple_of(ALIGNMENT);
        while offset < self.length {
            if let Some(frame) = self.fixed(offset).map_err(|error| self.io(&error))? {
                let at = Position { segment: self.segment.number, offset: offset as u32 };
                let key = self.segment.key;
                let name = self.name();
                let head = self
                    .bytes(offset + FRAME_BYTES as u64, frame.head_length as usize)
                    .map_err(|error| LogError::io("reading", &name, &error))?;
                if head.is_some_and(|head| frame.verify_head(&key, at, head).is_some()) {
                    return Ok(offset);
                }
            }
            offset += ALIGNMENT;
        }
        Ok(self.length)
    }

    /// The greatest position that any record from `from` on calls durable.
    pub(crate) fn greatest_claim(&mut self, from: u64) -> Result<Position, LogError> {
        let (mut offset, mut greatest) = (from, Position::START);
        while let Some((scanned, next)) = self.step(offset, false)? {
            if let ScanItem::Record(head) = scanned {
                greatest = greatest.max(head.durable);
            }
            offset = next;
        }
        Ok(greatest)
    }

    /// A frame at `offset` that fits in the segment.
    fn fixed(&mut self, offset: u64) -> io::Result<Option<frame::Frame>> {
        let (key, length) = (self.segment.key, self.length);
        let Some(bytes) = self.bytes(offset, FRAME_BYTES)? else { return Ok(None) };
        let frame = frame::decode_fixed(&key, offset as u32, bytes);
        Ok(frame.filter(|frame| offset + frame.length() <= length))
    }

    /// `count` bytes from `offset`; `None` when the segment ends before.
    fn bytes(&mut self, offset: u64, count: usize) -> io::Result<Option<&[u8]>> {
        if offset + count as u64 > self.length {
            return Ok(None);
        }
        let inside = offset >= self.window_start
            && offset + count as u64 <= self.window_start + self.window.len() as u64;
        if !inside {
            let wide = (count.max(WINDOW_BYTES) as u64).min(self.length - offset) as usize;
            // Where a wide read fails, a narrow one may avoid the bad sector.
            if let Err(error) = self.fill(offset, wide) {
                if wide == count || is_away(&error) {
                    return Err(error);
                }
                self.fill(offset, count)?;
            }
            if self.window.len() < count {
                return Ok(None);
            }
        }
        let start = (offset - self.window_start) as usize;
        Ok(Some(&self.window[start..start + count]))
    }

    fn fill(&mut self, offset: u64, count: usize) -> io::Result<()> {
        self.window_start = offset;
        self.window.resize(count, 0);
        let result = self.segment.file.read_at(offset, &mut self.window);
        self.window.truncate(*result.as_ref().unwrap_or(&0));
        result.map(|_| ())
    }

    fn name(&self) -> String {
        frame::segment_name(self.segment.number)
    }

    fn io(&self, error: &io::Error) -> LogError {
        LogError::io("reading", &self.name(), error)
    }

    fn damage(&self, position: Position, length: u64, record: Option<RecordHead>, why: String) -> Damage {
        Damage { file: self.name(), position, length, record, why }
    }
}
