//! The monitor: what the kernel does in the paper's Principled Filesystem (sections 3.2, 3.3 and 4.7).
//!
//! Only the monitor has the volumes and the memory of the block cache. All other processes send requests, by
//! a channel that says in whose name, and get what is right for that name: a view of a region, or a transfer
//! between a page and its block.
//!
//! | who | may |
//! |---|---|
//! | PolicyMgr | make regions, give them blocks and ACLs, free pages, erase blocks |
//! | the DiskDriver of a bus | transfer between a page and its own block, as the page's state allows |
//! | a name on a region's ACL | read and change its pages, as the ACL says; a view needs no further request |
//! | CacheMgr | see the status of pages, but not their contents |
//! | anybody | have written data made durable |
//!
//! Invariants:
//! - A process gets bytes of a block only through a region whose ACL has its name.
//! - The component that makes regions is trusted to give them the right ACLs ([`holdfast_policy`] decides);
//!   no other component is.
//! - A page is filled only from its own block and written only to it. Empty pages are not written, and filled
//!   ones are not filled again.
//! - A block is in at most one page.
//! - When an ACL changes, those who lose a right can no longer use what it gave them.
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
