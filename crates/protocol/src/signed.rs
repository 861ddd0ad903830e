//! Values with a signature, untrusted until verified.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey, Signature, SigningKey};

/// A value that can be signed: it has a domain and canonical bytes.
pub trait Signable {
    /// Domain of the signature and of [`Signable::digest`].
    const DOMAIN: Domain;

    /// The bytes that the signature covers.
    fn signed_bytes(&self) -> Vec<u8>;

    /// Digest of those bytes.
    fn digest(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Self::DOMAIN, &self.signed_bytes())
    }
}

/// A value and a signature over it. Holding one proves nothing: see [`Signed::verify`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Signed<T> {
    /// The value.
    pub value: T,
    /// The signature over [`Signable::signed_bytes`].
    pub signature: Signature,
}

impl<T: Signable> Signed<T> {
    /// Signs `value`.
    pub fn new(value: T, key: &SigningKey) -> Self {
        let signature = key.sign(T::DOMAIN, &value.signed_bytes());
        Signed { value, signature }
    }

    /// Whether `key` signed this value.
    #[must_use]
    pub fn verify(&self, key: &PublicKey) -> bool {
        key.verify(T::DOMAIN, &self.value.signed_bytes(), &self.signature)
    }
}
