//! The keys of all file systems below a prefix of etcd.

use crate::order::OrderError;
use holdfast_crypto::Digest;
use holdfast_etcd::{EtcdError, Keys, Kv};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The lease term: for how long a server that has stopped still counts as active.
pub(crate) const TERM: Duration = Duration::from_secs(3);

/// Milliseconds of a clock that also advances while the machine sleeps.
pub(crate) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

/// What all file systems under a prefix share.
pub(crate) struct Namespace {
    pub(crate) kv: Box<dyn Kv>,
    prefix: String,
    /// Until when nothing is written, because etcd's space is used up, in milliseconds of the monotonic
    /// clock.
    pub(super) full_until_ms: AtomicU64,
}

impl Namespace {
    pub(super) fn new(kv: Box<dyn Kv>, prefix: &str) -> Namespace {
        Namespace { kv, prefix: prefix.to_owned(), full_until_ms: AtomicU64::new(0) }
    }

    pub(super) fn key(&self, kind: &str, rest: &str) -> Vec<u8> {
        format!("{}/{kind}/{rest}", self.prefix).into_bytes()
    }

    pub(super) fn moved(&self) -> Vec<u8> {
        format!("{}/moved", self.prefix).into_bytes()
    }

    pub(super) fn of(&self, kind: &str, id: &Digest) -> Vec<u8> {
        self.key(kind, &id.to_string())
    }

    pub(super) fn below(&self, kind: &str) -> Keys {
        Keys::below(&format!("{}/{kind}/", self.prefix))
    }
}

impl From<EtcdError> for OrderError {
    fn from(error: EtcdError) -> Self {
        match error {
            EtcdError::Full(_) => OrderError::Full(error.to_string()),
            EtcdError::Away(_) | EtcdError::Refused(_) => OrderError::Away(error.to_string()),
        }
    }
}

pub(super) fn random() -> Result<[u8; 16], String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
