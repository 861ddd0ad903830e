//! The leases of a file system in memory.

use crate::notes::NotedSession;
use holdfast_content::DeviceId;
use holdfast_protocol::leases::{ClaimId, Footprint, LeaseTable};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::Notify;

/// The leases of one file system.
pub(super) struct Leases {
    table: Mutex<LeaseTable>,
    pub(super) recalled: Notify,
    pub(super) freed: Notify,
    /// The sessions that are durably noted as holders of leases.
    pub(super) noted: Mutex<BTreeSet<NotedSession>>,
    pub(super) noted_term_ms: u64,
}

impl Leases {
    pub fn new(
        term_ms: u64,
        first_epoch: u64,
        inherited: &[NotedSession],
        left_ms: u64,
        now_ms: u64,
    ) -> Leases {
        let mut table = LeaseTable::new(term_ms, first_epoch);
        for session in inherited {
            table.inherit(session.id(), session.exclusively, now_ms + left_ms);
        }
        Leases {
            table: Mutex::new(table),
            recalled: Notify::new(),
            freed: Notify::new(),
            noted: Mutex::default(),
            noted_term_ms: term_ms.max(left_ms),
        }
    }

    /// Runs `act` on the table, and wakes sessions whose leases were recalled and operations that waited for
    /// leases.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut LeaseTable) -> T) -> T {
        let mut table = self.table.lock();
        let result = act(&mut table);
        let (recalled, freed) = (table.take_recalled(), table.take_freed());
        drop(table);
        if recalled {
            self.recalled.notify_waiters();
        }
        if freed {
            self.freed.notify_waiters();
        }
        result
    }
}

/// A waiting operation's claim on what it changes. It ends when it is dropped.
pub(crate) struct Claim {
    leases: Arc<Leases>,
    id: ClaimId,
}

impl Claim {
    /// Claims what an operation of a device changes.
    pub(super) fn of(
        leases: &Arc<Leases>,
        table: &mut LeaseTable,
        device: DeviceId,
        touched: &Footprint,
        exclusively: bool,
    ) -> Claim {
        Claim { leases: leases.clone(), id: table.claim(device, touched, exclusively) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.leases.with(|table| table.end_claim(self.id));
    }
}
