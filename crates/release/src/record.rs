//! The record of a release (the read-only paper's FSINFO, section 3.2), its renewal, and the file that
//! contains them.
//!
//! A record states which tree a release is, and the period in which it is valid. A renewal, signed by a key
//! that may do nothing else, states that the record is still current, and extends the period. The same file
//! also says where the blocks are; that part is *not* signed. It is a hint, and every block is checked
//! against the record, wherever it came from.
//!
//! Invariant of [`Authentic`]: the record and the renewal belong to the release and are signed as its key set
//! demands. Only [`authenticate`] makes one. Whether they are in force *now* is decided in [`crate::accept`].

use crate::form::{Kind, RuleViolation, fit_for_people};
use crate::keys::{KeyChain, KeySet, ReleaseId, whose};
use crate::moment::{LATEST_S, moment};
use crate::signing::{Signable, SignatureError, Signed};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Reference;
use holdfast_crypto::{Digest, DigestKey, Domain};

/// Most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 256;

/// The signed description of a release.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Record {
    /// The release.
    pub release: ReleaseId,
    /// Number of the key set that signs it.
    pub key_set: u64,
    /// The sequence number: from 1 on, each greater than the one before.
    pub sequence: u64,
    /// When it was signed, in seconds since 1970 (the paper's `start`).
    pub issued_s: u64,
    /// The last second of its validity, unless renewed (the paper's `start` + `duration`).
    pub expires_s: u64,
    /// The key of all digests in the release (the paper's `iv`).
    pub digest_key: DigestKey,
    /// Inode block of the root directory (the paper's `rootfh`).
    pub root_dir: Reference,
    /// The digest of the record before it.
    pub previous: Option<Digest>,
    /// A title or version for people: at most [`NOTE_BYTES_MAX`] bytes, no control characters.
    pub note: String,
}

impl Signable for Record {
    const DOMAIN: Domain = Domain::ReleaseRecord;
    const WHAT: &'static str = "record";
}

/// A statement that a record is still the current one.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Freshness {
    /// The release.
    pub release: ReleaseId,
    /// The digest of the record that is renewed.
    pub record: Digest,
    /// When it was signed, in seconds since 1970.
    pub issued_s: u64,
    /// The last second at which the record is valid by this renewal, since 1970.
    pub expires_s: u64,
}

impl Signable for Freshness {
    const DOMAIN: Domain = Domain::ReleaseFreshness;
    const WHAT: &'static str = "renewal";
}

/// The digest and length of a file that is named by its digest. Not signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Location {
    /// The digest of the file's bytes.
    pub digest: Digest,
    /// How many bytes it has.
    pub bytes: u64,
}

/// The file `root`, and each `records/SEQUENCE`.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct RootFile {
    /// The record.
    pub record: Signed<Record>,
    /// The latest renewal of the record.
    pub freshness: Option<Signed<Freshness>>,
    /// The index, which says where blocks are. A hint.
    pub index: Location,
    /// The hints file, which says which blocks a path needs. A hint.
    pub hints: Option<Location>,
}

impl Kind for RootFile {
    const MAGIC: &'static [u8; 7] = b"HF-root";
    const WHAT: &'static str = "signed record of a release";
    const BYTES_MAX: u64 = 8 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        let record = &self.record.value;
        if record.sequence == 0 {
            return Err(RuleViolation::Rule("records are numbered from 1"));
        }
        if record.sequence == 1 && record.previous.is_some() {
            return Err(RuleViolation::Rule("the first record names one before it"));
        }
        fit_for_people("note", &record.note, NOTE_BYTES_MAX, None)?;
        lasts("it", record.issued_s, record.expires_s)?;
        if let Some(Signed { value, .. }) = &self.freshness {
            lasts("its renewal", value.issued_s, value.expires_s)?;
        }
        Ok(())
    }
}

fn lasts(part: &'static str, from_s: u64, until_s: u64) -> Result<(), RuleViolation> {
    match until_s <= from_s || until_s > LATEST_S {
        true => Err(RuleViolation::Period { part, from_s, until_s }),
        false => Ok(()),
    }
}

/// The period of a record's validity, by its latest renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Validity {
    /// When the record or renewal was signed, in seconds since 1970.
    pub from_s: u64,
    /// The last second of the validity, since 1970.
    pub until_s: u64,
}

impl Validity {
    /// The one of the two that ends later.
    pub fn longer(self, other: Validity) -> Validity {
        if other.until_s > self.until_s { other } else { self }
    }

