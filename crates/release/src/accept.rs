//! Decides whether the record that a mirror sends is in force now.
//!
//! The clock's time and what this client has seen before are arguments. The later of the clock's time and the
//! latest time seen decides, so a clock that is behind cannot put a record in force that is known to have
//! expired. Errors that a wrong clock may have caused name the clock, and do not speak of an attack.
//!
//! Attacks answered: rollback (an older record), equivocation (two records with one number), freeze (a record
//! that has expired), and keys that were rotated out. A mirror that sends an older *renewal* of a record than
//! this client has seen does no harm: the record stays in force until the end of the latest renewal seen.

use crate::keys::KeyChain;
use crate::moment::{moment, span};
use crate::record::{NotAuthentic, Record, RootFile, Validity, authenticate};
use crate::signing::Signable;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;

/// How far ahead of this machine's clock the time of a signature may be, in seconds, because clocks differ.
pub const AHEAD_MAX_S: u64 = 600;

/// What a client has seen of a release: its highest record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct HighestRecord {
    /// The number of the record.
    pub sequence: u64,
    /// The digest of the record.
    pub record: Digest,
    /// When it was signed, in seconds since 1970.
    pub issued_s: u64,
    /// The period of validity by the renewal that lasts longest.
    pub validity: Validity,
    /// The latest time of any signature that was accepted for this release; the present time is not earlier.
    /// Readings of the clock are not remembered, because one wrong reading would have an effect for ever.
    pub latest_s: u64,
}

/// Whether a record that has expired is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpiredPolicy {
    /// Refuse it.
    Refuse,
    /// Accept it with a loud warning, but not for a certificate directory.
    Allow,
}

/// A record that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Accepted {
    /// The record.
    pub record: Record,
    /// The digest of the record.
    pub digest: Digest,
    /// The last second at which the record is in force, since 1970.
    pub valid_until_s: u64,
    /// Warnings for people.
    pub warnings: Vec<Warning>,
    /// What the client must remember from now on.
    pub seen: HighestRecord,
}

/// A warning about a record that was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Warning {
    /// More than half of the record's life is over.
    HalfLife {
        /// The last second at which it is in force, since 1970.
        until_s: u64,
        /// Seconds left.
        left_s: u64,
    },
    /// The record has expired, and was accepted because the caller allows that.
    Stale {
        /// The last second at which it was in force, since 1970.
        until_s: u64,
        /// How long ago that was, in seconds.
        ago_s: u64,
    },
    /// The mirror sent an older renewal than one seen before.
    OlderRenewal {
        /// When the record that is shown expires, in seconds since 1970.
        shown_until_s: u64,
        /// When the record that was accepted before expires, in seconds since 1970.
        known_until_s: u64,
    },
    /// The record names another predecessor than the record that was accepted under that number before. So
    /// somebody has been given that other record.
    OtherHistory {
        /// The number of the record seen before.
        sequence: u64,
        /// The digest of the record that was accepted before.
        seen: Digest,
        /// The digest that the new record names for it.
        named: Digest,
    },
    /// This machine's clock is behind the time of a signature seen before.
    ClockBehind {
        /// The time by this machine's clock, in seconds since 1970.
        clock_s: u64,
        /// The latest time of a signature seen before, in seconds since 1970.
        latest_s: u64,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Warning::HalfLife { until_s, left_s } => write!(
                f,
                "the release expires in {}, at {}, and was not renewed for more than half of its life",
                span(*left_s),
                moment(*until_s)
            ),
            Warning::Stale { until_s, ago_s } => write!(
                f,
                "STALE: the release expired {} ago, at {}; what is shown may be OLD, with faults that the publisher \
                 has corrected since. It is used only because that was asked for",
                span(*ago_s),
                moment(*until_s)
            ),
            Warning::OlderRenewal { shown_until_s, known_until_s } => write!(
                f,
                "the mirror is behind: it shows a renewal until {}, and one until {} was seen before",
                moment(*shown_until_s),
                moment(*known_until_s)
            ),
            Warning::OtherHistory { sequence, seen, named } => write!(
                f,
                "there were two releases {sequence}: {} was seen here, and the new one follows {}. The publisher has \
                 lost and replaced one, or shows different people different things",
                seen.short(),
                named.short()
            ),
            Warning::ClockBehind { clock_s, latest_s } => write!(
                f,
                "this machine's clock says {}, but the release was signed at {}; that time is used. Set the clock",
                moment(*clock_s),
                moment(*latest_s)
            ),
        }
    }
}

