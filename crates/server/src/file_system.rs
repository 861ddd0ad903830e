//! One file system on a server: its sequencer, its log of updates, its proof of identity, and what happens to
//! each ordering request.
//!
//! The steps of every request that changes something: check outside the lock; under the lock let the sequencer decide
//! and append its records to the log; after the lock one group commit, by the caller; then the reply. So records are in
//! the log in the order in which the sequencer made them, and no thread waits for a disk while it holds the lock.
//!
//! If appending fails (the disk is full), the sequencer in memory is ahead of the log. It is then discarded and made
//! again from the log before it decides anything more.

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

/// How long after its last commit a device receives pushes of what others do, in milliseconds.
const AT_WORK_MS: u64 = 10_000;
/// What takes more bytes is not pushed: memory for so much is set aside while a client waits for recalls.
const PUSH_BYTES_MAX: usize = 60 << 10;

/// One file system that this server serves.
pub struct FileSystem {
    /// What it shares with the others of this server.
    resources: Arc<Resources>,
    pub(crate) id: Digest,
    superuser: PublicKey,
    /// Where its order is stored.
    pub(crate) order: Arc<dyn Order>,
    ledger: Mutex<Ledger>,
    /// Active devices by key, as of the membership in force; so that most requests need no lock on the order.
    devices: RwLock<Active>,
    settled: Notify,
    /// Counts how often an operation has settled.
    settled_count: AtomicU64,
    /// When each device committed something last, in milliseconds of the host's clock.
    worked: Mutex<HashMap<DeviceId, u64>>,
    locks: Mutex<LockTable>,
    /// It is noted that locks may be held.
    locks_noted: AtomicBool,
    lock_changes: Notify,
    leases: Arc<Leases>,
    /// It is served no more by what is in memory here.
    has_ended: watch::Sender<bool>,
    /// What witnesses have co-signed.
    heads: Mutex<Heads>,
}

/// The devices and keys of the membership in force.
struct Active {
    /// Version of the membership.
    version: u64,
    by_key: HashMap<PublicKey, DeviceId>,
}

/// What may have been held when the server ended.
pub(crate) struct InheritedState {
    /// Clients may have held locks.
    pub(crate) locks_held: bool,
    /// Which sessions may hold leases, and for how many milliseconds still.
    pub(crate) leases: (u64, Vec<NotedSession>),
    /// A lease epoch that is greater than after any earlier start. If the clock was set back it may not be; then the
    /// server takes a client's old leases for known ones, until the client's next lease request corrects that.
    pub(crate) first_epoch: u64,
}

impl FileSystem {
    /// Opens a file system; `None` when its creation was never acknowledged.
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
        // Leases of a removed device need not be waited for.
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

    /// Begins a file system with its founding operation, durable with the next sync.
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

    /// Stores blocks that came with an operation; they become durable with its record.
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

    /// The receipt of the founding operation, if it is this one.
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

    /// Whether a device may undo what another has requested: both are of the same user, or the first is the
    /// superuser's.
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

    /// The receipt of a declaration that was taken already, if it is this one.
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

    /// Whether a device has committed something lately: it is likely to sign again soon.
    pub(crate) fn is_at_work(&self, device: DeviceId) -> bool {
        let at_ms = self.worked.lock().get(&device).copied();
        at_ms.is_some_and(|at_ms| self.now_ms() < at_ms.saturating_add(AT_WORK_MS))
    }

    /// The present view, for a device at work that has accepted a log of `log_size` leaves, if others have changed anything since,
    /// nothing is pending, so that it can sign on it, and it is not large. The caller makes it durable before it answers.
    pub(crate) fn push(&self, device: DeviceId, log_size: u64) -> Result<Option<Difference>, RequestError> {
        if !self.is_at_work(device) {
            return Ok(None);
        }
        let prepared = {
            let ledger = self.current()?;
            let sequencer = ledger.sequencer();
            // After an operation of its own it has accepted that, too.
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

    /// Completes when some operation has settled after the call. To be called before [`Self::operation_status`], so
    /// that nothing is missed.
    pub(crate) fn next_settled(&self) -> tokio::sync::futures::Notified<'_> {
        self.settled.notified()
    }

    /// How often some operation has settled.
    pub(crate) fn settled_count(&self) -> u64 {
        self.settled_count.load(Ordering::Relaxed)
    }

    pub(crate) fn tell_waiters(&self) {
        self.settled_count.fetch_add(1, Ordering::Relaxed);
        self.settled.notify_waiters();
    }

    /// Whether enough has happened since the last checkpoint for the next.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.ledger.lock().records_since_checkpoint() >= self.resources.settings.checkpoint_records
    }

    /// Whether anything has happened since the last checkpoint.
    pub(crate) fn has_uncheckpointed(&self) -> bool {
        self.ledger.lock().records_since_checkpoint() > 0
    }

    /// Writes a checkpoint of the order, durably. Without one the log keeps everything.
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
        // What is saved of past states must not be ahead of the log.
        self.sync()?;
        // Only the active server knows everything that is in use, so only it may collect.
        if self.active_status() != ActiveStatus::Active {
            return Err(ServerError::Elsewhere(None).into());
        }
        let now_ns = self.resources.clock.wall_ns();
        let roots = self.ledger.lock().roots(&*self.order, now_ns, window_ns)?;
        // The heads noted must be durable before what they replace can go.
        self.sync()?;
        let short = self.near_limits()?;
        Ok(self.blocks().collect(self.id, &roots, &short, now_ns)?)
    }

    /// The ledger, made again from the log if an append had failed.
    fn current(&self) -> Result<MutexGuard<'_, Ledger>, RequestError> {
        let mut ledger = self.ledger.lock();
        if ledger.is_stale() {
            ledger.reload(&*self.order, self.now_ms())?;
            *self.devices.write() = devices_of(ledger.sequencer().membership());
        }
        Ok(ledger)
    }

    /// Whether this server may speak for it.
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

    /// Completes when it has ended here.
    pub(crate) async fn ended(&self) {
        // The sender is this file system's own.
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
