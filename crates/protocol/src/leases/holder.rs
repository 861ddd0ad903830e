//! The client's leases: what it may read without asking.

use super::{LeaseGrant, Recall, Scope};
use holdfast_content::Handle;
use std::collections::HashSet;

/// What a client holds. Times are milliseconds of a clock that goes on while the machine sleeps.
#[derive(Default)]
pub struct LeaseHolder {
    epoch: u64,
    /// Number of the last recall that was carried out.
    handled: u64,
    /// Epoch and number that the server knows to have been carried out.
    told: (u64, u64),
    expires_ms: u64,
    scopes: HashSet<Scope>,
    /// Until when this client has the file system for itself; 0: it has not.
    delegated_until_ms: u64,
    /// Grows whenever anything is lost: what was read before may be outdated after.
    losses: u64,
}

/// What a recall took away.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Dropped {
    /// Scopes.
    pub scopes: Vec<Scope>,
    /// Whether all were lost.
    pub everything: bool,
    /// Whether the delegation was lost: what rests on it is to be sent before the recall is acknowledged.
    pub delegation: bool,
}

impl LeaseHolder {
    /// Of the session, for the next message; 0 if there is none.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the last recall that was carried out.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// Whether the server must be asked for recalls: something is held, or it does not know yet what was given up.
    pub fn must_ask(&self, now_ms: u64) -> bool {
        self.epoch > 0 && (!self.is_empty(now_ms) || self.told != (self.epoch, self.handled))
    }

    /// The server has answered a question asked with this epoch and number.
    pub fn told(&mut self, epoch: u64, acknowledged: u64) {
        self.told = (epoch, acknowledged);
    }

    /// Takes up a grant, once the view of its place in the order is the one that is read from. `sent_ms`: when the
    /// request was sent. Whether there are new scopes.
    pub fn granted(&mut self, grant: &LeaseGrant, sent_ms: u64, now_ms: u64) -> bool {
        self.expire(now_ms);
        if grant.epoch < self.epoch {
            return false;
        }
        if grant.epoch > self.epoch {
            if !self.scopes.is_empty() || self.delegated_until_ms > 0 {
                // The server has forgotten what is held. That must be given up in order, by a recall.
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
        self.scopes.extend(grant.scopes.iter().copied());
        if grant.delegation_ms > 0 && ends_ms(grant.delegation_ms) > now_ms {
            self.delegated_until_ms = self.delegated_until_ms.max(ends_ms(grant.delegation_ms));
        }
        self.scopes.len() > before
    }

    /// Carries out a recall, the answer to a question asked with epoch `asked`. It may be acknowledged when nothing rests
    /// on what it took away any more. `None`: it is not about this session.
    pub fn recalled(&mut self, asked: u64, recall: &Recall) -> Option<Dropped> {
        if asked != self.epoch || (recall.epoch != self.epoch && !recall.everything) {
            return None;
        }
        let dropped = if recall.everything {
            let dropped = Dropped {
                scopes: self.scopes.iter().copied().collect(),
                everything: true,
                delegation: self.delegated_until_ms > 0,
            };
            self.lose_all();
            self.epoch = recall.epoch;
            self.handled = recall.number;
            dropped
        } else {
            let scopes = recall.scopes.iter().copied().filter(|scope| self.scopes.remove(scope)).collect();
            let delegation = recall.delegation && std::mem::take(&mut self.delegated_until_ms) > 0;
            self.handled = self.handled.max(recall.number);
            Dropped { scopes, everything: false, delegation }
        };
        self.losses += 1;
        Some(dropped)
    }

    /// Gives up everything by itself: what it rests on is no more. The server is told with the next question.
    pub fn lose(&mut self) -> Dropped {
        let scopes = self.scopes.iter().copied().collect();
        let dropped = Dropped { scopes, everything: true, delegation: self.delegated_until_ms > 0 };
        self.lose_all();
        dropped
    }

    /// Whether a file may be read from the newest accepted view.
    pub fn holds(&self, file: Handle, now_ms: u64) -> bool {
        now_ms < self.expires_ms
            && (self.scopes.contains(&Scope::Principal(file.principal))
                || self.scopes.contains(&Scope::File(file)))
    }

    /// Whether this client has the file system for itself.
    pub fn has_delegation(&self, now_ms: u64) -> bool {
        self.delegated_ms(now_ms) > 0
    }

    /// For how long this client has the file system for itself, in milliseconds.
    pub fn delegated_ms(&self, now_ms: u64) -> u64 {
        self.delegated_until_ms.saturating_sub(now_ms)
    }

    /// How long what is held is held, in milliseconds.
    pub fn left_ms(&self, now_ms: u64) -> u64 {
        self.expires_ms.saturating_sub(now_ms)
    }

    /// Whether anything is held.
    pub fn is_empty(&self, now_ms: u64) -> bool {
        now_ms >= self.expires_ms || (self.scopes.is_empty() && !self.has_delegation(now_ms))
    }

    /// Grows whenever anything is lost.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Number of scopes held.
    pub fn count(&self) -> usize {
        self.scopes.len()
    }

    /// Forgets what has run out.
    pub fn expire(&mut self, now_ms: u64) {
        if now_ms >= self.delegated_until_ms {
            self.delegated_until_ms = 0;
        }
        if now_ms >= self.expires_ms && (!self.scopes.is_empty() || self.delegated_until_ms > 0) {
            self.lose_all();
        }
    }

    fn lose_all(&mut self) {
        self.scopes.clear();
        self.delegated_until_ms = 0;
        self.expires_ms = 0;
        self.losses += 1;
    }
}
