//! The append-only log of segments, and the storage trait under it.
//!
//! One log serves everything that must be durable: the block store (its segments *are* the block storage),
//! the consistency server's ordering records and a client's state. Appends are buffered; [`Log::sync`] is a
//! group commit in which any number of threads share one `fdatasync`.
//!
//! Invariants:
//! - A record that [`Log::sync`] acknowledged is never lost or altered unnoticed. Every frame has keyed
//!   tags over its position, its head and its body, so a torn, misplaced or stale frame is never taken for a
//!   record.
//! - Segment numbers only grow, every opening starts a new segment, and each segment has its own random
//!   salt. So a discarded tail can never reappear where a position is used again, and bytes that a client
//!   chose can never pass for a frame.
//! - Recovery cuts off only what was never acknowledged. A bad frame before a position that any later frame
//!   or the caller's anchor calls durable is damage; it is reported, not cut off.
//! - A failed write or sync is fatal: the log is poisoned and every later call fails, because the kernel
//!   may have dropped the dirty pages and would report the next sync as successful.
#![deny(unsafe_code)]

pub mod device;
mod error;
mod fail_stop;
mod file_lock;
mod frame;
mod journal;
mod local;
mod outline;
pub mod ring;
mod scan;
mod segments;
pub mod simulated;
pub mod simulated_device;
mod storage;
mod write_out;

pub use error::LogError;
pub use fail_stop::FailStop;
pub use file_lock::{FileLock, is_ending};
pub use frame::{
    BodyTag, HEAD_BYTES_MAX, Position, RECORD_BYTES_MAX, Record, RecordHead, SEGMENT_HEADER_BYTES,
    segment_name, segment_number, stored_length,
};
pub use journal::{Log, LogConfig, Recovery, ScanDepth};
pub use local::LocalStorage;
pub use outline::outline_of;
pub use scan::{Damage, Scan, ScanItem};
pub use storage::{Storage, StorageFile, StorageLock, SyncSite, is_away, is_full};
