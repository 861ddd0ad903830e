//! One file system on a server: its sequencer, its log of updates, its list of server keys, and how each
//! ordering request is carried out.
//!
//! A request that changes something goes through these steps. It is checked without the lock. Under the lock,
//! the sequencer decides and its records are appended to the log. After the lock is released, the caller
//! makes the log durable with one group commit, and then replies. So records are in the log in the order in
//! which the sequencer made them, and no thread waits for a disk while it holds the lock.
//!
//! If appending fails (because the disk is full, for example), the sequencer in memory is ahead of the log.
//! It is then discarded and made again from the log before it decides anything more.

mod checks;
mod heads;
mod hints;
mod history;
mod holds;
mod lease_state;
mod leases;
mod ledger;
mod locks;
mod operations;
mod prepared_view;
mod quotas;
mod rebuild;
mod second_tree;

pub(crate) use checks::Author;
pub(crate) use lease_state::Claim;

use crate::block_store::BlockStore;
use crate::error::OpenError;
use crate::notes::NotedSession;
use crate::order::{ActiveStatus, Order};
use crate::refusal::{RequestError, refuse};
use crate::resources::Resources;
use checks::{Blocks, announced_membership, check_handles, check_server_keys};
use holdfast_content::{DeviceId, Membership, PrincipalId, UserId};
use holdfast_crypto::{Digest, PublicKey};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::locks::{LEASE_MS, LockTable};
use holdfast_protocol::message::{Receipt, Response, ServerError, ServerKeys, ViewReply};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::sequencer::{OrderingStatus, Sequencer, Step};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::Structure;
use holdfast_store::{Allowance, CollectReport};
use lease_state::Leases;
use ledger::Ledger;
use parking_lot::{Mutex, MutexGuard, RwLock};
use prepared_view::PreparedView;
use second_tree::Heads;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::{Notify, watch};
use tracing::trace_span;

/// For how long after its last commit a device receives pushes of other devices' changes, in milliseconds.
const AT_WORK_MS: u64 = 10_000;
/// Largest view that is pushed, in bytes: a client that waits for recalls sets aside memory for so much.
const PUSH_BYTES_MAX: usize = 60 << 10;

/// One file system that this server serves.
pub struct FileSystem {
    /// What all file systems of this server share.
    resources: Arc<Resources>,
    pub(crate) id: Digest,
    superuser: PublicKey,
    /// Where the file system's order is stored.
    pub(crate) order: Arc<dyn Order>,
    ledger: Mutex<Ledger>,
    /// Active devices by key, in the membership in force. Most requests need only this, and so no lock on the
    /// order.
    devices: RwLock<Active>,
    settled: Notify,
    /// Counts how often an operation has settled.
    settled_count: AtomicU64,
    /// When each device committed its last operation, in milliseconds of the monotonic clock.
    worked: Mutex<HashMap<DeviceId, u64>>,
    locks: Mutex<LockTable>,
    /// Whether it is noted durably that locks may be held.
    locks_noted: AtomicBool,
    lock_changes: Notify,
    leases: Arc<Leases>,
    /// Whether this process has stopped serving the file system.
    has_ended: watch::Sender<bool>,
    /// The heads that witnesses have co-signed.
    heads: Mutex<Heads>,
}

/// The devices and keys of the membership in force.
struct Active {
    /// Version of the membership.
    version: u64,
    by_key: HashMap<PublicKey, DeviceId>,
}

/// The locks and leases that clients may have held when the server ended.
pub(crate) struct InheritedState {
    /// Whether clients may have held locks.
    pub(crate) locks_held: bool,
    /// For how many milliseconds leases may still be held, and by which sessions.
    pub(crate) leases: (u64, Vec<NotedSession>),
    /// A lease epoch greater than any of an earlier start. If the clock was set back, it may not be. The
    /// server then takes leases of an earlier start for present ones until the client's next lease request
    /// corrects that.
    pub(crate) first_epoch: u64,
}

impl FileSystem {
    /// Opens a file system. Returns `None` if its creation was never acknowledged.
    pub(crate) fn open(
        resources: Arc<Resources>,
        order: Arc<dyn Order>,
        id: Digest,
        before: InheritedState,
    ) -> Result<Option<FileSystem>, OpenError> {
        let now_ms = resources.clock.monotonic_ms();
        let ledger = Ledger::open(&*order, id, resources.abort_after_ms(), now_ms, &resources.keeping())?;
        Ok(ledger.map(|ledger| FileSystem::new(resources, order, ledger, &before)))
    }

