//! The server's leases of one file system: who holds what, who must wait for whom.
//!
//! Invariants:
//! - an operation is ordered only when [`LeaseTable::in_the_way`] says that nobody else's lease forbids it, and nobody
//!   is granted what a waiting operation has claimed: so a writer waits for at most one term, and one who only looks for
//!   at most [`DELEGATION_MS`];
//! - where several want the delegation, they have it in turn, each for [`SLICE_MS`] at least, and what waited for one of them
//!   is ordered before the next one has it: so an operation waits for one holder, however many there are;
//! - a scope that was recalled counts as held until its holder has said that it gave it up, or its time is over;
//! - a session that has recalls to acknowledge gets nothing and keeps nothing for longer;
//! - what sessions held before a restart counts as held by them, whatever it was, until they are heard from or the
//!   time is over.
//!
//! A device never stands in its own way: one run of it is alive at a time. So the leases of a run that was killed end with
//! the first operation of the next one, and nobody else waits for them until their time is over. (Operations of a device
//! are ordered one after the other: none of an earlier run is ordered after one of a later.)

use super::{DELEGATION_MS, LeaseGrant, LeaseWish, Recall, SCOPES_MAX, Scope, Touched};
use crate::locks::SessionId;
use holdfast_content::DeviceId;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Most sessions of a file system.
const SESSIONS_MAX: usize = 16_384;
/// Most sessions of one device: one at a time is alive, those of earlier runs run out.
const DEVICE_SESSIONS_MAX: usize = 16;
/// Most scopes of a file system, in all sessions.
const SCOPES_IN_ALL_MAX: usize = 1 << 21;
/// For how long a delegation is left to its holder although another wants it, in milliseconds: several times what it takes
/// to hand it over.
pub(super) const SLICE_MS: u64 = 100;
/// For how long it is left to its holder although somebody wants to look, and a reader's leases to the reader although
/// somebody wants the delegation, in milliseconds.
pub(super) const LOOK_MS: u64 = 35;
/// How long others' changes wait, and nobody is granted leases, until what is under way is settled for whose turn it is, in
/// milliseconds; and if that was in vain, when it is tried again.
const CLEARING_MS: u64 = 300;
const CLEAR_AGAIN_MS: u64 = 5_000;
/// Whose turn it is loses it if it has not wished for the delegation for so long, in milliseconds: a few round trips of a far
/// link. Until then nobody else has it, as when a program has just ended.
const TURN_MS: u64 = 250;
/// A recall that takes longer to acknowledge makes its holder a slow one, in milliseconds.
const ACKNOWLEDGE_MS_MAX: u64 = 10_000;
/// Shortest time for which a slow device is granted nothing, in milliseconds.
const SLOW_MS_MIN: u64 = 60_000;
/// Longest.
const SLOW_MS_MAX: u64 = 3_600_000;
/// How often what has run out is looked for, in milliseconds.
const SWEEP_MS: u64 = 1_000;

/// A waiting operation's claim on what it changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClaimId(u64);

struct Claim {
    device: DeviceId,
    everything: bool,
    scopes: BTreeSet<Scope>,
}

/// A scope of a session.
enum Held {
    /// Held for as long as the session lasts; with its age.
    Firmly(u64),
    /// Recalled, and held until then unless it is given up.
    Recalled { until_ms: u64 },
}

struct Session {
    epoch: u64,
    expires_ms: u64,
    scopes: HashMap<Scope, Held>,
    /// Those held firmly, oldest first.
    ages: BTreeMap<u64, Scope>,
    next_age: u64,
    /// It may hold anything, from before the server started.
    inherited: bool,
    /// Until when it has the file system for itself; 0: it has not.
    delegated_until_ms: u64,
    /// Since when it has had that, and since when it has held any scope.
    delegated_since_ms: u64,
    reading_since_ms: u64,
    issued: u64,
    /// Recalls not acknowledged yet.
    outstanding: BTreeMap<u64, Outstanding>,
}