/// Why a record is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The record does not belong to the release.
    #[error(transparent)]
    NotAuthentic(#[from] NotAuthentic),
    /// The record is signed by keys that were replaced.
    #[error(
        "the record is signed by key set {found}, which key set {current} has replaced; the mirror is behind, or \
         somebody has the old keys"
    )]
    OlderKeySet {
        /// The number of the key set that signed the record.
        found: u64,
        /// The number of the current key set.
        current: u64,
    },
    /// The record is older than one seen before.
    #[error(
        "the mirror shows release {shown}, and this machine has seen release {seen} of it: it is behind, or rolls back"
    )]
    Rollback {
        /// The sequence number of the record that the mirror sent.
        shown: u64,
        /// The sequence number of the record that was accepted before.
        seen: u64,
    },
    /// The record differs from the one seen before under the same number, and both are signed.
    #[error(
        "there are two releases {sequence}, both signed: {} is the one seen first, and {} is another. The publisher \
         shows different people different things, or somebody has the keys",
        seen.short(), shown.short()
    )]
    Equivocation {
        /// The number of the record.
        sequence: u64,
        /// Digest of the record seen before.
        seen: Digest,
        /// Digest of the record that the mirror sent.
        shown: Digest,
    },
    /// A newer record states an earlier time than its predecessor.
    #[error(
        "release {sequence} says that it was signed at {}, before release {seen_sequence} (at {}); the publisher's \
         clock was wrong, and it has to be published again",
        moment(*issued_s), moment(*seen_s)
    )]
    Backwards {
        /// The number of the record.
        sequence: u64,
        /// The time at which it was signed, as it states, in seconds since 1970.
        issued_s: u64,
        /// The number of the record that was accepted before.
        seen_sequence: u64,
        /// When that record was signed, in seconds since 1970.
        seen_s: u64,
    },
    /// The record was signed in the future, by this machine's clock.
    #[error(
        "this machine's clock says {}, but the release was signed at {}. Set this machine's clock; if it is right, \
         the publisher's was wrong, and the release counts from then on",
        moment(*clock_s), moment(*issued_s)
    )]
    Future {
        /// The time by this machine's clock, in seconds since 1970.
        clock_s: u64,
        /// The time at which the record was signed, as it states, in seconds since 1970.
        issued_s: u64,
    },
    /// The record has expired.
    #[error(
        "the release expired at {}, and it is {} now{}: the publisher has not renewed it, or the mirror holds the \
         renewal back. Try another mirror{}",
        moment(*until_s),
        moment(*time_s),
        if clock_s == time_s { " by this machine's clock" } else { " by what was seen of the release" },
        if *certificates {
            "; a certificate directory is never used after it has expired"
        } else {
            "; --allow-stale uses it all the same"
        }
    )]
    Expired {
        /// The last second at which it was in force, since 1970.
        until_s: u64,
        /// The time that decides, in seconds since 1970: the later of the clock's and the latest seen.
        time_s: u64,
        /// The time by this machine's clock, in seconds since 1970.
        clock_s: u64,
        /// Whether the release is a certificate directory.
        certificates: bool,
    },
}

/// Decides whether the record in `file` is in force at `now_s`, for a client that has `seen` this much of the
/// release.
///
/// # Errors
/// [`Refusal`]. What the client remembers is unchanged.
pub fn accept(
    chain: &KeyChain,
    file: &RootFile,
    seen: Option<&HighestRecord>,
    now_s: u64,
    stale: ExpiredPolicy,
) -> Result<Accepted, Refusal> {
    let authentic = authenticate(chain, file)?;
    let record = authentic.record();
    let current = chain.current();
    if record.key_set < current.number {
        return Err(Refusal::OlderKeySet { found: record.key_set, current: current.number });
    }
    let digest = record.digest();
    if let Some(seen) = seen {
        not_older(record, digest, seen)?;
    }
    let latest_s = seen.map_or(0, |seen| seen.latest_s);
    let time_s = now_s.max(latest_s);
    let issued_s = authentic.issued_last_s();
    // The tolerance applies to the clock only. If it applied to the latest time seen, the holder of a
    // renewer's key could lead a client into the future, ten minutes at a time.
    if issued_s > now_s.saturating_add(AHEAD_MAX_S).max(latest_s) {
        return Err(Refusal::Future { clock_s: now_s, issued_s });
    }

    let mut warnings = Vec::new();
    if latest_s > now_s.saturating_add(AHEAD_MAX_S) {
        warnings.push(Warning::ClockBehind { clock_s: now_s, latest_s });
    }
    if let (Some(seen), Some(named)) = (seen, record.previous)
        && record.sequence == seen.sequence.saturating_add(1)
        && named != seen.record
    {
        warnings.push(Warning::OtherHistory { sequence: seen.sequence, seen: seen.record, named });
    }
    let shown = authentic.validity();
    let validity = match seen.filter(|seen| seen.record == digest) {
        Some(seen) => shown.longer(seen.validity),
        None => shown,
    };
    if validity.until_s > shown.until_s {
        warnings
            .push(Warning::OlderRenewal { shown_until_s: shown.until_s, known_until_s: validity.until_s });
    }
    let until_s = validity.until_s;
    if time_s > until_s {
        if stale == ExpiredPolicy::Refuse || current.certificates {
            let certificates = current.certificates;
            return Err(Refusal::Expired { until_s, time_s, clock_s: now_s, certificates });
        }
        warnings.push(Warning::Stale { until_s, ago_s: time_s - until_s });
    } else if time_s >= validity.half_life_s() {
        warnings.push(Warning::HalfLife { until_s, left_s: until_s - time_s });
    }
    let seen = HighestRecord {
        sequence: record.sequence,
        record: digest,
        issued_s: record.issued_s,
        validity,
        latest_s: latest_s.max(issued_s),
    };
    Ok(Accepted { record: record.clone(), digest, valid_until_s: until_s, warnings, seen })
}

/// Compares the record with the highest one seen before.
fn not_older(record: &Record, digest: Digest, seen: &HighestRecord) -> Result<(), Refusal> {
    let sequence = record.sequence;
    if sequence < seen.sequence {
        return Err(Refusal::Rollback { shown: sequence, seen: seen.sequence });
    }
    if sequence == seen.sequence && digest != seen.record {
        return Err(Refusal::Equivocation { sequence, seen: seen.record, shown: digest });
    }
    if record.issued_s < seen.issued_s {
        return Err(Refusal::Backwards {
            sequence,
            issued_s: record.issued_s,
            seen_sequence: seen.sequence,
            seen_s: seen.issued_s,
        });
    }
    Ok(())
}
