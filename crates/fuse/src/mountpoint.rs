//! Mount points: which directories can become one, which are one, and how to unmount them.
//!
//! Except where a function says so, nothing here asks a mounted file system anything it could block on: a
//! mount that is dead or hangs must be describable and removable.

use crate::attach::HELPER;
use crate::look::{self, Look};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The file system type that the kernel shows for our mounts.
pub const KIND: &str = "fuse.holdfast";
/// The beginning of the sources of mounted images of releases. The kernel serves these itself, through
/// overlayfs.
pub const IMAGE_SOURCE: &str = "hf+image:";

/// One line of the kernel's table of mounts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The kernel's number of the mount; never used for two mounts at the same time.
    pub id: u64,
    /// The kernel's number of the mounted file system, if it has no device of its own. For a FUSE mount it is
    /// also the number of its connection.
    pub connection: Option<u32>,
    /// The mount point.
    pub directory: PathBuf,
    /// File system type, such as [`KIND`].
    pub kind: String,
    /// The source; for our mounts, the address.
    pub source: String,
}

impl Mounted {
    /// Whether it is a mount of Holdfast.
    pub fn is_holdfast(&self) -> bool {
        self.kind == KIND || (self.kind == "overlay" && self.source.starts_with(IMAGE_SOURCE))
    }
}

/// Why a directory cannot be mounted on or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory does not exist.
    #[error("{0}: there is no such directory; make it first (mkdir -p)")]
    Missing(PathBuf),
    /// The path is not a directory.
    #[error("{0}: is not a directory, so nothing can be mounted on it")]
    NotDirectory(PathBuf),
    /// The directory holds files, which the mount would hide.
    #[error("{0}: is not empty; its files would be hidden by the mount. Mount on an empty directory")]
    NotEmpty(PathBuf),
    /// A Holdfast file system is mounted there.
    #[error(
        "{directory}: {source_name} is mounted there already; `holdfast umount {directory}` ends that mount"
    )]
    AlreadyMounted {
        /// The mount point.
        directory: PathBuf,
        /// What is mounted there.
        source_name: String,
    },
    /// Something else is mounted there.
    #[error("{directory}: is in use as a mount point ({kind}, {source_name}); choose another directory")]
    InUse {
        /// The mount point.
        directory: PathBuf,
        /// File system type.
        kind: String,
        /// What is mounted there.
        source_name: String,
    },
    /// No mount of Holdfast is there.
    #[error("{0}: no holdfast file system is mounted there")]
    NotMounted(PathBuf),
    /// Programs are using the mount.
    #[error("{directory}: is busy{holders}. End them or leave the directory, or use --lazy")]
    Busy {
        /// The mount point.
        directory: PathBuf,
        /// The programs that use it, as text; may be empty.
        holders: String,
    },
    /// The kernel or fusermount3 refused.
    #[error("{directory}: cannot be {verb}: {reason}")]
    Refused {
        /// The mount point.
        directory: PathBuf,
        /// "mounted" or "unmounted".
        verb: &'static str,
        /// What the kernel or the helper reported.
        reason: String,
    },
    /// The kernel's table of mounts could not be read.
    #[error("the table of mounts cannot be read: {0}")]
    Table(#[source] io::Error),
}

/// How to unmount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnmountMode {
    /// Refuse if programs are using it.
    Gently,
    /// Remove it from the directory tree at once. It ends when the last program stops using it.
    Lazily,
}

/// All mounts of this mount namespace, oldest first.
///
/// # Errors
/// [`MountError::Table`].
pub fn mounted() -> Result<Vec<Mounted>, MountError> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(MountError::Table)?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
}

/// The topmost mount at exactly `directory` (an absolute path without symbolic links).
///
/// # Errors
/// [`MountError::Table`].
pub fn mounted_at(directory: &Path) -> Result<Option<Mounted>, MountError> {
    Ok(mounted()?.into_iter().rev().find(|mount| mount.directory == directory))
}

/// The absolute path of `directory` without symbolic links, even if a dead mount is on it.
///
/// # Errors
/// [`MountError::Missing`], or the kernel's error.
pub fn absolute(directory: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing(directory.to_owned()),
        io::ErrorKind::NotADirectory => MountError::NotDirectory(directory.to_owned()),
        _ => refused(directory, "mounted", error.to_string()),
    };
    match directory.canonicalize() {
        Ok(path) => Ok(path),
        // If the mount point itself does not answer, its parent is resolved instead.
        Err(error) => match (directory.parent(), directory.file_name()) {
            (Some(parent), Some(name)) if error.kind() != io::ErrorKind::NotFound => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                Ok(parent.canonicalize().map_err(failed)?.join(name))
            }
            _ => Err(failed(error)),
        },
    }
}

