//! Version structures: what a device signs once it knows its place in the order (SUNDR 3.3.2, 3.4).

use crate::certificate::Certificate;
use crate::signed::{Signable, Signed};
use crate::vector::{VersionVector, VoidSet};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId, Reference};
use holdfast_crypto::{Digest, DigestKey, Domain, encode};
use std::collections::BTreeMap;

/// Size and root of the append-only Merkle log of updates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct LogHead {
    /// Number of leaves of the log.
    pub size: u64,
    /// RFC 6962 shaped root over them; [`Digest::ZERO`] when empty.
    pub root: Digest,
}

/// Another device's operation, as a structure records it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Record {
    /// The device that made it.
    pub device: DeviceId,
    /// Its number among the device's operations.
    pub number: u64,
    /// Digest of its forecast.
    pub forecast: Digest,
}

/// A version structure without its i-handles ("L" in the notes): everything that follows from the order
/// alone, so that server and client compute it with the same function.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Forecast {
    /// File system; after a declared restore, its epoch ([`crate::epoch`]).
    pub file_system: Digest,
    /// The device that is going to sign.
    pub device: DeviceId,
    /// Version vector; the own entry is the operation's number. Signed by root.
    pub vector: VersionVector,
    /// Operations pending when this one was ordered, in order.
    pub pending: Vec<Record>,
    /// Operations declared dead and not yet passed by their authors, in order. Sticky: see trace T4.
    pub aborted: Vec<Record>,
    /// The signer's void numbers. Signed by root.
    pub voids: VoidSet,
    /// The signer's numbers that committed without effect, this one excepted. Signed by root.
    pub ineffective: VoidSet,
    /// Digest of the update certificate.
    pub certificate: Digest,
    /// The log of updates just before this operation.
    pub log: LogHead,
}

impl Forecast {
    /// The operation's number.
    pub fn number(&self) -> u64 {
        self.vector.device(self.device)
    }

    fn canonical(&self) -> Vec<u8> {
        encode(&(
            (self.file_system, self.device, self.number(), self.vector.root()),
            (&self.pending, &self.aborted),
            (self.voids.root(), self.ineffective.root(), self.certificate, self.log),
        ))
    }

    /// The digest that records, log leaves and `previous` fields carry.
    pub fn digest(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::Forecast, &self.canonical())
    }

    /// The record by which later structures remember this operation.
    pub fn record(&self) -> Record {
        Record { device: self.device, number: self.number(), forecast: self.digest() }
    }
}

/// One i-handle: the state of a principal's table at a version.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct HandleVersion {
    /// Version of the principal at which this i-handle was made.
    pub version: u64,
    /// The table block (for `Members`, the membership block).
    pub reference: Reference,
}

/// Whether the declared deltas took effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Outcome {
    /// The declared deltas took effect.
    Done = 1,
    /// They did not: a precondition failed at the operation's place in the order. Clients ignore them as if
    /// the operation had been aborted.
    Nothing = 2,
}

/// A version structure.
///
/// `handles` always has the signer's own i-handle at its own number (a device that never wrote may have
/// none), and every user, group or membership table that the operation advanced. It also repeats the tables
/// that the signer advanced earlier and nobody else has advanced since. So the slots of all devices together
/// have every live i-handle, and one slot for each device is enough.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Structure {
    /// The forecast that the order gives of this structure.
    pub forecast: Forecast,
    /// Whether the deltas took effect.
    pub outcome: Outcome,
    /// I-handles by principal.
    pub handles: BTreeMap<PrincipalId, HandleVersion>,
}

impl Structure {
    /// The device that signed.
    pub fn device(&self) -> DeviceId {
        self.forecast.device
    }

    /// The operation's number.
    pub fn number(&self) -> u64 {
        self.forecast.number()
    }
}

impl Signable for Structure {
    const DOMAIN: Domain = Domain::Structure;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(&(self.forecast.digest(), self.outcome, &self.handles))
    }

    fn whole_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

/// One operation in the pending version list (PVL).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct PendingEntry {
    /// The certificate that its device signed.
    pub certificate: Signed<Certificate>,
    /// The server's forecast of its structure (unsigned).
    pub forecast: Forecast,
    /// The server has declared it dead: it will never be committed.
    pub dead: bool,
}

/// A server's view: the VSL (latest structure of each device), the PVL in order, the log of updates.
/// Untrusted until `check` accepts it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct View {
    /// Version structure list.
    pub slots: BTreeMap<DeviceId, Signed<Structure>>,
    /// The pending version list.
    pub pending: Vec<PendingEntry>,
    /// The log of updates, all of the above included.
    pub log: LogHead,
}

impl Default for LogHead {
    fn default() -> Self {
        LogHead { size: 0, root: Digest::ZERO }
    }
}

impl View {
    /// The i-handle in force for `principal`, and the device whose slot holds it.
    pub fn handle(&self, principal: PrincipalId) -> Option<(DeviceId, HandleVersion)> {
        self.slots
            .iter()
            .filter_map(|(device, slot)| Some((*device, *slot.value.handles.get(&principal)?)))
            .max_by_key(|(_, handle)| handle.version)
    }
}
