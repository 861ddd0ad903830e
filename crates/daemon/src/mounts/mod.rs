//! The daemon that serves the mounts of one key in one file system.
//!
//! One process serves all of them, because only one may sign with the key. Commands ask that process for
//! further mounts ([`requests`]); it ends with its last mount.

pub mod asking;
pub mod conflicts;
mod ending;
mod guard;
mod notify;
mod owners;
pub mod past;
pub mod pinning;
mod reclaim;
pub mod requests;
pub mod rules;
pub mod service;
pub mod settings;
pub mod status;
mod write_back;
