//! Accounts of the traffic that each file caused, and of bytes that did not have to be transferred. For
//! display only.
//!
//! Traffic is booked to the file for which the calling thread works ([`on_behalf_of`]). The table of files is
//! bounded: when it is full, the smallest entries are joined, so that the sum stays right.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Most files with an account of their own.
const FILES_MAX: usize = 512;
/// Stands for traffic that no file caused: directories and tables.
pub const NO_FILE: u64 = 0;
/// Stands for blocks fetched for a pin.
pub const PINNING: u64 = u64::MAX;

thread_local! {
    static BEHALF: Cell<u64> = const { Cell::new(NO_FILE) };
}

/// While it lives, this thread's traffic is booked to a file.
pub struct FileScope(u64);

/// Books this thread's traffic to the file with inode number `ino`, until the result is dropped.
pub fn on_behalf_of(ino: u64) -> FileScope {
    FileScope(BEHALF.replace(ino))
}

/// The file to which this thread's traffic is booked.
pub fn current_scope() -> u64 {
    BEHALF.get()
}

impl Drop for FileScope {
    fn drop(&mut self) {
        BEHALF.set(self.0);
    }
}

/// Traffic that one file caused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes of blocks received from the server, as transferred.
    pub received: u64,
    /// Bytes of blocks sent to the server, as transferred.
    pub sent: u64,
    /// Bytes that programs read.
    pub read: u64,
    /// Bytes that programs wrote.
    pub written: u64,
}

impl Traffic {
    fn wire(&self) -> u64 {
        self.received + self.sent
    }

    fn add(&mut self, other: &Traffic) {
        self.received += other.received;
        self.sent += other.sent;
        self.read += other.read;
        self.written += other.written;
    }
}

/// Bytes that did not have to be transferred, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Savings {
    /// Bytes of blocks found in memory.
    pub memory: u64,
    /// Bytes of blocks found in the persistent cache.
    pub disk: u64,
    /// Bytes of blocks not sent because the server had them.
    pub known: u64,
    /// Bytes saved in receiving by compression against older versions.
    pub delta_received: u64,
    /// Bytes saved in sending by compression against older versions.
    pub delta_sent: u64,
    /// Bytes saved in receiving by plain compression.
    pub compression_received: u64,
    /// Bytes saved in sending by plain compression.
    pub compression_sent: u64,
}

/// All counters of one store.
#[derive(Default)]
pub struct Account {
    memory: AtomicU64,
    disk: AtomicU64,
    compression_received: AtomicU64,
    compression_sent: AtomicU64,
    files: Mutex<Files>,
    pace: Pace,
}

#[derive(Default)]
struct Files {
    by_ino: HashMap<u64, Traffic>,
    /// Traffic of files whose own entries were joined to make room.
    others: Traffic,
}

impl Account {
    /// Notes that a block was found in memory.
    pub fn in_memory(&self, bytes: usize) {
        self.memory.fetch_add(bytes as u64, Relaxed);
    }

    /// Notes that a block was found in the persistent cache.
    pub fn on_disk(&self, bytes: usize) {
        self.disk.fetch_add(bytes as u64, Relaxed);
    }

    /// Notes a block of `plain` bytes that was received as `travelled` bytes on behalf of a file.
    pub fn received(&self, ino: u64, travelled: usize, plain: usize) {
        self.compression_received.fetch_add(plain.saturating_sub(travelled) as u64, Relaxed);
        self.add_traffic(ino, &Traffic { received: travelled as u64, ..Traffic::default() });
    }

    /// Notes a block of `plain` bytes that was sent as `travelled` bytes on behalf of a file.
    pub fn sent(&self, ino: u64, travelled: usize, plain: usize) {
        self.compression_sent.fetch_add(plain.saturating_sub(travelled) as u64, Relaxed);
        self.add_traffic(ino, &Traffic { sent: travelled as u64, ..Traffic::default() });
    }

    /// Notes that a program read bytes of a file.
    pub fn read(&self, ino: u64, bytes: usize) {
        self.add_traffic(ino, &Traffic { read: bytes as u64, ..Traffic::default() });
    }

    /// Notes that a program wrote bytes of a file.
    pub fn written(&self, ino: u64, bytes: usize) {
        self.add_traffic(ino, &Traffic { written: bytes as u64, ..Traffic::default() });
    }

    fn add_traffic(&self, ino: u64, traffic: &Traffic) {
        let mut files = self.files.lock();
        let Files { by_ino, others } = &mut *files;
        if by_ino.len() >= FILES_MAX && !by_ino.contains_key(&ino) {
            let mut all: Vec<(u64, u64)> =
                by_ino.iter().map(|(ino, traffic)| (traffic.wire(), *ino)).collect();
            all.sort_unstable();
            for (_, ino) in all.iter().filter(|(_, ino)| *ino != NO_FILE).take(FILES_MAX / 2) {
                if let Some(joined) = by_ino.remove(ino) {
                    others.add(&joined);
                }
            }
        }
        by_ino.entry(ino).or_default().add(traffic);
    }

