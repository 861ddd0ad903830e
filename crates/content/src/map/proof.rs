//! Proofs that a key has a value, or has none: the nodes on the path to where it is or would be.

use super::node::{Node, NodePosition, kind_of};
use super::{MapRoot, MerkleMap, Value};
use crate::error::{ContentError, Malformed};
use crate::{Block, BlockKind, BlockSource, Reference, SourceError, StoredBlock};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::DigestKey;
use std::cell::RefCell;
use std::sync::Arc;

/// The nodes from the top down. Untrusted until [`MerkleMap::verify_proof`] has accepted it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Proof {
    /// At most one for each level; none for the empty map.
    pub nodes: Vec<StoredBlock>,
}

impl MerkleMap {
    /// Makes a proof of the value of `key`, or of its absence.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn prove(&self, source: &dyn BlockSource, root: &MapRoot, key: &[u8]) -> Result<Proof, ContentError> {
        let recorder = Recorder { source, nodes: RefCell::default() };
        self.get(&recorder, root, key)?;
        Ok(Proof { nodes: recorder.nodes.into_inner() })
    }

    /// What `proof` proves about `key` in the map of `root`: its value, or `None` for its absence.
    ///
    /// # Errors
    /// [`ContentError`]: the proof is not valid for this root and key, or contains more than it needs.
    pub fn verify_proof(
        &self,
        root: &MapRoot,
        key: &[u8],
        proof: &Proof,
    ) -> Result<Option<Value>, ContentError> {
        let mut nodes = proof.nodes.iter();
        let mut next: Option<NodePosition> = root.position();
        let mut answer = None;
        while let Some(position) = next.take() {
            let stored = nodes.next().ok_or(SourceError::Missing(position.reference.address))?.clone();
            let block = stored
                .open(&self.config.key, &position.reference, kind_of(position.level))
                .map_err(|error| SourceError::Altered(position.reference.address, error))?;
            let node = Node::parse(&self.config, Arc::new(block), &position)?;
            let index = node.first_at_least(key);
            if index == node.len() {
                break;
            }
            if node.level() == 0 {
                answer = (node.key(index) == key).then(|| node.value(index));
            } else {
                next = Some(node.child(index));
            }
        }
        match nodes.len() {
            0 => Ok(answer),
            _ => Err(Malformed::Rule("the proof has nodes it does not need".into()).at("proof", None)),
        }
    }
}

/// Keeps what a look-up fetches.
struct Recorder<'a> {
    source: &'a dyn BlockSource,
    nodes: RefCell<Vec<StoredBlock>>,
}

impl BlockSource for Recorder<'_> {
    fn digest_key(&self) -> DigestKey {
        self.source.digest_key()
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let block = self.source.fetch(reference, kind)?;
        self.nodes.borrow_mut().push(block.to_stored());
        Ok(block)
    }
}
