//! Where the order of a file system is stored: in the log of the server's own data directory ([`Embedded`]),
//! or in etcd, where a standby finds it ([`etcd`]).
//!
//! The contract of an [`Order`], which `tests.rs` checks for both:
//! - An appended record has its position in the order at once. It is durable when a later [`Order::commit`]
//!   has returned.
//! - After a failed commit, nothing that was appended may be acknowledged: it may have been stored or not. In
//!   etcd this also holds for a server that another one has replaced: its commits fail, whatever it believes
//!   itself.
//! - Recovery returns the last checkpoint and all that was appended after it, in order, or an error. It never
//!   returns less.

pub(crate) mod etcd;
#[cfg(test)]
mod tests;

use crate::refusal::RequestError;
use holdfast_crypto::Digest;
use holdfast_log::Storage;
use holdfast_protocol::message::ServerError;
use holdfast_store::{LogStore, RecoveredOrdering, StoreError};
use std::sync::Arc;

/// The order of one file system, as its server stores it. Calls block and may come from any thread.
pub(crate) trait Order: Send + Sync {
    /// Appends a record. It is durable after the next commit.
    fn append(&self, record: &[u8]) -> Result<(), OrderError>;

    /// Appends a checkpoint that replaces all records before it. It is durable after the next commit, or
    /// later; until then the replaced records are still there.
    fn checkpoint(&self, checkpoint: &[u8]) -> Result<(), OrderError>;

    /// The last checkpoint, if there is one, and the records after it, oldest first.
    fn recover(&self) -> Result<RecoveredOrdering, OrderError>;

    /// Makes everything appended so far durable.
    fn commit(&self) -> Result<(), OrderError>;

    /// The files that belong to the order: nodes of the log tree, past states.
    fn files(&self) -> Arc<dyn Storage>;

    /// Whether this server is the active one of the file system.
    fn active_status(&self) -> ActiveStatus;

    /// Small texts that must survive a restart but are not records; `None` if they are stored in the data
    /// directory instead.
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

/// Whether a server is the active one of a file system. Only the active server may answer for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ActiveStatus {
    /// The server is the active one, and no other is.
    Active,
    /// The server cannot tell: its lease may have expired.
    Unsure,
    /// The server is not the active one any more. Its state in memory must not be used again.
    Lost,
}

/// Why a call to an order failed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// Medium: the store in the data directory failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no space; nothing was changed.
    #[error("{0}")]
    Full(String),
    /// The call may have been carried out or not.
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
