//! The daemon that has a protected volume attached: it exports the volume as a disk, stores its anchor,
//! scrubs and repairs it.

pub mod anchor;
pub mod asking;
pub mod export;
pub mod export_report;
pub mod folders;
pub mod media;
pub mod memory;
mod nbd;
pub mod opening;
pub mod repair;
pub mod requests;
pub mod scrub;
pub mod secret;
mod served;
pub mod service;
pub mod status;
pub mod tpm;
#[cfg_attr(not(feature = "ublk"), path = "without_ublk.rs")]
mod ublk;
mod watchdog;
