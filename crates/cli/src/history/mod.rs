//! Past states on the command line: `holdfast snapshot`, `holdfast history`, `holdfast restore`.
//!
//! The process that serves the mount lists, fetches and verifies past states, and signs names. A restored
//! file is copied through the mount by this command, as its user, so nobody can restore a file that they
//! could not write.

pub mod args;
pub mod restore;

use crate::output::{Format, clean, progress};
use crate::programs::mounted::ask;
use args::{History, Snapshot, SnapshotCommand};
use holdfast_client::files::PastVersion;
use holdfast_daemon::mounts::past::{PAGE, PastState};
use holdfast_daemon::mounts::requests::{EndSnapshot, ListPastStates, ListVersions, TakeSnapshot};
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// All retained states of a mount.
fn states(mount: &Path, directories: &Directories) -> Outcome<Vec<PastState>> {
    let mut all: Vec<PastState> = Vec::new();
    loop {
        let request = ListPastStates { directory: mount.to_owned(), from: all.len() };
        let some = ask(mount, directories, &request)?;
        let is_last = some.len() < PAGE;
        all.extend(some);
        if is_last {
            return Ok(all);
        }
    }
}

/// A path in a mount, which need not exist.
#[derive(Debug)]
pub struct MountedPath {
    /// The mount.
    pub mount: PathBuf,
    /// The path within the mount.
    pub path: PathBuf,
}

/// Finds the mount that a path is in.
///
/// # Errors
/// The path is in no Holdfast mount.
pub fn place(file: &Path) -> Outcome<MountedPath> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", file.display()));
    let whole = std::path::absolute(file).map_err(failed)?;
    if whole.components().any(|part| part == Component::ParentDir) {
        return Err(Failure::new(Exit::Usage, format!("{}: give the path without `..`", file.display())));
    }
    // Links in the existing part of the path are resolved.
    let mut there = whole.clone();
    let mut rest: Vec<std::ffi::OsString> = Vec::new();
    // The last name is not resolved, even if it is a link.
    if let Some(name) = whole.file_name() {
        rest.push(name.to_owned());
        there.pop();
    }
    let found = loop {
        match there.canonicalize() {
            Ok(found) => break found,
            Err(_) => {
                let Some(name) = there.file_name() else {
                    return Err(Failure::new(Exit::NoInput, format!("{}: no such path", file.display())));
                };
                rest.push(name.to_owned());
                there.pop();
            }
        }
    };
    let whole = rest.iter().rev().fold(found, |path, name| path.join(name));
    let mounts = mountpoint::mounted()?.into_iter().filter(|mount| whole.starts_with(&mount.directory));
    let nearest = mounts.max_by_key(|mount| (mount.directory.as_os_str().len(), mount.id));
    match nearest {
        Some(mount) if mount.is_holdfast() => {
            let path = whole.strip_prefix(&mount.directory).unwrap_or(Path::new("")).to_owned();
            Ok(MountedPath { mount: mount.directory, path })
        }
        _ => Err(Failure::new(Exit::MountPoint, format!("{}: is in no holdfast mount", whole.display()))),
    }
}

/// `holdfast snapshot`
pub fn snapshot(arguments: &Snapshot, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        SnapshotCommand::Create { mount, name } => {
            let mount = mountpoint::absolute(mount)?;
            let request = TakeSnapshot { directory: mount.clone(), name: name.clone() };
            let made = ask(&mount, directories, &request).map_err(|failure: Failure| about(name, failure))?;
            format.print(&made, |made| {
                let (mount, time) = (mount.display(), moment(made.time_ns));
                format!("{mount}/.snapshots/{}: the state of {time}", clean(&made.name))
            })
        }
        SnapshotCommand::Remove { mount, name } => {
            let mount = mountpoint::absolute(mount)?;
            let request = EndSnapshot { directory: mount.clone(), name: name.clone() };
            ask(&mount, directories, &request).map_err(|failure| about(name, failure))?;
            format.print(&serde_json::json!({ "removed": name }), |_| format!("Removed: {}", clean(name)))
        }
        SnapshotCommand::List { mount, all } => {
            let mount = mountpoint::absolute(mount)?;
            let mut states = states(&mount, directories)?;
            states.retain(|state| *all || state.named_by.is_some());
            states.sort_by_key(|state| state.log_size);
            format.print(&states, |states| {
                if states.is_empty() {
                    return "None. `holdfast snapshot create DIR NAME` makes one.".to_owned();
                }
                states.iter().map(line_of).collect::<Vec<_>>().join("\n")
            })
        }
    }
}

fn line_of(state: &PastState) -> String {
    let name = clean(&state.name);
    match &state.named_by {
        Some(author) => format!("{name}  the state of {}, named by {}", moment(state.time_ns), clean(author)),
        None => name,
    }
}

/// Adds the name to a failure's message.
fn about(name: &str, failure: Failure) -> Failure {
    Failure { message: format!("{name}: {}", failure.message), ..failure }
}

/// `holdfast history`
pub fn versions(arguments: &History, directories: &Directories, format: Format) -> Outcome {
    let MountedPath { mount, path } = place(&arguments.file)?;
    let bar = progress("reading past states");
    let request = ListVersions { directory: mount.clone(), path: path.as_os_str().as_bytes().to_vec() };
    let versions: Outcome<Vec<PastVersion>> = ask(&mount, directories, &request);
    bar.finish_and_clear();
    let versions = versions.map_err(|failure| about(&arguments.file.display().to_string(), failure))?;
    format.print(&versions, |versions| versions.iter().map(describe).collect::<Vec<_>>().join("\n"))
}

fn describe(version: &PastVersion) -> String {
    let until = match &version.last {
        None => "until now".to_owned(),
        Some(last) if *last == version.first => "in this state".to_owned(),
        Some(last) => format!("until {}", clean(last)),
    };
    let what = match &version.file {
        None => "not there".to_owned(),
        Some(file) => format!(
            "{}, {} bytes, modified {}, written by {} (device {})",
            file.kind,
            file.bytes,
            moment(file.modified_ns),
            clean(&file.written_by),
            file.device
        ),
    };
    let snapshots = match version.snapshots.is_empty() {
        true => String::new(),
        false => format!(
            "; in {}",
            version.snapshots.iter().map(|name| clean(name)).collect::<Vec<_>>().join(", ")
        ),
    };
    format!("{}  {what}\n    {until}{snapshots}", clean(&version.first))
}
