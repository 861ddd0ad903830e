//! The least-privilege stack: a file system whose parts do not trust each other, over a protected volume (*The
//! Principled Filesystem*, 2012, figure 2).
//!
//! ```text
//! program ── kernel ── VFS (one a session) ── FSDriver (FAT32; one a partition)
//!                        │      │      └──────────┤ metadata, blocks of files
//!                        │      └── PolicyMgr ────┤ owners, ACLs, regions
//!                        │             └── CacheMgr ── DiskDriver (one a bus)
//!                        └───────────── monitor: regions, transfers ── volume ── disk
//! ```
//!
//! Everything but the host is a sandboxed process. The trusted base for the policy is the host's monitor, PolicyMgr, and
//! what decides for them; `docs/stack.md` says what each other part can do if it is an enemy.
#![forbid(unsafe_code)]

mod asking;
mod cache_manager;
mod const_policy;
mod disk_driver;
mod formatter;
mod fs_driver;
mod host;
mod policy_manager;
mod protocol;
mod reader;
mod vfs;
mod views;

pub use host::{Configuration, Place, Session, Stack, TO_CLIENT, Variant, variant_components};
pub use protocol::File;
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
    ("vfs", vfs::main),
];

/// Why a stack, or a part of it, cannot run.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] ComponentError),
    /// Names and proofs.
    #[error(transparent)]
    Access(#[from] holdfast_access::AccessError),
    /// The volume.
    #[error(transparent)]
    Volume(#[from] holdfast_volume::VolumeError),
    /// The file system.
    #[error(transparent)]
    Fat(#[from] holdfast_fat::FatError),
    /// The monitor.
    #[error(transparent)]
    Monitor(#[from] holdfast_monitor::MonitorError),
    /// In words.
    #[error("{0}")]
    Component(String),
}

/// Runs a component's code on its configuration, and says how it ended.
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
