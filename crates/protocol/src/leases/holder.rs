//! The client's leases: what it may read without asking the server.

use super::{LeaseGrant, Recall, Scope};
use holdfast_content::Handle;
use std::collections::BTreeSet;

/// The leases of one client. Times are milliseconds of a clock that also runs while the machine sleeps.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct LeaseHolder {
    epoch: u64,
    /// Number of the last recall that was carried out.
    handled: u64,
    /// Epoch and number that the server knows to have been carried out.
    told: (u64, u64),
    expires_ms: u64,
    scopes: BTreeSet<Scope>,
    /// Those of the scopes that are held exclusively, and whether the whole file system is.
    exclusive: BTreeSet<Scope>,
    has_delegation: bool,
    /// Until when exclusive leases count, by the holder's clock in milliseconds.
    exclusive_until_ms: u64,
    /// Grows whenever a lease is lost: what was read before may then be outdated.
    losses: u64,
}

/// Leases that a recall took away.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RecalledLeases {
    /// Scopes whose leases were recalled.
    pub scopes: Vec<Scope>,
    /// Whether all leases were lost.
    pub everything: bool,
    /// Whether the delegation was lost.
    pub delegation: bool,
    /// Whether any exclusive access was lost, the delegation included. What rests on it must be sent before
    /// the recall is acknowledged.
    pub exclusive: bool,
}

impl LeaseHolder {
    /// The session's epoch, for the next message; 0 if there is no session.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the last recall that was carried out.
    pub fn last_recall(&self) -> u64 {
        self.handled
    }

    /// Whether to ask the server for recalls: something is held, or the server has not yet heard that
    /// everything was given up.
    pub fn must_ask(&self, now_ms: u64) -> bool {
        self.epoch > 0 && (!self.is_empty(now_ms) || self.told != (self.epoch, self.handled))
    }

    /// The server has answered a question asked with this epoch and number.
    pub fn note_answer(&mut self, epoch: u64, acknowledged: u64) {
        self.told = (epoch, acknowledged);
    }

    /// Adopts a grant, once the client reads from the view of the grant's place in the order. `sent_ms`: when
    /// the request was sent. Returns whether there are new scopes.
    pub fn granted(&mut self, grant: &LeaseGrant, sent_ms: u64, now_ms: u64) -> bool {
        self.expire(now_ms);
        if grant.epoch < self.epoch {
            return false;
        }
        if grant.epoch > self.epoch {
            if !self.scopes.is_empty() || self.exclusive_until_ms > 0 {
                // The server has forgotten what this client holds. A recall must end that in order.
                return false;
            }
            self.epoch = grant.epoch;
            self.handled = grant.recalls;
        }
        if grant.term_ms == 0 || grant.recalls > self.handled {
            return false;
        }
        // Clocks may differ a little in speed.
        let ends_ms = |term_ms: u32| sent_ms + u64::from(term_ms) - u64::from(term_ms) / 32;
        if ends_ms(grant.term_ms) <= now_ms {
            return false;
        }
        self.expires_ms = self.expires_ms.max(ends_ms(grant.term_ms));
        if grant.recalls < self.handled {
            return false;
        }
        let before = self.scopes.len();
        self.scopes.extend(grant.scopes.iter().chain(&grant.exclusive).copied());
        if grant.exclusive_ms > 0 && ends_ms(grant.exclusive_ms) > now_ms {
            self.exclusive_until_ms = self.exclusive_until_ms.max(ends_ms(grant.exclusive_ms));
            self.has_delegation |= grant.delegation;
            self.exclusive.extend(grant.exclusive.iter().copied());
        }
        self.scopes.len() > before
    }

    /// Carries out a recall, which answers a question asked with epoch `asked`. It may be acknowledged once
    /// nothing rests on what it took away. `None`: the recall is not about this session.
    pub fn recalled(&mut self, asked: u64, recall: &Recall) -> Option<RecalledLeases> {
        if asked != self.epoch || (recall.epoch != self.epoch && !recall.everything) {
            return None;
        }
        if recall.everything {
            let dropped = self.drop_all();
            self.epoch = recall.epoch;
            self.handled = recall.number;
            return Some(dropped);
        }
        let delegation = recall.delegation && std::mem::take(&mut self.has_delegation);
        let mut exclusive = delegation;
        for scope in recall.scopes.iter().chain(&recall.exclusive) {
            exclusive |= self.exclusive.remove(scope);
        }
        if !self.has_delegation && self.exclusive.is_empty() {
            self.exclusive_until_ms = 0;
        }
        let scopes: Vec<Scope> =
            recall.scopes.iter().copied().filter(|scope| self.scopes.remove(scope)).collect();
        self.handled = self.handled.max(recall.number);
        self.losses += 1;
        Some(RecalledLeases { scopes, everything: false, delegation, exclusive })
    }

    /// Gives up everything unasked, because its basis is gone. The server learns that with the next question.
    pub fn drop_all(&mut self) -> RecalledLeases {
        let dropped = RecalledLeases {
            scopes: self.scopes.iter().copied().collect(),
            everything: true,
            delegation: self.has_delegation,
            exclusive: self.exclusive_until_ms > 0,
        };
        self.lose_all();
        dropped
    }

    /// Whether a file may be read from the newest accepted view.
    pub fn holds(&self, file: Handle, now_ms: u64) -> bool {
        now_ms < self.expires_ms
            && (self.scopes.contains(&Scope::Principal(file.principal))
                || self.scopes.contains(&Scope::File(file)))
    }

    /// Whether this client holds the delegation of the whole file system.
    pub fn has_delegation(&self, now_ms: u64) -> bool {
        self.has_delegation && self.exclusive_ms(now_ms) > 0
    }

    /// Whether this client holds a file exclusively.
    pub fn holds_exclusively(&self, file: Handle, now_ms: u64) -> bool {
        let has = |scope| self.exclusive.contains(&scope);
        self.exclusive_ms(now_ms) > 0
            && (self.has_delegation || has(Scope::Principal(file.principal)) || has(Scope::File(file)))
    }

    /// For how long exclusive leases last at least, in milliseconds; 0 if there are none.
    pub fn exclusive_ms(&self, now_ms: u64) -> u64 {
        self.exclusive_until_ms.saturating_sub(now_ms)
    }

    /// For how long the present leases last at least, in milliseconds.
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        self.expires_ms.saturating_sub(now_ms)
    }

    /// Whether no lease is held.
    pub fn is_empty(&self, now_ms: u64) -> bool {
        now_ms >= self.expires_ms || (self.scopes.is_empty() && self.exclusive_ms(now_ms) == 0)
    }

    /// A number that grows whenever a lease is lost.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Number of scopes held.
    pub fn count(&self) -> usize {
        self.scopes.len()
    }

    /// Forgets leases that have run out.
    pub fn expire(&mut self, now_ms: u64) {
        if now_ms >= self.exclusive_until_ms {
            self.lose_exclusives();
        }
        if now_ms >= self.expires_ms && (!self.scopes.is_empty() || self.exclusive_until_ms > 0) {
            self.lose_all();
        }
    }

    fn lose_exclusives(&mut self) {
        self.exclusive.clear();
        self.has_delegation = false;
        self.exclusive_until_ms = 0;
    }

    fn lose_all(&mut self) {
        self.lose_exclusives();
        self.scopes.clear();
        self.expires_ms = 0;
        self.losses += 1;
    }
}
