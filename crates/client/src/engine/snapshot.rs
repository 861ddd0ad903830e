//! A verified view that programs read from.

use crate::error::FsError;
use crate::store::VerifiedStore;
use crate::tree::Tree;
use holdfast_content::{Entry, Handle, Inode, Membership};
use holdfast_crypto::Digest;
use std::sync::Arc;

/// What the file system was at one place in the order. Reading something that another device has pending waits
/// until that is settled (SUNDR 3.4.2).
pub struct Snapshot {}

impl Snapshot {
    /// Grows with every accepted view of one engine: a later view has a higher number.
    pub fn sequence(&self) -> u64 {
        unimplemented!("lands with the protocol's signer")
    }

    /// The membership in force.
    pub fn membership(&self) -> Arc<Membership> {
        unimplemented!("lands with the protocol's signer")
    }

    /// Where file content is read from.
    pub fn source(&self) -> &VerifiedStore {
        unimplemented!("lands with the protocol's signer")
    }
}

impl Tree for Snapshot {
    fn inode(&self, _file: Handle) -> Result<Arc<Inode>, FsError> {
        unimplemented!("lands with the protocol's signer")
    }
    fn entry(&self, _directory: Handle, _name: &[u8]) -> Result<Option<Entry>, FsError> {
        unimplemented!("lands with the protocol's signer")
    }
    fn entries(
        &self,
        _directory: Handle,
        _after: Option<&[u8]>,
        _limit: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>, FsError> {
        unimplemented!("lands with the protocol's signer")
    }
    fn ihash(&self, _file: Handle) -> Result<Digest, FsError> {
        unimplemented!("lands with the protocol's signer")
    }
}
