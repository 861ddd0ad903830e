//! Starting the processes of a card.

use super::signed;
use holdfast_access::{Name, Principal};
use holdfast_components::Program;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_stack::{Configuration, DiskPlan, People, Session, Stack, StackError};
use std::time::Duration;

/// How long recovery and formatting may take.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub fn failed(error: StackError) -> Failure {
    match error {
        StackError::Volume(error) => error.into(),
        error => Failure::new(Exit::System, error.to_string()),
    }
}

pub fn user(name: &str) -> Outcome<Principal> {
    let name = Name::new(name).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    Ok(Principal::User(name))
}

pub fn start(
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
