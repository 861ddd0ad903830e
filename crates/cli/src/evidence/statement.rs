//! Statements for others: what this machine has accepted, with blocks from its cache.

use super::pieces::kept;
use crate::args::StateSelector;
use crate::key_user::until_free;
use crate::output::Format;
use crate::serving::processes;
use crate::which::states;
use holdfast_client::evidence::{self, EvidenceFile};
use holdfast_client::state::{StateError, StateLog};
use holdfast_client::statement::{CacheOnly, Sources, Statement};
use holdfast_content::BlockSource;
use holdfast_crypto::Digest;
use holdfast_daemon::control::{Client, Encoded, Request};
use holdfast_daemon::mounts::requests::{FetchFloor, FetchFloorNow, MountRequest};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_protocol::floor::Floor;
use holdfast_protocol::signer::Signer;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// How often reading the state is retried while another process uses it.
const ATTEMPTS: usize = 150;

/// The notice about the content of a statement, for the one who gives it away.
const NOTICE: &str = "It holds names, attributes and signatures, and the content of files small enough to lie in their \
                      inodes; no key. Whoever it is given to can read that.";

/// The result as it is printed.
#[derive(Serialize)]
struct Written<'a> {
    file: &'a Path,
    file_system: String,
    blocks: usize,
    is_whole: bool,
}

/// `holdfast evidence statement`
pub fn run(which: &str, key: Option<&Path>, to: &Path, directories: &Directories, format: Format) -> Outcome {
    let mut statement = of(which, key, directories)?;
    fill(&mut statement, directories)?;
    let words = "What this device was shown, written down for comparison with what others were shown.";
    write(statement.into_evidence(words.to_owned()), to, format)
}

/// What this machine has accepted of a file system: from the process that serves it (`which` is a mount or an
/// address), or from the state (`which` is an address, with `key`). It contains no blocks except those of the
/// membership.
pub fn of(which: &str, key: Option<&Path>, directories: &Directories) -> Outcome<Statement> {
    stated(which, key, directories, &FetchFloor)
}

/// What this machine has accepted at this moment, without waiting for operations under way, because the
/// server may be lost.
pub fn accepted(which: &str, key: Option<&Path>, directories: &Directories) -> Outcome<Statement> {
    stated(which, key, directories, &FetchFloorNow)
}

fn stated(
    which: &str,
    key: Option<&Path>,
    directories: &Directories,
    request: &impl Request<Any = MountRequest, Reply = Encoded<Floor>>,
) -> Outcome<Statement> {
    let floor = match key {
        Some(key) => {
            let which = StateSelector { url: Some(which.to_owned()), key: Some(key.to_owned()) };
            of_state(&states(&which, directories)?.remove(0), request)?
        }
        None => {
            let mut found = processes(Some(which), directories)?;
            found.remove(0).call(request)?.decode()?
        }
    };
    let cache = cache(&floor.file_system(), directories)?;
    Ok(Statement::of(floor, None, &*cache))
}

/// Adds blocks from this machine's cache.
pub fn fill(statement: &mut Statement, directories: &Directories) -> Outcome {
    let known = Sources::of(&[statement]);
    let cache = cache(&statement.floor.file_system(), directories)?;
    statement.fill(Arc::new(known.and(cache)));
    Ok(())
}

/// The cache of a file system, if this user has one.
pub fn cache(file_system: &Digest, directories: &Directories) -> Outcome<Arc<dyn BlockSource + Send + Sync>> {
    let folder = directories.cache_of(file_system)?;
    if !folder.is_dir() {
        return Ok(Arc::new(Sources::of(&[])));
    }
    let bytes_max = holdfast_daemon::cache::size_given(directories)?;
    let evidence = directories.state_base()?.join("evidence");
    Ok(Arc::new(CacheOnly::open(*file_system, folder, bytes_max, evidence)))
}

/// Writes a piece of evidence to a file for others.
pub fn write(file: EvidenceFile, to: &Path, format: Format) -> Outcome {
    evidence::write_new(to, &file).map_err(|error| kept(to, &error))?;
    let statement = Statement::of_evidence(&file);
    let written = Written {
        file: to,
        file_system: file.file_system.to_string(),
        blocks: statement.as_ref().map_or(0, |statement| statement.blocks.len()),
        is_whole: statement.as_ref().is_some_and(|statement| statement.is_whole),
    };
    format.print(&written, |written| {
        let part = match (&statement, written.is_whole) {
            (None, _) => "",
            (Some(_), true) => " All names and attributes are in it.",
            (Some(_), false) => {
                " Not all names and attributes were on this machine, or would fit; what is missing is not named."
            }
        };
        format!(
            "Written to {}; `holdfast evidence verify {}` checks it on any machine.{part} {}",
            to.display(),
            to.display(),
            if statement.is_some() { NOTICE } else { "" }
        )
    })
}

/// The floor from the process that uses the state, or from the state itself. Retries while a mount that has
/// just ended still locks it.
fn of_state(
    state_dir: &Path,
    request: &impl Request<Any = MountRequest, Reply = Encoded<Floor>>,
) -> Outcome<Floor> {
    until_free(ATTEMPTS, || match Client::connect(state_dir)? {
        Some(process) => process.call(request)?.decode(),
        None => read(state_dir),
    })
}

/// The floor from the state of a key that is not in use.
fn read(state_dir: &Path) -> Outcome<Floor> {
    let failed = |why: String| Failure::new(Exit::Data, format!("{}: {why}", state_dir.display()));
    let none = || Failure::new(Exit::NoInput, format!("there is no state in {}", state_dir.display()));
    let parts: Vec<Digest> =
        (state_dir.iter().rev().take(2)).filter_map(|part| Digest::from_hex(part.to_str()?)).collect();
    let ([key, file_system], true) = (&parts[..], state_dir.is_dir()) else { return Err(none()) };
    let key = holdfast_crypto::PublicKey(key.0);
    let (_, state) = StateLog::open_dir(state_dir, *file_system, key).map_err(|error| match error {
        StateError::InUse => Failure::new(Exit::InUse, format!("{}: in use", state_dir.display())),
        error => failed(error.to_string()),
    })?;
    let state = state.ok_or_else(none)?;
    let signer = Signer::restore(&state.signer).map_err(|error| failed(error.to_string()))?;
    Ok(signer.floor().clone())
}
