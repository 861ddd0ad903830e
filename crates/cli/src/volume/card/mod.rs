//! `holdfast volume format`, `adopt` and `mount`: disks and cards with FAT32 file systems whose parts do not trust each
//! other.
//!
//! What belongs to a card and must not be on it is in a directory beside it, its *sidecar*:
//!
//! ```text
//! DIR/key       the volume's key, 0600
//! DIR/log       its log: hashes, and the journal of metadata
//! DIR/policy    the policy table, and in its last block where everything is
//! ```
//!
//! The volume is the card followed by `policy`, so one log binds them: a sidecar of another card, or an older one, does not
//! verify. Nothing here parses what is on a card: processes that are shut in do (`holdfast_stack::find_partitions`).

mod adopt;
mod bus;
mod format;
mod mount;
mod opened;
mod owners;
mod sidecar;
mod signed;

pub use adopt::adopt;
pub use format::format;
pub use mount::mount;

use crate::exit::{Exit, Failure, Outcome};
use holdfast_access::{Name, Principal};
use holdfast_components::Program;
use holdfast_stack::{Configuration, DiskPlan, People, Session, Stack, StackError};
use std::path::Path;
use std::time::Duration;

/// How long recovery and formatting may take.
const PATIENCE: Duration = Duration::from_secs(600);

fn failed(error: StackError) -> Failure {
    match error {
        StackError::Volume(error) => error.into(),
        error => Failure::new(Exit::System, error.to_string()),
    }
}

fn bad(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}

fn user(name: &str) -> Outcome<Principal> {
    let name = Name::new(name).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    Ok(Principal::User(name))
}

fn start(
    name: String,
    disks: Vec<DiskPlan>,
    sessions: Vec<Session>,
    people: People,
    pages_max: usize,
) -> Outcome<Stack> {
    let program = Program::current().map_err(StackError::from).map_err(failed)?;
    let administrator = user("root")?;
    let digest = signed::own_digest()?;
    let packages = signed::listing(disks.iter().filter_map(|disk| disk.layout.signed_by.as_ref()), &digest)?;
    let configuration =
        Configuration { name, program, digest, packages, disks, administrator, sessions, people, pages_max };
    Stack::start(configuration).map_err(failed)
}
