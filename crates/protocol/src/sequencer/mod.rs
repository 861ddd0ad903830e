//! The consistency server of one file system: it orders operations, presents views, and checks clients (SUNDR
//! 5.3).
//!
//! Pure: time is an argument in milliseconds, and durability is returned as records. Invariants:
//! - State changes only in `apply`, one [`OrderingRecord`] at a time. So replaying the records gives the
//!   same state, the same replies and the same log of updates.
//! - An answer leaves only after the records returned with it, and all earlier ones, are durable. The
//!   driver must treat a failed flush as fatal.
//! - A repeated request gets the same answer and is never applied twice. A refused number stays refused, so
//!   a late duplicate does no harm.
//! - A client that breaks the rules harms nobody: its request is refused before any state changes.
//!
//! Attacks answered: malicious users who replay, forge, misnumber or oversize requests, or advance tables
//! that they may not write, to make an honest server look like a lying one.

mod after_restore;
mod client_checks;
mod record;
#[cfg(test)]
mod tests;

use crate::certificate::{Certificate, Path};
use crate::epoch;
use crate::handles;
use crate::log_tree::{Frontier, Node, leaf};
use crate::message::{MESSAGE_BYTES_MAX, Receipt, ServerError, ViewReply};
use crate::order::forecast;
use crate::packed::{self, Packed};
use crate::rebuild::CombinedView;
use crate::signed::{Signable, Signed, Verified};
use crate::structure::{LogHead, Outcome, PendingEntry, Structure, View};
pub use after_restore::settled;
use holdfast_content::{DeviceId, Membership, PrincipalId};
use holdfast_crypto::{Digest, PublicKey};
use record::State;
pub use record::{OrderingRecord, RestoreError};
use std::collections::BTreeMap;

/// An answer, with what must be durable before it leaves and the log nodes to keep for consistency proofs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub struct Step<T> {
    /// The answer.
    pub answer: T,
    /// Records to be made durable before the answer is sent, in sequence; see [`OrderingRecord::to_bytes`].
    pub records: Vec<OrderingRecord>,
    /// Nodes of the log of updates that are now complete.
    pub nodes: Vec<Node>,
}

/// What became of an UPDATE.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UpdateOutcome {
    /// Ordered. Blocks and consistency proof are still empty.
    View(Box<ViewReply>),
    /// It was ordered earlier and is dead by now.
    Aborted,
    /// It was refused earlier and stays refused.
    Refused,
}

/// What became of a fast operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FastOutcome {
    /// Committed; the receipt is to be signed with the server's key.
    Accepted(Receipt),
    /// Not ordered; its number is used up.
    Refused,
}

/// What became of a COMMIT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CommitOutcome {
    /// Committed; the receipt is to be signed with the server's key.
    Committed(Receipt),
    /// The operation is dead.
    Aborted,
}

/// Status of an operation, for FETCHPENDING.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OrderingStatus {
    /// Ordered, not committed yet.
    Pending,
    /// Committed: this is its structure.
    Committed(Box<Signed<Structure>>),
    /// Dead, superseded or never seen.
    Gone,
}

/// Why a request is refused: the client broke the rules, and nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The signer is not an active member, or not the one this session belongs to.
    #[error("the signing device is not a member, or not the one of this session")]
    NotMember,
    /// The signature was verified with another key than the device's.
    #[error("the signature is not the device's")]
    BadSignature,
    /// Malformed or oversized.
    #[error("malformed: {0}")]
    Malformed(String),
    /// Another operation has this number.
    #[error("number {found} is used up; the next is above {last}")]
    WrongNumber {
        /// The number that was found.
        found: u64,
        /// The highest number that was used.
        last: u64,
    },
    /// The operation does not follow the device's slot.
    #[error("it does not follow the device's last committed operation")]
    WrongPrevious,
    /// The device has an operation pending that it has not given up.
    #[error("operation {0} of this device is still pending")]
    Outstanding(u64),
    /// The device may not write a table it advances.
    #[error("the device may not write the table of {0}")]
    NotAllowed(PrincipalId),
    /// The operation is of another epoch than the present one.
    #[error("it is of another epoch: a restore of this server was declared that its author has not taken up")]
    OtherEpoch,
    /// The new membership does not follow the present one.
    #[error("the new membership is not valid: {0}")]
    Membership(String),
    /// The structure contradicts its certificate or the order.
    #[error("the structure does not fit: {0}")]
    Structure(String),
    /// A COMMIT of an operation that is not pending.
    #[error("operation {0} is not pending")]
    NotPending(u64),
    /// So many operations are pending that a view of them hardly fits into a message.
    #[error("too much is pending just now")]
    Full,
}

