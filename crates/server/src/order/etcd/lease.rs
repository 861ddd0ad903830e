//! The lease that makes a server the active one, as far as this machine's clock can tell.

use super::{TERM, now_ms};
use crate::order::Standing;
use holdfast_etcd::{EtcdError, Kv, LeaseId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Part of a term that is not relied on: clocks of two machines do not run at quite the same pace.
const MARGIN_PERCENT: u64 = 10;

/// A lease.
pub(crate) struct Lease {
    id: LeaseId,
    /// Until when it certainly lasts.
    until_ms: AtomicU64,
    /// It has certainly ended.
    is_over: AtomicBool,
}

impl Lease {
    pub(crate) fn granted(kv: &dyn Kv) -> Result<Lease, EtcdError> {
        let asked_ms = now_ms();
        let id = kv.grant(TERM)?;
        Ok(Lease { id, until_ms: AtomicU64::new(until(asked_ms, TERM)), is_over: AtomicBool::new(false) })
    }

    pub(crate) fn id(&self) -> LeaseId {
        self.id
    }

    /// Keeps it alive; whether it still is.
    pub(crate) fn keep_alive(&self, kv: &dyn Kv) -> Result<bool, EtcdError> {
        // The term begins when etcd hears of it, so counting from now on is never too long.
        let asked_ms = now_ms();
        if self.is_over.load(Ordering::Acquire) {
            return Ok(false);
        }
        match kv.keep_alive(self.id)? {
            Some(term) => {
                self.until_ms.fetch_max(until(asked_ms, term), Ordering::AcqRel);
                Ok(true)
            }
            None => {
                self.end();
                Ok(false)
            }
        }
    }

    /// Relies on it no more.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn standing(&self) -> Standing {
        if self.is_over.load(Ordering::Acquire) {
            Standing::Lost
        } else if now_ms() < self.until_ms.load(Ordering::Acquire) {
            Standing::Active
        } else {
            Standing::Unsure
        }
    }
}

fn until(asked_ms: u64, term: Duration) -> u64 {
    asked_ms + term.as_millis() as u64 * (100 - MARGIN_PERCENT) / 100
}
