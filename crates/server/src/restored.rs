//! File systems that were restored from a backup. Until its superuser declares the restore, a file system is
//! served only as far as that takes.
//!
//! ```text
//! DATA/restored   the file systems that wait for their superuser's declaration, one id a line
//! ```
//!
//! This answers no attack. An honest server that shows an older state by mistake looks like a lying one to
//! every client that remembers more. So it waits until the superuser has declared the restore.

use crate::error::OpenError;
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file systems that wait until their superusers declare the restore.
#[derive(Default)]
pub(crate) struct UndeclaredRestores {
    path: Option<PathBuf>,
    ids: Mutex<BTreeSet<Digest>>,
}

impl UndeclaredRestores {
    /// Reads the list of waiting file systems, and adds all of `now` to it.
    pub(crate) fn open(path: Option<PathBuf>, now: &[Digest]) -> Result<UndeclaredRestores, OpenError> {
        let mut ids: BTreeSet<Digest> = match path.as_deref().map(std::fs::read_to_string) {
            None => BTreeSet::new(),
            Some(Ok(text)) => {
                let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let read: Option<_> = lines.map(Digest::from_hex).collect();
                let bad = || io::Error::new(ErrorKind::InvalidData, "it is no list of file systems");
                let path = path.as_deref().unwrap_or(Path::new(""));
                read.ok_or_else(bad).map_err(|error| OpenError::io("reading", path, error))?
            }
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => BTreeSet::new(),
            Some(Err(error)) => {
                return Err(OpenError::io("reading", path.as_deref().unwrap_or(Path::new("")), error));
            }
        };
        ids.extend(now);
        let awaiting = UndeclaredRestores { path, ids: Mutex::new(ids) };
        if !now.is_empty() {
            let path = awaiting.path.clone().unwrap_or_default();
            awaiting.save().map_err(|error| OpenError::io("writing", &path, error))?;
        }
        Ok(awaiting)
    }

    /// Whether a file system waits for its declaration.
    pub(crate) fn has(&self, id: &Digest) -> bool {
        self.ids.lock().contains(id)
    }

    /// Adds a file system that waits for its declaration.
    pub(crate) fn add(&self, id: Digest) -> io::Result<()> {
        self.ids.lock().insert(id);
        self.save()
    }

    /// Removes a file system whose restore was declared.
    pub(crate) fn declared(&self, id: &Digest) {
        if self.ids.lock().remove(id)
            && let Err(error) = self.save()
        {
            // At worst the superuser declares the restore once more after the next start, which changes
            // nothing.
            tracing::warn!(%error, "it cannot be noted that a restore was declared");
        }
    }

    fn save(&self) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let ids = self.ids.lock();
        if ids.is_empty() {
            return holdfast_durable::remove(path);
        }
        let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
        holdfast_durable::replace(path, text.as_bytes(), holdfast_durable::PRIVATE)
    }
}
