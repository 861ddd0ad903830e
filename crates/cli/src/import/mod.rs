//! `holdfast fs import`: imports an existing tree into a writable file system.

pub mod args;
mod engine;
mod mounted;
mod source;
mod target;
mod walk;

use crate::key_user::KeyUser;
use crate::live;
use crate::output::{Format, clean, progress};
use args::Import;
use engine::EngineTarget;
use holdfast_client::files::OwnerMap;
use holdfast_client::{Engine, FileSystem, MountOptions};
use holdfast_daemon::keys::{self, Key};
use holdfast_daemon::limits;
use holdfast_daemon::mounts::requests::Status;
use holdfast_daemon::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use indicatif::HumanBytes;
use mounted::MountedTarget;
use rustix::process::{getegid, geteuid};
use serde::Serialize;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use walk::{Report, Walk, Wishes};

/// How long to wait for the server.
const DEADLINE: Duration = Duration::from_secs(60);
/// Most paths of each sort that are printed.
const PATHS_SHOWN: usize = 20;
/// How often the command retries while another process starts or stops using the key.
const ATTEMPTS: usize = 50;

/// The result as it is printed.
#[derive(Serialize)]
struct ImportOutput {
    from: PathBuf,
    to: PathBuf,
    dry_run: bool,
    #[serde(flatten)]
    report: Report,
}

/// `holdfast fs import`
pub fn run(arguments: &Import, directories: &Directories, format: Format) -> Outcome {
    limits::raise_open_files();
    let no_input =
        |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", arguments.from.display()));
    let from = std::fs::canonicalize(&arguments.from).map_err(no_input)?;
    if !from.is_dir() {
        return Err(Failure::new(Exit::NoInput, format!("{}: it is no directory", arguments.from.display())));
    }
    let wishes = Wishes {
        replace: arguments.replace,
        delete: arguments.delete,
        checksum: arguments.checksum,
        dry_run: arguments.dry_run,
        parallel: usize::from(arguments.parallel),
    };
    let report = match live::parse(&arguments.to)? {
        None => {
            must_be_mounted(&arguments.to)?;
            into_directory(&from, &arguments.to, wishes)?
        }
        Some(to) => {
            let Some(key) = &arguments.key else {
                return Err(Failure::new(Exit::Usage, "which key this device has is not said")
                    .hint("give --key KEY, or a directory of a mount as the destination"));
            };
            let key = keys::read(key)?;
            into_file_system(&from, &to, key, directories, wishes)?
        }
    };
    let done = ImportOutput {
        from: arguments.from.clone(),
        to: arguments.to.clone(),
        dry_run: arguments.dry_run,
        report,
    };
    format.print(&done, describe)?;
    verdict(&done.report)
}

/// Refuses a directory that is not in a Holdfast mount: a mistyped address would look like one.
fn must_be_mounted(to: &Path) -> Outcome {
    let to = mountpoint::absolute(to.ancestors().find(|above| above.exists()).unwrap_or(Path::new(".")))?;
    let above = mountpoint::mounted()?.into_iter().filter(|mount| to.starts_with(&mount.directory));
    let nearest = above.max_by_key(|mount| mount.directory.components().count());
    if nearest.is_some_and(|mount| mount.is_holdfast()) {
        return Ok(());
    }
    let message = format!("{}: it is in no mounted Holdfast file system", to.display());
    Err(Failure::new(Exit::Usage, message)
        .hint("give a directory of a mount, or an address: hf://HOST:PORT/FSID/DIRECTORY"))
}

fn into_directory(from: &Path, to: &Path, wishes: Wishes) -> Outcome<Report> {
    let to = std::path::absolute(to)
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", to.display())))?;
    // The existing part of the path decides, because the rest will be created below it.
    let there = to.ancestors().find_map(|above| std::fs::canonicalize(above).ok());
    if there.is_some_and(|there| there.starts_with(from)) {
        let message = format!("{}: it is in {}, which would never end", to.display(), from.display());
        return Err(Failure::new(Exit::Usage, message).hint("import from a directory that is elsewhere"));
    }
    walk(&MountedTarget::new(to.clone()), from, wishes)
        .map_err(|why| Failure::new(Exit::CannotCreate, format!("{}: {why}", to.display())))
}

