//! Version vectors and void sets: small maps whose *roots* are signed, so that signatures and transfers can
//! grow with what changed and not with the number of users.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::{Digest, DigestKey, Domain, encode};
use std::collections::BTreeMap;

/// Version number of every principal; absent means 0 and zero is never stored.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct VersionVector(pub BTreeMap<PrincipalId, u64>);

impl VersionVector {
    /// The version of `principal`.
    pub fn get(&self, principal: PrincipalId) -> u64 {
        self.0.get(&principal).copied().unwrap_or(0)
    }

    /// The number of `device`'s latest operation.
    pub fn device(&self, device: DeviceId) -> u64 {
        self.get(PrincipalId::Device(device))
    }

    /// Sets the version of `principal`.
    pub fn set(&mut self, principal: PrincipalId, version: u64) {
        if version == 0 {
            self.0.remove(&principal);
        } else {
            self.0.insert(principal, version);
        }
    }

    /// Digest of the map: what is signed.
    pub fn root(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::SetLeaf, &encode(&self.0))
    }

    /// `self <= other`: no principal is newer here (SUNDR 3.3.2).
    pub fn at_most(&self, other: &VersionVector) -> bool {
        self.0.iter().all(|(principal, version)| *version <= other.get(*principal))
    }
}

/// Most ranges in a [`VoidSet`]: half a mebibyte.
pub const VOID_RANGES_MAX: usize = 32_768;

/// Numbers a device has given up for ever, as ranges: first to last, inclusive.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct VoidSet(pub BTreeMap<u64, u64>);

impl VoidSet {
    /// Whether `number` is void.
    pub fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Whether every number from `first` to `last` is in the set; true for an empty range.
    pub fn covers(&self, first: u64, last: u64) -> bool {
        first > last || self.0.range(..=first).next_back().is_some_and(|(_, &end)| last <= end)
    }

    /// Whether every number of `other` is in the set.
    pub fn contains_all(&self, other: &VoidSet) -> bool {
        other.0.iter().all(|(&first, &last)| self.covers(first, last))
    }

    /// The least number up to `bound` that is in this set and not in `earlier`.
    pub fn added_up_to(&self, earlier: &VoidSet, bound: u64) -> Option<u64> {
        for (&first, &last) in self.0.range(..=bound) {
            let last = last.min(bound);
            match earlier.0.range(..=first).next_back() {
                Some((_, &end)) if last <= end => {}
                Some((_, &end)) if first <= end => return end.checked_add(1),
                _ => return Some(first),
            }
        }
        None
    }

    /// Whether the set is what [`VoidSet::insert`] makes: numbers from 1, ranges in order, neither touching
    /// nor overlapping, at most [`VOID_RANGES_MAX`] of them.
    pub fn is_well_formed(&self) -> bool {
        let mut least = 1;
        self.0.len() <= VOID_RANGES_MAX
            && self.0.iter().all(|(&first, &last)| {
                let fits = least <= first && first <= last && last < u64::MAX - 1;
                least = last.saturating_add(2);
                fits
            })
    }

    /// Digest of the set: what is signed.
    pub fn root(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::SetLeaf, &encode(&self.0))
    }

    /// Gives up `number`, merging with its neighbours.
    pub fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let mut first = number;
        let mut last = number;
        if let Some((&before, &end)) = self.0.range(..number).next_back()
            && end + 1 == number
        {
            first = before;
        }
        if let Some(&end) = number.checked_add(1).and_then(|next| self.0.get(&next)) {
            self.0.remove(&(number + 1));
            last = end;
        }
        self.0.insert(first, last);
    }
}
