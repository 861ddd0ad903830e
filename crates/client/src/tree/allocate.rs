//! Allocates i-numbers: a device's own, and ranges of users' and groups' numbers mapped to them in advance
//! (SUNDR 3.4.1).
//!
//! Invariants:
//! - A device number is used once, even if the operation that used it was aborted or had no effect. So a
//!   number in a change log never comes to mean another file.
//! - Ranges of different devices do not overlap: each begins at a multiple of [`RANGE_MAX`] chosen by a
//!   digest of the device and the range's first device number, which is never repeated. If two overlap all
//!   the same, the one ordered second finds the first and chooses another place.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Handle, PrincipalId};
use holdfast_crypto::{DigestKey, Domain, encode};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Numbers in the first range of a device for a principal.
const RANGE_FIRST: u32 = 64;
/// Numbers in later ranges; every range begins at a multiple of this.
const RANGE_MAX: u32 = 1024;
/// Number of places for a range; the first is left out, because it has number 1, the root directory.
const PLACES: u64 = (1 << 40) / RANGE_MAX as u64 - 1;
/// Most remembered numbers of files that are not in a range of this device.
const NUMBERS_MAX: usize = 4096;
/// Most numbers in `newest`, which is copied with each copy of an allocator.
const NEWEST_MAX: usize = 64;

/// A range of preallocated numbers of a user or group, and the device numbers they are mapped to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Range {
    /// First number of the user or group.
    pub first: u64,
    /// The first number in the device's table.
    pub device_first: u64,
    /// How many numbers the range has.
    pub count: u32,
    /// How many of them are used.
    pub used: u32,
}

/// Numbers by file. An allocator is copied several times for each operation, so the copies share all but the
/// newest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Numbers {
    shared: Arc<BTreeMap<Handle, u64>>,
    /// Numbers noted since the copies parted; they take precedence over `shared`.
    newest: BTreeMap<Handle, u64>,
}

impl Numbers {
    fn get(&self, file: Handle) -> Option<u64> {
        self.newest.get(&file).or_else(|| self.shared.get(&file)).copied()
    }

    fn insert(&mut self, file: Handle, number: u64) {
        self.newest.insert(file, number);
    }

    fn tidy(&mut self) {
        if self.newest.len() > NEWEST_MAX {
            if self.shared.len() > NUMBERS_MAX {
                self.shared = Arc::default();
            }
            Arc::make_mut(&mut self.shared).append(&mut self.newest);
        }
    }
}

/// Allocates i-numbers. Part of the device's durable state.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Allocator {
    next_number: u64,
    pools: BTreeMap<PrincipalId, VecDeque<Range>>,
    /// Device numbers of files that came to this device by re-mapping, so that a file that moves between
    /// devices repeatedly keeps one number here. Only an optimisation.
    #[borsh(skip)]
    numbers: Numbers,
    /// Ranges that this operation reserved, in order.
    #[borsh(skip)]
    reserved: BTreeMap<PrincipalId, Vec<Range>>,
    /// Ranges that an earlier plan of this operation reserved and that this plan has not requested yet.
    #[borsh(skip)]
    again: BTreeMap<PrincipalId, VecDeque<Range>>,
}

impl Default for Allocator {
    fn default() -> Self {
        Allocator {
            next_number: 1,
            pools: BTreeMap::new(),
            numbers: Numbers::default(),
            reserved: BTreeMap::new(),
            again: BTreeMap::new(),
        }
    }
}

impl Allocator {
    /// The allocator after a restore of the server: reservations may be lost, so they are made anew. No
    /// number is used again.
    #[must_use]
    pub fn after_restore(&self) -> Allocator {
        Allocator { next_number: self.next_number, ..Allocator::default() }
    }

    /// The allocator for the first plan of an operation.
    pub fn begin(&self) -> Allocator {
        let mut work = self.clone();
        work.reserved.clear();
        work.again.clear();
        work.numbers.tidy();
        work
    }

    /// The allocator for another plan of the same operation: the same requests get the same numbers.
    pub fn again(&self, earlier: &Allocator) -> Allocator {
        let mut work = self.begin();
        work.next_number = earlier.next_number;
        work.numbers = earlier.numbers.clone();
        work.again = earlier
            .reserved
            .iter()
            .map(|(principal, ranges)| {
                let unused = ranges.iter().map(|range| Range { used: 0, ..*range });
                (*principal, unused.collect())
            })
            .collect();
        work
    }

