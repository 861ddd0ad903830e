//! Orders in etcd, where several servers share them: one is the active server of a file system, the others are
//! standbys.
//!
//! ```text
//! PREFIX/server/INSTANCE          address of a server that runs; ends with its lease
//! PREFIX/active/FSID              "ADDRESS INSTANCE" of the active server; ends with its lease
//! PREFIX/wanted/FSID              address of the server that is to have it, by an operator's word
//! PREFIX/moved                    where all file systems went; none is active here from then on
//! PREFIX/head/FSID                what counts: last record, last checkpoint (`Head`)
//! PREFIX/record/FSID/NUMBER/PART  records that were committed together (`parts`)
//! PREFIX/checkpoint/FSID/NUMBER/PART
//! PREFIX/name/FSID/NAME           which file has this name
//! PREFIX/file/FSID/FILE/CHUNK     64 KiB of a file
//! PREFIX/note/FSID/NAME           who may hold leases, whether locks were held
//! ```
//!
//! Invariants:
//! - the revision at which `active` was created is the fencing epoch: no two servers ever had the same;
//! - every change below a file system is one transaction that compares the epoch of `active` and the revision of `head`,
//!   and puts `head`. So all changes of a file system follow each other, those of a server that was replaced are refused
//!   by etcd, and a request that arrives twice, or late, does nothing the second time;
//! - what was asked of etcd without an answer is asked again until it is known what became of it, or given up together
//!   with all that is in memory;
//! - an answer that tells something of the order leaves only while the lease is known to last, by this machine's clock
//!   from the moment at which its renewal was sent: a clock that is wrong does not matter, one that stands still does.

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
    /// File systems, and the address of the server that each is served by; empty while none is.
    pub active: Vec<(Digest, String)>,
}

/// The file systems and servers in etcd, as of the last look.
#[derive(Clone, Default, Debug)]
pub(crate) struct ClusterState {
    /// All file systems.
    pub(crate) file_systems: BTreeSet<Digest>,
    /// Addresses of active servers, and which instance of a server that is.
    pub(crate) active: BTreeMap<Digest, (String, String)>,
    /// Addresses of servers that are to have file systems.
    pub(crate) wanted: BTreeMap<Digest, String>,
    /// Addresses of servers that run.
    pub(crate) servers: BTreeSet<String>,
}

/// This server among those under one prefix.
pub(crate) struct Cluster {
    space: Arc<Namespace>,
    address: String,
    instance: String,
    lease: Mutex<Arc<Lease>>,
    state: Mutex<ClusterState>,
    /// What this server is the active one of.
    pub(crate) held: Mutex<BTreeMap<Digest, Shard>>,
    /// What has been found to be put back from a backup since the start.
    pub(crate) restored: Mutex<BTreeSet<Digest>>,
    /// When etcd last answered.
    answered: Mutex<Option<Instant>>,
}

impl Cluster {
    /// A server that clients reach at `address`; takes its lease.
    ///
    /// # Errors
    /// etcd's.
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

    /// For how long etcd has not answered.
    pub(crate) fn silence(&self) -> Duration {
        self.answered.lock().map_or(Duration::MAX, |answered| answered.elapsed())
    }

    fn announce(&self) -> Result<(), EtcdError> {
        let lease = self.lease.lock().id();
        let put =
            Step::Put(self.space.key("server", &self.instance), self.address.clone().into(), Some(lease));
        self.space.kv.transact(&Transaction { steps: vec![put], ..Transaction::default() }).map(drop)
    }

    /// Keeps the lease alive, or takes a new one where it has ended: then this server is nowhere active any more.
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

    /// Whether this very server is the active one in what was seen.
    pub(crate) fn is_ours(&self, state: &ClusterState, id: &Digest) -> bool {
        state.active.get(id).is_some_and(|(_, instance)| *instance == self.instance)
    }

    /// Whether this server may become active for a file system without an active server: unless an operator wants it at
    /// another server that runs.
    pub(crate) fn may_take(&self, state: &ClusterState, id: &Digest) -> bool {
        let other = |address: &&String| **address != self.address && state.servers.contains(*address);
        !state.active.contains_key(id) && state.wanted.get(id).filter(other).is_none()
    }

    /// Becomes the active server of a file system, unless another one is.
    ///
    /// # Errors
    /// etcd's; [`OrderError::Damaged`]: this server is the active one now, and what there is of the order is not to be read.
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
        // Where the first answer was lost, this is the second try.
        match done.found.first().and_then(|found| found.first()) {
            Some(pair) if pair.value == ours && pair.created == done.revision => {}
            Some(pair) if pair.value == ours => {
                // From before; what was read under that epoch is not in memory any more.
                self.give_up(id, pair.created)?;
                return Ok(None);
            }
            _ => return Ok(None),
        }
        Shard::open(self.space.clone(), id, done.revision, lease).map(Some)
    }

    /// Ends being active under an epoch, if this server is.
    pub(crate) fn give_up(&self, id: Digest, epoch: i64) -> Result<(), EtcdError> {
        let key = self.space.of("active", &id);
        let transaction = Transaction {
            compares: vec![Compare::Created(key.clone(), epoch)],
            steps: vec![Step::Delete(Keys::One(key))],
            otherwise: Vec::new(),
        };
        self.space.kv.transact(&transaction).map(drop)
    }

    /// Ends being active where this server does not serve what it is active of.
    pub(crate) fn disown(&self, id: Digest) -> Result<(), EtcdError> {
        let found = self.space.kv.get(&Get::one(self.space.of("active", &id)))?;
        match found.first().filter(|pair| pair.value.ends_with(self.instance.as_bytes())) {
            Some(pair) => self.give_up(id, pair.created),
            None => Ok(()),
        }
    }

    /// Notes which server is to have a file system; `None`: whichever is first.
    pub(crate) fn want(&self, id: Digest, address: Option<&str>) -> Result<(), EtcdError> {
        let key = self.space.of("wanted", &id);
        let step = match address {
            Some(address) => Step::Put(key, address.into(), None),
            None => Step::Delete(Keys::One(key)),
        };
        self.space.kv.transact(&Transaction { steps: vec![step], ..Transaction::default() }).map(drop)
    }

    /// Where all file systems went, if they were moved from here.
    pub(crate) fn moved(&self) -> Result<Option<String>, EtcdError> {
        let found = self.space.kv.get(&Get::one(self.space.moved()))?;
        Ok(found.first().map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
    }

    /// Ends the lease, so that others need not wait for it.
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
