//! The observer: what each client knows, and whether that can be true.
//!
//! A client knows what it accepted and, through each structure it accepted, what that structure's signer knew
//! when signing. Fork consistency says that this is never contradictory: everything that one client takes for
//! committed has one order in which each operation knows those before it, no operation has two outcomes or
//! two contents, and the register has the value according to that order. Two branches of a fork are two
//! clients (or signers) with different knowledge; the branches are never joined, because nobody ever has
//! both.

use crate::warrants::{Brought, follow_each_other};
use crate::world::{Operation, World, name};
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::signed::Signable;
use holdfast_protocol::structure::{Outcome, Structure, View};
use holdfast_protocol::vector::VersionVector;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// The knowledge of one client or signer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Knowledge {
    /// Operations that took their place, with the number of their signature.
    pub committed: BTreeMap<Operation, u32>,
    /// Operations that never will.
    pub aborted: BTreeSet<Operation>,
    /// Operations with the forecasts under which structures remember them as pending.
    pub recorded: BTreeSet<(Operation, Digest)>,
    /// Operations that were applied before they were signed, with their forecasts.
    pub assumed: BTreeSet<(Operation, Digest)>,
}

struct Signature {
    structure: Digest,
    operation: Operation,
    vector: VersionVector,
    forecast: Digest,
    /// The register's version that it wrote, with effect.
    wrote: Option<u64>,
    /// The membership that it brought, with effect.
    brought: Option<Brought>,
    knowledge: Rc<Knowledge>,
}

/// Everything ever signed: a signature is a structure, and what its signer knew.
#[derive(Default)]
pub struct Archive {
    signed: HashMap<u32, Signature>,
}

fn words((device, number): Operation) -> String {
    format!("{}{number}", name(device))
}

impl Archive {
    /// A structure was signed by a device with this knowledge.
    pub(super) fn sign(
        &mut self,
        number: u32,
        structure: &Structure,
        writes: bool,
        brought: Option<Brought>,
        knowledge: Rc<Knowledge>,
    ) {
        let forecast = &structure.forecast;
        let wrote =
            (writes && structure.outcome == Outcome::Done).then(|| forecast.vector.get(crate::world::GROUP));
        let signature = Signature {
            structure: structure.digest(),
            operation: (structure.device(), structure.number()),
            vector: forecast.vector.clone(),
            forecast: forecast.digest(),
            wrote,
            brought,
            knowledge,
        };
        self.signed.insert(number, signature);
    }

    /// Notes that an operation is taken for committed.
    pub(super) fn commit(
        &self,
        known: &mut Knowledge,
        operation: Operation,
        signature: u32,
    ) -> Result<(), String> {
        if known.aborted.contains(&operation) {
            return Err(format!("{} is aborted and committed", words(operation)));
        }
        if let Some(other) = known.committed.insert(operation, signature)
            && self.signed[&other].structure != self.signed[&signature].structure
        {
            return Err(format!("{} is committed twice, differently", words(operation)));
        }
        self.join(known, &self.signed[&signature].knowledge)?;
        self.orders(known)
    }

    /// Notes that an operation is taken for aborted.
    pub(super) fn abort(&self, known: &mut Knowledge, operation: Operation) -> Result<(), String> {
        if known.committed.contains_key(&operation) {
            return Err(format!("{} is committed and aborted", words(operation)));
        }
        known.aborted.insert(operation);
        Ok(())
    }

    fn join(&self, known: &mut Knowledge, other: &Knowledge) -> Result<(), String> {
        for (operation, signature) in &other.committed {
            if known.committed.get(operation) != Some(signature) {
                self.commit(known, *operation, *signature)?;
            }
        }
        for operation in &other.aborted {
            self.abort(known, *operation)?;
        }
        known.recorded.extend(&other.recorded);
        for (operation, forecast) in &known.recorded {
            let placed = known.committed.get(operation).map(|signature| self.signed[signature].forecast);
            if placed.is_some_and(|placed| placed != *forecast) {
                return Err(format!("{} is committed at another place than recorded", words(*operation)));
            }
        }
        Ok(())
    }

