//! The server's leases of one file system: which session holds what, and which operation must wait for which
//! session.
//!
//! Invariants:
//! - An operation is ordered only when [`LeaseTable::recall_conflicts`] finds no other device's lease that
//!   forbids it. Nothing that a waiting operation has claimed is granted to anybody else. So an operation
//!   that changes something waits for at most one term, and one that only reads for at most [`EXCLUSIVE_MS`].
//! - Where several devices want to hold the same scope exclusively, they take turns, each for one slice
//!   ([`SLICE_MS`]). So a device waits for at most [`TURNS_MAX`] others. An operation that does not ask for
//!   exclusive access is ordered before the next turn, so it waits for one holder, however many devices are
//!   in the queue.
//! - A recalled scope counts as held until its holder acknowledges the recall, or the holder's time runs
//!   out.
//! - A session with recalls to acknowledge is granted nothing, and no lease of it is extended.
//! - After the server restarts, every session from before is assumed to hold anything, until it is heard
//!   from or its time runs out.
//!
//! Only one run of a device is alive at a time. So the leases of a killed run end with the first operation of
//! the next run, and other devices need not wait until they expire. (A device's operations are ordered one
//! after the other: none of an earlier run is ordered after one of a later run.)
//!
//! A session that asks for exclusive access gets as much as it can have: the whole file system if no other
//! device holds anything; else all files of a user or group if no other device holds any of those; else
//! single files. After a recall, the two wider forms are not granted again for a while, longer each time
//! ([`Backoff`]). There is one exception: a device gets all files of a user or group at once after [`STREAK`]
//! operations in a row there, because nobody else seems to work there any more.

use super::exclusive::Exclusives;
use super::session::{Exclusive, Lease, OutstandingRecall, Session};
use super::{
    Backoff, EXCLUSIVE_MS, Footprint, LeaseGrant, LeaseRequest, Recall, SCOPES_MAX, Scope, Withheld,
    principal_of,
};
use crate::locks::SessionId;
use holdfast_content::{DeviceId, Handle, PrincipalId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Most sessions of a file system.
const SESSIONS_MAX: usize = 16_384;
/// Most sessions of one device. Only one is alive; those of earlier runs expire.
const DEVICE_SESSIONS_MAX: usize = 16;
/// Most scopes of a file system, in all sessions.
const SCOPES_IN_ALL_MAX: usize = 1 << 21;
/// Shortest slice, in milliseconds: for so long a holder keeps exclusive access although another device wants
/// to change the files. Several times as long as a handover takes on a network nearby.
pub(super) const SLICE_MS: u64 = 100;
/// Longest slice, in milliseconds. A holder's slice is twice as long as its handovers take, because it is far
/// away or has much to send; this is the limit.
pub(super) const SLICE_MS_MAX: u64 = 400;
/// For how long a holder keeps exclusive access although another device wants to read the files, in
/// milliseconds.
pub(super) const LOOK_MS: u64 = 35;
/// A device loses its turn if it has not asked again for so long, in milliseconds: a few round trips of a far
/// link. Until then nobody else gets the turn, even if the program that wanted it has ended.
const TURN_MS: u64 = 250;
/// Most turns that an operation waits for before its own. If more devices ask for the same scope, operations
/// are ordered without waiting for turns.
const TURNS_MAX: usize = 8;
/// Shortest time for which a scope wider than a file is not granted exclusively after a recall, in
/// milliseconds.
const SHARED_MS_MIN: u64 = 1_000;
/// Longest such time, in milliseconds.
const SHARED_MS_MAX: u64 = 60_000;
/// Number of operations in a row after which a device is taken to work alone in the files of a user or group.
/// It is then granted all of them even shortly after a recall: getting single files has cost as much by then
/// as another recall would. Other devices lose the leases they still have there, unless one of them holds
/// some exclusively and has operated within [`IDLE_MS`].
const STREAK: u32 = 8;
/// [`STREAK`] doubles with each recall of these files that follows soon, at most this often.
const STREAK_DOUBLINGS_MAX: u32 = 3;
/// A session that has not operated for so long is not using its exclusive access, in milliseconds. (A client
/// sends what its programs change within a third of a second.)
const IDLE_MS: u64 = 1_000;
/// A device that takes longer to acknowledge a recall counts as slow, in milliseconds.
const ACKNOWLEDGE_MS_MAX: u64 = 10_000;
/// Shortest time for which a slow device is granted nothing, in milliseconds.
const SLOW_MS_MIN: u64 = 60_000;
/// Longest such time, in milliseconds.
const SLOW_MS_MAX: u64 = 3_600_000;
/// How often leases that have run out are looked for, in milliseconds.
const SWEEP_MS: u64 = 1_000;

/// Identifies a waiting operation's claim on what it changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClaimId(u64);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Claim {
    device: DeviceId,
    touched: Footprint,
    /// Whether the operation asks for exclusive access to what it changes.
    wants_exclusive: bool,
}

/// The queue of devices that wait for exclusive access to a scope, each with the time of its last request.
type Turns = VecDeque<(DeviceId, u64)>;

/// How devices use the files of one user or group.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct PrincipalUse {
    /// While this lasts, the files are not granted as a whole, because a grant of all of them was recalled.
    spell: Backoff,
    /// The device whose operation was the last to use these files, and how many of its operations came in a
    /// row.
    streak: Option<(DeviceId, u32)>,
}

