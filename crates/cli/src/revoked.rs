//! Writable file systems that were revoked: `holdfast fs revoke` makes the certificate, mounts look for it. One that was
//! found once is kept, so that the file system stays revoked.

use crate::args::FsRevoke;
use crate::exit::{Exit, Failure, Outcome};
use crate::keys;
use crate::output::Format;
use crate::paths::{Directories, make_private};
use holdfast_crypto::{Digest, KeyHolder};
use holdfast_release::admit::Unreadable;
use holdfast_release::file_system::{Revocation, Statement, revoked};
use holdfast_release::form::{self, Kind};
use holdfast_release::{files, signing::Signed};
use holdfast_rpc::Address;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a file system must not be used, as far as directories of certificates tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Checked {
    /// Its superuser has said that it is over.
    Revoked(String),
    /// A directory cannot be read, so nobody knows.
    Unknown(String),
}

/// Looks for a certificate where those that were found are kept, and in `revocations`. What people should be told of false
/// ones goes to `tell`.
///
/// # Errors
/// [`Checked`].
pub fn check(
    id: &Digest,
    revocations: &[PathBuf],
    directories: &Directories,
    tell: &dyn Fn(&str),
) -> Result<(), Checked> {
    let kept = directories.state_base().map_err(|failure| Checked::Unknown(failure.message))?.join("revoked");
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
                tell(&format!("the revocation cannot be kept: {why}"));
            }
            Err(Checked::Revoked(found.to_string()))
        }
        Err(Unreadable { path, error }) => Err(Checked::Unknown(format!(
            "{}: {error}; revocations are looked for here, so nothing is used until it can be read. Make it readable, or \
             take it off the list of revocation directories",
            path.display()
        ))),
    }
}

fn keep(folder: &Path, id: &Digest, certificate: &[u8]) -> Result<(), String> {
    make_private(folder).map_err(|failure| failure.message)?;
    files::replace(&folder.join(id.to_string()), certificate, 0o600).map_err(|error| error.to_string())
}

impl From<Checked> for Failure {
    fn from(checked: Checked) -> Failure {
        match checked {
            Checked::Revoked(why) => Failure::new(Exit::NotAllowed, why)
                .hint("ask its superuser where its successor is; nothing of it is to be trusted"),
            Checked::Unknown(why) => Failure::new(Exit::Data, why),
        }
    }
}

/// `holdfast fs revoke`: makes a certificate. It ends nothing before somebody finds it.
pub fn revoke(arguments: &FsRevoke, format: Format) -> Outcome {
    let address: Address = arguments.url.parse()?;
    let id = address.file_system;
    let superuser: Arc<dyn KeyHolder> = keys::read(&arguments.superuser)?.into_holder()?;
    if superuser.public().file_system_id() != id {
        let message = format!("{}: not the superuser's key", arguments.superuser.display());
        return Err(Failure::new(Exit::NotAllowed, message).hint(
            "the file system's id is the digest of its superuser's key, so no other key can revoke it",
        ));
    }
    let mut statement = Signed::unsigned(Statement { file_system: id, reason: arguments.reason.clone() });
    statement.sign(&*superuser).map_err(|error| Failure::new(Exit::Unavailable, error))?;
    let certificate = Revocation { superuser: superuser.public(), statement };
    certificate
        .well_formed()
        .map_err(|why| Failure::new(Exit::Usage, format!("the revocation makes no sense: {why}")))?;
    let out = &arguments.out;
    let failed =
        |error: std::io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", out.display()));
    let mut file =
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(out).map_err(failed)?;
    file.write_all(&form::write(&certificate)).and_then(|()| file.sync_all()).map_err(failed)?;
    let report = serde_json::json!({ "file_system": id.to_string(), "certificate": out });
    format.print(&report, |_| {
        format!(
            "{} revokes the file system {id}.\n\nIt ends the file system for good, once it is found: put it into \
             directories of revocations as {id}",
            out.display()
        )
    })
}
