//! Which of several block servers of one bucket serves it: elected in etcd.
//!
//! ```text
//! PREFIX/blocks/BUCKET/PREFIX   "HOST INSTANCE KEY" of the block server that serves; ends with its lease
//! ```
//!
//! Invariants:
//! - etcd says who begins, and the owner's note in the bucket who is believed: it is looked at for each acknowledgement, so
//!   two that both think that they are elected do no harm, and one that does not reach etcd goes on;
//! - who was replaced ends, and begins anew as one that stands by: what it had on its disk is the other's now.

use super::objects;
use super::serving::{BlockServerConfig, BlockServerError};
use crate::data::DataDirectory;
use crate::order::etcd::Lease;
use holdfast_etcd::{Access, Compare, EtcdError, Gateway, Get, Keys, Kv, Revision, Step, Transaction};
use holdfast_objects::Durability;
use parking_lot::{Condvar, Mutex};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether nobody serves.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often a lease is renewed.
const RENEW_EVERY: Duration = Duration::from_millis(600);

/// A block server that would serve a bucket.
pub struct Candidate {
    kv: Box<dyn Kv>,
    seat: Vec<u8>,
    /// "HOST INSTANCE KEY"
    name: String,
}

/// A term of a block server that was elected. Ends when dropped.
pub struct Term {
    state: Arc<State>,
    renewing: Option<std::thread::JoinHandle<()>>,
}

struct State {
    candidate: Candidate,
    held: Mutex<Held>,
    wake: Condvar,
}

/// What a term rests on.
#[derive(Clone)]
struct Seat {
    revision: Revision,
    lease: Arc<Lease>,
}

struct Held {
    seat: Seat,
    /// Who serves instead.
    replaced_by: Option<String>,
    is_ending: bool,
}

impl Candidate {
    /// For the blocks that a block server is to have, through etcd.
    ///
    /// # Errors
    /// They are in no bucket, or are acknowledged before the bucket has them; the data directory or the file with the log-in
    /// cannot be used.
    pub fn new(
        config: &BlockServerConfig,
        access: &Access,
        login: Option<&Path>,
    ) -> Result<Candidate, BlockServerError> {
        let failed = |why: String| BlockServerError::Election(why);
        let key = DataDirectory::bare(&config.data)?.server_key()?.public();
        let bucket =
            objects::bucket_of(&config.data, config.blocks.as_ref()).map_err(BlockServerError::Bucket)?;
        let Some(bucket) = bucket.filter(|bucket| bucket.durability == Durability::Object) else {
            return Err(failed(
                "block servers stand by for each other only with `--blocks s3://...&durability=object`: what is acknowledged \
                 must be where the next one finds it"
                    .to_owned(),
            ));
        };
        let gateway = Gateway::new(access, login).map_err(|error| failed(error.to_string()))?;
        let seat = format!("{}/blocks/{}/{}", access.prefix, bucket.bucket, bucket.prefix.trim_matches('/'));
        let mut instance = [0; 8];
        getrandom::fill(&mut instance).map_err(|error| failed(format!("no randomness: {error}")))?;
        let name = format!("{} {:016x} {key}", super::machine_name(), u64::from_le_bytes(instance));
        Ok(Candidate { kv: Box::new(gateway), seat: seat.into_bytes(), name })
    }

