//! The file allocation table: one number a cluster, 28 bits of it, in one or two copies.
//!
//! Every number is checked before it is followed, and the directory entry limits every walk, so a loop is
//! found as a chain that is too long. A copy that contradicts another is found before either is overwritten.

use crate::draft::{Draft, Effect};
use crate::layout::{Layout, Run};
use crate::problem::Problem;
use crate::{FatError, Result};

/// Most pieces of a file in memory.
const RUNS_MAX: usize = 1 << 20;
/// The bits of an entry that are used. The others are preserved.
const BITS: u32 = 0x0fff_ffff;
/// The end of a chain, as written.
const END: u32 = 0x0fff_ffff;
/// A cluster that cannot be used.
const BAD: u32 = 0x0fff_fff7;

/// The entry of a cluster in the FAT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    Free,
    Next(u32),
    End,
    Bad,
    /// A number that is none of these.
    Absurd(u32),
}

impl Link {
    pub(crate) fn of(raw: u32, layout: &Layout) -> Link {
        match raw & BITS {
            0 => Link::Free,
            BAD => Link::Bad,
            end if end > BAD => Link::End,
            next if layout.is_cluster(next) => Link::Next(next),
            absurd => Link::Absurd(absurd),
        }
    }

    fn bits(self) -> u32 {
        match self {
            Link::Free => 0,
            Link::Next(next) | Link::Absurd(next) => next,
            Link::End => END,
            Link::Bad => BAD,
        }
    }
}

/// The length that a chain must have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Length {
    /// A file's chain: exactly so many clusters.
    Exactly(u64),
    /// A directory's: its end says how long it is.
    Directory,
}

/// A chain that cannot be followed, or a block that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChainError {
    Problem(Problem),
    Fragmented,
    Error(FatError),
}

impl From<Problem> for ChainError {
    fn from(problem: Problem) -> ChainError {
        ChainError::Problem(problem)
    }
}

impl From<FatError> for ChainError {
    fn from(error: FatError) -> ChainError {
        ChainError::Error(error)
    }
}

impl ChainError {
    /// The problem as an error about a file or directory.
    pub(crate) fn at(self, place: impl FnOnce() -> String) -> FatError {
        match self {
            ChainError::Problem(problem) => FatError::Unsound { place: place(), problem },
            ChainError::Fragmented => FatError::TooFragmented(place()),
            ChainError::Error(error) => error,
        }
    }
}

