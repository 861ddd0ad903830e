//! Revocation: a release that must never be used again.
//!
//! A certificate can be verified from the id alone (as in the read-only paper's system): it contains the key
//! sets from the first on, and a statement signed by enough keys of *any* of them. So anybody may distribute
//! it, and it takes effect wherever it is found; an invalid one never does. Old key sets may revoke too: a
//! thief of old keys can end the release, but not publish in its name.

use crate::form::{self, Kind, Malformed, RuleViolation, fit_for_people};
use crate::keys::{KeyChain, KeySet, KeysError, ReleaseId, SETS_MAX, SignedKeySet, whose};
use crate::signing::{Signable, SignatureError, Signed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Domain;

/// Most bytes of a reason.
pub const REASON_BYTES_MAX: usize = 1024;

/// The statement that a release is revoked.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statement {
    /// The release that is revoked.
    pub release: ReleaseId,
    /// The reason, for people: at most [`REASON_BYTES_MAX`] bytes, no control characters except line ends.
    pub reason: String,
    /// The release that replaces it. It is displayed to people, and never used without their decision.
    pub successor: Option<ReleaseId>,
}

impl Signable for Statement {
    const DOMAIN: Domain = Domain::ReleaseRevocation;
    const WHAT: &'static str = "revocation";
}

impl Statement {
    /// Checks that the statement obeys the rules.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn well_formed(&self) -> Result<(), RuleViolation> {
        fit_for_people("reason", &self.reason, REASON_BYTES_MAX, Some('\n'))?;
        if self.successor == Some(self.release) {
            return Err(RuleViolation::Rule("it names the release as its own successor"));
        }
        Ok(())
    }
}

/// A revocation certificate as it is stored. It proves nothing before [`Revocation::verify`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Revocation {
    /// The key sets of the release, first to last known.
    pub sets: Vec<SignedKeySet>,
    /// The statement.
    pub statement: Signed<Statement>,
}

impl Kind for Revocation {
    const MAGIC: &'static [u8; 7] = b"HF-revo";
    const WHAT: &'static str = "revocation certificate";
    const BYTES_MAX: u64 = SETS_MAX * SignedKeySet::BYTES_MAX + 8 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        self.statement.value.well_formed()
    }
}

/// A release that was revoked by keys that may do so.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Revoked {
    /// The release that is revoked.
    pub release: ReleaseId,
    /// The reason that its keys' owners give.
    pub reason: String,
    /// The release to use instead.
    pub successor: Option<ReleaseId>,
}

impl std::fmt::Display for Revoked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the release {} was revoked for good by its publisher", self.release)?;
        match self.reason.as_str() {
            "" => write!(f, ", without a reason")?,
            reason => write!(f, ": {reason}")?,
        }
        match &self.successor {
            Some(successor) => write!(f, ". Its successor is {successor}"),
            None => Ok(()),
        }
    }
}

/// Why a certificate has no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// The bytes are not a certificate.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The certificate's key sets do not belong to the release.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The certificate is of another release.
    #[error("the certificate revokes the release {found}, not {expected}")]
    WrongRelease {
        /// The release that was asked for.
        expected: ReleaseId,
        /// The release that the certificate revokes.
        found: ReleaseId,
    },
    /// There are too few signatures, or invalid ones.
    #[error(transparent)]
    Signatures(#[from] SignatureError),
}

impl Revocation {
    /// Checks that it revokes the release `id`.
    ///
    /// # Errors
    /// [`RevocationError`]: the certificate has no effect.
    pub fn verify(self, id: ReleaseId) -> Result<Revoked, RevocationError> {
        let Statement { release, .. } = self.statement.value;
        if release != id {
            return Err(RevocationError::WrongRelease { expected: id, found: release });
        }
        let chain = KeyChain::of_sets(id, self.sets)?;
        signed_by_any(&chain, &self.statement)?;
        let Statement { release, reason, successor } = self.statement.value;
        Ok(Revoked { release, reason, successor })
    }
}

/// Reads and checks a certificate.
///
/// # Errors
/// [`RevocationError`]: the certificate has no effect.
pub fn verify(id: ReleaseId, bytes: &[u8]) -> Result<Revoked, RevocationError> {
    form::read::<Revocation>(bytes)?.verify(id)
}

/// Checks that enough keys of one of the sets have signed, and no foreign key.
fn signed_by_any(chain: &KeyChain, statement: &Signed<Statement>) -> Result<(), SignatureError> {
    let sets = || chain.sets().iter().rev().map(|set| &set.value);
    let signers = statement.signers(|key| sets().any(|set: &KeySet| set.role.keys.contains(key)))?;
    if sets().any(|set| set.role.is_met_by(&signers)) {
        return Ok(());
    }
    // The error names the set that lacks the fewest signatures.
    let lacking = |set: &KeySet| {
        usize::from(set.role.threshold).saturating_sub(set.role.keys.intersection(&signers).count())
    };
    let nearest = sets().min_by_key(|set| lacking(set)).expect("a chain has a first set");
    Err(SignatureError::TooFew {
        what: Statement::WHAT,
        whose: whose(nearest.number),
        needed: nearest.role.threshold,
        signed_by: nearest.role.keys.intersection(&signers).copied().collect(),
    })
}