/// Makes sure that `directory` can be mounted on, and returns its absolute path. A dead Holdfast mount there
/// is removed.
///
/// # Errors
/// See [`MountError`].
pub fn prepare(directory: &Path) -> Result<PathBuf, MountError> {
    let path = absolute(directory)?;
    while let Some(mount) = mounted_at(&path)? {
        if mount.is_holdfast() && remove_if_dead(&mount)? {
            continue;
        }
        return Err(if mount.is_holdfast() {
            MountError::AlreadyMounted { directory: path, source_name: mount.source }
        } else {
            MountError::InUse { directory: path, kind: mount.kind, source_name: mount.source }
        });
    }
    let metadata = std::fs::metadata(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing(path.clone()),
        _ => refused(&path, "mounted", error.to_string()),
    })?;
    if !metadata.is_dir() {
        return Err(MountError::NotDirectory(path));
    }
    let mut entries =
        std::fs::read_dir(&path).map_err(|error| refused(&path, "mounted", error.to_string()))?;
    if entries.next().is_some() {
        return Err(MountError::NotEmpty(path));
    }
    Ok(path)
}

/// How a mount reacts to a request that its process must answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// The mount answers, or refuses to answer this user.
    Answers,
    /// The process that served it has ended.
    Dead,
    /// There is no answer within [`LOOK_WAIT`]: its process is stopped, or waits for something itself.
    Stuck,
}

/// How long a look at a mount may take: longer than a busy machine needs.
pub const LOOK_WAIT: Duration = Duration::from_secs(10);
/// Pause between attempts to unmount while another process is looking at the mount.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Sends a request to the mount at `path`, and waits up to [`LOOK_WAIT`] for an answer.
pub fn condition(path: &Path) -> Condition {
    match look::at(path, None, LOOK_WAIT) {
        Some(Look::Dead) => Condition::Dead,
        Some(Look::Answers(_)) => Condition::Answers,
        None => Condition::Stuck,
    }
}

/// An attribute of the root of the mount at `path`. Returns `None` if it has none, this user may not read it,
/// or there is no answer within [`LOOK_WAIT`].
pub fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    match look::at(path, Some(name), LOOK_WAIT)? {
        Look::Answers(value) => value,
        Look::Dead => None,
    }
}

/// Whether the process behind the FUSE mount at `path` has ended.
pub fn is_dead(path: &Path) -> bool {
    condition(path) == Condition::Dead
}

