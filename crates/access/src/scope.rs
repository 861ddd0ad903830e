//! Restrictions of `speaksfor`: which operations, on which objects.
//!
//! Invariants: the objects of a restriction are sorted ranges that neither overlap nor touch, so that equal
//! sets are equal values, intersection is exact, and a range is covered only if one range covers it. An empty
//! scope is invalid: it is refused, never taken for "everything".

use crate::{AccessError, malformed};
use borsh::{BorshDeserialize, BorshSerialize, io};
use holdfast_crypto::Digest;
use std::collections::BTreeSet;

/// The most ranges in a restriction.
pub const RANGES_MAX: usize = 64;

/// An operation on an object. The order of the variants is part of the stored format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Operation {
    /// Read the object.
    Read,
    /// Change the object.
    Write,
    /// See its owner and ACL.
    Look,
    /// Change the object's ACL.
    ChangeAcls,
    /// Give it away, or take it over.
    Chown,
    /// Format the disk it is on.
    Format,
}

/// Objects from `first` to `last`, both included. An object is a number; the constructors keep the kinds apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Objects {
    /// The first object.
    pub first: u128,
    /// The last object.
    pub last: u128,
}

impl Objects {
    const BLOCKS: u128 = 1 << 120;
    const FILES: u128 = 2 << 120;
    const OPAQUE: u128 = 3 << 120;

    /// Blocks of a disk. `None` if there are none, or they overflow.
    pub fn blocks(disk: u16, first: u64, count: u64) -> Option<Objects> {
        let last = first.checked_add(count.checked_sub(1)?)?;
        let place = Self::BLOCKS | u128::from(disk) << 64;
        Some(Objects { first: place | u128::from(first), last: place | u128::from(last) })
    }

    /// A file of a volume.
    pub fn file(volume: u16, id: u64) -> Objects {
        let object = Self::FILES | u128::from(volume) << 64 | u128::from(id);
        Objects { first: object, last: object }
    }

    /// Objects that their keeper names by digests which begin with the same `bits` (120 or more: one object).
    pub fn opaque(digest: Digest, bits: u32) -> Objects {
        let mut bytes = [0; 16];
        bytes[1..].copy_from_slice(&digest.0[..15]);
        let below = u128::MAX.checked_shr(8 + bits).unwrap_or(0);
        let first = Self::OPAQUE | u128::from_be_bytes(bytes) & !below;
        Objects { first, last: first | below }
    }
}

/// Everything, or a set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Limit<T> {
    /// No limit, whatever may be added later.
    Every,
    /// Only these.
    Only(T),
}

/// On which operations and objects one principal speaks for another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize)]
pub struct Scope {
    operations: Limit<BTreeSet<Operation>>,
    objects: Limit<Vec<Objects>>,
}

impl Scope {
    /// No restriction.
    pub const EVERYTHING: Scope = Scope { operations: Limit::Every, objects: Limit::Every };

    /// A restriction.
    ///
    /// # Errors
    /// [`AccessError::EmptyScope`], [`AccessError::BadScope`] when ranges are not in order, overlap, touch or are
    /// more than [`RANGES_MAX`].
    pub fn new(
        operations: Limit<BTreeSet<Operation>>,
        objects: Limit<Vec<Objects>>,
    ) -> Result<Scope, AccessError> {
        if let Limit::Only(ranges) = &objects {
            let apart = |pair: &[Objects]| pair[0].last < pair[1].first && pair[1].first - pair[0].last > 1;
            let sound = ranges.iter().all(|range| range.first <= range.last) && ranges.windows(2).all(apart);
            if !sound || ranges.len() > RANGES_MAX {
                return Err(AccessError::BadScope);
            }
        }
        let no_operations = matches!(&operations, Limit::Only(set) if set.is_empty());
        if no_operations || matches!(&objects, Limit::Only(ranges) if ranges.is_empty()) {
            return Err(AccessError::EmptyScope);
        }
        Ok(Scope { operations, objects })
    }

    /// The operations that are allowed.
    pub fn operations(&self) -> &Limit<BTreeSet<Operation>> {
        &self.operations
    }

    /// The objects on which they are allowed.
    pub fn objects(&self) -> &Limit<Vec<Objects>> {
        &self.objects
    }

    /// Whether the operation on all of these objects is within the scope.
    pub fn covers(&self, operation: Operation, objects: Objects) -> bool {
        let operation_fits = match &self.operations {
            Limit::Every => true,
            Limit::Only(operations) => operations.contains(&operation),
        };
        let objects_fit = match &self.objects {
            Limit::Every => true,
            Limit::Only(ranges) => {
                ranges.iter().any(|range| range.first <= objects.first && objects.last <= range.last)
            }
        };
        operation_fits && objects_fit && objects.first <= objects.last
    }

    /// The exact intersection of both scopes.
    ///
    /// # Errors
    /// [`AccessError::EmptyScope`] if nothing; [`AccessError::BadScope`] if it takes too many ranges.
    pub fn intersect(&self, other: &Scope) -> Result<Scope, AccessError> {
        let operations = match (&self.operations, &other.operations) {
            (Limit::Every, either) | (either, Limit::Every) => either.clone(),
            (Limit::Only(one), Limit::Only(two)) => Limit::Only(one & two),
        };
        let objects = match (&self.objects, &other.objects) {
            (Limit::Every, either) | (either, Limit::Every) => either.clone(),
            (Limit::Only(one), Limit::Only(two)) => Limit::Only(common_ranges(one, two)),
        };
        Scope::new(operations, objects)
    }

    /// Whether everything in `other` is in this scope.
    pub fn contains(&self, other: &Scope) -> bool {
        self.intersect(other).as_ref() == Ok(other)
    }
}

/// Since the ranges of neither list touch, those of the result do not either.
fn common_ranges(one: &[Objects], two: &[Objects]) -> Vec<Objects> {
    let (mut left, mut right, mut common) = (0, 0, Vec::new());
    while left < one.len() && right < two.len() {
        let (first, last) = (one[left].first.max(two[right].first), one[left].last.min(two[right].last));
        if first <= last {
            common.push(Objects { first, last });
        }
        if one[left].last < two[right].last { left += 1 } else { right += 1 }
    }
    common
}

impl BorshDeserialize for Scope {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let operations = Limit::deserialize_reader(reader)?;
        let objects = Limit::deserialize_reader(reader)?;
        Scope::new(operations, objects).map_err(malformed)
    }
}
