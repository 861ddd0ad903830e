//! Stores the leaves of the log of updates on this machine ([`crate::rebuild::leaves`]), so that a lost
//! server can be rebuilt and can prove to every device that its log extends the one before.
//!
//! The leaves in a view are noted when it is accepted, including those of this device's operations; so they
//! are there even if the server is lost a moment later. From time to time, missing leaves are requested, and
//! all leaves are checked against the accepted head. Nothing waits for this, and errors are only logged.

use super::shared::Shared;
use super::stop::Stop;
use crate::rebuild::leaves::LeafFile;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::message::{LEAVES_MAX, Request, Response};
use holdfast_protocol::structure::LogHead;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Pause between looks for new leaves, and the pause before the first look.
const PAUSE: Duration = Duration::from_secs(3);
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// Longest pause while leaves cannot be fetched.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// How long one request for leaves may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct LeafKeeper {
    kept: Mutex<LeafKeeperState>,
    stop: Stop,
}

struct LeafKeeperState {
    file: LeafFile,
    /// Numbers of leaves after the verified ones that this process has written.
    noted: BTreeSet<u64>,
}

impl LeafKeeper {
    pub fn open(state_dir: &Path) -> io::Result<LeafKeeper> {
        let kept = LeafKeeperState { file: LeafFile::open(state_dir)?, noted: BTreeSet::new() };
        Ok(LeafKeeper { kept: Mutex::new(kept), stop: Stop::default() })
    }

    /// Notes the leaves of an accepted view.
    pub fn note(&self, floor: &Floor) {
        if let Err(error) = self.kept.lock().note(floor) {
            tracing::debug!(%error, "leaves of the log could not be kept");
        }
    }

    /// Whether a head is in the past of the stored leaves; `None` if not all leaves up to it are stored.
    pub fn is_past(&self, head: LogHead) -> io::Result<Option<bool>> {
        self.kept.lock().file.is_past(head)
    }

    /// Drops all leaves after a head, following a restore of the server.
    pub fn truncate(&self, head: LogHead) -> io::Result<()> {
        let mut kept = self.kept.lock();
        kept.noted.retain(|at| *at < head.size);
        kept.file.truncate(head)
    }

    /// Body of the keeper's thread: asks the server for missing leaves until it is stopped.
    pub fn run(&self, shared: &Shared) {
        let mut pause = PAUSE_FIRST;
        while !self.stop.pause(pause) {
            pause = match self.fill(shared) {
                Ok(()) => PAUSE,
                Err(why) => {
                    tracing::debug!(why, "leaves of the log are missing here");
                    (pause * 2).clamp(PAUSE, PAUSE_MAX)
                }
            };
        }
    }

    pub fn stop(&self) {
        self.stop.ask();
    }

    fn fill(&self, shared: &Shared) -> Result<(), String> {
        let failed = |error: io::Error| error.to_string();
        let floor = shared.latest.read().floor.clone();
        let head = floor.log();
        if self.kept.lock().file.verified() >= head.size {
            return Ok(());
        }
        loop {
            let gap = self.kept.lock().file.first_gap(head.size).map_err(failed)?;
            let Some((first, end)) = gap else { break };
            if !shared.remote.is_connected() || self.stop.is_asked() {
                return Ok(());
            }
            let count = (end - first).min(LEAVES_MAX as u64) as u32;
            let leaves = match shared.remote.call(Request::Leaves { first, count }, PATIENCE) {
                Ok(Response::Leaves(leaves)) => leaves,
                Ok(Response::Error(error)) => return Err(error.to_string()),
                Ok(_) => return Err("the server answered something else".to_owned()),
                Err(error) => return Err(error.to_string()),
            };
            if leaves.is_empty() || leaves.len() > count as usize {
                return Err(format!("the server does not have leaf {first}"));
            }
            self.kept.lock().file.write(first, &leaves).map_err(failed)?;
        }
        let mut kept = self.kept.lock();
        if !kept.file.verify(head).map_err(failed)? {
            kept.noted.clear();
            return Err("they do not make the head that was accepted".to_owned());
        }
        kept.noted = kept.noted.split_off(&head.size);
        Ok(())
    }
}

impl LeafKeeperState {
    fn note(&mut self, floor: &Floor) -> io::Result<()> {
        let from = self.file.verified();
        let slots = floor.view.slots.values().map(|slot| &slot.value.forecast);
        let pending = floor.view.pending.iter().map(|entry| &entry.forecast);
        for forecast in slots.chain(pending) {
            let at = forecast.log.size;
            if at >= from && !self.noted.contains(&at) {
                self.file.note(forecast)?;
                self.noted.insert(at);
            }
        }
        Ok(())
    }
}
