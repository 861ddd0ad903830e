//! Metadata read through the caller, and changes collected as whole blocks.
//!
//! An operation works on a `Draft`, which reads from the caller and collects changes. If the operation fails,
//! the draft is dropped and nothing has changed. If it succeeds, the draft becomes a `Transaction`, which the
//! caller commits as a whole. So a crash comes between two transactions, and each leaves a file system that
//! `fsck.fat` finds clean.
//!
//! Attack answered: the blocks are in memory that others can reach. Each is copied once before it is checked,
//! so that what was checked is what is used.

use crate::layout::{Area, BlockId, BlockRange, Layout, Run};
use crate::{FatError, Result};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks of metadata, provided by the caller. The contents of files cannot be requested: the driver asks
/// only for blocks of the metadata area and of directories.
pub trait Metadata {
    /// Fills `into` with a block, which is `Layout::place(block).1` bytes long. The error is the reason in
    /// words.
    fn read(&self, block: BlockId, into: &mut [u8]) -> std::result::Result<(), String>;
}

impl<M: Metadata + ?Sized> Metadata for &M {
    fn read(&self, block: BlockId, into: &mut [u8]) -> std::result::Result<(), String> {
        (**self).read(block, into)
    }
}

/// A change of the driver's memory once a transaction is applied.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Clusters are in use now.
    Used(Run),
    /// Clusters become free.
    Freed(Run),
    /// The chain that starts there has these runs now; none if it is no more.
    Chain(u32, Option<Arc<[Run]>>),
    /// A file is known now, or elsewhere, or nowhere.
    Node(crate::FileId, crate::nodes::NodeChange),
    /// The directory of blocks to be given back is known.
    Limbo(u32),
}

/// A change of the file system: whole blocks, to be committed all or none.
#[derive(Debug)]
#[must_use = "commit its blocks and give it to `applied`, or give it to `abandoned`"]
pub struct Transaction {
    pub(crate) number: u64,
    pub(crate) effects: Vec<Effect>,
    /// The blocks, each as it shall be. Every one is of the metadata area or of a directory.
    pub blocks: BTreeMap<BlockId, Vec<u8>>,
    /// Blocks that belong to a file from now on: to be nominated to the file's owner after the commit.
    pub allocated: Vec<BlockRange>,
    /// Blocks that belong to a directory from now on; the driver keeps owning them.
    pub directories: Vec<BlockRange>,
    /// Blocks that were a directory's and now are free; the driver keeps owning them.
    pub freed: Vec<BlockRange>,
}

/// The blocks of an operation under way.
pub(crate) struct Draft<'a> {
    pub(crate) layout: &'a Layout,
    metadata: &'a dyn Metadata,
    blocks: BTreeMap<BlockId, Vec<u8>>,
    /// The block read last: chains and directories are read in order.
    last: RefCell<Option<(BlockId, Vec<u8>)>>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) allocated: Vec<BlockRange>,
    pub(crate) directories: Vec<BlockRange>,
    pub(crate) freed: Vec<BlockRange>,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(layout: &'a Layout, metadata: &'a dyn Metadata) -> Draft<'a> {
        Draft {
            layout,
            metadata,
            blocks: BTreeMap::new(),
            last: RefCell::new(None),
            effects: Vec::new(),
            allocated: Vec::new(),
            directories: Vec::new(),
            freed: Vec::new(),
        }
    }

    fn fetch(&self, block: BlockId) -> Result<Vec<u8>> {
        assert!(
            block.index < self.layout.area_blocks(block.area),
            "{block} was computed from checked numbers"
        );
        let mut bytes = vec![0; self.layout.place(block).1];
        self.metadata.read(block, &mut bytes).map_err(|reason| FatError::Medium { block, reason })?;
        Ok(bytes)
    }

    /// Reads a block as it is in this draft.
    pub(crate) fn look<R>(&self, block: BlockId, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if let Some(bytes) = self.blocks.get(&block) {
            return Ok(look(bytes));
        }
        let mut last = self.last.borrow_mut();
        match &*last {
            Some((held, bytes)) if *held == block => Ok(look(bytes)),
            _ => {
                let bytes = self.fetch(block)?;
                let (_, bytes) = last.insert((block, bytes));
                Ok(look(bytes))
            }
        }
    }

    /// A block to be changed.
    pub(crate) fn edit(&mut self, block: BlockId) -> Result<&mut Vec<u8>> {
        if !self.blocks.contains_key(&block) {
            let held = self.last.borrow_mut().take().filter(|(held, _)| *held == block);
            let bytes = match held {
                Some((_, bytes)) => bytes,
                None => self.fetch(block)?,
            };
            self.blocks.insert(block, bytes);
        }
        Ok(self.blocks.get_mut(&block).expect("it was just put there"))
    }

    /// Makes all blocks of clusters zero, whatever they held.
    pub(crate) fn zero(&mut self, run: Run) {
        let range = self.layout.blocks(run);
        for index in range.start..range.start + range.count {
            let block = BlockId { area: Area::Data, index };
            self.blocks.insert(block, vec![0; self.layout.block_bytes as usize]);
        }
    }

    pub(crate) fn into_transaction(self, number: u64) -> Transaction {
        Transaction {
            number,
            effects: self.effects,
            blocks: self.blocks,
            allocated: self.allocated,
            directories: self.directories,
            freed: self.freed,
        }
    }
}
