//! The common part of all commands that sign: a draft is made and signed with the given keys. If that is
//! enough, the signed files are put in place; otherwise the draft remains, for `holdfast release sign` on
//! other machines.

use holdfast_crypto::KeyHolder;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::accept::{ExpiredPolicy, HighestRecord, accept};
use holdfast_release::draft::{Draft, DraftError, DraftPart, FinishedDraft};
use holdfast_release::form;
use holdfast_release::keys::KeyChain;
use holdfast_release::record::{RootFile, authenticate};
use holdfast_release::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_release::signing::Signable;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The present time in seconds since 1970.
pub fn now_s() -> u64 {
    u64::try_from(holdfast_daemon::time::now_ns()).unwrap_or(0) / 1_000_000_000
}

/// Where signed values go once there are enough signatures.
#[derive(Clone, Debug)]
pub enum DraftTarget {
    /// The directory of a release.
    Directory(PathBuf),
    /// The file of a certificate.
    Certificate(PathBuf),
}

impl DraftTarget {
    pub fn path(&self) -> &Path {
        match self {
            DraftTarget::Directory(path) | DraftTarget::Certificate(path) => path,
        }
    }

    /// The path of the draft beside it, `NAME.KIND.draft`: never inside a release, where it could get to a
    /// mirror.
    pub fn draft(&self, kind: &str) -> Outcome<PathBuf> {
        let path = std::path::absolute(self.path()).map_err(|error| io(self.path(), error))?;
        let Some(name) = path.file_name() else {
            return Err(Failure::new(
                Exit::Usage,
                format!("{}: cannot be the directory of a release", path.display()),
            ));
        };
        let mut name = name.to_owned();
        name.push(kind);
        name.push(".draft");
        Ok(path.with_file_name(name))
    }
}

/// The result of signing.
#[derive(Serialize)]
pub struct Signed {
    pub release: String,
    /// The parts that the given keys have signed now.
    pub signed: Vec<String>,
    /// Whether everything has enough signatures.
    pub complete: bool,
    /// The path of the signed file or of the draft.
    pub path: PathBuf,
    /// Signatures that are missing.
    pub lacking: Vec<String>,
}

impl Signed {
    pub fn describe(&self) -> String {
        let path = self.path.display();
        let mut text = format!("{}\n\n", self.release);
        if !self.signed.is_empty() {
            text.push_str(&format!("signed: {}\n", self.signed.join(", ")));
        }
        if self.complete {
            text.push_str(&format!("signed by enough people; it is in {path}"));
        } else {
            text.push_str(&format!(
                "NOT signed by enough people yet, so nothing of it counts. It waits in {path}\n{}\nGive them the file: \
                 holdfast release sign {path} --key KEY",
                self.lacking.join("\n")
            ));
        }
        text
    }
}

/// Signs a draft with the given keys; then puts the signed values in place, or leaves the draft.
pub fn settle(
    mut draft: Draft,
    keys: &[Arc<dyn KeyHolder>],
    place: &DraftTarget,
    kind: &str,
) -> Outcome<Signed> {
    let draft_path = place.draft(kind)?;
    if let DraftTarget::Certificate(path) = place {
        not_there(path)?;
    }
    let mut signed = Vec::new();
    for key in keys {
        let added = draft.sign(key.as_ref())?;
        signed.extend(added.into_iter().filter(|what| !signed.contains(what)).collect::<Vec<_>>());
    }
    let release = draft.id()?.to_string();
    match draft.finish() {
        Ok(finished) => {
            install(&finished, place)?;
            Ok(Signed { release, signed, complete: true, path: place.path().to_owned(), lacking: Vec::new() })
        }
        Err(DraftError::Unfinished(parts)) => {
            not_there(&draft_path)?;
            holdfast_durable::replace(&draft_path, &form::write(&draft), 0o644)
                .map_err(|error| io(&draft_path, error))?;
            Ok(Signed { release, signed, complete: false, path: draft_path, lacking: words(&parts) })
        }
        Err(error) => Err(error.into()),
    }
}

/// Puts signed values in place, unless readers of the present state would refuse them.
pub fn install(finished: &FinishedDraft, place: &DraftTarget) -> Outcome {
    match (place, &finished.revocation) {
        (DraftTarget::Certificate(path), Some(revocation)) => {
            not_there(path)?;
            holdfast_durable::replace(path, &form::write(revocation), 0o644).map_err(|error| io(path, error))
        }
        (DraftTarget::Certificate(path), None) => Err(Failure::new(
            Exit::Usage,
            format!("{}: nothing is revoked, so there is no certificate", path.display()),
        )),
        (DraftTarget::Directory(path), _) => {
            let directory = ReleaseDir::new(path);
            if let Some(root) = &finished.root {
                let seen = match directory.chain() {
                    Ok(chain) => directory.root(&chain)?.and_then(|root| seen(&chain, &root)),
                    Err(ReleaseDirError::Missing(_)) => None,
                    Err(error) => return Err(error.into()),
                };
                accept(&finished.chain, root, seen.as_ref(), now_s(), ExpiredPolicy::Refuse).map_err(
                    |refusal| {
                        Failure::new(
                            Exit::Failed,
                            format!("people would refuse it, so nothing was changed: {refusal}"),
                        )
                    },
                )?;
            }
            Ok(directory.install(finished)?)
        }
    }
}

/// The state of a client that has seen what a directory has.
pub fn seen(chain: &KeyChain, root: &RootFile) -> Option<HighestRecord> {
    let authentic = authenticate(chain, root).ok()?;
    let record = authentic.record();
    Some(HighestRecord {
        sequence: record.sequence,
        record: record.digest(),
        issued_s: record.issued_s,
        validity: authentic.validity(),
        latest_s: authentic.issued_last_s(),
    })
}

/// The keys that arguments name.
pub fn signers(arguments: &[PathBuf]) -> Outcome<Vec<Arc<dyn KeyHolder>>> {
    arguments
        .iter()
        .map(|argument| {
            holdfast_daemon::keys::read(argument).and_then(holdfast_daemon::keys::Key::into_holder)
        })
        .collect()
}

pub fn words(parts: &[DraftPart]) -> Vec<String> {
    parts.iter().map(ToString::to_string).collect()
}

pub fn not_there(path: &Path) -> Outcome {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::CannotCreate,
        format!("{}: exists already and is not overwritten", path.display()),
    )
    .hint(
        "if it is a draft that waits for signatures, sign it with `holdfast release sign`; else move it away",
    ))
}

pub fn io(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}
