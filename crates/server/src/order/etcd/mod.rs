//! Orders in etcd, where several servers share them: one is the active server of a file system, the others
//! are standbys.
//!
//! ```text
//! PREFIX/server/INSTANCE          address of a server that runs; ends with its lease
//! PREFIX/active/FSID              "ADDRESS INSTANCE" of the active server; ends with its lease
//! PREFIX/wanted/FSID              address of the server that an operator wants to be active
//! PREFIX/moved                    where all file systems were moved to; no server becomes active here from
//! then on
//! PREFIX/head/FSID                the last record and the last checkpoint (`Head`)
//! PREFIX/record/FSID/NUMBER/PART  records that were committed together (`parts`)
//! PREFIX/checkpoint/FSID/NUMBER/PART
//! PREFIX/name/FSID/NAME           the number of the file that has this name
//! PREFIX/file/FSID/FILE/CHUNK     64 KiB of a file
//! PREFIX/note/FSID/NAME           which sessions may hold leases, whether locks may be held
//! ```
//!
//! Invariants:
//! - The revision at which `active` was created is the fencing epoch: no two servers ever have the same.
//! - Every change of a file system is one transaction that compares the epoch of `active` and the revision of
//!   `head`, and writes `head`. So all changes of a file system form a chain, etcd refuses those of a server
//!   that was replaced, and a request that arrives twice, or late, has no effect the second time.
//! - A change that etcd did not answer is requested again until its outcome is certain. Otherwise it is given
//!   up, together with the whole state in memory.
//! - A reply that depends on the order leaves only while the lease certainly lasts, measured by this
//!   machine's clock from the moment at which its renewal was sent. A clock that shows the wrong time does no
//!   harm; one that stands still does.

mod files;
mod head;
mod lease;
#[cfg(feature = "convert")]
mod moving;
mod namespace;
mod shard;

pub(crate) use lease::Lease;
#[cfg(test)]
pub(crate) use namespace::TERM;
pub(crate) use shard::Shard;

use super::OrderError;
use holdfast_crypto::Digest;
use holdfast_etcd::{Compare, EtcdError, Get, Keys, Kv, Pair, Step, Transaction};
use namespace::{Namespace, random};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The status of an order in etcd, which several servers share.
#[derive(Clone, Default, PartialEq, Eq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct OrderStatus {
    /// The address in etcd.
    pub place: String,
    /// This server's own address.
    pub address: String,
    /// Whether the last request to etcd was answered.
    pub reached: bool,
    /// Addresses of the servers that run.
    pub servers: Vec<String>,
    /// All file systems, each with the address of its active server; empty if it has none.
    pub active: Vec<(Digest, String)>,
}

/// The file systems and servers in etcd, as last read.
#[derive(Clone, Default, Debug)]
pub(crate) struct ClusterState {
    /// All file systems.
    pub(crate) file_systems: BTreeSet<Digest>,
    /// The address and the instance of the active server of each file system.
    pub(crate) active: BTreeMap<Digest, (String, String)>,
    /// The address of the server that an operator wants to be active, for file systems that have such a wish.
    pub(crate) wanted: BTreeMap<Digest, String>,
    /// Addresses of servers that run.
    pub(crate) servers: BTreeSet<String>,
}

/// This server as one of those under one prefix.
pub(crate) struct Cluster {
    space: Arc<Namespace>,
    address: String,
    instance: String,
    lease: Mutex<Arc<Lease>>,
    state: Mutex<ClusterState>,
    /// The orders of the file systems that this server is the active one of.
    pub(crate) held: Mutex<BTreeMap<Digest, Shard>>,
    /// File systems for which it was noted since the start that they were restored from a backup.
    pub(crate) restored: Mutex<BTreeSet<Digest>>,
    /// When etcd last answered.
    answered: Mutex<Option<Instant>>,
}