struct Outstanding {
    at_ms: u64,
    scopes: Vec<Scope>,
    delegation: bool,
}

/// A device that made others wait.
struct Slow {
    until_ms: u64,
    lasts_ms: u64,
}

impl Session {
    fn new(epoch: u64, expires_ms: u64) -> Session {
        Session {
            epoch,
            expires_ms,
            scopes: HashMap::new(),
            ages: BTreeMap::new(),
            next_age: 0,
            inherited: false,
            delegated_until_ms: 0,
            delegated_since_ms: 0,
            reading_since_ms: 0,
            issued: 0,
            outstanding: BTreeMap::new(),
        }
    }

    /// Until when a scope is held, if it is.
    fn until(&self, scope: &Scope) -> Option<u64> {
        match self.scopes.get(scope)? {
            Held::Firmly(_) => Some(self.expires_ms),
            Held::Recalled { until_ms } => Some(*until_ms),
        }
    }

    /// Recalls those of `scopes` that are held firmly, and the delegation if that is asked for, in one recall. Whether there
    /// was anything.
    fn recall(&mut self, scopes: impl IntoIterator<Item = Scope>, delegation: bool, now_ms: u64) -> bool {
        let mut recalled = Vec::new();
        for scope in scopes {
            let Some(held) = self.scopes.get_mut(&scope) else { continue };
            let Held::Firmly(age) = *held else { continue };
            *held = Held::Recalled { until_ms: self.expires_ms };
            self.ages.remove(&age);
            recalled.push(scope);
        }
        let any = delegation || !recalled.is_empty();
        if any {
            self.issued += 1;
            self.outstanding.insert(self.issued, Outstanding { at_ms: now_ms, scopes: recalled, delegation });
        }
        any
    }

    /// Whether it has the delegation, and has not been told to give it up.
    fn has_delegation(&self, now_ms: u64) -> bool {
        self.delegated_until_ms > now_ms
            && !self.inherited
            && !self.outstanding.values().any(|recall| recall.delegation)
    }
}

/// All leases of one file system.
pub struct LeaseTable {
    term_ms: u64,
    next_epoch: u64,
    sessions: HashMap<SessionId, Session>,
    holders: HashMap<Scope, BTreeSet<SessionId>>,
    held: usize,
    claims: BTreeMap<ClaimId, Claim>,
    /// Devices whose claims touch a scope, once for each claim.
    claimed: HashMap<Scope, Vec<DeviceId>>,
    next_claim: u64,
    /// Sessions that may hold anything.
    inherited: usize,
    delegate: Option<SessionId>,
    /// Devices that wish for the delegation and have not had it since, in the order of their turns, with when they last
    /// wished.
    turns: VecDeque<(DeviceId, u64)>,
    /// The last claim that began before the delegation was last given up: it is not granted again before that is ordered.
    waited: ClaimId,
    /// For whose turn others' leases are recalled and their changes wait, and until when.
    clearing: Option<(DeviceId, u64)>,
    clear_again_ms: u64,
    /// Devices that are granted nothing for a while.
    slow: HashMap<DeviceId, Slow>,
    swept_ms: u64,
    /// Something was recalled or has become free since the driver looked last.
    recalled: bool,
    freed: bool,
    closing: bool,
}

impl LeaseTable {
    /// No leases. `term_ms` 0: none are ever granted. `first_epoch` is greater than any epoch before.
    pub fn new(term_ms: u64, first_epoch: u64) -> LeaseTable {
        LeaseTable {
            term_ms,
            next_epoch: first_epoch.max(1),
            sessions: HashMap::new(),
            holders: HashMap::new(),
            held: 0,
            claims: BTreeMap::new(),
            claimed: HashMap::new(),
            next_claim: 0,
            inherited: 0,
            delegate: None,
            turns: VecDeque::new(),
            waited: ClaimId(0),
            clearing: None,
            clear_again_ms: 0,
            slow: HashMap::new(),
            swept_ms: 0,
            recalled: false,
            freed: false,
            closing: false,
        }
    }