    /// Waits until this one is elected. `told` hears who serves, and why etcd does not answer; each once.
    ///
    /// # Errors
    /// etcd refuses; the block server that serves has another key, so servers would not take this one for it.
    pub fn elected(self, told: &mut dyn FnMut(&str)) -> Result<Term, BlockServerError> {
        let mut last = String::new();
        loop {
            let news = match self.stand() {
                Ok(Stood::Elected(seat)) => return Term::begin(self, seat),
                Ok(Stood::Other(other)) if other.key != self.key() => {
                    return Err(BlockServerError::Election(format!(
                        "the block server on {} has the key {}, and this one {}, so servers would not take it for the other: \
                         copy the file server-key from there, mode 0600",
                        other.host,
                        other.key,
                        self.key()
                    )));
                }
                Ok(Stood::Other(other)) => {
                    format!("the block server on {} serves; this one stands by", other.host)
                }
                Err(EtcdError::Away(why)) => format!("etcd cannot be reached, so this one stands by: {why}"),
                Err(error) => return Err(BlockServerError::Election(error.to_string())),
            };
            if news != last {
                told(&news);
                last = news;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn key(&self) -> &str {
        self.name.rsplit(' ').next().unwrap_or_default()
    }

    /// Takes the seat if it is free, or says who has it.
    fn stand(&self) -> Result<Stood, EtcdError> {
        let ours = self.name.as_bytes();
        if let Some(pair) = self.kv.get(&Get::one(self.seat.clone()))?.first()
            && pair.value != ours
        {
            return Ok(Stood::Other(Other::of(&pair.value)));
        }
        let lease = Arc::new(Lease::granted(&*self.kv)?);
        let transaction = Transaction {
            compares: vec![Compare::Created(self.seat.clone(), 0)],
            steps: vec![Step::Put(self.seat.clone(), ours.to_vec(), Some(lease.id()))],
            otherwise: vec![Step::Get(Get::one(self.seat.clone()))],
        };
        let done = self.kv.transact(&transaction)?;
        if done.succeeded {
            return Ok(Stood::Elected(Seat { revision: done.revision, lease }));
        }
        match done.found.first().and_then(|found| found.first()) {
            Some(pair) if pair.value != ours => Ok(Stood::Other(Other::of(&pair.value))),
            // An earlier try, whose answer was lost; it goes with its lease.
            _ => Err(EtcdError::Away("an earlier try has yet to end".to_owned())),
        }
    }
}

/// What came of taking the seat.
enum Stood {
    Elected(Seat),
    Other(Other),
}

/// Who serves.
struct Other {
    host: String,
    key: String,
}

impl Other {
    /// Anything may stand there.
    fn of(value: &[u8]) -> Other {
        let text: String =
            String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).take(512).collect();
        let mut words = text.split(' ').map(str::to_owned);
        let host = words.next().unwrap_or_default();
        Other { host, key: words.nth(1).unwrap_or_default() }
    }
}

impl Term {
    fn begin(candidate: Candidate, seat: Seat) -> Result<Term, BlockServerError> {
        let held = Held { seat, replaced_by: None, is_ending: false };
        let state = Arc::new(State { candidate, held: Mutex::new(held), wake: Condvar::new() });
        let renewed = state.clone();
        let renewing = std::thread::Builder::new()
            .name("holdfast-term".into())
            .spawn(move || renewed.renew())
            .map_err(|error| BlockServerError::Election(format!("no thread: {error}")))?;
        Ok(Term { state, renewing: Some(renewing) })
    }

    /// On which machine the one is that serves instead.
    pub(super) fn replaced_by(&self) -> Option<String> {
        self.state.held.lock().replaced_by.clone()
    }
}

impl std::fmt::Debug for Term {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Term").field("replaced_by", &self.replaced_by()).finish_non_exhaustive()
    }
}

impl State {
    fn renew(&self) {
        let mut is_away = false;
        let mut held = self.held.lock();
        while !held.is_ending && held.replaced_by.is_none() {
            self.wake.wait_for(&mut held, RENEW_EVERY);
            if held.is_ending {
                return;
            }
            let seat = held.seat.clone();
            drop(held);
            let outcome = self.renewed(&seat);
            match &outcome {
                Err(error) if !is_away => tracing::warn!(%error, "others may take this one for dead"),
                Ok(_) if is_away => tracing::info!("etcd answers again"),
                _ => {}
            }
            is_away = outcome.is_err();
            held = self.held.lock();
            match outcome {
                Ok(Some(Stood::Elected(seat))) => held.seat = seat,
                Ok(Some(Stood::Other(other))) => held.replaced_by = Some(other.host),
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Renews the lease, or stands again if it has ended. `None`: it is as before.
    fn renewed(&self, seat: &Seat) -> Result<Option<Stood>, EtcdError> {
        if seat.lease.keep_alive(&*self.candidate.kv)? {
            return Ok(None);
        }
        tracing::warn!("the lease has ended before it was renewed");
        self.candidate.stand().map(Some)
    }
}

impl Drop for Term {
    fn drop(&mut self) {
        self.state.held.lock().is_ending = true;
        self.state.wake.notify_all();
        if let Some(renewing) = self.renewing.take() {
            let _ = renewing.join();
        }
        // So that another one need not wait for the lease to end.
        let (candidate, revision) = (&self.state.candidate, self.state.held.lock().seat.revision);
        let seat = candidate.seat.clone();
        let transaction = Transaction {
            compares: vec![Compare::Created(seat.clone(), revision)],
            steps: vec![Step::Delete(Keys::One(seat))],
            otherwise: Vec::new(),
        };
        if let Err(error) = candidate.kv.transact(&transaction) {
            tracing::warn!(%error, "others wait until the lease has ended");
        }
    }
}
