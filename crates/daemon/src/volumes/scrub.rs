//! Scrubs a volume in use: reads and verifies every block, at a pace that leaves room for programs.

use super::folders::VolumeFolder;
use crate::time;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_volume::{BLOCK_BYTES, Volume};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Blocks that are read at once.
const RUN_BLOCKS: u64 = 256;
/// The position is stored after so many runs.
const REMEMBER_RUNS: u64 = 256;
const FILE: &str = "scrub.json";

/// The progress of a scrub.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Progress {
    /// Whether it is under way.
    pub running: bool,
    /// All blocks before this one are done.
    pub next_block: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Bad blocks found.
    pub bad: u64,
    /// When it began, in nanoseconds since 1970.
    pub begun_ns: i64,
    /// When it was finished, in nanoseconds since 1970.
    pub ended_ns: Option<i64>,
    /// Why it could not be continued.
    pub failed: Option<String>,
}

impl Progress {
    /// The progress of the last scrub of a volume that is not attached.
    pub fn remembered(place: &VolumeFolder) -> Option<Progress> {
        place.read(FILE).map(|progress: Progress| Progress { running: false, ..progress })
    }
}

struct State {
    progress: Option<Progress>,
    stopping: bool,
}

/// Scrubs one volume, one scrub at a time.
pub struct Scrubber {
    volume: Arc<Volume>,
    place: VolumeFolder,
    state: Mutex<State>,
    changed: Condvar,
}

impl Scrubber {
    /// A scrubber for a volume that is in use.
    pub fn new(volume: Arc<Volume>, place: VolumeFolder) -> Arc<Scrubber> {
        let state = State { progress: Progress::remembered(&place), stopping: false };
        Arc::new(Scrubber { volume, place, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// The progress of the present or last scrub.
    pub fn progress(&self) -> Option<Progress> {
        self.state.lock().progress.clone()
    }

    /// Starts a scrub, or continues a stopped one. If one is under way, returns its progress.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(self: &Arc<Scrubber>, rate_mib: u64, from_start: bool) -> Outcome<Progress> {
        let mut state = self.state.lock();
        if let Some(running) = state.progress.as_ref().filter(|progress| progress.running) {
            return Ok(running.clone());
        }
        let blocks = self.volume.size_bytes() / BLOCK_BYTES as u64;
        let fresh = || Progress {
            running: true,
            next_block: 0,
            blocks,
            bad: 0,
            begun_ns: time::now_ns(),
            ended_ns: None,
            failed: None,
        };
        let goes_on = |before: &Progress| !from_start && before.ended_ns.is_none() && before.blocks == blocks;
        let progress = match state.progress.take().filter(goes_on) {
            Some(before) => Progress { running: true, failed: None, ..before },
            None => fresh(),
        };
        state.progress = Some(progress.clone());
        state.stopping = false;
        drop(state);
        let scrubber = Arc::clone(self);
        let work = move || scrubber.work(rate_mib);
        if let Err(error) = std::thread::Builder::new().name("scrub".to_owned()).spawn(work) {
            self.update(|progress| progress.running = false);
            return Err(Failure::new(Exit::System, format!("no thread for the scrub: {error}")));
        }
        Ok(progress)
    }

    /// Stops the scrub that is under way, and waits until it has ended.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.changed.notify_all();
        while state.progress.as_ref().is_some_and(|progress| progress.running) {
            self.changed.wait(&mut state);
        }
    }

    fn update(&self, change: impl FnOnce(&mut Progress)) {
        if let Some(progress) = &mut self.state.lock().progress {
            change(progress);
        }
        self.changed.notify_all();
    }

    fn work(&self, rate_mib: u64) {
        let blocks = self.volume.size_bytes() / BLOCK_BYTES as u64;
        let start = Instant::now();
        let mut done = 0;
        loop {
            let next = match self.progress() {
                Some(progress) if progress.next_block < blocks => progress.next_block,
                _ => {
                    self.update(|progress| progress.ended_ns = Some(time::now_ns()));
                    break;
                }
            };
            let end = blocks.min(next + RUN_BLOCKS);
            match self.volume.scrub(next..end) {
                Ok(bad) => self.update(|progress| {
                    progress.next_block = end;
                    progress.bad += bad.len() as u64;
                }),
                Err(error) => {
                    tracing::error!(%error, "the scrub cannot go on");
                    self.update(|progress| progress.failed = Some(error.to_string()));
                    break;
                }
            }
            done += end - next;
            if done.is_multiple_of(REMEMBER_RUNS * RUN_BLOCKS) {
                self.remember();
            }
            if self.rest(start, done, rate_mib) {
                break;
            }
        }
        self.update(|progress| progress.running = false);
        self.remember();
    }

    /// Waits as long as the pace demands. Returns whether to stop.
    fn rest(&self, start: Instant, done: u64, rate_mib: u64) -> bool {
        let mut state = self.state.lock();
        if rate_mib > 0 {
            let due = Duration::from_secs_f64(done as f64 * BLOCK_BYTES as f64 / (rate_mib << 20) as f64);
            while !state.stopping && start.elapsed() < due {
                self.changed.wait_for(&mut state, due.saturating_sub(start.elapsed()));
            }
        }
        state.stopping
    }

    fn remember(&self) {
        if let Some(progress) = self.progress()
            && let Err(failure) = self.place.write(FILE, &progress)
        {
            tracing::warn!(error = failure.message, "how far the scrub is cannot be remembered");
        }
    }
}
