//! Which sessions hold which files exclusively: the server's index of that, and what it tells other clients
//! of it.

use super::Scope;
use crate::locks::SessionId;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, Handle, PrincipalId};
use std::collections::BTreeMap;

/// Most ranges in an answer. If there are more, the ranges nearest to each other are joined, so the answer
/// names more files than are held.
pub const WITHHELD_MAX: usize = 64;

/// Files that other devices held exclusively at an operation's place in the order. The operation's view of
/// them may be outdated.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug, BorshSerialize, BorshDeserialize)]
pub struct Withheld {
    /// Whether any file may be held.
    pub everything: bool,
    /// Ranges of files: owner, first and last number; in order, at most [`WITHHELD_MAX`].
    pub ranges: Vec<(PrincipalId, u64, u64)>,
}

impl Withheld {
    /// Any file may be held: nothing more precise is known.
    pub fn everything() -> Withheld {
        Withheld { everything: true, ranges: Vec::new() }
    }

    /// Whether a file may be held by another device.
    pub fn has(&self, file: &Handle) -> bool {
        let is_in = |(principal, first, last): &(PrincipalId, u64, u64)| {
            *principal == file.principal && (first..=last).contains(&&file.number)
        };
        self.everything || self.ranges.iter().any(is_in)
    }
}

/// Which of one user's or group's files are held exclusively.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct OwnerHolds {
    /// The session that holds all of them, if one does.
    all: Option<SessionId>,
    /// Ranges of inode numbers, by first number; each with its last number and the session that holds it.
    files: BTreeMap<u64, (u64, SessionId)>,
}

impl OwnerHolds {
    fn holder(&self, number: u64) -> Option<SessionId> {
        let (_, (last, id)) = self.files.range(..=number).next_back()?;
        (number <= *last).then_some(*id)
    }

    fn insert(&mut self, number: u64, id: SessionId) {
        let (mut first, mut last) = (number, number);
        if let Some((before, (end, by))) = self.files.range(..number).next_back()
            && (*end + 1, *by) == (number, id)
        {
            first = *before;
        }
        if let Some(next) = number.checked_add(1)
            && let Some((end, by)) = self.files.get(&next)
            && *by == id
        {
            last = *end;
            self.files.remove(&next);
        }
        self.files.insert(first, (last, id));
    }

    fn remove(&mut self, number: u64, id: SessionId) {
        let Some((first, (last, by))) = self.files.range(..=number).next_back() else { return };
        let (first, last) = (*first, *last);
        if number > last || *by != id {
            return;
        }
        self.files.remove(&first);
        if first < number {
            self.files.insert(first, (number - 1, id));
        }
        if number < last {
            self.files.insert(number + 1, (last, id));
        }
    }
}

/// All exclusive leases of one file system, except the delegation.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Exclusives(BTreeMap<PrincipalId, OwnerHolds>);

impl Exclusives {
    pub(super) fn insert(&mut self, scope: Scope, id: SessionId) {
        match scope {
            Scope::Principal(principal) => self.0.entry(principal).or_default().all = Some(id),
            Scope::File(file) => self.0.entry(file.principal).or_default().insert(file.number, id),
        }
    }

    pub(super) fn remove(&mut self, scope: &Scope, id: SessionId) {
        let (Scope::Principal(principal) | Scope::File(Handle { principal, .. })) = scope;
        let Some(owned) = self.0.get_mut(principal) else { return };
        match scope {
            Scope::Principal(_) => owned.all = owned.all.filter(|by| *by != id),
            Scope::File(file) => owned.remove(file.number, id),
        }
        if owned.all.is_none() && owned.files.is_empty() {
            self.0.remove(principal);
        }
    }

    /// The sessions that hold a file exclusively, each with the scope by which it does.
    pub(super) fn of_file(&self, file: &Handle) -> impl Iterator<Item = (SessionId, Scope)> {
        let owned = self.0.get(&file.principal);
        let all = owned.and_then(|owned| owned.all).map(|id| (id, Scope::Principal(file.principal)));
        let one = owned.and_then(|owned| owned.holder(file.number)).map(|id| (id, Scope::File(*file)));
        all.into_iter().chain(one)
    }

    /// Whether another device holds any file of `principal` exclusively.
    pub(super) fn are_anothers(&self, principal: PrincipalId, device: DeviceId) -> bool {
        let Some(owned) = self.0.get(&principal) else { return false };
        let mut holders = owned.all.iter().chain(owned.files.values().map(|(_, id)| id));
        holders.any(|id| id.device != device)
    }

