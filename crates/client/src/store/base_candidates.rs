//! Finds the older versions that a version of a file resembles: one, or two if one does not cover all of it.
//!
//! A file that was assembled from another one (a bundle built anew, a part moved elsewhere) resembles that
//! one in some places and its own older version in others; so both are used.

use super::fetch::Shared;
use super::piece_matches::{Piece, PieceMatches};
use super::versions::Version;
use std::collections::HashSet;

/// A new version of a file compared with earlier ones.
#[derive(Debug, Default)]
pub(crate) struct BaseCandidates {
    /// Matches with older versions, the most likely version first.
    parts: Vec<VersionMatch>,
}

#[derive(Debug)]
struct VersionMatch {
    chunks: PieceMatches,
    nodes: PieceMatches,
}

impl BaseCandidates {
    /// Compares `new` with each of `olds`, the most likely first.
    pub(super) fn of<'a>(olds: impl IntoIterator<Item = &'a Version>, new: &Version) -> BaseCandidates {
        let part = |old: &Version| VersionMatch {
            chunks: PieceMatches::of(&old.chunks, &new.chunks),
            nodes: PieceMatches::of(&old.nodes, &new.nodes),
        };
        BaseCandidates { parts: olds.into_iter().map(part).collect() }
    }

    /// Bases for `blocks`: at most `bytes_max` bytes, the most likely last.
    pub(super) fn bases(&self, blocks: &[Piece], bytes_max: usize) -> Vec<Piece> {
        let mut bytes = 0;
        let mut chosen: Vec<Vec<Piece>> = Vec::new();
        for part in &self.parts {
            let mut of_part = part.nodes.bases(blocks);
            of_part.extend(part.chunks.bases(blocks));
            of_part.retain(|(_, length)| {
                bytes += *length as usize;
                bytes <= bytes_max
            });
            chosen.push(of_part);
        }
        chosen.into_iter().rev().flatten().collect()
    }

    /// Whether there are no older nodes to copy from.
    pub(super) fn lacks_nodes(&self) -> bool {
        self.parts.iter().all(|part| part.nodes.is_empty())
    }

    /// Whether there are no older chunks to copy from.
    pub(super) fn lacks_chunks(&self) -> bool {
        self.parts.iter().all(|part| part.chunks.is_empty())
    }
}

impl Shared {
    /// Versions that `made` resembles, the most likely first. `before`: the version that it replaces, or the
    /// last one seen under its name. If `made` has any of its chunks, it comes first; then the file that has
    /// the most of the other chunks. If not, it comes second, after the file that has the most chunks of
    /// `made`. Without `before`, the second is the file that has the most of the chunks that the first lacks.
    pub(super) fn earlier_versions(&self, before: Version, made: &Version) -> Vec<Version> {
        let mut index = self.index.lock();
        let mut sharing = |among: &[&Version]| {
            let told: HashSet<_> =
                among.iter().flat_map(|version| &version.chunks).map(|(address, _)| address).collect();
            let rest = made.chunks.iter().filter(|(address, _)| !told.contains(address)).copied();
            let found = index.sharing(&rest.collect::<Vec<Piece>>())?;
            Some(Version::from(found)).filter(|found| found.chunks != made.chunks)
        };
        let kept: HashSet<_> = before.chunks.iter().map(|(address, _)| address).collect();
        if before.chunks.is_empty() {
            let Some(first) = sharing(&[]) else { return Vec::new() };
            let second = sharing(&[&first]);
            return std::iter::once(first).chain(second).collect();
        }
        let other = sharing(&[&before]);
        match made.chunks.iter().any(|(address, _)| kept.contains(address)) {
            true => std::iter::once(before).chain(other).collect(),
            false => other.into_iter().chain([before]).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::Digest;

    fn version(chunks: &[u8]) -> Version {
        let chunks = chunks.iter().map(|number| (Digest([*number; 32]), 8192)).collect();
        Version { root: None, chunks, nodes: Vec::new() }
    }

    fn bases(olds: &[&Version], new: &Version, bytes_max: usize) -> Vec<u8> {
        let candidates = BaseCandidates::of(olds.iter().copied(), new);
        candidates.bases(&new.chunks, bytes_max).iter().map(|(address, _)| address.0[0]).collect()
    }

    /// Proves: of two older versions, both are used, and the more likely one comes last; if there is no room
    /// for both, the more likely one stays.
    #[test]
    fn two_older_versions() {
        let (likely, other, new) = (version(&[1, 2, 3]), version(&[11, 12, 13]), version(&[1, 21, 3]));
        assert_eq!(bases(&[&likely], &new, 1 << 20), [2]);
        let both = bases(&[&likely, &other], &new, 1 << 20);
        assert_eq!(both.last(), Some(&2));
        assert!(both.len() > 1 && both[..both.len() - 1].iter().all(|base| *base > 10), "{both:?}");
        assert_eq!(bases(&[&likely, &other], &new, 8192), [2]);
        assert_eq!(bases(&[], &new, 1 << 20), [0u8; 0]);
    }
}
