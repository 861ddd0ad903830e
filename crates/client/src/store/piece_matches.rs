//! Finds the blocks of an older version that the blocks of a new one resemble: those in the same places.
//!
//! Blocks that both versions have need not be sent. Between two such blocks, new blocks took the place of
//! removed ones; so the removed ones there are the bases for a delta.

use holdfast_crypto::Digest;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A block of a version: its address and its length.
pub(super) type Piece = (Digest, u32);

/// How many bytes before and after its proportional place are also searched for bases of a new block.
const SLACK_BYTES: u64 = 512 << 10;
/// Naming a base costs 32 bytes. So a new block may have this many, and one more for each [`BASE_PER_BYTES`].
const BASES_MIN: usize = 2;
const BASE_PER_BYTES: usize = 4 << 10;

/// Old blocks that new ones have replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PieceMatches {
    /// Blocks that only the old version has, in its order.
    gone: Vec<Piece>,
    /// For each block that only the new version has: the part of `gone` at its place.
    near: HashMap<Digest, NearestMatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NearestMatch {
    range: Range<usize>,
    /// The most likely base.
    middle: usize,
}

impl PieceMatches {
    /// Compares two versions, each in the order of the file.
    pub(super) fn of(old: &[Piece], new: &[Piece]) -> PieceMatches {
        let places: HashMap<&Digest, usize> =
            old.iter().enumerate().map(|(place, (address, _))| (address, place)).collect();
        let kept: HashSet<&Digest> = new.iter().map(|(address, _)| address).collect();
        let gone: Vec<Piece> = old.iter().filter(|(address, _)| !kept.contains(address)).copied().collect();
        // For each block of the old version: how many before it are gone.
        let mut before = Vec::with_capacity(old.len() + 1);
        let mut count = 0;
        before.push(0);
        for (address, _) in old {
            count += usize::from(!kept.contains(address));
            before.push(count);
        }
        let mut near = HashMap::new();
        let (mut at, mut from) = (0, 0);
        while at < new.len() {
            if let Some(place) = places.get(&new[at].0) {
                (from, at) = (place + 1, at + 1);
                continue;
            }
            let end = (at..new.len()).find(|at| places.contains_key(&new[*at].0)).unwrap_or(new.len());
            let until = match new.get(end) {
                Some((address, _)) if places[address] >= from => places[address],
                // The following blocks were moved here from earlier, or there are none.
                _ => old.len(),
            };
            lay(&new[at..end], &gone, before[from]..before[until], &mut near);
            at = end;
        }
        PieceMatches { gone, near }
    }

    /// Bases for `blocks`, in the order of the old version.
    pub(super) fn bases(&self, blocks: &[Piece]) -> Vec<Piece> {
        let mut chosen: Vec<usize> = Vec::new();
        for (address, length) in blocks {
            let Some(NearestMatch { range, middle }) = self.near.get(address) else { continue };
            let most = (BASES_MIN + *length as usize / BASE_PER_BYTES).min(range.len());
            let first = middle.saturating_sub(most / 2).clamp(range.start, range.end - most);
            chosen.extend(first..first + most);
        }
        chosen.sort_unstable();
        chosen.dedup();
        chosen.into_iter().map(|place| self.gone[place]).collect()
    }

    /// Whether there are no bases.
    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty()
    }
}

