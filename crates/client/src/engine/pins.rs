//! Pins of open files: blocks that the server's garbage collection must keep although nothing refers to them
//! any more.
//!
//! The server is informed of a pin within [`TICK`], for [`PIN_SECONDS`] at a time. A file that another device
//! deletes and that is collected before that reads as stale, which it is.

use super::shared::Shared;
use holdfast_crypto::Digest;
use holdfast_protocol::message::Request;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_secs(5);
const PIN_SECONDS: u32 = 1800;
/// After this time, the server is informed of a pin again, so that it does not expire.
const RENEW_AFTER: Duration = Duration::from_secs(900);
/// Most addresses in one request, which is also the most that a device may have pinned. If more files are
/// open, those opened last may be collected.
const PINS_MAX: usize = 4096;

/// All pins of an engine.
#[derive(Default)]
pub(super) struct Pins {
    pinned: Mutex<PinnedRoots>,
    stopped: Condvar,
}

#[derive(Default)]
struct PinnedRoots {
    /// For each root: the number of holders, and when the server was last informed.
    roots: HashMap<Digest, (usize, Option<Instant>)>,
    stop: bool,
}

impl PinnedRoots {
    /// All roots to pin, if it is time to inform the server. The list replaces what was pinned before, so it
    /// must be complete.
    fn to_tell(&self, now: Instant) -> Option<Vec<Digest>> {
        let mut roots: Vec<(Option<Instant>, Digest)> =
            self.roots.iter().map(|(root, (_, told))| (*told, *root)).collect();
        // Roots that the server already has come first.
        roots.sort_by_key(|(told, _)| (told.is_none(), *told));
        roots.truncate(PINS_MAX);
        let is_due = |told: Option<Instant>| told.is_none_or(|told| now - told >= RENEW_AFTER);
        roots.iter().any(|(told, _)| is_due(*told)).then(|| roots.into_iter().map(|(_, root)| root).collect())
    }
}

impl Pins {
    pub fn add(&self, roots: &[Digest]) {
        let mut pinned = self.pinned.lock();
        for root in roots {
            pinned.roots.entry(*root).or_insert((0, None)).0 += 1;
        }
    }

    pub fn remove(&self, roots: &[Digest]) {
        let mut pinned = self.pinned.lock();
        for root in roots {
            if let Some(entry) = pinned.roots.get_mut(root) {
                entry.0 -= 1;
                if entry.0 == 0 {
                    pinned.roots.remove(root);
                }
            }
        }
    }

    pub fn stop(&self) {
        self.pinned.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Body of the thread that informs the server of pins, until it is stopped.
    pub fn run(&self, shared: &Shared) {
        let mut pinned = self.pinned.lock();
        loop {
            if !pinned.stop {
                self.stopped.wait_for(&mut pinned, TICK);
            }
            if pinned.stop {
                return;
            }
            let now = Instant::now();
            let Some(roots) = pinned.to_tell(now) else { continue };
            drop(pinned);
            let request = Request::Pin { addresses: roots.clone(), seconds: PIN_SECONDS };
            let told = shared.remote.call(request, shared.deadline).is_ok();
            pinned = self.pinned.lock();
            if told {
                for root in roots {
                    if let Some(entry) = pinned.roots.get_mut(&root) {
                        entry.1 = Some(now);
                    }
                }
            }
        }
    }
}

/// Pins blocks at the server while it lives.
pub struct Pin {
    pins: Arc<Pins>,
    roots: Vec<Digest>,
}

impl Pin {
    pub(super) fn new(pins: Arc<Pins>, roots: Vec<Digest>) -> Pin {
        pins.add(&roots);
        Pin { pins, roots }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.remove(&self.roots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn root(number: u16) -> Digest {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Digest(bytes)
    }

    /// Proves: each message names all pinned roots, since the server drops the others; nothing is repeated
    /// before it is time; and roots beyond the limit displace none.
    #[test]
    fn the_server_is_told_everything() {
        let pins = Pins::default();
        let start = Instant::now();
        let tell = |now| {
            let roots = pins.pinned.lock().to_tell(now)?;
            let mut pinned = pins.pinned.lock();
            roots.iter().for_each(|root| pinned.roots.get_mut(root).expect("pinned").1 = Some(now));
            Some(roots.into_iter().collect::<BTreeSet<_>>())
        };
        assert_eq!(tell(start), None);
        pins.add(&[root(1)]);
        assert_eq!(tell(start), Some(BTreeSet::from([root(1)])));
        assert_eq!(tell(start + TICK), None);
        pins.add(&[root(2)]);
        assert_eq!(tell(start + TICK), Some(BTreeSet::from([root(1), root(2)])), "the first is open still");
        pins.remove(&[root(1)]);
        assert_eq!(tell(start + RENEW_AFTER), None);
        assert_eq!(tell(start + TICK + RENEW_AFTER), Some(BTreeSet::from([root(2)])));
        (10..10 + PINS_MAX as u16).for_each(|number| pins.add(&[root(number)]));
        let full = tell(start + TICK + RENEW_AFTER).expect("new ones");
        assert!(full.len() == PINS_MAX && full.contains(&root(2)));
        assert_eq!(tell(start + TICK + RENEW_AFTER), None, "there is no room");
    }
}
