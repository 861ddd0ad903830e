//! Which leases to wish for: whole users and groups at first, single files where others keep changing something.

use holdfast_content::{Handle, PrincipalId};
use holdfast_protocol::leases::{Dropped, Scope, WISHES_MAX};
use std::collections::{BTreeSet, HashMap};

/// Shortest time for which single files are wished for after a recall, in milliseconds.
const FINE_MS_MIN: u64 = 60_000;
/// Longest.
const FINE_MS_MAX: u64 = 600_000;

/// For how long single files are wished for.
struct Fine {
    until_ms: u64,
    lasts_ms: u64,
}

/// What was looked at without a lease.
#[derive(Default)]
pub(super) struct Wishes {
    wanted: BTreeSet<Scope>,
    fine: HashMap<PrincipalId, Fine>,
}

impl Wishes {
    /// A file is read without a lease: the next operation is to bring one. Of those that nobody has come to ask for,
    /// one message's worth is remembered.
    pub fn want(&mut self, file: Handle, now_ms: u64) {
        let is_fine = self.fine.get(&file.principal).is_some_and(|fine| now_ms < fine.until_ms);
        if self.wanted.len() < WISHES_MAX {
            self.wanted.insert(if is_fine { Scope::File(file) } else { Scope::Principal(file.principal) });
        }
    }

    /// What to wish for with an operation.
    pub fn take(&mut self) -> Vec<Scope> {
        std::mem::take(&mut self.wanted).into_iter().collect()
    }

    /// Something was recalled. A server that ends, or forgot, takes all at once; that says nothing of others' changes.
    pub fn recalled(&mut self, dropped: &Dropped, now_ms: u64) {
        if dropped.everything {
            return;
        }
        for scope in &dropped.scopes {
            let Scope::Principal(principal) = scope else { continue };
            let fine = self.fine.entry(*principal).or_insert(Fine { until_ms: 0, lasts_ms: 0 });
            let goes_on = now_ms.saturating_sub(fine.until_ms) < fine.lasts_ms;
            fine.lasts_ms = if goes_on { (fine.lasts_ms * 2).min(FINE_MS_MAX) } else { FINE_MS_MIN };
            fine.until_ms = now_ms + fine.lasts_ms;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::UserId;

    fn file(number: u64) -> Handle {
        Handle { principal: PrincipalId::User(UserId(1)), number }
    }

    fn lost(scope: Scope) -> Dropped {
        Dropped { scopes: vec![scope], ..Dropped::default() }
    }

    /// Proves: a whole user is wished for until that is recalled, then single files for a minute, and for longer each
    /// time that others go on; what the server takes back by itself changes nothing; what is remembered is bounded.
    #[test]
    fn coarse_then_fine() {
        let (mut wishes, coarse) = (Wishes::default(), Scope::Principal(file(1).principal));
        let at = |wishes: &mut Wishes, now_ms| {
            wishes.want(file(1), now_ms);
            wishes.want(file(2), now_ms);
            wishes.take()
        };
        let fine = vec![Scope::File(file(1)), Scope::File(file(2))];
        assert_eq!(at(&mut wishes, 0), [coarse]);
        wishes.recalled(&Dropped { everything: true, ..lost(coarse) }, 0);
        assert_eq!(at(&mut wishes, 0), [coarse]);
        wishes.recalled(&lost(coarse), 0);
        assert_eq!(at(&mut wishes, 59_999), fine);
        assert_eq!(at(&mut wishes, 60_000), [coarse]);
        wishes.recalled(&lost(coarse), 60_000);
        assert_eq!(at(&mut wishes, 179_999), fine, "twice as long");
        assert_eq!(at(&mut wishes, 180_000), [coarse]);
        wishes.recalled(&lost(coarse), 1_000_000);
        assert_eq!(at(&mut wishes, 1_060_000), [coarse], "it was quiet for long");
        wishes.recalled(&lost(coarse), 1_060_000);
        (0..10_000).for_each(|number| wishes.want(file(number), 1_060_000));
        assert_eq!(wishes.take().len(), WISHES_MAX);
        assert_eq!(wishes.take(), []);
    }
}