    /// The state after the operation took effect.
    pub fn committed(mut self) -> Allocator {
        self.reserved.clear();
        self.again.clear();
        self
    }

    /// The state after the operation had no effect: its reservations are not used any more.
    pub fn without_effect(mut self) -> Allocator {
        for (principal, ranges) in std::mem::take(&mut self.reserved) {
            if let Some(pool) = self.pools.get_mut(&principal) {
                pool.retain(|range| !ranges.iter().any(|burned| burned.first == range.first));
            }
        }
        self.again.clear();
        self
    }

    /// A number of `principal` from a range, with its device number. `None`: a range must be reserved first.
    pub fn take(&mut self, principal: PrincipalId) -> Option<(Handle, u64)> {
        let pool = self.pools.get_mut(&principal)?;
        while let Some(range) = pool.front_mut() {
            if range.used < range.count {
                let offset = u64::from(range.used);
                range.used += 1;
                return Some((
                    Handle { principal, number: range.first + offset },
                    range.device_first + offset,
                ));
            }
            pool.pop_front();
        }
        None
    }

    /// Adds a range for `principal` that `is_free` accepts. `None` if it accepts none of several.
    pub fn reserve<E>(
        &mut self,
        me: DeviceId,
        principal: PrincipalId,
        is_free: &mut dyn FnMut(&Range) -> Result<bool, E>,
    ) -> Result<Option<Range>, E> {
        let known = self.again.get_mut(&principal).and_then(VecDeque::pop_front);
        let range = match known {
            Some(range) if is_free(&range)? => Some(range),
            _ => {
                let count = if self.pools.contains_key(&principal) { RANGE_MAX } else { RANGE_FIRST };
                let device_first = self.next_number;
                self.next_number += u64::from(count);
                let mut found = None;
                for attempt in 0..16u32 {
                    let bytes = encode(&(me, principal, device_first, attempt));
                    let digest = DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, &bytes);
                    let place = u64::from_le_bytes(digest.0[..8].try_into().expect("8 bytes")) % PLACES;
                    let range =
                        Range { first: (place + 1) * u64::from(RANGE_MAX), device_first, count, used: 0 };
                    if is_free(&range)? {
                        found = Some(range);
                        break;
                    }
                }
                found
            }
        };
        if let Some(range) = range {
            self.reserved.entry(principal).or_default().push(range);
            self.pools.entry(principal).or_default().push_back(range);
        }
        Ok(range)
    }

    /// The device number that `file` gets if it is re-mapped to this device.
    pub fn number_for(&mut self, file: Handle) -> u64 {
        if let Some(number) = self.numbers.get(file) {
            return number;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(file, number);
        number
    }

    /// Remembers the present number of a file in this device's table.
    pub fn remember(&mut self, file: Handle, number: u64) {
        self.numbers.insert(file, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::{GroupId, UserId};

    fn free(_: &Range) -> Result<bool, ()> {
        Ok(true)
    }

    /// Proves: two plans of one operation get the same numbers; numbers of an operation without effect are
    /// never used again.
    #[test]
    fn plans_repeat_and_burned_numbers_never_return() {
        let me = DeviceId(3);
        let user = PrincipalId::User(UserId(1));
        let group = PrincipalId::Group(GroupId(2));
        let start = Allocator::default();
        let run = |mut work: Allocator| {
            let remapped = work.number_for(Handle { principal: group, number: 9 });
            work.reserve(me, user, &mut free).unwrap();
            work.reserve(me, group, &mut free).unwrap();
            let taken: Vec<_> = (0..70).map(|_| work.take(user)).collect();
            (work, remapped, taken)
        };
        let (first, number, taken) = run(start.begin());
        let (second, number_again, taken_again) = run(start.again(&first));
        assert_eq!((number, &taken), (number_again, &taken_again));
        assert!(taken[63].is_some() && taken[64].is_none());
        let burned = second.clone().without_effect();
        assert_eq!(burned.begin().take(user), None);
        let (_, _, after) = run(burned.begin());
        assert!(after[0].unwrap().1 > taken[63].unwrap().1);
        assert_ne!(after[0].unwrap().0, taken[0].unwrap().0);
        let committed = second.committed();
        let bytes = encode(&committed);
        let restored: Allocator = holdfast_crypto::decode(&bytes).unwrap();
        assert!(restored.begin().take(group).is_some());
    }
}
