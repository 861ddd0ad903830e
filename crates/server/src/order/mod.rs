//! Where the order of a file system is kept: in the log of the server's own data directory ([`Embedded`]), or in etcd, where
//! a stand-by finds it ([`etcd`]).
//!
//! The contract of an [`Order`], which `tests.rs` beside this holds both of them to:
//! - what is appended has its place in the order at once, and is durable when a later [`Order::commit`] has returned;
//! - after a failed commit nothing that was appended may be acknowledged: it may be there or not. In etcd that also goes for
//!   a server that another one has replaced: its commits fail, whatever it believes itself;
//! - what is recovered is the last checkpoint and all that was appended after it, in order, or an error: never less.

pub(crate) mod etcd;
#[cfg(test)]
mod tests;

use crate::refusal::Refused;
use holdfast_crypto::Digest;
use holdfast_log::Storage;
use holdfast_protocol::message::ServerError;
use holdfast_store::{BlockStore, RecoveredOrdering, StoreError};
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
    fn standing(&self) -> Standing;

    /// What must outlive this server but is no record; `None`: it is noted in the data directory.
    fn notes(&self) -> Option<&dyn Notes> {
        None
    }
}

/// Small texts beside an order, each of a name.
pub(crate) trait Notes {
    /// Makes a text durable in place of the one before.
    fn put(&self, name: &str, text: &str) -> Result<(), OrderError>;

    /// The text, if there is one.
    fn text(&self, name: &str) -> Result<Option<String>, OrderError>;
}

/// Whether a server may speak for a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It is the only one that may.
    Active,
    /// It cannot tell just now.
    Unsure,
    /// It may no more, and never will with what it has in memory.
    Lost,
}

/// Why an order did not take or give something.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The store here.
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
    /// What is kept does not fit together.
    #[error("{0}")]
    Damaged(String),
}

impl From<OrderError> for Refused {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Store(error) => error.into(),
            OrderError::Full(_) => Refused::Client(ServerError::NoSpace),
            OrderError::Away(why) | OrderError::Damaged(why) => Refused::Client(ServerError::Storage(why)),
            OrderError::Lost => Refused::Client(ServerError::Elsewhere(None)),
        }
    }
}

/// An order in the same log, and the same group commit, as the blocks it orders.
pub(crate) struct Embedded {
    pub(crate) store: BlockStore,
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

    fn standing(&self) -> Standing {
        Standing::Active
    }
}