impl From<Refusal> for ServerError {
    fn from(refusal: Refusal) -> ServerError {
        match refusal {
            Refusal::OtherEpoch => ServerError::OtherEpoch,
            Refusal::Full => ServerError::Busy,
            Refusal::NotMember | Refusal::NotAllowed(_) => ServerError::NotAllowed(refusal.to_string()),
            _ => ServerError::Invalid(refusal.to_string()),
        }
    }
}

/// The consistency server's machine for one file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequencer {
    state: State,
    abort_after_ms: u64,
}

impl Sequencer {
    /// Creates a file system from its superuser's founding operation: fast, by device 0, on the empty view,
    /// with the membership (already loaded from its block) and the superuser's table.
    ///
    /// # Errors
    /// [`Refusal`]: what the founding operation breaks.
    pub fn create(
        superuser: PublicKey,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        membership: Membership,
        abort_after_ms: u64,
    ) -> Result<Step<(Sequencer, Receipt)>, Refusal> {
        client_checks::founding(&superuser, &certificate, &structure, &membership)?;
        let receipt = receipt(&structure.value);
        let record = OrderingRecord::Create { superuser, certificate, structure, membership };
        let mut nodes = Vec::new();
        let state = State::create(record.clone(), &mut nodes)
            .map_err(|error| Refusal::Malformed(error.to_string()))?;
        Ok(Step { answer: (Sequencer { state, abort_after_ms }, receipt), records: vec![record], nodes })
    }

    /// Restores the machine from its last checkpoint and the records after it. Operations that were pending
    /// count as having just arrived. Returns also the log nodes completed by those records.
    ///
    /// # Errors
    /// [`RestoreError`]: the bytes are not what this machine wrote.
    pub fn restore(
        checkpoint: Option<&[u8]>,
        records: impl IntoIterator<Item = impl AsRef<[u8]>>,
        abort_after_ms: u64,
        now_ms: u64,
    ) -> Result<(Sequencer, Vec<Node>), RestoreError> {
        Sequencer::restore_watched(checkpoint, records, abort_after_ms, now_ms, &mut |_, _| {})
    }

    /// As [`Sequencer::restore`]; `watch` is called with the machine after each record.
    ///
    /// # Errors
    /// As [`Sequencer::restore`].
    pub fn restore_watched(
        checkpoint: Option<&[u8]>,
        records: impl IntoIterator<Item = impl AsRef<[u8]>>,
        abort_after_ms: u64,
        now_ms: u64,
        watch: &mut dyn FnMut(&Sequencer, &OrderingRecord),
    ) -> Result<(Sequencer, Vec<Node>), RestoreError> {
        let mut nodes = Vec::new();
        let mut records = records.into_iter();
        let mut sequencer = match checkpoint {
            Some(bytes) => Sequencer { state: State::decode(bytes)?, abort_after_ms },
            None => {
                let first = records.next().ok_or(RestoreError::Empty)?;
                let first = OrderingRecord::from_bytes(first.as_ref())?;
                let state = State::create(first.clone(), &mut nodes)?;
                let sequencer = Sequencer { state, abort_after_ms };
                watch(&sequencer, &first);
                sequencer
            }
        };
        for record in records {
            let record = OrderingRecord::from_bytes(record.as_ref())?;
            sequencer.state.apply(record.clone(), now_ms, &mut nodes)?;
            watch(&sequencer, &record);
        }
        sequencer.state.arrived_now(now_ms);
        Ok((sequencer, nodes))
    }

