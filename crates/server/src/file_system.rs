//! One file system on a server: its sequencer, its log of updates, its proof of identity, and what happens to
//! each ordering request.
//!
//! The steps of every request that changes something: check outside the lock; under the lock let the sequencer decide
//! and append its records to the log; after the lock one group commit, by the caller; then the reply. So records are in
//! the log in the order in which the sequencer made them, and no thread waits for a disk while it holds the lock.
//!
//! If appending fails (the disk is full), the sequencer in memory is ahead of the log. It is then discarded and made
//! again from the log before it decides anything more.

mod heads;
mod hints;
mod history;
pub(crate) mod leases;
mod ledger;
mod locks;
mod prepared_view;
mod quotas;
mod rebuild;

pub(crate) use leases::{Claim, LeasesNote, NotedSession, inherited};
pub(crate) use locks::LocksNote;

use crate::block_store;
use crate::blocks;
use crate::error::OpenError;
use crate::history_file::HistoryRetention;
use crate::order::{ActiveStatus, Order};
use crate::refusal::{RequestError, refuse};
use crate::server_core::{Caller, Clock, ServerCore};
use heads::Heads;
use holdfast_content::{
    BODY_BYTES_MAX, Block, BlockKind, DeviceId, Membership, PrincipalId, Reference, StoredBlock, UserId,
};
use holdfast_crypto::{Digest, DigestKey, PublicKey};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::leases::{LeaseGrant, LeaseRequest};
use holdfast_protocol::locks::{LEASE_MS, LockTable};
use holdfast_protocol::message::{Receipt, Response, ServerError, ServerKeys, ViewReply};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::sequencer::{
    CommitOutcome, FastOutcome, OrderingStatus, Sequencer, Step, UpdateOutcome,
};
use holdfast_protocol::signed::{Signable, Signed, Verified};
use holdfast_protocol::structure::Structure;
use holdfast_store::Allowance;
use leases::Leases;
use ledger::Ledger;
use parking_lot::{Mutex, MutexGuard, RwLock};
use prepared_view::PreparedView;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How long after its last commit a device receives pushes of what others do, in milliseconds.
const AT_WORK_MS: u64 = 10_000;
/// What takes more bytes is not pushed: memory for so much is set aside while a client waits for recalls.
const PUSH_BYTES_MAX: usize = 60 << 10;
/// Most server keys in a list.
const SERVER_KEYS_MAX: usize = 64;

type Blocks = Vec<(Digest, StoredBlock)>;

/// One file system that this server serves.
pub struct FileSystem {
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
    leases: Leases,
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

/// What may have been held when the server ended, and the settings of leases from now on.
pub(crate) struct InheritedState {
    /// Clients may have held locks.
    pub(crate) locks_held: bool,
    /// Which sessions may hold leases, and for how many milliseconds still.
    pub(crate) leases: (u64, Vec<NotedSession>),
    /// How long new ones last, in milliseconds.
    pub(crate) lease_ms: u64,
    /// The retention of past states.
    pub(crate) keeping: HistoryRetention,
    /// A lease epoch that is greater than after any earlier start. If the clock was set back it may not be; then the
    /// server takes a client's old leases for known ones, until the client's next lease request corrects that.
    pub(crate) first_epoch: u64,
}

impl FileSystem {
    pub(crate) fn open(
        order: Arc<dyn Order>,
        id: Digest,
        abort_after: Duration,
        clock: &dyn Clock,
        before: InheritedState,
    ) -> Result<Option<FileSystem>, OpenError> {
        let now_ms = clock.monotonic_ms();
        let abort_after_ms = abort_after.as_millis() as u64;
        let ledger = Ledger::open(&*order, id, abort_after_ms, now_ms, &before.keeping)?;
        Ok(ledger.map(|ledger| FileSystem::new(order, ledger, clock, &before)))
    }

    fn new(order: Arc<dyn Order>, ledger: Ledger, clock: &dyn Clock, before: &InheritedState) -> FileSystem {
        let now_ms = clock.monotonic_ms();
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
            leases: Leases::new(before.lease_ms, first_epoch, &holders, *left_ms, now_ms),
            heads: Mutex::default(),
        }
    }

    fn may_write(&self, device: DeviceId, principal: PrincipalId) -> bool {
        self.ledger.lock().sequencer().membership().may_write(device, principal)
    }

