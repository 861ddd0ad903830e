//! The sequencer's state and the records that change it.

use super::{
    Certificate, Frontier, Membership, Node, Outcome, PendingEntry, Signable, Signed, Structure, View,
};
use super::{forecast, leaf};
use crate::message::ViewReply;
use crate::packed::Packed;
use crate::structure::Forecast;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{DecodeError, Digest, PublicKey, decode, encode};
use std::collections::BTreeMap;

/// Format of records.
const RECORD_FORMAT: u8 = 1;
/// Format of checkpoints. Those of format 1, whose replies are not packed, are read.
const STATE_FORMAT: u8 = 2;

/// One change of a sequencer's state, as the log stores it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum OrderingRecord {
    /// The file system was created.
    Create {
        /// The file system's superuser.
        superuser: PublicKey,
        /// Certificate of the founding operation.
        certificate: Signed<Certificate>,
        /// Structure of the founding operation.
        structure: Signed<Structure>,
        /// The first membership.
        membership: Membership,
    },
    /// An operation was ordered.
    Update {
        /// The certificate of the operation.
        certificate: Signed<Certificate>,
        /// The membership it brings.
        membership: Option<Membership>,
    },
    /// A pending operation was declared dead.
    Dead {
        /// The device that made the operation.
        device: DeviceId,
        /// Number of the operation.
        number: u64,
    },
    /// An ordered operation was committed.
    Commit {
        /// Structure of the operation.
        structure: Signed<Structure>,
    },
    /// An operation was ordered and committed at once.
    Fast {
        /// The certificate of the operation.
        certificate: Signed<Certificate>,
        /// Structure of the operation.
        structure: Signed<Structure>,
        /// The membership it brings.
        membership: Option<Membership>,
    },
    /// A number was refused and must never be ordered.
    Burn {
        /// The device that made the operation.
        device: DeviceId,
        /// Number of the operation.
        number: u64,
    },
    /// The superuser declared that this is a restored state. Everything pending is dead, refused numbers are
    /// forgotten with their epoch, and this operation is the first of the new one.
    Restore {
        /// The certificate of the operation.
        certificate: Signed<Certificate>,
        /// Structure of the operation.
        structure: Signed<Structure>,
        /// The membership with the restore.
        membership: Membership,
    },
}

/// Why a sequencer cannot be restored: the log is not what it wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is neither a checkpoint nor a record.
    #[error("there is neither a checkpoint nor a record of this file system")]
    Empty,
    /// It was written by a newer program.
    #[error("ordering state has format {0}, which this program does not know")]
    Format(u8),
    /// A record cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A record does not fit the state before it.
    #[error("an ordering record does not fit the state before it: {0}")]
    Misplaced(String),
}

impl OrderingRecord {
    /// The bytes to make durable.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(&(RECORD_FORMAT, self))
    }

    /// When the operation that this record orders was declared, by its author's clock.
    pub fn declared_ns(&self) -> Option<i64> {
        match self {
            OrderingRecord::Create { certificate, .. }
            | OrderingRecord::Update { certificate, .. }
            | OrderingRecord::Fast { certificate, .. }
            | OrderingRecord::Restore { certificate, .. } => Some(certificate.value.time_ns),
            _ => None,
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<OrderingRecord, RestoreError> {
        match bytes.split_first() {
            Some((&RECORD_FORMAT, rest)) => Ok(decode(rest)?),
            Some((&format, _)) => Err(RestoreError::Format(format)),
            None => Err(RestoreError::Empty),
        }
    }
}

/// An entry of the pending list.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct PendingOperation<R = Packed> {
    pub(super) certificate: Signed<Certificate>,
    pub(super) forecast: Forecast,
    pub(super) dead: bool,
    pub(super) arrived_ms: u64,
    /// The reply to its UPDATE, in case that is repeated; dropped when the operation dies.
    pub(super) reply: Option<R>,
    pub(super) membership: Option<Membership>,
}

