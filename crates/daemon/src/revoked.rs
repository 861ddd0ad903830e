//! Revocation of writable file systems: mounts look for a certificate. Once found, it is stored, so that the
//! file system stays revoked.

use crate::paths::{Directories, make_private};
use holdfast_crypto::Digest;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::admit::Unreadable;
use holdfast_release::file_system::revoked;
use std::path::{Path, PathBuf};

/// Why a file system must not be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotUsable {
    /// Its superuser has revoked it, for this reason.
    Revoked(String),
    /// A directory of certificates cannot be read, so it may be revoked.
    Unknown(String),
}

/// Looks for a certificate among those found before, and in the directories `revocations`. Notices about
/// invalid ones are passed to `tell`.
///
/// # Errors
/// [`NotUsable`].
pub fn check(
    id: &Digest,
    revocations: &[PathBuf],
    directories: &Directories,
    tell: &dyn Fn(&str),
) -> Result<(), NotUsable> {
    let kept =
        directories.state_base().map_err(|failure| NotUsable::Unknown(failure.message))?.join("revoked");
    let places: Vec<PathBuf> =
        kept.is_dir().then(|| kept.clone()).into_iter().chain(revocations.to_vec()).collect();
    match revoked(*id, &places) {
        Ok(Err(notices)) => {
            notices.iter().for_each(|notice| tell(notice));
            Ok(())
        }
        Ok(Ok(found)) => {
            if !found.found.starts_with(&kept)
                && let Err(why) = keep(&kept, id, &found.certificate)
            {
                tell(&format!("the revocation cannot be kept: {}", why.message));
            }
            Err(NotUsable::Revoked(found.to_string()))
        }
        Err(Unreadable { path, error }) => Err(NotUsable::Unknown(format!(
            "{}: {error}; revocations are looked for here, so nothing is used until it can be read. Make it readable, or \
             take it off the list of revocation directories",
            path.display()
        ))),
    }
}

fn keep(folder: &Path, id: &Digest, certificate: &[u8]) -> Outcome {
    make_private(folder)?;
    holdfast_durable::replace(&folder.join(id.to_string()), certificate, 0o600)
        .map_err(|error| Failure::new(Exit::Io, error))
}

impl From<NotUsable> for Failure {
    fn from(why: NotUsable) -> Failure {
        match why {
            NotUsable::Revoked(why) => Failure::new(Exit::NotAllowed, why)
                .hint("ask its superuser where its successor is; nothing of it is to be trusted"),
            NotUsable::Unknown(why) => Failure::new(Exit::Data, why),
        }
    }
}
