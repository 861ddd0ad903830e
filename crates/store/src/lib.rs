//! The block store: segments, index, references, garbage collection (SUNDR section 6).
//!
//! Log files *are* the segments: blocks and the consistency server's ordering records are appended to one log
//! and made durable by one group sync. The index (redb) maps ⟨file system, address⟩ to a place in the log. It is
//! a fold over the log, never synced on the path, brought up to date from the last checkpoint after a crash, and
//! rebuilt from the segments when it is lost.
//!
//! Invariants:
//! - Everything that [`LogStore::commit`] acknowledged survives a power loss.
//! - A block is served only to a file system that stored it.
//! - A damaged block is an error that names file and offset, never "absent" and never wrong bytes.
//! - Every change of the index follows from a record in the log, so replaying it any number of times is
//!   harmless.
//! - Nothing reachable, held, pinned, or younger than the collection window is ever dropped, and nothing at
//!   all after a read error.
//!
//! The store relies on its caller for addresses (a server checks them with the file system's digest key
//! before it stores) and for the time, which is an argument everywhere.
#![forbid(unsafe_code)]

mod charges;
mod checkpoint;
mod collect;
mod error;
mod format;
mod headers;
mod holds;
mod index;
mod inventory;
mod mark;
mod ordering;
mod pins;
mod punch;
mod record;
mod relocate;
mod retain;
mod scrub;
mod seal;
mod signed;
mod state;
mod statistics;
mod store;
mod window;

pub use charges::{Allowance, Charge};
pub use collect::{CollectReport, CollectStage};
pub use error::StoreError;
pub use holdfast_crypto::Digest as FileSystemId;
pub use holds::{HOLD_NAME_BYTES_MAX, HOLD_ROOTS_MAX, HOLDS_MAX, Hold, HoldOutcome};
pub use inventory::{IndexedBlock, Pin};
pub use ordering::RecoveredOrdering;
pub use scrub::{BadRecord, ScrubReport};
pub use signed::{SignedBlock, signed_block_bytes};
pub use statistics::Statistics;
pub use store::{BlockHeader, LogStore, RecoveryReport, StoreConfig};
pub use window::DecrefOutcome;
