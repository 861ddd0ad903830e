//! The monitor: the part that the paper's kernel has in the Principled Filesystem (sections 3.2, 3.3 and 4.7).
//!
//! It alone holds the volumes and the memory of the block cache. Everybody else asks, by a channel that says in whose
//! name, and gets what is right for that name: a view of a region, a transfer between a page and its block.
//!
//! | who | may |
//! |---|---|
//! | PolicyMgr | make regions, give them blocks and ACLs, free pages, erase blocks |
//! | the DiskDriver of a bus | transfer between a page and its own block, in the direction that the page's state allows |
//! | who is on a region's ACL | read and change its pages, as the ACL says; reading goes through a view, without asking |
//! | CacheMgr | see what pages have, but not what is in them |
//! | anybody | have what was written made durable |
//!
//! Invariants:
//! - nobody gets a byte of a block but through a region whose ACL has their name;
//! - whoever makes regions is trusted to give them the right ACLs ([`holdfast_policy`] decides), nobody else is;
//! - a page is filled from and written to its own block only, empty pages are not written, filled ones not filled again;
//! - a block is in one page at most;
//! - an ACL that changes takes what it no longer grants from those who have it.
//!
//! [`holdfast_policy`]: https://docs.rs/holdfast-policy
#![forbid(unsafe_code)]

mod error;
mod layout;
mod monitor;
mod regions;

pub use error::MonitorError;
pub use layout::{Extent, Layout, LayoutError};
pub use monitor::{Direction, Disk, Memory, Monitor, Names, PAGE_BYTES, Page, Words, Write, words};
pub use regions::{BlockId, PageId, REGION_PAGES_MAX, Reference, RegionId, Status};
