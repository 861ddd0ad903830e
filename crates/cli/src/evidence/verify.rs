//! `holdfast evidence verify`: what files of evidence prove, checked without any other files.

use super::head;
use super::pieces::{Piece, open};
use crate::output::{Format, clean};
use holdfast_client::evidence::Proof;
use holdfast_client::statement::{Conclusion, LabeledStatement, Limits, Statement, verify};
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use std::path::{Path, PathBuf};

/// Most paths that are compared, and most differences that are listed.
pub const LIMITS: Limits = Limits { paths: 1_000_000, differences: 10_000 };

/// `holdfast evidence verify`
pub fn run(files: &[PathBuf], format: Format) -> Outcome {
    if let [file] = files
        && let Some(outcome) = by_itself(file, format)?
    {
        return outcome;
    }
    let mut testimonies = Vec::new();
    for file in files {
        testimonies.push(read(file)?);
    }
    let verdict = verify(&testimonies, LIMITS)?;
    format.print(&verdict, |verdict| clean(&verdict.words(&moment)))?;
    let lied = |text: &str| Err(Failure::new(Exit::Alarm, text));
    match verdict.conclusion {
        Conclusion::Fits => Ok(()),
        Conclusion::AsTold => Err(Failure::new(Exit::Failed, "not proven: it rests on somebody's word")),
        Conclusion::OneOfSeveralLied => lied("ALARM: signatures contradict each other"),
        Conclusion::KeyUsedTwice => lied("ALARM: a device's key was used twice"),
        Conclusion::ServerLied => lied("ALARM: the server promised two things that cannot both be"),
    }
}

/// Reads a statement from a file.
///
/// # Errors
/// The file cannot be read, is no statement, or is about a block.
pub fn read(file: &Path) -> Outcome<LabeledStatement> {
    let evidence = open(file)?;
    let statement = Statement::of_evidence(&evidence).ok_or_else(|| {
        Failure::new(
            Exit::Data,
            format!(
                "{}: this evidence is about a block or a head, not what a device was shown",
                file.display()
            ),
        )
        .hint("verify it by itself")
    })?;
    if statement.floor.file_system() != evidence.file_system {
        let text = format!("{}: it is forged or damaged: it names two file systems", file.display());
        return Err(Failure::new(Exit::Data, text));
    }
    let met = match evidence.proof {
        Proof::Meeting { met, .. } => Some(*met),
        _ => None,
    };
    Ok(LabeledStatement { label: file.display().to_string(), made_ns: evidence.noticed_ns, statement, met })
}

/// A piece of evidence about a head is proof if the server has signed both heads. A piece about a block
/// contains nothing signed by the server: it shows that the bytes are wrong, but not who sent them.
fn by_itself(file: &Path, format: Format) -> Outcome<Option<Outcome>> {
    let evidence = open(file)?;
    if Statement::of_evidence(&evidence).is_some() {
        return Ok(None);
    }
    let piece = Piece::of(file, &evidence);
    if let Proof::Head { floor, head, earlier } = &evidence.proof {
        format.print(&piece, Piece::describe)?;
        let (convicts, _) = head::judge(&evidence.file_system, floor, head, earlier.as_deref());
        let failure = match convicts {
            true => Failure::new(Exit::Alarm, "ALARM: the server promised two things that cannot both be"),
            false => Failure::new(Exit::Failed, "not proven: it rests on somebody's word"),
        };
        return Ok(Some(Err(failure)));
    }
    format.print(&piece, |piece| {
        format!(
            "{}\n\nThe server's answers carry no signature, so that it gave these bytes, or none, rests on the word \
             of who kept this.",
            piece.describe()
        )
    })?;
    Ok(Some(Err(Failure::new(Exit::Failed, "not proven: it rests on somebody's word"))))
}