    fn new(
        resources: Arc<Resources>,
        order: Arc<dyn Order>,
        ledger: Ledger,
        before: &InheritedState,
    ) -> FileSystem {
        let now_ms = resources.clock.monotonic_ms();
        let grace_until_ms = if before.locks_held { now_ms + LEASE_MS } else { 0 };
        let (left_ms, holders) = &before.leases;
        let first_epoch = before.first_epoch;
        let sequencer = ledger.sequencer();
        // A removed device can change nothing, so nobody need wait for its leases.
        let is_member = |session: &&NotedSession| sequencer.membership().is_active(session.id().device);
        let holders: Vec<NotedSession> = holders.iter().filter(is_member).copied().collect();
        FileSystem {
            id: sequencer.file_system(),
            superuser: sequencer.superuser(),
            devices: RwLock::new(devices_of(sequencer.membership())),
            ledger: Mutex::new(ledger),
            order,
            has_ended: watch::Sender::new(false),
            settled: Notify::new(),
            settled_count: AtomicU64::new(0),
            worked: Mutex::default(),
            locks: Mutex::new(LockTable::new(first_epoch, grace_until_ms)),
            locks_noted: AtomicBool::new(before.locks_held),
            lock_changes: Notify::new(),
            leases: Arc::new(Leases::new(resources.lease_ms(), first_epoch, &holders, *left_ms, now_ms)),
            heads: Mutex::default(),
            resources,
        }
    }

    /// Begins a file system with its founding operation. It is durable after the next sync.
    pub(crate) fn create(
        resources: Arc<Resources>,
        order: Arc<dyn Order>,
        superuser: PublicKey,
        server_keys: Signed<ServerKeys>,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
    ) -> Result<(FileSystem, Receipt), RequestError> {
        let id = superuser.file_system_id();
        check_server_keys(&server_keys, id, &superuser, &resources.server_key())?;
        let membership = announced_membership(&resources, id, &certificate.value, &given)?;
        let Some(membership) = membership else {
            return refuse("the founding operation brings no membership");
        };
        check_handles(&resources, id, &structure.value, None, &given)?;
        let abort_after_ms = resources.abort_after_ms();
        let step = Sequencer::create(superuser, certificate, structure, membership, abort_after_ms)?;
        resources.store_attached(id, DeviceId::SUPERUSER, given, None)?;
        let Step { answer: (sequencer, receipt), records, nodes } = step;
        let keeping = resources.keeping();
        let ledger =
            Ledger::create(&*order, sequencer, abort_after_ms, server_keys, &records, nodes, &keeping)?;
        let first_epoch = resources.clock.wall_ns().unsigned_abs();
        let before = InheritedState { locks_held: false, leases: (0, Vec::new()), first_epoch };
        Ok((FileSystem::new(resources, order, ledger, &before), receipt))
    }

    fn now_ms(&self) -> u64 {
        self.resources.clock.monotonic_ms()
    }

    fn blocks(&self) -> &dyn BlockStore {
        &*self.resources.blocks
    }

    /// Makes everything appended so far durable.
    pub(crate) fn sync(&self) -> Result<(), RequestError> {
        let _span = trace_span!(target: "operation", "sync").entered();
        self.resources.sync_order(&*self.order)
    }

    /// Stores blocks that came with an operation. They become durable together with the operation's record.
    fn store_attached(
        &self,
        device: DeviceId,
        blocks: Blocks,
        allowance: Option<Allowance>,
    ) -> Result<(), RequestError> {
        self.resources.store_attached(self.id, device, blocks, allowance)
    }

    fn may_write(&self, device: DeviceId, principal: PrincipalId) -> bool {
        self.ledger.lock().sequencer().membership().may_write(device, principal)
    }

    /// The receipt of the founding operation, if `structure` is that operation's.
    pub(crate) fn founding_receipt(&self, structure: &Signed<Structure>) -> Option<Receipt> {
        match self.ledger.lock().sequencer().standing(DeviceId::SUPERUSER, 1) {
            OrderingStatus::Committed(committed) if *committed == *structure => {
                Some(receipt_of(&structure.value))
            }
            _ => None,
        }
    }

    /// The device of a key, by the membership in force.
    pub(crate) fn device(&self, key: &PublicKey) -> Option<DeviceId> {
        self.devices.read().by_key.get(key).copied()
    }

    /// Whether a device may undo what another device has requested: both belong to the same user, or the
    /// first is a device of the superuser.
    pub(crate) fn acts_for(&self, device: DeviceId, other: DeviceId) -> bool {
        let ledger = self.ledger.lock();
        let devices = &ledger.sequencer().membership().devices;
        let user = |device| devices.get(&device).map(|device| device.user);
        user(device).is_some_and(|mine| mine == UserId::SUPERUSER || user(other) == Some(mine))
    }

