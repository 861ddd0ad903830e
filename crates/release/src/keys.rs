//! The keys that sign for a release: sets of keys, each of which authorises its successor (TUF's root role).
//!
//! The id of a release is the digest of its first key set. Set 1 is signed by enough of its own keys. Set N+1
//! is signed by enough keys of set N *and* of its own, and contains the digest of set N. So a client that has
//! the id can follow the sets, one by one, to the current keys, whichever mirror serves them.
//!
//! Invariants of a [`KeyChain`]: the digest of its first set is the id, each further set follows the one
//! before it, and all are signed as described. Only [`KeyChain::begin`] and [`KeyChain::extend`] make one.
//!
//! Attacks answered: keys that were rotated out; a key set of another release with the same signers (each set
//! contains the digest of the one before it, and the first has a salt of its own); two releases of one
//! publisher with the same id; a skipped or forked succession.

use crate::form::{self, Kind, Malformed, RuleViolation};
use crate::moment::LATEST_S;
use crate::signing::{Role, Signable, SignatureError, Signed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, Domain};
use std::fmt;

/// Most key sets of a release.
pub const SETS_MAX: u64 = 1024;
/// The longest term of one renewal, in seconds: 366 days.
pub const TERM_MAX_S: u64 = 366 * 86_400;

/// The id of a release: the digest of its first key set. Displayed as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, BorshSerialize, BorshDeserialize)]
pub struct ReleaseId(pub Digest);

impl ReleaseId {
    /// Reads 64 hexadecimal digits; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<ReleaseId> {
        Digest::from_hex(text).map(ReleaseId)
    }
}

impl fmt::Display for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ReleaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseId({})", self.0.short())
    }
}

/// The predecessor of a key set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Origin {
    /// None: the set is the first of a release. The salt is random, so that two releases with the same keys
    /// have different ids, and a record of one is not valid for the other.
    First {
        /// 16 random bytes.
        salt: [u8; 16],
    },
    /// The key set before it.
    After {
        /// The digest of that key set.
        previous: Digest,
    },
}

/// Keys that may sign renewals, which state that a record is still current, and nothing else. They can be
/// stored on a machine that is on line.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct FreshnessRole {
    /// The keys that may sign renewals.
    pub role: Role,
    /// The longest term of one renewal, in seconds, at most [`TERM_MAX_S`].
    pub term_max_s: u64,
    /// The latest time at which a renewal may end, in seconds since 1970.
    pub until_s: u64,
}

/// A key set: the keys that may sign for a release.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct KeySet {
    /// The number of the set, from 1 to [`SETS_MAX`].
    pub number: u64,
    /// The set that it follows, or what makes it the first.
    pub origin: Origin,
    /// The keys that sign records, the next key set and a revocation.
    pub role: Role,
    /// The keys that may sign renewals, if there are any.
    pub freshness: Option<FreshnessRole>,
    /// Whether this is a certificate directory, which nobody may ever use after it has expired. The same in
    /// all key sets of a release.
    pub certificates: bool,
}

impl Signable for KeySet {
    const DOMAIN: Domain = Domain::ReleaseKeys;
    const WHAT: &'static str = "key set";
}

impl KeySet {
    fn well_formed(&self) -> Result<(), RuleViolation> {
        if self.number == 0 || self.number > SETS_MAX {
            return Err(RuleViolation::Number { found: self.number, most: SETS_MAX });
        }
        if matches!(self.origin, Origin::First { .. }) != (self.number == 1) {
            return Err(RuleViolation::Position(self.number));
        }
        self.role.well_formed()?;
        if let Some(freshness) = &self.freshness {
            freshness.role.well_formed().map_err(|rule| RuleViolation::Renewals(Box::new(rule)))?;
            if freshness.term_max_s == 0 || freshness.term_max_s > TERM_MAX_S {
                return Err(RuleViolation::RenewalTerm(freshness.term_max_s));
            }
            if freshness.until_s > LATEST_S {
                return Err(RuleViolation::Rule("renewals are allowed until after the year 9999"));
            }
        }
        Ok(())
    }
}

