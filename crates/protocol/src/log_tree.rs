//! The append-only Merkle log of updates, shaped as in RFC 6962 with our own domains in place of its prefixes.
//!
//! Every ordered operation is one leaf. The head before an operation is part of what its device signs, so two
//! devices with different pasts can never sign structures that fit one log. A client demands proof that each
//! head extends the last one it accepted. Witnesses co-sign heads of a second tree with the same leaves and
//! shape, made with SHA-256 (`docs/internals/forks.md`); what depends only on the shape is in [`TreeHash`].

use crate::structure::LogHead;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain};

/// A node of the tree that will never change: the root of `2^level` leaves from leaf `index * 2^level` on.
pub type Node = ((u8, u64), Digest);

/// The leaf of one operation.
pub fn leaf(certificate: Digest, forecast: Digest) -> Digest {
    pair(Domain::LogLeaf, certificate, forecast)
}

/// How two nodes are hashed into their parent. Trees of this shape differ in nothing else.
#[derive(Clone, Copy)]
pub struct TreeHash(pub fn(Digest, Digest) -> Digest);

/// The tree of the log of updates.
pub const UPDATES: TreeHash = TreeHash(parent);

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
        self.append_to(UPDATES, leaf)
    }

    /// As [`Frontier::append`], of another tree.
    pub fn append_to(&mut self, tree: TreeHash, leaf: Digest) -> Vec<Node> {
        let mut completed = vec![((0, self.size), leaf)];
        let mut root = leaf;
        for level in 0..self.size.trailing_ones() as u8 {
            let left = self.peaks.pop().expect("a peak for each bit of the size");
            root = (tree.0)(left, root);
            completed.push(((level + 1, self.size >> (level + 1)), root));
        }
        self.peaks.push(root);
        self.size += 1;
        completed
    }

    /// Size and root.
    pub fn head(&self) -> LogHead {
        self.head_of(UPDATES)
    }

    /// As [`Frontier::head`], of another tree. The root of no leaves is zero, whatever the tree.
    pub fn head_of(&self, tree: TreeHash) -> LogHead {
        let mut peaks = self.peaks.iter().rev().copied();
        let root =
            peaks.next().map_or(Digest::ZERO, |last| peaks.fold(last, |right, left| (tree.0)(left, right)));
        LogHead { size: self.size, root }
    }
}

/// Largest power of two below `size`, which is at least 2.
pub(crate) fn split(size: u64) -> u64 {
    1 << (63 - (size - 1).leading_zeros())
}

/// Proof that the log of `new` leaves extends that of `old` leaves (RFC 6962, 2.1.2); `node` looks complete
/// nodes up. `None` when `old > new` or a node is missing. Empty when there is nothing to prove.
pub fn consistency_proof(
    old: u64,
    new: u64,
    node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
) -> Option<Vec<Digest>> {
    UPDATES.consistency_proof(old, new, node)
}

/// Whether `proof` shows that the log with head `new` extends the one with head `old` (RFC 9162, 2.1.4.2).
#[must_use]
pub fn verify_consistency(old: LogHead, new: LogHead, proof: &[Digest]) -> bool {
    UPDATES.verify_consistency(old, new, proof)
}

impl TreeHash {
    fn range_root(
        self,
        first: u64,
        end: u64,
        node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
    ) -> Option<Digest> {
        let size = end - first;
        if size.is_power_of_two() && first.is_multiple_of(size) {
            return node(size.trailing_zeros() as u8, first / size);
        }
        let middle = first + split(size);
        Some((self.0)(self.range_root(first, middle, node)?, self.range_root(middle, end, node)?))
    }

