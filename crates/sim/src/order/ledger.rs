//! The omniscient observer: what every device knows of every operation, and whether any two devices ever disagree.
//!
//! What a device knows is what it accepted, and, through each structure it accepted, what that structure's signer
//! knew when it signed. Fork consistency says that this can never contradict itself: if it did, a history that
//! was accepted would not be a prefix of the acceptor's own, or an operation would have two fates.

use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use holdfast_protocol::signed::Signable;
use holdfast_protocol::structure::{Outcome, Structure, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// An operation.
pub type Operation = (DeviceId, u64);

/// What a device knows of an operation's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKnowledge {
    /// It is ordered.
    Committed,
    /// It never will be.
    Aborted,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Knowledge {
    /// Forecasts under which it was committed, or by which structures remember it as pending. What a view merely
    /// announces is not in here: nothing that is pending is read from, and if the acceptor's own operation is
    /// committed, its structure remembers the announcement. Nor does the place of an operation matter that
    /// never takes effect.
    forecasts: BTreeSet<Digest>,
    known_outcome: Option<OperationKnowledge>,
}

/// What one device knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    operations: BTreeMap<Operation, Knowledge>,
    /// Each version of each table, by its address: there is only one.
    tables: BTreeMap<(PrincipalId, u64), Digest>,
}

/// Two facts that one device accepted and that cannot both be true.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// The device that accepted both.
    pub acceptor: DeviceId,
    /// The operation that they are about.
    pub operation: Operation,
    /// The two facts.
    pub what: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, number) = self.operation;
        write!(
            f,
            "device {} accepts two fates of operation {number} of device {}: ",
            self.acceptor.0, device.0
        )?;
        f.write_str(&self.what)
    }
}

impl History {
    fn note(
        &mut self,
        operation: Operation,
        forecast: Option<Digest>,
        known_outcome: Option<OperationKnowledge>,
    ) -> Result<(), String> {
        let known = self.operations.entry(operation).or_default();
        known.forecasts.extend(forecast);
        match (known.known_outcome, known_outcome) {
            (Some(a), Some(b)) if a != b => return Err(format!("{a:?} and {b:?}")),
            (None, Some(_)) => known.known_outcome = known_outcome,
            _ => {}
        }
        if known.known_outcome == Some(OperationKnowledge::Committed) && known.forecasts.len() > 1 {
            return Err(format!("committed, with forecasts {:?}", known.forecasts));
        }
        Ok(())
    }

    fn note_table(&mut self, principal: PrincipalId, version: u64, address: Digest) -> Result<(), String> {
        match self.tables.insert((principal, version), address) {
            Some(other) if other != address => {
                Err(format!("version {version} of {principal} is {address:?} and {other:?}"))
            }
            _ => Ok(()),
        }
    }

    fn note_view(&mut self, view: &View) -> Result<(), (Operation, String)> {
        for (device, slot) in &view.slots {
            let structure = &slot.value;
            for number in 1..=structure.number() {
                let void = structure.forecast.voids.contains(number);
                let known_outcome =
                    if void { OperationKnowledge::Aborted } else { OperationKnowledge::Committed };
                let forecast = (number == structure.number()).then(|| structure.forecast.digest());
                let operation = (*device, number);
                self.note(operation, forecast, Some(known_outcome)).map_err(|what| (operation, what))?;
            }
        }
        for entry in view.pending.iter().filter(|entry| entry.dead) {
            let operation = (entry.forecast.device, entry.forecast.number());
            self.note(operation, None, Some(OperationKnowledge::Aborted))
                .map_err(|what| (operation, what))?;
        }
        for (device, slot) in &view.slots {
            for (principal, handle) in &slot.value.handles {
                self.note_table(*principal, handle.version, handle.reference.address)
                    .map_err(|what| ((*device, slot.value.number()), what))?;
            }
        }
        let records = view.slots.values().flat_map(|slot| &slot.value.forecast.pending);
        for record in records {
            let operation = (record.device, record.number);
            self.note(operation, Some(record.forecast), None).map_err(|what| (operation, what))?;
        }
        Ok(())
    }

    fn join(&mut self, other: &History) -> Result<(), (Operation, String)> {
        for (operation, knowledge) in &other.operations {
            let forecasts = knowledge.forecasts.iter().map(|forecast| Some(*forecast));
            for forecast in forecasts.chain([None]) {
                self.note(*operation, forecast, knowledge.known_outcome)
                    .map_err(|what| (*operation, what))?;
            }
        }
        for ((principal, version), address) in &other.tables {
            let nobody = (DeviceId(0), 0);
            self.note_table(*principal, *version, *address).map_err(|what| (nobody, what))?;
        }
        Ok(())
    }

    /// What is known of an operation.
    pub fn known_outcome(&self, operation: Operation) -> Option<OperationKnowledge> {
        self.operations.get(&operation)?.known_outcome
    }
}

/// Everything that any device knows.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    devices: BTreeMap<DeviceId, History>,
    /// What the signer knew, by digest of the structure.
    signed: HashMap<Digest, History>,
    /// Views accepted so far.
    pub accepted: u64,
}

impl Ledger {
    /// Notes that `device` accepted `view`.
    ///
    /// # Errors
    /// [`Contradiction`]: fork consistency is broken.
    pub fn accept(&mut self, device: DeviceId, view: &View) -> Result<(), Contradiction> {
        self.accepted += 1;
        let history = self.devices.entry(device).or_default();
        let contradiction =
            |(operation, what): (Operation, String)| Contradiction { acceptor: device, operation, what };
        history.note_view(view).map_err(contradiction)?;
        for slot in view.slots.values() {
            if let Some(signed) = self.signed.get(&slot.value.digest()) {
                history.join(signed).map_err(contradiction)?;
            }
        }
        Ok(())
    }

    /// Notes that `device` is about to send its signature of `structure`.
    pub fn sign(&mut self, device: DeviceId, structure: &Structure) {
        let history = self.devices.entry(device).or_default().clone();
        self.signed.insert(structure.digest(), history);
    }

    /// Notes that `device` considers its own operation settled.
    ///
    /// # Errors
    /// [`Contradiction`]: it knew otherwise.
    pub fn settle(&mut self, operation: Operation, known: OperationKnowledge) -> Result<(), Contradiction> {
        let history = self.devices.entry(operation.0).or_default();
        history.note(operation, None, Some(known)).map_err(|what| Contradiction {
            acceptor: operation.0,
            operation,
            what,
        })
    }

    /// Notes that `device` has accepted a declared restore: what it knew of earlier epochs does not count in this one.
    pub fn take_up(&mut self, device: DeviceId) {
        self.devices.remove(&device);
    }

    /// What `device` knows.
    pub fn history(&self, device: DeviceId) -> History {
        self.devices.get(&device).cloned().unwrap_or_default()
    }
}

/// Whether a structure's deltas took effect.
pub fn effective(structure: &Structure) -> bool {
    structure.outcome == Outcome::Done
}
