//! A server without sockets: its settings, and a clock that the test sets.

use holdfast_server::{Clock, CoreSettings, CreatePolicy, ParcelSettings};
use holdfast_store::StoreConfig;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that stands at so many milliseconds until it is set.
pub struct TestClock(pub AtomicU64);

impl Clock for TestClock {
    fn wall_ns(&self) -> i64 {
        self.monotonic_ms() as i64 * 1_000_000
    }

    fn monotonic_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Settings in which no deleted block is retained, and checkpoints are frequent.
pub fn settings() -> CoreSettings {
    CoreSettings {
        create: CreatePolicy::Local,
        abort_after: Duration::from_secs(10),
        checkpoint_records: 8,
        locks_note: None,
        parcels: ParcelSettings::default(),
        lease_term: Duration::ZERO,
        leases_note: None,
        history: "0".parse().expect("a rule"),
        user_quota: None,
        is_restored: false,
        restored_note: None,
        store: StoreConfig { keep_deleted: Duration::ZERO, segment_bytes: 1 << 20, ..StoreConfig::default() },
    }
}
