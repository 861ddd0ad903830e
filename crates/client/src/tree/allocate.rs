//! I-numbers: a device's own, and ranges of users' and groups' mapped to them in advance (SUNDR 3.4.1).
//!
//! Invariants:
//! - a device number is given out once, even if the operation that used it was aborted or had no effect, so a
//!   number seen in somebody's change log never comes to mean another file;
//! - ranges of different devices do not meet: each begins at a multiple of [`RANGE_MAX`] chosen by a digest of
//!   the device and its (never repeated) first device number. Should two meet all the same, the second to be
//!   ordered sees the first and chooses anew.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Handle, PrincipalId};
use holdfast_crypto::{DigestKey, Domain, encode};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Numbers in a device's first range for a principal.
const RANGE_FIRST: u32 = 64;
/// Numbers in its later ones, and what every range begins at a multiple of.
const RANGE_MAX: u32 = 1024;
/// Number of positions for a range, without the first, which holds number 1, the root directory.
const PLACES: u64 = (1 << 40) / RANGE_MAX as u64 - 1;
/// Remembered numbers of files that are not in a range of this device.
const NUMBERS_MAX: usize = 4096;
/// Most numbers in `newest`, which are copied with an allocator.
const NEWEST_MAX: usize = 64;

/// Pre-allocated numbers of a user or group, and the device numbers they lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Range {
    /// First number of the user or group.
    pub first: u64,
    /// The first number in the device's table.
    pub device_first: u64,
    /// How many numbers are in the range.
    pub count: u32,
    /// How many of them are given out.
    pub used: u32,
}

/// Numbers by file. An allocator is copied several times an operation, so copies share all but the newest.
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

/// Gives out i-numbers. Part of the device's durable state.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Allocator {
    next_number: u64,
    pools: BTreeMap<PrincipalId, VecDeque<Range>>,
    /// Device numbers of files that came here by re-mapping, so that a file that goes back and forth between
    /// devices keeps one number here. Only a hint.
    #[borsh(skip)]
    numbers: Numbers,
    /// The numbers that this operation reserved, in sequence.
    #[borsh(skip)]
    reserved: BTreeMap<PrincipalId, Vec<Range>>,
    /// Numbers that an earlier plan of this operation reserved and this one has not asked for yet.
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
    /// After a restore of the server: what was reserved may be lost, so it is reserved anew. No number is given out again.
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

    /// For another plan of the same operation: it will be given the same numbers for the same requests.
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

    /// The state after the operation had no effect: what it reserved is burned.
    pub fn without_effect(mut self) -> Allocator {
        for (principal, ranges) in std::mem::take(&mut self.reserved) {
            if let Some(pool) = self.pools.get_mut(&principal) {
                pool.retain(|range| !ranges.iter().any(|burned| burned.first == range.first));
            }
        }
        self.again.clear();
        self
    }

    /// A file number of `principal` from a range, with its device number. `None`: reserve a range first.
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

    /// Adds a range for `principal` that `is_free` agrees to. `None` if it agrees to none of several.
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

    /// The device number that holds `file` here if the file is re-mapped to this device.
    pub fn number_for(&mut self, file: Handle) -> u64 {
        if let Some(number) = self.numbers.get(file) {
            return number;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.numbers.insert(file, number);
        number
    }

    /// Remembers a file's present number here.
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

    /// Proves: two plans of one operation get the same numbers; a burned operation's numbers never return.
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
