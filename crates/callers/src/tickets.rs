//! The tickets of a mount: each says that one process, identified while it waits in its open of one inode, may now be
//! judged by that inode's rules. Pure: the clock is an argument.
//!
//! Invariants: a ticket serves one open; it serves only the inode and the process (number and start) that it names; it
//! lives for [`LIFETIME_MS`]; all go when the helper does; there are at most [`TICKETS_MAX`]. Tickets of one process that
//! tell different things are worth nothing, none of them: a process whose thread waited in an open may have become
//! another program meanwhile, which ends that open but not the helper's look at it. The attacks answered: a ticket used
//! twice, by another process, for another file, after its process became another program, or after the helper died.

use crate::identity::Identity;
use std::collections::VecDeque;

/// How long a ticket may wait for its open, which follows at once.
pub const LIFETIME_MS: u64 = 10_000;
/// Most tickets that wait.
pub const TICKETS_MAX: usize = 1024;

/// What the helper found out about an open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The helper's number for it.
    pub id: u64,
    /// Inode that is opened.
    pub inode: u64,
    /// The process.
    pub process: u32,
    /// Who it is, or why that cannot be told.
    pub found: Result<Identity, String>,
}

/// The tickets that wait.
#[derive(Default)]
pub struct Tickets {
    waiting: VecDeque<(u64, Ticket)>,
}

impl Tickets {
    /// Takes a ticket in; the oldest goes when there are too many.
    pub fn offer(&mut self, now_ms: u64, ticket: Ticket) {
        self.expire(now_ms);
        if self.waiting.len() >= TICKETS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((now_ms, ticket));
    }

    /// The ticket for an open by this process, which began at `started`; it is used up.
    pub fn take(
        &mut self,
        now_ms: u64,
        inode: u64,
        process: u32,
        started: u64,
    ) -> Option<Result<Identity, String>> {
        self.expire(now_ms);
        let mut of_process = self.waiting.iter().filter(|(_, ticket)| ticket.process == process);
        let first = of_process.next().map(|(_, ticket)| &ticket.found)?;
        if of_process.any(|(_, ticket)| ticket.found != *first) {
            self.waiting.retain(|(_, ticket)| ticket.process != process);
            return None;
        }
        let fits = |ticket: &Ticket| {
            let began = ticket.found.as_ref().map_or(started, |identity| identity.started);
            ticket.inode == inode && ticket.process == process && began == started
        };
        let at = self.waiting.iter().position(|(_, ticket)| fits(ticket))?;
        self.waiting.remove(at).map(|(_, ticket)| ticket.found)
    }

    /// The open of this ticket will not come.
    pub fn revoke(&mut self, id: u64) {
        self.waiting.retain(|(_, ticket)| ticket.id != id);
    }

    /// The helper is gone, and its word with it.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    fn expire(&mut self, now_ms: u64) {
        while self.waiting.front().is_some_and(|(at, _)| now_ms.saturating_sub(*at) > LIFETIME_MS) {
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::Digest;
    use proptest::prelude::*;

    fn ticket(id: u64, inode: u64, process: u32, started: u64) -> Ticket {
        let identity = Identity { process, started, ..Identity::plain(Digest::ZERO, "/x") };
        Ticket { id, inode, process, found: Ok(identity) }
    }

    /// One open, of one inode, by one process with one beginning, for a while, while the helper lives.
    #[test]
    fn a_ticket_serves_once() {
        let mut tickets = Tickets::default();
        tickets.offer(0, ticket(1, 10, 100, 5));
        assert!(tickets.take(0, 11, 100, 5).is_none(), "another inode");
        assert!(tickets.take(0, 10, 101, 5).is_none(), "another process");
        assert!(tickets.take(0, 10, 100, 6).is_none(), "the number was used again");
        assert!(tickets.take(0, 10, 100, 5).is_some());
        assert!(tickets.take(0, 10, 100, 5).is_none(), "used up");
        tickets.offer(0, ticket(2, 10, 100, 5));
        assert!(tickets.take(LIFETIME_MS + 1, 10, 100, 5).is_none(), "too late");
        tickets.offer(0, ticket(3, 10, 100, 5));
        tickets.revoke(3);
        assert!(tickets.take(0, 10, 100, 5).is_none(), "revoked");
        tickets.offer(0, ticket(4, 10, 100, 5));
        tickets.clear();
        assert!(tickets.take(0, 10, 100, 5).is_none(), "the helper is gone");
    }

    /// A process that became another program between two looks at it is believed neither to be the one nor the other,
    /// in whatever order the two were told, and whatever file they are of.
    #[test]
    fn a_process_is_one_program() {
        for (first, inode) in [(1, 10), (2, 10), (1, 11), (2, 11)] {
            let mut tickets = Tickets::default();
            let identity =
                |byte| Identity { process: 100, started: 5, ..Identity::plain(Digest([byte; 32]), "/x") };
            tickets.offer(0, Ticket { id: 1, inode, process: 100, found: Ok(identity(first)) });
            tickets.offer(0, Ticket { id: 2, inode: 10, process: 100, found: Ok(identity(3 - first)) });
            tickets.offer(0, ticket(3, 10, 101, 5));
            assert!(tickets.take(0, 10, 100, 5).is_none());
            assert!(tickets.take(0, inode, 100, 5).is_none());
            assert!(tickets.take(0, 10, 101, 5).is_some(), "another process is not concerned");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Offer(u8, u8),
        Take(u8, u8),
        Pass(u16),
    }

    proptest! {
        /// Against a list of counts: an open passes exactly when an unused, young ticket for it is there.
        #[test]
        fn as_a_list_would(steps in proptest::collection::vec(prop_oneof![
            (0u8..3, 0u8..3).prop_map(|(inode, process)| Step::Offer(inode, process)),
            (0u8..3, 0u8..3).prop_map(|(inode, process)| Step::Take(inode, process)),
            (0u16..9000).prop_map(Step::Pass),
        ], 0..200)) {
            let (mut tickets, mut now, mut model) = (Tickets::default(), 0u64, Vec::new());
            for (id, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Offer(inode, process) => {
                        tickets.offer(now, ticket(id as u64, u64::from(inode), u32::from(process), 0));
                        model.push((now, inode, process));
                    }
                    Step::Take(inode, process) => {
                        model.retain(|(at, ..)| now - at <= LIFETIME_MS);
                        let at = model.iter().position(|entry| (entry.1, entry.2) == (inode, process));
                        let expected = at.map(|at| model.remove(at)).is_some();
                        let found = tickets.take(now, u64::from(inode), u32::from(process), 0).is_some();
                        prop_assert_eq!(found, expected);
                    }
                    Step::Pass(ms) => now += u64::from(ms),
                }
            }
        }
    }

    /// However many are offered, few are kept.
    #[test]
    fn bounded() {
        let mut tickets = Tickets::default();
        for id in 0..5000 {
            tickets.offer(0, ticket(id, id, 1, 0));
        }
        assert_eq!(tickets.waiting.len(), TICKETS_MAX);
        assert!(tickets.take(0, 4999, 1, 0).is_some());
    }
}
