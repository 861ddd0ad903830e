//! Block devices of this machine that are served from here: Linux' ublk, `/dev/ublkbN`.
//!
//! ```text
//! kernel ─ commands of a ring ─ the queue's thread: writes at once, all else to workers ─ commits ─ kernel
//!                data: read and written at places of /dev/ublkcN (UBLK_F_USER_COPY)
//! ```
//!
//! The kernel is given no memory address of ours: data goes through reads and writes of a file. So the unsafe
//! code, all of it in [`kernel`], is only what a ring and one mapping need.
//!
//! What it guarantees: a request is answered once, with all of its data or an error. The device is removed
//! when the process dies or the [`Device`] is dropped, and not before running requests are done.
#![deny(unsafe_code)]

mod control;
mod device;
mod kernel;
mod queue;

pub use device::{Device, UblkError, is_available};
