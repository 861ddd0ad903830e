//! `holdfast release sign`

use super::args::Sign;
use super::settling::{DraftTarget, Signed, install, io, signers, words};
use crate::output::Format;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::draft::{Draft, DraftError};
use holdfast_release::form::{self, Kind};
use std::path::Path;

/// Adds signatures to a draft, and puts the signed values in place once there are enough.
pub fn sign(arguments: &Sign, format: Format) -> Outcome {
    let path = &arguments.draft;
    let mut draft = read(path)?;
    let before = draft.clone();
    let failed = |error: DraftError| {
        let failure = Failure::from(error);
        Failure { message: format!("{}: {}", path.display(), failure.message), ..failure }
    };
    for copy in &arguments.merge {
        draft.merge(&read(copy)?).map_err(|error| {
            let failure = Failure::from(error);
            Failure { message: format!("{}: {}", copy.display(), failure.message), ..failure }
        })?;
    }
    let mut signed = Vec::new();
    for key in signers(&arguments.key)? {
        signed.extend(draft.sign(key.as_ref()).map_err(failed)?);
    }
    signed.sort_unstable();
    signed.dedup();
    let release = draft.id().map_err(failed)?.to_string();
    let (finished, lacking) = match draft.finish() {
        Ok(finished) => (Some(finished), Vec::new()),
        Err(DraftError::Unfinished(parts)) => (None, words(&parts)),
        Err(error) => return Err(failed(error)),
    };
    if draft != before {
        holdfast_durable::replace(path, &form::write(&draft), 0o644).map_err(|error| io(path, error))?;
    }
    let complete = finished.is_some();
    let mut done = Signed { release, signed, complete, path: path.clone(), lacking };
    match (&arguments.to, finished) {
        (None, _) => {}
        (Some(to), Some(finished)) => {
            let place = match finished.revocation {
                Some(_) => DraftTarget::Certificate(to.clone()),
                None => DraftTarget::Directory(to.clone()),
            };
            install(&finished, &place)?;
            // The draft is not needed any more, and would block the next one of the same name.
            std::fs::remove_file(path).map_err(|error| io(path, error))?;
            done.path = to.clone();
        }
        (Some(to), None) => {
            let message = format!(
                "{}: not signed by enough people yet, so nothing was put to {}; {}",
                path.display(),
                to.display(),
                done.lacking.join("; ")
            );
            return Err(Failure::new(Exit::Failed, message)
                .hint("signatures that were made now are in the draft; let the others sign it"));
        }
    }
    let to_place = complete && arguments.to.is_none();
    format.print(&done, |done| match to_place {
        true => format!(
            "{}\nPut it in its place: holdfast release sign {} --to PATH",
            done.describe(),
            path.display()
        ),
        false => done.describe(),
    })
}

fn read(path: &Path) -> Outcome<Draft> {
    let bytes = holdfast_durable::read(path, Draft::BYTES_MAX)
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))?
        .ok_or_else(|| Failure::new(Exit::NoInput, format!("{}: there is no such file", path.display())))?;
    form::read(&bytes).map_err(|error| {
        Failure::new(Exit::NoInput, format!("{}: {error}", path.display()))
            .hint("only drafts are signed; files of a release are complete, or they would not be there")
    })
}