/// Assigns a run of new blocks to the old ones in its place. The two may differ in length, so this is done in
/// proportion.
fn lay(run: &[Piece], gone: &[Piece], gap: Range<usize>, near: &mut HashMap<Digest, NearestMatch>) {
    let bytes = |pieces: &[Piece]| pieces.iter().map(|(_, length)| u64::from(*length)).sum::<u64>();
    let (new_bytes, old_bytes) = (bytes(run).max(1), bytes(&gone[gap.clone()]));
    let scale = |at: u64| (u128::from(at) * u128::from(old_bytes) / u128::from(new_bytes)) as u64;
    let mut begin = 0;
    let mut first = (gap.start, 0);
    for (address, length) in run {
        let end = begin + u64::from(*length);
        let (low, high) = (scale(begin).saturating_sub(SLACK_BYTES), scale(end) + SLACK_BYTES);
        while first.0 < gap.end && first.1 + u64::from(gone[first.0].1) <= low {
            first = (first.0 + 1, first.1 + u64::from(gone[first.0].1));
        }
        let (mut last, mut at) = first;
        let mut middle = first.0;
        while last < gap.end && at < high {
            if at <= scale(begin + u64::from(*length) / 2) {
                middle = last;
            }
            at += u64::from(gone[last].1);
            last += 1;
        }
        near.insert(*address, NearestMatch { range: first.0..last, middle });
        begin = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(numbers: &[u8], length: u32) -> Vec<Piece> {
        numbers.iter().map(|number| (Digest([*number; 32]), length)).collect()
    }

    fn bases(old: &[u8], new: &[u8], of: &[u8]) -> Vec<u8> {
        let relatives = PieceMatches::of(&pieces(old, 8192), &pieces(new, 8192));
        relatives.bases(&pieces(of, 8192)).iter().map(|(address, _)| address.0[0]).collect()
    }

    /// Proves: a new block is based on the block whose place it took, at both ends and in the middle; blocks
    /// that both versions have are never bases.
    #[test]
    fn what_took_the_place_of_what() {
        assert_eq!(bases(&[1, 2, 3, 4], &[1, 2, 9, 4], &[9]), [3]);
        assert_eq!(bases(&[1, 2, 3, 4], &[9, 2, 3, 4], &[9]), [1]);
        assert_eq!(bases(&[1, 2, 3, 4], &[1, 2, 3, 9], &[9]), [4]);
        assert_eq!(bases(&[1, 2, 3, 4], &[8, 2, 3, 9], &[8, 9]), [1, 4]);
        assert_eq!(bases(&[1, 2, 3], &[1, 2, 3, 9], &[9]), [0u8; 0]);
        assert_eq!(bases(&[], &[1, 2], &[1, 2]), [0u8; 0]);
        assert_eq!(bases(&[1, 2, 3], &[1, 2, 3], &[1]), [0u8; 0]);
        // Blocks that were moved.
        assert_eq!(bases(&[1, 2, 3, 4], &[4, 9, 1], &[9]), [0u8; 0]);
        assert_eq!(bases(&[1, 2, 3, 4], &[3, 9, 1], &[9]), [4]);
    }

    /// Proves: naming bases never costs more than a small part of what is sent, however many blocks are gone.
    #[test]
    fn few_bases_for_few_bytes() {
        let numbers: Vec<u8> = (10..250).collect();
        let relatives = PieceMatches::of(&pieces(&numbers, 8192), &pieces(&[9], 8192));
        assert_eq!(relatives.bases(&pieces(&[9], 8192)).len(), 4);
        assert!(!relatives.is_empty());
    }

    /// Proves: of many bases nearby, those in exactly the same place are named, also near the ends.
    #[test]
    fn the_nearest_of_many() {
        let old: Vec<u8> = (1..=100).collect();
        let new: Vec<u8> = (101..=200).collect();
        let relatives = PieceMatches::of(&pieces(&old, 8192), &pieces(&new, 8192));
        for number in 0..100 {
            let found = relatives.bases(&pieces(&[101 + number], 8192));
            assert!(found.contains(&(Digest([1 + number; 32]), 8192)), "{number}: {found:?}");
            assert_eq!(found.len(), 4);
        }
    }

    /// Proves: if all blocks of a version are new, each is based on those in its place.
    #[test]
    fn in_proportion() {
        let old: Vec<u8> = (1..=100).collect();
        let new: Vec<u8> = (101..=200).collect();
        let relatives = PieceMatches::of(&pieces(&old, 1 << 20), &pieces(&new, 1 << 20));
        for number in 0..100 {
            let found = relatives.bases(&pieces(&[101 + number], 1 << 20));
            assert!(found.contains(&(Digest([1 + number; 32]), 1 << 20)), "{number}");
            assert!(found.len() <= 3, "{found:?}");
        }
    }
}
