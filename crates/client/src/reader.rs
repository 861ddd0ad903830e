//! A member's connection that signs nothing: it fetches blocks, stores some, and holds trees. Any number of
//! them may use a key at the same time, in addition to the one engine that signs with it.

use crate::engine::explain;
use crate::error::StartError;
use crate::processes::Processes;
use crate::remote::Remote;
use crate::store::{StoreConfig, TransferConfig, VerifiedStore};
use crate::tree::{Base, TableCache};
use crate::{EngineConfig, evidence::Evidence};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Membership};
use holdfast_crypto::{DigestKey, KeyHolder};
use holdfast_protocol::structure::View;
use holdfast_rpc::{Address, Connector, ServerProof, Transport};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A view that an engine has verified, to be read by another process of the same user on the same machine.
#[derive(Clone, Debug, BorshSerialize, BorshDeserialize)]
pub struct VerifiedView {
    view: View,
    membership: Membership,
    device: DeviceId,
}

impl VerifiedView {
    /// The view that `base` reads from.
    pub fn of(base: &Base) -> VerifiedView {
        VerifiedView {
            view: View::clone(&base.view),
            membership: Membership::clone(&base.membership),
            device: base.me,
        }
    }

    /// Prepares the view for reading, with blocks of `store`.
    pub fn read_from(self, store: &VerifiedStore) -> Base {
        let tables = Arc::new(TableCache::default());
        let blocks = Arc::new(store.clone());
        Base::new(Arc::new(self.view), Arc::new(self.membership), self.device, blocks, tables)
    }
}

/// Connects to a file system's server with a member's key.
///
/// # Errors
/// See [`StartError`].
pub fn connect(
    address: &Address,
    key: Arc<dyn KeyHolder>,
    deadline: Duration,
) -> Result<Arc<dyn Remote>, StartError> {
    let connector = Connector::new(key.clone(), address.servers(), Some(proof_of(address)));
    let local = |source| StartError::Local { what: "starting the network thread".to_owned(), source };
    let remote = Arc::new(connector.start().map_err(local)?);
    greeted(EngineConfig::new(address.clone(), key, PathBuf::new()), remote, deadline)
}

/// Like [`connect`], with a key that is in another process.
///
/// # Errors
/// See [`StartError`].
pub fn connect_with(
    address: &Address,
    processes: &Arc<Processes>,
    deadline: Duration,
) -> Result<Arc<dyn Remote>, StartError> {
    let remote = processes.connect(address.servers(), Some(proof_of(address)), Transport::default());
    greeted(EngineConfig::with_processes(address.clone(), processes, PathBuf::new()), remote, deadline)
}

fn proof_of(address: &Address) -> ServerProof {
    ServerProof { file_system: address.file_system, minimum_sequence: 0 }
}

/// Waits for a connection, and fails if the server does not know the key.
fn greeted(
    config: EngineConfig,
    remote: Arc<dyn Remote>,
    deadline: Duration,
) -> Result<Arc<dyn Remote>, StartError> {
    remote.wait_until_connected(deadline).map_err(|error| explain(error, &config))?;
    match remote.welcome().and_then(|welcome| welcome.device) {
        Some(_) => Ok(remote),
        None => {
            let key = holdfast_crypto::keyfile::format_public(&config.key.public(), "");
            Err(StartError::UnknownDevice { key })
        }
    }
}

/// Verified blocks of a file system, read over such a connection. `cache`: the directory on disk for kept
/// blocks, and its limit in bytes.
pub fn blocks(
    address: &Address,
    remote: Arc<dyn Remote>,
    evidence: PathBuf,
    cache: Option<(PathBuf, u64)>,
    memory_bytes: usize,
    deadline: Duration,
) -> VerifiedStore {
    let evidence = Arc::new(Evidence::new(evidence, address.file_system));
    let transfer = TransferConfig::default();
    let config =
        StoreConfig { key: DigestKey::WELL_KNOWN, memory_bytes, cache, evidence, deadline, transfer };
    VerifiedStore::new(config, remote)
}
