//! The format that all signed files of a release share: eight bytes that identify the kind, then one borsh
//! value.
//!
//! Invariants: a file longer than its kind allows is refused before it is decoded; a value has exactly one
//! encoding; what [`read`] returns is well formed by the rules of its kind, but its signatures are not
//! checked.

use crate::moment::moment;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{decode, encode};

/// The only version so far, of files and of what is signed.
pub const FORMAT: u8 = 1;

/// A kind of signed file: its magic bytes, its name for people and its bounds.
pub trait Kind: BorshSerialize + BorshDeserialize {
    /// The first seven bytes; the eighth is the format.
    const MAGIC: &'static [u8; 7];
    /// The name of the kind in messages.
    const WHAT: &'static str;
    /// Most bytes of such a file.
    const BYTES_MAX: u64;

    /// Whether the value obeys the rules of its kind; signatures are not checked.
    ///
    /// # Errors
    /// The first rule that it breaks.
    fn well_formed(&self) -> Result<(), RuleViolation>;
}

/// The rule that a value breaks.
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
    /// A period ends before it begins, or after the year 9999.
    #[error("{part} lasts from {} to {}", moment(*.from_s), moment(*.until_s))]
    Period {
        /// The part that has this period.
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
    /// A key set has a number out of range.
    #[error("its number is {found}, and numbers go from 1 to {most}")]
    Number {
        /// Its number.
        found: u64,
        /// The highest number.
        most: u64,
    },
    /// A key set claims to be the first and to follow another, or neither.
    #[error("number {0} does not fit what it follows")]
    Position(u64),
    /// A rule that the role for renewals breaks.
    #[error("renewals: {0}")]
    Renewals(Box<RuleViolation>),
    /// Renewals may last for no time at all, or for too long.
    #[error("renewals of {0} seconds are allowed")]
    RenewalTerm(u64),
    /// Another rule.
    #[error("{0}")]
    Rule(&'static str),
}

/// Checks that a text for people is short, and has no control characters except those `allowed`.
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

/// Encodes a value as a file.
pub fn write<T: Kind>(value: &T) -> Vec<u8> {
    let mut bytes = T::MAGIC.to_vec();
    bytes.push(FORMAT);
    bytes.extend(encode(value));
    bytes
}

/// Whether bytes begin like a file of this kind.
pub fn claims<T: Kind>(bytes: &[u8]) -> bool {
    bytes.starts_with(T::MAGIC)
}

/// Decodes a file from untrusted bytes.
///
/// # Errors
/// [`Malformed`]: another kind, too long, a newer version, not canonical, or against the rules of its kind.
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

/// Checks that a value is well formed. The error has the name of its kind.
///
/// # Errors
/// [`Malformed`].
pub fn well_formed<T: Kind>(value: &T) -> Result<(), Malformed> {
    value.well_formed().map_err(|rule| Malformed { what: T::WHAT, why: rule.to_string() })
}
