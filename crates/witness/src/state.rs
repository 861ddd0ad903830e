//! The state directory of a witness: its key, and for each log the checkpoint that it signed last.
//!
//! ```text
//! STATE/key        OpenSSH private key, mode 0600
//! STATE/name       the witness's name, one line
//! STATE/lock       held by the witness that runs
//! STATE/logs/HASH  the last co-signed note; HASH is SHA-256 of its origin
//! STATE/refused/   notes signed by logs that do not extend what was co-signed before: evidence
//! ```
//!
//! Invariants:
//! - A note is durable under `logs/` before a signature of it leaves, under one lock from the decision to the
//!   write.
//! - If a file there cannot be read, the witness ends: taking it for absent would let a log begin a second
//!   history.
//! - Key and record are in one directory, so that neither is used without the other: a witness that has lost
//!   its record needs a new key.

use holdfast_checkpoint::checkpoint::Checkpoint;
use holdfast_checkpoint::cosignature::cosign;
use holdfast_checkpoint::judge::{AuthenticSubmission, Refusal};
use holdfast_checkpoint::note::{KeyKind, Note, NoteError, NoteSignature, VerifierKey};
use holdfast_checkpoint::tree::name_of;
use holdfast_crypto::keyfile::{self, KeyFileError};
use holdfast_crypto::{Digest, SigningKey};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const KEY: &str = "key";
const NAME: &str = "name";
const LOCK: &str = "lock";
const LOGS: &str = "logs";
const REFUSED: &str = "refused";
/// Most notes stored as evidence.
const REFUSED_MAX: usize = 64;

/// Why a witness cannot use its state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("{action} {path}: {error}", path = .path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The directory has a witness already.
    #[error("{path} has a witness already; another one needs another directory", path = .0.display())]
    Exists(PathBuf),
    /// There is no state in the directory.
    #[error("{path} has no witness: make one with `holdfast witness init --state {path} --name NAME`. Never give an old key an empty record: it would sign a second history", path = .0.display())]
    Missing(PathBuf),
    /// Another witness uses the directory.
    #[error("another witness runs on {path}", path = .0.display())]
    InUse(PathBuf),
    /// Other users can read the key.
    #[error("the witness's key {path} can be read by others: run `chmod 600 {path}`", path = .0.display())]
    KeyReadable(PathBuf),
    /// The key cannot be used.
    #[error("the witness's key {path} cannot be used: {error}", path = .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The error.
        error: KeyFileError,
    },
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NoteError),
    /// The note that was co-signed last cannot be read.
    #[error("{path} does not say what was signed last ({why}); restore it from a backup that is not older, or give up this witness: with a new key it is a new one", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// Why a checkpoint was not co-signed.
#[derive(Debug, thiserror::Error)]
pub enum CosignError {
    /// The checkpoint is at fault.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The witness failed: it cannot store what it would sign.
    #[error(transparent)]
    State(#[from] StateError),
}

/// A log, and the checkpoint of it that was co-signed last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WitnessedLog {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The log's own note.
    pub note: Note,
}

/// The state of a witness.
pub struct WitnessState {
    path: PathBuf,
    key: SigningKey,
    verifier: VerifierKey,
    last: Mutex<BTreeMap<String, WitnessedLog>>,
    _lock: Option<File>,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io { action, path, error }
}

/// Writes a file completely or not at all, durably.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    holdfast_durable::replace(path, bytes, holdfast_durable::PRIVATE).map_err(failed("replacing", path))
}

impl WitnessState {
    /// Creates a witness, with this key or a new one. Returns the key that verifies its signatures.
    ///
    /// # Errors
    /// [`StateError::Exists`], [`StateError::Name`], [`StateError::Io`].
    pub fn init(path: &Path, name: &str, key: Option<SigningKey>) -> Result<VerifierKey, StateError> {
        if path.join(NAME).exists() || path.join(KEY).exists() {
            return Err(StateError::Exists(path.to_owned()));
        }
        let key = match key {
            Some(key) => key,
            None => {
                let mut seed = zeroize::Zeroizing::new([0; 32]);
                getrandom::fill(&mut *seed).map_err(|error| {
                    failed("drawing a key for", path)(io::Error::other(error.to_string()))
                })?;
                SigningKey::from_seed(&seed)
            }
        };
        let verifier = VerifierKey::new(name, KeyKind::Cosignature, key.public())?;
        let logs = path.join(LOGS);
        DirBuilder::new().recursive(true).mode(0o700).create(&logs).map_err(failed("making", &logs))?;
        let text = keyfile::format_private(&key, "holdfast witness", None)
            .map_err(|error| StateError::Key { path: path.join(KEY), error })?;
        replace(&path.join(KEY), text.as_bytes())?;
        // The name is written last: without it there is no witness here.
        replace(&path.join(NAME), format!("{name}\n").as_bytes())?;
        Ok(verifier)
    }

