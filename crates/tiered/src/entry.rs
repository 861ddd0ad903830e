//! A segment in the bucket, and the objects it consists of.
//!
//! A segment is one object. Or, if parts of it had to be in the bucket before it was sealed, it consists of
//! those parts, so that its bytes are sent only once. Adjacent small parts are sent again as one,
//! [joined](Part::is_joined), so that a segment never has many parts. If the collector has punched holes into
//! it, it consists of pieces between the holes: parts that no hole touches stay as they are, and the store
//! [copies](Source::Copied) what is left of the others.

use crate::names::{self, StoreId};
use crate::tail::TAIL_HEADER_BYTES;
use borsh::{BorshDeserialize, BorshSerialize};
use std::ops::Range;

/// A segment in the bucket.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Entry {
    pub(crate) number: u32,
    /// The epoch of the server that wrote it.
    pub(crate) epoch: u64,
    pub(crate) length: u64,
    pub(crate) form: Form,
    /// The end of its outline's name, which is also the end of the outline itself; `None` if it has no
    /// outline.
    pub(crate) outline: Option<[u8; 16]>,
}

/// The objects that a segment consists of.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) enum Form {
    /// A single object.
    Whole {
        /// Its SHA-256.
        sum: [u8; 32],
    },
    /// Parts, each following the one before.
    Parts(Vec<Part>),
    /// Pieces, in order, with holes between and after them.
    Pieces(Vec<Piece>),
}

/// An object with a header and a part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Part {
    /// Its length in the segment, in bytes.
    pub(crate) length: u32,
    /// Whether it was made of smaller parts, and is named accordingly.
    pub(crate) is_joined: bool,
}

/// An object with a piece of a segment that has holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Piece {
    /// Offset of the piece in the segment, in bytes.
    pub(crate) offset: u32,
    /// Its length in the segment, in bytes.
    pub(crate) length: u32,
    pub(crate) source: Source,
}

/// The kind of object that has a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) enum Source {
    /// A part, with its header.
    Part {
        /// As in [`Part::is_joined`].
        is_joined: bool,
    },
    /// Only the bytes of the piece, copied by the store.
    Copied {
        /// The epoch of the server that had them copied.
        epoch: u64,
    },
}

/// A range of an object, and its offset in the bytes that were requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ObjectRange {
    pub(crate) object: String,
    pub(crate) range: Range<u64>,
    /// Offset of the range, relative to the start of the requested bytes.
    pub(crate) at: u64,
}

/// A piece that the store has to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PieceCopy {
    pub(crate) from: String,
    /// The length of the source object in bytes.
    pub(crate) length: u64,
    pub(crate) range: Range<u64>,
    pub(crate) to: String,
}

/// A contiguous part of a segment and the object that has it, after a header or alone.
struct Stretch {
    offset: u64,
    length: u64,
    object: String,
    header: u64,
    /// How a piece that is the whole stretch refers to it; `None` if none can, because the object has the
    /// whole segment.
    source: Option<Source>,
}

/// Parts with their offsets.
fn placed(parts: &[Part]) -> impl Iterator<Item = (u64, &Part)> {
    let mut offset = 0;
    parts.iter().map(move |part| {
        let at = offset;
        offset += u64::from(part.length);
        (at, part)
    })
}

impl Entry {
    /// Whether the parts add up to the segment's length. Or whether the pieces are in order within the
    /// segment and do not overlap, the first at its beginning.
    pub(crate) fn is_sound(&self) -> bool {
        match &self.form {
            Form::Whole { .. } => true,
            Form::Parts(parts) => parts.iter().map(|part| u64::from(part.length)).sum::<u64>() == self.length,
            Form::Pieces(pieces) => {
                let mut end = 0;
                let mut follows = |piece: &Piece| {
                    let fits = u64::from(piece.offset) >= end && piece.length > 0;
                    end = u64::from(piece.offset) + u64::from(piece.length);
                    fits && end <= self.length
                };
                pieces.first().is_some_and(|first| first.offset == 0) && pieces.iter().all(&mut follows)
            }
        }
    }

    fn part_name(&self, store: &StoreId, offset: u64, part: &Part) -> String {
        match part.is_joined {
            false => names::tail(store, self.number, self.epoch, offset),
            true => names::part(store, self.number, self.epoch, offset, part.length),
        }
    }

