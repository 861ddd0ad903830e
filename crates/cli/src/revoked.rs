//! `holdfast fs revoke`: ends a writable file system for good.

use crate::args::FsRevoke;
use crate::output::Format;
use holdfast_crypto::KeyHolder;
use holdfast_daemon::keys;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::file_system::{Revocation, Statement};
use holdfast_release::form::{self, Kind};
use holdfast_release::signing::Signed;
use holdfast_rpc::Address;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

/// `holdfast fs revoke`: makes a certificate, which has an effect wherever it is found.
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
