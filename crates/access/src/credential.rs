//! What principals state, and the proof that they stated it.
//!
//! Invariant: a [`VerifiedCredential`] really comes from its issuer. Only [`VerifiedCredential::signed`],
//! which verifies a signature, and [`VerifiedCredential::spoken`], which the runtime calls for the channel it
//! read from, make one. So no function that takes a `VerifiedCredential` can forget the check.

use crate::{AccessError, Manifest, Principal, ProcessName, Scope};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain, Signature, SigningKey, decode, encode};
use std::collections::BTreeMap;
use std::fmt;

/// The longest signed credential, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 64 << 10;
/// The most credentials held for one process.
pub const CREDENTIALS_MAX: usize = 256;

/// A statement of a credential. The order of the variants is part of the signed format.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Statement {
    /// `delegate` speaksfor `principal` within `scope`.
    SpeaksFor {
        /// The principal that may speak.
        delegate: Principal,
        /// The principal for which it may speak.
        principal: Principal,
        /// The restriction.
        scope: Scope,
    },
    /// The process runs what the manifest describes. Counts only if the machine says it.
    Runs {
        /// The process.
        process: ProcessName,
        /// The manifest of the program that it runs.
        manifest: Manifest,
    },
    /// Earlier credentials of the same issuer end.
    Ends(Ending),
}

/// The credentials of an issuer that end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Ending {
    /// The one with this serial.
    Serial(u64),
    /// All with a lower serial.
    Before(u64),
    /// All, for good: a lost key, a dismissed user.
    Everything,
}

/// `issuer says statement`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Credential {
    /// The principal that makes the statement.
    pub issuer: Principal,
    /// The issuer's number for it, by which it can be revoked. Issuers count upwards.
    pub serial: u64,
    /// When the credential expires, in seconds since 1970; in that second it is still valid.
    pub expires_s: Option<u64>,
    /// The statement.
    pub statement: Statement,
}

/// The digest that names a credential in proofs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct CredentialId(pub Digest);

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.short())
    }
}

/// The bytes that travel: version 1 of the format.
#[derive(BorshSerialize, BorshDeserialize)]
enum Signed {
    V1(Credential, Signature),
}

impl Credential {
    /// The name of the credential in proofs.
    pub fn id(&self) -> CredentialId {
        CredentialId(DigestKey::WELL_KNOWN.digest(Domain::Credential, &encode(self)))
    }

    /// Signs the credential, for [`VerifiedCredential::signed`]. `issuer` should be the key's principal:
    /// otherwise it is refused.
    pub fn sign(self, key: &SigningKey) -> Vec<u8> {
        let signature = key.sign(Domain::Credential, &encode(&self));
        encode(&Signed::V1(self, signature))
    }
}

/// A credential that its issuer really stated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedCredential(Credential);

impl VerifiedCredential {
    /// Reads and verifies a signed credential.
    ///
    /// # Errors
    /// [`AccessError::Malformed`], [`AccessError::NotTheirs`], [`AccessError::BadSignature`].
    pub fn signed(bytes: &[u8]) -> Result<VerifiedCredential, AccessError> {
        let what = "signed credential";
        if bytes.len() > CREDENTIAL_BYTES_MAX {
            return Err(AccessError::Malformed { what, why: "longer than 64 KiB".to_owned() });
        }
        let Signed::V1(credential, signature) =
            decode(bytes).map_err(|error| AccessError::Malformed { what, why: error.why })?;
        let Principal::Key(key) = &credential.issuer else {
            return Err(AccessError::NotTheirs { issuer: credential.issuer });
        };
        if !key.verify(Domain::Credential, &encode(&credential), &signature) {
            return Err(AccessError::BadSignature(credential.issuer));
        }
        Ok(VerifiedCredential(credential))
    }

    /// Accepts a credential that `speaker`, a process or the machine, sent over its own channel. The caller
    /// vouches for the channel. A credential cannot be stated under an alias: what a process states ends with
    /// it.
    ///
    /// # Errors
    /// [`AccessError::NotTheirs`].
    pub fn spoken(speaker: &Principal, credential: Credential) -> Result<VerifiedCredential, AccessError> {
        let speaks = matches!(speaker, Principal::Process(_) | Principal::Machine);
        if speaks && credential.issuer == *speaker {
            Ok(VerifiedCredential(credential))
        } else {
            Err(AccessError::NotTheirs { issuer: credential.issuer })
        }
    }

    /// The credential.
    pub fn credential(&self) -> &Credential {
        &self.0
    }
}

/// The credentials held for one process, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credentials(BTreeMap<CredentialId, VerifiedCredential>);

impl Credentials {
    /// Stores a credential for later proofs.
    ///
    /// # Errors
    /// [`AccessError::TooManyCredentials`].
    pub fn keep(&mut self, verified: VerifiedCredential) -> Result<CredentialId, AccessError> {
        let id = verified.credential().id();
        if self.0.len() >= CREDENTIALS_MAX && !self.0.contains_key(&id) {
            return Err(AccessError::TooManyCredentials);
        }
        self.0.insert(id, verified);
        Ok(id)
    }

    /// Forgets a credential. Aliases proved with it stay: to end those, revoke it.
    pub fn forget(&mut self, id: CredentialId) -> bool {
        self.0.remove(&id).is_some()
    }

    /// A credential by name.
    ///
    /// # Errors
    /// [`AccessError::UnknownCredential`].
    pub fn get(&self, id: CredentialId) -> Result<&Credential, AccessError> {
        self.0.get(&id).map(VerifiedCredential::credential).ok_or(AccessError::UnknownCredential(id))
    }
}
