//! Budgets: how many bytes one holder may have under way. Waiting for room is the back-pressure.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound on bytes, counted in KiB. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    semaphore: Arc<Semaphore>,
    total: u32,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        let total = kib(bytes);
        Budget { semaphore: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits until `bytes` fit. Something larger than the whole budget waits until it can have all of it, so
    /// nothing waits for ever.
    pub(crate) async fn take(&self, bytes: usize) -> Share {
        let permit = self.semaphore.clone().acquire_many_owned(kib(bytes).min(self.total)).await;
        Share(permit.expect("the semaphore is never closed"))
    }
}

/// Bytes taken from a [`Budget`]; given back on drop.
#[derive(Debug)]
pub(crate) struct Share(OwnedSemaphorePermit);

impl Share {
    /// Returns what exceeds `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.0.num_permits().saturating_sub(kib(bytes) as usize);
        drop(self.0.split(surplus));
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024))
        .unwrap_or(u32::MAX)
        .clamp(1, Semaphore::MAX_PERMITS.min(1 << 30) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: shares are given back, in part or whole, and an oversized request is clamped and does not wait
    /// for ever.
    #[test]
    fn shares_return() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let budget = Budget::new(10 << 10);
            let mut share = budget.take(usize::MAX).await;
            assert_eq!(budget.semaphore.available_permits(), 0);
            share.shrink_to(4 << 10);
            assert_eq!(budget.semaphore.available_permits(), 6);
            let other = budget.take(0).await;
            assert_eq!(budget.semaphore.available_permits(), 5);
            drop((share, other));
            assert_eq!(budget.semaphore.available_permits(), 10);
        });
    }
}
