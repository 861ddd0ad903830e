//! One run of a client, as the server's table of leases knows it: what it holds, what it is to give up, and what it takes up
//! again.

use super::table::{SLICE_MS, SLICE_MS_MAX};
use super::{EXCLUSIVE_MS, Footprint, Scope, principal_of};
use holdfast_content::{DeviceId, PrincipalId};
use std::collections::{BTreeMap, BTreeSet};

/// Within this time a device that comes to other files of a holder is taken to go through all of them, in milliseconds.
const ROAM_MS: u64 = 1_000;
/// Most files that a session gets back.
const GIVEN_UP_MAX: usize = 4096;

/// A lease of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lease {
    /// It lasts as long as the session.
    Active { age: u64, since_ms: u64 },
    /// It was recalled, and lasts until then unless it is given up.
    Recalled { until_ms: u64 },
}

/// A scope that a session holds exclusively.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Exclusive {
    pub(super) since_ms: u64,
    pub(super) is_recalled: bool,
}

/// What one run of a client holds, as the server knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Session {
    pub(super) epoch: u64,
    pub(super) expires_ms: u64,
    pub(super) scopes: BTreeMap<Scope, Lease>,
    /// Active leases, the oldest first.
    pub(super) ages: BTreeMap<u64, Scope>,
    pub(super) next_age: u64,
    /// What it holds exclusively; each is among its scopes too.
    pub(super) exclusive: BTreeMap<Scope, Exclusive>,
    /// Files that it gave up although nobody else changed them, and until when its next operation takes them up again: whoever
    /// looks for a moment must not cost an operation for each.
    given_up: BTreeSet<Scope>,
    /// Files of those that it has leases of again, and takes up exclusively when it changes something of their owner's.
    only_read: BTreeSet<Scope>,
    given_up_until_ms: u64,
    /// Files that it may not read any more because another device went through what it had leases of: its next operation asks
    /// for those that nobody else holds exclusively by then.
    unleased: BTreeSet<Scope>,
    /// When an operation last asked for exclusive leases.
    asked_again_ms: u64,
    /// The devices that last accessed something that it held exclusively, and something that it only had leases of.
    visited: Option<ForeignAccess>,
    visited_leases: Option<ForeignAccess>,
    /// The longest time, lately, that it took to give up what was recalled, in milliseconds.
    handover_ms: u64,
    /// Until when it holds the delegation, or anything else exclusively; 0: it does not.
    pub(super) exclusive_until_ms: u64,
    /// When it was given the delegation, in milliseconds.
    pub(super) delegated_since_ms: u64,
    /// Whether it may hold anything, granted before the server started.
    pub(super) inherited: bool,
    pub(super) issued: u64,
    /// Recalls that are not acknowledged yet, by number.
    pub(super) outstanding: BTreeMap<u64, OutstandingRecall>,
}

/// An operation that reads or changes something that another session holds exclusively.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ForeignAccess {
    by: DeviceId,
    scopes: BTreeSet<Scope>,
    at_ms: u64,
}

/// Notes which device accesses which scopes; returns whether the same device accessed others within the last
/// [`ROAM_MS`].
fn note_access(
    visited: &mut Option<ForeignAccess>,
    by: DeviceId,
    scopes: &BTreeSet<Scope>,
    at_ms: u64,
) -> bool {
    let has_roamed = visited.as_ref().is_some_and(|before| {
        let is_known = |scope: &Scope| {
            before.scopes.contains(scope) || before.scopes.contains(&Scope::Principal(principal_of(scope)))
        };
        before.by == by && at_ms.saturating_sub(before.at_ms) < ROAM_MS && !scopes.iter().all(is_known)
    });
    *visited = Some(ForeignAccess { by, scopes: scopes.clone(), at_ms });
    has_roamed
}

/// What one recall takes away.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct OutstandingRecall {
    pub(super) at_ms: u64,
    pub(super) scopes: Vec<Scope>,
    pub(super) exclusive: Vec<Scope>,
    pub(super) delegation: bool,
}