/// Removes a mount whose process has ended. Returns whether the mount is gone: another process may have
/// removed it meanwhile, or mounted another in its place, which stays.
///
/// # Errors
/// As for [`unmount`].
pub fn remove_if_dead(mount: &Mounted) -> Result<bool, MountError> {
    if !is_dead(&mount.directory) {
        return Ok(mounted_at(&mount.directory)?.is_none_or(|now| now.id != mount.id));
    }
    match unmount_only(&mount.directory, mount.id, UnmountMode::Lazily) {
        Err(MountError::NotMounted(_)) => Ok(true),
        Ok(()) => {
            tracing::info!(directory = %mount.directory.display(), "removed a mount whose process was gone");
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Runs a call that may wait for a mount's process, for at most `limit`. Returns `None` if it takes longer;
/// it then continues on its own thread, which ends with this process.
pub fn within<T: Send + 'static>(limit: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, wait) = mpsc::channel();
    let look = move || drop(done.send(look()));
    std::thread::Builder::new().name("look".to_owned()).spawn(look).ok()?;
    wait.recv_timeout(limit).ok()
}

/// The directory where the kernel lets FUSE connections be ended by their number.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the FUSE connection of the mount at `path`: every program that waits for an answer gets an error, now
/// and later. This is for a mount whose process cannot end because one of its threads waits, in the kernel,
/// for an answer from that process itself.
///
/// # Errors
/// The kernel offers no way: its control file system is not mounted, and unmounting by force needs
/// privileges.
pub fn abort(path: &Path, connection: u32) -> io::Result<()> {
    let switch = Path::new(CONNECTIONS).join(connection.to_string()).join("abort");
    match std::fs::write(&switch, b"1") {
        Ok(()) => Ok(()),
        // Unmounting by force has the same effect. Only root may do that, and only while it is mounted there.
        Err(error) => {
            rustix::mount::unmount(path, UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH)
                .map_err(|_| io::Error::new(error.kind(), format!("{}: {error}", switch.display())))
        }
    }
}

/// Ends the topmost mount at `path` if [`Mounted::id`] of it is `id`: another mount may have taken its place
/// meanwhile.
///
/// # Errors
/// As for [`unmount`]; [`MountError::NotMounted`] also if another mount is there.
pub fn unmount_only(path: &Path, id: u64, manner: UnmountMode) -> Result<(), MountError> {
    match mounted_at(path)? {
        Some(mount) if mount.id == id => unmount(path, manner),
        _ => Err(MountError::NotMounted(path.to_owned())),
    }
}

/// Ends the topmost mount at `path`, directly if this process may, else through fusermount3. A program that
/// only looks at the mount for a moment (`holdfast status`, `df`, a monitor) has nothing open there; this
/// waits until it has ended.
///
/// # Errors
/// [`MountError::Busy`] when `Gently` and programs use it; [`MountError::NotMounted`];
/// [`MountError::Refused`].
pub fn unmount(path: &Path, manner: UnmountMode) -> Result<(), MountError> {
    let end = Instant::now() + LOOK_WAIT;
    loop {
        match unmount_now(path, manner) {
            Err(MountError::Busy { holders, .. })
                if holders.is_empty() && Instant::now() < end && !has_mounts_below(path) =>
            {
                std::thread::sleep(BUSY_PAUSE);
            }
            done => return done,
        }
    }
}

fn has_mounts_below(path: &Path) -> bool {
    let below = |mount: &Mounted| mount.directory != path && mount.directory.starts_with(path);
    mounted().is_ok_and(|mounts| mounts.iter().any(below))
}

fn unmount_now(path: &Path, manner: UnmountMode) -> Result<(), MountError> {
    let flags = match manner {
        UnmountMode::Gently => UnmountFlags::NOFOLLOW,
        UnmountMode::Lazily => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy(path)),
        Err(Errno::INVAL) => Err(MountError::NotMounted(path.to_owned())),
        Err(Errno::PERM) => unmount_by_helper(path, manner),
        Err(error) => Err(refused(path, "unmounted", error.to_string())),
    }
}

fn unmount_by_helper(path: &Path, manner: UnmountMode) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if manner == UnmountMode::Lazily {
        command.arg("-z");
    }
    command.arg("--").arg(path).stdin(Stdio::null()).env("LC_ALL", "C");
    let output = command.output().map_err(|error| {
        refused(path, "unmounted", format!("{HELPER} (package fuse3) cannot be run: {error}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(busy(path));
    }
    if message.contains("not found") {
        return Err(MountError::NotMounted(path.to_owned()));
    }
    Err(refused(path, "unmounted", message))
}

fn refused(directory: &Path, verb: &'static str, reason: String) -> MountError {
    MountError::Refused { directory: directory.to_owned(), verb, reason }
}

fn busy(path: &Path) -> MountError {
    let names = holders(path);
    let holders = match names.len() {
        0 => String::new(),
        _ => format!(": in use by {}", names.join(", ")),
    };
    MountError::Busy { directory: path.to_owned(), holders }
}

/// Up to five processes that have files or their working directory at or below `path`, as far as this process
/// may see.
fn holders(path: &Path) -> Vec<String> {
    let below = |link: PathBuf| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let name = process.file_name();
        if !name.as_bytes().iter().all(u8::is_ascii_digit) || found.len() == 5 {
            continue;
        }
        let base = process.path();
        let has_file = || {
            std::fs::read_dir(base.join("fd"))
                .is_ok_and(|mut files| files.any(|file| file.is_ok_and(|file| below(file.path()))))
        };
        if below(base.join("cwd")) || below(base.join("root")) || has_file() {
            let command = std::fs::read_to_string(base.join("comm")).unwrap_or_default();
            found.push(format!("{} (process {})", command.trim(), name.to_string_lossy()));
        }
    }
    found
}

/// Parses one line of mountinfo: `id parent dev root directory options [tags..] - kind source options`.
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = std::str::from_utf8(fields.nth(1)?).ok()?;
    let connection = device.strip_prefix("0:").and_then(|minor| minor.parse().ok());
    let directory = fields.nth(1)?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(rest.next()?)).into_owned();
    let directory = PathBuf::from(OsString::from_vec(unescape(directory)));
    Some(Mounted { id, connection, directory, kind, source })
}

/// Undoes the kernel's octal escapes (`\040` for a space).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of the kernel's table are parsed, with and without tags, and escapes are undone.
    #[test]
    fn mountinfo_lines() {
        let line =
            br"512 29 0:61 / /mnt/my\040files rw,nosuid shared:9 master:1 - fuse.holdfast hf rw,user_id=0";
        let mount = parse_line(line).expect("a line");
        assert_eq!((mount.id, mount.connection), (512, Some(61)));
        assert_eq!(mount.directory, Path::new("/mnt/my files"));
        assert!(mount.is_holdfast());
        assert_eq!(mount.source, "hf");
        let bare = parse_line(b"1 0 0:1 / / rw - tmpfs none rw").expect("a line without tags");
        assert_eq!((bare.kind.as_str(), bare.directory.as_path()), ("tmpfs", Path::new("/")));
        assert_eq!(parse_line(b""), None);
        assert_eq!(parse_line(b"nonsense"), None);
    }

    /// A file, a missing directory, a directory with files and a mount point in use are each refused with an
    /// error of their own; an empty directory is accepted.
    #[test]
    fn what_may_be_mounted_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, b"x").expect("a file");
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).expect("a directory");
        assert!(matches!(prepare(&dir.path().join("none")), Err(MountError::Missing(_))));
        assert!(matches!(prepare(&file), Err(MountError::NotDirectory(_))));
        assert!(matches!(prepare(dir.path()), Err(MountError::NotEmpty(_))));
        assert!(matches!(prepare(Path::new("/proc")), Err(MountError::InUse { .. })));
        assert_eq!(prepare(&empty).expect("it is empty"), empty.canonicalize().expect("it is there"));
        assert!(matches!(
            unmount(&empty, UnmountMode::Gently),
            Err(MountError::NotMounted(_) | MountError::Refused { .. })
        ));
    }
}
