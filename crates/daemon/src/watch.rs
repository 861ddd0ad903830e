//! Unmounts when the process that serves a mount dies.
//!
//! A FUSE mount outlives the process that served it, and then answers with errors only. So the process that
//! mounts starts a small watching process, which waits for the end of a pipe. When the pipe ends and mounts
//! are left, it unmounts them.
//!
//! A killed process may be unable to end: while one of its threads makes the kernel forget a name, the kernel
//! may wait for an answer from this same process, and so block every program that uses that directory. So the
//! watching process checks periodically whether the watched one is dying, and if that takes long, aborts the
//! connections of its mounts.

use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use holdfast_log::is_ending;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The interval of the checks. If the watched process is dying at two checks in a row, its connections are
/// aborted.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Serialize, Deserialize)]
enum Note {
    Mounted(PathBuf),
    Unmounted(PathBuf),
}

/// The side in the watched process: it reports mounts to the watching process.
pub struct Watcher(Mutex<Option<ChildStdin>>);

impl Watcher {
    /// Starts the watching process. If that fails, dead mounts stay until the next mount.
    pub fn start() -> Watcher {
        let child = Command::new("/proc/self/exe")
            .arg0("holdfast")
            .arg("watch")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match child {
            Ok(mut child) => {
                let pipe = child.stdin.take();
                // Reaps the process, should it ever end first.
                let _ = std::thread::Builder::new().name("watched".to_owned()).spawn(move || child.wait());
                Watcher(Mutex::new(pipe))
            }
            Err(error) => {
                tracing::warn!(%error, "no process to clean up after a crash");
                Watcher(Mutex::new(None))
            }
        }
    }

    /// Reports a new mount.
    pub fn mounted(&self, directory: &Path) {
        self.note(&Note::Mounted(directory.to_owned()));
    }

    /// Reports the end of a mount.
    pub fn unmounted(&self, directory: &Path) {
        self.note(&Note::Unmounted(directory.to_owned()));
    }

    fn note(&self, note: &Note) {
        let mut pipe = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(stream) = pipe.as_mut() else { return };
        let Ok(mut line) = serde_json::to_vec(note) else { return };
        line.push(b'\n');
        if stream.write_all(&line).is_err() {
            tracing::warn!("the process that cleans up after a crash is gone");
            *pipe = None;
        }
    }
}

/// The watching process: `holdfast watch`.
///
/// # Errors
/// The input is not that of a mounting process.
pub fn watch() -> Outcome {
    let malformed = |error: io::Error| Failure::new(Exit::Usage, format!("not for people to use: {error}"));
    let watched = parent_id();
    let (send, notes) = mpsc::channel();
    let read = move || {
        for line in io::stdin().lock().lines() {
            let note = line.and_then(|line| serde_json::from_str::<Note>(&line).map_err(io::Error::from));
            let is_last = note.is_err();
            if send.send(note).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("notes".to_owned()).spawn(read).map_err(malformed)?;
    let mut mounted: Vec<WatchedMount> = Vec::new();
    let mut was_dying = false;
    loop {
        match notes.recv_timeout(LOOK) {
            Ok(note) => match note.map_err(malformed)? {
                Note::Mounted(directory) => mounted.push(WatchedMount::now(directory)),
                // A directory may be mounted on again before the end of its previous mount is reported; the
                // older one has ended.
                Note::Unmounted(directory) => {
                    let ended = mounted.iter().position(|seen| seen.directory == directory);
                    ended.map(|at| mounted.remove(at));
                }
            },
            Err(RecvTimeoutError::Timeout) => {
                let is_dying = is_ending(watched);
                if is_dying && was_dying {
                    mounted.iter().for_each(WatchedMount::abort);
                }
                was_dying = is_dying;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    for WatchedMount { directory, .. } in mounted {
        if let Some(mount) = mountpoint::mounted_at(&directory)?.filter(mountpoint::Mounted::is_holdfast) {
            mountpoint::remove_if_dead(&mount)?;
        }
    }
    Ok(())
}

/// A mount of the watched process.
struct WatchedMount {
    directory: PathBuf,
    /// The number of its FUSE connection, if it has one.
    connection: Option<u32>,
}

impl WatchedMount {
    /// The mount as the kernel's table has it now.
    fn now(directory: PathBuf) -> WatchedMount {
        let mount = mountpoint::mounted_at(&directory).ok().flatten();
        let connection =
            mount.filter(|mount| mount.kind == mountpoint::KIND).and_then(|mount| mount.connection);
        WatchedMount { directory, connection }
    }

    /// Aborts the connection, unless its number now belongs to another file system.
    fn abort(&self) {
        let Some(connection) = self.connection else { return };
        let table = mountpoint::mounted().unwrap_or_default();
        let is_anothers = |mount: &mountpoint::Mounted| {
            mount.connection == Some(connection) && mount.kind != mountpoint::KIND
        };
        if !table.iter().any(is_anothers) {
            let _ = mountpoint::abort(&self.directory, connection);
        }
    }
}
