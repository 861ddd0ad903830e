//! Tracks which acknowledged modifications are committed at the server; `fsync` and `close` wait for that.

use crate::error::FsError;
use crate::interrupt::{self, Woken};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::time::Instant;

/// Most lost tickets remembered for callers that ask late.
const LOST_MAX: usize = 1024;

/// Tickets of operations whose callers were answered before the commit was acknowledged.
#[derive(Default)]
pub(super) struct Commits {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    last: u64,
    /// Open tickets, each with the number of modifications that are not settled.
    open: BTreeMap<u64, usize>,
    lost: BTreeMap<u64, FsError>,
    /// Losses up to this ticket were already reported by a flush.
    reported: u64,
}

impl Commits {
    /// Opens a ticket for `pieces` acknowledged modifications.
    pub fn open(&self, pieces: usize) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let ticket = state.last;
        if pieces > 0 {
            state.open.insert(ticket, pieces);
        }
        ticket
    }

    /// Settles a ticket: all of its modifications are committed.
    pub fn settle(&self, ticket: u64) {
        self.state.lock().open.remove(&ticket);
        self.changed.notify_all();
    }

    /// Settles one modification that was made again: it is committed, no longer needed, or lost.
    pub fn settle_one(&self, ticket: u64, result: Result<(), FsError>) {
        let mut state = self.state.lock();
        if let Err(error) = result {
            state.lost.insert(ticket, error);
            while state.lost.len() > LOST_MAX {
                state.lost.pop_first();
            }
        }
        if let Some(pieces) = state.open.get_mut(&ticket) {
            *pieces -= 1;
            if *pieces == 0 {
                state.open.remove(&ticket);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Fails all open tickets.
    pub fn lose_all(&self, error: &FsError) {
        let mut state = self.state.lock();
        let open = std::mem::take(&mut state.open);
        state.lost.extend(open.into_keys().map(|ticket| (ticket, error.clone())));
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until every ticket so far is settled. Only one flush reports a loss.
    pub fn flush(&self, deadline: Instant, late: impl FnOnce() -> FsError) -> Result<(), FsError> {
        let mut state = self.state.lock();
        let target = state.last;
        while state.open.first_key_value().is_some_and(|(ticket, _)| *ticket <= target) {
            match interrupt::wait(&self.changed, &mut state, Some(deadline)) {
                Woken::Notified => {}
                Woken::Late => return Err(late()),
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        let from = state.reported + 1;
        state.reported = state.reported.max(target);
        match (from <= target).then(|| state.lost.range(from..=target).next()).flatten() {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Waits until one ticket is settled.
    pub fn wait(
        &self,
        ticket: u64,
        deadline: Instant,
        late: impl FnOnce() -> FsError,
    ) -> Result<(), FsError> {
        let mut state = self.state.lock();
        while state.open.contains_key(&ticket) {
            match interrupt::wait(&self.changed, &mut state, Some(deadline)) {
                Woken::Notified => {}
                Woken::Late => return Err(late()),
                Woken::Interrupted => return Err(FsError::Interrupted),
            }
        }
        state.lost.get(&ticket).map_or(Ok(()), |error| Err(error.clone()))
    }
}
