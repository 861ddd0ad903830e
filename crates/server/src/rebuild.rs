//! Rebuilds the data directory of a file system whose server was lost, from what its clients bring: first the
//! blocks, and when all of them are durable, the order that refers to them. The caller has checked
//! everything; this module only stores it. A rebuild that is interrupted changes nothing, except that some
//! blocks are stored already.

use crate::block_store;
use crate::config::ServerConfig;
use crate::data::DataDirectory;
use crate::error::OpenError;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_protocol::log_tree::Frontier;
use holdfast_protocol::message::{ServerError, ServerKeys};
use holdfast_protocol::rebuild::{KnownNodes, Nodes};
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::View;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a file system cannot be rebuilt into a data directory.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// The data directory cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The data directory has an order of this file system, and it is damaged.
    #[error("the order that is there of this file system is damaged: {0}; rebuild into another directory")]
    Damaged(String),
    /// The order is in etcd, not in the data directory.
    #[error(
        "the order of {data} is in {place}. If that is lost, rebuild into another directory, with --blocks for where the \
         blocks are and a copy of {data}/server-key in it, and move the order with `holdfast server convert --order` to a \
         prefix of etcd that holds none of it (docs/when-something-is-wrong.md)", data = .data.display()
    )]
    OrderElsewhere {
        /// The data directory.
        data: PathBuf,
        /// Where the order already is: etcd, or the data directory.
        place: String,
    },
    /// The disk is full.
    #[error("the disk is full")]
    NoSpace,
    /// The storage failed.
    #[error("{0}")]
    Storage(String),
}

impl From<RequestError> for RebuildError {
    fn from(refused: RequestError) -> RebuildError {
        match refused.into_error() {
            ServerError::NoSpace => RebuildError::NoSpace,
            other => RebuildError::Storage(other.to_string()),
        }
    }
}

/// The state that a data directory has of a file system.
#[derive(Clone, Debug)]
pub struct FileSystemState {
    /// The public key of the file system's superuser.
    pub superuser: PublicKey,
    /// The view that a server would send.
    pub view: View,
    /// The right edge of the log of updates.
    pub frontier: Frontier,
    /// The list of server keys.
    pub server_keys: Signed<ServerKeys>,
    /// For each device, the highest number of an operation that was refused for good, if it is above its last
    /// operation.
    pub given_up: BTreeMap<DeviceId, u64>,
}

/// A data directory being rebuilt. No server runs on it meanwhile.
pub struct RebuildTarget {
    core: Arc<ServerCore>,
    file_system: Digest,
}

impl RebuildTarget {
    /// Opens the data directory, which is created if it does not exist, and the block server or bucket that
    /// it or the settings name.
    ///
    /// # Errors
    /// [`RebuildError`]; also if a server runs on it, or its order is in etcd, where it may still exist.
    pub fn open(config: &ServerConfig, file_system: Digest) -> Result<RebuildTarget, RebuildError> {
        if let Some((place, _)) = DataDirectory::open(&config.data)?.order_elsewhere()? {
            return Err(RebuildError::OrderElsewhere { data: config.data.clone(), place });
        }
        let (core, _, _) = crate::server::open_host(config)?;
        match core.damaged().get(&file_system) {
            Some(why) => Err(RebuildError::Damaged(why.to_string())),
            None => Ok(RebuildTarget { core, file_system }),
        }
    }

    /// The key of the server that will serve the file system.
    pub fn server_key(&self) -> PublicKey {
        self.core.server_key()
    }

    /// The state that the directory already has of the file system, from an earlier rebuild or a backup.
    ///
    /// # Errors
    /// The storage failed.
    pub fn present(&self) -> Result<Option<FileSystemState>, RebuildError> {
        let Some(found) = self.core.file_system(&self.file_system) else {
            return Ok(None);
        };
        let (sequencer, server_keys) = found.order()?;
        Ok(Some(FileSystemState {
            superuser: sequencer.superuser(),
            view: sequencer.look().view,
            frontier: sequencer.frontier().clone(),
            server_keys,
            given_up: sequencer.refused().clone(),
        }))
    }

    /// Offers the nodes of the log of updates that the directory already has.
    ///
    /// # Errors
    /// The storage failed.
    pub fn offer_nodes(&self, known: &mut KnownNodes) -> Result<(), RebuildError> {
        match self.core.file_system(&self.file_system) {
            Some(found) => Ok(found.offer_nodes(known)?),
            None => Ok(()),
        }
    }

    /// A block that is stored already; `None` if it is absent or damaged.
    pub fn block(&self, address: Digest) -> Option<StoredBlock> {
        block_store::load_one(&*self.core.resources.blocks, self.file_system, address).ok().flatten()
    }

    /// Stores blocks whose addresses have been checked. They are durable after the next
    /// [`RebuildTarget::flush`]. They are charged to the superuser, because nobody knows any more who stored
    /// them first.
    ///
    /// # Errors
    /// The storage failed, or is full.
    pub fn store(&self, blocks: Vec<(Digest, StoredBlock)>) -> Result<(), RebuildError> {
        Ok(self.core.resources.store_attached(self.file_system, DeviceId::SUPERUSER, blocks, None)?)
    }

    /// Makes all stored blocks durable.
    ///
    /// # Errors
    /// The storage failed.
    pub fn flush(&self) -> Result<(), RebuildError> {
        Ok(self.core.resources.sync_stores()?)
    }

    /// The last step: stores the order of the file system, durably. The directory is then ready for a server.
    ///
    /// # Errors
    /// The storage failed, or is full.
    pub fn settle(
        &self,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
    ) -> Result<(), RebuildError> {
        Ok(self.core.replace_order(sequencer, server_keys, nodes)?)
    }
}