/// A key set as it is stored at a mirror (`keys/N`).
pub type SignedKeySet = Signed<KeySet>;

impl Kind for SignedKeySet {
    const MAGIC: &'static [u8; 7] = b"HF-keys";
    const WHAT: &'static str = "key set";
    const BYTES_MAX: u64 = 8 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        self.value.well_formed()
    }
}

/// Why a key set is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    /// The bytes are not a key set.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The key set belongs to another release.
    #[error("the key set is of the release {found}, not of {expected}")]
    WrongId {
        /// The id that was asked for.
        expected: ReleaseId,
        /// The id of the key set that was found.
        found: ReleaseId,
    },
    /// A key set was left out, or the sets are out of order.
    #[error("this is key set {found}, and key set {expected} comes next; none may be left out")]
    Skipped {
        /// The number that comes next.
        expected: u64,
        /// The number that was found.
        found: u64,
    },
    /// The key set is correctly signed, but follows another key set than the known one, or differs from the
    /// known one with its number: the holder of the keys has signed two successions. The first that was seen
    /// stays valid.
    #[error(
        "there are two key sets {number} of the release: {} is the one seen first, and stands; {} is refused. Ask \
         the publisher; if the keys were stolen, the release must be revoked",
        known.short(), found.short()
    )]
    Forked {
        /// The number of the key set.
        number: u64,
        /// The digest of the set seen first.
        known: Digest,
        /// The digest of the other set with that number.
        found: Digest,
    },
    /// A key set changes whether the release is a certificate directory.
    #[error("key set {number} changes whether the release is a certificate directory, which no key set may")]
    Purpose {
        /// The number of the key set.
        number: u64,
    },
    /// The signatures of a key set are not sufficient.
    #[error("key set {number}: {error}")]
    Signatures {
        /// The number of the key set.
        number: u64,
        /// What is wrong with them.
        error: SignatureError,
    },
}

/// The checked key sets of a release, from the first to the last known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyChain {
    sets: Vec<SignedKeySet>,
}