impl PendingOperation<ViewReply> {
    fn packed(self) -> PendingOperation {
        let PendingOperation { certificate, forecast, dead, arrived_ms, reply, membership } = self;
        let reply = reply.as_ref().map(Packed::of);
        PendingOperation { certificate, forecast, dead, arrived_ms, reply, membership }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct State<R = Packed> {
    pub(super) epoch: Digest,
    pub(super) superuser: PublicKey,
    pub(super) membership: Membership,
    pub(super) slots: BTreeMap<DeviceId, Signed<Structure>>,
    pub(super) pending: Vec<PendingOperation<R>>,
    pub(super) frontier: Frontier,
    /// Highest refused number of each device, while it is above its slot's.
    pub(super) burnt: BTreeMap<DeviceId, u64>,
}

impl State {
    pub(super) fn encode(&self) -> Vec<u8> {
        encode(&(STATE_FORMAT, self))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<State, RestoreError> {
        match bytes.split_first() {
            Some((&STATE_FORMAT, rest)) => {
                let state: State = decode(rest)?;
                let mut replies = state.pending.iter().filter_map(|entry| entry.reply.as_ref());
                if replies.any(|packed| packed.reply().is_none()) {
                    return Err(RestoreError::Misplaced("what was answered is damaged".to_owned()));
                }
                drop(replies);
                Ok(state)
            }
            Some((1, rest)) => {
                let State { epoch, superuser, membership, slots, pending, frontier, burnt } =
                    decode::<State<ViewReply>>(rest)?;
                let pending = pending.into_iter().map(PendingOperation::packed).collect();
                Ok(State { epoch, superuser, membership, slots, pending, frontier, burnt })
            }
            Some((&format, _)) => Err(RestoreError::Format(format)),
            None => Err(RestoreError::Empty),
        }
    }

    pub(super) fn create(record: OrderingRecord, nodes: &mut Vec<Node>) -> Result<State, RestoreError> {
        let OrderingRecord::Create { superuser, certificate, structure, membership } = record else {
            return Err(RestoreError::Misplaced("the first record does not create a file system".to_owned()));
        };
        let mut state = State {
            epoch: superuser.file_system_id(),
            superuser,
            membership,
            slots: BTreeMap::new(),
            pending: Vec::new(),
            frontier: Frontier::default(),
            burnt: BTreeMap::new(),
        };
        state.fast(&certificate.value, structure, None, nodes);
        Ok(state)
    }

    pub(super) fn arrived_now(&mut self, now_ms: u64) {
        for entry in &mut self.pending {
            entry.arrived_ms = now_ms;
        }
    }

    pub(super) fn entry(&self, device: DeviceId, number: u64) -> Option<&PendingOperation> {
        self.pending.iter().find(|entry| {
            let certificate = &entry.certificate.value;
            (certificate.device, certificate.number) == (device, number)
        })
    }

    /// The highest number of `device` that was used, whatever its outcome.
    pub(super) fn highest(&self, device: DeviceId) -> u64 {
        let slot = self.slots.get(&device).map_or(0, |slot| slot.value.number());
        let burnt = self.burnt.get(&device).copied().unwrap_or(0);
        let pending = self
            .pending
            .iter()
            .map(|entry| &entry.certificate.value)
            .filter(|certificate| certificate.device == device)
            .map(|certificate| certificate.number);
        pending.fold(slot.max(burnt), u64::max)
    }

    /// Whether this number was refused and nothing later was ordered.
    pub(super) fn is_burnt(&self, certificate: &Certificate) -> bool {
        self.burnt.get(&certificate.device).is_some_and(|burnt| certificate.number <= *burnt)
            && self.slots.get(&certificate.device).is_none_or(|slot| slot.value.number() < certificate.number)
    }

    pub(super) fn view(&self) -> View {
        let pending = self.pending.iter().map(|entry| PendingEntry {
            certificate: entry.certificate.clone(),
            forecast: entry.forecast.clone(),
            dead: entry.dead,
        });
        View { slots: self.slots.clone(), pending: pending.collect(), log: self.frontier.head() }
    }

    pub(super) fn reply(&self) -> ViewReply {
        ViewReply {
            view: self.view(),
            peaks: self.frontier.peaks().to_vec(),
            consistency: Vec::new(),
            blocks: Vec::new(),
        }
    }

    pub(super) fn apply(
        &mut self,
        record: OrderingRecord,
        now_ms: u64,
        nodes: &mut Vec<Node>,
    ) -> Result<(), RestoreError> {
        let misplaced = |what: &str| Err(RestoreError::Misplaced(what.to_owned()));
        match record {
            OrderingRecord::Create { .. } => return misplaced("it was created before"),
            OrderingRecord::Update { certificate, membership } => {
                let reply = self.reply();
                let forecast = forecast(&reply.view, &certificate.value);
                nodes.extend(self.frontier.append(leaf(forecast.certificate, forecast.digest())));
                self.pending.push(PendingOperation {
                    certificate,
                    forecast,
                    dead: false,
                    arrived_ms: now_ms,
                    reply: Some(Packed::of(&reply)),
                    membership,
                });
            }
            OrderingRecord::Dead { device, number } => {
                let entry = self.pending.iter_mut().find(|entry| {
                    let certificate = &entry.certificate.value;
                    (certificate.device, certificate.number) == (device, number)
                });
                let Some(entry) = entry else { return misplaced("a dead operation is not pending") };
                entry.dead = true;
                entry.reply = None;
            }
            OrderingRecord::Commit { structure } => {
                let (device, number) = (structure.value.device(), structure.value.number());
                let Some(entry) = self.entry(device, number) else {
                    return misplaced("a committed operation is not pending");
                };
                let membership = entry.membership.clone();
                self.settle(structure, membership);
            }
            OrderingRecord::Fast { certificate, structure, membership } => {
                self.fast(&certificate.value, structure, membership, nodes);
            }
            OrderingRecord::Restore { certificate, structure, membership } => {
                self.kill_all();
                self.burnt.clear();
                self.epoch = certificate.value.file_system;
                self.fast(&certificate.value, structure, Some(membership), nodes);
            }
            OrderingRecord::Burn { device, number } => {
                let burnt = self.burnt.entry(device).or_default();
                *burnt = number.max(*burnt);
            }
        }
        Ok(())
    }

    /// Declares everything pending dead.
    pub(super) fn kill_all(&mut self) {
        for entry in &mut self.pending {
            entry.dead = true;
            entry.reply = None;
        }
    }

    fn fast(
        &mut self,
        certificate: &Certificate,
        structure: Signed<Structure>,
        membership: Option<Membership>,
        nodes: &mut Vec<Node>,
    ) {
        let digest = structure.value.forecast.digest();
        nodes.extend(self.frontier.append(leaf(certificate.digest(), digest)));
        self.settle(structure, membership);
    }

    /// Puts a structure into its slot and forgets the device's operations before it.
    fn settle(&mut self, structure: Signed<Structure>, membership: Option<Membership>) {
        let (device, number) = (structure.value.device(), structure.value.number());
        self.pending.retain(|entry| {
            entry.certificate.value.device != device || entry.certificate.value.number > number
        });
        if self.burnt.get(&device).is_some_and(|burnt| *burnt <= number) {
            self.burnt.remove(&device);
        }
        if structure.value.outcome == Outcome::Done
            && let Some(membership) = membership
        {
            self.membership = membership;
        }
        self.slots.insert(device, structure);
    }

    /// The membership in force and those that pending operations of others than `device` may bring: its own are
    /// given up by its next one.
    pub(super) fn memberships(&self, device: DeviceId) -> impl Iterator<Item = &Membership> {
        let others =
            self.pending.iter().filter(move |entry| !entry.dead && entry.certificate.value.device != device);
        std::iter::once(&self.membership).chain(others.filter_map(|entry| entry.membership.as_ref()))
    }
}
