//! Why a server cannot start, or has to stop.

use crate::block_store::BlocksOpenError;
use crate::order::OrderError;
use crate::tree::TreeError;
use holdfast_checkpoint::note::VerifierKey;
use holdfast_crypto::{Digest, keyfile::KeyFileError};
use holdfast_etcd::{AccessError, EtcdError};
use holdfast_store::StoreError;
use holdfast_witness::WitnessError;
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
        /// Why it is not a key.
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
    #[error(transparent)]
    State(#[from] OrderLocationError),
    /// The block store cannot be opened.
    #[error(transparent)]
    BlockStore(#[from] BlocksOpenError),
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
    /// Operator: the file systems of this directory were moved elsewhere, or not yet moved here completely.
    #[error("{0}")]
    Converted(String),
    /// Operator: the server cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Why the order cannot be where the configuration says.
#[derive(Debug, thiserror::Error)]
pub enum OrderLocationError {
    /// Operator: the task is not possible for a server whose order is in etcd.
    #[error(
        "the order of {data} is in {place}: this is for a server that runs, or for one with the order in its own data directory",
        data = .data.display()
    )]
    Elsewhere {
        /// The data directory.
        data: PathBuf,
        /// Where the order is.
        place: String,
    },
    /// Operator: other servers would not find the blocks.
    #[error(
        "an order that other servers find is of use only with blocks that they find too: --blocks is needed with --order \
         (docs/growing.md)"
    )]
    BlocksHere,
    /// Operator: several servers cannot write to one bucket.
    #[error(
        "a bucket has one writer: servers that stand by would take it from each other. With --order the blocks go to a block \
         server, which may have them in the bucket (`holdfast server blocks --blocks s3://...`, docs/growing.md)"
    )]
    BlocksInBucket,
    /// Operator: there is an order in the data directory already.
    #[error(
        "{} has the order of file systems itself; --order is for a new data directory, which `holdfast server convert` makes \
         of it (docs/growing.md)",
        .0.display()
    )]
    OrderHere(PathBuf),
    /// Operator: the configuration does not say how other servers and clients reach this server.
    #[error(
        "it listens on all addresses: --advertise HOST:PORT says which of them clients and other servers use"
    )]
    NoAddress,
    /// The address of etcd, or the file with the credentials, cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// etcd cannot be reached, or refuses.
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    /// The system: the thread that renews the lease could not be started.
    #[error(transparent)]
    Thread(std::io::Error),
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

/// Why a server does not serve a file system that it has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnservedReason {
    /// Its creation was interrupted, so no client has ever used it.
    #[error("it was never created to its end")]
    NeverCreated,
    /// Its order is damaged, with the reason: serving it would roll it back.
    #[error("{0}")]
    Damaged(String),
}

/// Why a running server stopped without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Medium: the log cannot make anything durable any more. Restart the server when the cause is removed;
    /// nothing that was acknowledged is lost.
    #[error("the storage failed, so that nothing more can be acknowledged: {0}")]
    Storage(String),
    /// Operator: the settings of a witness cannot be used.
    #[error("a witness cannot be asked: {0}")]
    Witness(#[from] WitnessSettingsError),
    /// The system: the sandbox of the front end cannot be made.
    #[error("the server's front end cannot be started: {0}")]
    Sandbox(holdfast_components::ComponentError),
    /// The system: no reactor, listener or thread.
    #[error("the server cannot run: {0}")]
    System(#[from] std::io::Error),
}

/// Why the settings of a witness cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WitnessSettingsError {
    /// There are too many witnesses.
    #[error("at most {0} witnesses can be asked")]
    TooMany(usize),
    /// The key is that of a log, not of a witness.
    #[error("{0} is the key of a log, not of a witness")]
    KeyOfLog(VerifierKey),
    /// The URL or key of a witness cannot be used.
    #[error(transparent)]
    Client(#[from] WitnessError),
}
