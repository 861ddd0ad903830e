//! The least-privilege stack: a file system whose parts do not trust each other, over a protected volume
//! (*The Principled Filesystem*, 2012, figure 2).
//!
//! ```text
//! program ── kernel ── VFS (one a session) ── FSDriver (FAT32; one a partition)
//!                        │      │      └──────────┤ metadata, blocks of files
//!                        │      └── PolicyMgr ────┤ owners, ACLs, regions
//!                        │             └── CacheMgr ── DiskDriver (one a bus)
//!                        └───────────── monitor: regions, transfers ── volumes ── disks
//!
//! before: FSLoader (what is on a disk), FSChecker (whose it is, when a disk is adopted), DiskFormatter
//! ```
//!
//! Everything except the host is a sandboxed process. The trusted base for the policy is the host's monitor,
//! PolicyMgr, and the code that decides for them; `docs/internals/stack.md` says what each other part could
//! do if it were hostile.
#![forbid(unsafe_code)]

mod asking;
mod cache_manager;
pub mod card_protocol;
mod const_policy;
mod disk_driver;
mod disk_layout;
mod formatter;
mod fs_checker;
mod fs_driver;
mod fs_loader;
mod host;
mod names;
mod policy_manager;
pub mod protocol;
mod reader;
pub mod session_requests;
mod vfs;
mod views;

pub use disk_layout::{DiskLayout, FoundPartition, Geometry, PARTITIONS_MAX, Partition};
pub use formatter::Configuration as FormatterConfiguration;
pub use fs_driver::Configuration as DriverConfiguration;
pub use fs_loader::FormatRequest;
pub use host::{
    Configuration, DiskFormat, DiskPlan, NewFileSystem, OwnerOf, PEOPLE_MAX, People, ProgramGate, Session,
    Source, Stack, Survey, TO_CLIENT, Variant, adopt, check_partitions, driver_of, find_partitions, lay_out,
    variant_components,
};
pub use vfs::Client;
pub use views::Views;

use holdfast_components::{ComponentError, Context, Main};
use std::process::ExitCode;

/// The components, for [`holdfast_components::run_if_component`].
pub const COMPONENTS: &[(&str, Main)] = &[
    ("policy-manager", policy_manager::main),
    ("cache-manager", cache_manager::main),
    ("disk-driver", disk_driver::main),
    ("disk-formatter", formatter::main),
    ("fs-driver", fs_driver::main),
    ("fs-loader", fs_loader::main),
    ("fs-checker", fs_checker::main),
    ("vfs", vfs::main),
];

/// Why a stack, or a part of it, cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The component runtime failed.
    #[error(transparent)]
    Runtime(#[from] ComponentError),
    /// A name or a proof was refused.
    #[error(transparent)]
    Access(#[from] holdfast_access::AccessError),
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] holdfast_volume::VolumeError),
    /// The file system failed.
    #[error(transparent)]
    Fat(#[from] holdfast_fat::FatError),
    /// The monitor refused or failed.
    #[error(transparent)]
    Monitor(#[from] holdfast_monitor::MonitorError),
    /// The policy refused.
    #[error(transparent)]
    Policy(#[from] holdfast_policy::Refused),
    /// The caller asked to stop.
    #[error("it was stopped")]
    Interrupted,
    /// A component failed, in words.
    #[error("{0}")]
    Component(String),
}

/// Runs a component's code on its configuration; returns how it ended.
fn component<C: borsh::BorshDeserialize, T>(
    context: &Context,
    run: impl FnOnce(C) -> Result<T, StackError>,
) -> ExitCode {
    let configuration = borsh::from_slice(&context.configuration);
    let configuration =
        configuration.map_err(|_| StackError::Component("its configuration is not one".to_owned()));
    match configuration.and_then(run) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
