//! Open files: blocks that the server's garbage collection must leave alone although nothing refers to them any
//! more.
//!
//! A pin is told to the server within [`TICK`], for [`PIN_SECONDS`] at a time. A file deleted by somebody else and
//! collected before that reads as stale, which is what it is.

use super::shared::Shared;
use holdfast_crypto::Digest;
use holdfast_protocol::message::Request;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_secs(5);
const PIN_SECONDS: u32 = 1800;
/// After this time the server is told of a pin again, so that it does not expire.
const RENEW_AFTER: Duration = Duration::from_secs(900);
/// Addresses in one request, which is all that a device may have pinned. Who has more files open risks that one is
/// collected that was opened after them.
const PINS_MAX: usize = 4096;

/// Everything that is pinned.
#[derive(Default)]
pub(super) struct Pins {
    pinned: Mutex<PinnedRoots>,
    stopped: Condvar,
}

#[derive(Default)]
struct PinnedRoots {
    /// How many hold it, and when the server was told last.
    roots: HashMap<Digest, (usize, Option<Instant>)>,
    stop: bool,
}

impl PinnedRoots {
    /// What to tell the server, if it is time: all of it, as it takes the place of what was pinned before.
    fn to_tell(&self, now: Instant) -> Option<Vec<Digest>> {
        let mut roots: Vec<(Option<Instant>, Digest)> =
            self.roots.iter().map(|(root, (_, told))| (*told, *root)).collect();
        // Roots that the server has been told of come first.
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

    /// The thread that tells the server of pins, until it is stopped.
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

/// Blocks kept at the server while this lives.
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

    /// Proves: each message names everything that is pinned, as the server forgets the rest; nothing is said again before
    /// it is time; and what there is no room for takes nothing from what was there.
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
