//! What the file systems of a server share: stores, clock, key, settings and counters. The core, which owns
//! the file systems, uses the same.
//!
//! Invariant: after a failed sync nothing is acknowledged any more ([`Resources::failure`]): until the store
//! is opened again, nobody can say what is durable.

use crate::block_store::BlockStore;
use crate::clock::Clock;
use crate::config::CoreSettings;
use crate::history_file::HistoryRetention;
use crate::notes::LocksNote;
use crate::order::{Embedded, Order, OrderError};
use crate::parcels::ParcelLimits;
use crate::refusal::RequestError;
use crate::statistics::Counters;
use holdfast_content::{DeviceId, StoredBlock};
use holdfast_crypto::{Digest, PublicKey, SigningKey};
use holdfast_log::Storage;
use holdfast_protocol::message::ServerError;
use holdfast_store::{Allowance, LogStore};
use std::sync::Arc;
use tokio::sync::watch;
use tracing::trace_span;

/// The stores, clock, key, settings and counters that all file systems of a server share.
pub(crate) struct Resources {
    /// The log in the data directory: orders, signed blocks, and blocks, unless these are elsewhere.
    pub(crate) store: LogStore,
    pub(crate) blocks: Arc<dyn BlockStore>,
    /// Whether `blocks` is in another log than `store`.
    pub(crate) has_separate_blocks: bool,
    /// The files that contain `store`.
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) key: SigningKey,
    pub(crate) settings: CoreSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locks_note: LocksNote,
    pub(crate) counters: Counters,
    pub(crate) parcels: ParcelLimits,
    /// Becomes `Some`, with the reason, when nothing more can be acknowledged.
    pub(crate) failure: watch::Sender<Option<String>>,
}

impl Resources {
    pub(crate) fn server_key(&self) -> PublicKey {
        self.key.public()
    }

    pub(crate) fn abort_after_ms(&self) -> u64 {
        self.settings.abort_after.as_millis() as u64
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        self.settings.lease_term.as_millis() as u64
    }

    pub(crate) fn keeping(&self) -> HistoryRetention {
        HistoryRetention { retention: self.settings.history.clone(), clock: self.clock.clone() }
    }

    /// The order of a file system whose order is in the data directory.
    pub(crate) fn embedded(&self, id: Digest) -> Arc<dyn Order> {
        Arc::new(Embedded { store: self.store.clone(), storage: self.storage.clone(), id })
    }

    /// Stores blocks that came with an operation. They become durable together with the operation's record.
    pub(crate) fn store_attached(
        &self,
        file_system: Digest,
        device: DeviceId,
        blocks: Vec<(Digest, StoredBlock)>,
        allowance: Option<Allowance>,
    ) -> Result<(), RequestError> {
        if blocks.is_empty() {
            return Ok(());
        }
        let _span = trace_span!(target: "operation", "store blocks", blocks = blocks.len()).entered();
        self.counters.blocks_stored.add(blocks.len() as u64);
        let now_ns = self.clock.wall_ns();
        Ok(self.blocks.store(file_system, device, blocks, allowance.as_ref(), now_ns)?)
    }

    /// Makes durable everything that was appended to an order, and before it the blocks that it names.
    pub(crate) fn sync_order(&self, order: &dyn Order) -> Result<(), RequestError> {
        self.make_durable(|| order.commit())
    }

    /// Makes durable everything that was appended to the data directory's log and the block store. Does not
    /// commit orders in etcd.
    pub(crate) fn sync_stores(&self) -> Result<(), RequestError> {
        self.make_durable(|| Ok(self.store.commit()?))
    }

    fn make_durable(&self, commit: impl FnOnce() -> Result<(), OrderError>) -> Result<(), RequestError> {
        if self.has_separate_blocks {
            self.blocks.sync()?;
        }
        commit().map_err(|error| {
            if let OrderError::Store(error) = &error {
                // From here on, nobody can say whether records appended since the last sync are durable.
                self.fail(error.to_string());
            }
            error.into()
        })
    }

    /// Converts a refusal into the error for the client. A fatal one is recorded, and ends the server.
    pub(crate) fn note(&self, refused: RequestError) -> ServerError {
        if let RequestError::Fatal(why) = &refused {
            self.fail(why.clone());
        }
        refused.into_error()
    }

    fn fail(&self, why: String) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                tracing::error!(why, "the storage failed; nothing more is acknowledged");
                *failure = Some(why);
            }
            first
        });
    }
}
