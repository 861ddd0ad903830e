//! The pieces of evidence stored on this machine.

use super::head;
use crate::args::StateSelector;
use crate::output::{clean, table};
use crate::which::states;
use holdfast_client::evidence::{EvidenceFile, Proof, read};
use holdfast_client::statement::Statement;
use holdfast_crypto::DigestKey;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Name of the folder in a state directory.
const FOLDER: &str = "evidence";
/// The extension of the files.
const EXTENSION: &str = "evidence";
/// The kind of evidence that freezes a mount.
const WRONG_ORDER: &str = "wrong order of operations";

/// The pieces stored in a state directory, oldest first; unreadable ones are left out.
pub fn kept_in(state_dir: &Path) -> Vec<Piece> {
    files_in(state_dir)
        .into_iter()
        .filter_map(|path| open(&path).ok().map(|evidence| Piece::of(&path, &evidence)))
        .collect()
}

/// One piece, as it is printed.
#[derive(Serialize)]
pub struct Piece {
    pub name: String,
    pub file: PathBuf,
    pub file_system: String,
    pub noticed_by_device: Option<u32>,
    /// When it was noticed, in nanoseconds since 1970.
    pub noticed_ns: i64,
    pub kind: &'static str,
    /// What the server did, in words.
    pub explanation: String,
    /// What anybody can check about it without trusting the one who stored it.
    pub check: String,
}

impl Piece {
    /// Whether it is about the order of operations (and not about data).
    pub fn is_about_order(&self) -> bool {
        self.kind == WRONG_ORDER
    }

    /// Whether it records what a declared restore lost, which accuses nobody.
    pub fn is_of_restore(&self) -> bool {
        self.file.to_string_lossy().ends_with("-lost.evidence")
    }

    pub fn of(path: &Path, evidence: &EvidenceFile) -> Piece {
        let (kind, check) = check(evidence);
        Piece {
            name: name_of(path),
            file: path.to_owned(),
            file_system: evidence.file_system.to_string(),
            noticed_by_device: evidence.device.map(|device| device.0),
            noticed_ns: evidence.noticed_ns,
            kind,
            explanation: evidence.explanation.clone(),
            check,
        }
    }

    pub fn describe(&self) -> String {
        let by = self.noticed_by_device.map_or("unknown".to_owned(), |device| device.to_string());
        let rows = [
            vec!["Evidence:".to_owned(), self.name.clone()],
            vec!["About:".to_owned(), self.kind.to_owned()],
            vec!["File system:".to_owned(), self.file_system.clone()],
            vec!["Noticed:".to_owned(), format!("{} by device {by}", moment(self.noticed_ns))],
            vec!["File:".to_owned(), self.file.display().to_string()],
        ];
        format!("{}\n\n{}\n\nChecked: {}", table(&rows), clean(&self.explanation), self.check)
    }
}

/// The kind of a proof, and what it proves by itself.
pub fn check(evidence: &EvidenceFile) -> (&'static str, String) {
    match &evidence.proof {
        Proof::Block { reference, kind, served } => {
            let verdict = match served.clone().open(&DigestKey::WELL_KNOWN, reference, *kind) {
                Err(error) => format!("the bytes kept are not the block asked for: {error}"),
                Ok(_) => "the bytes kept ARE the block asked for: this proves nothing".to_owned(),
            };
            ("altered data", verdict)
        }
        Proof::Missing { address, .. } => (
            "missing data",
            format!("the view kept here refers to block {address}; whoever can fetch that block refutes it"),
        ),
        Proof::Order { .. } | Proof::Statement(_) => {
            let refused =
                Statement::of_evidence(evidence).is_none_or(|statement| statement.refused.is_some());
            let kind = if refused { WRONG_ORDER } else { "what a device was shown" };
            (
                kind,
                "`holdfast evidence verify` says what it proves, by itself or with others' statements"
                    .to_owned(),
            )
        }
        Proof::Meeting { .. } => {
            (WRONG_ORDER, "`holdfast evidence verify` says what it proves, by itself".to_owned())
        }
        Proof::Head { floor, head, earlier } => {
            (WRONG_ORDER, head::judge(&evidence.file_system, floor, head, earlier.as_deref()).1)
        }
    }
}

/// The failure that a file for others could not be written.
pub fn kept(to: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::new(
            Exit::CannotCreate,
            format!("{}: exists already and is not overwritten", to.display()),
        ),
        _ => Failure::new(Exit::CannotCreate, format!("{}: {error}", to.display())),
    }
}

pub fn open(path: &Path) -> Outcome<EvidenceFile> {
    read(path).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::InvalidData => Exit::Data,
            _ => Exit::NoInput,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    })
}

pub fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

pub fn files(which: &StateSelector, directories: &Directories) -> Outcome<Vec<PathBuf>> {
    Ok(states(which, directories)?.iter().flat_map(|state_dir| files_in(state_dir)).collect())
}

/// The files of evidence, oldest first: their names begin with the time.
pub fn files_in(state_dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(state_dir.join(FOLDER)) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .collect();
    found.sort();
    found
}

/// The piece with this name, or the only one whose name begins with it; or a file with this path.
pub fn find(name: &str, directories: &Directories) -> Outcome<PathBuf> {
    let all = files(&StateSelector { url: None, key: None }, directories)?;
    let mut matching: Vec<_> = all.into_iter().filter(|path| name_of(path).starts_with(name)).collect();
    if let Some(exact) = matching.iter().position(|path| name_of(path) == name) {
        return Ok(matching.swap_remove(exact));
    }
    match (matching.len(), Path::new(name).is_file()) {
        (1, _) => Ok(matching.swap_remove(0)),
        (0, true) => Ok(PathBuf::from(name)),
        (0, false) => Err(Failure::new(Exit::NoInput, format!("there is no evidence named '{name}'"))
            .hint("`holdfast evidence list` shows what there is")),
        (several, _) => {
            Err(Failure::new(Exit::NoInput, format!("'{name}' could be any of {several} pieces of evidence")))
        }
    }
}
