//! The append-only Merkle log of updates, shaped as in RFC 6962 with our own domains in place of its prefixes.
//!
//! Every ordered operation is one leaf. The head before an operation is part of what its device signs, so two
//! devices with different pasts can never sign structures that fit one log; a client demands proof that each
//! head it is shown extends the last one it accepted. Witnesses will sign heads later (`docs/protocol.md`).

use crate::structure::LogHead;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain};

/// A node of the tree that will never change: the root of `2^level` leaves from leaf `index * 2^level` on.
pub type Node = ((u8, u64), Digest);

/// The leaf of one operation.
pub fn leaf(certificate: Digest, forecast: Digest) -> Digest {
    pair(Domain::LogLeaf, certificate, forecast)
}

fn pair(domain: Domain, left: Digest, right: Digest) -> Digest {
    DigestKey::WELL_KNOWN.hasher(domain).update(&left.0).update(&right.0).finish()
}

pub(crate) fn parent(left: Digest, right: Digest) -> Digest {
    pair(Domain::LogNode, left, right)
}

/// The right edge of the tree: all that is needed to append.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Frontier {
    size: u64,
    /// Roots of the complete subtrees, largest (leftmost) first: one for each bit of `size`.
    peaks: Vec<Digest>,
}

impl Frontier {
    /// The frontier of a tree of `head`'s size, if `peaks` really make up its root.
    pub fn from_peaks(head: LogHead, peaks: Vec<Digest>) -> Option<Frontier> {
        let frontier = Frontier { size: head.size, peaks };
        (frontier.peaks.len() == head.size.count_ones() as usize && frontier.head() == head)
            .then_some(frontier)
    }

    /// The frontier of a tree of `size` leaves with these peaks, whatever root they make.
    pub fn of(size: u64, peaks: Vec<Digest>) -> Option<Frontier> {
        (peaks.len() == size.count_ones() as usize).then_some(Frontier { size, peaks })
    }

    /// Roots of the complete subtrees, largest first.
    pub fn peaks(&self) -> &[Digest] {
        &self.peaks
    }

    /// Appends a leaf; returns the nodes that are now complete, the leaf first.
    pub fn append(&mut self, leaf: Digest) -> Vec<Node> {
        let mut completed = vec![((0, self.size), leaf)];
        let mut root = leaf;
        for level in 0..self.size.trailing_ones() as u8 {
            let left = self.peaks.pop().expect("a peak for each bit of the size");
            root = parent(left, root);
            completed.push(((level + 1, self.size >> (level + 1)), root));
        }
        self.peaks.push(root);
        self.size += 1;
        completed
    }

    /// Size and root.
    pub fn head(&self) -> LogHead {
        let mut peaks = self.peaks.iter().rev().copied();
        let root =
            peaks.next().map_or(Digest::ZERO, |last| peaks.fold(last, |right, left| parent(left, right)));
        LogHead { size: self.size, root }
    }
}

/// Largest power of two below `size`, which is at least 2.
pub(crate) fn split(size: u64) -> u64 {
    1 << (63 - (size - 1).leading_zeros())
}

pub(crate) fn range_root(
    first: u64,
    end: u64,
    node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
) -> Option<Digest> {
    let size = end - first;
    if size.is_power_of_two() && first.is_multiple_of(size) {
        return node(size.trailing_zeros() as u8, first / size);
    }
    let middle = first + split(size);
    Some(parent(range_root(first, middle, node)?, range_root(middle, end, node)?))
}

/// Proof that the log of `new` leaves extends that of `old` leaves (RFC 6962, 2.1.2); `node` looks complete
/// nodes up. `None` when `old > new` or a node is missing. Empty when there is nothing to prove.
pub fn consistency_proof(
    old: u64,
    new: u64,
    node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
) -> Option<Vec<Digest>> {
    if old > new {
        return None;
    }
    let mut proof = Vec::new();
    if old == 0 || old == new {
        return Some(proof);
    }
    // From the root down: the part of the range in question, and whether it still begins at leaf 0.
    let (mut first, mut end, mut whole) = (0, new, true);
    let mut tail = Vec::new();
    while old != end {
        let middle = first + split(end - first);
        if old <= middle {
            tail.push(range_root(middle, end, node)?);
            end = middle;
        } else {
            tail.push(range_root(first, middle, node)?);
            first = middle;
            whole = false;
        }
    }
    if !whole {
        proof.push(range_root(first, end, node)?);
    }
    proof.extend(tail.into_iter().rev());
    Some(proof)
}

/// Whether `proof` shows that the log with head `new` extends the one with head `old` (RFC 9162, 2.1.4.2).
#[must_use]
pub fn verify_consistency(old: LogHead, new: LogHead, proof: &[Digest]) -> bool {
    if old.size > new.size || (new.size == 0 && new.root != Digest::ZERO) {
        return false;
    }
    if old.size == 0 {
        return old.root == Digest::ZERO && proof.is_empty();
    }
    if old.size == new.size {
        return old.root == new.root && proof.is_empty();
    }
    let mut path = proof.iter().copied();
    let seed = if old.size.is_power_of_two() { Some(old.root) } else { path.next() };
    let Some(seed) = seed else { return false };
    let (mut old_root, mut new_root) = (seed, seed);
    let shift = (old.size - 1).trailing_ones();
    let (mut old_index, mut new_index) = ((old.size - 1) >> shift, (new.size - 1) >> shift);
    for step in path {
        if new_index == 0 {
            return false;
        }
        if old_index & 1 == 1 || old_index == new_index {
            old_root = parent(step, old_root);
            new_root = parent(step, new_root);
            while old_index & 1 == 0 && old_index != 0 {
                old_index >>= 1;
                new_index >>= 1;
            }
        } else {
            new_root = parent(new_root, step);
        }
        old_index >>= 1;
        new_index >>= 1;
    }
    new_index == 0 && old_root == old.root && new_root == new.root
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Every consistency proof between two sizes verifies, and no proof verifies for another pair of heads.
    #[test]
    fn proofs_verify_and_only_where_they_should() {
        let mut nodes = HashMap::new();
        let mut frontier = Frontier::default();
        let mut heads = vec![frontier.head()];
        for number in 0..70u8 {
            nodes.extend(frontier.append(Digest([number; 32])));
            heads.push(frontier.head());
            assert_eq!(
                Frontier::from_peaks(frontier.head(), frontier.peaks().to_vec()),
                Some(frontier.clone())
            );
        }
        let mut lookup = |level, index| nodes.get(&(level, index)).copied();
        for new in 0..heads.len() {
            for old in 0..=new {
                let proof =
                    consistency_proof(old as u64, new as u64, &mut lookup).expect("all nodes are kept");
                assert!(verify_consistency(heads[old], heads[new], &proof), "{old} to {new}");
                if old > 0 {
                    let other = LogHead { root: Digest([0xee; 32]), ..heads[old] };
                    assert!(!verify_consistency(other, heads[new], &proof), "{old} to {new}, wrong old root");
                    let other = LogHead { root: Digest([0xee; 32]), ..heads[new] };
                    assert!(!verify_consistency(heads[old], other, &proof), "{old} to {new}, wrong new root");
                }
                let mut longer = proof.clone();
                longer.push(Digest([1; 32]));
                assert!(!verify_consistency(heads[old], heads[new], &longer), "{old} to {new}, longer");
            }
            assert!(consistency_proof(new as u64 + 1, new as u64, &mut lookup).is_none());
        }
    }
}
