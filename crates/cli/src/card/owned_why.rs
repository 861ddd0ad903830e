//! `holdfast program why` on volumes: lists what a file's ACL permits, and who was refused in a session for a
//! program.

use super::session::Session;
use super::whom::{flagged, on_volume, shown, shown_entry};
use crate::output::{Format, clean};
use crate::programs::mounted::MountedFile;
use crate::programs::subjects::hash;
use holdfast_access::{Access, Acl, Conditions, Manifest, Principal};
use holdfast_failure::Outcome;
use holdfast_stack::session_requests::{SessionReply, SessionRequest};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct Explained {
    file: PathBuf,
    /// The user of the session.
    session: String,
    /// Empty if the session may not see it.
    owner: String,
    acl: Vec<String>,
    verdict: Option<Judged>,
    helper_missing: Option<String>,
    refused: Vec<Refused>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Judged {
    who: String,
    reads: bool,
    writes: bool,
    reason: String,
}

#[derive(Serialize)]
struct Refused {
    process: u32,
    program: String,
    reason: String,
}

/// `holdfast program why` on a volume.
pub fn run(session: &Session, place: &MountedFile, who: Option<&str>, format: Format) -> Outcome {
    let mut notes = Vec::new();
    let facts = &session.facts;
    let label = match session.request_about(place, &SessionRequest::Label(place.inode)) {
        Ok(SessionReply::Label { owner, acl, .. }) => Some((owner, acl)),
        Ok(_) => None,
        Err(failure) => {
            notes.push(failure.message);
            notes.push("only its owner is told whose a file is and who may use it".to_owned());
            None
        }
    };
    if facts.is_program {
        notes.push(format!("only {} is let in to this mount", shown(&facts.user)));
    }
    let verdict = match (who, &label) {
        (Some(who), Some((owner, acl))) => Some(judge(who, owner, acl, &facts.volume, &mut notes)?),
        _ => None,
    };
    let (owner, acl) = label.map_or((String::new(), Vec::new()), |(owner, acl)| {
        (shown(&owner), acl.entries().map(|(one, access)| shown_entry(one, access)).collect())
    });
    let refused = facts.refused.iter().filter(|(inode, ..)| *inode == place.inode);
    let refused = refused.map(|(_, process, program, reason)| Refused {
        process: *process,
        program: program.clone(),
        reason: reason.clone(),
    });
    let explained = Explained {
        file: place.path.clone(),
        session: shown(&facts.user),
        owner,
        acl,
        verdict,
        helper_missing: facts.helper_missing.clone(),
        refused: refused.collect(),
        notes,
    };
    format.print(&explained, describe)
}

/// What an ACL permits to a principal, given by name, or to a program, also by its digest.
fn judge(
    who: &str,
    owner: &Principal,
    acl: &Acl,
    volume: &[u8; 16],
    notes: &mut Vec<String>,
) -> Outcome<Judged> {
    let mut granted: Vec<(String, Access)> = Vec::new();
    let mut interpreter = None;
    let name = if who.contains(':') && !Path::new(who).exists() {
        let asked = flagged(who)?;
        let asked = on_volume(asked, volume);
        granted.extend(acl.granted_to(&asked).map(|access| (shown_entry(&asked, access), access)));
        if asked == *owner {
            notes.push("the owner may change who may use it".to_owned());
        }
        shown(&asked)
    } else {
        let hashed = hash(Path::new(who))?;
        interpreter = hashed.interpreter;
        let clean = Manifest::of_executable(hashed.digest, 0);
        let loose = Manifest {
            conditions: Conditions::CLEAN.with(holdfast_access::Condition::Interpreter),
            ..clean.clone()
        };
        let manifest = if hashed.interpreter.is_some() { loose } else { clean };
        let places = holdfast_program_identity::manifest::directories();
        for (one, access) in acl.entries() {
            let is_listed = match one {
                Principal::Package(package) if hashed.interpreter.is_none() => {
                    let name = package.name.as_str();
                    holdfast_program_identity::manifest::lists(&places, &package.key, name, &hashed.digest)
                }
                _ => false,
            };
            if is_listed || one.admits(&manifest) == Some(true) {
                granted.push((shown_entry(one, access), access));
            }
        }
        notes.push("a program uses a volume through a session for it (`holdfast volume mount --session prog:PATH=DIR`)".to_owned());
        notes.push(
            "an ordinary user starts it with `holdfast program run`, or entry and session say +plain"
                .to_owned(),
        );
        format!("{who} (hash:{})", hashed.digest)
    };
    let groups: Vec<String> = acl
        .entries()
        .filter(|(one, _)| matches!(one, Principal::Group(_)))
        .map(|(one, access)| shown_entry(one, access))
        .collect();
    if !groups.is_empty() {
        notes.push(format!("whoever is in a group may also by {}", groups.join(", ")));
    }
    let best = granted.iter().max_by_key(|(_, access)| *access);
    let reason = match (best, interpreter) {
        (Some((entry, _)), _) => format!("by the entry {entry}"),
        (None, Some(why)) => {
            format!("no entry names it with +interpreter, and it is an interpreter ({why})")
        }
        (None, None) => "no entry of the file names it".to_owned(),
    };
    let writes = best.is_some_and(|(_, access)| *access == Access::ReadWrite);
    Ok(Judged { who: name, reads: best.is_some(), writes, reason })
}

fn describe(explained: &Explained) -> String {
    let mut lines = vec![format!("{}:", explained.file.display())];
    if !explained.owner.is_empty() {
        lines.push(format!("  owner {}", explained.owner));
        lines.extend(explained.acl.iter().map(|entry| format!("  {entry}")));
    }
    if let Some(judged) = &explained.verdict {
        let verdict = match (judged.reads, judged.writes) {
            (false, _) => "is refused",
            (true, false) => "may read it",
            (true, true) => "may read and write it",
        };
        lines.push(format!("{} {verdict}: {}", clean(&judged.who), clean(&judged.reason)));
    }
    if let Some(missing) = &explained.helper_missing {
        lines.push(format!("nobody is let in now: {missing}"));
    }
    for refused in &explained.refused {
        let program = if refused.program.is_empty() { "not identified" } else { &refused.program };
        lines.push(format!(
            "refused: process {}, {}: {}",
            refused.process,
            clean(program),
            clean(&refused.reason)
        ));
    }
    lines.extend(explained.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}
