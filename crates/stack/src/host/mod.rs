//! The host: the process that has the volume, the memory, and the names of all other processes. It does the
//! work of the paper's kernel, on top of Linux: it starts the components, states who they are by their
//! manifests, and serves as the monitor.

mod adopt;
mod aliases;
mod loading;
mod memory;
mod mounts;
mod people;
mod plan;
mod roles;
mod service;
mod start;
mod tending;
mod variant;

pub use adopt::adopt;
pub use loading::{DiskFormat, OwnerOf, Source, Survey, check_partitions, find_partitions, lay_out};
pub use people::{PEOPLE_MAX, People, ProgramGate};
pub(crate) use roles::bus_port;
pub use roles::driver_of;
pub use start::{Configuration, DiskPlan, NewFileSystem, Session, Stack};
pub use variant::{TO_CLIENT, Variant, variant_components};

use holdfast_components::Refusal;
use holdfast_monitor::MonitorError;

/// The page is being transferred; ask again.
pub const BUSY: u32 = 101;
/// The run crosses the edge of an extent.
pub const EDGE: u32 = 102;
/// The page is not in the required state.
pub const STATE: u32 = 103;
/// The reference is outdated; ask for the block again.
pub const OUTDATED: u32 = 104;
/// The block on the disk has changed since it was written.
pub const BAD_BLOCK: u32 = 105;

/// The refusal that the caller gets for an error of the monitor.
fn refusal(error: MonitorError) -> Refusal {
    use holdfast_volume::VolumeError;
    match error {
        MonitorError::Denied(_) => Refusal::NotPermitted,
        MonitorError::Busy(_) => Refusal::Code(BUSY),
        MonitorError::TooLong { .. } => Refusal::Code(EDGE),
        MonitorError::WrongStatus { .. } => Refusal::Code(STATE),
        MonitorError::Outdated(_) | MonitorError::NoRegion(_) | MonitorError::NoPage(_) => {
            Refusal::Code(OUTDATED)
        }
        MonitorError::Volume(VolumeError::BadBlock { .. }) => Refusal::Code(BAD_BLOCK),
        error => Refusal::Failed(error.to_string()),
    }
}

fn encode(configuration: &impl borsh::BorshSerialize) -> Vec<u8> {
    borsh::to_vec(configuration).expect("a vector takes everything")
}