    /// What a client needs to believe that this server may serve the file system.
    pub(crate) fn proof(&self) -> (PublicKey, Signed<ServerKeys>) {
        (self.superuser, self.ledger.lock().server_keys().clone())
    }

    /// Size of the log of updates.
    pub fn log_size(&self) -> u64 {
        self.ledger.lock().sequencer().log_size()
    }

    /// The file system's id.
    pub fn id(&self) -> Digest {
        self.id
    }

    /// The epoch that operations and heads name.
    pub(crate) fn epoch(&self) -> Digest {
        self.ledger.lock().sequencer().epoch()
    }

    /// The receipt for a declared restore, if `structure` is its structure and was accepted already.
    pub(crate) fn declared(&self, structure: &Signed<Structure>) -> Option<Receipt> {
        let ledger = self.ledger.lock();
        let slot = ledger.sequencer().slot(structure.value.device());
        slot.filter(|slot| *slot == structure).map(|slot| receipt_of(&slot.value))
    }

    pub(crate) fn set_server_keys(
        &self,
        list: Signed<ServerKeys>,
        peer: &PublicKey,
    ) -> Result<(), RequestError> {
        if *peer != self.superuser {
            let why = "only the superuser may replace the list of server keys".to_owned();
            return Err(ServerError::NotAllowed(why).into());
        }
        check_server_keys(&list, self.id, &self.superuser, &self.resources.server_key())?;
        let mut ledger = self.ledger.lock();
        let present = ledger.server_keys();
        if *present == list {
            return Ok(());
        }
        if list.value.sequence <= present.value.sequence {
            let sequence = present.value.sequence;
            return refuse(format!("the list in force has number {sequence}; a new one must have a higher"));
        }
        ledger.set_server_keys(&*self.order, list)
    }

    pub(crate) fn look(&self, device: DeviceId, log_size: u64) -> Result<Box<ViewReply>, RequestError> {
        let prepared = {
            let ledger = self.current()?;
            PreparedView::new(&ledger, Box::new(ledger.sequencer().look()), device, log_size)?
        };
        Ok(prepared.whole(self.blocks(), self.id))
    }

    /// Whether a device has committed something within [`AT_WORK_MS`], so that it is likely to sign again
    /// soon.
    pub(crate) fn is_at_work(&self, device: DeviceId) -> bool {
        let at_ms = self.worked.lock().get(&device).copied();
        at_ms.is_some_and(|at_ms| self.now_ms() < at_ms.saturating_add(AT_WORK_MS))
    }

    /// The present view as a difference, for a device at work that has accepted a log of `log_size` leaves.
    /// Returns `None` if the device is not at work, if nothing has changed since, if an operation is pending
    /// (so that the device could not sign on this view), or if the difference is larger than
    /// [`PUSH_BYTES_MAX`]. The caller makes the view durable before it sends it.
    pub(crate) fn push(&self, device: DeviceId, log_size: u64) -> Result<Option<Difference>, RequestError> {
        if !self.is_at_work(device) {
            return Ok(None);
        }
        let prepared = {
            let ledger = self.current()?;
            let sequencer = ledger.sequencer();
            // A device that has committed an operation has accepted the log up to that operation.
            let own = sequencer.slot(device).map_or(0, |slot| slot.value.forecast.log.size + 1);
            let since = log_size.max(own);
            if since >= sequencer.log_size() || !sequencer.is_quiet() {
                return Ok(None);
            }
            PreparedView::new(&ledger, Box::new(sequencer.look()), device, since)?
        };
        let difference = prepared.difference(self.blocks(), self.id);
        Ok(Some(difference).filter(|difference| difference.packed_bytes() <= PUSH_BYTES_MAX))
    }

    /// The status of an operation; `None` while it is pending. The caller makes it durable before it replies.
    pub(crate) fn operation_status(
        &self,
        device: DeviceId,
        number: u64,
    ) -> Result<Option<Response>, RequestError> {
        Ok(match self.current()?.sequencer().standing(device, number) {
            OrderingStatus::Pending => None,
            OrderingStatus::Committed(structure) => Some(Response::Structure(Some(structure))),
            OrderingStatus::Gone => Some(Response::Structure(None)),
        })
    }

