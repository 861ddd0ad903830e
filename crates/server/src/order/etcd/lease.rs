//! The lease that makes a server the active one, as far as this machine's clock can tell.

use super::namespace::{TERM, now_ms};
use crate::order::ActiveStatus;
use holdfast_etcd::{EtcdError, Kv, LeaseId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// This percentage of a term is not relied on, because the clocks of two machines run at slightly different
/// rates.
const MARGIN_PERCENT: u64 = 10;

/// A lease in etcd that this process renews.
pub(crate) struct Lease {
    id: LeaseId,
    /// Until when the lease certainly lasts, in milliseconds of the monotonic clock.
    until_ms: AtomicU64,
    /// Whether the lease has certainly ended.
    is_over: AtomicBool,
}

impl Lease {
    pub(crate) fn granted(kv: &dyn Kv) -> Result<Lease, EtcdError> {
        let requested_ms = now_ms();
        let id = kv.grant(TERM)?;
        Ok(Lease { id, until_ms: AtomicU64::new(until(requested_ms, TERM)), is_over: AtomicBool::new(false) })
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    /// Renews the lease. Returns false if it has ended.
    pub(crate) fn keep_alive(&self, kv: &dyn Kv) -> Result<bool, EtcdError> {
        // The term begins when etcd receives the request, which is not before now.
        let requested_ms = now_ms();
        if self.is_over.load(Ordering::Acquire) {
            return Ok(false);
        }
        match kv.keep_alive(self.id)? {
            Some(term) => {
                self.until_ms.fetch_max(until(requested_ms, term), Ordering::AcqRel);
                Ok(true)
            }
            None => {
                self.end();
                Ok(false)
            }
        }
    }

    /// Stops relying on the lease.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn active_status(&self) -> ActiveStatus {
        if self.is_over.load(Ordering::Acquire) {
            ActiveStatus::Lost
        } else if now_ms() < self.until_ms.load(Ordering::Acquire) {
            ActiveStatus::Active
        } else {
            ActiveStatus::Unsure
        }
    }
}

fn until(requested_ms: u64, term: Duration) -> u64 {
    requested_ms + term.as_millis() as u64 * (100 - MARGIN_PERCENT) / 100
}
