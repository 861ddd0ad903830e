//! What a transaction collects: changes and new blocks.

use super::base::ReadError;
use crate::error::FsError;
use crate::store::Blocks;
use holdfast_content::{Block, BlockSink, Entry, Handle, Inode, Membership, Reference};
use holdfast_crypto::{Digest, DigestKey};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Turns an error with a file's data into the caller's error; may save evidence.
pub type Explain<'a> = &'a dyn Fn(Option<Handle>, &ReadError) -> FsError;

/// New entries by name, each with the directory's new time; `None` removes the name.
pub(super) type NewEntries = BTreeMap<Vec<u8>, (Option<Entry>, i64)>;

/// Changes not yet declared.
#[derive(Default)]
pub(super) struct Layer {
    /// New inodes; `None` for removed files.
    pub inodes: BTreeMap<Handle, Option<Arc<Inode>>>,
    /// New entries by directory.
    pub entries: BTreeMap<Handle, NewEntries>,
    /// A new membership.
    pub members: Option<(Reference, Arc<Membership>)>,
}

impl Layer {
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.entries.is_empty() && self.members.is_none()
    }
}

/// Holds a plan's new blocks, and releases them when the plan is dropped.
pub struct PlanSink {
    blocks: Arc<dyn Blocks>,
    held: Vec<Digest>,
}

impl PlanSink {
    pub(super) fn new(blocks: Arc<dyn Blocks>) -> PlanSink {
        PlanSink { blocks, held: Vec::new() }
    }
}

impl BlockSink for PlanSink {
    fn digest_key(&self) -> DigestKey {
        self.blocks.digest_key()
    }

    fn put(&mut self, block: Block) -> Reference {
        let reference = block.reference();
        if self.blocks.hold(block) {
            self.held.push(reference.address);
        }
        reference
    }
}

impl Drop for PlanSink {
    fn drop(&mut self) {
        for address in &self.held {
            self.blocks.release(address);
        }
    }
}
