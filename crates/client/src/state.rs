//! The device's durable state: what was signed, and below what no view may fall (trace T1: a forgotten
//! signature is a reused number).
//!
//! Invariants:
//! - [`StateLog::save`] returns only when the record is durable, and nothing that depends on it is sent before;
//! - what is read back is the last record saved, or a later one whose save did not return: never an older one;
//! - one process at a time: the folder is locked for as long as the state is open;
//! - a state of another key or file system, a newer format, or a damaged one is refused, never replaced.
//!
//! Attack answered: a client that restarts with an older state could be led to sign a number twice, which
//! others must take for an attack and which no server could be blamed for.

use crate::tree::Allocator;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, PublicKey, decode, encode};
use holdfast_log::{LocalStorage, Log, LogConfig, LogError, Storage, StorageLock};
use std::io;
use std::path::Path;
use std::sync::Arc;

const LOCK: &str = "state.lock";
/// Kind of the only record: the whole state.
const RECORD: u8 = 1;
/// Segments are small, because only the last record matters.
const SEGMENT_BYTES: u32 = 4 << 20;

/// Everything that must survive.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct State {
    /// Format: 1.
    pub format: u16,
    /// The file system.
    pub file_system: Digest,
    /// The key that this state belongs to.
    pub key: PublicKey,
    /// The signer's own state, encoded.
    pub signer: Vec<u8>,
    /// Numbers given out.
    pub allocator: Allocator,
    /// Why everything stopped, if it did.
    pub frozen: Option<Frozen>,
}

/// A freeze, as remembered across restarts.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Frozen {
    /// What the server did, in words.
    pub what: String,
    /// When it was noticed, nanoseconds since the epoch.
    pub noticed_ns: i64,
    /// The last operation whose view was good.
    pub last_good_operation: u64,
    /// The evidence file.
    pub evidence: Option<String>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has it.
    #[error("it is in use by another process")]
    InUse,
    /// It belongs to another key or file system.
    #[error("it belongs to {0}")]
    Foreign(String),
    /// It cannot be read.
    #[error("{0}")]
    Corrupt(String),
    /// The disk is full: nothing was saved.
    #[error("the disk is full")]
    Full,
    /// The medium failed.
    #[error("{0}")]
    Failed(String),
}

impl From<LogError> for StateError {
    fn from(error: LogError) -> StateError {
        match error {
            LogError::Full { .. } => StateError::Full,
            LogError::Damaged { .. } | LogError::Lost { .. } | LogError::NewerFormat { .. } => {
                StateError::Corrupt(error.to_string())
            }
            other => StateError::Failed(other.to_string()),
        }
    }
}

impl From<io::Error> for StateError {
    fn from(error: io::Error) -> StateError {
        match error.kind() {
            io::ErrorKind::WouldBlock => StateError::InUse,
            io::ErrorKind::StorageFull => StateError::Full,
            _ => StateError::Failed(error.to_string()),
        }
    }
}

/// The open state of one device.
pub struct StateLog {
    log: Log,
    _lock: Box<dyn StorageLock>,
}

impl StateLog {
    /// Opens the state in a local folder, which is made if it is not there.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open_dir(
        directory: &Path,
        file_system: Digest,
        key: PublicKey,
    ) -> Result<(StateLog, Option<State>), StateError> {
        std::fs::create_dir_all(directory)?;
        StateLog::open(Arc::new(LocalStorage::open(directory)?), file_system, key)
    }

    /// Opens the state of `key` in `file_system`; `None` when there is none yet.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        file_system: Digest,
        key: PublicKey,
    ) -> Result<(StateLog, Option<State>), StateError> {
        let lock = storage.lock(LOCK)?;
        let config = LogConfig { segment_bytes: SEGMENT_BYTES, ..LogConfig::default() };
        let (log, recovery) = Log::open(storage, config)?;
        if let Some(damage) = recovery.damage.first() {
            return Err(LogError::from(damage.clone()).into());
        }
        let mut last = None;
        // Damage before the last record is of no interest; damage that hides it would leave an older one as the
        // last, so whatever damage there is must be followed by a good record.
        let mut damage = None;
        for record in recovery {
            match record {
                Ok(head) => {
                    last = Some(head.position);
                    damage = None;
                }
                Err(error) => damage = Some(error),
            }
        }
        if let Some(error) = damage {
            return Err(error.into());
        }
        let state = match last {
            None => None,
            Some(position) => {
                let record = log.read(position, 0)?;
                let state: State = match (record.kind, decode(&record.body)) {
                    (RECORD, Ok(state)) => state,
                    (RECORD, Err(error)) => return Err(StateError::Corrupt(error.to_string())),
                    (kind, _) => {
                        return Err(StateError::Corrupt(format!("record kind {kind} is unknown")));
                    }
                };
                if state.format != 1 {
                    let text = format!("its format {} is newer than this program", state.format);
                    return Err(StateError::Corrupt(text));
                }
                if state.file_system != file_system || state.key != key {
                    let text = format!("key {} of file system {}", state.key, state.file_system);
                    return Err(StateError::Foreign(text));
                }
                Some(state)
            }
        };
        Ok((StateLog { log, _lock: lock }, state))
    }

    /// Replaces the state, durably.
    ///
    /// # Errors
    /// [`StateError::Full`]: nothing changed. Any other: what is durable is unknown until the next opening,
    /// and every later save fails.
    pub fn save(&self, state: &State) -> Result<(), StateError> {
        self.log.append(RECORD, &encode(state))?;
        self.log.sync()?;
        let old: Vec<u32> = self.log.sealed_segments().into_iter().map(|(number, _)| number).collect();
        if !old.is_empty() {
            self.log.remove_segments(&old)?;
        }
        Ok(())
    }

    /// Times the state was made durable.
    pub fn syncs(&self) -> u64 {
        self.log.sync_count()
    }
}

#[cfg(test)]
mod tests;
