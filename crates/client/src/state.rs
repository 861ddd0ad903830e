//! The device's durable state: what was signed, and the lower bound of views that may be accepted (trace T1:
//! after a signature is forgotten, its number is reused).
//!
//! Invariants:
//! - [`StateLog::save`] and [`StateLog::save_signer`] return only when the record is durable, and nothing
//!   that depends on the record is sent before;
//! - the state that is read back is the last one saved, or a later one whose save did not return: never an
//!   older one. It is in one record, or in one record and the changes after it ([`changes`]);
//! - one process at a time: the folder is locked for as long as the state is open;
//! - a state of another key or file system, of a newer format, or a damaged one is refused, never replaced;
//! - a state that was moved to another machine ([`export`]) is refused from then on.
//!
//! Attack answered: a client that restarts with an older state could be made to sign a number twice, which
//! others must take for an attack, and for which no server could be blamed.

mod changes;
pub mod export;

use crate::tree::Allocator;
use borsh::{BorshDeserialize, BorshSerialize};
use changes::RecordBase;
use export::ExportedMark;
use holdfast_crypto::{DecodeError, Digest, PublicKey, decode, encode};
use holdfast_log::{LocalStorage, Log, LogConfig, LogError, Position, Storage, StorageLock};
use holdfast_protocol::signer::Signer;
use parking_lot::Mutex;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LOCK: &str = "state.lock";
/// How long to wait for the lock. A program just started by a process that has the lock has it too until the
/// program begins; and a process that is just ending still has it.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
/// Kind of a record: the whole state.
const RECORD: u8 = 1;
/// Kind of a record: the state was moved to another machine ([`ExportedMark`]). Nothing before it counts any
/// more.
const MOVED: u8 = 2;
/// Kind of a record: what changed since the record before it ([`changes`]).
const CHANGE: u8 = 3;
/// Segments are small, because only the last records matter.
const SEGMENT_BYTES: u32 = 4 << 20;

/// The state of a device that must survive a restart.
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
    /// Numbers of files that were assigned.
    pub allocator: Allocator,
    /// Why everything stopped, if it did.
    pub frozen: Option<Frozen>,
}

/// A freeze, which is remembered across restarts.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Frozen {
    /// What the server did, as text.
    pub what: String,
    /// When it was noticed, in nanoseconds since 1970.
    pub noticed_ns: i64,
    /// The last operation whose view was valid.
    pub last_good_operation: u64,
    /// Path of the evidence file, if there is one.
    pub evidence: Option<String>,
}

/// Why the state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process uses it.
    #[error("it is in use by another process")]
    InUse,
    /// It belongs to another key or file system.
    #[error("it belongs to {0}")]
    Foreign(String),
    /// It was exported to another machine.
    #[error(
        "it was carried to another machine with `holdfast fs state export`, in the file {}. This device goes on there; were it \
         to go on here as well, its operations would contradict each other. Bring it back with `holdfast fs state import`, \
         or make a new key here (`holdfast keygen`) and have the superuser enrol it (`holdfast fs device add`)", .0.file
    )]
    Moved(ExportedMark),
    /// The state cannot be read.
    #[error("{0}")]
    Corrupt(String),
    /// The disk is full: nothing was saved.
    #[error("the disk is full")]
    Full,
    /// The disk failed.
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

/// The content of the last record.
enum LastRecord {
    Nothing,
    State(Box<State>),
    Moved(ExportedMark),
}

/// The open state of one device.
pub struct StateLog {
    log: Log,
    file_system: Digest,
    key: PublicKey,
    standing: Mutex<RecordBase>,
    _lock: Box<dyn StorageLock>,
}

fn locked(storage: &dyn Storage) -> io::Result<Box<dyn StorageLock>> {
    let start = Instant::now();
    loop {
        match storage.lock(LOCK) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_PATIENCE / 25);
            }
            other => return other,
        }
    }
}

impl StateLog {
    /// Opens the state in a local directory, which is made if it does not exist.
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

