//! Why a conversion failed.

use crate::block_store::BlockStoreError;
use crate::error::{OpenError, OrderLocationError};
use crate::order::OrderError;
use holdfast_store::StoreError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a conversion failed. The old directory is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// Operator: there is no server's data.
    #[error("{path} is not a server's data directory", path = .0.display())]
    NoServer(PathBuf),
    /// Operator: the directory belongs to another user.
    #[error("{path} belongs to the user with number {owner}: do it as that user", path = .path.display())]
    NotOwner {
        /// The directory.
        path: PathBuf,
        /// Number of the user it belongs to.
        owner: u32,
    },
    /// A data directory cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Operator: the requested conversion is not possible.
    #[error("{0}")]
    Refused(String),
    /// A file operation failed.
    #[error("{action} {path}: {error}", path = .path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The old directory is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The new place cannot be reached, or failed.
    #[error("{0}. Nothing is lost: the same command goes on where this one ended")]
    Place(String),
}

impl From<OrderLocationError> for ConvertError {
    fn from(error: OrderLocationError) -> ConvertError {
        ConvertError::Open(error.into())
    }
}

impl From<BlockStoreError> for ConvertError {
    fn from(error: BlockStoreError) -> ConvertError {
        ConvertError::Place(error.to_string())
    }
}

impl From<OrderError> for ConvertError {
    fn from(error: OrderError) -> ConvertError {
        ConvertError::Place(format!("the order: {error}"))
    }
}

impl From<StoreError> for ConvertError {
    fn from(error: StoreError) -> ConvertError {
        ConvertError::Open(error.into())
    }
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConvertError {
    move |error| ConvertError::Io { action, path: path.to_owned(), error }
}

/// Writes a small private file, durably, and either completely or not at all.
pub(super) fn put_file(to: &Path, bytes: &[u8]) -> Result<(), ConvertError> {
    holdfast_durable::replace(to, bytes, holdfast_durable::PRIVATE).map_err(failed("writing", to))
}
