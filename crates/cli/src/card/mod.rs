//! Cards: disks with FAT32 file systems whose blocks have owners, and whose parts do not trust each other
//! (`holdfast volume format`, `adopt`, `mount`, `owner` and `credential`; `holdfast program acl` and `why` on
//! their files). All code that needs the crates `access`, `policy` and `stack` is here; without the feature
//! `card`, `without/card.rs` replaces it.
//!
//! The files that belong to a card and must not be on it are in a directory of their own, its *sidecar*:
//!
//! ```text
//! DIR/key       the volume's key, 0600
//! DIR/log       its log: hashes, and the journal of metadata
//! DIR/policy    the policy table, and in its last block where everything is
//! ```
//!
//! The volume is the card followed by `policy`, so one log covers both: a sidecar of another card, or an
//! older one, fails verification. No code here parses what is on a card; sandboxed processes do
//! (`holdfast_stack::find_partitions`).

mod adopt;
mod bus;
mod credential;
mod failing;
mod format;
mod mount;
mod opened;
mod owned;
mod owned_why;
mod owners;
mod session;
mod sessions;
mod sidecar;
mod signed;
mod starting;
mod whom;

pub use adopt::adopt;
pub use credential::run as credential;
pub use format::format;
pub use mount::mount;
pub use owned::owner;

use crate::output::Format;
use crate::programs::args::AclCommand;
use crate::programs::mounted::MountedFile;
use holdfast_components::Main;
use holdfast_failure::Outcome;
use session::Session as VolumeSession;
use std::path::Path;

/// The components that a mounted card is made of.
pub const COMPONENTS: &[(&str, Main)] = holdfast_stack::COMPONENTS;

/// Lists or changes the ACL of files in a mount, if it is a card's, by asking its session. Returns whether it
/// is a card's.
///
/// # Errors
/// The session refuses it.
pub fn acl(mount: &Path, command: &AclCommand, format: Format) -> Outcome<bool> {
    let Some(session) = VolumeSession::of(mount)? else { return Ok(false) };
    owned::acl(&session, command, format).map(|()| true)
}

/// Explains who may use a file, if it is on a card. Returns whether it is.
///
/// # Errors
/// The session refuses it.
pub fn why(file: &MountedFile, program: Option<&str>, format: Format) -> Outcome<bool> {
    let Some(session) = VolumeSession::of(&file.mount)? else { return Ok(false) };
    owned_why::run(&session, file, program, format).map(|()| true)
}
