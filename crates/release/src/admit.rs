//! What a client does before it believes a mirror: it looks for revocations, follows the keys, and judges the record.

use crate::accept::{Accepted, ExpiredPolicy, Refusal};
use crate::form::{self, Kind, Malformed};
use crate::keys::{KeyChain, KeysError, ReleaseId, SETS_MAX, SignedKeySet};
use crate::layout;
use crate::mirror::{Mirror, MirrorError};
use crate::record::RootFile;
use crate::revocation::{Revocation, Revoked};
use crate::trust::{Trust, TrustError};
use std::io;
use std::path::{Path, PathBuf};

/// A release that may be used.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Admitted {
    /// The record, until when it counts, and warnings about it.
    pub accepted: Accepted,
    /// The file it came in; where blocks lie is in it, and is a hint.
    pub file: RootFile,
    /// The key sets, followed to the newest.
    pub chain: KeyChain,
    /// Further warnings: revocations that were found and are false, proofs against other mirrors' records.
    pub notices: Vec<String>,
}

/// Why a release may not be used as a mirror has it.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The mirror does not give a file that is needed.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The record is not the release's, or not the newest, or expired. Another mirror may have a better one.
    #[error("{mirror}: {file}: {error}")]
    Refused {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// Why it is refused.
        error: Box<TrustError>,
    },
    /// The mirror gives something that is not such a file.
    #[error("{mirror}: {file}: {error}")]
    Malformed {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// What is wrong.
        error: Malformed,
    },
    /// The release is over, whatever any mirror says.
    #[error("{revoked} ({found})")]
    Revoked {
        /// What the certificate says.
        revoked: Revoked,
        /// Where the certificate was found.
        found: String,
    },
    /// Files that remember the release cannot be read or written.
    #[error(transparent)]
    Trust(TrustError),
    /// A directory of revocations cannot be read, so nobody knows what is in it.
    #[error(
        "{}: {error}; revocations are looked for here, so nothing is used until it can be read. Make it readable, or \
         take it off the list of revocation directories",
        path.display()
    )]
    RevocationsUnreadable {
        /// The directory or file.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
}

impl AdmitError {
    /// Whether it proves that whoever holds the keys has signed two things of which only one could be honest. People
    /// must be told even if another mirror is as it should be.
    pub fn is_proof(&self) -> bool {
        let AdmitError::Refused { error, .. } = self else { return false };
        matches!(
            **error,
            TrustError::Refused { refusal: Refusal::Equivocation { .. }, .. }
                | TrustError::Keys { error: KeysError::Forked { .. }, .. }
        )
    }
}

/// Does all of it, and remembers what it learns.
///
/// # Errors
/// [`AdmitError`]. Keys that were followed, and a revocation, are remembered even then.
pub fn admit(
    trust: &Trust,
    mirror: &dyn Mirror,
    revocations: &[PathBuf],
    now_s: u64,
    stale: ExpiredPolicy,
) -> Result<Admitted, AdmitError> {
    let mut notices = not_revoked(trust, revocations)?;
    notices.extend(not_revoked_at(trust, mirror)?);
    let chain = follow_keys(trust, mirror)?;
    let bytes = mirror.get(layout::ROOT, None, RootFile::BYTES_MAX)?;
    let file: RootFile = form::read(&bytes).map_err(malformed(mirror, layout::ROOT))?;
    let accepted = trust.accept(&chain, &file, now_s, stale).map_err(blame(mirror, layout::ROOT))?;
    Ok(Admitted { accepted, file, chain, notices })
}

/// Looks for a revocation in what this machine remembers and in directories of certificates: `ID` and `ID.revoked`.
/// A directory may be anything, also a mounted release. Returns warnings about false ones.
///
/// # Errors
/// [`AdmitError::Revoked`], [`AdmitError::RevocationsUnreadable`], [`AdmitError::Trust`].
pub fn not_revoked(trust: &Trust, directories: &[PathBuf]) -> Result<Vec<String>, AdmitError> {
    if let Some(revoked) = trust.revoked().map_err(AdmitError::Trust)? {
        return Err(AdmitError::Revoked { revoked, found: "found earlier, and remembered".to_owned() });
    }
    let mut notices = Vec::new();
    for directory in directories {
        let found = certificates(directory, trust.id())
            .map_err(|Unreadable { path, error }| AdmitError::RevocationsUnreadable { path, error })?;
        for (path, certificate) in found {
            notices.extend(apply_certificate(trust, &certificate, path.display().to_string())?);
        }
    }
    Ok(notices)
}

