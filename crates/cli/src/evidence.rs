//! `holdfast evidence`: stored evidence of a server's misbehaviour, for its user and for third parties.

mod head;
pub mod merge;
pub mod pieces;
mod statement;
mod verify;

pub use statement::accepted;

use crate::args::{Evidence, EvidenceCommand, StateSelector};
use crate::output::{Format, table};
use holdfast_client::evidence::Proof;
use holdfast_client::statement::Statement;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::Outcome;
use pieces::{Piece, files, find, open};
use std::path::Path;

/// `holdfast evidence`
pub fn run(arguments: &Evidence, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        EvidenceCommand::List(which) => list(which, directories, format),
        EvidenceCommand::Show { name } => {
            let path = find(name, directories)?;
            let piece = Piece::of(&path, &open(&path)?);
            format.print(&piece, Piece::describe)
        }
        EvidenceCommand::Export { name, to } => export(name, to, directories, format),
        EvidenceCommand::Statement { which, key, to } => {
            statement::run(which, key.as_deref(), to, directories, format)
        }
        EvidenceCommand::Verify { files } => verify::run(files, format),
        EvidenceCommand::Merge(arguments) => merge::run(arguments, directories, format),
        EvidenceCommand::Peers(arguments) => crate::peers::run(arguments, directories, format),
    }
}

fn list(which: &StateSelector, directories: &Directories, format: Format) -> Outcome {
    let mut pieces = Vec::new();
    for path in files(which, directories)? {
        match open(&path) {
            Ok(evidence) => pieces.push(Piece::of(&path, &evidence)),
            Err(failure) => format.print_failure(&failure),
        }
    }
    format.print(&pieces, |pieces| {
        if pieces.is_empty() {
            return "No evidence: no server has shown anything wrong.".to_owned();
        }
        let rows: Vec<Vec<String>> = pieces
            .iter()
            .map(|piece| vec![piece.name.clone(), moment(piece.noticed_ns), piece.kind.to_owned()])
            .collect();
        format!("{}\n\n`holdfast evidence show NAME` explains one.", table(&rows))
    })
}

fn export(name: &str, to: &Path, directories: &Directories, format: Format) -> Outcome {
    let path = find(name, directories)?;
    let mut evidence = open(&path)?;
    if let Some(mut of_order) = Statement::of_evidence(&evidence) {
        statement::fill(&mut of_order, directories)?;
        match &mut evidence.proof {
            Proof::Meeting { statement, .. } => **statement = of_order,
            proof => {
                evidence.format = 2;
                *proof = Proof::Statement(Box::new(of_order));
            }
        }
    }
    statement::write(evidence, to, format)
}
