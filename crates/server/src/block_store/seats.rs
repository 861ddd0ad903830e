//! The stores that a block server has open. Without a group, these are the stores of all allowed servers. In
//! a group of block servers on the same bucket, they are the stores whose seats this block server has.
//!
//! Invariants:
//! - A store that is given up, or that another block server has taken over, is closed before its seat is
//!   left. Running requests are carried out or refused, and nothing is acknowledged afterwards.
//! - If a store cannot be opened, this block server leaves its seat and takes no seat for a while, so that
//!   others may take it.

use super::election::{Candidate, Seat, decide};
use super::server_error::ServedStoreError;
use super::store_server::StoreServer;
use holdfast_etcd::{EtcdError, Revision};
use holdfast_protocol::block_server::Shard;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the holders of all seats are read from etcd.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Shortest time without taking a seat after a store could not be opened. It doubles each time, up to
/// [`REST_MAX`].
const REST_MIN: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(30);
/// How long the shutdown waits for running requests.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How often a closing store is checked for requests that still use it.
const GLANCE: Duration = Duration::from_millis(10);

/// Opens the store of a seat, or returns the reason why it cannot be opened.
pub(super) type Opener = Box<dyn Fn(&Seat) -> Result<StoreServer, ServedStoreError> + Send + Sync>;

/// The stores of this block server, by seat.
pub(super) struct Seats {
    /// In how many shards each server's blocks are.
    pub(super) shards: u16,
    all: Vec<Seat>,
    open: Opener,
    state: Mutex<State>,
    stopped: Condvar,
}

#[derive(Default)]
struct State {
    held: BTreeMap<Seat, HeldSeat>,
    rests_until: Option<Instant>,
    /// How many stores in a row could not be opened.
    failures: u32,
    stop: bool,
}

/// A seat that this block server holds.
struct HeldSeat {
    since: Revision,
    store: Store,
}

enum Store {
    /// The store is being opened.
    Opening,
    Here(Arc<StoreServer>),
    /// The store is being closed.
    Closing,
}

impl Seats {
    /// A set of seats, none of which is taken yet.
    pub(super) fn new(shards: u16, all: Vec<Seat>, open: Opener) -> Seats {
        Seats { shards, all, open, state: Mutex::default(), stopped: Condvar::new() }
    }

    /// Opens the stores of all seats, for a block server without a group.
    pub(super) fn open_all(&self) -> Result<(), (Seat, Box<ServedStoreError>)> {
        for seat in &self.all {
            let store_server = (self.open)(seat).map_err(|why| (*seat, Box::new(why)))?;
            let store = Store::Here(Arc::new(store_server));
            self.state.lock().held.insert(*seat, HeldSeat { since: 0, store });
        }
        Ok(())
    }

    /// The store of a seat, if it is open here.
    pub(super) fn store_server(&self, seat: &Seat) -> Option<Arc<StoreServer>> {
        match &self.state.lock().held.get(seat)?.store {
            Store::Here(store_server) => Some(store_server.clone()),
            Store::Opening | Store::Closing => None,
        }
    }

    /// A description of the block server that has taken over one of the stores.
    pub(super) fn taken_over(&self) -> Option<String> {
        let keepers = self.here();
        keepers.iter().find_map(|(_, store_server)| store_server.taken_over())
    }

    fn here(&self) -> Vec<(Seat, Arc<StoreServer>)> {
        let state = self.state.lock();
        let here = state.held.iter().filter_map(|(seat, held)| match &held.store {
            Store::Here(store_server) => Some((*seat, store_server.clone())),
            Store::Opening | Store::Closing => None,
        });
        here.collect()
    }

    /// Takes and gives up seats so that they are shared fairly with other block servers, until
    /// [`Seats::stop`]; then gives up all.
    pub(super) fn share(self: &Arc<Seats>, candidate: &Arc<Candidate>) {
        let (mut is_away, mut stood_by) = (false, false);
        loop {
            match self.look(candidate) {
                Ok(stands_by) => {
                    if stands_by && !stood_by {
                        tracing::info!(
                            "other block servers have all stores of this bucket; this one stands by"
                        );
                    }
                    if is_away {
                        tracing::info!("etcd answers again");
                    }
                    (is_away, stood_by) = (false, stands_by);
                }
                Err(error) => {
                    if !is_away {
                        tracing::warn!(%error, "others may take this one for dead");
                    }
                    is_away = true;
                }
            }
            for (seat, store_server) in self.here() {
                if let Some(why) = store_server.taken_over() {
                    drop(store_server);
                    self.close(candidate, &seat, &why);
                }
            }
            let mut state = self.state.lock();
            if !state.stop {
                self.stopped.wait_for(&mut state, LOOK_EVERY);
            }
            if state.stop {
                break;
            }
        }
        let end = Instant::now() + END_PATIENCE;
        while !self.state.lock().held.is_empty() && Instant::now() < end {
            for (seat, store_server) in self.here() {
                drop(store_server);
                self.close(candidate, &seat, "this block server ends");
            }
            std::thread::sleep(GLANCE);
        }
        candidate.resign();
    }

