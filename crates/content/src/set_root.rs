//! Canonical digests of sorted sets in memory: version vectors and sets of void numbers.
//!
//! The tree has the shape of a stored Merkle map ([`Shape::FORMAT`]), so that it can become incremental, with
//! proofs and differences, without a change of format. Its nodes are not blocks; they have only digests.
//!
//! ```text
//! leaf    count u32 | count x { key length u32 | key | value length u32 | value }
//! inner   level u8 | count u32 | count x { last key length u32 | last key | entries u64 | digest }
//! ```

use crate::Shape;
use holdfast_crypto::{Digest, DigestKey, Domain};
use std::collections::BTreeMap;

/// The digest of a set of entries, given in any order; of equal keys the last one counts. The empty set has
/// the digest of an empty leaf.
pub fn set_root(key: &DigestKey, entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Digest {
    let entries: BTreeMap<Vec<u8>, Vec<u8>> = entries.collect();
    let leaf = |entries: &[(Vec<u8>, Vec<u8>)]| {
        let mut body = (entries.len() as u32).to_le_bytes().to_vec();
        for (entry_key, value) in entries {
            for bytes in [entry_key, value] {
                body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                body.extend_from_slice(bytes);
            }
        }
        key.digest(Domain::SetLeaf, &body)
    };
    if entries.is_empty() {
        return leaf(&[]);
    }
    let mut level = 0u8;
    let entries: Vec<_> = entries.into_iter().collect();
    let mut nodes: Vec<(Vec<u8>, u64, Digest)> = Vec::new();
    for run in cut(key, level, &entries, |(entry_key, _)| entry_key) {
        nodes.push((run[run.len() - 1].0.clone(), run.len() as u64, leaf(run)));
    }
    while nodes.len() > 1 {
        level += 1;
        let children = std::mem::take(&mut nodes);
        for run in cut(key, level, &children, |(last_key, ..)| last_key) {
            let mut body = vec![level];
            body.extend_from_slice(&(run.len() as u32).to_le_bytes());
            for (last_key, entries, digest) in run {
                body.extend_from_slice(&(last_key.len() as u32).to_le_bytes());
                body.extend_from_slice(last_key);
                body.extend_from_slice(&entries.to_le_bytes());
                body.extend_from_slice(&digest.0);
            }
            let entries = run.iter().map(|(_, entries, _)| entries).sum();
            nodes.push((run[run.len() - 1].0.clone(), entries, key.digest(Domain::SetInner, &body)));
        }
    }
    nodes[0].2
}

/// Cuts a level into runs where its keys say.
fn cut<'a, T>(key: &DigestKey, level: u8, items: &'a [T], key_of: impl Fn(&T) -> &Vec<u8>) -> Vec<&'a [T]> {
    let mut runs = Vec::new();
    let mut begin = 0;
    for (index, item) in items.iter().enumerate() {
        if Shape::FORMAT.ends(key, level, (index + 1 - begin) as u32, key_of(item))
            || index + 1 == items.len()
        {
            runs.push(&items[begin..=index]);
            begin = index + 1;
        }
    }
    runs
}
