//! Nodes of the log of updates, collected from all sources.
//!
//! A node counts if hashes connect it with the peaks of the log, so nobody can add a wrong one. Where sources
//! disagree about a leaf, several candidates are tried, those with more supporters first. A lying source
//! costs time, and can at worst prevent some nodes from being found.

use crate::log_tree::{Frontier, leaf, parent};
use crate::structure::View;
use holdfast_crypto::Digest;
use std::collections::HashMap;

/// Most candidates for one node that are combined with those for its neighbour.
const CANDIDATES_MAX: usize = 8;

/// Digests that sources give for a node, and how many sources give each.
type Candidates = Vec<(Digest, u32)>;

/// Nodes that some source has given, by level and index.
#[derive(Clone, Debug, Default)]
pub struct KnownNodes {
    levels: Vec<HashMap<u64, Candidates>>,
}

/// Nodes that certainly belong to the log, since hashes lead to each of them from its peaks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nodes {
    nodes: HashMap<(u8, u64), Digest>,
}

impl Nodes {
    /// A node, if it was found.
    pub fn get(&self, level: u8, index: u64) -> Option<Digest> {
        self.nodes.get(&(level, index)).copied()
    }

    /// The right edge of the log at `size` leaves, if all of it was found.
    pub fn frontier_at(&self, size: u64) -> Option<Frontier> {
        let mut first = 0;
        let mut peaks = Vec::new();
        for level in (0..64u8).rev().filter(|level| size >> level & 1 == 1) {
            peaks.push(self.get(level, first >> level)?);
            first += 1 << level;
        }
        Frontier::of(size, peaks)
    }

    /// Number of leaves found.
    pub fn leaves(&self) -> u64 {
        self.nodes.keys().filter(|(level, _)| *level == 0).count() as u64
    }
}

impl KnownNodes {
    /// Adds a candidate for a node of the tree, which is not checked yet.
    pub fn offer(&mut self, level: u8, index: u64, digest: Digest) {
        let level = usize::from(level.min(63));
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, HashMap::new);
        }
        let candidates = self.levels[level].entry(index).or_default();
        match candidates.iter_mut().find(|(known, _)| *known == digest) {
            Some((_, supporters)) => *supporters += 1,
            None => candidates.push((digest, 1)),
        }
    }

    /// Adds the peaks of a log.
    pub fn offer_frontier(&mut self, frontier: &Frontier) {
        let size = frontier.head().size;
        let mut first = 0;
        let levels = (0..64u8).rev().filter(|level| size >> level & 1 == 1);
        for (level, peak) in levels.zip(frontier.peaks()) {
            self.offer(level, first >> level, *peak);
            first += 1 << level;
        }
    }

    /// Adds leaves for the operations in a view; each has its position in its forecast.
    pub fn offer_view(&mut self, view: &View) {
        let slots = view.slots.values().map(|slot| &slot.value.forecast);
        for forecast in slots.chain(view.pending.iter().map(|entry| &entry.forecast)) {
            self.offer(0, forecast.log.size, leaf(forecast.certificate, forecast.digest()));
        }
    }

    /// The nodes that belong to the log with this right edge.
    pub fn of_log(mut self, frontier: &Frontier) -> Nodes {
        let size = frontier.head().size;
        self.make_inner(size);
        let mut found = Nodes::default();
        let mut open = Vec::new();
        let mut first = 0;
        let levels = (0..64u8).rev().filter(|level| size >> level & 1 == 1);
        for (level, peak) in levels.zip(frontier.peaks()) {
            open.push((level, first >> level, *peak));
            first += 1 << level;
        }
        while let Some((level, index, digest)) = open.pop() {
            found.nodes.insert((level, index), digest);
            let Some(below) = level.checked_sub(1) else { continue };
            let none = Vec::new();
            let (left, right) = (2 * index, 2 * index + 1);
            let candidates = |index: u64| {
                self.levels.get(usize::from(below)).and_then(|nodes| nodes.get(&index)).unwrap_or(&none)
            };
            let mut pairs = candidates(left)
                .iter()
                .flat_map(|(a, _)| candidates(right).iter().map(move |(b, _)| (*a, *b)));
            if let Some((a, b)) = pairs.find(|(a, b)| parent(*a, *b) == digest) {
                open.push((below, left, a));
                open.push((below, right, b));
            }
        }
        found
    }

    /// Computes inner nodes of a log of `size` leaves from those below them.
    fn make_inner(&mut self, size: u64) {
        if let Some(leaves) = self.levels.first_mut() {
            leaves.retain(|index, _| *index < size);
        }
        for level in 0..63 {
            if size >> (level + 1) == 0 {
                break;
            }
            if self.levels.len() <= level + 1 {
                self.levels.resize_with(level + 2, HashMap::new);
            }
            let (below, above) = self.levels.split_at_mut(level + 1);
            let below = &mut below[level];
            for candidates in below.values_mut() {
                candidates.sort_by_key(|(_, supporters)| std::cmp::Reverse(*supporters));
            }
            for (index, left) in below.iter().filter(|(index, _)| *index % 2 == 0) {
                let Some(right) = below.get(&(index + 1)) else { continue };
                let node = above[0].entry(index / 2).or_default();
                for (a, by_a) in left.iter().take(CANDIDATES_MAX) {
                    for (b, by_b) in right.iter().take(CANDIDATES_MAX) {
                        let made = parent(*a, *b);
                        if !node.iter().any(|(known, _)| *known == made) {
                            node.push((made, *by_a.min(by_b)));
                        }
                    }
                }
            }
        }
    }
}
