//! Chooses the leases that the next operation asks for. A lease saves a round trip each time something is read under it,
//! and costs whoever changes it a round trip for the recall.
//!
//! - Usually a lease covers all that a user or group owns. After a recall the next operation asks for it again.
//! - If it was recalled before [`WORTH`] reads, single files are asked for instead, for 5 s to 60 s, doubling.
//! - A file that others have just changed is not asked for at all for 2 s to 60 s, unless it is read [`HOT_LOOKS`] times.

use holdfast_content::{Handle, PrincipalId};
use holdfast_protocol::leases::{Backoff, LEASE_REQUESTS_MAX, RecalledLeases, Scope};
use std::collections::{BTreeSet, HashMap};

/// A lease of all that somebody owns under which less was answered than this was not worth its recall.
const WORTH: u64 = 8;
/// Shortest time for which single files are asked for after such a recall, in milliseconds.
const FINE_MS_MIN: u64 = 5_000;
/// Longest such time, in milliseconds.
const FINE_MS_MAX: u64 = 60_000;

/// Shortest time for which a file is not asked for after a recall, in milliseconds.
const HOT_MS_MIN: u64 = 2_000;
/// Longest such time, in milliseconds.
const HOT_MS_MAX: u64 = 60_000;
/// A file that was looked at so often since is asked for all the same.
const HOT_LOOKS: u32 = 8;
/// Most files of which that is remembered.
const HOT_MAX: usize = 4096;

/// For so long after a change a device is assumed to be about to change the file again, in milliseconds.
const EDITED_MS: u64 = 1_000;
/// Most files of which that is remembered.
const EDITED_MAX: usize = 8192;

/// Files that were read without a lease, and which leases of them to ask for.
#[derive(Default)]
pub(super) struct LeaseRequests {
    wanted: BTreeSet<Scope>,
    /// Files that are likely to be looked at next, at most [`LEASE_REQUESTS_MAX`]: leases of them are worth having, and
    /// not worth calling others back for.
    ahead: BTreeSet<Handle>,
    /// Users and groups whose files are asked for one by one.
    fine: HashMap<PrincipalId, Backoff>,
    /// Number of answers under leases of all that a user or group owns, since the last recall.
    answered: HashMap<PrincipalId, u64>,
    /// Files that are not asked for, and how often each was looked at since it was recalled.
    hot: HashMap<Handle, (Backoff, u32)>,
    /// Files that were changed here, when last, and by how many operations in a row.
    edited: HashMap<Handle, (u64, u32)>,
}

impl LeaseRequests {
    /// A file is read without a lease: the next operation is to bring one. Of those that nobody has come to ask for,
    /// one message's worth is remembered.
    pub fn want(&mut self, file: Handle, now_ms: u64) {
        let is_fine = self.fine.get(&file.principal).is_some_and(|spell| spell.lasts(now_ms));
        // The server refuses an operation that asks for more.
        let takes = if is_fine { 1 } else { 2 };
        if self.wanted.len() + takes > LEASE_REQUESTS_MAX || (is_fine && self.is_hot(&file, now_ms)) {
            return;
        }
        if !is_fine {
            self.wanted.insert(Scope::Principal(file.principal));
        }
        // Where others work in the same user's or group's files, this is what can be had; and it says what is read.
        self.wanted.insert(Scope::File(file));
    }

    /// Adds a file to those that the next operation that only looks asks leases of, if there is room.
    pub fn want_ahead(&mut self, file: Handle) {
        if self.ahead.len() < LEASE_REQUESTS_MAX {
            self.ahead.insert(file);
        }
    }