impl Cluster {
    /// Joins the servers under a prefix as one that clients reach at `address`, and takes a lease.
    ///
    /// # Errors
    /// The error of etcd.
    pub(crate) fn join(kv: Box<dyn Kv>, prefix: &str, address: String) -> Result<Cluster, EtcdError> {
        let space = Arc::new(Namespace::new(kv, prefix));
        let instance = hex(&random().map_err(EtcdError::Refused)?);
        let lease = Arc::new(Lease::granted(&*space.kv)?);
        let cluster = Cluster {
            space,
            address,
            instance,
            lease: Mutex::new(lease),
            state: Mutex::default(),
            held: Mutex::default(),
            restored: Mutex::default(),
            answered: Mutex::new(None),
        };
        cluster.announce()?;
        cluster.look()?;
        Ok(cluster)
    }

    pub(crate) fn describe(&self) -> String {
        self.space.kv.describe()
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn state(&self) -> ClusterState {
        self.state.lock().clone()
    }

    /// The status for operators.
    pub(crate) fn status(&self) -> OrderStatus {
        let state = self.state();
        let holder =
            |id: &Digest| state.active.get(id).map_or_else(String::new, |(address, _)| address.clone());
        OrderStatus {
            place: self.describe(),
            address: self.address.clone(),
            reached: self.silence() < Duration::from_secs(2),
            servers: state.servers.iter().cloned().collect(),
            active: state.file_systems.iter().map(|id| (*id, holder(id))).collect(),
        }
    }

    /// How long ago etcd last answered.
    pub(crate) fn silence(&self) -> Duration {
        self.answered.lock().map_or(Duration::MAX, |answered| answered.elapsed())
    }

    fn announce(&self) -> Result<(), EtcdError> {
        let lease = self.lease.lock().id();
        let put =
            Step::Put(self.space.key("server", &self.instance), self.address.clone().into(), Some(lease));
        self.space.kv.transact(&Transaction { steps: vec![put], ..Transaction::default() }).map(drop)
    }

    /// Renews the lease. If it has ended, takes a new one; this server is then not the active one of any file
    /// system.
    pub(crate) fn keep_alive(&self) -> Result<(), EtcdError> {
        let lease = self.lease.lock().clone();
        if lease.keep_alive(&*self.space.kv)? {
            return Ok(());
        }
        *self.lease.lock() = Arc::new(Lease::granted(&*self.space.kv)?);
        self.announce()
    }

    /// Reads the state from etcd.
    pub(crate) fn look(&self) -> Result<ClusterState, EtcdError> {
        let get = |kind: &str, keys_only| Get { keys_only, ..Get::all(self.space.below(kind)) };
        let steps = [("head", true), ("active", false), ("wanted", false), ("server", false)];
        let steps = steps.map(|(kind, keys_only)| Step::Get(get(kind, keys_only))).to_vec();
        let done = self.space.kv.transact(&Transaction { steps, ..Transaction::default() })?;
        let [heads, active, wanted, servers] = <[Vec<Pair>; 4]>::try_from(done.found)
            .map_err(|_| EtcdError::Away("its answer makes no sense".to_owned()))?;
        let id = |pair: &Pair| Digest::from_hex(String::from_utf8_lossy(&pair.key).rsplit('/').next()?);
        let words = |pair: &Pair| String::from_utf8_lossy(&pair.value).into_owned();
        let holder = |pair: &Pair| {
            let words = words(pair);
            let (address, instance) = words.split_once(' ').unwrap_or((&words, ""));
            Some((id(pair)?, (address.to_owned(), instance.to_owned())))
        };
        let state = ClusterState {
            file_systems: heads.iter().filter_map(id).collect(),
            active: active.iter().filter_map(holder).collect(),
            wanted: wanted.iter().filter_map(|pair| Some((id(pair)?, words(pair)))).collect(),
            servers: servers.iter().map(words).collect(),
        };
        *self.state.lock() = state.clone();
        *self.answered.lock() = Some(Instant::now());
        Ok(state)
    }

    /// Whether this instance of the server is the active one, by a state that was read from etcd.
    pub(crate) fn is_ours(&self, state: &ClusterState, id: &Digest) -> bool {
        state.active.get(id).is_some_and(|(_, instance)| *instance == self.instance)
    }

    /// Whether this server may become the active one of a file system: no server is, and no operator wants
    /// another server that runs.
    pub(crate) fn may_take(&self, state: &ClusterState, id: &Digest) -> bool {
        let other = |address: &&String| **address != self.address && state.servers.contains(*address);
        !state.active.contains_key(id) && state.wanted.get(id).filter(other).is_none()
    }

    /// Becomes the active server of a file system. Returns `None` if another one is.
    ///
    /// # Errors
    /// The error of etcd. [`OrderError::Damaged`]: this server is the active one now, but the order cannot be
    /// read.
    pub(crate) fn take(&self, id: Digest) -> Result<Option<Shard>, OrderError> {
        let (key, lease) = (self.space.of("active", &id), self.lease.lock().clone());
        let ours = format!("{} {}", self.address, self.instance).into_bytes();
        let transaction = Transaction {
            compares: vec![Compare::Created(key.clone(), 0), Compare::Created(self.space.moved(), 0)],
            steps: vec![
                Step::Put(key.clone(), ours.clone(), Some(lease.id())),
                Step::Get(Get::one(key.clone())),
            ],
            otherwise: vec![Step::Get(Get::one(key))],
        };
        let done = self.space.kv.transact(&transaction)?;
        // If the reply to the first request was lost, this finds the key that the first request put.
        match done.found.first().and_then(|found| found.first()) {
            Some(pair) if pair.value == ours && pair.created == done.revision => {}
            Some(pair) if pair.value == ours => {
                // This epoch is an earlier one; what was read under it is not in memory any more.
                self.give_up(id, pair.created)?;
                return Ok(None);
            }
            _ => return Ok(None),
        }
        Shard::open(self.space.clone(), id, done.revision, lease).map(Some)
    }

    /// Stops being the active server under an epoch, if this server is.
    pub(crate) fn give_up(&self, id: Digest, epoch: i64) -> Result<(), EtcdError> {
        let key = self.space.of("active", &id);
        let transaction = Transaction {
            compares: vec![Compare::Created(key.clone(), epoch)],
            steps: vec![Step::Delete(Keys::One(key))],
            otherwise: Vec::new(),
        };
        self.space.kv.transact(&transaction).map(drop)
    }

    /// Stops being the active server of a file system that this server does not serve.
    pub(crate) fn disown(&self, id: Digest) -> Result<(), EtcdError> {
        let found = self.space.kv.get(&Get::one(self.space.of("active", &id)))?;
        match found.first().filter(|pair| pair.value.ends_with(self.instance.as_bytes())) {
            Some(pair) => self.give_up(id, pair.created),
            None => Ok(()),
        }
    }

    /// Notes which server an operator wants to be active; `None`: any server.
    pub(crate) fn want(&self, id: Digest, address: Option<&str>) -> Result<(), EtcdError> {
        let key = self.space.of("wanted", &id);
        let step = match address {
            Some(address) => Step::Put(key, address.into(), None),
            None => Step::Delete(Keys::One(key)),
        };
        self.space.kv.transact(&Transaction { steps: vec![step], ..Transaction::default() }).map(drop)
    }

    /// Where all file systems were moved to, if they were.
    pub(crate) fn moved(&self) -> Result<Option<String>, EtcdError> {
        let found = self.space.kv.get(&Get::one(self.space.moved()))?;
        Ok(found.first().map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
    }

    /// Ends the lease, so that other servers need not wait until it expires.
    pub(crate) fn leave(&self) {
        let lease = self.lease.lock().clone();
        lease.end();
        if let Err(error) = self.space.kv.revoke(lease.id()) {
            tracing::warn!(%error, "the lease was not given back; stand-bys wait until it has run out");
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
