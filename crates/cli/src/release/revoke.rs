//! `holdfast release revoke`

use super::args::Revoke;
use super::settling::{DraftTarget, settle, signers};
use crate::output::Format;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::draft::Draft;
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::revocation::Statement;
use holdfast_release::signing::Signed;

/// Makes a certificate, which has an effect wherever it is found.
pub fn revoke(arguments: &Revoke, format: Format) -> Outcome {
    let chain = ReleaseDir::new(&arguments.directory).chain()?;
    let statement =
        Statement { release: chain.id(), reason: arguments.reason.clone(), successor: arguments.successor };
    statement
        .well_formed()
        .map_err(|why| Failure::new(Exit::Usage, format!("the revocation makes no sense: {why}")))?;
    let statement = Some(Signed::unsigned(statement));
    let draft = Draft { sets: chain.sets().to_vec(), keys: None, root: None, statement };
    let keys = signers(&arguments.key)?;
    let done = settle(draft, &keys, &DraftTarget::Certificate(arguments.out.clone()), "")?;
    format.print(&done, |done| match done.complete {
        false => done.describe(),
        true => format!(
            "{}\n\nIt ends the release for good, once it is found: put it at the mirrors as `revoked`, and into \
             directories of revocations as {}",
            done.describe(),
            done.release
        ),
    })
}
