//! What a client checks before it uses a mirror's release: it looks for revocations, follows the key sets,
//! and judges the record.

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
    /// The record, the end of its validity, and warnings about it.
    pub accepted: Accepted,
    /// The file that the record came in. It also says where blocks are; that part is unsigned.
    pub file: RootFile,
    /// The key sets, followed to the newest.
    pub chain: KeyChain,
    /// Further warnings: invalid revocations, and proofs against records of other mirrors.
    pub notices: Vec<String>,
}

/// Why the release that a mirror has may not be used.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    /// The mirror does not send a file that is needed.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The record does not belong to the release, is not the newest, or has expired. Another mirror may have
    /// a better one.
    #[error("{mirror}: {file}: {error}")]
    Refused {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// Why it is refused.
        error: Box<TrustError>,
    },
    /// The mirror sends something that is not a file of this kind.
    #[error("{mirror}: {file}: {error}")]
    Malformed {
        /// The mirror.
        mirror: String,
        /// The file.
        file: String,
        /// What is wrong.
        error: Malformed,
    },
    /// The release is revoked, whatever any mirror has.
    #[error("{revoked} ({found})")]
    Revoked {
        /// What the certificate says.
        revoked: Revoked,
        /// Where the certificate was found.
        found: String,
    },
    /// What this machine remembers of the release cannot be read or written.
    #[error(transparent)]
    Trust(TrustError),
    /// A directory of revocations cannot be read, so its content is unknown.
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
    /// Whether the error proves that the holder of the keys has signed two things of which only one can be
    /// honest. People must hear of it even if another mirror has a valid release.
    pub fn is_proof(&self) -> bool {
        let AdmitError::Refused { error, .. } = self else { return false };
        matches!(
            **error,
            TrustError::Refused { refusal: Refusal::Equivocation { .. }, .. }
                | TrustError::Keys { error: KeysError::Forked { .. }, .. }
        )
    }
}

/// Looks for revocations, follows the key sets and judges the record, and remembers the results.
///
/// # Errors
/// [`AdmitError`]. Key sets that were followed, and a revocation, are remembered even on an error.
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

/// Looks for a revocation in what this machine remembers, and in directories of certificates, under the names
/// `ID` and `ID.revoked`. Such a directory may also be a mounted release. Returns warnings about invalid
/// certificates.
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

/// Looks for a revocation at a mirror. If the mirror has none, that proves nothing. Returns a warning about
/// an invalid one.
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

/// Follows the key sets to the newest that the mirror has, beginning with those that this machine remembers,
/// or else with the first.
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
    // The last known key set is fetched again: a different one in its place proves that the keys have signed
    // two successions.
    let mut number = chain.current().number.max(2);
    while number <= SETS_MAX {
        let set = match fetch(number) {
            Ok(set) => set,
            // A mirror that lacks a known key set is only behind, which its record will show.
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

/// Applies a revocation certificate. An invalid one only leads to a warning, which is returned.
fn apply_certificate(trust: &Trust, certificate: &[u8], found: String) -> Result<Option<String>, AdmitError> {
    match trust.revoke(certificate).map_err(AdmitError::Trust)? {
        Ok(revoked) => Err(AdmitError::Revoked { revoked, found }),
        Err(error) => Ok(Some(format!("{found}: a false revocation, which is ignored: {error}"))),
    }
}

/// The error that a directory of revocations cannot be read, so that its content is unknown.
#[derive(Debug)]
pub struct Unreadable {
    /// The directory or file.
    pub path: PathBuf,
    /// What the system reports.
    pub error: io::Error,
}

/// The certificates in a directory that are named by the release's id. An empty result is conclusive, because
/// a directory that is unreadable or absent is an error.
pub(crate) fn certificates(directory: &Path, id: ReleaseId) -> Result<Vec<(PathBuf, Vec<u8>)>, Unreadable> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        move |error| Unreadable { path, error }
    };
    // The absence of a file is not conclusive if the directory is absent.
    if !std::fs::metadata(directory).map_err(unreadable(directory))?.is_dir() {
        return Err(unreadable(directory)(io::Error::other("this is not a directory")));
    }
    let mut found = Vec::new();
    for name in [id.to_string(), format!("{id}.revoked")] {
        let path = directory.join(name);
        match holdfast_durable::read(&path, Revocation::BYTES_MAX) {
            Ok(None) => {}
            Ok(Some(bytes)) => found.push((path, bytes)),
            // A folder in the place of a certificate counts as an invalid certificate: anybody who may put
            // files here can make one.
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

/// Attributes an error to the mirror or to the local disk.
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