impl Session {
    pub(super) fn new(epoch: u64, expires_ms: u64) -> Session {
        Session {
            epoch,
            expires_ms,
            scopes: BTreeMap::new(),
            ages: BTreeMap::new(),
            next_age: 0,
            exclusive: BTreeMap::new(),
            given_up: BTreeSet::new(),
            only_read: BTreeSet::new(),
            given_up_until_ms: 0,
            unleased: BTreeSet::new(),
            asked_again_ms: 0,
            visited: None,
            visited_leases: None,
            handover_ms: 0,
            exclusive_until_ms: 0,
            delegated_since_ms: 0,
            inherited: false,
            issued: 0,
            outstanding: BTreeMap::new(),
        }
    }

    /// A session from before the server started, which may hold anything until these times.
    pub(super) fn inherited(epoch: u64, expires_ms: u64, exclusive_until_ms: u64) -> Session {
        Session { inherited: true, exclusive_until_ms, ..Session::new(epoch, expires_ms) }
    }

    /// Until when a scope is held, if it is.
    pub(super) fn until(&self, scope: &Scope) -> Option<u64> {
        match self.scopes.get(scope)? {
            Lease::Active { .. } => Some(self.expires_ms),
            Lease::Recalled { until_ms } => Some(*until_ms),
        }
    }

    /// Recalls, in one recall, those of `scopes` that are held firmly; those of `exclusive`, and what of `scopes` is held
    /// exclusively; and the delegation if that is asked for. Whether there was anything.
    pub(super) fn recall(&mut self, what: OutstandingRecall) -> bool {
        let mut recalled = OutstandingRecall {
            at_ms: what.at_ms,
            delegation: what.delegation,
            ..OutstandingRecall::default()
        };
        for scope in what.exclusive.iter().chain(&what.scopes) {
            let Some(held) = self.exclusive.get_mut(scope).filter(|held| !held.is_recalled) else { continue };
            held.is_recalled = true;
            recalled.exclusive.push(*scope);
        }
        for scope in what.scopes {
            let Some(lease) = self.scopes.get_mut(&scope) else { continue };
            let Lease::Active { age, .. } = *lease else { continue };
            *lease = Lease::Recalled { until_ms: self.expires_ms };
            self.ages.remove(&age);
            recalled.scopes.push(scope);
        }
        let any = recalled.delegation || !recalled.scopes.is_empty() || !recalled.exclusive.is_empty();
        if any {
            self.issued += 1;
            self.outstanding.insert(self.issued, recalled);
        }
        any
    }

    /// For how long it has to itself what it holds exclusively, although another wants to change it, in milliseconds.
    pub(super) fn slice_ms(&self) -> u64 {
        (self.handover_ms * 2).clamp(SLICE_MS, SLICE_MS_MAX)
    }

    /// Notes how long it took to give up what was recalled.
    pub(super) fn handed_over(&mut self, took_ms: u64) {
        self.handover_ms = took_ms.max(self.handover_ms * 3 / 4);
    }

    /// Another device's operation comes to scopes that this session holds exclusively. Whether the same device came to others of
    /// them within the last [`ROAM_MS`].
    pub(super) fn note_foreign_access(&mut self, by: DeviceId, scopes: &BTreeSet<Scope>, at_ms: u64) -> bool {
        note_access(&mut self.visited, by, scopes, at_ms)
    }

    /// Another device's operation changes what this session has leases of. Whether the same device changed others of them within
    /// the last [`ROAM_MS`].
    pub(super) fn visit_leases(&mut self, by: DeviceId, scopes: &BTreeSet<Scope>, at_ms: u64) -> bool {
        note_access(&mut self.visited_leases, by, scopes, at_ms)
    }

