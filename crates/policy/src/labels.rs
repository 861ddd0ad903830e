//! Labels: an owner and an ACL. Each distinct pair is stored once and has a number, which extents contain, so
//! that a table of a million extents stays small.
//!
//! Invariants: a label's number is unique, and so is its content; a label exists exactly as long as an extent
//! uses it; the labels of a block fit into it.

use crate::Refused;
use crate::format::LIST_BYTES;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_access::{Acl, Principal};
use holdfast_crypto::{Digest, DigestKey, Domain, encode};
use std::collections::{BTreeMap, BTreeSet};

/// The owner and the ACL of blocks.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Label {
    /// The owner, who may change the ACL and give the blocks away.
    pub owner: Principal,
    /// The principals that may use the blocks.
    pub acl: Acl,
}

struct Interned {
    label: Label,
    digest: Digest,
    bytes: usize,
    block: usize,
    uses: usize,
}

/// All labels of a table.
pub(crate) struct Labels {
    by_number: BTreeMap<u32, Interned>,
    by_digest: BTreeMap<Digest, u32>,
    /// For each label block, the labels that it stores.
    blocks: Vec<BTreeSet<u32>>,
    blocks_max: u64,
    /// Blocks that differ from what is stored.
    pub changed: BTreeSet<usize>,
}

impl Labels {
    pub fn new(blocks_max: u64) -> Labels {
        Labels {
            by_number: BTreeMap::new(),
            by_digest: BTreeMap::new(),
            blocks: Vec::new(),
            blocks_max,
            changed: BTreeSet::new(),
        }
    }

    /// Loads the next stored block of labels.
    pub fn load(&mut self, stored: Vec<(u32, Label)>) -> Result<(), &'static str> {
        let block = self.blocks.len();
        self.blocks.push(BTreeSet::new());
        for (number, label) in stored {
            if !label.owner.is_storable() {
                return Err("an owner is a process or the machine");
            }
            let (digest, bytes) = measure(&label);
            if self.by_number.contains_key(&number) || self.by_digest.contains_key(&digest) {
                return Err("a label is there twice");
            }
            self.place(number, Interned { label, digest, bytes, block, uses: 0 });
        }
        Ok(())
    }

    pub fn get(&self, number: u32) -> Option<&Label> {
        self.by_number.get(&number).map(|interned| &interned.label)
    }

    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    pub fn blocks_used(&self) -> usize {
        self.blocks.len()
    }

    /// Whether every label is in use, as it is in every table that was written.
    pub fn all_used(&self) -> bool {
        self.by_number.values().all(|interned| interned.uses > 0)
    }

    /// The number of a label, which is added if it is new. [`Labels::unuse`] removes labels that turn out not
    /// to be used.
    pub fn intern(&mut self, label: Label) -> Result<u32, Refused> {
        let (digest, bytes) = measure(&label);
        if let Some(number) = self.by_digest.get(&digest) {
            return Ok(*number);
        }
        if bytes > LIST_BYTES {
            return Err(Refused::AclTooLong);
        }
        let room = |held: &BTreeSet<u32>| {
            held.iter().map(|number| self.by_number[number].bytes).sum::<usize>() + bytes <= LIST_BYTES
        };
        let block = self.blocks.iter().position(room).unwrap_or(self.blocks.len());
        if block == self.blocks.len() {
            if block as u64 >= self.blocks_max {
                return Err(Refused::Full);
            }
            self.blocks.push(BTreeSet::new());
        }
        let number = (0..).find(|number| !self.by_number.contains_key(number)).ok_or(Refused::Full)?;
        self.place(number, Interned { label, digest, bytes, block, uses: 0 });
        self.changed.insert(block);
        Ok(number)
    }

    fn place(&mut self, number: u32, interned: Interned) {
        self.by_digest.insert(interned.digest, number);
        self.blocks[interned.block].insert(number);
        self.by_number.insert(number, interned);
    }

    /// Counts one more extent that uses the label; `false` if there is no such label.
    pub fn add_use(&mut self, number: u32) -> bool {
        self.by_number.get_mut(&number).map(|interned| interned.uses += 1).is_some()
    }

    /// Counts one extent less that uses the label.
    pub fn drop_use(&mut self, number: u32) {
        self.by_number.get_mut(&number).expect("extents use labels that are there").uses -= 1;
    }

    /// Forgets the label if no extent uses it.
    pub fn unuse(&mut self, number: u32) {
        if self.by_number.get(&number).is_some_and(|interned| interned.uses == 0) {
            let interned = self.by_number.remove(&number).expect("just seen");
            self.by_digest.remove(&interned.digest);
            self.blocks[interned.block].remove(&number);
            self.changed.insert(interned.block);
        }
    }

    /// The labels of a block, to be stored.
    pub fn stored(&self, block: usize) -> Vec<(u32, Label)> {
        self.blocks[block].iter().map(|number| (*number, self.by_number[number].label.clone())).collect()
    }
}

/// A label's digest, and the bytes that it takes in a block, including its number.
fn measure(label: &Label) -> (Digest, usize) {
    let bytes = encode(label);
    (DigestKey::WELL_KNOWN.digest(Domain::PolicyLabel, &bytes), bytes.len() + 4)
}
