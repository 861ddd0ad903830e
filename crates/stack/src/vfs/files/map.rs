//! The positions of a file's blocks.

use crate::protocol::Blocks;
use std::collections::BTreeMap;

/// The positions of a file's blocks, as far as they are known.
#[derive(Default, Clone)]
pub(super) struct Map {
    pub(super) block_bytes: u32,
    /// Runs by their offset in the file: the first block, and their number.
    pub(super) runs: BTreeMap<u64, Blocks>,
    /// End of the last read.
    pub(super) read_end: u64,
}

impl Map {
    /// Stores a run, and replaces what was stored of its part of the file.
    pub(super) fn put(&mut self, start: u64, run: Blocks) {
        let end = start + run.count * u64::from(self.block_bytes);
        let old: Vec<u64> = self.runs.range(start..end).map(|(start, _)| *start).collect();
        for start in old {
            self.runs.remove(&start);
        }
        self.runs.insert(start, run);
    }

    /// Stores runs that an FSDriver gave for the bytes from `at` to `end`, and returns where they end. `None`
    /// if they are not runs of those bytes: they come from another process, and must not make this one store,
    /// or compute with, arbitrary values.
    pub(super) fn learn(&mut self, at: u64, end: u64, runs: Vec<(u64, Blocks)>) -> Option<u64> {
        let block = u64::from(self.block_bytes);
        let mut next = at / block * block;
        for (start, run) in runs {
            run.first.checked_add(run.count)?;
            let after = run.count.checked_mul(block)?.checked_add(start)?;
            if start != next
                || run.count == 0
                || start >= end
                || after > end.checked_next_multiple_of(block)?
            {
                return None;
            }
            self.put(start, run);
            next = after;
        }
        Some(next)
    }

    /// The block that contains a byte.
    pub(super) fn block(&self, offset: u64) -> Option<u64> {
        let (start, run) = self.runs.range(..=offset).next_back()?;
        let at = (offset - start) / u64::from(self.block_bytes);
        (at < run.count).then_some(run.first + at)
    }
}

/// The blocks that contain a range of bytes, if all are in the map.
pub(super) fn within(map: &Map, offset: u64, length: u64) -> Option<Vec<(u64, u64)>> {
    if map.block_bytes == 0 {
        return (length == 0).then(Vec::new);
    }
    let block = u64::from(map.block_bytes);
    let starts = (offset / block..(offset + length).div_ceil(block)).map(|at| at * block);
    starts.map(|start| Some((start, map.block(start)?))).collect()
}