    /// The objects with the segment's bytes, in order.
    fn stretches(&self, store: &StoreId) -> Vec<Stretch> {
        let header = TAIL_HEADER_BYTES as u64;
        match &self.form {
            Form::Whole { sum } => {
                let object = names::segment(store, self.number, self.epoch, sum);
                vec![Stretch { offset: 0, length: self.length, object, header: 0, source: None }]
            }
            Form::Parts(parts) => {
                let of = |(offset, part): (u64, &Part)| {
                    let object = self.part_name(store, offset, part);
                    let source = Some(Source::Part { is_joined: part.is_joined });
                    Stretch { offset, length: part.length.into(), object, header, source }
                };
                placed(parts).map(of).collect()
            }
            Form::Pieces(pieces) => {
                let of = |piece: &Piece| {
                    let (offset, length) = (u64::from(piece.offset), piece.length);
                    let (object, header) = match piece.source {
                        Source::Part { is_joined } => {
                            (self.part_name(store, offset, &Part { length, is_joined }), header)
                        }
                        Source::Copied { epoch } => {
                            (names::piece(store, self.number, epoch, offset, length), 0)
                        }
                    };
                    let (length, source) = (length.into(), Some(piece.source));
                    Stretch { offset, length, object, header, source }
                };
                pieces.iter().map(of).collect()
            }
        }
    }

    /// The objects with the segment's bytes, and their lengths.
    pub(crate) fn objects(&self, store: &StoreId) -> Vec<(String, u64)> {
        let of = |stretch: Stretch| (stretch.object, stretch.length + stretch.header);
        self.stretches(store).into_iter().map(of).collect()
    }

    /// How many bytes of the segment are in the bucket.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.length - self.holes().iter().map(|hole| hole.end - hole.start).sum::<u64>()
    }

    /// The ranges of the segment that were removed, in order.
    pub(crate) fn holes(&self) -> Vec<Range<u64>> {
        let Form::Pieces(pieces) = &self.form else { return Vec::new() };
        let (mut holes, mut end) = (Vec::new(), 0);
        let starts = pieces.iter().map(|piece| (u64::from(piece.offset), u64::from(piece.length)));
        for (offset, length) in starts.chain([(self.length, 0)]) {
            holes.extend((end < offset).then_some(end..offset));
            end = offset + length;
        }
        holes
    }

    /// The segment with these holes, which are in order, and the copies that the server of `epoch` must make
    /// for that. Returns `None` if the holes are not within the segment, or the first is at its beginning.
    pub(crate) fn punched(
        &self,
        store: &StoreId,
        epoch: u64,
        holes: &[Range<u64>],
    ) -> Option<(Entry, Vec<PieceCopy>)> {
        let (mut kept, mut end) = (Vec::new(), 0);
        let behind = std::iter::once(self.length..self.length);
        for hole in holes.iter().cloned().chain(behind) {
            let is_in_order = end <= hole.start && hole.start <= hole.end && hole.end <= self.length;
            if !is_in_order || hole.start == 0 {
                return None;
            }
            kept.push(end..hole.start);
            end = hole.end;
        }
        let (mut pieces, mut copies) = (Vec::new(), Vec::new());
        for stretch in self.stretches(store) {
            let stretch_end = stretch.offset + stretch.length;
            for kept in &kept {
                let (from, to) = (kept.start.max(stretch.offset), kept.end.min(stretch_end));
                if from >= to {
                    continue;
                }
                let (offset, length) = (u32::try_from(from).ok()?, u32::try_from(to - from).ok()?);
                let is_all = (from, to) == (stretch.offset, stretch_end);
                let source = stretch.source.filter(|_| is_all).unwrap_or(Source::Copied { epoch });
                pieces.push(Piece { offset, length, source });
                if !is_all || stretch.source.is_none() {
                    let within = from - stretch.offset + stretch.header..to - stretch.offset + stretch.header;
                    let to = names::piece(store, self.number, epoch, from, length);
                    let (from, length) = (stretch.object.clone(), stretch.length + stretch.header);
                    copies.push(PieceCopy { from, length, range: within, to });
                }
            }
        }
        Some((Entry { form: Form::Pieces(pieces), ..self.clone() }, copies))
    }

    /// The name of its outline.
    pub(crate) fn outline_name(&self, store: &StoreId) -> Option<String> {
        self.outline.as_ref().map(|sum| names::outline(store, self.number, self.epoch, sum))
    }

    /// The names of all its objects.
    pub(crate) fn names(&self, store: &StoreId) -> Vec<String> {
        let objects = self.objects(store).into_iter().map(|(name, _)| name);
        objects.chain(self.outline_name(store)).collect()
    }

    /// A description for messages.
    pub(crate) fn description(&self, store: &StoreId) -> String {
        match &self.form {
            Form::Whole { sum } => names::segment(store, self.number, self.epoch, sum),
            Form::Parts(_) => format!("{}*", names::tails_of(store, self.number, self.epoch)),
            Form::Pieces(_) => format!("{}*", names::pieces_of(store, self.number)),
        }
    }

    /// The ranges of objects that have these bytes of the segment, in order, without those in holes. `wanted`
    /// must be within the segment.
    pub(crate) fn ranges(&self, store: &StoreId, wanted: Range<u64>) -> Vec<ObjectRange> {
        let overlap = |stretch: Stretch| {
            let from = wanted.start.max(stretch.offset);
            let to = wanted.end.min(stretch.offset + stretch.length);
            let before = stretch.header;
            (from < to).then(|| ObjectRange {
                object: stretch.object,
                range: from - stretch.offset + before..to - stretch.offset + before,
                at: from - wanted.start,
            })
        };
        self.stretches(store).into_iter().filter_map(overlap).collect()
    }
}

