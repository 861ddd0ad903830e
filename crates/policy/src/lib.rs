//! Who owns each block of a disk and who may use it: PolicyMgr's decisions (the Principled Filesystem paper, 4.5),
//! without its I/O.
//!
//! Invariants:
//! - Every block always has exactly one owner and one ACL. The blocks of the table belong to PolicyMgr
//!   implicitly; nobody can change them, or be given them, through it.
//! - Only a requester that speaks for a block's owner can change its ACL or give it away, and nobody gets a
//!   block without accepting it. The administrator can erase a disk by formatting it, and can do nothing
//!   else.
//! - What an owner stored is erased before the next owner can read: the effects of a [`Change`] are in the
//!   order that ensures this, and until they are carried out nothing else is decided.
//! - A request is carried out completely or not at all, also through a crash: all blocks that it rewrites
//!   are one set, which the driver commits atomically through the volume's journal.
//! - A table that does not read back exactly as it was written is refused, with the place and the reason.
//!
//! Trust in storage comes from the volume, which refuses blocks that are not the latest written. The digests
//! here detect blocks that are damaged or misplaced, not forged ones.
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