impl PrincipalUse {
    fn by(&mut self, device: DeviceId) {
        let before = self.streak.filter(|(by, _)| *by == device).map_or(0, |(_, count)| count);
        self.streak = Some((device, before.saturating_add(1)));
    }

    /// Whether a device seems to work alone in these files. The more often they were recalled lately, the
    /// longer a streak it takes.
    fn works_alone(&self, device: DeviceId, now_ms: u64) -> bool {
        let wanted = STREAK << self.spell.doublings(SHARED_MS_MIN, now_ms).min(STREAK_DOUBLINGS_MAX);
        self.streak.is_some_and(|(by, count)| by == device && count >= wanted)
    }

    fn keeps_from(&self, device: DeviceId, now_ms: u64) -> bool {
        self.spell.lasts(now_ms) && !self.works_alone(device, now_ms)
    }
}

/// All leases of one file system.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeaseTable {
    term_ms: u64,
    next_epoch: u64,
    sessions: BTreeMap<SessionId, Session>,
    holders: BTreeMap<Scope, BTreeSet<SessionId>>,
    /// For each user and group: how many scopes of their files each session holds.
    interest: BTreeMap<PrincipalId, BTreeMap<SessionId, usize>>,
    held: usize,
    exclusives: Exclusives,
    delegate: Option<SessionId>,
    claims: BTreeMap<ClaimId, Claim>,
    /// For each scope that waiting operations change: their devices, once for each claim.
    claimed: BTreeMap<Scope, Vec<DeviceId>>,
    next_claim: u64,
    /// Number of sessions from before the last restart that may still hold anything.
    inherited: usize,
    turns: BTreeMap<Scope, Turns>,
    /// While this lasts, the delegation is granted to nobody.
    not_alone: Backoff,
    uses: BTreeMap<PrincipalId, PrincipalUse>,
    /// Devices that are granted nothing for a while, because they were slow to acknowledge a recall.
    slow: BTreeMap<DeviceId, Backoff>,
    swept_ms: u64,
    /// Whether something was recalled, or became free, since the driver last asked.
    recalled: bool,
    freed: bool,
    closing: bool,
}

/// The latest of several moments, of which only those in the future count.
struct LatestDeadline {
    now_ms: u64,
    until_ms: Option<u64>,
}

impl LatestDeadline {
    fn until(&mut self, until_ms: u64) {
        if until_ms > self.now_ms {
            self.until_ms = Some(self.until_ms.map_or(until_ms, |until| until.max(until_ms)));
        }
    }
}

impl LeaseTable {
    /// An empty table. With `term_ms` 0 it never grants a lease. `first_epoch` must be greater than any epoch
    /// used before.
    pub fn new(term_ms: u64, first_epoch: u64) -> LeaseTable {
        LeaseTable {
            term_ms,
            next_epoch: first_epoch.max(1),
            sessions: BTreeMap::new(),
            holders: BTreeMap::new(),
            interest: BTreeMap::new(),
            held: 0,
            exclusives: Exclusives::default(),
            delegate: None,
            claims: BTreeMap::new(),
            claimed: BTreeMap::new(),
            next_claim: 0,
            inherited: 0,
            turns: BTreeMap::new(),
            not_alone: Backoff::default(),
            uses: BTreeMap::new(),
            slow: BTreeMap::new(),
            swept_ms: 0,
            recalled: false,
            freed: false,
            closing: false,
        }
    }

    /// Assumes that a session from before the server's restart may hold any lease until `until_ms`, and, if
    /// `exclusively`, any exclusive lease too.
    pub fn inherit(&mut self, id: SessionId, exclusively: bool, until_ms: u64) {
        let exclusive_until_ms = if exclusively { until_ms } else { 0 };
        let session = Session::inherited(self.next_epoch, until_ms, exclusive_until_ms);
        self.next_epoch += 1;
        self.sessions.insert(id, session);
        self.inherited += 1;
    }