    /// Opens the state of `key` in `file_system`; `None` if there is none yet.
    ///
    /// # Errors
    /// See [`StateError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        file_system: Digest,
        key: PublicKey,
    ) -> Result<(StateLog, Option<State>), StateError> {
        match StateLog::open_any(storage, file_system, key)? {
            (log, LastRecord::Nothing) => Ok((log, None)),
            (log, LastRecord::State(state)) => Ok((log, Some(*state))),
            (_, LastRecord::Moved(moved)) => Err(StateError::Moved(moved)),
        }
    }

    fn open_any(
        storage: Arc<dyn Storage>,
        file_system: Digest,
        key: PublicKey,
    ) -> Result<(StateLog, LastRecord), StateError> {
        let lock = locked(&*storage)?;
        let config = LogConfig { segment_bytes: SEGMENT_BYTES, ..LogConfig::default() };
        let (log, recovery) = Log::open(storage, config)?;
        if let Some(damage) = recovery.damage.first() {
            return Err(LogError::from(damage.clone()).into());
        }
        let mut last: Option<(u8, Position)> = None;
        let mut since = Vec::new();
        // Damage before the last whole record does not matter; damage after it would make an older state
        // count as the last.
        let mut damage = None;
        for record in recovery {
            match record {
                Ok(head) if head.kind == CHANGE => since.push(head.position),
                Ok(head) => {
                    last = Some((head.kind, head.position));
                    since.clear();
                    damage = None;
                }
                Err(error) => damage = Some(error),
            }
        }
        if let Some(error) = damage {
            return Err(error.into());
        }
        let found = match last {
            None if since.is_empty() => LastRecord::Nothing,
            None => return Err(StateError::Corrupt("changes without the state that they change".to_owned())),
            Some((kind, position)) => {
                let body = log.read(position, 0)?.body;
                let corrupt = |error: DecodeError| StateError::Corrupt(error.to_string());
                match kind {
                    RECORD => LastRecord::State(Box::new(changes::replay(&log, &body, &since)?)),
                    MOVED if !since.is_empty() => {
                        return Err(StateError::Corrupt("changes after it was carried away".to_owned()));
                    }
                    MOVED => LastRecord::Moved(decode(&body).map_err(corrupt)?),
                    kind => {
                        let why = format!(
                            "record kind {kind} is unknown: a newer version of this program wrote it"
                        );
                        return Err(StateError::Corrupt(why));
                    }
                }
            }
        };
        let belongs_to = match &found {
            LastRecord::Nothing => None,
            LastRecord::State(state) => Some((state.format, state.file_system, state.key)),
            LastRecord::Moved(moved) => Some((moved.format, moved.file_system, moved.key)),
        };
        if let Some((format, found_in, of_key)) = belongs_to {
            if format != 1 {
                let text = format!("its format {format} is newer than this program");
                return Err(StateError::Corrupt(text));
            }
            if found_in != file_system || of_key != key {
                return Err(StateError::Foreign(format!("key {of_key} of file system {found_in}")));
            }
        }
        let segment = last.map_or(0, |(_, position)| position.segment);
        let standing = Mutex::new(RecordBase::after(segment));
        Ok((StateLog { log, file_system, key, standing, _lock: lock }, found))
    }

    /// Replaces the state, durably.
    ///
    /// # Errors
    /// [`StateError::Full`]: nothing changed. Any other error: what is durable is unknown until the state is
    /// next opened, and every later save fails.
    pub fn save(&self, state: &State) -> Result<(), StateError> {
        self.append_whole(RECORD, &encode(state), None)
    }

    /// Like [`StateLog::save`], for the signer's state: writes only what has changed since that was last
    /// saved here.
    ///
    /// # Errors
    /// See [`StateLog::save`].
    pub fn save_signer(
        &self,
        signer: &Signer,
        allocator: &Allocator,
        frozen: Option<&Frozen>,
    ) -> Result<(), StateError> {
        let change = self.standing.lock().change(signer, allocator, frozen);
        if let Some(body) = change {
            self.append(CHANGE, &body)?;
            let mut standing = self.standing.lock();
            standing.changed(&body, signer);
            return self.remove_before(standing.segment);
        }
        let state = State {
            format: 1,
            file_system: self.file_system,
            key: self.key,
            signer: signer.to_bytes(),
            allocator: allocator.clone(),
            frozen: frozen.cloned(),
        };
        self.append_whole(RECORD, &encode(&state), Some(signer))
    }

    fn append_whole(&self, kind: u8, body: &[u8], signer: Option<&Signer>) -> Result<(), StateError> {
        let position = self.append(kind, body)?;
        self.standing.lock().whole(position, body, signer);
        self.remove_before(position.segment)
    }

    fn append(&self, kind: u8, body: &[u8]) -> Result<Position, StateError> {
        let position = self.log.append(kind, body)?;
        self.log.sync()?;
        Ok(position)
    }

    /// Removes segments in which nothing is needed any more.
    fn remove_before(&self, segment: u32) -> Result<(), StateError> {
        let sealed = self.log.sealed_segments().into_iter().map(|(number, _)| number);
        let old: Vec<u32> = sealed.filter(|number| *number < segment).collect();
        if !old.is_empty() {
            self.log.remove_segments(&old)?;
        }
        Ok(())
    }

    /// Number of times that the state was made durable.
    pub fn syncs(&self) -> u64 {
        self.log.sync_count()
    }
}

#[cfg(test)]
mod tests;