    /// The files that devices other than `device` hold exclusively, as an answer to that device lists them.
    pub(super) fn withheld_from(&self, device: DeviceId) -> Withheld {
        let mut ranges = Vec::new();
        for (principal, owned) in &self.0 {
            if owned.all.is_some_and(|id| id.device != device) {
                ranges.push((*principal, 0, u64::MAX));
                continue;
            }
            for (first, (last, _)) in owned.files.iter().filter(|(_, (_, id))| id.device != device) {
                match ranges.last_mut() {
                    Some((of, _, end)) if of == principal && *end + 1 == *first => *end = *last,
                    _ => ranges.push((*principal, *first, *last)),
                }
            }
        }
        if ranges.len() > WITHHELD_MAX {
            join_nearest(&mut ranges);
        }
        match ranges.len() {
            0..=WITHHELD_MAX => Withheld { everything: false, ranges },
            _ => Withheld::everything(),
        }
    }
}

/// Joins the ranges nearest to each other until there are at most [`WITHHELD_MAX`], or one for each owner.
fn join_nearest(ranges: &mut Vec<(PrincipalId, u64, u64)>) {
    let gap = |pair: &[(PrincipalId, u64, u64)]| (pair[0].0 == pair[1].0).then(|| pair[1].1 - pair[0].2);
    let mut gaps: Vec<u64> = ranges.windows(2).filter_map(gap).collect();
    gaps.sort_unstable();
    let excess = ranges.len() - WITHHELD_MAX;
    let Some(widest) = gaps.get(excess.min(gaps.len()).saturating_sub(1)).copied() else { return };
    let mut joined: Vec<(PrincipalId, u64, u64)> = Vec::with_capacity(WITHHELD_MAX);
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(before) if before.0 == range.0 && range.1 - before.2 <= widest => before.2 = range.2,
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::UserId;
    use proptest::prelude::*;

    fn session(device: u32) -> SessionId {
        SessionId { device: DeviceId(device), run: 7 }
    }

    fn file(user: u32, number: u64) -> Handle {
        Handle { principal: PrincipalId::User(UserId(user)), number }
    }

    proptest! {
        /// Proves: whatever the order in which files are taken and given up, each has the same holder as in a
        /// map of single files. What is withheld from a device is exactly what others hold, as long as the
        /// ranges are few.
        #[test]
        fn ranges_do_as_single_files(
            acts in proptest::collection::vec((any::<bool>(), 1..4u32, 0..2u32, 0..40u64), 0..200)
        ) {
            let mut exclusives = Exclusives::default();
            let mut model: BTreeMap<Handle, u32> = BTreeMap::new();
            for (takes, device, user, number) in acts {
                let (file, scope) = (file(user, number), Scope::File(file(user, number)));
                match takes {
                    true if !model.contains_key(&file) => {
                        model.insert(file, device);
                        exclusives.insert(scope, session(device));
                    }
                    true => {}
                    false => {
                        if model.get(&file) == Some(&device) {
                            model.remove(&file);
                        }
                        exclusives.remove(&scope, session(device));
                    }
                }
            }
            for device in 1..4 {
                let withheld = exclusives.withheld_from(DeviceId(device));
                prop_assert!(withheld.ranges.len() <= WITHHELD_MAX && !withheld.everything);
                for user in 0..2 {
                    for number in 0..42 {
                        let file = file(user, number);
                        let holder = model.get(&file).copied();
                        let found = exclusives.of_file(&file).next().map(|(id, _)| id.device.0);
                        prop_assert_eq!(found, holder);
                        prop_assert_eq!(withheld.has(&file), holder.is_some_and(|by| by != device));
                    }
                }
            }
        }
    }

    /// Proves: if there are more ranges than an answer has room for, the nearest are joined and nothing held
    /// is left out. If there are more owners than that, the answer says that any file may be held.
    #[test]
    fn many_ranges_are_joined() {
        let mut exclusives = Exclusives::default();
        let numbers: Vec<u64> = (0..1000).map(|step| step * 3 + (step / 100) * 10_000).collect();
        numbers.iter().for_each(|number| exclusives.insert(Scope::File(file(1, *number)), session(1)));
        let withheld = exclusives.withheld_from(DeviceId(2));
        assert!(withheld.ranges.len() <= WITHHELD_MAX && !withheld.everything, "{withheld:?}");
        assert!(numbers.iter().all(|number| withheld.has(&file(1, *number))));
        assert!(!withheld.has(&file(1, 5_000)) && !withheld.has(&file(2, 0)));
        assert_eq!(exclusives.withheld_from(DeviceId(1)), Withheld::default());
        (2..100).for_each(|user| exclusives.insert(Scope::File(file(user, 1)), session(1)));
        assert!(exclusives.withheld_from(DeviceId(2)).has(&file(99, 1)));
    }
}
