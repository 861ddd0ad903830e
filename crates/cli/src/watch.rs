//! Unmounting on death.
//!
//! A FUSE mount outlives the process that served it and then answers nothing but errors. So the process that
//! mounts starts a small one beside it, which does nothing but wait for the end of a pipe. When that comes, and
//! mounts are left, it takes them away.

use crate::exit::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;

#[derive(Serialize, Deserialize)]
enum Note {
    Mounted(PathBuf),
    Unmounted(PathBuf),
}

/// The watched side: tells the watching process what is mounted.
pub struct Watcher(Mutex<Option<ChildStdin>>);

impl Watcher {
    /// Starts the watching process. Without it everything works, but dead mounts stay until the next mount.
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
                // Reaps it, should it ever end before us.
                let _ = std::thread::Builder::new().name("watched".to_owned()).spawn(move || child.wait());
                Watcher(Mutex::new(pipe))
            }
            Err(error) => {
                tracing::warn!(%error, "no process to clean up after a crash");
                Watcher(Mutex::new(None))
            }
        }
    }

    /// Notes that something was mounted.
    pub fn mounted(&self, directory: &Path) {
        self.note(&Note::Mounted(directory.to_owned()));
    }

    /// Notes that it is no longer.
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

/// The watching side: `holdfast watch`.
///
/// # Errors
/// Its input is not what a mounting process writes.
pub fn watch() -> Outcome {
    let malformed = |error: io::Error| Failure::new(Exit::Usage, format!("not for people to use: {error}"));
    let mut mounted: Vec<PathBuf> = Vec::new();
    for line in io::stdin().lock().lines() {
        let note =
            serde_json::from_str(&line.map_err(malformed)?).map_err(|error| malformed(error.into()))?;
        match note {
            Note::Mounted(directory) => mounted.push(directory),
            Note::Unmounted(directory) => mounted.retain(|other| *other != directory),
        }
    }
    for directory in mounted {
        let ours = mountpoint::mounted_at(&directory)?.is_some_and(|mount| mount.is_holdfast());
        if ours && mountpoint::is_dead(&directory) {
            mountpoint::unmount(&directory, mountpoint::Manner::Lazily)?;
        }
    }
    Ok(())
}
