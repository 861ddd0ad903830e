//! Proofs that a leaf stands at its place in the log of updates (RFC 9162, 2.1.3).

use crate::log_tree::{parent, range_root, split};
use crate::structure::LogHead;
use holdfast_crypto::Digest;

/// Proof that leaf `index` is in the log of `size` leaves; `node` looks complete nodes up. `None` when it is beyond the
/// end, or a node is missing.
pub fn inclusion_proof(
    index: u64,
    size: u64,
    node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
) -> Option<Vec<Digest>> {
    if index >= size {
        return None;
    }
    let (mut first, mut end) = (0, size);
    let mut proof = Vec::new();
    while end - first > 1 {
        let middle = first + split(end - first);
        if index < middle {
            proof.push(range_root(middle, end, node)?);
            end = middle;
        } else {
            proof.push(range_root(first, middle, node)?);
            first = middle;
        }
    }
    proof.reverse();
    Some(proof)
}

/// Whether `proof` shows that `leaf` is the one at `index` in the log with this head.
#[must_use]
pub fn verify_inclusion(leaf: Digest, index: u64, head: LogHead, proof: &[Digest]) -> bool {
    if index >= head.size {
        return false;
    }
    let (mut root, mut at, mut last) = (leaf, index, head.size - 1);
    for step in proof {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            root = parent(*step, root);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            root = parent(root, *step);
        }
        at >>= 1;
        last >>= 1;
    }
    last == 0 && root == head.root
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_tree::Frontier;
    use std::collections::HashMap;

    /// Proves: each leaf of each log is proven to be at its place, and at no other; nor another leaf, nor under another
    /// head, nor by a longer or shorter proof.
    #[test]
    fn leaves_are_where_they_are_and_nowhere_else() {
        let mut nodes = HashMap::new();
        let mut frontier = Frontier::default();
        let leaf = |number: u64| Digest([number as u8 + 1; 32]);
        for size in 1..40u64 {
            nodes.extend(frontier.append(leaf(size - 1)));
            let head = frontier.head();
            let mut node = |level, index| nodes.get(&(level, index)).copied();
            for index in 0..size {
                let proof = inclusion_proof(index, size, &mut node).expect("all nodes are kept");
                assert!(verify_inclusion(leaf(index), index, head, &proof), "{index} of {size}");
                assert!(!verify_inclusion(leaf(99), index, head, &proof));
                let other = LogHead { root: Digest([0xee; 32]), ..head };
                assert!(!verify_inclusion(leaf(index), index, other, &proof));
                let mut longer = proof.clone();
                longer.push(Digest([1; 32]));
                assert!(!verify_inclusion(leaf(index), index, head, &longer));
                if let Some((_, shorter)) = proof.split_last() {
                    assert!(!verify_inclusion(leaf(index), index, head, shorter));
                }
                for place in (0..size).filter(|place| *place != index) {
                    assert!(
                        !verify_inclusion(leaf(index), place, head, &proof),
                        "{index} as {place} of {size}"
                    );
                }
            }
            assert!(inclusion_proof(size, size, &mut node).is_none());
        }
    }
}
