//! `holdfast salvage`: retrieves what could not be saved to the server.
//!
//! A mount that freezes, that ends without being able to publish, or that finds what a crashed predecessor
//! left, saves this into a folder of its own below the state directory, with a list. This command lists and
//! copies those folders.

use crate::args;
use crate::output::{Format, clean};
use crate::which::states;
use holdfast_daemon::control::Client;
use holdfast_daemon::mounts::requests;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Name of the directory of such folders in a state directory.
pub const FOLDER: &str = "salvage";
/// Name of the list in each folder.
const LIST: &str = "INDEX.json";

/// A folder, as its list describes it.
#[derive(Serialize, Deserialize)]
struct Saved {
    folder: PathBuf,
    reason: String,
    files: Vec<SavedFile>,
    /// Paths whose last changes are lost or were held back.
    #[serde(default)]
    in_doubt: Vec<String>,
    /// The directory that it was copied to now.
    #[serde(default)]
    copied_to: Option<PathBuf>,
}

/// A file in a folder.
#[derive(Serialize, Deserialize)]
struct SavedFile {
    path: String,
    saved_as: PathBuf,
    bytes: u64,
    missing: Vec<(u64, u64)>,
    from_earlier_run: bool,
}

/// `holdfast salvage`
pub fn run(arguments: &args::Salvage, directories: &Directories, format: Format) -> Outcome {
    let mut found = Vec::new();
    for state_dir in states(&arguments.which, directories)? {
        // A running mount is asked to save what is unsaved now.
        if let Some(process) = Client::connect(&state_dir)? {
            process.call(&requests::Salvage)?;
        }
        for folder in folders_in(&state_dir) {
            let mut saved = read(&folder)?;
            if let Some(to) = &arguments.to {
                saved.copied_to = Some(copy(&saved, to)?);
            }
            found.push(saved);
        }
    }
    format.print(&found, |found| describe(found))
}

/// Folders in a state directory, oldest first.
pub fn folders_in(state_dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(state_dir.join(FOLDER)) else { return Vec::new() };
    let mut folders: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.join(LIST).is_file()).collect();
    folders.sort();
    folders
}

/// The paths in doubt that a folder lists, until it is removed. An unreadable list is not an error here.
pub fn in_doubt(folder: &Path) -> Vec<String> {
    read(folder).map(|saved| saved.in_doubt).unwrap_or_default()
}

fn read(folder: &Path) -> Outcome<Saved> {
    let list = folder.join(LIST);
    let text =
        fs::read(&list).map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", list.display())))?;
    let mut saved: Saved = serde_json::from_slice(&text)
        .map_err(|error| Failure::new(Exit::Data, format!("{}: {error}", list.display())))?;
    // The folder may have been moved since the list was written.
    saved.folder = folder.to_owned();
    Ok(saved)
}

fn describe(found: &[Saved]) -> String {
    if found.is_empty() {
        return "Nothing to salvage: everything was saved to the server.".to_owned();
    }
    let mut lines = Vec::new();
    for saved in found {
        lines.push(saved.folder.display().to_string());
        lines.push(format!("  because: {}", clean(&saved.reason)));
        for file in &saved.files {
            let holes = match file.missing.len() {
                0 => String::new(),
                _ => ", with holes where the server gives no data".to_owned(),
            };
            lines.push(format!("  {} ({} bytes{holes})", clean(&file.path), file.bytes));
        }
        for path in &saved.in_doubt {
            lines.push(format!("  in doubt: {}", clean(path)));
        }
        if let Some(to) = &saved.copied_to {
            lines.push(format!("  copied to {}", to.display()));
        }
    }
    if found.iter().all(|saved| saved.copied_to.is_none()) {
        lines.push(
            "`holdfast salvage --to DIR` copies them; remove a folder when you no longer need it.".to_owned(),
        );
    }
    lines.join("\n")
}

/// Copies a folder below `to`; never overwrites a file.
fn copy(saved: &Saved, to: &Path) -> Outcome<PathBuf> {
    let failed = |path: &Path, error: io::Error| {
        let code = match error.kind() {
            io::ErrorKind::AlreadyExists => Exit::CannotCreate,
            _ => Exit::Io,
        };
        Failure::new(code, format!("{}: {error}", path.display()))
    };
    let target = to.join(saved.folder.file_name().unwrap_or_default());
    fs::create_dir_all(to).map_err(|error| failed(to, error))?;
    fs::create_dir(&target).map_err(|error| failed(&target, error))?;
    for file in &saved.files {
        if !file.saved_as.components().all(|component| matches!(component, Component::Normal(_))) {
            let message = format!("{}: names a file outside the folder", saved.folder.join(LIST).display());
            return Err(Failure::new(Exit::Data, message));
        }
        let path = target.join(&file.saved_as);
        let parent = path.parent().unwrap_or(&target);
        fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        let mut from =
            fs::File::open(saved.folder.join(&file.saved_as)).map_err(|error| failed(&path, error))?;
        let mut into = fs::File::create_new(&path).map_err(|error| failed(&path, error))?;
        io::copy(&mut from, &mut into).map_err(|error| failed(&path, error))?;
    }
    let list = target.join(LIST);
    fs::copy(saved.folder.join(LIST), &list).map_err(|error| failed(&list, error))?;
    Ok(target)
}
