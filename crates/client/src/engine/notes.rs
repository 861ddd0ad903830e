//! Notes of the signer (receipts, and structures it learned), and how many of them are durable.
//!
//! An operation waits for no note: with an honest server, a lost note costs one message. But a dishonest
//! server could deny an operation whose receipt was lost, and its author could not prove it. So `fsync` waits
//! until all notes that it covers are durable. Whatever is saved for the next operation also saves them.

use crate::error::FsError;
use crate::interrupt::{self, Woken};
use parking_lot::{Condvar, Mutex};
use std::time::Instant;

/// Counts notes, and how many of them are durable.
#[derive(Default)]
pub(super) struct Notes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    noted: u64,
    durable: u64,
    /// How often saving has failed, and the last error.
    failures: (u64, Option<FsError>),
    /// Why nothing more is made durable; `None` while the engine runs.
    ended: Option<FsError>,
}

impl Notes {
    /// Counts one more note.
    pub fn add(&self) {
        self.state.lock().noted += 1;
    }

    /// Number of notes so far.
    pub fn count(&self) -> u64 {
        self.state.lock().noted
    }

    /// Whether some notes are not durable yet.
    pub fn has_pending(&self) -> bool {
        let state = self.state.lock();
        state.durable < state.noted
    }

    /// Notes that the first `count` notes are durable.
    pub fn mark_durable(&self, count: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(count);
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that saving has failed once; it is tried again.
    pub fn fail(&self, error: FsError) {
        let mut state = self.state.lock();
        state.failures = (state.failures.0 + 1, Some(error));
        drop(state);
        self.changed.notify_all();
    }

    /// Notes that no more notes will become durable.
    pub fn end(&self, error: &FsError) {
        self.state.lock().ended.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// Waits until all notes made before the call are durable; `ask` must make sure that they are saved.
    pub fn wait(
        &self,
        deadline: Instant,
        ask: impl FnOnce(),
        late: impl FnOnce() -> FsError,
    ) -> Result<(), FsError> {
        let mut state = self.state.lock();
        let (target, failures) = (state.noted, state.failures.0);
        if state.durable >= target {
            return Ok(());
        }
        drop(state);
        ask();
        state = self.state.lock();
        while state.durable < target {
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            if state.failures.0 > failures {
                return Err(state.failures.1.clone().expect("a failure has a reason"));
            }
            match interrupt::wait(&self.changed, &mut state, Some(deadline)) {
                Woken::Notified => {}
                Woken::Late => return Err(late()),
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn in_time() -> Instant {
        Instant::now() + holdfast_testing::PATIENCE
    }

    /// Proves: a wait ends when the notes made before it are durable, or with the reason when they cannot be;
    /// later notes do not matter.
    #[test]
    fn waits() {
        let notes = Notes::default();
        notes.wait(in_time(), || panic!("nothing is open"), || panic!("late")).expect("nothing to wait for");
        notes.add();
        assert!(notes.has_pending());
        let late = notes.wait(Instant::now() + Duration::from_millis(20), || {}, || FsError::Busy);
        assert!(matches!(late, Err(FsError::Busy)));
        let upto = notes.count();
        let saved = || {
            notes.add();
            notes.mark_durable(upto);
        };
        notes.wait(in_time(), saved, || panic!("late")).expect("durable");
        assert!(notes.has_pending());
        let full = notes.wait(in_time(), || notes.fail(FsError::NoSpace), || panic!("late"));
        assert!(matches!(full, Err(FsError::NoSpace)));
        notes
            .wait(in_time(), || notes.mark_durable(2), || panic!("late"))
            .expect("a failure is over once it is saved");
        notes.add();
        notes.end(&FsError::Busy);
        assert!(matches!(notes.wait(in_time(), || {}, || panic!("late")), Err(FsError::Busy)));
    }
}