    /// The machine of a file system whose server was lost, from a checked [`crate::rebuild`]. `membership` is
    /// the one that the view names.
    pub fn rebuilt(
        superuser: PublicKey,
        combined: CombinedView,
        membership: Membership,
        abort_after_ms: u64,
    ) -> Sequencer {
        let CombinedView { view, frontier, given_up, newest: _ } = combined;
        // The reply to a dead operation is not needed again.
        let dead = |entry: PendingEntry| record::PendingOperation {
            certificate: entry.certificate,
            forecast: entry.forecast,
            dead: true,
            arrived_ms: 0,
            reply: None,
            membership: None,
        };
        let state = State {
            epoch: epoch::latest(superuser.file_system_id(), &membership.restores),
            superuser,
            membership,
            slots: view.slots,
            pending: view.pending.into_iter().map(dead).collect(),
            frontier,
            burnt: given_up,
        };
        Sequencer { state, abort_after_ms }
    }

    /// The highest refused number of each device, if it is above the number in its slot.
    pub fn refused(&self) -> &BTreeMap<DeviceId, u64> {
        &self.state.burnt
    }

    /// The right edge of the log of updates.
    pub fn frontier(&self) -> &Frontier {
        &self.state.frontier
    }

    /// The whole state; replaces all earlier records.
    pub fn checkpoint(&self) -> Vec<u8> {
        self.state.encode()
    }

    /// The file system.
    pub fn file_system(&self) -> Digest {
        self.state.superuser.file_system_id()
    }

    /// The present epoch, which operations name in place of the file system.
    pub fn epoch(&self) -> Digest {
        self.state.epoch
    }

    /// The superuser's key.
    pub fn superuser(&self) -> PublicKey {
        self.state.superuser
    }

    /// The membership in force.
    pub fn membership(&self) -> &Membership {
        &self.state.membership
    }

    /// The active device that has `key`.
    pub fn device(&self, key: &PublicKey) -> Option<DeviceId> {
        self.state.membership.device_by_key(key).filter(|device| self.state.membership.is_active(*device))
    }

    /// Orders an operation (slow path, first half). `membership` is the block that a
    /// [`crate::certificate::Delta::SetMembers`] names, loaded by the driver.
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub fn update(
        &mut self,
        now_ms: u64,
        session: DeviceId,
        certificate: &Verified<Certificate>,
        membership: Option<Membership>,
    ) -> Result<Step<UpdateOutcome>, Refusal> {
        let declared = certificate.value();
        if declared.path != Path::Slow {
            return Err(Refusal::Malformed("UPDATE of a fast operation".to_owned()));
        }
        if let Some(entry) = self.state.entry(declared.device, declared.number)
            && entry.certificate.value == *declared
        {
            return Ok(unchanged(match &entry.reply {
                Some(reply) if !entry.dead => UpdateOutcome::View(shown(reply)),
                _ => UpdateOutcome::Aborted,
            }));
        }
        if self.state.is_burnt(declared) {
            return Ok(unchanged(UpdateOutcome::Refused));
        }
        client_checks::certificate(&self.state, session, certificate, membership.as_ref())?;
        self.has_room(declared.device)?;
        let mut records = Vec::new();
        for entry in self.state.pending.iter().filter(|entry| !entry.dead) {
            let author = entry.certificate.value.device;
            let expired = now_ms.saturating_sub(entry.arrived_ms) >= self.abort_after_ms;
            if expired || author == declared.device {
                records.push(OrderingRecord::Dead { device: author, number: entry.certificate.value.number });
            } else if membership.is_some() && entry.membership.is_some() {
                // Neither of the two could take effect after the other. A late copy could later, so it must
                // stay refused.
                let burn = OrderingRecord::Burn { device: declared.device, number: declared.number };
                let step = self.apply_all(vec![burn], now_ms);
                return Ok(Step { answer: UpdateOutcome::Refused, records: step.records, nodes: step.nodes });
            }
        }
        let mut step = self.apply_all(records, now_ms);
        // The same reply is stored in case the request is repeated.
        let answer = UpdateOutcome::View(Box::new(self.state.reply()));
        let membership = membership.map(client_checks::judged);
        let update = OrderingRecord::Update { certificate: certificate.signed().clone(), membership };
        let ordered = self.apply_all(vec![update], now_ms);
        step.records.extend(ordered.records);
        step.nodes.extend(ordered.nodes);
        Ok(Step { answer, records: step.records, nodes: step.nodes })
    }

