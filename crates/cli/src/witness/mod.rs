//! `holdfast witness`: runs a witness, or reports on one.

pub mod args;

use crate::listening;
use crate::output::{Format, clean, table};
use args::{Compare, Init, State, Witness, WitnessCommand};
use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::note::{KeyKind, Note, VerifierKey};
use holdfast_crypto::SigningKey;
use holdfast_daemon::{keys, limits, logging};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_witness::{Service, WitnessState};
use serde::Serialize;
use std::path::Path;

/// `holdfast witness`
pub fn run(arguments: &Witness, format: Format) -> Outcome {
    match (&arguments.command, &arguments.state) {
        (Some(WitnessCommand::Init(init)), _) => self::init(init, format),
        (Some(WitnessCommand::Status(state)), _) => status(state, format),
        (Some(WitnessCommand::Compare(compare)), _) => self::compare(compare, format),
        (None, Some(state)) => serve(arguments, state),
        (None, None) => Err(Failure::new(Exit::Usage, "a state directory is needed: --state DIR")),
    }
}

fn serve(arguments: &Witness, state: &Path) -> Outcome {
    logging::to_stderr();
    limits::raise_open_files();
    if arguments.log.is_empty() {
        return Err(Failure::new(Exit::Usage, "it is not said which logs to serve: --log KEY")
            .hint("`holdfast server witnesses --data DIR` prints the key of each file system's log"));
    }
    if let Some(wrong) = arguments.log.iter().find(|key| key.kind() != KeyKind::Note) {
        return Err(Failure::new(Exit::Usage, format!("{wrong} is the key of a witness, not of a log")));
    }
    let state = WitnessState::open(state)?;
    let name = state.verifier().name().to_owned();
    let service = Service::open(state, arguments.log.clone(), listening::resolve(&arguments.listen)?)?;
    let address = service.local_address();
    let told = format!("{name} witnesses {} logs on {address}", arguments.log.len());
    Ok(service.run(listening::announced(told))?)
}

/// A new witness.
#[derive(Serialize)]
struct NewWitnessOutput {
    key: String,
}

fn init(arguments: &Init, format: Format) -> Outcome {
    let key: Option<SigningKey> = match &arguments.key {
        None => None,
        Some(file) => match keys::read(file)? {
            keys::Key::Here(key) => Some(key),
            _ => {
                return Err(Failure::new(
                    Exit::Usage,
                    "a witness's key must be in a file without a passphrase",
                ));
            }
        },
    };
    let verifier = WitnessState::init(&arguments.state, &arguments.name, key)?;
    format.print(&NewWitnessOutput { key: verifier.to_string() }, |made| made.key.clone())
}

#[derive(Serialize)]
struct WitnessOutput {
    key: String,
    logs: Vec<ShownLog>,
    refused: Vec<String>,
}

#[derive(Serialize)]
struct ShownLog {
    origin: String,
    size: u64,
    root: String,
}

fn status(arguments: &State, format: Format) -> Outcome {
    let state = WitnessState::look(&arguments.state)?;
    let logs = state.logs().into_iter().map(|shown| ShownLog {
        origin: shown.checkpoint.origin,
        size: shown.checkpoint.head.size,
        root: shown.checkpoint.head.root.to_string(),
    });
    let shown = WitnessOutput {
        key: state.verifier().to_string(),
        logs: logs.collect(),
        refused: state.refused().iter().map(|path| path.display().to_string()).collect(),
    };
    format.print(&shown, |shown| {
        let mut rows = vec![vec!["Key".to_owned(), shown.key.clone()]];
        for log in &shown.logs {
            rows.push(vec!["Log".to_owned(), clean(&log.origin)]);
            rows.push(vec![
                "  signed last".to_owned(),
                format!("{} operations, root {}", log.size, log.root),
            ]);
        }
        for refused in &shown.refused {
            rows.push(vec![
                "REFUSED".to_owned(),
                format!("a log has signed {refused}, which does not follow"),
            ]);
        }
        table(&rows)
    })
}

#[derive(Serialize)]
struct Compared {
    verdict: &'static str,
    explanation: String,
}

fn compare(arguments: &Compare, format: Format) -> Outcome {
    let (first, second) = (head(&arguments.first, &arguments.log)?, head(&arguments.second, &arguments.log)?);
    let (verdict, explanation) = if first.head == second.head {
        ("same", format!("both are the same head, of {} operations", first.head.size))
    } else if first.head.size == second.head.size {
        let convicted = format!(
            "the server of {} has signed two different histories of {} operations: it is convicted by its own hand",
            first.origin, first.head.size
        );
        ("contradiction", convicted)
    } else {
        let open = format!(
            "they are of {} and {} operations: whether the longer one goes on from the shorter one, these notes alone do \
             not tell",
            first.head.size, second.head.size
        );
        ("open", open)
    };
    let compared = Compared { verdict, explanation };
    format.print(&compared, |compared| clean(&compared.explanation))?;
    match verdict {
        "contradiction" => Err(Failure::new(Exit::Alarm, "two histories were signed")),
        _ => Ok(()),
    }
}

/// Reads a head that the log has signed.
fn head(file: &Path, log: &VerifierKey) -> Outcome<Checkpoint> {
    let named = |why: String| format!("{}: {why}", file.display());
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::NoInput, named(error.to_string())))?;
    let wrong = |why: String| Failure::new(Exit::Data, named(why));
    let note: Note = text.parse().map_err(|error| wrong(format!("{error}")))?;
    let checkpoint: Checkpoint = note.text.parse().map_err(|error| wrong(format!("{error}")))?;
    if checkpoint.origin != log.name() || !note.is_signed_by(log) {
        return Err(wrong("it is not signed by this log".to_owned()));
    }
    Ok(checkpoint)
}
