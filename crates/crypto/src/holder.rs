//! Holders of private keys: this process, or another one that signs on request.

use crate::{DigestKey, Domain, PublicKey, Signature, SigningKey};
use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt;
use std::sync::Arc;

/// Why there is no signature. As far as the caller can tell nothing was signed, so it may ask again.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum SignError {
    /// The key holder does not answer, or does not have the key now; trying again later may help.
    #[error("{0}")]
    Away(String),
    /// The key holder has the key, and refused.
    #[error("{0}")]
    Refused(String),
}

/// A request for a signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignRequest {
    /// The domain of the signature.
    pub domain: Domain,
    /// The bytes it covers.
    pub bytes: Vec<u8>,
    /// The encoding of everything that `bytes` stands for: if the signature covers digests of parts, the
    /// parts are included here, so that the key holder can judge them.
    pub whole: Vec<u8>,
}

/// Signs with one Ed25519 private key. Blocking: the key holder may have to ask a person.
pub trait KeyHolder: fmt::Debug + Send + Sync {
    /// The public half.
    fn public(&self) -> PublicKey;

    /// The plain Ed25519 signature over `message`, for TLS only. Everything else uses
    /// [`KeyHolder::try_sign`].
    ///
    /// # Errors
    /// See [`SignError`].
    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError>;

    /// Signs the digest of `bytes` in `domain`.
    ///
    /// # Errors
    /// See [`SignError`].
    fn try_sign(&self, domain: Domain, bytes: &[u8]) -> Result<Signature, SignError> {
        self.sign_message(&DigestKey::WELL_KNOWN.digest(domain, bytes).0)
    }

    /// Signs several things that belong together: either all are signed, or no signature becomes visible.
    ///
    /// # Errors
    /// See [`SignError`].
    fn try_sign_all(&self, asks: &[SignRequest]) -> Result<Vec<Signature>, SignError> {
        asks.iter().map(|ask| self.try_sign(ask.domain, &ask.bytes)).collect()
    }
}

impl KeyHolder for SigningKey {
    fn public(&self) -> PublicKey {
        SigningKey::public(self)
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        Ok(SigningKey::sign_message(self, message))
    }
}

impl From<SigningKey> for Arc<dyn KeyHolder> {
    fn from(key: SigningKey) -> Arc<dyn KeyHolder> {
        Arc::new(key)
    }
}