    /// The savings. `known`: bytes that the server had; `deltas`: bytes saved in receiving and sending by
    /// older versions, which are included in compression here.
    pub fn means(&self, known: u64, deltas: (u64, u64)) -> Savings {
        let (delta_received, delta_sent) = deltas;
        Savings {
            memory: self.memory.load(Relaxed),
            disk: self.disk.load(Relaxed),
            known,
            delta_received,
            delta_sent,
            compression_received: self.compression_received.load(Relaxed).saturating_sub(delta_received),
            compression_sent: self.compression_sent.load(Relaxed).saturating_sub(delta_sent),
        }
    }

    /// The files that caused most traffic, the largest first, by inode number (0: directories and tables);
    /// and the sum of all others.
    pub fn top(&self, count: usize) -> (Vec<(u64, Traffic)>, Traffic) {
        let files = self.files.lock();
        let mut all: Vec<(u64, Traffic)> =
            files.by_ino.iter().map(|(ino, traffic)| (*ino, *traffic)).collect();
        all.sort_unstable_by_key(|(ino, traffic)| {
            (std::cmp::Reverse((traffic.wire(), traffic.read + traffic.written)), *ino)
        });
        let mut others = files.others;
        all.drain(count.min(all.len())..).for_each(|(_, traffic)| others.add(&traffic));
        (all, others)
    }

    /// The measured pace of the link.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }
}

/// The link's speed, measured from answers to requests for blocks: seconds of a round trip, bytes a second.
#[derive(Default)]
pub struct Pace(Mutex<Option<(f64, f64)>>);

/// Weight of earlier measurements in the average.
const INERTIA: f64 = 0.75;
/// An answer of fewer bytes measures the round trip, a longer one the rate.
const SMALL_BYTES: usize = 16 << 10;
/// Read-ahead covers two round trips and this many seconds.
const AHEAD_SECONDS: f64 = 0.25;
/// Bounds of read-ahead in bytes.
const AHEAD_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=16 << 20;
/// Read-ahead in bytes until something was measured.
const AHEAD_BYTES_FIRST: u64 = 1 << 20;

impl Pace {
    /// Notes how long an answer of so many bytes took.
    pub fn note_transfer(&self, bytes: usize, took: Duration) {
        let took = took.as_secs_f64().max(1e-6);
        let mut known = self.0.lock();
        let (trip, rate) = known.unwrap_or((took, bytes as f64 / took));
        *known = Some(match bytes < SMALL_BYTES {
            true => (INERTIA * trip + (1.0 - INERTIA) * took, rate),
            false => {
                let now = bytes as f64 / (took - trip.min(took / 2.0));
                (trip.min(took), INERTIA * rate.max(1.0) + (1.0 - INERTIA) * now)
            }
        });
    }

    /// How many bytes should be under way ahead of a sequential reader.
    pub fn ahead_bytes(&self) -> u64 {
        let Some((trip, rate)) = *self.0.lock() else { return AHEAD_BYTES_FIRST };
        // A conversion of floating point numbers saturates.
        ((rate * (2.0 * trip + AHEAD_SECONDS)) as u64).clamp(*AHEAD_BYTES.start(), *AHEAD_BYTES.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: with any number of files, the table is bounded, the sum is right, and the files with the most
    /// traffic are in it.
    #[test]
    fn bounded_and_true() {
        let account = Account::default();
        for ino in 1..5000u64 {
            account.received(ino, 10, 100);
            account.sent(4, 1000, 1000);
            account.read(ino, 100);
        }
        let (top, others) = account.top(3);
        assert_eq!(top[0], (4, Traffic { received: 10, sent: 4999 * 1000, read: 100, written: 0 }));
        assert_eq!(top.len(), 3);
        assert!(account.files.lock().by_ino.len() <= FILES_MAX);
        let received: u64 = top.iter().map(|(_, one)| one.received).sum::<u64>() + others.received;
        assert_eq!(received, 4999 * 10);
        assert_eq!(account.means(7, (0, 0)).compression_received, 4999 * 90);
        assert_eq!(account.means(7, (0, 0)).known, 7);
    }

    /// Proves: read-ahead grows with the rate and the round trip, within its bounds.
    #[test]
    fn pace() {
        let found = |trip_ms: u64, bytes_per_s: u64| {
            let pace = Pace::default();
            for _ in 0..50 {
                pace.note_transfer(1000, Duration::from_millis(trip_ms));
                let took = trip_ms * 1000 + (1_000_000_000_000 / bytes_per_s);
                pace.note_transfer(1_000_000, Duration::from_micros(took));
            }
            pace.ahead_bytes()
        };
        assert_eq!(Pace::default().ahead_bytes(), AHEAD_BYTES_FIRST);
        assert_eq!(found(30, 190_000), *AHEAD_BYTES.start());
        assert_eq!(found(1, 1 << 30), *AHEAD_BYTES.end());
        let (near, far) = (found(10, 5_000_000), found(200, 5_000_000));
        assert!((1_000_000..2_000_000).contains(&near), "{near}");
        assert!((2_500_000..4_500_000).contains(&far), "{far}");
    }

    /// Proves: traffic is booked to the file of the innermost guard, and to no file when all guards are gone.
    #[test]
    fn behalves_nest() {
        let outer = on_behalf_of(1);
        drop(on_behalf_of(2));
        assert_eq!(current_scope(), 1);
        drop(outer);
        assert_eq!(current_scope(), NO_FILE);
    }
}