    /// A future that completes when some operation settles after this call. Callers create it before they
    /// call [`Self::operation_status`], so that they miss nothing.
    pub(crate) fn next_settled(&self) -> tokio::sync::futures::Notified<'_> {
        self.settled.notified()
    }

    /// Counts the operations that have settled; only changes of it mean something.
    pub(crate) fn settled_count(&self) -> u64 {
        self.settled_count.load(Ordering::Relaxed)
    }

    pub(crate) fn tell_waiters(&self) {
        self.settled_count.fetch_add(1, Ordering::Relaxed);
        self.settled.notify_waiters();
    }

    /// Whether enough records were written since the last checkpoint to write another.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.ledger.lock().records_since_checkpoint() >= self.resources.settings.checkpoint_records
    }

    /// Whether any record was written since the last checkpoint.
    pub(crate) fn has_uncheckpointed(&self) -> bool {
        self.ledger.lock().records_since_checkpoint() > 0
    }

    /// Writes a checkpoint of the order, durably. If that fails, it logs a warning: the log then stays as
    /// long as it is.
    pub(crate) fn checkpoint(&self) {
        match self.write_checkpoint().and_then(|()| self.sync()) {
            Ok(()) => tracing::debug!(file_system = %self.id, "checkpoint of the order"),
            Err(refused) => {
                let error = refused.into_error();
                tracing::warn!(file_system = %self.id, %error, "no checkpoint; the log keeps everything");
            }
        }
    }

    fn write_checkpoint(&self) -> Result<(), RequestError> {
        self.ledger.lock().checkpoint(&*self.order)?;
        if let Err(refused) = self.heads.lock().persist() {
            let error = refused.into_error();
            tracing::warn!(%error, "the tree that witnesses know is not on disk; it can be made again");
        }
        Ok(())
    }

    /// Collects garbage: blocks that nothing has referred to for `window_ns`.
    pub(crate) fn collect(&self, window_ns: i64) -> Result<CollectReport, RequestError> {
        // Saved past states must not refer to more than the durable log contains.
        self.sync()?;
        // Only the active server knows everything that is in use, so only it may collect.
        if self.active_status() != ActiveStatus::Active {
            return Err(ServerError::Elsewhere(None).into());
        }
        let now_ns = self.resources.clock.wall_ns();
        let roots = self.ledger.lock().roots(&*self.order, now_ns, window_ns)?;
        // The noted heads must be durable before blocks are removed that only older notes keep.
        self.sync()?;
        let short = self.near_limits()?;
        Ok(self.blocks().collect(self.id, &roots, &short, now_ns)?)
    }

    /// The ledger. If an append has failed, the ledger is first made again from the log.
    fn current(&self) -> Result<MutexGuard<'_, Ledger>, RequestError> {
        let mut ledger = self.ledger.lock();
        if ledger.is_stale() {
            ledger.reload(&*self.order, self.now_ms())?;
            *self.devices.write() = devices_of(ledger.sequencer().membership());
        }
        Ok(ledger)
    }

    /// Whether this server is the active one of the file system.
    pub(crate) fn active_status(&self) -> ActiveStatus {
        match *self.has_ended.borrow() {
            true => ActiveStatus::Lost,
            false => self.order.active_status(),
        }
    }

    /// Stops serving the file system here: connected clients have to find its active server again.
    pub(crate) fn end(&self) {
        self.has_ended.send_replace(true);
        self.settled.notify_waiters();
    }

    /// Completes when this process has stopped serving the file system.
    pub(crate) async fn ended(&self) {
        // The sender lives as long as this file system, so the wait cannot fail.
        let _ = self.has_ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Removes the notes stored with the order if no lock or lease is held.
    pub(crate) fn settle_notes(&self) {
        let Some(notes) = self.order.notes() else { return };
        let is_free = [("locks", !self.holds_locks()), ("leases", self.is_unleased())];
        for (name, _) in is_free.into_iter().filter(|(_, is_free)| *is_free) {
            if let Err(error) = notes.put(name, "") {
                tracing::debug!(file_system = %self.id, name, %error, "the next server waits for nobody");
            }
        }
    }

    /// Notes, durably, that locks may be held.
    fn note_locks(&self) -> Result<(), RequestError> {
        let Some(notes) = self.order.notes() else {
            return self
                .resources
                .locks_note
                .set()
                .map_err(|error| ServerError::Storage(error.to_string()).into());
        };
        if !self.locks_noted.load(Ordering::Acquire) {
            notes.put("locks", "held")?;
            self.locks_noted.store(true, Ordering::Release);
        }
        Ok(())
    }
}

fn devices_of(membership: &Membership) -> Active {
    let active = membership.devices.iter().filter(|(device, _)| membership.is_active(**device));
    Active { version: membership.version, by_key: active.map(|(id, device)| (device.key, *id)).collect() }
}

fn receipt_of(structure: &Structure) -> Receipt {
    Receipt {
        file_system: structure.forecast.file_system,
        device: structure.device(),
        number: structure.number(),
        structure: structure.digest(),
    }
}
