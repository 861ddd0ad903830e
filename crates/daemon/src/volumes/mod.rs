//! The daemon that has a protected volume attached: it offers the volume as a disk, keeps its anchor, scrubs and repairs it.

pub mod anchor;
mod devices;
pub mod export;
pub mod folders;
pub mod media;
pub mod memory;
pub mod opening;
pub mod repair;
pub mod requests;
pub mod scrub;
pub mod secret;
mod served;
pub mod service;
pub mod status;
pub mod tpm;
mod watchdog;
