//! Why the monitor refused, or failed.

use crate::{BlockId, PageId, Reference, RegionId, Status};
use holdfast_volume::VolumeError;

/// Why a request was refused or failed. Nothing was changed, unless the medium failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum MonitorError {
    /// The name under which the request was made may not do this.
    #[error("{0} is not permitted to whoever asked")]
    Denied(&'static str),
    /// There is no such region, or it was removed.
    #[error("there is no region {0:?}")]
    NoRegion(RegionId),
    /// The page has no block.
    #[error("{0:?} has no block")]
    NoPage(PageId),
    /// The page caches another block now, or none: ask for the block again.
    #[error("{0:?} is outdated; ask for the block again")]
    Outdated(Reference),
    /// The page has a block already.
    #[error("{0:?} has a block already")]
    Assigned(PageId),
    /// The block is cached in another page.
    #[error("{block:?} is cached in {page:?}")]
    Cached {
        /// The block.
        block: BlockId,
        /// The page that caches it.
        page: PageId,
    },
    /// There is no such block.
    #[error("{0:?} is on no disk of this monitor")]
    NoBlock(BlockId),
    /// The page caches another block.
    #[error("{page:?} is for {expected:?}, not for {found:?}")]
    WrongBlock {
        /// The page.
        page: PageId,
        /// The block that was expected in it.
        expected: BlockId,
        /// The block that the request takes it for.
        found: BlockId,
    },
    /// The page's state does not allow this.
    #[error("{page:?} is {found:?}, where {expected:?} is needed")]
    WrongStatus {
        /// The page.
        page: PageId,
        /// The status that is needed.
        expected: Status,
        /// The status of the page.
        found: Status,
    },
    /// The page is being transferred.
    #[error("{0:?} is being transferred")]
    Busy(PageId),
    /// The region still has blocks.
    #[error("{0:?} still has blocks")]
    InUse(RegionId),
    /// The region, or the request, has too many pages.
    #[error("{found} pages at once; at most {pages_max}")]
    TooLong {
        /// The requested number.
        found: usize,
        /// The largest allowed number.
        pages_max: usize,
    },
    /// All pages are in use.
    #[error("all {pages_max} pages of the cache are taken; free some first")]
    NoMemory {
        /// The size of the cache, in pages.
        pages_max: usize,
    },
    /// The content has the wrong length.
    #[error("{found} bytes for a block of {expected}")]
    WrongLength {
        /// Length of the block, in bytes.
        expected: usize,
        /// Length of the content in the request, in bytes.
        found: usize,
    },
    /// The volume refused to read or write the block, or failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The cache's memory failed.
    #[error("the memory of {region:?}: {error}")]
    Memory {
        /// The region.
        region: RegionId,
        /// What the system reported.
        error: String,
    },
}
