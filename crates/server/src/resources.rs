//! What the file systems of a server have in common: stores, clock, key, settings and counters. A file system answers
//! with these; the core, which owns the file systems, has the same ones.
//!
//! Invariant: after a failed sync nothing is acknowledged any more ([`Resources::failure`]): what is durable is unknown
//! until the store is opened again.

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

/// What all file systems of a server use.
pub(crate) struct Resources {
    /// The log in the data directory: orders, signed blocks, and, unless they are elsewhere, blocks.
    pub(crate) store: LogStore,
    pub(crate) blocks: Arc<dyn BlockStore>,
    /// Whether `blocks` is another log than `store`.
    pub(crate) has_separate_blocks: bool,
    /// The files in which `store` is.
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) key: SigningKey,
    pub(crate) settings: CoreSettings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) locks_note: LocksNote,
    pub(crate) counters: Counters,
    pub(crate) parcels: ParcelLimits,
    /// Becomes `Some` when nothing more can be acknowledged.
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

    /// The order of a file system in the data directory.
    pub(crate) fn embedded(&self, id: Digest) -> Arc<dyn Order> {
        Arc::new(Embedded { store: self.store.clone(), storage: self.storage.clone(), id })
    }

    /// Stores blocks that came with an operation; they become durable with its record.
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

    /// Makes everything durable that was appended to an order, and before it the blocks that it names.
    pub(crate) fn sync_order(&self, order: &dyn Order) -> Result<(), RequestError> {
        self.make_durable(|| order.commit())
    }

    /// Makes everything durable that was appended to the data directory's log and the block store, but no order in
    /// etcd.
    pub(crate) fn sync_stores(&self) -> Result<(), RequestError> {
        self.make_durable(|| Ok(self.store.commit()?))
    }

    fn make_durable(&self, commit: impl FnOnce() -> Result<(), OrderError>) -> Result<(), RequestError> {
        if self.has_separate_blocks {
            self.blocks.sync()?;
        }
        commit().map_err(|error| {
            if let OrderError::Store(error) = &error {
                // Whether anything appended since the last sync is durable is unknown from here on.
                self.fail(error.to_string());
            }
            error.into()
        })
    }

    /// Translates a failure into the client's error, and records one that ends the server.
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