    /// The middle of the period; after it, people are warned.
    pub fn half_life_s(&self) -> u64 {
        self.from_s + self.until_s.saturating_sub(self.from_s) / 2
    }
}

/// Why a file does not belong to the release.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAuthentic {
    /// The record belongs to another release.
    #[error("the record is of the release {found}, not of {expected}")]
    WrongRelease {
        /// The release that was asked for.
        expected: ReleaseId,
        /// The release that the record names.
        found: ReleaseId,
    },
    /// The record names a key set that is not known (yet).
    #[error(
        "the record is signed by key set {found}, and only key sets up to {last} are known; the mirror may not have \
         all of `keys` yet"
    )]
    UnknownKeySet {
        /// The number of the key set that it names.
        found: u64,
        /// The number of the last known key set.
        last: u64,
    },
    /// The signatures of the record or of its renewal are not valid.
    #[error(transparent)]
    Signatures(#[from] SignatureError),
    /// The record carries a renewal, and the key set allows none.
    #[error("the record carries a renewal, and key set {0} allows none")]
    NoRenewals(u64),
    /// The renewal is of another record or release.
    #[error("the renewal is of another record: {found:?}, not {expected:?}")]
    OtherRecord {
        /// The digest of the record.
        expected: Digest,
        /// The digest in the renewal, or the other release's id.
        found: Digest,
    },
    /// The renewal lasts longer than the key set allows.
    #[error("the renewal ends at {}, and key set {key_set} allows {} at most", moment(*found_s), moment(*allowed_s))]
    TermTooLong {
        /// The number of the key set.
        key_set: u64,
        /// When the renewal ends, in seconds since 1970.
        found_s: u64,
        /// When it may end at the latest, in seconds since 1970.
        allowed_s: u64,
    },
}

/// A record, and perhaps a renewal, that the release's keys have signed.
#[derive(Clone, Copy, Debug)]
pub struct Authentic<'a> {
    file: &'a RootFile,
    validity: Validity,
    issued_last_s: u64,
}

impl Authentic<'_> {
    /// The record.
    pub fn record(&self) -> &Record {
        &self.file.record.value
    }

    /// The period of the record's validity, including its renewal.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// When the renewal was signed, or the record if there is none, in seconds since 1970. The present time
    /// is not earlier.
    pub fn issued_last_s(&self) -> u64 {
        self.issued_last_s
    }
}

/// Checks that `file` belongs to the release and is signed as the key set that it names demands, whether
/// current or not.
///
/// # Errors
/// [`NotAuthentic`].
pub fn authenticate<'a>(chain: &KeyChain, file: &'a RootFile) -> Result<Authentic<'a>, NotAuthentic> {
    let record = &file.record.value;
    if record.release != chain.id() {
        return Err(NotAuthentic::WrongRelease { expected: chain.id(), found: record.release });
    }
    let Some(set) = chain.set(record.key_set) else {
        return Err(NotAuthentic::UnknownKeySet { found: record.key_set, last: chain.current().number });
    };
    file.record.check(&[(&whose(set.number), &set.role)])?;
    let by_record = Validity { from_s: record.issued_s, until_s: record.expires_s };
    let Some(renewal) = &file.freshness else {
        return Ok(Authentic { file, validity: by_record, issued_last_s: record.issued_s });
    };
    let by_renewal = renewed(set, record, renewal)?;
    let issued_last_s = record.issued_s.max(by_renewal.from_s);
    Ok(Authentic { file, validity: by_record.longer(by_renewal), issued_last_s })
}

fn renewed(set: &KeySet, record: &Record, renewal: &Signed<Freshness>) -> Result<Validity, NotAuthentic> {
    let Some(allowed) = &set.freshness else { return Err(NotAuthentic::NoRenewals(set.number)) };
    renewal.check(&[(&format!("{} for renewals", whose(set.number)), &allowed.role)])?;
    let Freshness { release, record: renewed, issued_s, expires_s } = renewal.value;
    if release != record.release {
        return Err(NotAuthentic::OtherRecord { expected: record.release.0, found: release.0 });
    }
    if renewed != record.digest() {
        return Err(NotAuthentic::OtherRecord { expected: record.digest(), found: renewed });
    }
    let allowed_s = issued_s.saturating_add(allowed.term_max_s).min(allowed.until_s);
    if expires_s > allowed_s {
        return Err(NotAuthentic::TermTooLong { key_set: set.number, found_s: expires_s, allowed_s });
    }
    Ok(Validity { from_s: issued_s, until_s: expires_s })
}