    /// Ends the loop in [`Seats::share`].
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Reads who has which seat, and takes and gives up seats once. Returns whether others have all seats.
    fn look(self: &Arc<Seats>, candidate: &Arc<Candidate>) -> Result<bool, EtcdError> {
        let is_able = self.state.lock().rests_until.is_none_or(|until| until <= Instant::now());
        candidate.keep(is_able)?;
        let seat_map = candidate.look()?;
        let own: Vec<Seat> = self.state.lock().held.keys().copied().collect();
        let (mut kept, mut free) = (Vec::new(), Vec::new());
        for seat in &own {
            match candidate.holder(&seat_map, seat) {
                Some(other) if !candidate.is_own(other) => {
                    self.close(candidate, seat, &format!("the block server on {} was elected", other.host));
                    continue;
                }
                Some(_) => {}
                // The lease had ended before it was renewed, and the seat with it.
                None => match candidate.take(seat)? {
                    Some(since) => self.since(seat, since),
                    None => tracing::warn!("the seat of {} was lost", describe(seat)),
                },
            }
            kept.push(*seat);
        }
        for seat in &self.all {
            if !own.contains(seat) && candidate.holder(&seat_map, seat).is_none() {
                free.push(*seat);
            }
        }
        if is_able {
            let decision = decide(self.all.len(), &kept, &free, seat_map.members.len());
            for seat in &decision.take {
                if let Some(since) = candidate.take(seat)? {
                    self.begin(candidate, *seat, since);
                }
            }
            for seat in &decision.give {
                self.give(candidate, seat);
            }
        }
        Ok(kept.is_empty() && free.is_empty())
    }

    fn since(&self, seat: &Seat, since: Revision) {
        if let Some(held) = self.state.lock().held.get_mut(seat) {
            held.since = since;
        }
    }

    /// Opens the store of a seat that was just taken.
    fn begin(self: &Arc<Seats>, candidate: &Arc<Candidate>, seat: Seat, since: Revision) {
        self.state.lock().held.insert(seat, HeldSeat { since, store: Store::Opening });
        let (seats, candidate) = (self.clone(), candidate.clone());
        std::thread::spawn(move || {
            let opened = (seats.open)(&seat);
            let mut state = seats.state.lock();
            match opened {
                Ok(store_server) => {
                    tracing::info!("serves {}", describe(&seat));
                    state.failures = 0;
                    if let Some(held) = state.held.get_mut(&seat) {
                        held.store = Store::Here(Arc::new(store_server));
                    }
                }
                Err(why) => {
                    tracing::error!(
                        "{} cannot be opened here, and is left to others: {why}",
                        describe(&seat)
                    );
                    let rest = (REST_MIN * 2_u32.pow(state.failures.min(8))).min(REST_MAX);
                    state.failures += 1;
                    state.rests_until = Some(Instant::now() + rest);
                    let held = state.held.remove(&seat);
                    drop(state);
                    candidate.leave(&seat, held.map_or(since, |held| held.since));
                }
            }
        });
    }

    /// Gives up a seat to others, unless a long call is running there.
    fn give(self: &Arc<Seats>, candidate: &Arc<Candidate>, seat: &Seat) {
        if self.store_server(seat).is_some_and(|store_server| !store_server.is_long_busy()) {
            self.close(candidate, seat, "others have fewer");
        }
    }

    /// Closes a store, and leaves its seat.
    fn close(self: &Arc<Seats>, candidate: &Arc<Candidate>, seat: &Seat, why: &str) {
        let store_server = {
            let mut state = self.state.lock();
            let Some(held) = state.held.get_mut(seat) else { return };
            // A store that is still being opened is closed in a later round.
            let Store::Here(_) = &held.store else { return };
            let Store::Here(store_server) = std::mem::replace(&mut held.store, Store::Closing) else {
                return;
            };
            store_server
        };
        tracing::info!("gives up {}: {why}", describe(seat));
        let (seats, candidate, seat) = (self.clone(), candidate.clone(), *seat);
        std::thread::spawn(move || {
            let mut store_server = store_server;
            // No new request gets the store, so the running ones are the last.
            let store_server = loop {
                match Arc::try_unwrap(store_server) {
                    Ok(store_server) => break store_server,
                    Err(used) => store_server = used,
                }
                std::thread::sleep(GLANCE);
            };
            drop(store_server);
            if let Some(held) = seats.state.lock().held.remove(&seat) {
                candidate.leave(&seat, held.since);
            }
        });
    }
}

fn describe(seat: &Seat) -> String {
    match seat.shard {
        Shard::WHOLE => format!("the blocks of {}", seat.server),
        Shard { number, of } => format!("shard {number} of {of} of the blocks of {}", seat.server),
    }
}