    /// Takes the files that [`want_ahead`](Self::want_ahead) added, for an operation that only looks.
    pub fn take_ahead(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.ahead).into_iter().collect()
    }

    /// Whether others have just changed a file, which is looked at once more.
    fn is_hot(&mut self, file: &Handle, now_ms: u64) -> bool {
        let Some((spell, looks)) = self.hot.get_mut(file) else { return false };
        *looks += 1;
        spell.lasts(now_ms) && *looks < HOT_LOOKS
    }

    /// Something about a file was answered under a lease.
    pub fn answered(&mut self, file: Handle) {
        *self.answered.entry(file.principal).or_default() += 1;
    }

    /// Notes that a file is changed here.
    pub fn edited(&mut self, file: Handle, now_ms: u64) {
        if self.edited.len() >= EDITED_MAX {
            self.edited.retain(|_, (at_ms, _)| now_ms < *at_ms + EDITED_MS);
        }
        let times = if self.is_edited(&file, now_ms) { self.edited[&file].1.saturating_add(1) } else { 1 };
        if self.edited.len() < EDITED_MAX || self.edited.contains_key(&file) {
            self.edited.insert(file, (now_ms, times));
        }
    }

    /// Whether a file was changed here a moment ago.
    pub fn is_edited(&self, file: &Handle, now_ms: u64) -> bool {
        self.edited.get(file).is_some_and(|(at_ms, _)| now_ms < *at_ms + EDITED_MS)
    }

    /// Whether what is in a directory that is changed now is to be asked for with it: with the first change in a row,
    /// and, as others may have had it then, with the second, third, fifth, ninth and so on.
    pub fn wants_siblings(&self, directory: &Handle, now_ms: u64) -> bool {
        !self.is_edited(directory, now_ms) || self.edited[directory].1.is_power_of_two()
    }

    /// Takes the scopes to ask for with an operation.
    pub fn take(&mut self) -> Vec<Scope> {
        std::mem::take(&mut self.wanted).into_iter().collect()
    }

    /// Puts back scopes that were taken and have not been asked for.
    pub fn put_back(&mut self, scopes: Vec<Scope>) {
        let room = LEASE_REQUESTS_MAX.saturating_sub(self.wanted.len());
        self.wanted.extend(scopes.into_iter().take(room));
    }

    /// Something was recalled. A server that ends, or forgot, takes all at once, and so does one that gives the
    /// delegation to the next; that says nothing of others' changes.
    pub fn recalled(&mut self, dropped: &RecalledLeases, now_ms: u64) {
        if dropped.everything || dropped.delegation {
            return;
        }
        for scope in &dropped.scopes {
            match scope {
                Scope::Principal(principal) => {
                    if self.answered.remove(principal).unwrap_or(0) < WORTH {
                        self.fine.entry(*principal).or_default().begin(FINE_MS_MIN, FINE_MS_MAX, now_ms);
                    }
                }
                Scope::File(file) => {
                    if self.hot.len() >= HOT_MAX {
                        self.hot.retain(|_, (spell, _)| spell.lasts(now_ms));
                    }
                    if self.hot.len() < HOT_MAX || self.hot.contains_key(file) {
                        let (spell, looks) = self.hot.entry(*file).or_default();
                        spell.begin(HOT_MS_MIN, HOT_MS_MAX, now_ms);
                        *looks = 0;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::UserId;

    /// Proves: however many files of however many owners are looked at, no operation asks for more than one may carry:
    /// the server would refuse it, and its caller would hear of a refusal that has nothing to do with what it does.
    #[test]
    fn requests_fit_an_operation() {
        for others in 1..6 {
            let mut requests = LeaseRequests::default();
            (0..LEASE_REQUESTS_MAX as u64 - others).for_each(|number| requests.want(file(number), 100));
            for user in 2..20 {
                let principal = PrincipalId::User(UserId(user));
                requests.want(Handle { principal, number: 1 }, 100);
            }
            let taken = requests.take();
            assert!(
                taken.len() <= LEASE_REQUESTS_MAX && taken.len() > LEASE_REQUESTS_MAX - 2,
                "{}",
                taken.len()
            );
            requests.want(file(1), 100);
            requests.put_back(taken);
            assert!(requests.take().len() <= LEASE_REQUESTS_MAX);
        }
    }

    /// Proves: what is looked at ahead is asked for once, by itself, since what is asked for otherwise counts as read,
    /// and whoever holds it is waited for; and it is never more than an operation may carry.
    #[test]
    fn what_comes_next_is_not_read() {
        let mut requests = LeaseRequests::default();
        (0..LEASE_REQUESTS_MAX as u64 + 10).for_each(|number| requests.want_ahead(file(number)));
        assert_eq!(requests.take(), []);
        assert_eq!(requests.take_ahead().len(), LEASE_REQUESTS_MAX);
        assert_eq!(requests.take_ahead(), []);
    }

    /// Proves: what is in a directory is asked for with the first change there, and seldom with those that follow at
    /// once.
    #[test]
    fn siblings_are_requested_now_and_then() {
        let mut requests = LeaseRequests::default();
        let mut requested = Vec::new();
        for change in 1..=20 {
            if requests.wants_siblings(&file(1), 100) {
                requested.push(change);
            }
            requests.edited(file(1), 100);
        }
        assert_eq!(requested, [1, 2, 3, 5, 9, 17]);
        assert!(requests.wants_siblings(&file(1), 100 + EDITED_MS));
    }

    fn file(number: u64) -> Handle {
        Handle { principal: PrincipalId::User(UserId(1)), number }
    }

    fn lost(scope: Scope) -> RecalledLeases {
        RecalledLeases { scopes: vec![scope], ..RecalledLeases::default() }
    }

    /// Proves: a whole user is asked for again after each recall that came once it had saved something, and single
    /// files for a while after one that came before, for longer each time that others go on, and not those that others
    /// have just changed; what the server takes back by itself changes nothing; what is remembered is bounded.
    #[test]
    fn coarse_then_fine() {
        let mut requests = LeaseRequests::default();
        let lost_coarse = Scope::Principal(file(1).principal);
        let at = |requests: &mut LeaseRequests, now_ms| {
            requests.want(file(1), now_ms);
            requests.want(file(2), now_ms);
            requests.take()
        };
        let fine = vec![Scope::File(file(1)), Scope::File(file(2))];
        let coarse = [&[lost_coarse], &fine[..]].concat();
        assert_eq!(at(&mut requests, 0), coarse);
        requests.recalled(&RecalledLeases { everything: true, ..lost(lost_coarse) }, 0);
        assert_eq!(at(&mut requests, 0), coarse);
        requests.recalled(&RecalledLeases { delegation: true, ..lost(lost_coarse) }, 0);
        assert_eq!(at(&mut requests, 0), coarse);
        (0..WORTH).for_each(|_| requests.answered(file(1)));
        requests.recalled(&lost(lost_coarse), 0);
        assert_eq!(at(&mut requests, 0), coarse, "it was worth it");
        requests.recalled(&lost(lost_coarse), 0);
        assert_eq!(at(&mut requests, 4_999), fine);
        assert_eq!(at(&mut requests, 5_000), coarse);
        requests.recalled(&lost(lost_coarse), 5_000);
        assert_eq!(at(&mut requests, 14_999), fine, "twice as long");
        assert_eq!(at(&mut requests, 15_000), coarse);
        requests.recalled(&lost(lost_coarse), 1_000_000);
        assert_eq!(at(&mut requests, 1_005_000), coarse, "it was quiet for long");
        requests.recalled(&lost(lost_coarse), 1_005_000);
        requests.recalled(&lost(Scope::File(file(1))), 1_005_000);
        assert_eq!(
            at(&mut requests, 1_006_999),
            [Scope::File(file(2))],
            "others have just changed the first"
        );
        assert_eq!(at(&mut requests, 1_007_000), fine);
        requests.recalled(&lost(Scope::File(file(1))), 1_007_000);
        assert_eq!(at(&mut requests, 1_010_999), [Scope::File(file(2))], "again");
        (0..10_000).for_each(|number| requests.want(file(number), 1_006_000));
        assert_eq!(requests.take().len(), LEASE_REQUESTS_MAX);
        assert_eq!(requests.take(), []);
    }
}
