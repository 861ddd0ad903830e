//! A store in memory that behaves like etcd, under a clock and faults that a test controls.
//!
//! Requests are carried out one after the other, so everything here is linearizable, like etcd. A network
//! adds: requests that never arrive, answers that are lost, requests that are carried out again later.

use crate::{
    Compare, EtcdError, Get, Keys, Kv, LeaseId, Pair, Revision, Step, Transaction, TransactionResult,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How a request and its reply are delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Delivery {
    /// The request is carried out and answered.
    #[default]
    Answered,
    /// The request never arrives.
    RequestLost,
    /// The request is carried out, but the answer is lost.
    AnswerLost,
    /// The request seems lost, and is carried out before the next one that arrives.
    Late,
    /// The request is carried out and answered, and again before the next one that arrives.
    Repeated,
}

#[derive(Default)]
struct State {
    pairs: BTreeMap<Vec<u8>, (Pair, Option<LeaseId>)>,
    revision: Revision,
    leases: BTreeMap<LeaseId, (Duration, Duration)>,
    leases_made: LeaseId,
    now: Duration,
    is_full: bool,
    waiting: Vec<Transaction>,
}

/// Decides how each request of a connection to the store of a [`Fake`] is delivered.
type DeliveryPlan = Box<dyn FnMut() -> Delivery + Send>;

/// A store in memory. Clones made by [`Fake::connection`] share it.
pub struct Fake {
    state: Arc<Mutex<State>>,
    deliveries: Mutex<DeliveryPlan>,
}

impl Default for Fake {
    fn default() -> Fake {
        Fake { state: Arc::default(), deliveries: Mutex::new(Box::new(|| Delivery::Answered)) }
    }
}

impl Fake {
    /// Another client of the same store, whose requests are delivered as `deliveries` says.
    pub fn connection(&self, deliveries: impl FnMut() -> Delivery + Send + 'static) -> Fake {
        Fake { state: self.state.clone(), deliveries: Mutex::new(Box::new(deliveries)) }
    }

    /// Replaces the plan by which this client's requests are delivered.
    pub fn set_deliveries(&self, deliveries: impl FnMut() -> Delivery + Send + 'static) {
        *self.deliveries.lock() = Box::new(deliveries);
    }

    /// Lets time pass; leases end.
    pub fn pass(&self, time: Duration) {
        let mut state = self.state.lock();
        state.now += time;
        let now = state.now;
        let ended: Vec<LeaseId> =
            state.leases.iter().filter(|(_, (_, until))| *until <= now).map(|(lease, _)| *lease).collect();
        for lease in ended {
            state.end(lease);
        }
    }

    /// Whether the space is used up.
    pub fn set_full(&self, is_full: bool) {
        self.state.lock().is_full = is_full;
    }

    /// The names of all keys.
    pub fn keys(&self) -> Vec<String> {
        self.state.lock().pairs.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// Changes a value as nothing that speaks to etcd would.
    pub fn damage(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some((pair, _)) = self.state.lock().pairs.get_mut(key.as_bytes()) {
            change(&mut pair.value);
        }
    }

    fn meet<T>(
        &self,
        transaction: Option<&Transaction>,
        act: impl FnOnce(&mut State) -> Result<T, EtcdError>,
    ) -> Result<T, EtcdError> {
        let lost = || EtcdError::Away("no answer".to_owned());
        let delivery = (self.deliveries.lock())();
        let mut state = self.state.lock();
        if delivery == Delivery::RequestLost {
            return Err(lost());
        }
        for late in std::mem::take(&mut state.waiting) {
            let _ = state.transact(&late);
        }
        match (delivery, transaction) {
            (Delivery::Late, transaction) => {
                state.waiting.extend(transaction.cloned());
                Err(lost())
            }
            (Delivery::AnswerLost, _) => {
                let _ = act(&mut state);
                Err(lost())
            }
            (Delivery::Repeated, transaction) => {
                state.waiting.extend(transaction.cloned());
                act(&mut state)
            }
            _ => act(&mut state),
        }
    }
}

impl State {
    fn end(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_some() {
            self.revision += 1;
            self.pairs.retain(|_, (_, bound)| *bound != Some(lease));
        }
    }

    fn get(&self, get: &Get) -> Vec<Pair> {
        let mut found: Vec<Pair> = match &get.keys {
            Keys::One(key) => self.pairs.get(key).map(|(pair, _)| pair.clone()).into_iter().collect(),
            Keys::Range(from, to) if from >= to => Vec::new(),
            Keys::Range(from, to) => {
                self.pairs.range(from.clone()..to.clone()).map(|(_, (pair, _))| pair.clone()).collect()
            }
        };
        if get.last_first {
            found.reverse();
        }
        if get.limit > 0 {
            found.truncate(get.limit as usize);
        }
        if get.keys_only {
            found.iter_mut().for_each(|pair| pair.value.clear());
        }
        found
    }

    fn holds(&self, compare: &Compare) -> bool {
        let (key, expected) = match compare {
            Compare::Created(key, at) | Compare::Modified(key, at) => (key, *at),
        };
        let found = self.pairs.get(key).map_or(0, |(pair, _)| match compare {
            Compare::Created(..) => pair.created,
            Compare::Modified(..) => pair.modified,
        });
        found == expected
    }

    fn transact(&mut self, transaction: &Transaction) -> Result<TransactionResult, EtcdError> {
        let succeeded = transaction.compares.iter().all(|compare| self.holds(compare));
        let steps = if succeeded { &transaction.steps } else { &transaction.otherwise };
        // Like etcd, before it decides which of the two branches applies.
        let puts = |steps: &[Step]| steps.iter().any(|step| matches!(step, Step::Put(..)));
        if self.is_full && (puts(&transaction.steps) || puts(&transaction.otherwise)) {
            return Err(EtcdError::Full("etcdserver: mvcc: database space exceeded".to_owned()));
        }
        let leases = steps.iter().filter_map(|step| match step {
            Step::Put(_, _, lease) => *lease,
            _ => None,
        });
        if let Some(lease) = leases.into_iter().find(|lease| !self.leases.contains_key(lease)) {
            return Err(EtcdError::Refused(format!("etcdserver: requested lease not found: {lease}")));
        }
        let changes = steps.iter().any(|step| !matches!(step, Step::Get(_)));
        let revision = self.revision + i64::from(changes);
        let mut found = Vec::new();
        for step in steps {
            match step {
                Step::Put(key, value, lease) => {
                    let created = self.pairs.get(key).map_or(revision, |(pair, _)| pair.created);
                    let pair = Pair { key: key.clone(), value: value.clone(), created, modified: revision };
                    self.pairs.insert(key.clone(), (pair, *lease));
                }
                Step::Delete(keys) => {
                    for pair in self.get(&Get { keys_only: true, ..Get::all(keys.clone()) }) {
                        self.pairs.remove(&pair.key);
                    }
                }
                Step::Get(get) => found.push(self.get(get)),
            }
        }
        self.revision = revision;
        Ok(TransactionResult { succeeded, revision, found })
    }
}

impl Kv for Fake {
    fn transact(&self, transaction: &Transaction) -> Result<TransactionResult, EtcdError> {
        self.meet(Some(transaction), |state| state.transact(transaction))
    }

    fn get(&self, get: &Get) -> Result<Vec<Pair>, EtcdError> {
        self.meet(None, |state| Ok(state.get(get)))
    }

    fn grant(&self, term: Duration) -> Result<LeaseId, EtcdError> {
        self.meet(None, |state| {
            state.leases_made += 1;
            let (lease, until) = (state.leases_made, state.now + term);
            state.leases.insert(lease, (term, until));
            Ok(lease)
        })
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        self.meet(None, |state| {
            let now = state.now;
            Ok(state.leases.get_mut(&lease).map(|(term, until)| {
                *until = now + *term;
                *term
            }))
        })
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        self.meet(None, |state| {
            state.end(lease);
            Ok(())
        })
    }

    fn describe(&self) -> String {
        "etcd in memory".to_owned()
    }
}
