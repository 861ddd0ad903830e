//! Who signs: this process, if it has the private key, or somebody who keeps it and signs when asked.

use crate::{DigestKey, Domain, PublicKey, Signature, SigningKey};
use borsh::{BorshDeserialize, BorshSerialize};
use std::fmt;
use std::sync::Arc;

/// Why there is no signature. Nothing was signed as far as the caller can tell, so it may ask again.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum NotSigned {
    /// Whoever keeps the key does not answer, or does not have it now; asking again later may help.
    #[error("{0}")]
    Away(String),
    /// Whoever keeps the key has it, and refused.
    #[error("{0}")]
    Refused(String),
}

/// A signature that is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Its domain.
    pub domain: Domain,
    /// The bytes it covers.
    pub bytes: Vec<u8>,
    /// Everything that `bytes` stands for, encoded: what covers the digest of something comes with that here, so that
    /// whoever keeps the key can judge it.
    pub whole: Vec<u8>,
}

/// Something that signs with one Ed25519 private key. Blocking: whoever keeps the key may have to ask a person.
pub trait KeyHolder: fmt::Debug + Send + Sync {
    /// The public half.
    fn public(&self) -> PublicKey;

    /// The plain Ed25519 signature over `message`, as TLS needs it. Everything else goes through
    /// [`KeyHolder::try_sign`].
    ///
    /// # Errors
    /// See [`NotSigned`].
    fn sign_message(&self, message: &[u8]) -> Result<Signature, NotSigned>;

    /// Signs the digest of `bytes` in `domain`.
    ///
    /// # Errors
    /// See [`NotSigned`].
    fn try_sign(&self, domain: Domain, bytes: &[u8]) -> Result<Signature, NotSigned> {
        self.sign_message(&DigestKey::WELL_KNOWN.digest(domain, bytes).0)
    }

    /// Signs several things that belong together: all of them, or none that anybody comes to see.
    ///
    /// # Errors
    /// See [`NotSigned`].
    fn try_sign_all(&self, asks: &[Ask]) -> Result<Vec<Signature>, NotSigned> {
        asks.iter().map(|ask| self.try_sign(ask.domain, &ask.bytes)).collect()
    }
}

impl KeyHolder for SigningKey {
    fn public(&self) -> PublicKey {
        SigningKey::public(self)
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, NotSigned> {
        Ok(SigningKey::sign_message(self, message))
    }
}

impl From<SigningKey> for Arc<dyn KeyHolder> {
    fn from(key: SigningKey) -> Arc<dyn KeyHolder> {
        Arc::new(key)
    }
}
