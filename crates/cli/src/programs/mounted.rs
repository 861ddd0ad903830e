//! Finds files in mounts, and asks the daemons of these mounts.

use holdfast_daemon::control::{Client, Request};
use holdfast_daemon::mounts::requests::MountRequest;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A file in a mount.
pub struct MountedFile {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its inode number.
    pub inode: u64,
    /// The mount point.
    pub mount: PathBuf,
}

/// Finds a file's mount.
///
/// # Errors
/// The file does not exist, or is in no Holdfast mount.
pub fn find(file: &Path) -> Outcome<MountedFile> {
    let failed = |error: std::io::Error| Failure::new(Exit::NoInput, format!("{}: {error}", file.display()));
    let path = file.canonicalize().map_err(failed)?;
    let inode = std::fs::metadata(&path).map_err(failed)?.ino();
    let mounts = mountpoint::mounted()?.into_iter().filter(|mount| path.starts_with(&mount.directory));
    let nearest = mounts.max_by_key(|mount| (mount.directory.as_os_str().len(), mount.id));
    match nearest {
        Some(mount) if mount.is_holdfast() => Ok(MountedFile { path, inode, mount: mount.directory }),
        _ => Err(Failure::new(Exit::MountPoint, format!("{}: is in no holdfast mount", path.display()))),
    }
}

/// Sends a request to the daemon of a mount.
///
/// # Errors
/// The failure that it reports, or that no process of this user serves the mount.
pub fn ask<R: Request<Any = MountRequest>>(
    mount: &Path,
    directories: &Directories,
    request: &R,
) -> Outcome<R::Reply> {
    for state_dir in directories.all_states()? {
        let Ok(Some(process)) = Client::connect(&state_dir) else { continue };
        match process.call(request) {
            Err(failure) if failure.code == Exit::MountPoint => {}
            other => return other,
        }
    }
    let message = format!("{}: no process of yours serves this mount", mount.display());
    Err(Failure::new(Exit::NotAllowed, message)
        .hint("whoever mounted it changes its rules; if it was mounted with --state, give the same"))
}

/// Files and directories in a directory.
pub fn children(path: &Path) -> Outcome<Vec<MountedFile>> {
    let failed = |error: std::io::Error| Failure::new(Exit::Io, format!("{}: {error}", path.display()));
    if !path.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_file() || kind.is_dir() {
            found.push(find(&entry.path())?);
        }
    }
    Ok(found)
}
