//! The client's state machine: one for each device, making one operation after the other.
//!
//! Pure: it takes events and returns effects. Invariants:
//! - It makes one operation at a time. Many changes of files are gathered into one, so pipelining would
//!   gain nothing but new ways to fail (`docs/internals/protocol.md`).
//! - Nothing signed is sent before [`Effect::Persist`] is durable: a forgotten signature is a number used
//!   twice (trace T1).
//! - A number is used for one certificate, ever. If an answer is lost, the same bytes are sent again. A
//!   number that can no longer be committed is given up, and the next certificate says so.
//! - If the holder of the key (an agent) does not sign, nothing changes and the number is not used.
//! - After an alarm it signs nothing until the user allows it; the floor stays in any case.

mod change;
#[cfg(test)]
mod tests;

use crate::alarm::Alarm;
use crate::certificate::{Certificate, DELTAS_MAX, Delta, Path};
use crate::check::{AcceptedView, check, check_look};
use crate::floor::{Floor, OwnOperation};
use crate::handles::assemble;
use crate::members::Members;
use crate::message::{Attached, Receipt, Request, ServerKeys, ViewReply};
use crate::order::forecast;
use crate::signed::{Signable, Signed};
use crate::structure::{Forecast, Outcome, PendingEntry, Structure};
use crate::vector::VOID_RANGES_MAX;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId, Reference};
use holdfast_crypto::{DecodeError, KeyHolder, SignError, decode, encode};
use std::collections::BTreeMap;

/// Format of the persistent state.
const FORMAT: u8 = 1;
/// After refused fast operations, at most this many quiet ones go the slow path before the next attempt.
const QUIET_MAX: u32 = 64;

/// New tables, by the principal they belong to.
pub type Tables = BTreeMap<PrincipalId, Reference>;

/// What the driver reports to the signer.
#[derive(Clone)]
pub enum Event<'a> {
    /// Start an operation. Only while idle.
    Begin {
        /// The declared changes; none for a fetch.
        deltas: Vec<Delta>,
        /// The client's clock, nanoseconds since the epoch.
        time_ns: i64,
        /// The tables it leaves behind if nothing else happens (planned on `floor().view`): with them it may
        /// go the fast path. `None`: slow.
        fast: Option<Tables>,
    },
    /// The answer to an UPDATE, with the membership it names ([`crate::check::membership_wanted`]).
    Reply {
        /// The server's reply.
        reply: &'a ViewReply,
        /// The membership in force in it.
        members: &'a dyn Members,
    },
    /// The answer to [`Effect::Fold`]: the tables at the operation's place in the order. With
    /// [`Outcome::Nothing`] they contain what others have pending, but not this operation's deltas.
    Folded {
        /// Whether the deltas took effect.
        outcome: Outcome,
        /// New tables of the device and of every principal the certificate advances.
        tables: Tables,
    },
    /// The server says: committed.
    Committed(Signed<Receipt>),
    /// The server says that it did not take the operation, or reports a definite error (not: busy, out of
    /// space, lost).
    Refused,
    /// The server says: aborted.
    Aborted,
    /// The answer did not come, or was "try again": the same message is sent again.
    ConnectionLost,
    /// First event after [`Signer::restore`].
    Restarted,
    /// The structure of another device's operation, for which the driver waited (FETCHPENDING).
    Learned {
        /// The structure.
        structure: Signed<Structure>,
        /// The membership in force in `floor().view`.
        members: &'a dyn Members,
    },
    /// A view that no operation asked for. It is ignored unless the signer is idle.
    Look {
        /// The server's reply to the look.
        reply: &'a ViewReply,
        /// The membership it names.
        members: &'a dyn Members,
    },
    /// The server's list of keys.
    ServerKeys(Signed<ServerKeys>),
}

/// What the driver must do, in the sequence in which effects are returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Make this state durable in the place of earlier ones, *before* any later effect: its bytes
    /// ([`Signer::to_bytes`]), or what has changed since one that is durable ([`Signer::change_since`]).
    Persist(Box<Signer>),
    /// Make this state durable without waiting for that: losing it in a power failure costs only a resend.
    Note(Box<Signer>),
    /// Send this, with whatever blocks belong to it.
    Send(Box<Request>),
    /// The operation has its place in the order: compute its tables there and answer with [`Event::Folded`].
    /// No program may read from this view before the next [`Effect::Persist`] is durable.
    Fold(Box<AcceptedView>),
    /// The operation is over.
    Finished(OperationEnd),
    /// A look's view, or an awaited structure, is now part of the floor.
    Advanced,
    /// Show this to the user and keep evidence.
    Alarm(Alarm),
    /// Stop everything that rests on this server: no further reads or writes.
    FreezeAll,
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperationEnd {
    /// Committed and durable at the server.
    Committed(Box<Signed<Structure>>),
    /// Not ordered. Plan it anew.
    NotOrdered,
    /// Ordered, but dead before it was committed. Plan it anew.
    Aborted,
    /// Given up: after a restart, since nobody waits for it any more; or because it changes the membership
    /// and must not be committed at its place in the order.
    GivenUp,
}

