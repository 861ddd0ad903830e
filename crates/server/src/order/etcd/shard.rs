//! The order of one file system in etcd, as the active server writes it.
//!
//! Appended records wait in memory. The first thread that commits writes all that wait (group commit).

use super::files::Files;
use super::head::{Head, TRANSACTION_BYTES, joined, parts};
use super::lease::Lease;
use super::namespace::{Namespace, now_ms, random};
use crate::order::{ActiveStatus, Notes, Order, OrderError};
use backon::{BlockingRetryable, ConstantBuilder};
use holdfast_crypto::{Digest, decode, encode};
use holdfast_etcd::{Compare, EtcdError, Get, Keys, Pair, Revision, Step, Transaction};
use holdfast_log::Storage;
use holdfast_store::RecoveredOrdering;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a commit waits for etcd before the whole state in memory is given up.
const PATIENCE: Duration = Duration::from_secs(25);
/// Pause before a request without an answer is repeated.
const PAUSE: Duration = Duration::from_millis(20);
/// For how long nothing is written after etcd has reported that it is full, in milliseconds.
const FULL_MS: u64 = 2000;
/// Most values that one request reads.
const READ_AT_ONCE: u32 = 32;

/// The order of one file system under one epoch.
#[derive(Clone)]
pub(crate) struct Shard(Arc<Inner>);

pub(super) struct Inner {
    pub(super) space: Arc<Namespace>,
    pub(super) id: Digest,
    epoch: Revision,
    lease: Arc<Lease>,
    /// Locked by the thread that changes anything in etcd.
    chain: Mutex<Chain>,
    queue: Mutex<Queue>,
    /// Whether the state in memory may differ from etcd, so that it must not be used any more.
    is_lost: AtomicBool,
}

/// The last link of the chain of changes: the next change compares it.
struct Chain {
    head: Head,
    revision: Revision,
    /// How many items of the queue are durable.
    durable: u64,
}

#[derive(Default)]
struct Queue {
    items: Vec<Item>,
    /// How many items were ever appended.
    appended: u64,
}

enum Item {
    Record(Vec<u8>),
    Checkpoint(Vec<u8>),
}

impl Shard {
    /// Opens the order under the epoch in which this server is active.
    pub(super) fn open(
        space: Arc<Namespace>,
        id: Digest,
        epoch: Revision,
        lease: Arc<Lease>,
    ) -> Result<Shard, OrderError> {
        let found = space.kv.get(&Get::one(space.of("head", &id)))?;
        let (head, revision) = match found.first() {
            None => (Head::new(), 0),
            Some(pair) => (Head::read(&pair.value)?, pair.modified),
        };
        Ok(Shard(Arc::new(Inner {
            space,
            id,
            epoch,
            lease,
            chain: Mutex::new(Chain { head, revision, durable: 0 }),
            queue: Mutex::default(),
            is_lost: AtomicBool::new(false),
        })))
    }

    /// Opens the order again under the same epoch. For use when the state in memory is lost but the server is
    /// still active.
    pub(crate) fn again(&self) -> Result<Shard, OrderError> {
        let Inner { space, id, epoch, lease, .. } = &*self.0;
        // No change of the former chain may arrive after the head was read.
        let _chain = self.0.chain.lock();
        self.0.lose();
        Shard::open(space.clone(), *id, *epoch, lease.clone())
    }

    pub(crate) fn id(&self) -> Digest {
        self.0.id
    }

    pub(crate) fn epoch(&self) -> Revision {
        self.0.epoch
    }

    /// Whether nothing was ever committed.
    pub(crate) fn is_new(&self) -> bool {
        self.0.chain.lock().revision == 0
    }

    /// Gives up the state in memory.
    pub(crate) fn lose(&self) {
        self.0.lose();
    }

    /// Whether this server is still active by its lease, even if its state in memory is lost.
    pub(crate) fn is_leased(&self) -> bool {
        self.0.lease.active_status() != ActiveStatus::Lost
    }
}