impl Draft<'_> {
    /// The entry of a cluster in one copy, with the bits that do not count.
    pub(crate) fn raw_link(&self, copy: u8, cluster: u32) -> Result<u32> {
        let (block, at) = self.layout.entry_place(copy, cluster);
        self.look(block, |bytes| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
    }

    /// Reads the entry of a cluster.
    pub(crate) fn link(&self, cluster: u32) -> Result<Link> {
        Ok(Link::of(self.raw_link(self.layout.read_copy(), cluster)?, self.layout))
    }

    /// Sets a cluster's entry in every copy that is kept current. `before` is what the table must have had.
    pub(crate) fn set_link(&mut self, cluster: u32, before: Link, link: Link) -> Result<()> {
        let place = || "the file allocation table".to_string();
        for copy in self.layout.written_copies() {
            let raw = self.raw_link(copy, cluster)?;
            let same = match before {
                // Ends are written in eight ways.
                Link::End => Link::of(raw, self.layout) == Link::End,
                _ => raw & BITS == before.bits(),
            };
            if !same {
                return Err(FatError::Unsound { place: place(), problem: Problem::CopiesDiffer(cluster) });
            }
            let (block, at) = self.layout.entry_place(copy, cluster);
            let raw = raw & !BITS | link.bits();
            self.edit(block)?[at..at + 4].copy_from_slice(&raw.to_le_bytes());
        }
        Ok(())
    }

    /// Follows a chain to its end and returns its runs. `pass` is called for each cluster and can end the
    /// walk with a problem, so that many chains that join cost no more than one.
    pub(crate) fn chain(
        &self,
        first: u32,
        length: Length,
        mut pass: impl FnMut(u32) -> std::result::Result<(), ChainError>,
    ) -> std::result::Result<Vec<Run>, ChainError> {
        let needed = match length {
            Length::Exactly(clusters) => clusters,
            Length::Directory => u64::from(self.layout.directory_clusters_max()),
        };
        let mut runs: Vec<Run> = Vec::new();
        if length == Length::Exactly(0) && first == 0 {
            return Ok(runs);
        }
        let mut after = 0;
        let mut link = Link::Next(first);
        if !self.layout.is_cluster(first) {
            if first == 0 && length == Length::Directory {
                return Err(Problem::DirectoryWithoutCluster.into());
            }
            if first == 0 {
                return Err(Problem::ChainTooShort { clusters: 0, needed }.into());
            }
            link = Link::Absurd(first);
        }
        let mut clusters = 0;
        loop {
            match link {
                Link::Next(cluster) => {
                    clusters += 1;
                    if clusters > needed {
                        return Err(match length {
                            Length::Exactly(needed) => Problem::ChainTooLong { needed },
                            Length::Directory => Problem::DirectoryTooLong,
                        }
                        .into());
                    }
                    pass(cluster)?;
                    append(&mut runs, Run { start: cluster, count: 1 });
                    if runs.len() > RUNS_MAX {
                        return Err(ChainError::Fragmented);
                    }
                    after = cluster;
                    link = self.link(cluster)?;
                }
                Link::End => break,
                Link::Free => return Err(Problem::FreeInChain(after).into()),
                Link::Bad => return Err(Problem::BadInChain(after).into()),
                Link::Absurd(next) => return Err(Problem::OutOfRange { after, next }.into()),
            }
        }
        match length {
            Length::Exactly(needed) if clusters < needed => {
                Err(Problem::ChainTooShort { clusters, needed }.into())
            }
            _ => Ok(runs),
        }
    }
}

/// Adds a run to others, to the last of them if it follows it.
pub(crate) fn append(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.start + last.count == run.start => last.count += run.count,
        _ => runs.push(run),
    }
}

/// Runs from a place on, counted in clusters.
pub(crate) fn runs_from(runs: &[Run], index: u64) -> Vec<Run> {
    let mut left = index;
    let mut rest = Vec::new();
    for run in runs {
        let skip = left.min(u64::from(run.count)) as u32;
        left -= u64::from(skip);
        if skip < run.count {
            rest.push(Run { start: run.start + skip, count: run.count - skip });
        }
    }
    rest
}

/// Runs up to a place, counted in clusters.
pub(crate) fn runs_to(runs: &[Run], index: u64) -> Vec<Run> {
    let mut left = index;
    let mut front = Vec::new();
    for run in runs {
        let count = left.min(u64::from(run.count)) as u32;
        left -= u64::from(count);
        if count > 0 {
            front.push(Run { start: run.start, count });
        }
    }
    front
}

/// The cluster at a place of a chain, counted in clusters, and how many follow it in a row.
pub(crate) fn cluster_at(runs: &[Run], index: u64) -> Option<Run> {
    let mut left = index;
    for run in runs {
        let count = u64::from(run.count);
        if left < count {
            let skip = left as u32;
            return Some(Run { start: run.start + skip, count: run.count - skip });
        }
        left -= count;
    }
    None
}

/// How many clusters runs have together.
pub(crate) fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| u64::from(run.count)).sum()
}

/// The last cluster of runs.
pub(crate) fn last(runs: &[Run]) -> Option<u32> {
    runs.last().map(|run| run.start + run.count - 1)
}

/// Gives clusters in a row to a chain that ends at `after`, or makes them a new one; the last of them ends it.
pub(crate) fn link_run(draft: &mut Draft, after: Option<u32>, run: Run) -> Result<()> {
    let last = run.start + run.count - 1;
    for cluster in run.start..last {
        draft.set_link(cluster, Link::Free, Link::Next(cluster + 1))?;
    }
    draft.set_link(last, Link::Free, Link::End)?;
    if let Some(after) = after {
        draft.set_link(after, Link::End, Link::Next(run.start))?;
    }
    draft.effects.push(Effect::Used(run));
    Ok(())
}