/// The driver broke the machine's rules, or the key did not sign; nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misuse {
    /// An operation is in flight.
    #[error("an operation is in flight")]
    Busy,
    /// After an alarm nothing is signed any more.
    #[error("frozen after an alarm: {0}")]
    Frozen(Alarm),
    /// The operation has too many deltas.
    #[error("{0} deltas are too many for one operation")]
    TooManyDeltas(usize),
    /// A table is missing or not to be advanced.
    #[error("the tables handed in do not fit: {0}")]
    Tables(PrincipalId),
    /// The signer does not wait for this event now.
    #[error("unexpected event: {0}")]
    Unexpected(&'static str),
    /// So many numbers were given up that their list no longer fits into a message.
    #[error("this device has given up too many operations; enrol it anew")]
    WornOut,
    /// The holder of the key did not sign. The driver made no mistake, and may send the same event again.
    #[error(transparent)]
    NotSigned(#[from] SignError),
}

#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
enum Phase {
    Idle,
    Fast { certificate: Signed<Certificate>, structure: Signed<Structure> },
    Update { certificate: Signed<Certificate> },
    Folding { certificate: Signed<Certificate>, forecast: Forecast },
    Commit { structure: Signed<Structure> },
}

/// How much other devices write: fast operations that keep being refused are tried less often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
struct Contention {
    /// Number of undisturbed operations that the next refusal will demand.
    backoff: u32,
    /// Number of undisturbed operations still to come before the next attempt.
    quiet_wanted: u32,
}

/// The client's machine for one device.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Signer {
    floor: Floor,
    phase: Phase,
    contention: Contention,
    frozen: Option<Alarm>,
}

impl Signer {
    /// The signer of a device that has not done anything yet.
    pub fn new(floor: Floor) -> Signer {
        Signer { floor, phase: Phase::Idle, contention: Contention::default(), frozen: None }
    }

