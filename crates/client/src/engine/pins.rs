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
/// Told again in time.
const RENEW_AFTER: Duration = Duration::from_secs(900);
/// Addresses in one request.
const BATCH: usize = 1024;

/// Everything that is pinned.
#[derive(Default)]
pub(super) struct Pins {
    pinned: Mutex<Pinned>,
    stopped: Condvar,
}

#[derive(Default)]
struct Pinned {
    /// How many hold it, and when the server was told last.
    roots: HashMap<Digest, (usize, Option<Instant>)>,
    stop: bool,
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

    /// Tells the server, until it is stopped.
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
            let due: Vec<Digest> = pinned
                .roots
                .iter()
                .filter(|(_, (_, told))| told.is_none_or(|told| now - told >= RENEW_AFTER))
                .map(|(root, _)| *root)
                .take(BATCH)
                .collect();
            if due.is_empty() {
                continue;
            }
            drop(pinned);
            let request = Request::Pin { addresses: due.clone(), seconds: PIN_SECONDS };
            let told = shared.remote.call(request, shared.deadline).is_ok();
            pinned = self.pinned.lock();
            if told {
                for root in due {
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
