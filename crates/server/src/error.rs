//! Why a server cannot start or go on.

use crate::order::OrderError;
use crate::tree::TreeError;
use holdfast_crypto::{Digest, PublicKey, keyfile::KeyFileError};
use holdfast_store::StoreError;
use std::path::{Path, PathBuf};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Medium: a file operation failed.
    #[error("{action} {path}: {error}", path = path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// Operator: the server's key file cannot be used.
    #[error("the server's key {path} cannot be used: {error}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why it is no key.
        error: KeyFileError,
    },
    /// Operator: others can read the server's key.
    #[error("the server's key {path} can be read by others: run `chmod 600 {path}`", path = path.display())]
    KeyReadable {
        /// The file.
        path: PathBuf,
    },
    /// The store: in use, of a newer format, damaged, or the medium failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Log-tree nodes are damaged or of a newer form.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Medium: the stored order of a file system is inconsistent.
    #[error("the ordering records of file system {file_system} are damaged: {why}")]
    Ordering {
        /// The file system.
        file_system: Digest,
        /// The inconsistency.
        why: String,
    },
    /// The order of a file system cannot be read from where it is stored.
    #[error("the order of file system {file_system}: {error}")]
    Order {
        /// The file system.
        file_system: Digest,
        /// The error.
        error: OrderError,
    },
    /// The configured place of the order cannot be used.
    #[error("{0}")]
    State(String),
    /// The block server is not reached, or does not serve this server.
    #[error("{0}")]
    BlockStore(String),
    /// Operator: the data directory has blocks of its own.
    #[error(
        "{path} has its blocks itself; --blocks is for a new data directory; `holdfast server convert` makes one of it (docs/growing.md)",
        path = path.display()
    )]
    BlocksHere {
        /// The data directory.
        path: PathBuf,
    },
    /// Operator: the folder has files that are not a server's.
    #[error(
        "{path} is no data directory: it has {name}, which is not a server's; name an empty folder, or one that is not there yet",
        path = .path.display(), name = .name.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// One of its files.
        name: PathBuf,
    },
    /// Operator: the data directory is not one to be served.
    #[error("{0}")]
    Converted(String),
    /// Operator: the address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
}

impl OpenError {
    /// Whether only one file system is damaged, and the others can be served.
    pub(crate) fn is_of_one_file_system(&self) -> bool {
        match self {
            OpenError::Ordering { .. } | OpenError::Store(StoreError::OrderingDamaged { .. }) => true,
            OpenError::Tree(TreeError::Damaged { .. } | TreeError::Lost { .. } | TreeError::Form(_)) => true,
            OpenError::Tree(TreeError::Io { error, .. }) => error.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        }
    }

    pub(crate) fn order(file_system: Digest, error: OrderError) -> OpenError {
        match error {
            OrderError::Store(error) => OpenError::Store(error),
            OrderError::Damaged(why) => OpenError::Ordering { file_system, why },
            error => OpenError::Order { file_system, error },
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, error: std::io::Error) -> OpenError {
        OpenError::Io { action, path: path.to_owned(), error }
    }
}

/// Why a block server did not start.
#[derive(Debug, thiserror::Error)]
pub enum BlockServerError {
    /// The data directory cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Another one has the data directory.
    #[error("{path} is in use by another block server", path = .0.display())]
    InUse(PathBuf),
    /// What is known of the bucket makes no sense, or cannot be noted.
    #[error("{0}")]
    Bucket(String),
    /// It cannot be a standby for others.
    #[error("{0}")]
    Election(String),
    /// A store of a consistency server in a bucket cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    InBucket {
        /// The consistency server's key.
        server: PublicKey,
        /// The reason.
        why: String,
    },
    /// A store of a consistency server cannot be opened.
    #[error("the blocks of the server {server}: {why}")]
    Store {
        /// The consistency server's key.
        server: PublicKey,
        /// The reason.
        why: String,
    },
}

/// Why a running server stopped other than by request.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Medium: the log can no longer promise durability. Restart the server when the cause is mended; nothing
    /// acknowledged is lost.
    #[error("the storage failed, so that nothing more can be acknowledged: {0}")]
    Storage(String),
    /// Operator: a witness cannot be asked as it was given.
    #[error("a witness cannot be asked: {0}")]
    Witness(String),
    /// The system: its front end cannot be shut in.
    #[error("the server's front end cannot be started: {0}")]
    Sandbox(holdfast_components::ComponentError),
    /// The system: no reactor, listener or thread.
    #[error("the server cannot run: {0}")]
    System(#[from] std::io::Error),
}
