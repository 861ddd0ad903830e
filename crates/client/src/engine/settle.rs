//! Requests that wait for another device's pending operation, kept apart so that no other request waits with
//! them.

use super::queue::Job;
use super::shared::Shared;
use crate::error::FsError;
use holdfast_content::Tag;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The parked requests, by the operation they wait for.
pub(super) struct ParkedRequests {
    shared: Arc<Shared>,
    parked: Mutex<BTreeMap<Tag, Vec<Job>>>,
}

impl ParkedRequests {
    pub fn new(shared: Arc<Shared>) -> ParkedRequests {
        ParkedRequests { shared, parked: Mutex::default() }
    }

    /// Parks a request until the first of `tags` is (probably) settled. If another one is not settled by
    /// then, the next plan finds out and the request is parked again.
    pub fn park(self: &Arc<Self>, job: Job, tags: BTreeSet<Tag>) {
        let Some(tag) = tags.into_iter().next() else {
            self.shared.queue.push_front(vec![job]);
            return;
        };
        let mut parked = self.parked.lock();
        if let Some(jobs) = parked.get_mut(&tag) {
            jobs.push(job);
            return;
        }
        parked.insert(tag, vec![job]);
        drop(parked);
        let parking = self.clone();
        let wait = move || {
            let started = Instant::now();
            let settled = parking.shared.wait_settled(tag, started + parking.shared.deadline);
            if settled.is_none() {
                // Prevents a busy loop if the server answers nonsense at once.
                std::thread::sleep(Duration::from_millis(50).saturating_sub(started.elapsed()));
            }
            let jobs = parking.parked.lock().remove(&tag).unwrap_or_default();
            parking.shared.queue.push_front(jobs);
        };
        let started = std::thread::Builder::new().name("holdfast-settle".to_owned()).spawn(wait);
        if started.is_err() {
            let jobs = self.parked.lock().remove(&tag).unwrap_or_default();
            self.shared.queue.push_front(jobs);
        }
    }

    /// Answers all parked requests with an error.
    pub fn fail(&self, error: &FsError) {
        for job in std::mem::take(&mut *self.parked.lock()).into_values().flatten() {
            job.answer(Err(error.clone()));
        }
    }
}
