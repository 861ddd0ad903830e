//! Kernel requests to the inode API and back, through FUSE.
//!
//! The crate that talks to the kernel (`fuser`, pinned: each of its releases breaks its interface) is used in
//! [`handler`], [`convert`], [`errno`] and [`session`] only, and nothing of it is in the public interface.
//! This crate decides nothing about files: it translates. It alone knows errno.
//!
//! What it guarantees:
//! - A request that waits (for a server that does not answer, for example) keeps no other from being
//!   answered.
//! - An integrity failure is EIO for programs, never "no such file" and never zeroes.
//! - A mount whose process has died can be recognised and removed.
#![forbid(unsafe_code)]

mod answering;
mod attach;
pub mod automount;
mod convert;
pub mod device_file;
mod errno;
pub mod fixed;
mod handler;
mod invalidate;
mod look;
pub mod mountpoint;
mod outstanding;
mod pool;
mod session;

pub use attach::Options;
pub use look::{look_by_thread, run_if_looking};
pub use mountpoint::{MountError, UnmountMode};
pub use session::{Session, mount, mount_automount, mount_disk, mount_fixed, open_session};
