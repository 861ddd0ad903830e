//! `holdfast program why`: whether a program would be admitted to a file, and why, and which were refused
//! lately.

use super::args;
use super::mounted::{self, ask};
use super::subjects::hash;
use crate::card;
use crate::output::{Format, clean};
use holdfast_daemon::mounts::requests::ShowRules;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::hashes::Hashes;
use holdfast_program_identity::identify::identify;
use holdfast_program_identity::identity::Identity;
use holdfast_program_identity::manifest;
use holdfast_program_identity::rules::{Rights, Rule, RuleSet};
use holdfast_program_identity::starts::{self, CleanStarts};
use rustix::process::geteuid;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What `why` prints as JSON.
#[derive(Serialize)]
struct Explained {
    file: PathBuf,
    rules: Vec<String>,
    /// The decision about the program that was asked about.
    program: Option<Judged>,
    helper_missing: Option<String>,
    note: Option<String>,
    refused: Vec<holdfast_daemon::mounts::rules::RefusedOpen>,
}

#[derive(Serialize)]
struct Judged {
    program: String,
    hash: String,
    reads: bool,
    writes: bool,
    reason: String,
}

/// `holdfast program why`
pub fn run(arguments: &args::Why, directories: &Directories, format: Format) -> Outcome {
    let place = mounted::find(&arguments.file)?;
    if card::why(&place, arguments.program.as_deref(), format)? {
        return Ok(());
    }
    let request = ShowRules { directory: place.mount.clone(), inode: place.inode };
    let report = ask(&place.mount, directories, &request)?;
    let decoded = report.rules.as_deref().map(RuleSet::decode);
    let rules = match &decoded {
        None => vec!["no rules: every program may use it".to_owned()],
        Some(Ok(set)) => {
            set.rules().iter().map(|rule| format!("{rule}  {}", rule.hint).trim_end().to_owned()).collect()
        }
        Some(Err(error)) => vec![format!("{error}: it is refused to everybody")],
    };
    let program = match &arguments.program {
        None => None,
        Some(named) => {
            let identity = identity(named)?;
            Some(match &decoded {
                None => judged(&identity, Ok(true), "the file has no rules".to_owned()),
                Some(Err(error)) => judged(&identity, Err(()), error.to_string()),
                Some(Ok(set)) => judge(&identity, set, report.helper_missing.as_deref()),
            })
        }
    };
    let note = (report.served_by == geteuid().as_raw() && !geteuid().is_root()).then(|| {
        "the mount is served by your own user, so a program of yours can also read its key, cache and memory; mount as \
         another user with --allow-other to prevent that"
            .to_owned()
    });
    let explained = Explained {
        file: place.path,
        rules,
        program,
        helper_missing: report.helper_missing,
        note,
        refused: report.denials,
    };
    format.print(&explained, describe)
}

/// The identity of a running process, given by number, or of a program, as if it were started clean.
fn identity(named: &str) -> Outcome<Identity> {
    if let Ok(process) = named.parse::<u32>() {
        if !geteuid().is_root() {
            return Err(Failure::new(Exit::NotAllowed, "only root can look into a running process")
                .hint("name the program by its path instead"));
        }
        let nobody = None::<std::os::fd::OwnedFd>;
        let found = identify(process, nobody, &Hashes::default(), &CleanStarts::default())
            .map_err(|why| Failure::new(Exit::NoInput, format!("process {process}: {why}")))?;
        // The helper keeps a record of this. From here, only its signs are visible: the process runs a file
        // that its user cannot read.
        let is_shut = starts::is_shut(process).unwrap_or(false);
        let exe = std::fs::read_link(format!("/proc/{process}/exe"));
        let is_copy = exe.is_ok_and(|exe| exe.to_string_lossy().starts_with("/memfd:"));
        return Ok(Identity { clean: found.clean || is_shut && is_copy, ..found });
    }
    let hashed = hash(Path::new(named))?;
    let interpreter = hashed.interpreter.map(str::to_owned);
    Ok(Identity { interpreter, ..Identity::plain(hashed.digest, named) })
}

fn judge(identity: &Identity, rules: &RuleSet, helper_missing: Option<&str>) -> Judged {
    let places = manifest::directories();
    let decide = |wanted| {
        rules.decide(identity, wanted, &|key, name, digest| manifest::lists(&places, key, name, digest))
    };
    match (helper_missing, decide(Rights::Read), decide(Rights::ReadWrite)) {
        (Some(missing), ..) => judged(identity, Err(()), missing.to_owned()),
        (_, Err(refusal), _) => judged(identity, Err(()), refusal.to_string()),
        (_, Ok(rule), Err(refusal)) => {
            judged(identity, Ok(false), format!("by the rule {rule}{}; writing: {refusal}", start(rule)))
        }
        (_, _, Ok(rule)) => judged(identity, Ok(true), format!("by the rule {rule}{}", start(rule))),
    }
}

/// How a program must be started so that a rule admits it.
fn start(rule: &Rule) -> &'static str {
    if rule.plain { "" } else { ", if `holdfast program run` starts it" }
}

/// `Ok(true)` means that it may also write.
fn judged(identity: &Identity, rights: Result<bool, ()>, reason: String) -> Judged {
    Judged {
        program: identity.path.clone(),
        hash: format!("hash:{}", identity.digest),
        reads: rights.is_ok(),
        writes: rights == Ok(true),
        reason,
    }
}

fn describe(explained: &Explained) -> String {
    let mut lines = vec![format!("{}:", explained.file.display())];
    lines.extend(explained.rules.iter().map(|rule| format!("  {}", clean(rule))));
    if let Some(judged) = &explained.program {
        let verdict = match (judged.reads, judged.writes) {
            (false, _) => "is refused",
            (true, false) => "is let in to read",
            (true, true) => "is let in to read and write",
        };
        lines.push(format!(
            "{} ({}) {verdict}: {}",
            clean(&judged.program),
            judged.hash,
            clean(&judged.reason)
        ));
    }
    if let Some(missing) = &explained.helper_missing {
        lines.push(format!("nobody is let in now: {missing}"));
    }
    for refused in &explained.refused {
        let when = time::moment(refused.at_ns);
        let program = if refused.program.is_empty() { "not identified" } else { &refused.program };
        let (program, reason) = (clean(program), clean(&refused.reason));
        lines.push(format!("refused {when}: process {}, {program}: {reason}", refused.process));
    }
    lines.extend(explained.note.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}