impl Inner {
    fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    fn active_status(&self) -> ActiveStatus {
        match self.is_lost.load(Ordering::Acquire) {
            true => ActiveStatus::Lost,
            false => self.lease.active_status(),
        }
    }

    /// Makes a change of its own, as the next link of the chain.
    pub(super) fn change(&self, steps: Vec<Step>) -> Result<(), OrderError> {
        let mut chain = self.chain.lock();
        let head = chain.head;
        self.link(&mut chain, head, steps)
    }

    fn link(&self, chain: &mut Chain, head: Head, mut steps: Vec<Step>) -> Result<(), OrderError> {
        let result = self.try_link(chain, head, &mut steps);
        match &result {
            // Etcd has changed nothing, so the state in memory still matches.
            Ok(()) | Err(OrderError::Full(_)) => {}
            Err(_) => self.lose(),
        }
        result
    }

    fn try_link(&self, chain: &mut Chain, head: Head, steps: &mut Vec<Step>) -> Result<(), OrderError> {
        let (head_key, active_key) = (self.space.of("head", &self.id), self.space.of("active", &self.id));
        let head = Head { token: random().map_err(OrderError::Away)?, ..head };
        let value = encode(&head);
        steps.push(Step::Put(head_key.clone(), value.clone(), None));
        let transaction = Transaction {
            compares: vec![
                Compare::Created(active_key.clone(), self.epoch),
                Compare::Modified(head_key.clone(), chain.revision),
            ],
            steps: std::mem::take(steps),
            otherwise: vec![Step::Get(Get::one(active_key)), Step::Get(Get::one(head_key))],
        };
        let start = Instant::now();
        let mut is_unknown = false;
        loop {
            if self.active_status() == ActiveStatus::Lost {
                return Err(OrderError::Lost);
            }
            let done = match self.space.kv.transact(&transaction) {
                Ok(done) => done,
                // This attempt changed nothing, but an earlier one may have.
                Err(error @ EtcdError::Full(_)) => {
                    self.space.full_until_ms.store(now_ms() + FULL_MS, Ordering::Release);
                    tracing::error!(file_system = %self.id, %error, "etcd takes nothing more");
                    return Err(if is_unknown { OrderError::Lost } else { error.into() });
                }
                Err(error @ EtcdError::Refused(_)) => return Err(error.into()),
                Err(error) if start.elapsed() > PATIENCE => {
                    tracing::error!(file_system = %self.id, %error, "given up; nothing was acknowledged");
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::warn!(file_system = %self.id, %error, "asking again");
                    is_unknown = true;
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let revision = match (done.succeeded, done.found.as_slice()) {
                (true, _) => done.revision,
                (false, [active, found]) => {
                    let ours = |pair: &&Pair| pair.created == self.epoch;
                    let written = |pair: &&Pair| pair.value == value;
                    match (active.first().filter(ours), found.first().filter(written)) {
                        // An earlier attempt succeeded, but its reply was lost.
                        (Some(_), Some(pair)) => pair.modified,
                        (None, _) => return Err(OrderError::Lost),
                        (Some(_), None) => {
                            tracing::error!(
                                file_system = %self.id,
                                "something else than the active server has changed this order in etcd"
                            );
                            return Err(OrderError::Lost);
                        }
                    }
                }
                _ => return Err(OrderError::Away("etcd's answer makes no sense".to_owned())),
            };
            (chain.head, chain.revision) = (head, revision);
            return Ok(());
        }
    }

    /// Writes `bytes` in parts under the number `head.last`. They count when the head is written, which
    /// happens together with `last_steps`.
    fn put_parts(
        &self,
        chain: &mut Chain,
        kind: &str,
        bytes: &[u8],
        head: Head,
        last_steps: Vec<Step>,
    ) -> Result<(), OrderError> {
        let key = |place: usize| self.space.key(kind, &format!("{}/{:016x}/{place:08x}", self.id, head.last));
        let mut steps = Vec::new();
        let mut room = TRANSACTION_BYTES;
        for (place, part) in parts(bytes).into_iter().enumerate() {
            if part.len() > room {
                let unchanged = chain.head;
                self.link(chain, unchanged, std::mem::take(&mut steps))?;
                room = TRANSACTION_BYTES;
            }
            room -= part.len();
            steps.push(Step::Put(key(place), part, None));
        }
        steps.extend(last_steps);
        self.link(chain, head, steps)
    }

    fn put_records(&self, chain: &mut Chain, records: &mut Vec<Vec<u8>>) -> Result<(), OrderError> {
        if records.is_empty() {
            return Ok(());
        }
        let bytes = encode(&std::mem::take(records));
        let head = Head { last: chain.head.last + 1, ..chain.head };
        self.put_parts(chain, "record", &bytes, head, Vec::new())
    }

    fn put_checkpoint(&self, chain: &mut Chain, checkpoint: &[u8]) -> Result<(), OrderError> {
        let number = chain.head.last + 1;
        let head = Head { last: number, checkpoint: number, ..chain.head };
        // The same transaction removes everything that the checkpoint replaces.
        let before = |kind: &str| {
            let from = self.space.key(kind, &format!("{}/", self.id));
            Step::Delete(Keys::Range(from, self.space.key(kind, &format!("{}/{number:016x}", self.id))))
        };
        self.put_parts(chain, "checkpoint", checkpoint, head, vec![before("record"), before("checkpoint")])
    }

    fn flush(&self, chain: &mut Chain) -> Result<(), OrderError> {
        // Without these records, the state in memory that is based on them is not valid.
        self.try_flush(chain).inspect_err(|_| self.lose())
    }

    fn try_flush(&self, chain: &mut Chain) -> Result<(), OrderError> {
        let (items, appended) = {
            let mut queue = self.queue.lock();
            (std::mem::take(&mut queue.items), queue.appended)
        };
        let mut records = Vec::new();
        for item in items {
            match item {
                Item::Record(record) => records.push(record),
                Item::Checkpoint(checkpoint) => {
                    self.put_records(chain, &mut records)?;
                    self.put_checkpoint(chain, &checkpoint)?;
                }
            }
        }
        self.put_records(chain, &mut records)?;
        chain.durable = appended;
        Ok(())
    }

    fn enqueue(&self, item: Item) -> Result<(), OrderError> {
        if now_ms() < self.space.full_until_ms.load(Ordering::Acquire) {
            return Err(OrderError::Full("etcd's space is used up".to_owned()));
        }
        let mut queue = self.queue.lock();
        queue.items.push(item);
        queue.appended += 1;
        Ok(())
    }

    /// Reads the values of a range of keys, in order, a few at a time.
    pub(super) fn each(
        &self,
        from: Vec<u8>,
        to: Vec<u8>,
        mut take: impl FnMut(Pair) -> Result<(), OrderError>,
    ) -> Result<(), OrderError> {
        let mut from = from;
        loop {
            let keys = Keys::Range(from.clone(), to.clone());
            let found = self.ask(&Get { limit: READ_AT_ONCE, ..Get::all(keys) })?;
            let count = found.len() as u32;
            for pair in found {
                from = pair.key.clone();
                from.push(0);
                take(pair)?;
            }
            if count < READ_AT_ONCE {
                return Ok(());
            }
        }
    }

    /// Reads values. Tries again if etcd does not answer.
    pub(super) fn ask(&self, get: &Get) -> Result<Vec<Pair>, OrderError> {
        let start = Instant::now();
        let is_worth_another = |error: &EtcdError| {
            matches!(error, EtcdError::Away(_))
                && start.elapsed() < PATIENCE
                && self.active_status() != ActiveStatus::Lost
        };
        let pauses = ConstantBuilder::new().with_delay(PAUSE).without_max_times();
        Ok((|| self.space.kv.get(get)).retry(pauses).when(is_worth_another).call()?)
    }

    fn read(&self, head: Head) -> Result<RecoveredOrdering, OrderError> {
        let damaged = |kind: &str, number: u64, why: &dyn std::fmt::Display| {
            OrderError::Damaged(format!("{kind} {number} of its order in etcd: {why}"))
        };
        let key = |kind: &str, number: u64| self.space.key(kind, &format!("{}/{number:016x}", self.id));
        let mut checkpoint = None;
        if head.checkpoint > 0 {
            let mut values = Vec::new();
            let (from, to) = (key("checkpoint", head.checkpoint), key("checkpoint", head.checkpoint + 1));
            self.each(from, to, |pair| {
                values.push(pair.value);
                Ok(())
            })?;
            let joined = joined(values.iter().map(Vec::as_slice));
            checkpoint = Some(joined.map_err(|why| damaged("checkpoint", head.checkpoint, &why))?);
        }
        let mut batches: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        self.each(key("record", head.checkpoint + 1), key("record", head.last + 1), |pair| {
            let text = String::from_utf8_lossy(&pair.key).into_owned();
            let number = text.rsplit('/').nth(1).and_then(|number| u64::from_str_radix(number, 16).ok());
            batches.entry(number.unwrap_or(0)).or_default().push(pair.value);
            Ok(())
        })?;
        let mut records = Vec::new();
        for number in head.checkpoint + 1..=head.last {
            let values = batches.remove(&number).unwrap_or_default();
            let bytes =
                joined(values.iter().map(Vec::as_slice)).map_err(|why| damaged("record", number, &why))?;
            let batch: Vec<Vec<u8>> = decode(&bytes).map_err(|error| damaged("record", number, &error))?;
            records.extend(batch);
        }
        Ok((checkpoint, records))
    }
}

impl Order for Shard {
    fn append(&self, record: &[u8]) -> Result<(), OrderError> {
        self.0.enqueue(Item::Record(record.to_vec()))
    }

    fn checkpoint(&self, checkpoint: &[u8]) -> Result<(), OrderError> {
        self.0.enqueue(Item::Checkpoint(checkpoint.to_vec()))
    }

    fn recover(&self) -> Result<RecoveredOrdering, OrderError> {
        let mut chain = self.0.chain.lock();
        self.0.flush(&mut chain)?;
        let found = self.0.read(chain.head);
        // Another server that is active now may have deleted some of it meanwhile.
        match (found, self.0.active_status()) {
            (_, ActiveStatus::Lost) => Err(OrderError::Lost),
            (Err(OrderError::Damaged(why)), ActiveStatus::Unsure) => Err(OrderError::Away(why)),
            (found, _) => found,
        }
    }

    fn commit(&self) -> Result<(), OrderError> {
        let target = self.0.queue.lock().appended;
        let mut chain = self.0.chain.lock();
        if self.0.active_status() == ActiveStatus::Lost {
            return Err(OrderError::Lost);
        }
        match chain.durable >= target {
            true => Ok(()),
            false => self.0.flush(&mut chain),
        }
    }

    fn files(&self) -> Arc<dyn Storage> {
        Arc::new(Files::of(self.0.clone()))
    }

    fn active_status(&self) -> ActiveStatus {
        self.0.active_status()
    }

    fn notes(&self) -> Option<&dyn Notes> {
        Some(self)
    }
}

impl Notes for Shard {
    fn put(&self, name: &str, text: &str) -> Result<(), OrderError> {
        let key = self.0.space.key("note", &format!("{}/{name}", self.0.id));
        self.0.change(vec![Step::Put(key, text.into(), None)])
    }

    fn text(&self, name: &str) -> Result<Option<String>, OrderError> {
        let found = self.0.ask(&Get::one(self.0.space.key("note", &format!("{}/{name}", self.0.id))))?;
        Ok(found.into_iter().next().map(|pair| String::from_utf8_lossy(&pair.value).into_owned()))
    }
}
