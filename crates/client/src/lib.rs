//! The Holdfast client: signer, cache, views, write-back and the inode API.
#![forbid(unsafe_code)]

pub mod error;

pub use error::{FrozenReport, FsError, IntegrityReport, StartError};
