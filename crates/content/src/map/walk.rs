//! All nodes of a map, without its entries.

use super::node::{Node, NodePosition};
use super::{MapRoot, MerkleMap};
use crate::error::ContentError;
use crate::{BlockSource, Reference};

/// Called with the number of nodes above a node, its reference, and its last key, which is `None` for the top node.
pub type NodeVisitor<'a> = dyn FnMut(u8, &Reference, Option<&[u8]>) + 'a;

impl MerkleMap {
    /// Calls `visit` for every node; leaves are visited without being fetched. A node comes before its
    /// children, which are in order.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn nodes(
        &self,
        source: &dyn BlockSource,
        root: &MapRoot,
        visit: &mut NodeVisitor<'_>,
    ) -> Result<(), ContentError> {
        match root.position() {
            Some(top) => self.nodes_below(source, &top, 0, visit),
            None => Ok(()),
        }
    }

    fn nodes_below(
        &self,
        source: &dyn BlockSource,
        position: &NodePosition,
        depth: u8,
        visit: &mut NodeVisitor<'_>,
    ) -> Result<(), ContentError> {
        visit(depth, &position.reference, position.upper.as_deref());
        if position.level == 0 {
            return Ok(());
        }
        let node = Node::fetch(&self.config, source, position)?;
        (0..node.len()).try_for_each(|index| self.nodes_below(source, &node.child(index), depth + 1, visit))
    }
}