    /// What it holds exclusively of a user's or group's files.
    pub(super) fn exclusive_of(&self, of: PrincipalId) -> impl Iterator<Item = Scope> + '_ {
        let is_held =
            move |(scope, held): &(&Scope, &Exclusive)| principal_of(scope) == of && !held.is_recalled;
        self.exclusive.iter().filter(is_held).map(|(scope, _)| *scope)
    }

    /// All leases of files of these users and groups that are not also held exclusively.
    pub(super) fn mere_leases(&self, of: &BTreeSet<PrincipalId>) -> Vec<Scope> {
        let is_mere = |scope: &&Scope| {
            let is_kept = self.exclusive.get(*scope).is_some_and(|held| !held.is_recalled);
            of.contains(&principal_of(scope)) && !is_kept
        };
        self.ages.values().filter(is_mere).copied().collect()
    }

    /// Its next operation asks for leases of these files again, unless it lost them so soon after it had asked: whoever goes
    /// through them would wait for it at each.
    pub(super) fn loses_leases(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        if now_ms.saturating_sub(self.asked_again_ms) < ROAM_MS && self.asked_again_ms > 0 {
            return;
        }
        self.forget_given_up(now_ms);
        let room = GIVEN_UP_MAX.saturating_sub(self.unleased.len());
        self.unleased.extend(files.filter(|scope| matches!(scope, Scope::File(_))).take(room));
        self.given_up_until_ms = now_ms + EXCLUSIVE_MS;
    }

    /// Notes files that its next operation takes up again.
    pub(super) fn gives_up(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        self.forget_given_up(now_ms);
        let room = GIVEN_UP_MAX.saturating_sub(self.given_up.len());
        self.given_up.extend(files.filter(|scope| matches!(scope, Scope::File(_))).take(room));
        self.given_up_until_ms = now_ms + EXCLUSIVE_MS;
    }

    /// It changed files while it had recalls to acknowledge, and so got nothing: its next operation takes up those that no recall
    /// is about.
    pub(super) fn changed_meanwhile(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        let recalled =
            self.outstanding.values().flat_map(|recall| recall.scopes.iter().chain(&recall.exclusive));
        let recalled: BTreeSet<Scope> = recalled.copied().collect();
        self.gives_up(files.filter(|scope| !recalled.contains(scope)), now_ms);
    }

    /// Of the files that it gave up, those of owners whose files its operation reads or changes: to be taken up with that
    /// exclusively, if it changes some of that owner's and `wants_exclusive` access, else as leases.
    pub(super) fn take_up(&mut self, touched: &Footprint, wants_exclusive: bool, now_ms: u64) -> Vec<Scope> {
        self.forget_given_up(now_ms);
        let whole = |scope: &Scope| Scope::Principal(principal_of(scope));
        let changes = |scope: &Scope| wants_exclusive && touched.changes(&whole(scope));
        let (concerned, others): (BTreeSet<Scope>, BTreeSet<Scope>) =
            std::mem::take(&mut self.given_up).into_iter().partition(|scope| touched.concerns(&whole(scope)));
        let (changed, not_changed): (BTreeSet<Scope>, BTreeSet<Scope>) =
            std::mem::take(&mut self.only_read).into_iter().partition(changes);
        let only_read: Vec<Scope> = concerned.iter().filter(|scope| !changes(scope)).copied().collect();
        (self.given_up, self.only_read) = (others, not_changed);
        let room = GIVEN_UP_MAX.saturating_sub(self.only_read.len());
        self.only_read.extend(only_read.into_iter().take(room));
        let (unleased, others): (BTreeSet<Scope>, BTreeSet<Scope>) =
            std::mem::take(&mut self.unleased).into_iter().partition(|scope| touched.concerns(&whole(scope)));
        self.unleased = others;
        if !unleased.is_empty() {
            self.asked_again_ms = now_ms;
        }
        concerned.into_iter().chain(changed).chain(unleased).collect()
    }

    /// Whether its next operation takes a file up again.
    pub(super) fn takes_up(&self, scope: &Scope, now_ms: u64) -> bool {
        now_ms < self.given_up_until_ms && self.given_up.contains(scope)
    }

    fn forget_given_up(&mut self, now_ms: u64) {
        if now_ms >= self.given_up_until_ms {
            self.given_up.clear();
            self.only_read.clear();
            self.unleased.clear();
        }
    }

    /// Whether a recall of the delegation is not acknowledged yet.
    pub(super) fn is_delegation_recalled(&self) -> bool {
        self.outstanding.values().any(|recall| recall.delegation)
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.scopes.is_empty() && self.exclusive_until_ms == 0 && !self.inherited
    }
}
