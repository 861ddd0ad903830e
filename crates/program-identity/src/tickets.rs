//! The tickets of a mount. Each says that one process, identified while it waited in its open of one inode,
//! may now be judged by that inode's rules. Pure: the clock is an argument.
//!
//! Invariants: a ticket is good for one open, of the inode and by the process (number and start) that it
//! names. It lives for [`LIFETIME_MS`]; all end when the helper does; there are at most [`TICKETS_MAX`]. All
//! tickets of one process agree with the newest information about it: the helper numbers opens in the order
//! in which the kernel reports them, so a later ticket, if it differs, ends the earlier ones, and an earlier
//! one that comes late is ignored. Attacks answered: a ticket used twice, by another process, for another
//! file, after the helper died, or after its process became another program. (In the last case the open of
//! the waiting thread ends, but not the helper's examination of the process, so such tickets do come. The
//! process's next open has a later number, and its ticket is here before that open.)

use crate::identity::Identity;
use std::collections::{HashMap, VecDeque};

/// How long a ticket may wait for its open. Usually the open follows at once.
pub const LIFETIME_MS: u64 = 10_000;
/// Most tickets that wait to be used.
pub const TICKETS_MAX: usize = 1024;
/// Most processes whose newest ticket is remembered. The next constant is for how long: longer than the
/// helper may take.
const PROCESSES_MAX: usize = 4096;
const REMEMBERED_MS: u64 = 60_000;

/// The result of the helper for one open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The helper's number for it: opens are numbered as the kernel reports them.
    pub id: u64,
    /// The inode that is opened.
    pub inode: u64,
    /// The process that opens it.
    pub process: u32,
    /// The process's identity, or why it could not be identified.
    pub found: Result<Identity, String>,
}

/// Tickets that wait to be used.
#[derive(Default)]
pub struct Tickets {
    waiting: VecDeque<(u64, Ticket)>,
    /// For each process its newest ticket, and when it arrived.
    newest: HashMap<u32, (u64, Ticket)>,
}

impl Tickets {
    /// Adds a ticket; the oldest is dropped when there are too many.
    pub fn offer(&mut self, now_ms: u64, ticket: Ticket) {
        self.expire(now_ms);
        let newest = self.newest.get(&ticket.process).map(|(_, newest)| newest);
        if let Some(newest) = newest
            && newest.found != ticket.found
        {
            if newest.id > ticket.id {
                return;
            }
            self.waiting.retain(|(_, other)| other.process != ticket.process);
        }
        if self.newest.len() >= PROCESSES_MAX && !self.newest.contains_key(&ticket.process) {
            self.newest.retain(|_, (at, _)| now_ms.saturating_sub(*at) <= REMEMBERED_MS);
            if self.newest.len() >= PROCESSES_MAX {
                // Nothing is forgotten early: an open without a ticket is refused.
                return;
            }
        }
        let entry = self.newest.entry(ticket.process).or_insert_with(|| (now_ms, ticket.clone()));
        if entry.1.id <= ticket.id {
            *entry = (now_ms, ticket.clone());
        }
        if self.waiting.len() >= TICKETS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back((now_ms, ticket));
    }

    /// Takes the ticket for an open by this process, which started at `started`; it is then used up.
    pub fn take(
        &mut self,
        now_ms: u64,
        inode: u64,
        process: u32,
        started: u64,
    ) -> Option<Result<Identity, String>> {
        self.expire(now_ms);
        let fits = |ticket: &Ticket| {
            let began = ticket.found.as_ref().map_or(started, |identity| identity.started);
            ticket.inode == inode && ticket.process == process && began == started
        };
        let at = self.waiting.iter().position(|(_, ticket)| fits(ticket))?;
        self.waiting.remove(at).map(|(_, ticket)| ticket.found)
    }

    /// Removes a ticket whose open will not come.
    pub fn revoke(&mut self, id: u64) {
        self.waiting.retain(|(_, ticket)| ticket.id != id);
    }

    /// Removes all tickets, because the helper is gone and its information is not valid any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.newest.clear();
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

    /// A ticket admits one open, of one inode, by one process with one start time, for a while, as long as
    /// the helper lives.
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

    /// A ticket for a later open replaces earlier ones of the process, for any file, even if it arrives
    /// before them. Other processes are not affected.
    #[test]
    fn a_process_is_one_program() {
        let told = |id, inode, byte| {
            let identity = Identity { process: 100, started: 5, ..Identity::plain(Digest([byte; 32]), "/x") };
            Ticket { id, inode, process: 100, found: Ok(identity) }
        };
        let program =
            |found: Option<Result<Identity, String>>| found.map(|found| found.map(|of| of.digest.0[0]));
        for inode in [10, 11] {
            let mut tickets = Tickets::default();
            tickets.offer(0, told(1, inode, 1));
            tickets.offer(0, told(2, 10, 2));
            tickets.offer(0, ticket(3, 10, 101, 5));
            assert_eq!(program(tickets.take(0, 10, 100, 5)), Some(Ok(2)));
            assert_eq!(program(tickets.take(0, inode, 100, 5)), None);
            // The ticket of the first open arrives late, when that of the second is used up.
            tickets.offer(0, told(1, inode, 1));
            assert_eq!(program(tickets.take(0, inode, 100, 5)), None);
            assert!(tickets.take(0, 10, 101, 5).is_some());
        }
        // Threads of one program do not disturb each other.
        let mut tickets = Tickets::default();
        for id in [2, 1, 3] {
            tickets.offer(0, told(id, 10, 1));
        }
        assert!((0..3).all(|_| tickets.take(0, 10, 100, 5).is_some()));
        // A ticket of a process that could not be identified counts like any other.
        tickets.offer(0, told(4, 10, 1));
        tickets.offer(0, Ticket { id: 5, inode: 10, process: 100, found: Err("no".into()) });
        assert_eq!(tickets.take(0, 10, 100, 5), Some(Err("no".into())));
        assert_eq!(tickets.take(0, 10, 100, 5), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Offer(u8, u8),
        Take(u8, u8),
        Pass(u16),
    }

    proptest! {
        /// Compared with a list of counts: an open passes exactly when there is an unused, young ticket for
        /// it.
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

    /// However many tickets are added, their number stays bounded.
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
