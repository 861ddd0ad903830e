//! The directory in which a publisher has a release: its signed files, and the order in which they change.
//!
//! Invariant: the directory is a whole release at every moment. New keys are in place before the record that
//! names them, and a retained record before `root`. Nothing newer is replaced by something older, even if a
//! timer renews while a release is published.

use crate::draft::FinishedDraft;
use crate::form::{self, Kind, Malformed};
use crate::keys::{KeyChain, KeysError, ReleaseId, SETS_MAX, SignedKeySet};
use crate::layout;
use crate::record::{NotAuthentic, RootFile, authenticate};
use crate::revocation::{self, Revocation, RevocationError};
use crate::signing::Signable;
use holdfast_log::FileLock;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Mode of files that everybody may read.
const PUBLIC: u32 = 0o644;

/// The directory in which a publisher signs, and which mirrors copy: keys, records and `root`.
#[derive(Clone, Debug)]
pub struct ReleaseDir {
    path: PathBuf,
}

/// Why a release's directory cannot be used, or refuses a file.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseDirError {
    /// A file that every release has is missing.
    #[error(
        "{}: there is no such file, so this is not the directory of a release; `holdfast release keys init` begins one",
        .0.display()
    )]
    Missing(PathBuf),
    /// A file is malformed.
    #[error("{}: {error}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: Malformed,
    },
    /// The key sets do not form a chain.
    #[error("{}: {error}", path.display())]
    Keys {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: KeysError,
    },
    /// A record does not belong to the release.
    #[error("{}: {error}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: NotAuthentic,
    },
    /// A certificate does not revoke the release.
    #[error("{}: {error}", path.display())]
    Revocation {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: RevocationError,
    },
    /// A file must not be replaced by an older one.
    #[error("{}: {why}; it is left as it is", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The reason, in words.
        why: String,
    },
    /// Reading or writing a file failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
}

impl ReleaseDir {
    /// The directory at `path`, which may not exist yet.
    pub fn new(path: &Path) -> ReleaseDir {
        ReleaseDir { path: path.to_owned() }
    }

    /// The path of a file of the layout.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// All key sets, checked. The id of the chain is the release's.
    ///
    /// # Errors
    /// [`ReleaseDirError`].
    pub fn chain(&self) -> Result<KeyChain, ReleaseDirError> {
        let first = self.read::<SignedKeySet>(&layout::keys(1))?;
        let first = first.ok_or_else(|| ReleaseDirError::Missing(self.file(&layout::keys(1))))?;
        let id = ReleaseId(first.value.digest());
        let keys = |number: u64| {
            let path = self.file(&layout::keys(number));
            move |error| ReleaseDirError::Keys { path, error }
        };
        let mut chain = KeyChain::begin(id, first).map_err(keys(1))?;
        for number in 2..=SETS_MAX {
            let Some(set) = self.read::<SignedKeySet>(&layout::keys(number))? else { break };
            chain.extend(set).map_err(keys(number))?;
        }
        Ok(chain)
    }

    /// The record in place, checked except for time; `None` before the first publication.
    ///
    /// # Errors
    /// [`ReleaseDirError`].
    pub fn root(&self, chain: &KeyChain) -> Result<Option<RootFile>, ReleaseDirError> {
        let Some(root) = self.read::<RootFile>(layout::ROOT)? else { return Ok(None) };
        authenticate(chain, &root)
            .map_err(|error| ReleaseDirError::Record { path: self.file(layout::ROOT), error })?;
        Ok(Some(root))
    }

    /// The revocation, if the release was revoked.
    ///
    /// # Errors
    /// [`ReleaseDirError`].
    pub fn revoked(&self, id: ReleaseId) -> Result<Option<revocation::Revoked>, ReleaseDirError> {
        let Some(certificate) = self.read::<Revocation>(layout::REVOKED)? else { return Ok(None) };
        let path = self.file(layout::REVOKED);
        certificate.verify(id).map(Some).map_err(|error| ReleaseDirError::Revocation { path, error })
    }

