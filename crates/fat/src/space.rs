//! Free clusters: found by reading the table in groups when needed, one bit a cluster.
//!
//! FSInfo is written for other systems and never trusted: a cluster is allocated only if the table itself was
//! read and says that it is free.

use crate::draft::Draft;
use crate::layout::{FIRST_CLUSTER, Layout, Run};
use crate::table::Link;
use crate::{FatError, Result};

/// Clusters of which the table is read at once.
const GROUP: u32 = 4096;
const WORDS: usize = (GROUP / 64) as usize;
/// A new piece of a file should be at least this long before shorter ones are used.
const RUN_WISHED: u32 = 64;
/// Most runs of clusters chosen at once.
const RUNS_MAX: usize = 256;

/// Where new clusters should be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Placement {
    /// Anywhere.
    Anywhere,
    /// After a cluster, where possible.
    Cluster(u32),
    /// After a file's last cluster if possible, and else where the file can continue to grow.
    EndOfFile(u32),
}

/// The free clusters, as far as known.
pub(crate) struct Space {
    clusters: u32,
    /// Bits of the groups that were read: set is free.
    groups: Vec<Option<Box<[u64; WORDS]>>>,
    unread: usize,
    free: u64,
    /// The cluster from which the next search begins.
    hint: u32,
}

impl Space {
    pub(crate) fn new(layout: &Layout) -> Space {
        let groups = layout.clusters.div_ceil(GROUP) as usize;
        Space { clusters: layout.clusters, groups: vec![None; groups], unread: groups, free: 0, hint: 0 }
    }

    /// Reads a group of the table, unless it was.
    fn read(&mut self, draft: &Draft, group: usize) -> Result<()> {
        if self.groups[group].is_some() {
            return Ok(());
        }
        let mut bits = Box::new([0u64; WORDS]);
        let first = group as u32 * GROUP;
        for index in first..self.clusters.min(first + GROUP) {
            if draft.link(index + FIRST_CLUSTER)? == Link::Free {
                bits[(index % GROUP / 64) as usize] |= 1 << (index % 64);
                self.free += 1;
            }
        }
        self.groups[group] = Some(bits);
        self.unread -= 1;
        Ok(())
    }

    fn is_free(&mut self, draft: &Draft, index: u32) -> Result<bool> {
        let group = (index / GROUP) as usize;
        self.read(draft, group)?;
        let bits = self.groups[group].as_ref().expect("it was just read");
        Ok(bits[(index % GROUP / 64) as usize] >> (index % 64) & 1 == 1)
    }

    /// Whether a cluster can be allocated: free when it was read, and still free in the table with the
    /// draft's changes.
    fn available(&mut self, draft: &Draft, index: u32) -> Result<bool> {
        Ok(self.is_free(draft, index)? && draft.link(index + FIRST_CLUSTER)? == Link::Free)
    }

    /// The number of free clusters.
    pub(crate) fn free(&mut self, draft: &Draft) -> Result<u64> {
        for group in 0..self.groups.len() {
            self.read(draft, group)?;
        }
        Ok(self.free)
    }

    /// Free clusters, if the whole table was read.
    pub(crate) fn free_known(&self) -> Option<u64> {
        (self.unread == 0).then_some(self.free)
    }

    /// Checks that so many clusters are free.
    pub(crate) fn require(&mut self, draft: &Draft, needed: u64) -> Result<()> {
        for group in 0..self.groups.len() {
            if self.free >= needed {
                return Ok(());
            }
            self.read(draft, group)?;
        }
        match self.free >= needed {
            true => Ok(()),
            false => Err(FatError::Full { needed, free: self.free }),
        }
    }

    /// Marks clusters as used or free in the groups that were read.
    pub(crate) fn mark(&mut self, run: Run, free: bool) {
        for index in run.start - FIRST_CLUSTER..run.start - FIRST_CLUSTER + run.count {
            let Some(bits) = &mut self.groups[(index / GROUP) as usize] else { continue };
            let (word, bit) = (&mut bits[(index % GROUP / 64) as usize], 1u64 << (index % 64));
            match (free, *word & bit != 0) {
                (true, false) => self.free += 1,
                (false, true) => self.free -= 1,
                _ => continue,
            }
            *word ^= bit;
        }
    }

    /// The best position of a new piece: the first of enough free clusters in a row after the hint, or else
    /// the first free one.
    fn new_piece(&mut self, draft: &Draft, wished: u32, taken: &[Run]) -> Result<Option<u32>> {
        let (mut any, mut row) = (None, 0);
        let mut step = 0;
        while step < self.clusters {
            if step > 4 * GROUP && any.is_some() {
                break; // Far enough for a preference.
            }
            let index = (self.hint + step) % self.clusters;
            if index == 0 {
                row = 0;
            }
            step += 1;
            if !self.available(draft, index)? || contains(taken, index + FIRST_CLUSTER) {
                row = 0;
                // Skips sixty-four used clusters at a time.
                let word = self.groups[(index / GROUP) as usize]
                    .as_ref()
                    .map(|bits| bits[(index % GROUP / 64) as usize]);
                if word == Some(0) {
                    step += (63 - index % 64).min(self.clusters - 1 - index);
                }
                continue;
            }
            any.get_or_insert(index);
            row += 1;
            if row == wished {
                return Ok(Some(index + 1 - wished));
            }
        }
        Ok(any)
    }

    /// Chooses up to `wanted` free clusters, near and after `near` if possible. Fewer are returned if not
    /// enough are free (so call `require` first), or if they are in too many pieces (so ask again). Nothing
    /// is marked: the effects of a transaction do that.
    ///
    /// A file that cannot grow where it is, because of another, gets a new piece with space behind it, so
    /// that files that grow alternately do not interleave cluster by cluster.
    pub(crate) fn choose(&mut self, draft: &Draft, near: Placement, wanted: u32) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut left = wanted;
        let (near, room) = match near {
            Placement::Anywhere => (None, 0),
            Placement::Cluster(cluster) => (Some(cluster), 0),
            Placement::EndOfFile(cluster) => (Some(cluster), RUN_WISHED),
        };
        let mut next = near.map(|cluster| cluster + 1 - FIRST_CLUSTER).filter(|index| *index < self.clusters);
        while left > 0 {
            let (mut room_left, mut next_piece) = (0, false);
            let start = match next.take() {
                Some(index) if self.available(draft, index)? && !contains(&runs, index + FIRST_CLUSTER) => {
                    index
                }
                _ => {
                    (room_left, next_piece) = (room, true);
                    match self.new_piece(draft, left.min(RUN_WISHED).max(room), &runs)? {
                        Some(index) => index,
                        None => break,
                    }
                }
            };
            let mut count = 0;
            while count < left
                && start + count < self.clusters
                && self.available(draft, start + count)?
                && !contains(&runs, start + count + FIRST_CLUSTER)
            {
                count += 1;
            }
            left -= count;
            // A piece that continues another one does not move the hint, unless it grew over it.
            if next_piece || self.hint.wrapping_sub(start) < count {
                self.hint = (start + count.max(room_left)) % self.clusters;
            }
            runs.push(Run { start: start + FIRST_CLUSTER, count });
            if runs.len() == RUNS_MAX {
                break;
            }
        }
        Ok(runs)
    }
}

fn contains(runs: &[Run], cluster: u32) -> bool {
    runs.iter().any(|run| cluster >= run.start && cluster - run.start < run.count)
}
