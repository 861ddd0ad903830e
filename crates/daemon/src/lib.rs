//! The processes that run in the background on a client's machine: the daemons that serve the mounts of a
//! key, a mounted release, a protected volume and an automounted directory. This crate also starts them, and
//! has the control socket by which commands ask them. Commands parse arguments and print results; the work
//! itself is done here.
#![forbid(unsafe_code)]

pub mod automount;
pub mod background;
pub mod cache;
pub mod control;
pub mod keys;
pub mod limits;
pub mod logging;
pub mod membership;
pub mod mounts;
pub mod paths;
pub mod releases;
pub mod revoked;
pub mod signals;
pub mod time;
pub mod volumes;
pub mod watch;
