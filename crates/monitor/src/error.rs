//! Why the monitor refused, or failed.

use crate::{BlockId, PageId, Reference, RegionId, Status};
use holdfast_volume::VolumeError;

/// Why a request was not done. Nothing was changed, unless the medium failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum MonitorError {
    /// The name under which the request was made may not do this.
    #[error("{0} is not permitted to whoever asked")]
    Denied(&'static str),
    /// There is no such region, or no longer.
    #[error("there is no region {0:?}")]
    NoRegion(RegionId),
    /// The page has no block.
    #[error("{0:?} has no block")]
    NoPage(PageId),
    /// The page is another block's now, or nobody's: ask for the block again.
    #[error("{0:?} is outdated; ask for the block again")]
    Outdated(Reference),
    /// The page has a block already.
    #[error("{0:?} has a block already")]
    Assigned(PageId),
    /// The block is in another page.
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
    /// The page is another block's.
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
    /// A transfer of this page is under way.
    #[error("{0:?} is being transferred")]
    Busy(PageId),
    /// The region still has blocks.
    #[error("{0:?} still has blocks")]
    InUse(RegionId),
    /// A region, or a request, of more pages than there may be.
    #[error("{found} pages at once; at most {pages_max}")]
    TooLong {
        /// The number that was asked for.
        found: usize,
        /// The most that are allowed.
        pages_max: usize,
    },
    /// All pages are in use.
    #[error("all {pages_max} pages of the cache are taken; free some first")]
    NoMemory {
        /// The number of all pages.
        pages_max: usize,
    },
    /// Content of the wrong length.
    #[error("{found} bytes for a block of {expected}")]
    WrongLength {
        /// Bytes of the block.
        expected: usize,
        /// Bytes of the request.
        found: usize,
    },
    /// The volume refused the block, or failed.
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
