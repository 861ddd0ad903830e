//! Chooses the leases that the next operation requests. A lease saves a round trip each time something is
//! read under it, and costs a device that changes the file a round trip for the recall.
//!
//! - Usually, a lease of all files of a user or group is requested. After a recall, the next operation
//!   requests it again.
//! - If it was recalled before it had served [`WORTH`] reads, single files are requested instead, for 5 s to
//!   60 s, doubling with each such recall.
//! - A file that another device has just changed is not requested at all for 2 s to 60 s, unless it is read
//!   [`HOT_LOOKS`] times.

use holdfast_content::{Handle, PrincipalId};
use holdfast_protocol::leases::{Backoff, LEASE_REQUESTS_MAX, RecalledLeases, Scope};
use std::collections::{BTreeSet, HashMap};

/// A lease of all files of a user or group must serve this many answers to be worth its recall.
const WORTH: u64 = 8;
/// Shortest time for which single files are requested after a recall that came too soon, in milliseconds.
const FINE_MS_MIN: u64 = 5_000;
/// Longest such time, in milliseconds.
const FINE_MS_MAX: u64 = 60_000;

/// Shortest time for which a file is not requested after its lease was recalled, in milliseconds.
const HOT_MS_MIN: u64 = 2_000;
/// Longest such time, in milliseconds.
const HOT_MS_MAX: u64 = 60_000;
/// A file that was read this often since its recall is requested all the same.
const HOT_LOOKS: u32 = 8;
/// Most files remembered as recently recalled.
const HOT_MAX: usize = 4096;

/// For so long after a change, this device is assumed to be about to change the file again, in milliseconds.
const EDITED_MS: u64 = 1_000;
/// Most files remembered as recently changed.
const EDITED_MAX: usize = 8192;

/// Which leases to request: collected from files that were read without one.
#[derive(Default)]
pub(super) struct LeaseRequests {
    wanted: BTreeSet<Scope>,
    /// Files that are likely to be read next, at most [`LEASE_REQUESTS_MAX`]. Leases of them are useful, but
    /// not worth a recall from another device.
    ahead: BTreeSet<Handle>,
    /// Users and groups whose files are requested one by one for a while.
    fine: HashMap<PrincipalId, Backoff>,
    /// For each user and group: number of answers under leases of all their files, since the last recall.
    answered: HashMap<PrincipalId, u64>,
    /// Files that are not requested for a while, and how often each was read since its recall.
    hot: HashMap<Handle, (Backoff, u32)>,
    /// Files that were changed here: when last, and by how many operations in a row.
    edited: HashMap<Handle, (u64, u32)>,
}

impl LeaseRequests {
    /// Notes that a file was read without a lease, so that the next operation requests one. At most as many
    /// scopes are remembered as one operation may request.
    pub fn want(&mut self, file: Handle, now_ms: u64) {
        let is_fine = self.fine.get(&file.principal).is_some_and(|spell| spell.lasts(now_ms));
        // The server refuses an operation that requests more.
        let takes = if is_fine { 1 } else { 2 };
        if self.wanted.len() + takes > LEASE_REQUESTS_MAX || (is_fine && self.is_hot(&file, now_ms)) {
            return;
        }
        if !is_fine {
            self.wanted.insert(Scope::Principal(file.principal));
        }
        // Where other devices work in files of the same user or group, only this can be granted. It also
        // names the file as read.
        self.wanted.insert(Scope::File(file));
    }

    /// Adds a file to those of which the next operation that only reads requests leases, if there is room.
    pub fn want_ahead(&mut self, file: Handle) {
        if self.ahead.len() < LEASE_REQUESTS_MAX {
            self.ahead.insert(file);
        }
    }

    /// Takes the files added by [`want_ahead`](Self::want_ahead), for an operation that only reads.
    pub fn take_ahead(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.ahead).into_iter().collect()
    }

    /// Whether another device has changed a file recently. Counts this read of it.
    fn is_hot(&mut self, file: &Handle, now_ms: u64) -> bool {
        let Some((spell, looks)) = self.hot.get_mut(file) else { return false };
        *looks += 1;
        spell.lasts(now_ms) && *looks < HOT_LOOKS
    }

    /// Counts an answer about a file that was given under a lease.
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

    /// Whether leases of the files in a directory should be requested with the present change of it: with the
    /// first change in a row; with the second, because other devices may have held the files before; then
    /// with the third, fifth, ninth and so on.
    pub fn wants_siblings(&self, directory: &Handle, now_ms: u64) -> bool {
        !self.is_edited(directory, now_ms) || self.edited[directory].1.is_power_of_two()
    }

    /// Takes the scopes to ask for with an operation.
    pub fn take(&mut self) -> Vec<Scope> {
        std::mem::take(&mut self.wanted).into_iter().collect()
    }

    /// Puts back scopes that were taken but not requested.
    pub fn put_back(&mut self, scopes: Vec<Scope>) {
        let room = LEASE_REQUESTS_MAX.saturating_sub(self.wanted.len());
        self.wanted.extend(scopes.into_iter().take(room));
    }

    /// Learns from a recall. A server that ends, or that has lost its memory, takes back everything at once,
    /// and so does one that passes the delegation on; that says nothing about other devices' changes.
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

    /// Proves: however many files of however many owners are read, no operation requests more than one may
    /// carry. Otherwise the server would refuse it, with an error that has nothing to do with what the caller
    /// does.
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

    /// Proves: files requested ahead are requested once, and separately, because ordinarily requested files
    /// count as read and make the operation wait for their holders; and there are never more than an
    /// operation may carry.
    #[test]
    fn what_comes_next_is_not_read() {
        let mut requests = LeaseRequests::default();
        (0..LEASE_REQUESTS_MAX as u64 + 10).for_each(|number| requests.want_ahead(file(number)));
        assert_eq!(requests.take(), []);
        assert_eq!(requests.take_ahead().len(), LEASE_REQUESTS_MAX);
        assert_eq!(requests.take_ahead(), []);
    }

    /// Proves: leases of the files in a directory are requested with the first change in it, and seldom with
    /// those that follow at once.
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

    /// Proves: all files of a user are requested again after a recall that came once the lease had saved
    /// something. After a recall that came sooner, single files are requested for a while, longer each time,
    /// except files that others have just changed. What the server takes back on its own account has no
    /// influence. The number of remembered requests is bounded.
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
