//! The engine: one signer, one order, many callers.

mod snapshot;
mod status;

pub use snapshot::Snapshot;
pub use status::Status;

use crate::error::{FrozenReport, FsError, StartError};
use crate::store::VerifiedStore;
use crate::tree::Edit;
use holdfast_content::{ContentError, DeviceId, Handle, Membership, UserId};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_rpc::Address;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How an engine is set up.
pub struct EngineConfig {
    /// The file system and where to find it.
    pub address: Address,
    /// This device's key.
    pub key: SigningKey,
    /// Where the durable state of this key is kept; one folder for each file system and key.
    pub state_dir: PathBuf,
    /// Where blocks are cached; `None` for no persistent cache.
    pub cache_dir: Option<PathBuf>,
    /// Bound of the persistent cache in bytes.
    pub cache_bytes: u64,
    /// Bound of the cache in memory in bytes.
    pub memory_bytes: usize,
    /// How long any call waits for the server at most.
    pub deadline: Duration,
}

impl EngineConfig {
    /// The usual settings: a minute's patience, 256 MiB in memory and 4 GiB on disk.
    pub fn new(address: Address, key: SigningKey, state_dir: PathBuf) -> EngineConfig {
        EngineConfig {
            address,
            key,
            state_dir,
            cache_dir: None,
            cache_bytes: 4 << 30,
            memory_bytes: 256 << 20,
            deadline: Duration::from_secs(60),
        }
    }
}

/// Called once, when the engine freezes.
pub type FreezeHook = Box<dyn Fn(&FrozenReport) + Send + Sync>;

/// Signs for one device of one file system.
pub struct Engine {}

impl Engine {
    /// Connects, recovers what was in flight, and makes a first fetch.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(_config: EngineConfig) -> Result<Arc<Engine>, StartError> {
        unimplemented!("lands with the protocol's signer")
    }

    /// A view sequenced after this call began. Callers that arrive together share one signed operation.
    ///
    /// # Errors
    /// [`FsError::Unreachable`] or [`FsError::Frozen`].
    pub fn fetch(&self) -> Result<Arc<Snapshot>, FsError> {
        unimplemented!("lands with the protocol's signer")
    }

    /// Makes a modification; the result contains its effect. Durable at the server when this returns, except
    /// that a crash of *this* machine right after may still undo it: see [`Engine::flush_commits`].
    ///
    /// # Errors
    /// The edit's own, judged at the operation's place in the order; [`FsError::Unreachable`],
    /// [`FsError::Frozen`].
    pub fn modify(&self, _edit: Arc<Mutex<dyn Edit>>) -> Result<Arc<Snapshot>, FsError> {
        unimplemented!("lands with the protocol's signer")
    }

    /// The last accepted view; no freshness is promised.
    pub fn latest(&self) -> Arc<Snapshot> {
        unimplemented!("lands with the protocol's signer")
    }

    /// Waits until every modification that has returned is committed at the server (`fsync`, `close`).
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`]; [`FsError::Local`] if an operation was aborted by the
    /// server before its second half arrived.
    pub fn flush_commits(&self) -> Result<(), FsError> {
        unimplemented!("lands with the protocol's signer")
    }

    /// This device and its user.
    pub fn me(&self) -> (DeviceId, UserId) {
        unimplemented!("lands with the protocol's signer")
    }

    /// The membership in force in the last accepted view.
    pub fn membership(&self) -> Arc<Membership> {
        unimplemented!("lands with the protocol's signer")
    }

    /// Blocks, for reading file content ([`holdfast_content::BlockSource`]) and for
    /// [`VerifiedStore::upload`].
    pub fn store(&self) -> &VerifiedStore {
        unimplemented!("lands with the protocol's signer")
    }

    /// What an error met while reading a file's content means: looks at the present view first, so that a file
    /// deleted meanwhile is [`FsError::Stale`] and only a block that is still referred to raises the alarm.
    /// `ihash` is the i-hash of the inode that led to the block.
    pub fn judge(&self, _file: Handle, _ihash: Digest, _error: &ContentError) -> FsError {
        unimplemented!("lands with the protocol's signer")
    }

    /// Keeps blocks, and all they refer to, from the server's garbage collection while the result lives (open
    /// files).
    pub fn pin(self: &Arc<Self>, _roots: Vec<Digest>) -> Pin {
        unimplemented!("lands with the protocol's signer")
    }

    /// Registers what is to be called when the engine freezes (unsaved data must be saved to a folder). Called
    /// at once if it is frozen already.
    pub fn on_freeze(&self, _hook: FreezeHook) {
        unimplemented!("lands with the protocol's signer")
    }

    /// Everything `holdfast status` prints.
    pub fn status(&self) -> Status {
        unimplemented!("lands with the protocol's signer")
    }

    /// Commits what is under way and stops; later calls fail.
    pub fn stop(&self) {
        unimplemented!("lands with the protocol's signer")
    }
}

/// Blocks kept at the server while this lives.
pub struct Pin {}
