//! Ranges of blocks, and the disk they are on.

use borsh::{BorshDeserialize, BorshSerialize};

/// Fewest blocks of a policy table: its header, labels and a page.
pub const TABLE_BLOCKS_MIN: u64 = 3;

/// Blocks of a disk: from `first` to before `end`. Never empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockRange {
    first: u64,
    end: u64,
}

impl BlockRange {
    /// `count` blocks from `first`. `None` if there are none, or they overflow.
    pub fn new(first: u64, count: u64) -> Option<BlockRange> {
        let end = first.checked_add(count)?;
        (count > 0).then_some(BlockRange { first, end })
    }

    /// The first block.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The block after the last.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The number of blocks.
    pub fn count(&self) -> u64 {
        self.end - self.first
    }

    /// Whether the two have a block in common.
    pub fn overlaps(&self, other: &BlockRange) -> bool {
        self.first < other.end && other.first < self.end
    }
}

/// A disk, and where its policy table is.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Disk {
    /// The number of the disk on this machine: part of block ids in restrictions, not stored.
    #[borsh(skip)]
    pub number: u16,
    /// Drawn when it was first formatted; a table of another disk is refused.
    pub identity: [u8; 16],
    /// Number of blocks.
    pub blocks: u64,
    /// The table's first block, which is fixed. It is beyond the last block if the table is stored elsewhere.
    pub table_first: u64,
    /// Number of blocks that the table may use.
    pub table_blocks: u64,
}

impl Disk {
    /// The table's blocks. `None` if they are too few, or overflow.
    pub fn table(&self) -> Option<BlockRange> {
        BlockRange::new(self.table_first, self.table_blocks).filter(|range| range.count() >= TABLE_BLOCKS_MIN)
    }
}
