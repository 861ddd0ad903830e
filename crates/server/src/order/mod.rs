//! Where the order of a file system is stored: in the log of the server's own data directory ([`Embedded`]), or in
//! etcd, where a standby finds it ([`etcd`]).
//!
//! The contract of an [`Order`], which `tests.rs` checks for both:
//! - what is appended has its place in the order at once, and is durable when a later [`Order::commit`] has returned;
//! - after a failed commit nothing that was appended may be acknowledged: it may be there or not. In etcd that also goes for
//!   a server that another one has replaced: its commits fail, whatever it believes itself;
//! - what is recovered is the last checkpoint and all that was appended after it, in order, or an error: never less.

pub(crate) mod etcd;
#[cfg(test)]
mod tests;

use crate::refusal::RequestError;
use holdfast_crypto::Digest;
use holdfast_log::Storage;
use holdfast_protocol::message::ServerError;
use holdfast_store::{LogStore, RecoveredOrdering, StoreError};
use std::sync::Arc;

/// The order of one file system, as its server keeps it. Calls block and may come from any thread.
pub(crate) trait Order: Send + Sync {
    /// Appends a record. Durable with the next commit.
    fn append(&self, record: &[u8]) -> Result<(), OrderError>;

    /// Appends a checkpoint that replaces all records before it, durable with the next commit at the earliest; until then
    /// they are still there.
    fn checkpoint(&self, checkpoint: &[u8]) -> Result<(), OrderError>;

    /// The last checkpoint, if there is one, and the records after it, oldest first.
    fn recover(&self) -> Result<RecoveredOrdering, OrderError>;

    /// Makes everything appended so far durable.
    fn commit(&self) -> Result<(), OrderError>;

    /// The files that belong to it: nodes of the log tree, past states.
    fn files(&self) -> Arc<dyn Storage>;

    /// Whether this server may speak for the file system.
    fn active_status(&self) -> ActiveStatus;

    /// What must outlive this server but is no record; `None`: it is noted in the data directory.
    fn notes(&self) -> Option<&dyn Notes> {
        None
    }
}

/// Small texts that are stored with an order, each under a name.
pub(crate) trait Notes {
    /// Replaces a text durably.
    fn put(&self, name: &str, text: &str) -> Result<(), OrderError>;

    /// The text, if there is one.
    fn text(&self, name: &str) -> Result<Option<String>, OrderError>;
}

/// Whether a server may speak for a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActiveStatus {
    /// It is the active server, and the only one.
    Active,
    /// It does not know: its lease may have run out.
    Unsure,
    /// It is not the active server any more, and its state in memory must not be used again.
    Lost,
}

/// Why an order did not take or give something.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Medium: the store in the data directory failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no space for it; nothing was done.
    #[error("{0}")]
    Full(String),
    /// Whether it was done is not known.
    #[error("{0}")]
    Away(String),
    /// This server is not the active one, or has lost track of the order and has to read it again.
    #[error("this server is not the active one of the file system any more")]
    Lost,
    /// Medium: what is stored is inconsistent.
    #[error("{0}")]
    Damaged(String),
}

impl From<OrderError> for RequestError {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Store(error) => error.into(),
            OrderError::Full(_) => RequestError::Client(ServerError::NoSpace),
            OrderError::Away(why) | OrderError::Damaged(why) => {
                RequestError::Client(ServerError::Storage(why))
            }
            OrderError::Lost => RequestError::Client(ServerError::Elsewhere(None)),
        }
    }
}

/// An order in the same log, and the same group commit, as the blocks it orders.
pub(crate) struct Embedded {
    pub(crate) store: LogStore,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) id: Digest,
}

impl Order for Embedded {
    fn append(&self, record: &[u8]) -> Result<(), OrderError> {
        Ok(self.store.append_ordering(self.id, record)?)
    }

    fn checkpoint(&self, checkpoint: &[u8]) -> Result<(), OrderError> {
        Ok(self.store.ordering_checkpoint(self.id, checkpoint)?)
    }

    fn recover(&self) -> Result<RecoveredOrdering, OrderError> {
        Ok(self.store.recover_ordering(self.id)?)
    }

    fn commit(&self) -> Result<(), OrderError> {
        Ok(self.store.commit()?)
    }

    fn files(&self) -> Arc<dyn Storage> {
        self.storage.clone()
    }

    fn active_status(&self) -> ActiveStatus {
        ActiveStatus::Active
    }
}
