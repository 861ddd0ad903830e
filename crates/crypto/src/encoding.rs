//! Canonical encoding (borsh): little-endian, length-prefixed, sorted maps, one byte string a value.

use borsh::{BorshDeserialize, BorshSerialize};

/// The bytes are not the canonical encoding of the expected type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}: {why}")]
pub struct DecodeError {
    /// The expected type.
    pub what: &'static str,
    /// The reason.
    pub why: String,
}

/// The canonical bytes of `value`.
pub fn encode<T: BorshSerialize + ?Sized>(value: &T) -> Vec<u8> {
    borsh::to_vec(value).expect("encoding into memory cannot fail")
}

/// Decodes a whole buffer.
///
/// # Errors
/// [`DecodeError`] when the bytes are short, malformed, non-canonical or followed by more.
pub fn decode<T: BorshDeserialize>(bytes: &[u8]) -> Result<T, DecodeError> {
    borsh::from_slice(bytes)
        .map_err(|error| DecodeError { what: std::any::type_name::<T>(), why: error.to_string() })
}