    /// Opens the state to sign with it. Only one process may do so at a time.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open(path: &Path) -> Result<WitnessState, StateError> {
        let lock = path.join(LOCK);
        if !path.join(NAME).exists() {
            return Err(StateError::Missing(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&lock);
        let file = file.map_err(failed("opening", &lock))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StateError::InUse(path.to_owned())),
            Err(error) => return Err(failed("locking", &lock)(error.into())),
        }
        WitnessState::read(path, Some(file))
    }

    /// Opens the state for reading only, even while the witness runs.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn look(path: &Path) -> Result<WitnessState, StateError> {
        WitnessState::read(path, None)
    }

    fn read(path: &Path, lock: Option<File>) -> Result<WitnessState, StateError> {
        let name_file = path.join(NAME);
        let name = match fs::read_to_string(&name_file) {
            Ok(name) => name,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(StateError::Missing(path.to_owned()));
            }
            Err(error) => return Err(failed("reading", &name_file)(error)),
        };
        let key_file = path.join(KEY);
        let metadata = fs::metadata(&key_file).map_err(failed("reading", &key_file))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(StateError::KeyReadable(key_file));
        }
        let text = fs::read_to_string(&key_file).map(zeroize::Zeroizing::new);
        let text = text.map_err(failed("reading", &key_file))?;
        let key =
            keyfile::parse_private(&text, None).map_err(|error| StateError::Key { path: key_file, error })?;
        let verifier = VerifierKey::new(name.trim_end(), KeyKind::Cosignature, key.public())?;
        let mut last = BTreeMap::new();
        let logs = path.join(LOGS);
        for entry in fs::read_dir(&logs).map_err(failed("reading", &logs))? {
            let file = entry.map_err(failed("reading", &logs))?.path();
            // The note of a file that was not finished was never co-signed.
            if file.extension().is_some() {
                continue;
            }
            let log = read_note(&file)?;
            last.insert(log.checkpoint.origin.clone(), log);
        }
        Ok(WitnessState { path: path.to_owned(), key, verifier, last: Mutex::new(last), _lock: lock })
    }

    /// The key that verifies this witness's signatures.
    pub fn verifier(&self) -> &VerifierKey {
        &self.verifier
    }

    /// The logs of which a checkpoint was co-signed.
    pub fn logs(&self) -> Vec<WitnessedLog> {
        self.last.lock().values().cloned().collect()
    }

    /// Files with notes that did not extend what was co-signed before.
    pub fn refused(&self) -> Vec<PathBuf> {
        let found = fs::read_dir(self.path.join(REFUSED)).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
        found.sort();
        found
    }

    /// Co-signs a checkpoint if it extends the last one. `time_s` is the time, in seconds since 1970.
    ///
    /// # Errors
    /// [`CosignError`].
    pub fn cosign(&self, authentic: &AuthenticSubmission, time_s: u64) -> Result<NoteSignature, CosignError> {
        let checkpoint = &authentic.checkpoint;
        let mut last = self.last.lock();
        let known = last.get(&checkpoint.origin).map(|log| log.checkpoint.head);
        if let Err(refusal) = authentic.extends(known) {
            if matches!(refusal, Refusal::OtherRoot(_) | Refusal::NotConsistent(_)) {
                self.keep_refused(authentic, known.map_or(0, |known| known.size), &refusal);
            }
            return Err(refusal.into());
        }
        if known != Some(checkpoint.head) {
            let log = WitnessedLog { checkpoint: checkpoint.clone(), note: authentic.note.clone() };
            replace(&self.file_of(&checkpoint.origin), log.note.to_string().as_bytes())?;
            last.insert(checkpoint.origin.clone(), log);
        }
        Ok(cosign(&self.verifier, &self.key, &authentic.note.text, time_s))
    }

    fn file_of(&self, origin: &str) -> PathBuf {
        self.path.join(LOGS).join(name_of(origin).to_string())
    }

    /// Stores a note that a log has signed although it does not extend the last one: together with the note
    /// in `logs/` it may convict the log.
    fn keep_refused(&self, authentic: &AuthenticSubmission, known: u64, refusal: &Refusal) {
        let Checkpoint { origin, head, .. } = &authentic.checkpoint;
        tracing::error!(%origin, size = head.size, root = %head.root, known, %refusal, "A LOG HAS SIGNED WHAT DOES NOT FOLLOW");
        let folder = self.path.join(REFUSED);
        let name = format!("{}-{}-{}", name_of(origin).short(), head.size, Digest(head.root.0).short());
        let file = folder.join(name);
        let kept = || -> Result<(), StateError> {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .map_err(failed("making", &folder))?;
            if file.exists() || self.refused().len() >= REFUSED_MAX {
                return Ok(());
            }
            replace(&file, authentic.note.to_string().as_bytes())
        };
        if let Err(error) = kept() {
            tracing::error!(%error, "and it could not be kept");
        }
    }
}

fn read_note(file: &Path) -> Result<WitnessedLog, StateError> {
    let damaged = |why: String| StateError::Damaged { path: file.to_owned(), why };
    let text = fs::read_to_string(file).map_err(|error| damaged(error.to_string()))?;
    let note: Note = text.parse().map_err(|error: NoteError| damaged(error.to_string()))?;
    let checkpoint: Checkpoint = note.text.parse().map_err(|error: NoteError| damaged(error.to_string()))?;
    if file.file_name().and_then(|name| name.to_str()) != Some(&*name_of(&checkpoint.origin).to_string()) {
        return Err(damaged("it is another log's".to_owned()));
    }
    Ok(WitnessedLog { checkpoint, note })
}
