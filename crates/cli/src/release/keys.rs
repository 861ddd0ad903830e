//! `holdfast release keys`

use super::args::{Init, Renewals, Rotate};
use super::settling::{DraftTarget, now_s, settle, signers};
use crate::output::Format;
use holdfast_crypto::{KeyHolder, PublicKey, keyfile};
use holdfast_daemon::keys::{public_of, random};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_release::draft::Draft;
use holdfast_release::form::Kind;
use holdfast_release::keys::{FreshnessRole, KeyChain, KeySet, Origin};
use holdfast_release::record::{Record, RootFile};
use holdfast_release::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_release::signing::{Role, Signable, Signed};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Makes the first key set.
pub fn init(arguments: &Init, format: Format) -> Outcome {
    match ReleaseDir::new(&arguments.out).chain() {
        Err(ReleaseDirError::Missing(_)) => {}
        Ok(chain) => {
            let message = format!("{}: the release {} is here already", arguments.out.display(), chain.id());
            return Err(Failure::new(Exit::CannotCreate, message).hint(
                "`holdfast release keys rotate` exchanges its keys; a new release needs a new directory",
            ));
        }
        Err(error) => return Err(error.into()),
    }
    let keys = signers(&arguments.key)?;
    let mut members = distinct(&keys)?;
    for argument in &arguments.add {
        add(&mut members, public_of(argument)?)?;
    }
    let threshold = match (arguments.threshold, members.len()) {
        (Some(threshold), _) => threshold,
        (None, 1) => 1,
        (None, count) => {
            return Err(Failure::new(Exit::Usage, format!("how many of the {count} keys must sign?"))
                .hint("say it with --threshold N; more than half of them is a good number"));
        }
    };
    let mut salt = [0; 16];
    random(&mut salt)?;
    let set = KeySet {
        number: 1,
        origin: Origin::First { salt },
        role: Role { keys: members, threshold },
        freshness: renewers(&arguments.renewals)?,
        certificates: arguments.certificates,
    };
    let set = makes_sense(set)?;
    let draft = Draft { sets: Vec::new(), keys: Some(set), root: None, statement: None };
    let done = settle(draft, &keys, &DraftTarget::Directory(arguments.out.clone()), ".keys-1")?;
    format.print(&done, super::settling::Signed::describe)
}

/// Makes the next key set, and has the record signed again under it.
pub fn rotate(arguments: &Rotate, format: Format) -> Outcome {
    let directory = ReleaseDir::new(&arguments.directory);
    let chain = directory.chain()?;
    let old = chain.current();
    let keys = signers(&arguments.key)?;
    let mut members = old.role.keys.clone();
    for argument in &arguments.add {
        add(&mut members, public_of(argument)?)?;
    }
    members.extend(distinct(&keys)?);
    for argument in &arguments.remove {
        let key = public_of(argument)?;
        if !old.role.keys.contains(&key) {
            let message = format!("the key {} is not in key set {}", keyfile::fingerprint(&key), old.number);
            return Err(Failure::new(Exit::NoInput, message));
        }
        members.remove(&key);
    }
    let freshness = match (arguments.no_freshness, renewers(&arguments.renewals)?) {
        (true, _) => None,
        (false, Some(new)) => Some(new),
        (false, None) => old.freshness.clone(),
    };
    let set = KeySet {
        number: old.number + 1,
        origin: Origin::After { previous: old.digest() },
        role: Role { keys: members, threshold: arguments.threshold.unwrap_or(old.role.threshold) },
        freshness,
        certificates: old.certificates,
    };
    if (&set.role, &set.freshness) == (&old.role, &old.freshness) {
        return Err(Failure::new(
            Exit::Usage,
            format!("key set {} would be the same as {}", set.number, old.number),
        )
        .hint("name new keys with --key or --add, old ones with --remove, or a --threshold"));
    }
    let kind = format!(".keys-{}", set.number);
    let set = makes_sense(set)?;
    let root = directory.root(&chain)?.map(|root| anew(&chain, &set.value, root, arguments.r#for));
    let draft = Draft { sets: chain.sets().to_vec(), keys: Some(set), root, statement: None };
    let done = settle(draft, &keys, &DraftTarget::Directory(arguments.directory.clone()), &kind)?;
    format.print(&done, super::settling::Signed::describe)
}

/// The same release as `root` in a new record, for the new keys to sign.
fn anew(chain: &KeyChain, set: &KeySet, root: RootFile, span_s: Option<u64>) -> RootFile {
    let before = &root.record.value;
    let issued_s = now_s();
    let span_s = span_s.unwrap_or(before.expires_s.saturating_sub(before.issued_s));
    let record = Record {
        release: chain.id(),
        key_set: set.number,
        sequence: before.sequence.saturating_add(1),
        issued_s,
        expires_s: issued_s.saturating_add(span_s),
        previous: Some(before.digest()),
        ..before.clone()
    };
    RootFile { record: Signed::unsigned(record), freshness: None, ..root }
}

fn renewers(arguments: &Renewals) -> Outcome<Option<FreshnessRole>> {
    let Some(until_s) = arguments.freshness_until else { return Ok(None) };
    let mut keys = BTreeSet::new();
    for argument in &arguments.freshness_key {
        add(&mut keys, public_of(argument)?)?;
    }
    if until_s <= now_s() {
        return Err(Failure::new(Exit::Usage, "--freshness-until is over already"));
    }
    let role = Role { keys, threshold: arguments.freshness_threshold };
    Ok(Some(FreshnessRole { role, term_max_s: arguments.freshness_term, until_s }))
}

fn distinct(keys: &[Arc<dyn KeyHolder>]) -> Outcome<BTreeSet<PublicKey>> {
    let mut found = BTreeSet::new();
    for key in keys {
        add(&mut found, key.public())?;
    }
    Ok(found)
}

/// Adds a key. A key that is named twice is an error, because another one was most likely meant.
fn add(keys: &mut BTreeSet<PublicKey>, key: PublicKey) -> Outcome {
    if keys.insert(key) {
        return Ok(());
    }
    let message =
        format!("the key {} is named twice, or is in the key set already", keyfile::fingerprint(&key));
    Err(Failure::new(Exit::Usage, message))
}

fn makes_sense(set: KeySet) -> Outcome<Signed<KeySet>> {
    let set = Signed::unsigned(set);
    set.well_formed().map_err(|why| {
        Failure::new(Exit::Usage, format!("key set {} makes no sense: {why}", set.value.number))
    })?;
    Ok(set)
}