    /// Puts signed files in place.
    ///
    /// # Errors
    /// [`ReleaseDirError`]: something newer is in place, or the disk failed. The directory is a whole release
    /// in any case.
    pub fn install(&self, finished: &FinishedDraft) -> Result<(), ReleaseDirError> {
        let _lock = self.lock()?;
        let first = finished.keys_are_new && finished.chain.sets().len() == 1;
        let known = match first {
            true => None,
            false => Some(self.chain()?),
        };
        if let Some(known) = &known {
            known.clone().merge(&finished.chain).map_err(|error| ReleaseDirError::Keys {
                path: self.file(&layout::keys(finished.chain.current().number)),
                error,
            })?;
        }
        if let Some(root) = &finished.root {
            self.not_newer(known.as_ref(), root)?;
        }
        if finished.keys_are_new {
            self.install_keys(&finished.chain)?;
        }
        if let Some(root) = &finished.root {
            let bytes = form::write(root);
            self.put(&layout::record(root.record.value.sequence), &bytes)?;
            self.put(layout::ROOT, &bytes)?;
        }
        if let Some(revocation) = &finished.revocation {
            self.put(layout::REVOKED, &form::write(revocation))?;
        }
        Ok(())
    }

    /// Locks the directory against other installations. The lock is on `keys`, not on the directory itself:
    /// that is locked for long by a process that publishes, and a renewal must not have to wait for it.
    fn lock(&self) -> Result<FileLock, ReleaseDirError> {
        let path = self.path.join("keys");
        let failed = |error: io::Error| io_error(&path, error);
        holdfast_durable::make_directory(&path, 0o755).map_err(failed)?;
        let folder = File::open(&path).map_err(failed)?;
        FileLock::wait(folder).map_err(failed)
    }

    fn install_keys(&self, chain: &KeyChain) -> Result<(), ReleaseDirError> {
        let last = &chain.sets()[chain.sets().len() - 1];
        let name = layout::keys(last.value.number);
        if let Some(there) = self.read::<SignedKeySet>(&name)?
            && there.value != last.value
        {
            let why = format!("there is another key set {} already", last.value.number);
            return Err(ReleaseDirError::Newer { path: self.file(&name), why });
        }
        self.put(&name, &form::write(last))
    }

    /// Refuses to replace a record by an older one, by another with the same number, or by one that expires
    /// earlier.
    fn not_newer(&self, known: Option<&KeyChain>, root: &RootFile) -> Result<(), ReleaseDirError> {
        let Some(known) = known else { return Ok(()) };
        let Some(there) = self.root(known)? else { return Ok(()) };
        let (old, new) = (&there.record.value, &root.record.value);
        let newer = |why: String| Err(ReleaseDirError::Newer { path: self.file(layout::ROOT), why });
        if old.sequence > new.sequence {
            return newer(format!("release {} is there already, and this is {}", old.sequence, new.sequence));
        }
        if old.sequence == new.sequence && old != new {
            return newer(format!("there is another release {} already", old.sequence));
        }
        let end = |file: &RootFile| {
            let renewed = file.freshness.as_ref().map_or(0, |freshness| freshness.value.expires_s);
            renewed.max(file.record.value.expires_s)
        };
        if old == new && end(root) < end(&there) {
            return newer("a renewal that lasts longer is there already".to_owned());
        }
        Ok(())
    }

    fn read<T: Kind>(&self, name: &str) -> Result<Option<T>, ReleaseDirError> {
        let path = self.file(name);
        let bytes = holdfast_durable::read(&path, T::BYTES_MAX).map_err(|error| io_error(&path, error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        form::read(&bytes).map(Some).map_err(|error| ReleaseDirError::Malformed { path, error })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ReleaseDirError> {
        let path = self.file(name);
        let folder = path.parent().unwrap_or(&self.path);
        holdfast_durable::make_directory(folder, 0o755).map_err(|error| io_error(folder, error))?;
        holdfast_durable::replace(&path, bytes, PUBLIC).map_err(|error| io_error(&path, error))
    }
}

fn io_error(path: &Path, error: io::Error) -> ReleaseDirError {
    ReleaseDirError::Io { path: path.to_owned(), error }
}
