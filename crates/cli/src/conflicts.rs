//! `holdfast conflicts`: versions of files that were overwritten by somebody who had not seen them.
//!
//! They are stored in the file system itself; the process that serves a mount of it finds, reads and verifies
//! them.

use crate::args::{Conflicts, ConflictsCommand};
use crate::output::{Format, bytes_bar, clean};
use crate::serving::{Process, processes};
use holdfast_client::files::ConflictCopy;
use holdfast_daemon::control::Bytes;
use holdfast_daemon::mounts::conflicts::position;
use holdfast_daemon::mounts::requests::{DropConflicts, ListConflicts, ReadConflict};
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One version, as it is printed.
#[derive(Clone, Debug, Serialize)]
struct Conflict {
    file_system: String,
    #[serde(flatten)]
    version: ConflictCopy,
}

/// `holdfast conflicts`
pub fn run(arguments: &Conflicts, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        None => {
            let mut found = Vec::new();
            for process in processes(arguments.which.as_deref(), directories)? {
                found.extend(process.conflicts()?);
            }
            format.print(&found, |found| describe(found))
        }
        Some(ConflictsCommand::Get { id, out, of }) => {
            let bytes = find(id, of.as_deref(), directories)?.get(id, out)?;
            let said = serde_json::json!({ "id": id, "saved_as": out, "bytes": bytes });
            format.print(&said, |_| format!("{id}: {bytes} bytes saved as {}", out.display()))
        }
        Some(ConflictsCommand::Drop { ids, of }) => {
            let mut by_process: Vec<(Process, Vec<String>)> = Vec::new();
            for id in ids {
                let process = find(id, of.as_deref(), directories)?;
                match by_process.iter_mut().find(|(known, _)| known.state_dir == process.state_dir) {
                    Some((_, ids)) => ids.push(id.clone()),
                    None => by_process.push((process, vec![id.clone()])),
                }
            }
            for (process, ids) in &by_process {
                process.call(&DropConflicts { ids: ids.clone() })?;
            }
            format.print(&ids, |ids| format!("Removed: {}", ids.join(", ")))
        }
    }
}

/// The process that serves the file system with this version.
fn find(id: &str, of: Option<&str>, directories: &Directories) -> Outcome<Process> {
    let mut found = Vec::new();
    for process in processes(of, directories)? {
        if process.conflicts()?.iter().any(|conflict| conflict.version.id == id) {
            found.push(process);
        }
    }
    match found.len() {
        0 => Err(Failure::new(Exit::NoInput, format!("{id}: there is no such version"))
            .hint("`holdfast conflicts` lists what is kept in the file systems that are mounted")),
        1 => Ok(found.remove(0)),
        _ => {
            let places: Vec<&str> = found.iter().map(|process| process.address.as_str()).collect();
            Err(Failure::new(
                Exit::Usage,
                format!("{id}: several file systems have one: {}", places.join(", ")),
            )
            .hint("say which with --of"))
        }
    }
}

/// Requests about conflict copies.
trait Keeping {
    fn conflicts(&self) -> Outcome<Vec<Conflict>>;
    fn get(&self, id: &str, out: &Path) -> Outcome<u64>;
    fn copy(&self, id: &str, file: &File) -> Outcome<std::io::Result<u64>>;
}

impl Keeping for Process {
    fn conflicts(&self) -> Outcome<Vec<Conflict>> {
        let mut found: Vec<Conflict> = Vec::new();
        loop {
            let after = found.last().map(|last| position(&last.version));
            let versions = self.call(&ListConflicts { after })?;
            if versions.is_empty() {
                return Ok(found);
            }
            let file_system = || self.address.clone();
            found
                .extend(versions.into_iter().map(|version| Conflict { file_system: file_system(), version }));
        }
    }

    /// Copies a version to a new file, a part at a time; holes stay holes. The file is removed again if that
    /// fails.
    fn get(&self, id: &str, out: &Path) -> Outcome<u64> {
        let failed = |error: std::io::Error| {
            let code = match error.kind() {
                std::io::ErrorKind::AlreadyExists => Exit::CannotCreate,
                _ => Exit::Io,
            };
            Failure::new(code, format!("{}: {error}", out.display()))
        };
        let file = File::create_new(out).map_err(failed)?;
        let copied = self.copy(id, &file).and_then(|copied| match copied {
            Ok(size) => file.set_len(size).and_then(|()| file.sync_all()).map_err(failed).map(|()| size),
            Err(error) => Err(failed(error)),
        });
        copied.inspect_err(|_| {
            let _ = fs::remove_file(out);
        })
    }

    fn copy(&self, id: &str, file: &File) -> Outcome<std::io::Result<u64>> {
        let bar = bytes_bar(id);
        let mut content: Option<String> = None;
        let mut offset = 0;
        loop {
            let part = self.call(&ReadConflict { id: id.to_owned(), offset })?;
            if content.get_or_insert_with(|| part.content.clone()) != &part.content {
                return Err(Failure::new(Exit::Failed, format!("{id}: somebody changed it meanwhile")));
            }
            let Bytes(bytes) = part.bytes;
            bar.set_length(part.size);
            bar.set_position(part.offset);
            if bytes.is_empty() {
                bar.finish_and_clear();
                return Ok(Ok(part.size));
            }
            if let Err(error) = file.write_all_at(&bytes, part.offset) {
                return Ok(Err(error));
            }
            offset = part.offset + bytes.len() as u64;
        }
    }
}

fn describe(found: &[Conflict]) -> String {
    if found.is_empty() {
        return "No conflicts: no version of a file that is mounted here was overwritten unseen.".to_owned();
    }
    let mut lines = Vec::new();
    let mut file_system = "";
    for Conflict { file_system: place, version } in found {
        if file_system != place {
            file_system = place;
            lines.push(place.clone());
        }
        lines.push(format!("  {}  {}", version.id, clean(&version.path)));
        lines.push(format!(
            "    {} bytes, written by {} on {}",
            version.bytes,
            clean(&version.written_by),
            moment(version.modified_ns)
        ));
        lines.push(format!(
            "    overwritten by {}, who had not seen it, on {}",
            clean(&version.overwritten_by),
            moment(version.overwritten_ns)
        ));
    }
    lines.push(
        "Compare each with the file as it is now: `holdfast conflicts get ID --out FILE` copies a version out. \
         `holdfast conflicts drop ID` removes it when nobody needs it any more."
            .to_owned(),
    );
    lines.join("\n")
}
