//! Values with a signature, untrusted until verified.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{
    Digest, DigestKey, Domain, KeyHolder, PublicKey, SignError, SignRequest, Signature, SigningKey,
};

/// A value that can be signed: it has a domain and canonical bytes.
pub trait Signable {
    /// Domain of the signature and of [`Signable::digest`].
    const DOMAIN: Domain;

    /// The bytes that the signature covers.
    fn signed_bytes(&self) -> Vec<u8>;

    /// All that those bytes stand for, encoded: the same, unless they hold digests of parts.
    fn whole_bytes(&self) -> Vec<u8> {
        self.signed_bytes()
    }

    /// The question to the holder of the key.
    fn ask(&self) -> SignRequest {
        SignRequest { domain: Self::DOMAIN, bytes: self.signed_bytes(), whole: self.whole_bytes() }
    }

    /// Digest of the bytes that are signed.
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

    /// Has `value` signed by the holder of the key.
    ///
    /// # Errors
    /// [`SignError`].
    pub fn by(value: T, key: &dyn KeyHolder) -> Result<Self, SignError> {
        let signatures = key.try_sign_all(&[value.ask()])?;
        let [signature] = signatures[..] else { return Err(miscounted()) };
        Ok(Signed { value, signature })
    }

    /// Has two values that belong together signed: both or neither.
    ///
    /// # Errors
    /// See [`SignError`].
    pub fn both<U: Signable>(
        first: T,
        second: U,
        key: &dyn KeyHolder,
    ) -> Result<(Self, Signed<U>), SignError> {
        let signatures = key.try_sign_all(&[first.ask(), second.ask()])?;
        let [one, other] = signatures[..] else { return Err(miscounted()) };
        Ok((Signed { value: first, signature: one }, Signed { value: second, signature: other }))
    }

    /// Whether `key` signed this value.
    #[must_use]
    pub fn verify(&self, key: &PublicKey) -> bool {
        key.verify(T::DOMAIN, &self.value.signed_bytes(), &self.signature)
    }
}

/// A value whose signature was verified with `key`. Only [`Signed::verified`] makes one, so a machine that
/// takes one cannot forget to verify, and the verification can be done before the machine's lock is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified<T> {
    signed: Signed<T>,
    key: PublicKey,
}

impl<T: Signable> Signed<T> {
    /// Verifies the signature.
    pub fn verified(self, key: PublicKey) -> Option<Verified<T>> {
        self.verify(&key).then_some(Verified { signed: self, key })
    }
}

impl<T> Verified<T> {
    /// The value.
    pub fn value(&self) -> &T {
        &self.signed.value
    }

    /// The value with its signature.
    pub fn signed(&self) -> &Signed<T> {
        &self.signed
    }

    /// The key that made the signature.
    pub fn key(&self) -> PublicKey {
        self.key
    }
}

fn miscounted() -> SignError {
    SignError::Refused(
        "whoever keeps the key gave another number of signatures than was asked for".to_owned(),
    )
}