    /// The sessions that hold something, and whether some of it exclusively. The server stores this to know
    /// it after a restart.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, bool)> + '_ {
        self.sessions.iter().map(|(id, session)| (*id, session.exclusive_until_ms > 0))
    }

    /// Whether something was recalled since the last call. The driver then wakes the holders that wait for
    /// recalls.
    pub fn take_recalled(&mut self) -> bool {
        std::mem::take(&mut self.recalled)
    }

    /// Whether something was given up since the last call. The driver then tries waiting operations again.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Stops granting leases and recalls all of them, because the server is about to end.
    pub fn close(&mut self, now_ms: u64) {
        self.closing = true;
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.recall_all(id, now_ms);
        }
    }

    /// Registers an operation that waits for other devices' leases. Until [`LeaseTable::end_claim`], nobody
    /// else is granted what it changes. If it `wants_exclusive` access, others may still have their turns
    /// before it.
    pub fn claim(&mut self, device: DeviceId, touched: &Footprint, wants_exclusive: bool) -> ClaimId {
        self.next_claim += 1;
        let id = ClaimId(self.next_claim);
        for scope in touched.scopes() {
            self.claimed.entry(scope).or_default().push(device);
        }
        self.claims.insert(id, Claim { device, touched: touched.clone(), wants_exclusive });
        id
    }

    /// Ends a claim: its operation was ordered, or called off.
    pub fn end_claim(&mut self, id: ClaimId) {
        let Some(claim) = self.claims.remove(&id) else { return };
        for scope in claim.touched.scopes() {
            let Some(devices) = self.claimed.get_mut(&scope) else { continue };
            if let Some(at) = devices.iter().position(|device| *device == claim.device) {
                devices.swap_remove(at);
            }
            if devices.is_empty() {
                self.claimed.remove(&scope);
            }
        }
    }

    /// Recalls the leases that forbid an operation of `device` (which asks for exclusive access to what it
    /// changes if `wants_exclusive`). `None`: the operation may be ordered now. `Some`: it must wait; the
    /// time at which to ask again at the latest.
    pub fn recall_conflicts(
        &mut self,
        device: DeviceId,
        touched: &Footprint,
        wants_exclusive: bool,
        now_ms: u64,
    ) -> Option<u64> {
        self.drop_expired(now_ms);
        let mut wait = LatestDeadline { now_ms, until_ms: None };
        if let Some(slice_ends_ms) = self.others_delegation(device, touched, wants_exclusive, &mut wait) {
            return Some(slice_ends_ms);
        }
        if self.inherited > 0 {
            let others =
                self.sessions.iter().filter(|(id, session)| id.device != device && session.inherited);
            let until = |session: &Session| match touched.is_empty() {
                true => session.exclusive_until_ms,
                false => session.expires_ms.max(session.exclusive_until_ms),
            };
            others.for_each(|(_, session)| wait.until(until(session)));
        }
        self.others_exclusives(device, touched, wants_exclusive, &mut wait);
        self.others_leases(device, touched, wants_exclusive, &mut wait);
        wait.until_ms
    }

    /// Recalls another device's delegation once that has had it for a slice. `Some`: the time at which the
    /// slice ends.
    fn others_delegation(
        &mut self,
        device: DeviceId,
        touched: &Footprint,
        wants_exclusive: bool,
        wait: &mut LatestDeadline,
    ) -> Option<u64> {
        let id = self.delegate.filter(|id| id.device != device)?;
        let session = self.sessions.get_mut(&id)?;
        if session.exclusive_until_ms <= wait.now_ms {
            return None;
        }
        wait.until(session.exclusive_until_ms);
        if session.is_delegation_recalled() {
            return None;
        }
        let slice_ms = if touched.is_empty() && !wants_exclusive { LOOK_MS } else { session.slice_ms() };
        let slice_ends_ms = session.delegated_since_ms + slice_ms;
        if slice_ends_ms > wait.now_ms {
            return Some(slice_ends_ms);
        }
        let what = OutstandingRecall { at_ms: wait.now_ms, delegation: true, ..OutstandingRecall::default() };
        self.recalled |= session.recall(what);
        self.not_alone.begin(SHARED_MS_MIN, SHARED_MS_MAX, wait.now_ms);
        None
    }

    /// Recalls exclusive leases of what an operation reads or changes, once their holders have had them for a
    /// slice. If the same device touched other files of that holder shortly before, the holder loses all its
    /// exclusive leases of that user's or group's files at once, for reading or for changing: a device that
    /// goes through a directory will come to the other files in it next.
    fn others_exclusives(
        &mut self,
        device: DeviceId,
        touched: &Footprint,
        wants_exclusive: bool,
        wait: &mut LatestDeadline,
    ) {
        let now_ms = wait.now_ms;
        for (id, scopes) in self.exclusive_conflicts(device, touched) {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let (mut due, slice_ms) = (true, session.slice_ms());
            for scope in &scopes {
                let Some(held) = session.exclusive.get(scope) else { continue };
                let changes = touched.changes(scope);
                let slice_ends_ms = held.since_ms + if changes { slice_ms } else { LOOK_MS };
                if !held.is_recalled && slice_ends_ms > now_ms {
                    wait.until(slice_ends_ms);
                    due = false;
                }
                if changes && wants_exclusive {
                    take_turn(self.turns.entry(*scope).or_default(), device, now_ms);
                }
            }
            if !due {
                continue;
            }
            wait.until(session.exclusive_until_ms);
            let has_roamed = session.note_foreign_access(device, &scopes, now_ms);
            let (mut changed, mut read): (Vec<Scope>, Vec<Scope>) =
                scopes.iter().partition(|scope| touched.changes(scope));
            if has_roamed {
                for of in [&mut changed, &mut read] {
                    let principals: BTreeSet<PrincipalId> = of.iter().map(principal_of).collect();
                    let is_near = |scope: &&Scope| principals.contains(&principal_of(scope));
                    of.extend(session.exclusive.keys().filter(is_near).copied());
                }
            }
            for scope in changed.iter().chain(&read) {
                if let Scope::Principal(principal) = scope
                    && session.exclusive.get(scope).is_some_and(|held| !held.is_recalled)
                {
                    let of = self.uses.entry(*principal).or_default();
                    of.spell.begin(SHARED_MS_MIN, SHARED_MS_MAX, now_ms);
                    of.streak = None;
                }
            }
            let untouched = changed.iter().filter(|scope| !scopes.contains(scope));
            session.gives_up(read.iter().chain(untouched).copied(), now_ms);
            let what =
                OutstandingRecall { at_ms: now_ms, scopes: changed, exclusive: read, delegation: false };
            self.recalled |= session.recall(what);
        }
    }

    /// The scopes that an operation reads or changes and that other devices hold exclusively, by session.
    fn exclusive_conflicts(
        &self,
        device: DeviceId,
        touched: &Footprint,
    ) -> BTreeMap<SessionId, BTreeSet<Scope>> {
        let mut conflicts: BTreeMap<SessionId, BTreeSet<Scope>> = BTreeMap::new();
        if touched.everything || touched.reads_everything {
            for (id, session) in self.sessions.iter().filter(|(id, _)| id.device != device) {
                if !session.exclusive.is_empty() {
                    conflicts.insert(*id, session.exclusive.keys().copied().collect());
                }
            }
            return conflicts;
        }
        for file in touched.files.iter().chain(&touched.reads) {
            for (id, scope) in self.exclusives.of_file(file).filter(|(id, _)| id.device != device) {
                conflicts.entry(id).or_default().insert(scope);
            }
        }
        conflicts
    }

    /// Recalls the leases to read what an operation changes, except where they are exclusive and not yet
    /// recalled. If the operation wants exclusive access, readers keep a lease for a short time first; else
    /// they could read only once in each slice. If the same device changed other files of that holder shortly
    /// before, the holder loses all leases of that user's or group's files at once: a device that changes a
    /// whole tree will come to the other files next.
    fn others_leases(
        &mut self,
        device: DeviceId,
        touched: &Footprint,
        wants_exclusive: bool,
        wait: &mut LatestDeadline,
    ) {
        let mut by_session: BTreeMap<SessionId, Vec<Scope>> = BTreeMap::new();
        if touched.everything {
            for (id, session) in self.sessions.iter().filter(|(id, _)| id.device != device) {
                by_session.insert(*id, session.scopes.keys().copied().collect());
            }
        }
        for scope in touched.scopes() {
            for id in self.holders.get(&scope).into_iter().flatten().filter(|id| id.device != device) {
                by_session.entry(*id).or_default().push(scope);
            }
        }
        for (id, mut scopes) in by_session {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let is_kept = |scope: &Scope| session.exclusive.get(scope).is_some_and(|held| !held.is_recalled);
            scopes.retain(|scope| !is_kept(scope));
            let slice_ends_ms = |scope: &Scope| match session.scopes.get(scope) {
                Some(Lease::Active { since_ms, .. }) => since_ms + LOOK_MS,
                _ => 0,
            };
            let ends_ms = scopes.iter().map(slice_ends_ms).max().unwrap_or(0);
            if wants_exclusive && !touched.everything && ends_ms > wait.now_ms {
                wait.until(ends_ms);
                continue;
            }
            scopes.iter().filter_map(|scope| session.until(scope)).for_each(|until_ms| wait.until(until_ms));
            let concerned: BTreeSet<Scope> = scopes.iter().copied().collect();
            if !concerned.is_empty() && session.note_foreign_change(device, &concerned, wait.now_ms) {
                let near = session.mere_leases(&concerned.iter().map(principal_of).collect());
                session.loses_leases(
                    near.iter().filter(|scope| !concerned.contains(scope)).copied(),
                    wait.now_ms,
                );
                scopes.extend(near);
            }
            let what = OutstandingRecall { at_ms: wait.now_ms, scopes, ..OutstandingRecall::default() };
            self.recalled |= session.recall(what);
        }
    }

    /// Extends the leases of a session whose operation was ordered, and grants what it asks for. `touched`:
    /// what the operation changes and reads. `fresh`: whether it was ordered just now, so that its view is
    /// the newest; otherwise nothing new is granted. `pending`: what unfinished operations of other devices
    /// will still change.
    pub fn grant(
        &mut self,
        id: SessionId,
        request: &LeaseRequest,
        touched: &Footprint,
        fresh: bool,
        pending: &Footprint,
        now_ms: u64,
    ) -> LeaseGrant {
        self.drop_expired(now_ms);
        self.expire_session(id, now_ms);
        if fresh {
            self.end_earlier_runs(id);
            self.note_use(id, request, touched, now_ms);
        }
        let mut grant = LeaseGrant::none(match fresh {
            true => self.exclusives.withheld_from(id.device),
            false => Withheld::everything(),
        });
        if self.term_ms == 0 || self.closing || self.is_slow(id.device, now_ms) {
            self.lose_turns(id.device);
            return grant;
        }
        if !self.sessions.contains_key(&id) {
            let of_device = self.sessions.keys().filter(|known| known.device == id.device).count();
            let has_room = of_device < DEVICE_SESSIONS_MAX && self.sessions.len() < SESSIONS_MAX;
            if !has_room || (request.scopes.is_empty() && !request.exclusive) {
                self.lose_turns(id.device);
                return grant;
            }
            self.sessions.insert(id, Session::new(self.next_epoch, 0));
            self.next_epoch += 1;
        }
        let session = self.sessions.get_mut(&id).expect("it is there");
        (grant.epoch, grant.recalls) = (session.epoch, session.issued);
        if session.inherited || !session.outstanding.is_empty() {
            if fresh && request.exclusive {
                // To acknowledge a recall, a client sends everything it has gathered; most of that is in
                // other files than the recalled ones.
                session.changed_meanwhile(touched.files.iter().map(|file| Scope::File(*file)), now_ms);
            }
            // A device loses its turns while it leaves a recall unanswered.
            self.lose_turns(id.device);
            return grant;
        }
        grant.term_ms = u32::try_from(self.term_ms).unwrap_or(u32::MAX);
        session.expires_ms = now_ms + self.term_ms;
        let session = self.sessions.get_mut(&id).expect("it is there");
        let taken_up = if fresh { session.take_up(touched, request.exclusive, now_ms) } else { Vec::new() };
        if request.exclusive {
            let also = request.also.iter().map(|file| Scope::File(*file));
            let also = also.filter(|scope| !self.others_take_up(id, scope, now_ms));
            let extra: Vec<Scope> = taken_up.iter().copied().chain(also).collect();
            self.grant_exclusively(id, &extra, touched, fresh, pending, now_ms, &mut grant);
        }
        let ahead = request.also.iter().filter(|_| touched.is_empty()).map(|file| Scope::File(*file));
        let ahead: Vec<Scope> = ahead.filter(|scope| !self.others_take_up(id, scope, now_ms)).collect();
        let wanted = request.scopes.iter().copied().chain(taken_up).chain(ahead).collect();
        self.grant_leases(id, wanted, fresh, pending, now_ms, &mut grant);
        grant
    }

    /// Notes whose files an operation reads and changes. Where its device seems to work alone, other devices
    /// lose the leases they still have there, so that a later operation can be granted all of these files.
    fn note_use(&mut self, id: SessionId, request: &LeaseRequest, touched: &Footprint, now_ms: u64) {
        // A client may name any file as read, so reads add no new entry. Changes add one: their owners are
        // all in the membership.
        for principal in touched.reads.iter().map(|file| file.principal).collect::<BTreeSet<PrincipalId>>() {
            let is_changed = touched.changes(&Scope::Principal(principal));
            if let Some(of) = self.uses.get_mut(&principal).filter(|_| !is_changed) {
                of.by(id.device);
            }
        }
        for principal in touched.files.iter().map(|file| file.principal).collect::<BTreeSet<PrincipalId>>() {
            let of = self.uses.entry(principal).or_default();
            of.by(id.device);
            if !request.exclusive || !of.works_alone(id.device, now_ms) {
                continue;
            }
            let sessions = self.interest.get(&principal).into_iter().flat_map(BTreeMap::keys);
            let others: Vec<SessionId> =
                sessions.filter(|other| other.device != id.device).copied().collect();
            let is_busy = |other: &SessionId| {
                let session = &self.sessions[other];
                let operated_ms = session.expires_ms.saturating_sub(self.term_ms);
                now_ms.saturating_sub(operated_ms) < IDLE_MS
                    && session.exclusive_of(principal).next().is_some()
            };
            if others.iter().any(is_busy) {
                continue;
            }
            for other in others {
                let Some(session) = self.sessions.get_mut(&other) else { continue };
                let leases = session.mere_leases(&[principal].into());
                session.loses_leases(leases.iter().copied(), now_ms);
                let held: Vec<Scope> = session.exclusive_of(principal).collect();
                session.gives_up(held.iter().copied(), now_ms);
                let scopes = leases.into_iter().chain(held).collect();
                let what = OutstandingRecall { at_ms: now_ms, scopes, ..OutstandingRecall::default() };
                self.recalled |= session.recall(what);
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // One step of `grant`, with what that knows.
    fn grant_exclusively(
        &mut self,
        id: SessionId,
        extra: &[Scope],
        touched: &Footprint,
        fresh: bool,
        pending: &Footprint,
        now_ms: u64,
        grant: &mut LeaseGrant,
    ) {
        if self.delegate != Some(id) && fresh && self.is_alone(id, pending, now_ms) {
            self.delegate = Some(id);
            let session = self.sessions.get_mut(&id).expect("it is there");
            session.delegated_since_ms = now_ms;
        }
        grant.delegation = self.delegate == Some(id);
        // Files that are only read are granted exclusively only if the operation also changes files of the
        // same owner: a user who may not write must not keep others from reading. They are granted even
        // beside the delegation, so that something is left when the delegation is recalled.
        if fresh {
            let principals: BTreeSet<PrincipalId> = touched.files.iter().map(|file| file.principal).collect();
            let read = touched.reads.iter().filter(|file| principals.contains(&file.principal));
            let files: BTreeSet<Handle> = touched.files.iter().chain(read).copied().collect();
            let mut whole: Option<(PrincipalId, bool)> = None;
            for file in files {
                let as_whole = match whole {
                    Some((principal, may)) if principal == file.principal => may,
                    _ => self.may_have_all_of(id, file.principal, pending, now_ms),
                };
                whole = Some((file.principal, as_whole));
                let scope = if as_whole { Scope::Principal(file.principal) } else { Scope::File(file) };
                let is_own = self.exclusives.of_file(&file).any(|(by, _)| by == id);
                if is_own || as_whole || self.may_have_file(id, &scope, pending, now_ms) {
                    self.hold_exclusively(id, scope, now_ms, grant);
                }
            }
        }
        // Further files that the client would like are granted only if nobody has to give up anything for
        // them.
        if fresh && !touched.files.is_empty() {
            for scope in extra {
                let whole = Scope::Principal(principal_of(scope));
                if touched.changes(&whole) && self.may_have_file(id, scope, pending, now_ms) {
                    self.hold_exclusively(id, *scope, now_ms, grant);
                }
            }
        }
        let session = self.sessions.get_mut(&id).expect("it is there");
        if grant.delegation || !session.exclusive.is_empty() {
            let exclusive_ms = self.term_ms.min(EXCLUSIVE_MS);
            session.exclusive_until_ms = now_ms + exclusive_ms;
            grant.exclusive_ms = u32::try_from(exclusive_ms).unwrap_or(u32::MAX);
        }
    }

    /// Whether another device's next operation will be granted this file again (see [`Session::takes_up`]).
    fn others_take_up(&self, id: SessionId, scope: &Scope, now_ms: u64) -> bool {
        let takes_up = |(other, session): (&SessionId, &Session)| {
            other.device != id.device && session.takes_up(scope, now_ms)
        };
        self.sessions.iter().any(takes_up)
    }

    /// Grants a session exclusive access to a scope. A scope that the session holds already is put into the
    /// grant again: the client may have missed the earlier grant if a recall overtook it.
    fn hold_exclusively(&mut self, id: SessionId, scope: Scope, now_ms: u64, grant: &mut LeaseGrant) {
        let session = self.sessions.get_mut(&id).expect("it is there");
        let whole = Scope::Principal(principal_of(&scope));
        let scope = if session.exclusive.contains_key(&whole) { whole } else { scope };
        if let Entry::Vacant(vacant) = session.exclusive.entry(scope) {
            if self.held >= SCOPES_IN_ALL_MAX {
                return;
            }
            vacant.insert(Exclusive { since_ms: now_ms, is_recalled: false });
            self.exclusives.insert(scope, id);
            self.hold(id, scope, now_ms);
            if let Some(turns) = self.turns.get_mut(&scope) {
                turns.retain(|(device, _)| *device != id.device);
            }
        }
        if grant.exclusive.last() != Some(&scope) {
            grant.exclusive.push(scope);
        }
    }

    fn grant_leases(
        &mut self,
        id: SessionId,
        wanted: BTreeSet<Scope>,
        fresh: bool,
        pending: &Footprint,
        now_ms: u64,
        grant: &mut LeaseGrant,
    ) {
        let is_others = |claim: &Claim| claim.device != id.device && claim.touched.everything;
        let all_claimed = self.claims.values().any(is_others);
        let unsettled = pending.scopes();
        // In this order, a user or group comes before its files.
        for scope in wanted {
            let session = &self.sessions[&id];
            if session.scopes.contains_key(&scope) {
                grant.scopes.push(scope);
                continue;
            }
            let principal = principal_of(&scope);
            let whole = Scope::Principal(principal);
            if scope != whole && matches!(session.scopes.get(&whole), Some(Lease::Active { .. })) {
                continue;
            }
            let is_claimed = all_claimed
                || self.claimed.get(&scope).is_some_and(|devices| devices.iter().any(|by| *by != id.device));
            let is_unsettled = pending.everything || unsettled.contains(&scope);
            let is_anothers = match &scope {
                Scope::Principal(principal) => self.exclusives.are_anothers(*principal, id.device),
                Scope::File(file) => self.exclusives.of_file(file).any(|(by, _)| by.device != id.device),
            };
            if !fresh || is_claimed || is_unsettled || is_anothers || self.held >= SCOPES_IN_ALL_MAX {
                continue;
            }
            self.hold(id, scope, now_ms);
            grant.scopes.push(scope);
        }
        let session = self.sessions.get_mut(&id).expect("it is there");
        let excess = session.ages.len().saturating_sub(SCOPES_MAX);
        if excess > 0 {
            // The leases just granted are the youngest, so the client keeps them, and gives up the oldest
            // when it hears the recall.
            let scopes: Vec<Scope> = session.ages.values().take(excess).copied().collect();
            self.recalled |=
                session.recall(OutstandingRecall { at_ms: now_ms, scopes, ..OutstandingRecall::default() });
        }
    }

    /// Notes that a session holds a lease of a scope.
    fn hold(&mut self, id: SessionId, scope: Scope, now_ms: u64) {
        let session = self.sessions.get_mut(&id).expect("it is there");
        if session.scopes.contains_key(&scope) {
            return;
        }
        session.scopes.insert(scope, Lease::Active { age: session.next_age, since_ms: now_ms });
        session.ages.insert(session.next_age, scope);
        session.next_age += 1;
        self.holders.entry(scope).or_default().insert(id);
        *self.interest.entry(principal_of(&scope)).or_default().entry(id).or_default() += 1;
        self.held += 1;
    }

    /// Notes that a session no longer holds a lease of a scope.
    fn release(&mut self, id: SessionId, scope: &Scope) {
        let Some(sessions) = self.holders.get_mut(scope) else { return };
        if !sessions.remove(&id) {
            return;
        }
        self.held -= 1;
        if sessions.is_empty() {
            self.holders.remove(scope);
        }
        let principal = principal_of(scope);
        let Some(interested) = self.interest.get_mut(&principal) else { return };
        if let Some(count) = interested.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                interested.remove(&id);
            }
        }
        if interested.is_empty() {
            self.interest.remove(&principal);
        }
    }

    /// Whether no other device holds, wants or changes anything, so that a session may have the delegation.
    fn is_alone(&self, id: SessionId, pending: &Footprint, now_ms: u64) -> bool {
        let holds =
            |(other, session): (&SessionId, &Session)| other.device != id.device && !session.holds_nothing();
        !self.not_alone.lasts(now_ms)
            && pending.is_empty()
            && !self.sessions.iter().any(holds)
            && !self.claims.values().any(|claim| claim.device != id.device)
    }

    /// Whether no other device holds, wants or changes any file of a user or group.
    fn may_have_all_of(&self, id: SessionId, of: PrincipalId, pending: &Footprint, now_ms: u64) -> bool {
        let is_others = |other: &SessionId| other.device != id.device;
        let is_known = self.interest.get(&of).is_some_and(|sessions| sessions.keys().any(is_others));
        self.uses.get(&of).is_none_or(|of| !of.keeps_from(id.device, now_ms))
            && !is_known
            && self.may_hold(id, &Scope::Principal(of), pending, now_ms)
    }

    fn may_have_file(&self, id: SessionId, scope: &Scope, pending: &Footprint, now_ms: u64) -> bool {
        let is_others = |other: &SessionId| other.device != id.device;
        let is_read = |scope| self.holders.get(scope).is_some_and(|sessions| sessions.iter().any(is_others));
        let whole = Scope::Principal(principal_of(scope));
        !is_read(scope) && !is_read(&whole) && self.may_hold(id, scope, pending, now_ms)
    }

    /// Whether a session may hold a scope exclusively: it is its device's turn, nobody else waits to read or
    /// change something in the scope (except for a later turn), no unfinished operation changes it, and no
    /// session from before the restart may still hold it.
    fn may_hold(&self, id: SessionId, scope: &Scope, pending: &Footprint, now_ms: u64) -> bool {
        let is_current = |(device, at_ms): &&(DeviceId, u64)| {
            *device == id.device || now_ms.saturating_sub(*at_ms) < TURN_MS
        };
        let turns = self.turns.get(scope);
        let next = turns.and_then(|turns| turns.iter().find(is_current));
        let are_few = turns.is_none_or(|turns| turns.len() <= TURNS_MAX);
        let has_turn = |claim: &Claim| are_few && claim.wants_exclusive && claim.touched.changes(scope);
        let waits =
            |claim: &Claim| claim.device != id.device && claim.touched.concerns(scope) && !has_turn(claim);
        next.is_none_or(|(device, _)| *device == id.device)
            && !self.is_inherited(id)
            && !pending.concerns(scope)
            && !self.claims.values().any(waits)
    }

    /// Number of users and groups of whose files some use is remembered.
    #[cfg(test)]
    pub(super) fn owners_used(&self) -> usize {
        self.uses.len()
    }

    fn is_inherited(&self, id: SessionId) -> bool {
        self.inherited > 0
            && self.sessions.iter().any(|(other, session)| other.device != id.device && session.inherited)
    }

    fn lose_turns(&mut self, device: DeviceId) {
        for turns in self.turns.values_mut() {
            turns.retain(|(waiting, _)| *waiting != device);
        }
    }

    /// The recall that a session has to carry out, if there is one. `acknowledged`: it has carried out all
    /// recalls up to this number.
    pub fn recall(&mut self, id: SessionId, epoch: u64, acknowledged: u64, now_ms: u64) -> Option<Recall> {
        self.drop_expired(now_ms);
        self.expire_session(id, now_ms);
        let everything = |epoch, number| Recall {
            epoch,
            number,
            scopes: Vec::new(),
            exclusive: Vec::new(),
            everything: true,
            delegation: true,
        };
        self.note_epoch(id, epoch);
        let Some(session) = self.sessions.get_mut(&id) else { return Some(everything(0, 0)) };
        if session.epoch != epoch {
            return Some(everything(session.epoch, session.issued));
        }
        let later = session.outstanding.split_off(&acknowledged.saturating_add(1));
        let done = std::mem::replace(&mut session.outstanding, later);
        let is_late = |recall: &OutstandingRecall| {
            !recall.delegation
                && recall.exclusive.is_empty()
                && now_ms.saturating_sub(recall.at_ms) > ACKNOWLEDGE_MS_MAX
        };
        let was_late = done.values().any(is_late);
        for recall in done.into_values() {
            self.freed = true;
            let session = self.sessions.get_mut(&id).expect("it is there");
            session.handed_over(now_ms.saturating_sub(recall.at_ms));
            let given_up = |scope: &&Scope| session.exclusive.remove(*scope).is_some();
            let exclusive: Vec<Scope> = recall.exclusive.iter().filter(given_up).copied().collect();
            let is_gone = |scope: &Scope| matches!(session.scopes.get(scope), Some(Lease::Recalled { .. }));
            let scopes: Vec<Scope> = recall.scopes.into_iter().filter(is_gone).collect();
            for scope in &scopes {
                self.sessions.get_mut(&id).expect("it is there").scopes.remove(scope);
                self.release(id, scope);
            }
            exclusive.iter().for_each(|scope| self.exclusives.remove(scope, id));
            if recall.delegation && self.delegate == Some(id) {
                self.delegate = None;
            }
            let session = self.sessions.get_mut(&id).expect("it is there");
            if session.exclusive.is_empty() && self.delegate != Some(id) {
                session.exclusive_until_ms = 0;
            }
        }
        let outstanding = &self.sessions[&id].outstanding;
        let recall = (!outstanding.is_empty()).then_some(Recall {
            epoch,
            number: self.sessions[&id].issued,
            scopes: outstanding.values().flat_map(|recall| recall.scopes.iter().copied()).collect(),
            exclusive: outstanding.values().flat_map(|recall| recall.exclusive.iter().copied()).collect(),
            everything: false,
            delegation: outstanding.values().any(|recall| recall.delegation),
        });
        if was_late {
            self.penalize(id.device, now_ms);
        }
        recall
    }

    /// Ends a session that has given up everything.
    pub fn end(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.inherited -= usize::from(session.inherited);
        for scope in session.scopes.keys() {
            self.release(id, scope);
        }
        session.exclusive.keys().for_each(|scope| self.exclusives.remove(scope, id));
        self.delegate = self.delegate.filter(|delegate| *delegate != id);
        self.freed = true;
    }

    /// Whether no session holds anything.
    pub fn is_empty(&mut self, now_ms: u64) -> bool {
        self.swept_ms = 0;
        self.drop_expired(now_ms);
        self.sessions.values().all(Session::holds_nothing)
    }

    /// A session that asks with the epoch given to it after the restart has given up all that it held before.
    fn note_epoch(&mut self, id: SessionId, epoch: u64) {
        if let Some(session) = self.sessions.get_mut(&id)
            && session.inherited
            && session.epoch == epoch
        {
            let expires_ms = session.expires_ms;
            self.end(id);
            self.sessions.insert(id, Session::new(epoch, expires_ms));
        }
    }

    /// Ends the sessions of earlier runs of the same device.
    fn end_earlier_runs(&mut self, id: SessionId) {
        let epoch = self.sessions.get(&id).map_or(u64::MAX, |session| session.epoch);
        let is_earlier = |(other, session): &(&SessionId, &Session)| {
            other.device == id.device && **other != id && session.epoch < epoch
        };
        let earlier: Vec<SessionId> =
            self.sessions.iter().filter(is_earlier).map(|(other, _)| *other).collect();
        for run in earlier {
            self.end(run);
        }
    }

    /// Ends a session whose time is over, or only its exclusive leases if only their time is over.
    fn expire_session(&mut self, id: SessionId, now_ms: u64) {
        self.expire_exclusives(id, now_ms);
        let Some(session) = self.sessions.get(&id).filter(|session| session.expires_ms <= now_ms) else {
            return;
        };
        if !session.outstanding.is_empty() {
            self.penalize(id.device, now_ms);
        }
        self.end(id);
    }

    fn expire_exclusives(&mut self, id: SessionId, now_ms: u64) {
        let is_over = |session: &&mut Session| {
            session.exclusive_until_ms > 0 && session.exclusive_until_ms <= now_ms && !session.inherited
        };
        let Some(session) = self.sessions.get_mut(&id).filter(is_over) else { return };
        session.exclusive_until_ms = 0;
        let exclusive = std::mem::take(&mut session.exclusive);
        let is_waited_for = |recall: &OutstandingRecall| recall.delegation || !recall.exclusive.is_empty();
        let was_waited_for = session.outstanding.values().any(is_waited_for);
        self.delegate = self.delegate.filter(|delegate| *delegate != id);
        exclusive.keys().for_each(|scope| self.exclusives.remove(scope, id));
        self.freed = true;
        if was_waited_for {
            self.penalize(id.device, now_ms);
        }
    }

    fn is_slow(&self, device: DeviceId, now_ms: u64) -> bool {
        self.slow.get(&device).is_some_and(|slow| slow.lasts(now_ms))
    }

    /// Denies a device leases for a while, because it let others wait for an acknowledgement. The time grows
    /// each time this happens, so that no device can hold up all changes.
    fn penalize(&mut self, device: DeviceId, now_ms: u64) {
        self.slow.entry(device).or_default().begin(SLOW_MS_MIN, SLOW_MS_MAX, now_ms);
    }

    fn recall_all(&mut self, id: SessionId, now_ms: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let scopes: Vec<Scope> = session.ages.values().copied().collect();
        let exclusive: Vec<Scope> = session.exclusive.keys().copied().collect();
        let delegation = self.delegate == Some(id) && !session.is_delegation_recalled();
        self.recalled |= session.recall(OutstandingRecall { at_ms: now_ms, scopes, exclusive, delegation });
    }

    /// Removes sessions and leases that have run out.
    fn drop_expired(&mut self, now_ms: u64) {
        if now_ms < self.swept_ms.saturating_add(SWEEP_MS) && self.swept_ms > 0 {
            return;
        }
        self.swept_ms = now_ms.max(1);
        let is_over = |session: &Session| {
            session.expires_ms <= now_ms
                || (session.exclusive_until_ms > 0 && session.exclusive_until_ms <= now_ms)
        };
        let over: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| is_over(session)).map(|(id, _)| *id).collect();
        for id in over {
            self.expire_session(id, now_ms);
        }
        self.slow.retain(|_, slow| !slow.is_forgotten(now_ms));
        self.turns.retain(|_, turns| {
            turns.retain(|(_, at_ms)| now_ms.saturating_sub(*at_ms) < TURN_MS);
            !turns.is_empty()
        });
    }
}

/// Puts a device at the end of a queue of turns, or notes that it has asked again.
fn take_turn(turns: &mut Turns, device: DeviceId, now_ms: u64) {
    if let Some((_, at_ms)) = turns.iter_mut().find(|(waiting, _)| *waiting == device) {
        *at_ms = now_ms;
    } else if turns.len() < SESSIONS_MAX {
        turns.push_back((device, now_ms));
    }
}
