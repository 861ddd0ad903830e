//! Errors of this crate, by blame: the medium (or the server) failed, the author of a signed object
//! misbehaved, or the caller misused a function.

use crate::SourceError;
use holdfast_crypto::Digest;

/// Why an operation on authenticated objects failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    /// A block could not be fetched, or was altered: the server or the network is to blame.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A block is authentic, yet breaks the format: its writer is to blame.
    #[error("{what}{} is malformed: {why}", At(.address))]
    Malformed {
        /// The kind of object.
        what: &'static str,
        /// The object's block, if it has one of its own.
        address: Option<Digest>,
        /// The rule that it breaks.
        why: Malformed,
    },
    /// The caller requested something that the format cannot represent.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The reader that provides file content failed.
    #[error("reading the input failed: {0}")]
    Input(String),
}

/// The name that the contract between the crates uses for errors of Merkle maps.
pub type MapError = ContentError;

struct At<'a>(&'a Option<Digest>);

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_ref().map_or(Ok(()), |address| write!(f, " {address:?}"))
    }
}

/// How an authentic object violates the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A format number this program does not know.
    #[error("format {found} is newer than this program, which knows up to {known}")]
    UnknownFormat {
        /// The number found.
        found: u8,
        /// The highest known.
        known: u8,
    },
    /// The bytes end too early.
    #[error("it ends too early")]
    Truncated,
    /// Bytes follow its end.
    #[error("{0} bytes follow its end")]
    TrailingBytes(usize),
    /// The object refers to a sealed block.
    #[error("it refers to a sealed block, which needs a newer program")]
    Sealed,
    /// The header lists fewer addresses than the body uses.
    #[error("its header lists too few addresses")]
    ReferenceMissing,
    /// The header lists addresses the body does not use.
    #[error("its header lists {0} addresses that its body does not use")]
    ReferenceUnused(usize),
    /// A number that stands for a variant is unknown.
    #[error("unknown {what} {found}")]
    UnknownVariant {
        /// The field.
        what: &'static str,
        /// The number.
        found: u32,
    },
    /// Something is over, or under, its limit.
    #[error("{what} is {found}, allowed are {least} to {most}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// Keys are not strictly ascending: unsorted or twice the same.
    #[error("its {0} are not in strictly ascending order")]
    NotAscending(&'static str),
    /// A node of a Merkle map begins or ends elsewhere than its parent says.
    #[error("its keys lie outside the place its parent gives it")]
    Misplaced,
    /// A node of a Merkle map is of another level than its parent says.
    #[error("it is of level {found}, its parent says {expected}")]
    WrongLevel {
        /// The level according to the parent.
        expected: u8,
        /// Level it has.
        found: u8,
    },
    /// A node of a Merkle map holds another number of entries than its parent says.
    #[error("it holds {found} entries, its parent says {expected}")]
    WrongCount {
        /// The number of entries according to the parent.
        expected: u64,
        /// Entries it has.
        found: u64,
    },
    /// A node of a Merkle map is cut elsewhere than its keys demand.
    #[error("it is not cut where its keys demand")]
    Boundary,
    /// Something else that a name, size or combination of fields breaks.
    #[error("{0}")]
    Rule(String),
}

/// A request of the caller that the format does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// Something is over, or under, its limit.
    #[error("{what} is {found}, allowed are {least} to {most}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Its value.
        found: u64,
        /// The least allowed.
        least: u64,
        /// The most allowed.
        most: u64,
    },
    /// A name that no directory entry may have.
    #[error("{0:?} is not a valid name")]
    BadName(String),
    /// Fields that do not go together.
    #[error("{0}")]
    Rule(String),
}

impl Malformed {
    /// Names the object that is malformed.
    pub(crate) fn at(self, what: &'static str, address: Option<Digest>) -> ContentError {
        ContentError::Malformed { what, address, why: self }
    }
}

/// The offence as its author's, or as our caller's, depending on who made the value.
impl From<Malformed> for Misuse {
    fn from(why: Malformed) -> Misuse {
        match why {
            Malformed::OutOfRange { what, found, least, most } => {
                Misuse::OutOfRange { what, found, least, most }
            }
            other => Misuse::Rule(other.to_string()),
        }
    }
}

/// `found` if it is within bounds.
pub(crate) fn within(what: &'static str, found: u64, least: u64, most: u64) -> Result<(), Malformed> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(Malformed::OutOfRange { what, found, least, most })
    }
}
