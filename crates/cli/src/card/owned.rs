//! `holdfast program acl` on volumes, and `holdfast volume owner`: both are requests to the session of the
//! mount, in its user's name.

use super::session::Session;
use super::whom::{entry, flagged, on_volume, shown, shown_entry};
use crate::output::Format;
use crate::programs::args::{self, AclCommand, OwnerCommand};
use crate::programs::mounted::{self, MountedFile, children};
use holdfast_access::{Access, Acl, Principal};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_stack::session_requests::{SessionReply, SessionRequest};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The result as JSON.
#[derive(Serialize)]
struct OwnerOutput {
    path: PathBuf,
    owner: String,
    acl: Vec<String>,
    /// Whether other blocks of the file have other owners or ACLs, because a change did not reach all of it.
    mixed: bool,
}

fn about(session: &Session, place: &MountedFile) -> Outcome<(Principal, Acl, bool)> {
    match session.request_about(place, &SessionRequest::Label(place.inode))? {
        SessionReply::Label { owner, acl, is_mixed } => Ok((owner, acl, is_mixed)),
        _ => Err(Failure::new(Exit::Protocol, "the mount is served by another version of holdfast")),
    }
}

fn show(
    session: &Session,
    place: &MountedFile,
    format: Format,
    text: impl FnOnce(&OwnerOutput) -> String,
) -> Outcome {
    let (owner, acl, mixed) = about(session, place)?;
    let acl = acl.entries().map(|(principal, access)| shown_entry(principal, access)).collect();
    let shown = OwnerOutput { path: place.path.clone(), owner: shown(&owner), acl, mixed };
    format.print(&shown, |shown| {
        let mut lines = text(shown);
        if shown.mixed {
            lines.push_str("\n(other parts of the file have others; set them again)");
        }
        lines
    })
}

fn acl_text(shown: &OwnerOutput) -> String {
    match shown.acl.as_slice() {
        [] => format!("{}: nobody may use it; {} may change that", shown.path.display(), shown.owner),
        entries => entries.join("\n"),
    }
}

/// The file at a path; if `recursive`, also those below it.
fn files(file: &Path, recursive: bool) -> Outcome<Vec<MountedFile>> {
    let mut todo = vec![mounted::find(file)?];
    let mut found = Vec::new();
    while let Some(next) = todo.pop() {
        if recursive && next.path.is_dir() {
            todo.extend(children(&next.path)?);
        } else {
            found.push(next);
        }
    }
    Ok(found)
}

/// `holdfast program acl` on a volume.
pub fn acl(session: &Session, command: &AclCommand, format: Format) -> Outcome {
    let (file, recursive, changes) = match command {
        AclCommand::Get(get) => return show(session, &mounted::find(&get.file)?, format, acl_text),
        AclCommand::Set(set) => {
            let mut changes = Vec::new();
            for text in &set.rules {
                let (principal, access) = entry(text)?;
                changes.push((on_volume(principal, &session.facts.volume), Some(access)));
            }
            (&set.file, set.recursive, changes)
        }
        AclCommand::Remove(remove) => {
            let mut changes = Vec::new();
            for text in &remove.who {
                changes.push((on_volume(flagged(text)?, &session.facts.volume), None));
            }
            (&remove.file, false, changes)
        }
        AclCommand::Clear(clear) => {
            for place in files(&clear.file, clear.recursive)? {
                let (owner, acl, _) = about(session, &place)?;
                let others = acl.entries().filter(|(principal, _)| **principal != owner);
                let mut changes: Vec<_> = others.map(|(principal, _)| (principal.clone(), None)).collect();
                changes.push((owner, Some(Access::ReadWrite)));
                change(session, &place, changes)?;
            }
            return match clear.recursive {
                true => Ok(()),
                false => show(session, &mounted::find(&clear.file)?, format, acl_text),
            };
        }
    };
    for place in files(file, recursive)? {
        // An empty file has no owner; the other files are changed nevertheless.
        let is_empty = std::fs::metadata(&place.path).is_ok_and(|seen| seen.len() == 0);
        if !(recursive && is_empty) {
            change(session, &place, changes.clone())?;
        }
    }
    match recursive {
        true => Ok(()),
        false => show(session, &mounted::find(file)?, format, acl_text),
    }
}

fn change(session: &Session, place: &MountedFile, changes: Vec<(Principal, Option<Access>)>) -> Outcome {
    session.request_about(place, &SessionRequest::Change { file: place.inode, changes }).map(drop)
}

/// `holdfast volume owner`
pub fn owner(arguments: &args::Owner, format: Format) -> Outcome {
    let (OwnerCommand::Show(args::OwnerFile { file })
    | OwnerCommand::Accept(args::OwnerFile { file })
    | OwnerCommand::Give(args::OwnerGive { file, .. })) = &arguments.command;
    let place = mounted::find(file)?;
    let session = Session::at(&place.mount)?;
    match &arguments.command {
        OwnerCommand::Show(_) => {}
        OwnerCommand::Give(give) => {
            let to = match give.to.contains(':') {
                true => flagged(&give.to)?,
                false => flagged(&format!("user:{}", give.to))?,
            };
            let to = on_volume(to, &session.facts.volume);
            session.request_about(&place, &SessionRequest::Give { file: place.inode, to: to.clone() })?;
            let shown = shown(&to);
            return format.print(&shown, |to| {
                format!("{}: is {to}'s as soon as they accept it, with what is in it", place.path.display())
            });
        }
        OwnerCommand::Accept(_) => {
            session.request_about(&place, &SessionRequest::Take(place.inode)).map_err(|failure| {
                failure.hint(
                    "its owner gives it with `holdfast volume owner give`, anew after each start of the volume",
                )
            })?;
        }
    }
    show(&session, &place, format, |shown| shown.owner.clone())
}