/// The parts that a sealed segment will consist of, given the parts that were sent. A part of at least
/// `small_bytes` bytes stays; adjacent smaller ones are joined. Returns `None` if the whole segment becomes
/// one object.
pub(crate) fn planned(sent: &[Part], small_bytes: u64) -> Option<Vec<Part>> {
    let is_small = |part: &Part| u64::from(part.length) < small_bytes;
    let mut planned: Vec<Part> = Vec::new();
    let mut follows_small = false;
    for part in sent {
        match planned.last_mut() {
            Some(last) if follows_small && is_small(part) => {
                *last = Part { length: last.length + part.length, is_joined: true };
            }
            _ => planned.push(*part),
        }
        follows_small = is_small(part);
    }
    match planned[..] {
        [] | [Part { is_joined: true, .. }] => None,
        _ => Some(planned),
    }
}

/// An entry in the format before segments had parts and outlines.
#[derive(BorshDeserialize)]
pub(crate) struct EntryV1 {
    number: u32,
    epoch: u64,
    length: u64,
    sum: [u8; 32],
}

impl From<EntryV1> for Entry {
    fn from(EntryV1 { number, epoch, length, sum }: EntryV1) -> Entry {
        Entry { number, epoch, length, form: Form::Whole { sum }, outline: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(length: u32, is_joined: bool) -> Part {
        Part { length, is_joined }
    }

    /// Proves: any range of a segment is found in its parts, each byte once and in order.
    #[test]
    fn ranges_are_found_in_parts() {
        let parts = vec![part(10, false), part(25, true), part(7, false)];
        let entry = Entry { number: 4, epoch: 2, length: 42, form: Form::Parts(parts), outline: None };
        let store = [1; 16];
        let mut stored = std::collections::BTreeMap::new();
        let mut offset = 0u8;
        for (name, length) in entry.objects(&store) {
            let mut bytes = vec![0xff; TAIL_HEADER_BYTES];
            let count = (length - TAIL_HEADER_BYTES as u64) as u8;
            bytes.extend(offset..offset + count);
            offset += count;
            assert!(stored.insert(name, bytes).is_none());
        }
        for from in 0..42u64 {
            for to in from + 1..=42 {
                let mut found = Vec::new();
                for ObjectRange { object, range, at } in entry.ranges(&store, from..to) {
                    assert_eq!(at, found.len() as u64);
                    found.extend_from_slice(&stored[&object][range.start as usize..range.end as usize]);
                }
                assert_eq!(found, (from as u8..to as u8).collect::<Vec<_>>());
            }
        }
    }

    /// Proves: large parts stay, and adjacent small ones are joined; if all are small, the segment becomes
    /// one object.
    #[test]
    fn small_parts_are_joined() {
        let lengths = |lengths: &[u32]| lengths.iter().map(|length| part(*length, false)).collect::<Vec<_>>();
        assert_eq!(planned(&[], 10), None);
        assert_eq!(planned(&lengths(&[3, 3, 9]), 10), None);
        assert_eq!(planned(&lengths(&[3]), 10), Some(lengths(&[3])));
        assert_eq!(
            planned(&lengths(&[3, 3, 12, 10, 4, 30, 1, 2, 3]), 10),
            Some(vec![
                part(6, true),
                part(12, false),
                part(10, false),
                part(4, false),
                part(30, false),
                part(6, true)
            ])
        );
    }

    /// Proves, for any form of a segment and any holes, punched again and again: bytes outside the holes are
    /// read as before from kept or copied pieces; the holes are those requested; and parts that no hole
    /// touches are not copied.
    #[test]
    fn what_is_between_holes_stays() {
        let store = [1; 16];
        let whole = Form::Whole { sum: [3; 32] };
        let parts = Form::Parts(vec![part(10, false), part(25, true), part(7, false)]);
        for form in [whole, parts] {
            let is_whole = matches!(form, Form::Whole { .. });
            let mut entry = Entry { number: 4, epoch: 2, length: 42, form, outline: None };
            let bytes: Vec<u8> = (100..142).collect();
            let mut stored = std::collections::BTreeMap::new();
            for stretch in entry.stretches(&store) {
                let mut object = vec![0xff; stretch.header as usize];
                object.extend(&bytes[stretch.offset as usize..][..stretch.length as usize]);
                stored.insert(stretch.object, object);
            }
            let rounds: [(&[Range<u64>], usize); 3] = [
                (&[12..14, 36..38], if is_whole { 3 } else { 4 }),
                (&[12..14, 20..30, 36..38], 2),
                (&[12..30, 36..42], 0),
            ];
            for (at, (holes, copied)) in rounds.into_iter().enumerate() {
                let (punched, copies) = entry.punched(&store, 5 + at as u64, holes).expect("they are in it");
                assert_eq!(copies.len(), copied, "{copies:?}");
                for PieceCopy { from, length, range, to } in copies {
                    assert_eq!(stored[&from].len() as u64, length);
                    let piece = stored[&from][range.start as usize..range.end as usize].to_vec();
                    assert!(stored.insert(to, piece).is_none());
                }
                entry = punched;
                assert!(entry.is_sound(), "{entry:?}");
                assert_eq!(entry.holes(), holes);
                let gone: u64 = holes.iter().map(|hole| hole.end - hole.start).sum();
                assert_eq!(entry.stored_bytes(), 42 - gone);
                for (name, length) in entry.objects(&store) {
                    assert_eq!(stored[&name].len() as u64, length);
                }
                for (from, to) in (0..42u64).flat_map(|from| (from + 1..=42).map(move |to| (from, to))) {
                    let mut found = vec![0; (to - from) as usize];
                    for ObjectRange { object, range, at } in entry.ranges(&store, from..to) {
                        let read = &stored[&object][range.start as usize..range.end as usize];
                        found[at as usize..][..read.len()].copy_from_slice(read);
                    }
                    let is_hole = |at: u64| holes.iter().any(|hole| hole.contains(&at));
                    let expected = (from..to).map(|at| if is_hole(at) { 0 } else { bytes[at as usize] });
                    assert_eq!(found, expected.collect::<Vec<_>>());
                }
            }
            let one = |start, end| vec![Range { start, end }];
            for wrong in [one(0, 4), one(30, 20), one(40, 43), vec![20..30, 25..35]] {
                assert_eq!(entry.punched(&store, 9, &wrong), None, "{wrong:?}");
            }
        }
    }

    /// Proves: pieces that overlap, are out of order, empty or too long, or leave out the beginning, are no
    /// segment.
    #[test]
    fn unsound_pieces_are_noticed() {
        let piece = |offset, length| Piece { offset, length, source: Source::Copied { epoch: 1 } };
        let sound = |pieces: &[Piece]| {
            let form = Form::Pieces(pieces.to_vec());
            Entry { number: 4, epoch: 2, length: 42, form, outline: None }.is_sound()
        };
        assert!(sound(&[piece(0, 10), piece(10, 5), piece(20, 22)]));
        for wrong in [
            &[][..],
            &[piece(1, 10)],
            &[piece(0, 10), piece(9, 5)],
            &[piece(0, 10), piece(20, 5), piece(15, 2)],
            &[piece(0, 10), piece(20, 23)],
            &[piece(0, 10), piece(20, 0)],
            &[piece(0, 10), piece(u32::MAX, u32::MAX)],
        ] {
            assert!(!sound(wrong), "{wrong:?}");
        }
    }
}
