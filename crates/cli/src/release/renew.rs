//! `holdfast release renew`

use super::args::Renew;
use super::settling::{DraftTarget, now_s, settle, signers};
use crate::output::Format;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::draft::Draft;
use holdfast_release::moment::{moment, span};
use holdfast_release::record::{Freshness, RootFile};
use holdfast_release::release_dir::ReleaseDir;
use holdfast_release::signing::{Signable, Signed};

/// Signs a renewal of the present record.
pub fn renew(arguments: &Renew, format: Format) -> Outcome {
    let directory = ReleaseDir::new(&arguments.directory);
    let chain = directory.chain()?;
    let root = directory.root(&chain)?.ok_or_else(|| {
        Failure::new(Exit::NoInput, format!("{}: nothing was published yet", arguments.directory.display()))
    })?;
    let set = chain.current();
    let Some(allowed) = &set.freshness else {
        return Err(Failure::new(Exit::NotAllowed, format!("key set {} allows no renewals", set.number)).hint(
            "publish again, or name a key that may renew: holdfast release keys rotate RELEASEDIR --freshness-key KEY \
             --freshness-until DATE --key ...",
        ));
    };
    let issued_s = now_s();
    if issued_s >= allowed.until_s {
        let message =
            format!("key set {} allows renewals only until {}", set.number, moment(allowed.until_s));
        return Err(Failure::new(Exit::NotAllowed, message).hint(
            "a new key set is needed: holdfast release keys rotate RELEASEDIR --freshness-until DATE ...",
        ));
    }
    let term_s = arguments.r#for.unwrap_or(allowed.term_max_s);
    if term_s > allowed.term_max_s {
        let message =
            format!("key set {} allows renewals of {} at most", set.number, span(allowed.term_max_s));
        return Err(Failure::new(Exit::NotAllowed, message));
    }
    let expires_s = issued_s.saturating_add(term_s).min(allowed.until_s);
    let record = &root.record.value;
    if expires_s <= record.expires_s {
        let message = format!("the record counts until {} without being renewed", moment(record.expires_s));
        return Err(Failure::new(
            Exit::Failed,
            format!("{message}; a renewal until {} adds nothing", moment(expires_s)),
        ));
    }
    let freshness = Freshness { release: chain.id(), record: record.digest(), issued_s, expires_s };
    let kind = format!(".renewal-{}", record.sequence);
    let root = RootFile { freshness: Some(Signed::unsigned(freshness)), ..root };
    let draft = Draft { sets: chain.sets().to_vec(), keys: None, root: Some(root), statement: None };
    let keys = signers(&arguments.key)?;
    if let Some(key) = keys.iter().find(|key| !allowed.role.keys.contains(&key.public())) {
        let name = holdfast_crypto::keyfile::fingerprint(&key.public());
        return Err(Failure::new(
            Exit::NotAllowed,
            format!("the key {name} may not renew by key set {}", set.number),
        ));
    }
    let done = settle(draft, &keys, &DraftTarget::Directory(arguments.directory.clone()), &kind)?;
    format.print(&done, super::settling::Signed::describe)
}
