//! `holdfast program acl`: lists and changes a file's rules. It asks the process of the mount, because
//! programs that are kept out by rules must not be able to remove them through the mount itself.

use super::args;
use super::mounted::{self, MountedFile, ask, children};
use super::subjects::{rule, who};
use crate::card;
use crate::output::Format;
use args::AclCommand;
use holdfast_daemon::mounts::requests::{SetRules, ShowRules};
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::rules::RuleSet;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What `acl get` prints as JSON.
#[derive(Serialize)]
struct AclOutput {
    path: PathBuf,
    rules: Vec<ShownRule>,
}

#[derive(Serialize)]
struct ShownRule {
    rule: String,
    program: String,
}

/// `holdfast program acl`
pub fn run(arguments: &args::Acl, directories: &Directories, format: Format) -> Outcome {
    let (AclCommand::Get(args::AclGet { file })
    | AclCommand::Set(args::AclSet { file, .. })
    | AclCommand::Remove(args::AclRemove { file, .. })
    | AclCommand::Clear(args::AclClear { file, .. })) = &arguments.command;
    // Files on a volume have owners, and the volume's session decides about them.
    if card::acl(&mounted::find(file)?.mount, &arguments.command, format)? {
        return Ok(());
    }
    match &arguments.command {
        AclCommand::Get(get) => {
            let place = mounted::find(&get.file)?;
            show(&place, read(&place, directories)?.as_ref(), format)
        }
        AclCommand::Set(set) => {
            let mut added = Vec::new();
            for text in &set.rules {
                added.push(rule(text)?);
            }
            let change = |rules: Option<RuleSet>| {
                let mut all = rules;
                for rule in &added {
                    all = Some(
                        match all {
                            Some(rules) => rules.with(rule.clone()),
                            None => RuleSet::new(vec![rule.clone()]),
                        }
                        .map_err(malformed)?,
                    );
                }
                Ok(all)
            };
            let set = change_all(&set.file, set.recursive, directories, &change)?;
            note_helper(&set, directories)?;
            show(&set, read(&set, directories)?.as_ref(), format)
        }
        AclCommand::Remove(remove) => {
            let mut gone = Vec::new();
            for text in &remove.who {
                gone.push(who(text)?.0);
            }
            let change = |rules: Option<RuleSet>| {
                let mut all = rules;
                for who in &gone {
                    let last = "that is the last rule: set others first, or end all rules with `holdfast program acl clear`";
                    let rest =
                        all.map(|rules| rules.without(who).ok_or_else(|| Failure::new(Exit::Usage, last)));
                    all = rest.transpose()?;
                }
                Ok(all)
            };
            let place = change_all(&remove.file, false, directories, &change)?;
            show(&place, read(&place, directories)?.as_ref(), format)
        }
        AclCommand::Clear(clear) => {
            let mut todo = vec![mounted::find(&clear.file)?];
            while let Some(place) = todo.pop() {
                write(&place, None, directories)?;
                if clear.recursive {
                    todo.extend(children(&place.path)?);
                }
            }
            show(&mounted::find(&clear.file)?, None, format)
        }
    }
}

fn malformed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Usage, error)
}

fn read(place: &MountedFile, directories: &Directories) -> Outcome<Option<RuleSet>> {
    let request = ShowRules { directory: place.mount.clone(), inode: place.inode };
    let report = ask(&place.mount, directories, &request)?;
    let decoded = report.rules.map(|rules| RuleSet::decode(&rules)).transpose();
    decoded.map_err(|error| Failure::new(Exit::Data, format!("{}: {error}", place.path.display())))
}

fn write(place: &MountedFile, rules: Option<RuleSet>, directories: &Directories) -> Outcome {
    let request = SetRules {
        directory: place.mount.clone(),
        inode: place.inode,
        rules: rules.map(|rules| rules.encode()),
    };
    ask(&place.mount, directories, &request).map_err(|failure: Failure| Failure {
        message: format!("{}: {}", place.path.display(), failure.message),
        ..failure
    })
}

/// Changes the rules of a file, and of all below it if `recursive`.
fn change_all(
    file: &Path,
    recursive: bool,
    directories: &Directories,
    change: &dyn Fn(Option<RuleSet>) -> Outcome<Option<RuleSet>>,
) -> Outcome<MountedFile> {
    let mut todo = vec![mounted::find(file)?];
    while let Some(place) = todo.pop() {
        let rules = change(read(&place, directories)?)?;
        write(&place, rules, directories)?;
        if recursive {
            todo.extend(children(&place.path)?);
        }
    }
    mounted::find(file)
}

fn note_helper(place: &MountedFile, directories: &Directories) -> Outcome {
    let request = ShowRules { directory: place.mount.clone(), inode: place.inode };
    let report = ask(&place.mount, directories, &request)?;
    if let Some(why) = report.helper_missing {
        let _ = writeln!(std::io::stderr(), "holdfast: warning: nobody can open it now: {why}");
    }
    Ok(())
}

fn show(place: &MountedFile, rules: Option<&RuleSet>, format: Format) -> Outcome {
    let list = rules.map(RuleSet::rules).unwrap_or_default();
    let rules =
        list.iter().map(|rule| ShownRule { rule: rule.to_string(), program: rule.hint.clone() }).collect();
    format.print(&AclOutput { path: place.path.clone(), rules }, |shown| {
        if shown.rules.is_empty() {
            return format!("{}: no rules; every program may use it", shown.path.display());
        }
        let line = |rule: &ShownRule| {
            format!("{}  {}", rule.rule, crate::output::clean(&rule.program)).trim_end().to_owned()
        };
        shown.rules.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}
