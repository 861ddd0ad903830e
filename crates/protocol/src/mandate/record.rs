//! What is remembered of a key's signatures, and its stored form.
//!
//! ```text
//! format u8 (1; 2 with the last warrant; 3 with both last lines) | file system | key | device? | number u64 | certificate? | open? | settled
//!               | voids | ineffective | vector | log size u64, root | server keys? (sequence u64, digest)      borsh
//! certificate:    digest | principals
//! open, settled:  number u64 | digest of forecast | digest of structure | outcome u8 | log size u64
//!                 | vector | i-handles
//! the epoch                                                       format 3, once a restore was taken up
//! the last warrant: version that it follows u64 | digest          once one was signed; in format 3 an option
//! ```

use crate::certificate::Certificate;
use crate::signed::Signable;
use crate::structure::{HandleVersion, LogHead, Outcome, Structure};
use crate::vector::{VersionVector, VoidSet};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::{DecodeError, Digest, PublicKey, decode, encode};
use std::collections::BTreeMap;

/// Format of the stored form while no warrant was signed.
const FORMAT: u8 = 1;
/// The same with the last warrant after it.
const WITH_WARRANT: u8 = 2;
/// Format of the stored form with the epoch, and perhaps the last warrant, after it.
const WITH_EPOCH: u8 = 3;

/// What a key has signed in one file system, which decides what it may sign next.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Mandate {
    pub(super) file_system: Digest,
    pub(super) key: PublicKey,
    /// The device that the key signs for, set by the first signature.
    pub(super) device: Option<DeviceId>,
    /// The highest number signed for.
    pub(super) number: u64,
    /// The certificate of that number; `None` where it is not known, or no structure may be signed for it any more.
    pub(super) certificate: Option<SignedCertificate>,
    /// The structure of that number, if one was signed. Whether it is committed is not known yet.
    pub(super) open: Option<SignedStructure>,
    /// The last structure that a certificate named as committed.
    pub(super) settled: SignedStructure,
    /// Numbers given up before `number`, or with it.
    pub(super) voids: VoidSet,
    /// Numbers committed without effect.
    pub(super) ineffective: VoidSet,
    /// Versions that other devices' operations have reached, and this device's committed ones.
    pub(super) vector: VersionVector,
    /// The last known log; with a root of zeros only its size is known.
    pub(super) log: LogHead,
    /// The newest list of server keys.
    pub(super) server_keys: Option<(u64, Digest)>,
    /// The last warrant in this epoch: which version it follows.
    #[borsh(skip)]
    pub(super) warrant: Option<(u64, Digest)>,
    /// The epoch in which the key signs; `None` in the first one, which has the file system's id as its name.
    #[borsh(skip)]
    pub(super) later_epoch: Option<Digest>,
}

/// A certificate that was signed.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct SignedCertificate {
    pub(super) digest: Digest,
    pub(super) principals: Vec<PrincipalId>,
}

impl SignedCertificate {
    pub(super) fn of(certificate: &Certificate) -> SignedCertificate {
        SignedCertificate { digest: certificate.digest(), principals: certificate.principals() }
    }
}

/// A structure that was signed.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct SignedStructure {
    pub(super) number: u64,
    pub(super) forecast: Digest,
    pub(super) structure: Digest,
    pub(super) outcome: Outcome,
    /// Size of the log before the operation.
    pub(super) log_size: u64,
    pub(super) vector: VersionVector,
    pub(super) handles: BTreeMap<PrincipalId, HandleVersion>,
}

impl SignedStructure {
    pub(super) fn of(structure: &Structure) -> SignedStructure {
        SignedStructure {
            number: structure.number(),
            forecast: structure.forecast.digest(),
            structure: structure.digest(),
            outcome: structure.outcome,
            log_size: structure.forecast.log.size,
            vector: structure.forecast.vector.clone(),
            handles: structure.handles.clone(),
        }
    }

    /// Stands for the structure before the first one.
    fn none() -> SignedStructure {
        SignedStructure {
            number: 0,
            forecast: Digest::ZERO,
            structure: Digest::ZERO,
            outcome: Outcome::Done,
            log_size: 0,
            vector: VersionVector::default(),
            handles: BTreeMap::new(),
        }
    }
}

impl Mandate {
    pub(super) fn empty(file_system: Digest, key: PublicKey) -> Mandate {
        Mandate {
            file_system,
            key,
            device: None,
            number: 0,
            certificate: None,
            open: None,
            settled: SignedStructure::none(),
            voids: VoidSet::default(),
            ineffective: VoidSet::default(),
            vector: VersionVector::default(),
            log: LogHead::default(),
            server_keys: None,
            warrant: None,
            later_epoch: None,
        }
    }

    /// The epoch that it signs in.
    pub fn epoch(&self) -> Digest {
        self.later_epoch.unwrap_or(self.file_system)
    }

    pub(super) fn set_epoch(&mut self, epoch: Digest) {
        self.later_epoch = (epoch != self.file_system).then_some(epoch);
    }

    /// The same, with what only the key's own record knows: a device's state says nothing of warrants.
    #[must_use]
    pub fn with_warrants_of(self, other: &Mandate) -> Mandate {
        match self.epoch() == other.epoch() {
            true => Mandate { warrant: self.warrant.max(other.warrant), ..self },
            false => self,
        }
    }

    /// Whether it is of this key and file system.
    pub fn belongs_to(&self, file_system: &Digest, key: &PublicKey) -> bool {
        self.file_system == *file_system && self.key == *key
    }

    /// Whether the two are of one number and say different things of it.
    pub fn contradicts(&self, other: &Mandate) -> bool {
        let differ = |ours: Option<Digest>, theirs: Option<Digest>| {
            ours.zip(theirs).is_some_and(|(ours, theirs)| ours != theirs)
        };
        let certificate = |mandate: &Mandate| mandate.certificate.as_ref().map(|known| known.digest);
        let structure = |mandate: &Mandate| mandate.open.as_ref().map(|made| made.structure);
        self.number == other.number
            && (differ(certificate(self), certificate(other)) || differ(structure(self), structure(other)))
    }

    /// Encodes the record to be stored.
    pub fn to_bytes(&self) -> Vec<u8> {
        match (&self.later_epoch, &self.warrant) {
            (None, None) => encode(&(FORMAT, self)),
            (None, Some(warrant)) => encode(&(WITH_WARRANT, self, warrant)),
            (Some(epoch), warrant) => encode(&(WITH_EPOCH, self, epoch, warrant)),
        }
    }

    /// Decodes stored bytes.
    ///
    /// # Errors
    /// [`DecodeError`]: not such bytes, or of a newer format.
    pub fn from_bytes(bytes: &[u8]) -> Result<Mandate, DecodeError> {
        match bytes.split_first() {
            Some((&FORMAT, rest)) => decode(rest),
            Some((&WITH_WARRANT, rest)) => {
                decode(rest).map(|(mandate, warrant)| Mandate { warrant: Some(warrant), ..mandate })
            }
            Some((&WITH_EPOCH, rest)) => {
                let (mandate, epoch, warrant): (Mandate, Digest, _) = decode(rest)?;
                Ok(Mandate { warrant, later_epoch: Some(epoch), ..mandate })
            }
            other => Err(DecodeError {
                what: "what this key has signed",
                why: format!(
                    "format {:?}, this program knows up to {WITH_EPOCH}",
                    other.map(|(first, _)| first)
                ),
            }),
        }
    }
}
