//! φ: a closed small language for conditions on manifests.
//!
//! Invariants: a predicate is a list of at most [`TERMS_MAX`] terms in prefix order (an operator before its
//! operands) that forms exactly one tree. So it is evaluated in one pass without recursion, and nothing that
//! a peer sends is deep. It has no loops and no variables.

use crate::{AccessError, Conditions, KeyName, Manifest, Name, ProgramHash, Text, malformed};
use borsh::{BorshDeserialize, BorshSerialize, io};
use holdfast_crypto::Digest;

/// The most terms in a predicate.
pub const TERMS_MAX: usize = 32;

/// A term of a predicate. The order of the variants is part of the stored format.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Term {
    /// Each of the next so many operands (2 or more) holds.
    All(u8),
    /// At least one of the next so many operands (2 or more) holds.
    Any(u8),
    /// The next operand does not hold.
    Not,
    /// Code and configuration have this hash.
    Program(ProgramHash),
    /// The executable has this digest.
    Executable(Digest),
    /// The package is among those whose key signed for the executable.
    Package(KeyName),
    /// The program is this component.
    Component(Name),
    /// The configuration has this setting.
    Setting(Name, Text),
    /// The program runs under this user id.
    Uid(u32),
}

impl Term {
    /// The number of operands that follow.
    fn operands(&self) -> usize {
        match self {
            Term::All(count) | Term::Any(count) => usize::from(*count),
            Term::Not => 1,
            _ => 0,
        }
    }
}

/// A predicate over manifests. A manifest with a condition satisfies it only if it tolerates that condition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize)]
pub struct Predicate {
    terms: Vec<Term>,
    tolerates: Conditions,
}

impl Predicate {
    /// A predicate from terms in prefix order.
    ///
    /// # Errors
    /// [`AccessError::BadPredicate`] if they do not form one tree, or are too many.
    pub fn new(terms: Vec<Term>, tolerates: Conditions) -> Result<Predicate, AccessError> {
        if terms.len() > TERMS_MAX {
            return Err(AccessError::BadPredicate("it has more than 32 terms"));
        }
        let mut awaited = 1;
        for term in &terms {
            if awaited == 0 {
                return Err(AccessError::BadPredicate("terms follow its end"));
            }
            if matches!(term, Term::All(0 | 1) | Term::Any(0 | 1)) {
                return Err(AccessError::BadPredicate("`all` and `any` want two operands or more"));
            }
            awaited = awaited - 1 + term.operands();
        }
        if awaited != 0 {
            return Err(AccessError::BadPredicate("operands are missing"));
        }
        Ok(Predicate { terms, tolerates })
    }

    /// The terms, in prefix order.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The conditions that do not exclude a process.
    pub fn tolerates(&self) -> Conditions {
        self.tolerates
    }

    /// φ(P), for a process P with this manifest.
    pub fn holds(&self, manifest: &Manifest) -> bool {
        let mut values = Vec::with_capacity(self.terms.len());
        for term in self.terms.iter().rev() {
            let operands = values.split_off(values.len() - term.operands());
            values.push(match term {
                Term::All(_) => operands.into_iter().all(|value| value),
                Term::Any(_) => operands.into_iter().any(|value| value),
                Term::Not => !operands[0],
                Term::Program(hash) => manifest.program() == *hash,
                Term::Executable(digest) => manifest.executable == *digest,
                Term::Package(package) => manifest.packages.contains(package),
                Term::Component(name) => manifest.component.as_ref() == Some(name),
                Term::Setting(name, value) => manifest.settings.get(name) == Some(value),
                Term::Uid(uid) => manifest.uid == *uid,
            });
        }
        values == [true] && manifest.conditions.within(self.tolerates)
    }
}

impl BorshDeserialize for Predicate {
    fn deserialize_reader<R: io::Read>(reader: &mut R) -> io::Result<Self> {
        let terms = Vec::deserialize_reader(reader)?;
        let tolerates = Conditions::deserialize_reader(reader)?;
        Predicate::new(terms, tolerates).map_err(malformed)
    }
}
