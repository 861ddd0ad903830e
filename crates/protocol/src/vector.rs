//! Version vectors and void sets: small maps whose *roots* are signed, so that signatures and transfers can
//! grow with what changed and not with the number of users.

use borsh::io::{Error, ErrorKind, Read, Result, Write};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId, set_root};
use holdfast_crypto::{Digest, DigestKey};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// The version number of every principal; an absent one has 0, and zero is never stored.
///
/// All clones share its memory and its root. A view has for each device a vector of all devices, every
/// operation clones views, and every digest of a structure contains its vector's root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct VersionVector(Arc<Versions>);

#[derive(Default)]
struct Versions {
    by_principal: BTreeMap<PrincipalId, u64>,
    /// The root, once it was asked for.
    root: OnceLock<Digest>,
}

/// A clone begins without a root, since it is made to be changed.
impl Clone for Versions {
    fn clone(&self) -> Self {
        Versions { by_principal: self.by_principal.clone(), root: OnceLock::new() }
    }
}

impl PartialEq for Versions {
    fn eq(&self, other: &Self) -> bool {
        self.by_principal == other.by_principal
    }
}

impl Eq for Versions {}

impl PartialOrd for Versions {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Versions {
    fn cmp(&self, other: &Self) -> Ordering {
        self.by_principal.cmp(&other.by_principal)
    }
}

impl Hash for Versions {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_principal.hash(state);
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.by_principal.fmt(f)
    }
}

impl From<BTreeMap<PrincipalId, u64>> for VersionVector {
    fn from(by_principal: BTreeMap<PrincipalId, u64>) -> Self {
        VersionVector(Arc::new(Versions { by_principal, root: OnceLock::new() }))
    }
}

impl BorshSerialize for VersionVector {
    fn serialize<W: Write>(&self, writer: &mut W) -> Result<()> {
        self.versions().serialize(writer)
    }
}

impl BorshDeserialize for VersionVector {
    fn deserialize_reader<R: Read>(reader: &mut R) -> Result<Self> {
        BTreeMap::deserialize_reader(reader).map(VersionVector::from)
    }
}

impl VersionVector {
    /// All versions, in the principals' order.
    pub fn versions(&self) -> &BTreeMap<PrincipalId, u64> {
        &self.0.by_principal
    }

    /// All versions, to be changed: the root is computed anew when it is asked for next. Zeros must not be put in.
    pub fn versions_mut(&mut self) -> &mut BTreeMap<PrincipalId, u64> {
        let versions = Arc::make_mut(&mut self.0);
        versions.root = OnceLock::new();
        &mut versions.by_principal
    }

    /// Whether the two share memory, and so are certainly equal.
    pub fn is_shared_with(&self, other: &VersionVector) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The version of `principal`.
    pub fn get(&self, principal: PrincipalId) -> u64 {
        self.versions().get(&principal).copied().unwrap_or(0)
    }

    /// The number of `device`'s latest operation.
    pub fn device(&self, device: DeviceId) -> u64 {
        self.get(PrincipalId::Device(device))
    }

    /// Sets the version of `principal`.
    pub fn set(&mut self, principal: PrincipalId, version: u64) {
        let versions = self.versions_mut();
        if version == 0 {
            versions.remove(&principal);
        } else {
            versions.insert(principal, version);
        }
    }

    /// Digest of the map: what is signed. Keys are the principal's kind (one byte, as in its encoding) and id
    /// (big-endian), values little-endian.
    pub fn root(&self) -> Digest {
        *self.0.root.get_or_init(|| self.compute_root())
    }

    fn compute_root(&self) -> Digest {
        let entry = |(principal, version): (&PrincipalId, &u64)| {
            let (kind, id) = match principal {
                PrincipalId::Members => (0u8, 0),
                PrincipalId::Device(device) => (1, device.0),
                PrincipalId::User(user) => (2, user.0),
                PrincipalId::Group(group) => (3, group.0),
            };
            let mut key = vec![kind];
            key.extend(id.to_be_bytes());
            (key, version.to_le_bytes().to_vec())
        };
        set_root(&DigestKey::WELL_KNOWN, self.versions().iter().map(entry))
    }

    /// `self <= other`: no principal is newer here (SUNDR 3.3.2).
    pub fn at_most(&self, other: &VersionVector) -> bool {
        if self.is_shared_with(other) {
            return true;
        }
        // Both are sorted, so one walk over each is enough.
        let mut others = other.versions().iter().peekable();
        self.versions().iter().all(|(principal, version)| {
            while others.next_if(|(other, _)| *other < principal).is_some() {}
            let found = others.peek().filter(|(other, _)| *other == principal);
            *version <= found.map_or(0, |(_, version)| **version)
        })
    }
}

/// Most ranges in a [`VoidSet`].
pub const VOID_RANGES_MAX: usize = 32_768;

