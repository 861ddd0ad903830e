//! A segment in the bucket: which objects it consists of.
//!
//! It is one object; or, where parts of it had to be there before it was sealed, those same parts, so that its bytes are sent
//! once. Runs of small parts are sent again as one, [joined](Part::is_joined), so that a segment never has many.

use crate::names::{self, StoreId};
use crate::tail::TAIL_HEADER_BYTES;
use borsh::{BorshDeserialize, BorshSerialize};
use std::ops::Range;

/// A segment in the bucket.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Entry {
    pub(crate) number: u32,
    /// Of the server that wrote it.
    pub(crate) epoch: u64,
    pub(crate) length: u64,
    pub(crate) form: Form,
    /// What the name of its outline ends with, and the outline too; `None`: it has none.
    pub(crate) outline: Option<[u8; 16]>,
}

/// What a segment consists of.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) enum Form {
    /// One object.
    Whole {
        /// Its SHA-256.
        sum: [u8; 32],
    },
    /// Parts, one behind the other.
    Parts(Vec<Part>),
}

/// An object that has a header and a part of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Part {
    /// Of the segment, in bytes.
    pub(crate) length: u32,
    /// Whether it was made of smaller ones, and is named accordingly.
    pub(crate) is_joined: bool,
}

/// Some bytes of an object.
pub(crate) type ObjectRange = (String, Range<u64>);

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
    /// Whether its parts make up all of it.
    pub(crate) fn is_sound(&self) -> bool {
        match &self.form {
            Form::Whole { .. } => true,
            Form::Parts(parts) => parts.iter().map(|part| u64::from(part.length)).sum::<u64>() == self.length,
        }
    }

    fn part_name(&self, store: &StoreId, offset: u64, part: &Part) -> String {
        match part.is_joined {
            false => names::tail(store, self.number, self.epoch, offset),
            true => names::part(store, self.number, self.epoch, offset, part.length),
        }
    }

    /// The objects that have its bytes, and their lengths.
    pub(crate) fn objects(&self, store: &StoreId) -> Vec<(String, u64)> {
        match &self.form {
            Form::Whole { sum } => {
                vec![(names::segment(store, self.number, self.epoch, sum), self.length)]
            }
            Form::Parts(parts) => {
                let of = |(offset, part): (u64, &Part)| {
                    (self.part_name(store, offset, part), u64::from(part.length) + TAIL_HEADER_BYTES as u64)
                };
                placed(parts).map(of).collect()
            }
        }
    }

    /// Its outline's name.
    pub(crate) fn outline_name(&self, store: &StoreId) -> Option<String> {
        self.outline.as_ref().map(|sum| names::outline(store, self.number, self.epoch, sum))
    }

    /// The names of all its objects.
    pub(crate) fn names(&self, store: &StoreId) -> Vec<String> {
        let objects = self.objects(store).into_iter().map(|(name, _)| name);
        objects.chain(self.outline_name(store)).collect()
    }

    /// What to call it in messages.
    pub(crate) fn shown(&self, store: &StoreId) -> String {
        match &self.form {
            Form::Whole { sum } => names::segment(store, self.number, self.epoch, sum),
            Form::Parts(_) => format!("{}*", names::tails_of(store, self.number, self.epoch)),
        }
    }

    /// Where bytes of the segment are, in order. They must be in it.
    pub(crate) fn ranges(&self, store: &StoreId, wanted: Range<u64>) -> Vec<ObjectRange> {
        let parts = match &self.form {
            Form::Whole { sum } => {
                return vec![(names::segment(store, self.number, self.epoch, sum), wanted)];
            }
            Form::Parts(parts) => parts,
        };
        let header = TAIL_HEADER_BYTES as u64;
        let overlap = |(offset, part): (u64, &Part)| {
            let from = wanted.start.max(offset);
            let to = wanted.end.min(offset + u64::from(part.length));
            let within = from.saturating_sub(offset) + header..to.saturating_sub(offset) + header;
            (from < to).then(|| (self.part_name(store, offset, part), within))
        };
        placed(parts).filter_map(overlap).collect()
    }
}

/// What a segment is to consist of, given the parts of it that were sent: each is kept that has at least so many bytes; of
/// others that lie side by side one is made. `None`: one object of all of it.
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

/// An entry as it was before segments consisted of parts and had outlines.
#[derive(BorshDeserialize)]
pub(crate) struct EntryOne {
    number: u32,
    epoch: u64,
    length: u64,
    sum: [u8; 32],
}

impl From<EntryOne> for Entry {
    fn from(EntryOne { number, epoch, length, sum }: EntryOne) -> Entry {
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
                let found: Vec<u8> = entry
                    .ranges(&store, from..to)
                    .into_iter()
                    .flat_map(|(name, range)| {
                        stored[&name][range.start as usize..range.end as usize].to_vec()
                    })
                    .collect();
                assert_eq!(found, (from as u8..to as u8).collect::<Vec<_>>());
            }
        }
    }

    /// Proves: large parts stay, small ones side by side become one, and where all are small, the segment becomes one object.
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
}
