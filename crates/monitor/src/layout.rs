//! Where the blocks of a disk are on its volume. Pure.
//!
//! A block usually has 4,096 bytes, at the position that follows from its number, as in the paper, if the
//! file system allows that. A file system whose clusters are smaller, or begin in the middle of a block of
//! the volume, has an extent of its own, so that no block ever contains data of two owners. Extents do not
//! overlap: two block numbers never refer to the same bytes.

use crate::PAGE_BYTES;

/// Consecutive blocks of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Extent {
    /// Where the extent begins on the volume, in bytes; a multiple of 512.
    pub offset: u64,
    /// Size of each block in bytes: a multiple of 512, at most 4096.
    pub block_bytes: u16,
    /// The number of blocks.
    pub blocks: u64,
}

impl Extent {
    fn bytes(&self) -> Option<u64> {
        self.blocks.checked_mul(self.block_bytes.into())
    }
}

/// Why extents are not a layout of a disk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LayoutError {
    /// The extent is not within the disk, or its blocks have a size that is not allowed.
    #[error("{extent:?} is not a stretch of a disk of {size_bytes} bytes")]
    NotOnDisk {
        /// The extent.
        extent: Extent,
        /// Size of the disk, in bytes.
        size_bytes: u64,
    },
    /// Two extents overlap; they begin at these bytes.
    #[error("the stretches at bytes {0} and {1} overlap")]
    Overlap(u64, u64),
}

/// The extents of a disk. Block numbers run through them in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout(Vec<Extent>);

impl Layout {
    /// Checks that the extents are within a volume of `size_bytes` bytes and do not overlap.
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

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.0.iter().map(|extent| extent.blocks).sum()
    }

    /// The offset of a block in bytes, its length in bytes, and the number of blocks from it to the end of
    /// its extent, itself included.
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