    /// Checks that everything committed has one order.
    fn orders(&self, known: &Knowledge) -> Result<(), String> {
        let signatures: Vec<&Signature> =
            known.committed.values().map(|signature| &self.signed[signature]).collect();
        for (index, x) in signatures.iter().enumerate() {
            for y in &signatures[index + 1..] {
                let knows = |a: &Signature, b: &Signature| a.vector.device(b.operation.0) >= b.operation.1;
                if knows(x, y) == knows(y, x) {
                    let (x, y) = (words(x.operation), words(y.operation));
                    return Err(format!("{x} and {y} are both accepted, and neither comes after the other"));
                }
            }
        }
        Ok(())
    }

    /// Notes that a client accepted a view, and reads from it. `shown`: signatures that are new to it.
    pub(super) fn accept(
        &self,
        known: &mut Knowledge,
        shown: &[u32],
        floor: &Floor,
        view: &View,
        world: &World,
    ) -> Result<(), String> {
        for (device, slot) in &view.slots {
            let structure = &slot.value;
            let operation = (*device, structure.number());
            let digest = structure.digest();
            let mut candidates = known.committed.get(&operation).into_iter().chain(shown);
            let signature = *candidates
                .find(|number| self.signed.get(number).is_some_and(|signed| signed.structure == digest))
                .expect("what is shown was signed");
            self.commit(known, operation, signature)?;
            for number in 1..structure.number() {
                let operation = (*device, number);
                if structure.forecast.voids.contains(number) {
                    self.abort(known, operation)?;
                } else if known.aborted.contains(&operation) {
                    return Err(format!("{} is aborted, and counts as committed", words(operation)));
                } else if !known.committed.contains_key(&operation) {
                    return Err(format!("{} counts as committed, and nobody knows it", words(operation)));
                }
            }
        }
        for entry in view.pending.iter().filter(|entry| entry.dead) {
            self.abort(known, (entry.forecast.device, entry.forecast.number()))?;
        }
        self.nothing_is_missing(known, floor, view)?;
        let brought = known.committed.values().map(|signature| &self.signed[signature]);
        let brought: Vec<(DeviceId, Brought)> =
            brought.filter_map(|signature| Some((signature.operation.0, signature.brought?))).collect();
        follow_each_other(floor.device, &brought)?;
        let register = world.register(view)?;
        if register.is_settled {
            let writes = known.committed.values().map(|signature| &self.signed[signature]);
            let last = writes.filter_map(|write| Some((write.wrote?, write.operation))).max();
            let last = last.map(|(_, operation)| operation);
            if register.value != last {
                return Err(format!("the register holds {:?}, the last write was {last:?}", register.value));
            }
        }
        Ok(())
    }

    /// Everything that the signer of an accepted operation knew is in the view.
    fn nothing_is_missing(&self, known: &Knowledge, floor: &Floor, view: &View) -> Result<(), String> {
        let reached = |device: DeviceId| {
            let slot = view.slots.get(&device).map_or(0, |slot| slot.value.number());
            let entries = view.pending.iter().filter(|entry| entry.forecast.device == device);
            let shown = entries.map(|entry| entry.forecast.number()).fold(slot, u64::max);
            if device == floor.device { shown.max(floor.used) } else { shown }
        };
        for signature in known.committed.values() {
            let signature = &self.signed[signature];
            for (principal, number) in signature.vector.versions().iter() {
                if let holdfast_content::PrincipalId::Device(device) = principal
                    && reached(*device) < *number
                {
                    let operation = words((*device, *number));
                    return Err(format!(
                        "{} knew of {operation}, which is not shown",
                        words(signature.operation)
                    ));
                }
            }
        }
        Ok(())
    }
}