    /// Whether the view for another operation fits into a message. The superuser, and authors of pending
    /// operations, are still admitted when others are not: they can make the list of pending operations
    /// shorter.
    fn has_room(&self, device: DeviceId) -> Result<(), Refusal> {
        let pending = &self.state.pending;
        let shortens = device == DeviceId(0) || pending.iter().any(|entry| entry.forecast.device == device);
        let most = match (pending.is_empty(), shortens) {
            (true, _) => 1.0,
            (false, true) => 0.75,
            (false, false) => 0.5,
        };
        // With nothing pending it mostly fits easily, which is known without packing it.
        let is_small =
            pending.is_empty() && packed::slots_bytes_at_most(&self.state.slots) <= MESSAGE_BYTES_MAX;
        let fits = is_small || Packed::share(&self.state.reply()) <= most;
        fits.then_some(()).ok_or(Refusal::Full)
    }

    /// Takes the structure of an ordered operation (slow path, second half).
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub fn commit(
        &mut self,
        session: DeviceId,
        structure: &Verified<Structure>,
    ) -> Result<Step<CommitOutcome>, Refusal> {
        let value = structure.value();
        let (device, number) = (value.device(), value.number());
        if device != session {
            return Err(Refusal::NotMember);
        }
        if self.state.slots.get(&device).is_some_and(|slot| slot.value == *value) {
            return Ok(unchanged(CommitOutcome::Committed(receipt(value))));
        }
        let entry = self.state.entry(device, number).ok_or(Refusal::NotPending(number))?;
        if entry.dead {
            return Ok(unchanged(CommitOutcome::Aborted));
        }
        client_checks::key(&self.state, device, structure.key())?;
        let (certificate, membership) = (&entry.certificate.value, entry.membership.as_ref());
        client_checks::structure(&self.state, value, certificate, &entry.forecast, membership)?;
        let step = self.apply_all(vec![OrderingRecord::Commit { structure: structure.signed().clone() }], 0);
        Ok(Step {
            answer: CommitOutcome::Committed(receipt(value)),
            records: step.records,
            nodes: step.nodes,
        })
    }

    /// Accepts a whole operation at once, if nothing is pending or dead and its structure is exactly this
    /// machine's forecast; otherwise uses up its number.
    ///
    /// # Errors
    /// [`Refusal`]: nothing has changed.
    pub fn fast(
        &mut self,
        now_ms: u64,
        session: DeviceId,
        certificate: &Verified<Certificate>,
        structure: &Verified<Structure>,
        membership: Option<Membership>,
    ) -> Result<Step<FastOutcome>, Refusal> {
        let (declared, value) = (certificate.value(), structure.value());
        if declared.path != Path::Fast {
            return Err(Refusal::Malformed("a slow operation on the fast path".to_owned()));
        }
        if (value.device(), value.number()) != (declared.device, declared.number)
            || value.forecast.certificate != declared.digest()
        {
            return Err(Refusal::Structure("it belongs to another certificate".to_owned()));
        }
        if declared.device != session {
            return Err(Refusal::NotMember);
        }
        if self.state.slots.get(&declared.device).is_some_and(|slot| slot.value == *value) {
            return Ok(unchanged(FastOutcome::Accepted(receipt(value))));
        }
        if self.state.is_burnt(declared) {
            return Ok(unchanged(FastOutcome::Refused));
        }
        client_checks::certificate(&self.state, session, certificate, membership.as_ref())?;
        client_checks::key(&self.state, session, structure.key())?;
        let expected = forecast(&self.state.view(), declared);
        if !self.state.pending.is_empty() || value.forecast != expected {
            let burn = OrderingRecord::Burn { device: declared.device, number: declared.number };
            let step = self.apply_all(vec![burn], now_ms);
            return Ok(Step { answer: FastOutcome::Refused, records: step.records, nodes: step.nodes });
        }
        client_checks::structure(&self.state, value, declared, &expected, membership.as_ref())?;
        let record = OrderingRecord::Fast {
            certificate: certificate.signed().clone(),
            structure: structure.signed().clone(),
            membership: membership.map(client_checks::judged),
        };
        let step = self.apply_all(vec![record], now_ms);
        Ok(Step { answer: FastOutcome::Accepted(receipt(value)), records: step.records, nodes: step.nodes })
    }