    /// A session may hold anything from before the server started, until then.
    pub fn inherit(&mut self, id: SessionId, delegation: bool, until_ms: u64) {
        let delegated_until_ms = if delegation { until_ms } else { 0 };
        let session =
            Session { inherited: true, delegated_until_ms, ..Session::new(self.next_epoch, until_ms) };
        self.next_epoch += 1;
        self.sessions.insert(id, session);
        self.inherited += 1;
    }

    /// Sessions that hold something, and whether that is the delegation: to be remembered over a restart.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, bool)> + '_ {
        self.sessions.iter().map(|(id, session)| (*id, session.delegated_until_ms > 0))
    }

    /// Whether something was recalled since this was asked last: holders that wait to hear of it should be told.
    pub fn take_recalled(&mut self) -> bool {
        std::mem::take(&mut self.recalled)
    }

    /// Whether something was given up since this was asked last: waiting operations may be able to go on.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// Grants nothing any more, and recalls everything: the server is about to end.
    pub fn close(&mut self, now_ms: u64) {
        self.closing = true;
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.recall_all(id, now_ms);
        }
    }

    /// An operation that waits for leases of others: what it changes is granted to nobody until
    /// [`LeaseTable::end_claim`].
    pub fn claim(&mut self, device: DeviceId, touched: &Touched) -> ClaimId {
        self.next_claim += 1;
        let id = ClaimId(self.next_claim);
        let scopes = touched.scopes();
        for scope in &scopes {
            self.claimed.entry(*scope).or_default().push(device);
        }
        self.claims.insert(id, Claim { device, everything: touched.everything, scopes });
        id
    }

    /// The operation was ordered, or called off.
    pub fn end_claim(&mut self, id: ClaimId) {
        let Some(claim) = self.claims.remove(&id) else { return };
        for scope in &claim.scopes {
            let Some(devices) = self.claimed.get_mut(scope) else { continue };
            if let Some(at) = devices.iter().position(|device| *device == claim.device) {
                devices.swap_remove(at);
            }
            if devices.is_empty() {
                self.claimed.remove(scope);
            }
        }
    }

    /// Recalls what forbids an operation of `device`, which itself `wishes` for the delegation or not. `Some`: when to ask
    /// again at the latest, as it is not free yet.
    pub fn in_the_way(
        &mut self,
        device: DeviceId,
        touched: &Touched,
        wishes: bool,
        now_ms: u64,
    ) -> Option<u64> {
        self.sweep(now_ms);
        let mut wait: Option<u64> = None;
        let mut wait_until = |until_ms: u64| {
            if until_ms > now_ms {
                wait = Some(wait.map_or(until_ms, |wait| wait.max(until_ms)));
            }
        };
        if let Some(id) = self.delegate.filter(|id| id.device != device)
            && let Some(session) = self.sessions.get_mut(&id)
            && session.delegated_until_ms > now_ms
        {
            let only_looks = !wishes && touched.is_empty();
            let slice_ms = if only_looks { LOOK_MS } else { SLICE_MS };
            let slice_ends_ms = session.delegated_since_ms + slice_ms;
            let goes_on = session.has_delegation(now_ms);
            wait_until(if goes_on { slice_ends_ms.max(now_ms + 1) } else { session.delegated_until_ms });
            if wishes {
                take_turn(&mut self.turns, device, now_ms);
            }
            if goes_on && slice_ends_ms <= now_ms {
                wait_until(session.delegated_until_ms);
                // Whose turn is next is granted the delegation only once nobody else holds anything.
                let scopes: Vec<Scope> = match self.turns.is_empty() {
                    true => Vec::new(),
                    false => session.ages.values().copied().collect(),
                };
                self.recalled |= session.recall(scopes, true, now_ms);
            }
        }
        if self.inherited > 0 {
            let others =
                self.sessions.iter().filter(|(id, session)| id.device != device && session.inherited);
            others.for_each(|(_, session)| wait_until(session.delegated_until_ms));
        }
        if touched.is_empty() {
            return wait;
        }
        if let Some((_, until_ms)) = self.clearing.filter(|(by, _)| *by != device) {
            wait_until(until_ms);
            if wishes {
                take_turn(&mut self.turns, device, now_ms);
            }
        }
        if self.inherited > 0 {
            let others =
                self.sessions.iter().filter(|(id, session)| id.device != device && session.inherited);
            others.for_each(|(_, session)| wait_until(session.expires_ms));
        }
        if touched.everything {
            let others: Vec<SessionId> =
                self.sessions.keys().filter(|id| id.device != device).copied().collect();
            for id in others {
                self.recall_all(id, now_ms);
                let session = &self.sessions[&id];
                session.scopes.keys().filter_map(|scope| session.until(scope)).for_each(&mut wait_until);
            }
            return wait;
        }
        let mut by_session: BTreeMap<SessionId, Vec<Scope>> = BTreeMap::new();
        for scope in touched.scopes() {
            for id in self.holders.get(&scope).into_iter().flatten().filter(|id| id.device != device) {
                by_session.entry(*id).or_default().push(scope);
            }
        }
        for (id, scopes) in by_session {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            scopes.iter().filter_map(|scope| session.until(scope)).for_each(&mut wait_until);
            self.recalled |= session.recall(scopes, false, now_ms);
        }
        wait
    }

    /// An operation of a session was ordered: makes longer what it holds, and grants what it wishes for. `fresh`: it was
    /// ordered just now, so that its view is the present one; else nothing is granted that is not held already.
    /// `pending`: what operations of other devices will still change. `None`: leases are not for this session.
    pub fn grant(
        &mut self,
        id: SessionId,
        wish: &LeaseWish,
        fresh: bool,
        pending: &Touched,
        now_ms: u64,
    ) -> Option<LeaseGrant> {
        self.sweep(now_ms);
        self.lapse(id, now_ms);
        if fresh {
            self.end_earlier_runs(id);
        }
        if self.term_ms == 0 || self.closing || self.is_slow(id.device, now_ms) {
            self.lose_turn(id.device);
            return None;
        }
        if !self.sessions.contains_key(&id) {
            let of_device = self.sessions.keys().filter(|known| known.device == id.device).count();
            let has_room = of_device < DEVICE_SESSIONS_MAX && self.sessions.len() < SESSIONS_MAX;
            if !has_room || (wish.scopes.is_empty() && !wish.delegation) {
                self.lose_turn(id.device);
                return None;
            }
            self.sessions.insert(id, Session::new(self.next_epoch, 0));
            self.next_epoch += 1;
        }
        let session = self.sessions.get_mut(&id).expect("it is there");
        let mut grant = LeaseGrant {
            epoch: session.epoch,
            recalls: session.issued,
            term_ms: 0,
            scopes: Vec::new(),
            delegation_ms: 0,
        };
        if session.inherited || !session.outstanding.is_empty() {
            // Who leaves a recall unanswered holds up nobody's turn.
            self.lose_turn(id.device);
            return Some(grant);
        }
        grant.term_ms = u32::try_from(self.term_ms).unwrap_or(u32::MAX);
        session.expires_ms = now_ms + self.term_ms;
        if wish.delegation && fresh && self.delegate != Some(id) {
            take_turn(&mut self.turns, id.device, now_ms);
        }
        if wish.delegation && (self.delegate == Some(id) || (fresh && self.may_have_all(id, pending, now_ms)))
        {
            let delegation_ms = self.term_ms.min(DELEGATION_MS);
            self.lose_turn(id.device);
            let session = self.sessions.get_mut(&id).expect("it is there");
            if self.delegate.replace(id) != Some(id) {
                session.delegated_since_ms = now_ms;
                self.clearing = None;
            }
            session.delegated_until_ms = now_ms + delegation_ms;
            grant.delegation_ms = u32::try_from(delegation_ms).unwrap_or(u32::MAX);
        }
        // A device that waits for its turn while others do too, and whoever reads while the way is cleared for a turn, gets no
        // leases: the next holder's grant would wait for their recall.
        let is_turn_of_others =
            self.turns.iter().any(|(device, _)| *device == id.device) && self.turns.len() > 1;
        let is_cleared =
            self.clearing.is_some_and(|(device, until_ms)| device != id.device && now_ms < until_ms);
        let may_read = grant.delegation_ms > 0 || !(is_turn_of_others || is_cleared);
        let session = self.sessions.get_mut(&id).expect("it is there");
        let all_claimed = self.claims.values().any(|claim| claim.device != id.device && claim.everything);
        let unsettled = pending.scopes();
        let wanted: BTreeSet<Scope> = wish.scopes.iter().copied().collect();
        for scope in wanted {
            if session.scopes.contains_key(&scope) {
                grant.scopes.push(scope);
                continue;
            }
            let is_claimed = all_claimed
                || self.claimed.get(&scope).is_some_and(|devices| devices.iter().any(|by| *by != id.device));
            let is_unsettled = pending.everything || unsettled.contains(&scope);
            if !fresh || !may_read || is_claimed || is_unsettled || self.held >= SCOPES_IN_ALL_MAX {
                continue;
            }
            if session.scopes.is_empty() {
                session.reading_since_ms = now_ms;
            }
            session.scopes.insert(scope, Held::Firmly(session.next_age));
            session.ages.insert(session.next_age, scope);
            session.next_age += 1;
            self.holders.entry(scope).or_default().insert(id);
            self.held += 1;
            grant.scopes.push(scope);
        }
        let excess = session.ages.len().saturating_sub(SCOPES_MAX);
        if excess > 0 {
            // Those just granted are the youngest, so they stay; the client gives up the others when it hears of it.
            let oldest: Vec<Scope> = session.ages.values().take(excess).copied().collect();
            self.recalled |= session.recall(oldest, false, now_ms);
        }
        Some(grant)
    }

    /// What a session is to give up, if anything; it has given up everything up to number `acknowledged`.
    pub fn recall(&mut self, id: SessionId, epoch: u64, acknowledged: u64, now_ms: u64) -> Option<Recall> {
        self.sweep(now_ms);
        self.lapse(id, now_ms);
        let everything =
            |epoch, number| Recall { epoch, number, scopes: Vec::new(), everything: true, delegation: true };
        self.heard(id, epoch);
        let Some(session) = self.sessions.get_mut(&id) else { return Some(everything(0, 0)) };
        if session.epoch != epoch {
            return Some(everything(session.epoch, session.issued));
        }
        let later = session.outstanding.split_off(&acknowledged.saturating_add(1));
        let done = std::mem::replace(&mut session.outstanding, later);
        let is_late = |recall: &Outstanding| {
            !recall.delegation && now_ms.saturating_sub(recall.at_ms) > ACKNOWLEDGE_MS_MAX
        };
        let was_late = done.values().any(is_late);
        for recall in done.into_values() {
            self.freed = true;
            for scope in recall.scopes {
                if matches!(session.scopes.get(&scope), Some(Held::Recalled { .. })) {
                    session.scopes.remove(&scope);
                    release(&mut self.holders, &mut self.held, &scope, id);
                }
            }
            if recall.delegation {
                session.delegated_until_ms = 0;
                end_delegation(&mut self.delegate, &mut self.waited, id, self.next_claim);
            }
        }
        let outstanding = &session.outstanding;
        let scopes = outstanding.values().flat_map(|recall| recall.scopes.iter().copied()).collect();
        let delegation = outstanding.values().any(|recall| recall.delegation);
        let recall = (!outstanding.is_empty()).then_some(Recall {
            epoch,
            number: session.issued,
            scopes,
            everything: false,
            delegation,
        });
        if was_late {
            self.made_wait(id.device, now_ms);
        }
        recall
    }

    /// A session is over: it has given up everything.
    pub fn end(&mut self, id: SessionId) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.inherited -= usize::from(session.inherited);
        for scope in session.scopes.keys() {
            release(&mut self.holders, &mut self.held, scope, id);
        }
        end_delegation(&mut self.delegate, &mut self.waited, id, self.next_claim);
        self.freed = true;
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&mut self, now_ms: u64) -> bool {
        self.swept_ms = 0;
        self.sweep(now_ms);
        self.sessions
            .values()
            .all(|session| session.scopes.is_empty() && session.delegated_until_ms == 0 && !session.inherited)
    }

    /// A session that asks with its present epoch has given up what it held before.
    fn heard(&mut self, id: SessionId, epoch: u64) {
        if let Some(session) = self.sessions.get_mut(&id)
            && session.inherited
            && session.epoch == epoch
        {
            let expires_ms = session.expires_ms;
            self.end(id);
            self.sessions.insert(id, Session::new(epoch, expires_ms));
        }
    }

    /// Ends what earlier runs of a session's device held.
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

    /// Forgets a session whose time is over, or its delegation: what it held may have been changed since.
    fn lapse(&mut self, id: SessionId, now_ms: u64) {
        self.lapse_delegation(id, now_ms);
        let Some(session) = self.sessions.get(&id).filter(|session| session.expires_ms <= now_ms) else {
            return;
        };
        if !session.outstanding.is_empty() {
            self.made_wait(id.device, now_ms);
        }
        self.end(id);
    }

    fn lapse_delegation(&mut self, id: SessionId, now_ms: u64) {
        let is_over = |session: &&mut Session| {
            session.delegated_until_ms > 0 && session.delegated_until_ms <= now_ms && !session.inherited
        };
        let Some(session) = self.sessions.get_mut(&id).filter(is_over) else { return };
        session.delegated_until_ms = 0;
        let was_waited_for = session.outstanding.values().any(|recall| recall.delegation);
        end_delegation(&mut self.delegate, &mut self.waited, id, self.next_claim);
        self.freed = true;
        if was_waited_for {
            self.made_wait(id.device, now_ms);
        }
    }

    fn is_slow(&self, device: DeviceId, now_ms: u64) -> bool {
        self.slow.get(&device).is_some_and(|slow| now_ms < slow.until_ms)
    }

    /// A device let others wait for an acknowledgement: it does without leases for a while, and longer the more often
    /// that happens, so that nobody can hold up all changes.
    fn made_wait(&mut self, device: DeviceId, now_ms: u64) {
        let slow = self.slow.entry(device).or_insert(Slow { until_ms: 0, lasts_ms: 0 });
        let goes_on = now_ms.saturating_sub(slow.until_ms) < slow.lasts_ms;
        slow.lasts_ms = if goes_on { (slow.lasts_ms * 2).min(SLOW_MS_MAX) } else { SLOW_MS_MIN };
        slow.until_ms = now_ms + slow.lasts_ms;
    }

    fn recall_all(&mut self, id: SessionId, now_ms: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let all: Vec<Scope> = session.ages.values().copied().collect();
        self.recalled |= session.recall(all, session.has_delegation(now_ms), now_ms);
    }

    fn lose_turn(&mut self, device: DeviceId) {
        self.turns.retain(|(waiting, _)| *waiting != device);
    }

    /// Whether a session may have the file system for itself: it is its turn, what waited for the holder before it has been
    /// ordered, and nobody else holds anything. What others hold is recalled for it, once they have had it for a slice.
    fn may_have_all(&mut self, id: SessionId, pending: &Touched, now_ms: u64) -> bool {
        let is_over = |(device, at_ms): &(DeviceId, u64)| {
            *device != id.device && now_ms.saturating_sub(*at_ms) >= TURN_MS
        };
        while self.turns.front().is_some_and(is_over) {
            self.turns.pop_front();
        }
        let is_other = |other: &SessionId| other.device != id.device;
        let is_anothers = self.delegate.as_ref().is_some_and(is_other)
            || self.sessions.iter().any(|(other, session)| is_other(other) && session.inherited);
        let is_turn = self.turns.front().is_none_or(|(device, _)| *device == id.device);
        let others_waited = self.claims.range(..=self.waited).any(|(_, claim)| claim.device != id.device);
        if is_anothers || !is_turn || others_waited {
            return false;
        }
        let holds = |(other, session): &(&SessionId, &Session)| is_other(other) && !session.scopes.is_empty();
        let others: Vec<(SessionId, u64)> = self
            .sessions
            .iter()
            .filter(holds)
            .map(|(other, session)| (*other, session.reading_since_ms))
            .collect();
        if others.is_empty() && pending.is_empty() {
            return true;
        }
        match self.clearing {
            // Somebody has died, or sleeps.
            Some((by, until_ms)) if by == id.device && until_ms <= now_ms => {
                (self.clearing, self.clear_again_ms) = (None, now_ms + CLEAR_AGAIN_MS);
                self.turns.pop_front();
                return false;
            }
            Some((by, _)) if by == id.device => {}
            _ if now_ms < self.clear_again_ms => return false,
            _ => self.clearing = Some((id.device, now_ms + CLEARING_MS)),
        }
        for (other, since_ms) in &others {
            if now_ms >= since_ms + LOOK_MS {
                self.recall_all(*other, now_ms);
            }
        }
        false
    }

    /// Forgets what has run out.
    fn sweep(&mut self, now_ms: u64) {
        if now_ms < self.swept_ms.saturating_add(SWEEP_MS) && self.swept_ms > 0 {
            return;
        }
        self.swept_ms = now_ms.max(1);
        let is_over = |session: &Session| {
            session.expires_ms <= now_ms
                || (session.delegated_until_ms > 0 && session.delegated_until_ms <= now_ms)
        };
        let over: Vec<SessionId> =
            self.sessions.iter().filter(|(_, session)| is_over(session)).map(|(id, _)| *id).collect();
        for id in over {
            self.lapse(id, now_ms);
        }
        self.slow.retain(|_, slow| now_ms < slow.until_ms.saturating_add(slow.lasts_ms));
    }
}

/// Puts a device at the end of the queue for the delegation, or notes that it still wishes for it.
fn take_turn(turns: &mut VecDeque<(DeviceId, u64)>, device: DeviceId, now_ms: u64) {
    if let Some((_, at_ms)) = turns.iter_mut().find(|(waiting, _)| *waiting == device) {
        *at_ms = now_ms;
    } else if turns.len() < SESSIONS_MAX {
        turns.push_back((device, now_ms));
    }
}

/// The delegation is free: operations that waited for that are ordered before the next one is granted it.
fn end_delegation(delegate: &mut Option<SessionId>, waited: &mut ClaimId, id: SessionId, last_claim: u64) {
    if *delegate == Some(id) {
        (*delegate, *waited) = (None, ClaimId(last_claim));
    }
}

fn release(
    holders: &mut HashMap<Scope, BTreeSet<SessionId>>,
    held: &mut usize,
    scope: &Scope,
    id: SessionId,
) {
    let Some(sessions) = holders.get_mut(scope) else { return };
    if sessions.remove(&id) {
        *held -= 1;
    }
    if sessions.is_empty() {
        holders.remove(scope);
    }
}
