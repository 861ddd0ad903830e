//! One run of a client in the server's table of leases: what it holds, what it has to give up, and what it
//! will be granted again.

use super::table::{SLICE_MS, SLICE_MS_MAX};
use super::{EXCLUSIVE_MS, Footprint, Scope, principal_of};
use holdfast_content::{DeviceId, PrincipalId};
use std::collections::{BTreeMap, BTreeSet};

/// A device that touches one file of a holder, and another within so many milliseconds, is taken to go
/// through all of the holder's files.
const ROAM_MS: u64 = 1_000;
/// Most files that are granted again to a session that gave them up.
const GIVEN_UP_MAX: usize = 4096;

/// A lease of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lease {
    /// Lasts as long as the session.
    Active { age: u64, since_ms: u64 },
    /// Was recalled: ends when the session acknowledges that, at `until_ms` at the latest.
    Recalled { until_ms: u64 },
}

/// A scope that a session holds exclusively.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Exclusive {
    pub(super) since_ms: u64,
    pub(super) is_recalled: bool,
}

/// What one run of a client holds, as far as the server knows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Session {
    pub(super) epoch: u64,
    pub(super) expires_ms: u64,
    pub(super) scopes: BTreeMap<Scope, Lease>,
    /// Active leases by age, the oldest first.
    pub(super) ages: BTreeMap<u64, Scope>,
    pub(super) next_age: u64,
    /// What the session holds exclusively; each of these is among `scopes` too.
    pub(super) exclusive: BTreeMap<Scope, Exclusive>,
    /// Files that the session gave up although nobody else changed them. Its next operation is granted them
    /// again, until `given_up_until_ms`: another device that only reads for a moment must not cost an
    /// operation for each file.
    given_up: BTreeSet<Scope>,
    /// Those of the given-up files of which the session has leases again, but not exclusive ones. It is
    /// granted these when it changes a file of the same owner.
    only_read: BTreeSet<Scope>,
    given_up_until_ms: u64,
    /// Files whose leases the session lost because another device went through them. Its next operation asks
    /// for leases of those that nobody else holds exclusively by then.
    unleased: BTreeSet<Scope>,
    /// When an operation last asked again for leases that were lost (`unleased`).
    asked_again_ms: u64,
    /// The last foreign accesses to what the session held exclusively, and to what it only had leases of.
    visited: Option<ForeignAccess>,
    visited_leases: Option<ForeignAccess>,
    /// How long the session took lately to give up what was recalled, at most, in milliseconds.
    handover_ms: u64,
    /// Until when the session holds the delegation, or anything else exclusively; 0: it holds neither.
    pub(super) exclusive_until_ms: u64,
    /// When the session was given the delegation, in milliseconds.
    pub(super) delegated_since_ms: u64,
    /// Whether the session may still hold leases that were granted before the server started.
    pub(super) inherited: bool,
    pub(super) issued: u64,
    /// Recalls that are not acknowledged yet, by number.
    pub(super) outstanding: BTreeMap<u64, OutstandingRecall>,
}

/// Another device's access to scopes of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ForeignAccess {
    by: DeviceId,
    scopes: BTreeSet<Scope>,
    at_ms: u64,
}

/// Notes a device's access to scopes. Returns whether the same device accessed other scopes within the last
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

    /// Makes one recall of: the active leases among `what.scopes`; exclusive access to `what.exclusive` and
    /// `what.scopes`; and the delegation if `what` names it. Returns whether there was anything to recall.
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

    /// For how long the session keeps exclusive access although another device wants to change the files, in
    /// milliseconds.
    pub(super) fn slice_ms(&self) -> u64 {
        (self.handover_ms * 2).clamp(SLICE_MS, SLICE_MS_MAX)
    }

    /// Notes how long it took the session to give up what was recalled.
    pub(super) fn handed_over(&mut self, took_ms: u64) {
        self.handover_ms = took_ms.max(self.handover_ms * 3 / 4);
    }

    /// Notes another device's access to scopes that this session holds exclusively. Returns whether the same
    /// device accessed others of them within the last [`ROAM_MS`].
    pub(super) fn note_foreign_access(&mut self, by: DeviceId, scopes: &BTreeSet<Scope>, at_ms: u64) -> bool {
        note_access(&mut self.visited, by, scopes, at_ms)
    }

    /// Notes that another device changes files of which this session has leases. Returns whether the same
    /// device changed others of them within the last [`ROAM_MS`].
    pub(super) fn note_foreign_change(&mut self, by: DeviceId, scopes: &BTreeSet<Scope>, at_ms: u64) -> bool {
        note_access(&mut self.visited_leases, by, scopes, at_ms)
    }

    /// What the session holds exclusively of a user's or group's files.
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

    /// Notes leases that the session loses, to be granted again with its next operation. Leases lost shortly
    /// after they were asked for again are not noted: a device that goes through these files would have to
    /// wait for this session at each of them.
    pub(super) fn loses_leases(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        if now_ms.saturating_sub(self.asked_again_ms) < ROAM_MS && self.asked_again_ms > 0 {
            return;
        }
        self.forget_given_up(now_ms);
        let room = GIVEN_UP_MAX.saturating_sub(self.unleased.len());
        self.unleased.extend(files.filter(|scope| matches!(scope, Scope::File(_))).take(room));
        self.given_up_until_ms = now_ms + EXCLUSIVE_MS;
    }

    /// Notes files that the session gives up and that its next operation is granted again.
    pub(super) fn gives_up(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        self.forget_given_up(now_ms);
        let room = GIVEN_UP_MAX.saturating_sub(self.given_up.len());
        self.given_up.extend(files.filter(|scope| matches!(scope, Scope::File(_))).take(room));
        self.given_up_until_ms = now_ms + EXCLUSIVE_MS;
    }

    /// Notes files that the session changed while it was granted nothing because of outstanding recalls. Its
    /// next operation is granted those that no outstanding recall names.
    pub(super) fn changed_meanwhile(&mut self, files: impl Iterator<Item = Scope>, now_ms: u64) {
        let recalled =
            self.outstanding.values().flat_map(|recall| recall.scopes.iter().chain(&recall.exclusive));
        let recalled: BTreeSet<Scope> = recalled.copied().collect();
        self.gives_up(files.filter(|scope| !recalled.contains(scope)), now_ms);
    }

    /// Takes from the given-up files those whose owner's files the operation reads or changes, to be granted
    /// again: exclusively if the operation changes files of that owner and `wants_exclusive` access, else as
    /// leases.
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

    /// Whether the session's next operation is granted a file again.
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