    /// Makes a proof of consistency as [`consistency_proof`] does, for this tree.
    pub fn consistency_proof(
        self,
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
                tail.push(self.range_root(middle, end, node)?);
                end = middle;
            } else {
                tail.push(self.range_root(first, middle, node)?);
                first = middle;
                whole = false;
            }
        }
        if !whole {
            proof.push(self.range_root(first, end, node)?);
        }
        proof.extend(tail.into_iter().rev());
        Some(proof)
    }

    /// Checks a proof of consistency as [`verify_consistency`] does, for this tree.
    #[must_use]
    pub fn verify_consistency(self, old: LogHead, new: LogHead, proof: &[Digest]) -> bool {
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
                old_root = (self.0)(step, old_root);
                new_root = (self.0)(step, new_root);
                while old_index & 1 == 0 && old_index != 0 {
                    old_index >>= 1;
                    new_index >>= 1;
                }
            } else {
                new_root = (self.0)(new_root, step);
            }
            old_index >>= 1;
            new_index >>= 1;
        }
        new_index == 0 && old_root == old.root && new_root == new.root
    }

    /// Proof that leaf `index` is in the log of `size` leaves (RFC 6962, 2.1.1), from the leaf up. `None` when it
    /// is not, or a node is missing.
    pub fn inclusion_proof(
        self,
        index: u64,
        size: u64,
        node: &mut dyn FnMut(u8, u64) -> Option<Digest>,
    ) -> Option<Vec<Digest>> {
        if index >= size {
            return None;
        }
        let (mut first, mut end) = (0, size);
        let mut path = Vec::new();
        while end - first > 1 {
            let middle = first + split(end - first);
            if index < middle {
                path.push(self.range_root(middle, end, node)?);
                end = middle;
            } else {
                path.push(self.range_root(first, middle, node)?);
                first = middle;
            }
        }
        path.reverse();
        Some(path)
    }

    /// Whether `proof` proves that `leaf` (already hashed as in the tree) is leaf `index` of the log with
    /// this head (RFC 9162, 2.1.3.2).
    #[must_use]
    pub fn verify_inclusion(self, index: u64, leaf: Digest, head: LogHead, proof: &[Digest]) -> bool {
        if index >= head.size {
            return false;
        }
        let (mut index, mut last) = (index, head.size - 1);
        let mut root = leaf;
        for step in proof {
            if last == 0 {
                return false;
            }
            if index & 1 == 1 || index == last {
                root = (self.0)(*step, root);
                while index & 1 == 0 && index != 0 {
                    index >>= 1;
                    last >>= 1;
                }
            } else {
                root = (self.0)(root, *step);
            }
            index >>= 1;
            last >>= 1;
        }
        last == 0 && root == head.root
    }
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

    /// Every leaf of every size is proven, and nothing else is: no other leaf, place, head or longer proof.
    #[test]
    fn inclusion_is_proven_and_only_what_is_there() {
        let mut nodes = HashMap::new();
        let mut frontier = Frontier::default();
        for number in 0..40u8 {
            nodes.extend(frontier.append(Digest([number; 32])));
            let head = frontier.head();
            let mut lookup = |level, index| nodes.get(&(level, index)).copied();
            for index in 0..head.size {
                let leaf = Digest([index as u8; 32]);
                let proof =
                    UPDATES.inclusion_proof(index, head.size, &mut lookup).expect("all nodes are kept");
                assert!(UPDATES.verify_inclusion(index, leaf, head, &proof), "{index} of {}", head.size);
                assert!(!UPDATES.verify_inclusion(index, Digest([0xee; 32]), head, &proof));
                assert!(!UPDATES.verify_inclusion(
                    index,
                    leaf,
                    LogHead { root: leaf, size: head.size + 1 },
                    &proof
                ));
                for other in (0..=head.size).filter(|other| *other != index) {
                    assert!(!UPDATES.verify_inclusion(other, leaf, head, &proof), "{other} for {index}");
                }
                let longer: Vec<Digest> = proof.iter().copied().chain([Digest([1; 32])]).collect();
                assert!(!UPDATES.verify_inclusion(index, leaf, head, &longer));
            }
            assert!(UPDATES.inclusion_proof(head.size, head.size, &mut lookup).is_none());
        }
    }
}