    /// Decodes a persisted state; [`Event::Restarted`] must be the next event.
    ///
    /// # Errors
    /// [`DecodeError`]: not such bytes, or of a newer format.
    pub fn restore(bytes: &[u8]) -> Result<Signer, DecodeError> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => decode(rest),
            other => Err(DecodeError {
                what: "state of this device's signer",
                why: format!("format {:?}, this program knows up to {FORMAT}", other.map(|(first, _)| first)),
            }),
        }
    }

    /// Encodes the state, for the driver to make durable.
    pub fn to_bytes(&self) -> Vec<u8> {
        encode(&(FORMAT, self))
    }

    /// The floor: what this device has accepted.
    pub fn floor(&self) -> &Floor {
        &self.floor
    }

    /// What was signed for the operation in flight: its certificate (unless only its structure matters any
    /// more) and its structure, once there is one.
    pub fn in_flight(&self) -> (Option<&Certificate>, Option<&Structure>) {
        match &self.phase {
            Phase::Idle => (None, None),
            Phase::Fast { certificate, structure } => (Some(&certificate.value), Some(&structure.value)),
            Phase::Update { certificate } | Phase::Folding { certificate, .. } => {
                (Some(&certificate.value), None)
            }
            Phase::Commit { structure } => (None, Some(&structure.value)),
        }
    }

    /// Gives up the number after the last one used: the key has signed for it, but this machine crashed
    /// before that was durable, so nothing of it was sent.
    ///
    /// # Errors
    /// [`Misuse::Unexpected`]: an operation is in flight that would have to be finished first.
    pub fn skip(&mut self) -> Result<(), Misuse> {
        match self.phase {
            Phase::Idle => {}
            // The outcome of that operation is open. Its signature came before the lost one only if it had
            // been settled.
            _ => return Err(Misuse::Unexpected("an operation is in flight")),
        }
        self.floor.used += 1;
        self.floor.never_offered.insert(self.floor.used);
        self.give_up();
        self.ask_first();
        Ok(())
    }

    /// The signer in the epoch of a restore that was adopted ([`crate::restore`]). An operation in flight is
    /// forgotten with the epoch in which it was signed.
    pub fn in_epoch(floor: Floor) -> Signer {
        let mut signer = Signer::new(floor);
        signer.ask_first();
        signer
    }

    /// Signs the superuser's declaration that the server was restored to the state of the floor, and the
    /// operation that brings it into the order ([`crate::sequencer::Sequencer::restored`]). Like any
    /// operation it is sent again until its receipt comes.
    ///
    /// # Errors
    /// [`Misuse`].
    pub fn declare(
        &mut self,
        key: &dyn KeyHolder,
        membership: Reference,
        time_ns: i64,
        tables: &Tables,
    ) -> Result<Vec<Effect>, Misuse> {
        self.begin_fast(key, vec![Delta::SetMembers { reference: membership }], time_ns, tables)
    }

    /// Whether an operation can begin.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.frozen.is_none()
    }

    /// The alarm that froze it.
    pub fn frozen(&self) -> Option<&Alarm> {
        self.frozen.as_ref()
    }

    /// Continues after an alarm that the user has looked into. The floor stays, so the same offence is found
    /// again. [`Event::Restarted`] must be the next event.
    pub fn acknowledge(&mut self) {
        self.frozen = None;
    }

    /// Whether it is worth planning an operation for the fast path.
    pub fn wants_fast(&self) -> bool {
        self.floor.is_settled()
            && !self.floor.view.slots.is_empty()
            && self.contention.quiet_wanted == 0
            && self.floor.voids.0.len() < VOID_RANGES_MAX / 2
    }

    /// Begins the operation that creates the file system: fast, on the empty view. The driver wraps its
    /// request into [`Request::CreateFileSystem`].
    ///
    /// # Errors
    /// [`Misuse`].
    pub fn found(
        &mut self,
        key: &dyn KeyHolder,
        deltas: Vec<Delta>,
        time_ns: i64,
        tables: &Tables,
    ) -> Result<Vec<Effect>, Misuse> {
        if !self.floor.is_fresh() || self.floor.used > 0 {
            return Err(Misuse::Unexpected("this device has taken part already"));
        }
        self.begin_fast(key, deltas, time_ns, tables)
    }

    /// Takes an event and returns what the driver must do.
    ///
    /// # Errors
    /// [`Misuse`]: nothing has changed. Offences of the *server* are effects, not errors.
    pub fn step(&mut self, key: &dyn KeyHolder, event: Event<'_>) -> Result<Vec<Effect>, Misuse> {
        if let Some(alarm) = &self.frozen {
            return Err(Misuse::Frozen(alarm.clone()));
        }
        match event {
            Event::Begin { deltas, time_ns, fast } => match fast.filter(|_| self.wants_fast()) {
                Some(tables) => self.begin_fast(key, deltas, time_ns, &tables),
                None => self.begin_slow(key, deltas, time_ns),
            },
            Event::Reply { reply, members } => Ok(self.reply(reply, members)),
            Event::Folded { outcome, tables } => self.folded(key, outcome, &tables),
            Event::Committed(receipt) => Ok(self.committed(receipt)),
            Event::Refused | Event::Aborted => Ok(self.refused()),
            Event::ConnectionLost => Ok(self.resend()),
            Event::Restarted => Ok(self.restarted()),
            Event::Learned { structure, members } => {
                let mut floor = self.floor.clone();
                match floor.learn(members, structure) {
                    Ok(()) => {
                        self.floor = floor;
                        Ok(vec![self.note(), Effect::Advanced])
                    }
                    Err(alarm) => Ok(self.freeze(alarm)),
                }
            }
            Event::Look { reply, members } => match &self.phase {
                Phase::Idle => match check_look(&self.floor, members, reply) {
                    Ok(floor) => {
                        self.floor = floor;
                        Ok(vec![self.persist(), Effect::Advanced])
                    }
                    Err(alarm) => Ok(self.freeze(alarm)),
                },
                _ => Ok(Vec::new()),
            },
            Event::ServerKeys(keys) => match self.floor.learn_server_keys(keys) {
                Ok(()) => Ok(vec![self.note()]),
                Err(alarm) => Ok(self.freeze(alarm)),
            },
        }
    }

    fn certificate(&self, path: Path, deltas: Vec<Delta>, time_ns: i64) -> Result<Certificate, Misuse> {
        if self.phase != Phase::Idle {
            return Err(Misuse::Busy);
        }
        if deltas.len() > DELTAS_MAX {
            return Err(Misuse::TooManyDeltas(deltas.len()));
        }
        if self.floor.voids.0.len().max(self.floor.ineffective.0.len()) >= VOID_RANGES_MAX {
            return Err(Misuse::WornOut);
        }
        Ok(Certificate {
            file_system: self.floor.epoch,
            device: self.floor.device,
            number: self.floor.used + 1,
            previous: self.floor.previous(),
            path,
            voids: self.floor.voids.clone(),
            ineffective: self.floor.ineffective.clone(),
            time_ns,
            deltas,
        })
    }

    fn begin_fast(
        &mut self,
        key: &dyn KeyHolder,
        deltas: Vec<Delta>,
        time_ns: i64,
        tables: &Tables,
    ) -> Result<Vec<Effect>, Misuse> {
        let certificate = self.certificate(Path::Fast, deltas, time_ns)?;
        let forecast = forecast(&self.floor.view, &certificate);
        let structure = self.structure(&certificate, forecast, Outcome::Done, tables)?;
        let (certificate, structure) = Signed::both(certificate, structure, key)?;
        self.floor.begin();
        let offered = OwnOperation { certificate: certificate.value.digest(), forecast: None };
        self.floor.offered.insert(certificate.value.number, offered);
        self.phase = Phase::Fast { certificate, structure };
        Ok(self.persist_and_send())
    }

    fn begin_slow(
        &mut self,
        key: &dyn KeyHolder,
        deltas: Vec<Delta>,
        time_ns: i64,
    ) -> Result<Vec<Effect>, Misuse> {
        let certificate = Signed::by(self.certificate(Path::Slow, deltas, time_ns)?, key)?;
        self.floor.begin();
        let offered = OwnOperation { certificate: certificate.value.digest(), forecast: None };
        self.floor.offered.insert(certificate.value.number, offered);
        self.phase = Phase::Update { certificate };
        Ok(self.persist_and_send())
    }

    fn structure(
        &self,
        certificate: &Certificate,
        forecast: Forecast,
        outcome: Outcome,
        tables: &Tables,
    ) -> Result<Structure, Misuse> {
        let former = self.floor.own().map(|own| &own.value);
        let handles =
            assemble(&forecast, certificate, former, &self.floor.view, tables).map_err(Misuse::Tables)?;
        Ok(Structure { forecast, outcome, handles })
    }

    fn persist(&self) -> Effect {
        Effect::Persist(Box::new(self.clone()))
    }

    fn note(&self) -> Effect {
        Effect::Note(Box::new(self.clone()))
    }

    fn persist_and_send(&self) -> Vec<Effect> {
        let mut effects = vec![self.persist()];
        effects.extend(self.resend());
        effects
    }

    fn resend(&self) -> Vec<Effect> {
        let log_size = self.floor.log().size;
        let attached = Attached::default();
        let request = match &self.phase {
            Phase::Idle | Phase::Folding { .. } => return Vec::new(),
            Phase::Fast { certificate, structure } => Request::Fast {
                certificate: certificate.clone(),
                structure: structure.clone(),
                attached,
                log_size,
                by_difference: false,
                lease: None,
            },
            Phase::Update { certificate } => Request::Update {
                certificate: certificate.clone(),
                attached,
                log_size,
                by_difference: false,
                lease: None,
            },
            Phase::Commit { structure } => Request::Commit { structure: structure.clone(), attached },
        };
        vec![Effect::Send(Box::new(request))]
    }

    fn reply(&mut self, reply: &ViewReply, members: &dyn Members) -> Vec<Effect> {
        let Phase::Update { certificate } = &self.phase else { return Vec::new() };
        match check(&self.floor, members, reply, &certificate.value) {
            Err(alarm) => self.freeze(alarm),
            Ok(accepted) => {
                let quiet = reply.view.log == self.floor.log() && reply.view.pending.is_empty();
                if quiet {
                    self.contention.quiet_wanted = self.contention.quiet_wanted.saturating_sub(1);
                }
                self.floor = accepted.floor.clone();
                if !self.floor.learned.is_empty() {
                    // What a program read while this view was under way is still pending in the view. A
                    // structure signed on this view would say so, and the author could then have its
                    // operation aborted and still accept this structure (trace T12).
                    self.give_up();
                    return vec![self.note(), Effect::Finished(OperationEnd::NotOrdered)];
                }
                self.phase =
                    Phase::Folding { certificate: certificate.clone(), forecast: accepted.forecast.clone() };
                vec![Effect::Fold(Box::new(accepted))]
            }
        }
    }

    fn folded(
        &mut self,
        key: &dyn KeyHolder,
        outcome: Outcome,
        tables: &Tables,
    ) -> Result<Vec<Effect>, Misuse> {
        let Phase::Folding { certificate, forecast } = &self.phase else {
            return Err(Misuse::Unexpected("no operation waits for its tables"));
        };
        if !self.may_settle(&certificate.value, outcome) {
            self.give_up();
            return Ok(vec![self.persist(), Effect::Finished(OperationEnd::GivenUp)]);
        }
        let structure = self.structure(&certificate.value, forecast.clone(), outcome, tables)?;
        self.phase = Phase::Commit { structure: Signed::by(structure, key)? };
        Ok(self.persist_and_send())
    }

    /// Whether an operation with this outcome may be committed at all. A change of the membership without
    /// effect would still count the membership's version up. That would undo another change that is pending,
    /// and a device other than 0 has no warrant for the membership that stays. Such an operation is given up
    /// instead.
    fn may_settle(&self, certificate: &Certificate, outcome: Outcome) -> bool {
        let own = self.floor.device;
        let changes_members = |entry: &PendingEntry| {
            let declared = &entry.certificate.value;
            !entry.dead && declared.device != own && declared.new_members().is_some()
        };
        certificate.new_members().is_none()
            || (!self.floor.view.pending.iter().any(changes_members)
                && (outcome == Outcome::Done || own == DeviceId::SUPERUSER))
    }

    fn committed(&mut self, receipt: Signed<Receipt>) -> Vec<Effect> {
        let (structure, fast) = match &self.phase {
            Phase::Fast { certificate, structure } => (structure.clone(), Some(certificate.value.clone())),
            Phase::Commit { structure } => (structure.clone(), None),
            _ => return Vec::new(),
        };
        if !self.floor.accepts_receipt(&receipt, &structure.value) {
            return self.freeze(Alarm::BadReceipt { number: structure.value.number() });
        }
        if let Some(certificate) = fast {
            // The signed structure must still be what follows the floor (trace T11).
            if structure.value.forecast != forecast(&self.floor.view, &certificate) {
                return self.refused();
            }
            self.floor.append_own(&structure.value.forecast);
            self.contention.backoff /= 2;
        }
        if structure.value.outcome == Outcome::Nothing {
            self.floor.ineffective.insert(structure.value.number());
        }
        self.floor.commit_own(structure.clone(), Some(receipt));
        self.phase = Phase::Idle;
        vec![self.note(), Effect::Finished(OperationEnd::Committed(Box::new(structure)))]
    }

    fn refused(&mut self) -> Vec<Effect> {
        let finished = match &self.phase {
            Phase::Idle | Phase::Folding { .. } => return Vec::new(),
            Phase::Fast { .. } => {
                self.floor.never_offered.insert(self.floor.used);
                self.contention.backoff = (self.contention.backoff * 2).clamp(1, QUIET_MAX);
                self.contention.quiet_wanted = self.contention.backoff;
                OperationEnd::NotOrdered
            }
            Phase::Update { .. } => OperationEnd::NotOrdered,
            Phase::Commit { .. } => OperationEnd::Aborted,
        };
        self.give_up();
        vec![self.note(), Effect::Finished(finished)]
    }

    fn give_up(&mut self) {
        self.floor.voids.insert(self.floor.used);
        self.phase = Phase::Idle;
    }

    /// After a crash, the key may have signed on a later view than this state knows. A fast operation on the
    /// older view would go back behind that, so the next operation asks for the view.
    fn ask_first(&mut self) {
        self.contention.quiet_wanted = self.contention.quiet_wanted.max(1);
    }

    fn restarted(&mut self) -> Vec<Effect> {
        match self.phase {
            Phase::Idle => Vec::new(),
            Phase::Fast { .. } | Phase::Commit { .. } => self.resend(),
            // Nothing was signed that could be committed, and the plan is lost.
            Phase::Update { .. } | Phase::Folding { .. } => {
                self.give_up();
                self.ask_first();
                vec![self.note(), Effect::Finished(OperationEnd::GivenUp)]
            }
        }
    }

    fn freeze(&mut self, alarm: Alarm) -> Vec<Effect> {
        self.frozen = Some(alarm.clone());
        vec![self.persist(), Effect::Alarm(alarm), Effect::FreezeAll]
    }
}