/// Looks for a revocation at a mirror. That it has none proves nothing.
///
/// # Errors
/// [`AdmitError::Revoked`], [`AdmitError::Mirror`] if it cannot be reached, [`AdmitError::Trust`].
pub fn not_revoked_at(trust: &Trust, mirror: &dyn Mirror) -> Result<Option<String>, AdmitError> {
    match mirror.get(layout::REVOKED, None, Revocation::BYTES_MAX) {
        Ok(certificate) => {
            apply_certificate(trust, &certificate, format!("{}: {}", mirror.name(), layout::REVOKED))
        }
        Err(MirrorError::Missing { .. }) => Ok(None),
        Err(error @ MirrorError::Wrong { .. }) => Ok(Some(error.to_string())),
        Err(error @ MirrorError::Unreachable { .. }) => Err(error.into()),
    }
}

/// Follows the keys from what this machine remembers, or from the first, to the last that the mirror has.
///
/// # Errors
/// [`AdmitError::Mirror`], [`AdmitError::Refused`], [`AdmitError::Malformed`], [`AdmitError::Trust`].
pub fn follow_keys(trust: &Trust, mirror: &dyn Mirror) -> Result<KeyChain, AdmitError> {
    let fetch = |number: u64| -> Result<SignedKeySet, AdmitError> {
        let name = layout::keys(number);
        let bytes = mirror.get(&name, None, SignedKeySet::BYTES_MAX)?;
        form::read(&bytes).map_err(malformed(mirror, &name))
    };
    let refused = |number: u64, set: &SignedKeySet, error: KeysError| {
        blame(mirror, &layout::keys(number))(trust.forked(error, set))
    };
    let mut chain = match trust.chain().map_err(AdmitError::Trust)? {
        Some(chain) => chain,
        None => {
            let first = fetch(1)?;
            KeyChain::begin(trust.id(), first.clone()).map_err(|error| refused(1, &first, error))?
        }
    };
    // The last one known is looked at again: another in its place proves that the keys have signed two successions.
    let mut number = chain.current().number.max(2);
    while number <= SETS_MAX {
        let set = match fetch(number) {
            Ok(set) => set,
            // A mirror that lacks a known key set is merely behind, which its record will show.
            Err(AdmitError::Mirror(MirrorError::Missing { .. })) => break,
            Err(error) => return Err(error),
        };
        if set.value.number != number {
            let error = KeysError::Skipped { expected: number, found: set.value.number };
            return Err(refused(number, &set, error));
        }
        chain.extend(set.clone()).map_err(|error| refused(number, &set, error))?;
        number += 1;
    }
    trust.learn(&chain).map_err(blame(mirror, "keys"))
}

/// A false certificate only leads to a warning.
fn apply_certificate(trust: &Trust, certificate: &[u8], found: String) -> Result<Option<String>, AdmitError> {
    match trust.revoke(certificate).map_err(AdmitError::Trust)? {
        Ok(revoked) => Err(AdmitError::Revoked { revoked, found }),
        Err(error) => Ok(Some(format!("{found}: a false revocation, which is ignored: {error}"))),
    }
}

/// A directory of revocations that cannot be read, so nobody knows what is in it.
#[derive(Debug)]
pub struct Unreadable {
    /// The directory or file.
    pub path: PathBuf,
    /// What the system reports.
    pub error: io::Error,
}

/// The certificates in a directory that are named by an id. Finding none means something only if the directory is
/// readable.
pub(crate) fn certificates(directory: &Path, id: ReleaseId) -> Result<Vec<(PathBuf, Vec<u8>)>, Unreadable> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |error| Unreadable { path, error }
    };
    // The absence of a file means nothing if the directory is absent.
    if !std::fs::metadata(directory).map_err(unreadable(directory))?.is_dir() {
        return Err(unreadable(directory)(io::Error::other("this is not a directory")));
    }
    let mut found = Vec::new();
    for name in [id.to_string(), format!("{id}.revoked")] {
        let path = directory.join(name);
        match holdfast_durable::read(&path, Revocation::BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(bytes)) => found.push((path, bytes)),
            // A folder in the place of a certificate counts as a false one: anybody who may put files here can make
            // one.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => found.push((path, Vec::new())),
            Err(error) => return Err(unreadable(&path)(error)),
        }
    }
    Ok(found)
}

fn malformed(mirror: &dyn Mirror, file: &str) -> impl FnOnce(Malformed) -> AdmitError {
    let (mirror, file) = (mirror.name().to_owned(), file.to_owned());
    move |error| AdmitError::Malformed { mirror, file, error }
}

/// Tells errors of a mirror from those of the local disk.
fn blame(mirror: &dyn Mirror, file: &str) -> impl FnOnce(TrustError) -> AdmitError {
    let (mirror, file) = (mirror.name().to_owned(), file.to_owned());
    move |error| match error {
        TrustError::Refused { .. } | TrustError::Keys { .. } => {
            AdmitError::Refused { mirror, file, error: Box::new(error) }
        }
        TrustError::Revoked(revoked) => {
            AdmitError::Revoked { revoked, found: "found earlier, and remembered".to_owned() }
        }
        other => AdmitError::Trust(other),
    }
}
