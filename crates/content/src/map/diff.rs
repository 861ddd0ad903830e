//! Differences of two maps. Subtrees that both share are skipped without being fetched.

use super::node::{Node, NodePosition, kind_of};
use super::{MapRoot, MerkleMap, Value};
use crate::BlockSource;
use crate::error::ContentError;
use std::cmp::Ordering;
use std::collections::HashSet;

/// Called with a key and its values in the first and in the second map; an error stops the walk.
pub type DiffVisitor<'v> = dyn FnMut(&[u8], Option<&Value>, Option<&Value>) -> Result<(), ContentError> + 'v;

/// The next item of one side: an unopened subtree, or an entry.
enum Head {
    Subtree(NodePosition),
    Entry(Vec<u8>, Value),
}

impl MerkleMap {
    /// Calls `visit(key, value in a, value in b)` for every key that differs, in ascending order. `visit` may
    /// return an error to stop.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed, or what `visit` returned.
    pub fn diff(
        &self,
        source: &dyn BlockSource,
        a: &MapRoot,
        b: &MapRoot,
        visit: &mut DiffVisitor<'_>,
    ) -> Result<(), ContentError> {
        let mut left: Vec<Head> = a.position().map(Head::Subtree).into_iter().collect();
        let mut right: Vec<Head> = b.position().map(Head::Subtree).into_iter().collect();
        loop {
            match (left.last(), right.last()) {
                (None, None) => return Ok(()),
                (Some(Head::Subtree(x)), Some(Head::Subtree(y))) => {
                    if x.reference == y.reference && x.level == y.level {
                        left.pop();
                        right.pop();
                        continue;
                    }
                    match x.level.cmp(&y.level) {
                        Ordering::Greater => self.open(source, &mut left)?,
                        Ordering::Less => self.open(source, &mut right)?,
                        Ordering::Equal => {
                            let (from_left, from_right) = (left.len() - 1, right.len() - 1);
                            source.prefetch(&[
                                (x.reference, kind_of(x.level)),
                                (y.reference, kind_of(y.level)),
                            ]);
                            self.open(source, &mut left)?;
                            self.open(source, &mut right)?;
                            hint(source, &left[from_left..], &right[from_right..]);
                        }
                    }
                }
                (Some(Head::Subtree(_)), _) => self.open(source, &mut left)?,
                (_, Some(Head::Subtree(_))) => self.open(source, &mut right)?,
                (Some(Head::Entry(key, value)), None) => {
                    visit(key, Some(value), None)?;
                    left.pop();
                }
                (None, Some(Head::Entry(key, value))) => {
                    visit(key, None, Some(value))?;
                    right.pop();
                }
                (Some(Head::Entry(x, before)), Some(Head::Entry(y, after))) => match x.cmp(y) {
                    Ordering::Less => {
                        visit(x, Some(before), None)?;
                        left.pop();
                    }
                    Ordering::Greater => {
                        visit(y, None, Some(after))?;
                        right.pop();
                    }
                    Ordering::Equal => {
                        if before != after {
                            visit(x, Some(before), Some(after))?;
                        }
                        left.pop();
                        right.pop();
                    }
                },
            }
        }
    }

    /// Replaces the subtree on top of the stack by what it holds, the first on top.
    fn open(&self, source: &dyn BlockSource, stack: &mut Vec<Head>) -> Result<(), ContentError> {
        let Some(Head::Subtree(position)) = stack.pop() else { unreachable!("the caller saw a subtree") };
        let node = Node::fetch(&self.config, source, &position)?;
        for index in (0..node.len()).rev() {
            stack.push(if position.level == 0 {
                Head::Entry(node.key(index).to_vec(), node.value(index))
            } else {
                Head::Subtree(node.child(index))
            });
        }
        Ok(())
    }
}

/// Fetches ahead the children that two nodes just opened do not share.
fn hint(source: &dyn BlockSource, left: &[Head], right: &[Head]) {
    let places = |heads: &[Head]| -> Vec<_> {
        heads
            .iter()
            .rev()
            .filter_map(|head| match head {
                Head::Subtree(position) => Some((position.reference, kind_of(position.level))),
                Head::Entry(..) => None,
            })
            .collect()
    };
    let (left, right) = (places(left), places(right));
    let (in_left, in_right): (HashSet<_>, HashSet<_>) =
        (left.iter().copied().collect(), right.iter().copied().collect());
    let wanted: Vec<_> = left
        .iter()
        .filter(|one| !in_right.contains(one))
        .chain(right.iter().filter(|one| !in_left.contains(one)))
        .copied()
        .collect();
    if wanted.len() > 1 {
        source.prefetch(&wanted);
    }
}
