//! Where on a volume the blocks of a disk are. Pure.
//!
//! A block has 4,096 bytes at its number's place, as in the paper, where file systems allow it. Those whose clusters are
//! smaller, or begin in the middle of a block of the volume, have a stretch of their own, so that no block ever holds
//! what two owners have. Stretches do not overlap: two numbers are never the same bytes.

use crate::PAGE_BYTES;

/// Consecutive blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Extent {
    /// Where it begins on the volume, in bytes; a multiple of 512.
    pub offset: u64,
    /// Bytes of each block: a multiple of 512, at most 4096.
    pub block_bytes: u16,
    /// The number of blocks.
    pub blocks: u64,
}

impl Extent {
    fn bytes(&self) -> Option<u64> {
        self.blocks.checked_mul(self.block_bytes.into())
    }
}

/// Why stretches are no layout of a disk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// It does not lie on the disk, or its blocks have a size that none may have.
    #[error("{extent:?} is not a stretch of a disk of {size_bytes} bytes")]
    NotOnDisk {
        /// The stretch.
        extent: Extent,
        /// Bytes of the disk.
        size_bytes: u64,
    },
    /// Two overlap, which begin at these bytes.
    #[error("the stretches at bytes {0} and {1} overlap")]
    Overlap(u64, u64),
}

/// The stretches of a disk, numbered through in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout(Vec<Extent>);

impl Layout {
    /// Checks that the stretches are on a volume of `size_bytes`, and disjoint.
    ///
    /// # Errors
    /// [`LayoutError`]
    pub fn new(extents: Vec<Extent>, size_bytes: u64) -> Result<Layout, LayoutError> {
        let mut places = Vec::with_capacity(extents.len());
        for extent in &extents {
            let bytes = usize::from(extent.block_bytes);
            let allowed = (512..=PAGE_BYTES).contains(&bytes) && bytes.is_multiple_of(512);
            let end = extent.bytes().and_then(|bytes| extent.offset.checked_add(bytes));
            match end.filter(|end| *end <= size_bytes) {
                Some(end) if allowed && extent.offset.is_multiple_of(512) => {
                    places.push((extent.offset, end))
                }
                _ => return Err(LayoutError::NotOnDisk { extent: *extent, size_bytes }),
            }
        }
        places.sort_unstable();
        match places.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            Some(pair) => Err(LayoutError::Overlap(pair[0].0, pair[1].0)),
            None => Ok(Layout(extents)),
        }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|extent| extent.blocks).sum()
    }

    /// Where a block is, and its length in bytes; and how many blocks follow it in its stretch, itself included.
    pub fn find(&self, number: u64) -> Option<(u64, usize, u64)> {
        let mut first = 0;
        for extent in &self.0 {
            if number < first + extent.blocks {
                let bytes = u64::from(extent.block_bytes);
                let at = number - first;
                return Some((extent.offset + at * bytes, bytes as usize, extent.blocks - at));
            }
            first += extent.blocks;
        }
        None
    }
}
