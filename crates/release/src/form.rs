//! The form that all signed files of a release share: eight bytes that say what it is, then one borsh value.
//!
//! Invariants: a file longer than its kind allows is refused before anything is made of it; one value has one byte
//! string; what comes out of [`read`] is well formed by the rules of its kind, but nobody has checked a signature.

use crate::moment::moment;
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

    /// Whether such a value may be made at all; signatures are another matter.
    ///
    /// # Errors
    /// The first rule that it breaks.
    fn well_formed(&self) -> Result<(), RuleViolation>;
}

/// A rule that a value breaks, whoever made it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleViolation {
    /// A text is too long.
    #[error("its {part} has {bytes} bytes; {most} are allowed")]
    TooLong {
        /// The text's name.
        part: &'static str,
        /// Its bytes.
        bytes: usize,
        /// The most that are allowed.
        most: usize,
    },
    /// A text has control characters.
    #[error("its {0} has control characters")]
    Control(&'static str),
    /// It ends before it begins, or after the year 9999.
    #[error("{part} lasts from {} to {}", moment(*.from_s), moment(*.until_s))]
    Period {
        /// What lasts so long.
        part: &'static str,
        /// The beginning, in seconds since 1970.
        from_s: u64,
        /// The end, in seconds since 1970.
        until_s: u64,
    },
    /// A role has no keys, or too many.
    #[error("it has {found} keys, and there must be 1 to {most}")]
    KeyCount {
        /// Its keys.
        found: usize,
        /// The most that are allowed.
        most: usize,
    },
    /// A role asks for no signature, or for more than it has keys.
    #[error("it asks for {threshold} signatures of {keys} keys")]
    Threshold {
        /// Signatures that it asks for.
        threshold: u16,
        /// Its keys.
        keys: usize,
    },
    /// A key set has a number that none has.
    #[error("its number is {found}, and numbers go from 1 to {most}")]
    Number {
        /// Its number.
        found: u64,
        /// The highest number.
        most: u64,
    },
    /// A key set is the first and follows another, or neither.
    #[error("number {0} does not fit what it follows")]
    Position(u64),
    /// Something of the role for renewals.
    #[error("renewals: {0}")]
    Renewals(Box<RuleViolation>),
    /// Renewals may last for no time, or for too long.
    #[error("renewals of {0} seconds are allowed")]
    RenewalTerm(u64),
    /// Another rule.
    #[error("{0}")]
    Rule(&'static str),
}

/// A text for people is short, and has no control characters but those that are `allowed`.
pub(crate) fn fit_for_people(
    part: &'static str,
    text: &str,
    most: usize,
    allowed: Option<char>,
) -> Result<(), RuleViolation> {
    if text.len() > most {
        return Err(RuleViolation::TooLong { part, bytes: text.len(), most });
    }
    match text.chars().any(|c| c.is_control() && Some(c) != allowed) {
        true => Err(RuleViolation::Control(part)),
        false => Ok(()),
    }
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
    well_formed(&value)?;
    Ok(value)
}

/// Whether a value may be made, with the name of its kind if not.
///
/// # Errors
/// [`Malformed`]
pub fn well_formed<T: Kind>(value: &T) -> Result<(), Malformed> {
    value.well_formed().map_err(|rule| Malformed { what: T::WHAT, why: rule.to_string() })
}
