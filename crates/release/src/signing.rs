//! Values that several keys sign, with the number of keys that must.
//!
//! Invariant: a value counts as signed only if *every* signature it carries is correct and by a key that may
//! sign it, and there are enough of them. So if anything in a file is changed or added, it is refused.
//! Signatures are a map from key to signature, so one key cannot sign twice.

use crate::form::{FORMAT, RuleViolation};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{
    Digest, DigestKey, Domain, KeyHolder, PublicKey, SignError, Signature, encode, keyfile,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most keys of one role.
pub const KEYS_MAX: usize = 16;

/// A value that can be signed.
pub trait Signable: BorshSerialize {
    /// Separates its signatures from those of other kinds.
    const DOMAIN: Domain;
    /// The name of the kind in messages.
    const WHAT: &'static str;

    /// The bytes that signatures cover: the format, then the value.
    fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![FORMAT];
        bytes.extend(encode(self));
        bytes
    }

    /// The digest of the value, under the well-known key. Signatures are over this.
    fn digest(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Self::DOMAIN, &self.signed_bytes())
    }
}

/// A set of keys, and how many of them must sign.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Role {
    /// The keys that may sign: 1 to [`KEYS_MAX`].
    pub keys: BTreeSet<PublicKey>,
    /// How many of them must sign, at least 1.
    pub threshold: u16,
}

impl Role {
    /// Checks the numbers of keys and of needed signatures.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn well_formed(&self) -> Result<(), RuleViolation> {
        let count = self.keys.len();
        if count == 0 || count > KEYS_MAX {
            return Err(RuleViolation::KeyCount { found: count, most: KEYS_MAX });
        }
        if self.threshold == 0 || usize::from(self.threshold) > count {
            return Err(RuleViolation::Threshold { threshold: self.threshold, keys: count });
        }
        Ok(())
    }

    /// Whether these signers are enough.
    pub fn is_met_by(&self, signers: &BTreeSet<PublicKey>) -> bool {
        self.keys.intersection(signers).count() >= usize::from(self.threshold)
    }
}

/// Why a value does not count as signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A key has signed that may not.
    #[error("the {what} is signed by a key that may not sign it: {}", keyfile::fingerprint(signer))]
    Stranger {
        /// The kind of value that is signed.
        what: &'static str,
        /// The key that is said to have signed.
        signer: PublicKey,
    },
    /// A signature is invalid: the value or the signature was altered or forged.
    #[error(
        "the {what} does not fit the signature of {}: it was altered or forged",
        keyfile::fingerprint(signer)
    )]
    False {
        /// The kind of value that is signed.
        what: &'static str,
        /// The key that is said to have signed.
        signer: PublicKey,
    },
    /// Too few signatures.
    #[error(
        "the {what} is signed by {} of the {needed} keys needed of {whose}{}",
        signed_by.len(), named(signed_by)
    )]
    TooFew {
        /// The kind of value that is signed.
        what: &'static str,
        /// The name of the set of keys whose signatures are needed.
        whose: String,
        /// The number of signatures that are needed.
        needed: u16,
        /// The keys that have signed.
        signed_by: Vec<PublicKey>,
    },
}

/// The fingerprints of keys, in brackets; empty if there are none.
fn named(keys: &[PublicKey]) -> String {
    match keys {
        [] => String::new(),
        keys => format!(" ({})", keys.iter().map(keyfile::fingerprint).collect::<Vec<_>>().join(", ")),
    }
}

/// A value with signatures that have not been checked.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Signed<T> {
    /// The signed value.
    pub value: T,
    /// Signatures by key.
    pub signatures: BTreeMap<PublicKey, Signature>,
}

impl<T: Signable> Signed<T> {
    /// A value that nobody has signed.
    pub fn unsigned(value: T) -> Signed<T> {
        Signed { value, signatures: BTreeMap::new() }
    }

    /// Adds a signature.
    ///
    /// # Errors
    /// The holder of the key refuses or fails to sign.
    pub fn sign(&mut self, key: &dyn KeyHolder) -> Result<(), SignError> {
        let signature = key.try_sign(T::DOMAIN, &self.value.signed_bytes())?;
        self.signatures.insert(key.public(), signature);
        Ok(())
    }

    /// The keys that have signed, if every signature is correct and by a key that `may` sign.
    ///
    /// # Errors
    /// [`SignatureError::Stranger`], [`SignatureError::False`].
    pub fn signers(&self, may: impl Fn(&PublicKey) -> bool) -> Result<BTreeSet<PublicKey>, SignatureError> {
        // Foreign keys are refused first, so that only signatures of permitted keys are verified.
        if let Some(signer) = self.signatures.keys().find(|signer| !may(signer)) {
            return Err(SignatureError::Stranger { what: T::WHAT, signer: *signer });
        }
        let bytes = self.value.signed_bytes();
        for (signer, signature) in &self.signatures {
            if !signer.verify(T::DOMAIN, &bytes, signature) {
                return Err(SignatureError::False { what: T::WHAT, signer: *signer });
            }
        }
        Ok(self.signatures.keys().copied().collect())
    }

    /// Checks that only keys of these roles have signed, and enough of each role. Roles have names for
    /// messages.
    ///
    /// # Errors
    /// [`SignatureError`].
    pub fn check(&self, roles: &[(&str, &Role)]) -> Result<(), SignatureError> {
        let signers = self.signers(|key| roles.iter().any(|(_, role)| role.keys.contains(key)))?;
        match roles.iter().find(|(_, role)| !role.is_met_by(&signers)) {
            None => Ok(()),
            Some((whose, role)) => Err(SignatureError::TooFew {
                what: T::WHAT,
                whose: (*whose).to_owned(),
                needed: role.threshold,
                signed_by: role.keys.intersection(&signers).copied().collect(),
            }),
        }
    }
}
