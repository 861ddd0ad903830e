//! Digests, keys, signatures and canonical encoding: the only place in Holdfast that touches cryptography.
//!
//! Invariants:
//! - Every digest is domain-separated ([`Domain`]) and keyed ([`DigestKey`]). So bytes of one kind can
//!   never pass for another kind, nor those of one keyed file system in another.
//! - Every signature covers a digest made under its own domain ([`SigningKey::sign`],
//!   [`KeyHolder::try_sign`]), except those that TLS makes over its own transcript.
//! - Encodings are canonical: [`decode`] refuses trailing bytes, so one value has one byte string.
//!
//! This crate is pure: no clock, no randomness (seeds are arguments), no files, no sockets.
#![forbid(unsafe_code)]

pub mod agent;
mod digest;
mod encoding;
mod holder;
pub mod keyfile;
mod keys;

pub use digest::{Digest, DigestHasher, DigestKey, Domain};
pub use encoding::{DecodeError, decode, encode};
pub use holder::{KeyHolder, SignError, SignRequest};
pub use keys::{PublicKey, Signature, SigningKey};