    /// For a driver that will not pass an operation on (a block that it names is missing, or the disk is
    /// full) and wants to answer "refused": uses the number up, or declares the operation dead if it was
    /// ordered. A committed operation is not changed.
    pub fn give_up(&mut self, device: DeviceId, number: u64) -> Step<()> {
        let record = match self.state.entry(device, number) {
            Some(entry) => (!entry.dead).then_some(OrderingRecord::Dead { device, number }),
            None => (number > self.state.highest(device)).then_some(OrderingRecord::Burn { device, number }),
        };
        self.apply_all(record.into_iter().collect(), 0)
    }

    /// The present view, ordering nothing.
    pub fn look(&self) -> ViewReply {
        self.state.reply()
    }

    /// Operations that are ordered and neither committed nor dead.
    pub fn pending(&self) -> impl Iterator<Item = &Certificate> {
        self.state.pending.iter().filter(|entry| !entry.dead).map(|entry| &entry.certificate.value)
    }

    /// Whether no operation is pending, or dead and not given up by its author.
    pub fn is_quiet(&self) -> bool {
        self.state.pending.is_empty()
    }

    /// The last committed structure of a device.
    pub fn slot(&self, device: DeviceId) -> Option<&Signed<Structure>> {
        self.state.slots.get(&device)
    }

    /// The last committed structure of each device.
    pub fn slots(&self) -> &BTreeMap<DeviceId, Signed<Structure>> {
        &self.state.slots
    }

    /// Operations that are dead and that their authors have not given up yet; `None` if any is pending.
    pub fn dead(&self) -> Option<Vec<PendingEntry>> {
        let entry = |entry: &record::PendingOperation| {
            entry.dead.then(|| PendingEntry {
                certificate: entry.certificate.clone(),
                forecast: entry.forecast.clone(),
                dead: true,
            })
        };
        self.state.pending.iter().map(entry).collect()
    }

    /// Size and root of the log of updates.
    pub fn head(&self) -> crate::structure::LogHead {
        self.state.frontier.head()
    }

    /// Size of the log of updates.
    pub fn log_size(&self) -> u64 {
        self.state.frontier.head().size
    }

    /// Size and root of the log of updates.
    pub fn log_head(&self) -> LogHead {
        self.state.frontier.head()
    }

    /// The status of an operation.
    pub fn standing(&self, device: DeviceId, number: u64) -> OrderingStatus {
        match self.state.slots.get(&device) {
            Some(slot) if slot.value.number() == number => OrderingStatus::Committed(Box::new(slot.clone())),
            _ => match self.state.entry(device, number) {
                Some(entry) if !entry.dead => OrderingStatus::Pending,
                _ => OrderingStatus::Gone,
            },
        }
    }

    /// Addresses that garbage collection must keep, with everything they refer to: every table in a slot, the
    /// tables in views from which clients with pending operations read, and memberships.
    pub fn roots(&self) -> Vec<Digest> {
        let replies = self.state.pending.iter().filter_map(|entry| entry.reply.as_ref());
        let views: Vec<Box<ViewReply>> = replies.map(shown).collect();
        let shown = views.iter().flat_map(|reply| reply.view.slots.values());
        let handles = self
            .state
            .slots
            .values()
            .chain(shown)
            .flat_map(|slot| slot.value.handles.values().map(|handle| handle.reference.address));
        let members = self
            .state
            .pending
            .iter()
            .filter(|entry| !entry.dead)
            .filter_map(|entry| entry.certificate.value.new_members())
            .map(|reference| reference.address);
        let mut roots: Vec<Digest> = handles.chain(members).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    fn apply_all(&mut self, records: Vec<OrderingRecord>, now_ms: u64) -> Step<()> {
        let mut nodes = Vec::new();
        for record in &records {
            self.state.apply(record.clone(), now_ms, &mut nodes).expect("policed records apply");
        }
        Step { answer: (), records, nodes }
    }
}

/// Unpacks a stored reply.
fn shown(reply: &Packed) -> Box<ViewReply> {
    reply.reply().expect("what was packed here")
}

fn unchanged<T>(answer: T) -> Step<T> {
    Step { answer, records: Vec::new(), nodes: Vec::new() }
}

fn receipt(structure: &Structure) -> Receipt {
    Receipt {
        file_system: structure.forecast.file_system,
        device: structure.device(),
        number: structure.number(),
        structure: structure.digest(),
    }
}
