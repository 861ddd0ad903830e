//! Moves a device's state to another machine: what it has signed and seen, so that it continues there as
//! before. Only one of the two machines may continue: the state left behind is marked *moved*, durably,
//! before the file gets its name, and opening it then fails with an explanation.
//!
//! ```text
//! magic "hfstate\1" | digest (32) of what follows | state | record of the signer | when (borsh)
//!                   | declared restores that the device has taken up, if there are any (borsh)
//! ```
//!
//! The file contains no key and no content, and is as private as the state itself (mode 0600). Its digest
//! detects damage, not attacks: an attacker who can alter the file could have a number signed twice, which
//! others would take for a clone.
//!
//! Attack answered (more precisely, accident): a state is copied by hand, is used on two machines, and both
//! sign.

use super::{LastRecord, MOVED, State, StateError, StateLog};
use crate::engine::restored;
use crate::processes::record;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Restore;
use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey, decode, encode};
use holdfast_log::LocalStorage;
use holdfast_protocol::signer::Signer;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"hfstate\x01";
/// Largest file that is read.
const BYTES_MAX: u64 = 64 << 20;
/// Directories in a state directory that contain changes not sent to the server yet.
const UNSENT: [&str; 2] = ["write-back", "spool"];

/// The mark that a state was exported from this machine.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ExportedMark {
    /// Format: 1.
    pub format: u16,
    /// The file system.
    pub file_system: Digest,
    /// The key that the state belongs to.
    pub key: PublicKey,
    /// When it was exported, in nanoseconds since 1970.
    pub moved_ns: i64,
    /// The highest number used before the export.
    pub used: u64,
    /// The path of the exported file.
    pub file: String,
}

/// The content of an exported file.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
struct ExportedState {
    state: State,
    signed: Option<Vec<u8>>,
    exported_ns: i64,
}

/// The state that was exported or imported, and its last operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportSummary {
    /// The file system.
    pub file_system: Digest,
    /// The device's key.
    pub key: PublicKey,
    /// The device's number.
    pub device: u32,
    /// The highest number used.
    pub used: u64,
}

/// Why a state is not exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The state here cannot be used.
    #[error("{0}")]
    State(#[from] StateError),
    /// There is no state of this key.
    #[error("there is no state of this key in {0}")]
    Nothing(PathBuf),
    /// This machine has unsent changes, which would be left behind.
    #[error(
        "changes wait in {0} that the server does not have; mount once more and unmount, so that they are sent, or \
         copy them out with `holdfast salvage`"
    )]
    Unsent(PathBuf),
    /// The state here is as new as that in the file, or newer.
    #[error(
        "the state here has used number {here}, the one in the file {there}: the file is the older one, and using it \
         would sign numbers twice"
    )]
    Older {
        /// The highest number used in the state directory.
        here: u64,
        /// The highest number used in the file.
        there: u64,
    },
    /// The file is not an exported state.
    #[error("{0}: no state of holdfast's, or damaged")]
    NoState(PathBuf),
    /// The file belongs to another key.
    #[error("the state in the file belongs to key {found}, not to {expected}")]
    OtherKey {
        /// The key that the file is for.
        found: PublicKey,
        /// The key that the command was given.
        expected: PublicKey,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error that the system reported.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ExportError + '_ {
    move |source| ExportError::Io { path: path.to_owned(), source }
}

/// The name of the file as long as the state is not marked: `FILE.unfinished`.
pub fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

/// Writes the state in `state_dir` to `to` and marks it moved. If this is interrupted, either the state is as
/// before, or the file [`unfinished`] is complete and can be given its final name.
///
/// # Errors
/// [`ExportError`].
pub fn export(
    state_dir: &Path,
    file_system: Digest,
    key: PublicKey,
    to: &Path,
    now_ns: i64,
) -> Result<ExportSummary, ExportError> {
    if !state_dir.is_dir() {
        return Err(ExportError::Nothing(state_dir.to_owned()));
    }
    let storage = LocalStorage::open(state_dir).map_err(at(state_dir))?;
    let (log, found) = StateLog::open_any(Arc::new(storage), file_system, key)?;
    let state = match found {
        LastRecord::Nothing => return Err(ExportError::Nothing(state_dir.to_owned())),
        LastRecord::Moved(moved) => return Err(StateError::Moved(moved).into()),
        LastRecord::State(state) => *state,
    };
    for folder in UNSENT {
        let folder = state_dir.join(folder);
        if holds_files(&folder) {
            return Err(ExportError::Unsent(folder));
        }
    }
    let signed = record::read(state_dir).map_err(at(state_dir))?;
    let carriage = summary_of(&state)?;
    let restores = restored::read(state_dir).map_err(at(state_dir))?;
    let mut carried = encode(&ExportedState { state, signed, exported_ns: now_ns });
    if !restores.is_empty() {
        carried.extend(encode(&restores));
    }
    // Neither an older file nor an unfinished one is overwritten.
    if fs::symlink_metadata(to).is_ok() {
        return Err(at(to)(io::ErrorKind::AlreadyExists.into()));
    }
    let temporary = unfinished(to);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(MAGIC)?;
        file.write_all(&sum(&carried).0)?;
        file.write_all(&carried)?;
        file.sync_all()?;
        holdfast_durable::sync_parent(&temporary)
    };
    write().map_err(at(&temporary))?;
    let moved = ExportedMark {
        format: 1,
        file_system,
        key,
        moved_ns: now_ns,
        used: carriage.used,
        file: to.display().to_string(),
    };
    if let Err(error) = log.append_whole(MOVED, &encode(&moved), None) {
        // It is not known whether the mark is durable; the file must not become a second state.
        let _ = fs::remove_file(&temporary);
        return Err(error.into());
    }
    holdfast_durable::rename(&temporary, to).map_err(at(to))?;
    Ok(carriage)
}

