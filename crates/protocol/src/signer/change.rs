//! The changes of a signer's state since an earlier state: all that must be made durable once the earlier one
//! is.
//!
//! Each device has a slot in the view, and each slot a vector of all devices, so a whole state grows with the
//! square of their number; likewise with that of pending operations, each of which names those before it. An
//! operation changes one or two slots, and a vector in a few places; a change contains no more than that.
//!
//! ```text
//! format u8 (1) | slots that went: list of device u32 | slots put: list of { device u32, structure }
//!               | pending: list of { 0, place in the earlier list u32 } or { 1, entry }
//!               | the state but for slots and pending operations
//!               | vectors: list of { put: list of { principal, version u64 }, gone: list of principal }
//! ```
//!
//! Vectors are taken out of the rest before it is encoded, and follow as differences: each from the one
//! before it, the first from that of the earlier state's last accepted view. Their order is that of
//! [`ChangeParts::vectors`].
//!
//! Invariant: applied to the state that it was made from, a change gives exactly the later one. The caller
//! must know to which state a change belongs; applied to another one it gives a wrong state or an error, and
//! never panics.

use super::{Phase, Signer};
use crate::signed::Signed;
use crate::structure::{PendingEntry, Structure};
use crate::vector::VersionVector;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::{DecodeError, decode, encode};
use std::collections::BTreeMap;
use std::mem::take;

/// Format of a change record.
const FORMAT: u8 = 1;

#[derive(BorshSerialize, BorshDeserialize)]
struct ChangeParts {
    gone: Vec<DeviceId>,
    put: Vec<(DeviceId, Signed<Structure>)>,
    pending: Vec<Pending>,
    rest: Signer,
}

#[derive(BorshSerialize, BorshDeserialize)]
enum Pending {
    /// The entry that the earlier state has at this index.
    Kept(u32),
    New(Box<PendingEntry>),
}

#[derive(BorshSerialize, BorshDeserialize)]
struct VectorChange {
    put: Vec<(PrincipalId, u64)>,
    gone: Vec<PrincipalId>,
}

impl ChangeParts {
    /// Every vector in the change, in the sequence of its encoding.
    fn vectors(&mut self) -> Vec<&mut VersionVector> {
        let floor = &mut self.rest.floor;
        let mut all: Vec<&mut VersionVector> = Vec::new();
        all.extend(floor.element.as_mut().map(|element| &mut element.vector));
        all.extend(self.put.iter_mut().map(|(_, slot)| &mut slot.value.forecast.vector));
        all.extend(self.pending.iter_mut().filter_map(|entry| match entry {
            Pending::Kept(_) => None,
            Pending::New(entry) => Some(&mut entry.forecast.vector),
        }));
        match &mut self.rest.phase {
            Phase::Idle | Phase::Update { .. } => {}
            Phase::Fast { structure, .. } | Phase::Commit { structure } => {
                all.push(&mut structure.value.forecast.vector);
            }
            Phase::Folding { forecast, .. } => all.push(&mut forecast.vector),
        }
        all
    }
}

impl VectorChange {
    fn between(before: &VersionVector, after: &VersionVector) -> VectorChange {
        if before.is_shared_with(after) {
            return VectorChange { put: Vec::new(), gone: Vec::new() };
        }
        let (before, after) = (before.versions(), after.versions());
        let put = after.iter().filter(|(principal, version)| before.get(principal) != Some(version));
        let gone = before.keys().filter(|principal| !after.contains_key(principal));
        VectorChange {
            put: put.map(|(&principal, &version)| (principal, version)).collect(),
            gone: gone.copied().collect(),
        }
    }

    fn apply(self, before: &VersionVector) -> VersionVector {
        let mut after = before.clone();
        if !self.put.is_empty() || !self.gone.is_empty() {
            let map = after.versions_mut();
            map.retain(|principal, _| !self.gone.contains(principal));
            map.extend(self.put);
        }
        after
    }
}

/// The entries of `after`; those that `before` has too are given by their places there.
fn pending_since(before: &[PendingEntry], after: Vec<PendingEntry>) -> Vec<Pending> {
    let name = |entry: &PendingEntry| (entry.certificate.value.device, entry.certificate.value.number);
    let places: BTreeMap<_, u32> = before.iter().map(name).zip(0..).collect();
    let kept =
        |entry: &PendingEntry| places.get(&name(entry)).filter(|at| before[**at as usize] == *entry).copied();
    after
        .into_iter()
        .map(|entry| kept(&entry).map_or_else(|| Pending::New(Box::new(entry)), Pending::Kept))
        .collect()
}

impl Signer {
    /// Encodes what has changed since `before`, to be made durable after it.
    pub fn change_since(&self, before: &Signer) -> Vec<u8> {
        let mut rest = self.clone();
        let slots = take(&mut rest.floor.view.slots);
        let known = &before.floor.view.slots;
        let gone = known.keys().filter(|device| !slots.contains_key(device)).copied().collect();
        let put = slots.into_iter().filter(|(device, slot)| known.get(device) != Some(slot)).collect();
        let pending = pending_since(&before.floor.view.pending, take(&mut rest.floor.view.pending));
        let mut parts = ChangeParts { gone, put, pending, rest };
        let mut last = before.last_accepted();
        let mut vectors = Vec::new();
        for vector in parts.vectors() {
            let vector = take(vector);
            vectors.push(VectorChange::between(&last, &vector));
            last = vector;
        }
        encode(&(FORMAT, parts, vectors))
    }

    /// The state after a change, which was made from this one.
    ///
    /// # Errors
    /// [`DecodeError`]: not such bytes, or of a newer format.
    pub fn changed(&self, change: &[u8]) -> Result<Signer, DecodeError> {
        let what = "a change of the state of this device's signer";
        let wrong = |why: String| DecodeError { what, why };
        let rest = match change.split_first() {
            Some((&FORMAT, rest)) => rest,
            other => {
                let found = other.map(|(first, _)| first);
                return Err(wrong(format!("format {found:?}, this program knows up to {FORMAT}")));
            }
        };
        let (mut parts, changes): (ChangeParts, Vec<VectorChange>) = decode(rest)?;
        let mut last = self.last_accepted();
        let vectors = parts.vectors();
        if vectors.len() != changes.len() {
            return Err(wrong(format!("{} vectors for {} places", changes.len(), vectors.len())));
        }
        for (vector, change) in vectors.into_iter().zip(changes) {
            *vector = change.apply(&last);
            last = vector.clone();
        }
        let mut slots = self.floor.view.slots.clone();
        slots.retain(|device, _| !parts.gone.contains(device));
        slots.extend(parts.put);
        let known = &self.floor.view.pending;
        let pending = parts.pending.into_iter().map(|entry| match entry {
            Pending::New(entry) => Ok(*entry),
            Pending::Kept(at) => {
                known.get(at as usize).cloned().ok_or_else(|| wrong(format!("no pending operation {at}")))
            }
        });
        parts.rest.floor.view.pending = pending.collect::<Result<_, _>>()?;
        parts.rest.floor.view.slots = slots;
        Ok(parts.rest)
    }

    /// The vector that the first one of a change differs from.
    fn last_accepted(&self) -> VersionVector {
        self.floor.element.as_ref().map_or_else(VersionVector::default, |element| element.vector.clone())
    }
}