fn into_file_system(
    from: &Path,
    to: &live::LiveDirectory,
    key: Key,
    directories: &Directories,
    wishes: Wishes,
) -> Outcome<Report> {
    let state_dir = directories.state_of(&to.address.file_system, &key.public())?;
    let cache_dir = directories.cache_of(&to.address.file_system)?;
    make_private(&state_dir)?;
    make_private(&cache_dir)?;
    let user = KeyUser::find(&to.address, key, &state_dir, ATTEMPTS, |mut config| {
        config.cache_bytes = holdfast_daemon::cache::size_given(directories)?;
        config.cache_dir = Some(cache_dir.clone());
        config.deadline = DEADLINE;
        Ok(config)
    })?;
    match user {
        KeyUser::Process(process) => {
            let status = process.call(&Status)?;
            let mount = status.mounts.iter().find(|mount| !mount.read_only).ok_or_else(|| {
                Failure::new(Exit::InUse, "this key serves a read-only mount on this machine")
                    .hint("unmount it, or import with another device's key")
            })?;
            let path = to.path.iter().position(|byte| *byte != b'/').map_or(&[][..], |at| &to.path[at..]);
            into_directory(from, &mount.directory.join(OsStr::from_bytes(path)), wishes)
        }
        KeyUser::Engine(engine) => {
            let report = into_engine(from, &to.path, &engine, &state_dir, wishes);
            engine.stop();
            report.map_err(|mut failure| {
                failure.message = format!("{}: {}", String::from_utf8_lossy(&to.path), failure.message);
                failure
            })
        }
    }
}

fn into_engine(
    from: &Path,
    path: &[u8],
    engine: &Arc<Engine>,
    state_dir: &Path,
    wishes: Wishes,
) -> Outcome<Report> {
    // An import that was killed may have left copies there; the files themselves are still in its source.
    let spool_dir = state_dir.join("import");
    let local = |error: std::io::Error| Failure::new(Exit::Io, format!("{}: {error}", spool_dir.display()));
    match std::fs::remove_dir_all(&spool_dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(local(error)),
        _ => {}
    }
    let options = MountOptions {
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        owners: OwnerMap::default(),
        spool_dir: spool_dir.clone(),
        salvage_dir: state_dir.join(crate::salvage::FOLDER),
        read_only: wishes.dry_run,
    };
    let files = FileSystem::new(Arc::clone(engine), options)?;
    let report = walk(&EngineTarget::new(files, path), from, wishes);
    let _ = std::fs::remove_dir_all(&spool_dir);
    // If the server has broken the order, that explains more than the first failure.
    if let Some(frozen) = engine.status().frozen {
        return Err(holdfast_client::FsError::Frozen(Arc::new(frozen)).into());
    }
    report.map_err(|why| Failure::new(Exit::CannotCreate, why))
}

fn walk<T: target::Target>(target: &T, from: &Path, wishes: Wishes) -> Result<Report, target::Trouble> {
    let bar = progress("importing");
    let show = |report: &Report| {
        let (names, bytes) = (names_of(report) + report.unchanged, HumanBytes(report.bytes));
        bar.set_message(format!("{names} names, {bytes} brought in"));
    };
    let report = Walk::run(target, from, wishes, &show);
    bar.finish_and_clear();
    report
}

fn names_of(report: &Report) -> u64 {
    report.files + report.directories + report.symlinks + report.links + report.special
}

fn describe(done: &ImportOutput) -> String {
    let report = &done.report;
    let (brought, removed) = match done.dry_run {
        true => ("Would bring in", "would remove"),
        false => ("Brought in", "removed"),
    };
    let mut lines = vec![format!(
        "{brought} {} files ({}), {} directories, {} symbolic links, {} further names, {} others; {} replaced.",
        report.files,
        HumanBytes(report.bytes),
        report.directories,
        report.symlinks,
        report.links,
        report.special,
        report.replaced
    )];
    lines.push(format!("Unchanged: {}; {removed}: {}.", report.unchanged, report.removed));
    let mut tell = |count: u64, what: &str, paths: &mut dyn Iterator<Item = String>| {
        if count > 0 {
            lines.push(format!("{count} {what}:"));
            let shown: Vec<String> =
                paths.take(PATHS_SHOWN).map(|path| format!("  {}", clean(&path))).collect();
            let more = count - shown.len() as u64;
            lines.extend(shown);
            if more > 0 {
                lines.push(format!("  (and {more} more; --json names up to a thousand)"));
            }
        }
    };
    tell(
        report.refused,
        "there already, different, and left as they are (--replace replaces them)",
        &mut report.refused_paths.iter().cloned(),
    );
    tell(
        report.changed,
        "changed while they were read, and left out (run it again)",
        &mut report.changed_paths.iter().cloned(),
    );
    let mut failures = report.failures.iter().map(|failed| format!("{}: {}", failed.path, failed.why));
    tell(report.failed, "FAILED", &mut failures);
    lines.join("\n")
}

fn verdict(report: &Report) -> Outcome {
    let _ = std::io::stdout().flush();
    if report.failed > 0 || report.changed > 0 {
        let message = format!("{} names were not brought in", report.failed + report.changed);
        return Err(Failure::new(Exit::Failed, message).hint("run it again; what is there is not sent again"));
    }
    if report.refused > 0 {
        let message = format!("{} names are there already and differ", report.refused);
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("give --replace to replace them, or look at them first"));
    }
    Ok(())
}