    #[allow(clippy::too_many_arguments)] // The message's own fields.
    pub(crate) fn create(
        core: &ServerCore,
        order: Arc<dyn Order>,
        superuser: PublicKey,
        server_keys: Signed<ServerKeys>,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
        abort_after: Duration,
        lease_term: Duration,
    ) -> Result<(FileSystem, Receipt), RequestError> {
        let id = superuser.file_system_id();
        check_server_keys(&server_keys, id, &superuser, &core.server_key())?;
        let membership = announced_membership(&*core.blocks, id, &certificate.value, &given)?;
        let Some(membership) = membership else {
            return refuse("the founding operation brings no membership");
        };
        check_handles(core, id, &structure.value, None, &given)?;
        let abort_after_ms = abort_after.as_millis() as u64;
        let step = Sequencer::create(superuser, certificate, structure, membership, abort_after_ms)?;
        core.store_attached(id, DeviceId::SUPERUSER, given, None)?;
        let Step { answer: (sequencer, receipt), records, nodes } = step;
        let lease_ms = lease_term.as_millis() as u64;
        let keeping = core.keeping();
        let first_epoch = core.clock.wall_ns().unsigned_abs();
        let before =
            InheritedState { locks_held: false, leases: (0, Vec::new()), lease_ms, keeping, first_epoch };
        let ledger = Ledger::create(
            &*order,
            sequencer,
            abort_after_ms,
            server_keys,
            &records,
            nodes,
            &before.keeping,
        )?;
        Ok((FileSystem::new(order, ledger, &*core.clock, &before), receipt))
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

    /// The superuser's word that this is a restored state. The caller makes it durable before it answers.
    pub(crate) fn declare_restore(
        &self,
        core: &ServerCore,
        caller: &Caller,
        device: DeviceId,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
    ) -> Result<Receipt, RequestError> {
        let certificate = verified(certificate, caller)?;
        let structure = verified(structure, caller)?;
        let membership = announced_membership(&*core.blocks, self.id, certificate.value(), &given)?;
        let Some(membership) = membership else { return refuse("a restore is declared in a membership") };
        self.check_structure(core, device, structure.value(), &given)?;
        core.store_attached(self.id, device, given, None)?;
        let mut ledger = self.current(core)?;
        let receipt = ledger.step(&*self.order, |sequencer| {
            sequencer.restored(device, &certificate, &structure, membership)
        })?;
        self.committed(core, &mut ledger, device);
        Ok(receipt)
    }

    pub(crate) fn set_server_keys(
        &self,
        list: Signed<ServerKeys>,
        peer: &PublicKey,
        own: &PublicKey,
    ) -> Result<(), RequestError> {
        if *peer != self.superuser {
            let why = "only the superuser may replace the list of server keys".to_owned();
            return Err(ServerError::NotAllowed(why).into());
        }
        check_server_keys(&list, self.id, &self.superuser, own)?;
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

    pub(crate) fn look(
        &self,
        core: &ServerCore,
        device: DeviceId,
        log_size: u64,
    ) -> Result<Box<ViewReply>, RequestError> {
        let prepared = {
            let ledger = self.current(core)?;
            PreparedView::new(&ledger, Box::new(ledger.sequencer().look()), device, log_size)?
        };
        Ok(prepared.whole(&*core.blocks, self.id))
    }

    /// Whether a device has committed something lately: it is likely to sign again soon.
    pub(crate) fn is_at_work(&self, core: &ServerCore, device: DeviceId) -> bool {
        let at_ms = self.worked.lock().get(&device).copied();
        at_ms.is_some_and(|at_ms| core.clock.monotonic_ms() < at_ms.saturating_add(AT_WORK_MS))
    }

    /// The present view, for a device at work that has accepted a log of `log_size` leaves, if others have changed anything since,
    /// nothing is pending, so that it can sign on it, and it is not large. The caller makes it durable before it answers.
    pub(crate) fn push(
        &self,
        core: &ServerCore,
        device: DeviceId,
        log_size: u64,
    ) -> Result<Option<Difference>, RequestError> {
        if !self.is_at_work(core, device) {
            return Ok(None);
        }
        let prepared = {
            let ledger = self.current(core)?;
            let sequencer = ledger.sequencer();
            // After an operation of its own it has accepted that, too.
            let own = sequencer.slot(device).map_or(0, |slot| slot.value.forecast.log.size + 1);
            let since = log_size.max(own);
            if since >= sequencer.log_size() || !sequencer.is_quiet() {
                return Ok(None);
            }
            PreparedView::new(&ledger, Box::new(sequencer.look()), device, since)?
        };
        let difference = prepared.difference(&*core.blocks, self.id);
        Ok(Some(difference).filter(|difference| difference.packed_bytes() <= PUSH_BYTES_MAX))
    }

    /// UPDATE. The caller makes it durable before it answers.
    #[allow(clippy::too_many_arguments)] // The message's own fields.
    pub(crate) fn update(
        &self,
        core: &ServerCore,
        caller: &Caller,
        device: DeviceId,
        certificate: Signed<Certificate>,
        given: Blocks,
        log_size: u64,
        by_difference: bool,
        lease_request: Option<LeaseRequest>,
    ) -> Result<(Response, Option<LeaseGrant>), RequestError> {
        let certificate = verified(certificate, caller)?;
        let number = number_of(device, certificate.value());
        let membership = announced_membership(&*core.blocks, self.id, certificate.value(), &given);
        let membership = self.or_never(core, device, number, membership)?;
        let taken = core.store_attached(self.id, device, given, self.allowance(core, device));
        self.or_never(core, device, number, taken)?;
        let now_ms = core.clock.monotonic_ms();
        let (prepared, grant) = {
            let mut ledger = self.current(core)?;
            let touched = self.if_free(core, &ledger, device, certificate.value(), lease_request.as_ref());
            let touched = touched.ok_or(ServerError::Busy)?;
            ledger.must_prove(log_size)?;
            let size = ledger.sequencer().log_size();
            let updated = ledger
                .step(&*self.order, |sequencer| sequencer.update(now_ms, device, &certificate, membership))?;
            let reply = match updated {
                UpdateOutcome::View(reply) => reply,
                UpdateOutcome::Aborted => return Ok((Response::Aborted, None)),
                UpdateOutcome::Refused => return Ok((Response::Refused, None)),
            };
            // A resent request gets the view that it got at first, which may be outdated.
            let fresh = ledger.sequencer().log_size() > size;
            let grant = self.grant(core, &ledger, device, lease_request.as_ref(), &touched, fresh);
            (PreparedView::new(&ledger, reply, device, log_size)?, grant)
        };
        let answer = match by_difference {
            true => Response::Difference(prepared.difference(&*core.blocks, self.id)),
            false => Response::View(prepared.whole(&*core.blocks, self.id)),
        };
        Ok((answer, grant))
    }

    /// COMMIT: the receipt, or `None` if the operation is dead. The caller makes it durable before it answers.
    pub(crate) fn commit(
        &self,
        core: &ServerCore,
        caller: &Caller,
        device: DeviceId,
        structure: Signed<Structure>,
        given: Blocks,
    ) -> Result<Option<Receipt>, RequestError> {
        let structure = verified(structure, caller)?;
        let number = (structure.value().device() == device).then(|| structure.value().number());
        let whole = self.check_structure(core, device, structure.value(), &given);
        self.or_never(core, device, number, whole)?;
        // What was ordered is not to fail half-way for a chunk: that is what the reserve is for.
        let allowance = self.allowance(core, device);
        let allowance = allowance.map(|all| Allowance { bytes: all.bytes + all.reserve, reserve: 0, ..all });
        let taken = core.store_attached(self.id, device, given, allowance);
        self.or_never(core, device, number, taken)?;
        let mut ledger = self.current(core)?;
        let outcome = ledger.step(&*self.order, |sequencer| sequencer.commit(device, &structure))?;
        let receipt = match outcome {
            CommitOutcome::Committed(receipt) => receipt,
            CommitOutcome::Aborted => return Ok(None),
        };
        self.committed(core, &mut ledger, device);
        Ok(Some(receipt))
    }

    /// Carries out a fast operation: the receipt, or the refusal. If `known` is given, the size of the log that the
    /// author has accepted, a refusal comes with the view it rests on. The caller makes the outcome durable before it
    /// replies.
    #[allow(clippy::too_many_arguments)] // The message's own fields.
    pub(crate) fn fast(
        &self,
        core: &ServerCore,
        caller: &Caller,
        device: DeviceId,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Blocks,
        known: Option<u64>,
        lease_request: Option<LeaseRequest>,
    ) -> Result<(Result<Receipt, Response>, Option<LeaseGrant>), RequestError> {
        let certificate = verified(certificate, caller)?;
        let structure = verified(structure, caller)?;
        let number = number_of(device, certificate.value());
        let whole =
            announced_membership(&*core.blocks, self.id, certificate.value(), &given).and_then(|members| {
                self.check_structure(core, device, structure.value(), &given)?;
                Ok(members)
            });
        let membership = self.or_never(core, device, number, whole)?;
        let taken = core.store_attached(self.id, device, given, self.allowance(core, device));
        self.or_never(core, device, number, taken)?;
        let now_ms = core.clock.monotonic_ms();
        let mut ledger = self.current(core)?;
        let touched = self.if_free(core, &ledger, device, certificate.value(), lease_request.as_ref());
        let touched = touched.ok_or(ServerError::Busy)?;
        let size = ledger.sequencer().log_size();
        let outcome = ledger.step(&*self.order, |sequencer| {
            sequencer.fast(now_ms, device, &certificate, &structure, membership)
        })?;
        let receipt = match outcome {
            FastOutcome::Accepted(receipt) => receipt,
            FastOutcome::Refused => {
                let Some(log_size) = known else { return Ok((Err(Response::Refused), None)) };
                let look = Box::new(ledger.sequencer().look());
                let prepared = PreparedView::new(&ledger, look, device, log_size)?;
                drop(ledger);
                let difference = prepared.difference(&*core.blocks, self.id);
                return Ok((Err(Response::RefusedAt(difference)), None));
            }
        };
        self.committed(core, &mut ledger, device);
        let fresh = ledger.sequencer().log_size() > size;
        let grant = self.grant(core, &ledger, device, lease_request.as_ref(), &touched, fresh);
        Ok((Ok(receipt), grant))
    }

    /// What is refused for itself is refused for good, durably, before its author hears so and gives it up: another copy
    /// of it may be waiting here for leases, with the blocks that this one lacked, and must not be taken after that.
    fn or_never<T>(
        &self,
        core: &ServerCore,
        device: DeviceId,
        number: Option<u64>,
        result: Result<T, RequestError>,
    ) -> Result<T, RequestError> {
        let for_good = |error: &ServerError| {
            matches!(
                error,
                ServerError::Invalid(_) | ServerError::NotAllowed(_) | ServerError::OverQuota { .. }
            )
        };
        match (result, number) {
            (Err(RequestError::Client(error)), Some(number)) if for_good(&error) => {
                self.current(core)?.step(&*self.order, |sequencer| Ok(sequencer.give_up(device, number)))?;
                core.commit(self)?;
                self.tell_waiters();
                Err(error.into())
            }
            (result, _) => result,
        }
    }

    /// The status of an operation; `None` while it is pending. The caller makes it durable before it replies.
    pub(crate) fn operation_status(
        &self,
        core: &ServerCore,
        device: DeviceId,
        number: u64,
    ) -> Result<Option<Response>, RequestError> {
        Ok(match self.current(core)?.sequencer().standing(device, number) {
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
    pub(crate) fn settled(&self) -> u64 {
        self.settled_count.load(Ordering::Relaxed)
    }

    pub(crate) fn tell_waiters(&self) {
        self.settled_count.fetch_add(1, Ordering::Relaxed);
        self.settled.notify_waiters();
    }

    pub(crate) fn checkpoint_due(&self, records: u64) -> bool {
        self.ledger.lock().records_since_checkpoint() >= records
    }

    /// Writes a checkpoint of the order, durable with the next commit.
    pub(crate) fn checkpoint(&self) -> Result<(), RequestError> {
        self.ledger.lock().checkpoint(&*self.order)?;
        if let Err(refused) = self.heads.lock().persist() {
            let error = refused.into_error();
            tracing::warn!(%error, "the tree that witnesses know is not on disk; it can be made again");
        }
        Ok(())
    }

    /// What garbage collection must keep: present heads and those of the last `window_ns`. Notes the present
    /// ones for later if it is time.
    pub(crate) fn roots(&self, now_ns: i64, window_ns: i64) -> Result<Vec<Digest>, RequestError> {
        self.ledger.lock().roots(&*self.order, now_ns, window_ns)
    }

    /// The ledger, made again from the log if an append had failed.
    fn current(&self, core: &ServerCore) -> Result<MutexGuard<'_, Ledger>, RequestError> {
        let mut ledger = self.ledger.lock();
        if ledger.is_stale() {
            ledger.reload(&*self.order, core.clock.monotonic_ms())?;
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
    pub(crate) fn settle_notes(&self, core: &ServerCore) {
        let Some(notes) = self.order.notes() else { return };
        let is_free = [("locks", !self.holds_locks()), ("leases", self.is_unleased(core))];
        for (name, _) in is_free.into_iter().filter(|(_, is_free)| *is_free) {
            if let Err(error) = notes.put(name, "") {
                tracing::debug!(file_system = %self.id, name, %error, "the next server waits for nobody");
            }
        }
    }

    /// Notes, durably, that locks may be held.
    fn note_locks(&self, core: &ServerCore) -> Result<(), RequestError> {
        let Some(notes) = self.order.notes() else {
            return core.locks_note.set().map_err(|error| ServerError::Storage(error.to_string()).into());
        };
        if !self.locks_noted.load(Ordering::Acquire) {
            notes.put("locks", "held")?;
            self.locks_noted.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn committed(&self, core: &ServerCore, ledger: &mut Ledger, device: DeviceId) {
        ledger.note_commit(device);
        self.worked.lock().insert(device, core.clock.monotonic_ms());
        let membership = ledger.sequencer().membership();
        if self.devices.read().version != membership.version {
            *self.devices.write() = devices_of(membership);
        }
    }

    /// A structure may name only tables that are here: a member that commits what it never stored would make
    /// the server look like one that lost data.
    fn check_structure(
        &self,
        core: &ServerCore,
        device: DeviceId,
        structure: &Structure,
        given: &Blocks,
    ) -> Result<(), RequestError> {
        if structure.device() != device {
            return refuse("the structure is another device's");
        }
        let former = self.ledger.lock().slot(device);
        check_handles(core, self.id, structure, former.as_ref().map(|slot| &slot.value), given)
    }
}

/// The number of an operation that is the device's own.
fn number_of(device: DeviceId, certificate: &Certificate) -> Option<u64> {
    (certificate.device == device).then_some(certificate.number)
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

fn verified<T: Signable>(signed: Signed<T>, caller: &Caller) -> Result<Verified<T>, RequestError> {
    match signed.verified(caller.peer) {
        Some(verified) => Ok(verified),
        None => refuse("the signature is not that of this session's key"),
    }
}

fn check_server_keys(
    list: &Signed<ServerKeys>,
    file_system: Digest,
    superuser: &PublicKey,
    own: &PublicKey,
) -> Result<(), RequestError> {
    if list.value.file_system != file_system || !list.verify(superuser) {
        return refuse("the list of server keys is not this file system's, or not signed by its superuser");
    }
    if list.value.keys.len() > SERVER_KEYS_MAX {
        return refuse(format!("more than {SERVER_KEYS_MAX} server keys"));
    }
    if !list.value.keys.contains(own) {
        return refuse("the list leaves this server's own key out: no client could reach it any more");
    }
    Ok(())
}

/// The membership that an operation brings, from the blocks given with it or stored before.
fn announced_membership(
    store: &dyn block_store::BlockStore,
    id: Digest,
    certificate: &Certificate,
    given: &Blocks,
) -> Result<Option<Membership>, RequestError> {
    let Some(reference) = certificate.new_members() else { return Ok(None) };
    let block = open_block(store, id, &reference, BlockKind::Membership, given)?;
    match Membership::from_block(&block) {
        Ok(membership) => Ok(Some(membership)),
        Err(error) => refuse(error.to_string()),
    }
}

fn open_block(
    store: &dyn block_store::BlockStore,
    id: Digest,
    reference: &Reference,
    kind: BlockKind,
    given: &Blocks,
) -> Result<Block, RequestError> {
    let attached = given.iter().find(|(address, _)| *address == reference.address);
    let block = match attached {
        Some((_, block)) => Some(block.clone()),
        None => block_store::load_one(store, id, reference.address)?,
    };
    let Some(block) = block else { return refuse(format!("block {} was never stored", reference.address)) };
    if reference.length > BODY_BYTES_MAX {
        return refuse("a reference over the block limit");
    }
    block.open(&DigestKey::WELL_KNOWN, reference, kind).or_else(|error| refuse(error.to_string()))
}

/// Checks that new tables are here and are tables, and keeps those not attached from the collector.
fn check_handles(
    core: &ServerCore,
    id: Digest,
    structure: &Structure,
    former: Option<&Structure>,
    given: &Blocks,
) -> Result<(), RequestError> {
    let mut stored_before = Vec::new();
    for (principal, handle) in &structure.handles {
        let before = former.and_then(|former| former.handles.get(principal));
        if before.is_some_and(|before| before.reference == handle.reference) {
            // In force until now, and so a root: an operation that only looks changes no table.
            continue;
        }
        let expected = match principal {
            holdfast_content::PrincipalId::Members => BlockKind::Membership,
            _ => BlockKind::Table,
        };
        let address = handle.reference.address;
        match given.iter().find(|(attached, _)| *attached == address) {
            Some((_, block)) if block.kind == expected => {}
            Some((_, block)) => {
                return refuse(format!("the table of {principal} is a {:?} block", block.kind));
            }
            None => stored_before.push(address),
        }
    }
    if stored_before.is_empty() {
        return Ok(());
    }
    blocks::check_count(stored_before.len())?;
    let here = core.blocks.renew(id, &stored_before, core.clock.wall_ns())?;
    match stored_before.iter().zip(here).find(|(_, here)| !here) {
        Some((address, _)) => refuse(format!("table {address} was never stored")),
        None => Ok(()),
    }
}
