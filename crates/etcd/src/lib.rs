//! A client of etcd with what a server's order needs: transactions that compare revisions, linearizable
//! reads, leases.
//!
//! [`Gateway`] talks to real members through their JSON gateway; [`fake::Fake`] is a store in memory that
//! loses, repeats and delays requests and answers like a network. Both are a [`Kv`], and callers cannot tell
//! them apart.
//!
//! Invariants:
//! - Every read is linearizable: a member that is cut off from the others gives no answer, rather than an
//!   old one.
//! - A request without an answer ([`EtcdError::Away`]) may have been carried out, may be carried out later,
//!   or never. This crate does not decide which: callers compare revisions, so that carrying it out twice has
//!   no effect.
#![forbid(unsafe_code)]

mod access;
pub mod fake;
mod gateway;

pub use access::{Access, AccessError};
pub use gateway::Gateway;

use std::time::Duration;

/// A point in etcd's history; 0 stands for "not there".
pub type Revision = i64;
/// Number of a lease.
pub type LeaseId = i64;

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// Its value; empty if only keys were requested.
    pub value: Vec<u8>,
    /// The revision at which it was created.
    pub created: Revision,
    /// The revision at which it was last written.
    pub modified: Revision,
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key was created at this revision and has existed since; 0: it does not exist.
    Created(Vec<u8>, Revision),
    /// The key was last put at this revision; 0: it does not exist.
    Modified(Vec<u8>, Revision),
}

/// One key, or all from the first (included) to the second (not).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Keys {
    /// One key.
    One(Vec<u8>),
    /// All keys from the first (included) to the second (excluded).
    Range(Vec<u8>, Vec<u8>),
}

impl Keys {
    /// All keys that begin with `prefix`, which must neither be empty nor end with the byte 0xff.
    pub fn below(prefix: &str) -> Keys {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        Keys::Range(prefix.as_bytes().to_vec(), end)
    }
}

/// A read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// The keys to read.
    pub keys: Keys,
    /// Most of them; 0 for all.
    pub limit: u32,
    /// Whether values are left out.
    pub keys_only: bool,
    /// Whether the list begins with the last key.
    pub last_first: bool,
}

impl Get {
    /// One key.
    pub fn one(key: impl Into<Vec<u8>>) -> Get {
        Get::all(Keys::One(key.into()))
    }

    /// All of these keys, in order.
    pub fn all(keys: Keys) -> Get {
        Get { keys, limit: 0, keys_only: false, last_first: false }
    }
}

/// A step of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Puts a key, which is removed when the lease ends, if one is given.
    Put(Vec<u8>, Vec<u8>, Option<LeaseId>),
    /// Deletes keys.
    Delete(Keys),
    /// Reads keys.
    Get(Get),
}

/// All of `steps` if all comparisons hold, or else all of `otherwise`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Transaction {
    /// The conditions; all must hold.
    pub compares: Vec<Compare>,
    /// The steps if all comparisons succeed.
    pub steps: Vec<Step>,
    /// The steps if a comparison fails.
    pub otherwise: Vec<Step>,
}

/// The result of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransactionResult {
    /// Whether all comparisons held.
    pub succeeded: bool,
    /// The store's revision after the transaction, which is also that of the keys it put.
    pub revision: Revision,
    /// The result of each reading step.
    pub found: Vec<Vec<Pair>>,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No member with a quorum answered. The request may have been carried out.
    #[error("etcd cannot be reached: {0}")]
    Away(String),
    /// Its space is used up; nothing was done.
    #[error(
        "etcd's space is used up ({0}); compact and defragment it, then disarm its alarm: etcdctl compact, etcdctl defrag, \
         etcdctl alarm disarm"
    )]
    Full(String),
    /// etcd refused the request; nothing was done.
    #[error("etcd refuses: {0}")]
    Refused(String),
}

/// A store of keys like etcd. Calls block and may come from any thread.
pub trait Kv: Send + Sync {
    /// Carries out a transaction.
    ///
    /// # Errors
    /// [`EtcdError`]
    fn transact(&self, transaction: &Transaction) -> Result<TransactionResult, EtcdError>;

    /// Reads, linearizably.
    ///
    /// # Errors
    /// [`EtcdError`]
    fn get(&self, get: &Get) -> Result<Vec<Pair>, EtcdError>;

    /// A new lease, which ends after `term` unless it is renewed.
    ///
    /// # Errors
    /// [`EtcdError`]
    fn grant(&self, term: Duration) -> Result<LeaseId, EtcdError>;

    /// Keeps a lease alive for another term from now on; the term, or `None` if the lease has ended.
    ///
    /// # Errors
    /// [`EtcdError`]
    fn keep_alive(&self, lease: LeaseId) -> Result<Option<Duration>, EtcdError>;

    /// Ends a lease, and all keys with it.
    ///
    /// # Errors
    /// [`EtcdError`]
    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError>;

    /// The store's name for messages.
    fn describe(&self) -> String;
}
