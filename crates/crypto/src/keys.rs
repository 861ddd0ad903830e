//! Ed25519 keys and signatures over domain-separated digests.

use crate::{Digest, DigestKey, Domain};
use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_dalek::Signer;
use std::fmt;

/// An Ed25519 public key (32 bytes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct PublicKey(pub [u8; 32]);

/// An Ed25519 signature (64 bytes).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct Signature(pub [u8; 64]);

impl PublicKey {
    /// Whether `signature` is this key's over `bytes` in `domain`. Strict: refuses weak keys and malleable
    /// signatures.
    pub fn verify(&self, domain: Domain, bytes: &[u8], signature: &Signature) -> bool {
        self.verify_message(&DigestKey::WELL_KNOWN.digest(domain, bytes).0, signature)
    }

    /// Whether `signature` is this key's over `message` as it is. Strict, too.
    pub(crate) fn verify_message(&self, message: &[u8], signature: &Signature) -> bool {
        let Ok(key) = ed25519_dalek::VerifyingKey::from_bytes(&self.0) else { return false };
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        key.verify_strict(message, &signature).is_ok()
    }

    /// Whether `signature` is this key's over the text of a signed note. Strict, too.
    pub fn verify_text(&self, text: &str, signature: &Signature) -> bool {
        self.verify_message(text.as_bytes(), signature)
    }

    /// The id of the file system whose superuser holds this key.
    pub fn file_system_id(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::FileSystem, &self.0)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Digest(self.0), f)
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", Digest(self.0).short())
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({}..)", &Digest(self.0[..32].try_into().expect("32 bytes")).short())
    }
}

/// An Ed25519 private key; wiped from memory on drop, never printed.
#[derive(Clone)]
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// The key made from a 32-byte seed (RFC 8032's private key).
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        SigningKey(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// The seed: secret; for writing key files, and for handing the key to another process.
    pub fn seed(&self) -> zeroize::Zeroizing<[u8; 32]> {
        zeroize::Zeroizing::new(self.0.to_bytes())
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Signs the digest of `bytes` in `domain`.
    pub fn sign(&self, domain: Domain, bytes: &[u8]) -> Signature {
        self.sign_message(&DigestKey::WELL_KNOWN.digest(domain, bytes).0)
    }

    /// Signs the text of a signed note (c2sp.org/signed-note) as it is. The other contents that this program
    /// signs are digests of 32 bytes and transcripts that begin with spaces, so neither can be taken for the
    /// other.
    ///
    /// # Panics
    /// If the text has at most 64 bytes or begins with a space: no text of ours does.
    pub fn sign_text(&self, text: &str) -> Signature {
        assert!(text.len() > 64 && !text.starts_with(' '), "not the text of a checkpoint or cosignature");
        self.sign_message(text.as_bytes())
    }

    /// Signs `message` as it is.
    pub(crate) fn sign_message(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {:?})", self.public())
    }
}
