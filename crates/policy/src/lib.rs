//! Who owns each block of a disk and who may use it: PolicyMgr's decisions (the Principled Filesystem paper, 4.5),
//! without its I/O.
//!
//! Invariants:
//! - every block has exactly one owner and one ACL, always; the blocks that hold the table belong to PolicyMgr
//!   implicitly, and nobody can change or be shown them through it;
//! - only who speaks for a block's owner changes its ACL or gives it away, and nobody is given a block without
//!   accepting it; the administrator can erase a disk by formatting it, and otherwise has no say;
//! - what an owner stored is erased before the next owner can read: the effects of a [`Change`] come in an order
//!   that makes it so, and until they are carried out nothing else is decided;
//! - a request is carried out whole or not at all, a crash included: all blocks it rewrites are one set, which the
//!   driver commits atomically through the journal below;
//! - a table that does not read back exactly as one that was written is refused, with the place and the reason.
//!
//! The trust in storage lies below: the volume refuses blocks that are not the latest written. The digests here
//! catch what is damaged or misplaced, not what is forged with intent.
//!
//! All of it is in the trusted base. The crate is pure: the driver reads, writes, erases and withdraws regions.
#![forbid(unsafe_code)]

mod adopt;
mod error;
mod format;
mod labels;
mod policy;
mod range;
mod table;

pub use adopt::{Owned, adopt};
pub use error::{Damage, Refused};
pub use format::{BLOCK_BYTES, Block, EXTENTS_PER_PAGE_MAX, Image};
pub use labels::Label;
pub use policy::{
    AclChange, Change, DirtyPages, Effect, NOMINATIONS_MAX, NOMINATIONS_PER_OWNER_MAX, Policy, Sizes,
};
pub use range::{BlockRange, Disk, TABLE_BLOCKS_MIN};
pub use table::PAGES_PER_CHANGE_MAX;