/// The key, device and file system of the state in a file.
///
/// # Errors
/// [`ExportError::NoState`], I/O errors.
pub fn look_into(file: &Path) -> Result<ExportSummary, ExportError> {
    Ok(summary_of(&read(file)?.0.state)?)
}

/// Puts the state in `file`, which must be `key`'s, into `state_dir`.
///
/// # Errors
/// [`ExportError`]; [`ExportError::Older`] unless the state is newer than the one there, or is the one that
/// was moved from there.
pub fn import(file: &Path, state_dir: &Path, key: PublicKey) -> Result<ExportSummary, ExportError> {
    let (carried, restores) = read(file)?;
    if carried.state.key != key {
        return Err(ExportError::OtherKey { found: carried.state.key, expected: key });
    }
    let carriage = summary_of(&carried.state)?;
    let storage = LocalStorage::open(state_dir).map_err(at(state_dir))?;
    let (log, found) = StateLog::open_any(Arc::new(storage), carriage.file_system, key)?;
    // Numbers continue after those that remain by a declared restore.
    let known = restored::read(state_dir).map_err(at(state_dir))?.len();
    match found {
        LastRecord::Nothing => {}
        _ if restores.len() > known => {}
        LastRecord::Moved(ExportedMark { used: here, .. }) if restores.len() < known => {
            return Err(ExportError::Older { here, there: carriage.used });
        }
        LastRecord::State(state) if restores.len() < known => {
            return Err(ExportError::Older { here: summary_of(&state)?.used, there: carriage.used });
        }
        // The state was moved away and brought back: the same state is as good as the one that was left here.
        LastRecord::Moved(moved) if carriage.used >= moved.used => {}
        LastRecord::Moved(moved) => {
            return Err(ExportError::Older { here: moved.used, there: carriage.used });
        }
        LastRecord::State(state) => {
            let here = summary_of(&state)?.used;
            if here >= carriage.used {
                return Err(ExportError::Older { here, there: carriage.used });
            }
        }
    }
    // The signer's record first: with the new state and an older record, the signer would refuse to work.
    record::replace(state_dir, carried.signed.as_deref()).map_err(at(state_dir))?;
    if !restores.is_empty() {
        restored::save(state_dir, &restores).map_err(at(state_dir))?;
    }
    log.save(&carried.state)?;
    Ok(carriage)
}

fn read(path: &Path) -> Result<(ExportedState, Vec<Restore>), ExportError> {
    let no_state = || ExportError::NoState(path.to_owned());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(at(path))?;
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(at(path))?;
    let rest = bytes.strip_prefix(MAGIC.as_slice()).ok_or_else(no_state)?;
    let (digest, carried) = rest.split_first_chunk::<32>().ok_or_else(no_state)?;
    if bytes.len() as u64 > BYTES_MAX || sum(carried).0 != *digest {
        return Err(no_state());
    }
    match decode(carried) {
        Ok(carried) => Ok((carried, Vec::new())),
        Err(_) => decode(carried).map_err(|_| no_state()),
    }
}

fn sum(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &[MAGIC, bytes].concat())
}

fn summary_of(state: &State) -> Result<ExportSummary, StateError> {
    let signer = Signer::restore(&state.signer).map_err(|error| StateError::Corrupt(error.to_string()))?;
    let floor = signer.floor();
    Ok(ExportSummary {
        file_system: state.file_system,
        key: state.key,
        device: floor.device.0,
        used: floor.used,
    })
}

fn holds_files(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_files(&entry.path()),
        _ => true,
    })
}