/// Numbers a device has given up for ever, as ranges: first to last, inclusive.
///
/// Encoded as the number of ranges (`u32`) and, for each, the numbers skipped before it less one and its length
/// less one, in LEB128: mostly two bytes a range, since every structure carries the whole set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
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

    /// Digest of the set: what is signed. Keys are first numbers (big-endian), values last ones (little-endian).
    pub fn root(&self) -> Digest {
        let entry = |(first, last): (&u64, &u64)| (first.to_be_bytes().to_vec(), last.to_le_bytes().to_vec());
        set_root(&DigestKey::WELL_KNOWN, self.0.iter().map(entry))
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

impl BorshSerialize for VoidSet {
    fn serialize<W: Write>(&self, writer: &mut W) -> Result<()> {
        (self.0.len() as u32).serialize(writer)?;
        let mut next = 1u64;
        for (&first, &last) in &self.0 {
            write_number(writer, first.wrapping_sub(next))?;
            write_number(writer, last.wrapping_sub(first))?;
            next = last.wrapping_add(2);
        }
        Ok(())
    }
}

impl BorshDeserialize for VoidSet {
    fn deserialize_reader<R: Read>(reader: &mut R) -> Result<Self> {
        let refuse = |why: &str| Error::new(ErrorKind::InvalidData, why.to_owned());
        let count = u32::deserialize_reader(reader)?;
        if count as usize > VOID_RANGES_MAX {
            return Err(refuse("too many ranges of numbers"));
        }
        let mut ranges = BTreeMap::new();
        let mut next = 1u64;
        for _ in 0..count {
            let first = next.checked_add(read_number(reader)?);
            let last =
                first.zip(Some(read_number(reader)?)).and_then(|(first, length)| first.checked_add(length));
            let (Some(first), Some(last)) = (first, last.filter(|last| *last < u64::MAX - 1)) else {
                return Err(refuse("numbers beyond the last"));
            };
            ranges.insert(first, last);
            next = last + 2;
        }
        Ok(VoidSet(ranges))
    }
}

/// Writes a number in LEB128.
fn write_number<W: Write>(writer: &mut W, mut number: u64) -> Result<()> {
    while number >= 0x80 {
        writer.write_all(&[number as u8 | 0x80])?;
        number >>= 7;
    }
    writer.write_all(&[number as u8])
}

/// Reads a number in LEB128; only the shortest form is valid.
fn read_number<R: Read>(reader: &mut R) -> Result<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = u8::deserialize_reader(reader)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits || (byte == 0 && shift > 0) {
            break;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Error::new(ErrorKind::InvalidData, "a number is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random::Random;
    use holdfast_crypto::{decode, encode};
    use std::collections::BTreeSet;

    /// A set of ranges answers as a plain set of numbers does, and survives its encoding.
    #[test]
    fn ranges_behave_as_a_set() {
        let mut random = Random::new(3);
        for _ in 0..300 {
            let (mut ranges, mut plain) = (VoidSet::default(), BTreeSet::new());
            let mut earlier = (ranges.clone(), plain.clone());
            for step in 0..40 {
                let number = 1 + random.below(60);
                ranges.insert(number);
                plain.insert(number);
                if step == 20 {
                    earlier = (ranges.clone(), plain.clone());
                }
            }
            assert!(ranges.is_well_formed());
            for number in 0..64 {
                assert_eq!(ranges.contains(number), plain.contains(&number));
                let bound = number;
                let added = plain.difference(&earlier.1).next().copied().filter(|added| *added <= bound);
                assert_eq!(ranges.added_up_to(&earlier.0, bound), added);
                let covered = (number..=number + 2).all(|number| plain.contains(&number));
                assert_eq!(ranges.covers(number, number + 2), covered);
            }
            assert!(ranges.contains_all(&earlier.0) && ranges.covers(5, 4));
            assert_eq!(earlier.0.contains_all(&ranges), plain == earlier.1);
            assert_eq!(decode::<VoidSet>(&encode(&ranges)).unwrap(), ranges);
        }
    }

    /// Every set has one encoding, and no bytes decode to an ill-formed set.
    #[test]
    fn encodings_are_canonical() {
        let mut random = Random::new(4);
        let mut decoded = 0;
        for _ in 0..20_000 {
            let mut bytes = (random.below(3) as u32).to_le_bytes().to_vec();
            let extremes = [0, 1, 0x7f, 0x80, 0xff];
            bytes.extend(
                (0..random.below(24)).map(|_| *random.clone().pick(&extremes) ^ random.below(2) as u8),
            );
            if let Ok(set) = decode::<VoidSet>(&bytes) {
                decoded += 1;
                assert!(set.is_well_formed());
                assert_eq!(encode(&set), bytes);
            }
        }
        assert!(decoded > 100, "{decoded}");
        let huge = [&2u32.to_le_bytes()[..], &[0xff; 9], &[1, 0, 0, 0]].concat();
        assert!(decode::<VoidSet>(&huge).is_err());
        assert!(decode::<VoidSet>(&u32::MAX.to_le_bytes()).is_err());
    }
}