impl KeyChain {
    /// Begins a chain with the first key set of the release `id`.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn begin(id: ReleaseId, first: SignedKeySet) -> Result<KeyChain, KeysError> {
        let found = ReleaseId(first.value.digest());
        if found != id {
            return Err(KeysError::WrongId { expected: id, found });
        }
        form::well_formed(&first)?;
        // The digest matches; but a set that does not call itself the first could otherwise give a second
        // release an id.
        if first.value.number != 1 {
            return Err(KeysError::Skipped { expected: 1, found: first.value.number });
        }
        check_signatures(&first, &[(&whose(1), &first.value.role)])?;
        Ok(KeyChain { sets: vec![first] })
    }

    /// Like [`KeyChain::begin`], from the bytes of `keys/1`.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn begin_with_file(id: ReleaseId, bytes: &[u8]) -> Result<KeyChain, KeysError> {
        KeyChain::begin(id, form::read(bytes)?)
    }

    /// A chain of these sets, first set first.
    ///
    /// # Errors
    /// [`KeysError`]; also if there are no sets.
    pub fn of_sets(id: ReleaseId, sets: Vec<SignedKeySet>) -> Result<KeyChain, KeysError> {
        let mut sets = sets.into_iter();
        let none = || Malformed { what: "chain of key sets", why: "it is empty".to_owned() };
        let mut chain = KeyChain::begin(id, sets.next().ok_or_else(none)?)?;
        for set in sets {
            chain.append(set)?;
        }
        Ok(chain)
    }

    /// Adds a key set: the next one, or one that is in the chain already.
    ///
    /// # Errors
    /// [`KeysError`]; the chain is unchanged then.
    pub fn extend(&mut self, set: SignedKeySet) -> Result<(), KeysError> {
        form::well_formed(&set)?;
        let number = set.value.number;
        let Some(known) = self.set(number) else { return self.append(set) };
        let (known, found) = (known.digest(), set.value.digest());
        if known == found {
            return Ok(());
        }
        // Only a correctly signed set proves a fork.
        match number.checked_sub(1).and_then(|before| self.set(before)) {
            None => Err(KeysError::WrongId { expected: self.id(), found: ReleaseId(found) }),
            Some(before) => {
                follows(before, &set)?;
                Err(KeysError::Forked { number, known, found })
            }
        }
    }

    /// Like [`KeyChain::extend`], from the bytes of `keys/N`.
    ///
    /// # Errors
    /// [`KeysError`].
    pub fn extend_with_file(&mut self, bytes: &[u8]) -> Result<(), KeysError> {
        self.extend(form::read(bytes)?)
    }

    /// Merges another chain of the same release, which may be longer or shorter.
    ///
    /// # Errors
    /// [`KeysError::Forked`], [`KeysError::WrongId`]; the chain is unchanged then.
    pub fn merge(&mut self, other: &KeyChain) -> Result<(), KeysError> {
        for (ours, theirs) in self.sets.iter().zip(&other.sets) {
            let (known, found) = (ours.value.digest(), theirs.value.digest());
            if known != found {
                return Err(match ours.value.number {
                    1 => KeysError::WrongId { expected: self.id(), found: other.id() },
                    number => KeysError::Forked { number, known, found },
                });
            }
        }
        if other.sets.len() > self.sets.len() {
            self.sets = other.sets.clone();
        }
        Ok(())
    }

    /// The id of the release.
    pub fn id(&self) -> ReleaseId {
        ReleaseId(self.sets[0].value.digest())
    }

    /// The current key set: the last one.
    pub fn current(&self) -> &KeySet {
        &self.sets[self.sets.len() - 1].value
    }

    /// A key set by its number.
    pub fn set(&self, number: u64) -> Option<&KeySet> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        self.sets.get(index).map(|set| &set.value)
    }

    /// All key sets, first to last, with their signatures. There is at least one.
    pub fn sets(&self) -> &[SignedKeySet] {
        &self.sets
    }

    fn append(&mut self, set: SignedKeySet) -> Result<(), KeysError> {
        form::well_formed(&set)?;
        follows(self.current(), &set)?;
        self.sets.push(set);
        Ok(())
    }
}

/// The name of a key set in messages.
pub(crate) fn whose(number: u64) -> String {
    format!("key set {number}")
}

fn check_signatures(set: &SignedKeySet, roles: &[(&str, &Role)]) -> Result<(), KeysError> {
    set.check(roles).map_err(|error| KeysError::Signatures { number: set.value.number, error })
}

/// Checks that `next` may follow `before`, and is signed as required.
fn follows(before: &KeySet, next: &SignedKeySet) -> Result<(), KeysError> {
    let number = next.value.number;
    in_turn(before, &next.value)?;
    let names = (whose(before.number), whose(number));
    check_signatures(next, &[(&names.0, &before.role), (&names.1, &next.value.role)])?;
    // The signatures are valid, so a different predecessor proves that the holder of the keys has signed
    // another succession.
    match next.value.origin {
        Origin::After { previous } if previous == before.digest() => Ok(()),
        Origin::After { previous } if before.number == 1 => {
            Err(KeysError::WrongId { expected: ReleaseId(before.digest()), found: ReleaseId(previous) })
        }
        Origin::After { previous } => {
            Err(KeysError::Forked { number: before.number, known: before.digest(), found: previous })
        }
        Origin::First { .. } => Err(KeysError::Skipped { expected: number, found: 1 }),
    }
}

fn in_turn(before: &KeySet, next: &KeySet) -> Result<(), KeysError> {
    let number = next.number;
    if number != before.number + 1 {
        return Err(KeysError::Skipped { expected: before.number + 1, found: number });
    }
    if next.certificates != before.certificates {
        return Err(KeysError::Purpose { number });
    }
    Ok(())
}
