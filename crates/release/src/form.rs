//! The form that all signed files of a release share: eight bytes that say what it is, then one borsh value.
//!
//! Invariants: a file longer than its kind allows is refused before anything is made of it; one value has one byte
//! string; what comes out of [`read`] is well formed by the rules of its kind, but nobody has checked a signature.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{decode, encode};

/// The only format so far, of files and of what is signed.
pub const FORMAT: u8 = 1;

/// A kind of signed file: its magic bytes, its name for people and its bounds.
pub trait Kind: BorshSerialize + BorshDeserialize {
    /// The first seven bytes; the eighth is the format.
    const MAGIC: &'static [u8; 7];
    /// The name of the kind in messages.
    const WHAT: &'static str;
    /// More bytes than any such file has.
    const BYTES_MAX: u64;

    /// What is wrong with the value, apart from signatures.
    ///
    /// # Errors
    /// Why nobody may make such a value, in words.
    fn well_formed(&self) -> Result<(), String>;
}

/// Bytes that are not a file of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a {what}: {why}")]
pub struct Malformed {
    /// The kind of file that was expected.
    pub what: &'static str,
    /// What is wrong, in words.
    pub why: String,
}

/// The bytes of a file.
pub fn write<T: Kind>(value: &T) -> Vec<u8> {
    let mut bytes = T::MAGIC.to_vec();
    bytes.push(FORMAT);
    bytes.extend(encode(value));
    bytes
}

/// Whether bytes claim to be a file of this kind.
pub fn claims<T: Kind>(bytes: &[u8]) -> bool {
    bytes.starts_with(T::MAGIC)
}

/// Reads a file from bytes that may be anything.
///
/// # Errors
/// [`Malformed`]: another kind, too long, a newer format, not the one encoding of a value, or against the rules of
/// its kind.
pub fn read<T: Kind>(bytes: &[u8]) -> Result<T, Malformed> {
    let malformed = |why: String| Malformed { what: T::WHAT, why };
    if bytes.len() as u64 > T::BYTES_MAX {
        return Err(malformed(format!("it is larger than {} bytes", T::BYTES_MAX)));
    }
    let body = bytes.strip_prefix(T::MAGIC).ok_or_else(|| malformed("it begins otherwise".to_owned()))?;
    let body = match body.split_first() {
        Some((&FORMAT, body)) => body,
        Some((format, _)) => {
            let why = format!(
                "its format is {format}, and this program knows {FORMAT}; a newer holdfast may read it"
            );
            return Err(malformed(why));
        }
        None => return Err(malformed("it ends early".to_owned())),
    };
    let value: T = decode(body).map_err(|error| malformed(error.why))?;
    value.well_formed().map_err(malformed)?;
    Ok(value)
}
